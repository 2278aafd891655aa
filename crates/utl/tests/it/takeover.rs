//! Members that Mainstay takes over from etcd in place, and their export. Both must preserve what a member
//! has promised in raft: its term and its vote.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use api::etcdserverpb::{InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest};
use api::walpb::Record;
use api::{membershippb, raftpb};
use config::{Format, Level};
use disk::{Disk, RealDisk};
use interchange::DataDir;
use interchange::backend::{Member, Membership};
use interchange::wal::{GUARD_MESSAGE_NAME, GUARD_NAMES};
use log::HardState;
use machine::GrantedLease;
use machine::auth::Auth;
use machine::snapshot::SnapshotVersion;
use numbers::{Index, LeaseId, MemberId, Revision, Seconds, Term};
use prost::Message as _;
use storage::Identity;
use storage::etcd_beside::SIGN_NAME;
use storage::kv_hash::HashedKv;
use storage::restoration::{Restoration, RestoredEntry, RestoredHead};
use storage::stopped::Stopped;
use storage::taken_over::{Files, MARK_NAME, TakenOver};
use telemetry::logging::Logger;
use testkit::TempDir;
use utl::{TakeOver, take_over};

use crate::kit::{RELEASES, done, etcd_dir, everything, open, refused, text, utl};

/// HashKV at the end of all golden directories: revision 40, compacted at 4.
const HASHED: HashedKv =
    HashedKv { hash: 1_556_182_464, compact_revision: Revision(4), revision: Revision(40) };

/// Type of the records in etcd's log that contain a hard state.
const STATE: i64 = 3;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Does what a start does before it opens a data directory; returns its log, and the reason if the start was
/// refused.
pub fn start_with(data_dir: &Path, flags: &[&str], stop_wanted: bool) -> (String, Result<(), String>) {
    let mut words = vec!["--data-dir".to_owned(), text(data_dir).to_owned()];
    words.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let config = match config::parse(&words, &[]) {
        Ok(config::Invocation::Serve(parsed)) => parsed.config,
        _ => panic!("{words:?} start a member"),
    };
    let lines = Lines::default();
    let logger = Arc::new(Logger::to(Level::Info, Format::Json, vec![Box::new(lines.clone())]));
    let outcome = take_over(&TakeOver { config: &config, logger: &logger, stop_wanted: &|| stop_wanted });
    let said = String::from_utf8(lines.0.lock().expect("nobody panics").clone()).expect("is text");
    (said, outcome.map_err(|failure| failure.to_string()))
}

fn start(data_dir: &Path, flags: &[&str]) -> String {
    let (said, outcome) = start_with(data_dir, flags, false);
    assert_eq!(outcome, Ok(()), "{said}");
    said
}

/// Returns those of the files that belong to etcd.
fn etcds(files: &[(PathBuf, u32, Vec<u8>)]) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let is_etcds = |path: &Path| {
        let is_guard = keeps_etcd_out().iter().any(|guard| path.ends_with(guard));
        !is_guard && (text(path).contains("/snap") || path.extension().is_some_and(|e| e == "wal"))
    };
    // A file in place of the directory keeps etcd out.
    let keeps_out = |path: &Path, bytes: &[u8]| path.ends_with("snap") && !bytes.is_empty();
    let found = files.iter().filter(|(path, _, bytes)| is_etcds(path) && !keeps_out(path, bytes));
    found.cloned().collect()
}

#[test]
fn a_member_goes_on_where_etcd_stopped_in_the_same_directory() {
    for release in RELEASES {
        let dir = TempDir::new("takeover");
        let data = etcd_dir(&dir, release);
        let before = everything(&data);
        let (identity, promised, end, last) = {
            let source = DataDir::open(&RealDisk, &data).expect("is sound");
            (source.wal.identity, source.wal.hard_state, source.end(), source.wal.last())
        };
        let said = start(&data, &[]);
        for words in ["took this member over from etcd", "to-go-back", "utl export", "utl drop-etcd"] {
            assert!(said.contains(words), "{release}: {said}");
        }
        assert_eq!(etcds(&everything(&data)), etcds(&before), "{release}: etcd's files are not changed");
        let mut member = open(&data);
        assert_eq!(member.hash_kv(Revision(0)), Ok(HASHED), "{release}");
        assert_eq!(
            (member.identity.member_id, member.identity.cluster_id),
            (identity.member_id, identity.cluster_id)
        );
        let hard_state =
            HardState { term: Term(promised.term), vote: MemberId(promised.vote), commit: Index(end) };
        assert_eq!((member.hard_state, member.machine.applied_index), (hard_state, Index(last)), "{release}");
        assert_eq!(member.machine.auth.users().count(), 2, "{release}");
        drop(member);
        // A second start uses the result of the first start.
        let after = everything(&data);
        let said = start(&data, &[]);
        assert!(
            said.contains("etcd's files are kept") && !said.contains("taking this member over"),
            "{said}"
        );
        assert_eq!(everything(&data), after, "{release}");
    }
}

#[test]
fn a_log_of_its_own_stays_on_its_disk() {
    let dir = TempDir::new("takeover-apart");
    let data = etcd_dir(&dir, "3.6");
    let wal = dir.join("wal");
    std::fs::rename(data.join("member/wal"), &wal).expect("is moved");
    let before = (etcds(&everything(&data)), etcds(&everything(&wal)));
    let flag = format!("--wal-dir={}", text(&wal));
    let (_, outcome) = start_with(&data, &[], false);
    assert!(outcome.is_err_and(|why| why.contains("whose files are unchanged")), "the log is not there");
    start(&data, &[&flag]);
    assert!(wal.join("log/0000000000000000.seg").exists() && !wal.join("log.unfinished").exists());
    assert!(!data.join("member/log").exists());
    assert_eq!((etcds(&everything(&data)), etcds(&everything(&wal))), before);
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    done(&["drop-etcd", "--data-dir", text(&data)]);
    assert_eq!((etcds(&everything(&data)), etcds(&everything(&wal))), (vec![], vec![]));
    for name in GUARD_NAMES {
        assert!(wal.join(name).exists(), "{name}: etcd would begin an empty member");
    }
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
}

