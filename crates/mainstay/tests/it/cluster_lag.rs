//! A follower that was down for so long that the other members no longer have the log entries it needs: the
//! follower gets a snapshot, and faults during the transfer do no harm.

use std::time::{Duration, Instant};

use testkit::{Random, eventually};

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::cluster_members::{id_of, remove};
use crate::crash::setting;
use crate::member::READY;
use crate::{filler, run};

const FLAGS: &[&str] =
    &["--snapshot-count=100", "--snapshot-catchup-entries=10", "--strict-reconfig-check=false"];
const INSTALLED: &str = "installed a snapshot";
const WRITERS: u32 = 16;
const KEYS: u32 = 400;
/// A checkpoint is due after `BULK` values of this size.
const VALUE_BYTES: usize = 64 << 10;
const BULK: u32 = 1300;

/// Puts and deletes many keys concurrently; then compacts, after which the log is truncated, and writes some more.
async fn go_on(client: &Client, from: u32, count: u32) {
    let write = async |from: u32, count: u32| {
        let tasks: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let client = client.clone();
                tokio::spawn(async move {
                    let mut revision = 0;
                    for number in (from..from + count).filter(|number| number % WRITERS == writer) {
                        let key = format!("k/{}", number % KEYS);
                        revision = if number % 7 == 0 {
                            client.delete(key).await.expect("deletes are served").0
                        } else {
                            client.put(key, filler(number, VALUE_BYTES)).await.expect("puts are served")
                        };
                    }
                    revision
                })
            })
            .collect();
        let mut revision = 0;
        for task in tasks {
            revision = revision.max(task.await.expect("no writer panics"));
        }
        revision
    };
    let revision = write(from, count).await;
    client.compact(revision - 20, true).await.expect("compactions are served");
    write(from + count, WRITERS * 10).await;
}

/// Waits until a member has truncated its log, so that followers need snapshots.
async fn until_let_go(cluster: &Cluster, at: usize, times: usize) {
    eventually("a checkpoint is saved", PATIENCE, async || {
        (cluster.member(at).said().matches("saved a checkpoint").count() >= times).then_some(())
    })
    .await;
}

async fn assert_same(cluster: &Cluster, one: usize, other: usize) {
    cluster.assert_equal().await;
    let [a, b] = [cluster.client(one).await, cluster.client(other).await];
    let [a, b] =
        [a.everything().await.expect("reads are served"), b.everything().await.expect("reads are served")];
    assert!(a.kvs.len() > 100 && a.kvs == b.kvs, "members hold different things");
}

#[test]
fn a_follower_far_behind_gets_a_snapshot() {
    run(async {
        let flags = [FLAGS, &["--log-level=debug"]].concat();
        let mut cluster = Cluster::start("behind", 3, &flags);
        let leader = cluster.leader().await;
        let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let client = cluster.client(other).await;
        let lease = client.grant(600).await.expect("a lease");
        client.put_leased("leased", "x", lease).await.expect("puts are served");
        cluster.kill(follower);
        go_on(&client, 0, BULK).await;
        until_let_go(&cluster, leader, 1).await;

        cluster.spawn(follower);
        cluster.member(follower).wait_for(INSTALLED);
        cluster.kill(follower);
        // Restart the follower, which works whether it has already saved the installed snapshot or not.
        cluster.start_one(follower);
        assert_same(&cluster, leader, follower).await;
        // Restart a second time, when there is nothing to catch up with.
        cluster.kill(follower);
        cluster.start_one(follower);
        let left = cluster.client(follower).await.time_to_live(lease, true).await.expect("asks are answered");
        assert_eq!((left.granted_ttl, &left.keys[..]), (600, &["leased".into()][..]));
        let own = cluster.client(follower).await;
        assert_eq!(own.leases().await.expect("asks are answered"), [lease]);
        // The follower's data must be good enough to lead, and to be part of a quorum.
        cluster.kill(leader);
        cluster.put(follower, "k/0", "x").await;
        cluster.start_one(leader);
        assert_same(&cluster, leader, follower).await;
    });
}

#[test]
fn a_follower_killed_while_it_catches_up_converges() {
    let rounds = setting("MAINSTAY_CRASH_ROUNDS", 5);
    let seed = setting("MAINSTAY_CRASH_SEED", 1);
    println!("MAINSTAY_CRASH_ROUNDS={rounds} MAINSTAY_CRASH_SEED={seed}");
    let mut dice = Random::new(u64::from(seed));
    run(async {
        let flags = [FLAGS, &["--log-level=debug"]].concat();
        let mut cluster = Cluster::start("cut-short", 3, &flags);
        let leader = cluster.leader().await;
        let follower = (leader + 1) % 3;
        let client = cluster.client(leader).await;
        let mut checkpoints = 0;
        let mut take = Duration::ZERO;
        let mut installed = true;
        let mut cut_short = 0;
        for round in 0..=rounds {
            if cluster.slots[follower].member.is_some() {
                cluster.kill(follower);
            }
            if installed {
                checkpoints = cluster.member(leader).said().matches("saved a checkpoint").count() + 1;
                go_on(&client, round * 10_000, BULK).await;
            }
            until_let_go(&cluster, leader, checkpoints).await;
            let began = Instant::now();
            cluster.spawn(follower);
            if round == 0 {
                // Measure the time of an undisturbed transfer. Later, the member is killed at random times
                // within this time.
                cluster.member(follower).wait_for(INSTALLED);
                take = began.elapsed();
                continue;
            }
            let until = take.mul_f64(dice.below(1300) as f64 / 1000.0);
            while began.elapsed() < until {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let member = cluster.take(follower);
            installed = member.said().contains(INSTALLED);
            cut_short += u32::from(!installed);
            if installed {
                // The member was killed too late, because the transfer took less time than the one that was
                // measured.
                take = take.mul_f64(0.6);
            }
            member.kill();
        }
        println!("of {rounds} kills {cut_short} came before its end");
        cluster.start_one(follower);
        assert_same(&cluster, leader, follower).await;
        cluster.kill(follower);
        cluster.start_one(follower);
        assert_same(&cluster, leader, follower).await;
    });
}

#[test]
fn a_member_with_a_new_disk_is_added_again() {
    run(async {
        let mut cluster = Cluster::start("new-disk", 3, &[FLAGS, &["--log-level=debug"]].concat());
        let leader = cluster.leader().await;
        let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let client = cluster.client(other).await;
        let id = id_of(&cluster.client(follower).await).await;
        cluster.kill(follower);
        std::fs::remove_dir_all(&cluster.slots[follower].data_dir).expect("it is there");
        go_on(&client, 0, BULK).await;
        until_let_go(&cluster, leader, 1).await;
        remove(&client, id).await;
        assert_ne!(cluster.announce(other, follower, false).await, id);
        cluster.spawn_with(follower, cluster.joining(follower, &[0, 1, 2]));
        cluster.member(follower).wait_for(INSTALLED);
        cluster.member(follower).wait_for(READY);
        assert_same(&cluster, leader, follower).await;
        cluster.kill(leader);
        cluster.put(follower, "k/0", "x").await;
        cluster.start_one(leader);
        assert_same(&cluster, leader, follower).await;
    });
}
