//! The leader's work on leases: renewing, expiring, and lease checkpoints. [`LeaseClocks`] decides; deadlines
//! are kept in `expiry`, the leases themselves in the state.
//!
//! A *lease checkpoint* is a log entry that records a lease's remaining time (etcd's `LeaseCheckpoint`); the
//! code calls it a note. An entry with a remaining time of 0 clears the checkpoint; the code calls that
//! taking the note back.
//!
//! # Example: a lease across a change of leaders
//!
//! Lease 7 has a TTL of 10 s, and the election timeout is 1 s.
//!
//! ```text
//!  0 s  member 1, the leader, grants lease 7; its clock runs out at 10 s
//!  3 s  member 1 is cut off from the others
//!  5 s  member 2 leads and has applied an entry of its term: its clock for lease 7 runs out at 5 + 10 + 1 = 16 s
//!  6 s  a client asks member 1 to renew: no quorum confirms that it leads, so it is not renewed
//! 10 s  the clock of member 1 runs out: it cannot commit a revocation
//! 16 s  member 2 proposes the revocation; every member deletes the keys when it applies that entry
//! ```
//!
//! So only committed revocations end a lease, and a new leader never shortens what an old one promised. Long
//! leases would be extended by a whole TTL at each change of leaders; therefore the leader checkpoints the
//! remaining times now and then, and the next leader starts with them instead of the TTL. A renewal clears
//! the lease's checkpoint.
//!
//! # Clusters with etcd members
//!
//! etcd's members make lease checkpoints, too, but by default no renewal clears them while an etcd member
//! leads: from then on each renewal extends the lease only by the checkpointed time. So nothing is
//! checkpointed until all other members have announced that they do not run etcd, and if one does run etcd,
//! all checkpoints are cleared:
//!
//! ```text
//! lease 7, TTL 60 s, renewed every 40 s
//! 35 s  member 1, which runs Mainstay, checkpoints 25 s and hands over to member 2, which runs etcd
//! 40 s  the renewal is answered with a TTL of 60 s; it lets the lease live until 40 + 25 = 65 s
//! 65 s  member 2 revokes the lease, 15 s before the next renewal
//! ```
//!
//! A leader that follows an etcd leader, or learns of an etcd member, distrusts all lease checkpoints (the
//! code calls this doubt): no checkpoint shows what renewals have promised since. It clears the checkpoints
//! of all leases, not only those in its own state: they may differ between members, because an etcd member
//! neither gets them in a snapshot nor sends them in one. The distrust ends when all clearing entries are
//! applied, and outlives the loss of leadership until then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::LeaseCheckpoint;
use consensus::{Node, Others};
use machine::request::{granted_lease, lease_change};
use machine::{Lease, Leases};
use numbers::{Index, LeaseId, Seconds};
use planted::Bug;

use super::granted_ahead::{self, GrantedAhead};
use super::{ReplyBody, RequestId};
use crate::expiry::{Expiry, Renewed, noted_or_granted};
use crate::renewals::Renewals;
use telemetry::metrics::Metrics;

/// Maximum number of leases revoked between two ticks.
const REVOKES_PER_TICK: usize = 1000;
/// Maximum number of revocations in flight.
const REVOKES_OPEN_MAX: usize = 10_000;
/// Maximum number of leases in one lease-checkpoint entry.
const NOTES_PER_ENTRY: usize = 1000;
/// Maximum number of unapplied entries that clear lease checkpoints: a pass over all leases waits for the
/// disks.
const TAKEN_BACK_AHEAD: usize = 4;
/// Maximum number of leases processed in one turn for one purpose: starting clocks, checkpointing, or
/// dropping clocks.
const LEASES_PER_TURN: usize = 4096;
/// Pause before a failed revocation is tried again.
const REVOKE_PAUSE: Duration = Duration::from_secs(1);
/// Used-up part of the TTL from which on a leader that stops checkpoints a lease.
const STOP_NOTES_USED: Duration = Duration::from_secs(1);
/// Time after a start at which leases are first checkpointed.
const FIRST_NOTE: Duration = Duration::from_secs(60);
/// Maximum number of unapplied entries behind which a lease checkpoint may be proposed: all of them are
/// searched for grants.
const NOTED_BEHIND_MAX: u64 = 1 << 16;
/// Maximum number of leases listed in one answer of the core; a longer list is read in pieces.
pub const LISTED_AT_ONCE: usize = 1024;

/// The time by which leases expire: not the present time, but the latest time for which all entries committed
/// by then are applied. While apply lags behind, a renewal that arrived in time may still wait to be applied,
/// and its client may send the next one late for the same reason.
struct LeaseTime {
    /// Time at which every entry committed by then is applied.
    as_of: Instant,
    /// A later time and the commit index at that time, until the entry at that index is applied.
    behind: Option<(Instant, Index)>,
}

impl LeaseTime {
    fn new(now: Instant) -> LeaseTime {
        LeaseTime { as_of: now, behind: None }
    }

    /// Updates the time; called after every turn.
    fn look(&mut self, applied: Index, commit: Index, now: Instant) {
        if applied >= commit || planted::is(Bug::LeasesExpireBehind) {
            (self.as_of, self.behind) = (now, None);
            return;
        }
        match self.behind {
            Some((_, index)) if applied < index => {}
            reached => {
                self.as_of = reached.map_or(self.as_of, |(at, _)| at);
                self.behind = Some((now, commit));
            }
        }
    }
}

/// A pass that checkpoints leases, slice by slice.
struct Noting {
    /// Id of the last lease that was checked.
    behind: Option<LeaseId>,
    /// Minimum used-up part of the TTL for which a lease is checkpointed.
    used: Duration,
    /// Leases granted by entries that were not applied when they were searched.
    granted: BTreeSet<LeaseId>,
    /// Index of the last entry that was searched for grants.
    looked_through: Index,
}

/// A pass that clears lease checkpoints, slice by slice.
#[derive(Clone, Copy)]
struct TakingBack {
    /// Id of the last lease that was checked.
    behind: Option<LeaseId>,
    /// True if the checkpoints of all leases are cleared; otherwise only those in this member's state.
    of_all: bool,
}

