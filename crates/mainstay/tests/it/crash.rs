//! kill -9 under many writing clients, repeatedly: what was acknowledged, or shown to a client, exists after
//! the restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use api::{Code, Rpc, Status};

use testkit::{Random, TempDir, eventually};

use crate::client::{Client, put_op, revision};
use crate::history::{self, Deed, Fate, History, Op, Step};
use crate::member::{Member, Setup};
use crate::run;

const CONNECTIONS: u32 = 20;

/// Returns a number from the environment, so that many rounds can be run by hand.
pub fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Returns true if this is the error of a call whose member was killed, or whose member waited too long for its disk.
fn is_broken(status: &Status) -> bool {
    let heard = ["connection error", "etcdserver: request timed out"];
    status.code == Code::Unavailable && heard.iter().any(|text| status.message.starts_with(text))
}

/// Makes one operation of a writer; its number selects the kind.
pub async fn attempt(client: &Client, writer: u32, number: u32) -> (Deed, Result<Fate, Status>) {
    match number % 4 {
        0 | 2 => {
            let put = client.put(history::single_key(writer), history::value(writer, number));
            (Deed::Put, put.await.map(Fate::Done))
        }
        1 => {
            let value = history::value(writer, number);
            let success = ['a', 'b'].map(|half| put_op(history::pair_key(writer, half), value.clone()));
            let request = TxnRequest { success: success.to_vec(), ..TxnRequest::default() };
            let answer = client.call::<TxnResponse>(Rpc::KvTxn, &request).await;
            (Deed::Pair, answer.map(|answer| Fate::Done(revision(answer.header))))
        }
        _ => {
            let answer = client.delete(history::single_key(writer)).await;
            let fate = |(revision, deleted)| if deleted == 0 { Fate::Idle } else { Fate::Done(revision) };
            (Deed::Delete, answer.map(fate))
        }
    }
}

/// Writes until the connection breaks.
async fn write(client: Client, writer: u32, first: u32, acknowledged: Arc<AtomicU64>) -> Vec<Op> {
    let mut ops = Vec::new();
    for number in first.. {
        let (deed, outcome) = attempt(&client, writer, number).await;
        match outcome {
            Ok(fate) => {
                acknowledged.fetch_add(1, Ordering::Relaxed);
                ops.push(Op { number, deed, fate });
            }
            Err(status) => {
                assert!(is_broken(&status), "{status}");
                ops.push(Op { number, deed, fate: Fate::Unknown });
                break;
            }
        }
    }
    ops
}

/// Reads both halves of pairs, which must be equal, until the connection breaks. Returns what the reads showed.
async fn read(client: Client, writers: u32) -> Vec<Step> {
    let mut shown = Vec::new();
    for writer in (0..writers).cycle() {
        let request = RangeRequest {
            key: history::pair_key(writer, 'a').into(),
            range_end: history::pair_key(writer, 'c').into(),
            ..RangeRequest::default()
        };
        match client.call::<RangeResponse>(Rpc::KvRange, &request).await {
            Err(status) => {
                assert!(is_broken(&status), "{status}");
                break;
            }
            Ok(answer) => match &answer.kvs[..] {
                [] => {}
                [a, b] => {
                    assert_eq!(a.value, b.value, "half a transaction");
                    shown.push(Step {
                        revision: a.mod_revision,
                        writer,
                        deed: Deed::Pair,
                        number: history::number_of(a),
                        create_revision: a.create_revision,
                        version: a.version,
                    });
                }
                kvs => panic!("half a transaction: {kvs:?}"),
            },
        }
    }
    shown
}

/// Watches from a revision until the connection breaks. Returns what the watch showed.
async fn watch(client: Client, from: i64) -> Vec<Step> {
    let mut shown: Vec<Step> = Vec::new();
    let mut watch = match client.watch_all(from).await {
        Ok(watch) => watch,
        Err(status) if is_broken(&status) => return shown,
        Err(status) => panic!("{status}"),
    };
    loop {
        match watch.next().await {
            Ok(response) => {
                assert!(!response.canceled, "{response:?}");
                for step in history::steps_of(&response) {
                    let expected = shown.last().map_or(from, |last| last.revision + 1);
                    assert_eq!(step.revision, expected, "a watch skipped or repeated something");
                    shown.push(step);
                }
            }
            Err(status) => {
                assert!(is_broken(&status), "{status}");
                return shown;
            }
        }
    }
}

