//! Marks a member that was taken over from etcd in place, and keeps etcd from running on it again. Mainstay's
//! files are beside those of etcd, which stay unchanged until the operator deletes them. The mark stays even
//! after that.
//!
//! etcd's files are older than the member's later votes and acknowledged entries. If etcd ran on them again,
//! the member could vote twice in one term, and would lack entries that it has acknowledged. So two empty
//! files beside etcd's log, the guards, prevent etcd from starting, and a running member of Mainstay holds
//! the lock of etcd's database. If etcd has run anyway, Mainstay refuses to start, because then neither set
//! of files is complete. The guards stay when etcd's files are deleted: without them etcd would create an
//! empty member with the same id.

use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use disk::{Disk, Lock};
use interchange::Fingerprint;
use interchange::wal::{GUARD_MESSAGE_NAME, GUARD_NAMES, STALE_MARK_NAME, WalEnd};
use log::OpenError;

use crate::error::DataDirError;
use crate::log_dir;

/// Name of the mark, the file in a member's directory that says that the member was taken over from etcd.
///
/// ```text
/// 0   magic        8   "MNSTETC\n"
/// 8   version      4   1
/// 12  state        4   0: etcd's files are kept, 1: they are being dropped, 2: they were dropped
/// 16  names        4   CRC-32C of the names of the files of etcd's log, see `interchange::Fingerprint`
/// 20  tail         4   CRC-32C of the bytes after the end of etcd's log
/// 24  offset       8   end of etcd's log in its last file
/// 32  name length  4   of that file, in bytes
/// 36  name         …
///     directory    …   of etcd's log, absolute; nothing if it is `wal` in the member's directory
///     crc32c       4   of all bytes before
/// ```
pub const MARK_NAME: &str = STALE_MARK_NAME;

const MAGIC: [u8; 8] = *b"MNSTETC\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 36;
/// Maximum length of the mark in bytes: the sum of the maximum lengths of a name and of a path in Linux and
/// the lengths of the other fields.
const BYTES_MAX: usize = HEAD_BYTES + 255 + 4096 + 4;

/// State of etcd's files after a takeover: kept, being deleted, or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// All of etcd's files exist.
    Kept = 0,
    /// etcd's files are being deleted, so some may be missing.
    BeingDropped = 1,
    /// etcd's files were deleted. Only the two guards exist, which prevent etcd from starting.
    Dropped = 2,
}

/// Content of the mark, which describes the takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// Absolute path of the directory of etcd's log; `None` if it is `wal` in the member's directory, which
    /// may be moved together with that directory.
    pub wal_apart: Option<PathBuf>,
    /// Fingerprint of etcd's log at the takeover.
    pub left: Fingerprint,
    /// State of etcd's files since the takeover.
    pub files: Files,
}

impl TakenOver {
    /// Reads the mark; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the mark is damaged, or the error of the operating system.
    pub fn read(disk: &dyn Disk, member_dir: &Path) -> Result<Option<TakenOver>, OpenError> {
        let path = member_dir.join(MARK_NAME);
        let io = |error| OpenError::Io { doing: "read", path: path.clone(), error };
        if !disk.exists(&path).map_err(io)? {
            return Ok(None);
        }
        let mut bytes = vec![0; BYTES_MAX + 1];
        let read = disk.open_read(&path).and_then(|file| file.read_at(&mut bytes, 0)).map_err(io)?;
        bytes.truncate(read);
        decode(&bytes).map(Some).map_err(|found| OpenError::Damaged {
            path: path.clone(),
            offset: 0,
            found: format!(
                "{found}: this file records that the member was taken over from etcd. If etcd has not run \
                 since, remove etcd's files (snap, and the files that end in .wal) and this file"
            ),
        })
    }

