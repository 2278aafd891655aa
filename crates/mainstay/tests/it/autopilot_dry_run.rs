//! A dry run of the autopilot: what it would do is logged and shown, and nothing is done.

use std::process::Command;

use testkit::eventually;

use crate::cluster::{Cluster, PATIENCE};
use crate::member::{READY, binary};
use crate::run;

#[test]
fn a_dry_run_shows_its_steps_and_changes_nothing() {
    run(async {
        let mut cluster = Cluster::start("dry-run", 1, &["--autopilot=dry-run", "--autopilot-interval=1s"]);
        let at = cluster.add_slot();
        let id = cluster.announce(0, at, true).await;
        let command = cluster.joining(at, &[0, 1]);
        cluster.spawn_with(at, command);
        cluster.member(at).wait_for(READY);
        let client = cluster.client(0).await;
        client.put("k", "v").await.expect("writes are served");
        let status = eventually("a step is decided", PATIENCE, async || {
            let status = client.status().await.ok()?.autopilot?;
            (!status.steps.is_empty()).then_some(status)
        })
        .await;
        let step = &status.steps[0];
        assert_eq!(
            (step.step.as_str(), step.member_id, step.outcome.as_str()),
            ("promote", id, "dry-run"),
            "{status:?}"
        );
        assert!(status.deciding && status.mode == "dry-run" && status.members.len() == 2);
        let members = client.members().await.expect("lists are served");
        assert!(members.iter().any(|member| member.id == id && member.is_learner));
        for format in ["json", "simple", "table"] {
            let shown = Command::new(binary())
                .args(["ctl", "autopilot", "status", "-w", format])
                .arg(format!("--endpoints={}", cluster.slots[0].client))
                .output()
                .expect("it runs");
            let text = String::from_utf8_lossy(&shown.stdout);
            let is_there = |word: &str| text.contains(word);
            assert!(shown.status.success(), "{text}\n{}", String::from_utf8_lossy(&shown.stderr));
            assert!(["promote", "dry-run", "it has caught up"].into_iter().all(is_there), "{text}");
        }
    });
}
