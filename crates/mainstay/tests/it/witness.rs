//! Two members and a witness as processes: kill -9 of each in turn under writers, the loss of a machine with its disk,
//! and what a witness refuses.

use std::process::Command;

use api::error;
use api::etcdserverpb::{MemberAddRequest, MemberAddResponse, MemberRemoveRequest, MemberRemoveResponse};
use api::{Rpc, Status};
use testkit::eventually;

use crate::cluster::{Cluster, PATIENCE, is_passing};
use crate::cluster_load::{Load, Record};
use crate::crash::check;
use crate::member::READY;
use crate::run;

/// Places of the members with data, and of the witness.
const MEMBERS: [usize; 2] = [0, 1];
const WITNESS: usize = 2;

/// Returns the command that starts a witness with the flags of a member.
fn as_witness(member: &Command) -> Command {
    let mut command = Command::new(member.get_program());
    command.env_clear().arg("witness").args(member.get_args());
    command
}

fn spawn(cluster: &mut Cluster, at: usize) {
    let command = cluster.command(at);
    let command = if at == WITNESS { as_witness(&command) } else { command };
    cluster.spawn_with(at, command);
}

/// Starts two members and a witness, and waits until all serve.
fn start(name: &str) -> Cluster {
    let mut cluster = Cluster::plan(name, 3, &["--initial-cluster-witness=m2", "--snapshot-count=100"]);
    // The members form the cluster without the witness, and say that it has not run before.
    MEMBERS.into_iter().for_each(|at| spawn(&mut cluster, at));
    MEMBERS.into_iter().for_each(|at| drop(cluster.member(at).wait_for(READY)));
    spawn(&mut cluster, WITNESS);
    cluster.member(WITNESS).wait_for(READY);
    cluster
}

/// Waits until the leader says that any machine may be lost. Returns its place.
async fn in_step(cluster: &Cluster) -> usize {
    eventually("both members are in step", PATIENCE, async || {
        let leader = cluster.leader_of(&MEMBERS).await;
        let status = cluster.client(leader).await.status().await.ok()?;
        (status.leader == status.header?.member_id && !status.witness_counts).then_some(leader)
    })
    .await
}

fn size_of(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("it can be read").map(|entry| entry.expect("it can be read"));
    let sizes = entries.map(|entry| match entry.file_type().expect("it has a type") {
        kind if kind.is_dir() => size_of(&entry.path()),
        _ => entry.metadata().map_or(0, |it| it.len()),
    });
    sizes.sum()
}

#[test]
fn any_one_of_two_members_and_a_witness_may_be_lost() {
    let mut cluster = start("witness");
    let mut record = Record::new();
    // Each is killed in turn, and comes back. Writers go on.
    for round in 0..3 {
        run(async {
            let leader = in_step(&cluster).await;
            let killed = [leader, 1 - leader, WITNESS][round];
            let load = Load::start_at(&cluster, &MEMBERS, &record, 16);
            load.more(300).await;
            cluster.kill(killed);
            load.more(200).await;
            spawn(&mut cluster, killed);
            cluster.member(killed).wait_for(READY);
            in_step(&cluster).await;
            load.more(100).await;
            load.end(&mut record).await;
            check(&cluster.client(MEMBERS[round % 2]).await, &mut record.history, 0).await;
        });
    }
    // The leader's machine is lost for good, with its disk.
    run(async {
        let leader = in_step(&cluster).await;
        let other = 1 - leader;
        let load = Load::start_at(&cluster, &MEMBERS, &record, 16);
        load.more(300).await;
        cluster.kill(leader);
        std::fs::remove_dir_all(&cluster.slots[leader].data_dir).expect("it is there");
        load.more(200).await;
        load.end(&mut record).await;
        assert_eq!(cluster.leader_of(&[other]).await, other);
        let client = cluster.client(other).await;
        check(&client, &mut record.history, 0).await;
        assert!(client.status().await.expect("a status").witness_counts, "another machine must not be lost");
        // A new member takes the place of the lost one.
        let members = client.members().await.expect("a list");
        let lost =
            members.iter().find(|member| member.name == cluster.slots[leader].name).expect("it is listed");
        eventually("the lost member is removed", PATIENCE, async || {
            let remove = MemberRemoveRequest { id: lost.id };
            client.call::<MemberRemoveResponse>(Rpc::ClusterMemberRemove, &remove).await.ok()
        })
        .await;
        let at = cluster.add_slot();
        cluster.announce(other, at, false).await;
        let joining = cluster.joining(at, &[other, WITNESS, at]);
        cluster.spawn_with(at, joining);
        cluster.member(at).wait_for(READY);
        eventually("the new member is in step", PATIENCE, async || {
            (!client.status().await.ok()?.witness_counts).then_some(())
        })
        .await;
        check(&cluster.client(at).await, &mut record.history, 0).await;
        cluster.kill(other);
        check(&cluster.client(at).await, &mut record.history, 0).await;
        let witness = cluster.client(WITNESS).await.status().await.expect("a status");
        assert!(
            witness.is_witness && witness.leader != 0 && witness.header.is_some_and(|it| it.revision == 1)
        );
    });
    let (acknowledged, unknown) = record.history.tally();
    println!("{acknowledged} acknowledged writes, {unknown} cut short: none lost");
    assert!(acknowledged > 1000 && unknown > 0, "the kills met writes under way");
}

