//! Implements [`OverlayDisk`]: a view of another disk that can be changed without changing that disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Disk, DiskSpace, File, Lock, Reservation};

/// Unit in which changed contents are kept in memory, in bytes.
const PAGE_BYTES: usize = 4096;

/// A view of another disk. Files of the disk are opened for reading only; every change (a write, a new file, a
/// removal, a rename) is kept in memory, and is visible only through this view. Nothing of it is durable.
///
/// It is for reading the directory of a stopped member with the code of a start, which repairs what an
/// interrupted write has left: the directory may be evidence, or be on a read-only medium.
///
/// [`Disk::lock`] takes a shared lock of the file below, so that it fails while a member holds its exclusive
/// lock, and several views can read the same directory. A file that does not exist is not locked: a running
/// member would have created it.
///
/// Memory: one page of 4 KiB for each page that is written.
pub struct OverlayDisk {
    below: Arc<dyn Disk>,
    names: Mutex<Names>,
}

/// Differences between the names of the view and those of the disk below.
#[derive(Default)]
struct Names {
    /// Files that were opened or created, under their names in this view.
    files: BTreeMap<PathBuf, Arc<OverlayFile>>,
    /// Files of the disk below that were removed or renamed.
    removed: BTreeSet<PathBuf>,
    /// Directories that were created.
    dirs: BTreeSet<PathBuf>,
}

impl OverlayDisk {
    /// Returns a view of `below`, which is the same as that disk until it is changed.
    pub fn new(below: Arc<dyn Disk>) -> OverlayDisk {
        OverlayDisk { below, names: Mutex::default() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file that has this name in the view, opened.
    fn file(&self, names: &mut Names, path: &Path) -> io::Result<Arc<OverlayFile>> {
        if let Some(file) = names.files.get(path) {
            return Ok(Arc::clone(file));
        }
        if names.removed.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let below = self.below.open_read(path)?;
        let len = below.len()?;
        let contents = Contents { len, below_len: len, pages: BTreeMap::new() };
        let file = Arc::new(OverlayFile { below: Some(below), contents: Mutex::new(contents) });
        names.files.insert(path.to_path_buf(), Arc::clone(&file));
        Ok(file)
    }

    fn is_there(&self, names: &Names, path: &Path) -> io::Result<bool> {
        if names.files.contains_key(path) || names.dirs.contains(path) {
            return Ok(true);
        }
        Ok(!names.removed.contains(path) && self.below.exists(path)?)
    }
}

impl Disk for OverlayDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut names = self.names();
        let mut at = Some(dir);
        while let Some(path) = at.filter(|path| !path.as_os_str().is_empty()) {
            if self.is_there(&names, path)? {
                break;
            }
            names.dirs.insert(path.to_path_buf());
            at = path.parent();
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut names = self.names();
        if self.is_there(&names, path)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(OverlayFile { below: None, contents: Mutex::default() });
        names.files.insert(path.to_path_buf(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(self.file(&mut self.names(), path)?)
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names();
        if !self.is_there(&names, path)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        names.files.remove(path);
        names.removed.insert(path.to_path_buf());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names();
        let file = self.file(&mut names, from)?;
        names.files.remove(from);
        names.removed.insert(from.to_path_buf());
        names.files.insert(to.to_path_buf(), file);
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = self.names();
        let mut found: BTreeSet<String> = match self.below.list(dir) {
            Ok(found) => found.into_iter().filter(|name| !names.removed.contains(&dir.join(name))).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound && names.dirs.contains(dir) => {
                BTreeSet::new()
            }
            Err(error) => return Err(error),
        };
        let inside = names.files.keys().filter(|path| path.parent() == Some(dir));
        found.extend(inside.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())));
        Ok(found.into_iter().collect())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.is_there(&self.names(), path)
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        match self.below.lock_shared(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Lock::new(())),
            taken => taken,
        }
    }