/// Options that concern leases.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRules {
    /// Minimum TTL after which this member, as a leader, lets a lease expire, in seconds.
    pub ttl_min: Seconds,
    /// Time that a client waits for the answer to a renewal.
    pub request_timeout: Duration,
    /// Time that every lease gets in addition when a new leader starts its clock.
    pub grace: Duration,
    /// Interval at which leases are checkpointed; a lease is included if it has used up this much of its TTL.
    pub note_interval: Duration,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// Answer with this TTL in seconds; 0 if the lease does not exist.
    Answered(Seconds),
    /// Answer with this TTL in seconds once an entry that clears the lease's checkpoint is applied.
    TakesBack(Seconds),
    /// The lease has expired: the client is answered when the revocation is applied.
    Waits,
}

/// The clocks of leases: when each lease expires, which leases are being revoked, whose remaining time is to
/// be checkpointed, and which clients wait for a revocation. The clocks run only on the leader.
///
/// The core reports what happens to leases, and this type returns what to propose and answer. The leases
/// themselves are in the state.
pub(super) struct LeaseClocks {
    rules: LeaseRules,
    metrics: Arc<Metrics>,
    /// The clocks, shared with the shards.
    renewals: Arc<Renewals>,
    /// True if shards may renew leases.
    open_to_shards: bool,
    time: LeaseTime,
    /// Stopped clocks, to be dropped in slices.
    forgotten: Vec<Expiry>,
    revokes_open: usize,
    /// Number of leases that may still be revoked before the next tick.
    revokes_allowed: usize,
    /// Programs that the other members run, as of the last tick.
    others: Others,
    /// The pass that checkpoints leases, if one is in progress.
    noting: Option<Noting>,
    /// The pass that clears lease checkpoints, if one is in progress.
    taking_back: Option<TakingBack>,
    /// The pass that clears lease checkpoints as it was before its last slice, until that slice is in the
    /// log.
    slice_began: Option<TakingBack>,
    /// True if a slice of clearing entries was refused since the last tick.
    slice_refused: bool,
    /// Log indexes of entries that clear lease checkpoints and are not applied yet.
    slices: VecDeque<Index>,
    /// True if some member's state may have lease checkpoints that miss renewals by a leader that ran etcd.
    /// Stays true across changes of leaders, until this member as a leader has cleared all checkpoints.
    doubt: bool,
    /// Log index with which the checkpoints of all leases are cleared, once all clearing entries are in the
    /// log.
    doubt_ends: Option<Index>,
    /// True if this leader has cleared all lease checkpoints and has not begun to make new ones since.
    none_noted: bool,
    next_note: Instant,
    granted_ahead: GrantedAhead,
    /// Renewals of expired leases, which wait for the revocation, by lease id, with the time of arrival.
    renewals_of_expired: BTreeMap<LeaseId, Vec<(RequestId, Instant)>>,
}

impl LeaseClocks {
    /// Returns clocks that do not run.
    pub fn new(
        rules: LeaseRules,
        renewals: Arc<Renewals>,
        metrics: Arc<Metrics>,
        now: Instant,
    ) -> LeaseClocks {
        renewals.set_open(false);
        renewals.with(|expiry| *expiry = Expiry::new(now));
        LeaseClocks {
            rules,
            metrics,
            renewals,
            open_to_shards: false,
            time: LeaseTime::new(now),
            forgotten: Vec::new(),
            revokes_open: 0,
            revokes_allowed: 0,
            others: Others::Unheard,
            noting: None,
            taking_back: None,
            slice_began: None,
            slice_refused: false,
            slices: VecDeque::new(),
            doubt: false,
            doubt_ends: None,
            none_noted: false,
            next_note: now + FIRST_NOTE,
            granted_ahead: GrantedAhead::default(),
            renewals_of_expired: BTreeMap::new(),
        }
    }

    /// Returns the number of running clocks.
    pub fn running(&self) -> usize {
        self.renewals.with(|expiry| expiry.clocks())
    }

    /// Allows or forbids renewals by shards alone; allowed only while no other member can lead.
    pub fn open_to_shards(&mut self, open: bool) {
        if self.open_to_shards != open {
            self.open_to_shards = open;
            self.renewals.set_open(open);
        }
    }

    /// Starts the clocks of a leader that has just applied the first entry of its term: from now on every
    /// lease has its checkpointed remaining time, or its whole TTL. `doubted` says that an etcd leader may
    /// have renewed leases after their checkpoints: then, and while earlier checkpoints are distrusted, every
    /// lease gets its whole TTL, and all checkpoints are cleared.
    pub fn start(&mut self, leases: &Leases, doubted: bool, now: Instant) {
        if planted::is(Bug::OldLeaseDeadlines) && self.running() > 0 {
            return;
        }
        self.doubt |= doubted;
        // The grace makes up for the time that the election took, in which clients could not renew.
        let expiry = Expiry::of(leases.clone(), !self.doubt, self.rules.ttl_min, self.rules.grace, now);
        self.replace(expiry);
        if self.doubt {
            self.take_back(true);
        }
    }

    fn replace(&mut self, expiry: Expiry) {
        self.forgotten.push(self.renewals.with(|clocks| std::mem::replace(clocks, expiry)));
    }

    /// Stops all clocks, because this member no longer leads, or leads in another term. Returns the requests
    /// whose renewals are to be refused.
    pub fn stop(&mut self, now: Instant) -> Vec<RequestId> {
        if !planted::is(Bug::OldLeaseDeadlines) {
            self.replace(Expiry::new(now));
        }
        self.open_to_shards(false);
        self.end_noting();
        // Another leader may have replaced the entries that were searched.
        self.granted_ahead = GrantedAhead::default();
        (self.others, self.doubt_ends, self.none_noted) = (Others::Unheard, None, false);
        let waiting = std::mem::take(&mut self.renewals_of_expired);
        waiting.into_values().flatten().map(|(request_id, _)| request_id).collect()
    }

    /// Returns the TTL in seconds after which this member, as a leader, lets a lease expire, by the same rule
    /// as etcd's leaders. It is never shorter than the TTL reported to the lease's client.
    fn ttl_granted(&self, ttl: Seconds) -> Seconds {
        ttl.max(self.rules.ttl_min)
    }

    /// Returns the TTL that clients see: the granted TTL, which every member knows. This leader may let the
    /// lease live longer, but another member may lead before that time has passed. A lease granted by an etcd
    /// member may have a TTL of 0; each leader raises that by its own rule.
    fn ttl_told(&self, ttl: Seconds) -> Seconds {
        if ttl > Seconds::ZERO { ttl } else { self.ttl_granted(ttl) }
    }

