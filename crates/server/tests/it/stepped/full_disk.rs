//! A member whose disk fills up, and later has free space again.

use std::path::Path;
use std::time::Duration;

use api::Rpc;
use api::error;
use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, CompactionRequest, CompactionResponse, DeleteRangeRequest,
    DeleteRangeResponse, alarm_request,
};
use disk::MemDisk;
use numbers::Index;

use super::world::World;

const SEGMENT: u64 = 16 << 10;
const OPTIONS: &[&str] = &["--snapshot-count=20", "--snapshot-catchup-entries=20"];

fn disarm(world: &mut World) {
    let request = AlarmRequest {
        action: alarm_request::AlarmAction::Deactivate as i32,
        alarm: 1,
        member_id: world.places[0].id,
    };
    let _: AlarmResponse = world.call(0, Rpc::MaintenanceAlarm, &request).expect("is disarmed");
}

fn delete(world: &mut World, from: &str, to: &str) {
    let request =
        DeleteRangeRequest { key: from.to_owned().into(), range_end: to.to_owned().into(), prev_kv: false };
    // The free space may be too small for all deletes at once. Then a compaction has to free space first.
    for _ in 0..20 {
        let answer: Result<DeleteRangeResponse, _> = world.call(0, Rpc::KvDeleteRange, &request);
        match answer {
            Ok(_) => return,
            Err(status) => assert_eq!(status, error::NO_SPACE),
        }
        compact(world);
        settle_for(world, 3);
    }
    panic!("a delete is refused for ever");
}

fn compact(world: &mut World) {
    let revision = world.member(0).probe().revision;
    let request = CompactionRequest { revision: revision.0, physical: true };
    let answer: Result<CompactionResponse, _> = world.call(0, Rpc::KvCompact, &request);
    if let Err(status) = answer {
        // Nothing was written since the last compaction.
        assert_eq!(status, error::COMPACTED);
    }
}

fn raised(world: &World) -> bool {
    !world.member(0).published().alarms.list(0, 0).is_empty()
}

/// Puts until the disk is full. Returns the number of accepted puts.
fn fill(world: &mut World, prefix: &str) -> usize {
    for n in 0..10_000 {
        match world.put(0, &format!("{prefix}{n:05}"), &[n as u8; 700]) {
            Ok(_) => {}
            Err(status) => {
                assert_eq!(status, error::NO_SPACE);
                return n;
            }
        }
    }
    panic!("the disk never fills up");
}

/// Returns the bytes of the files of a log that has a directory of its own.
fn log_bytes(disk: &MemDisk) -> u64 {
    disk.files().iter().filter(|(path, _)| path.starts_with("/w")).map(|(_, bytes)| bytes).sum()
}

fn settle_for(world: &mut World, seconds: u64) {
    let until = world.places[0].clock.now() + Duration::from_secs(seconds);
    world.until("time has gone by", |world| world.places[0].clock.now() >= until);
}

/// Starts a member whose disk has space for this many segments.
fn member_with(segments: u64, limit: Limit) -> World {
    let mut world = World::new(1, 9, OPTIONS);
    let place = &mut world.places[0];
    match limit {
        Limit::Disk => place.disk.set_capacity(Some(segments * SEGMENT)),
        Limit::DiskThatReservesNothing => {
            place.disk.reserve_nothing();
            place.disk.set_capacity(Some(segments * SEGMENT));
        }
        Limit::HiddenQuota => {
            // One turn writes little compared with the size of a segment, as on a real disk.
            place.segment_bytes = 64 << 10;
            place.disk.set_quota(Some(segments * u64::from(place.segment_bytes)));
        }
    }
    world.start_all();
    world
}

/// Limit that the files of a member reach.
enum Limit {
    Disk,
    DiskThatReservesNothing,
    /// A quota that the file system's free space does not show.
    HiddenQuota,
}

#[test]
fn room_comes_back_on_a_small_disk_by_deletes_and_a_compaction() {
    for segments in (21..61).step_by(3) {
        fill_and_win_back(member_with(segments, Limit::Disk));
    }
}

#[test]
fn room_comes_back_where_the_file_system_reserves_nothing() {
    for segments in (21..61).step_by(3) {
        fill_and_win_back(member_with(segments, Limit::DiskThatReservesNothing));
    }
}

#[test]
fn room_comes_back_within_a_quota_that_the_free_space_does_not_show() {
    for segments in [21, 32] {
        fill_and_win_back(member_with(segments, Limit::HiddenQuota));
    }
}

