//! Finds the directory of the log: `<data-dir>/member/log`, or another directory (`--wal-dir`), which may be
//! on a separate disk.
//!
//! A start can miss a log in a separate directory: if the operator omits `--wal-dir` or gives another
//! directory, or if the disk is not mounted yet. In these cases etcd starts as a new member, without its log.
//! To prevent that, Mainstay stores the path of the log's directory in the data directory, in a file called
//! the note, and refuses a start with another directory. A log may be moved only after a clean shutdown,
//! which records the end of the log, so that a copy that ends earlier is detected. In the table, V and W are
//! two directories, `noted` is the content of the note, and `given` is the directory of `--wal-dir`.
//!
//! | noted | given | log at the noted path | at the given path | result |
//! |---|---|---|---|---|
//! | nothing, and no member | W | none | nothing | a new member starts there, after the note was written |
//! | nothing, and no member | W | none | a log, or other files | refused: the log of another data directory, or not usable for a log |
//! | W | W | any | | opened; refused if it is missing |
//! | V | W | there | any | refused: the error names the directory of the log |
//! | V | W | none | a log | if the member had stopped cleanly, the note is changed and the log is opened |
//! | V | W | none | nothing | refused: the log is missing |
//!
//! A data directory without a note has its log in `member/log`. If a member was taken over from etcd with
//! `--wal-dir=W`, its log is in `W/log`, beside that of etcd ([`crate::taken_over`]), and `--wal-dir=W`
//! selects it. If it was taken over without that option and `member/wal` was a link to another directory, or
//! a mount point of another disk, its log is in `member/wal/log`, and a start without `--wal-dir` selects it.
//! A log below `member` moves with a data directory that is renamed or copied. It is found although the note
//! contains the old path ([`known`]).

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, Lock};
use log::{Log, OpenError};

use crate::error::{DataDirError, LogDirMismatch};

const MAGIC: [u8; 8] = *b"MNSTWAL\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
/// Maximum length in bytes of the path in the note. Linux does not accept longer paths.
const PATH_BYTES_MAX: usize = 4096;

/// Name of the note, the file in a member's directory that contains the path of the log's directory.
///
/// ```text
/// 0   magic    8   "MNSTWAL\n"
/// 8   version  4   1
/// 12  length   4   of the path, in bytes
/// 16  path     …   absolute
///     crc32c   4   of all bytes before
/// ```
pub const NOTE_NAME: &str = "wal-dir";

/// Directory of a member's log, and the change of the note that must be made before the log is written.
pub(crate) struct LogDir {
    /// Path of the directory; it may not exist yet.
    pub path: PathBuf,
    /// True if the directory is not `member/log`.
    pub is_apart: bool,
    disk: Arc<dyn Disk>,
    member_dir: PathBuf,
    /// Change of the note that must be made before anything is written to the log: `Some(None)` removes the
    /// note, `None` leaves it unchanged.
    note: Option<Option<PathBuf>>,
    lock: Option<Lock>,
}

/// Facts about a member that the files of its data directory other than the log show.
#[derive(Clone, Copy)]
pub(crate) struct OtherFiles {
    /// True if a file exists that is written only after the first entries of the log.
    pub is_anything: bool,
    /// True if the end of the log was recorded when the member last stopped.
    pub stopped_cleanly: bool,
}

