//! `migrate`: changes the storage version of etcd's database, one release at a time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::etcdserverpb::InternalRaftRequest;
use api::raftpb::EntryType;
use cli::{Command, Failure, Flag};
use disk::{Disk as _, Lock, RealDisk};
use interchange::FileSink;
use interchange::backend::{Backend, Meta};
use interchange::bolt::{Bolt, Edit};
use interchange::wal::Wal;
use prost::Message as _;

use crate::Session;
use crate::places;
use crate::session::{Run, required};
use crate::snapshot_file::{open_file, stat};
use crate::target::Replacement;

const DATA_DIR: Flag<String> = Flag::text("data-dir", "", "Path to the etcd data dir");
const FORCE: Flag<bool> =
    Flag::bool("force", "Ignore migration failure and forcefully override storage version. Not recommended.");
const TARGET_VERSION: Flag<String> = Flag::text(
    "target-version",
    "",
    "Target etcd version to migrate contents of data dir. Minimal value 3.5. Format \"X.Y\" for example 3.6.",
);

pub(crate) const MIGRATE: Command<Run> = Command {
    name: "migrate",
    usage: "migrate",
    about: "Migrates schema of etcd data dir files to make them compatible with different etcd version",
    example: "  etcdutl migrate --data-dir default.etcd --target-version 3.6",
    flags: &[DATA_DIR.row(), FORCE.row(), TARGET_VERSION.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

/// A release as its major and minor number.
type Minor = (u64, u64);

/// Pause between two attempts to take a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Newest release that can be migrated to.
const NEWEST: Minor = (3, 7);

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    required(session, &[DATA_DIR.row(), TARGET_VERSION.row()])?;
    let given = session.matches;
    let (target, force) = (target(given.get(TARGET_VERSION))?, given.get(FORCE));
    let dir = PathBuf::from(given.get(DATA_DIR));
    let path = dir.join("member").join("snap").join("db");
    if let Some(what) = places::holds_mainstays(&dir) {
        let to_go = "it has no storage version; for another release of etcd, create a directory with `mainstay utl export --release`";
        return Err(Failure::error(format!("{what}: {to_go}")));
    }
    stat(&path)?;
    let _lock = lock(&path, given.get(crate::session::TIMEOUT))?;
    let failed = |e: interchange::Error| Failure::error(format!("{}: {e}", path.display()));
    let bolt = Bolt::whole(open_file(&path)?).map_err(failed)?;
    let backend = Backend::new(bolt).map_err(failed)?;
    let meta = backend.meta().map_err(failed)?;
    let Some(current) = storage_version(&meta)? else {
        session.notices.warn(
            "the data directory is from etcd 3.4 or before, or was never served by 3.5: start etcd 3.5 on it first",
            &[],
        );
        return Err(Failure::error("missing term information"));
    };
    if current == target {
        session.notices.info("storage version up-to-date", &[("storage-version", spelled(current).into())]);
        return Ok(());
    }
    let steps = plan(current, target).and_then(|steps| {
        if target < current {
            check_log(&dir, target)?;
        }
        Ok(steps)
    });
    let steps = match steps {
        Ok(steps) => steps,
        Err(error) if force => {
            let fields = [("error", error.to_string().into())];
            session.notices.info("normal migrate failed, trying with force", &fields);
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let value = (target >= (3, 6)).then(|| format!("{}.{}.0", target.0, target.1).into_bytes());
    let edit = Edit { bucket: b"meta", key: b"storageVersion", value };
    rewrite(&path, backend.bolt(), Some(&edit))?;
    for (major, minor) in &steps {
        let version = format!("{major}.{minor}.0");
        session.notices.info("updated storage version", &[("new-storage-version", version.into())]);
    }
    if steps.is_empty() && target >= (3, 6) {
        let fields = [("storage-version", spelled(target).into())];
        session.notices.warn("forcefully set storage version", &fields);
    } else if steps.is_empty() {
        session.notices.warn("forcefully cleared storage version", &[]);
    }
    Ok(())
}

/// Parses `X.Y`.
fn target(text: &str) -> Result<Minor, Failure> {
    let quoted = cli::go::quote(text);
    let (major, minor) = match text.split('.').collect::<Vec<_>>().as_slice() {
        [major, minor] => (*major, *minor),
        _ => {
            let what = format!("wrong target version format, expected \"X.Y\", got {quoted}");
            return Err(Failure::bad_args(what));
        }
    };
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| {
            let text = cli::go::quote(text);
            Failure::bad_args(format!(
                "failed to parse target version: strconv.ParseInt: parsing {text}: invalid syntax"
            ))
        })
    };
    let target = (number(major)?, number(minor)?);
    if target < (3, 5) {
        let what =
            format!("target version {} not supported. Minimal \"3.5\"", cli::go::quote(spelled(target)));
        return Err(Failure::bad_args(what));
    }
    Ok(target)
}

fn spelled((major, minor): Minor) -> String {
    format!("{major}.{minor}")
}

/// Returns the release in whose format the database is. A database without a storage version is from 3.5 if
/// it contains a raft term; otherwise it is older, and the result is `None`.
fn storage_version(meta: &Meta) -> Result<Option<Minor>, Failure> {
    let Some(version) = &meta.storage_version else {
        return Ok(meta.term.filter(|term| *term > 0).map(|_| (3, 5)));
    };
    let mut parts = version.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok(Some((major, minor))),
        _ => Err(Failure::error(format!("the storage version {version:?} is invalid"))),
    }
}

