//! `--memory-budget` with a real process: most of the index is read from the checkpoint, every way of reading gets what
//! was written, restarts with and without a budget agree, and a damaged block is never an answer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use bytes::Bytes;
use testkit::{Random, TempDir, eventually};

use crate::client::{ALL, Client, delete_op, put_op};
use crate::cluster::Cluster;
use crate::damage::flip;
use crate::member::{Member, READY, Setup};
use crate::{filler, run};

const KEYS: u32 = 20_000;
const PUTS_PER_TXN: u32 = 100;
/// So small that nearly nothing of the index fits.
const BUDGET: &str = "--memory-budget=65536";
const PATIENCE: Duration = Duration::from_secs(120);

/// Keys and values as they were acknowledged.
type Model = BTreeMap<Bytes, Bytes>;

fn key(n: u32) -> Bytes {
    format!("key/{n:07}").into()
}

async fn fill(client: &Client, model: &mut Model, keys: u32) {
    for first in (0..keys).step_by(PUTS_PER_TXN as usize) {
        let puts = first..keys.min(first + PUTS_PER_TXN);
        let success = puts.map(|n| put_op(key(n), filler(n, 20))).collect();
        let _: TxnResponse = client
            .call(Rpc::KvTxn, &TxnRequest { success, ..TxnRequest::default() })
            .await
            .expect("puts are served");
    }
    model.extend((0..keys).map(|n| (key(n), filler(n, 20))));
}

/// Overwrites and deletes some keys, also several in one transaction.
async fn change(client: &Client, model: &mut Model, random: &mut Random, times: u32) {
    for _ in 0..times {
        let (put, delete) =
            (key(random.below(u64::from(KEYS)) as u32), key(random.below(u64::from(KEYS)) as u32));
        if put == delete {
            continue;
        }
        let value = filler(random.below(1000) as u32, 30);
        let success = vec![put_op(put.clone(), value.clone()), delete_op(delete.clone())];
        let _: TxnResponse = client
            .call(Rpc::KvTxn, &TxnRequest { success, ..TxnRequest::default() })
            .await
            .expect("transactions are served");
        model.insert(put, value);
        model.remove(&delete);
    }
}

async fn compact(client: &Client) -> i64 {
    let revision = client.status().await.expect("it serves").header.expect("a header").revision;
    client.compact(revision, true).await.expect("compactions are served");
    revision
}

async fn range(client: &Client, request: RangeRequest) -> RangeResponse {
    client.call(Rpc::KvRange, &request).await.expect("reads are served")
}

/// Reads everything at once and in parts, counts, and reads single keys, of which some do not exist.
async fn assert_reads(client: &Client, model: &Model) {
    let everything = client.everything().await.expect("large reads are served");
    assert_eq!(everything.count, model.len() as i64);
    assert!(everything.kvs.iter().map(|kv| (&kv.key, &kv.value)).eq(model.iter()), "a large read is wrong");
    for n in (0..KEYS).step_by(KEYS as usize / 97) {
        let found = client.get(key(n)).await.expect("reads are served");
        assert_eq!(found.map(|kv| kv.value).as_ref(), model.get(&key(n)), "key {n}");
    }
    for from in [0, KEYS / 3, KEYS - 50] {
        let (start, end) = (key(from), key(from + 700));
        let expected: Vec<_> = model.range(start.clone()..end.clone()).collect();
        let request = RangeRequest { key: start.clone(), range_end: end.clone(), ..RangeRequest::default() };
        let found = range(client, RangeRequest { limit: 60, ..request.clone() }).await;
        assert_eq!(found.count, expected.len() as i64);
        assert!(found.kvs.iter().map(|kv| (&kv.key, &kv.value)).eq(expected.iter().copied().take(60)));
        let counted = range(client, RangeRequest { count_only: true, ..request }).await;
        assert_eq!((counted.count, counted.kvs.len()), (expected.len() as i64, 0));
    }
}

/// Waits until the index reads settled keys from a checkpoint that this process has written.
async fn until_adopted(member: &Member) {
    eventually("a base is adopted", PATIENCE, async || {
        member.said().contains("the index reads settled keys from the newest checkpoint").then_some(())
    })
    .await;
}

/// Returns the files of the checkpoint whose names end so.
fn files(setup: &Setup, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(setup.data_dir.join("member/checkpoint")).expect("it is there");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let mut found: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(end)).collect();
    found.sort();
    found
}

fn setup(dir: &TempDir) -> Setup {
    Setup::new(dir.path()).flag("--log-level=debug").flag("--snapshot-count=100")
}

