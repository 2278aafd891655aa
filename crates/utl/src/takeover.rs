//! Takes a member over from etcd in place: [`take_over`], which runs before the member is started, converts
//! etcd's data in the member's directory.
//!
//! Mainstay's files are created beside etcd's files, which are not changed. Even if the process is killed,
//! the next start finds either only etcd's files, or everything that it needs to finish the takeover:
//!
//! ```text
//! <data-dir>/member/snap, wal              etcd's files, until `drop-etcd` deletes them
//! <data-dir>/member/import.unfinished      unfinished new files; after a crash the next start removes them
//! <wal-dir>/log.unfinished/log             unfinished new log that is outside of the data directory: with
//!                                          --wal-dir, or if member/wal is a link or a mount point
//! <data-dir>/member/import                 all new files; the rename to this name makes the takeover final
//!     member/log, checkpoint, witness, …   files that are then moved to <data-dir>/member
//!     taken-over-from-etcd                 mark; moved to <data-dir>/member last, when guard files already
//!                                          keep etcd from starting on its old files
//!     outdated                             other name of the mark while this directory is being removed
//! <data-dir>/member/taken-over-from-etcd   mark: the takeover is complete, etcd's files are out of date
//! ```
//!
//! If the process was killed before the mark was moved to its final place, etcd may have been started again
//! on its old files. In this case the new files are out of date. Mainstay has never served from them, so they
//! are removed and created again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cli::Failure;
use config::Config;
use disk::{Disk, RealDisk};
use storage::etcd_beside;
use storage::etcd_store::EtcdFiles;
use storage::log_dir::{self, leads_elsewhere};
use storage::opening::lock_member;
use storage::restoration::Restoration;
use storage::rules;
use storage::stopped::Stopped;
use storage::taken_over::{Files, MARK_NAME, TakenOver, lock_database};
use telemetry::logging::{Logger, Value};

use crate::import::{Import, LeaveOut, Passed};
use crate::notice::Notices;
use crate::target::Target;

/// Name of the directory that contains the complete result before it is moved to its final place.
const COMPLETE: &str = etcd_beside::TAKING_OVER;
/// Name to which the mark in [`COMPLETE`] is renamed before that whole directory is removed because etcd has
/// run again. After a crash, the name shows that the removal must be continued.
const OUTDATED: &str = "outdated";
/// Percentage points of progress between two log lines.
const PERCENT_A_LINE: u64 = 10;

/// Parameters of a takeover.
pub struct TakeOver<'t> {
    /// Options of the member: its directories, whether etcd's data may be imported, and how entries are
    /// applied.
    pub config: &'t Config,
    /// Log for messages to the operator.
    pub logger: &'t Arc<Logger>,
    /// Called repeatedly during the takeover; returns true if the takeover should be aborted.
    pub stop_wanted: &'t dyn Fn() -> bool,
}

/// Takes a member over if its data directory was written by etcd, so that Mainstay continues as the same
/// member. Does nothing if the directory contains no data of etcd, or if Mainstay has already taken the
/// member over.
///
/// # Errors
///
/// Returns an error that names the file of etcd and its problem, or says what failed, for example that the
/// disk is full. etcd's files are unchanged.
pub fn take_over(wanted: &TakeOver<'_>) -> Result<(), Failure> {
    let member_dir = &wanted.config.storage.data_dir.join("member");
    let is_begun = there(&member_dir.join(COMPLETE))?;
    let is_wanted =
        || Ok::<bool, Failure>(wanted.config.storage.import_etcd_data && is_etcds(wanted, member_dir)?);
    // Take the lock only if there is something to do, so that nothing, not even a lock file, is written to a
    // directory that needs no takeover.
    let _lock = if is_begun || is_wanted()? {
        Some(lock_member(&RealDisk, member_dir).map_err(Failure::error)?)
    } else {
        None
    };
    // Check again now that the directory is locked: another process may have finished the takeover since the
    // first check.
    if there(&member_dir.join(COMPLETE))? {
        let _etcd = lock_database(&RealDisk, member_dir).map_err(Failure::error)?;
        if is_current(member_dir)? {
            finish(wanted, member_dir)?;
            tell(wanted, "finished taking this member over from etcd");
            return Ok(());
        }
        wanted.logger.warn(
            "etcd has run since its data was imported, and Mainstay has not; removing the imported data",
            &[("data-dir", Value::Str(&wanted.config.storage.data_dir.display().to_string()))],
        );
        discard(member_dir)?;
    }
    if let Some(mark) = TakenOver::read(&RealDisk, member_dir).map_err(Failure::error)? {
        if mark.files != Files::Dropped {
            wanted.logger.info(
                "etcd's files are kept beside Mainstay's; `mainstay utl drop-etcd` deletes them",
                &[("data-dir", Value::Str(&wanted.config.storage.data_dir.display().to_string()))],
            );
        }
        return Ok(());
    }
    if !is_wanted()? {
        return Ok(());
    }
    wanted.logger.warn(
        "the data directory was written by etcd: taking this member over; etcd's files are not changed",
        &[("data-dir", Value::Str(&wanted.config.storage.data_dir.display().to_string()))],
    );
    // `_etcd` holds the lock on etcd's files until the end of this function, when the guard files keep etcd
    // from starting.
    let _etcd = make(wanted, member_dir)?;
    finish(wanted, member_dir)?;
    tell(wanted, "took this member over from etcd");
    Ok(())
}

