//! Membership changes: learners, removed members, and a cluster that continues from a single survivor.

use api::Rpc;
use api::error;
use api::etcdserverpb::{
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
};

use testkit::eventually;

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE, is_passing};
use crate::cluster_load::{Load, Record};
use crate::crash::check;
use crate::member::READY;
use crate::run;

/// Removes a member, with retries until the cluster accepts the removal.
pub async fn remove(client: &Client, id: u64) {
    eventually("a member is removed", PATIENCE, async || {
        match client.call::<MemberRemoveResponse>(Rpc::ClusterMemberRemove, &MemberRemoveRequest { id }).await
        {
            Ok(_) => Some(()),
            // An earlier attempt removed the member, but its response was lost.
            Err(status) if status == error::MEMBER_NOT_FOUND => Some(()),
            Err(status) => {
                assert!(is_passing(&status), "{status}");
                None
            }
        }
    })
    .await;
}

pub async fn id_of(client: &Client) -> u64 {
    client.status().await.expect("a status").header.expect("a header").member_id
}

#[test]
fn a_learner_learns_and_then_votes() {
    run(async {
        let mut cluster = Cluster::start("learner", 2, &[]);
        let leader = cluster.leader().await;
        for number in 0..50 {
            cluster.put(number % 2, &format!("k/{number}"), "x").await;
        }
        let at = cluster.add_slot();
        let id = cluster.announce(1 - leader, at, true).await;
        let audit_log = cluster.dir.join("audit.log");
        let mut joining = cluster.joining(at, &[0, 1, 2]);
        joining.arg(format!("--audit-log={}", audit_log.display()));
        cluster.spawn_with(at, joining);
        cluster.member(at).wait_for(READY);

        let client = cluster.client(at).await;
        assert_eq!(id_of(&client).await, id);
        assert!(client.status().await.expect("a status is given").is_learner);
        assert_eq!(client.put("k", "x").await, Err(error::NOT_SUPPORTED_FOR_LEARNER));
        assert_eq!(client.get("k").await, Err(error::NOT_SUPPORTED_FOR_LEARNER));
        let refused = eventually("the refused put is in the audit log", PATIENCE, async || {
            let text = std::fs::read_to_string(cluster.dir.join("audit.log.refused")).ok()?;
            text.contains("not supported for learner").then_some(text)
        })
        .await;
        assert!(refused.contains("KV/Put\",\"key\":\"k\"") && !refused.contains("KV/Range"), "{refused}");
        eventually("the learner has what the others have", PATIENCE, async || {
            client.get_local("k/49").await.expect("reads of its own state are served")
        })
        .await;

        let others = cluster.client(1 - leader).await;
        eventually("the learner is promoted", PATIENCE, async || {
            let request = MemberPromoteRequest { id };
            match others.call::<MemberPromoteResponse>(Rpc::ClusterMemberPromote, &request).await {
                Ok(_) => Some(()),
                Err(status) => {
                    assert!(status == error::LEARNER_NOT_READY || is_passing(&status), "{status}");
                    None
                }
            }
        })
        .await;
        // A membership change that only the leader has applied may be lost with the leader, as in etcd.
        eventually("the others have heard of it", PATIENCE, async || {
            for one in [&client, &others] {
                let members = one.members().await.ok()?;
                if members.len() != 3 || members.iter().any(|member| member.is_learner) {
                    return None;
                }
            }
            Some(())
        })
        .await;
        // Without the new member's vote, the cluster of three could not lose its leader.
        cluster.kill(leader);
        cluster.put(1 - leader, "voted", "x").await;
        assert!(client.get("voted").await.expect("reads are served").is_some());
        let members = client.members().await.expect("members are listed");
        assert!(members.len() == 3 && members.iter().all(|member| !member.is_learner), "{members:?}");
        cluster.start_one(leader);
        cluster.assert_equal().await;
    });
}

