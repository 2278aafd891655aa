//! etcd in the directory of a member of Mainstay that it never had.

use std::path::{Path, PathBuf};

use disk::RealDisk;
use storage::etcd_beside::{KeptOut, SIGN_TEXT, keep_out};
use testkit::TempDir;

use crate::kit::{done, etcd_dir, golden, open, refused, snapshot, text, utl};
use crate::takeover::start_with;

/// A member of Mainstay that was restored from a snapshot, with its log in a directory of its own if that is asked for.
fn born(dir: &TempDir, name: &str, wal_dir: Option<&Path>) -> PathBuf {
    let (from, data) = (snapshot(dir, "3.7"), dir.join(name));
    let mut args = vec!["snapshot", "restore", text(&from), "--data-dir", text(&data)];
    args.extend(wal_dir.iter().flat_map(|wal_dir| ["--wal-dir", text(wal_dir)]));
    done(&args);
    data
}

/// Lets etcd begin a store, as if nothing kept it out: its files from when it was stopped.
fn begin_store(data: &Path, wal_dir: &Path, etcds: &str) {
    let snap = data.join("member/snap");
    std::fs::remove_file(&snap).expect("keeps etcd out");
    std::fs::create_dir_all(&snap).expect("is made");
    std::fs::create_dir_all(wal_dir).expect("is made");
    std::fs::write(snap.join("db"), golden(&format!("{etcds}-db"))).expect("is written");
    std::fs::write(wal_dir.join("0000000000000000-0000000000000000.wal"), golden(&format!("{etcds}-wal")))
        .expect("is written");
}

/// Why a member is not started on a directory, by the whole of what a start looks at.
fn start(data: &Path, wal_dir: Option<&Path>) -> Result<(), String> {
    let flag = wal_dir.map(|wal_dir| format!("--wal-dir={}", text(wal_dir)));
    let (said, taken) = start_with(data, &flag.iter().map(String::as_str).collect::<Vec<_>>(), false);
    taken?;
    assert_eq!(said, "", "nothing is taken over");
    let locked = storage::opening::lock(&RealDisk, &data.join("member"), wal_dir, &|_| {});
    locked.map(drop).map_err(|why| why.to_string())
}

#[test]
fn every_directory_that_is_made_keeps_etcd_out() {
    let dir = TempDir::in_memory("keeps-etcd-out");
    let (wal, imported) = (dir.join("wal"), dir.join("imported"));
    let etcds = etcd_dir(&dir, "3.6");
    done(&["import", "--data-dir", text(&etcds), "--to", text(&imported)]);
    for data in [born(&dir, "inside", None), born(&dir, "apart", Some(&wal)), imported] {
        let guard = data.join("member/snap");
        assert_eq!(std::fs::read_to_string(&guard).expect("is a file"), SIGN_TEXT, "{}", data.display());
        open(&data);
    }
}

#[test]
fn a_store_that_etcd_began_beside_a_member_is_told_and_never_imported() {
    for (etcds, words) in [
        ("3.7-new", "etcd's store is empty: no client has written to it"),
        ("3.7", "clients have written to etcd's store"),
    ] {
        for apart in [false, true] {
            let dir = TempDir::in_memory("beside");
            let wal_dir = apart.then(|| dir.join("w"));
            let data = born(&dir, "m", wal_dir.as_deref());
            let before = open(&data).hash_kv(numbers::Revision(0));
            let theirs = wal_dir.clone().unwrap_or_else(|| data.join("member/wal"));
            begin_store(&data, &theirs, etcds);
            let why = start(&data, wal_dir.as_deref()).expect_err("is refused");
            for words in
                [words, "etcd's files are the newer ones", "Mainstay's data are as they were", "mkdir -p "]
            {
                assert!(why.contains(words), "{etcds} {apart}: no {words:?} in {why}");
            }
            let (from, to) = (text(&data).to_owned(), dir.join("to"));
            let mut import = vec!["import", "--data-dir", &from, "--to", text(&to)];
            import.extend(wal_dir.iter().flat_map(|wal_dir| ["--wal-dir", text(wal_dir)]));
            assert!(refused(&import, 1).contains(words), "{etcds} {apart}");
            assert!(refused(&["export", "--data-dir", &from, "--to", text(&to)], 1).contains(words));
            assert!(!to.exists());

            // What it says can be done.
            let aside = data.join("begun-by-etcd/member");
            let moves = [
                (data.join("member/snap"), aside.join("snap")),
                (
                    theirs.join("0000000000000000-0000000000000000.wal"),
                    aside.join("wal/0000000000000000-0000000000000000.wal"),
                ),
            ];
            std::fs::create_dir_all(aside.join("wal")).expect("is made");
            for (from, to) in moves {
                let command = match to.ends_with("snap") {
                    true => format!("mv {} {}/", from.display(), aside.display()),
                    false => format!("mv {}/*.wal {}/wal/", theirs.display(), aside.display()),
                };
                assert!(why.contains(&command), "no {command:?} in {why}");
                std::fs::rename(from, to).expect("is moved");
            }
            assert_eq!(start(&data, wal_dir.as_deref()), Ok(()));
            assert_eq!(open(&data).hash_kv(numbers::Revision(0)), before);
            let aside = data.join("begun-by-etcd");
            done(&["import", "--data-dir", text(&aside), "--to", text(&to)]);
        }
    }
}

