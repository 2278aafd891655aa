//! `import --migrate-v2`: keys of the old store (API version 2) from a directory of real etcd 3.4.

use std::path::{Path, PathBuf};

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use mvcc::Version;
use numbers::{Index, Revision, Term};
use prost::Message as _;
use storage::stopped::Stopped;
use testkit::TempDir;

use crate::kit::{done, etcd_dir, everything, golden, names, open, refused, text};
use crate::relog::relogged;
use crate::takeover::start_with;

/// The directory of an etcd 3.4 with `--enable-v2`: an image of the old store, changes after it, and a user
/// root, without whom writes are not permitted.
fn v2_dir(dir: &TempDir) -> PathBuf {
    let path = dir.join("v2.etcd");
    let member = path.join("member");
    for (file, name) in [
        ("snap/db", "3.4-v2-db"),
        ("snap/0000000000000002-0000000000000029.snap", "3.4-v2-snap"),
        ("wal/0000000000000000-0000000000000000.wal", "3.4-v2-wal"),
    ] {
        let file = member.join(file);
        std::fs::create_dir_all(file.parent().expect("has one")).expect("is made");
        std::fs::write(file, golden(name)).expect("is written");
    }
    path
}

/// Returns the live keys of a member in order of revision: key, checksum and length of the value, seconds of
/// its lease.
fn keys(made: &mut Stopped) -> Vec<(String, u32, u32, i64)> {
    let view = made.machine.store.publish();
    let snapshot = view.snapshot();
    let live = snapshot.range(mvcc::KeyRange::ALL, Revision::CURRENT).expect("is there");
    let mut live: Vec<Version<'_>> = live.collect();
    live.sort_by_key(|version| version.main());
    live.into_iter()
        .map(|version| {
            let ttl = made.machine.leases.get(version.lease()).map_or(0, |lease| lease.ttl.0);
            let key = String::from_utf8(version.key().to_vec()).expect("is text");
            (key, version.value_crc(), version.value_len(), ttl)
        })
        .collect()
}

fn key(name: &str, value: &str, ttl: i64) -> (String, u32, u32, i64) {
    (name.to_owned(), crc32c::crc32c(value.as_bytes()), value.len() as u32, ttl)
}

/// Imports the directory into `m`, and returns the keys and the messages.
fn imported(dir: &TempDir, from: &Path, flags: &[&str]) -> (Vec<(String, u32, u32, i64)>, String) {
    let to = dir.join("m");
    let told = done(&[&["import", "--data-dir", text(from), "--to", text(&to)], flags].concat());
    let found = keys(&mut open(&to));
    std::fs::remove_dir_all(&to).expect("is removed");
    (found, told.err)
}

/// Seconds from 1970, the time of the test's clock, to the expiry times of keys in the directory, rounded up.
const SOONER: i64 = 5_295_410_571;
const TTL_DIR: i64 = 5_795_410_571;
const EMPTY_DIR: i64 = 6_795_410_572;
const TTL: i64 = 7_795_410_572;

