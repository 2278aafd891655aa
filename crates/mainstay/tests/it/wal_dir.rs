//! A log in a separate directory: the state after kill -9, and starts that do not find the log.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use testkit::TempDir;

use crate::client::Client;
use crate::member::Setup;
use crate::run;

fn puts(member: &crate::member::Member, keys: std::ops::Range<u32>) {
    run(async {
        let client: Client = member.client().await;
        for number in keys {
            client.put(format!("k/{number:03}"), format!("{number}")).await.expect("puts are served");
        }
    });
}

fn has(member: &crate::member::Member, keys: usize) {
    run(async {
        let client = member.client().await;
        let everything = client.everything().await.expect("reads are served");
        assert_eq!(everything.kvs.len(), keys, "what was acknowledged is there");
    });
}

fn segments(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).into_iter().flatten();
    names
        .filter(|entry| {
            entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|e| e == "seg"))
        })
        .count()
}

#[test]
fn a_log_of_its_own_survives_kills_and_is_never_left_behind() {
    let (dir, disk) = (TempDir::in_memory("wal-dir"), TempDir::in_memory("wal-disk"));
    let wal = disk.path().join("wal");
    let plain = Setup::new(dir.path());
    let apart = plain.clone().flag(format!("--wal-dir={}", wal.display()));
    for round in 0..3 {
        let member = apart.start();
        has(&member, 20 * round);
        puts(&member, 20 * round as u32..20 * round as u32 + 20);
        member.kill();
    }
    assert!(segments(&wal) > 0 && !plain.data_dir.join("member/log").exists());
    for entry in std::fs::read_dir(&wal).expect("it is there") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("its mode").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", entry.path().display());
    }
    assert_eq!(std::fs::metadata(&wal).expect("its mode").permissions().mode() & 0o777, 0o700);

    // The start is refused, and creates nothing, without the flag, with another directory, and before the
    // disk is mounted.
    let other = disk.path().join("other");
    let elsewhere = plain.clone().flag(format!("--wal-dir={}", other.display()));
    for setup in [&plain, &elsewhere] {
        let said = setup.refused();
        assert!(said.contains(&format!("the log of this member is in {}", wal.display())), "{said}");
    }
    let unmounted = disk.path().join("unmounted");
    std::fs::rename(&wal, &unmounted).expect("it can be renamed");
    for setup in [&plain, &elsewhere] {
        let said = setup.refused();
        assert!(said.contains("which holds no log now") && said.contains("is mounted"), "{said}");
    }
    let said = apart.refused();
    assert!(said.contains("is missing or empty, but was there before"), "{said}");
    std::fs::remove_dir(&wal).expect("nothing is begun in it");
    std::fs::rename(&unmounted, &wal).expect("it can be renamed");

    // Another data directory cannot use this log.
    let mut stranger = apart.clone();
    stranger.data_dir = dir.path().join("stranger");
    let said = stranger.refused();
    assert!(said.contains("holds the log of another data directory"), "{said}");

    // After a crash, an old copy of the log would look the same; after a clean shutdown, the log may be
    // moved, and moved back.
    std::fs::remove_dir_all(&other).expect("an empty directory");
    std::fs::rename(&wal, &other).expect("it can be renamed");
    let said = elsewhere.refused();
    assert!(said.contains("was not stopped cleanly"), "{said}");
    std::os::unix::fs::symlink(&other, &wal).expect("a link can be made");
    let member = apart.start();
    has(&member, 60);
    member.stop();
    std::fs::remove_file(&wal).expect("the link goes");
    let member = elsewhere.start();
    has(&member, 60);
    let said = stranger.clone().flag(format!("--wal-dir={}", other.display())).refused();
    assert!(said.contains("is locked"), "{said}");
    member.stop();
    std::fs::rename(&other, plain.data_dir.join("member/log")).expect("both are on one disk");
    let member = plain.start();
    has(&member, 60);
    member.kill();
    let member = plain.start();
    has(&member, 60);
    member.stop();
}

#[test]
fn a_log_where_etcd_has_its_own_is_known_by_any_path_that_leads_there() {
    let dir = TempDir::in_memory("wal-paths");
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    std::fs::create_dir(&real).expect("it can be made");
    std::os::unix::fs::symlink(&real, &link).expect("a link can be made");
    let mut setup = Setup::new(dir.path()).flag(format!("--wal-dir={}", real.join("d/member/wal").display()));
    setup.data_dir = link.join("d");
    for round in 0..2 {
        let member = setup.start();
        has(&member, 20 * round);
        puts(&member, 20 * round as u32..20 * round as u32 + 20);
        member.kill();
    }
}

#[test]
fn tools_find_a_log_of_its_own() {
    let dir = TempDir::in_memory("wal-tools");
    let at = |name: &str| dir.path().join(name);
    let wal = at("wal");
    let setup = Setup::new(dir.path()).flag(format!("--wal-dir={}", wal.display()));
    let member = setup.start();
    puts(&member, 0..5);
    let snapshot = at("snapshot.db");
    let endpoint = format!("--endpoints={}", member.client_address());
    tool("ctl", &[&endpoint, "snapshot", "save", &snapshot.display().to_string()]);
    member.stop();
    let data = setup.data_dir.display().to_string();
    tool("utl", &["defrag", "--data-dir", &data]);
    tool("utl", &["export", "--data-dir", &data, "--to", &at("etcd").display().to_string()]);
    assert!(at("etcd/member/snap/db").exists());

    // A snapshot is restored with the log in a separate directory.
    let mut restored = Setup::new(dir.path()).flag(format!("--wal-dir={}", at("new-wal").display()));
    restored.data_dir = at("new");
    tool(
        "utl",
        &[
            "snapshot",
            "restore",
            &snapshot.display().to_string(),
            "--name=m",
            "--initial-cluster=m=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            &format!("--data-dir={}", restored.data_dir.display()),
            &format!("--wal-dir={}", at("new-wal").display()),
        ],
    );
    assert!(segments(&at("new-wal")) > 0 && !restored.data_dir.join("member/log").exists());
    let member = restored.start();
    has(&member, 5);
    member.kill();
}

/// Runs a tool of the program; panics if it fails.
pub fn tool(name: &str, args: &[&str]) {
    let output =
        std::process::Command::new(crate::member::binary()).arg(name).args(args).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