impl LogDir {
    /// Finds the directory of the log. `given` is the directory of `--wal-dir`. The caller must hold the lock
    /// of the data directory.
    ///
    /// # Errors
    ///
    /// Returns an error if the log of this member is in another directory, if the directory cannot be used
    /// for a log, or if the operating system refuses an operation.
    pub fn find(
        disk: &Arc<dyn Disk>,
        member_dir: &Path,
        given: Option<&Path>,
        beside: OtherFiles,
    ) -> Result<LogDir, DataDirError> {
        let own = member_dir.join("log");
        let noted = read_note(&**disk, member_dir)?;
        let goes_along = match given {
            None => beside_link(&**disk, member_dir, noted.as_deref())?,
            Some(_) => None,
        };
        let chosen = match (given, &noted) {
            // `--wal-dir` names etcd's log directory, of which Mainstay's log is a subdirectory, because the
            // member was taken over from etcd.
            (Some(given), Some(noted)) if same(&**disk, noted, &beside_etcd(given)?)? => noted.clone(),
            (Some(given), _) => absolute(given)?,
            (None, _) => goes_along.clone().unwrap_or_else(|| own.clone()),
        };
        let is_own = same(&**disk, &chosen, &own)?;
        let mut found = LogDir {
            path: if is_own { own.clone() } else { chosen.clone() },
            is_apart: !is_own,
            disk: Arc::clone(disk),
            member_dir: member_dir.to_path_buf(),
            note: None,
            lock: None,
        };
        if !is_own {
            found.check_place()?;
            disk.create_dir_all(&chosen).map_err(|error| OpenError::Io {
                doing: "create",
                path: chosen.clone(),
                error,
            })?;
            found.lock()?;
        }
        let known = noted.clone().unwrap_or_else(|| own.clone());
        if same(&**disk, &found.path, &known)? {
            return Ok(found);
        }
        let (from, to) = (known, found.path.clone());
        // A log at the noted path is this member's log, so the start would use a wrong directory. Exception:
        // if the log was copied together with its data directory, the log at the noted path belongs to the
        // original.
        if goes_along.is_none() && holds_log(&**disk, &from)? {
            return Err(LogDirMismatch::Elsewhere { log_dir: from, chosen: to, own }.into());
        }
        let is_there = holds_log(&**disk, &to)?;
        if !beside.is_anything {
            // This member is new, because nothing but perhaps the note was written for it. So the directory
            // must contain neither a log nor other files.
            if is_there {
                return Err(
                    LogDirMismatch::OfAnother { log_dir: to, member_dir: member_dir.to_path_buf() }.into()
                );
            }
            found.refuse_strangers()?;
        } else if !is_there {
            return Err(LogDirMismatch::Missing { log_dir: from, chosen: to }.into());
        } else if !beside.stopped_cleanly {
            return Err(LogDirMismatch::MovedInUse { log_dir: from, chosen: to }.into());
        }
        found.note = Some((!is_own).then(|| to.clone()));
        Ok(found)
    }

    /// Returns the directory of a stopped member's log, and the lock of that directory if it is outside of
    /// the data directory. [`known`] describes what happens if the data directory was renamed or copied.
    ///
    /// # Errors
    ///
    /// Returns an error if the note is damaged, if the log is in use, or if the noted directory contains no
    /// log.
    pub fn noted(disk: &Arc<dyn Disk>, member_dir: &Path) -> Result<(PathBuf, Option<Lock>), DataDirError> {
        let Some(path) = known(&**disk, member_dir)? else { return Ok((member_dir.join("log"), None)) };
        if !holds_log(&**disk, &path)? {
            let member_dir = member_dir.to_path_buf();
            return Err(LogDirMismatch::NotThere { log_dir: path, member_dir }.into());
        }
        let mut found = LogDir {
            path,
            is_apart: true,
            disk: Arc::clone(disk),
            member_dir: member_dir.to_path_buf(),
            note: None,
            lock: None,
        };
        found.lock()?;
        Ok((found.path, found.lock))
    }

