//! A rolling hash of everything that entries changed, so that members can tell whether they still hold the same.
//!
//! After each entry the hash is a function of the hash before and of what the entry changed in this member's state:
//! not of what it asked for. Of every key written or deleted that is the new version and the one it replaced, with
//! all their numbers and the checksums of their values. Members that applied the same entries to the same state have
//! the same hash at every index; on one whose state has come to differ it is another one from the first entry on
//! that touches the difference, and stays another.
//!
//! Where values lie, how far compaction has physically come, and which times left of leases are noted is in no hash: a
//! member's export leaves notes out, so they may differ where members run etcd. It is no defence against forgery: 64
//! bits, mixed by multiplication as in wyhash.

use std::collections::VecDeque;

use mvcc::Version;
use numbers::{Index, Revision};

use crate::codec::{Input, Malformed, put_u64};

/// Points that a machine remembers, in 1.5 MiB. As far back a member that lags may be, and still get less than everything.
pub const STATE_POINTS_MAX: usize = 65_536;

const SEED: u64 = 0x243F_6A88_85A3_08D3;
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hash after an entry that changed something. It holds until the next point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePoint {
    /// The entry; for the first point of a machine the one it began with.
    pub index: Index,
    /// The store's revision after it.
    pub revision: Revision,
    /// The hash after it.
    pub hash: u64,
}

/// Effects that are about something other than a key. Their numbers are part of the hash: none ever changes, and a new
/// effect gets a new one. 4 stood for notes of times left, which are in no hash any more.
///
/// Whatever changes the hash of some entry makes another function of it. Hashes of both must never meet: neither in
/// comparisons (the algorithm's number on the page that members ask each other for), nor in a state that one version wrote
/// and another goes on from (`image::FORMAT_HASHED`). The hash of a restored cluster goes on from a digest of what it was made of
/// (`storage::restoration`), which every member makes for itself: that function never changes either.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Effect {
    Compacted = 1,
    LeaseGranted = 2,
    LeaseRevoked = 3,
    AlarmRaised = 5,
    AlarmCleared = 6,
    MemberAdded = 7,
    MemberPromoted = 8,
    MemberRemoved = 9,
    MemberUpdated = 10,
    MemberAttributes = 11,
    ClusterVersion = 12,
    Downgrade = 13,
    AuthChanged = 14,
}

/// The hash at the present moment and those before it.
#[derive(Debug)]
pub(crate) struct StateHash {
    value: u64,
    /// True if anybody knows what went into it. Not so behind an image of a version that had no hash.
    known: bool,
    points: VecDeque<StatePoint>,
}

impl StateHash {
    /// Begins at this entry and revision; without a hash it will never be known.
    pub fn new(hash: Option<u64>, index: Index, revision: Revision) -> StateHash {
        let mut points = VecDeque::new();
        if let Some(hash) = hash {
            points.push_back(StatePoint { index, revision, hash });
        }
        StateHash { value: hash.unwrap_or(0), known: hash.is_some(), points }
    }

    /// Returns the hash of a new, empty machine.
    pub fn first() -> StateHash {
        StateHash::new(Some(SEED), Index(0), Revision::FIRST)
    }

    pub fn value(&self) -> Option<u64> {
        self.known.then_some(self.value)
    }

    /// A key was written or deleted.
    #[inline]
    pub fn key_changed(&mut self, change: &mvcc::Change<'_>) {
        // Three lanes that do not wait for each other.
        let key = bytes_digest(change.version.key());
        let version = version_digest(change.version);
        let previous = change.previous.map_or(0, version_digest);
        self.value = mix(mix(mix(self.value, key), version), previous);
    }

    pub fn mix(&mut self, effect: Effect, words: &[u64]) {
        self.value = mix(self.value, effect as u64);
        for word in words {
            self.value = mix(self.value, *word);
        }
    }

