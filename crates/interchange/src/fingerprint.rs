//! Finding out whether etcd has run on a log again.

use std::io;
use std::path::Path;

use disk::Disk;

use crate::wal::{self, WalEnd};

/// Bytes behind the end of the log that are looked at: a record that was appended begins in them.
const TAIL_BYTES: usize = 4 << 10;

/// What tells etcd's log, as it was left, from the same log after etcd has run on it again. Copying or moving it changes
/// nothing.
///
/// Before a member of etcd promises or acknowledges anything, or changes its database by an entry, it appends to the log.
/// So it is enough to look behind the log's end, whatever its size. (The database does not tell: opening it changes it,
/// also if etcd refuses to start then.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// CRC-32C of the names of the log's files, with a zero between them.
    pub names: u32,
    /// The end of the log.
    pub end: WalEnd,
    /// CRC-32C of the 4 KiB behind that end.
    pub tail: u32,
}

impl Fingerprint {
    /// Takes the fingerprint of the log in `wal_dir`, which ends at `end`. The caller makes sure that no etcd runs.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn of(disk: &dyn Disk, wal_dir: &Path, end: WalEnd) -> io::Result<Fingerprint> {
        let names: Vec<u8> = log_names(disk, wal_dir)?.join("\0").into_bytes();
        Ok(Fingerprint {
            names: crc32c::crc32c(&names),
            tail: checksum(disk, &wal_dir.join(&end.file), end.offset)?,
            end,
        })
    }

    /// Returns true if there is a file of etcd's log in a directory, which need not exist. The guards do not count.
    ///
    /// # Errors
    ///
    /// When the directory cannot be listed.
    pub fn has_log(disk: &dyn Disk, wal_dir: &Path) -> io::Result<bool> {
        Ok(disk.exists(wal_dir)? && !log_names(disk, wal_dir)?.is_empty())
    }

    /// Returns true if etcd has appended to the log since. A log that is gone does not count: nobody can start etcd on what
    /// it left without it.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn has_changed(&self, disk: &dyn Disk, wal_dir: &Path) -> io::Result<bool> {
        if !Fingerprint::has_log(disk, wal_dir)? {
            return Ok(false);
        }
        match Fingerprint::of(disk, wal_dir, self.end.clone()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            now => Ok(now? != *self),
        }
    }
}

/// The names of etcd's files in the directory of a log, sorted; without the guards.
///
/// # Errors
///
/// When the directory cannot be listed.
fn log_names(disk: &dyn Disk, wal_dir: &Path) -> io::Result<Vec<String>> {
    let mut names = disk.list(wal_dir)?;
    names.retain(|name| wal::is_file_name(name) && !wal::GUARD_NAMES.contains(&name.as_str()));
    Ok(names)
}

/// CRC-32C of the 4 KiB at an offset of a file, or of as many as it has. Zeros that end them do not count: etcd fills up
/// the last file of its log.
fn checksum(disk: &dyn Disk, path: &Path, offset: u64) -> io::Result<u32> {
    let file = disk.open_read(path)?;
    let mut bytes = vec![0; TAIL_BYTES];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Ok(crc32c::crc32c(&bytes[..used]))
}