/// Logs that the takeover is done, that etcd's files are now out of date, and how to go back to etcd.
fn tell(wanted: &TakeOver<'_>, what: &str) {
    let data_dir = wanted.config.storage.data_dir.display().to_string();
    wanted.logger.warn(
        what,
        &[
            ("data-dir", Value::Str(&data_dir)),
            (
                "etcd-files",
                Value::Str(
                    "kept, and out of date as soon as this member serves: never start etcd on them again, \
                     because the member would forget what it has promised and acknowledged",
                ),
            ),
            (
                "to-go-back",
                Value::Str(&format!(
                    "stop this member, `mainstay utl export --data-dir {data_dir} --to NEW_DIR`, and start etcd on NEW_DIR"
                )),
            ),
            (
                "to-drop-etcd-files",
                Value::Str(&format!("`mainstay utl drop-etcd --data-dir {data_dir}`")),
            ),
        ],
    );
}

/// Returns true if a member's directory contains data of etcd, and no data of Mainstay.
fn is_etcds(wanted: &TakeOver<'_>, member_dir: &Path) -> Result<bool, Failure> {
    // An empty log directory does not count as data of Mainstay: a failed first start of Mainstay leaves one,
    // and etcd may have been started in the directory after that.
    if !is_empty(&member_dir.join("log"))?
        || etcd_beside::holds_member(&RealDisk, member_dir).map_err(Failure::error)?
    {
        return Ok(false);
    }
    let found = EtcdFiles::find(&RealDisk, member_dir, wanted.config.storage.wal_dir.as_deref());
    Ok(found.map_err(Failure::error)?.is_some())
}

/// Returns the error for a member of etcd that Mainstay cannot take over, with advice about keys of API
/// version 2.
fn cannot(data_dir: &Path, wal_dir: Option<&Path>, why: &str) -> Failure {
    let import = || {
        let wal_dir = wal_dir.map_or(String::new(), |dir| format!(" --wal-dir {}", dir.display()));
        let data_dir = data_dir.display();
        format!("; both are options of `mainstay utl import --data-dir {data_dir}{wal_dir} --to NEW_DIR`")
    };
    let options = if why.contains("--migrate-v2") { import() } else { String::new() };
    Failure::error(format!(
        "cannot take this member over from etcd, whose files are unchanged: {why}{options}"
    ))
}

