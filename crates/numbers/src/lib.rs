//! Types for the numbers that a member uses, so that the compiler refuses to mix different kinds of numbers:
//! positions in the raft log, revisions of the store and changes within them, and ids of members, clusters
//! and leases.
//!
//! Each type except the pairs ([`EntryId`], [`Location`], [`ChangeId`]) and [`BlockPlace`] is one machine word, has no cost
//! compared with the bare number, and prints as that number. Messages contain bare numbers, which get their
//! type when a message is decoded. Files and metrics use the bare number, which is the field `.0`.
//!
//! ```
//! use mainstay_numbers::{Index, Revision};
//!
//! let applied = Index(7);
//! assert_eq!(applied.next(), Index(8));
//! assert_eq!(Index(12) - applied, 5); // entries between two positions
//! assert_eq!(Revision(3) + 2, Revision(5));
//! assert_eq!(format!("applied {applied}"), "applied 7");
//! ```
//!
//! Spans of time are `std::time::Duration`. The exception is the time to live of a lease, which is in whole
//! [`Seconds`] in log entries and in messages. Numbers of bytes are `u64` or `usize`, in variables whose
//! names end in `bytes`; they have no type of their own.
//!
//! The crate does not know the things that the numbers stand for. Start reading with [`Index`] and
//! [`Revision`]. Tests: beside the code.

#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// Implements `Display`, `Debug` and `LowerHex` for a number type. All three print the bare number.
macro_rules! written_bare {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

/// Implements the successor, the predecessor, and distances for a number type whose values count up.
macro_rules! counts_up {
    ($name:ident, $number:ty) => {
        impl $name {
            /// Returns the number after this one.
            #[must_use]
            pub const fn next(self) -> $name {
                $name(self.0 + 1)
            }

            /// Returns the number before this one. The number before zero is zero.
            #[must_use]
            pub const fn previous(self) -> $name {
                if self.0 > 0 { $name(self.0 - 1) } else { self }
            }

            /// Returns this number minus `steps`; zero if that would be negative.
            #[must_use]
            pub const fn saturating_sub(self, steps: $number) -> $name {
                if self.0 > steps { $name(self.0 - steps) } else { $name(0) }
            }

            /// Returns this number minus `other`; 0 if `other` is higher.
            #[must_use]
            pub const fn ahead_of(self, other: $name) -> $number {
                if self.0 > other.0 { self.0 - other.0 } else { 0 }
            }
        }

        impl Add<$number> for $name {
            type Output = $name;
            fn add(self, steps: $number) -> $name {
                $name(self.0 + steps)
            }
        }

        impl AddAssign<$number> for $name {
            fn add_assign(&mut self, steps: $number) {
                self.0 += steps;
            }
        }

        impl Sub<$number> for $name {
            type Output = $name;
            fn sub(self, steps: $number) -> $name {
                $name(self.0 - steps)
            }
        }

        impl Sub for $name {
            type Output = $number;
            fn sub(self, other: $name) -> $number {
                self.0 - other.0
            }
        }
    };
}

/// A position in the raft log. The first entry has index 1; index 0 means the position before all entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index(pub u64);
written_bare!(Index);
counts_up!(Index, u64);

impl Index {
    /// Returns all indexes from this one up to and including `last`, in ascending order; none if `last` is
    /// lower than this one.
    pub fn through(self, last: Index) -> impl DoubleEndedIterator<Item = Index> {
        (self.0..=last.0).map(Index)
    }
}

/// A raft term, in which at most one member is the leader. The first election begins term 1; term 0 means the
/// time before all elections.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);
written_bare!(Term);
counts_up!(Term, u64);

/// An entry of the raft log, identified by index and term. If two logs contain an entry with the same index
/// and term, they are equal up to that entry (Ongaro and Ousterhout, "In Search of an Understandable
/// Consensus Algorithm", the log matching property).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EntryId {
    /// Log index of the entry.
    pub index: Index,
    /// Raft term of the leader that appended the entry.
    pub term: Term,
}