#[test]
fn a_removed_member_ends_and_does_not_come_back() {
    run(async {
        let mut cluster = Cluster::start("removed", 5, &["--strict-reconfig-check=false"]);
        let leader = cluster.leader().await;
        let [first, second, stays] = [1, 2, 3].map(|step| (leader + step) % 5);
        let client = cluster.client(stays).await;
        let ids = [
            id_of(&cluster.client(leader).await).await,
            id_of(&cluster.client(first).await).await,
            id_of(&cluster.client(second).await).await,
        ];

        // A running member that is removed ends by itself, and cannot be started again.
        remove(&client, ids[1]).await;
        let mut gone = cluster.take(first);
        assert_eq!(gone.wait().code(), Some(0), "{}", gone.said());
        drop(gone);
        cluster.spawn(first);
        let said = cluster.take(first).refuses();
        assert!(said.contains("has been permanently removed from the cluster"), "{said}");

        // A leader that is removed ends too, and the others continue.
        remove(&client, ids[0]).await;
        let mut gone = cluster.take(leader);
        assert_eq!(gone.wait().code(), Some(0), "{}", gone.said());
        drop(gone);
        cluster.put(stays, "k", "x").await;

        // A member that was down during its removal learns of it when it starts again.
        cluster.kill(second);
        remove(&client, ids[2]).await;
        cluster.put(stays, "k", "y").await;
        cluster.spawn(second);
        let mut gone = cluster.take(second);
        gone.wait();
        assert!(gone.said().contains("has been permanently removed from the cluster"), "{}", gone.said());
        let words = "cannot start the member";
        if let Some(fatal) = gone.said().lines().find(|line| line.contains(words)) {
            assert!(
                fatal.contains("permanently removed from the cluster: remove its data directory"),
                "{fatal}"
            );
        }
        let members = client.members().await.expect("members are listed");
        assert_eq!(members.len(), 2, "{members:?}");
        assert!(cluster.member(stays).said().contains("removed a member"));
    });
}

#[test]
fn one_survivor_goes_on_alone_and_takes_others_in() {
    run(async {
        let mut cluster =
            Cluster::start("survivor", 3, &["--strict-reconfig-check=false", "--snapshot-count=100"]);
        let mut record = Record::new();
        cluster.leader().await;
        let load = Load::start(&cluster, &record, 12);
        load.more(300).await;
        load.end(&mut record).await;
        let hash = cluster.assert_equal().await;
        for at in 0..3 {
            cluster.kill(at);
        }

        let command = cluster.command_with(1, &["--force-new-cluster"]);
        cluster.spawn_with(1, command);
        let client = cluster.client(1).await;
        let members = client.members().await.expect("members are listed");
        assert_eq!(members.iter().map(|member| &member.name[..]).collect::<Vec<_>>(), ["m1"]);
        assert_eq!(client.hash_kv(hash.hash_revision).await.expect("a hash").hash, hash.hash);
        check(&client, &mut record.history, 0).await;
        cluster.kill(1);

        // The member stays alone even when it is started without the flag, until other members are added.
        cluster.start_one(1);
        for at in [0, 2] {
            std::fs::remove_dir_all(&cluster.slots[at].data_dir).expect("it is there");
        }
        cluster.announce(1, 0, false).await;
        cluster.spawn_with(0, cluster.joining(0, &[1, 0]));
        cluster.member(0).wait_for(READY);
        cluster.announce(0, 2, false).await;
        cluster.spawn_with(2, cluster.joining(2, &[0, 1, 2]));
        cluster.member(2).wait_for(READY);
        let load = Load::start(&cluster, &record, 12);
        load.more(100).await;
        load.end(&mut record).await;
        check(&cluster.client(2).await, &mut record.history, 0).await;
        cluster.kill(1);
        cluster.put(0, "single/0000", "0:0:").await;
        cluster.start_one(1);
        cluster.assert_equal().await;
    });
}

#[test]
fn a_learner_that_survives_goes_on_alone() {
    run(async {
        let mut cluster = Cluster::start("survivor-learns", 1, &[]);
        cluster.leader().await;
        cluster.put(0, "k", "v").await;
        let at = cluster.add_slot();
        cluster.announce(0, at, true).await;
        cluster.spawn_with(at, cluster.joining(at, &[0, at]));
        cluster.member(at).wait_for(READY);
        let client = cluster.client(at).await;
        eventually("the learner has what was written", PATIENCE, async || {
            client.get_local("k").await.expect("reads of its own state are served")
        })
        .await;
        cluster.kill(0);
        cluster.kill(at);
        let command = cluster.command_with(at, &["--force-new-cluster"]);
        cluster.spawn_with(at, command);
        let client = cluster.client(at).await;
        client.put("k", "w").await.expect("it leads");
        let members = client.members().await.expect("members are listed");
        assert_eq!(members.len(), 1, "{members:?}");
        assert!(!members[0].is_learner);
        cluster.kill(at);
        cluster.start_one(at);
    });
}