    pub fn mix_texts<'t>(&mut self, texts: impl IntoIterator<Item = &'t String>) {
        let mut count = 0;
        for text in texts {
            self.value = mix(self.value, bytes_digest(text.as_bytes()));
            count += 1;
        }
        self.value = mix(self.value, count);
    }

    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.value = mix(self.value, bytes_digest(bytes));
    }

    /// An entry is done: if it changed anything, its point is remembered.
    #[inline]
    pub fn entry_done(&mut self, index: Index, revision: Revision) {
        if !self.known || self.points.back().is_some_and(|last| last.hash == self.value) {
            return;
        }
        if self.points.len() == STATE_POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(StatePoint { index, revision, hash: self.value });
    }

    /// The point that holds at this entry, if it is still remembered, and all behind it.
    pub fn points(&self, from_index: Index) -> impl ExactSizeIterator<Item = StatePoint> + '_ {
        let at_or_before = self.points.partition_point(|point| point.index <= from_index);
        self.points.iter().skip(at_or_before.saturating_sub(1)).copied()
    }
}

pub(crate) fn encode(hash: Option<u64>, out: &mut Vec<u8>) {
    put_u64(out, u64::from(hash.is_some()));
    if let Some(hash) = hash {
        out.extend_from_slice(&hash.to_le_bytes());
    }
}

pub(crate) fn decode(input: &mut Input<'_>) -> Result<Option<u64>, Malformed> {
    if !input.bool()? {
        return Ok(None);
    }
    let bytes = input.raw(8)?.try_into().map_err(|_| Malformed("bytes beyond the end"))?;
    Ok(Some(u64::from_le_bytes(bytes)))
}

/// Takes a word into a hash.
#[inline(always)]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * u128::from(FACTOR);
    // The rotation keeps a word from taking back the one before it.
    (product as u64 ^ (product >> 64) as u64).rotate_left(23)
}

#[inline]
fn bytes_digest(bytes: &[u8]) -> u64 {
    let mut digest = mix(SEED, bytes.len() as u64);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        digest = mix(digest, u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        digest = mix(digest, u64::from_le_bytes(word));
    }
    digest
}

#[inline]
fn version_digest(version: Version<'_>) -> u64 {
    let written = mix(mix(SEED, version.main().0 as u64), u64::from(version.sub()));
    let counted = mix(mix(FACTOR, version.create_revision().0 as u64), version.version() as u64);
    let value = u64::from(version.value_len()) << 32 | u64::from(version.value_crc());
    mix(mix(mix(written, counted), version.lease().0 as u64), value)
}

/// The hashes of one member's state, to be compared with another member's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTrail {
    /// The last entry applied: the last point holds up to it.
    pub applied_index: Index,
    /// Points by ascending index.
    pub points: Vec<StatePoint>,
}

/// The result of comparing two trails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailComparison {
    /// There is no entry at which both hashes are known.
    Unknown,
    /// All entries that can be compared are equal.
    Same {
        /// The last entry compared.
        through: Index,
    },
    /// The members differ.
    Different {
        /// The first entry after which their hashes differ; or one after that, if `at_first` says so.
        index: Index,
        /// The revision after it.
        revision: Revision,
        /// True if they differ already at the first entry that can be compared, so that it may have begun earlier.
        at_first: bool,
    },
}

impl StateTrail {
    /// The hash after an entry; `None` for one that is not applied, or from before the trail begins.
    pub fn hash_at(&self, index: Index) -> Option<u64> {
        let behind = self.points.partition_point(|point| point.index <= index);
        let point = behind.checked_sub(1).and_then(|at| self.points.get(at))?;
        (index <= self.applied_index).then_some(point.hash)
    }

    /// Finds the first entry at which the members differ. O(n).
    pub fn compare(&self, other: &StateTrail) -> TrailComparison {
        let (Some(ours), Some(theirs)) = (self.points.first(), other.points.first()) else {
            return TrailComparison::Unknown;
        };
        let first = ours.index.max(theirs.index);
        let through = self.applied_index.min(other.applied_index);
        if first > through {
            return TrailComparison::Unknown;
        }
        let (mut at, mut with) = (Steps::new(self, first), Steps::new(other, first));
        let mut index = first;
        loop {
            if at.now.hash != with.now.hash {
                // The one that is at its point at this entry knows the revision after it.
                let now = if at.now.index == index { at.now } else { with.now };
                return TrailComparison::Different {
                    index,
                    revision: now.revision,
                    at_first: index == first,
                };
            }
            index = match (at.next_index(), with.next_index()) {
                (None, None) => return TrailComparison::Same { through },
                (Some(next), None) | (None, Some(next)) => next,
                (Some(one), Some(another)) => one.min(another),
            };
            if index > through {
                return TrailComparison::Same { through };
            }
            at.go_to(index);
            with.go_to(index);
        }
    }
}

