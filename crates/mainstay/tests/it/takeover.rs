//! A start on a data directory of etcd: the member takes it over, even if it is killed during the takeover.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use disk::{Disk as _, RealDisk};
use interchange::wal::GUARD_NAMES;
use storage::etcd_beside::SIGN_NAME;
use testkit::TempDir;

use crate::member::{Member, Setup};
use crate::run;
use crate::wal_dir::tool;

/// Creates a data directory that real etcd left.
fn etcd_left(setup: &Setup, release: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interchange/tests/it/golden");
    let member = setup.data_dir.join("member");
    for (name, path) in [("db", "snap/db"), ("wal", "wal/0000000000000000-0000000000000000.wal")] {
        let file = std::fs::File::open(golden.join(format!("{release}-{name}.gz"))).expect("is there");
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("is sound");
        let path = member.join(path);
        std::fs::create_dir_all(path.parent().expect("has one")).expect("is made");
        std::fs::write(path, bytes).expect("is written");
    }
}

/// Returns etcd's files with their contents.
fn etcds(setup: &Setup) -> Vec<(PathBuf, Vec<u8>)> {
    let member = setup.data_dir.join("member");
    ["snap/db", "wal/0000000000000000-0000000000000000.wal"]
        .map(|path| (member.join(path), std::fs::read(member.join(path)).expect("is there")))
        .to_vec()
}

fn revision(member: &Member) -> i64 {
    run(async {
        let everything = member.client().await.everything().await.expect("reads are served");
        everything.header.expect("has a header").revision
    })
}

fn put(member: &Member) {
    run(async { member.client().await.put("here", "now").await.expect("puts are served") });
}

#[test]
fn a_member_of_etcd_goes_on_and_survives_kills() {
    for release in ["3.4", "3.7"] {
        // Kills the member where the takeover begins, after the import, or a little later. Each round has its
        // own directory, because the member may be killed after the takeover is complete.
        for words in ["taking this member over", "imported etcd's database and log"] {
            let dir = TempDir::in_memory("takeover-killed");
            let setup = Setup::new(dir.path());
            etcd_left(&setup, release);
            let before = etcds(&setup);
            let member = Member::spawn(&setup);
            member.wait_for(words);
            member.kill();
            assert_eq!(etcds(&setup), before, "{release}: etcd's files are not changed");
            let member = setup.start();
            assert_eq!(revision(&member), 40, "{release}, killed once it said {words:?}");
            member.stop();
        }
        let dir = TempDir::in_memory("takeover");
        let setup = Setup::new(dir.path());
        etcd_left(&setup, release);
        let before = etcds(&setup);
        let asked_first = setup.clone().flag("--import-etcd-data=false");
        let said = asked_first.refused();
        assert!(said.contains("was written by etcd") && said.contains("--import-etcd-data"), "{said}");
        let member = setup.start();
        assert_eq!(revision(&member), 40, "{release}");
        put(&member);
        member.kill();
        for name in GUARD_NAMES {
            assert!(setup.data_dir.join("member/wal").join(name).exists(), "{release}: {name}");
        }
        // The flag applies to etcd's directories only; by now this is a directory of Mainstay.
        let member = asked_first.start();
        assert_eq!(revision(&member), 41, "{release}");
        member.stop();
        assert_eq!(etcds(&setup), before, "{release}");
        let member = setup.start();
        assert_eq!(revision(&member), 41, "{release}");
        member.stop();
    }
}

#[test]
fn a_member_and_etcd_do_not_run_at_once() {
    let dir = TempDir::in_memory("takeover-both");
    let setup = Setup::new(dir.path());
    etcd_left(&setup, "3.6");
    let db = setup.data_dir.join("member/snap/db");
    let member = setup.start();
    assert!(RealDisk.lock_read(&db).is_err(), "etcd would open its database");
    member.stop();
    // The files that shut etcd out were removed, and etcd runs, but no client writes to it.
    for name in GUARD_NAMES {
        std::fs::remove_file(setup.data_dir.join("member/wal").join(name)).expect("is removed");
    }
    let served = RealDisk.lock_read(&db).expect("is free");
    let said = setup.refused();
    assert!(said.contains("is locked by another process: stop etcd first"), "{said}");
    drop(served);
}