#[test]
fn keys_of_the_old_store_become_keys_of_version_3() {
    let dir = TempDir::new("v2");
    let from = v2_dir(&dir);
    let to = dir.join("m");
    let refusal = refused(&["import", "--data-dir", text(&from), "--to", text(&to)], 1);
    assert!(refusal.contains("it has 9 keys or directories directly below its root"), "{refusal}");
    assert!(refusal.contains("--migrate-v2") && refusal.contains("--without-old-store"), "{refusal}");
    // Version 3 has a key with the same name: it is not overwritten, and no directory is left.
    let refusal = refused(&["import", "--data-dir", text(&from), "--to", text(&to), "--migrate-v2"], 1);
    assert!(refusal.contains("1 keys of the old store") && refusal.contains(": \"/both\";"), "{refusal}");
    assert!(refusal.contains("--v2-prefix"), "{refusal}");
    assert_eq!(names(&dir), ["v2.etcd"]);

    let of_v3 = [key("v3", "three", 0), key("/both", "v3", 0)];
    let moved = |ttl: &dyn Fn(i64) -> i64| {
        vec![
            key("/old/dir/sub/leaf", "deep \"q\" é", 0),
            key("/old/ttldir/k", "in", ttl(TTL_DIR)),
            key("/old/ttldir/sooner", "in", ttl(SOONER)),
            key("/old/queue/00000000000000000011", "q1", 0),
            key("/old/queue/00000000000000000012", "q2", 0),
            key("/old/_hidden/x", "h", 0),
            key("/old/empty", "", 0),
            key("/old/plain", "cas", 0),
            key("/old/queue/00000000000000000041", "q3", 0),
            key("/old/made", "new", 0),
            key("/old/ttl", "t", ttl(TTL)),
            key("/old/both", "v2", 0),
            key("/old/of/all", "z", 0),
            key("/old/queue/00000000000000000050", "q4", 0),
        ]
    };
    let prefixed = ["--migrate-v2", "--v2-prefix", "/old"];
    let (found, told) = imported(&dir, &from, &prefixed);
    assert_eq!(found, [&of_v3[..], &moved(&|ttl| ttl)].concat());
    assert!(told.contains("left out empty directories of the old store"), "{told}");
    assert!(told.contains("\"paths\": [\"/emptydir\"]"), "{told}");
    assert!(told.contains("moved keys of the old store\t{\"keys\": 14, \"leases\": 3}"), "{told}");

    // An empty directory is moved too, in the order of its last change.
    let (found, told) = imported(&dir, &from, &[&prefixed[..], &["--v2-dirs"]].concat());
    let mut with_dirs = moved(&|ttl| ttl);
    with_dirs.insert(1, key("/old/emptydir/", "", EMPTY_DIR));
    assert_eq!(found, [&of_v3[..], &with_dirs].concat());
    assert!(told.contains("{\"keys\": 15, \"leases\": 4}"), "{told}");

    let (found, _) = imported(&dir, &from, &[&prefixed[..], &["--v2-ttl=drop"]].concat());
    assert_eq!(found, [&of_v3[..], &moved(&|_| 0)].concat());
    let (found, told) = imported(&dir, &from, &[&prefixed[..], &["--v2-ttl=skip"]].concat());
    let staying: Vec<_> = moved(&|ttl| ttl).into_iter().filter(|(.., ttl)| *ttl == 0).collect();
    assert_eq!(found, [&of_v3[..], &staying].concat());
    assert!(told.contains("left out keys of the old store that expire\t{\"keys\": 3}"), "{told}");
    let (found, _) = imported(&dir, &from, &["--without-old-store"]);
    assert_eq!(found, of_v3);
}

/// A learner may have entries of etcd that this log lacks: none of them may have the term of a moved entry.
#[test]
fn what_is_moved_has_a_term_of_its_own() {
    let dir = TempDir::new("v2-term");
    let (from, to) = (v2_dir(&dir), dir.join("m"));
    let (before, end) = {
        let source = interchange::DataDir::open(&disk::RealDisk, &from).expect("is sound");
        (source.wal.hard_state.term, source.end())
    };
    let args = ["import", "--data-dir", text(&from), "--to", text(&to), "--migrate-v2", "--v2-prefix=/old"];
    done(&args);
    let made = open(&to);
    assert!(made.machine.applied_term > Term(before), "{:?}", made.machine.applied_term);
    assert!(made.hard_state.term >= made.machine.applied_term, "{:?}", made.hard_state);
    // 14 keys and 3 leases are moved.
    assert_eq!((made.machine.applied_index, made.hard_state.commit), (Index(end + 17), Index(end + 17)));
}

/// Replaces the request in the last entry of a directory's log.
fn with_last_request(from: &Path, request: &[u8]) {
    let wal = from.join("member/wal/0000000000000000-0000000000000000.wal");
    let last = interchange::DataDir::open(&disk::RealDisk, from).expect("is sound").end();
    let changed = relogged(&golden("3.4-v2-wal"), |entry| {
        if entry.index() == last {
            entry.data = Some(request.to_vec().into());
        }
        true
    });
    std::fs::write(wal, changed).expect("is written");
}

#[test]
fn an_alarm_is_named_and_not_the_names_of_keys() {
    let dir = TempDir::new("v2-alarm");
    let (from, to) = (v2_dir(&dir), dir.join("m"));
    for (alarm, name) in [(AlarmType::Nospace, "NOSPACE"), (AlarmType::Corrupt, "CORRUPT")] {
        let alarm = AlarmRequest { action: AlarmAction::Activate.into(), member_id: 1, alarm: alarm.into() };
        let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        with_last_request(&from, &request.encode_to_vec());
        let args =
            ["import", "--data-dir", text(&from), "--to", text(&to), "--migrate-v2", "--v2-prefix=/old"];
        let refusal = refused(&args, 1);
        assert!(refusal.contains(&format!("the alarm {name} is raised")), "{refusal}");
        assert!(refusal.contains("etcdctl alarm disarm") && !refusal.contains("--v2-prefix"), "{refusal}");
        assert_eq!(names(&dir), ["v2.etcd"]);
        // If no key is moved, the alarm does not matter.
        let (found, _) = imported(&dir, &from, &["--without-old-store"]);
        assert_eq!(found, [key("v3", "three", 0), key("/both", "v3", 0)]);
    }
}