#[test]
fn a_log_behind_a_link_stays_on_its_disk_without_a_flag() {
    let dir = TempDir::new("takeover-link");
    let data = etcd_dir(&dir, "3.6");
    let (wal, link) = (dir.join("other disk"), data.join("member/wal"));
    std::fs::rename(&link, &wal).expect("is moved");
    std::os::unix::fs::symlink(&wal, &link).expect("is made");
    let before = etcds(&everything(&wal));
    let said = start(&data, &[]);
    assert!(said.contains("took this member over"), "{said}");
    assert!(wal.join("log/0000000000000000.seg").exists() && !wal.join("log.unfinished").exists());
    assert!(!data.join("member/log").exists());
    assert_eq!(etcds(&everything(&wal)), before);
    for name in GUARD_NAMES {
        assert!(wal.join(name).exists(), "{name}");
    }
    let sign = std::fs::read_to_string(data.join(SIGN_NAME)).expect("is there");
    assert!(sign.contains("mainstay utl export"), "{sign}");
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    // Another start uses the result of the first one.
    assert!(!start(&data, &[]).contains("taking this member over"));
    done(&["drop-etcd", "--data-dir", text(&data)]);
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
}

#[test]
fn a_log_behind_a_link_is_found_when_the_data_directory_has_another_name() {
    let dir = TempDir::new("takeover-link-renamed");
    let data = etcd_dir(&dir, "3.6");
    let (wal, link) = (dir.join("other disk"), data.join("member/wal"));
    std::fs::rename(&link, &wal).expect("is moved");
    std::os::unix::fs::symlink(&wal, &link).expect("is made");
    start(&data, &[]);
    let renamed = dir.join("renamed");
    std::fs::rename(&data, &renamed).expect("is renamed");
    assert_eq!(open(&renamed).hash_kv(Revision(0)), Ok(HASHED));
    // A copy that follows symbolic links has its own log, whatever is at the recorded path.
    std::fs::rename(&renamed, &data).expect("is renamed");
    let copy = dir.join("copy");
    let copied = std::process::Command::new("cp").args(["-rL", text(&data), text(&copy)]).status();
    assert!(copied.expect("runs").success());
    let running = disk::Disk::lock(&disk::RealDisk, &wal.join("log")).expect("is free");
    assert_eq!(open(&copy).hash_kv(Revision(0)), Ok(HASHED), "the log of the original is in use");
    drop(running);
    // The disk of the log is not mounted.
    std::fs::rename(&data, &renamed).expect("is renamed");
    std::fs::rename(&wal, dir.join("not mounted")).expect("is moved");
    std::fs::create_dir(&wal).expect("is made");
    let to = dir.join("to");
    let refusal = refused(&["export", "--data-dir", text(&renamed), "--to", text(&to)], 1);
    let noted = data.join("member/wal/log");
    for words in ["member/wal-dir records that the log of this member is in", text(&noted), "mount its disk"]
    {
        assert!(refusal.contains(words), "no {words:?} in {refusal}");
    }
}

#[test]
fn etcds_files_are_not_taken_for_dropped_where_their_directory_has_another_name() {
    let dir = TempDir::new("drop-renamed");
    let data = etcd_dir(&dir, "3.6");
    let (wal, renamed) = (dir.join("wal"), dir.join("wal renamed"));
    std::fs::rename(data.join("member/wal"), &wal).expect("is moved");
    start(&data, &["--wal-dir", text(&wal)]);
    std::fs::rename(&wal, &renamed).expect("is renamed");
    let refusal = refused(&["drop-etcd", "--data-dir", text(&data)], 1);
    assert!(
        refusal.contains(&format!("etcd's log was in {}, which does not exist", text(&wal))),
        "{refusal}"
    );
    assert!(data.join("member/snap/db").exists() && !wal.exists());
    std::os::unix::fs::symlink(&renamed, &wal).expect("is made");
    done(&["drop-etcd", "--data-dir", text(&data)]);
    assert_eq!(etcds(&everything(&renamed)), vec![]);
}

#[test]
fn what_a_first_start_left_that_failed_is_no_member() {
    let dir = TempDir::new("takeover-first-start");
    let data = etcd_dir(&dir, "3.6");
    for part in ["log", "checkpoint"] {
        std::fs::create_dir(data.join("member").join(part)).expect("is made");
    }
    std::fs::write(data.join("member/lock"), b"").expect("is written");
    let defragmented = done(&["defrag", "--data-dir", text(&data)]);
    assert!(defragmented.err.contains("finished defragmenting directory"), "{}", defragmented.err);
    let said = start(&data, &[]);
    assert!(said.contains("took this member over"), "{said}");
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
}

#[test]
fn a_takeover_does_not_need_the_file_that_says_whose_the_directory_is() {
    let dir = TempDir::new("takeover-without-sign");
    let data = etcd_dir(&dir, "3.6");
    // This directory has the name of the temporary file, so the file cannot be written.
    std::fs::create_dir(data.join(format!("{SIGN_NAME}.tmp"))).expect("is made");
    let said = start(&data, &[]);
    for words in
        ["cannot write the file that marks the data directory as Mainstay's", "took this member over"]
    {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    assert!(GUARD_NAMES.iter().all(|name| data.join("member/wal").join(name).exists()));
}

#[test]
fn snapshots_behind_a_link_are_told_of() {
    let dir = TempDir::new("takeover-link-snap");
    let data = etcd_dir(&dir, "3.6");
    let (snap, link) = (dir.join("other disk"), data.join("member/snap"));
    std::fs::rename(&link, &snap).expect("is moved");
    std::os::unix::fs::symlink(&snap, &link).expect("is made");
    let said = start(&data, &[]);
    assert!(said.contains("etcd's database is on a different disk than its data directory"), "{said}");
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
}

#[test]
fn an_export_of_nothing_tells_the_steps_back() {
    let told = utl(&["export"]);
    assert_eq!((told.code, told.out.as_str()), (1, ""));
    for words in [
        "mainstay doctor migrate --to etcd",
        "mainstay utl export --data-dir DIR --to DIR.etcd",
        "start etcd",
    ] {
        assert!(told.err.contains(words), "no {words:?} in {}", told.err);
    }
}

/// Returns the directory of a member's log and, if `apart` is true, moves it out of the data directory and
/// returns the flag that names it.
fn log_of(dir: &TempDir, member: &Path, apart: bool) -> (PathBuf, Option<String>) {
    let inside = member.join("wal");
    if !apart {
        return (inside, None);
    }
    let wal = dir.join("wal");
    std::fs::rename(inside, &wal).expect("is moved");
    let flag = format!("--wal-dir={}", text(&wal));
    (wal, Some(flag))
}

#[test]
fn a_start_goes_on_wherever_one_before_it_was_killed() {
    for apart in [false, true] {
        let dir = TempDir::new("takeover-killed");
        let data = etcd_dir(&dir, "3.7");
        let member = data.join("member");
        let (wal, flag) = log_of(&dir, &member, apart);
        let flags: &[&str] = &flag.iter().map(String::as_str).collect::<Vec<_>>();
        // Killed while the files were made: there are parts of a log, and the mark of an unfinished
        // directory.
        for begun in [member.join("import.unfinished"), wal.join("log.unfinished")] {
            use std::os::unix::fs::DirBuilderExt as _;
            std::fs::DirBuilder::new().mode(0o700).create(&begun).expect("is made");
            std::fs::write(begun.join("unfinished-by-mainstay"), "").expect("is written");
            std::fs::create_dir_all(begun.join("member/log")).expect("is made");
            std::fs::write(begun.join("member/log/0000000000000000.seg"), "a part").expect("is written");
            if !apart {
                break;
            }
        }
        start(&data, flags);
        assert!(!member.join("import.unfinished").exists());
        let whole = everything(&data);

        // Killed after each of the steps that move the result into place: the later steps are undone, the
        // last one first.
        let parts = member.join("import/member");
        let mut steps = vec![(member.join(MARK_NAME), member.join("import").join(MARK_NAME))];
        let own = if apart { ["checkpoint", "wal-dir", "witness"] } else { ["checkpoint", "log", "witness"] };
        steps.extend(own.map(|part| (member.join(part), parts.join(part))));
        if apart {
            steps.push((wal.join("log"), wal.join("log.unfinished/log")));
        }
        for undone in 0..=steps.len() {
            std::fs::create_dir_all(&parts).expect("is made");
            std::fs::write(parts.join("lock"), "").expect("is written");
            for (from, to) in &steps[..undone] {
                std::fs::create_dir_all(to.parent().expect("has one")).expect("is made");
                std::fs::rename(from, to).expect("is moved back");
            }
            if undone > 0 {
                // Before these steps are finished, the directory is not accepted as that of a member.
                let disk: Arc<dyn Disk> = Arc::new(RealDisk);
                assert!(Stopped::open(&disk, &data).is_err(), "{undone}");
            }
            // A takeover that was decided is finished, even by a start whose options would not begin one.
            let said = start(&data, &[flags, &["--import-etcd-data=false"]].concat());
            assert!(said.contains("finished taking this member over"), "{undone}: {said}");
            assert_eq!(everything(&data), whole, "{undone}");
            assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED), "{undone}");
        }
    }
}