    /// Records that a lease was granted. `runs` says if its clock runs here: it does not on members that do
    /// not lead, and a new leader starts all clocks when it applies the first entry of its term.
    pub fn granted(&mut self, id: LeaseId, ttl: Seconds, runs: bool, now: Instant) {
        let ttl = self.ttl_granted(ttl);
        if runs || planted::is(Bug::LeaseClocksKept) {
            self.renewals.with(|expiry| expiry.start(id, ttl.duration(), ttl.duration(), now));
        }
        self.metrics.lease.granted.inc();
        self.metrics.lease.ttl.observe(ttl.0 as f64);
    }

    /// Records that a lease is gone. Returns the renewals that waited for it, with their times of arrival.
    pub fn revoked(&mut self, id: LeaseId) -> Vec<(RequestId, Instant)> {
        self.renewals.with(|expiry| expiry.stop(id));
        self.metrics.lease.revoked.inc();
        self.renewals_of_expired.remove(&id).unwrap_or_default()
    }

    /// Keeps a lease from expiring until a renewal that has arrived is confirmed.
    pub fn hold(&mut self, id: LeaseId, now: Instant) {
        if !planted::is(Bug::LeasesExpireBehind) {
            self.renewals.with(|expiry| expiry.hold(id, self.time.as_of, self.held_until(now)));
        }
    }

    /// Returns the time until which a renewal that arrived at `since` keeps its lease from expiring: then its
    /// client has timed out.
    fn held_until(&self, since: Instant) -> Instant {
        since + self.rules.request_timeout
    }

    /// Updates the time by which leases expire; called after every turn with the applied index and the commit
    /// index.
    pub fn look(&mut self, applied: Index, commit: Index, now: Instant) {
        if self.doubt_ends.take_if(|index| *index <= applied).is_some() {
            (self.doubt, self.none_noted) = (false, true);
        }
        while self.slices.front().is_some_and(|index| *index <= applied) {
            self.slices.pop_front();
        }
        self.time.look(applied, commit, now);
    }

    /// Renews a lease, which the state has as `lease`, for a request that arrived at `since`. A lease
    /// checkpoint has to be cleared first, or the next leader would use it. The same holds for a checkpoint
    /// whose entry is not applied yet, for an unapplied entry that clears one, and, while checkpoints are
    /// distrusted, for a checkpoint that another member may have. The last case ends for a lease once an
    /// entry of this leader that sets or clears its checkpoint is applied, because after that entry all
    /// members have the same.
    ///
    /// As in etcd, a renewal of an expired lease waits until its revocation is committed.
    pub fn renew(
        &mut self,
        (request_id, id): (RequestId, LeaseId),
        lease: Option<&Lease>,
        applied: Index,
        since: Instant,
        now: Instant,
    ) -> Renewal {
        let lease = lease.map(|lease| (self.ttl_told(lease.ttl), lease.remaining > Seconds::ZERO));
        let held_until = self.held_until(since);
        let renewed = self.renewals.with(|expiry| expiry.renew(id, held_until, self.time.as_of, now));
        let Some((ttl, noted)) = lease else { return Renewal::Answered(Seconds::ZERO) };
        let noted_by = match renewed {
            Renewed::Noted(index) => index,
            Renewed::Expired if planted::is(Bug::ExpiredRenewedEarly) => {
                return Renewal::Answered(Seconds::ZERO);
            }
            Renewed::Expired => {
                self.renewals_of_expired.entry(id).or_default().push((request_id, now));
                return Renewal::Waits;
            }
            Renewed::Unknown => return Renewal::Answered(Seconds::ZERO),
        };
        self.metrics.lease.renewed.inc();
        let under_way = noted_by > applied && !planted::is(Bug::NoteOverRenewal);
        let in_doubt = self.doubt && noted_by == Index(0);
        if noted || under_way || in_doubt {
            return Renewal::TakesBack(ttl);
        }
        self.renewals.with(|expiry| expiry.renews_alone(id, ttl));
        Renewal::Answered(ttl)
    }

    /// Records that the entry at this index checkpoints leases, or clears their checkpoints.
    pub fn noted(&mut self, checkpoints: &[LeaseCheckpoint], index: Index) {
        self.renewals.with(|expiry| {
            checkpoints.iter().for_each(|checkpoint| expiry.noted(LeaseId(checkpoint.id), index));
        });
    }

    /// Records a lease-checkpoint entry that this leader has not proposed, or does not wait for any more. The
    /// next renewal of each lease has to go through the core.
    pub fn noted_by_another(&mut self) {
        self.renewals.with(Expiry::look_again);
    }

    /// Gives up renewals whose clients have already received a timeout error, and returns them.
    pub fn sweep(&mut self, now: Instant) -> Vec<RequestId> {
        let timeout = self.rules.request_timeout;
        let mut late = Vec::new();
        self.renewals_of_expired.retain(|_, tickets| {
            tickets.retain(|(request_id, since)| {
                let keep = now.saturating_duration_since(*since) < timeout;
                if !keep {
                    late.push(*request_id);
                }
                keep
            });
            !tickets.is_empty()
        });
        late
    }

    /// Returns the remaining time and the TTL of a lease, which the state has as `lease`; -1 and 0 if the
    /// lease does not exist.
    pub fn time_to_live(&self, id: LeaseId, lease: Option<&Lease>, now: Instant) -> (Seconds, Seconds) {
        let (Some(lease), Some(left)) = (lease, self.left(id, now)) else {
            return (Seconds(-1), Seconds::ZERO);
        };
        let granted = self.ttl_told(lease.ttl);
        let left = Seconds::whole_of(left);
        // This leader may let the lease live longer than that, but the next leader may not.
        let ttl = if self.ttl_granted(lease.ttl) > granted { left.min(granted) } else { left };
        (ttl, granted)
    }

    /// Returns the time that the clock of a lease has left, if the clock runs.
    fn left(&self, id: LeaseId, now: Instant) -> Option<Duration> {
        self.renewals.with(|expiry| expiry.left(id, now))
    }

    /// Returns the remaining time by which leases are listed. A member that does not lead uses the
    /// checkpointed or granted time.
    fn listed_by(&self, id: LeaseId, lease: &Lease, now: Instant) -> Duration {
        self.left(id, now).unwrap_or_else(|| noted_or_granted(lease, self.rules.ttl_min))
    }