fn fill_and_win_back(mut world: World) {
    let first = fill(&mut world, "a");
    assert!(first > 100, "most of the disk takes data: {first}");
    world.until("the alarm is raised", raised);
    // Puts are refused, but deletes are accepted. Every segment keeps live data, since one key in eight stays.
    for n in 0..first {
        if n % 8 != 0 {
            delete(&mut world, &format!("a{n:05}"), "");
        }
    }
    compact(&mut world);
    world.until("the alarm that the disk had raised goes by itself", |world| !raised(world));
    let second = fill(&mut world, "b");
    assert!(second > first / 2, "room came back: {first} puts, then {second}");
    for n in (0..first).step_by(8) {
        let key = format!("a{n:05}");
        assert_eq!(world.get(0, &key), Some(vec![n as u8; 700]), "{key}");
    }
    // The disk fills up a second time, with a restart while it is full.
    world.until("the alarm is raised again", raised);
    world.crash(0);
    world.start(0).expect("starts on a full disk");
    world.until("it serves", |world| world.member(0).is_ready());
    assert!(raised(&world));
    assert_eq!(world.put(0, "c", b"v"), Err(error::NO_SPACE));
    delete(&mut world, "b", "c");
    compact(&mut world);
    world.until("the alarm goes, after the restart too", |world| !raised(world));
    let third = fill(&mut world, "c");
    assert!(third > first / 2, "{first}, {second}, {third}");
}

#[test]
fn a_shortage_that_is_over_leaves_no_reserve_behind() {
    let mut world = World::started(1, 9, OPTIONS);
    let disk = world.places[0].disk.clone();
    let is_kept = || disk.files().iter().any(|(path, _)| path.ends_with("checkpoint/reserve"));
    disk.set_capacity(Some(24 * SEGMENT));
    let _ = fill(&mut world, "a");
    world.until("the alarm is raised", raised);
    world.until("room is kept for the next checkpoint", |_| is_kept());
    disk.set_capacity(None);
    world.until("the alarm goes", |world| !raised(world));
    let saved = world.member(0).probe().checkpoint;
    for n in 0..40 {
        world.put(0, &format!("b{n:05}"), b"v").expect("is taken");
    }
    world.until("another checkpoint is saved", |world| world.member(0).probe().checkpoint > saved);
    world.until("nothing is kept", |_| !is_kept());
}

#[test]
fn nothing_but_room_ends_an_alarm_that_the_disk_raised_and_nothing_but_a_client_one_of_the_quota() {
    let mut world = World::started(1, 9, &["--snapshot-count=20", "--quota-backend-bytes=60000"]);
    let mut taken = 0;
    while world.put(0, &format!("k{taken:05}"), &[1; 700]).is_ok() {
        taken += 1;
    }
    world.until("the quota raises the alarm", raised);
    delete(&mut world, "k", "l");
    compact(&mut world);
    settle_for(&mut world, 30);
    assert!(raised(&world), "there is room, but the quota had raised it");
    world.kill(0);
    world.places[0].disk.heal();
    world.start(0).expect("starts");
    world.until("it serves", |world| world.member(0).is_ready());
    settle_for(&mut world, 30);
    assert!(raised(&world), "nor does a restart end it");
    disarm(&mut world);
    assert!(!raised(&world));
    world.put(0, "k", b"v").expect("is taken");

    // Another program fills the disk.
    let used = world.places[0].disk.used_bytes();
    world.places[0].disk.set_capacity(Some(used));
    let _ = fill(&mut world, "d");
    world.until("the disk raises the alarm", raised);
    disarm(&mut world);
    world.until("it is raised again while there is no room", raised);
    world.crash(0);
    world.places[0].disk.set_capacity(None);
    world.start(0).expect("starts");
    world.until("it serves", |world| world.member(0).is_ready());
    world.until("the alarm goes though the process is another", |world| !raised(world));
    world.put(0, "k", b"v").expect("is taken");
}

