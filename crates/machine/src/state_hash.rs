//! Computes a rolling hash of all changes that entries make. Members compare their hashes to detect that
//! their states differ.
//!
//! The hash after an entry is a function of the previous hash and of the changes that the entry made in this
//! member's state, not of the request. For every key written or deleted, the new version and the version that
//! it replaces are hashed, with all their numbers and the checksums of their values. Members that applied the
//! same entries to the same state have the same hash at every index. If a member's state differs, its hash
//! differs after the first entry that touches the difference, and stays different.
//!
//! The hash does not cover the locations of values, the progress of physical compaction, or the remaining
//! TTLs of lease checkpoints. These TTLs may differ between members if some run etcd, because a snapshot for
//! a member that runs etcd omits them. The hash does not protect against forgery: it has 64 bits, mixed by
//! multiplication as in wyhash.

use std::collections::VecDeque;

use mvcc::Version;
use numbers::{Index, Revision};

use crate::codec::{Input, Malformed, put_u64};

/// Maximum number of points that a machine stores; together they take 1.5 MiB. A member that is further
/// behind than the oldest point gets a full transfer.
pub const STATE_POINTS_MAX: usize = 65_536;

const SEED: u64 = 0x243F_6A88_85A3_08D3;
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hash after an entry that changed the state. It stays the same until the entry of the next point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePoint {
    /// Log index of the entry. For the first point of a machine, the index at which the machine started.
    pub index: Index,
    /// Revision of the store after the entry.
    pub revision: Revision,
    /// Hash after the entry.
    pub hash: u64,
}

/// Changes of state other than keys. The number of an effect is part of the hash, so it never changes, and a
/// new effect gets a new number. Number 4 was used for remaining TTLs of leases, which are no longer hashed.
///
/// A change of how any effect is hashed results in a different hash function, and hashes of two functions
/// must never be compared. Members therefore exchange the number of their function. For the same reason, a
/// release of Mainstay must never continue a hash that another function began; `image::FORMAT_HASHED`
/// prevents that. The hash of a restored cluster starts with a digest of the restored data
/// (`storage::restoration`). Every member computes this digest itself, so its function must never change
/// either.
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

/// The current hash and its recent history.
#[derive(Debug)]
pub(crate) struct StateHash {
    value: u64,
    /// True if the hash is known; false after a restore from an image without a usable hash.
    known: bool,
    points: VecDeque<StatePoint>,
}

impl StateHash {
    /// Creates the hash of the state after this entry, at this revision. If `hash` is `None`, the hash stays
    /// unknown.
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

    /// Adds the write or deletion of a key.
    #[inline]
    pub fn key_changed(&mut self, change: &mvcc::Change<'_>) {
        // The three digests do not depend on each other, so the processor can compute them in parallel.
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

    /// Must be called after each entry that may change the state. If the hash has changed, stores its point.
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

    /// Returns the point whose hash was the current one after the entry `from_index`, if it is still stored,
    /// and all later points.
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

/// Mixes a word into a hash.
#[inline(always)]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * u128::from(FACTOR);
    // The rotation prevents a word from cancelling out the word before it.
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

/// Recent hashes of one member's state, for comparison with the hashes of another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTrail {
    /// Log index of the last applied entry. The hash of the last point is valid up to this entry.
    pub applied_index: Index,
    /// Points in ascending order of their index.
    pub points: Vec<StatePoint>,
}

/// Result of comparing two trails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailComparison {
    /// There is no entry at which both hashes are known.
    Unknown,
    /// The hashes are equal at all entries that can be compared.
    Same {
        /// Log index of the last entry that was compared.
        through: Index,
    },
    /// The states of the members differ.
    Different {
        /// Log index of the first entry after which the hashes are known to differ. If `at_first` is true,
        /// the states may have differed earlier.
        index: Index,
        /// Revision after that entry.
        revision: Revision,
        /// True if the hashes already differ at the first entry that can be compared, so that the difference
        /// may be older.
        at_first: bool,
    },
}

impl StateTrail {
    /// Returns the hash after an entry; `None` if the entry is not applied yet, or is older than the first
    /// point.
    pub fn hash_at(&self, index: Index) -> Option<u64> {
        let behind = self.points.partition_point(|point| point.index <= index);
        let point = behind.checked_sub(1).and_then(|at| self.points.get(at))?;
        (index <= self.applied_index).then_some(point.hash)
    }

    /// Finds the first entry at which the members differ, in time linear in the number of points.
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
                // At least one of the trails has a point at exactly `index`, because the comparison stops
                // only at indexes of points. That point contains the revision after the entry.
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

/// An iterator over the points of a trail.
struct Steps<'a> {
    now: StatePoint,
    rest: &'a [StatePoint],
}

impl Steps<'_> {
    /// Starts at entry `first`. The trail must have a point at or before this entry.
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