    /// Updates the note if the directory of the log differs from the noted one. Must be called before
    /// anything is written to the log.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn settle(&mut self) -> Result<(), OpenError> {
        match self.note.take() {
            None => Ok(()),
            Some(Some(path)) => write_note(&*self.disk, &self.member_dir, &path),
            Some(None) => {
                let note = self.member_dir.join(NOTE_NAME);
                let io = |doing, error| OpenError::Io { doing, path: note.clone(), error };
                if self.disk.exists(&note).map_err(|error| io("look for", error))? {
                    self.disk.remove(&note).map_err(|error| io("remove", error))?;
                }
                self.disk.sync_dir(&self.member_dir).map_err(|error| io("remove", error))
            }
        }
    }

    /// Returns the lock that keeps members of other data directories from using the log's directory; `None`
    /// if that directory is the default, `member/log`.
    pub fn into_lock(self) -> Option<Lock> {
        self.lock
    }

    fn lock(&mut self) -> Result<(), DataDirError> {
        let lock = self.disk.lock(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => DataDirError::Locked { path: self.path.clone() },
            _ => OpenError::Io { doing: "lock", path: self.path.clone(), error }.into(),
        })?;
        self.lock = Some(lock);
        Ok(())
    }

    /// Returns an error if the directory contains the data directory or a log of etcd, or is used for
    /// something else in the data directory.
    fn check_place(&self) -> Result<(), DataDirError> {
        let member_dir = absolute(&self.member_dir)?;
        let is_part = [member_dir.join("checkpoint"), member_dir.join("lock")].contains(&self.path);
        if is_part || member_dir.starts_with(&self.path) {
            return Err(LogDirMismatch::Overlaps { chosen: self.path.clone(), member_dir }.into());
        }
        let io = |error| OpenError::Io { doing: "list", path: self.path.clone(), error };
        let there = self.disk.exists(&self.path).map_err(io)?;
        let names = if there { self.disk.list(&self.path).map_err(io)? } else { Vec::new() };
        if let Some(theirs) = names.iter().find(|name| name.ends_with(".wal")) {
            let data_dir = self.member_dir.parent().unwrap_or(&self.member_dir).to_path_buf();
            return Err(DataDirError::WrittenByEtcd {
                path: self.path.join(theirs),
                data_dir,
                old_store: None,
            });
        }
        Ok(())
    }

    /// Returns an error if the directory contains any files, because a new log would delete those that look
    /// like remains of a log.
    fn refuse_strangers(&self) -> Result<(), DataDirError> {
        let io = |error| OpenError::Io { doing: "list", path: self.path.clone(), error };
        if !self.disk.exists(&self.path).map_err(io)? {
            return Ok(());
        }
        match self.disk.list(&self.path).map_err(io)?.into_iter().next() {
            Some(name) => {
                Err(LogDirMismatch::NotEmpty { chosen: self.path.clone(), file: self.path.join(name) }.into())
            }
            None => Ok(()),
        }
    }
}

/// Returns true if the directory contains a segment of a log.
fn holds_log(disk: &dyn Disk, dir: &Path) -> Result<bool, OpenError> {
    Log::is_in(disk, dir)
}

/// Returns the absolute path of the directory of Mainstay's log for a member that was taken over from etcd
/// with its log in `wal_dir`.
///
/// # Errors
///
/// Returns an error if `wal_dir` is relative and the working directory is unknown.
pub fn beside_etcd(wal_dir: &Path) -> Result<PathBuf, OpenError> {
    Ok(absolute(wal_dir)?.join("log"))
}

/// Returns the directory `member/wal/log` if it contains this member's log: if the member was taken over from
/// etcd, and its `member/wal` is a link or a mount point. That log moves with the data directory, which may
/// have been renamed since the note was written. Returns `None` if the log is elsewhere.
fn beside_link(
    disk: &dyn Disk,
    member_dir: &Path,
    noted: Option<&Path>,
) -> Result<Option<PathBuf>, OpenError> {
    let (Some(noted), beside) = (noted, beside_etcd(&member_dir.join("wal"))?) else { return Ok(None) };
    // A log at `member/wal/log` is this member's in two cases although the note has another path: if the
    // noted path is that of another data directory's `member/wal/log`, because this data directory was copied
    // from that one or renamed; and if there is no log at the noted path.
    let is_other = || Ok::<bool, OpenError>(is_beside_link(noted) || !holds_log(disk, noted)?);
    let is_it = same(disk, noted, &beside)? || (holds_log(disk, &beside)? && is_other()?);
    Ok(is_it.then_some(beside))
}

/// Returns true if this path, in any data directory, is that of the log of a member that was taken over from
/// etcd and whose `member/wal` is a link or a mount point. A start finds such a log without `--wal-dir`.
pub fn is_beside_link(log_dir: &Path) -> bool {
    log_dir.ends_with("member/wal/log")
}

/// Returns the directory of the log according to the note in a member's directory; `None` without a note. A
/// log below the member's directory moves with that directory. So if the noted path is below a directory
/// `member`, the log is searched first at the corresponding path below this member's directory: a renamed
/// data directory finds its log, and a copied one does not use the log of the original.
///
/// # Errors
///
/// Returns an error if the note is damaged, or the error of the operating system.
pub fn known(disk: &dyn Disk, member_dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    let Some(noted) = read_note(disk, member_dir)? else { return Ok(None) };
    let member_dir = absolute(member_dir)?;
    let mut rest = noted.components();
    while rest.by_ref().any(|part| part.as_os_str() == "member") {
        let below = rest.as_path();
        let along = member_dir.join(below);
        // `member/log` is never noted, because it is the default. So a noted path that ends with `member/log`
        // is that of a log outside of this directory, which must not be searched below it.
        let is_noted = !below.as_os_str().is_empty() && below != Path::new("log");
        if is_noted && holds_log(disk, &along)? {
            return Ok(Some(along));
        }
    }
    Ok(Some(noted))
}

