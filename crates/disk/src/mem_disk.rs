//! Files in memory, with simulated power cuts and errors.

mod lies;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stdx::Random;

use crate::{Disk, DiskSpace, File, Lock, Reservation};
pub use lies::Lie;

/// Unit in bytes that a power cut keeps or loses as a whole.
pub const SECTOR_BYTES: usize = 512;

/// Unit in bytes in which files take space on a disk that cannot reserve space.
const PAGE_BYTES: u64 = 4096;

type Sector = [u8; SECTOR_BYTES];

/// A fault to inject at a chosen operation. Operations are counted from 1; only operations that change the
/// disk count: creating, removing, renaming, writing, syncing, setting a length, allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with this `errno`, once. A failed write may have written a part. Data whose sync
    /// failed is never synced, although it can still be read (as on Linux).
    Once(i32),
    /// The operation and every later operation of any kind fail with this `errno`.
    Always(i32),
    /// Power is lost at the operation, which may be partly done. Every later call fails until
    /// [`MemDisk::crash`] brings the disk back.
    PowerCut,
}

/// Kinds of operations that [`MemDisk::fail_next`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Any operation that changes the disk.
    Change,
    /// Reading a file.
    Read,
    /// Writing to a file.
    Write,
    /// Syncing a file or a directory.
    Sync,
    /// Syncing a directory.
    SyncDir,
    /// Creating a file or a directory.
    Create,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
    /// Reserving space for a file, or changing its length.
    Allocate,
    /// Opening a file.
    Open,
    /// Listing a directory.
    List,
    /// Locking a file.
    Lock,
    /// Reading the free space.
    Space,
}

impl Operation {
    /// Returns true if the operation changes nothing on the disk.
    fn only_looks(self) -> bool {
        matches!(
            self,
            Operation::Read | Operation::Open | Operation::List | Operation::Lock | Operation::Space
        )
    }

    /// Returns true if the operation `done` is of the kind `self`.
    fn covers(self, done: Operation) -> bool {
        match self {
            Operation::Change => !done.only_looks(),
            Operation::Sync => matches!(done, Operation::Sync | Operation::SyncDir),
            sort => sort == done,
        }
    }
}

/// A fault that will be injected later.
struct Planned {
    operation: Operation,
    /// Number of operations of this kind until the fault, including the one that fails.
    left: u64,
    fault: Fault,
}

/// A disk in memory. Clones share the same disk.
///
/// Reads return written data at once. [`MemDisk::crash`] decides from the seed, for each sector that was not
/// synced, whether it is kept, lost, or (if the whole sector was overwritten) zeroed. A partly overwritten
/// sector is only kept or lost: the rest of the sector had been synced, and a sector is written completely or
/// not at all. Of the unsynced changes of names a random prefix survives, as on a journaling file system, or
/// a random subset ([`MemDisk::keep_names_in_any_order`]).
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
    /// Number of reads of cached data that miss, out of 1000, and the generator that decides which ones.
    misses: (u64, Random),
    cached_bytes_max: usize,
    /// False on a file system that cannot tell what is cached: all reads of cached data then miss.
    tells_cached: bool,
    fault: Option<(u64, Fault)>,
    planned: Vec<Planned>,
    /// The lie about some writes: kind, number of writes before the first affected one, number of affected
    /// writes.
    lie: Option<(Lie, u64, u64)>,
    /// True if power was lost and the disk has not come back.
    dark: bool,
    down: Option<i32>,
    capacity_bytes: Option<u64>,
    /// Limit of a quota in bytes, which the reported free space does not show.
    quota_bytes: Option<u64>,
    /// False on a file system that cannot reserve space: then only written pages take space.
    reserves: bool,
    /// A directory that is a separate file system, and that file system's size in bytes.
    mounted: Option<(PathBuf, u64)>,
}

#[derive(Default)]
struct Node {
    data: Vec<u8>,
    len_durable: u64,
    /// Durable contents of every sector written since the last sync.
    undo: BTreeMap<u64, Undo>,
    /// Sectors whose sync failed: no later sync makes them durable unless they are written again.
    doomed: BTreeMap<u64, Undo>,
    /// Number of open handles of the file.
    handles: usize,
    /// Numbers of the pages that were written, on a disk that cannot reserve space.
    written: BTreeSet<u64>,
    /// True contents, on the disk, of sectors for which it told a [`Lie`]. Reads return `data` until the page
    /// cache is dropped.
    on_disk: BTreeMap<u64, Sector>,
}

