//! Detects whether etcd has run on its log again after Mainstay has taken over the member's data.

use std::io;
use std::path::Path;

use disk::Disk;

use crate::wal::{self, WalEnd};

/// Number of bytes after the end of the log that the fingerprint covers. This suffices to detect any append,
/// because the first record that etcd appends begins directly at the end.
const TAIL_BYTES: usize = 4 << 10;

/// A fingerprint of etcd's log at the time when etcd stopped. A fingerprint that is computed later differs if
/// etcd has run on the log again, and is the same if the log was only copied or moved.
///
/// An etcd member appends to its log before it votes, acknowledges a request, or applies an entry to its
/// database. So the bytes after the log's end show whether the member has done any of these, and the rest of
/// the log need not be read. (The fingerprint does not cover the database, because etcd changes the database
/// when it opens it, even if it refuses to start after that.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// CRC-32C of the names of the log's files, joined with zero bytes.
    pub names: u32,
    /// Position at which the log ends.
    pub end: WalEnd,
    /// CRC-32C of the 4 KiB after the log's end.
    pub tail: u32,
}

impl Fingerprint {
    /// Computes the fingerprint of the log in `wal_dir`, which ends at `end`. The caller ensures that no etcd
    /// process is using the log.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read.
    pub fn of(disk: &dyn Disk, wal_dir: &Path, end: WalEnd) -> io::Result<Fingerprint> {
        let names: Vec<u8> = log_names(disk, wal_dir)?.join("\0").into_bytes();
        Ok(Fingerprint {
            names: crc32c::crc32c(&names),
            tail: checksum(disk, &wal_dir.join(&end.file), end.offset)?,
            end,
        })
    }

    /// Returns true if the directory contains a file of etcd's log; false if the directory does not exist.
    /// Guard files do not count.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be listed.
    pub fn has_log(disk: &dyn Disk, wal_dir: &Path) -> io::Result<bool> {
        Ok(disk.exists(wal_dir)? && !log_names(disk, wal_dir)?.is_empty())
    }

    /// Returns true if etcd has appended to the log since the fingerprint was taken. A missing log counts as
    /// unchanged, because etcd cannot start without its log.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read.
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

/// Returns the names of etcd's log files in the directory, sorted, without the guard files.
///
/// # Errors
///
/// Returns an error if the directory cannot be listed.
fn log_names(disk: &dyn Disk, wal_dir: &Path) -> io::Result<Vec<String>> {
    let mut names = disk.list(wal_dir)?;
    names.retain(|name| wal::is_file_name(name) && !wal::GUARD_NAMES.contains(&name.as_str()));
    Ok(names)
}

/// Returns the CRC-32C of the 4 KiB at an offset of a file, or of the bytes up to the file's end. Zeros at
/// the end do not count, because etcd extends the last file of its log with zeros.
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
