//! State after a restart: keys from checkpoint and log, and leases with their remaining time.

use std::time::Duration;

use api::etcdserverpb::RangeResponse;
use api::mvccpb::event::EventType;

use testkit::{TempDir, eventually};

use crate::client::{Client, revision};
use crate::member::{Member, Setup};
use crate::{filler, run};

/// Returns everything that a client can see of the keys.
async fn picture(client: &Client) -> (RangeResponse, u32, i64) {
    let mut everything = client.everything().await.expect("reads are served");
    let hash = client.hash_kv(0).await.expect("a hash can be had");
    assert_eq!(hash.hash_revision, revision(everything.header));
    // The raft term may differ.
    everything.header = None;
    (everything, hash.hash, hash.hash_revision)
}

/// Writes until the member has saved a checkpoint.
async fn write_until_checkpoint(member: &Member, client: &Client) {
    for number in 0..1000u32 {
        if member.said().contains("saved a checkpoint") {
            return;
        }
        let key = format!("k/{:03}", number % 97);
        client.put(key, filler(number, 512 << 10)).await.expect("puts are served");
        if number % 10 == 9 {
            client.delete(format!("k/{:03}", number % 89)).await.expect("deletes are served");
        }
    }
    panic!("500 MB of log made no checkpoint: {}", member.said());
}

#[test]
fn a_member_that_has_nothing_to_do_saves_what_it_did() {
    let dir = TempDir::new("checkpoint-quiet");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=10").flag("--log-level=debug");
    run(async {
        let member = setup.start();
        let client = member.client().await;
        for number in 0..20u32 {
            client.put(format!("k/{number}"), "x").await.expect("puts are served");
        }
        // The age limit would be a minute, the entry limit a thousand entries.
        member.wait_for("saved a checkpoint");
        member.kill();
        let member = setup.start();
        let restored = member.wait_for("restored the state");
        assert!(!restored.contains("\"checkpoint-index\":0,"), "{restored}");
    });
}

#[test]
fn a_checkpoint_and_the_log_behind_it_give_the_same_keys() {
    let dir = TempDir::new("checkpoint");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=10").flag("--log-level=debug");
    run(async {
        let member = setup.start();
        let client = member.client().await;
        let lease = client.grant(600).await.expect("a lease");
        client.put_leased("leased", "x", lease).await.expect("puts are served");
        write_until_checkpoint(&member, &client).await;
        client.compact(20, false).await.expect("compacts");
        for number in 0..50u32 {
            client.put(format!("tail/{number}"), filler(number, 1000)).await.expect("puts are served");
        }
        let before = picture(&client).await;
        member.kill();

        for round in 0..2 {
            let member = setup.start();
            let restored = member.wait_for("restored the state");
            assert!(!restored.contains("\"checkpoint-index\":0,"), "{restored}");
            let client = member.client().await;
            assert!(picture(&client).await == before, "round {round}: the keys changed");
            let left = client.time_to_live(lease, true).await.expect("asks are answered");
            assert_eq!((left.granted_ttl, &left.keys[..]), (600, &["leased".into()][..]));
            if round == 0 { member.stop() } else { member.kill() }
        }
    });
}

#[test]
fn leases_go_on_after_a_restart() {
    let dir = TempDir::new("leases");
    let setup = Setup::new(dir.path());
    run(async {
        let member = setup.start();
        let client = member.client().await;
        let long = client.grant(60).await.expect("a lease");
        let revoked = client.grant(60).await.expect("a lease");
        client.put_leased("long", "x", long).await.expect("puts are served");
        client.put_leased("revoked", "x", revoked).await.expect("puts are served");
        client.revoke(revoked).await.expect("revokes are served");
        let patience = Duration::from_secs(20);
        let ttl = eventually("3 seconds of the lease are used", patience, async || {
            let left = client.time_to_live(long, false).await.expect("asks are answered");
            (left.ttl <= 57).then_some(left.ttl)
        })
        .await;
        member.stop();

        // A clean shutdown saves the remaining times.
        let member = setup.start();
        let client = member.client().await;
        let left = client.time_to_live(long, true).await.expect("asks are answered");
        assert!(left.ttl > 30 && left.ttl <= ttl, "{left:?} after {ttl}");
        assert_eq!((left.granted_ttl, &left.keys[..]), (60, &["long".into()][..]));
        assert_eq!(client.leases().await.expect("asks are answered"), [long]);
        assert!(client.get("revoked").await.expect("reads are served").is_none());

        // A short lease expires by itself and deletes its keys, even if the member crashes before.
        let short = client.grant(2).await.expect("a lease");
        client.put_leased("short/a", "x", short).await.expect("puts are served");
        let put = client.put_leased("short/b", "x", short).await.expect("puts are served");
        member.kill();
        let member = setup.start();
        let client = member.client().await;
        let mut watch = client.watch_all(put + 1).await.expect("a watch can be opened");
        let response = watch.next().await.expect("the watch tells of the expiry");
        let deleted: Vec<(&[u8], i64)> = response
            .events
            .iter()
            .map(|event| {
                assert_eq!(event.r#type, EventType::Delete as i32);
                let kv = event.kv.as_ref().expect("events have keys");
                (&kv.key[..], kv.mod_revision)
            })
            .collect();
        assert_eq!(deleted, [(&b"short/a"[..], put + 1), (&b"short/b"[..], put + 1)]);
        assert_eq!(client.time_to_live(short, false).await.expect("asks are answered").ttl, -1);
        assert!(client.get("long").await.expect("reads are served").is_some());
        let left = client.time_to_live(long, false).await.expect("asks are answered");
        assert!(left.ttl > 0 && left.ttl <= 60, "{left:?}");
        member.kill();
        let member = setup.start();
        let client = member.client().await;
        assert!(client.get("short/a").await.expect("reads are served").is_none());
        member.stop();
    });
}

#[test]
fn a_stopped_process_goes_on_where_it_was() {
    let dir = TempDir::new("sigstop");
    let setup = Setup::new(dir.path());
    run(async {
        let member = setup.start();
        let client = member.client().await;
        let first = client.put("k", "1").await.expect("puts are served");
        member.signal(libc::SIGSTOP);
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move { client.put("k", "2").await })
        };
        // The request has left this process, and no quorum can answer it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished());
        member.signal(libc::SIGCONT);
        assert_eq!(waiting.await.expect("no panic"), Ok(first + 1));
        member.stop();
    });
}
