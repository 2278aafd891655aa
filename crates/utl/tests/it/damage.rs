//! Damaged files, full disks, killed processes.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Disk, Fault, MemDisk};
use interchange::snapshot;
use machine::auth::Auth;
use machine::snapshot::SnapshotVersion;
use machine::{GrantedLease, Members};
use numbers::{Index, LeaseId, MemberId, Revision, Seconds, Term};
use storage::Identity;
use storage::kv_hash::HashedKv;
use storage::restoration::{Restoration, RestorationError, RestoredHead};
use storage::stopped::Stopped;

use testkit::TempDir;

use crate::kit::{done, golden, names, open, text, utl};

#[test]
fn a_damaged_snapshot_is_refused_and_leaves_nothing() {
    let dir = TempDir::new("damage");
    let whole = golden("3.6-snapshot");
    let (file, to) = (dir.join("s.db"), dir.join("m"));
    let args = ["snapshot", "restore", text(&file), "--data-dir", text(&to), "--without-users"];
    // Truncated at various lengths.
    for len in (0..whole.len()).step_by(whole.len() / 60) {
        std::fs::write(&file, &whole[..len]).expect("is written");
        for more in [&[][..], &["--skip-hash-check"]] {
            let told = utl(&[&args[..], more].concat());
            assert_eq!(told.code, 1, "{len}: {}", told.err);
            assert_eq!(names(&dir), ["s.db"], "{len}");
        }
    }
    // A bit flipped at various positions: the digest detects it. Without the digest, detected damage is
    // refused, but a value may be wrong.
    for at in (0..whole.len()).step_by(509) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        std::fs::write(&file, &flipped).expect("is written");
        let told = utl(&args);
        assert_eq!(told.code, 1, "{at}");
        assert!(told.err.contains("Error: expected sha256 ["), "{at}: {}", told.err);
        for command in [&["hashkv", text(&file)][..], &["snapshot", "status", text(&file)]] {
            assert!(utl(command).code <= 1, "{at}");
        }
    }
    assert_eq!(names(&dir), ["s.db"]);
}

/// Restores a few versions on a disk that fails.
fn restore(disk: &Arc<dyn Disk>) -> Result<(), RestorationError> {
    let identity = Identity { member_id: 7, cluster_id: 9 };
    let mut restoration = Restoration::begin_sized(disk, Path::new("/d"), identity, 64 << 10)?;
    let mut filling = restoration.fill(RestoredHead {
        compact_revision: Revision(2),
        index: Index(1),
        term: Term(1),
        leases: vec![GrantedLease { id: LeaseId(5), ttl: Seconds(60), remaining: Seconds(0) }],
        alarms: Vec::new(),
        members: Members::default(),
        auth: Auth::default(),
        is_shared: true,
    })?;
    for main in 2..100i64 {
        let key = format!("k{main:03}");
        let version = SnapshotVersion {
            key: key.as_bytes(),
            main: Revision(main),
            sub: 0,
            create_revision: Revision(main),
            version: 1,
            lease: if main % 7 == 0 { LeaseId(5) } else { LeaseId::NONE },
            value: &[main as u8; 1000],
        };
        filling.push(&version)?;
    }
    let mut machine = filling.finish(None)?;
    let hard_state = log::HardState { term: Term(1), vote: MemberId(7), commit: Index(1) };
    let terms = restoration.follow(&mut machine, hard_state, None, &mut std::iter::empty())?;
    restoration.finish(machine, &terms)
}

#[test]
fn a_disk_that_fails_at_any_operation_is_an_error() {
    let whole = MemDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(whole.clone());
    restore(&disk).expect("is made");
    let expected = Stopped::open(&disk, Path::new("/d")).expect("is a member").hash_kv(Revision(0));
    assert!(expected.is_ok());
    let ops = whole.ops();
    assert!(ops > 10);
    let mut refused = 0;
    for op in 1..=ops {
        for errno in [28, 5] {
            let failing = MemDisk::new(op);
            failing.fail_at(op, Fault::Always(errno));
            let disk: Arc<dyn Disk> = Arc::new(failing);
            // A failed cleanup may go unnoticed, but success must not be reported if data is missing.
            refused += u32::from(restore(&disk).is_err());
        }
        // Data reported as written exists after a power cut.
        let cut = MemDisk::new(op);
        cut.fail_at(op, Fault::PowerCut);
        let disk: Arc<dyn Disk> = Arc::new(cut.clone());
        if restore(&disk).is_ok() {
            cut.crash();
            let mut found = Stopped::open(&disk, Path::new("/d"))
                .unwrap_or_else(|error| panic!("operation {op}: {error}"));
            assert_eq!(found.hash_kv(Revision(0)), expected, "operation {op}");
        }
    }
    assert!(refused as u64 > ops, "{refused} of {}", 2 * ops);
    // All data survives a power cut directly after the end.
    whole.crash();
    let disk: Arc<dyn Disk> = Arc::new(whole);
    assert_eq!(Stopped::open(&disk, Path::new("/d")).expect("is a member").hash_kv(Revision(0)), expected);
}