#[test]
fn a_name_is_taken_by_the_same_value_too() {
    let dir = TempDir::new("v2-same");
    let (from, to) = (v2_dir(&dir), dir.join("m"));
    // Id, method, path and value of the request.
    with_last_request(&from, b"\x08\x01\x12\x03PUT\x1a\x07/1/both\x22\x02v3");
    let refusal = refused(&["import", "--data-dir", text(&from), "--to", text(&to), "--migrate-v2"], 1);
    assert!(refusal.contains("1 keys of the old store") && refusal.contains(": \"/both\";"), "{refusal}");
    let (found, _) = imported(&dir, &from, &["--migrate-v2", "--v2-prefix=/old"]);
    assert_eq!(found.last(), Some(&key("/old/both", "v3", 0)));
}

#[test]
fn options_of_a_migration_are_checked() {
    let dir = TempDir::new("v2-options");
    let (from, to) = (v2_dir(&dir), dir.join("m"));
    let args = |flags: &[&'static str]| {
        let mut args = vec!["import", "--data-dir", text(&from), "--to", text(&to)];
        args.extend_from_slice(flags);
        refused(&args, 128)
    };
    assert!(args(&["--v2-prefix=x"]).contains("--v2-prefix requires --migrate-v2"));
    assert!(args(&["--v2-ttl=lease"]).contains("--v2-ttl requires --migrate-v2"));
    assert!(args(&["--v2-dirs"]).contains("--v2-dirs requires --migrate-v2"));
    assert!(args(&["--migrate-v2", "--v2-ttl=x"]).contains("--v2-ttl is lease, drop or skip, not \"x\""));
    assert!(args(&["--migrate-v2", "--without-old-store"]).contains("give one of them"));
    // If the image is torn and the log does not reach back far enough, the import names the image and makes
    // no directory.
    let image = from.join("member/snap/0000000000000002-0000000000000029.snap");
    let mut torn = golden("3.4-v2-snap");
    torn.truncate(5_000);
    std::fs::write(&image, torn).expect("is written");
    let wal = from.join("member/wal/0000000000000000-0000000000000000.wal");
    let whole = std::fs::read(&wal).expect("is there");
    std::fs::write(&wal, relogged(&whole, |entry| entry.index() >= 10)).expect("is written");
    let args = ["import", "--data-dir", text(&from), "--to", text(&to)];
    for more in [&[][..], &["--migrate-v2"], &["--without-old-store"]] {
        let refusal = refused(&[&args[..], more].concat(), 1);
        assert!(
            refusal.contains("the list of members is unknown") && refusal.contains("29.snap"),
            "{refusal}"
        );
    }
    assert_eq!(names(&dir), ["v2.etcd"]);
    std::fs::write(&wal, whole).expect("is written");
    // Without the image the complete log gives the same result.
    std::fs::remove_file(&image).expect("is removed");
    let (found, _) = imported(&dir, &from, &["--migrate-v2", "--v2-prefix=/old"]);
    assert_eq!(found.len(), 16);
}

#[test]
fn a_start_on_such_a_directory_names_the_flag() {
    let dir = TempDir::new("v2-start");
    let from = v2_dir(&dir);
    let lock =
        |from: &Path| storage::opening::lock(&disk::RealDisk, &from.join("member"), None, &|_| {}).err();
    let said = lock(&from).expect("is refused").to_string();
    assert!(said.contains("was written by etcd") && said.contains("--migrate-v2"), "{said}");
    assert!(said.contains("it has 9 keys or directories directly below its root"), "{said}");
    // The takeover of this member is refused as well, because these keys would be lost.
    let before = everything(&from);
    let (said, outcome) = start_with(&from, &[], false);
    let why = outcome.expect_err(&said);
    let command = format!("`mainstay utl import --data-dir {} --to NEW_DIR`", text(&from));
    for words in ["whose files are unchanged", "9 keys", "--migrate-v2", "--without-old-store", &command] {
        assert!(why.contains(words), "{words}: {why}");
    }
    std::fs::remove_file(from.join("member/lock")).expect("is removed");
    assert_eq!(everything(&from), before);
    // A large image is not read: this one is not even valid.
    let image = from.join("member/snap/0000000000000002-0000000000000029.snap");
    std::fs::write(&image, vec![b'x'; 5 << 20]).expect("is written");
    let said = lock(&from).expect("is refused").to_string();
    assert!(said.contains("its image has 5242880 bytes") && said.contains("--migrate-v2"), "{said}");
    // The message for a directory without such keys does not mention them.
    let said = lock(&etcd_dir(&dir, "3.4")).expect("is refused").to_string();
    assert!(said.contains("was written by etcd") && !said.contains("--migrate-v2"), "{said}");
}
