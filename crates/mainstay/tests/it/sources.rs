//! A whole state whose source is killed during the transfer: the receiver goes on at another source with what it
//! has, and nothing but a small part is sent again.

use testkit::{eventually, http1};

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::member::READY;
use crate::observers::observer;
use crate::{filler, run};

const FLAGS: &[&str] =
    &["--snapshot-count=100", "--snapshot-catchup-entries=10", "--strict-reconfig-check=false"];
const INSTALLED: &str = "installed a snapshot";
const WRITERS: u32 = 16;
const VALUE_BYTES: usize = 64 << 10;
const VALUES: u32 = 2400;
/// Bytes of all values.
const STATE_BYTES: f64 = VALUES as f64 * VALUE_BYTES as f64;

/// Puts the values, each under a key of its own, concurrently.
async fn put_all(client: &Client) {
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in (0..VALUES).filter(|number| number % WRITERS == writer) {
                    client
                        .put(format!("d/{number}"), filler(number, VALUE_BYTES))
                        .await
                        .expect("puts are served");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no writer panics");
    }
}

/// Waits until a member has truncated its log, so that others need its whole state.
async fn until_let_go(cluster: &Cluster, at: usize) {
    eventually("a checkpoint is saved", PATIENCE, async || {
        cluster.member(at).said().contains("saved a checkpoint").then_some(())
    })
    .await;
}

/// Returns the sum of a node's series of this name, by its own page.
fn sum_of(cluster: &Cluster, at: usize, name: &str) -> f64 {
    let page = http1::get(cluster.slots[at].client, "/metrics");
    let series = page.text().lines().filter(|line| line.starts_with(&format!("{name}{{")));
    series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Waits until a node has sent a quarter of the state since it had sent `before` bytes, and kills the node. Returns
/// the bytes that it has sent.
async fn kill_in_mid_transfer(cluster: &mut Cluster, source: usize, before: f64) -> f64 {
    let sent = eventually("a part of the state is sent", PATIENCE, async || {
        let sent = sum_of(cluster, source, SENT) - before;
        (sent > STATE_BYTES / 4.0).then_some(sent)
    })
    .await;
    cluster.kill(source);
    sent
}

const SENT: &str = "etcd_network_peer_sent_bytes_total";

/// Asserts that a node received the state once, although its first source was killed after `part` bytes.
fn assert_received_once(cluster: &Cluster, receiver: usize, part: f64) {
    let all = sum_of(cluster, receiver, "etcd_network_peer_received_bytes_total");
    println!(
        "{part:.0} of {STATE_BYTES:.0} bytes were sent when the source was killed; {all:.0} arrived in all"
    );
    assert!(part < STATE_BYTES * 0.8, "the source was killed too late: {part:.0} of {STATE_BYTES:.0} bytes");
    // At most a tenth came again: what the receiver had not stored yet, and messages of raft.
    assert!(
        (STATE_BYTES..STATE_BYTES * 1.1).contains(&all),
        "{all:.0} bytes for a state of {STATE_BYTES:.0}"
    );
}

#[test]
fn a_member_goes_on_at_the_next_leader() {
    run(async {
        let flags = [FLAGS, &["--log-level=debug"]].concat();
        let mut cluster = Cluster::start("next-source", 3, &flags);
        let leader = cluster.leader().await;
        let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let client = cluster.client(other).await;
        cluster.kill(follower);
        put_all(&client).await;
        for member in [leader, other] {
            until_let_go(&cluster, member).await;
        }
        let before = sum_of(&cluster, leader, SENT);
        cluster.spawn(follower);
        let part = kill_in_mid_transfer(&mut cluster, leader, before).await;
        cluster.member(follower).wait_for(INSTALLED);
        cluster.put(other, "k", "x").await;
        assert_received_once(&cluster, follower, part);
        cluster.start_one(leader);
        cluster.assert_equal().await;
    });
}

/// Returns the bytes that a node has written with system calls.
fn written_bytes(cluster: &Cluster, at: usize) -> f64 {
    let path = format!("/proc/{}/io", cluster.member(at).pid());
    let text = std::fs::read_to_string(path).expect("the node runs");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).expect("Linux counts them")
}

#[test]
fn an_observer_goes_on_at_another_feeder() {
    run(async {
        let flags = [FLAGS, &["--log-level=debug"]].concat();
        let mut cluster = Cluster::start("next-feeder", 3, &flags);
        let leader = cluster.leader().await;
        let feeders = [(leader + 1) % 3, (leader + 2) % 3];
        let at = cluster.add_slot();
        let client = cluster.client(leader).await;
        put_all(&client).await;
        for feeder in feeders {
            until_let_go(&cluster, feeder).await;
        }
        let command = observer(&cluster, at, &feeders, &["--log-level=debug"]);
        cluster.spawn_with(at, command);
        // It has no page before it serves, so what it has received is known from what it has written.
        let part = eventually("a part of the state arrives", PATIENCE, async || {
            Some(written_bytes(&cluster, at)).filter(|written| *written > STATE_BYTES / 2.0)
        })
        .await;
        let mut sources = feeders.into_iter();
        let first = sources.find(|feeder| cluster.member(*feeder).said().contains("sending a snapshot"));
        let first = first.expect("a feeder sends");
        cluster.kill(first);
        cluster.member(at).wait_for(INSTALLED);
        cluster.member(at).wait_for(READY);
        let all = written_bytes(&cluster, at);
        println!(
            "{part:.0} of {STATE_BYTES:.0} bytes were written when the source was killed, {all:.0} in all"
        );
        assert!(
            part < STATE_BYTES * 0.9,
            "the source was killed too late: {part:.0} of {STATE_BYTES:.0} bytes"
        );
        assert!(
            (STATE_BYTES..STATE_BYTES * 1.2).contains(&all),
            "{all:.0} bytes for a state of {STATE_BYTES:.0}"
        );
        cluster.start_one(first);
        cluster.assert_equal().await;
    });
}