/// Returns true if a directory is a symbolic link or a mount point: on another file system than its parent
/// directory.
pub fn leads_elsewhere(dir: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    let is_link = std::fs::symlink_metadata(dir).is_ok_and(|found| found.is_symlink());
    let above = dir.parent().and_then(|above| device(above).ok());
    is_link || device(dir).is_ok_and(|own| above.is_some_and(|above| above != own))
}

fn absolute(path: &Path) -> Result<PathBuf, OpenError> {
    std::path::absolute(path).map_err(|error| OpenError::Io {
        doing: "look for",
        path: path.to_path_buf(),
        error,
    })
}

/// Returns true if two paths lead to the same directory.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn same(disk: &dyn Disk, one: &Path, other: &Path) -> Result<bool, OpenError> {
    if absolute(one)? == absolute(other)? {
        return Ok(true);
    }
    disk.is_same(one, other).map_err(|error| OpenError::Io {
        doing: "look for",
        path: one.to_path_buf(),
        error,
    })
}

/// Reads the path of the log from the note in a member's directory; `None` without a note.
///
/// # Errors
///
/// Returns an error if the note is damaged, or the error of the operating system.
pub fn read_note(disk: &dyn Disk, member_dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    let path = member_dir.join(NOTE_NAME);
    let io = |error| OpenError::Io { doing: "read", path: path.clone(), error };
    if !disk.exists(&path).map_err(io)? {
        return Ok(None);
    }
    let mut bytes = vec![0; HEAD_BYTES + PATH_BYTES_MAX + 5];
    let read = disk.open(&path).map_err(io)?.read_at(&mut bytes, 0).map_err(io)?;
    bytes.truncate(read);
    decode(&bytes).map(Some).map_err(|found| OpenError::Damaged {
        path: path.clone(),
        offset: 0,
        found: format!(
            "{found}: this file records the log directory of this member; remove it, and give \
                        that directory with --wal-dir if it is not {}",
            member_dir.join("log").display()
        ),
    })
}

/// Writes the note with the directory of the log, durably and atomically.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn write_note(disk: &dyn Disk, member_dir: &Path, log_dir: &Path) -> Result<(), OpenError> {
    let (making, path) = (member_dir.join("wal-dir.tmp"), member_dir.join(NOTE_NAME));
    let io = |error| OpenError::Io { doing: "write", path: path.clone(), error };
    let bytes = encode(log_dir)
        .ok_or_else(|| io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path is too long")))?;
    if disk.exists(&making).map_err(io)? {
        disk.remove(&making).map_err(io)?;
    }
    let file = disk.create(&making).map_err(io)?;
    file.write_at(&bytes, 0).and_then(|()| file.sync_all()).map_err(io)?;
    disk.rename(&making, &path).map_err(io)?;
    disk.sync_dir(member_dir).map_err(io)
}

fn encode(log_dir: &Path) -> Option<Vec<u8>> {
    let path = log_dir.as_os_str().as_bytes();
    let length = u32::try_from(path.len()).ok().filter(|_| path.len() <= PATH_BYTES_MAX)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(path);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    Some(bytes)
}

fn decode(bytes: &[u8]) -> Result<PathBuf, &'static str> {
    let Some((sound, crc)) = bytes.split_last_chunk::<4>().filter(|(sound, _)| sound.len() >= HEAD_BYTES)
    else {
        return Err("the file is too short");
    };
    if sound[..8] != MAGIC {
        return Err("the file has a wrong header");
    }
    if sound[8..12] != VERSION.to_le_bytes() {
        return Err("the file has an unknown version");
    }
    let path = &sound[HEAD_BYTES..];
    let length = u32::from_le_bytes([sound[12], sound[13], sound[14], sound[15]]);
    if path.is_empty()
        || usize::try_from(length) != Ok(path.len())
        || crc32c::crc32c(sound) != u32::from_le_bytes(*crc)
    {
        return Err("the checksum does not match");
    }
    Ok(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())))
}

