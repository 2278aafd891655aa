//! One immutable record per change of a key, and the handle through which it is read.
//!
//! ```text
//! +------------------ Header, 64 bytes ------------------+-- Link, 40 bytes --+-- key --+
//! | main create version lease location superseded ...    | only with a        | bytes   |
//! |                                                      | predecessor        |         |
//! +------------------------------------------------------+--------------------+---------+
//! ```
//!
//! Everything lies in one allocation behind a thin pointer, so that a tree slot is eight bytes and a put
//! allocates once. The jump pointers follow E. W. Myers, "An applicative random-access stack" (1983): each
//! record knows its predecessor and one record further down, at skew-binary distances, so that the newest
//! version at or below a revision is found in O(log n) steps. The revisions of both targets stand beside the
//! pointers, so that a search decides without looking at a record that compaction may have freed.
//!
//! # Example: jump pointers of a key that was written at revisions 1 to 16
//!
//! ```text
//! record    1  2  3  4  5  6  7  8  9  10  11  12  13  14  15  16
//! jump to   -  1  2  1  4  5  4  1  8   9   8  11  12  11   8   1
//! distance  -  1  1  3  1  1  3  7  1   1   3   1   1   3   7  15
//! ```
//!
//! A new record jumps over two jumps of equal distance, if its predecessor begins such a pair: 15 covers the two jumps of
//! distance 3 of 14 and 11. The search for revision 5 from record 16 takes a jump where that does not pass below 5, and the
//! predecessor otherwise: 16, 15, 8, 7, 6, 5; five steps instead of eleven.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use numbers::{ChangeId, LeaseId, Location, Revision};

/// A location in the one word that a header keeps of it.
fn pack(location: Location) -> u64 {
    (u64::from(location.segment) << 32) | u64::from(location.offset)
}

fn unpack(raw: u64) -> Location {
    Location { segment: (raw >> 32) as u32, offset: raw as u32 }
}

/// The facts about a value that the index keeps: its location, its length in bytes and its CRC-32C. The index never reads
/// the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Location of the bytes.
    pub location: Location,
    /// Length in bytes.
    pub len: u32,
    /// Checksum of the bytes, as the caller computed it.
    pub crc: u32,
}

const HAS_LINK: u32 = 1 << 31;

/// Longest key in bytes that a record can hold; far above what a request may carry.
pub const KEY_BYTES_MAX: usize = (HAS_LINK - 1) as usize;

#[repr(C)]
pub(crate) struct Header {
    main: i64,
    create_revision: i64,
    version: i64,
    lease: i64,
    location: AtomicU64,
    /// Main revision of the next version of the same key; 0 while there is none. Set once, by the writer.
    superseded: AtomicI64,
    sub: u32,
    /// Length of the key; the top bit says that a `Link` stands between header and key.
    key_len: u32,
    value_len: u32,
    value_crc: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Link {
    prev: NonNull<Header>,
    prev_main: i64,
    jump: NonNull<Header>,
    jump_main: i64,
    /// Number of versions that `jump` lies below this one.
    jump_distance: u64,
}

const HEADER_BYTES: usize = size_of::<Header>();
const LINK_BYTES: usize = size_of::<Link>();
const _: () =
    assert!(HEADER_BYTES == 64 && LINK_BYTES == 40 && align_of::<Header>() == 8 && align_of::<Link>() == 8);

fn layout(linked: bool, key_len: usize) -> Layout {
    let bytes = HEADER_BYTES + if linked { LINK_BYTES } else { 0 } + key_len;
    Layout::from_size_align(bytes, align_of::<Header>()).expect("the key length is bounded")
}

/// One version of a key: what one change left behind. A copyable handle, valid as long as the snapshot, view or
/// writer it came from.
#[derive(Clone, Copy)]
pub struct Version<'a> {
    record: NonNull<Header>,
    lives: PhantomData<&'a Header>,
}

// SAFETY: a record is immutable after its creation but for two atomic words, so handles may be shared and sent.
unsafe impl Send for Version<'_> {}
// SAFETY: as above.
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
    /// Returns true if both handles mean the same record; two records never describe the same change.
    fn eq(&self, other: &Self) -> bool {
        self.record == other.record
    }
}

impl Eq for Version<'_> {}

