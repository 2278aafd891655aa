//! Downgrades, and the version of a cluster.

use api::etcdserverpb::downgrade_request::DowngradeAction;
use api::etcdserverpb::{
    AuthDisableRequest, AuthDisableResponse, DowngradeRequest, DowngradeResponse, StatusRequest,
    StatusResponse,
};
use api::{Rpc, Status, error};

use super::sliced::with_bob;
use super::world::World;

fn downgrade(world: &mut World, at: usize, action: DowngradeAction, version: &str) -> Result<String, Status> {
    let request = DowngradeRequest { action: action as i32, version: version.to_owned() };
    let answer: DowngradeResponse = world.call(at, Rpc::MaintenanceDowngrade, &request)?;
    assert!(answer.header.expect("has one").member_id != 0);
    Ok(answer.version)
}

/// Version of the cluster and target of a downgrade, as each member knows them.
fn known(world: &World) -> Vec<(String, Option<String>)> {
    let known = |at: usize| {
        let members = &world.member(at).published().members;
        (members.cluster_version.clone(), members.downgrade_target.clone())
    };
    (0..world.places.len()).map(known).collect()
}

fn until_all_know(world: &mut World, version: &str, target: Option<&str>) {
    let expected = (version.to_owned(), target.map(str::to_owned));
    world.until("all know it", |world| known(world).iter().all(|known| *known == expected));
}

#[test]
fn a_downgrade_is_validated_enabled_and_cancelled_as_in_etcd() {
    use DowngradeAction::{Cancel, Enable, Validate};
    let mut world = World::started(1, 41, &[]);
    until_all_know(&mut world, "3.7.0", None);
    let ok = |version: &str| Ok(version.to_owned());
    for (version, expected) in [
        ("", Err(error::WRONG_DOWNGRADE_VERSION_FORMAT)),
        ("3.x", Err(error::WRONG_DOWNGRADE_VERSION_FORMAT)),
        ("3.7", Err(error::INVALID_DOWNGRADE_TARGET_VERSION)),
        ("3.5", Err(error::INVALID_DOWNGRADE_TARGET_VERSION)),
        ("4.6", Err(error::INVALID_DOWNGRADE_TARGET_VERSION)),
        ("3.6", ok("3.7")),
        ("3.6.5", ok("3.7")),
    ] {
        assert_eq!(downgrade(&mut world, 0, Validate, version), expected, "{version:?}");
    }
    assert_eq!(downgrade(&mut world, 0, Cancel, ""), ok("3.7"), "there is none, and etcd does not say so");
    let unknown = DowngradeRequest { action: 7, version: "3.6".to_owned() };
    let unknown = world.call::<_, DowngradeResponse>(0, Rpc::MaintenanceDowngrade, &unknown);
    assert_eq!(unknown, Err(error::UNKNOWN_METHOD));
    assert_eq!(downgrade(&mut world, 0, Enable, "3.1"), Err(error::INVALID_DOWNGRADE_TARGET_VERSION));
    assert_eq!(downgrade(&mut world, 0, Enable, "3.6"), ok("3.7"));
    assert_eq!(downgrade(&mut world, 0, Enable, "3.6"), Err(error::DOWNGRADE_IN_PROCESS));
    until_all_know(&mut world, "3.6.0", Some("3.6.0"));
    assert_eq!(downgrade(&mut world, 0, Validate, "3.4"), Err(error::INVALID_DOWNGRADE_TARGET_VERSION));
    let status: StatusResponse = world.call(0, Rpc::MaintenanceStatus, &StatusRequest {}).expect("answers");
    let info = status.downgrade_info.expect("is always there");
    assert_eq!((info.enabled, info.target_version.as_str()), (true, "3.6.0"));
    assert_eq!((status.version.as_str(), status.storage_version.as_str()), (api::API_VERSION, "3.6.0"));
    assert_eq!(downgrade(&mut world, 0, Cancel, ""), ok("3.6"));
    // The version rises again to what all members run.
    until_all_know(&mut world, "3.7.0", None);
}

#[test]
fn only_root_downgrades() {
    let mut world = World::started(1, 42, &[]);
    until_all_know(&mut world, "3.7.0", None);
    let (bob, root) = with_bob(&mut world);
    for (token, expected) in [
        (None, Err(error::USER_EMPTY)),
        (Some(&bob), Err(error::PERMISSION_DENIED)),
        (Some(&root), Ok("3.7".to_owned())),
    ] {
        world.member(0).present(token.map(String::as_str));
        for action in [DowngradeAction::Validate, DowngradeAction::Enable] {
            assert_eq!(downgrade(&mut world, 0, action, "3.6"), expected);
        }
    }
    let _: AuthDisableResponse =
        world.call(0, Rpc::AuthDisable, &AuthDisableRequest {}).expect("is disabled");
}

#[test]
fn a_cluster_is_downgraded_member_by_member() {
    let mut world = World::started(3, 43, &[]);
    until_all_know(&mut world, "3.7.0", None);
    let follower = (world.leader().expect("there is one") + 1) % 3;
    assert_eq!(downgrade(&mut world, follower, DowngradeAction::Enable, "3.6"), Ok("3.7".to_owned()));
    until_all_know(&mut world, "3.6.0", Some("3.6.0"));
    for at in 0..3 {
        assert_eq!(known(&world)[at], ("3.6.0".to_owned(), Some("3.6.0".to_owned())), "it is not over yet");
        world.kill(at);
        world.set_options(at, &["--api-version=3.6"]);
        world.start(at).expect("starts again");
        world.until("it knows a leader", |world| world.leader().is_some());
    }
    until_all_know(&mut world, "3.6.0", None);
    let status: StatusResponse = world.call(0, Rpc::MaintenanceStatus, &StatusRequest {}).expect("answers");
    assert_eq!((status.version.as_str(), status.storage_version.as_str()), ("3.6.9", "3.6.0"));
    // And back, one by one: the version rises when the last runs the newer release.
    for at in 0..3 {
        assert_eq!(known(&world)[at].0, "3.6.0");
        world.kill(at);
        world.set_options(at, &[]);
        world.start(at).expect("starts again");
        world.until("it knows a leader", |world| world.leader().is_some());
    }
    until_all_know(&mut world, "3.7.0", None);
}