/// Location of bytes in the log. The location of a raft entry is that of the first byte of its data. The
/// location of a value is the location of the value's entry plus the offset of the value in the entry's data.
///
/// The location of a compressed value is that of the record that contains it. It also tells roughly how many
/// bytes the record has, because the length of the value, which is stored beside the location, does not.
///
/// ```text
/// bits     of a value as it is                 of a compressed value
/// 63       0                                   1
/// 62..32   number of the segment               number of the segment
/// 31..0    offset                              31..3 offset, a multiple of 8; 2..0 size class
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(u64);

/// Sizes of the payload of a compressed value's record, in sixty-fourths of the value's length, by size class.
/// The steps are factors of at most 3 below a tenth of the length, of 2 below a sixth, and of 1.5 above, so that
/// the bytes that a segment's live values take are known well enough.
const SIZE_CLASSES: [u64; 8] = [1, 3, 6, 10, 16, 24, 36, 48];

/// Bit of a location that marks a compressed value.
const COMPRESSED: u64 = 1 << 63;

impl Location {
    /// Highest number of a segment that a location can contain.
    pub const SEGMENT_MAX: u32 = (1 << 31) - 1;

    /// Returns the location of bytes at an offset of a segment's file.
    ///
    /// # Panics
    ///
    /// Panics if the number of the segment is higher than [`Self::SEGMENT_MAX`], which no log reaches.
    #[must_use]
    pub const fn new(segment: u32, offset: u32) -> Location {
        assert!(segment <= Location::SEGMENT_MAX, "the number of a segment has 31 bits");
        Location(((segment as u64) << 32) | offset as u64)
    }

    /// Returns the location of a compressed value: the offset of its record, whose payload has `stored` bytes,
    /// where the value has `len`. Returns `None` if compression saves less than a quarter, so that the value
    /// is better stored as it is.
    ///
    /// # Panics
    ///
    /// Panics if the offset is no multiple of 8, as those of records are, or if the number of the segment is
    /// higher than [`Self::SEGMENT_MAX`].
    #[must_use]
    pub fn compressed(segment: u32, record: u32, stored: u32, len: u32) -> Option<Location> {
        assert!(record.is_multiple_of(8), "records are aligned");
        let class = SIZE_CLASSES.iter().position(|parts| u64::from(stored) <= part(*parts, len))? as u64;
        Some(Location(Location::new(segment, record).0 | COMPRESSED | class))
    }

    /// Returns the location that [`Self::bits`] encoded. All numbers are locations of some kind, although
    /// most of them lie in no log.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Location {
        Location(bits)
    }

    /// Returns the location as one number.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the sequence number of the segment.
    #[must_use]
    pub const fn segment(self) -> u32 {
        ((self.0 & !COMPRESSED) >> 32) as u32
    }

    /// Returns the offset from the beginning of the segment's file, in bytes: of the value itself, or of the
    /// record of a compressed value.
    #[must_use]
    pub const fn offset(self) -> u32 {
        if self.is_compressed() { self.0 as u32 & !7 } else { self.0 as u32 }
    }

    /// Returns true if the location is that of a compressed value.
    #[must_use]
    pub const fn is_compressed(self) -> bool {
        self.0 & COMPRESSED != 0
    }

    /// Returns the maximum number of bytes that a value of `len` bytes takes at this location: its length, or,
    /// for a compressed value, the size of the payload of its record, rounded up to a size class.
    #[must_use]
    pub fn stored_bytes(self, len: u32) -> u64 {
        if self.is_compressed() { part(SIZE_CLASSES[(self.0 & 7) as usize], len) } else { u64::from(len) }
    }
}