#[test]
fn what_raised_the_alarm_is_known_though_it_was_not_noted() {
    let mut world = World::started(1, 9, &["--snapshot-count=20", "--quota-backend-bytes=200000"]);
    let disk_full = |world: &mut World| {
        let used = world.places[0].disk.used_bytes();
        world.places[0].disk.set_capacity(Some(used));
        let _ = fill(world, "d");
        world.until("the disk raises the alarm", raised);
    };
    let restart = |world: &mut World| {
        world.crash(0);
        world.places[0].disk.set_capacity(None);
        world.places[0].checkpointer_held = false;
        world.start(0).expect("starts");
        world.until("it serves", |world| world.member(0).is_ready());
    };
    // The checkpointer is held, since it would record that the disk raised the alarm.
    world.places[0].checkpointer_held = true;
    disk_full(&mut world);
    restart(&mut world);
    world.until("the alarm goes though nothing was noted", |world| !raised(world));
    // This time the member records that the disk raised the alarm. The next alarm is raised by the quota.
    disk_full(&mut world);
    settle_for(&mut world, 3);
    let saved = world.member(0).probe().checkpoint;
    world.places[0].disk.set_capacity(None);
    // The alarm stays as long as the last checkpoint found too little space.
    world.until("a checkpoint is saved", |world| world.member(0).probe().checkpoint > saved);
    assert!(raised(&world), "the disk is looked at once a second");
    world.places[0].checkpointer_held = true;
    world.until("the alarm goes", |world| !raised(world));
    let _ = fill(&mut world, "q");
    world.until("the quota raises the alarm", raised);
    restart(&mut world);
    delete(&mut world, "a", "z");
    compact(&mut world);
    settle_for(&mut world, 30);
    assert!(raised(&world), "the quota had raised it");
    disarm(&mut world);
    // An alarm that a client raises stays, too.
    let request = AlarmRequest {
        action: alarm_request::AlarmAction::Activate as i32,
        alarm: 1,
        member_id: world.places[0].id,
    };
    let _: AlarmResponse = world.call(0, Rpc::MaintenanceAlarm, &request).expect("is raised");
    restart(&mut world);
    settle_for(&mut world, 30);
    assert!(raised(&world));
}

#[test]
fn what_a_full_log_cannot_take_waits() {
    // For each amount of free space left when the disk fills up: the member starts, leads and changes members.
    for left in (0..40).map(|n| n * 512) {
        let mut world = World::started(1, 9, OPTIONS);
        let used = world.places[0].disk.used_bytes();
        world.places[0].disk.set_capacity(Some(used + left));
        let _ = fill(&mut world, "k");
        // Small entries fill the disk to the last byte.
        for n in 0..400 {
            let request = CompactionRequest { revision: n, physical: false };
            let answer: Result<CompactionResponse, _> = world.call(0, Rpc::KvCompact, &request);
            if answer.is_err_and(|status| status == error::NO_SPACE) {
                break;
            }
        }
        world.kill(0);
        world.places[0].disk.heal();
        world.start(0).expect("starts on a full disk");
        settle_for(&mut world, 8);
        world.kill(0);
        world.places[0].disk.heal();
        world.start(0).expect("starts again");
        settle_for(&mut world, 8);
        world.places[0].disk.set_capacity(None);
        world.until("there is room", |world| world.member(0).is_ready() && !raised(world));
        world.put(0, "k", b"v").expect("is taken");
    }
}

#[test]
fn a_full_data_disk_beside_a_roomy_log_is_a_shortage_too() {
    let mut world = World::new(1, 9, &[OPTIONS, &["--wal-dir=/w"]].concat());
    let disk = world.places[0].disk.clone();
    disk.mount(Path::new("/w"), 64 << 20);
    world.start_all();
    world.put(0, "first", b"one").expect("is taken");
    // No space is left for files other than the log.
    let full = disk.used_bytes() - log_bytes(&disk);
    disk.set_capacity(Some(full));
    let taken = fill(&mut world, "a");
    world.until("the alarm is raised", raised);
    assert!(log_bytes(&disk) < 32 << 20, "the log's own disk has room");
    let saved = world.member(0).probe().checkpoint;
    // Accepted data exists, and deletes are accepted, also after a crash and a start on the full disk.
    delete(&mut world, "a00000", "a00001");
    world.crash(0);
    world.start(0).expect("it starts on a full disk");
    world.until("it serves", |world| world.member(0).is_ready());
    assert_eq!(world.get(0, "first"), Some(b"one".to_vec()));
    assert_eq!(world.get(0, "a00000"), None);
    assert_eq!(world.get(0, &format!("a{:05}", taken - 1)), Some(vec![(taken - 1) as u8; 700]));
    // The member notices again that the disk is full, and still loses no accepted data.
    let again = fill(&mut world, "b");
    world.until("the alarm is raised again", raised);
    // With free space, a checkpoint is saved, and the alarm clears by itself.
    disk.set_capacity(None);
    world.until("the alarm is cleared", |world| !raised(world));
    assert!(world.member(0).probe().checkpoint > saved);
    world.put(0, "last", b"two").expect("is taken again");
    for n in 0..again {
        assert!(world.get(0, &format!("b{n:05}")).is_some(), "{n}");
    }
}

#[test]
fn a_checkpoint_is_due_by_bytes_too() {
    let mut world = World::started(1, 9, &["--snapshot-count=100000"]);
    for n in 0..60 {
        world.put(0, &format!("k{n}"), &[1; 3000]).expect("is taken");
    }
    world.settle().expect("goes on");
    assert!(
        world.member(0).probe().checkpoint > Index(0),
        "180 KB of log, with a checkpoint due after four times 32"
    );
}
