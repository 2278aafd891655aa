//! Stores the end of the log in a file outside of the log, so that a loss of data at the end is noticed when
//! the log is opened. The file contains the log's owner, and the position up to which the log was durable
//! when it was opened or closed.
//!
//! From the log alone one cannot tell whether its last records were lost or never written. So a member that
//! shuts down cleanly records where its log ends. At the next start the log must not end before this
//! position. At each start a member also records the end of the log that it found and has synced. After a
//! crash the log may be longer than that, but not shorter. Nothing is recorded while the member runs, so
//! writes have no additional cost. The disadvantage is that a loss of batches that were written since the
//! start is not noticed after a crash.
//!
//! ```text
//! <data-dir>/member/witness   little-endian
//!
//!        0  magic        8   "MNSTWIT\n"
//!        8  version      4   1
//!       12  closed       4   1 after a clean shutdown, 0 while the log is in use
//!       16  cluster id   8
//!       24  member id    8
//!       32  segment      4   the last segment in use when the record was written
//!       36  offset       4   where the records of this segment ended; 0 if no end is known
//!       40  last index   8
//!       48  crc32c       4   of bytes 0..48
//! ```
//!
//! Older releases record no end while the log is in use: they write zeros from offset 32 up to the checksum.
//! When they read a file that says the log is in use, they ignore these bytes.

use std::path::Path;

use disk::Disk;
use numbers::{ClusterId, Index, MemberId};

use crate::OpenError;
use crate::format::{u32_at, u64_at};

const MAGIC: [u8; 8] = *b"MNSTWIT\n";
const VERSION: u32 = 1;
const RECORD_BYTES: usize = 52;

/// The owner of the log, and positions up to which the log was durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownRecord {
    /// Id of the cluster to which the log belongs.
    pub cluster_id: ClusterId,
    /// Id of the member to which the log belongs.
    pub member_id: MemberId,
    /// End of the log at a clean shutdown. `None` while the log is in use, and therefore also after a crash.
    pub end: Option<LogEnd>,
    /// End of the log when it was opened; the log was durable up to this position. `None` after a clean
    /// shutdown, or if the position was not recorded.
    pub synced_to: Option<LogEnd>,
}

/// A position at which a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Sequence number of the last segment in use.
    pub segment: u32,
    /// Offset at which the records of the last segment end, in bytes from the beginning of its file.
    pub offset: u32,
    /// Index of the last entry of the log.
    pub last_index: Index,
}

impl ShutdownRecord {
    /// Name of the record's file in a member's directory. The name dates from the first release and cannot
    /// change, because existing directories have the file and messages mention it.
    pub const FILE_NAME: &str = "witness";

    /// Reads the record from this file; returns `None` if the file does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`OpenError::Damaged`] if the file does not contain a valid record. The log itself may still
    /// be sound.
    pub fn read(disk: &dyn Disk, path: &Path) -> Result<Option<ShutdownRecord>, OpenError> {
        let io = |error| OpenError::io("read", path, error);
        if !disk.exists(path).map_err(io)? {
            return Ok(None);
        }
        let mut bytes = [0; RECORD_BYTES + 1];
        let read = disk.open(path).map_err(io)?.read_at(&mut bytes, 0).map_err(io)?;
        ShutdownRecord::decode(&bytes[..read]).map(Some).map_err(|why| OpenError::damaged(path, 0, why))
    }

    /// Replaces the record durably and atomically: writes a new file and renames it. If the disk is too full
    /// for a new file, the existing file is overwritten in place. That is atomic, too, because the record
    /// lies in one sector.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn write(&self, disk: &dyn Disk, path: &Path) -> Result<(), OpenError> {
        let making = path.with_extension("tmp");
        let io = |error| OpenError::io("write", &making, error);
        if disk.exists(&making).map_err(io)? {
            disk.remove(&making).map_err(io)?;
        }
        let made = disk.create(&making).and_then(|file| {
            file.write_at(&self.encode(), 0)?;
            file.sync_all()
        });
        match made {
            Err(error) if disk::is_full(&error) => {
                // An error is ignored: if the removal fails, the next call removes the file before it creates
                // a new one.
                let _ = disk.remove(&making);
                if !disk.exists(path).map_err(io)? {
                    return Err(io(error));
                }
                let file = disk.open(path).map_err(io)?;
                return file.write_at(&self.encode(), 0).and_then(|()| file.sync_all()).map_err(io);
            }
            made => made.map_err(io)?,
        }
        disk.rename(&making, path).map_err(|error| OpenError::io("rename to", path, error))?;
        let dir = path.parent().unwrap_or(path);
        disk.sync_dir(dir).map_err(|error| OpenError::io("sync", dir, error))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.end.is_some()).to_le_bytes());
        bytes.extend_from_slice(&self.cluster_id.0.to_le_bytes());
        bytes.extend_from_slice(&self.member_id.0.to_le_bytes());
        let end = self.end.or(self.synced_to);
        let end = end.unwrap_or(LogEnd { segment: 0, offset: 0, last_index: Index(0) });
        bytes.extend_from_slice(&end.segment.to_le_bytes());
        bytes.extend_from_slice(&end.offset.to_le_bytes());
        bytes.extend_from_slice(&end.last_index.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<ShutdownRecord, &'static str> {
        if bytes.len() != RECORD_BYTES {
            return Err("the file has a wrong length for a witness");
        }
        if bytes[..8] != MAGIC {
            return Err("the file has a wrong header for a witness");
        }
        let (body, crc) = bytes.split_at(RECORD_BYTES - 4);
        if crc32c::crc32c(body) != u32_at(crc, 0) {
            return Err("the witness's checksum does not match");
        }
        if u32_at(body, 8) != VERSION {
            return Err("the witness has a format version that this release does not know");
        }
        let end = LogEnd {
            segment: u32_at(body, 32),
            offset: u32_at(body, 36),
            last_index: Index(u64_at(body, 40)),
        };
        let closed = u32_at(body, 12) != 0;
        Ok(ShutdownRecord {
            cluster_id: ClusterId(u64_at(body, 16)),
            member_id: MemberId(u64_at(body, 24)),
            end: closed.then_some(end),
            synced_to: (!closed && end.offset > 0).then_some(end),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_or_is_refused() {
        let end = LogEnd { segment: 7, offset: 8192, last_index: Index(99) };
        for (end, synced_to) in [(None, None), (Some(end), None), (None, Some(end))] {
            let (cluster_id, member_id) = (ClusterId(1), MemberId(2));
            let record = ShutdownRecord { cluster_id, member_id, end, synced_to };
            let bytes = record.encode();
            assert_eq!(ShutdownRecord::decode(&bytes), Ok(record));
            for bit in 0..8 * bytes.len() {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(ShutdownRecord::decode(&damaged).is_err(), "bit {bit}");
            }
            for len in 0..bytes.len() {
                assert!(ShutdownRecord::decode(&bytes[..len]).is_err());
            }
        }
    }
}