/// Creates all new files and then renames their directory, which makes the takeover final. Returns etcd's
/// data directory, which is still locked.
fn make(wanted: &TakeOver<'_>, member_dir: &Path) -> Result<Import, Failure> {
    let (data_dir, wal_dir) = (&wanted.config.storage.data_dir, wanted.config.storage.wal_dir.as_deref());
    let failed = |error: &dyn std::fmt::Display| cannot(data_dir, wal_dir, &error.to_string());
    let import = Import::open(data_dir, wal_dir, LeaveOut::default()).map_err(|failure| failed(&failure))?;
    let target = Target::begin(&member_dir.join(COMPLETE))?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let own = member_dir.join("wal");
    let etcd_log = std::path::absolute(wal_dir.unwrap_or(&own)).map_err(Failure::error)?;
    // If etcd's log is on a separate disk, by a flag, a link or a mount, the new log is put on that disk too.
    let on_own_disk = wal_dir.or_else(|| leads_elsewhere(&own).then_some(&*own));
    warn_of_snapshots_elsewhere(wanted, member_dir);
    let apart = match on_own_disk {
        None => None,
        Some(wal_dir) => {
            let log_dir = log_dir::beside_etcd(wal_dir).map_err(Failure::error)?;
            if there(&log_dir)? {
                return Err(Failure::error(format!(
                    "{} already exists, and belongs to no member: move it away",
                    log_dir.display()
                )));
            }
            Some(Target::begin(&log_dir)?)
        }
    };
    let mut restoration = match &apart {
        None => Restoration::begin(&disk, target.making(), import.identity()),
        Some(apart) => {
            let log = apart.making().join("log");
            Restoration::begin_apart(&disk, target.making(), &log, &log, import.identity())
        }
    }
    .map_err(|error| failed(&error))?;
    restoration.set_rules(rules(wanted.config.cluster.max_learners));
    let total = import.source.base.bolt().size_bytes().max(1);
    let mut told = 0;
    let mut notices = Notices::in_log(wanted.logger);
    import
        .fill(restoration, &mut notices, None, &mut |passed| {
            if let Passed::Bytes(done) = passed {
                let percent = done.saturating_mul(100) / total;
                if percent >= told + PERCENT_A_LINE {
                    told = percent - percent % PERCENT_A_LINE;
                    wanted.logger.info(
                        "importing etcd's database",
                        &[("bytes", Value::Uint(done)), ("of-at-most", Value::Uint(total))],
                    );
                }
            }
            match (wanted.stop_wanted)() {
                true => Err(Failure::error("the program was told to stop")),
                false => Ok(()),
            }
        })
        .map_err(|error| failed(&error))?;
    // Check the result by opening it as a start of the member would.
    let made = Stopped::open_with(&disk, target.making(), None, rules(wanted.config.cluster.max_learners));
    let made = made.map_err(|error| failed(&error))?;
    let source = &import.source;
    let hard_state = made.hard_state;
    wanted.logger.info(
        "imported etcd's database and log",
        &[
            ("member-id", Value::Id(source.wal.identity.member_id)),
            ("cluster-id", Value::Id(source.wal.identity.cluster_id)),
            ("members", Value::Uint(made.machine.members.by_id.len() as u64)),
            ("revision", Value::Int(made.machine.store.current_revision().0)),
            ("database-index", Value::Uint(source.base_index())),
            ("commit-index", Value::Uint(hard_state.commit.0)),
            ("last-index", Value::Uint(source.wal.last())),
            ("term", Value::Uint(hard_state.term.0)),
            ("vote", Value::Id(hard_state.vote.0)),
        ],
    );
    drop(made);
    let left = interchange::Fingerprint::of(&RealDisk, &etcd_log, source.wal.end.clone())
        .map_err(|error| failed(&error))?;
    let mark = TakenOver { wal_apart: wal_dir.map(|_| etcd_log), left, files: Files::Kept };
    mark.write(&RealDisk, target.making()).map_err(|error| failed(&error))?;
    if let (Some(apart), Some(wal_dir)) = (apart, on_own_disk) {
        let named = log_dir::beside_etcd(wal_dir).map_err(Failure::error)?;
        log_dir::write_note(&RealDisk, &target.making().join("member"), &named)
            .map_err(|error| failed(&error))?;
        apart.leave()?;
    }
    // From this rename on, the next start finishes the takeover if this process is killed.
    target.finish()?;
    Ok(import)
}

/// Logs a warning if etcd's database is on a different disk than the data directory: Mainstay writes its
/// checkpoints to the disk of the data directory, which may be too small or too slow.
fn warn_of_snapshots_elsewhere(wanted: &TakeOver<'_>, member_dir: &Path) {
    let snap = member_dir.join("snap");
    if leads_elsewhere(&snap) {
        wanted.logger.warn(
            "etcd's database is on a different disk than its data directory: Mainstay's checkpoints, which \
             hold keys and the index, go to the data directory; the log, which holds the values, goes \
             beside etcd's log",
            &[
                ("etcd-database", Value::Str(&snap.display().to_string())),
                ("checkpoints", Value::Str(&member_dir.join("checkpoint").display().to_string())),
            ],
        );
    }
}

/// Returns false if the result of the takeover must be discarded: because etcd has run again since its files
/// were converted, or because an earlier start has begun to remove the result.
fn is_current(member_dir: &Path) -> Result<bool, Failure> {
    let complete = member_dir.join(COMPLETE);
    if there(&complete.join(OUTDATED))? {
        return Ok(false);
    }
    // If the mark is missing, the last step of the takeover has already moved it to its final place, so the
    // result is current.
    let Some(mark) = TakenOver::read(&RealDisk, &complete).map_err(Failure::error)? else { return Ok(true) };
    let wal_dir = mark.wal_dir(member_dir);
    let changed = mark.left.has_changed(&RealDisk, &wal_dir);
    changed
        .map(|changed| !changed)
        .map_err(|error| Failure::error(format!("cannot look into {}: {error}", wal_dir.display())))
}

