//! Implements version records, which are immutable (one per change of a key), and the handle with which they
//! are read.
//!
//! ```text
//!                                                   handle points here
//!                                                   |
//! +-- lease --+-- Jump ---+-- Prev --+-- History --+-------- Header, 40 bytes --------+-- key --+
//! | 8 bytes   | 24 bytes  | 16 bytes | 16 bytes    | main location superseded sub ... | bytes   |
//! +-----------+-----------+----------+-------------+----------------------------------+---------+
//! ```
//!
//! The parts before the header exist only where they are needed. Most keys are put once, without a lease, and
//! need only the header. `History` exists if the version is not the first put of its key, `Prev` if the
//! record has a predecessor, `Jump` if the jump pointer of the record leads further than to the predecessor.
//! The order of the parts gives each part, and the key, a fixed distance from the handle.
//!
//! A record is one allocation and a handle is a thin pointer, so a tree slot takes eight bytes and a put
//! allocates once. The jump pointers follow E. W. Myers, "An applicative random-access stack" (1983): each
//! record has a pointer to its predecessor and one to an older record, at skew-binary distances, so that the
//! newest version at or below a revision is found in O(log n) steps. The revisions of both targets are stored
//! beside the pointers, so that a search never reads a record that compaction may have freed.
//!
//! # Example: jump pointers of a key that was written at revisions 1 to 16
//!
//! ```text
//! record    1  2  3  4  5  6  7  8  9  10  11  12  13  14  15  16
//! jump to   -  1  2  1  4  5  4  1  8   9   8  11  12  11   8   1
//! distance  -  1  1  3  1  1  3  7  1   1   3   1   1   3   7  15
//! ```
//!
//! A new record jumps over two jumps of equal distance, if such a pair starts at its predecessor. For
//! example, the jump of record 15 covers the two jumps of distance 3 that start at records 14 and 11. The
//! search for revision 5 from record 16 follows the jump pointer of a record if it does not lead below 5, and
//! otherwise goes to the predecessor: 16, 15, 8, 7, 6, 5. These are five steps instead of eleven.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use numbers::{ChangeId, LeaseId, Location, Revision};

/// Metadata of a value: its location, its length in bytes and its CRC-32C. The index never reads the bytes of
/// a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Location in the log of the bytes of the value.
    pub location: Location,
    /// Length of the value in bytes.
    pub len: u32,
    /// CRC-32C of the bytes of the value, as the caller computed it.
    pub crc: u32,
}

/// Maximum length of a key in bytes. The length must fit into the lower 30 bits of `Header::key_len`. A
/// loader refuses longer keys; a put asserts the limit, because no log entry can contain a longer key.
pub const KEY_BYTES_MAX: usize = (1 << EXTRA_SHIFT) - 1;

/// Position in [`Header::key_len`] of the bits that encode which parts precede the header.
const EXTRA_SHIFT: u32 = 30;

/// Codes for the parts that precede the header, besides a lease. Each code includes the parts of all lower
/// codes: a record with `EXTRA_PREV` has a `History` and a `Prev` part.
const EXTRA_NONE: u32 = 0;
const EXTRA_HISTORY: u32 = 1;
const EXTRA_PREV: u32 = 2;
const EXTRA_JUMP: u32 = 3;

/// Top bit of [`Header::main`]: set if a lease precedes the header. The bit is free because revisions are
/// positive.
const LEASED: u64 = 1 << 63;

#[repr(C)]
pub(crate) struct Header {
    main: u64,
    location: AtomicU64,
    /// Main revision of the next version of the same key; 0 if no next version exists. Set once, by the
    /// writer.
    superseded: AtomicI64,
    sub: u32,
    key_len: u32,
    value_len: u32,
    value_crc: u32,
}