impl<'a> Version<'a> {
    fn header(self) -> &'a Header {
        // SAFETY: the handle's lifetime promises that the record is alive; it is only changed through atomics.
        unsafe { self.record.as_ref() }
    }

    fn link(self) -> Option<&'a Link> {
        if self.header().key_len & HAS_LINK == 0 {
            return None;
        }
        // SAFETY: the flag says that an initialised Link follows the header in the same allocation, aligned as
        // the header's size is a multiple of eight.
        Some(unsafe { self.record.add(1).cast::<Link>().as_ref() })
    }

    fn key_len(self) -> usize {
        (self.header().key_len & !HAS_LINK) as usize
    }

    /// The key.
    pub fn key(self) -> &'a [u8] {
        let skip = if self.header().key_len & HAS_LINK == 0 { 0 } else { LINK_BYTES };
        // SAFETY: `create` wrote `key_len` bytes at this offset of the allocation; they never change.
        unsafe {
            std::slice::from_raw_parts(self.record.add(1).cast::<u8>().add(skip).as_ptr(), self.key_len())
        }
    }

    /// Main revision of the change: etcd's mod_revision.
    pub fn main(self) -> Revision {
        Revision(self.header().main)
    }

    /// Number of the change inside its transaction, from 0.
    pub fn sub(self) -> u32 {
        self.header().sub
    }

    /// The change that wrote this version: [`Version::main`] and [`Version::sub`] together.
    pub fn id(self) -> ChangeId {
        ChangeId { main: self.main(), sub: self.sub() }
    }

    /// Returns true if this change deleted the key.
    pub fn is_tombstone(self) -> bool {
        self.header().version == 0
    }

    /// Main revision that created the key; 0 for a tombstone.
    pub fn create_revision(self) -> Revision {
        Revision(self.header().create_revision)
    }

    /// Returns the number of puts of the key since its creation, from 1; 0 for a tombstone.
    pub fn version(self) -> i64 {
        self.header().version
    }

    /// Lease the key was attached to; 0 for none.
    pub fn lease(self) -> LeaseId {
        LeaseId(self.header().lease)
    }

    /// Length of the value in bytes.
    pub fn value_len(self) -> u32 {
        self.header().value_len
    }

    /// Checksum of the value as given to `put`.
    pub fn value_crc(self) -> u32 {
        self.header().value_crc
    }

    /// Returns the present location of the value. A background mover may change it at any time, so read it once per
    /// access, and be ready to read it again when the segment is gone.
    pub fn location(self) -> Location {
        unpack(self.header().location.load(Ordering::Acquire))
    }

    /// Records that the value was moved. Readers of every view see the new place; the old one must stay
    /// readable for those that looked before.
    pub fn set_location(self, location: Location) {
        self.header().location.store(pack(location), Ordering::Release);
    }

    /// The value's place, length and checksum together.
    pub fn value(self) -> Value {
        Value { location: self.location(), len: self.value_len(), crc: self.value_crc() }
    }

    /// Returns true if this was the newest version of its key at main revision `rev` (which must not be older than the
    /// version itself, nor newer than the snapshot it came from).
    pub(crate) fn is_newest_at(self, rev: Revision) -> bool {
        // Relaxed is enough: what is set after a snapshot was taken is larger than any revision it can be asked
        // for, so seeing it or not gives the same answer.
        let superseded = self.header().superseded.load(Ordering::Relaxed);
        superseded == 0 || superseded > rev.0
    }

    /// Main revision of the next version of the same key; 0 while there is none.
    pub(crate) fn superseded(self) -> Revision {
        Revision(self.header().superseded.load(Ordering::Relaxed))
    }

    /// The newest version of this key at main revision `rev`, tombstones included, given the newest of all.
    /// `rev` must not lie below the compact revision of the snapshot.
    pub(crate) fn at(self, rev: Revision) -> Option<Version<'a>> {
        let mut version = self;
        while version.main() > rev {
            version = version.step_down(rev)?;
        }
        Some(version)
    }

    /// One step of the search for `rev`, from a version above it.
    fn step_down(self, rev: Revision) -> Option<Version<'a>> {
        let link = self.link()?;
        let next = if link.jump_main > rev.0 {
            link.jump
        } else if link.prev_main > rev.0 {
            link.prev
        } else if self.version() == 1 {
            // What precedes the first version of a generation is a tombstone, which compaction may have freed:
            // the answer is known without looking.
            return None;
        } else {
            link.prev
        };
        // SAFETY: a record with a main revision above `rev` is above the compact revision and so not freed; one
        // at or below it is looked at only as the newest there, and not a tombstone: it is kept too.
        Some(unsafe { Version::from_record(next) })
    }

    /// Like [`Version::at`], but gives a deletion too where a snapshot with this compact revision still holds it,
    /// whatever came after it.
    pub(crate) fn held_at(self, rev: Revision, compacted: Revision) -> Option<Version<'a>> {
        let mut version = self;
        while version.main() > rev {
            version = match version.step_down(rev) {
                Some(next) => next,
                // Either there is nothing older, or a deletion that precedes this first version.
                None => return version.predecessor(compacted),
            };
        }
        Some(version)
    }

    /// The version before this one, if a snapshot with this compact revision still logically holds it.
    pub(crate) fn predecessor(self, compacted: Revision) -> Option<Version<'a>> {
        let link = self.link()?;
        let held = match self.version() {
            // It follows a tombstone, which stays while it does not lie below the compact revision.
            1 => link.prev_main >= compacted.0,
            _ => self.main() > compacted,
        };
        if !held {
            return None;
        }
        // SAFETY: of a first version the predecessor is a tombstone, and those at or above the compact revision are
        // not freed. Any other one lies above the compact revision here, so its predecessor is above it too or is
        // the newest below, and no tombstone.
        Some(unsafe { Version::from_record(link.prev) })
    }

    /// The live version of this key just before `change`, given the newest of all. The change
    /// must lie above the compact revision of the snapshot, which is given.
    pub(crate) fn before(self, change: ChangeId, compacted: Revision) -> Option<Version<'a>> {
        let mut version = self.held_at(change.main, compacted)?;
        while version.main() == change.main && version.sub() >= change.sub {
            version = version.predecessor(compacted)?;
        }
        Some(version).filter(|version| !version.is_tombstone())
    }

    fn has_link(self) -> bool {
        self.link().is_some()
    }

    /// Asks the processor to fetch the record while other work goes on.
    pub(crate) fn prefetch(self) {
        prefetch(self.record.as_ptr().cast::<u8>());
        // Where the key is, of a record without a link.
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

    /// Bytes the record takes, without what the allocator adds.
    pub(crate) fn bytes(self) -> usize {
        layout(self.has_link(), self.key_len()).size()
    }
}