/// Removes the result of a takeover because etcd has run again. Nothing is lost: Mainstay has never served
/// from the result, since the mark is not in its final place. After an interruption at any point, the
/// function can be called again.
fn discard(member_dir: &Path) -> Result<(), Failure> {
    let complete = member_dir.join(COMPLETE);
    if !there(&complete.join(OUTDATED))? {
        rename(&complete.join(MARK_NAME), &complete.join(OUTDATED))?;
    }
    if let Some(log_dir) = noted(member_dir)? {
        remove(&Target::making_of(&log_dir)?)?;
        remove(&log_dir)?;
    }
    for part in ["log", "checkpoint"] {
        remove(&member_dir.join(part))?;
    }
    remove(&complete.join("member"))?;
    for part in [log::ShutdownRecord::FILE_NAME, log_dir::NOTE_NAME] {
        let path = member_dir.join(part);
        if there(&path)? {
            RealDisk
                .remove(&path)
                .map_err(|error| Failure::error(format!("cannot remove {}: {error}", path.display())))?;
        }
    }
    remove(&complete)
}

/// Returns the directory of the new log if it is outside of the data directory, according to the record in
/// the result of the takeover.
fn noted(member_dir: &Path) -> Result<Option<PathBuf>, Failure> {
    let parts = member_dir.join(COMPLETE).join("member");
    match log_dir::read_note(&RealDisk, &parts).map_err(Failure::error)? {
        None => log_dir::read_note(&RealDisk, member_dir).map_err(Failure::error),
        noted => Ok(noted),
    }
}

/// Moves the complete result of the takeover to its final place. After an interruption at any point, the
/// function can be called again.
fn finish(wanted: &TakeOver<'_>, member_dir: &Path) -> Result<(), Failure> {
    let complete = member_dir.join(COMPLETE);
    let parts = complete.join("member");
    if let Some(log_dir) = noted(member_dir)? {
        let making = Target::making_of(&log_dir)?;
        if there(&making.join("log"))? {
            rename(&making.join("log"), &log_dir)?;
        }
        remove(&making)?;
    }
    if there(&parts)? {
        let list = |error| Failure::error(format!("cannot list {}: {error}", parts.display()));
        for entry in fs::read_dir(&parts).map_err(list)? {
            let name = entry.map_err(list)?.file_name();
            // Skip the file `lock` of the temporary directory: it would replace the member's own lock file,
            // whose lock this process holds.
            if name != "lock" {
                rename(&parts.join(&name), &member_dir.join(&name))?;
            }
        }
    }
    if let Some(mark) = TakenOver::read(&RealDisk, &complete).map_err(Failure::error)? {
        mark.guard(&RealDisk, member_dir).map_err(Failure::error)?;
        if let Err(why) = etcd_beside::put_sign(&RealDisk, &wanted.config.storage.data_dir) {
            // Only warn and do not fail: this file only informs people, and the guard files keep etcd from
            // starting. The member's next start tries again to write the file.
            wanted.logger.warn(
                "cannot write the file that marks the data directory as Mainstay's",
                &[("error", Value::Str(&why.to_string()))],
            );
        }
        rename(&complete.join(MARK_NAME), &member_dir.join(MARK_NAME))?;
    }
    remove(&complete)
}

fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::error(format!("cannot rename {} to {}: {error}", from.display(), to.display()))
    };
    RealDisk.rename(from, to).map_err(failed)?;
    RealDisk.sync_dir(to.parent().unwrap_or(to)).map_err(failed)
}

/// Removes a directory with its contents, if it exists.
fn remove(dir: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::error(format!("cannot remove {}: {error}", dir.display()));
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(failed),
    }?;
    RealDisk.sync_dir(dir.parent().unwrap_or(dir)).map_err(failed)
}

/// Returns true if a directory does not exist or is empty.
fn is_empty(dir: &Path) -> Result<bool, Failure> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        // `OpenError` is used because its message contains advice for the operator.
        Err(error) => {
            Err(Failure::error(log::OpenError::Io { doing: "list", path: dir.to_path_buf(), error }))
        }
    }
}

fn there(path: &Path) -> Result<bool, Failure> {
    let failed = |error| log::OpenError::Io { doing: "look for", path: path.to_path_buf(), error };
    RealDisk.exists(path).map_err(|error| Failure::error(failed(error)))
}