    /// Writes the mark into a directory, durably and atomically.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(MARK_NAME);
        let making = dir.join(format!("{MARK_NAME}.tmp"));
        let io = |error| OpenError::Io { doing: "write", path: path.clone(), error };
        let bytes = self
            .encode()
            .ok_or_else(|| io(std::io::Error::new(ErrorKind::InvalidInput, "a path is too long")))?;
        if disk.exists(&making).map_err(io)? {
            disk.remove(&making).map_err(io)?;
        }
        let file = disk.create(&making).map_err(io)?;
        file.write_at(&bytes, 0).and_then(|()| file.sync_all()).map_err(io)?;
        disk.rename(&making, &path).map_err(io)?;
        disk.sync_dir(dir).map_err(io)
    }

    /// Returns the directory of etcd's log.
    pub fn wal_dir(&self, member_dir: &Path) -> PathBuf {
        self.wal_apart.clone().unwrap_or_else(|| member_dir.join("wal"))
    }

    /// Checks that etcd has not run on the directory since the takeover.
    ///
    /// # Errors
    ///
    /// Returns [`DataDirError::EtcdRanAgain`] if etcd has run, or an error if a file cannot be read.
    pub fn check(&self, disk: &dyn Disk, member_dir: &Path) -> Result<(), DataDirError> {
        let wal_dir = self.wal_dir(member_dir);
        let changed = match self.files {
            Files::Kept => self.left.has_changed(disk, &wal_dir),
            // The guards were written before the first file was deleted. While they exist, etcd cannot start,
            // so etcd's log is searched only if a guard is missing.
            Files::BeingDropped => has_both_guards(disk, &wal_dir).and_then(|guarded| match guarded {
                true => Ok(false),
                false => Fingerprint::has_log(disk, &wal_dir),
            }),
            Files::Dropped => Fingerprint::has_log(disk, &wal_dir),
        };
        match changed {
            Ok(false) => Ok(()),
            Ok(true) => {
                let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
                let noted = log_dir::known(disk, member_dir).unwrap_or_default();
                Err(DataDirError::EtcdRanAgain {
                    data_dir: whole(member_dir.parent().unwrap_or(member_dir)),
                    wal_dir: whole(&wal_dir),
                    log_dir: whole(&noted.unwrap_or_else(|| member_dir.join("log"))),
                })
            }
            Err(error) => Err(OpenError::Io { doing: "look into", path: wal_dir, error }.into()),
        }
    }

    /// Creates the two guards in the directory of etcd's log, even if that directory no longer contains a
    /// log, so that etcd neither starts on old files nor creates an empty member, and beside them the directory
    /// whose name etcd prints when it exits. The caller must have checked that etcd has not run since the
    /// takeover.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn guard(&self, disk: &dyn Disk, member_dir: &Path) -> Result<(), OpenError> {
        let wal_dir = self.wal_dir(member_dir);
        let io = |path: &Path, error| OpenError::Io { doing: "create", path: path.to_path_buf(), error };
        if !disk.exists(&wal_dir).map_err(|error| io(&wal_dir, error))? {
            disk.create_dir_all(&wal_dir).map_err(|error| io(&wal_dir, error))?;
            let above = wal_dir.parent().unwrap_or(member_dir);
            disk.sync_dir(above).map_err(|error| io(above, error))?;
        }
        for name in GUARD_NAMES {
            let path = wal_dir.join(name);
            if !disk.exists(&path).map_err(|error| io(&path, error))? {
                disk.create(&path).map_err(|error| io(&path, error))?;
            }
        }
        // The error is ignored: the guards keep etcd out, and the name only explains it.
        let _ = disk.create_dir_all(&wal_dir.join(GUARD_MESSAGE_NAME));
        disk.sync_dir(&wal_dir).map_err(|error| io(&wal_dir, error))
    }

    /// Locks etcd's database like [`lock_database`]. If the database cannot be opened or locked, but the
    /// guards prevent etcd from starting, returns the reason in [`ShutOut::unlocked`] and does not fail,
    /// because the member itself does not need that file.
    ///
    /// # Errors
    ///
    /// Returns [`DataDirError::EtcdRuns`], or the error of the operating system if the guards are missing.
    pub fn shut_out(&self, disk: &dyn Disk, member_dir: &Path) -> Result<ShutOut, DataDirError> {
        match lock_database(disk, member_dir) {
            Ok(lock) => Ok(ShutOut { lock, unlocked: None }),
            Err(DataDirError::Files(why))
                if has_both_guards(disk, &self.wal_dir(member_dir)).unwrap_or(false) =>
            {
                Ok(ShutOut { lock: None, unlocked: Some(why) })
            }
            Err(error) => Err(error),
        }
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let Fingerprint { names, end, tail } = &self.left;
        let dir = self.wal_apart.as_ref().map_or(&[][..], |dir| dir.as_os_str().as_bytes());
        let name = end.file.as_bytes();
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.files as u32, *names, *tail] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&end.offset.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(name.len()).ok()?.to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(dir);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        (bytes.len() <= BYTES_MAX).then_some(bytes)
    }
}