#[cfg(test)]
mod tests {
    use disk::MemDisk;

    use super::*;

    const MEMBER: &str = "/d/member";

    fn disk() -> (Arc<dyn Disk>, MemDisk) {
        let disk = MemDisk::new(1);
        disk.create_dir_all(Path::new(MEMBER)).expect("a directory");
        (Arc::new(disk.clone()), disk)
    }

    const NOTHING: OtherFiles = OtherFiles { is_anything: false, stopped_cleanly: false };
    const CRASHED: OtherFiles = OtherFiles { is_anything: true, stopped_cleanly: false };
    const STOPPED: OtherFiles = OtherFiles { is_anything: true, stopped_cleanly: true };

    fn find(disk: &Arc<dyn Disk>, given: Option<&str>, beside: OtherFiles) -> Result<PathBuf, String> {
        let given = given.map(Path::new);
        let mut found =
            LogDir::find(disk, Path::new(MEMBER), given, beside).map_err(|error| error.to_string())?;
        found.settle().map_err(|error| error.to_string())?;
        Ok(found.path)
    }

    /// Creates a file with the name of a segment.
    fn segment(disk: &Arc<dyn Disk>, dir: &str) {
        disk.create_dir_all(Path::new(dir)).expect("a directory");
        disk.create(&Path::new(dir).join("0000000000000000.seg")).expect("a file");
    }

    #[track_caller]
    fn refused(found: Result<PathBuf, String>, words: &[&str]) {
        let said = found.expect_err("is refused");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }

    #[test]
    fn a_log_is_looked_for_where_it_was_begun() {
        let (disk, _) = disk();
        assert_eq!(find(&disk, Some("/w"), NOTHING), Ok("/w".into()));
        assert_eq!(read_note(&*disk, Path::new(MEMBER)).expect("a note"), Some("/w".into()));
        segment(&disk, "/w");
        for beside in [NOTHING, CRASHED, STOPPED] {
            assert_eq!(find(&disk, Some("/w"), beside), Ok("/w".into()));
            assert_eq!(find(&disk, Some("/w/"), beside), Ok("/w/".into()));
            refused(find(&disk, None, beside), &["the log of this member is in /w", "--wal-dir=/w"]);
            refused(find(&disk, Some("/v"), beside), &["is in /w", "--wal-dir=/w", "/v"]);
        }
    }

    #[test]
    fn a_log_beside_that_of_etcd_needs_no_flag_where_etcd_needed_none() {
        let (disk, _) = disk();
        let beside = format!("{MEMBER}/wal/log");
        segment(&disk, &beside);
        for (noted, stopped) in [(beside.as_str(), CRASHED), ("/before/member/wal/log", STOPPED)] {
            write_note(&*disk, Path::new(MEMBER), Path::new(noted)).expect("is written");
            assert_eq!(find(&disk, None, stopped), Ok(beside.clone().into()));
            assert_eq!(read_note(&*disk, Path::new(MEMBER)).expect("is read"), Some(beside.clone().into()));
        }
        // The log is missing, as if the other disk was not mounted.
        let (disk, _) = self::disk();
        write_note(&*disk, Path::new(MEMBER), Path::new(&beside)).expect("is written");
        assert_eq!(find(&disk, None, STOPPED), Ok(beside.into()), "and is missed by who opens it");
    }