    /// Returns the ids of all leases of the state, soonest to expire first; `None` if they are too many to be
    /// sorted at once.
    pub fn list(&self, all: &Leases, now: Instant) -> Option<Vec<LeaseId>> {
        if all.len() > LISTED_AT_ONCE {
            return None;
        }
        let mut leases: Vec<(Duration, LeaseId)> =
            all.iter().map(|(id, lease)| (self.listed_by(id, lease, now), id)).collect();
        leases.sort_unstable();
        Some(leases.into_iter().map(|(_, id)| id).collect())
    }

    /// Returns the remaining times of these leases; zero for leases that do not exist.
    pub fn times(&self, ids: &[LeaseId], all: &Leases, now: Instant) -> ReplyBody {
        debug_assert!(ids.len() <= LISTED_AT_ONCE, "many leases are asked for in pieces");
        let time =
            |id: &LeaseId| all.get(*id).map_or(Duration::ZERO, |lease| self.listed_by(*id, lease, now));
        ReplyBody::LeaseTimes(ids.iter().map(time).collect())
    }

    /// Drops the next slice of stopped clocks.
    pub fn forget_some(&mut self) {
        while let Some(forgotten) = self.forgotten.last_mut() {
            if forgotten.forget_some(LEASES_PER_TURN) {
                break;
            }
            self.forgotten.pop();
        }
    }

    /// Starts the next slice of the clocks of a new leader.
    pub fn start_some(&mut self, leases: &Leases) {
        self.renewals.with(|expiry| {
            if expiry.is_starting() {
                let some = if planted::is(Bug::LeasesAllAtOnce) { usize::MAX } else { LEASES_PER_TURN };
                expiry.start_some(some, |id| leases.get(id).is_some());
            }
        });
    }

