//! Observers as processes: they follow the log of members and of each other, serve reads, watches and forwarded
//! writes, and are no members. Feeders that end, logs that are gone, and what is refused.

use std::process::Command;

use api::Code;
use testkit::eventually;

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::drains::metric;
use crate::member::{READY, binary};
use crate::{filler, run};

/// Returns the command that starts the observer of a place, fed by the nodes of these places.
pub fn observer(cluster: &Cluster, at: usize, feeds: &[usize], flags: &[&str]) -> Command {
    let slot = &cluster.slots[at];
    let feeds: Vec<String> = feeds.iter().map(|at| cluster.slots[*at].peer_url()).collect();
    let (client, peer_url) = (slot.client, slot.peer_url());
    let mut command = Command::new(binary());
    command
        .env_clear()
        .arg("observer")
        .arg(format!("--name={}", slot.name))
        .arg(format!("--feed={}", feeds.join(",")))
        .arg("--data-dir")
        .arg(&slot.data_dir)
        .arg(format!("--listen-client-urls=http://{client}"))
        .arg(format!("--advertise-client-urls=http://{client}"))
        .arg(format!("--listen-peer-urls={peer_url}"))
        .arg(format!("--initial-advertise-peer-urls={peer_url}"))
        .args(["--heartbeat-interval=50", "--election-timeout=500"])
        .args(flags);
    command
}

/// Starts the observer of a place, and waits until it serves.
fn start(cluster: &mut Cluster, at: usize, feeds: &[usize], flags: &[&str]) {
    let command = observer(cluster, at, feeds, flags);
    cluster.spawn_with(at, command);
    cluster.member(at).wait_for(READY);
}

/// Waits until a read at this place sees a value.
async fn sees(client: &Client, key: &str, value: &str) {
    eventually("a linearizable read at an observer", PATIENCE, async || {
        let kv = client.get(key.to_owned()).await.ok()??;
        (kv.value == value.as_bytes()).then_some(())
    })
    .await;
}

#[test]
fn they_serve_what_members_serve_and_are_no_members() {
    run(async {
        let mut cluster = Cluster::start("observed", 3, &[]);
        let leader = cluster.leader().await;
        let follower = (leader + 1) % 3;
        let (first, second) = (cluster.add_slot(), cluster.add_slot());
        start(&mut cluster, first, &[follower], &["--zone=b"]);
        start(&mut cluster, second, &[first], &[]);
        let [member, near, far] =
            [cluster.client(leader).await, cluster.client(first).await, cluster.client(second).await];
        let mut watch = far.watch_all(0).await.expect("watches are served");
        // Writes through any node are seen at once by reads through any other.
        for round in 0..20 {
            let (writer, reader) = if round % 2 == 0 { (&far, &near) } else { (&member, &far) };
            let value = format!("{round}");
            writer.put("k", value.clone()).await.expect("writes are passed on");
            let read = reader.get("k").await.expect("reads are served").expect("it exists");
            assert_eq!(read.value, value.as_bytes(), "a linearizable read is stale");
        }
        let mut seen = Vec::new();
        while seen.len() < 20 {
            let response = watch.next().await.expect("events arrive");
            seen.extend(response.events.iter().map(|event| {
                let kv = event.kv.as_ref().expect("an event has its key");
                String::from_utf8_lossy(&kv.value).into_owned()
            }));
        }
        assert_eq!(seen, (0..20).map(|round: i32| round.to_string()).collect::<Vec<_>>());
        // Leases live on the leader, two feeders away.
        let lease = far.grant(600).await.expect("grants are passed on");
        far.put_leased("leased", "x", lease).await.expect("writes are passed on");
        let left = far.time_to_live(lease, true).await.expect("questions are passed on");
        assert_eq!((left.granted_ttl, left.keys.len()), (600, 1));
        // Nobody takes them for members.
        for client in [&member, &near, &far] {
            assert_eq!(client.members().await.expect("lists are served").len(), 3);
        }
        let status = far.status().await.expect("it answers");
        assert!(status.is_observer && status.is_learner && status.leader != 0);
        assert_eq!(
            status.feeder,
            near.status().await.expect("it answers").header.expect("a header").member_id
        );
        let feeder = cluster.client(follower).await;
        let fed = eventually("the observer acknowledges", PATIENCE, async || {
            let status = feeder.status().await.ok()?;
            status.observers.into_iter().find(|observer| observer.lag_entries == 0)
        })
        .await;
        assert_eq!((fed.name.as_str(), fed.zone.as_str(), fed.state.as_str()), ("m3", "b", "replicate"));
        cluster.assert_equal().await;
        // The whole tree in one list.
        let list = Command::new(binary())
            .args(["ctl", "observer", "list", "-w", "json"])
            .arg(format!("--endpoints={}", cluster.slots[leader].client))
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&list.stdout);
        assert!(list.status.success() && text.contains("\"m3\"") && text.contains("\"m4\""), "{text}");
    });
}