#[test]
fn an_etcd_that_runs_beside_a_member_is_to_be_stopped_first() {
    use disk::Disk as _;
    let dir = TempDir::in_memory("beside-runs");
    let data = born(&dir, "m", None);
    begin_store(&data, &data.join("member/wal"), "3.7-new");
    let _etcd = RealDisk.lock_read(&data.join("member/snap/db")).expect("is free");
    let why = start(&data, None).expect_err("is refused");
    assert!(why.contains("is locked by another process: stop etcd first"), "{why}");
}

#[test]
fn what_an_etcd_left_that_began_nothing_keeps_no_member_from_starting() {
    let leave = |data: &Path, db: Option<Vec<u8>>| {
        let snap = data.join("member/snap");
        let _ = std::fs::remove_file(&snap);
        std::fs::create_dir_all(&snap).expect("is made");
        std::fs::create_dir_all(data.join("member/wal")).expect("is made");
        db.map_or(Ok(()), |db| std::fs::write(snap.join("db"), db)).expect("is written");
    };
    let nothing = || [None, Some(Vec::new()), Some(golden("3.6-refused-db"))];
    for db in nothing() {
        let dir = TempDir::in_memory("left-nothing");
        let (data, new) = (born(&dir, "m", None), dir.join("new"));
        leave(&data, db.clone());
        assert_eq!(start(&data, None), Ok(()));
        let member = data.join("member");
        let aside = member.join("snap.left-by-etcd-1");
        assert_eq!(keep_out(&RealDisk, &member).expect("is kept out"), KeptOut::Moved(aside.clone()));
        assert_eq!(std::fs::read(aside.join("db")).ok(), db);
        assert_eq!(keep_out(&RealDisk, &member).expect("is kept out"), KeptOut::Guarded);
        open(&data);
        // A member that has never run may begin there, too, as one of etcd would.
        leave(&new, db);
        assert_eq!(start(&new, None), Ok(()));
    }
    // Something is in it, and its log is elsewhere or lost.
    for db in [golden("3.7-db"), b"garbage".to_vec()] {
        let dir = TempDir::in_memory("left-something");
        let (data, new) = (born(&dir, "m", None), dir.join("new"));
        leave(&data, Some(db.clone()));
        let why = start(&data, None).expect_err("is refused");
        assert!(why.contains("etcd's store cannot be read"), "{why}");
        leave(&new, Some(db));
        let why = start(&new, None).expect_err("is refused");
        assert!(why.contains("cannot take this member over from etcd"), "{why}");
    }
}

#[test]
fn a_member_whose_log_is_lost_is_not_made_of_the_store_that_etcd_began() {
    let dir = TempDir::in_memory("beside-lost");
    let data = born(&dir, "m", None);
    std::fs::remove_dir_all(data.join("member/log")).expect("is removed");
    begin_store(&data, &data.join("member/wal"), "3.7-new");
    assert!(start(&data, None).expect_err("is refused").contains("etcd's store is empty"));
    let told = utl(&["import", "--data-dir", text(&data), "--to", text(&dir.join("to"))]);
    assert!(told.code == 1 && told.err.contains("etcd's store is empty"), "{}", told.err);
}
