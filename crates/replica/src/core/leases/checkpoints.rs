//! Runs the passes over all leases: those that set lease checkpoints, and those that clear lease checkpoints
//! while a member runs etcd.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use api::etcdserverpb::LeaseCheckpoint;
use consensus::{Node, OtherPrograms};
use machine::Leases;
use machine::request::granted_lease;
use numbers::{Index, LeaseId, Seconds};
use planted::Bug;

use super::{LEASES_PER_TURN, LeaseClocks};
use crate::expiry::Expiry;

/// Maximum number of leases in one lease-checkpoint entry.
pub(super) const NOTES_PER_ENTRY: usize = 1000;
/// Maximum number of unapplied entries that clear lease checkpoints. At this limit a pass waits until an
/// entry is applied, instead of filling the queues of the disks.
pub(super) const TAKEN_BACK_AHEAD: usize = 4;
/// A stopping leader checkpoints the leases that have used up at least this much of their TTL.
const STOP_NOTES_USED: Duration = Duration::from_secs(1);
/// Longest time for which a stopping leader checkpoints leases. Those that it does not reach go on, after the
/// start, with the remaining time of their last checkpoint. The pass begins at another lease at each stop, so that it
/// does not leave out the same ones.
const STOP_NOTES_TIME: Duration = Duration::from_secs(1);
/// Leases are checkpointed only while at most this many entries are unapplied, because each of these entries
/// has to be searched for grants of leases. The search before leases are revoked visits at most this many
/// entries per call.
pub(super) const NOTED_BEHIND_MAX: u64 = 1 << 16;

/// A pass that checkpoints leases, slice by slice.
pub(super) struct CheckpointPass {
    /// Ranges that are left to be processed; the last one first. Never empty.
    ranges: Vec<NotedRange>,
    /// Minimum part of its TTL that a lease must have used up to be checkpointed.
    used: Duration,
    /// Ids of leases granted by entries that were unapplied when the pass searched them. These leases are not
    /// checkpointed.
    granted: BTreeSet<LeaseId>,
    /// Index of the last entry that the pass has searched for grants.
    looked_through: Index,
}

/// Leases that a pass looks at.
#[derive(Clone, Copy)]
struct NotedRange {
    /// Id of the last lease that the pass has processed; `None` at the beginning.
    behind: Option<LeaseId>,
    /// Id of the last lease of the range; `None` if it has no end.
    through: Option<LeaseId>,
}

/// A pass that clears lease checkpoints, slice by slice.
#[derive(Clone, Copy)]
pub(super) struct ClearingPass {
    /// Id of the last lease that the pass has processed.
    behind: Option<LeaseId>,
    /// True if the checkpoints of all leases are cleared, because another member may have some; false if only
    /// those in this member's state are cleared.
    of_all: bool,
}

/// Methods that set and clear lease checkpoints.
impl LeaseClocks {
    /// Records which programs the other members run. Called at each tick while this member leads, and before
    /// it stops leading. If a member is now known to run etcd, begins to clear all lease checkpoints.
    pub fn others_are(&mut self, others: OtherPrograms) {
        self.slice_refused = false;
        let before = std::mem::replace(&mut self.others, others);
        if others != OtherPrograms::Mainstay {
            self.noting = None;
        }
        // If lease checkpoints are distrusted, a pass is clearing them already. If this leader has cleared
        // them all and made no new ones, there is nothing to clear. In both cases no other pass is begun.
        if others == OtherPrograms::SomeEtcd && before != others && !self.doubt && !self.none_noted {
            self.doubt = true;
            self.take_back(true);
        }
    }

    /// Begins, once per interval, to checkpoint the leases that have not been renewed during that interval,
    /// so that their remaining times survive a restart. If a member runs etcd, begins to clear existing
    /// checkpoints instead, for example those of an etcd leader.
    pub fn note_if_due(&mut self, now: Instant) {
        if now < self.next_note {
            return;
        }
        self.next_note = now + self.rules.note_interval;
        if !self.is_noting() {
            let all = NotedRange { behind: None, through: None };
            self.note(vec![all], self.rules.note_interval);
        }
    }