/// Returns the names of all that keeps etcd from starting, sorted.
fn keeps_etcd_out() -> [&'static str; 3] {
    [GUARD_NAMES[0], GUARD_MESSAGE_NAME, GUARD_NAMES[1]]
}

/// Removes all that keeps etcd from starting.
fn unguard(wal: &Path) {
    for name in GUARD_NAMES {
        std::fs::remove_file(wal.join(name)).expect("is removed");
    }
    std::fs::remove_dir(wal.join(GUARD_MESSAGE_NAME)).expect("is removed");
}

/// Returns a log with which etcd has continued: it has promised to follow a later term.
fn gone_on(log: &[u8]) -> Vec<u8> {
    with_state(log, |last| raftpb::HardState { term: Some(last.term() + 1), ..last })
}

/// Returns the log with another hard state appended, which is derived from the last one.
fn with_state(log: &[u8], next: impl FnOnce(raftpb::HardState) -> raftpb::HardState) -> Vec<u8> {
    let (mut at, mut crc, mut promised) = (0, 0, raftpb::HardState::default());
    while let Some(head) = log.get(at..at + 8) {
        let length = u64::from_le_bytes(head.try_into().expect("eight bytes"));
        if length == 0 {
            break;
        }
        let (bytes, padding) = ((length & !(0xff << 56)) as usize, (length >> 56 & 7) as usize);
        let record = Record::decode(&log[at + 8..at + 8 + bytes]).expect("is sound");
        if record.r#type == Some(STATE) {
            promised = raftpb::HardState::decode(record.data.unwrap_or_default()).expect("is sound");
        }
        crc = record.crc.unwrap_or_default();
        at += 8 + bytes + padding;
    }
    let data = next(promised).encode_to_vec();
    let crc = crc32c::crc32c_append(crc, &data);
    let record = Record { r#type: Some(STATE), crc: Some(crc), data: Some(data.into()) }.encode_to_vec();
    let padding = (8 - record.len() % 8) % 8;
    let flag = if padding > 0 { 0x80 | padding as u64 } else { 0 };
    let mut gone_on = log[..at].to_vec();
    gone_on.extend((record.len() as u64 | flag << 56).to_le_bytes());
    gone_on.extend(record);
    gone_on.resize(gone_on.len() + padding, 0);
    gone_on
}

#[test]
fn etcd_may_go_on_until_the_last_step() {
    for apart in [false, true] {
        let dir = TempDir::in_memory("takeover-etcd-went-on");
        let data = etcd_dir(&dir, "3.7");
        let member = data.join("member");
        let (wal, flag) = log_of(&dir, &member, apart);
        let flags: &[&str] = &flag.iter().map(String::as_str).collect::<Vec<_>>();
        let log = wal.join("0000000000000000-0000000000000000.wal");
        let earlier = std::fs::read(&log).expect("is there");
        let later = gone_on(&earlier);
        let own = if apart { ["checkpoint", "wal-dir", "witness"] } else { ["checkpoint", "log", "witness"] };
        let mut parts = vec![(member.join(MARK_NAME), member.join("import").join(MARK_NAME))];
        parts.extend(own.map(|part| (member.join(part), member.join("import/member").join(part))));
        if apart {
            parts.push((wal.join("log"), wal.join("log.unfinished/log")));
        }
        for undone in 1..=parts.len() {
            for killed in 0..3 {
                std::fs::write(&log, &earlier).expect("is written");
                start(&data, flags);
                assert!(GUARD_NAMES.iter().all(|name| wal.join(name).exists()), "etcd cannot start any more");
                std::fs::create_dir_all(member.join("import/member")).expect("is made");
                for (from, to) in &parts[..undone] {
                    std::fs::create_dir_all(to.parent().expect("has one")).expect("is made");
                    std::fs::rename(from, to).expect("is moved back");
                }
                // The operator goes back to etcd, which continues with its old files.
                unguard(&wal);
                std::fs::write(&log, &later).expect("is written");
                // The process is also killed while it removes the outdated result.
                if killed > 0 {
                    let import = member.join("import");
                    std::fs::rename(import.join(MARK_NAME), import.join("outdated")).expect("is renamed");
                }
                if killed > 1 {
                    let gone = ["log", "checkpoint", "import/member"].map(|gone| member.join(gone));
                    for gone in gone.into_iter().chain([wal.join("log"), wal.join("log.unfinished")]) {
                        let _ = std::fs::remove_dir_all(gone);
                    }
                }
                let served = RealDisk.lock(&member.join("snap/db")).expect("is free");
                let (_, outcome) = start_with(&data, flags, false);
                assert!(outcome.is_err_and(|why| why.contains("stop etcd first")), "{undone}");
                drop(served);
                let said = start(&data, flags);
                assert!(
                    said.contains("etcd has run since") && said.contains("took this member over"),
                    "{said}"
                );
                let mut made = open(&data);
                assert_eq!(
                    made.hard_state.term,
                    Term(3),
                    "{undone}, {killed}: it is what etcd promised last"
                );
                assert_eq!(made.hash_kv(Revision(0)), Ok(HASHED), "{undone}, {killed}");
                drop(made);
                assert!(!member.join("import").exists() && !wal.join("log.unfinished").exists());
                for gone in ["log", "checkpoint", "witness", "wal-dir", MARK_NAME] {
                    let path = if apart && gone == "log" { wal.join(gone) } else { member.join(gone) };
                    let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
                }
                unguard(&wal);
            }
        }
    }
}