/// The durable contents of a sector that was written after its last sync.
struct Undo {
    durable: Sector,
    /// True if the first write after the sync covered the whole sector.
    whole: bool,
}

enum NameChange {
    Set(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl MemDisk {
    /// Creates an empty disk that decides from `seed` what a crash loses.
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

    /// Simulates a power cut and a restart: unsynced sectors and names are kept, lost or zeroed; open files
    /// fail; locks, planned faults and lies, and the count of operations are reset.
    pub fn crash(&self) {
        let mut state = self.state();
        let mut random = state.random.clone();
        let pending = std::mem::take(&mut state.names_pending);
        if state.names_in_any_order {
            for change in pending {
                if random.number().is_multiple_of(2) {
                    change.apply(&mut state.names_durable);
                }
            }
        } else {
            let kept = (random.number() % (pending.len() as u64 + 1)) as usize;
            for change in pending.into_iter().take(kept) {
                change.apply(&mut state.names_durable);
            }
        }
        state.names = state.names_durable.clone();
        let alive: BTreeSet<u64> = state.names.values().copied().collect();
        state.nodes.retain(|id, _| alive.contains(id));
        // Ordered by number: the order of a hash map would make two runs differ.
        for id in alive {
            if let Some(node) = state.nodes.get_mut(&id) {
                node.crash(&mut random);
            }
        }
        state.random = random;
        state.epoch += 1;
        state.locks.clear();
        state.disarm();
        state.dark = false;
        state.down = None;
        state.ops = 0;
    }

    /// Simulates that the process using the disk is killed while the machine runs on: written data stays
    /// readable, synced or not; open files and locks become invalid, and planned faults and lies, which were
    /// meant for the killed process, are canceled. Every call fails until
    /// [`MemDisk::heal`], so that the remains of the killed process cannot change anything while they are
    /// dropped.
    pub fn kill(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.locks.clear();
        state.disarm();
        state.down = Some(libc::EIO);
    }

    /// Returns true if power was lost at an operation and [`MemDisk::crash`] has not brought the disk back.
    pub fn is_dark(&self) -> bool {
        self.state().dark
    }

    /// Returns true if every call fails.
    pub fn is_down(&self) -> bool {
        self.state().down.is_some()
    }

    /// Injects a fault at the `nth` operation of this kind from now on, counted from 1. Several faults can be
    /// planned.
    pub fn fail_next(&self, operation: Operation, nth: u64, fault: Fault) {
        self.state().planned.push(Planned { operation, left: nth.max(1), fault });
    }

    /// Flips one bit of a file, as a decaying disk does: reads return the flipped bit from now on, and no
    /// sync restores it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file or the byte does not exist.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.state();
        let id = state.lookup(path)?;
        let node = state.nodes.get_mut(&id).ok_or_else(|| errno(libc::ENOENT))?;
        let byte = node.data.get_mut(offset as usize).ok_or_else(|| errno(libc::EINVAL))?;
        *byte ^= 1 << (bit % 8);
        Ok(())
    }

    /// Returns the length of a file in bytes without the zeros at its end.
    ///
    /// # Errors
    ///
    /// Returns an error if the file does not exist.
    pub fn used_len(&self, path: &Path) -> io::Result<u64> {
        let state = self.state();
        let id = state.lookup(path)?;
        let node = state.nodes.get(&id).ok_or_else(|| errno(libc::ENOENT))?;
        let mut data = node.data.as_slice();
        // Skips whole sectors of zeros first: most of a prepared file is zeros.
        while let Some((rest, last)) = data.split_last_chunk::<SECTOR_BYTES>()
            && *last == [0; SECTOR_BYTES]
        {
            data = rest;
        }
        Ok(data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1))
    }

    /// Returns true if this byte of a file is durable with the value that a read returns.
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

    /// Injects a fault at the `nth` operation, counted from 1 since the disk was created or last crashed.
    pub fn fail_at(&self, nth: u64, fault: Fault) {
        self.state().fault = Some((nth, fault));
    }

    /// Cancels [`MemDisk::fail_at`], [`MemDisk::fail_next`] and [`MemDisk::lie_about_writes`], and ends a
    /// fault of kind [`Fault::Always`] and the effect of [`MemDisk::kill`].
    pub fn heal(&self) {
        let mut state = self.state();
        state.disarm();
        // After a power cut only `crash` brings the disk back.
        state.down = state.dark.then_some(libc::EIO);
    }