/// Returns the releases from the one after `current` to `target`, in the order in which the database passes
/// through them.
fn plan(current: Minor, target: Minor) -> Result<Vec<Minor>, Failure> {
    let failed = |what: String| Err(Failure::error(format!("cannot create migration plan: {what}")));
    if current.0 != target.0 {
        return failed("changing major storage version is not supported".to_owned());
    }
    let (mut at, mut steps) = (current, Vec::new());
    while at != target {
        // A step is supported if Mainstay supports the higher one of its two releases: the next release in a
        // step up, and the current release in a step down.
        let (higher, next) = match at < target {
            true => ((at.0, at.1 + 1), (at.0, at.1 + 1)),
            false => (at, (at.0, at.1 - 1)),
        };
        if !((3, 6)..=NEWEST).contains(&higher) {
            let what = cli::go::quote(format!("{}.{}.0", higher.0, higher.1));
            return failed(format!("version {what} is not supported"));
        }
        steps.push(next);
        at = next;
    }
    Ok(steps)
}

/// Returns an error if the log, after its last snapshot, contains an entry that the target release does not
/// support. The only such entry is a request that tests a downgrade, which 3.5 does not know. Called before a
/// step down.
fn check_log(dir: &Path, target: Minor) -> Result<(), Failure> {
    let wal_dir = dir.join("member").join("wal");
    let log = Wal::open(&RealDisk, &wal_dir)
        .map_err(|e| Failure::error(format!("failed to open wal: {}: {e}", wal_dir.display())))?;
    let behind = log.snapshots.iter().map(|snapshot| snapshot.index).max().unwrap_or(0);
    let mut newest: Option<(u64, u64, u64)> = None;
    for index in log.first().max(behind + 1)..=log.last() {
        let entry = log.entry(index).map_err(|e| Failure::error(format!("failed to read wal: {e}")))?;
        let Some(entry) = entry.filter(|entry| entry.r#type() == EntryType::EntryNormal) else { continue };
        let request = InternalRaftRequest::decode(entry.data.unwrap_or_default());
        let Some(test) = request.ok().and_then(|request| request.downgrade_version_test) else { continue };
        let mut parts = test.ver.split('.').map(|part| part.parse().unwrap_or(0));
        let mut part = || parts.next().unwrap_or(0);
        newest = newest.max(Some((3, 6, 0))).max(Some((part(), part(), part())));
    }
    match newest {
        Some((major, minor, patch)) if (target.0, target.1, 0) < (major, minor, patch) => {
            Err(Failure::error(format!(
                "cannot downgrade storage, WAL contains newer entries, as the target version ({}.0) is lower than the \
                 version ({major}.{minor}.{patch}) detected from WAL logs",
                spelled(target)
            )))
        }
        _ => Ok(()),
    }
}

/// Locks a database, so that no member of etcd runs on it or starts. Waits for the lock for at most the time
/// `patience`, or without limit if `patience` is zero.
pub(crate) fn lock(path: &Path, patience: Duration) -> Result<Lock, Failure> {
    let deadline = (!patience.is_zero()).then(|| Instant::now() + patience);
    loop {
        match RealDisk.lock_read(path) {
            Ok(lock) => return Ok(lock),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(Failure::error(format!(
                        "timeout: {} is in use by another process; stop it first",
                        path.display()
                    )));
                }
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(error) => return Err(Failure::error(format!("cannot lock {}: {error}", path.display()))),
        }
    }
}

/// Rewrites a database, with the changes of `edit` if there are any, and replaces the old file. Returns the
/// new size in bytes.
pub(crate) fn rewrite(path: &Path, bolt: &Bolt<std::fs::File>, edit: Option<&Edit>) -> Result<u64, Failure> {
    let plan = bolt.plan_rewrite(edit).map_err(Failure::error)?;
    let replacement = Replacement::begin(path)?;
    let failed =
        |e: std::io::Error| Failure::error(format!("cannot write {}: {e}", replacement.making().display()));
    let file = RealDisk.create(replacement.making()).map_err(failed)?;
    let mut progress = cli::Progress::of_bytes("writing", Some(plan.content_bytes));
    let mut done = 0;
    let sink = bolt
        .rewrite(FileSink::new(file), plan, edit, &mut |bytes| {
            done += bytes;
            progress.at(done, "");
        })
        .map_err(|e| Failure::error(format!("{}: {e}", path.display())))?;
    sink.finish().map_err(failed)?;
    drop(progress);
    replacement.finish()?;
    Ok(plan.size_bytes())
}