    fn lock_read(&self, path: &Path) -> io::Result<Lock> {
        self.below.lock_shared(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Lock> {
        self.below.lock_shared(path)
    }

    fn is_same(&self, one: &Path, other: &Path) -> io::Result<bool> {
        self.below.is_same(one, other)
    }

    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool> {
        self.below.share_file_system(one, other)
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        self.below.space(path)
    }
}

/// A file of the view.
struct OverlayFile {
    /// File of the disk below; `None` if this file was created in the view.
    below: Option<Arc<dyn File>>,
    contents: Mutex<Contents>,
}

#[derive(Default)]
struct Contents {
    /// Length of the file in the view, in bytes.
    len: u64,
    /// Number of bytes at the beginning that are those of the file below, where no page replaces them.
    below_len: u64,
    /// Changed pages by number.
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl OverlayFile {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the file below; bytes behind those that are still visible are zeros.
    fn read_below(&self, contents: &Contents, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let visible = contents.below_len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (from_below, behind) = buf.split_at_mut(visible);
        behind.fill(0);
        match &self.below {
            Some(below) if visible > 0 => below.read_exact_at(from_below, offset),
            _ => Ok(()),
        }
    }

    /// Returns the page with this number, which is then kept in memory.
    fn page<'c>(&self, contents: &'c mut Contents, number: u64) -> io::Result<&'c mut [u8; PAGE_BYTES]> {
        if !contents.pages.contains_key(&number) {
            let mut page = Box::new([0; PAGE_BYTES]);
            self.read_below(contents, &mut page[..], number * PAGE_BYTES as u64)?;
            contents.pages.insert(number, page);
        }
        contents.pages.get_mut(&number).map(|page| &mut **page).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Returns the parts of `len` bytes from `offset` on, each within one page: the number of the page, the offset in
/// the page, and the length.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let part = (PAGE_BYTES - within).min(len - done);
        done += part;
        (part > 0).then_some((at / PAGE_BYTES as u64, within, part))
    })
}