/// Returns this many sixty-fourths of a length, rounded down.
fn part(parts: u64, len: u32) -> u64 {
    u64::from(len) * parts / 64
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut location = f.debug_struct("Location");
        location.field("segment", &self.segment()).field("offset", &self.offset());
        if self.is_compressed() {
            location.field("compressed", &true);
        }
        location.finish()
    }
}

/// Place of a block in a file of numbered, checksummed blocks, with the checksum that makes the block recognisable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPlace {
    /// Number of the block in its file; the first one has 0.
    pub number: u64,
    /// Offset of the block's header in the file, in bytes.
    pub offset: u64,
    /// Length of the block's payload in bytes.
    pub len: u32,
    /// Checksum of the block, as its header contains it.
    pub crc: u32,
}

impl BlockPlace {
    /// Length of the header before each block, in bytes.
    pub const HEAD_BYTES: u64 = 8;

    /// Returns the number and the offset of the next block in the file, if there is one.
    #[must_use]
    pub const fn next(self) -> BlockPlace {
        let offset = self.offset.saturating_add(BlockPlace::HEAD_BYTES).saturating_add(self.len as u64);
        BlockPlace { number: self.number.saturating_add(1), offset, len: 0, crc: 0 }
    }
}

/// A revision of the store, as etcd counts them: an empty store has revision 1, and each transaction that
/// changes something increases it by one. In requests 0 means the newest revision; requests with negative
/// revisions are refused before they get this type.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub i64);
written_bare!(Revision);
counts_up!(Revision, i64);

impl Revision {
    /// The revision 0, which means the current revision in requests.
    pub const CURRENT: Revision = Revision(0);

    /// The revision of an empty store.
    pub const FIRST: Revision = Revision(1);

    /// The compact revision of a store that was never compacted.
    pub const NEVER_COMPACTED: Revision = Revision(-1);

    /// A revision that is lower than all others.
    pub const MIN: Revision = Revision(i64::MIN);

    /// A revision that is higher than all others.
    pub const MAX: Revision = Revision(i64::MAX);
}

/// One change of one key, identified by two numbers that etcd calls main and sub revision. Changes are
/// ordered as they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId {
    /// Revision of the transaction that made the change.
    pub main: Revision,
    /// Number of the change within that transaction, from 0.
    pub sub: u32,
}

impl ChangeId {
    /// Returns the id of the first change of a transaction.
    #[must_use]
    pub const fn first_of(main: Revision) -> ChangeId {
        ChangeId { main, sub: 0 }
    }

    /// Returns an id that comes after all changes of the transaction `main`. An iteration that continues
    /// after this id begins with the next transaction.
    #[must_use]
    pub const fn end_of(main: Revision) -> ChangeId {
        ChangeId { main, sub: u32::MAX }
    }
}

/// Prints `main/sub`.
impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.main, self.sub)
    }
}

/// Id of a lease. 0 stands for no lease. Clients may choose the id, so it may be any number except 0. etcd's
/// tools print the id in hexadecimal.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);
written_bare!(LeaseId);

impl LeaseId {
    /// The id 0, which means "no lease" in messages.
    pub const NONE: LeaseId = LeaseId(0);

    /// Returns true if the id is not [`Self::NONE`].
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}

/// Time to live of a lease, or its remaining time, in whole seconds. It is negative in one case: in messages,
/// the remaining time of a lease that does not exist is -1.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub i64);
written_bare!(Seconds);

impl Seconds {
    /// Zero seconds.
    pub const ZERO: Seconds = Seconds(0);

    /// Returns the same time as a duration; zero if it is negative.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(if self.0 > 0 { self.0 as u64 } else { 0 })
    }

    /// Returns the whole seconds of a duration, rounded down.
    #[must_use]
    pub fn whole_of(duration: Duration) -> Seconds {
        Seconds(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
    }

    /// Returns a duration in seconds, rounded up.
    #[must_use]
    pub fn rounded_up(duration: Duration) -> Seconds {
        let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
        Seconds(i64::try_from(seconds).unwrap_or(i64::MAX))
    }
}