/// Create revision and version number, which are stored unless the record is the first put of its key. Both
/// are 0 for a tombstone.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct History {
    create_revision: i64,
    version: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Prev {
    record: NonNull<Header>,
    main: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Jump {
    record: NonNull<Header>,
    main: i64,
    /// Number of versions that the jump goes back; a jump to the predecessor would have distance 1.
    distance: u64,
}

const HEADER_BYTES: usize = size_of::<Header>();
/// Distance in bytes from the start of the `History` part to the header.
const HISTORY_BEFORE: usize = size_of::<History>();
const PREV_BEFORE: usize = HISTORY_BEFORE + size_of::<Prev>();
const JUMP_BEFORE: usize = PREV_BEFORE + size_of::<Jump>();
const LEASE_BYTES: usize = size_of::<i64>();
const _: () = assert!(HEADER_BYTES == 40 && HISTORY_BEFORE == 16 && PREV_BEFORE == 32 && JUMP_BEFORE == 56);
const _: () = assert!(align_of::<Header>() == 8 && align_of::<Prev>() == 8 && align_of::<Jump>() == 8);

/// Returns the number of bytes before the header. If the record has a lease, the lease is the first part.
fn before(extra: u32, leased: bool) -> usize {
    let extra = [0, HISTORY_BEFORE, PREV_BEFORE, JUMP_BEFORE][(extra & 3) as usize];
    extra + if leased { LEASE_BYTES } else { 0 }
}

fn layout(before: usize, key_len: usize) -> Layout {
    Layout::from_size_align(before + HEADER_BYTES + key_len, align_of::<Header>())
        .expect("the key length is bounded")
}

/// A copyable handle to one version of a key, written by one change. It is valid as long as the snapshot,
/// view or writer that it came from.
#[derive(Clone, Copy)]
pub struct Version<'a> {
    record: NonNull<Header>,
    lives: PhantomData<&'a Header>,
}

// SAFETY: a record is immutable after its creation, except for two atomic words, so handles may be sent.
unsafe impl Send for Version<'_> {}
// SAFETY: a record is immutable after its creation, except for two atomic words, so handles may be shared.
unsafe impl Sync for Version<'_> {}

impl std::fmt::Debug for Version<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Version")
            .field("key", &self.key().escape_ascii().to_string())
            .field("main", &self.main())
            .field("sub", &self.sub())
            .field("create_revision", &self.create_revision())
            .field("version", &self.version())
            .field("lease", &self.lease())
            .field("location", &self.location())
            .field("value_len", &self.value_len())
            .finish()
    }
}

impl PartialEq for Version<'_> {
    /// Returns true if both handles are of the same change. Their records may be two copies, if at least one
    /// was read from a block of a base.
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Version<'_> {}

