//! A cluster of three without faults: every member shows the same state.

use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use prost::Message as _;

use testkit::eventually;

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::cluster_load::{Load, Record};
use crate::{crash, history, run};

/// Renews a lease once; returns its TTL.
async fn keep_alive(client: &Client, id: i64) -> i64 {
    let (mut sender, mut receiver) =
        client.channel.stream(Rpc::LeaseKeepAlive.path()).await.expect("a stream");
    sender.send(LeaseKeepAliveRequest { id }.encode_to_vec().into()).await.expect("it is sent");
    let answer = receiver.next().await.expect("an answer").expect("an answer");
    LeaseKeepAliveResponse::decode(answer).expect("a keepalive's answer").ttl
}

#[test]
fn three_members_are_one_store() {
    run(async {
        let cluster = Cluster::start("three", 3, &[]);
        let leader = cluster.leader().await;
        let (next, last) = ((leader + 1) % 3, (leader + 2) % 3);
        let clients = [cluster.client(0).await, cluster.client(1).await, cluster.client(2).await];

        // A write at any member can be read at any other member at once.
        let mut watch = clients[next].watch_all(2).await.expect("a watch can be opened");
        for round in 0..20 {
            for (writer, client) in clients.iter().enumerate() {
                let value = format!("{round}/{writer}");
                let at = client.put("k", value.clone()).await.expect("puts are served");
                assert_eq!(at, 2 + round * 3 + i64::try_from(writer).expect("few"));
                for reader in &clients {
                    let kv = reader.get("k").await.expect("reads are served").expect("it is there");
                    assert_eq!((&kv.value[..], kv.mod_revision), (value.as_bytes(), at));
                }
            }
        }
        let mut seen = 1;
        while seen < 61 {
            for event in watch.next().await.expect("the watch goes on").events {
                let kv = event.kv.expect("events have keys");
                assert_eq!(kv.mod_revision, seen + 1, "a watch skipped or repeated something");
                seen = kv.mod_revision;
            }
        }
        drop(watch);
        for (number, client) in clients.iter().enumerate() {
            client.delete(format!("none/{number}")).await.expect("deletes are served");
        }
        clients[0].delete("k").await.expect("deletes are served");

        // A lease granted by one member is valid at all members.
        let lease = clients[next].grant(3).await.expect("a lease");
        clients[leader].put_leased("leased", "x", lease).await.expect("puts are served");
        let began = tokio::time::Instant::now();
        while began.elapsed() < Duration::from_secs(4) {
            assert_eq!(keep_alive(&clients[last], lease).await, 3);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let left = clients[next].time_to_live(lease, true).await.expect("asks are answered");
        assert_eq!((left.granted_ttl, &left.keys[..]), (3, &["leased".into()][..]));
        eventually("the lease ends at every member", PATIENCE, async || {
            for client in &clients {
                if client.get("leased").await.expect("reads are served").is_some() {
                    return None;
                }
            }
            Some(())
        })
        .await;
        assert_eq!(keep_alive(&clients[last], lease).await, 0);
        cluster.assert_equal().await;
    });
}

#[test]
fn every_watcher_sees_what_was_written_in_order() {
    run(async {
        let cluster = Cluster::start("watchers", 3, &[]);
        cluster.leader().await;
        let mut record = Record::new();
        let load = Load::start(&cluster, &record, 12);
        let mut watches = Vec::new();
        for at in 0..3 {
            let client = cluster.client(at).await;
            watches.push(tokio::spawn(async move {
                let mut watch = client.watch_all(2).await.expect("a watch can be opened");
                let mut shown: Vec<history::Step> = Vec::new();
                while shown.len() < 1000 {
                    let response = watch.next().await.expect("the watch goes on");
                    for step in history::steps_of(&response) {
                        let expected = 2 + i64::try_from(shown.len()).expect("few");
                        assert_eq!(step.revision, expected, "a watch skipped or repeated something");
                        shown.push(step);
                    }
                }
                shown
            }));
        }
        let mut shown = Vec::new();
        for watch in watches {
            shown.push(watch.await.expect("no watcher panics"));
        }
        load.end(&mut record).await;
        for at in 0..3 {
            // All of these reads are linearizable, so after them no member lags behind.
            crash::check(&cluster.client(at).await, &mut record.history, 0).await;
        }
        for step in shown.iter().flatten() {
            record.history.was_shown(step);
        }
        cluster.assert_equal().await;
    });
}
