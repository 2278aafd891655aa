//! Simulates a disk in memory, with power cuts, errors and lies of the disk, for tests and simulations.

mod contents;
mod faults;
mod files;
mod lies;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stdx::Random;

use contents::{Node, PAGE_BYTES};
use faults::Planned;
pub use faults::{Fault, Operation};
use files::MemFile;
pub use lies::Lie;

use crate::{DiskSpace, File};

/// Size of a sector in bytes. A power cut keeps or loses an unsynced sector as a whole.
pub const SECTOR_BYTES: usize = 512;

/// A disk in memory. Clones share the same disk.
///
/// Reads return data as soon as it is written, as from the page cache. [`MemDisk::crash`] simulates a power
/// cut. For each sector that was not synced, a random choice that follows from the seed decides whether the
/// sector keeps the new contents, gets the old ones back, or is zeroed. Only a sector that was overwritten as
/// a whole is zeroed. A partly overwritten one is not, because a part of its contents had been synced before,
/// and a disk writes a sector completely or not at all. Of the changes of names that were not synced, a
/// random prefix survives, as on a journaling file system, or a random subset if
/// [`MemDisk::keep_names_in_any_order`] was called.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
}

struct State {
    random: Random,
    /// Incremented at every crash, so that files opened before the crash fail afterwards.
    epoch: u64,
    nodes: HashMap<u64, Node>,
    node_next: u64,
    names: BTreeMap<PathBuf, u64>,
    names_durable: BTreeMap<PathBuf, u64>,
    names_pending: Vec<NameChange>,
    /// True if a crash keeps a random subset of the pending name changes, not a prefix.
    names_in_any_order: bool,
    dirs: BTreeSet<PathBuf>,
    /// Number of holders of a shared lock; 0 if the lock is exclusive.
    locks: BTreeMap<PathBuf, usize>,
    ops: u64,
    reads: u64,
    /// Number of reads of cached data, out of 1000, that find nothing cached, and the generator that decides
    /// which ones.
    misses: (u64, Random),
    cached_bytes_max: usize,
    /// False on a file system that cannot tell which bytes are cached. Every call of `read_cached_at` then
    /// returns 0.
    tells_cached: bool,
    fault: Option<(u64, Fault)>,
    planned: Vec<Planned>,
    /// The planned lie of the disk: its kind, the number of writes before the first one that the disk lies
    /// about, and the number of writes that it lies about.
    lie: Option<(Lie, u64, u64)>,
    /// True if power was lost and [`MemDisk::crash`] was not called yet.
    dark: bool,
    down: Option<i32>,
    capacity_bytes: Option<u64>,
    /// Limit of a quota in bytes, which the reported free space does not show.
    quota_bytes: Option<u64>,
    /// False if the simulated file system cannot reserve space, so that only written pages of a file take
    /// space.
    reserves: bool,
    /// A directory that is a separate file system, and that file system's size in bytes.
    mounted: Option<(PathBuf, u64)>,
}

enum NameChange {
    Set(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl MemDisk {
    /// Creates an empty disk. `seed` determines what a crash loses, and all other random choices.
    pub fn new(seed: u64) -> MemDisk {
        MemDisk {
            state: Arc::new(Mutex::new(State {
                random: Random::new(seed),
                epoch: 0,
                nodes: HashMap::new(),
                node_next: 0,
                names: BTreeMap::new(),
                names_durable: BTreeMap::new(),
                names_pending: Vec::new(),
                names_in_any_order: false,
                dirs: BTreeSet::new(),
                locks: BTreeMap::new(),
                ops: 0,
                reads: 0,
                misses: (0, Random::new(seed)),
                cached_bytes_max: usize::MAX,
                tells_cached: true,
                fault: None,
                planned: Vec::new(),
                lie: None,
                dark: false,
                down: None,
                capacity_bytes: None,
                quota_bytes: None,
                reserves: true,
                mounted: None,
            })),
        }
    }

    /// Returns the length of a file in bytes without the zero bytes at its end.
    ///
    /// # Errors
    ///
    /// Returns an error if the file does not exist.
    pub fn used_len(&self, path: &Path) -> io::Result<u64> {
        let state = self.state();
        let id = state.lookup(path)?;
        let node = state.nodes.get(&id).ok_or_else(|| errno(libc::ENOENT))?;
        let mut data = node.data.as_slice();
        // Skip whole sectors of zeros first, which is faster: most of a prepared file is zeros.
        while let Some((rest, last)) = data.split_last_chunk::<SECTOR_BYTES>()
            && *last == [0; SECTOR_BYTES]
        {
            data = rest;
        }
        Ok(data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1))
    }

    /// Returns true if a power cut would preserve this byte of a file: its value was synced, and so was the
    /// name of the file.
    pub fn is_synced(&self, path: &Path, offset: u64) -> bool {
        let state = self.state();
        let durable = state.names_durable.get(path) == state.names.get(path);
        let node = state.names.get(path).and_then(|id| state.nodes.get(id));
        durable
            && node.is_some_and(|node| {
                let number = offset / SECTOR_BYTES as u64;
                offset < node.len_durable
                    && !node.undo.contains_key(&number)
                    && !node.doomed.contains_key(&number)
            })
    }

    /// Returns all files with their lengths in bytes, sorted by path.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state();
        let len = |id: &u64| state.nodes.get(id).map_or(0, |node| node.data.len() as u64);
        state.names.iter().map(|(path, id)| (path.clone(), len(id))).collect()
    }