/// Asks the processor to fetch the cache line of an address. Any address will do.
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and has no effect but on the cache.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The content of a new record; see [`Version`] for the fields.
pub(crate) struct Content {
    pub id: ChangeId,
    pub create_revision: Revision,
    pub version: i64,
    pub lease: LeaseId,
    pub value: Value,
}

/// Allocates a record and, when it follows another of the same key, links it and marks that one superseded.
/// `compacted` is the compact revision below which the predecessor's own links must not be followed.
pub(crate) fn create(
    key: &[u8],
    content: &Content,
    prev: Option<Version<'_>>,
    compacted: Revision,
) -> NonNull<Header> {
    assert!(key.len() <= KEY_BYTES_MAX, "key of {} bytes", key.len());
    let link = prev.map(|prev| link_to(prev, compacted));
    let layout = layout(link.is_some(), key.len());
    // SAFETY: the layout is never empty.
    let Some(record) = NonNull::new(unsafe { alloc(layout) }.cast::<Header>()) else {
        handle_alloc_error(layout)
    };
    let flag = if link.is_some() { HAS_LINK } else { 0 };
    // SAFETY: the allocation has room for header, link if there is one, and key, in this order.
    unsafe {
        record.write(Header {
            main: content.id.main.0,
            create_revision: content.create_revision.0,
            version: content.version,
            lease: content.lease.0,
            location: AtomicU64::new(pack(content.value.location)),
            superseded: AtomicI64::new(0),
            sub: content.id.sub,
            key_len: key.len() as u32 | flag,
            value_len: content.value.len,
            value_crc: content.value.crc,
        });
        let mut tail = record.add(1).cast::<u8>();
        if let Some(link) = link {
            tail.cast::<Link>().write(link);
            tail = tail.add(LINK_BYTES);
        }
        tail.copy_from_nonoverlapping(NonNull::from(key).cast::<u8>(), key.len());
    }
    if let Some(prev) = prev {
        prev.header().superseded.store(content.id.main.0, Ordering::Relaxed);
    }
    record
}

fn link_to(prev: Version<'_>, compacted: Revision) -> Link {
    let direct = Link {
        prev: prev.record,
        prev_main: prev.main().0,
        jump: prev.record,
        jump_main: prev.main().0,
        jump_distance: 1,
    };
    let Some(below) = prev.link() else { return direct };
    if below.jump_main <= compacted.0 {
        // The target may be gone; nobody will ever search there, so the stack restarts on top of `prev`.
        return direct;
    }
    // SAFETY: a version above the compact revision is never freed.
    let Some(target) = (unsafe { Version::from_record(below.jump) }).link() else { return direct };
    if target.jump_distance != below.jump_distance {
        return direct;
    }
    Link {
        jump: target.jump,
        jump_main: target.jump_main,
        jump_distance: 1 + below.jump_distance + target.jump_distance,
        ..direct
    }
}

/// Frees a record.
///
/// # Safety
/// It came from `create`, and nobody holds or will make a handle to it.
pub(crate) unsafe fn free(record: NonNull<Header>) {
    // SAFETY: the record is alive until the dealloc below, which repeats the layout of `create`.
    unsafe {
        let version = Version::from_record(record);
        let layout = layout(version.has_link(), version.key_len());
        dealloc(record.as_ptr().cast::<u8>(), layout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a long history of one key, with the compact revision following at many different distances, and
    /// counts the steps of searches. Nothing is freed meanwhile, so that the chain can be walked in full.
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
                // The compact revision moves up now and then, not with every write.
                let compacted = if main > lag { (main - lag) / 777 * 777 } else { -1 };
                // SAFETY: all records live to the end of the round.
                let prev = records.last().map(|&record| unsafe { Version::from_record(record) });
                let record = create(b"key", &content, prev, Revision(compacted));
                records.push(record);
                if main % 997 == 0 {
                    // SAFETY: as above.
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
                // SAFETY: nobody holds a handle any more.
                unsafe { free(record) };
            }
        }
    }
}
