//! kill -9 of the leader, or of all members, under writers: no acknowledged write is lost, and all members
//! stay equal.

use std::time::Duration;

use testkit::Random;

use crate::cluster::Cluster;
use crate::cluster_load::{Load, Record};
use crate::crash::{check, setting};
use crate::run;

/// Returns the number of rounds and a random generator; the environment sets both for runs by hand.
fn rounds(default: u32) -> (u32, Random) {
    let rounds = setting("MAINSTAY_CRASH_ROUNDS", default);
    let seed = setting("MAINSTAY_CRASH_SEED", 1);
    println!("MAINSTAY_CRASH_ROUNDS={rounds} MAINSTAY_CRASH_SEED={seed}");
    (rounds, Random::new(u64::from(seed)))
}

#[test]
fn nothing_acknowledged_is_lost_when_leaders_are_killed() {
    let (rounds, mut dice) = rounds(3);
    let mut cluster = Cluster::start("leaders", 3, &["--snapshot-count=100"]);
    let mut record = Record::new();
    for _ in 0..rounds {
        run(async {
            let leader = cluster.leader().await;
            let load = Load::start(&cluster, &record, 24);
            load.more(100 + dice.below(500)).await;
            cluster.kill(leader);
            // The other two members elect a leader and continue.
            load.more(100 + dice.below(500)).await;
            cluster.start_one(leader);
            load.more(100).await;
            load.end(&mut record).await;
            check(&cluster.client(leader).await, &mut record.history, 0).await;
            cluster.assert_equal().await;
        });
    }
    let (acknowledged, unknown) = record.history.tally();
    println!("{rounds} leaders killed, {acknowledged} acknowledged writes, {unknown} cut short: none lost");
    assert!(acknowledged > 300 && unknown > 0, "the crashes met writes under way");
}

#[test]
fn nothing_acknowledged_is_lost_when_all_are_killed() {
    let (rounds, mut dice) = rounds(3);
    let mut cluster = Cluster::start("all", 3, &["--snapshot-count=100"]);
    let mut record = Record::new();
    for round in 0..rounds {
        run(async {
            let leader = cluster.leader().await;
            let load = Load::start(&cluster, &record, 24);
            load.more(200 + dice.below(800)).await;
            if round % 2 == 0 {
                for at in 0..3 {
                    cluster.member(at).signal(libc::SIGSTOP);
                }
                for at in 0..3 {
                    cluster.kill(at);
                }
                // The members restart in any order, while the load continues.
                let first = dice.below(3) as usize;
                for at in 0..3 {
                    cluster.spawn((at + first) % 3);
                }
            } else {
                // For a moment the leader has no quorum. The writes that it accepts then are lost with the
                // leader, because the other members elect another leader first.
                let others = [(leader + 1) % 3, (leader + 2) % 3];
                for at in others {
                    cluster.kill(at);
                }
                tokio::time::sleep(Duration::from_millis(dice.below(200))).await;
                cluster.kill(leader);
                for at in others {
                    cluster.spawn(at);
                }
                cluster.leader().await;
                load.more(50).await;
                cluster.spawn(leader);
            }
            load.more(100).await;
            cluster.leader().await;
            load.end(&mut record).await;
            check(&cluster.client(dice.below(3) as usize).await, &mut record.history, 0).await;
            cluster.assert_equal().await;
        });
    }
    let (acknowledged, unknown) = record.history.tally();
    println!("{rounds} times all killed, {acknowledged} acknowledged writes, {unknown} cut short: none lost");
    assert!(acknowledged > 300 && unknown > 0, "the crashes met writes under way");
}