#[test]
fn etcd_and_mainstay_are_never_at_work_on_one_directory() {
    let dir = TempDir::new("takeover-both");
    let data = etcd_dir(&dir, "3.6");
    start(&data, &[]);
    // etcd runs, but no client writes to it.
    unguard(&data.join("member/wal"));
    let db = data.join("member/snap/db");
    let served = RealDisk.lock_read(&db).expect("is free");
    let before = everything(&data);
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let why = Stopped::open(&disk, &data).err().expect("is refused").to_string();
    assert!(why.contains("snap/db is locked by another process: stop etcd first"), "{why}");
    assert!(refused(&["drop-etcd", "--data-dir", text(&data)], 1).contains("stop etcd first"));
    assert_eq!(everything(&data), before);
    drop(served);
    let member = open(&data);
    assert!(RealDisk.lock_read(&db).is_err(), "etcd opens nothing while Mainstay is there");
    // Files that the member has open take no disk space once they are dropped; a hard link keeps its
    // contents.
    let (copied, served) = (dir.join("copy.db"), std::fs::File::open(&db).expect("is there"));
    let wal = data.join("member/wal/0000000000000000-0000000000000000.wal");
    std::fs::hard_link(&wal, &copied).expect("is linked");
    done(&["drop-etcd", "--data-dir", text(&data)]);
    assert_eq!(served.metadata().expect("is open").len(), 0);
    assert!(std::fs::metadata(&copied).expect("is there").len() > 0);
    drop(member);
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
}

#[test]
fn a_start_that_is_stopped_or_not_wanted_leaves_etcds_files_only() {
    let dir = TempDir::new("takeover-stopped");
    let data = etcd_dir(&dir, "3.6");
    let before = etcds(&everything(&data));
    let (_, outcome) = start_with(&data, &[], true);
    assert!(outcome.is_err_and(|why| why.contains("told to stop")));
    let (said, outcome) = start_with(&data, &["--import-etcd-data=false"], false);
    assert_eq!((said.as_str(), outcome), ("", Ok(())));
    assert_eq!(etcds(&everything(&data)), before);
    let mut left: Vec<_> = std::fs::read_dir(data.join("member"))
        .expect("is there")
        .map(|entry| entry.expect("is one").file_name().into_string().expect("is text"))
        .collect();
    left.sort();
    assert_eq!(left, ["lock", "snap", "wal"]);
    start(&data, &[]);
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
}

#[test]
fn etcd_goes_on_where_mainstay_has_never_run() {
    for apart in [false, true] {
        let dir = TempDir::new("takeover-never-ran");
        let data = etcd_dir(&dir, "3.4");
        let (member, wal) = (data.join("member"), dir.join("wal"));
        if apart {
            std::fs::rename(member.join("wal"), &wal).expect("is moved");
        }
        let flag = format!("--wal-dir={}", text(&wal));
        let before = everything(dir.path());
        let flags: &[&str] = if apart { &[&flag] } else { &[] };
        start(&data, flags);
        let exported = dir.join("exported");
        done(&["export", "--data-dir", text(&data), "--to", text(&exported)]);
        std::fs::remove_dir_all(&exported).expect("is thrown away");
        // The files that docs/migration.md names.
        let named = "checkpoint witness nospace wal-dir log wal/log taken-over-from-etcd exported";
        let sign = data.join(SIGN_NAME);
        let guards = if apart { wal.clone() } else { member.join("wal") };
        for path in named.split(' ').map(|name| member.join(name)).chain([wal.join("log"), sign]) {
            let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
        }
        unguard(&guards);
        std::fs::remove_file(member.join("lock")).expect("is there");
        assert_eq!(everything(dir.path()), before, "{apart}");
    }
}

#[test]
fn members_that_raft_does_not_count_are_refused() {
    use prost::Message as _;
    for (release, words) in [
        ("3.4", "which is not one of the members at entry"),
        ("3.5", "it is not certain who the members are: at entry"),
        ("3.6", "it is not certain who the members are: at entry"),
        ("3.7", "it is not certain who the members are: at entry"),
    ] {
        let dir = TempDir::new("takeover-members");
        let data = etcd_dir(&dir, release);
        // The log adds another member than the database contains.
        edit(&data.join("member/wal/0000000000000000-0000000000000000.wal"), |wal| {
            *wal = crate::relog::relogged(wal, |entry| {
                if entry.r#type() == api::raftpb::EntryType::EntryConfChange {
                    let data = entry.data.take().unwrap_or_default();
                    let mut change = api::raftpb::ConfChange::decode(data).expect("is one");
                    change.node_id = Some(0xabc);
                    entry.data = Some(change.encode_to_vec().into());
                }
                true
            });
        });
        let before = etcds(&everything(&data));
        let (said, outcome) = start_with(&data, &[], false);
        let why = outcome.expect_err(&said);
        assert!(why.contains(words) && why.contains("whose files are unchanged"), "{release}: {why}");
        let to = dir.join("to");
        let why = refused(&["import", "--data-dir", text(&data), "--to", text(&to)], 1);
        assert!(why.contains(words), "{release}: {why}");
        assert!(!to.exists());
        assert_eq!(etcds(&everything(&data)), before, "{release}");
    }
}