#[test]
fn they_go_to_another_feeder_and_survive_their_own_end() {
    run(async {
        let mut cluster = Cluster::start("refed", 3, &[]);
        let leader = cluster.leader().await;
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        let at = cluster.add_slot();
        start(&mut cluster, at, &[leader, others[0]], &[]);
        let client = cluster.client(at).await;
        client.put("k", "1").await.expect("writes are passed on");
        cluster.kill(leader);
        // A new leader, and for the observer perhaps a new feeder, too.
        cluster.put(others[0], "k", "2").await;
        sees(&client, "k", "2").await;
        cluster.start_one(leader);
        cluster.kill(others[0]);
        cluster.put(others[1], "k", "3").await;
        sees(&client, "k", "3").await;
        cluster.start_one(others[0]);
        // It is killed while it writes, and goes on with its own log.
        let writing = tokio::spawn({
            let client = cluster.client(leader).await;
            async move {
                for number in 0..300 {
                    client.put(format!("n/{number}"), filler(number, 2000)).await.expect("writes are served");
                }
            }
        });
        cluster.kill(at);
        let command = observer(&cluster, at, &[leader, others[0]], &[]);
        cluster.spawn_with(at, command);
        cluster.member(at).wait_for(READY);
        writing.await.expect("the writer ends");
        cluster.assert_equal().await;
        // With all members gone it serves what it has, and says so where that is not enough.
        for member in [leader, others[0], others[1]] {
            cluster.kill(member);
        }
        let client = cluster.client(at).await;
        let local = client.get_local("k").await.expect("serializable reads are served").expect("it exists");
        assert_eq!(local.value, &b"3"[..]);
        let bounded = client.with_header("mainstay-max-staleness-ms", "0");
        let refused = bounded.get_local("k").await.expect_err("nobody confirms it");
        assert!(refused.code == Code::Unavailable && refused.message.contains("staleness"), "{refused:?}");
        let bounded = client.with_header("mainstay-max-staleness-ms", "600000");
        bounded.get_local("k").await.expect("it is fresh enough");
    });
}

#[test]
fn one_that_is_far_behind_gets_the_whole_state() {
    run(async {
        let flags = ["--snapshot-count=100", "--snapshot-catchup-entries=10", "--log-level=debug"];
        let mut cluster = Cluster::start("far-behind", 1, &flags);
        let at = cluster.add_slot();
        let member = cluster.client(0).await;
        let write = async |from: u32, to: u32| {
            for number in from..to {
                let value = filler(number, 128 << 10);
                member.put(format!("k/{}", number % 50), value).await.expect("writes are served");
            }
            let revision = member.put("end", format!("{to}")).await.expect("writes are served");
            member.compact(revision, true).await.expect("compactions are served");
        };
        start(&mut cluster, at, &[0], &flags);
        for round in 0..2 {
            cluster.kill(at);
            let saved = cluster.member(0).said().matches("saved a checkpoint").count();
            write(round * 900, (round + 1) * 900).await;
            eventually("the member forgets its log", PATIENCE, async || {
                (cluster.member(0).said().matches("saved a checkpoint").count() > saved + 1).then_some(())
            })
            .await;
            let command = observer(&cluster, at, &[0], &flags);
            cluster.spawn_with(at, command);
            cluster.member(at).wait_for("installed a snapshot");
            cluster.member(at).wait_for(READY);
            cluster.assert_equal().await;
        }
    });
}

#[test]
fn a_bound_that_cannot_be_met_is_refused() {
    run(async {
        let mut cluster = Cluster::start("bounded", 1, &[]);
        let at = cluster.add_slot();
        start(&mut cluster, at, &[0], &[]);
        let client = cluster.client(at).await;
        let revision = client.put("k", "v").await.expect("writes are passed on");
        let least = |revision: i64| client.with_header("mainstay-min-revision", &revision.to_string());
        let read = least(revision).get_local("k").await.expect("it is reached").expect("it exists");
        assert_eq!(read.value, &b"v"[..]);
        let refused = least(revision + 1).get_local("k").await.expect_err("nobody has it");
        assert!(refused.message.contains("is not reached"), "{refused:?}");
        let fresh = client.with_header("mainstay-max-staleness-ms", "0");
        assert!(fresh.get_local("k").await.expect("it is confirmed").is_some());
        let bad = client.with_header("mainstay-max-staleness-ms", "soon");
        assert_eq!(bad.get_local("k").await.expect_err("no number").code, Code::InvalidArgument);
    });
}

