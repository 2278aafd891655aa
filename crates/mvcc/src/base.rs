//! Defines the base of an index: a file of blocks from which leaves of the key tree are read on demand.
//!
//! A base is written from one moment of the store. Let C be the compact revision of that moment. The versions
//! below C that are still readable at C cannot change any more, except that a later write supersedes them.
//! They are *settled*. A block of keys whose entries are all settled can stand in for a leaf of the key tree;
//! a leaf is read again from its block when somebody needs it. The base also lists
//! all settled versions in the order of revisions, in blocks of changes.
//!
//! The crate does no IO: it calls [`Blocks`].

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use numbers::{ChangeId, LeaseId, Revision};

use crate::node::{ByKey, ByRevision, LEAF, Leaf, Slot};
use crate::saved::{LoadedVersion, VERSION_MAX};
use crate::version::{Content, KEY_BYTES_MAX, Version};

/// Maximum number of versions of a block of settled keys, and of a block of changes.
pub const BLOCK_VERSIONS_MAX: usize = LEAF;

/// Number of the key block of a change whose version is in no settled block of keys.
pub const NO_BLOCK: u32 = u32::MAX;

/// A block of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockId {
    /// A block of keys, by its number in key order from 0.
    Keys(u32),
    /// A block of changes, by its number in the order of revisions from 0.
    Changes(u32),
}

/// Description of a block of keys, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBlock<'a> {
    /// First key of the block.
    pub first_key: &'a [u8],
    /// Number of versions in the block.
    pub versions: u32,
    /// True if the block has at most [`BLOCK_VERSIONS_MAX`] versions, and each of them is a put without a
    /// lease, the only version of its key, and at or below [`Blocks::settled`].
    pub is_settled: bool,
}

/// Description of a block of changes, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeBlock {
    /// First change of the block.
    pub first: ChangeId,
    /// Number of versions in the block.
    pub versions: u32,
}

/// The blocks of one base: their descriptions, which are in memory, and their contents, which are read from
/// files.
///
/// The key blocks together contain every version that the moment of the base can read, in the order of
/// [`Snapshot::histories`](crate::Snapshot::histories); both settled and other blocks are described. The
/// blocks of changes contain every such version whose main revision is at or below [`Blocks::settled`], in
/// ascending order.
pub trait Blocks: Send + Sync {
    /// Returns the highest main revision of settled versions: the compact revision of the moment from which
    /// the base was written, minus 1.
    fn settled(&self) -> Revision;

    /// Returns the number of blocks of keys.
    fn key_blocks(&self) -> u32;

    /// Returns the number of blocks of changes.
    fn change_blocks(&self) -> u32;

    /// Returns the description of a block of keys. `number` is below [`Blocks::key_blocks`].
    fn key_block(&self, number: u32) -> KeyBlock<'_>;

    /// Returns the description of a block of changes. `number` is below [`Blocks::change_blocks`].
    fn change_block(&self, number: u32) -> ChangeBlock;