#[test]
fn etcd_begins_no_empty_member_where_its_files_were_dropped() {
    let dir = TempDir::new("takeover-dropped");
    let data = etcd_dir(&dir, "3.6");
    let member = data.join("member");
    // Both directories are on other disks.
    for name in ["wal", "snap"] {
        std::fs::rename(member.join(name), dir.join(name)).expect("is moved");
        std::os::unix::fs::symlink(dir.join(name), member.join(name)).expect("is linked");
    }
    start(&data, &[]);
    let refused_drop = || refused(&["drop-etcd", "--data-dir", text(&data)], 1);
    // Killed in the middle: only the log's files are left, and the guard files exist.
    let mark = TakenOver::read(&RealDisk, &member).expect("is read").expect("is there");
    let dropping = TakenOver { files: Files::BeingDropped, ..mark.clone() };
    dropping.write(&RealDisk, &member).expect("is written");
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    // The operator removes the guard files, and etcd starts with an empty directory.
    for name in GUARD_NAMES {
        std::fs::remove_file(dir.join("wal").join(name)).expect("is removed");
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let why = Stopped::open(&disk, &data).err().expect("is refused").to_string();
    assert!(why.contains("etcd has run on"), "{why}");
    assert!(refused_drop().contains("etcd has run on"));
    mark.write(&RealDisk, &member).expect("is written");
    done(&["drop-etcd", "--data-dir", text(&data)]);
    assert_eq!(RealDisk.list(&dir.join("snap")).expect("is there"), Vec::<String>::new());
    assert_eq!(RealDisk.list(&dir.join("wal")).expect("is there"), GUARD_NAMES);
    assert!(dir.join("wal").join(GUARD_MESSAGE_NAME).is_dir(), "etcd would not say what to do");
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    assert!(refused_drop().contains("were already deleted"));
    // The writes of an empty etcd member are neither deleted nor ignored.
    let begun = dir.join("wal/0000000000000000-0000000000000000.wal");
    std::fs::write(&begun, "").expect("is written");
    let why = Stopped::open(&disk, &data).err().expect("is refused").to_string();
    assert!(why.contains("etcd has run on"), "{why}");
    let _ = refused_drop();
    assert!(begun.exists());
}

/// Changes the contents of a file.
fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("is read");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("is written");
}

#[test]
fn what_cannot_be_taken_over_is_refused_and_unharmed() {
    type Harm = fn(&Path);
    const WAL: &str = "wal/0000000000000000-0000000000000000.wal";
    let harms: [(&str, Harm); 6] = [
        ("it lacks", |member| std::fs::remove_file(member.join("snap/db")).expect("is removed")),
        ("db", |member| edit(&member.join("snap/db"), |db| db.truncate(db.len() / 2))),
        ("db", |member| edit(&member.join("snap/db"), |db| db.fill(0x5a))),
        ("the log does not identify", |member| std::fs::remove_file(member.join(WAL)).expect("is removed")),
        ("does not match its checksum", |member| edit(&member.join(WAL), |wal| wal[600] ^= 1)),
        ("the log ends with entry", |member| edit(&member.join(WAL), |wal| wal.truncate(400))),
    ];
    for (number, (words, harm)) in harms.into_iter().enumerate() {
        let dir = TempDir::new("takeover-harmed");
        let data = etcd_dir(&dir, "3.6");
        harm(&data.join("member"));
        let before = etcds(&everything(&data));
        let (said, outcome) = start_with(&data, &[], false);
        let why = outcome.expect_err(&said);
        assert!(why.contains(words) && why.contains("whose files are unchanged"), "{number}: {why}");
        assert_eq!(etcds(&everything(&data)), before, "{number}");
        assert!(!data.join("member/import.unfinished").exists(), "{number}");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        assert!(Stopped::open(&disk, &data).is_err(), "{number}");
    }
    // A directory that a running etcd serves is left alone.
    let dir = TempDir::new("takeover-served");
    let data = etcd_dir(&dir, "3.6");
    let lock = RealDisk.lock(&data.join("member/snap/db")).expect("is free");
    let (_, outcome) = start_with(&data, &[], false);
    assert!(outcome.is_err_and(|why| why.contains("stop etcd first")));
    drop(lock);
}

#[test]
fn files_that_etcd_went_on_with_are_not_chosen_from() {
    let dir = TempDir::new("takeover-twice");
    let data = etcd_dir(&dir, "3.7");
    start(&data, &[]);
    let mark = TakenOver::read(&RealDisk, &data.join("member")).expect("is read").expect("is there");
    for name in GUARD_NAMES {
        assert!(data.join("member/wal").join(name).exists(), "{name}");
    }
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    // The guard files also prevent `import` from reading outdated files as the member's.
    let again = dir.join("again");
    let why = refused(&["import", "--data-dir", text(&data), "--to", text(&again)], 1);
    assert!(why.contains("Mainstay has taken this member over"), "{why}");
    let wal = data.join("member/wal/0000000000000000-0000000000000000.wal");
    let sound = std::fs::read(&wal).expect("is read");
    let offset = usize::try_from(mark.left.end.offset).expect("is small");
    edit(&wal, |bytes| {
        bytes.truncate(offset);
        bytes.extend_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    });
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let why = Stopped::open(&disk, &data).err().expect("is refused").to_string();
    assert!(why.contains("etcd has run on") && why.contains("mainstay rebuild"), "{why}");
    assert!(refused(&["drop-etcd", "--data-dir", text(&data)], 1).contains("etcd has run on"));
    // etcd extends its log file with zeros behind the end.
    std::fs::write(&wal, &sound).expect("is written");
    edit(&wal, |bytes| bytes.resize(bytes.len() + 100_000, 0));
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    std::fs::write(data.join("member/wal/0000000000000001-00000000000000ff.wal"), "").expect("is written");
    assert!(Stopped::open(&disk, &data).is_err());
    std::fs::remove_file(data.join("member/wal/0000000000000001-00000000000000ff.wal")).expect("is removed");

    done(&["drop-etcd", "--data-dir", text(&data)]);
    assert!(data.join("member/snap").is_file(), "etcd would begin an empty member");
    assert_eq!(RealDisk.list(&data.join("member/wal")).expect("is there"), GUARD_NAMES);
    assert!(data.join("member/wal").join(GUARD_MESSAGE_NAME).is_dir(), "etcd would not say what to do");
    assert_eq!(open(&data).hash_kv(Revision(0)), Ok(HASHED));
    assert!(refused(&["drop-etcd", "--data-dir", text(&data)], 1).contains("were already deleted"));
    assert!(start(&data, &[]).is_empty());
}

/// Does what a shell does for `rm -rf PATH…`. No shell is started, because a child process of this one has
/// the locks of all tests until it executes its program.
fn remove_as_a_shell(command: &str) {
    let mut words = vec![String::new()];
    let (mut is_quoted, mut chars) = (false, command.chars());
    while let Some(c) = chars.next() {
        let word = words.last_mut().expect("has one");
        match c {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            '\\' if !is_quoted => word.extend(chars.next()),
            c => word.push(c),
        }
    }
    assert!(!is_quoted && words[..2] == ["rm", "-rf"], "{command}");
    for word in &words[2..] {
        let paths = match word.strip_suffix("/*.wal") {
            None => vec![PathBuf::from(word)],
            Some(dir) => {
                let names = RealDisk.list(Path::new(dir)).expect("is there");
                names
                    .iter()
                    .filter(|name| name.ends_with(".wal"))
                    .map(|name| Path::new(dir).join(name))
                    .collect()
            }
        };
        for path in paths {
            let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
        }
    }
}