#[test]
fn a_member_that_etcd_went_on_with_is_refused() {
    let dir = TempDir::in_memory("takeover-twice");
    let setup = Setup::new(dir.path());
    etcd_left(&setup, "3.6");
    setup.start().stop();
    let wal = setup.data_dir.join("member/wal");
    let last = wal.join("0000000000000000-0000000000000000.wal");
    std::fs::copy(&last, wal.join("0000000000000001-0000000000000100.wal")).expect("is copied");
    let said = setup.refused();
    assert!(said.contains("etcd has run on") && said.contains("mainstay rebuild"), "{said}");
}

#[test]
fn a_member_that_was_exported_is_started_again_only_if_somebody_says_so() {
    let dir = TempDir::in_memory("exported");
    let setup = Setup::new(dir.path());
    let member = setup.start();
    put(&member);
    member.stop();
    let (data, to) = (setup.data_dir.display().to_string(), dir.join("etcd").display().to_string());
    tool("utl", &["export", "--data-dir", &data, "--to", &to]);
    let said = setup.refused();
    assert!(said.contains(&format!("this member was exported to {to} for etcd")), "{said}");
    let mark = setup.data_dir.join("member/exported");
    assert!(setup.refused().contains(&format!("`rm {}`", mark.display())));
    std::fs::remove_file(mark).expect("is there");
    let member = setup.start();
    assert_eq!(revision(&member), 2);
    member.stop();
}

#[test]
fn a_member_starts_though_etcds_database_cannot_be_opened() {
    let dir = TempDir::in_memory("takeover-unreadable");
    let setup = Setup::new(dir.path());
    etcd_left(&setup, "3.6");
    setup.start().stop();
    // A file that even root cannot open.
    let db = setup.data_dir.join("member/snap/db");
    std::fs::remove_file(&db).expect("is there");
    std::os::unix::fs::symlink("db", &db).expect("is made");
    let member = setup.start();
    member.wait_for("cannot lock etcd's database");
    assert_eq!(revision(&member), 40);
    member.stop();
    // Without the files that keep etcd from starting, etcd may be running.
    let guard = setup.data_dir.join("member/wal").join(GUARD_NAMES[1]);
    std::fs::remove_file(&guard).expect("is there");
    let said = setup.refused();
    assert!(said.contains("cannot lock") && said.contains("snap/db"), "{said}");
    std::fs::write(guard, "").expect("is written");
    let data = setup.data_dir.display().to_string();
    tool("utl", &["drop-etcd", "--data-dir", &data]);
    let member = setup.start();
    assert_eq!(revision(&member), 40);
    member.stop();
}

/// Simulates that etcd began a store, as if nothing had kept it out.
fn etcd_began(setup: &Setup, release: &str) {
    std::fs::remove_file(setup.data_dir.join("member/snap")).expect("keeps etcd out");
    etcd_left(setup, release);
}

#[test]
fn a_directory_that_etcd_never_had_keeps_it_out_and_what_it_began_is_told() {
    let dir = TempDir::in_memory("born");
    let setup = Setup::new(dir.path());
    let member = setup.start();
    put(&member);
    member.stop();
    for path in ["member/snap", SIGN_NAME] {
        let text = std::fs::read_to_string(setup.data_dir.join(path)).expect("is a file");
        assert!(text.contains("mainstay utl export"), "{path}: {text}");
    }
    // These guard files did not exist yet when the directory was served, and etcd was started on it since.
    etcd_began(&setup, "3.7-new");
    let said = setup.refused();
    assert!(
        said.contains("etcd's store is empty") && said.contains("Mainstay's data is unchanged"),
        "{said}"
    );
    let commands = said.split('`').find(|part| part.starts_with("mkdir ")).expect("says what can be done");
    let done = std::process::Command::new("sh").args(["-ec", commands]).status().expect("a shell");
    assert!(done.success(), "{commands}");
    let member = setup.start();
    assert_eq!(revision(&member), 2);
    member.stop();
    assert!(setup.data_dir.join("member/snap").is_file());
}
