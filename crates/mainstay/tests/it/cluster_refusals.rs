//! Starts that do not fit the cluster, and requests of foreign members: they are refused, and do not disturb
//! the cluster.

use std::time::Duration;

use testkit::{Random, eventually, http2};

use crate::cluster::{Cluster, PATIENCE};
use crate::cluster_members::id_of;
use crate::member::READY;
use crate::run;

/// Options of clusters that must not be disturbed: with these timeouts, a busy machine alone causes no election.
const PATIENT: &[&str] = &["--heartbeat-interval=100", "--election-timeout=3000"];
const PATIENT_ELECTION_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts a member that is told to join; returns its log output when it refuses to start.
fn refused_to_join(cluster: &mut Cluster, at: usize, everybody: &[usize]) -> String {
    let command = cluster.joining(at, everybody);
    cluster.spawn_with(at, command);
    cluster.take(at).refuses()
}

#[test]
fn a_member_that_does_not_fit_is_refused() {
    run(async {
        let mut cluster = Cluster::start("misfits", 1, &["--strict-reconfig-check=false"]);
        cluster.put(0, "k", "x").await;
        let announced = cluster.add_slot();
        let stranger = cluster.add_slot();

        let said = refused_to_join(&mut cluster, stranger, &[announced, stranger]);
        assert!(said.contains("cannot fetch cluster info from peer urls"), "{said}");
        assert!(!cluster.slots[stranger].data_dir.join("member/log").exists(), "nothing is written");

        let said = refused_to_join(&mut cluster, stranger, &[0, stranger]);
        assert!(
            said.contains("error validating peerURLs") && said.contains("member count is unequal"),
            "{said}"
        );

        cluster.announce(0, announced, true).await;
        let said = refused_to_join(&mut cluster, stranger, &[0, stranger]);
        assert!(said.contains("unmatched member while checking PeerURLs"), "{said}");

        // The member that was added can still join, and the cluster is unchanged.
        cluster.spawn_with(announced, cluster.joining(announced, &[0, announced]));
        cluster.member(announced).wait_for(READY);
        cluster.put(0, "k", "y").await;
        assert_eq!(cluster.client(0).await.members().await.expect("members are listed").len(), 2);
        let learner = cluster.client(announced).await;
        eventually("the learner has what was written", PATIENCE, async || {
            let kv = learner.get_local("k").await.expect("reads of its own state are served");
            kv.filter(|kv| kv.value == "y")
        })
        .await;
    });
}

#[test]
fn a_member_without_its_data_is_not_new() {
    run(async {
        let mut cluster = Cluster::start("wiped", 3, &[]);
        cluster.put(0, "k", "x").await;
        let client = cluster.client(0).await;
        eventually("all have made themselves known", PATIENCE, async || {
            let members = client.members().await.ok()?;
            members.iter().all(|member| !member.client_urls.is_empty()).then_some(())
        })
        .await;
        let id = id_of(&cluster.client(2).await).await;
        cluster.kill(2);
        let away = cluster.dir.path().join("away");
        std::fs::rename(&cluster.slots[2].data_dir, &away).expect("it can be moved");
        cluster.spawn(2);
        let said = cluster.take(2).refuses();
        assert!(said.contains(&format!("member {id:x} has already been bootstrapped")), "{said}");

        // With its data the member starts as the same member, whatever the flags about the initial cluster
        // say, as in etcd.
        std::fs::remove_dir_all(&cluster.slots[2].data_dir).expect("it is there");
        std::fs::rename(&away, &cluster.slots[2].data_dir).expect("it can be moved");
        let initial = format!("--initial-cluster={}", cluster.initial(&[2]));
        let command = cluster.command_with(2, &[&initial, "--initial-cluster-token=other"]);
        cluster.spawn_with(2, command);
        assert_eq!(id_of(&cluster.client(2).await).await, id);
        cluster.put(2, "k", "y").await;
        cluster.assert_equal().await;
    });
}

#[test]
fn garbage_at_the_door_of_members_is_survived() {
    let mut cluster = Cluster::start("noise", 3, PATIENT);
    let mut dice = Random::new(5);
    run(async {
        let leader = cluster.leader().await;
        let before = cluster.client(leader).await.status().await.expect("a status");
        for _ in 0..20 {
            let noise: Vec<u8> = (0..dice.below(3000)).map(|_| dice.below(256) as u8).collect();
            let post = |path: &str, headers: &str| {
                let head = format!(
                    "POST {path} HTTP/1.1\r\nHost: m\r\nContent-Length: {}\r\nX-Server-From: 1\r\n{headers}\r\n",
                    noise.len()
                );
                [head.into_bytes(), noise.clone()].concat()
            };
            let id = before.header.as_ref().expect("a header").cluster_id;
            let ours = format!(
                "X-Server-Version: 3.7.0\r\nX-Min-Cluster-Version: 3.0.0\r\nX-Etcd-Cluster-ID: {id:x}\r\n\
                 Content-Type: application/protobuf\r\n"
            );
            let get =
                format!("GET /raft/stream/msgapp/1 HTTP/1.1\r\nHost: m\r\nX-Server-From: 1\r\n{ours}\r\n");
            let noises = [
                noise.clone(),
                post("/raft", &ours),
                post("/raft", ""),
                post("/raft/snapshot", &ours),
                post("/mainstay/snapshot", &ours),
                get.into_bytes(),
            ];
            for at in 0..3 {
                for bytes in &noises {
                    http2::send_garbage(cluster.slots[at].peer, bytes);
                }
            }
        }
        for at in 0..3 {
            cluster.put(at, "k", "x").await;
        }
        let after = cluster.client(leader).await.status().await.expect("a status");
        assert_eq!(
            (after.raft_term, after.leader),
            (before.raft_term, before.leader),
            "nobody was disturbed"
        );
        cluster.assert_equal().await;
        for at in 0..3 {
            assert!(cluster.slots[at].member.as_mut().is_some_and(|member| member.runs()));
            assert!(!cluster.member(at).said().contains("panicked"));
        }
    });
}

#[test]
fn members_of_another_cluster_are_refused() {
    run(async {
        let mut ours = Cluster::start("ours", 3, PATIENT);
        let mut theirs = Cluster::plan("theirs", 3, &[]);
        // The third member of the other cluster has the peer address of this cluster's first member.
        theirs.slots[2].peer = ours.slots[0].peer;
        theirs.spawn(0);
        theirs.spawn(1);
        let leader = ours.leader().await;
        let before = ours.client(leader).await.status().await.expect("a status");
        for at in [0, 1] {
            theirs.member(at).wait_for(READY);
            theirs.member(at).wait_for("cluster ID mismatch");
        }
        theirs.leader().await;
        for round in 0..20 {
            ours.put(round % 3, &format!("k/{round}"), "ours").await;
            theirs.put(round % 2, &format!("k/{round}"), "theirs").await;
        }
        // This time is long enough for a disturbed member to start an election.
        tokio::time::sleep(PATIENT_ELECTION_TIMEOUT * 2 + Duration::from_millis(100)).await;
        let after = ours.client(leader).await.status().await.expect("a status");
        assert_eq!(
            (after.raft_term, after.leader),
            (before.raft_term, before.leader),
            "nobody was disturbed"
        );
        for (cluster, word) in [(&mut ours, "ours"), (&mut theirs, "theirs")] {
            for at in cluster.running() {
                let kvs = cluster.client(at).await.everything().await.expect("reads are served").kvs;
                assert!(kvs.len() == 20 && kvs.iter().all(|kv| kv.value == word), "{kvs:?}");
            }
            cluster.assert_equal().await;
        }
    });
}