impl<'a> Version<'a> {
    fn header(self) -> &'a Header {
        // SAFETY: the lifetime of the handle guarantees that the record is alive, and the record is changed
        // only through atomics.
        unsafe { self.record.as_ref() }
    }

    fn extra(self) -> u32 {
        self.header().key_len >> EXTRA_SHIFT
    }

    fn is_leased(self) -> bool {
        self.header().main & LEASED != 0
    }

    /// Reads the part that starts `before` bytes before the header.
    ///
    /// # Safety
    /// `create` wrote a `T` at that place.
    unsafe fn part<T: Copy>(self, before: usize) -> T {
        // SAFETY: promised by the caller; a part never changes, is in the allocation of the record, and is
        // aligned because all sizes are multiples of eight.
        unsafe { self.record.cast::<u8>().sub(before).cast::<T>().read() }
    }

    fn history(self) -> History {
        if self.extra() == EXTRA_NONE {
            return History { create_revision: self.main().0, version: 1 };
        }
        // SAFETY: `extra` is not `EXTRA_NONE`, so the record has a history.
        unsafe { self.part(HISTORY_BEFORE) }
    }

    fn prev(self) -> Option<Prev> {
        // SAFETY: `extra` is at least `EXTRA_PREV`, so the record has a predecessor.
        (self.extra() >= EXTRA_PREV).then(|| unsafe { self.part(PREV_BEFORE) })
    }

    /// Returns the jump pointer of the record. A record without a `Jump` part jumps to its predecessor, which
    /// is `prev`.
    fn jump(self, prev: Prev) -> Jump {
        if self.extra() < EXTRA_JUMP {
            return Jump { record: prev.record, main: prev.main, distance: 1 };
        }
        // SAFETY: `extra` is `EXTRA_JUMP`, so the record has a jump pointer.
        unsafe { self.part(JUMP_BEFORE) }
    }

    fn key_len(self) -> usize {
        self.header().key_len as usize & KEY_BYTES_MAX
    }

    /// Returns the key.
    pub fn key(self) -> &'a [u8] {
        // SAFETY: `create` wrote `key_len` bytes after the header; they never change.
        unsafe { std::slice::from_raw_parts(self.record.add(1).cast::<u8>().as_ptr(), self.key_len()) }
    }

    /// Returns the main revision of the change: etcd's mod_revision.
    pub fn main(self) -> Revision {
        Revision((self.header().main & !LEASED) as i64)
    }

    /// Returns the number of the change within its transaction, starting at 0.
    pub fn sub(self) -> u32 {
        self.header().sub
    }

    /// Returns the id of the change that wrote this version: [`Version::main`] and [`Version::sub`] together.
    pub fn id(self) -> ChangeId {
        ChangeId { main: self.main(), sub: self.sub() }
    }

    /// Returns true if this change deleted the key.
    pub fn is_tombstone(self) -> bool {
        self.extra() != EXTRA_NONE && self.history().version == 0
    }

    /// Returns the main revision that created the key; 0 for a tombstone.
    pub fn create_revision(self) -> Revision {
        Revision(self.history().create_revision)
    }

    /// Returns the number of puts of the key since its creation, from 1; 0 for a tombstone.
    pub fn version(self) -> i64 {
        self.history().version
    }

    /// Returns the id of the lease that the key was attached to; 0 for none.
    pub fn lease(self) -> LeaseId {
        if !self.is_leased() {
            return LeaseId::NONE;
        }
        // SAFETY: the record is leased, so a lease precedes all other parts.
        LeaseId(unsafe { self.part(before(self.extra(), true)) })
    }

    /// Returns the length of the value in bytes.
    pub fn value_len(self) -> u32 {
        self.header().value_len
    }

    /// Returns the checksum of the value as given to `put`.
    pub fn value_crc(self) -> u32 {
        self.header().value_crc
    }

    /// Returns the current location of the value. A background thread may relocate the value within the log
    /// at any time, so read the location once per access, and read it again if the log segment is gone.
    pub fn location(self) -> Location {
        Location::from_bits(self.header().location.load(Ordering::Acquire))
    }

    /// Stores the new location of a value that was relocated within the log. Readers of every view see the
    /// new location; the old copy must stay readable for readers that have loaded the old location.
    pub(crate) fn set_location(self, location: Location) {
        self.header().location.store(location.bits(), Ordering::Release);
    }

    /// Returns the location, length and checksum of the value.
    pub fn value(self) -> Value {
        Value { location: self.location(), len: self.value_len(), crc: self.value_crc() }
    }

    /// Returns true if this was the newest version of its key at main revision `rev`. `rev` must be neither
    /// older than the version nor newer than the snapshot from which the version came.
    pub(crate) fn is_newest_at(self, rev: Revision) -> bool {
        // Relaxed is enough. A value stored after a snapshot was taken is above every revision that the
        // snapshot can read, so the result is the same whether or not this load sees the value.
        let superseded = self.header().superseded.load(Ordering::Relaxed);
        superseded == 0 || superseded > rev.0
    }

    /// Returns the main revision of the next version of the same key; 0 if no next version exists.
    pub(crate) fn superseded(self) -> Revision {
        Revision(self.header().superseded.load(Ordering::Relaxed))
    }

    /// Returns the newest version of this key at main revision `rev`, which may be a tombstone. `self` must
    /// be the newest version of the key, and `rev` must not be below the compact revision of the snapshot.
    pub(crate) fn at(self, rev: Revision) -> Option<Version<'a>> {
        let mut version = self;
        while version.main() > rev {
            version = version.step_down(rev)?;
        }
        Some(version)
    }

    /// Makes one step towards an older version in the search for `rev`. `self` must be above `rev`. Returns
    /// `None` if no live version at `rev` exists: `self` has no predecessor, or its predecessor is a
    /// tombstone at or below `rev`.
    fn step_down(self, rev: Revision) -> Option<Version<'a>> {
        let prev = self.prev()?;
        let jump = self.jump(prev);
        let next = if jump.main > rev.0 {
            jump.record
        } else if prev.main > rev.0 {
            prev.record
        } else if self.version() == 1 {
            // The predecessor of a first version is a tombstone, which compaction may have freed. It must not
            // be read, and the result is known without it.
            return None;
        } else {
            prev.record
        };
        // SAFETY: a record with a main revision above `rev` is above the compact revision and so not freed; a
        // record at or below `rev` is read only if it is the newest there and not a tombstone, and compaction
        // also keeps such a record.
        Some(unsafe { Version::from_record(next) })
    }

    /// Returns the newest version at `rev`, like [`Version::at`]. If that version is a deletion that a later
    /// put follows, `at` returns `None`; this function returns the deletion, provided that a snapshot with
    /// the compact revision `compacted` still contains it.
    pub(crate) fn held_at(self, rev: Revision, compacted: Revision) -> Option<Version<'a>> {
        let mut version = self;
        while version.main() > rev {
            version = match version.step_down(rev) {
                Some(next) => next,
                // `version` is the first since the creation of the key: either no older version exists, or
                // the older one is a deletion.
                None => return version.predecessor(compacted),
            };
        }
        Some(version)
    }

    /// Returns the previous version, if a snapshot with the compact revision `compacted` still logically
    /// contains it.
    pub(crate) fn predecessor(self, compacted: Revision) -> Option<Version<'a>> {
        let prev = self.prev()?;
        let held = match self.version() {
            // The previous version is a tombstone. Compaction keeps it unless it is below the compact
            // revision.
            1 => prev.main >= compacted.0,
            _ => self.main() > compacted,
        };
        if !held {
            return None;
        }
        // SAFETY: `held` is true, so the predecessor is not freed. If `self` has version 1, the predecessor
        // is a tombstone at or above the compact revision, and compaction keeps it. Otherwise `self` is above
        // the compact revision, and its predecessor is not a tombstone. That predecessor is above the compact
        // revision, or it is the newest version at or below it. Compaction keeps it in both cases.
        Some(unsafe { Version::from_record(prev.record) })
    }

    /// Returns true if `other` is the predecessor, without reading it.
    pub(crate) fn follows(self, other: Version<'_>) -> bool {
        self.prev().is_some_and(|prev| prev.record == other.record)
    }

    /// Returns the predecessor if its main revision is that of this version, too.
    ///
    /// # Safety
    /// A predecessor of this main revision is not removed.
    pub(crate) unsafe fn predecessor_of_same_main(self) -> Option<Version<'a>> {
        let prev = self.prev().filter(|prev| prev.main == self.main().0)?;
        // SAFETY: promised by the caller.
        Some(unsafe { Version::from_record(prev.record) })
    }

    /// Returns the put with this id, if it is not removed. `self` must be the newest version of the key. All
    /// puts whose successor is before the change `removed_before`, and no others, are removed; tombstones at
    /// or above the main revision of that change are not removed.
    ///
    /// # Example
    ///
    /// A key was put at 3, 5, 8 and 9, and `removed_before` is 8: the put at 3 is removed, because its
    /// successor is at 5. The put at 5 is not removed. The search looks for the newest version at 8, which is
    /// not before 8, and so goes one step further, to the version at 5.
    pub(crate) fn stored(self, id: ChangeId, removed_before: ChangeId) -> Option<Version<'a>> {
        if id.main >= removed_before.main {
            // Everything above `id.main` exists.
            return self.at(id.main).filter(|version| version.id() == id);
        }
        let mut version = self.held_at(removed_before.main, removed_before.main)?;
        while version.id() >= removed_before {
            let prev = version.prev()?;
            if version.version() == 1 && prev.main < removed_before.main.0 {
                // The predecessor is a tombstone, which may be removed, and all puts before it are.
                return None;
            }
            // SAFETY: the predecessor is a tombstone that is not removed, or a put whose successor is not
            // before `removed_before`.
            version = unsafe { Version::from_record(prev.record) };
        }
        (version.id() == id).then_some(version)
    }

    /// Returns the version of this key that was live just before `change`. `self` must be the newest version
    /// of the key, and `change` must be above `compacted`, the compact revision of the snapshot.
    pub(crate) fn before(self, change: ChangeId, compacted: Revision) -> Option<Version<'a>> {
        let mut version = self.held_at(change.main, compacted)?;
        while version.main() == change.main && version.sub() >= change.sub {
            version = version.predecessor(compacted)?;
        }
        Some(version).filter(|version| !version.is_tombstone())
    }

    /// Asks the processor to prefetch the record into its cache.
    pub(crate) fn prefetch(self) {
        prefetch(self.record.as_ptr().cast::<u8>());
        // The key follows the header and may be in the next cache line.
        prefetch(self.record.as_ptr().wrapping_add(1).cast::<u8>());
    }

    /// # Safety
    /// The record must be alive for `'a`.
    pub(crate) unsafe fn from_record(record: NonNull<Header>) -> Version<'a> {
        Version { record, lives: PhantomData }
    }

    pub(crate) fn record(self) -> NonNull<Header> {
        self.record
    }

    /// Returns the size of the record in bytes, without the overhead of the allocator.
    pub(crate) fn bytes(self) -> usize {
        layout(before(self.extra(), self.is_leased()), self.key_len()).size()
    }
}