    /// Reads a block, and calls `visit` with each version in order. In a block of changes, the second
    /// argument is the number of the settled key block that contains the version, or [`NO_BLOCK`]; in a block
    /// of keys it is [`NO_BLOCK`]. Several threads may call this function at the same time.
    ///
    /// # Errors
    ///
    /// Returns a message if the block cannot be read, or its checksum is wrong. The message does not repeat
    /// [`Blocks::describe`].
    fn read(&self, block: BlockId, visit: &mut dyn FnMut(&LoadedVersion<'_>, u32)) -> Result<(), String>;

    /// Returns the file and the place of a block, for messages.
    fn describe(&self, block: BlockId) -> String;
}

/// Memory that the loaded blocks of all bases of a store take, and how much they may take.
#[derive(Debug)]
pub struct Cache {
    budget_bytes: u64,
    /// Bytes of the index that are in memory in any case.
    indexed_bytes: AtomicU64,
    resident_bytes: AtomicU64,
    evicted_bytes: AtomicU64,
    loads: AtomicU64,
    evictions: AtomicU64,
    fault: OnceLock<Box<str>>,
}

/// Part of the budget that loaded blocks may take in any case, even if the rest of the index exceeds the
/// budget.
const BLOCKS_SHARE_MIN: u64 = 8;
/// Evicted blocks that a held view keeps may take this part of the budget before no more are evicted.
const EVICTED_PART: u64 = 4;
/// Bytes of evicted blocks that may wait for held views, whatever the budget is.
const EVICTED_BYTES_MIN: u64 = 1 << 20;

impl Cache {
    /// Returns an empty cache for an index that should take at most `budget_bytes` of memory.
    pub fn new(budget_bytes: u64) -> Arc<Cache> {
        Arc::new(Cache {
            budget_bytes,
            indexed_bytes: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            fault: OnceLock::new(),
        })
    }

    /// Returns the first fault of any base that uses this cache. What was read since from any view may be
    /// incomplete, and must not be used.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(|message| &**message)
    }

    /// Returns the memory in bytes that the index should take at most.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Returns the bytes of the blocks that are in memory, without evicted ones.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of evicted blocks that are not freed yet, because a view may still read them.
    pub fn evicted_bytes(&self) -> u64 {
        self.evicted_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks that were loaded so far.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks that were evicted so far.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Returns true if loaded blocks take more memory than the rest of the index leaves for them, and evicting
    /// some would help: [`crate::Store::evict`] should be called. While many evicted blocks wait for held
    /// views, evicting more would free nothing, and the blocks would be loaded once more.
    pub fn is_over(&self) -> bool {
        let left = self.budget_bytes.saturating_sub(self.indexed_bytes.load(Ordering::Relaxed));
        let evicted_max = (self.budget_bytes / EVICTED_PART).max(EVICTED_BYTES_MIN);
        self.evicted_bytes() <= evicted_max
            && self.resident_bytes() > left.max(self.budget_bytes / BLOCKS_SHARE_MIN)
    }

    /// Sets the number of bytes of the index that are in memory in any case.
    pub(crate) fn set_indexed_bytes(&self, bytes: u64) {
        self.indexed_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// A base with the blocks of it that are in memory.
///
/// Any thread may load a block. Only the writer of the store evicts blocks; an evicted block is freed once no
/// view can read it any more. A base belongs to one store. The cache keeps the first fault of a block, and from then on no block is read: an
/// index that is damaged is not trusted in part.
pub struct Base {
    blocks: Arc<dyn Blocks>,
    cache: Arc<Cache>,
    keys: Box<[AtomicPtr<Loaded>]>,
    changes: Box<[AtomicPtr<Loaded>]>,
    /// Places of the blocks in memory, in the order in which they were loaded or looked at by the clock: block
    /// of keys n at n, block of changes n after all blocks of keys.
    resident: Mutex<VecDeque<usize>>,
    /// Number of the store that reads the base; 0 for none.
    owner: AtomicU64,
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Base")
            .field("settled", &self.blocks.settled())
            .field("key_blocks", &self.keys.len())
            .field("change_blocks", &self.changes.len())
            .field("fault", &self.cache.fault())
            .finish_non_exhaustive()
    }
}

/// A block in memory, as one allocation: this struct, after it the numbers of key blocks if it is a block of
/// changes, and after them the records.
#[repr(C)]
pub(crate) struct Loaded {
    /// Leaf with the records of this allocation. It has no prefix, because the range of keys for which a stub
    /// stands may become wider.
    pub(crate) leaf: Leaf,
    cache: Arc<Cache>,
    bytes: usize,
    /// True if the block was used again since it was loaded, or since the hand of the clock passed.
    is_used_again: AtomicBool,
    is_evicted: AtomicBool,
    /// Number of the settled key block of each version; empty for a block of keys.
    numbers: (*const u32, usize),
}

impl Loaded {
    /// Returns the number of the settled key block that contains version `at` of a block of changes.
    pub(crate) fn number(&self, at: usize) -> u32 {
        assert!(at < self.numbers.1);
        // SAFETY: `Packing::finish` wrote as many numbers, which live and never change as long as this block.
        unsafe { self.numbers.0.add(at).read() }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, align_of::<Loaded>()).expect("a block has a bounded size")
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block came from `Packing::finish`, and nothing can reach it any more.
    pub(crate) unsafe fn free(loaded: NonNull<Loaded>) {
        // SAFETY: promised by the caller; records and numbers need no drop.
        unsafe {
            let bytes = loaded.as_ref().bytes;
            let Cache { evicted_bytes, resident_bytes, .. } = &*loaded.as_ref().cache;
            let is_evicted = loaded.as_ref().is_evicted.load(Ordering::Relaxed);
            let counter = if is_evicted { evicted_bytes } else { resident_bytes };
            counter.fetch_sub(bytes as u64, Ordering::Relaxed);
            loaded.drop_in_place();
            dealloc(loaded.cast::<u8>().as_ptr(), Loaded::layout(bytes));
        }
    }
}

impl Base {
    /// Returns a base of which no block is in memory.
    pub fn new(blocks: Arc<dyn Blocks>, cache: Arc<Cache>) -> Arc<Base> {
        let table = |blocks: u32| (0..blocks).map(|_| AtomicPtr::default()).collect();
        let (keys, changes) = (table(blocks.key_blocks()), table(blocks.change_blocks()));
        Arc::new(Base { blocks, cache, keys, changes, resident: Mutex::default(), owner: AtomicU64::new(0) })
    }

    /// Makes the base that of a store, whose number is not 0. Only the writer of one store may evict blocks,
    /// because only views of that store keep them alive. Returns false if the base belongs to a store already.
    pub(crate) fn claim(&self, store: u64) -> bool {
        self.owner.compare_exchange(0, store, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != 0
    }

    fn resident(&self) -> MutexGuard<'_, VecDeque<usize>> {
        // Nothing panics while it holds the lock.
        self.resident.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptions of the blocks.
    pub fn blocks(&self) -> &Arc<dyn Blocks> {
        &self.blocks
    }

    /// Returns the cache that counts the memory of loaded blocks.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Loads a block, if it is not in memory, so that later reads do not wait for the disk. Does nothing for a
    /// block of keys that is not settled, for a number out of bounds, and after a fault.
    pub fn load(&self, block: BlockId) {
        if self.table(block).is_some_and(|place| place.load(Ordering::Relaxed).is_null()) {
            self.install(block);
        }
    }

    pub(crate) fn settled(&self) -> Revision {
        self.blocks.settled()
    }

    fn table(&self, block: BlockId) -> Option<&AtomicPtr<Loaded>> {
        match block {
            BlockId::Keys(number) => self.keys.get(number as usize),
            BlockId::Changes(number) => self.changes.get(number as usize),
        }
    }

    /// Returns a block if it is in memory, without counting this as a use.
    ///
    /// # Safety
    /// As for [`Base::open`].
    pub(crate) unsafe fn peek<'t>(&self, block: BlockId) -> Option<&'t Loaded> {
        // SAFETY: promised by the caller.
        NonNull::new(self.table(block)?.load(Ordering::Acquire)).map(|loaded| unsafe { loaded.as_ref() })
    }

    /// Returns a block, after loading it if it is not in memory; `None` if the base has a fault.
    ///
    /// # Safety
    /// The base is alive for `'t`, and the caller reads a view, or is the writer, that keeps blocks evicted
    /// from now on alive for `'t`.
    pub(crate) unsafe fn open<'t>(&self, block: BlockId) -> Option<&'t Loaded> {
        let found = self.table(block)?.load(Ordering::Acquire);
        let Some(loaded) = NonNull::new(found).inspect(|loaded| {
            // SAFETY: promised by the caller.
            let is_used_again = unsafe { &loaded.as_ref().is_used_again };
            if !is_used_again.load(Ordering::Relaxed) {
                is_used_again.store(true, Ordering::Relaxed);
            }
        }) else {
            // SAFETY: promised by the caller.
            return self.install(block).map(|loaded| unsafe { loaded.as_ref() });
        };
        // SAFETY: promised by the caller.
        Some(unsafe { loaded.as_ref() })
    }

    /// Reads a block, and puts it into its table unless another thread was faster. Returns the block of the
    /// table, which the caller may use only as promised in [`Base::open`].
    fn install(&self, block: BlockId) -> Option<NonNull<Loaded>> {
        if self.cache.fault().is_some() {
            return None;
        }
        let place = self.table(block)?;
        if let BlockId::Keys(number) = block
            && !self.blocks.key_block(number).is_settled
        {
            return None;
        }
        let loaded = match self.read(block) {
            Ok(loaded) => loaded,
            Err(message) => {
                let message = format!("{}: {message}", self.blocks.describe(block));
                self.cache.fault.get_or_init(|| message.into());
                return None;
            }
        };
        let new = loaded.as_ptr();
        match place.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.cache.loads.fetch_add(1, Ordering::Relaxed);
                self.resident().push_back(match block {
                    BlockId::Keys(number) => number as usize,
                    BlockId::Changes(number) => self.keys.len() + number as usize,
                });
                Some(loaded)
            }
            Err(other) => {
                // SAFETY: no other thread has seen the block.
                unsafe { Loaded::free(loaded) };
                NonNull::new(other)
            }
        }
    }

    fn read(&self, block: BlockId) -> Result<NonNull<Loaded>, String> {
        let mut packing = Packing::new(self, block);
        let mut wrong = None;
        self.blocks.read(block, &mut |version, number| {
            if wrong.is_none() {
                wrong = packing.push(version, number).err();
            }
        })?;
        if wrong.is_none() {
            wrong = packing.check_end().err();
        }
        match wrong {
            Some(wrong) => Err(format!(
                "{wrong}; rebuild the member from the others with `mainstay rebuild`, or restore a backup"
            )),
            None => Ok(packing.finish()),
        }
    }

    /// Looks at the block in memory that was not looked at for longest, and takes it out of its table. If
    /// `all` is false and the block was used again since the last look, it stays. Returns `None` if no block
    /// is in memory. The caller is the writer of the store, and retires the block.
    pub(crate) fn evict(&self, all: bool) -> Option<Eviction> {
        let at = self.resident().pop_front()?;
        let place = self.keys.get(at).or_else(|| self.changes.get(at - self.keys.len()))?;
        // A block is listed once it is in the table, and only the caller takes it out.
        let loaded = NonNull::new(place.load(Ordering::Acquire))?;
        // SAFETY: only the caller takes blocks out of the table and retires them.
        let found = unsafe { loaded.as_ref() };
        if found.is_used_again.swap(false, Ordering::Relaxed) && !all {
            self.resident().push_back(at);
            return Some(Eviction::Stays);
        }
        found.is_evicted.store(true, Ordering::Relaxed);
        self.cache.evictions.fetch_add(1, Ordering::Relaxed);
        self.cache.evicted_bytes.fetch_add(found.bytes as u64, Ordering::Relaxed);
        self.cache.resident_bytes.fetch_sub(found.bytes as u64, Ordering::Relaxed);
        place.store(std::ptr::null_mut(), Ordering::Release);
        Some(Eviction::Evicted(loaded))
    }
}

/// Result of a look at a block in memory.
pub(crate) enum Eviction {
    /// The block was used again, and stays.
    Stays,
    /// The block is out of its table, and has to be retired.
    Evicted(NonNull<Loaded>),
}

impl Drop for Base {
    fn drop(&mut self) {
        for place in self.keys.iter_mut().chain(&mut self.changes) {
            if let Some(loaded) = NonNull::new(*place.get_mut()) {
                // SAFETY: whoever reads a loaded block keeps its base alive, so nothing can reach the block.
                unsafe { Loaded::free(loaded) };
            }
        }
    }
}

/// A block that is being read: checks that it is what the descriptions say, and collects its records.
struct Packing<'b> {
    base: &'b Base,
    block: BlockId,
    /// Records, one after the other.
    records: Vec<u64>,
    /// For each version, the offset of its handle from the beginning of the records, and the number of its
    /// key block.
    versions: Vec<(usize, u32)>,
    last_key: Vec<u8>,
    last_change: Option<ChangeId>,
}

impl Packing<'_> {
    fn new(base: &Base, block: BlockId) -> Packing<'_> {
        Packing {
            base,
            block,
            records: Vec::new(),
            versions: Vec::new(),
            last_key: Vec::new(),
            last_change: None,
        }
    }

    /// Checks and adds the next version.
    fn push(&mut self, loaded: &LoadedVersion<'_>, number: u32) -> Result<(), &'static str> {
        let (blocks, settled) = (&self.base.blocks, self.base.settled());
        let id = ChangeId { main: loaded.main, sub: loaded.sub };
        if self.versions.len() == BLOCK_VERSIONS_MAX {
            return Err("the block contains too many versions");
        }
        if loaded.key.len() > KEY_BYTES_MAX {
            return Err("a key is too long");
        }
        let is_put = (1..=VERSION_MAX).contains(&loaded.version)
            && loaded.create_revision >= Revision(0)
            && loaded.create_revision <= loaded.main;
        if !is_put || loaded.main < Revision::FIRST || loaded.main > settled {
            return Err("a version is not settled");
        }
        match self.block {
            BlockId::Keys(own) => {
                let in_order = match self.versions.is_empty() {
                    true => loaded.key == blocks.key_block(own).first_key,
                    false => loaded.key > self.last_key.as_slice(),
                };
                if !in_order {
                    return Err("the keys are not those that the list of blocks announces");
                }
                if loaded.lease != LeaseId::NONE {
                    return Err("a version is not settled");
                }
                self.last_key.clear();
                self.last_key.extend_from_slice(loaded.key);
            }
            BlockId::Changes(own) => {
                let in_order = match self.last_change {
                    None => id == blocks.change_block(own).first,
                    Some(last) => id > last,
                };
                if !in_order {
                    return Err("the changes are not those that the list of blocks announces");
                }
                let is_known = number < blocks.key_blocks() && blocks.key_block(number).is_settled;
                if number != NO_BLOCK && !is_known {
                    return Err("a version refers to a block of keys that does not exist");
                }
                self.last_change = Some(id);
            }
        }
        let content = Content {
            id,
            create_revision: loaded.create_revision,
            version: loaded.version,
            lease: loaded.lease,
            value: loaded.value,
        };
        let from = self.records.len();
        self.records.resize(from + content.packed_bytes(loaded.key) / size_of::<u64>(), 0);
        let start = NonNull::from(&mut self.records[from..]).cast::<u8>();
        // SAFETY: the vector was extended by the size of the record, and is aligned for it.
        let record = unsafe { content.write_packed(loaded.key, start) };
        let before = record.addr().get() - start.addr().get();
        self.versions.push((from * size_of::<u64>() + before, number));
        Ok(())
    }

    /// Checks the end of the block against the descriptions.
    fn check_end(&self) -> Result<(), &'static str> {
        let blocks = &self.base.blocks;
        let (announced, reaches_next) = match self.block {
            BlockId::Keys(own) => {
                let reaches_next = own + 1 < blocks.key_blocks()
                    && self.last_key.as_slice() >= blocks.key_block(own + 1).first_key;
                (blocks.key_block(own).versions, reaches_next)
            }
            BlockId::Changes(own) => {
                let reaches_next = own + 1 < blocks.change_blocks()
                    && self.last_change.is_some_and(|last| last >= blocks.change_block(own + 1).first);
                (blocks.change_block(own).versions, reaches_next)
            }
        };
        if self.versions.len() != announced as usize {
            return Err("the number of versions is not the one that the list of blocks announces");
        }
        if reaches_next {
            return Err("the block overlaps with the next one");
        }
        Ok(())
    }

    /// Moves the records into their final allocation.
    fn finish(self) -> NonNull<Loaded> {
        let is_changes = matches!(self.block, BlockId::Changes(_));
        let numbers = if is_changes { self.versions.len() } else { 0 };
        let numbers_at = size_of::<Loaded>();
        let records_at = numbers_at + (numbers * size_of::<u32>()).next_multiple_of(size_of::<u64>());
        let bytes = records_at + size_of_val(self.records.as_slice());
        let layout = Loaded::layout(bytes);
        // SAFETY: the layout is never empty.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        let cache = &self.base.cache;
        // SAFETY: the allocation has room for the struct, for the numbers after it, and for the records after
        // them; all of them are aligned, because each part has a multiple of eight bytes. Records contain no
        // pointers, so they may be copied. Nothing else can reach the allocation.
        unsafe {
            let copied = start.add(records_at).cast::<u64>();
            copied
                .copy_from_nonoverlapping(NonNull::from(self.records.as_slice()).cast(), self.records.len());
            let listed = start.add(numbers_at).cast::<u32>();
            let mut leaf = Leaf::new(0);
            for (at, &(offset, number)) in self.versions.iter().enumerate() {
                if is_changes {
                    listed.add(at).write(number);
                }
                let version: Version<'_> = Version::from_record(start.add(records_at + offset).cast());
                match is_changes {
                    true => leaf.insert::<ByRevision>(at, version.id(), Slot::new(version)),
                    false => leaf.insert::<ByKey>(at, version.key(), Slot::new(version)),
                }
            }
            let loaded = start.cast::<Loaded>();
            loaded.write(Loaded {
                leaf,
                cache: Arc::clone(cache),
                bytes,
                is_used_again: AtomicBool::new(false),
                is_evicted: AtomicBool::new(false),
                numbers: (listed.as_ptr(), numbers),
            });
            cache.resident_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            loaded
        }
    }
}

// SAFETY: a loaded block is immutable except for atomic words, and its pointers lead into its own allocation.
unsafe impl Send for Loaded {}
// SAFETY: a loaded block is immutable except for atomic words, and its pointers lead into its own allocation.
unsafe impl Sync for Loaded {}

/// The bases that a tree refers to.
#[derive(Clone, Copy)]
pub(crate) struct Bases {
    /// The newest base; null if there is none.
    pub(crate) newest: *const Base,
    /// The base before, while a base is being adopted; otherwise null.
    pub(crate) before: *const Base,
}

impl Bases {
    /// # Safety
    /// The bases are alive for `'t`.
    pub(crate) unsafe fn newest<'t>(self) -> Option<&'t Base> {
        // SAFETY: promised by the caller.
        unsafe { self.newest.as_ref() }
    }

    /// Returns the first fault of any base with the same cache.
    ///
    /// # Safety
    /// The bases are alive for `'t`.
    pub(crate) unsafe fn fault<'t>(self) -> Option<&'t str> {
        // SAFETY: promised by the caller.
        unsafe { self.newest() }.and_then(|base| base.cache.fault())
    }
}
