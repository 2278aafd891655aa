//! etcd started in the directory of a Mainstay member that was never an etcd member.

use std::path::{Path, PathBuf};

use std::io;
use std::sync::{Arc, Mutex};

use disk::{Disk, DiskSpace, File, Lock, RealDisk};
use storage::DataDirError;
use storage::etcd_beside::{KeptOut, SIGN_TEXT, keep_out};
use testkit::TempDir;

use crate::kit::{done, etcd_dir, golden, open, refused, snapshot, text, utl};
use crate::takeover::start_with;

/// A Mainstay member restored from a snapshot, with a separate log directory if requested.
fn born(dir: &TempDir, name: &str, wal_dir: Option<&Path>) -> PathBuf {
    let (from, data) = (snapshot(dir, "3.7"), dir.join(name));
    let mut args = vec!["snapshot", "restore", text(&from), "--data-dir", text(&data)];
    args.extend(wal_dir.iter().flat_map(|wal_dir| ["--wal-dir", text(wal_dir)]));
    done(&args);
    data
}

/// Simulates that etcd begins a store as if nothing kept it out: adds the files of a stopped etcd.
fn begin_store(data: &Path, wal_dir: &Path, etcds: &str) {
    let snap = data.join("member/snap");
    std::fs::remove_file(&snap).expect("keeps etcd out");
    std::fs::create_dir_all(&snap).expect("is made");
    std::fs::create_dir_all(wal_dir).expect("is made");
    std::fs::write(snap.join("db"), golden(&format!("{etcds}-db"))).expect("is written");
    std::fs::write(wal_dir.join("0000000000000000-0000000000000000.wal"), golden(&format!("{etcds}-wal")))
        .expect("is written");
}

/// Runs all checks of a start on a directory; returns the reason if the member is not started.
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
            for words in [words, "etcd's files are newer", "Mainstay's data is unchanged", "mkdir -p "] {
                assert!(why.contains(words), "{etcds} {apart}: no {words:?} in {why}");
            }
            let (from, to) = (text(&data).to_owned(), dir.join("to"));
            let mut import = vec!["import", "--data-dir", &from, "--to", text(&to)];
            import.extend(wal_dir.iter().flat_map(|wal_dir| ["--wal-dir", text(wal_dir)]));
            assert!(refused(&import, 1).contains(words), "{etcds} {apart}");
            assert!(refused(&["export", "--data-dir", &from, "--to", text(&to)], 1).contains(words));
            assert!(!to.exists());

            // The advice in the message works.
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

/// The operating system's files, with an etcd that takes its first steps right before the first rename.
struct Racing(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Disk for Racing {
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if let Some(race) = self.0.lock().expect("no test panics in it").take() {
            race();
        }
        RealDisk.rename(from, to)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        RealDisk.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        RealDisk.open(path)
    }
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        RealDisk.open_read(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Lock> {
        RealDisk.lock(path)
    }
    fn lock_read(&self, path: &Path) -> io::Result<Lock> {
        RealDisk.lock_read(path)
    }
    fn lock_shared(&self, path: &Path) -> io::Result<Lock> {
        RealDisk.lock_shared(path)
    }
    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool> {
        RealDisk.share_file_system(one, other)
    }
    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        RealDisk.space(path)
    }
}

#[test]
fn an_etcd_that_is_started_while_it_is_being_kept_out_keeps_its_files() {
    for is_locked in [true, false] {
        let dir = TempDir::in_memory("keep-out-race");
        let member = born(&dir, "m", None).join("member");
        let (snap, etcd) = (member.join("snap"), Arc::new(Mutex::new(None)));
        std::fs::remove_file(&snap).expect("keeps etcd out");
        let race = {
            let (snap, etcd) = (snap.clone(), Arc::clone(&etcd));
            move || {
                std::fs::create_dir_all(&snap).expect("is made");
                std::fs::write(snap.join("db"), b"").expect("is written");
                let lock = is_locked.then(|| RealDisk.lock_read(&snap.join("db")).expect("is free"));
                *etcd.lock().expect("no test panics in it") = lock;
            }
        };
        let kept = keep_out(&Racing(Mutex::new(Some(Box::new(race)))), &member, None);
        if is_locked {
            assert!(matches!(kept.err(), Some(DataDirError::EtcdRuns { path }) if path == snap.join("db")));
            assert!(snap.join("db").exists(), "its files are where they were");
        } else {
            let aside = member.join("snap.left-by-etcd-1");
            assert_eq!(kept.expect("is kept out").out, KeptOut::Moved(aside));
            assert!(snap.is_file());
        }
        assert!(!member.join("snap.tmp").exists());
    }
    // Since the check at the start, etcd has begun its log as well, and has then exited.
    let dir = TempDir::in_memory("keep-out-begun");
    let data = born(&dir, "m", None);
    begin_store(&data, &data.join("member/wal"), "3.7-new");
    let kept = keep_out(&RealDisk, &data.join("member"), None);
    assert!(matches!(kept.err(), Some(DataDirError::EtcdBeside(_))));
    assert!(data.join("member/snap/db").exists());
}

#[test]
fn an_etcd_that_has_written_nothing_yet_keeps_its_files_while_it_runs() {
    for db in [Vec::new(), golden("3.6-refused-db")] {
        let dir = TempDir::in_memory("keep-out-runs");
        let member = born(&dir, "m", None).join("member");
        let snap = member.join("snap");
        std::fs::remove_file(&snap).expect("keeps etcd out");
        std::fs::create_dir_all(&snap).expect("is made");
        std::fs::write(snap.join("db"), &db).expect("is written");
        let etcd = RealDisk.lock_read(&snap.join("db")).expect("is free");
        let kept = keep_out(&RealDisk, &member, None);
        assert!(matches!(kept.err(), Some(DataDirError::EtcdRuns { path }) if path == snap.join("db")));
        assert_eq!(std::fs::read(snap.join("db")).expect("stays where it is"), db);
        drop(etcd);
        assert!(matches!(keep_out(&RealDisk, &member, None).expect("is kept out").out, KeptOut::Moved(_)));
    }
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
        let kept = keep_out(&RealDisk, &member, None).expect("is kept out");
        assert_eq!((&kept.out, kept.lock.is_some()), (&KeptOut::Moved(aside.clone()), true));
        // An etcd process that opened the database before cannot continue while the member runs.
        assert!(RealDisk.lock_read(&aside.join("db")).is_err());
        drop(kept);
        assert_eq!(std::fs::read(aside.join("db")).expect("is locked"), db.clone().unwrap_or_default());
        assert_eq!(keep_out(&RealDisk, &member, None).expect("is kept out").out, KeptOut::Guarded);
        open(&data);
        // A new member may start in this directory too, as a member of etcd could.
        leave(&new, db);
        assert_eq!(start(&new, None), Ok(()));
    }
    // The database contains data, and its log is elsewhere or lost.
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
