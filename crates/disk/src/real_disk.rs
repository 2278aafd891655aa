//! Implements [`Disk`] and [`File`] with the files of the operating system.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::quota;
use crate::{Disk, DiskSpace, File, Lock, Reservation};

/// Maximum number of buffers that Linux accepts in one vectored write (`UIO_MAXIOV`).
const PIECES_PER_CALL_MAX: usize = 1024;

/// Mode of new directories: accessible only to the owner.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The real file system. The type has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        // Collect the directories that are missing. The parent of each must be synced later, to make the new
        // names durable.
        let mut missing = Vec::new();
        let mut at = Some(dir);
        while let Some(path) = at {
            if path.as_os_str().is_empty() || path.try_exists()? {
                break;
            }
            missing.push(path.to_path_buf());
            at = path.parent();
        }
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
        for path in missing.iter().rev() {
            match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent)?,
                _ => self.sync_dir(Path::new("."))?,
            }
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(path)?;
        Ok(RealFile::shared(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(RealFile::shared(file))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(RealFile::shared(fs::File::open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let file = if path.is_dir() {
            fs::File::open(path)?
        } else {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(path)?
        };
        hold(file, fs::File::try_lock)
    }

    fn lock_read(&self, path: &Path) -> io::Result<Lock> {
        // Open the file for writing if possible, because network file systems grant an exclusive lock only on
        // such a file.
        let file = OpenOptions::new().read(true).write(true).open(path).or_else(|_| fs::File::open(path))?;
        hold(file, fs::File::try_lock)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Lock> {
        hold(fs::File::open(path)?, fs::File::try_lock_shared)
    }

    fn is_same(&self, one: &Path, other: &Path) -> io::Result<bool> {
        let found = |path| match fs::metadata(path) {
            Ok(found) => Ok(Some((found.dev(), found.ino()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let (first, second) = (found(one)?, found(other)?);
        Ok(one == other || first.is_some() && first == second)
    }

    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool> {
        let is_one_device = fs::metadata(one)?.dev() == fs::metadata(other)?.dev();
        // Subvolumes of one pool (btrfs, ZFS) are separate devices, but share their space. So two devices
        // with the same size and free space count as one.
        Ok(is_one_device || self.space(one)? == self.space(other)?)
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        let c_path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: `statvfs` is a plain C struct of integers, for which all zeros is a valid value; the path
        // is a NUL-terminated string that outlives the call, and the call writes only into `found`.
        let found = unsafe {
            let mut found: libc::statvfs = std::mem::zeroed();
            if libc::statvfs(c_path.as_ptr(), &mut found) != 0 {
                return Err(io::Error::last_os_error());
            }
            found
        };
        let unit = found.f_frsize as u64;
        let free_bytes = (found.f_bavail as u64).saturating_mul(unit);
        Ok(DiskSpace {
            free_bytes: free_bytes.min(quota::bytes_left(path).unwrap_or(u64::MAX)),
            total_bytes: (found.f_blocks as u64).saturating_mul(unit),
        })
    }

    fn writes_elsewhere(&self, path: &Path) -> Option<&'static str> {
        let file = fs::File::open(path).ok()?;
        kind_of(&file).and_then(writes_elsewhere)
    }
}

fn hold(file: fs::File, lock: impl FnOnce(&fs::File) -> Result<(), fs::TryLockError>) -> io::Result<Lock> {
    lock(&file).map_err(|error| match error {
        fs::TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::WouldBlock, "locked by another process")
        }
        fs::TryLockError::Error(error) => error,
    })?;
    Ok(Lock::new(HeldFile(file)))
}

/// A locked file. Dropping it releases the lock.
struct HeldFile(fs::File);

impl Drop for HeldFile {
    fn drop(&mut self) {
        // Release the lock explicitly. Closing the file might not release it immediately: if another thread
        // has just forked a process, that process shares the open file and its lock until it executes its
        // program.
        let _ = self.0.unlock();
    }
}

struct RealFile {
    file: fs::File,
    cached_reads: AtomicU8,
}

/// State of [`RealFile::cached_reads`]: [`File::read_cached_at`] uses the system call for cached reads, which
/// has not failed so far.
const ASK: u8 = 0;
/// State of [`RealFile::cached_reads`]: [`File::read_cached_at`] uses normal reads. The operating system
/// cannot tell which bytes are cached, but the file system is in memory, so a read never waits for a disk.
const READ: u8 = 1;
/// State of [`RealFile::cached_reads`]: [`File::read_cached_at`] always returns 0, because the operating
/// system cannot tell which bytes are cached.
const NEVER: u8 = 2;

impl RealFile {
    fn shared(file: fs::File) -> Arc<dyn File> {
        Arc::new(RealFile { file, cached_reads: AtomicU8::new(ASK) })
    }

    /// Returns true if the file is on a file system that exists only in memory.
    fn is_in_memory(&self) -> bool {
        const TMPFS: i64 = 0x0102_1994;
        const RAMFS: i64 = 0x8584_58f6;
        matches!(kind_of(&self.file), Some(TMPFS | RAMFS))
    }

    /// Extends the file to the length `end`, if it is shorter, on a file system that cannot reserve space.
    fn extend(&self, end: u64) -> io::Result<Reservation> {
        if self.len()? < end {
            self.set_len(end)?;
        }
        let is_there = kind_of(&self.file).and_then(writes_elsewhere).is_some() || self.hole_bytes()? == 0;
        Ok(if is_there { Reservation::Made } else { Reservation::NeedsZeros })
    }
}

/// Returns the magic number of the type of the file system that contains a file (`linux/magic.h`).
fn kind_of(file: &fs::File) -> Option<i64> {
    // SAFETY: `statfs` is a plain C struct of integers, for which all zeros is a valid value; the descriptor
    // is open as long as `file` is, and the call writes only into `found`.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &mut found) == 0).then_some(found.f_type as i64)
    }
}

/// Returns the name of the type of a file system, given by its magic number, if that type never overwrites
/// data in place.
fn writes_elsewhere(kind: i64) -> Option<&'static str> {
    match kind {
        0x9123_683e => Some("btrfs"),
        0x2fc1_2fc1 => Some("zfs"),
        0xca45_1a4e => Some("bcachefs"),
        0xf2f5_2010 => Some("f2fs"),
        0x3434 => Some("nilfs2"),
        _ => None,
    }
}

/// Size in bytes of the smallest memory pages. The size of larger pages is a multiple of it.
const PAGE_BYTES: usize = 4096;

/// Returns the longest prefix of these buffers that ends at a page boundary of the file if it is written at
/// `offset`; all of them if there is no such prefix. If the process is killed between two calls for one long
/// write, only whole pages have been written, as if it had been killed during a single call. Otherwise the
/// log could find a write that ends within a sector, and report it as damage.
fn whole_pages(pieces: &[IoSlice<'_>], offset: u64) -> Vec<libc::iovec> {
    let vector = |piece: &IoSlice<'_>| libc::iovec {
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    };
    let mut part: Vec<libc::iovec> = pieces.iter().map(vector).collect();
    let bytes: usize = part.iter().map(|piece| piece.iov_len).sum();
    let mut beyond = ((offset % PAGE_BYTES as u64) as usize + bytes) % PAGE_BYTES;
    if beyond >= bytes {
        // No page ends within these thousand buffers, so write all of them. This does not happen for the log,
        // whose buffers are longer.
        return part;
    }
    while let Some(last) = part.last_mut().filter(|_| beyond > 0) {
        if last.iov_len > beyond {
            last.iov_len -= beyond;
            break;
        }
        beyond -= last.iov_len;
        part.pop();
    }
    part
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.cached_reads.load(Ordering::Relaxed) {
            ASK => {}
            READ => return self.read_at(buf, offset),
            _ => return Ok(0),
        }
        let at = libc::off_t::try_from(offset)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "offset beyond the file system's"))?;
        let piece = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        loop {
            // SAFETY: the only buffer is `buf`, which is borrowed for writing for the whole call; the
            // descriptor is open as long as `self` is.
            let read = unsafe { libc::preadv2(self.file.as_raw_fd(), &piece, 1, at, libc::RWF_NOWAIT) };
            if read >= 0 {
                // Fewer bytes than requested mean that the next ones are not cached, or that the file ends.
                return Ok(read as usize);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => return Ok(0),
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    self.cached_reads
                        .store(if self.is_in_memory() { READ } else { NEVER }, Ordering::Relaxed);
                    return self.read_cached_at(buf, offset);
                }
                _ => return Err(error),
            }
        }
    }

    fn tells_cached(&self) -> bool {
        self.cached_reads.load(Ordering::Relaxed) != NEVER
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn write_vectored_at(&self, mut pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let part =
                (pieces.len() > PIECES_PER_CALL_MAX).then(|| whole_pages(&pieces[..PIECES_PER_CALL_MAX], at));
            let (first, count) = match &part {
                Some(part) => (part.as_ptr(), part.len()),
                None => (pieces.as_ptr().cast::<libc::iovec>(), pieces.len()),
            };
            let offset = libc::off_t::try_from(at).map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidInput, "offset beyond the file system's")
            })?;
            // SAFETY: `IoSlice` has the layout of `iovec`. `first` points to `count` initialized values, in
            // `pieces` or in `part`, which refer to memory that is borrowed for the whole call; the
            // descriptor is open as long as `self` is.
            let written =
                unsafe { libc::pwritev(self.file.as_raw_fd(), first, count as libc::c_int, offset) };
            match written {
                0 => return Err(io::Error::new(io::ErrorKind::WriteZero, "the file accepted no bytes")),
                n if n > 0 => {
                    at += n as u64;
                    IoSlice::advance_slices(&mut pieces, n as usize);
                }
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<Reservation> {
        let out_of_range = || io::Error::new(io::ErrorKind::InvalidInput, "range beyond the file system's");
        let end = offset.checked_add(len).ok_or_else(out_of_range)?;
        let start_c = libc::off_t::try_from(offset).map_err(|_| out_of_range())?;
        let len_c = libc::off_t::try_from(len).map_err(|_| out_of_range())?;
        loop {
            // SAFETY: the arguments are plain integers; the descriptor is open as long as `self` is.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, start_c, len_c) } == 0 {
                return Ok(Reservation::Made);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => return self.extend(end),
                _ => return Err(error),
            }
        }
    }

    fn hole_bytes(&self) -> io::Result<u64> {
        let found = self.file.metadata()?;
        // The unit of `st_blocks` is always 512 bytes, even if the blocks of the file system have another
        // size.
        Ok(found.len().saturating_sub(found.blocks().saturating_mul(512)))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let start = libc::off_t::try_from(offset)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "offset beyond the file system's"))?;
        // SAFETY: the arguments are plain integers; the descriptor is open as long as `self` is. The call
        // moves the file's cursor, which is not used: every read and write has an offset.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), start, libc::SEEK_DATA) };
        if found >= 0 {
            return Ok(Some(found as u64));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENXIO) => Ok(None),
            // The file system cannot tell where there are holes, so all bytes count as data.
            Some(libc::EINVAL | libc::EOPNOTSUPP) => {
                Ok(if offset < self.len()? { Some(offset) } else { None })
            }
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn where_nothing_can_be_reserved_zeros_make_the_room_real() {
        let dir = TempDir::new("disk-holes");
        let path = dir.join("file");
        let file = fs::File::create(&path).expect("is made");
        let file = RealFile { file, cached_reads: AtomicU8::new(ASK) };
        assert_eq!(file.extend(1 << 20).expect("is extended"), Reservation::NeedsZeros);
        assert_eq!((file.len().expect("is known"), file.hole_bytes().expect("is known")), (1 << 20, 1 << 20));
        file.write_at(&[0; 1 << 20], 0).expect("is written");
        file.sync_data().expect("is synced");
        assert_eq!(file.extend(1 << 20).expect("is there"), Reservation::Made);
        assert_eq!(writes_elsewhere(0xef53), None, "ext4");
        assert_eq!(writes_elsewhere(0x9123_683e), Some("btrfs"));
    }

    #[test]
    fn a_lock_that_was_let_go_is_free_although_a_copy_of_its_file_is_open() {
        let dir = TempDir::new("disk-copied-lock");
        let file = fs::File::create(dir.join("lock")).expect("is made");
        // A duplicate descriptor, like the one in a forked process that has not executed its program yet.
        let copy = file.try_clone().expect("is copied");
        let held = hold(file, fs::File::try_lock).expect("is free");
        assert!(RealDisk.lock(&dir.join("lock")).is_err());
        drop(held);
        RealDisk.lock(&dir.join("lock")).expect("is free again");
        drop(copy);
    }

    #[test]
    fn more_pieces_than_a_call_takes_are_cut_between_pages() {
        let dir = TempDir::new("disk-pieces");
        let file = RealDisk.create(&dir.join("file")).expect("is made");
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        let mut pieces: Vec<IoSlice<'_>> = bytes.chunks(37).map(IoSlice::new).collect();
        assert!(pieces.len() > 2 * PIECES_PER_CALL_MAX);
        let part = whole_pages(&pieces[..PIECES_PER_CALL_MAX], 100);
        let part_bytes: usize = part.iter().map(|piece| piece.iov_len).sum();
        assert_eq!((100 + part_bytes) % PAGE_BYTES, 0);
        assert!(part_bytes <= PIECES_PER_CALL_MAX * 37 && part_bytes + PAGE_BYTES > PIECES_PER_CALL_MAX * 37);
        file.write_vectored_at(&mut pieces, 100).expect("is written");
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 100).expect("is read");
        assert_eq!(read, bytes);
    }

    #[test]
    fn a_file_says_so_if_nobody_can_tell_what_of_it_is_cached() {
        let dir = TempDir::new("disk-cached");
        let path = dir.join("file");
        fs::write(&path, b"abcd").expect("is written");
        for (state, is_told, reads) in [(READ, true, true), (NEVER, false, false)] {
            let file = fs::File::open(&path).expect("is there");
            let file = RealFile { file, cached_reads: AtomicU8::new(state) };
            let mut bytes = [0; 4];
            let read = file.read_cached_at(&mut bytes, 0).expect("is read");
            assert_eq!(read, if reads { 4 } else { 0 });
            assert_eq!((&bytes == b"abcd", file.tells_cached()), (reads, is_told));
        }
    }
}