/// Asks the processor to fetch the cache line of an address. The address may be invalid.
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and affects only the cache.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Content of a new record. The getters of [`Version`] describe the fields.
pub(crate) struct Content {
    pub id: ChangeId,
    pub create_revision: Revision,
    pub version: i64,
    pub lease: LeaseId,
    pub value: Value,
}

impl Content {
    pub(crate) fn of(version: Version<'_>) -> Content {
        Content {
            id: version.id(),
            create_revision: version.create_revision(),
            version: version.version(),
            lease: version.lease(),
            value: version.value(),
        }
    }

    fn history(&self) -> History {
        History { create_revision: self.create_revision.0, version: self.version }
    }

    /// Returns the code of the parts that precede the header of a record without a predecessor.
    fn extra_unlinked(&self) -> u32 {
        let is_first = self.history() == History { create_revision: self.id.main.0, version: 1 };
        if is_first { EXTRA_NONE } else { EXTRA_HISTORY }
    }

    fn is_leased(&self) -> bool {
        self.lease != LeaseId::NONE
    }

    /// Returns the size in bytes of a record with this content and no predecessor, rounded up so that
    /// another record can follow it.
    pub(crate) fn packed_bytes(&self, key: &[u8]) -> usize {
        let bytes = before(self.extra_unlinked(), self.is_leased()) + HEADER_BYTES + key.len();
        bytes.next_multiple_of(align_of::<Header>())
    }