    /// Begins to checkpoint all leases before this member stops, so that they continue with their remaining
    /// times after the restart. The time of the pass is limited, see [`LeaseClocks::has_noted`], so it begins at a
    /// lease that `seed` selects.
    pub fn note_before_stop(&mut self, seed: u64) {
        let start = self.renewals.with(|expiry| expiry.some_id(seed));
        // The id before it, behind which the first range begins.
        let start = start.map(|LeaseId(id)| LeaseId(id.wrapping_sub(1)));
        let (first, then) =
            (NotedRange { behind: start, through: None }, NotedRange { behind: None, through: start });
        self.note(vec![then, first], STOP_NOTES_USED);
    }

    /// Begins to checkpoint the leases of these ranges, the last range first, if they have used up at least `used` of
    /// their TTL; if a member runs etcd, begins to clear checkpoints instead. Does nothing while some members have not
    /// announced which program they run, or while all checkpoints are being cleared already.
    fn note(&mut self, ranges: Vec<NotedRange>, used: Duration) {
        if self.doubt || !self.rules.expire {
            return;
        }
        match self.others {
            OtherPrograms::SomeEtcd => self.take_back(false),
            OtherPrograms::Unheard => {}
            OtherPrograms::Mainstay => {
                self.none_noted = false;
                self.noting =
                    Some(CheckpointPass { ranges, used, granted: BTreeSet::new(), looked_through: Index(0) });
            }
        }
    }

    /// Begins to clear lease checkpoints: of all leases, or only of those that have a checkpoint in this
    /// member's state.
    pub(super) fn take_back(&mut self, of_all: bool) {
        if of_all {
            // Another member may have a checkpoint of any lease, and the next renewal of the lease has to
            // clear it. So the next renewal of every lease has to go through the core.
            self.renewals.with(Expiry::look_again);
        }
        self.noting = None;
        self.taking_back = Some(ClearingPass { behind: None, of_all });
    }

    /// Returns true if a pass that sets or clears lease checkpoints is in progress.
    pub fn is_noting(&self) -> bool {
        self.noting.is_some() || self.taking_back.is_some()
    }

    /// Ends the pass that checkpoints leases before this member stops, if it has taken [`STOP_NOTES_TIME`]. Returns
    /// true if the member need not wait for a pass any more: none is in progress, or the one that clears
    /// checkpoints has taken as long as `clearing_max`.
    pub fn has_noted(&mut self, took: Duration, clearing_max: Duration) -> bool {
        if took >= STOP_NOTES_TIME {
            self.noting = None;
        }
        !self.is_noting() || took > clearing_max
    }

    /// Ends the passes that set or clear lease checkpoints, because this member no longer leads.
    pub fn end_noting(&mut self) {
        (self.noting, self.taking_back, self.slice_began) = (None, None, None);
        self.slice_refused = false;
        self.slices.clear();
    }

    /// Records that the last slice returned by [`LeaseClocks::note_some`] is in the log at this index, or was
    /// refused (`None`). A refused slice that clears checkpoints is repeated at the next tick.
    pub fn proposed(&mut self, taken: Option<Index>) {
        let Some(began) = self.slice_began.take() else { return };
        match taken {
            Some(index) => self.slices.push_back(index),
            None => (self.taking_back, self.slice_refused) = (Some(began), true),
        }
    }

    /// Returns true if leases may be checkpointed now. All unapplied entries have to be searched first, so
    /// they must not be too many.
    pub(super) fn can_note(last: Index, applied: Index) -> bool {
        last - applied <= NOTED_BEHIND_MAX
    }