#[test]
fn a_witness_answers_no_keys_and_is_never_taken_for_a_member() {
    run(async {
        let mut cluster = start("no-keys");
        let leader = in_step(&cluster).await;
        let large = crate::filler(1, 100_000);
        let client = cluster.client(leader).await;
        for number in 0..50 {
            client.put(format!("k/{number}"), large.clone()).await.expect("a write");
        }
        let witness = cluster.client(WITNESS).await;
        assert_eq!(witness.get("k/1").await, Err(error::NOT_SUPPORTED_FOR_WITNESS));
        assert_eq!(witness.get_local("k/1").await, Err(error::NOT_SUPPORTED_FOR_WITNESS));
        assert_eq!(witness.put("k/1", "x").await, Err(error::NOT_SUPPORTED_FOR_WITNESS));
        assert_eq!(witness.grant(10).await.err(), Some(error::NOT_SUPPORTED_FOR_WITNESS));
        let members = witness.members().await.expect("a list");
        assert_eq!(members.len(), 3);
        let own = members.iter().find(|member| member.is_witness).expect("it is listed");
        assert!(own.name == "m2" && own.client_urls.is_empty() && !own.is_learner, "{own:?}");
        // Its log needs little space, and is empty of values.
        assert!(size_of(&cluster.slots[WITNESS].data_dir) < 16 << 20);
        let kept: u64 =
            cluster.client(WITNESS).await.status().await.expect("a status").db_size_in_use.cast_unsigned();
        assert_eq!(kept, 0);
        // A second one, and one that is also a learner, are refused.
        let add = |is_learner| MemberAddRequest {
            peer_urls: vec!["http://127.0.0.1:1".to_owned()],
            is_learner,
            is_witness: true,
        };
        for is_learner in [false, true] {
            let refused = eventually("an answer once all are connected", PATIENCE, async || {
                let added: Result<MemberAddResponse, Status> =
                    client.call(Rpc::ClusterMemberAdd, &add(is_learner)).await;
                added.err().filter(|status| !is_passing(status))
            })
            .await;
            assert_eq!(refused, error::TOO_MANY_WITNESSES);
        }
        // A witness whose disk was lost has forgotten its votes.
        cluster.kill(WITNESS);
        let dir = cluster.slots[WITNESS].data_dir.clone();
        let kept = cluster.dir.join("kept");
        std::fs::rename(&dir, &kept).expect("it is moved");
        spawn(&mut cluster, WITNESS);
        let said = cluster.take(WITNESS).refuses();
        assert!(said.contains("has run before, and its directory is empty"), "{said}");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::rename(&kept, &dir).expect("it is moved back");
        // Its directory is no member's, nor the other way round.
        cluster.kill(1 - leader);
        let as_member = cluster.command(WITNESS);
        cluster.spawn_with(WITNESS, as_member);
        let said = cluster.take(WITNESS).refuses();
        assert!(said.contains("is the data directory of a witness, which has no keys"), "{said}");
        let of_member = as_witness(&cluster.command(1 - leader));
        cluster.spawn_with(1 - leader, of_member);
        let said = cluster.take(1 - leader).refuses();
        assert!(said.contains("is the data directory of a member with data"), "{said}");
    });
}

#[test]
fn a_witness_is_added_to_two_members() {
    run(async {
        let mut cluster = Cluster::start("later", 2, &[]);
        let leader = cluster.leader().await;
        for number in 0..50 {
            cluster.put(number % 2, &format!("k/{number}"), "x").await;
        }
        let at = cluster.add_slot();
        let client = cluster.client(leader).await;
        let request = MemberAddRequest {
            peer_urls: vec![cluster.slots[at].peer_url()],
            is_learner: true,
            is_witness: true,
        };
        eventually("the witness is added", PATIENCE, async || {
            let added: Result<MemberAddResponse, Status> = client.call(Rpc::ClusterMemberAdd, &request).await;
            added.ok()?.member.filter(|member| member.is_witness && !member.is_learner)
        })
        .await;
        // It must be started as what it is.
        let joining = cluster.joining(at, &[0, 1, at]);
        cluster.spawn_with(at, cluster.joining(at, &[0, 1, at]));
        let said = cluster.take(at).refuses();
        assert!(
            said.contains("as a witness, which keeps no keys: start it with `mainstay witness`"),
            "{said}"
        );
        cluster.spawn_with(at, as_witness(&joining));
        cluster.member(at).wait_for(READY);
        eventually("both members are in step", PATIENCE, async || {
            let witness = cluster.client(at).await.status().await.ok()?;
            let status = client.status().await.ok()?;
            let has_all = witness.raft_applied_index == status.raft_applied_index;
            (!status.witness_counts && has_all).then_some(())
        })
        .await;
        cluster.kill(leader);
        cluster.put(1 - leader, "k", "after").await;
    });
}

#[test]
fn members_that_disagree_about_the_witness_form_no_cluster() {
    let mut cluster = Cluster::plan("disagree", 3, &[]);
    let [first, second] = [0, 1].map(|at| cluster.command(at));
    let mut with = Command::new(first.get_program());
    with.env_clear().args(first.get_args()).arg("--initial-cluster-witness=m2");
    cluster.spawn_with(0, with);
    cluster.spawn_with(1, second);
    cluster.member(0).wait_for("cluster ID mismatch");
    // The witness itself must be started as one, and named.
    let command = cluster.command(2);
    cluster.spawn_with(2, as_witness(&command));
    let said = cluster.take(2).refuses();
    assert!(said.contains("--initial-cluster-witness=m2, which all members"), "{said}");
    let mut named = Command::new(command.get_program());
    named.env_clear().args(command.get_args()).arg("--initial-cluster-witness=m2");
    cluster.spawn_with(2, named);
    let said = cluster.take(2).refuses();
    assert!(said.contains("names this member, \\\"m2\\\": start it with `mainstay witness`"), "{said}");
}
