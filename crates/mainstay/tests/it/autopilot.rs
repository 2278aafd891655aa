//! The autopilot with processes: members that are gone for good, or whose data differ, are replaced without a
//! person, and no acknowledged write is lost. These tests measure time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{AlarmRequest, AlarmResponse, AlarmType, alarm_request};
use testkit::eventually;

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::member::READY;
use crate::run;

const FLAGS: [&str; 3] = ["--autopilot=on", "--autopilot-interval=1s", "--autopilot-replace-after=5s"];

/// Starts a cluster of three members and a standby, which has the place 3.
async fn start(name: &str) -> Cluster {
    let mut cluster = Cluster::start(name, 3, &FLAGS);
    let at = cluster.add_slot();
    cluster.slots[at].flags = vec!["--standby".to_owned()];
    cluster.announce(0, at, true).await;
    let command = cluster.joining(at, &[0, 1, 2, 3]);
    cluster.spawn_with(at, command);
    cluster.member(at).wait_for(READY);
    cluster
}

/// Waits until the voters of the cluster are those with these names, and nobody else is a member.
async fn wait_for_voters(client: &Client, wanted: &[&str]) {
    let wanted: BTreeSet<&str> = wanted.iter().copied().collect();
    eventually("the members are replaced", PATIENCE, async || {
        let members = client.members().await.ok()?;
        let names: BTreeSet<&str> = members.iter().map(|member| member.name.as_str()).collect();
        (names == wanted && members.iter().all(|member| !member.is_learner)).then_some(())
    })
    .await;
}

#[test]
fn a_member_that_is_killed_for_good_under_load_is_replaced_without_a_person() {
    run(async {
        let mut cluster = start("piloted").await;
        let gone = cluster.leader_of(&[0, 1, 2]).await;
        let others: Vec<usize> = (0..3).filter(|at| *at != gone).collect();
        let ends = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for (number, at) in others.iter().enumerate() {
            let (client, ends) = (cluster.client(*at).await, Arc::clone(&ends));
            writers.push(tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                let mut count = 0;
                while !ends.load(SeqCst) {
                    let key = format!("{number}/{count}");
                    match client.put(key.clone(), "x").await {
                        Ok(_) => acknowledged.push(key),
                        // A client whose member is gone fails at once, and must let others run.
                        Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                    count += 1;
                }
                acknowledged
            }));
        }
        cluster.kill(gone);
        let client = cluster.client(others[0]).await;
        let names = ["m0", "m1", "m2", "m3"];
        let left: Vec<&str> = names.into_iter().filter(|name| *name != names[gone]).collect();
        wait_for_voters(&client, &left).await;
        // The cluster tolerates the loss of one more member, the first one that is left.
        cluster.kill(others[0]);
        let client = cluster.client(others[1]).await;
        cluster.put(others[1], "after", "x").await;
        ends.store(true, SeqCst);
        let mut count = 0;
        for writer in writers {
            for key in writer.await.expect("it ends") {
                assert!(client.get(key.clone()).await.expect("reads are served").is_some(), "{key} is lost");
                count += 1;
            }
        }
        assert!(count > 100, "{count} writes were acknowledged");
        cluster.assert_equal().await;
        // Nothing is left to replace the second one, so the autopilot says so and changes nothing.
        let advice = eventually("it asks for a person", PATIENCE, async || {
            for at in [others[1], 3] {
                let status = cluster.client(at).await.status().await.ok()?.autopilot?;
                if let Some(advice) =
                    status.advice.into_iter().find(|advice| advice.contains("there is no spare"))
                {
                    return Some(advice);
                }
            }
            None
        })
        .await;
        assert!(advice.contains(names[others[0]]), "{advice}");
        assert_eq!(client.members().await.expect("lists are served").len(), 3);
    });
}

#[test]
fn a_member_that_the_corrupt_alarm_names_without_proof_stays() {
    run(async {
        let cluster = start("quarantined").await;
        let leader = cluster.leader_of(&[0, 1, 2]).await;
        let other = (leader + 1) % 3;
        let client = cluster.client(leader).await;
        client.put("k", "v").await.expect("writes are served");
        let member_id =
            cluster.client(other).await.status().await.expect("a status").header.expect("a header").member_id;
        let action = alarm_request::AlarmAction::Activate as i32;
        let request = AlarmRequest { action, member_id, alarm: AlarmType::Corrupt as i32 };
        let _: AlarmResponse =
            client.call(Rpc::MaintenanceAlarm, &request).await.expect("an alarm can be raised");
        client.put("k", "w").await.expect_err("no writes while data differ");
        eventually("it says why it does nothing", PATIENCE, async || {
            let status = client.status().await.ok()?;
            status.autopilot?.advice.into_iter().find(|advice| advice.contains("not proven"))
        })
        .await;
        assert_eq!(client.members().await.expect("lists are served").len(), 4);
        client.put("k", "w").await.expect_err("the alarm stays");
    });
}

#[test]
fn a_leader_that_sends_its_clients_elsewhere_hands_over() {
    run(async {
        let cluster = Cluster::start("drained-leader", 3, &FLAGS);
        let leader = cluster.leader().await;
        let endpoint = format!("--endpoints={}", cluster.slots[leader].client);
        let mut command = std::process::Command::new(crate::member::binary());
        command.env_clear().args(["ctl", &endpoint, "connections", "drain", "--percent=100", "--over=30s"]);
        let output = tokio::task::spawn_blocking(move || command.output().expect("it runs"));
        let output = output.await.expect("it ends");
        assert!(output.status.success(), "{output:?}");
        let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
        eventually("another member leads", PATIENCE, async || {
            let client = cluster.client(others[0]).await;
            let own = |at: usize| cluster.client(at);
            let status = client.status().await.ok()?;
            let drained = own(leader).await.status().await.ok()?.header?.member_id;
            (status.leader != 0 && status.leader != drained).then_some(())
        })
        .await;
        // The drained leader may hear of its successor later than the others.
        eventually("the step is done", PATIENCE, async || {
            let status = cluster.client(leader).await.status().await.ok()?;
            let steps = status.autopilot?.steps;
            let step = steps.first()?;
            assert_eq!(step.step, "move-leader", "{steps:?}");
            (step.outcome == "done").then_some(())
        })
        .await;
    });
}
