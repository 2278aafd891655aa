//! A single client: its calls are handled by one thread, without waking others on the way to the core and
//! back. In a cluster, the thread of the other members runs the core's turns.

use testkit::{TIMEOUT, TempDir, eventually, http1};

use crate::client::Client;
use crate::cluster::Cluster;
use crate::member::{Member, Setup};
use crate::run;

/// Returns the value of a counter of the member.
fn counted(member: &Member, name: &str) -> u64 {
    let metrics = http1::get(member.client_address(), "/metrics").text().to_owned();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).expect("it is counted")
}

/// Returns the number of writes for which the core was lent to a thread that serves clients.
fn lent(member: &Member) -> u64 {
    counted(member, "mainstay_core_lent_total")
}

const PUTS: u64 = 100;

/// Writes keys one after the other; returns for how many of them the core was lent.
async fn lent_for_puts(member: &Member, client: &Client) -> u64 {
    let before = lent(member);
    for number in 0..PUTS {
        client.put(format!("k/{number}"), "x").await.expect("puts are served");
    }
    lent(member) - before
}

/// Waits until the core is lent for most writes: after a disk stall, the core thread writes by itself for a
/// while.
async fn write_until_lent(member: &Member, client: &Client) {
    let look = async || (lent_for_puts(member, client).await > PUTS / 2).then_some(());
    eventually("the core is lent", TIMEOUT, look).await;
}

#[test]
fn a_client_alone_is_lent_the_core_unless_it_does_more_than_write() {
    let dir = TempDir::new("lone-client");
    let setup = Setup::new(dir.path()).flag("--unsafe-no-fsync");
    run(async {
        let member = setup.start();
        if std::thread::available_parallelism().is_ok_and(|threads| threads.get() == 1) {
            // With a single processor, the core is not lent: no other thread could serve other clients in the
            // meantime.
            let client = member.client().await;
            assert_eq!(lent_for_puts(&member, &client).await, 0);
            return;
        }
        let client = member.client().await;
        write_until_lent(&member, &client).await;
        // Reads between the writes would have to wait for fsyncs, so the core is not lent.
        let before = lent(&member);
        for number in 0..PUTS {
            client.put(format!("k/{number}"), "x").await.expect("puts are served");
            client.everything().await.expect("reads are served");
        }
        // The first write was made before the first read.
        assert!(lent(&member) <= before + 1, "the core was lent {} times", lent(&member) - before);
        write_until_lent(&member, &client).await;
        // Lease renewals would have to wait for fsyncs, too.
        client.grant(600).await.expect("a lease");
        assert_eq!(lent_for_puts(&member, &client).await, 0);
        member.stop();
        let member = setup.start();
        assert_eq!(member.client().await.everything().await.expect("reads").kvs.len() as u64, PUTS);
    });
}

#[test]
fn in_a_cluster_the_core_is_lent_to_the_threads_that_bring_it_work() {
    let cluster = Cluster::start("lent-to-peers", 3, &[]);
    let lent_to = |thread, at| counted(cluster.member(at), &format!("mainstay_core_lent_to_{thread}_total"));
    run(async {
        let follower = (cluster.leader().await + 1) % 3;
        let client = cluster.client(follower).await;
        let lent_to_each = || ["peers", "log"].map(|thread| [0, 1, 2].map(|at| lent_to(thread, at))).concat();
        let before = lent_to_each();
        // Each put brings each member a message, and a sync; other work of the core may now and then keep it
        // awake.
        let mut puts = 0;
        eventually("the core of each member is lent", TIMEOUT, async || {
            for _ in 0..PUTS {
                client.put(format!("k/{puts}"), "x").await.expect("puts are served");
                puts += 1;
            }
            let lent_to_shard = lent(cluster.member(follower)) > PUTS / 4;
            let lent_to_others = lent_to_each().iter().zip(&before).all(|(now, then)| *now > then + PUTS / 4);
            (lent_to_shard && lent_to_others).then_some(())
        })
        .await;
        let found = cluster.client((follower + 1) % 3).await.everything().await.expect("a read");
        assert_eq!(found.kvs.len() as u64, puts);
        cluster.assert_equal().await;
    });
}

#[test]
fn clients_alone_on_their_threads_write_beside_each_other() {
    const WRITES: u64 = 300;
    let dir = TempDir::new("lone-clients");
    let setup = Setup::new(dir.path());
    run(async {
        let member = setup.start();
        // Fewer clients than threads that serve, as many, and more, on a machine with two processors.
        for clients in [1, 2, 3, 2, 1] {
            let mut writing = Vec::new();
            for name in 0..clients {
                let client = member.client().await;
                writing.push(tokio::spawn(async move {
                    for number in 0..WRITES {
                        client.put(format!("k/{name}/{number}"), "x").await.expect("puts are served");
                    }
                }));
            }
            for writes in writing {
                writes.await.expect("all are answered");
            }
        }
        member.kill();
        let member = setup.start();
        assert_eq!(member.client().await.everything().await.expect("reads").kvs.len() as u64, 3 * WRITES);
    });
}