impl File for OverlayFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let contents = self.contents();
        let len = contents.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        self.read_below(&contents, buf, offset)?;
        if contents.pages.is_empty() {
            return Ok(len);
        }
        let mut rest = buf;
        for (number, within, part) in parts(offset, len) {
            let (piece, behind) = rest.split_at_mut(part);
            if let Some(page) = contents.pages.get(&number) {
                piece.copy_from_slice(&page[within..within + part]);
            }
            rest = behind;
        }
        Ok(len)
    }

    fn read_cached_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn tells_cached(&self) -> bool {
        false
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut contents = self.contents();
        let mut rest = buf;
        for (number, within, part) in parts(offset, buf.len()) {
            let (piece, behind) = rest.split_at(part);
            self.page(&mut contents, number)?[within..within + part].copy_from_slice(piece);
            rest = behind;
        }
        contents.len = contents.len.max(offset + buf.len() as u64);
        Ok(())
    }

    fn write_vectored_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for piece in pieces {
            self.write_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut contents = self.contents();
        contents.len = len;
        contents.below_len = contents.below_len.min(len);
        let (last, within) = (len / PAGE_BYTES as u64, (len % PAGE_BYTES as u64) as usize);
        drop(contents.pages.split_off(&last.saturating_add(u64::from(within > 0))));
        // Bytes behind the end must read as zeros if the file grows again.
        if let Some(page) = contents.pages.get_mut(&last) {
            page[within..].fill(0);
        }
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<Reservation> {
        let mut contents = self.contents();
        contents.len = contents.len.max(offset.saturating_add(len));
        Ok(Reservation::Made)
    }

    fn hole_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.contents().len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let contents = self.contents();
        match &self.below {
            Some(below) if contents.pages.is_empty() && contents.below_len == contents.len => {
                below.next_data(offset)
            }
            _ => Ok((offset < contents.len).then_some(offset)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDisk;

    fn made(disk: &dyn Disk, path: &Path, bytes: &[u8]) {
        disk.create(path).expect("is created").write_at(bytes, 0).expect("is written");
    }

    fn contents(disk: &dyn Disk, path: &Path) -> Vec<u8> {
        let file = disk.open_read(path).expect("is there");
        let mut bytes = vec![0; file.len().expect("has a length") as usize];
        file.read_exact_at(&mut bytes, 0).expect("is read");
        bytes
    }

    #[test]
    fn the_disk_below_is_never_changed() {
        let below = MemDisk::new(1);
        let dir = Path::new("/d");
        below.create_dir_all(dir).expect("is made");
        let old: Vec<u8> = (0..3 * PAGE_BYTES).map(|at| at as u8).collect();
        for name in ["kept", "removed", "renamed"] {
            made(&below, &dir.join(name), &old);
        }
        let before = (below.files(), below.ops());
        let view = OverlayDisk::new(Arc::new(below.clone()));
        let kept = view.open(&dir.join("kept")).expect("opens");
        let mut expected = old.clone();
        kept.write_at(b"across two pages", PAGE_BYTES as u64 - 5).expect("is written");
        expected[PAGE_BYTES - 5..][..16].copy_from_slice(b"across two pages");
        assert_eq!(contents(&view, &dir.join("kept")), expected, "another opening sees it, too");
        kept.set_len(PAGE_BYTES as u64 + 3).expect("is cut");
        kept.write_at(b"z", 2 * PAGE_BYTES as u64).expect("is written");
        expected.truncate(PAGE_BYTES + 3);
        expected.resize(2 * PAGE_BYTES, 0);
        expected.push(b'z');
        assert_eq!(contents(&view, &dir.join("kept")), expected, "what was cut off is zeros");
        view.remove(&dir.join("removed")).expect("is removed");
        view.rename(&dir.join("renamed"), &dir.join("new")).expect("is renamed");
        made(&view, &dir.join("made"), b"m");
        view.create_dir_all(&dir.join("a/b")).expect("is made");
        made(&view, &dir.join("a/b/c"), b"c");
        assert_eq!(view.list(dir).expect("is listed"), ["kept", "made", "new"]);
        assert_eq!(view.list(&dir.join("a/b")).expect("is listed"), ["c"]);
        assert_eq!(contents(&view, &dir.join("new")), old);
        for gone in ["removed", "renamed"] {
            assert!(!view.exists(&dir.join(gone)).expect("is known"));
            assert_eq!(view.open(&dir.join(gone)).err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
        }
        made(&view, &dir.join("removed"), b"again");
        assert_eq!(contents(&view, &dir.join("removed")), b"again");
        assert_eq!((below.files(), below.ops()), before);
    }

    #[test]
    fn random_changes_read_as_those_of_a_disk() {
        let path = Path::new("/f");
        let (below, model) = (MemDisk::new(1), MemDisk::new(1));
        let mut seed = 7_u64;
        let mut draw = move |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % most
        };
        for disk in [&below, &model] {
            disk.create_dir_all(Path::new("/")).expect("is made");
            made(disk, path, &[9; 10_000]);
        }
        let view = OverlayDisk::new(Arc::new(below));
        let (changed, model_file) = (view.open(path).expect("opens"), model.open(path).expect("opens"));
        for _ in 0..300 {
            let (offset, len, byte) = (draw(20_000), draw(9_000), draw(256) as u8);
            match draw(4) {
                0 => {
                    changed.set_len(offset).expect("is set");
                    model_file.set_len(offset).expect("is set");
                }
                _ => {
                    changed.write_at(&vec![byte; len as usize], offset).expect("is written");
                    model_file.write_at(&vec![byte; len as usize], offset).expect("is written");
                }
            }
            assert!(contents(&view, path) == contents(&model, path));
        }
    }

    #[test]
    fn a_lock_that_is_held_below_is_refused_and_a_missing_one_is_not_made() {
        let below = MemDisk::new(1);
        below.create_dir_all(Path::new("/d")).expect("is made");
        let view = OverlayDisk::new(Arc::new(below.clone()));
        drop(view.lock(Path::new("/d/none")).expect("nobody runs there"));
        assert!(!below.exists(Path::new("/d/none")).expect("is known"));
        made(&below, Path::new("/d/lock"), b"");
        let held = below.lock(Path::new("/d/lock")).expect("is locked");
        let refused = view.lock(Path::new("/d/lock")).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::WouldBlock));
        drop(held);
        let both = (view.lock(Path::new("/d/lock")), view.lock(Path::new("/d/lock")));
        assert!(both.0.is_ok() && both.1.is_ok(), "readers do not exclude each other");
    }
}
