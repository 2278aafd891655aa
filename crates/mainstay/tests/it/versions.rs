//! The release that a member presents, and the version of its cluster.

use std::time::{Duration, Instant};

use api::Rpc;
use api::etcdserverpb::downgrade_request::DowngradeAction;
use api::etcdserverpb::{DowngradeRequest, DowngradeResponse};
use testkit::TempDir;

use crate::member::{Member, Setup};
use crate::run;

/// Waits until a member reports these versions.
fn until_tells(member: &Member, expected: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let page = testkit::http1::get(member.client_address(), "/version");
        if page.text() == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{}", page.text());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_member_that_is_too_old_for_its_cluster_does_not_start() {
    let dir = TempDir::new("too-old");
    let newer = || Setup::new(dir.path());
    let older = || Setup::new(dir.path()).flag("--api-version=3.6");
    let member = newer().start();
    until_tells(&member, r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#);
    member.stop();
    let said = older().refused();
    assert!(
        said.contains("invalid downgrade; server version is lower than determined cluster version"),
        "{said}"
    );

    let member = newer().start();
    run(async {
        let client = member.client().await;
        let request = DowngradeRequest { action: DowngradeAction::Enable as i32, version: "3.6".to_owned() };
        let answer: DowngradeResponse =
            client.call(Rpc::MaintenanceDowngrade, &request).await.expect("is enabled");
        assert_eq!(answer.version, "3.7");
    });
    until_tells(&member, r#"{"etcdserver":"3.7.1","etcdcluster":"3.6.0","storage":"3.6.0"}"#);
    member.stop();
    let member = older().flag("--downgrade-check-time=100ms").start();
    until_tells(&member, r#"{"etcdserver":"3.6.9","etcdcluster":"3.6.0","storage":"3.6.0"}"#);
    run(async {
        let client = member.client().await;
        let deadline = Instant::now() + Duration::from_secs(60);
        while client.status().await.expect("answers").downgrade_info.is_some_and(|info| info.enabled) {
            assert!(Instant::now() < deadline, "the downgrade goes on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    member.stop();
    let member = newer().start();
    until_tells(&member, r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#);
    member.stop();
}

#[test]
fn a_checkpoint_from_before_a_downgrade_keeps_no_older_release_from_starting() {
    let dir = TempDir::new("older-than-checkpoint");
    let newer = || Setup::new(dir.path()).flag("--downgrade-check-time=0s");
    let versions = |own: &str, cluster: &str| {
        format!(r#"{{"etcdserver":"{own}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#)
    };
    let member = newer().flag("--snapshot-count=10").start();
    until_tells(&member, &versions("3.7.1", "3.7.0"));
    let manifest = dir.path().join("data/member/checkpoint/MANIFEST");
    run(async {
        let client = member.client().await;
        let deadline = Instant::now() + Duration::from_secs(60);
        while !manifest.exists() {
            assert!(Instant::now() < deadline, "no checkpoint is made");
            client.put("k", "v").await.expect("is taken");
        }
    });
    member.kill();
    let before = std::fs::read(&manifest).expect("is there");
    let member = newer().start();
    run(async {
        let client = member.client().await;
        let request = DowngradeRequest { action: DowngradeAction::Enable as i32, version: "3.6".to_owned() };
        client.call::<DowngradeResponse>(Rpc::MaintenanceDowngrade, &request).await.expect("is enabled");
    });
    until_tells(&member, &versions("3.7.1", "3.6.0"));
    member.kill();
    assert_eq!(std::fs::read(&manifest).expect("is there"), before, "the downgrade is in the log alone");
    let member = newer().flag("--api-version=3.6").start();
    until_tells(&member, &versions("3.6.9", "3.6.0"));
    member.stop();
}