    /// Sets how many of 1000 calls of [`File::read_cached_at`] find nothing cached. Initially none does: all
    /// files are completely cached.
    pub fn set_misses_per_mille(&self, misses: u64) {
        self.state().misses.0 = misses;
    }

    /// Sets the maximum number of bytes that one call of [`File::read_cached_at`] returns. Further bytes
    /// count as not cached.
    pub fn set_cached_bytes_max(&self, bytes: usize) {
        self.state().cached_bytes_max = bytes;
    }

    /// Sets whether the disk can tell which bytes are cached ([`File::tells_cached`]); initially it can. If
    /// it cannot, [`File::read_cached_at`] always returns 0.
    pub fn set_tells_cached(&self, tells: bool) {
        self.state().tells_cached = tells;
    }

    /// Returns the number of reads since the disk was created.
    pub fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Returns the number of operations that change the disk, counted since the disk was created or last
    /// crashed.
    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Makes crashes keep a random subset of the unsynced name changes: a later change may survive although
    /// an earlier one is lost. Real file systems do not guarantee an order either.
    pub fn keep_names_in_any_order(&self) {
        self.state().names_in_any_order = true;
    }

    /// Limits the space that all files together take. An operation that would exceed the limit fails with
    /// `ENOSPC`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity_bytes = bytes;
    }

    /// Limits the space that all files together take by a quota. An operation that would exceed it fails with
    /// `EDQUOT`. The free space in [`Disk::space`](crate::Disk::space) does not include the quota.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.state().quota_bytes = bytes;
    }

    /// Makes this disk, which must be empty, unable to reserve space ([`File::allocate`]): files take space
    /// only for pages that were written.
    pub fn reserve_nothing(&self) {
        let mut state = self.state();
        assert!(state.nodes.is_empty(), "what is there already would take no room");
        state.reserves = false;
    }

    /// Makes a directory a separate file system with this size in bytes. The files in it no longer count for
    /// [`MemDisk::set_capacity`].
    pub fn mount(&self, dir: &Path, bytes: u64) {
        self.state().mounted = Some((dir.to_path_buf(), bytes));
    }

    /// Returns the number of bytes that all files take on the disk.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// Returns the sum of the lengths in bytes of all files that are still open and have no name, because
    /// they were removed or replaced.
    pub fn unnamed_bytes(&self) -> u64 {
        let state = self.state();
        let named: BTreeSet<u64> = state.names.values().copied().collect();
        let open = state.nodes.iter().filter(|(id, node)| node.handles > 0 && !named.contains(id));
        open.map(|(_, node)| node.data.len() as u64).sum()
    }

    /// Returns the contents of a file that a read would return now.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.state();
        let id = state.lookup(path)?;
        Ok(state.nodes.get(&id).map(|node| node.data.clone()).unwrap_or_default())
    }

    /// Creates a file with these contents durably, replacing an existing one. For tests that damage files.
    pub fn plant(&self, path: &Path, data: Vec<u8>) {
        let mut state = self.state();
        let id = state.node_next;
        state.node_next += 1;
        let len_durable = data.len() as u64;
        let written = (0..len_durable.div_ceil(PAGE_BYTES)).collect();
        state.nodes.insert(id, Node { data, len_durable, written, ..Node::default() });
        state.names.insert(path.to_path_buf(), id);
        state.names_durable.insert(path.to_path_buf(), id);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, state: &mut State, id: u64) -> Arc<dyn File> {
        if let Some(node) = state.nodes.get_mut(&id) {
            node.handles += 1;
        }
        Arc::new(MemFile { disk: self.clone(), id, epoch: state.epoch })
    }
}