    /// Returns true if another slice of stopped clocks can be dropped at once.
    pub fn has_to_forget(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Returns true if the leader can do something at once: start clocks, revoke leases if `may_revoke`, or
    /// checkpoint leases, where `has_room` says if the log takes more after its last entry, `last`.
    pub fn has_to_do(
        &self,
        may_revoke: bool,
        has_room: impl FnOnce() -> bool,
        (last, applied): (Index, Index),
    ) -> bool {
        let may_revoke = may_revoke && self.revokes_room() > 0;
        let (starts, is_due) =
            self.renewals.with(|expiry| (expiry.is_starting(), may_revoke && expiry.is_due(self.time.as_of)));
        let note = match self.taking_back {
            Some(_) => self.may_take_back(),
            None => self.noting.is_some() && LeaseClocks::can_note(last, applied),
        };
        starts || is_due || note && has_room()
    }

    /// Returns true if more lease checkpoints may be cleared now: no slice was refused since the last tick,
    /// and few are in flight. More slices would only queue for the disk, and could make it look stalled.
    fn may_take_back(&self) -> bool {
        !self.slice_refused && self.slices.len() < TAKEN_BACK_AHEAD
    }

    /// Returns the number of lease revocations that may be proposed now.
    fn revokes_room(&self) -> usize {
        REVOKES_OPEN_MAX.saturating_sub(self.revokes_open).min(self.revokes_allowed)
    }

    /// Allows the next number of leases to be revoked; called at each tick.
    pub fn allow_revokes(&mut self) {
        self.revokes_allowed = REVOKES_PER_TICK;
    }

    /// Returns expired leases to be revoked now. Renewals that had arrived by the time of expiry are already
    /// taken into account.
    pub fn take_expired(&mut self) -> Vec<LeaseId> {
        let (room, as_of) = (self.revokes_room(), self.time.as_of);
        if room == 0 {
            return Vec::new();
        }
        let expired = self
            .renewals
            .with(|expiry| if expiry.is_due(as_of) { expiry.expired(as_of, room) } else { Vec::new() });
        self.metrics.lease.expired.add(expired.len() as u64);
        self.revokes_open += expired.len();
        self.revokes_allowed -= expired.len();
        expired
    }

    /// Returns those of these expired leases that may be revoked now. Not among them is a lease that
    /// unapplied entries revoke and grant again: another revocation would end the new lease by the old
    /// deadline. Such a lease (COMPAT-460) is checked again later; so are all of them if too many entries
    /// have to be searched first.
    pub fn not_granted_again(
        &mut self,
        mut expired: Vec<LeaseId>,
        node: &Node,
        applied: Index,
        now: Instant,
    ) -> Vec<LeaseId> {
        let behind = self.granted_ahead.applied(applied);
        let last = node.standing().last;
        if expired.is_empty() || last <= applied {
            return expired;
        }
        let through = last.min(Index(behind.0 + NOTED_BEHIND_MAX));
        let new = node.data_after(behind).take_while(|(index, _)| *index <= through);
        for ((index, data), expected) in new.zip(behind.0 + 1..) {
            debug_assert_eq!(index, Index(expected), "entries that are not applied are in memory");
            self.granted_ahead.look(index, lease_change(data));
        }
        let goes_by_the_log = !planted::is(Bug::GrantedAgainExpires);
        let is_left = |id: &LeaseId| goes_by_the_log && (through < last || self.granted_ahead.has(*id));
        let left: Vec<LeaseId> = expired.extract_if(.., |id| is_left(id)).collect();
        left.into_iter().for_each(|id| self.revocation_ended(id, true, now));
        if planted::measures() {
            let again = granted_ahead::looked_up(node.data_after(applied).map(|(_, data)| data));
            let count = expired.iter().filter(|id| again.contains(id)).count();
            planted::looked_at(planted::Measure::GrantedAhead, count);
        }
        expired
    }

    /// Records the end of a revocation. A failed one is tried again after a pause.
    pub fn revocation_ended(&mut self, id: LeaseId, failed: bool, now: Instant) {
        self.revokes_open = self.revokes_open.saturating_sub(1);
        if failed {
            self.renewals.with(|expiry| expiry.retry(id, now, REVOKE_PAUSE));
        }
    }

    /// Records which programs the other members run. Called at each tick while this member leads, and before
    /// it stops. Once a member is known to run etcd, all lease checkpoints are cleared.
    pub fn others_are(&mut self, others: Others) {
        self.slice_refused = false;
        let before = std::mem::replace(&mut self.others, others);
        if others != Others::Mainstay {
            self.noting = None;
        }
        // While lease checkpoints are distrusted, they are being cleared already, and no leader makes new
        // ones.
        if others == Others::SomeEtcd && before != others && !self.doubt && !self.none_noted {
            self.doubt = true;
            self.take_back(true);
        }
    }

    /// Begins, once per interval, to checkpoint leases that have not been renewed for that interval, so that
    /// their remaining time survives a restart. If a member runs etcd, clears existing checkpoints instead,
    /// for example those that an etcd leader has made.
    pub fn note_if_due(&mut self, now: Instant) {
        if now < self.next_note {
            return;
        }
        self.next_note = now + self.rules.note_interval;
        if !self.is_noting() {
            self.note_below(self.rules.note_interval);
        }
    }

    /// Begins to checkpoint all leases before the member stops, so that they continue with their remaining
    /// time after the restart.
    pub fn note_before_stop(&mut self) {
        self.note_below(STOP_NOTES_USED);
    }

    /// Begins to checkpoint every lease that has used up at least `used` of its TTL; if a member runs etcd,
    /// begins to clear checkpoints instead. Does nothing while some members have not announced their program,
    /// or while all checkpoints are being cleared already.
    fn note_below(&mut self, used: Duration) {
        if self.doubt {
            return;
        }
        match self.others {
            Others::SomeEtcd => self.take_back(false),
            Others::Unheard => {}
            Others::Mainstay => {
                self.none_noted = false;
                self.noting =
                    Some(Noting { behind: None, used, granted: BTreeSet::new(), looked_through: Index(0) });
            }
        }
    }

    /// Begins to clear the checkpoints of all leases, or only of those that have one in this member's state.
    fn take_back(&mut self, of_all: bool) {
        if of_all {
            // While lease checkpoints are distrusted, a renewal may have to clear one that another member
            // has.
            self.renewals.with(Expiry::look_again);
        }
        self.noting = None;
        self.taking_back = Some(TakingBack { behind: None, of_all });
    }

    /// Returns true if a pass that sets or clears lease checkpoints is in progress.
    pub fn is_noting(&self) -> bool {
        self.noting.is_some() || self.taking_back.is_some()
    }

    /// Ends the passes that set or clear lease checkpoints, because this member no longer leads.
    pub fn end_noting(&mut self) {
        (self.noting, self.taking_back, self.slice_began) = (None, None, None);
        self.slice_refused = false;
        self.slices.clear();
    }

    /// Records that the last slice of [`LeaseClocks::note_some`] is in the log at this index, or was refused.
    /// A refused slice that clears checkpoints is tried again at the next tick.
    pub fn proposed(&mut self, taken: Option<Index>) {
        let Some(began) = self.slice_began.take() else { return };
        match taken {
            Some(index) => self.slices.push_back(index),
            None => (self.taking_back, self.slice_refused) = (Some(began), true),
        }
    }

    /// Returns true if so few entries of the log are unapplied that they can be searched before leases are
    /// checkpointed.
    fn can_note(last: Index, applied: Index) -> bool {
        last - applied <= NOTED_BEHIND_MAX
    }

    /// Returns the next lease checkpoints to be set or cleared, for at most one entry; `None` if nothing is
    /// to be done now. `has_room` says if the log takes more.
    pub fn note_some(
        &mut self,
        node: &Node,
        (leases, applied): (&Leases, Index),
        has_room: bool,
        now: Instant,
    ) -> Option<Vec<LeaseCheckpoint>> {
        let last = node.standing().last;
        if !has_room || self.renewals.with(|expiry| expiry.is_starting()) {
            // A lease whose clock is not started yet would start with the new checkpoint, as if an earlier
            // leader had made it.
            return None;
        }
        if self.taking_back.is_some() {
            return self.take_some_back(leases, last);
        }
        if !LeaseClocks::can_note(last, applied) {
            return None;
        }
        let noting = self.noting.as_mut()?;
        // A checkpoint after an entry that grants a lease applies to the newly granted lease. If another
        // lease with that id exists now, it is revoked before that entry.
        if !planted::is(Bug::NoteOverGrant) {
            let behind = noting.looked_through.max(applied);
            noting.granted.extend(node.data_after(behind).filter_map(|(_, data)| granted_lease(data)));
            noting.looked_through = last;
        }
        let mut notes = Vec::new();
        let mut looked = 0;
        self.renewals.with(|expiry| {
            for (id, left) in expiry.after(noting.behind, now).take(LEASES_PER_TURN) {
                looked += 1;
                noting.behind = Some(id);
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
            // Done under the lock, so that no shard renews a lease between the reading of its time and the
            // checkpoint.
            notes.iter().for_each(|note| expiry.about_to_be_noted(LeaseId(note.id)));
        });
        if looked < LEASES_PER_TURN && notes.len() < NOTES_PER_ENTRY {
            self.noting = None;
        }
        (!notes.is_empty()).then_some(notes)
    }

    /// Returns the next lease checkpoints to be cleared, for at most one entry; `last` is the last entry of
    /// the log. No checkpoint in flight is missed: a pass over all leases comes after every checkpoint in the
    /// log, and a pass over the checkpoints in the state only begins while no Mainstay leader makes any.
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
            // The slice after the last one is empty and ends the pass.
            (self.taking_back, self.slice_began) = (Some(taking), Some(began));
            return Some(notes);
        }
        self.taking_back = (looked == LEASES_PER_TURN).then_some(taking);
        if self.taking_back.is_none() && began.of_all {
            self.doubt_ends = Some(last);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use consensus::HardState;
    use machine::{GrantedLease, SharedMap};
    use numbers::{MemberId, Term};
    use telemetry::metrics::MetricsDetail;

    use super::*;

    const RULES: LeaseRules = LeaseRules {
        ttl_min: Seconds(2),
        request_timeout: Duration::from_secs(7),
        grace: Duration::from_secs(1),
        note_interval: Duration::from_secs(60),
    };
    const REQUEST: RequestId = RequestId { shard: 0, slot: 1, generation: 0 };
    /// Index of the last entry of a log, and of the last applied entry.
    const REACH: (Index, Index) = (Index(0), Index(0));

    fn lease(ttl: Seconds, remaining: Seconds) -> Lease {
        Lease { ttl, remaining, keys: SharedMap::default() }
    }

    fn clocks(now: Instant) -> LeaseClocks {
        let mut clocks = LeaseClocks::new(
            RULES,
            Arc::new(Renewals::new(now)),
            Arc::new(Metrics::new(&[], MetricsDetail::Basic)),
            now,
        );
        clocks.allow_revokes();
        clocks
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_lease_expires_once_and_whoever_renews_it_then_hears_when_it_is_gone() {
        let start = Instant::now();
        let mut clocks = clocks(start);
        clocks.granted(LeaseId(5), Seconds(10), true, start);
        clocks.granted(LeaseId(6), Seconds(1), false, start);
        assert_eq!(clocks.running(), 1, "on a member that does not lead no clock runs");
        clocks.look(Index(1), Index(1), start + seconds(9));
        assert!(clocks.take_expired().is_empty());
        let late = start + seconds(11);
        clocks.look(Index(1), Index(1), late);
        assert!(clocks.has_to_do(true, || false, REACH) && !clocks.has_to_do(false, || false, REACH));
        assert_eq!(clocks.take_expired(), [5].map(LeaseId));
        assert!(clocks.take_expired().is_empty());
        let renewal =
            clocks.renew((REQUEST, LeaseId(5)), Some(&lease(Seconds(10), Seconds(0))), Index(1), late, late);
        assert_eq!(renewal, Renewal::Waits);
        assert_eq!(clocks.revoked(LeaseId(5)), [(REQUEST, late)]);
        clocks.revocation_ended(LeaseId(5), false, late);
        assert_eq!(
            clocks.renew((REQUEST, LeaseId(5)), None, Index(1), late, late),
            Renewal::Answered(Seconds(0))
        );
    }

    #[test]
    fn while_apply_is_behind_nothing_expires() {
        let start = Instant::now();
        let mut clocks = clocks(start);
        clocks.granted(LeaseId(5), Seconds(10), true, start);
        clocks.look(Index(1), Index(2), start + seconds(11));
        clocks.look(Index(1), Index(3), start + seconds(20));
        assert!(clocks.take_expired().is_empty());
        clocks.look(Index(2), Index(3), start + seconds(21));
        assert_eq!(
            clocks.take_expired(),
            [5].map(LeaseId),
            "what was committed after eleven seconds is applied"
        );
    }

    #[test]
    fn a_renewal_takes_a_note_back_that_is_applied_or_under_way() {
        let start = Instant::now();
        let mut clocks = clocks(start);
        clocks.granted(LeaseId(5), Seconds(10), true, start);
        let renew = |clocks: &mut LeaseClocks, remaining, applied| {
            clocks.renew((REQUEST, LeaseId(5)), Some(&lease(Seconds(10), remaining)), applied, start, start)
        };
        assert_eq!(renew(&mut clocks, Seconds(0), Index(1)), Renewal::Answered(Seconds(10)));
        assert_eq!(renew(&mut clocks, Seconds(3), Index(1)), Renewal::TakesBack(Seconds(10)));
        clocks.noted(&[LeaseCheckpoint { id: 5, remaining_ttl: 3 }], Index(9));
        assert_eq!(renew(&mut clocks, Seconds(0), Index(8)), Renewal::TakesBack(Seconds(10)));
        assert_eq!(renew(&mut clocks, Seconds(0), Index(9)), Renewal::Answered(Seconds(10)));
    }

    /// Returns a node whose log ends at `last`, and whose entries cannot be read.
    fn node(last: Index) -> Node {
        let config = consensus::Config { id: MemberId(1), ..consensus::Config::default() };
        let restored = consensus::Restored {
            hard_state: HardState { term: Term(1), commit: last, ..HardState::default() },
            voters: vec![MemberId(1)],
            applied: last,
            applied_term: Term(1),
            ..consensus::Restored::default()
        };
        let node = Node::new(config, restored).expect("starts");
        assert_eq!(node.standing().last, last);
        node
    }

    /// Returns `count` leases of 60 s. The leases whose ids `noted` selects have a checkpoint of 25 s.
    fn leases(count: i64, noted: impl Fn(i64) -> bool) -> Leases {
        let granted = (1..=count).map(|id| GrantedLease {
            id: LeaseId(id),
            ttl: Seconds(60),
            remaining: Seconds(if noted(id) { 25 } else { 0 }),
        });
        Leases::granted(granted).expect("are sound")
    }

    /// Starts all clocks of a new leader.
    fn lead(clocks: &mut LeaseClocks, leases: &Leases, doubted: bool, now: Instant) {
        clocks.start(leases, doubted, now);
        while clocks.renewals.with(|expiry| expiry.is_starting()) {
            clocks.start_some(leases);
        }
    }

    /// Takes the next slice as if it got into the log, or was refused; returns the ids of the leases whose
    /// checkpoints it clears.
    fn slice(clocks: &mut LeaseClocks, leases: &Leases, is_taken: bool, now: Instant) -> Vec<i64> {
        let notes = clocks.note_some(&node(Index(0)), (leases, Index(0)), true, now).unwrap_or_default();
        clocks.proposed(is_taken.then_some(Index(0)));
        assert!(notes.iter().all(|note| note.remaining_ttl == 0));
        notes.iter().map(|note| note.id).collect()
    }

    /// Returns the remaining time of the lease with the id 1, in seconds, including the grace of a new
    /// leader.
    fn left(clocks: &LeaseClocks, now: Instant) -> u64 {
        clocks.left(LeaseId(1), now).expect("has a clock").as_secs()
    }

    #[test]
    fn in_doubt_the_notes_of_all_leases_are_taken_back() {
        let start = Instant::now();
        // Another member may have lease checkpoints that this member does not have.
        let leases = leases(2_500, |id| id == 7);
        for heard in [false, true] {
            let mut clocks = clocks(start);
            lead(&mut clocks, &leases, !heard, start);
            if heard {
                clocks.others_are(Others::Mainstay);
                clocks.others_are(Others::SomeEtcd);
            }
            let mut all = Vec::new();
            while clocks.is_noting() {
                assert!(clocks.has_to_do(false, || true, REACH));
                all.append(&mut slice(&mut clocks, &leases, true, start));
            }
            assert!(all.iter().copied().eq(1..=2_500));
            assert!(!clocks.has_to_do(false, || true, REACH));
            // Later passes clear only lease checkpoints that are in the state.
            clocks.look(Index(0), Index(0), start);
            clocks.others_are(Others::SomeEtcd);
            clocks.note_if_due(start + seconds(61));
            assert_eq!(slice(&mut clocks, &leases, true, start), [7]);
        }
    }

    #[test]
    fn doubt_outlives_leadership_until_all_notes_are_taken_back() {
        let start = Instant::now();
        let leases = leases(10, |_| true);
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, false, start);
        assert_eq!(left(&clocks, start), 26);
        clocks.stop(start);
        lead(&mut clocks, &leases, true, start);
        assert_eq!(left(&clocks, start), 61);
        let renewal = (REQUEST, LeaseId(1));
        let renewed = clocks.renew(renewal, Some(&lease(Seconds(60), Seconds(0))), Index(0), start, start);
        assert_eq!(renewed, Renewal::TakesBack(Seconds(60)), "another member may have a note");
        clocks.stop(start);
        lead(&mut clocks, &leases, false, start);
        assert_eq!(left(&clocks, start), 61, "it was only begun");
        assert_eq!(slice(&mut clocks, &leases, true, start).len(), 10);
        assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
        clocks.stop(start);
        clocks.look(Index(0), Index(0), start);
        lead(&mut clocks, &leases, false, start);
        assert_eq!(left(&clocks, start), 61, "it was in the log of a leader that is none any more");
        // No lease is checkpointed while lease checkpoints are distrusted.
        clocks.others_are(Others::Mainstay);
        clocks.note_before_stop();
        assert_eq!(slice(&mut clocks, &leases, true, start + seconds(2)).len(), 10);
        assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
        clocks.look(Index(0), Index(0), start);
        let renewed = clocks.renew(renewal, Some(&lease(Seconds(60), Seconds(0))), Index(0), start, start);
        assert_eq!(renewed, Renewal::Answered(Seconds(60)));
        clocks.stop(start);
        lead(&mut clocks, &leases, false, start);
        assert_eq!(left(&clocks, start), 26);
    }

    #[test]
    fn a_slice_that_is_refused_is_taken_back_after_the_next_tick() {
        let start = Instant::now();
        let leases = leases(1_500, |_| true);
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, true, start);
        assert_eq!(slice(&mut clocks, &leases, true, start).len(), 1_000);
        for _ in 0..2 {
            assert_eq!(slice(&mut clocks, &leases, false, start).first(), Some(&1_001));
            assert!(clocks.is_noting() && !clocks.has_to_do(false, || true, REACH), "it does not spin");
            assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
            clocks.others_are(Others::Unheard);
            assert!(clocks.has_to_do(false, || true, REACH));
        }
        assert_eq!(slice(&mut clocks, &leases, true, start).len(), 500);
        assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
        assert!(!clocks.is_noting());
    }

    /// Renews the lease with the id 1 like a shard, without the core; `None` if the core has to be asked.
    fn by_shard(clocks: &LeaseClocks, now: Instant) -> Option<Seconds> {
        clocks.renewals.renew(LeaseId(1), now)
    }

    #[test]
    fn no_shard_renews_a_lease_once_its_time_left_has_been_looked_at_for_a_note() {
        let start = Instant::now();
        let leases = leases(1, |_| false);
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, false, start);
        clocks.open_to_shards(true);
        clocks.others_are(Others::Mainstay);
        let renew = |clocks: &mut LeaseClocks, applied, now| {
            clocks.renew((REQUEST, LeaseId(1)), leases.get(LeaseId(1)), Index(applied), now, now)
        };
        let answered = Renewal::Answered(Seconds(60));
        assert_eq!(by_shard(&clocks, start), None);
        assert_eq!(renew(&mut clocks, 1, start), answered);
        assert_eq!(by_shard(&clocks, start + seconds(5)), Some(Seconds(60)));
        clocks.note_before_stop();
        let notes = clocks.note_some(&node(Index(0)), (&leases, Index(0)), true, start + seconds(15));
        assert_eq!(notes, Some(vec![LeaseCheckpoint { id: 1, remaining_ttl: 50 }]));
        // The lease checkpoint is not even proposed yet.
        assert_eq!(by_shard(&clocks, start + seconds(15)), None);
        clocks.noted(&notes.expect("is noted"), Index(9));
        assert_eq!(by_shard(&clocks, start + seconds(16)), None);
        assert_eq!(renew(&mut clocks, 8, start + seconds(17)), Renewal::TakesBack(Seconds(60)));
        assert_eq!(by_shard(&clocks, start + seconds(18)), None);
        clocks.noted(&[LeaseCheckpoint { id: 1, remaining_ttl: 0 }], Index(10));
        assert_eq!(renew(&mut clocks, 10, start + seconds(19)), answered);
        assert_eq!(by_shard(&clocks, start + seconds(20)), Some(Seconds(60)));
        // Another proposer may have made any lease checkpoint, so a renewal may have to clear it.
        clocks.noted_by_another();
        assert_eq!(by_shard(&clocks, start + seconds(20)), None);
        assert_eq!(renew(&mut clocks, 10, start + seconds(20)), answered);
        assert_eq!(by_shard(&clocks, start + seconds(20)), Some(Seconds(60)));
    }