    #[test]
    fn a_log_that_lies_in_its_data_directory_goes_along_with_it() {
        for below in ["wal/log", "own/place"] {
            let (disk, _) = disk();
            let (before, now) = (format!("/before/member/{below}"), format!("{MEMBER}/{below}"));
            write_note(&*disk, Path::new(MEMBER), Path::new(&before)).expect("is written");
            let place = || known(&*disk, Path::new(MEMBER)).expect("is read");
            let noted = || LogDir::noted(&disk, Path::new(MEMBER)).map(|(path, _)| path);
            assert_eq!(place(), Some(before.clone().into()));
            refused(noted().map_err(|error| error.to_string()), &[&before, "--wal-dir", "renamed"]);
            // After a rename, the log has moved with the data directory. After a copy, the original log also
            // exists at the noted path.
            segment(&disk, &now);
            for is_copy in [false, true] {
                if is_copy {
                    segment(&disk, &before);
                }
                assert_eq!(place(), Some(now.clone().into()), "{is_copy}");
                assert_eq!(noted().expect("is there"), PathBuf::from(&now), "{is_copy}");
            }
            if below == "wal/log" {
                assert_eq!(find(&disk, None, STOPPED), Ok(now.clone().into()));
                assert_eq!(read_note(&*disk, Path::new(MEMBER)).expect("is read"), Some(now.into()));
            }
        }
        // A log in another directory does not move with the data directory, even if there are files below the
        // member's directory.
        let (disk, _) = disk();
        segment(&disk, &format!("{MEMBER}/log"));
        for noted in ["/w", "/ssd/member/log", "/ssd/member"] {
            write_note(&*disk, Path::new(MEMBER), Path::new(noted)).expect("is written");
            assert_eq!(known(&*disk, Path::new(MEMBER)).expect("is read"), Some(noted.into()));
        }
    }

    #[test]
    fn a_log_may_move_after_a_clean_shutdown_only() {
        for (from, to) in [(None, Some("/w")), (Some("/w"), Some("/v")), (Some("/w"), None)] {
            let (disk, _) = disk();
            let dir = |place: Option<&str>| place.map_or(format!("{MEMBER}/log"), str::to_owned);
            find(&disk, from, NOTHING).expect("begins");
            // The log has been moved, or its disk is not mounted.
            refused(find(&disk, to, STOPPED), &[&dir(from), "holds no log"]);
            segment(&disk, &dir(to));
            refused(find(&disk, to, CRASHED), &[&dir(from), &dir(to), "stopped cleanly"]);
            assert_eq!(find(&disk, to, STOPPED), Ok(dir(to).into()));
            assert_eq!(read_note(&*disk, Path::new(MEMBER)).expect("is read"), to.map(Into::into));
            // From now on the log must be in that directory, even after a crash.
            assert_eq!(find(&disk, to, CRASHED), Ok(dir(to).into()));
            refused(find(&disk, from, CRASHED), &["is in", &dir(to)]);
        }
    }

    #[test]
    fn a_directory_that_is_not_for_this_log_is_refused() {
        let (disk, _) = disk();
        for given in ["/d", "/d/member", "/", "/d/member/checkpoint"] {
            refused(find(&disk, Some(given), NOTHING), &["--wal-dir"]);
        }
        segment(&disk, "/other");
        refused(find(&disk, Some("/other"), NOTHING), &["/other", "another data directory"]);
        disk.create_dir_all(Path::new("/mine")).expect("a directory");
        disk.create(Path::new("/mine/notes.tmp")).expect("a file");
        refused(find(&disk, Some("/mine"), NOTHING), &["/mine/notes.tmp"]);
        assert!(disk.exists(Path::new("/mine/notes.tmp")).expect("is there"));
        disk.create_dir_all(Path::new("/etcd")).expect("a directory");
        disk.create(Path::new("/etcd/0000000000000000-0000000000000000.wal")).expect("a file");
        refused(find(&disk, Some("/etcd"), NOTHING), &["was written by etcd"]);
        let first = LogDir::find(&disk, Path::new(MEMBER), Some(Path::new("/w")), NOTHING).expect("a place");
        let other = LogDir::find(&disk, Path::new("/e/member"), Some(Path::new("/w")), NOTHING);
        assert!(matches!(other, Err(DataDirError::Locked { .. })), "two members begin in one directory");
        drop(first);
    }

    #[test]
    fn a_damaged_note_is_refused_and_never_guessed_at() {
        let bytes = encode(Path::new("/some/where")).expect("is short");
        assert_eq!(decode(&bytes), Ok("/some/where".into()));
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "{at}");
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(decode(&other).is_err(), "{at}");
        }
        assert!(encode(Path::new(&"x".repeat(PATH_BYTES_MAX + 1))).is_none());
        let (disk, _) = disk();
        disk.create(&Path::new(MEMBER).join(NOTE_NAME)).expect("a file");
        refused(find(&disk, Some("/w"), NOTHING), &["/d/member/wal-dir", "--wal-dir"]);
    }
}