fn with_budget(setup: &Setup) -> Setup {
    Setup { flags: [setup.flags.clone(), vec![BUDGET.to_owned()]].concat(), ..setup.clone() }
}

#[test]
fn reads_and_restarts_agree_with_a_budget_and_without() {
    let dir = TempDir::new("memory-budget");
    let off = setup(&dir);
    let on = with_budget(&off);
    let mut random = Random::new(5);
    let mut model = Model::new();
    run(async {
        let member = on.start();
        let client = member.client().await;
        fill(&client, &mut model, KEYS).await;
        let lease = client.grant(100_000).await.expect("leases are granted");
        for n in 0..50 {
            let key = Bytes::from(format!("leased/{n}"));
            client.put_leased(key.clone(), "x", lease).await.expect("puts are served");
            model.insert(key, "x".into());
        }
        change(&client, &mut model, &mut random, 200).await;
        compact(&client).await;
        until_adopted(&member).await;
        assert_eq!((files(&on, "-changes.run").len(), files(&on, "-top.run").len()), (1, 1));
        assert_reads(&client, &model).await;
        // Old and new revisions, and a watch that begins at the oldest readable one.
        let before = client.status().await.expect("it serves").header.expect("a header").revision;
        let older = model.clone();
        change(&client, &mut model, &mut random, 300).await;
        assert_reads(&client, &model).await;
        let request = RangeRequest {
            key: "a".into(),
            range_end: ALL.into(),
            revision: before,
            ..RangeRequest::default()
        };
        let then = range(&client, request).await;
        assert!(
            then.kvs.iter().map(|kv| (&kv.key, &kv.value)).eq(older.iter()),
            "an older revision is wrong"
        );
        let hash = client.hash_kv(0).await.expect("a hash can be had").hash;
        member.kill();

        // After kill -9 with a budget, without, and with one again.
        for (setup, writes) in [(&on, false), (&off, true), (&on, true)] {
            let member = setup.start();
            let client = member.client().await;
            assert_reads(&client, &model).await;
            if !writes {
                assert_eq!(client.hash_kv(0).await.expect("a hash can be had").hash, hash);
            }
            assert_eq!(client.time_to_live(lease, true).await.expect("is served").keys.len(), 50);
            change(&client, &mut model, &mut random, 100).await;
            compact(&client).await;
            assert_reads(&client, &model).await;
            member.stop();
        }
        let member = off.start();
        let client = member.client().await;
        assert_reads(&client, &model).await;
        client.revoke(lease).await.expect("is served");
        model.retain(|key, _| !key.starts_with(b"leased/"));
        assert_reads(&client, &model).await;
        member.stop();
        let member = on.start();
        assert_reads(&member.client().await, &model).await;
        member.stop();
    });
}

#[test]
fn a_damaged_block_stops_the_member_and_is_never_an_answer() {
    let dir = TempDir::new("memory-budget-damage");
    let on = with_budget(&setup(&dir));
    let mut model = Model::new();
    run(async {
        let member = on.start();
        let client = member.client().await;
        fill(&client, &mut model, KEYS).await;
        compact(&client).await;
        until_adopted(&member).await;
        member.stop();
        let bases = files(&on, ".run");
        let base = bases.iter().find(|path| {
            let name = path.to_string_lossy();
            name.contains("0000000000000000-")
                && !name.ends_with("-changes.run")
                && !name.ends_with("-top.run")
        });
        let base = base.expect("there is one").clone();
        let middle = std::fs::metadata(&base).expect("readable").len() / 2;
        flip(&base, middle);

        // The start does not read the block. A read that needs it is refused, and the member stops.
        let mut member = on.start();
        let client = member.client().await;
        assert!(client.get(key(0)).await.expect("its block is whole").is_some());
        let request = RangeRequest { key: "a".into(), range_end: ALL.into(), ..RangeRequest::default() };
        let answer: Result<RangeResponse, _> = client.call(Rpc::KvRange, &request).await;
        assert!(
            answer.is_err(),
            "{} keys of {KEYS} were an answer",
            answer.map_or(0, |answer| answer.kvs.len())
        );
        assert!(!member.wait().success());
        let said = member.said();
        let name = base.file_name().expect("it has one").to_string_lossy().into_owned();
        assert!(
            said.contains(&name) && said.contains("offset") && said.contains("mainstay rebuild"),
            "{said}"
        );

        // A write to the block is not acknowledged.
        let mut member = on.start();
        let client = member.client().await;
        let mut n = 0;
        while client.delete(key(n)).await.is_ok() {
            n += 20;
            assert!(n < KEYS, "no delete has met the block");
        }
        assert!(!member.wait().success());
    });
}