#[test]
fn what_is_advised_where_etcd_ran_again_can_be_done_as_it_stands() {
    for (apart, keeps_etcds) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = TempDir::new("takeover it's twice");
        let data = etcd_dir(&dir, "3.6");
        let member = data.join("member");
        let (wal, flag) = log_of(&dir, &member, apart);
        let flags: &[&str] = &flag.iter().map(String::as_str).collect::<Vec<_>>();
        start(&data, flags);
        std::fs::write(member.join("nospace"), "").expect("is written");
        edit(&wal.join("0000000000000000-0000000000000000.wal"), |log| *log = gone_on(log));
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let why = Stopped::open(&disk, &data).err().expect("is refused").to_string();
        assert_eq!(why.contains(&format!(" and {}", wal.display())), apart, "{why}");
        let commands: Vec<&str> = why.split('`').filter(|part| part.starts_with("rm ")).collect();
        let [ours, etcds] = commands[..] else { panic!("{why}") };
        let command = if keeps_etcds { etcds } else { ours };
        remove_as_a_shell(command);
        let said = start(&data, flags);
        assert_eq!(said.contains("took this member over"), keeps_etcds, "{said}");
        let mut kept = open(&data);
        assert_eq!(kept.hard_state.term, Term(if keeps_etcds { 3 } else { 2 }), "{command}");
        assert_eq!(kept.hash_kv(Revision(0)), Ok(HASHED));
    }
}

/// A member of a cluster of three that has voted for another member, and has acknowledged two entries that
/// may not be committed.
fn one_of_three(data: &Path) {
    let members = [7, 8, 9].map(|id| Member { id, ..Member::default() }).to_vec();
    member_of(data, Membership { members, ..Membership::default() });
}

/// The same kind of member with another membership.
fn member_of(data: &Path, membership: Membership) {
    member_with(data, membership, &[(12, 0, Vec::new()), (13, 0, Vec::new())], Index(11));
}

/// The same kind of member with other entries after entry 11, given by index, raft type and data; it knows
/// that the entries up to `commit` are committed.
fn member_with(data: &Path, membership: Membership, behind: &[(u64, u8, Vec<u8>)], commit: Index) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let identity = Identity { member_id: 7, cluster_id: 9 };
    let mut restoration = Restoration::begin(&disk, data, identity).expect("begins");
    let mut filling = restoration
        .fill(RestoredHead {
            compact_revision: Revision::NEVER_COMPACTED,
            index: Index(10),
            term: Term(3),
            leases: vec![GrantedLease { id: LeaseId(5), ttl: Seconds(60), remaining: Seconds(25) }],
            alarms: Vec::new(),
            members: storage::etcd_database::members(&membership),
            auth: Auth::default(),
            is_shared: false,
        })
        .expect("is a head");
    let version = SnapshotVersion {
        key: b"k",
        main: Revision(2),
        sub: 0,
        create_revision: Revision(2),
        version: 1,
        lease: LeaseId::NONE,
        value: b"v",
    };
    filling.push(&version).expect("is a version");
    let mut machine = filling.finish(None).expect("is a state");
    let mut entries = vec![Ok(RestoredEntry {
        applies: true,
        entry: log::Entry { term: Term(3), index: Index(11), entry_type: 0, data: bytes::Bytes::new() },
    })];
    entries.extend(behind.iter().map(|(index, entry_type, data)| {
        let (term, index) = (Term(if *index > 12 { 4 } else { 3 }), Index(*index));
        let entry = log::Entry { term, index, entry_type: *entry_type, data: data.clone().into() };
        Ok(RestoredEntry { applies: false, entry })
    }));
    let promised = HardState { term: Term(6), vote: MemberId(8), commit };
    let terms = restoration.follow(&mut machine, promised, None, &mut entries.into_iter()).expect("follow");
    restoration.finish(machine, &terms).expect("is durable");
}

#[test]
fn votes_and_acknowledged_entries_come_over_in_both_directions() {
    let dir = TempDir::new("promises");
    let (ours, etcds) = (dir.join("m"), dir.join("etcd"));
    one_of_three(&ours);
    for _ in 0..2 {
        let member = open(&ours);
        assert_eq!(
            member.hard_state,
            HardState { term: Term(6), vote: MemberId(8), commit: Index(11) },
            "what was promised"
        );
        let found: Vec<_> = member.uncommitted.iter().map(|entry| (entry.index.0, entry.term.0)).collect();
        assert_eq!(found, [(12, 3), (13, 4)], "what was acknowledged");
        assert_eq!((member.machine.applied_index, member.machine.applied_term), (Index(11), Term(3)));
        assert_eq!(member.machine.members.voters(), [7, 8, 9]);
        drop(member);
        let _ = std::fs::remove_dir_all(&etcds);
        done(&["export", "--data-dir", text(&ours), "--to", text(&etcds), "--release", "3.6"]);
        let exported = DataDir::open(&RealDisk, &etcds).expect("is sound");
        let promised = exported.wal.hard_state;
        assert_eq!((promised.term, promised.vote, promised.commit), (6, 8, 11));
        assert_eq!((exported.base_index(), exported.end(), exported.wal.last()), (11, 11, 13));
        assert_eq!((exported.wal.term(12), exported.wal.term(13)), (Some(3), Some(4)));
        assert_eq!((exported.wal.identity.member_id, exported.wal.identity.cluster_id), (7, 9));
        assert_eq!(exported.membership.conf_state().voters, [7, 8, 9]);
        drop(exported);
        // Convert the directory back to one of etcd, in the same place.
        start(&etcds, &[]);
        std::fs::remove_dir_all(&ours).expect("is removed");
        std::fs::rename(&etcds, &ours).expect("is moved");
        done(&["drop-etcd", "--data-dir", text(&ours)]);
    }
}

