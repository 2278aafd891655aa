//! `--value-compression=zstd` with a real process: most of the disk space is freed, every way of reading gets
//! the values as they were written, and neither kill -9 nor a damaged file makes a read wrong.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{SnapshotRequest, SnapshotResponse, TxnRequest, TxnResponse};
use numbers::Revision;
use testkit::pods::{pod, pod_key};
use testkit::{TempDir, eventually, http1};

use crate::answers::all;
use crate::client::{Client, put_op};
use crate::damage::flip;
use crate::member::{Member, Setup, binary};
use crate::run;
use crate::wal_dir::tool;

/// Number of pods, which fill four segments.
const PODS: u64 = 12_500;
const POD_BYTES: usize = 20_000;
const PODS_PER_TXN: u64 = 50;
const PATIENCE: Duration = Duration::from_secs(180);

async fn fill(client: &Client) {
    for first in (0..PODS).step_by(PODS_PER_TXN as usize) {
        let puts = (first..first + PODS_PER_TXN).map(|n| put_op(pod_key(n), pod(n, 1, POD_BYTES)));
        let request = TxnRequest { success: puts.collect(), ..TxnRequest::default() };
        let _: TxnResponse = client.call(Rpc::KvTxn, &request).await.expect("puts are served");
    }
}

/// Returns the value of a metric.
fn metric(member: &Member, name: &str) -> f64 {
    let page = http1::get(member.client_address(), "/metrics").text().to_owned();
    let line =
        page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is missing"));
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn files(setup: &Setup, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(setup.data_dir.join("member/log")).expect("the log is there");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    paths
}

/// Reads everything one by one, in one large answer, and as the history of a watch.
async fn assert_reads(client: &Client) {
    for number in (0..PODS).step_by(7) {
        let kv = client.get(pod_key(number)).await.expect("reads are served").expect("the key is there");
        assert!(kv.value == pod(number, 1, POD_BYTES), "pod {number} is wrong");
    }
    let everything = client.everything().await.expect("large reads are served");
    assert_eq!(everything.kvs.len() as u64, PODS);
    for kv in everything.kvs {
        let number = kv.key.rsplit(|byte| *byte == b'-').next().expect("has a number");
        let number = String::from_utf8_lossy(number).parse().expect("has a number");
        assert!(kv.value == pod(number, 1, POD_BYTES), "pod {number} is wrong in a large answer");
    }
    let mut watch = client.watch_all(1).await.expect("watches are served");
    let mut seen = 0;
    while seen < PODS {
        for event in watch.next().await.expect("goes on").events {
            let kv = event.kv.expect("has one");
            assert!(kv.value == pod(seen, 1, POD_BYTES), "pod {seen} is wrong in the history");
            seen += 1;
        }
    }
}

/// Waits until compression has been used for most of the values.
async fn until_compressed(member: &Member, setup: &Setup, at_most: usize) {
    eventually("the old segments are compressed and deleted", PATIENCE, async || {
        let segments = files(setup, "seg").len();
        let compressed = metric(member, "mainstay_value_compression_compressed_total");
        (segments <= at_most && compressed > 0.0).then_some(())
    })
    .await;
}

#[test]
fn pods_are_compressed_in_the_background_and_every_read_gets_them_as_they_were() {
    let dir = TempDir::new("compression");
    let setup = Setup::new(dir.path()).flag("--log-level=debug").flag("--snapshot-count=50");
    let zstd =
        Setup { flags: [setup.flags.clone(), vec!["--value-compression=zstd".to_owned()]].concat(), ..setup };
    run(async {
        let member = zstd.start();
        let client = member.client().await;
        fill(&client).await;
        let hash = client.hash_kv(0).await.expect("a hash can be had").hash;
        // Killed amid the work, which is done again.
        eventually("compression has begun", PATIENCE, async || {
            (metric(&member, "mainstay_value_compression_compressed_total") > 0.0).then_some(())
        })
        .await;
        member.kill();
        let member = zstd.start();
        let client = member.client().await;
        assert_reads(&client).await;
        // The segment in use, the next one, the newest sealed one, and the compressed values.
        until_compressed(&member, &zstd, 4).await;
        let raw = metric(&member, "mainstay_value_compression_compressed_raw_bytes_total");
        let stored = metric(&member, "mainstay_value_compression_compressed_bytes_total");
        println!("{raw} bytes were compressed to {stored}: {:.3}", stored / raw);
        assert!(stored <= 0.35 * raw, "{stored} of {raw}");
        assert_eq!(metric(&member, "mainstay_value_compression_dictionaries"), 1.0);
        assert_reads(&client).await;
        assert_eq!(client.hash_kv(0).await.expect("a hash can be had").hash, hash);
        let pieces: Vec<SnapshotResponse> = all(&client, Rpc::MaintenanceSnapshot, &SnapshotRequest {}).await;
        let file: Vec<u8> = pieces.iter().flat_map(|piece| piece.blob.to_vec()).collect();
        let (backend, _) = interchange::snapshot::open(file).expect("etcd's database and its digest");
        assert_eq!(interchange::hash_kv(&backend, Revision(0)).expect("can be hashed").hash, hash);
        member.kill();

        // Without the option, after kill -9.
        let flags = vec!["--value-compression=none".to_owned(), "--snapshot-count=50".to_owned()];
        let raw = Setup { flags, ..zstd };
        let member = raw.start();
        let client = member.client().await;
        assert_reads(&client).await;
        assert_eq!(client.hash_kv(0).await.expect("a hash can be had").hash, hash);
        member.stop();

        // A copy of the directory has everything, and can be exported to etcd's database.
        let (copy, etcd) = (dir.path().join("copy"), dir.path().join("etcd"));
        let copied = Command::new("cp").arg("-a").arg(&raw.data_dir).arg(&copy).status().expect("runs");
        assert!(copied.success());
        tool(
            "utl",
            &["export", "--data-dir", &copy.display().to_string(), "--to", &etcd.display().to_string()],
        );
        let database = etcd.join("member/snap/db").display().to_string();
        let printed = Command::new(binary()).args(["utl", "hashkv", &database]).output().expect("runs");
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert!(printed.contains(&hash.to_string()), "{printed} is not {hash}");

        // A damaged dictionary is found by the reads that need it, and by nothing else.
        let dictionaries = files(&raw, "dict");
        let [dictionary] = dictionaries.as_slice() else { panic!("{dictionaries:?}") };
        flip(dictionary, 3000);
        let member = raw.start();
        let client = member.client().await;
        let (mut failed, mut read) = (0, 0);
        for number in (0..PODS).step_by(13) {
            match client.get(pod_key(number)).await {
                Ok(kv) => {
                    assert!(kv.expect("the key is there").value == pod(number, 1, POD_BYTES));
                    read += 1;
                }
                Err(status) => {
                    assert!(status.message.contains(&dictionary.display().to_string()), "{status}");
                    failed += 1;
                }
            }
        }
        assert!(failed > 0 && read > 0, "{failed} {read}");
        client.put("k", "v").await.expect("writes are served");
        member.wait_for("a dictionary of compressed values cannot be used");
        member.stop();
        flip(dictionary, 3000);
        let member = raw.start();
        let client = member.client().await;
        client.delete("k").await.expect("deletes are served");
        for number in 0..20 {
            let kv = client.get(pod_key(number)).await.expect("is read again").expect("the key is there");
            assert!(kv.value == pod(number, 1, POD_BYTES));
        }
        member.stop();
    });
}
