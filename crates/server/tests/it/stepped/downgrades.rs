//! Downgrades, and the version of a cluster.

use api::etcdserverpb::downgrade_request::DowngradeAction;
use api::etcdserverpb::{
    AuthDisableRequest, AuthDisableResponse, DowngradeRequest, DowngradeResponse, StatusRequest,
    StatusResponse,
};
use api::{Rpc, Status, error};

use std::time::Duration;

use super::sliced::with_bob;
use super::world::World;

fn downgrade(world: &mut World, at: usize, action: DowngradeAction, version: &str) -> Result<String, Status> {
    let request = DowngradeRequest { action: action as i32, version: version.to_owned() };
    let answer: DowngradeResponse = world.call(at, Rpc::MaintenanceDowngrade, &request)?;
    assert!(answer.header.expect("has one").member_id != 0);
    Ok(answer.version)
}

/// Returns the cluster's version and the downgrade target, as each member knows them.
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

/// The served features depend on the cluster's version, so a member must not serve clients before the version
/// is known.
#[test]
fn a_new_member_without_others_knows_the_version_when_it_is_ready() {
    let mut world = World::new(1, 44, &[]);
    world.start(0).expect("starts");
    // The monitor, which asks other members for their versions, never gets a turn.
    world.settle().expect("leads");
    assert!(world.member(0).is_ready());
    assert_eq!(known(&world), [("3.7.0".to_owned(), None)]);
}

/// When the member stops, the entry that decides the version may not be known to be committed yet.
#[test]
fn a_version_that_was_decided_right_before_a_stop_is_not_decided_again() {
    let mut world = World::new(1, 45, &[]);
    world.start(0).expect("starts");
    world.settle().expect("leads");
    assert_eq!(known(&world), [("3.7.0".to_owned(), None)]);
    world.kill(0);
    world.set_options(0, &["--api-version=3.6"]);
    world.start(0).expect("starts again");
    world.settle().expect("leads");
    // A process that presents release 3.6 would refuse to serve a cluster of version 3.7.
    assert_eq!(known(&world), [("3.7.0".to_owned(), None)]);
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
    // The version rises again to the version that all members run.
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
    // The members are upgraded one by one: the version rises when the last one runs the newer release.
    for at in 0..3 {
        assert_eq!(known(&world)[at].0, "3.6.0");
        world.kill(at);
        world.set_options(at, &[]);
        world.start(at).expect("starts again");
        world.until("it knows a leader", |world| world.leader().is_some());
    }
    until_all_know(&mut world, "3.7.0", None);
}

/// COMPAT-147: etcd reports that a downgrade was cancelled even if the cancellation failed.
#[test]
fn a_downgrade_that_could_not_be_cancelled_goes_on_and_the_client_hears_of_it() {
    let mut world = World::started(3, 44, &[]);
    until_all_know(&mut world, "3.7.0", None);
    assert_eq!(downgrade(&mut world, 0, DowngradeAction::Enable, "3.6"), Ok("3.7".to_owned()));
    until_all_know(&mut world, "3.6.0", Some("3.6.0"));
    world.kill(1);
    world.kill(2);
    let refused = downgrade(&mut world, 0, DowngradeAction::Cancel, "");
    assert_eq!(refused, Err(error::TIMEOUT));
    assert_eq!(world.member(0).published().members.downgrade_target.as_deref(), Some("3.6.0"));
    for at in [1, 2] {
        world.start(at).expect("starts again");
    }
    world.until("there is a leader", |world| world.leader().is_some());
    assert_eq!(downgrade(&mut world, 0, DowngradeAction::Cancel, ""), Ok("3.6".to_owned()));
    until_all_know(&mut world, "3.7.0", None);
}

fn pass(world: &mut World, time: Duration) {
    let end = world.places[0].clock.elapsed() + time;
    world.until("time has gone by", |world| world.places[0].clock.elapsed() >= end);
}

#[test]
fn a_downgrade_lasts_until_all_members_run_its_target_and_no_check_ends_it_before() {
    let mut world = World::started(3, 45, &[]);
    until_all_know(&mut world, "3.7.0", None);
    assert_eq!(downgrade(&mut world, 0, DowngradeAction::Enable, "3.6"), Ok("3.7".to_owned()));
    until_all_know(&mut world, "3.6.0", Some("3.6.0"));
    let under_way = vec![("3.6.0".to_owned(), Some("3.6.0".to_owned())); 3];
    // All members still run the newer release: many checks later, the version is still the lower one.
    pass(&mut world, Duration::from_secs(60));
    assert_eq!(known(&world), under_way);
    let newer = (world.leader().expect("there is one") + 1) % 3;
    for at in (0..3).filter(|at| *at != newer) {
        world.kill(at);
        world.set_options(at, &["--api-version=3.6"]);
        world.start(at).expect("starts again");
        world.until("it knows a leader", |world| world.leader().is_some());
    }
    // One member runs the lower release; it may lead or not.
    for leader in [newer, (newer + 1) % 3] {
        world.lead(leader);
        pass(&mut world, Duration::from_secs(60));
        assert_eq!(known(&world), under_way, "{leader} leads, {newer} runs the newer release");
    }
    // A member that cannot be reached may run any release.
    world.kill(newer);
    pass(&mut world, Duration::from_secs(60));
    let under_way = ("3.6.0".to_owned(), Some("3.6.0".to_owned()));
    let others = |world: &World| {
        let mut others = (0..3).filter(|at| *at != newer);
        others.all(|at| {
            let members = &world.member(at).published().members;
            (members.cluster_version.clone(), members.downgrade_target.clone()) == under_way
        })
    };
    assert!(others(&world));
    world.set_options(newer, &["--api-version=3.6"]);
    world.start(newer).expect("starts again");
    until_all_know(&mut world, "3.6.0", None);
}

#[test]
fn a_downgrade_that_nobody_checks_is_ended_by_its_operator() {
    let mut world = World::started(1, 46, &["--downgrade-check-time=0s"]);
    until_all_know(&mut world, "3.7.0", None);
    assert_eq!(downgrade(&mut world, 0, DowngradeAction::Enable, "3.6"), Ok("3.7".to_owned()));
    until_all_know(&mut world, "3.6.0", Some("3.6.0"));
    world.kill(0);
    world.set_options(0, &["--api-version=3.6", "--downgrade-check-time=0s"]);
    world.start(0).expect("starts again");
    world.until("it leads", |world| world.leader().is_some());
    pass(&mut world, Duration::from_secs(120));
    assert_eq!(known(&world), [("3.6.0".to_owned(), Some("3.6.0".to_owned()))]);
    assert_eq!(downgrade(&mut world, 0, DowngradeAction::Cancel, ""), Ok("3.6".to_owned()));
    until_all_know(&mut world, "3.6.0", None);
}