#[test]
fn noted_times_of_leases_do_not_go_to_etcd() {
    let dir = TempDir::new("notes");
    let (ours, etcds) = (dir.join("m"), dir.join("etcd"));
    let note = |remaining_ttl| {
        let checkpoints = [5, 6].map(|id| LeaseCheckpoint { id, remaining_ttl }).to_vec();
        let lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints });
        InternalRaftRequest { lease_checkpoint, ..InternalRaftRequest::default() }
    };
    let members = [7, 8, 9].map(|id| Member { id, ..Member::default() }).to_vec();
    let membership = Membership { members, ..Membership::default() };
    // One of these records is part of the state, another one comes after the last entry that is known to be
    // committed.
    member_with(&ours, membership, &[(12, 0, note(17).encode_to_vec()), (13, 0, Vec::new())], Index(11));
    assert_eq!(open(&ours).machine.leases.get(LeaseId(5)).expect("is there").remaining, Seconds(25));
    done(&["export", "--data-dir", text(&ours), "--to", text(&etcds), "--release", "3.6"]);
    let exported = DataDir::open(&RealDisk, &etcds).expect("is sound");
    let mut leases = exported.base.leases().expect("are there");
    let lease = leases.step().expect("is sound").expect("is there");
    assert_eq!((lease.id, lease.ttl, lease.remaining_ttl), (5, 60, 0));
    let entry = exported.wal.entry(12).expect("can be read").expect("is there");
    let request = InternalRaftRequest::decode(entry.data.expect("is a request")).expect("is one");
    assert_eq!(request, note(0));
    let entry = exported.wal.entry(13).expect("can be read").expect("is there");
    assert!(entry.data.unwrap_or_default().is_empty());
}

#[test]
fn a_member_is_exported_once() {
    let dir = TempDir::new("exported-twice");
    let (ours, first, second) = (dir.join("m"), dir.join("one"), dir.join("two"));
    one_of_three(&ours);
    done(&["export", "--data-dir", text(&ours), "--to", text(&first)]);
    // The exported directory was moved, as if etcd continued with it elsewhere.
    std::fs::rename(&first, dir.join("moved")).expect("is moved");
    let mark = ours.join("member/exported");
    let says = format!("this member was exported before, to {}", first.display());
    for to in [&first, &second] {
        let refused = refused(&["export", "--data-dir", text(&ours), "--to", text(to)], 1);
        assert!(
            refused.contains(&says) && refused.contains(&format!("`rm {}`", mark.display())),
            "{refused}"
        );
        assert!(!to.exists());
        assert_eq!(std::fs::read(&mark).expect("is there"), text(&first).as_bytes());
    }
    std::fs::remove_file(&mark).expect("is there");
    done(&["export", "--data-dir", text(&ours), "--to", text(&second)]);
}

#[test]
fn an_export_that_cannot_be_put_in_its_place_leaves_no_mark() {
    let dir = TempDir::new("export-not-placed");
    let ours = dir.join("m");
    one_of_three(&ours);
    // A dangling symbolic link is detected only when the new directory is renamed to its name.
    let link = dir.join("link");
    std::os::unix::fs::symlink(dir.join("nowhere"), &link).expect("is made");
    let refused = refused(&["export", "--data-dir", text(&ours), "--to", text(&link)], 1);
    assert!(refused.contains("cannot rename"), "{refused}");
    assert!(!ours.join("member/exported").exists() && !dir.join("link.unfinished").exists());
    let etcds = dir.join("etcd");
    done(&["export", "--data-dir", text(&ours), "--to", text(&etcds)]);
    assert_eq!(std::fs::read(ours.join("member/exported")).expect("is there"), text(&etcds).as_bytes());
}