    /// Writes a record without a predecessor, which is a part of an allocation of the caller.
    ///
    /// # Safety
    /// `start` is aligned for a header, and [`Content::packed_bytes`] bytes from there on may be written.
    pub(crate) unsafe fn write_packed(&self, key: &[u8], start: NonNull<u8>) -> NonNull<Header> {
        // SAFETY: promised by the caller.
        unsafe { write(start, key, self, self.extra_unlinked(), None) }
    }
}

/// Writes a record.
///
/// # Safety
/// The memory from `start` on has room for the parts before the header, the header and the key, and is
/// aligned for a header. `links` is there if `extra` is at least `EXTRA_PREV`.
unsafe fn write(
    start: NonNull<u8>,
    key: &[u8],
    content: &Content,
    extra: u32,
    links: Option<(Prev, Jump)>,
) -> NonNull<Header> {
    let leased = content.is_leased();
    let before = before(extra, leased);
    // SAFETY: promised by the caller.
    unsafe {
        let record = start.add(before).cast::<Header>();
        record.write(Header {
            main: content.id.main.0 as u64 | if leased { LEASED } else { 0 },
            location: AtomicU64::new(content.value.location.bits()),
            superseded: AtomicI64::new(0),
            sub: content.id.sub,
            key_len: key.len() as u32 | extra << EXTRA_SHIFT,
            value_len: content.value.len,
            value_crc: content.value.crc,
        });
        let part = |before: usize| record.cast::<u8>().sub(before);
        if extra >= EXTRA_HISTORY {
            part(HISTORY_BEFORE).cast::<History>().write(content.history());
        }
        if let Some((prev, jump)) = links {
            part(PREV_BEFORE).cast::<Prev>().write(prev);
            if extra == EXTRA_JUMP {
                part(JUMP_BEFORE).cast::<Jump>().write(jump);
            }
        }
        if leased {
            part(before).cast::<i64>().write(content.lease.0);
        }
        record.add(1).cast::<u8>().copy_from_nonoverlapping(NonNull::from(key).cast::<u8>(), key.len());
        record
    }
}

