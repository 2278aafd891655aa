//! Members that find each other by a discovery service, which is itself a member.

use std::process::Command;

use testkit::TempDir;
use testkit::ports::free_address;

use crate::member::{Member, READY, Setup, binary};
use crate::run;

/// Returns the command of a member that finds the others by this service.
fn finding(dir: &TempDir, name: &str, endpoint: &str, more: &[&str]) -> Command {
    let (client, peer) = (free_address(), free_address());
    let mut command = Command::new(binary());
    command
        .env_clear()
        .arg(format!("--name={name}"))
        .arg(format!("--data-dir={}", dir.path().join(name).display()))
        .arg(format!("--listen-client-urls=http://{client}"))
        .arg(format!("--advertise-client-urls=http://{client}"))
        .arg(format!("--listen-peer-urls=http://{peer}"))
        .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
        .arg("--discovery-token=cluster-one")
        .arg(format!("--discovery-endpoints={endpoint}"))
        .args(more);
    command
}

#[test]
fn members_that_register_form_a_cluster() {
    let dir = TempDir::in_memory("discovery");
    let service = Setup::new(&dir.path().join("service")).start();
    let endpoint = service.client_address().to_string();
    let key = |rest: &str| format!("/_etcd/registry/cluster-one/{rest}");
    let start = |name: &str| Member::launch(finding(&dir, name, &endpoint, &[]), None);

    let said = start("early").refuses();
    assert!(said.contains("failed to join discovery cluster (discovery: size key not found)"), "{said}");
    run(async {
        service.client().await.put(key("_config/size"), "two").await.expect("puts are served");
    });
    assert!(start("early").refuses().contains("discovery: size key is bad"));
    run(async {
        service.client().await.put(key("_config/size"), "2").await.expect("puts are served");
    });

    let first = start("one");
    first.wait_for("waiting for peers from discovery service");
    let second = start("two");
    first.wait_for(READY);
    second.wait_for(READY);
    let said = start("three").refuses();
    assert!(said.contains("failed to join discovery cluster (discovery: cluster is full)"), "{said}");
    run(async {
        let registered = service.client().await.everything().await.expect("reads are served");
        let values: Vec<String> =
            registered.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).collect();
        assert!(
            registered.kvs.len() == 3 && values.iter().any(|value| value.starts_with("one=http://")),
            "{values:?}"
        );
        let client = first.client().await;
        client.put("k", "v").await.expect("the cluster serves");
        assert_eq!(client.members().await.expect("members are listed").len(), 2);
    });

    // A member with data does not need the service any more.
    service.stop();
    first.kill();
    let first = start("one");
    first.wait_for(READY);
    drop(second);
}

#[test]
fn a_member_that_waits_for_the_others_can_be_stopped() {
    let dir = TempDir::in_memory("discovery-stop");
    // No process listens at this address.
    let waiting = Member::launch(
        finding(&dir, "alone", &free_address().to_string(), &["--discovery-request-timeout=50ms"]),
        None,
    );
    waiting.wait_for("retry connecting to discovery service");
    waiting.stop();
}