/// A member of three with two learners added after its state, as etcd's members do; it knows that the entries
/// up to `commit` are committed.
fn with_learners(data: &Path, commit: Index) {
    let change = |id: u64| {
        let member = machine::Member { id, peer_urls: vec![format!("http://h{id}:1")], ..Default::default() };
        let context = Some(member.to_json().into_bytes().into());
        let kind = raftpb::ConfChangeType::ConfChangeAddLearnerNode;
        raftpb::ConfChange { id: None, r#type: Some(kind.into()), node_id: Some(id), context }.encode_to_vec()
    };
    let members = [7, 8, 9].map(|id| Member { id, ..Member::default() }).to_vec();
    let entries = [(12, 1, change(21)), (13, 1, change(22))];
    member_with(data, Membership { members, ..Membership::default() }, &entries, commit);
}

#[test]
fn learners_that_the_cluster_has_are_exported() {
    for limit in ["", "1", "2"] {
        let dir = TempDir::in_memory("learners-exported");
        let (ours, etcds) = (dir.join("m"), dir.join("etcd"));
        with_learners(&ours, Index(13));
        let args = ["export", "--data-dir", text(&ours), "--to", text(&etcds)];
        if limit.is_empty() {
            let why = refused(&args, 1);
            assert!(
                why.contains("entry 13 adds a learner") && why.contains("give the member's --max-learners"),
                "{why}"
            );
            assert!(!etcds.exists() && !ours.join("member/exported").exists());
            continue;
        }
        done(&[&args[..], &["--max-learners", limit]].concat());
        let exported = DataDir::open(&RealDisk, &etcds).expect("is sound");
        let learners: &[u64] = if limit == "1" { &[21] } else { &[21, 22] };
        assert_eq!(exported.membership.conf_state().learners, learners, "{limit}");
    }
}

#[test]
fn learners_that_the_cluster_has_are_imported() {
    let dir = TempDir::in_memory("learners-imported");
    let (ours, etcds, to) = (dir.join("m"), dir.join("etcd"), dir.join("to"));
    with_learners(&ours, Index(11));
    done(&["export", "--data-dir", text(&ours), "--to", text(&etcds)]);
    let logs: Vec<_> = std::fs::read_dir(etcds.join("member/wal")).expect("is there").flatten().collect();
    assert_eq!(logs.len(), 1);
    edit(&logs[0].path(), |log| {
        *log = with_state(log, |last| raftpb::HardState { commit: Some(13), ..last });
    });
    let args = ["import", "--data-dir", text(&etcds), "--to", text(&to)];
    let why = refused(&args, 1);
    assert!(
        why.contains("entry 13 adds a learner") && why.contains("give the member's --max-learners"),
        "{why}"
    );
    assert!(!to.exists());
    done(&[&args[..], &["--max-learners=2"]].concat());
    assert_eq!(open(&to).machine.members.learners(), [21, 22]);
}

#[test]
fn the_clusters_version_goes_with_a_member_and_never_above_its_release() {
    // Cluster version, downgrade target, number of members and release; and what etcd then finds.
    type Found = (&'static str, Option<&'static str>, Option<&'static str>);
    type Case = (&'static str, Option<&'static str>, u64, &'static str, Result<Found, &'static str>);
    let cases: [Case; 13] = [
        ("3.6.0", None, 3, "3.7", Ok(("3.6.0", None, Some("3.6.0")))),
        ("3.6.0", None, 3, "3.6", Ok(("3.6.0", None, Some("3.6.0")))),
        ("3.7.0", None, 3, "3.7", Ok(("3.7.0", None, Some("3.7.0")))),
        ("3.5.0", None, 3, "3.6", Ok(("3.5.0", None, None))),
        ("", None, 3, "3.6", Ok(("", None, Some("3.6.0")))),
        ("3.0.0", None, 3, "3.7", Ok(("3.0.0", None, Some("3.7.0")))),
        ("3.6.0", None, 3, "3.5", Err("the cluster is of version 3.6.0, as far as")),
        ("3.7.0", Some("3.6.0"), 3, "3.5", Err("of version 3.7.0, and goes down to 3.6.0, as far")),
        // A downgrade to the release, before and after the cluster version has followed.
        ("3.7.0", Some("3.6.0"), 3, "3.6", Ok(("3.6.0", Some("3.6.0"), Some("3.6.0")))),
        ("3.5.0", Some("3.5.0"), 3, "3.5", Ok(("3.5.0", Some("3.5.0"), None))),
        // etcd 3.5 exits during a downgrade to any other version.
        ("3.5.0", Some("3.4.0"), 3, "3.5", Err("goes down to 3.4.0")),
        // No other member depends on the cluster version.
        ("3.7.0", None, 1, "3.5", Ok(("3.5.0", None, None))),
        ("3.6.0", Some("3.5.0"), 1, "3.7", Ok(("3.7.0", None, Some("3.7.0")))),
    ];
    for (version, target, count, release, expected) in cases {
        let dir = TempDir::in_memory("cluster-version");
        let (ours, etcds) = (dir.join("m"), dir.join("etcd"));
        let members = (7..7 + count).map(|id| Member { id, ..Member::default() }).collect();
        member_of(
            &ours,
            Membership {
                members,
                cluster_version: version.to_owned(),
                downgrade_target: target.map(str::to_owned),
                ..Membership::default()
            },
        );
        let args = ["export", "--data-dir", text(&ours), "--to", text(&etcds), "--release", release];
        let what = format!("{version} {target:?} {count} {release}");
        let (version, target, storage) = match expected {
            Ok(found) => found,
            Err(words) => {
                let why = refused(&args, 1);
                assert!(why.contains(words) && why.contains("etcdctl downgrade enable"), "{what}: {why}");
                assert!(!etcds.exists(), "{what}");
                continue;
            }
        };
        done(&args);
        let exported = DataDir::open(&RealDisk, &etcds).expect("is sound");
        assert_eq!(exported.membership.cluster_version, version, "{what}");
        assert_eq!(exported.membership.downgrade_target.as_deref(), target, "{what}");
        assert_eq!(exported.meta.storage_version.as_deref(), storage, "{what}");
    }
}

#[test]
fn what_may_yet_be_committed_keeps_an_older_etcd_out_too() {
    let to = |ver: &str| InternalRaftRequest {
        cluster_version_set: Some(membershippb::ClusterVersionSetRequest { ver: ver.to_owned() }),
        ..InternalRaftRequest::default()
    };
    let goes_down = |enabled, ver: &str| InternalRaftRequest {
        downgrade_info_set: Some(membershippb::DowngradeInfoSetRequest { enabled, ver: ver.to_owned() }),
        ..InternalRaftRequest::default()
    };
    // Cluster version, downgrade target, uncommitted entries and release; and the reason if the export is
    // refused.
    type Case<'a> = (&'a str, Option<&'a str>, Vec<InternalRaftRequest>, &'a str, Option<&'a str>);
    let cases: [Case<'_>; 7] = [
        ("3.6.0", None, vec![to("3.7.0")], "3.6", Some("may come to be of version 3.7.0, as far")),
        ("3.6.0", None, vec![to("3.7.0")], "3.7", None),
        // It is unknown which of these entries are committed.
        (
            "3.6.0",
            None,
            vec![to("3.7.0"), goes_down(true, "3.6.0")],
            "3.6",
            Some("may come to be of version 3.7.0, as far"),
        ),
        ("3.7.0", None, vec![goes_down(true, "3.6.0")], "3.6", Some("is of version 3.7.0, as far")),
        ("3.7.0", Some("3.6.0"), vec![to("3.6.0"), goes_down(false, "")], "3.6", None),
        (
            "3.7.0",
            Some("3.6.0"),
            vec![goes_down(false, "")],
            "3.6",
            Some("may come to be of version 3.7.0, as far"),
        ),
        (
            "3.5.0",
            None,
            vec![goes_down(true, "3.4.0")],
            "3.5",
            Some("of version 3.5.0, and goes down to 3.4.0, as far"),
        ),
    ];
    for (number, (version, target, behind, release, refusal)) in cases.into_iter().enumerate() {
        let dir = TempDir::in_memory("uncommitted-version");
        let (ours, etcds) = (dir.join("m"), dir.join("etcd"));
        let membership = Membership {
            members: [7, 8, 9].map(|id| Member { id, ..Member::default() }).to_vec(),
            cluster_version: version.to_owned(),
            downgrade_target: target.map(str::to_owned),
            ..Membership::default()
        };
        let behind: Vec<_> =
            (12..).zip(&behind).map(|(index, request)| (index, 0, request.encode_to_vec())).collect();
        member_with(&ours, membership, &behind, Index(11));
        let args = ["export", "--data-dir", text(&ours), "--to", text(&etcds), "--release", release];
        match refusal {
            None => drop(done(&args)),
            Some(words) => {
                let why = refused(&args, 1);
                assert!(why.contains(words), "case {number}: {why}");
                assert!(!etcds.exists(), "case {number}");
            }
        }
    }
}

#[test]
fn a_member_that_does_not_know_of_itself_yet_or_has_no_vote_is_not_alone() {
    let refused_for = Some("is of version 3.7.0, as far");
    for (id, is_learner, refusal) in [(7, false, None), (8, false, refused_for), (7, true, refused_for)] {
        let dir = TempDir::in_memory("alone");
        let (ours, etcds) = (dir.join("m"), dir.join("etcd"));
        let membership = Membership {
            members: vec![Member { id, is_learner, ..Member::default() }],
            cluster_version: "3.7.0".to_owned(),
            ..Membership::default()
        };
        member_of(&ours, membership);
        let args = ["export", "--data-dir", text(&ours), "--to", text(&etcds), "--release", "3.6"];
        match refusal {
            None => drop(done(&args)),
            Some(words) => {
                let why = refused(&args, 1);
                assert!(why.contains(words), "{why}");
                assert!(!etcds.exists());
            }
        }
    }
}