/// Compares the complete state of a member with the history.
pub async fn check(client: &Client, history: &mut History, compaction_tried: i64) {
    let everything =
        eventually("reads are served", testkit::TIMEOUT, async || client.everything().await.ok()).await;
    let last = revision(everything.header);
    assert!(last >= history.revision(), "revisions went back from {} to {last}", history.revision());

    // An acknowledged compaction holds; a compaction whose outcome is unknown may hold.
    let mut expected = 2;
    let mut watch = client.watch_all(expected).await.expect("a watch can be opened");
    while expected <= last {
        let response = watch.next().await.expect("the watch goes on");
        if response.canceled {
            let compacted = response.compact_revision;
            assert!(compacted == history.compacted || compacted == compaction_tried, "{response:?}");
            history.compacted = compacted;
            expected = compacted + 1;
            watch = client.watch_all(expected).await.expect("a watch can be opened");
        }
        assert!(expected > history.compacted, "a compaction that was acknowledged is undone");
        for step in history::steps_of(&response).into_iter().filter(|step| step.revision <= last) {
            assert_eq!(step.revision, expected, "the replay skipped or repeated something");
            history.replayed(step);
            expected += 1;
        }
    }
    history.settle(&everything);
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let rounds = setting("MAINSTAY_CRASH_ROUNDS", 5);
    let writers = setting("MAINSTAY_CRASH_WRITERS", 128);
    let seed = u64::from(setting("MAINSTAY_CRASH_SEED", 1));
    println!("MAINSTAY_CRASH_ROUNDS={rounds} MAINSTAY_CRASH_WRITERS={writers} MAINSTAY_CRASH_SEED={seed}");
    let mut dice = Random::new(seed);
    let dir = TempDir::new("crash");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=100");
    let mut history = History::new(writers);
    let mut hashed = None;
    for round in 0..rounds {
        let member = setup.start();
        let mut compaction_tried = 0;
        run(async {
            let acknowledged = Arc::new(AtomicU64::new(0));
            let mut clients = Vec::new();
            for _ in 0..CONNECTIONS {
                clients.push(member.client().await);
            }
            let client = |number: u32| clients[(number % CONNECTIONS) as usize].clone();
            let tasks: Vec<_> = (0..writers)
                .map(|writer| {
                    let first = history.tried(writer);
                    tokio::spawn(write(client(writer), writer, first, Arc::clone(&acknowledged)))
                })
                .collect();
            let watcher = tokio::spawn(watch(member.client().await, history.revision() + 1));
            let reader = tokio::spawn(read(member.client().await, writers));

            let enough = 200 + dice.below(4000);
            eventually("enough is written", Duration::from_secs(60), async || {
                (acknowledged.load(Ordering::Relaxed) >= enough / 2).then_some(())
            })
            .await;
            if round % 2 == 1 {
                compaction_tried = history.revision() / 3 * 2;
                if clients[0].compact(compaction_tried, false).await.is_ok() {
                    history.compacted = compaction_tried;
                }
            }
            eventually("enough is written", Duration::from_secs(60), async || {
                (acknowledged.load(Ordering::Relaxed) >= enough).then_some(())
            })
            .await;
            member.kill();

            for (writer, task) in (0..writers).zip(tasks) {
                history.did(writer, task.await.expect("no writer panics"));
            }
            let mut shown = watcher.await.expect("no watcher panics");
            shown.extend(reader.await.expect("no reader panics"));

            // Some starts are interrupted, too.
            for _ in 0..dice.below(3) {
                let member = Member::spawn(&setup);
                member.wait_for(if dice.below(2) == 0 { "starting a member" } else { "restored the state" });
                member.kill();
            }
            let member = setup.start();
            check(&member.client().await, &mut history, compaction_tried).await;
            for step in &shown {
                history.was_shown(step);
            }

            let client = member.client().await;
            if let Some((at, hash, compacted)) = hashed
                && compacted == history.compacted
            {
                let again = client.hash_kv(at).await.expect("the hash of old times can be had");
                assert_eq!((again.hash, again.hash_revision), (hash, at), "history hashes differently");
            }
            let now = client.hash_kv(0).await.expect("a hash can be had");
            assert_eq!(now.compact_revision, if history.compacted == 0 { -1 } else { history.compacted });
            hashed = Some((now.hash_revision, now.hash, history.compacted));
            member.kill();
        });
    }
    let (acknowledged, unknown) = history.tally();
    println!("{rounds} crashes, {acknowledged} acknowledged writes, {unknown} cut short: none lost");
    assert!(acknowledged > 200 && unknown > 0, "the crashes met writes under way");
}
