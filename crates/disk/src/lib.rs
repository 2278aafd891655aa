//! Defines the interface to the file system, so that tests and simulations can replace it: every operation on
//! the files of a member goes through [`Disk`] and [`File`].
//!
//! [`RealDisk`] implements the interface with the files of the operating system. [`MemDisk`] keeps files in
//! memory, distinguishes synced data from data that is only written, and simulates errors and power cuts at
//! the points that a test chooses. [`OverlayDisk`] reads another disk and keeps all changes in memory.
//!
//! The crate knows no file format and no path of Mainstay's data directory. It does not repeat failed
//! operations: errors are returned unchanged, and the caller decides whether an error is fatal.
//!
//! Invariants:
//! - A write that returns `Ok` has written every byte. Short writes and interruptions by signals are handled
//!   here.
//! - Contents of files are guaranteed to be durable only when `sync_data` or `sync_all` has returned `Ok`,
//!   and names of files when `sync_dir` has. Directories are durable when `create_dir_all` returns.
//! - All random choices of a `MemDisk` follow from its seed, so that a run can be repeated exactly.
//! - A read that may only use cached data (`read_cached_at`) never waits for a disk.
//!
//! Start reading with [`Disk`] and [`File`]. Tests are beside the code, and in `tests/it`, where the same
//! tests run on both implementations.

mod mem_disk;
mod overlay_disk;
mod quota;
mod real_disk;

pub use mem_disk::{Fault, Lie, MemDisk, Operation, SECTOR_BYTES};
pub use overlay_disk::OverlayDisk;
pub use real_disk::RealDisk;

use std::any::Any;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// A file system, real or simulated.
pub trait Disk: Send + Sync {
    /// Creates a directory and its missing parents, accessible only to their owner. They are durable when the
    /// call returns.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file and opens it for reading and writing. It must not exist yet, and is accessible only to
    /// its owner.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading only, which also works on a read-only medium. Every write to the
    /// file fails.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Removes a file. Callers that have the file open can still use it.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns the names (not paths) of the regular files in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes all creations, removals and renames of files in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Returns true if a file or directory with this path exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Locks the file `path` exclusively, and creates it if it is missing. While the lock is held, other
    /// processes and other callers in this process cannot lock the file. Fails with `WouldBlock` if the file
    /// is already locked. The lock is held until the [`Lock`] is dropped.
    fn lock(&self, path: &Path) -> io::Result<Lock>;
    /// Locks a file as [`Disk::lock`] does, but the file must exist and may be on a read-only medium. If
    /// permissions allow it, the file is opened for writing, because NFS and CIFS require that for an
    /// exclusive lock. The file is not changed.
    fn lock_read(&self, path: &Path) -> io::Result<Lock>;
    /// Takes a shared lock of a file, which must exist. Several callers can hold a shared lock at the same
    /// time. Fails with `WouldBlock` if the file is locked exclusively, with [`Disk::lock`] or
    /// [`Disk::lock_read`]. The file is opened for reading only. NFS and CIFS need no more for a shared lock,
    /// and opening for writing would copy a file from the lower layer of an overlay file system to the upper
    /// one.
    fn lock_shared(&self, path: &Path) -> io::Result<Lock>;
    /// Returns true if two paths lead to the same file or directory. Paths that do not exist count as the
    /// same if they are spelled the same.
    fn is_same(&self, one: &Path, other: &Path) -> io::Result<bool> {
        Ok(one == other)
    }
    /// Returns true if two existing paths are on the same file system, or on file systems that probably share
    /// their free space.
    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool>;
    /// Returns the size and the free space of the file system that contains `path`. If a quota of the user or
    /// the group leaves fewer bytes free and the operating system reports the quota, the free space is that
    /// of the quota.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;
    /// Returns the type of the file system that contains `path` (such as "zfs") if file systems of this type
    /// write every change to a new place on the disk; otherwise `None`. On such a file system a write may
    /// find no space even if its range was reserved or written before.
    fn writes_elsewhere(&self, _path: &Path) -> Option<&'static str> {
        None
    }
}

/// An open file. Every read and write takes an offset, and none uses the file's cursor, so that threads can
/// share the file.
pub trait File: Send + Sync {
    /// Reads `buf.len()` bytes at `offset`, or fewer if the file ends before. Returns the number of bytes
    /// read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads exactly `buf.len()` bytes or fails with `UnexpectedEof`.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? == buf.len() {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the bytes asked for"))
        }
    }

    /// Reads up to `buf.len()` bytes without waiting for a disk, and returns the number of bytes read. The
    /// number is smaller than `buf.len()` if the next bytes are not in memory, or if the file ends; then the
    /// rest of `buf` has undefined contents.
    ///
    /// Returns 0 if the operating system cannot tell which bytes are in memory, unless the whole file system
    /// is in memory.
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns false once [`File::read_cached_at`] has found that the operating system cannot tell which
    /// bytes are in memory. From then on [`File::read_cached_at`] always returns 0.
    fn tells_cached(&self) -> bool;

    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all buffers in `pieces`, one after the other, from `offset` on. May change the slices in
    /// `pieces`, whose contents are undefined when the call returns.
    fn write_vectored_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes the contents of the file durable, and its length if it is needed to read the contents.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the contents and all attributes of the file durable.
    fn sync_all(&self) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros that take no disk space yet.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves disk space for the bytes `offset..offset + len`, and extends the file with zeros if it is
    /// shorter. If the file system cannot reserve space, only extends the file. Returns
    /// [`Reservation::NeedsZeros`] if the caller must write zeros to reserve the space.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<Reservation>;
    /// Returns an upper bound of the number of bytes in holes: bytes of the file for which no disk space is
    /// allocated, as far as the operating system reports it.
    fn hole_bytes(&self) -> io::Result<u64>;
    /// Returns the length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns true if the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns an offset at or after `offset` before which there are only holes: the bytes in between were
    /// never written and read as zeros. Returns `None` if there are only holes up to the end of the file. The
    /// bytes at the returned offset may be a hole, too, if the file system cannot tell.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;
}

/// Result of [`File::allocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reservation {
    /// The space is reserved. Also returned by a file system that cannot reserve space because it never
    /// overwrites data in place ([`Disk::writes_elsewhere`]): writing zeros would not help there.
    Made,
    /// The file system allocates space only when bytes are written, and a part of the file was not written
    /// yet. The caller must write zeros to reserve the space.
    NeedsZeros,
}

/// Returns true if an error means that no more space is available: the file system is full, or a quota is
/// used up. The error for a file that is larger than the process may create (`EFBIG`) does not count, because
/// freeing space does not help.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A lock of a file. Dropping it releases the lock.
pub struct Lock {
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    pub(crate) fn new(held: impl Any + Send + Sync) -> Lock {
        Lock { _held: Box::new(held) }
    }

    /// Combines two locks into one value, which holds both.
    #[must_use]
    pub fn and(self, other: Option<Lock>) -> Lock {
        match other {
            Some(other) => Lock::new((self, other)),
            None => self,
        }
    }
}

/// Size and free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Number of bytes that a process without privileges can still write to the file system.
    pub free_bytes: u64,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
}