/// Id of a member within its cluster. The id 0 means "no member", such as no leader or no vote.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);
written_bare!(MemberId);

impl MemberId {
    /// The id 0, which means "no member" in raft and in messages.
    pub const NONE: MemberId = MemberId(0);

    /// Returns true if the id is not [`Self::NONE`].
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}

/// Id of a cluster. All members of the cluster have the same cluster id, and refuse messages with another
/// one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);
written_bare!(ClusterId);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;

    use super::*;

    #[test]
    fn numbers_are_written_as_bare_numbers() {
        assert_eq!(format!("{} {:?} {:>4}", Index(7), Term(2), Revision(-1)), "7 2   -1");
        assert_eq!(
            format!("{:x} {:016x}", MemberId(0x8e9e_05c5_2164_694d), LeaseId(-1)),
            "8e9e05c52164694d ffffffffffffffff"
        );
        assert_eq!(
            format!("{:?}", EntryId { index: Index(7), term: Term(2) }),
            "EntryId { index: 7, term: 2 }"
        );
        assert_eq!(format!("{}", ChangeId { main: Revision(5), sub: 2 }), "5/2");
    }

    #[test]
    fn changes_are_ordered_as_they_were_written() {
        let changes =
            [(4, 9), (5, 0), (5, 1), (6, 0)].map(|(main, sub)| ChangeId { main: Revision(main), sub });
        assert!(changes.is_sorted_by(|a, b| a < b));
        assert_eq!(ChangeId::first_of(Revision(5)), changes[1]);
    }

    #[test]
    fn seconds_are_durations_and_back() {
        let time = Duration::from_millis(1500);
        assert_eq!((Seconds::whole_of(time), Seconds::rounded_up(time)), (Seconds(1), Seconds(2)));
        assert_eq!(Seconds::rounded_up(Duration::from_secs(2)), Seconds(2));
        assert_eq!(Seconds::rounded_up(Duration::MAX), Seconds(i64::MAX));
        assert_eq!((Seconds(2).duration(), Seconds(-1).duration()), (Duration::from_secs(2), Duration::ZERO));
    }

    #[test]
    fn locations_are_one_number_and_back() {
        let raw = Location::new(Location::SEGMENT_MAX, u32::MAX);
        assert_eq!((raw.segment(), raw.offset(), raw.is_compressed()), (0x7fff_ffff, u32::MAX, false));
        assert_eq!(raw.stored_bytes(77), 77);
        for stored in 0..=2000 {
            let offset = u32::MAX - 7;
            let Some(location) = Location::compressed(Location::SEGMENT_MAX, offset, stored, 2000) else {
                assert!(stored > 1500, "{stored} of 2000 bytes are worth it");
                continue;
            };
            assert!(
                stored <= 1500
                    && location.is_compressed()
                    && Location::from_bits(location.bits()) == location
            );
            assert_eq!((location.segment(), location.offset()), (Location::SEGMENT_MAX, offset));
            let taken = location.stored_bytes(2000);
            assert!(
                taken >= u64::from(stored) && taken <= u64::from(2 * stored).max(125),
                "{stored}: {taken}"
            );
        }
        assert_eq!(format!("{:?}", Location::new(3, 5)), "Location { segment: 3, offset: 5 }");
    }

    #[test]
    fn distances_do_not_go_below_zero() {
        assert_eq!(Index(5).ahead_of(Index(3)), 2);
        assert_eq!(Index(3).ahead_of(Index(5)), 0);
        assert_eq!(Index(0).previous(), Index(0));
        assert_eq!((Index(5).saturating_sub(2), Index(5).saturating_sub(6)), (Index(3), Index(0)));
        assert_eq!(Revision(4) - Revision(6), -2);
        assert!(Index(3).through(Index(5)).eq([Index(3), Index(4), Index(5)]));
        assert_eq!(Index(3).through(Index(2)).count(), 0);
    }
}