#[test]
fn wrong_directories_flags_and_clusters_are_refused() {
    run(async {
        let mut cluster = Cluster::start("refusing", 1, &[]);
        let at = cluster.add_slot();
        start(&mut cluster, at, &[0], &[]);
        cluster.kill(at);
        // A member on an observer's directory, and the other way round.
        let said = crate::member::Member::launch(cluster.command(at), None).refuses();
        assert!(said.contains("is the data directory of an observer"), "{said}");
        cluster.kill(0);
        let mut command = observer(&cluster, 0, &[0], &[]);
        command.arg("--wal-dir=");
        let said = crate::member::Member::launch(command, None).refuses();
        assert!(said.contains("is the data directory of a member"), "{said}");
        for (flags, reason) in [
            (&["--feed=http://127.0.0.1:1"][..], "is a flag of `mainstay observer`"),
            (&["observer"][..], "needs --feed"),
            (
                &["observer", "--feed=http://127.0.0.1:1", "--initial-cluster-state=existing"][..],
                "is for members",
            ),
            (&["observer", "--feed=http://127.0.0.1:1", "--pre-vote=false"][..], "is for members"),
        ] {
            let refused = Command::new(binary()).args(flags).output().expect("it runs");
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && said.contains(reason), "{flags:?}: {said}");
        }
        // Another cluster at the address of its feeder.
        let mut other = Cluster::start("another", 1, &[]);
        let stranger = other.add_slot();
        other.slots[stranger].data_dir = cluster.slots[at].data_dir.clone();
        let command = observer(&other, stranger, &[0], &[]);
        other.spawn_with(stranger, command);
        other.member(stranger).wait_for("cluster ID mismatch");
    });
}

#[test]
fn clients_of_a_zone_are_shown_what_is_in_it() {
    run(async {
        let networks = ["--zone=a", "--zone-member-list=only", "--zone-networks=b=127.0.0.0/8"];
        let mut cluster = Cluster::start("zoned", 1, &networks);
        let member = cluster.client(0).await;
        let names = async |client: &Client| -> Vec<String> {
            let members = client.members().await.expect("lists are served").into_iter();
            // Clients that sync their endpoints use no others.
            members.filter(|member| !member.is_learner).map(|member| member.name).collect()
        };
        assert_eq!(names(&member).await, ["m0"], "nothing is connected in their zone");
        let at = cluster.add_slot();
        start(
            &mut cluster,
            at,
            &[0],
            &["--zone=b", "--zone-member-list=first", "--zone-networks=b=127.0.0.0/8"],
        );
        eventually("the list has the observer alone", PATIENCE, async || {
            (names(&member).await == ["m1"]).then_some(())
        })
        .await;
        let near = cluster.client(at).await;
        assert_eq!(names(&near).await, ["m1", "m0"], "its own clients see it first");
        cluster.kill(at);
        eventually("the list has the members again", PATIENCE, async || {
            (names(&member).await == ["m0"]).then_some(())
        })
        .await;
    });
}

#[test]
fn bytes_of_clients_in_another_zone_are_counted() {
    run(async {
        let cluster = Cluster::start("counted", 1, &["--zone=a", "--zone-networks=b=127.0.0.0/8"]);
        let member = cluster.member(0);
        let counted = |from: &str, to: &str| {
            let labels = format!("{{from=\"{from}\",to=\"{to}\",with=\"clients\"}}");
            metric(member, &format!("mainstay_cross_zone_bytes_total{labels}"))
        };
        let client = cluster.client(0).await;
        assert_eq!(
            client.members().await.expect("lists are served").len(),
            1,
            "the list is as without networks"
        );
        let (sent, received) = (counted("a", "b"), counted("b", "a"));
        client.put("k", filler(1, 100_000)).await.expect("writes are served");
        // The pages are served on the same address, to the same zone.
        let received_later = counted("b", "a");
        assert!((100_000..200_000).contains(&(received_later - received)), "{received} {received_later}");
        client.get("k").await.expect("reads are served").expect("it exists");
        let later = counted("a", "b");
        assert!((100_000..1_000_000).contains(&(later - sent)), "{sent} {later}");
        // A client in the zone of the member costs nothing.
        let near =
            Cluster::start("counted-near", 1, &["--zone=b", "--zone-networks=b=127.0.0.0/8,c=10.0.0.0/8"]);
        near.client(0).await.put("k", "v").await.expect("writes are served");
        let page = testkit::http1::get(near.member(0).client_address(), "/metrics");
        let page = page.text();
        assert!(page.contains("{from=\"b\",to=\"c\",with=\"clients\"} 0\n"), "no client is in that zone");
        assert!(!page.contains("from=\"b\",to=\"b\""), "{page}");
    });
}