    /// Returns the next lease checkpoints to be set or cleared, at most as many as fit into one entry.
    /// Returns `None` if nothing is to be done now. `has_room` says whether the log accepts another entry.
    pub fn note_some(
        &mut self,
        node: &Node,
        (leases, applied): (&Leases, Index),
        has_room: bool,
        now: Instant,
    ) -> Option<Vec<LeaseCheckpoint>> {
        let last = node.status().last;
        if !has_room || self.renewals.with(|expiry| expiry.is_starting()) {
            // No lease is checkpointed while the clocks of some leases have not been started. Such a clock
            // would start with the new checkpoint as if an earlier leader had made it.
            return None;
        }
        if self.taking_back.is_some() {
            return self.take_some_back(leases, last);
        }
        if !LeaseClocks::can_note(last, applied) {
            return None;
        }
        let noting = self.noting.as_mut()?;
        // If an unapplied entry grants a lease with this id, a checkpoint after that entry would apply to the
        // new lease, not to the lease in the state. So leases with such an id are left out.
        if !planted::is(Bug::NoteOverGrant) {
            let behind = noting.looked_through.max(applied);
            noting.granted.extend(node.data_after(behind).filter_map(|(_, data)| granted_lease(data)));
            noting.looked_through = last;
        }
        let mut notes = Vec::new();
        let mut looked = 0;
        let range = noting.ranges.last_mut()?;
        self.renewals.with(|expiry| {
            for (id, left) in expiry.after(range.behind, now).take(LEASES_PER_TURN) {
                if range.through.is_some_and(|through| id > through) {
                    break;
                }
                looked += 1;
                range.behind = Some(id);
                let Some(lease) = leases.get(id) else { continue };
                let left = Seconds::rounded_up(left).max(Seconds(1));
                let ttl = lease.ttl.max(self.rules.ttl_min).duration();
                if ttl >= left.duration() + noting.used
                    && lease.remaining != left
                    && !noting.granted.contains(&id)
                {
                    notes.push(LeaseCheckpoint { id: id.0, remaining_ttl: left.0 });
                    if notes.len() == NOTES_PER_ENTRY {
                        break;
                    }
                }
            }
            // The permission of shards to renew these leases ends under the same lock under which the
            // remaining times were read. Otherwise a shard could renew a lease in between, and the checkpoint
            // would record too little time.
            notes.iter().for_each(|note| expiry.about_to_be_noted(LeaseId(note.id)));
        });
        if looked < LEASES_PER_TURN && notes.len() < NOTES_PER_ENTRY {
            noting.ranges.pop();
            if noting.ranges.is_empty() {
                self.noting = None;
            }
        }
        (!notes.is_empty()).then_some(notes)
    }

    /// Returns the next lease checkpoints to be cleared, at most as many as fit into one entry; `last` is the
    /// index of the last entry of the log.
    ///
    /// The pass misses no checkpoint that is in an unapplied entry. A pass over all leases clears their
    /// checkpoints with entries that come after every such entry. A pass over the checkpoints in the state
    /// begins only while a member runs etcd. During that time Mainstay leaders make no checkpoints, so no
    /// unapplied entry sets one.
    fn take_some_back(&mut self, leases: &Leases, last: Index) -> Option<Vec<LeaseCheckpoint>> {
        let began = self.taking_back.filter(|_| self.may_take_back())?;
        let mut taking = began;
        let mut notes = Vec::new();
        let mut looked = 0;
        for (id, lease) in leases.after(began.behind).take(LEASES_PER_TURN) {
            looked += 1;
            taking.behind = Some(id);
            if began.of_all || lease.remaining > Seconds::ZERO {
                notes.push(LeaseCheckpoint { id: id.0, remaining_ttl: 0 });
                if notes.len() == NOTES_PER_ENTRY {
                    break;
                }
            }
        }
        if !notes.is_empty() {
            // The pass is not ended here, even if this was the last slice. A later call that finds no more
            // leases ends it.
            (self.taking_back, self.slice_began) = (Some(taking), Some(began));
            return Some(notes);
        }
        self.taking_back = (looked == LEASES_PER_TURN).then_some(taking);
        if self.taking_back.is_none() && began.of_all {
            self.doubt_ends = Some(last);
        }
        None
    }

    /// Returns true if more lease checkpoints may be cleared now: no entry of the pass has failed to be
    /// proposed since the last tick, and few of them are unapplied. More entries would only wait for the
    /// disk, and this member could take their long wait for a disk that hangs.
    pub(super) fn may_take_back(&self) -> bool {
        !self.slice_refused && self.slices.len() < TAKEN_BACK_AHEAD
    }
}