    #[test]
    fn no_shard_renews_a_lease_in_doubt_or_for_a_member_that_leads_no_more() {
        let start = Instant::now();
        let leases = leases(1, |_| false);
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, false, start);
        clocks.open_to_shards(true);
        let renew = |clocks: &mut LeaseClocks| {
            clocks.renew((REQUEST, LeaseId(1)), leases.get(LeaseId(1)), Index(1), start, start)
        };
        assert_eq!(renew(&mut clocks), Renewal::Answered(Seconds(60)));
        assert_eq!(by_shard(&clocks, start), Some(Seconds(60)));
        clocks.others_are(Others::SomeEtcd);
        assert_eq!(by_shard(&clocks, start), None, "another member may have a note");
        assert_eq!(renew(&mut clocks), Renewal::TakesBack(Seconds(60)));
        assert_eq!(by_shard(&clocks, start), None);
        clocks.stop(start);
        lead(&mut clocks, &leases, false, start);
        clocks.noted(&[LeaseCheckpoint { id: 1, remaining_ttl: 0 }], Index(1));
        assert_eq!(renew(&mut clocks), Renewal::Answered(Seconds(60)));
        assert_eq!(by_shard(&clocks, start), None, "nobody has said that no other member can lead");
        clocks.open_to_shards(true);
        assert_eq!(by_shard(&clocks, start), Some(Seconds(60)));
        clocks.stop(start);
        assert_eq!(by_shard(&clocks, start), None);
    }

    #[test]
    fn few_slices_are_under_way_and_they_go_on_however_far_apply_is_behind() {
        let start = Instant::now();
        let leases = leases(6_500, |_| false);
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, true, start);
        // More unapplied entries than the limit for proposing a lease checkpoint.
        let mut last = Index(NOTED_BEHIND_MAX + 1);
        let mut applied = Index(0);
        let mut next = |clocks: &mut LeaseClocks, applied: Index| {
            let notes = clocks.note_some(&node(last), (&leases, applied), true, start)?;
            last = Index(last.0 + 1);
            clocks.proposed(Some(last));
            Some((notes.len(), last))
        };
        for _ in 0..TAKEN_BACK_AHEAD {
            assert!(clocks.has_to_do(false, || true, (Index(1 << 20), applied)));
            assert_eq!(next(&mut clocks, applied).map(|(count, _)| count), Some(NOTES_PER_ENTRY));
        }
        let first = Index(NOTED_BEHIND_MAX + 2);
        for (done, count) in [(0, 1_000), (1, 1_000), (2, 500)] {
            assert!(clocks.is_noting() && !clocks.has_to_do(false, || true, (Index(1 << 20), applied)));
            assert_eq!(next(&mut clocks, applied), None, "the disk has enough to do");
            applied = Index(first.0 + done);
            clocks.look(applied, applied, start);
            assert!(clocks.has_to_do(false, || true, (Index(1 << 20), applied)));
            assert_eq!(next(&mut clocks, applied).map(|(count, _)| count), Some(count));
        }
        // A new leadership does not wait for slices in the log of the earlier one.
        clocks.stop(start);
        lead(&mut clocks, &leases, true, start);
        assert_eq!(next(&mut clocks, applied).map(|(count, _)| count), Some(NOTES_PER_ENTRY));
    }

    #[test]
    fn doubt_ends_with_the_last_entry_and_a_renewal_makes_one_of_its_own_at_most() {
        let start = Instant::now();
        let leases = leases(2, |_| false);
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, true, start);
        let renew = |clocks: &mut LeaseClocks, id, applied| {
            let lease = lease(Seconds(60), Seconds(0));
            clocks.renew((REQUEST, LeaseId(id)), Some(&lease), applied, start, start)
        };
        let (own, behind) = (Renewal::Answered(Seconds(60)), Renewal::TakesBack(Seconds(60)));
        assert_eq!(renew(&mut clocks, 1, Index(8)), behind);
        clocks.noted(&[LeaseCheckpoint { id: 1, remaining_ttl: 0 }], Index(9));
        assert_eq!(renew(&mut clocks, 1, Index(8)), behind, "its entry is under way");
        assert_eq!(renew(&mut clocks, 1, Index(9)), own, "its note is taken back");
        assert_eq!(renew(&mut clocks, 2, Index(9)), behind, "another member may have one of it");
        // Entry 10 clears both lease checkpoints, and entry 11 follows it.
        assert_eq!(
            clocks.note_some(&node(Index(9)), (&leases, Index(9)), true, start).map(|notes| notes.len()),
            Some(2)
        );
        clocks.proposed(Some(Index(10)));
        assert_eq!(clocks.note_some(&node(Index(11)), (&leases, Index(9)), true, start), None);
        assert!(!clocks.is_noting());
        for (applied, renewed) in [(10, behind), (11, own)] {
            clocks.look(Index(applied), Index(11), start);
            assert_eq!(renew(&mut clocks, 2, Index(applied)), renewed);
        }
    }

    #[test]
    fn all_notes_are_taken_back_once_more_where_some_were_made_since() {
        let start = Instant::now();
        let leases = leases(10, |_| false);
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, false, start);
        let all_taken_back = |clocks: &mut LeaseClocks| {
            clocks.others_are(Others::SomeEtcd);
            let taken_back = slice(clocks, &leases, true, start);
            while clocks.is_noting() {
                assert_eq!(slice(clocks, &leases, true, start), [0; 0]);
            }
            clocks.look(Index(0), Index(0), start);
            taken_back.len()
        };
        assert_eq!(all_taken_back(&mut clocks), 10);
        // The member that runs etcd is removed, and added again.
        clocks.others_are(Others::Mainstay);
        assert_eq!(all_taken_back(&mut clocks), 0, "none were made");
        clocks.others_are(Others::Mainstay);
        clocks.note_if_due(start + seconds(61));
        assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
        assert_eq!(all_taken_back(&mut clocks), 10);
        assert_eq!(all_taken_back(&mut clocks), 0);
        // Other members may have led and made lease checkpoints.
        clocks.stop(start);
        lead(&mut clocks, &leases, false, start);
        assert_eq!(all_taken_back(&mut clocks), 10);
    }

    #[test]
    fn whoever_waits_is_told_when_leadership_is_lost_or_time_is_up() {
        let start = Instant::now();
        for stops in [false, true] {
            let mut clocks = clocks(start);
            clocks.granted(LeaseId(5), Seconds(2), true, start);
            let late = start + seconds(3);
            clocks.look(Index(1), Index(1), late);
            assert_eq!(
                clocks.renew(
                    (REQUEST, LeaseId(5)),
                    Some(&lease(Seconds(2), Seconds(0))),
                    Index(1),
                    late,
                    late
                ),
                Renewal::Waits
            );
            assert!(clocks.sweep(late + seconds(6)).is_empty());
            let told = if stops { clocks.stop(late) } else { clocks.sweep(late + seconds(7)) };
            assert_eq!(told, [REQUEST]);
            assert!(clocks.sweep(late + seconds(8)).is_empty());
        }
    }

    #[test]
    fn revocations_are_counted_between_ticks_and_tried_again() {
        let start = Instant::now();
        let mut clocks = clocks(start);
        let leases = i64::try_from(REVOKES_PER_TICK).expect("fits") + 10;
        (0..leases).for_each(|id| clocks.granted(LeaseId(id), Seconds(2), true, start));
        let late = start + seconds(3);
        clocks.look(Index(1), Index(1), late);
        let first = clocks.take_expired();
        assert_eq!(first.len(), REVOKES_PER_TICK);
        assert!(clocks.take_expired().is_empty());
        clocks.allow_revokes();
        assert_eq!(clocks.take_expired().len(), 10);
        clocks.revocation_ended(first[0], true, late);
        assert!(clocks.take_expired().is_empty());
        clocks.look(Index(1), Index(1), late + REVOKE_PAUSE);
        assert_eq!(clocks.take_expired(), [first[0]]);
    }
}