#[test]
fn damaged_lists_and_changes_are_refused_or_not_needed() {
    let dir = TempDir::new("memory-budget-companions");
    let off = setup(&dir);
    let on = with_budget(&off);
    let mut model = Model::new();
    run(async {
        let member = on.start();
        let client = member.client().await;
        fill(&client, &mut model, KEYS).await;
        compact(&client).await;
        until_adopted(&member).await;
        member.stop();
    });
    for (number, (end, offset)) in
        [("-top.run", 200), ("-top.run", 20), ("-changes.run", 20)].into_iter().enumerate()
    {
        for setup in [&on, &off] {
            let copy = dir.path().join(format!("copy-{number}-{}", setup.flags.len()));
            let copied = Command::new("cp").arg("-a").arg(&on.data_dir).arg(&copy).status().expect("runs");
            assert!(copied.success());
            let setup = Setup { data_dir: copy, ..setup.clone() };
            let [file] = files(&setup, end).try_into().expect("there is one");
            flip(&file, offset);
            let name = file.file_name().expect("it has one").to_string_lossy().into_owned();
            let member = setup.start();
            let said = member.said();
            // The whole base run is read instead. Without a budget the file is not needed.
            let is_refused =
                said.lines().any(|line| line.contains(&name) && line.contains("is damaged at offset"));
            assert_eq!(is_refused, setup.flags == on.flags, "{said}");
            run(async { assert_reads(&member.client().await, &model).await });
            member.stop();
        }
    }
}

#[test]
fn members_with_and_without_a_budget_have_the_same_state() {
    let flags = ["--snapshot-count=100", "--snapshot-catchup-entries=5", "--log-level=debug"];
    let mut cluster = Cluster::plan("memory-budget", 1, &flags);
    cluster.slots[0].flags.push(BUDGET.to_owned());
    cluster.start_all();
    let mut model = Model::new();
    let mut random = Random::new(9);
    run(async {
        let client = cluster.client(0).await;
        fill(&client, &mut model, KEYS).await;
        change(&client, &mut model, &mut random, 200).await;
        compact(&client).await;
        until_adopted(cluster.member(0)).await;
        change(&client, &mut model, &mut random, 200).await;
        // Members that have no data get the whole state from one that reads it from blocks.
        for has_budget in [false, true] {
            let added = cluster.add_slot();
            if has_budget {
                cluster.slots[added].flags.push(BUDGET.to_owned());
            }
            cluster.announce(added - 1, added, false).await;
            let command = cluster.joining(added, &(0..=added).collect::<Vec<usize>>());
            cluster.spawn_with(added, command);
            cluster.member(added).wait_for("installed a snapshot");
            cluster.member(added).wait_for(READY);
            assert_reads(&cluster.client(added).await, &model).await;
        }
        change(&client, &mut model, &mut random, 100).await;
        compact(&client).await;
        until_adopted(cluster.member(2)).await;
        cluster.assert_equal().await;
        for at in 0..3 {
            assert_reads(&cluster.client(at).await, &model).await;
        }
    });
}

/// Figures for the documentation, with two million keys: `MAINSTAY_FULL_SIZE=1`.
#[cfg(feature = "full")]
#[test]
fn memory_and_restart_with_many_keys() {
    let keys: u32 = if std::env::var_os("MAINSTAY_FULL_SIZE").is_some() { 2_000_000 } else { 60_000 };
    let dir = TempDir::new("memory-budget-size");
    let off = setup(&dir);
    let on = Setup {
        flags: [off.flags.clone(), vec![format!("--memory-budget={}", u64::from(keys) * 8)]].concat(),
        ..off.clone()
    };
    let mut model = Model::new();
    run(async {
        let member = on.start();
        let client = member.client().await;
        fill(&client, &mut model, keys).await;
        compact(&client).await;
        until_adopted(&member).await;
        member.stop();
        let mut figures = Vec::new();
        for (name, setup) in [("without", &off), ("with", &on)] {
            let began = std::time::Instant::now();
            let member = setup.start();
            let client = member.client().await;
            let found = client.get(key(keys / 2)).await.expect("reads are served");
            let took = began.elapsed();
            assert_eq!(found.map(|kv| kv.value).as_ref(), model.get(&key(keys / 2)));
            figures.push(member.rss_bytes());
            println!(
                "{keys} keys, {name} a budget: {} MiB, first read after {took:?}",
                member.rss_bytes() >> 20
            );
            member.stop();
        }
        let saved = figures[0].saturating_sub(figures[1]);
        assert!(saved >= u64::from(keys) * 50, "{figures:?}");
    });
}