    /// Sets how many of 1000 reads of cached data ([`File::read_cached_at`]) miss. Initially, and after 0,
    /// all files are completely cached.
    pub fn set_misses_per_mille(&self, misses: u64) {
        self.state().misses.0 = misses;
    }

    /// Sets the maximum number of bytes that a read of cached data returns; the bytes after them count as not
    /// cached.
    pub fn set_cached_bytes_max(&self, bytes: usize) {
        self.state().cached_bytes_max = bytes;
    }

    /// Sets whether the disk can tell what is cached ([`File::tells_cached`]); initially it can. If not,
    /// every read of cached data misses.
    pub fn set_tells_cached(&self, tells: bool) {
        self.state().tells_cached = tells;
    }

    /// Number of reads since the disk was created.
    pub fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Number of changing operations since the disk was created or last crashed.
    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Makes crashes keep a random subset of the unsynced name changes, possibly a later change without an
    /// earlier one: no file system promises an order.
    pub fn keep_names_in_any_order(&self) {
        self.state().names_in_any_order = true;
    }

    /// Limits the sum of all file lengths; an operation beyond the limit fails with `ENOSPC`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity_bytes = bytes;
    }

    /// Limits the sum of all file lengths by a quota; an operation beyond it fails with `EDQUOT`, and
    /// [`Disk::space`] does not show the quota.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.state().quota_bytes = bytes;
    }

    /// Makes this empty disk one that cannot reserve space ([`File::allocate`]): files take space only for
    /// pages that were written.
    pub fn reserve_nothing(&self) {
        let mut state = self.state();
        assert!(state.nodes.is_empty(), "what is there already would take no room");
        state.reserves = false;
    }

    /// Makes a directory a separate file system with this size in bytes; its files no longer count for
    /// [`MemDisk::set_capacity`].
    pub fn mount(&self, dir: &Path, bytes: u64) {
        self.state().mounted = Some((dir.to_path_buf(), bytes));
    }

    /// Number of bytes that all files take.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// Sum of the lengths in bytes of all open files that have no name.
    pub fn unnamed_bytes(&self) -> u64 {
        let state = self.state();
        let named: BTreeSet<u64> = state.names.values().copied().collect();
        let open = state.nodes.iter().filter(|(id, node)| node.handles > 0 && !named.contains(id));
        open.map(|(_, node)| node.data.len() as u64).sum()
    }

    /// Returns a file's contents as a read would return them now.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.state();
        let id = state.lookup(path)?;
        Ok(state.nodes.get(&id).map(|node| node.data.clone()).unwrap_or_default())
    }

    /// Creates a file durably, replacing an existing one; for tests that damage files.
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

    /// Returns an error if there is no space to write this part of a file.
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

    /// Cancels the faults and the lie that wait for an operation.
    fn disarm(&mut self) {
        self.fault = None;
        self.planned.clear();
        self.lie = None;
    }

    fn alive(&self) -> io::Result<()> {
        self.down.map_or(Ok(()), |code| Err(errno(code)))
    }

    /// Counts one changing operation; returns an error if a fault is due.
    fn step(&mut self, operation: Operation) -> io::Result<()> {
        self.alive()?;
        self.ops += 1;
        if let Some((nth, fault)) = self.fault
            && nth == self.ops
        {
            return self.strike(fault);
        }
        self.count_down(operation)
    }

    /// Counts one read; returns an error if a fault is due.
    fn step_read(&mut self) -> io::Result<()> {
        self.reads += 1;
        self.look(Operation::Read)
    }

    /// Counts one operation that changes nothing; returns an error if a fault is due.
    fn look(&mut self, operation: Operation) -> io::Result<()> {
        self.alive()?;
        if self.planned.is_empty() { Ok(()) } else { self.count_down(operation) }
    }

    fn count_down(&mut self, operation: Operation) -> io::Result<()> {
        let mut due = None;
        self.planned.retain_mut(|planned| {
            if !planned.operation.covers(operation) {
                return true;
            }
            planned.left -= 1;
            if planned.left == 0 {
                due = Some(planned.fault);
            }
            planned.left > 0
        });
        due.map_or(Ok(()), |fault| self.strike(fault))
    }

    fn strike(&mut self, fault: Fault) -> io::Result<()> {
        let code = match fault {
            Fault::Once(code) => code,
            Fault::Always(code) => {
                self.down = Some(code);
                code
            }
            Fault::PowerCut => {
                self.dark = true;
                self.down = Some(libc::EIO);
                libc::EIO
            }
        };
        Err(errno(code))
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

    /// Returns the space of the mounted file system if `of_mounted` is true, else of the other one.
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

    /// Drops the contents of files that are not open and have no name, not even one that a crash would
    /// restore.
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

impl Node {
    fn sector(&self, number: u64) -> Sector {
        let mut sector = [0; SECTOR_BYTES];
        let start = (number as usize * SECTOR_BYTES).min(self.data.len());
        let end = (start + SECTOR_BYTES).min(self.data.len());
        sector[..end - start].copy_from_slice(&self.data[start..end]);
        sector
    }

    /// Saves the durable contents of the sectors of `start..end`, which are about to change.
    fn touch(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let size = SECTOR_BYTES as u64;
        for number in start / size..end.div_ceil(size) {
            // The page cache has the complete sector, and will write it to the disk.
            self.on_disk.remove(&number);
            if self.undo.contains_key(&number) {
                continue;
            }
            let whole = start <= number * size && (number + 1) * size <= end;
            let undo = match self.doomed.remove(&number) {
                Some(doomed) => Undo { whole: false, ..doomed },
                None => Undo { durable: self.sector(number), whole },
            };
            self.undo.insert(number, undo);
        }
    }

    fn write(&mut self, buf: &[u8], offset: u64) {
        let end = offset + buf.len() as u64;
        self.touch(offset, end);
        if (self.data.len() as u64) < end {
            self.data.resize(end as usize, 0);
        }
        self.data[offset as usize..end as usize].copy_from_slice(buf);
    }

    fn set_len(&mut self, len: u64) {
        let old = self.data.len() as u64;
        if len < old {
            self.touch(len, old);
            self.written.split_off(&len.div_ceil(PAGE_BYTES));
        }
        self.data.resize(len as usize, 0);
    }

    fn hole_bytes(&self) -> u64 {
        let pages = (self.data.len() as u64).div_ceil(PAGE_BYTES);
        pages.saturating_sub(self.written.len() as u64) * PAGE_BYTES
    }

    fn sync(&mut self) {
        self.undo.clear();
        self.len_durable = self.data.len() as u64;
    }

    fn sync_failed(&mut self) {
        let lost = std::mem::take(&mut self.undo);
        self.doomed.extend(lost);
    }

    fn crash(&mut self, random: &mut Random) {
        let undo = std::mem::take(&mut self.undo);
        let doomed = std::mem::take(&mut self.doomed);
        let changed = self.data.len() as u64 != self.len_durable;
        let len = if changed && random.number().is_multiple_of(2) {
            self.len_durable
        } else {
            self.data.len() as u64
        };
        let full = self.data.len().max(self.len_durable as usize).div_ceil(SECTOR_BYTES) * SECTOR_BYTES;
        self.data.resize(full, 0);
        let restore = |data: &mut Vec<u8>, number: u64, sector: &Sector| {
            let start = number as usize * SECTOR_BYTES;
            if start + SECTOR_BYTES <= data.len() {
                data[start..start + SECTOR_BYTES].copy_from_slice(sector);
            }
        };
        for (number, Undo { durable, whole }) in &undo {
            match random.number() % if *whole { 5 } else { 4 } {
                // A real disk keeps or loses a sector; a file system may show zeros in its place.
                0 | 1 => {}
                2 | 3 => restore(&mut self.data, *number, durable),
                // The sector was rewritten with the contents it had, so the old and the new contents are
                // equal.
                _ if self.sector(*number) == *durable => {}
                _ => restore(&mut self.data, *number, &[0; SECTOR_BYTES]),
            }
        }
        for (number, Undo { durable, .. }) in &doomed {
            restore(&mut self.data, *number, durable);
        }
        for (number, sector) in &std::mem::take(&mut self.on_disk) {
            restore(&mut self.data, *number, sector);
        }
        self.data.resize(len as usize, 0);
        self.len_durable = len;
    }
}

impl Disk for MemDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Create)?;
        let mut at = Some(dir);
        while let Some(path) = at {
            state.dirs.insert(path.to_path_buf());
            at = path.parent();
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        state.step(Operation::Create)?;
        if state.names.contains_key(path) {
            return Err(errno(libc::EEXIST));
        }
        if !path.parent().is_some_and(|dir| state.dirs.contains(dir)) {
            return Err(errno(libc::ENOENT));
        }
        let id = state.node_next;
        state.node_next += 1;
        state.nodes.insert(id, Node::default());
        state.rename_names(NameChange::Set(path.to_path_buf(), id));
        Ok(self.file(&mut state, id))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        state.look(Operation::Open)?;
        let id = state.lookup(path)?;
        Ok(self.file(&mut state, id))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Remove)?;
        state.lookup(path)?;
        state.rename_names(NameChange::Remove(path.to_path_buf()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Rename)?;
        state.lookup(from)?;
        state.rename_names(NameChange::Rename(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.look(Operation::List)?;
        if !state.dirs.contains(dir) {
            return Err(errno(libc::ENOENT));
        }
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::SyncDir)?;
        let pending = std::mem::take(&mut state.names_pending);
        for change in pending {
            if change.touches(dir) {
                change.apply(&mut state.names_durable);
            } else {
                state.names_pending.push(change);
            }
        }
        state.forget_unnamed();
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.state();
        state.alive()?;
        Ok(state.names.contains_key(path) || state.dirs.contains(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let mut state = self.state();
        state.look(Operation::Lock)?;
        if state.locks.contains_key(path) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "locked by another process"));
        }
        state.locks.insert(path.to_path_buf(), 0);
        Ok(Lock::new(MemLock { disk: self.clone(), path: path.to_path_buf(), epoch: state.epoch }))
    }

    fn lock_read(&self, path: &Path) -> io::Result<Lock> {
        self.state().lookup(path)?;
        self.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Lock> {
        let mut state = self.state();
        state.look(Operation::Lock)?;
        state.lookup(path)?;
        if state.locks.get(path) == Some(&0) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "locked by another process"));
        }
        *state.locks.entry(path.to_path_buf()).or_default() += 1;
        Ok(Lock::new(MemLock { disk: self.clone(), path: path.to_path_buf(), epoch: state.epoch }))
    }

    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool> {
        let mut state = self.state();
        state.look(Operation::Read)?;
        Ok(state.is_mounted(one) == state.is_mounted(other))
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        let mut state = self.state();
        state.look(Operation::Space)?;
        let is_mounted = state.is_mounted(path);
        Ok(state.space(is_mounted))
    }
}

