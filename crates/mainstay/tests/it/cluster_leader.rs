//! Leadership that is transferred, handed over at a shutdown, or lost by a leader that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use api::Rpc;
use api::error;
use api::etcdserverpb::{MoveLeaderRequest, MoveLeaderResponse};

use testkit::eventually;

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::cluster_load::{Load, Record};
use crate::cluster_members::id_of;
use crate::run;

#[test]
fn leadership_is_moved_and_handed_over() {
    run(async {
        // With this long timeout, an election would be noticed even on a busy machine.
        let flags = ["--heartbeat-interval=100", "--election-timeout=10000"];
        let mut cluster = Cluster::start("hand-over", 3, &flags);
        let election_timeout = Duration::from_secs(10);
        let leader = cluster.leader().await;
        let (next, last) = ((leader + 1) % 3, (leader + 2) % 3);
        let target_id = id_of(&cluster.client(next).await).await;
        let request = MoveLeaderRequest { target_id };
        let move_at = async |at: usize, request: MoveLeaderRequest| {
            cluster.client(at).await.call::<MoveLeaderResponse>(Rpc::MaintenanceMoveLeader, &request).await
        };
        assert_eq!(move_at(last, request).await.err(), Some(error::NOT_LEADER));
        let nobody = MoveLeaderRequest { target_id: 1 };
        assert_eq!(move_at(leader, nobody).await.err(), Some(error::BAD_LEADER_TRANSFEREE));
        let began = Instant::now();
        move_at(leader, request).await.expect("leadership is moved");
        assert_eq!(cluster.leader().await, next);
        cluster.put(leader, "k", "x").await;
        assert!(began.elapsed() < election_timeout / 2, "it took {:?}", began.elapsed());

        // A leader that is told to stop hands over leadership first.
        let client = cluster.client(last).await;
        cluster.take(next).stop();
        let began = Instant::now();
        client.put("k", "y").await.expect("the next leader is there already");
        assert!(began.elapsed() < election_timeout / 2, "it took {:?}", began.elapsed());
        println!("the first write after a leader's stop took {:?}", began.elapsed());
        cluster.start_one(next);
        cluster.assert_equal().await;
    });
}

/// Puts increasing numbers to one key; `newest` is the newest acknowledged number.
async fn count_up(client: Client, newest: Arc<AtomicI64>, ended: Arc<AtomicBool>) {
    for number in 1i64.. {
        if ended.load(Ordering::SeqCst) {
            return;
        }
        client.put("counter", number.to_string()).await.expect("it has to wait for a leader at most");
        newest.store(number, Ordering::SeqCst);
    }
}

/// Reads the key, and asserts that the value is not older than a write acknowledged before. Returns true if
/// there was a response.
async fn read_counter(client: &Client, newest: &AtomicI64) -> bool {
    let before = newest.load(Ordering::SeqCst);
    let Ok(kv) = client.get("counter").await else { return false };
    let value = kv.map_or(0, |kv| String::from_utf8_lossy(&kv.value).parse().expect("a number"));
    assert!(value >= before, "{value} was read after {before} had been acknowledged");
    true
}

#[test]
fn a_leader_that_was_stopped_for_a_while_follows_and_reads_nothing_old() {
    run(async {
        let cluster = Cluster::start("stopped", 3, &[]);
        let mut record = Record::new();
        let leader = cluster.leader().await;
        // The member through which the counter is written. This member is never stopped.
        let counter = (leader + 1) % 3;
        let load = Load::start(&cluster, &record, 8);
        let (newest, ended) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
        let client = cluster.client(counter).await;
        let counting = tokio::spawn(count_up(client, Arc::clone(&newest), Arc::clone(&ended)));
        load.more(100).await;
        let mut answered = 0;
        for _ in 0..2 {
            let mut stopped = cluster.leader().await;
            if stopped == counter {
                stopped = (counter + 1) % 3;
                let request = MoveLeaderRequest { target_id: id_of(&cluster.client(stopped).await).await };
                let client = cluster.client(counter).await;
                client
                    .call::<MoveLeaderResponse>(Rpc::MaintenanceMoveLeader, &request)
                    .await
                    .expect("it moves");
            }
            let remaining: Vec<usize> = (0..3).filter(|at| *at != stopped).collect();
            let client = cluster.client(stopped).await;
            // Reads continue all the time: some reach the old leader when it resumes, while it still believes
            // that it leads.
            let reading = |count: usize| {
                let (client, newest) = (client.clone(), Arc::clone(&newest));
                tokio::spawn(async move {
                    let mut answered = 0;
                    for _ in 0..count {
                        answered += usize::from(read_counter(&client, &newest).await);
                    }
                    answered
                })
            };
            cluster.member(stopped).signal(libc::SIGSTOP);
            let mut readers: Vec<_> = (0..8).map(|_| reading(20)).collect();
            cluster.leader_of(&remaining).await;
            let before = newest.load(Ordering::SeqCst);
            eventually("others count on", PATIENCE, async || {
                (newest.load(Ordering::SeqCst) > before + 20).then_some(())
            })
            .await;
            readers.extend((0..8).map(|_| reading(20)));
            load.more(20).await;
            cluster.member(stopped).signal(libc::SIGCONT);
            for reader in readers {
                answered += reader.await.expect("no reader is shown anything old");
            }
            assert_ne!(cluster.leader().await, stopped, "it follows");
            load.more(20).await;
        }
        assert!(answered > 100, "{answered} reads were answered");
        ended.store(true, Ordering::SeqCst);
        counting.await.expect("no panic");
        load.end(&mut record).await;
        for at in 0..3 {
            assert!(read_counter(&cluster.client(at).await, &newest).await);
        }
        cluster.assert_equal().await;
    });
}
