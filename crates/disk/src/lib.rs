//! The file seam: everything Mainstay does to a file system goes through [`Disk`] and [`File`].
//!
//! What it is: a small, object-safe pair of traits; [`RealDisk`], which is the operating system's files; and
//! [`MemDisk`], which keeps files in memory, tells synced data from merely written data, and fails or loses
//! power where a test asks for it.
//!
//! What it does not know: any file format, any path of Mainstay's data directory, any retry. An error is handed
//! up as it came; whether it is fatal is for the caller to say.
//!
//! Invariants:
//! - A write call that returns `Ok` has written every byte (short writes and interruptions are dealt with here).
//! - Nothing is durable before `sync_data`/`sync_all` (contents) and `sync_dir` (names) have returned `Ok`;
//!   directories themselves are durable when `create_dir_all` returns.
//! - `MemDisk` draws all its randomness from the seed it was given.
//! - A read of what is cached never waits for a device (`read_cached_at`).
//!
//! Tests: beside the code, and `tests/it`, which runs one body over both disks.

mod mem_disk;
mod quota;
mod real_disk;

pub use mem_disk::{Fault, Lie, MemDisk, Operation, SECTOR_BYTES};
pub use real_disk::RealDisk;

use std::any::Any;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// A file system, or what a test gives for one.
pub trait Disk: Send + Sync {
    /// Creates a directory and its missing parents, for their owner alone; they are durable on return.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file that must not exist yet, open for reading and writing, for its owner alone.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading only, as a medium allows that takes no writes. Every write to it fails.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Removes a file's name. A holder of the open file can go on reading it.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Names (not paths) of the plain files in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes creations, removals and renames in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Returns true if a file or directory of that name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Locks `path` (created if missing) against every other process and every other caller; fails with
    /// `WouldBlock` when it is taken. Held until the [`Lock`] is dropped.
    fn lock(&self, path: &Path) -> io::Result<Lock>;
    /// Locks a file as [`Disk::lock`] does; the file must exist and may be on a read-only medium. It is opened for writing where
    /// that is allowed, as NFS and CIFS want it, and not changed.
    fn lock_read(&self, path: &Path) -> io::Result<Lock>;
    /// Locks a file, which must exist, against everybody who locks it alone, with [`Disk::lock`] or [`Disk::lock_read`]; others may
    /// hold it as this one does. Fails with `WouldBlock` when somebody holds it alone. It is opened for reading only, which is
    /// enough for NFS and CIFS, too, and leaves the lower layer of an overlay in use.
    fn lock_shared(&self, path: &Path) -> io::Result<Lock>;
    /// Returns true if two paths lead to the same file or directory. Paths that do not exist are the same if their texts are.
    fn is_same(&self, one: &Path, other: &Path) -> io::Result<bool> {
        Ok(one == other)
    }
    /// Returns true if two paths, which exist, lie on one file system.
    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool>;
    /// Bytes of the file system that holds `path`. Where a quota of the user or the group leaves fewer free, those count, if the
    /// system tells.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;
    /// Returns the name of the file system that holds `path` if it never overwrites in place: there bytes that are reserved, or
    /// were written before, do not make sure that a write to them finds room.
    fn writes_elsewhere(&self, _path: &Path) -> Option<&'static str> {
        None
    }
}

/// An open file. All calls take offsets, so that threads may share it.
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

    /// Reads up to `buf.len()` bytes, as far as they need no wait for a device, and returns how many: fewer if those behind
    /// are not in memory, or the file ends there. The rest of `buf` then holds anything.
    ///
    /// Where the system cannot tell, it returns 0, unless the file system has no device to wait for.
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns false once [`File::read_cached_at`] has found that the system cannot tell what is in memory: then that returns 0
    /// every time.
    fn tells_cached(&self) -> bool;

    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all the pieces, one after the other, from `offset` on. The slice of pieces is used up.
    fn write_vectored_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes contents (and a length needed to read them) durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes contents and all of the file's attributes durable.
    fn sync_all(&self) -> io::Result<()>;
    /// Cuts the file, or extends it with zeros that take no room yet.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves room for `offset..offset + len`, extending the file with zeros if it is shorter. Where the file
    /// system cannot reserve, it only extends, and says so.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<Reservation>;
    /// Bytes of the file for which no room is reserved, as far as the system tells: more rather than fewer.
    fn hole_bytes(&self) -> io::Result<u64>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns true if the file holds no byte.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The first offset at or after `offset` that may hold something other than never-written zeros; `None`
    /// when nothing but such zeros follows. An answer that is too early is allowed, one too late is not.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;
}

/// Says if room that was asked for is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reservation {
    /// The room is reserved, or nothing reserves any on this file system ([`Disk::writes_elsewhere`]).
    Made,
    /// The file system reserves nothing until something is written, and this part is not all written yet.
    NeedsZeros,
}

/// Returns true if an error says that no more bytes are to be had: the file system is full, or a quota is used up. A file that would
/// be larger than the process may make one (`EFBIG`) is another matter: no room that is made helps it.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A held lock; dropping it lets go.
pub struct Lock {
    _held: Box<dyn Any + Send + Sync>,
}

impl Lock {
    pub(crate) fn new(held: impl Any + Send + Sync) -> Lock {
        Lock { _held: Box::new(held) }
    }

    /// Returns one lock that holds both.
    #[must_use]
    pub fn and(self, other: Option<Lock>) -> Lock {
        match other {
            Some(other) => Lock::new((self, other)),
            None => self,
        }
    }
}

/// Room on a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that an unprivileged process may still use.
    pub free_bytes: u64,
    /// Size of the file system.
    pub total_bytes: u64,
}