/// Allocates a record. If the record follows another one of the same key, links it to `prev` and marks `prev`
/// as superseded. `compacted` is the compact revision. Records at or below it may be freed, so this function
/// does not read them to compute the jump pointer; only `prev` must be alive.
pub(crate) fn create(
    key: &[u8],
    content: &Content,
    prev: Option<Version<'_>>,
    compacted: Revision,
) -> NonNull<Header> {
    assert!(key.len() <= KEY_BYTES_MAX, "key of {} bytes", key.len());
    assert!(content.id.main >= Revision(0), "revision {}", content.id.main);
    let links = prev.map(|prev| links_to(prev, compacted));
    let extra = match links {
        Some((_, jump)) if jump.distance > 1 => EXTRA_JUMP,
        Some(_) => EXTRA_PREV,
        None => content.extra_unlinked(),
    };
    let layout = layout(before(extra, content.is_leased()), key.len());
    // SAFETY: the layout is never empty.
    let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
    // SAFETY: the allocation has room for the parts that `extra` and the lease require before the header, for
    // the header, and for the key after it.
    let record = unsafe { write(start, key, content, extra, links) };
    if let Some(prev) = prev {
        prev.header().superseded.store(content.id.main.0, Ordering::Relaxed);
    }
    record
}

fn links_to(prev: Version<'_>, compacted: Revision) -> (Prev, Jump) {
    let to = Prev { record: prev.record, main: prev.main().0 };
    let direct = (to, Jump { record: to.record, main: to.main, distance: 1 });
    let Some(below) = prev.prev().map(|below| prev.jump(below)) else { return direct };
    if below.main <= compacted.0 {
        // The jump target may be freed, so it must not be read below. A longer jump is not needed either,
        // because no search goes below the compact revision. So the new record jumps only to `prev`.
        return direct;
    }
    // SAFETY: the target is above the compact revision, and such a version is never freed.
    let target: Version<'_> = unsafe { Version::from_record(below.record) };
    let Some(further) = target.prev().map(|prev| target.jump(prev)) else { return direct };
    if further.distance != below.distance {
        return direct;
    }
    (to, Jump { distance: 1 + below.distance + further.distance, ..further })
}

