//! The file system interface: every file operation of Mainstay goes through [`Disk`] and [`File`].
//!
//! Parts: a pair of small, object-safe traits; [`RealDisk`], which uses the operating system's files; and
//! [`MemDisk`], which keeps files in memory, distinguishes synced data from merely written data, and fails or
//! loses power where a test asks for it.
//!
//! The crate knows no file format, no path of Mainstay's data directory, and no retry. Errors are returned
//! unchanged; the caller decides whether an error is fatal.
//!
//! Invariants:
//! - A write call that returns `Ok` has written every byte (short writes and interruptions are handled here).
//! - Nothing is durable before `sync_data`/`sync_all` (contents) and `sync_dir` (names) have returned `Ok`;
//!   directories themselves are durable when `create_dir_all` returns.
//! - `MemDisk` derives all its randomness from the seed that it was given.
//! - A read of cached data never waits for a device (`read_cached_at`).
//!
//! Start reading with [`Disk`] and [`File`]. Tests are beside the code, and in `tests/it`, where the same test
//! body runs on both disks.

mod mem_disk;
mod quota;
mod real_disk;

pub use mem_disk::{Fault, Lie, MemDisk, Operation, SECTOR_BYTES};
pub use real_disk::RealDisk;

use std::any::Any;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// A file system, real or simulated.
pub trait Disk: Send + Sync {
    /// Creates a directory and its missing parents, accessible to their owner only; they are durable on
    /// return.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file that must not exist yet, open for reading and writing, accessible to its owner only.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading only, as a read-only medium requires. Every write to the file
    /// fails.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Removes a file's name. Callers that have the file open can still read it.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Names (not paths) of the regular files in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes creations, removals and renames in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Returns true if a file or directory with this path exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Locks `path` exclusively, against other processes and other callers in this process; creates the file
    /// if it is missing. Fails with `WouldBlock` if it is locked. The lock is held until the [`Lock`] is
    /// dropped.
    fn lock(&self, path: &Path) -> io::Result<Lock>;
    /// Locks a file as [`Disk::lock`] does, but the file must exist and may be on a read-only medium. The
    /// file is opened for writing where that is allowed, because NFS and CIFS require it, and is not changed.
    fn lock_read(&self, path: &Path) -> io::Result<Lock>;
    /// Takes a shared lock of a file, which must exist. Other callers can hold the lock in the same way.
    /// Fails with `WouldBlock` if the file is locked exclusively, with [`Disk::lock`] or [`Disk::lock_read`].
    /// The file is opened for reading only: that is enough for NFS and CIFS too, and does not copy a file up
    /// from the lower layer of an overlay.
    fn lock_shared(&self, path: &Path) -> io::Result<Lock>;
    /// Returns true if two paths lead to the same file or directory. Paths that do not exist are the same if
    /// their texts are equal.
    fn is_same(&self, one: &Path, other: &Path) -> io::Result<bool> {
        Ok(one == other)
    }
    /// Returns true if two existing paths are on the same file system.
    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool>;
    /// Returns size and free space of the file system that holds `path`. If a quota of the user or the group
    /// leaves fewer bytes free, that number is returned, where the operating system reports it.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;
    /// Returns the name of the kind of file system that holds `path` (such as "zfs") if that kind writes
    /// every change to a new place. On such a file system a write may find no space even if its bytes were
    /// reserved or written before.
    fn writes_elsewhere(&self, _path: &Path) -> Option<&'static str> {
        None
    }
}

/// An open file. Every call takes an offset, and no call depends on a cursor, so threads can share the file.
pub trait File: Send + Sync {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads exactly `buf.len()` bytes or fails with `UnexpectedEof`.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? == buf.len() {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the bytes asked for"))
        }
    }

    /// Reads up to `buf.len()` bytes without waiting for a device, and returns the number of bytes read. The
    /// number is smaller than `buf.len()` if the following bytes are not in memory or if the file ends there;
    /// the rest of `buf` then has undefined contents.
    ///
    /// Returns 0 if the operating system cannot tell what is in memory, unless the file system has no device
    /// to wait for.
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns false once [`File::read_cached_at`] has found that the operating system cannot tell what is in
    /// memory; from then on that call always returns 0.
    fn tells_cached(&self) -> bool;

    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all pieces, one after the other, from `offset` on. The call advances the slice `pieces`, which
    /// is empty on return.
    fn write_vectored_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes the contents durable, and the length if reading the contents requires it.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the contents and all attributes of the file durable.
    fn sync_all(&self) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros that take no disk space yet.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves disk space for `offset..offset + len`, and extends the file with zeros if it is shorter. If
    /// the file system cannot reserve space, only extends the file and returns [`Reservation::NeedsZeros`]
    /// where zeros must be written.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<Reservation>;
    /// Upper bound of the number of bytes of the file that have no disk space, as far as the operating system
    /// reports it.
    fn hole_bytes(&self) -> io::Result<u64>;
    /// Returns the length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns true if the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns the first offset, at or after `offset`, of bytes that may have been written. Returns `None` if
    /// the rest of the file was never written and reads as zeros. The returned offset may be too low, but
    /// never too high.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;
}

/// Result of [`File::allocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reservation {
    /// The space is reserved. Also returned if the file system never overwrites in place and cannot reserve
    /// space ([`Disk::writes_elsewhere`]): writing zeros would not reserve space there.
    Made,
    /// The file system reserves space only by writing, and part of the range has not been written yet.
    NeedsZeros,
}

/// Returns true if an error means that no more space is available: the file system is full, or a quota is
/// used up. The error for a file larger than the process may create (`EFBIG`) does not count: freeing space
/// does not help.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A held lock; dropping it releases the lock.
pub struct Lock {
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    pub(crate) fn new(held: impl Any + Send + Sync) -> Lock {
        Lock { _held: Box::new(held) }
    }

    /// Combines two locks into one, which holds both.
    #[must_use]
    pub fn and(self, other: Option<Lock>) -> Lock {
        match other {
            Some(other) => Lock::new((self, other)),
            None => self,
        }
    }
}

/// Space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Number of bytes that an unprivileged process can still write.
    pub free_bytes: u64,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
}