/// Writes a snapshot that takes a while to restore.
fn large_snapshot(path: &Path) {
    let (from, _) = snapshot::open(golden("3.6-snapshot")).expect("is sound");
    let release = interchange::backend::Release::V3_6;
    let mut sizes = interchange::backend::BackendLayout::new(release);
    let meta = from.meta().expect("is there");
    let value = vec![7; 4000];
    let change = |main: i64, key: &'static str| interchange::backend::ChangeHead {
        revision: interchange::backend::StoredChangeId { main: Revision(main), sub: 0 },
        is_tombstone: false,
        key: key.as_bytes(),
        create_revision: Revision(5),
        mod_revision: Revision(main),
        version: main - 4,
        lease: LeaseId::NONE,
    };
    let revisions = 5..5_000;
    sizes.meta(&meta).expect("fits");
    for main in revisions.clone() {
        sizes.change(&change(main, "k"), value.len()).expect("fits");
    }
    let file = std::fs::File::create(path).expect("is made");
    let out = snapshot::Digesting::new(std::io::BufWriter::new(file));
    let plan = sizes.finish().expect("fits");
    let mut writer = interchange::backend::BackendWriter::new(out, plan, release).expect("begins");
    writer.meta(&meta).expect("is written");
    for main in revisions {
        let change = interchange::backend::Change { head: change(main, "k"), value: &value };
        writer.change(&change).expect("is written");
    }
    let mut out = writer.finish().and_then(|out| Ok(out.finish()?)).expect("is written");
    std::io::Write::flush(&mut out).expect("is written");
}

#[test]
fn a_killed_restore_leaves_nothing_that_looks_whole() {
    let mut program = std::env::current_exe().expect("is known");
    program.pop();
    program.pop();
    let program = program.join("examples/etcdutl");
    assert!(program.exists(), "cargo builds {} with the tests", program.display());
    let dir = TempDir::new("kill");
    let file = dir.join("s.db");
    large_snapshot(&file);
    let expected = {
        let to = dir.join("whole");
        done(&["snapshot", "restore", text(&file), "--data-dir", text(&to)]);
        open(&to).hash_kv(Revision(0))
    };
    std::fs::remove_dir_all(dir.join("whole")).expect("is removed");
    for format in ["mainstay", "etcd"] {
        let to = dir.join(format);
        let args = ["snapshot", "restore", text(&file), "--data-dir", text(&to), "--format", format];
        // Each process is killed a little later than the one before, beginning when it has created its first
        // file, until one process finishes.
        let unfinished = || names(&dir).iter().any(|name| name.ends_with(".unfinished"));
        let (mut killed, mut after_ms) = (0, 0);
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let mut child =
                Command::new(&program).args(args).stderr(Stdio::null()).spawn().expect("can be started");
            while !unfinished() && child.try_wait().expect("can be asked").is_none() {
                std::thread::yield_now();
            }
            let until = Instant::now() + Duration::from_millis(after_ms);
            while Instant::now() < until && child.try_wait().expect("can be asked").is_none() {
                std::thread::yield_now();
            }
            let _ = child.kill();
            let ended = child.wait().expect("ends");
            if !to.exists() {
                killed += u32::from(ended.signal() == Some(9));
                after_ms = (after_ms + 5) * 3 / 2;
            } else if killed > 0 {
                break;
            } else {
                // The process finished before this one could kill it.
                std::fs::remove_dir_all(&to).expect("is removed");
                after_ms = 0;
            }
            assert!(Instant::now() < deadline, "{killed} were killed, and none came to its end");
        }
        if !to.exists() {
            done(&args);
        }
        // Nothing is left of the killed attempts.
        assert!(names(&dir).iter().all(|name| !name.ends_with(".unfinished")), "{:?}", names(&dir));
        match format {
            "etcd" => {
                let made = interchange::DataDir::open(&disk::RealDisk, &to).expect("is whole");
                let hash = interchange::hash_kv(&made.base, Revision(0)).expect("can be hashed");
                let hash = HashedKv {
                    hash: hash.hash,
                    compact_revision: hash.compact_revision,
                    revision: hash.hash_revision,
                };
                assert_eq!(Ok(hash), expected);
            }
            _ => assert_eq!(open(&to).hash_kv(Revision(0)), expected),
        }
    }
}
