//! `make-mirror --keep-revisions`: a second cluster that goes through the history of the first, and takes its place.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use api::Rpc;
use api::etcdserverpb::{DeleteRangeRequest, DeleteRangeResponse, TxnRequest, TxnResponse};
use testkit::{TIMEOUT, TempDir};

use crate::client::{Client, delete_op, put_op};
use crate::member::{Member, Setup, binary};
use crate::run;

/// A member of a cluster of its own that is at the same address after a restart.
struct Side {
    setup: Setup,
    url: String,
}

impl Side {
    fn new(dir: &Path, token: &str) -> Side {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let url = format!("http://127.0.0.1:{port}");
        let mut setup = Setup::new(&dir.join(token));
        std::fs::create_dir(dir.join(token)).expect("a directory");
        for flag in ["listen-client-urls", "advertise-client-urls"] {
            setup = setup.flag(format!("--{flag}={url}"));
        }
        Side { setup: setup.flag(format!("--initial-cluster-token={token}")), url }
    }
}

fn mirror(source: &Side, target: &Side, flags: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .env_clear()
        .args(["ctl", "make-mirror", "--endpoints", &source.url, "--keep-revisions", &target.url])
        .args(flags)
        .stdin(Stdio::null());
    command
}

fn run_mirror(source: &Side, target: &Side, flags: &[&str]) -> Output {
    mirror(source, target, flags).output().expect("the binary runs")
}

fn refused(output: &Output, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(words), "{said}");
}

/// Ends the mirror with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn delete_range(client: &Client, from: &str, to: &str) -> i64 {
    let request =
        DeleteRangeRequest { key: from.to_owned().into(), range_end: to.to_owned().into(), prev_kv: false };
    client.call::<DeleteRangeResponse>(Rpc::KvDeleteRange, &request).await.expect("is deleted").deleted
}

/// One of each kind of change: transactions of several keys, ranges and leases with more keys than a transaction may name.
async fn history(client: &Client) {
    for n in 0..150 {
        client.put(format!("a/{n:03}"), "once").await.expect("is put");
    }
    let lease = client.grant(600).await.expect("is granted");
    for n in 0..300 {
        // Every other key of the range is the lease's.
        let key = format!("l/{n:03}");
        let put = if n % 2 == 0 {
            client.put(key, "free").await
        } else {
            client.put_leased(key, "bound", lease).await
        };
        put.expect("is put");
    }
    let success = vec![put_op("t/1", "x"), delete_op("a/007"), put_op("a/001", "twice"), put_op("t/0", "")];
    let request = TxnRequest { success, ..TxnRequest::default() };
    let _: TxnResponse = client.call(Rpc::KvTxn, &request).await.expect("is taken");
    assert_eq!(delete_range(client, "a/", "a/1").await, 99, "all but a/007");
    client.revoke(lease).await.expect("is revoked");
    client.delete("t/1").await.expect("is deleted");
    client.put("t/1", "again").await.expect("is put");
    assert_eq!(delete_range(client, "l/", "l0").await, 150);
}

async fn hash(member: &Member) -> (i64, u32) {
    let client = member.client().await;
    let answer = client.hash_kv(0).await.expect("is hashed");
    (answer.hash_revision, answer.hash)
}