impl State {
    fn lookup(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(|| errno(libc::ENOENT))
    }

    fn used_bytes(&self) -> u64 {
        let ids: BTreeSet<u64> = self.names.values().copied().collect();
        ids.iter().filter_map(|id| self.nodes.get(id)).map(|node| self.bytes_of(node)).sum()
    }

    /// Returns the number of bytes that a file takes on the disk.
    fn bytes_of(&self, node: &Node) -> u64 {
        if self.reserves { node.data.len() as u64 } else { node.written.len() as u64 * PAGE_BYTES }
    }

    /// Returns an error if there is not enough space to write the bytes `start..end` of a file.
    fn room_to_write(&mut self, id: u64, start: u64, end: u64) -> io::Result<()> {
        if self.reserves {
            return self.room_for(id, end);
        }
        let pages: BTreeSet<u64> = (start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).collect();
        let node = self.nodes.get(&id).ok_or_else(|| errno(libc::EIO))?;
        let more = pages.difference(&node.written).count() as u64 * PAGE_BYTES;
        self.room_for_more(id, more)?;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.written.extend(pages);
        }
        Ok(())
    }

    fn room_for(&self, id: u64, len: u64) -> io::Result<()> {
        if !self.reserves {
            return Ok(());
        }
        let now = self.nodes.get(&id).map_or(0, |node| node.data.len() as u64);
        self.room_for_more(id, len.saturating_sub(now))
    }

    /// Returns an error if a file cannot grow by this many bytes.
    fn room_for_more(&self, id: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 || self.capacity_bytes.is_none() && self.mounted.is_none() && self.quota_bytes.is_none()
        {
            return Ok(());
        }
        let is_mounted = self.mounted_nodes().any(|mounted| mounted == id);
        if bytes > self.space(is_mounted).free_bytes {
            return Err(errno(libc::ENOSPC));
        }
        if self.quota_bytes.is_some_and(|quota| self.used_bytes() + bytes > quota) {
            return Err(errno(libc::EDQUOT));
        }
        Ok(())
    }

    /// Returns the files on the mounted file system.
    fn mounted_nodes(&self) -> impl Iterator<Item = u64> {
        let dir = self.mounted.as_ref().map(|(dir, _)| dir);
        let named = self.names.iter();
        named.filter(move |(path, _)| dir.is_some_and(|dir| path.starts_with(dir))).map(|(_, id)| *id)
    }

    fn is_mounted(&self, path: &Path) -> bool {
        self.mounted.as_ref().is_some_and(|(dir, _)| path.starts_with(dir))
    }

    /// Returns the size and free space of the mounted file system if `of_mounted` is true; otherwise of the
    /// main one.
    fn space(&self, of_mounted: bool) -> DiskSpace {
        let ids: BTreeSet<u64> = self.mounted_nodes().collect();
        let mounted_bytes: u64 =
            ids.iter().filter_map(|id| self.nodes.get(id)).map(|node| self.bytes_of(node)).sum();
        let (capacity, used_bytes) = match &self.mounted {
            Some((_, bytes)) if of_mounted => (Some(*bytes), mounted_bytes),
            _ => (self.capacity_bytes, self.used_bytes() - mounted_bytes),
        };
        let total_bytes = capacity.unwrap_or(u64::MAX / 2);
        DiskSpace { free_bytes: total_bytes.saturating_sub(used_bytes), total_bytes }
    }

    /// Frees the contents of files that are not open and have no name. Keeps a file if a crash could restore
    /// its name.
    fn forget_unnamed(&mut self) {
        let pending = self.names_pending.iter().filter_map(|change| match change {
            NameChange::Set(_, id) => Some(id),
            NameChange::Remove(_) | NameChange::Rename(..) => None,
        });
        let named: BTreeSet<u64> =
            self.names.values().chain(self.names_durable.values()).chain(pending).copied().collect();
        self.nodes.retain(|id, node| node.handles > 0 || named.contains(id));
    }

    fn rename_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.names_pending.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            NameChange::Set(path, id) => {
                names.insert(path.clone(), *id);
            }
            NameChange::Remove(path) => {
                names.remove(path);
            }
            NameChange::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
        }
    }

    fn touches(&self, dir: &Path) -> bool {
        match self {
            NameChange::Set(path, _) | NameChange::Remove(path) => path.parent() == Some(dir),
            NameChange::Rename(from, to) => from.parent() == Some(dir) || to.parent() == Some(dir),
        }
    }
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[cfg(test)]
mod tests;
