//! Tests of first starts that fail, and of starts while an etcd is started on the same directory.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Mutex;

use bytes::Bytes;
use consensus::{Entry, EntryKind};
use disk::{Fault, MemDisk};
use machine::Rules;
use numbers::Term;
use telemetry::logging::{Format, Level};

use super::*;
use crate::etcd_beside::{SIGN_NAME, holds_member};
use crate::log_dir::{NOTE_NAME, write_note};

const DATA: &str = "/d";
const SNAP: &str = "/d/member/snap";

/// Events that the log has reported, for the caller that waits for them.
#[derive(Default)]
struct Events(Mutex<Vec<LogEvent>>);

impl LogEvents for Events {
    fn tell(&self, event: LogEvent) {
        self.0.lock().expect("no test panics in it").push(event);
    }

    fn receive_here(&self) {}

    fn receive(&self, into: &mut Vec<LogEvent>, _patience: Duration) {
        into.append(&mut self.0.lock().expect("no test panics in it"));
    }
}

/// Starts a member on `/d`, with its log in `wal_dir` if that is given. Calls `meanwhile` at the point where
/// a real start waits for its cluster.
fn start(
    disk: &MemDisk,
    wal_dir: Option<&str>,
    meanwhile: &dyn Fn() -> Result<(), Box<dyn Error + Send + Sync>>,
) -> Result<Opened, DataDirError> {
    let options = Options {
        data_dir: DATA.into(),
        wal_dir: wal_dir.map(PathBuf::from),
        unsafe_no_fsync: false,
        observes: false,
        is_witness: false,
        force_new_cluster: false,
        peer_urls: Vec::new(),
        rules: Rules { learners_max: 1 },
        memory_budget: None,
        heartbeat_interval: Duration::from_millis(100),
        election_timeout: Duration::from_secs(1),
        pre_vote: true,
    };
    let entry = Entry { term: Term(1), index: Index(1), kind: EntryKind::Normal, data: Bytes::new() };
    let beginning = Beginning {
        identity: Identity { member_id: 7, cluster_id: 9 },
        entries: vec![entry],
        remotes: Vec::new(),
    };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let events: Arc<dyn LogEvents> = Arc::new(Events::default());
    open(&Opening {
        options: &options,
        disk: &shared,
        events: &events,
        logger: &Logger::to(Level::Info, Format::Json, Vec::new()),
        threads: false,
        segment_bytes: Some(64 << 10),
        seed: Some(1),
        switches: Switches::default(),
        begin: &|| meanwhile().map(|()| beginning.clone()),
    })
}

fn names(disk: &MemDisk) -> Vec<PathBuf> {
    disk.files().into_iter().map(|(path, _)| path).collect()
}

#[test]
fn an_etcd_that_begins_while_a_member_waits_for_its_cluster_keeps_its_files() {
    let (disk, etcd) = (MemDisk::new(1), RefCell::new(None));
    let db = Path::new(SNAP).join("db");
    let started = start(&disk, None, &|| {
        disk.create_dir_all(Path::new(SNAP))?;
        disk.plant(&db, Vec::new());
        *etcd.borrow_mut() = Some(disk.lock_read(&db)?);
        Ok(())
    });
    assert!(matches!(started.err(), Some(DataDirError::EtcdRuns { path }) if path == db));
    assert_eq!(names(&disk), [db], "nothing is moved, and nothing written beside it");
}

#[test]
fn etcd_is_kept_out_before_the_log_is_read() {
    const EIO: i32 = 5;
    let disk = MemDisk::new(1);
    drop(start(&disk, None, &|| Ok(())).expect("begins"));
    let (mut refused, mut kept) = (0, 0);
    for nth in 1.. {
        disk.remove(Path::new(SNAP)).expect("was there");
        disk.fail_next(disk::Operation::Read, nth, Fault::Once(EIO));
        let started = start(&disk, None, &|| Ok(()));
        disk.heal();
        if started.is_ok() {
            break;
        }
        refused += 1;
        match disk.exists(Path::new(SNAP)).expect("is known") {
            true => kept += 1,
            false => disk.plant(Path::new(SNAP), Vec::new()),
        }
    }
    assert!(kept >= 2, "{kept} of {refused} starts that cannot read the log");
}

#[test]
fn a_first_start_that_fails_leaves_nothing_that_keeps_etcd_out() {
    const EIO: i32 = 5;
    let ours = [SNAP.into(), Path::new(DATA).join(SIGN_NAME), Path::new("/d/member").join(NOTE_NAME)];
    let noted = Path::new("/d/member/wal/log");
    for (wal_dir, is_noted) in [(None, false), (Some("/w"), false), (None, true)] {
        let mut without = 0;
        for nth in 1.. {
            let disk = MemDisk::new(nth);
            if is_noted {
                // This is the state in which a rebuild leaves the directory.
                disk.create_dir_all(Path::new("/d/member")).expect("is made");
                write_note(&disk, Path::new("/d/member"), noted).expect("is written");
            }
            let nth = disk.ops() + nth;
            disk.fail_at(nth, Fault::Once(EIO));
            let failed = start(&disk, wal_dir, &|| Ok(())).err();
            disk.heal();
            if disk.ops() < nth {
                break;
            }
            let has_log = names(&disk).iter().any(|path| path.extension().is_some_and(|end| end == "seg"));
            if let Some(error) = &failed
                && !has_log
            {
                without += 1;
                assert_eq!(holds_member(&disk, Path::new("/d/member")).expect("is known"), is_noted);
                let left: Vec<PathBuf> =
                    names(&disk).into_iter().filter(|path| ours.contains(path)).collect();
                let kept = &ours[if is_noted { 2 } else { 3 }..];
                assert_eq!(left, kept, "operation {nth} failed: {error}");
            }
            drop(start(&disk, wal_dir, &|| Ok(())).expect("the next start begins"));
            for path in &ours[..2] {
                assert!(disk.exists(path).expect("is known"), "operation {nth} failed");
            }
        }
        assert!(without >= 2, "{without}");
    }
    // The cluster is not found: nothing has been written.
    let disk = MemDisk::new(1);
    let failed = start(&disk, None, &|| Err("no cluster answers".into()));
    assert!(matches!(failed.err(), Some(DataDirError::Begin(_))));
    assert_eq!(names(&disk), Vec::<PathBuf>::new());
}
