//! The bounds of work: how much one slice or turn may do ([`Portion`]), and how much of it was done ([`Done`]).

/// Maximum work of one slice. A slice ends between two revisions. If the first revision alone exceeds it, the caller asks
/// for fewer watches, or lets them read that revision in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    /// Changes walked over, whether a watch wants them or not.
    pub changes: usize,
    /// Watches that are told something.
    pub watches: usize,
    /// Watches looked at, each as often as an event is about its keys.
    pub looks: usize,
    /// Bytes of events, each counted once for every watch that is told of it: that many are copied if no two watches get
    /// the same response.
    pub bytes: usize,
}

impl Portion {
    /// A portion without limits.
    pub const ALL: Portion =
        Portion { changes: usize::MAX, watches: usize::MAX, looks: usize::MAX, bytes: usize::MAX };
}

/// Work that a step of a turn has done: changes walked over, watches told, number of looks at watches, and bytes of
/// events encoded.
#[derive(Default)]
pub(super) struct Done {
    pub walked: usize,
    pub told: usize,
    pub looks: usize,
    pub bytes: usize,
}

impl Done {
    /// Returns what is left of a portion after this; `None` if it is used up.
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