/// Result of [`TakenOver::shut_out`]: what keeps etcd from running while a member of Mainstay uses the
/// directory.
pub struct ShutOut {
    /// Lock of etcd's database, if the database exists.
    pub lock: Option<Lock>,
    /// Reason why the database could not be locked, although it may exist. If set, the guards beside etcd's
    /// log exist and prevent etcd from starting.
    pub unlocked: Option<OpenError>,
}

/// Locks etcd's database, if it still exists. While the lock is held, no etcd runs on the database, and an
/// etcd that is started waits until it can open the database.
///
/// # Errors
///
/// Returns [`DataDirError::EtcdRuns`] if an etcd holds the lock, or the error of the operating system.
pub fn lock_database(disk: &dyn Disk, member_dir: &Path) -> Result<Option<Lock>, DataDirError> {
    let path = member_dir.join("snap").join("db");
    match disk.lock_read(&path) {
        Ok(lock) => Ok(Some(lock)),
        // `NotADirectory` means that `snap` is the file that prevents etcd from starting, so there is no
        // database.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(DataDirError::EtcdRuns { path }),
        Err(error) => Err(OpenError::Io { doing: "lock", path, error }.into()),
    }
}

fn has_both_guards(disk: &dyn Disk, wal_dir: &Path) -> std::io::Result<bool> {
    for name in GUARD_NAMES {
        if !disk.exists(&wal_dir.join(name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn decode(bytes: &[u8]) -> Result<TakenOver, &'static str> {
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
    if crc32c::crc32c(sound) != u32::from_le_bytes(*crc) {
        return Err("the checksum does not match");
    }
    let (head, rest) = sound.split_at(HEAD_BYTES);
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
    let wrong = "it contains an invalid length or state";
    let name = usize::try_from(number(32)).ok().and_then(|len| rest.get(..len)).ok_or(wrong)?;
    let files = match number(12) {
        0 => Files::Kept,
        1 => Files::BeingDropped,
        2 => Files::Dropped,
        _ => return Err(wrong),
    };
    let left = Fingerprint {
        names: number(16),
        end: WalEnd {
            file: String::from_utf8(name.to_vec()).map_err(|_| wrong)?,
            offset: u64::from_le_bytes(head[24..32].try_into().unwrap_or_default()),
        },
        tail: number(20),
    };
    let dir = &rest[name.len()..];
    let wal_apart = (!dir.is_empty()).then(|| std::ffi::OsString::from_vec(dir.to_vec()).into());
    Ok(TakenOver { wal_apart, left, files })
}

#[cfg(test)]
mod tests {
    use disk::MemDisk;

    use super::*;

    fn mark() -> TakenOver {
        let end = WalEnd { file: "0000000000000001-0000000000000005.wal".to_owned(), offset: 77 };
        TakenOver {
            wal_apart: Some("/wal of etcd".into()),
            left: Fingerprint { names: 1, end, tail: 2 },
            files: Files::Kept,
        }
    }

    #[test]
    fn a_damaged_mark_is_refused_and_never_guessed_at() {
        let bytes = mark().encode().expect("is short");
        assert_eq!(decode(&bytes), Ok(mark()));
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "{at}");
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(decode(&other).is_err(), "{at}");
        }
        assert!(TakenOver { wal_apart: Some("x".repeat(BYTES_MAX).into()), ..mark() }.encode().is_none());
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let (disk, dir) = (MemDisk::new(1), Path::new("/d/member"));
        disk.create_dir_all(dir).expect("a directory");
        assert_eq!(TakenOver::read(&disk, dir).expect("is read"), None);
        for files in [Files::Kept, Files::BeingDropped, Files::Dropped] {
            let wal_apart = mark().wal_apart.filter(|_| files != Files::Kept);
            let mark = TakenOver { files, wal_apart, ..mark() };
            mark.write(&disk, dir).expect("is written");
            assert_eq!(TakenOver::read(&disk, dir).expect("is read"), Some(mark));
        }
    }
}