/// Frees a record.
///
/// # Safety
/// The record came from `create`, no handle to it exists and none will be created.
pub(crate) unsafe fn free(record: NonNull<Header>) {
    // SAFETY: the record is alive until the dealloc below, which repeats the layout of `create`.
    unsafe {
        let version = Version::from_record(record);
        let before = before(version.extra(), version.is_leased());
        let layout = layout(before, version.key_len());
        dealloc(record.cast::<u8>().sub(before).as_ptr(), layout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests all combinations of parts before a header, with keys of many lengths.
    #[test]
    fn a_record_says_what_it_was_made_of() {
        let mut contents = Vec::new();
        for lease in [LeaseId::NONE, LeaseId(-7), LeaseId(i64::MAX)] {
            for (create_revision, version) in [(9, 1), (4, 1), (4, 3), (0, 0), (i64::MAX / 2, i64::MAX / 2)] {
                contents.push(Content {
                    id: ChangeId { main: Revision(9), sub: u32::MAX },
                    create_revision: Revision(create_revision),
                    version,
                    lease,
                    value: Value { location: Location::new(3, 5), len: u32::MAX, crc: 7 },
                });
            }
        }
        for content in &contents {
            for key_len in 0..20 {
                let key = &b"abcdefghijklmnopqrstuvwxyz"[..key_len];
                // Enough predecessors that the record has a jump pointer.
                let mut records: Vec<NonNull<Header>> = Vec::new();
                for before in 0..4 {
                    // SAFETY: all records live until the end of the iteration.
                    let prev = records.last().map(|&record| unsafe { Version::from_record(record) });
                    let record = create(key, content, prev, Revision::NEVER_COMPACTED);
                    records.push(record);
                    // SAFETY: all records live until the end of the iteration.
                    let version: Version<'_> = unsafe { Version::from_record(record) };
                    assert_eq!(version.extra() == EXTRA_JUMP, before == 3);
                    assert_eq!(
                        (version.key(), version.id(), version.create_revision(), version.version()),
                        (key, content.id, content.create_revision, content.version)
                    );
                    assert_eq!((version.lease(), version.value()), (content.lease, content.value));
                    assert_eq!(version.is_tombstone(), content.version == 0);
                    assert_eq!(version.superseded(), Revision(0));
                    if let Some(prev) = prev {
                        assert_eq!(prev.superseded(), content.id.main);
                        assert!(version.prev().is_some_and(|to| to.record == prev.record()));
                    }
                    let moved = Location::new(before, 1);
                    version.set_location(moved);
                    assert_eq!(version.location(), moved);
                }
                for record in records {
                    // SAFETY: no handle is left.
                    unsafe { free(record) };
                }
            }
        }
    }

    /// Writes a long history of one key, with the compact revision following at many different distances, and
    /// counts the steps of searches. Nothing is freed during the test, so that the whole chain can be walked.
    #[test]
    fn a_search_takes_logarithmic_steps_whatever_was_compacted() {
        for lag in [1, 2, 3, 10, 100, 1000, 12_345, i64::MAX] {
            let mut records: Vec<NonNull<Header>> = Vec::new();
            let mut steps_max = 0;
            for main in 1..=100_000 {
                let content = Content {
                    id: ChangeId::first_of(Revision(main)),
                    create_revision: Revision(1),
                    version: main,
                    lease: LeaseId::NONE,
                    value: Value::default(),
                };
                // The compact revision is raised only sometimes, not with every write.
                let compacted = if main > lag { (main - lag) / 777 * 777 } else { -1 };
                // SAFETY: all records live until the end of the iteration.
                let prev = records.last().map(|&record| unsafe { Version::from_record(record) });
                let record = create(b"key", &content, prev, Revision(compacted));
                records.push(record);
                if main % 997 == 0 {
                    // SAFETY: all records live until the end of the iteration.
                    let newest: Version<'_> = unsafe { Version::from_record(record) };
                    for back in (0..main - compacted.max(1)).step_by(1 + main as usize / 50) {
                        let (mut version, mut steps) = (newest, 0);
                        let rev = Revision(main - back);
                        while version.main() > rev {
                            version = version.step_down(rev).expect("every revision wrote the key");
                            steps += 1;
                        }
                        assert_eq!(version.main(), rev);
                        steps_max = steps_max.max(steps);
                    }
                }
            }
            assert!(steps_max <= 40, "{steps_max} steps with the compaction {lag} behind");
            for record in records {
                // SAFETY: no handle is left.
                unsafe { free(record) };
            }
        }
    }
}
