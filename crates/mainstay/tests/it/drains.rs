//! Draining the connections of a member, ordered by the command of the binary, while clients work.

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use api::Rpc;
use api::etcdserverpb::{PutRequest, PutResponse, WatchCreateRequest};
use client::{Settings, WatchUpdate, Watcher};

use testkit::{TempDir, eventually, http1};

use crate::cluster::PATIENCE;
use crate::member::{Member, Setup, binary};
use crate::run;

/// Runs `mainstay ctl connections` against a member.
async fn connections(member: &Member, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    let endpoint = format!("--endpoints={}", member.client_address());
    command.env_clear().args(["ctl", &endpoint, "connections"]).args(words);
    tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.expect("it ends")
}

/// Returns the value of a series of the metrics of a member.
pub fn metric(member: &Member, name: &str) -> u64 {
    let page = http1::get(member.client_address(), "/metrics");
    let line = page.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).expect("the metric is there")
}

fn client_of(member: &Member) -> client::Client {
    let endpoints = vec![member.client_address().to_string()];
    client::Client::new(Settings { endpoints, ..Settings::default() }).expect("good settings")
}

#[test]
fn clients_lose_nothing_while_their_connections_are_drained() {
    run(async {
        let dir = TempDir::new("drains");
        let member = Setup::new(dir.path()).start();
        let (stop, put) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut watcher = Watcher::new(
            &client_of(&member),
            WatchCreateRequest { key: "k".into(), range_end: "l".into(), ..Default::default() },
        );
        assert!(matches!(watcher.next().await, Ok(Some(WatchUpdate::Created(_)))));
        let writers: Vec<_> = (0..4)
            .map(|number| {
                let (client, stop, put) = (client_of(&member), stop.clone(), put.clone());
                tokio::spawn(async move {
                    while !stop.load(SeqCst) {
                        let key = format!("k{number}").into();
                        let request = PutRequest { key, value: "v".into(), ..Default::default() };
                        client.call::<_, PutResponse>(Rpc::KvPut, &request).await.expect("no put fails");
                        put.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        for drained in [5, 10, 15] {
            // Each round ends the connections of the watcher and of the four writers, and that of the
            // command itself.
            eventually("all clients are connected", PATIENCE, async || {
                let output = connections(&member, &["count"]).await;
                String::from_utf8_lossy(&output.stdout).contains(" 6 of them HTTP/2, ").then_some(())
            })
            .await;
            let before = put.load(SeqCst);
            let output = connections(&member, &["drain", "--percent=100", "--over=200ms"]).await;
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{output:?}");
            // The connection of `count` may still be closing.
            let of_all =
                |all: u32| printed.starts_with(&format!("Draining {all} of {all} connections of etcd"));
            assert!(of_all(6) || of_all(7), "{printed}");
            assert!(printed.ends_with("] over 200ms\n"), "{printed}");
            eventually("they are drained", PATIENCE, async || {
                let output = connections(&member, &["count"]).await;
                let is_over = String::from_utf8_lossy(&output.stdout).contains(" 0 to drain, ");
                let done = is_over && metric(&member, DRAINED) >= drained;
                (done && put.load(SeqCst) > before + 100).then_some(())
            })
            .await;
        }
        stop.store(true, SeqCst);
        for writer in writers {
            writer.await.expect("the writer has no failure");
        }
        let (mut seen, last) = (0, 1 + put.load(SeqCst) as i64);
        let mut revision = 1;
        while revision < last {
            let update = watcher.next().await.expect("the watch goes on").expect("the watch goes on");
            let WatchUpdate::Events(response) = update else { continue };
            for event in response.events {
                let kv = event.kv.expect("a put has a key");
                assert_eq!(kv.mod_revision, revision + 1, "no event is missing or doubled");
                (revision, seen) = (kv.mod_revision, seen + 1);
            }
        }
        assert_eq!(seen, put.load(SeqCst));
        let output = connections(&member, &["count"]).await;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(printed.contains(" connections, ") && printed.contains(" 0 to drain, "), "{printed}");
        assert!(printed.contains("\n  shard 0: "), "{printed}");
    });
}

const DRAINED: &str = "mainstay_client_connections_drained_total";

#[test]
fn a_drain_is_refused_with_the_reason() {
    run(async {
        let dir = TempDir::new("drain-refused");
        let member = Setup::new(dir.path()).start();
        let refused = async |words: &[&str]| {
            let output = connections(&member, words).await;
            assert!(!output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let needs = "connections drain command needs --percent with a number between 0 and 100";
        for words in [&["drain"][..], &["drain", "--percent=101"], &["drain", "--percent=-1"]] {
            let text = refused(words).await;
            assert!(text.contains(needs), "{text}");
        }
        let text = refused(&["drain", "--percent=1", "--over=25h"]).await;
        assert!(text.contains("over_ms must be at most 86400000 ms, but is 90000000"), "{text}");
        let text = refused(&["drain", "--percent=1", "member"]).await;
        assert!(text.contains("needs no arguments"), "{text}");

        // With authentication, only root may.
        let ctl = |words: &[&str]| {
            let endpoint = format!("--endpoints={}", member.client_address());
            let output = Command::new(binary()).env_clear().args(["ctl", &endpoint]).args(words).output();
            assert!(output.expect("it runs").status.success(), "{words:?}");
        };
        ctl(&["user", "add", "root:r"]);
        ctl(&["user", "grant-role", "root", "root"]);
        ctl(&["user", "add", "alice:a"]);
        ctl(&["auth", "enable"]);
        let drain = |user: &'static str| {
            let user = format!("--user={user}");
            let member = &member;
            async move { connections(member, &["drain", "--percent=1", &user]).await }
        };
        let output = drain("alice:a").await;
        assert!(String::from_utf8_lossy(&output.stderr).contains("permission denied"), "{output:?}");
        let text = refused(&["count"]).await;
        assert!(text.contains("user name is empty"), "{text}");
        let output = drain("root:r").await;
        assert!(output.status.success(), "{output:?}");
    });
}