struct MemLock {
    disk: MemDisk,
    path: PathBuf,
    epoch: u64,
}

impl Drop for MemLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.epoch != self.epoch {
            return;
        }
        match state.locks.get_mut(&self.path) {
            Some(sharing) if *sharing > 1 => *sharing -= 1,
            _ => {
                state.locks.remove(&self.path);
            }
        }
    }
}

struct MemFile {
    disk: MemDisk,
    id: u64,
    epoch: u64,
}

impl Drop for MemFile {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        let last = state.nodes.get_mut(&self.id).is_some_and(|node| {
            node.handles -= 1;
            node.handles == 0
        });
        if last && !state.names.values().any(|id| *id == self.id) {
            state.forget_unnamed();
        }
    }
}

impl MemFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.state();
        state.alive()?;
        if state.epoch != self.epoch {
            return Err(errno(libc::EIO));
        }
        Ok(state)
    }

    fn with<T>(&self, state: &mut State, change: impl FnOnce(&mut Node) -> T) -> io::Result<T> {
        state.nodes.get_mut(&self.id).map(change).ok_or_else(|| errno(libc::EIO))
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        state.step_read()?;
        self.with(&mut state, |node| {
            let start = (offset as usize).min(node.data.len());
            let end = start.saturating_add(buf.len()).min(node.data.len());
            buf[..end - start].copy_from_slice(&node.data[start..end]);
            end - start
        })
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (missed, len) = {
            let mut state = self.state()?;
            let (tells_cached, len) = (state.tells_cached, buf.len().min(state.cached_bytes_max));
            let (per_mille, random) = &mut state.misses;
            // Draw no random number if no read can miss: otherwise runs with old seeds would change.
            (!tells_cached || (*per_mille > 0 && random.number() % 1000 < *per_mille), len)
        };
        if missed { Ok(0) } else { self.read_at(&mut buf[..len], offset) }
    }

    fn tells_cached(&self) -> bool {
        self.state().is_ok_and(|state| state.tells_cached)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state()?;
        let end = offset + buf.len() as u64;
        let outcome = state.step(Operation::Write).and_then(|()| state.room_to_write(self.id, offset, end));
        let taken = match outcome {
            Ok(()) => buf.len(),
            Err(_) => {
                let room = state.room_to_write(self.id, offset, end).is_ok();
                let part = state.random.number() % (buf.len() as u64 + 1);
                // A partial write ends at a sector boundary, never within a sector.
                let sectors_end = (offset + part) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
                let whole = part == buf.len() as u64;
                let part = if whole { part } else { sectors_end.saturating_sub(offset) };
                if room { part as usize } else { 0 }
            }
        };
        let lie = if outcome.is_ok() && !buf.is_empty() { state.next_lie() } else { None };
        let before = match lie {
            Some(_) => self.with(&mut state, |node| node.on_disk_now(offset, end))?,
            None => BTreeMap::new(),
        };
        self.with(&mut state, |node| node.write(&buf[..taken], offset))?;
        if let Some(lie) = lie {
            state.lied(lie, self.id, before);
        }
        outcome
    }

    fn write_vectored_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut whole = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
        for piece in pieces.iter() {
            whole.extend_from_slice(piece);
        }
        self.write_at(&whole, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state()?;
        match state.step(Operation::Sync) {
            Ok(()) => self.with(&mut state, Node::sync),
            Err(error) => {
                // After a power cut the sectors stay undecided: `crash` decides about each of them.
                if !state.dark {
                    self.with(&mut state, Node::sync_failed)?;
                }
                Err(error)
            }
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.step(Operation::Allocate)?;
        // Such a length is a mistake of the test or comes from a damaged file: refuse it as a disk would.
        if len > u64::from(u32::MAX) {
            return Err(errno(libc::EFBIG));
        }
        state.room_for(self.id, len)?;
        self.with(&mut state, |node| node.set_len(len))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<Reservation> {
        let mut state = self.state()?;
        state.step(Operation::Allocate)?;
        let end = offset.saturating_add(len);
        if end > u64::from(u32::MAX) {
            return Err(errno(libc::EFBIG));
        }
        state.room_for(self.id, end)?;
        let reserves = state.reserves;
        self.with(&mut state, |node| {
            if (node.data.len() as u64) < end {
                node.set_len(end);
            }
            if reserves || node.hole_bytes() == 0 { Reservation::Made } else { Reservation::NeedsZeros }
        })
    }

    fn hole_bytes(&self) -> io::Result<u64> {
        let mut state = self.state()?;
        let reserves = state.reserves;
        self.with(&mut state, |node| if reserves { 0 } else { node.hole_bytes() })
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.state()?;
        self.with(&mut state, |node| node.data.len() as u64)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(if offset < self.len()? { Some(offset) } else { None })
    }
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(seed: u64) -> (MemDisk, PathBuf) {
        let disk = MemDisk::new(seed);
        disk.create_dir_all(Path::new("/d")).unwrap();
        (disk, PathBuf::from("/d/f"))
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_is_kept_lost_or_zeroed() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let (disk, path) = disk(seed);
            let file = disk.create(&path).unwrap();
            file.write_at(&[1; 3 * SECTOR_BYTES], 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("/d")).unwrap();
            file.write_at(&[2; SECTOR_BYTES], SECTOR_BYTES as u64).unwrap();
            disk.crash();
            assert!(file.sync_data().is_err(), "a file opened before the crash is dead");
            let data = disk.contents(&path).unwrap();
            assert_eq!(data[..SECTOR_BYTES], [1; SECTOR_BYTES]);
            assert_eq!(data[2 * SECTOR_BYTES..], [1; SECTOR_BYTES]);
            let middle = data[SECTOR_BYTES];
            assert!(data[SECTOR_BYTES..2 * SECTOR_BYTES].iter().all(|byte| *byte == middle));
            seen.insert(middle);
        }
        assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    }

    #[test]
    fn unsynced_names_survive_as_a_prefix() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let (disk, path) = disk(seed);
            let other = PathBuf::from("/d/g");
            disk.create(&path).unwrap();
            disk.rename(&path, &other).unwrap();
            disk.crash();
            seen.insert((disk.exists(&path).unwrap(), disk.exists(&other).unwrap()));
        }
        assert_eq!(seen, BTreeSet::from([(false, false), (true, false), (false, true)]));
    }

    #[test]
    fn unsynced_names_may_survive_in_any_order() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let (disk, path) = disk(seed);
            disk.keep_names_in_any_order();
            let other = PathBuf::from("/d/g");
            disk.create(&path).unwrap();
            disk.create(&other).unwrap();
            disk.crash();
            seen.insert((disk.exists(&path).unwrap(), disk.exists(&other).unwrap()));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_the_next() {
        let (disk, path) = disk(7);
        let file = disk.create(&path).unwrap();
        file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        file.write_at(&[2; SECTOR_BYTES], 0).unwrap();
        disk.fail_at(disk.ops() + 1, Fault::Once(libc::EIO));
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
        file.sync_data().unwrap();
        disk.crash();
        assert_eq!(disk.contents(&path).unwrap(), [1; SECTOR_BYTES]);
    }

    #[test]
    fn a_full_disk_says_so_and_has_room_again_after_a_removal() {
        let (disk, path) = disk(7);
        disk.set_capacity(Some(1000));
        let file = disk.create(&path).unwrap();
        let _ = file.allocate(0, 800).unwrap();
        let other = disk.create(Path::new("/d/g")).unwrap();
        assert_eq!(other.allocate(0, 800).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        disk.remove(&path).unwrap();
        let _ = other.allocate(0, 800).unwrap();
        assert_eq!(disk.space(&path).unwrap(), DiskSpace { free_bytes: 200, total_bytes: 1000 });
    }

    #[test]
    fn where_nothing_is_reserved_only_what_is_written_takes_room() {
        let (disk, path) = disk(7);
        disk.reserve_nothing();
        disk.set_capacity(Some(2 * PAGE_BYTES));
        let file = disk.create(&path).unwrap();
        assert_eq!(file.allocate(0, 4 * PAGE_BYTES).unwrap(), Reservation::NeedsZeros);
        assert_eq!((disk.used_bytes(), file.len().unwrap()), (0, 4 * PAGE_BYTES));
        file.write_at(&[1; 8], PAGE_BYTES - 4).unwrap();
        let error = file.write_at(&[1; 8], 3 * PAGE_BYTES).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        file.write_at(&[2; 8], 0).unwrap();
        file.set_len(2 * PAGE_BYTES).unwrap();
        assert_eq!(file.allocate(0, 2 * PAGE_BYTES).unwrap(), Reservation::Made);
    }

    #[test]
    fn a_quota_is_no_part_of_the_free_space() {
        let (disk, path) = disk(7);
        disk.set_quota(Some(100));
        let free = disk.space(&path).unwrap().free_bytes;
        let file = disk.create(&path).unwrap();
        file.write_at(&[1; 100], 0).unwrap();
        let error = file.write_at(&[1; 8], 100).unwrap_err();
        assert!(crate::is_full(&error) && error.raw_os_error() == Some(libc::EDQUOT), "{error}");
        assert!(disk.space(&path).unwrap().free_bytes + 100 >= free);
    }

    #[test]
    fn a_directory_may_be_a_file_system_of_its_own() {
        let (disk, path) = disk(7);
        disk.set_capacity(Some(1000));
        let file = disk.create(&path).unwrap();
        let _ = file.allocate(0, 800).unwrap();
        let other = Path::new("/other/f");
        disk.create_dir_all(Path::new("/other")).unwrap();
        disk.mount(Path::new("/other"), 500);
        let apart = disk.create(other).unwrap();
        let _ = apart.allocate(0, 400).unwrap();
        assert_eq!(disk.space(&path).unwrap(), DiskSpace { free_bytes: 200, total_bytes: 1000 });
        assert_eq!(disk.space(other).unwrap(), DiskSpace { free_bytes: 100, total_bytes: 500 });
        let _ = file.allocate(800, 200).unwrap();
        for (file, len) in [(&file, 1001), (&apart, 501)] {
            assert_eq!(file.allocate(0, len).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        }
    }

    #[test]
    fn a_killed_process_leaves_what_it_wrote_to_the_next_but_not_to_a_power_cut() {
        let (disk, path) = disk(7);
        let file = disk.create(&path).unwrap();
        let lock = disk.lock(Path::new("/d/lock")).unwrap();
        file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
        disk.kill();
        assert!(file.sync_data().is_err() && disk.open(&path).is_err());
        drop(lock);
        disk.heal();
        assert!(file.sync_data().is_err(), "a file of the killed process is dead");
        let _lock = disk.lock(Path::new("/d/lock")).unwrap();
        assert!(!disk.is_synced(&path, 0));
        let again = disk.open(&path).unwrap();
        let mut read = [0; SECTOR_BYTES];
        again.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, [1; SECTOR_BYTES]);
        again.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        assert!(disk.is_synced(&path, 0));
        disk.crash();
        assert_eq!(disk.contents(&path).unwrap(), [1; SECTOR_BYTES]);
    }

    #[test]
    fn faults_wait_for_their_sort_of_operation() {
        let (disk, path) = disk(7);
        let file = disk.create(&path).unwrap();
        disk.fail_next(Operation::Sync, 2, Fault::Once(libc::EIO));
        disk.fail_next(Operation::Read, 1, Fault::Once(libc::EIO));
        file.write_at(&[1; 8], 0).unwrap();
        file.sync_data().unwrap();
        file.write_at(&[1; 8], 0).unwrap();
        assert!(file.read_at(&mut [0; 8], 0).is_err());
        assert!(file.read_at(&mut [0; 8], 0).is_ok());
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        disk.fail_next(Operation::Change, 2, Fault::PowerCut);
        file.write_at(&[2; 8], 0).unwrap();
        assert!(!disk.is_dark());
        assert!(file.sync_data().is_err());
        disk.heal();
        assert!(disk.is_dark() && disk.is_down(), "only a crash brings power back");
        disk.crash();
        assert!(!disk.is_down() && disk.open(&path).is_ok() | !disk.exists(&path).unwrap());
    }

    #[test]
    fn every_sort_of_operation_fails_when_it_is_told_to() {
        let (disk, path) = disk(7);
        let dir = Path::new("/d");
        drop(disk.create(&path).unwrap());
        let other = PathBuf::from("/d/g");
        type Try<'a> = Box<dyn Fn() -> io::Result<()> + 'a>;
        let operations: Vec<(Operation, Try<'_>)> = vec![
            (Operation::Open, Box::new(|| disk.open(&path).map(drop))),
            (Operation::List, Box::new(|| disk.list(dir).map(drop))),
            (Operation::Space, Box::new(|| disk.space(dir).map(drop))),
            (Operation::Lock, Box::new(|| disk.lock(&other).map(drop))),
            (Operation::SyncDir, Box::new(|| disk.sync_dir(dir))),
            (Operation::Sync, Box::new(|| disk.sync_dir(dir))),
            (Operation::Allocate, Box::new(|| disk.open(&path)?.allocate(0, 9).map(drop))),
            (Operation::Allocate, Box::new(|| disk.open(&path)?.set_len(9))),
            (Operation::Rename, Box::new(|| disk.rename(&path, &other))),
            (Operation::Create, Box::new(|| disk.create(&path).map(drop))),
            (Operation::Remove, Box::new(|| disk.remove(&other))),
        ];
        for (operation, attempt) in operations {
            disk.fail_next(operation, 1, Fault::Once(libc::EROFS));
            assert_eq!(attempt().unwrap_err().raw_os_error(), Some(libc::EROFS), "{operation:?}");
            attempt().unwrap_or_else(|error| panic!("{operation:?}: {error}"));
        }
    }

    #[test]
    fn a_removed_file_takes_no_memory_once_it_is_closed_and_the_removal_is_durable() {
        let (disk, path) = disk(7);
        let nodes = || disk.state().nodes.len();
        let file = disk.create(&path).unwrap();
        file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        disk.remove(&path).unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        assert_eq!(nodes(), 1, "it is open");
        file.read_exact_at(&mut [0; SECTOR_BYTES], 0).unwrap();
        drop(file);
        assert_eq!(nodes(), 0);
        drop(disk.create(&path).unwrap());
        disk.sync_dir(Path::new("/d")).unwrap();
        disk.remove(&path).unwrap();
        assert_eq!(nodes(), 1, "a crash may bring it back");
        disk.crash();
        assert_eq!(nodes(), usize::from(disk.exists(&path).unwrap()));
    }

    #[test]
    fn a_flipped_bit_is_read_and_survives() {
        let (disk, path) = disk(7);
        disk.plant(&path, vec![0; 4]);
        disk.flip_bit(&path, 2, 3).unwrap();
        assert!(disk.flip_bit(&path, 4, 3).is_err());
        disk.crash();
        assert_eq!(disk.contents(&path).unwrap(), [0, 0, 8, 0]);
        assert_eq!(disk.files(), [(path, 4)]);
    }

    #[test]
    fn the_same_seed_loses_the_same() {
        let run = || {
            let (disk, path) = disk(42);
            let file = disk.create(&path).unwrap();
            disk.sync_dir(Path::new("/d")).unwrap();
            file.write_at(&[9; 40 * SECTOR_BYTES], 0).unwrap();
            disk.crash();
            disk.contents(&path).unwrap()
        };
        assert_eq!(run(), run());
    }
}
