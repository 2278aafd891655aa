//! Limits of work: the maximum work of a slice or turn ([`Portion`], [`SliceLimits`]), and the work that was
//! done ([`Done`]).

use front::Room;

/// Maximum work of one slice. A slice contains whole revisions only. If the first revision alone exceeds this
/// limit, the caller serves fewer watches at a time, or lets the watches read that revision in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    /// Maximum number of changes walked over, whether they match a watch or not.
    pub changes: usize,
    /// Maximum number of watches that receive something.
    pub watches: usize,
    /// Maximum number of times that a watch is checked against a change of a key that the watch covers.
    pub looks: usize,
    /// Maximum bytes of events, each event counted once for every watch that receives it: if no two watches
    /// share a response, this many bytes are copied.
    pub bytes: usize,
}

impl Portion {
    /// A portion without limits.
    pub const ALL: Portion =
        Portion { changes: usize::MAX, watches: usize::MAX, looks: usize::MAX, bytes: usize::MAX };

    /// Returns the smaller of two portions in every respect.
    pub fn min(self, other: Portion) -> Portion {
        Portion {
            changes: self.changes.min(other.changes),
            watches: self.watches.min(other.watches),
            looks: self.looks.min(other.looks),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

/// The room of a client that takes everything.
pub(super) const UNLIMITED: Room = Room { soon: usize::MAX, most: usize::MAX };

/// Limits of one slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceLimits {
    /// Maximum work.
    pub portion: Portion,
    /// Work after which the slice ends with the revision that it has begun, if it has `revisions_min`.
    pub enough: Portion,
    /// Minimum number of revisions of a slice that ends because of `enough`.
    pub revisions_min: usize,
    /// Bytes that the client can take. A slice with this many bytes of events ([`Portion::bytes`]) ends after
    /// its current revision: at `soon` if it has `revisions_min`, at `most` in any case.
    pub room: Room,
}

impl From<Portion> for SliceLimits {
    /// Returns the limits of a slice that may use all this work.
    fn from(portion: Portion) -> SliceLimits {
        SliceLimits { portion, enough: Portion::ALL, revisions_min: 0, room: UNLIMITED }
    }
}

/// Work that a step of a turn has done: changes walked over, watches served, checks of a watch against a
/// change, and bytes of events encoded.
#[derive(Default)]
pub(super) struct Done {
    pub walked: usize,
    pub told: usize,
    pub looks: usize,
    pub bytes: usize,
}

impl Done {
    /// Returns what is left of `portion` after this work; `None` if nothing is left.
    pub fn left_of(&self, portion: Portion) -> Option<Portion> {
        let left = Portion {
            changes: portion.changes.saturating_sub(self.walked),
            watches: portion.watches.saturating_sub(self.told),
            looks: portion.looks.saturating_sub(self.looks),
            bytes: portion.bytes.saturating_sub(self.bytes),
        };
        let is_used_up = left.changes == 0 || left.watches == 0 || left.looks == 0 || left.bytes == 0;
        (!is_used_up).then_some(left)
    }
}