/// A walk along a trail.
struct Steps<'a> {
    now: StatePoint,
    rest: &'a [StatePoint],
}

impl Steps<'_> {
    /// The trail has a point at or before the first entry.
    fn new(trail: &StateTrail, first: Index) -> Steps<'_> {
        let now = StatePoint { index: Index(0), revision: Revision(0), hash: 0 };
        let mut steps = Steps { now, rest: &trail.points };
        steps.go_to(first);
        steps
    }

    fn next_index(&self) -> Option<Index> {
        self.rest.first().map(|next| next.index)
    }

    fn go_to(&mut self, index: Index) {
        while let Some((next, rest)) = self.rest.split_first().filter(|(next, _)| next.index <= index) {
            self.now = *next;
            self.rest = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trail(applied_index: u64, points: &[(u64, u64)]) -> StateTrail {
        let point = |&(index, hash): &(u64, u64)| StatePoint {
            index: Index(index),
            revision: Revision(index as i64 * 10),
            hash,
        };
        StateTrail { applied_index: Index(applied_index), points: points.iter().map(point).collect() }
    }

    #[test]
    fn trails_are_compared_where_both_know() {
        use TrailComparison::{Different, Same, Unknown};
        let ours = trail(9, &[(3, 30), (5, 50), (8, 80)]);
        assert_eq!(ours.compare(&ours), Same { through: Index(9) });
        assert_eq!(ours.compare(&trail(9, &[])), Unknown);
        assert_eq!(ours.compare(&trail(2, &[(1, 10)])), Unknown, "it ends before ours begins");
        assert_eq!(ours.compare(&trail(20, &[(12, 10)])), Unknown, "it begins after ours ends");
        assert_eq!(ours.compare(&trail(5, &[(1, 10), (3, 30), (5, 50)])), Same { through: Index(5) });
        assert_eq!(
            ours.compare(&trail(7, &[(6, 50)])),
            Same { through: Index(7) },
            "the hash of 5 still holds"
        );
        let other = trail(9, &[(3, 30), (5, 51), (8, 81)]);
        assert_eq!(
            ours.compare(&other),
            Different { index: Index(5), revision: Revision(50), at_first: false }
        );
        let still = trail(9, &[(3, 30)]);
        assert_eq!(
            ours.compare(&still),
            Different { index: Index(5), revision: Revision(50), at_first: false }
        );
        assert_eq!(
            still.compare(&ours),
            Different { index: Index(5), revision: Revision(50), at_first: false }
        );
        assert_eq!(ours.compare(&trail(4, &[(3, 30)])), Same { through: Index(4) }, "it may yet come to 5");
        let late = trail(9, &[(6, 51)]);
        assert_eq!(
            ours.compare(&late),
            Different { index: Index(6), revision: Revision(60), at_first: true }
        );
    }

    #[test]
    fn nothing_is_taken_back_by_what_follows() {
        let mut seen = std::collections::HashSet::new();
        for a in 0..100 {
            for b in 0..100 {
                assert!(seen.insert(mix(mix(SEED, a), b)), "{a} {b}");
            }
        }
        let texts: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"abcdefgh", b"abcdefgh\0", b"abcdefghi"];
        let digests: std::collections::HashSet<u64> = texts.iter().map(|t| bytes_digest(t)).collect();
        assert_eq!(digests.len(), texts.len());
    }

    #[test]
    fn only_so_many_points_are_remembered() {
        let mut hash = StateHash::first();
        let count = 2 * STATE_POINTS_MAX as u64;
        for index in 1..=count {
            hash.mix(Effect::Compacted, &[index]);
            hash.entry_done(Index(index), Revision(1));
            hash.entry_done(Index(index + 1), Revision(1));
        }
        assert_eq!(hash.points(Index(0)).count(), STATE_POINTS_MAX);
        assert_eq!(
            hash.points(Index(0)).next().map(|p| p.index.0),
            Some(count + 1 - STATE_POINTS_MAX as u64)
        );
        assert_eq!(hash.points(Index(count - 1)).map(|p| p.index.0).collect::<Vec<_>>(), [count - 1, count]);
        assert_eq!(hash.points(Index(count + 5)).map(|p| p.index.0).collect::<Vec<_>>(), [count]);
    }
}