#[test]
fn a_mirror_goes_through_every_revision_and_takes_the_place_of_its_source() {
    let dir = TempDir::in_memory("mirror-revisions");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    run(async {
        let client = here.client().await;
        history(&client).await;
        let lease = client.grant(77).await.expect("is granted");
        client.put_leased("kept", "v", lease).await.expect("is put");
        let idle = client.grant(66).await.expect("is granted");

        // Somebody writes all the time, until the source takes nothing more.
        let command =
            mirror(&source, &target, &["--cut-over"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = command.expect("the binary runs");
        let moved = tokio::task::spawn_blocking(|| child.wait_with_output().expect("it ends"));
        let mut written = 0_u64;
        let refusal = loop {
            match client.put("busy", written.to_string()).await {
                Ok(_) => written += 1,
                Err(status) => break status,
            }
        };
        assert_eq!(refusal, api::error::CORRUPT);
        let moved = moved.await.expect("no panic");
        let said = String::from_utf8_lossy(&moved.stdout).into_owned();
        assert!(moved.status.success(), "{said}{}", String::from_utf8_lossy(&moved.stderr));
        assert!(said.ends_with("the destination has taken the source's place\n"), "{said}");

        assert!(written > 0);
        let new = there.client().await;
        let busy = new.get("busy").await.expect("is read").expect("was written");
        assert_eq!(busy.value, (written - 1).to_string(), "the last acknowledged write");
        // The hash is over every version, creation, tombstone and lease of the whole history.
        assert_eq!(hash(&here).await, hash(&there).await);
        let (mut old_leases, mut new_leases) =
            (client.leases().await.expect("leases"), new.leases().await.expect("leases"));
        old_leases.sort_unstable();
        new_leases.sort_unstable();
        assert_eq!(old_leases, new_leases);
        assert!(new_leases.contains(&lease) && new_leases.contains(&idle));
        let life = new.time_to_live(lease, true).await.expect("a lease");
        assert_eq!((life.granted_ttl, life.keys), (77, vec!["kept".into()]));
        assert!(life.ttl >= 70, "it was renewed: {}", life.ttl);
        // The source still refuses, also deletions, until an operator says otherwise.
        assert_eq!(client.delete("kept").await, Err(api::error::CORRUPT));
        client.disarm().await.expect("is disarmed");
        client.put("kept", "w").await.expect("takes writes again");
        new.put("kept", "x").await.expect("takes writes");
    });
}

#[test]
fn a_mirror_goes_on_where_its_destination_is_whoever_is_killed() {
    let dir = TempDir::in_memory("mirror-killed");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let here = source.setup.start();
    let mut there = target.setup.start();
    run(async {
        let client = here.client().await;
        for round in 0..3 {
            let mirror = Running(
                mirror(&source, &target, &[]).stdout(Stdio::null()).spawn().expect("the binary runs"),
            );
            history(&client).await;
            // The destination in the middle of it, under the same mirror.
            there.kill();
            there = target.setup.start();
            client.put("round", round.to_string()).await.expect("is put");
            if round == 1 {
                // And the mirror itself.
                drop(mirror);
                continue;
            }
            let wanted = client.status().await.expect("a status").header.expect("a header").revision;
            let new = there.client().await;
            let reached = async {
                while new.status().await.expect("a status").header.expect("a header").revision < wanted {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(TIMEOUT, reached).await.expect("the mirror comes up");
        }
        assert_eq!(hash(&here).await, hash(&there).await);
    });
}

#[test]
fn a_destination_that_is_no_copy_is_told_and_the_source_goes_on() {
    let dir = TempDir::in_memory("mirror-refused");
    let (source, target) = (Side::new(dir.path(), "one"), Side::new(dir.path(), "two"));
    let (here, there) = (source.setup.start(), target.setup.start());
    refused(&run_mirror(&source, &source, &[]), "source and destination are the same cluster");
    run(async {
        let (client, new) = (here.client().await, there.client().await);
        new.put("k", "v").await.expect("is put");
        refused(
            &run_mirror(&source, &target, &[]),
            "the destination is at revision 2, and the source at 1 only",
        );
        client.put("k", "other").await.expect("is put");
        let words = "at revision 2 1 of 1 keys differ, the first is \"k\"";
        refused(&run_mirror(&source, &target, &["--cut-over"]), words);
        assert_eq!(client.alarms().await.expect("alarms"), []);

        // A copy until somebody writes to it.
        new.put("k", "v").await.expect("is put");
        client.put("k", "v").await.expect("is put");
        client.compact(3, true).await.expect("is compacted");
        new.compact(3, true).await.expect("is compacted");
        let running = mirror(&source, &target, &[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let running = running.expect("the binary runs");
        client.put("a", "1").await.expect("is put");
        while new.get("a").await.expect("is read").is_none() {
            tokio::task::yield_now().await;
        }
        new.put("foreign", "x").await.expect("is put");
        client.put("a", "2").await.expect("is put");
        let output = tokio::task::spawn_blocking(|| running.wait_with_output().expect("it ends"));
        refused(&output.await.expect("no panic"), "somebody else writes to it");
        assert_eq!(client.get("a").await.expect("is read").expect("is there").value, "2");

        // What the source has compacted cannot be followed.
        let fresh = Side::new(dir.path(), "three");
        let _there = fresh.setup.start();
        refused(&run_mirror(&source, &fresh, &[]), "compacted");
    });
    let words = run_mirror(&source, &target, &["--prefix=a"]);
    assert_eq!(words.status.code(), Some(128), "{}", String::from_utf8_lossy(&words.stderr));
}
