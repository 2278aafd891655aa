//! Decides what a leader does with leases: it renews them, expires them, and makes lease checkpoints. The
//! rules are in [`LeaseClocks`], the deadlines in `expiry.rs`, the leases themselves in the replicated state.
//! The *clock* of a lease is its deadline in the leader's memory; it runs as long as there is a deadline.
//!
//! A *lease checkpoint* is a log entry that records a lease's remaining time (etcd's `LeaseCheckpoint`); the
//! code calls it a note. An entry with a remaining time of 0 clears the checkpoint; the code calls this
//! taking the note back.
//!
//! # Example: a lease across a change of leaders
//!
//! Lease 7 has a TTL of 10 s, and the election timeout is 1 s.
//!
//! ```text
//!  0 s  member 1, the leader, grants lease 7; its clock runs out at 10 s
//!  3 s  member 1 is cut off from the others
//!  5 s  member 2 leads and has applied an entry of its term: its clock for lease 7 ends at 5 + 10 + 1 = 16 s
//!  6 s  a client asks member 1 to renew: no quorum confirms that member 1 leads, so the lease is not renewed
//! 10 s  the clock of member 1 runs out: member 1 cannot commit a revocation
//! 16 s  member 2 proposes the revocation; every member deletes the keys when it applies that entry
//! ```
//!
//! So only a committed revocation ends a lease, and a new leader never shortens the time that an old leader
//! promised. Without lease checkpoints, each change of leaders would extend a lease by a whole TTL, which is
//! much for long leases. Therefore the leader checkpoints the remaining times periodically, and the next
//! leader starts with these times instead of the TTLs. A renewal clears the lease's checkpoint.
//!
//! # Clusters with etcd members
//!
//! Members that run etcd make lease checkpoints, too. But while an etcd member leads, by default no renewal
//! clears them, so each renewal extends the lease only by the checkpointed time. Therefore a Mainstay leader
//! makes no checkpoint until all other members have announced that they do not run etcd, and if one does run
//! etcd, it clears all checkpoints:
//!
//! ```text
//! lease 7, TTL 60 s, renewed every 40 s
//! 35 s  member 1, which runs Mainstay, checkpoints 25 s and hands over to member 2, which runs etcd
//! 40 s  the renewal is answered with a TTL of 60 s; it lets the lease live until 40 + 25 = 65 s
//! 65 s  member 2 revokes the lease, 15 s before the next renewal
//! ```
//!
//! A leader that follows an etcd leader, or learns of an etcd member, distrusts all lease checkpoints (the
//! code calls this doubt): renewals since a checkpoint may have promised more time than the checkpoint says.
//! The leader clears the checkpoints of all leases, not only of those that have one in its own state, because
//! the checkpoints may differ between members: an etcd member neither receives nor sends them in a snapshot.
//! The distrust ends when all clearing entries are applied. Until then it continues even if the member stops
//! leading.

mod checkpoints;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::LeaseCheckpoint;
use consensus::{Node, OtherPrograms};
use machine::request::lease_change;
use machine::{Lease, Leases};
use numbers::{Index, LeaseId, Seconds};
use planted::Bug;

use self::checkpoints::{CheckpointPass, ClearingPass, NOTED_BEHIND_MAX};
use super::granted_ahead::{self, GrantedAhead};
use super::{ReplyBody, RequestId};
use crate::expiry::{Expiry, RenewalOutcome, noted_or_granted};
use crate::renewals::Renewals;
use telemetry::metrics::Metrics;

/// Maximum number of leases that are revoked between two ticks. While the log takes revocations, the number in
/// flight is the limit that matters; this one bounds the work on leases whose revocations are refused at once.
const REVOKES_PER_TICK: usize = 200_000;
/// Maximum number of leases, and of their keys, whose revocations are proposed in one turn, except that one lease may
/// have more keys. The requests of clients wait for the end of a turn.
const REVOKES_PER_TURN: usize = 400;
/// Number of revocations, and of keys that they delete, that may be in flight at first. The writes of clients wait for the revocations before
/// them in the log. If a sync takes 2 ms, 2,000 revocations take two syncs, because some wait while others are
/// written: half a million leases are revoked in a second.
const REVOKES_OPEN_MIN: usize = 2000;
/// Maximum number of revocations in flight. The number grows by a quarter whenever expired leases wait for
/// revocations in flight and the core has nothing else to do. So the core catches up with the expired leases
/// whatever a sync takes, and the writes of clients wait for no more revocations than that needs.
const REVOKES_OPEN_MAX: usize = 20_000;
/// Maximum number of leases processed in one turn for each of three purposes: starting clocks, checkpointing,
/// and dropping clocks.
const LEASES_PER_TURN: usize = 4096;
/// Pause before a failed revocation is tried again.
const REVOKE_PAUSE: Duration = Duration::from_secs(1);
/// Time after a start at which leases are first checkpointed.
const FIRST_NOTE: Duration = Duration::from_secs(60);
/// Maximum number of leases that the core lists in one answer. Shards request a longer list in several parts.
pub const LISTED_AT_ONCE: usize = 1024;

/// The time by which leases expire. It is not the current time, but the latest time for which all entries
/// that were committed by then have been applied. While this member lags behind in applying entries, a
/// renewal may have to wait for one of them, so that it is answered late, and its client sends the following
/// renewal late. The lease must not expire because of this delay.
struct LeaseTime {
    /// Latest time for which all entries that were committed at that time have been applied.
    as_of: Instant,
    /// A later time, with the commit index at that time. When the entry at that index is applied, `as_of`
    /// becomes this time.
    behind: Option<(Instant, Index)>,
}

impl LeaseTime {
    fn new(now: Instant) -> LeaseTime {
        LeaseTime { as_of: now, behind: None }
    }

    /// Moves the time forward if more entries have been applied. Called after every turn of the core.
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

/// Settings for leases.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRules {
    /// Minimum TTL in seconds: while this member leads, leases with a shorter TTL run for this time.
    pub ttl_min: Seconds,
    /// Time that a client waits for the answer to a renewal.
    pub request_timeout: Duration,
    /// Additional time that every lease gets when a new leader starts its clock, because clients could not
    /// renew during the election.
    pub grace: Duration,
    /// Interval at which leases are checkpointed; a lease is included if it has used up this much of its TTL.
    pub note_interval: Duration,
    /// False if leases end only when they are revoked: every lease has a TTL of [`NEVER`] then, and remaining
    /// times are neither recorded nor used.
    pub expire: bool,
}

/// TTL with which leases run that do not expire, in seconds: about a century.
const NEVER: Seconds = Seconds(3_000_000_000);

/// Outcome of a client's renewal of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// The client is answered now, with this TTL in seconds; 0 if the lease does not exist.
    Answered(Seconds),
    /// The client is answered with this TTL in seconds once an entry that clears the lease's checkpoint is
    /// applied.
    TakesBack(Seconds),
    /// The lease has expired, so the client is answered when the revocation is applied.
    Waits,
}

/// The clocks of leases: when each lease expires, which leases are being revoked, which remaining times are
/// to be checkpointed, and which clients wait for a revocation. The clocks run only on the leader.
///
/// The core reports what happens to leases, and this type returns what to propose and answer. The leases
/// themselves are in the replicated state.
pub(super) struct LeaseClocks {
    rules: LeaseRules,
    metrics: Arc<Metrics>,
    /// The deadlines of leases, shared with the shards.
    renewals: Arc<Renewals>,
    /// True if shards may renew leases without the core.
    open_to_shards: bool,
    time: LeaseTime,
    /// Stopped clocks that wait to be dropped. Each element has the deadlines of all leases from one earlier
    /// term as the leader. There may be millions of them, so they are dropped in slices.
    forgotten: Vec<Expiry>,
    revokes_open: usize,
    /// Numbers of keys of the leases that are being revoked and had keys when they expired. They count as in flight, too.
    revoked_keys: BTreeMap<LeaseId, usize>,
    /// Number of revocations that may be in flight now, from [`REVOKES_OPEN_MIN`] to [`REVOKES_OPEN_MAX`].
    revokes_open_max: usize,
    /// True if a revocation was applied since `revokes_open_max` was last raised.
    revokes_applied: bool,
    /// Number of leases that may still be revoked before the next tick (see [`REVOKES_PER_TICK`]).
    revokes_allowed: usize,
    /// Programs that the other members run, as of the last tick.
    others: OtherPrograms,
    /// The pass that checkpoints leases, if one is in progress.
    noting: Option<CheckpointPass>,
    /// The pass that clears lease checkpoints, if one is in progress.
    taking_back: Option<ClearingPass>,
    /// Progress of the clearing pass before the last batch of checkpoints that it returned. It is kept until
    /// that batch is in the log: if its entry cannot be proposed, the pass goes back to this point.
    slice_began: Option<ClearingPass>,
    /// True if the deadlines may still contain notes of entries.
    has_notes: bool,
    /// True if an entry of the clearing pass could not be proposed since the last tick.
    slice_refused: bool,
    /// Log indexes of entries that clear lease checkpoints and are not applied yet.
    slices: VecDeque<Index>,
    /// True if the state of some member may have lease checkpoints that do not include renewals by an etcd
    /// leader. Stays true across changes of leaders, until this member, as the leader, has cleared all
    /// checkpoints.
    doubt: bool,
    /// Log index at which the distrust ends: once the entry is applied, all entries that clear checkpoints
    /// are applied. `None` until they are all in the log.
    doubt_ends: Option<Index>,
    /// True if this leader has cleared all lease checkpoints and has made no new ones since.
    none_noted: bool,
    next_note: Instant,
    granted_ahead: GrantedAhead,
    /// Renewals of expired leases, by lease id, with their times of arrival. They wait for the revocation of
    /// the lease.
    renewals_of_expired: BTreeMap<LeaseId, Vec<(RequestId, Instant)>>,
}

impl LeaseClocks {
    /// Returns the value for a member that starts, in which no clock runs.
    pub fn new(
        rules: LeaseRules,
        renewals: Arc<Renewals>,
        metrics: Arc<Metrics>,
        now: Instant,
    ) -> LeaseClocks {
        let rules = if rules.expire { rules } else { LeaseRules { ttl_min: NEVER, ..rules } };
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
            revoked_keys: BTreeMap::new(),
            revokes_open_max: REVOKES_OPEN_MIN,
            revokes_applied: false,
            revokes_allowed: 0,
            others: OtherPrograms::Unheard,
            noting: None,
            taking_back: None,
            slice_began: None,
            has_notes: false,
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

    /// Allows or forbids shards to renew leases without the core. The caller may allow it only while no other
    /// member can become the leader, because another leader would not know of these renewals.
    pub fn open_to_shards(&mut self, open: bool) {
        if self.open_to_shards != open {
            self.open_to_shards = open;
            self.renewals.set_open(open);
        }
    }

    /// Starts the clocks of a leader that has just applied the first entry of its term: every lease gets its
    /// checkpointed remaining time, or its whole TTL if it has no checkpoint. `doubted` is true if an etcd
    /// leader may have renewed leases after their checkpoints. In that case, and while earlier checkpoints
    /// are distrusted, every lease gets its whole TTL, and all checkpoints are cleared.
    pub fn start(&mut self, leases: &Leases, doubted: bool, now: Instant) {
        if planted::is(Bug::OldLeaseDeadlines) && self.running() > 0 {
            return;
        }
        self.doubt |= doubted;
        // The grace makes up for the time that the election took, in which clients could not renew.
        let by_notes = !self.doubt && self.rules.expire;
        let expiry = Expiry::of(leases.clone(), by_notes, self.rules.ttl_min, self.rules.grace, now);
        self.replace(expiry);
        if self.doubt {
            self.take_back(true);
        }
    }

    fn replace(&mut self, expiry: Expiry) {
        self.forgotten.push(self.renewals.with(|clocks| std::mem::replace(clocks, expiry)));
    }

    /// Stops all clocks, because this member no longer leads or leads in another term. Returns the requests
    /// whose renewals the caller has to refuse.
    pub fn stop(&mut self, now: Instant) -> Vec<RequestId> {
        if !planted::is(Bug::OldLeaseDeadlines) {
            self.replace(Expiry::new(now));
        }
        self.open_to_shards(false);
        self.end_noting();
        // The entries that were searched for grants may be replaced by those of another leader, so the result
        // of the search is dropped.
        self.granted_ahead = GrantedAhead::default();
        (self.revokes_open_max, self.revokes_applied) = (REVOKES_OPEN_MIN, false);
        (self.others, self.doubt_ends, self.none_noted) = (OtherPrograms::Unheard, None, false);
        let waiting = std::mem::take(&mut self.renewals_of_expired);
        waiting.into_values().flatten().map(|(request_id, _)| request_id).collect()
    }

    /// Returns the TTL in seconds for which a lease runs while this member leads: at least
    /// [`LeaseRules::ttl_min`], as in etcd, where each leader applies its own minimum. It is never shorter
    /// than the TTL that clients see.
    fn ttl_granted(&self, ttl: Seconds) -> Seconds {
        ttl.max(self.rules.ttl_min)
    }

    /// Returns the TTL in seconds that clients see: the granted TTL, which every member knows. This leader
    /// may let the lease live longer, but clients must not rely on that, because a member with a smaller
    /// minimum may become the leader. A lease granted by an etcd member may have a TTL of 0. In that case
    /// clients see the minimum of this leader.
    fn ttl_told(&self, ttl: Seconds) -> Seconds {
        if ttl > Seconds::ZERO { ttl } else { self.ttl_granted(ttl) }
    }

    /// Records that a lease was granted. `runs` says whether the clock of the lease runs on this member. It
    /// does not run on a member that does not lead; a new leader starts all clocks when it applies the first
    /// entry of its term.
    pub fn granted(&mut self, id: LeaseId, ttl: Seconds, runs: bool, now: Instant) {
        let ttl = self.ttl_granted(ttl);
        if runs || planted::is(Bug::LeaseClocksKept) {
            self.renewals.with(|expiry| expiry.start(id, ttl.duration(), ttl.duration(), now));
        }
        self.metrics.lease.granted.inc();
        self.metrics.lease.ttl.observe(ttl.0 as f64);
    }

    /// Records that a lease was revoked. Returns the renewals that waited for the revocation, with their
    /// times of arrival.
    pub fn revoked(&mut self, id: LeaseId) -> Vec<(RequestId, Instant)> {
        self.renewals.with(|expiry| expiry.stop(id));
        self.metrics.lease.revoked.inc();
        self.renewals_of_expired.remove(&id).unwrap_or_default()
    }

    /// Keeps a lease from expiring until a quorum confirms the leadership of this member for a renewal that
    /// has arrived, but at most until the client of the renewal has timed out.
    pub fn hold(&mut self, id: LeaseId, now: Instant) {
        if !planted::is(Bug::LeasesExpireBehind) {
            self.renewals.with(|expiry| expiry.hold(id, self.time.as_of, self.held_until(now)));
        }
    }

    /// Returns the time until which a renewal that arrived at `since` keeps its lease from expiring. At that
    /// time the client of the renewal has timed out.
    fn held_until(&self, since: Instant) -> Instant {
        since + self.rules.request_timeout
    }

    /// Updates the time by which leases expire. Called after every turn, with the applied index and the
    /// commit index.
    pub fn look(&mut self, applied: Index, commit: Index, now: Instant) {
        if self.doubt_ends.take_if(|index| *index <= applied).is_some() {
            (self.doubt, self.none_noted) = (false, true);
        }
        while self.slices.front().is_some_and(|index| *index <= applied) {
            self.slices.pop_front();
        }
        // While checkpoints are distrusted, it matters for which leases this leader has made an entry; otherwise
        // only which of its entries are not applied yet.
        if self.has_notes && !self.doubt {
            self.has_notes = self.renewals.with(|expiry| expiry.forget_notes(applied, LEASES_PER_TURN));
        }
        self.time.look(applied, commit, now);
    }

    /// Renews a lease for a request that arrived at `since`. `lease` is the lease in the state.
    ///
    /// If the next leader might use a checkpoint that is older than this renewal, the answer waits until an
    /// entry has cleared the lease's checkpoint. There are three cases: the lease has a checkpoint; an
    /// unapplied entry sets or clears its checkpoint; or checkpoints are distrusted and another member may
    /// have one. The last case ends for a lease when an entry of this leader that sets or clears its
    /// checkpoint is applied, because after that entry all members have the same checkpoint.
    ///
    /// As in etcd, a renewal of an expired lease waits until its revocation is committed.
    pub fn renew(
        &mut self,
        (request_id, id): (RequestId, LeaseId),
        lease: Option<Lease<'_>>,
        applied: Index,
        since: Instant,
        now: Instant,
    ) -> Renewal {
        let lease = lease.map(|lease| (self.ttl_told(lease.ttl), lease.remaining > Seconds::ZERO));
        let held_until = self.held_until(since);
        let renewed = self.renewals.with(|expiry| expiry.renew(id, held_until, self.time.as_of, now));
        let Some((ttl, noted)) = lease else { return Renewal::Answered(Seconds::ZERO) };
        let noted_by = match renewed {
            RenewalOutcome::Noted(index) => index,
            RenewalOutcome::Expired if planted::is(Bug::ExpiredRenewedEarly) => {
                return Renewal::Answered(Seconds::ZERO);
            }
            RenewalOutcome::Expired => {
                self.renewals_of_expired.entry(id).or_default().push((request_id, now));
                return Renewal::Waits;
            }
            RenewalOutcome::Unknown => return Renewal::Answered(Seconds::ZERO),
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

    /// Records that the entry at this index sets or clears the checkpoints of these leases.
    pub fn noted(&mut self, checkpoints: &[LeaseCheckpoint], index: Index) {
        self.has_notes = true;
        self.renewals.with(|expiry| {
            checkpoints.iter().for_each(|checkpoint| expiry.noted(LeaseId(checkpoint.id), index));
        });
    }

    /// Records a lease-checkpoint entry of another leader, or one for which this leader no longer waits. The
    /// entry may have set the checkpoint of any lease, so the next renewal of every lease has to go through
    /// the core.
    pub fn noted_by_another(&mut self) {
        self.renewals.with(Expiry::look_again);
    }

    /// Removes and returns the waiting renewals whose clients have already received a timeout error.
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

    /// Returns the remaining time and the TTL in seconds that clients see. `lease` is the lease in the state.
    /// Returns -1 and 0 if the lease does not exist.
    pub fn time_to_live(&self, id: LeaseId, lease: Option<Lease<'_>>, now: Instant) -> (Seconds, Seconds) {
        let (Some(lease), Some(left)) = (lease, self.left(id, now)) else {
            return (Seconds(-1), Seconds::ZERO);
        };
        let granted = self.ttl_told(lease.ttl);
        let left = Seconds::whole_of(left);
        // At most the TTL that clients see is reported. This leader may let the lease live longer, but the
        // next leader possibly does not.
        let ttl = if self.ttl_granted(lease.ttl) > granted { left.min(granted) } else { left };
        (ttl, granted)
    }

    /// Returns the time that the clock of a lease has left, if the clock runs.
    fn left(&self, id: LeaseId, now: Instant) -> Option<Duration> {
        self.renewals.with(|expiry| expiry.left(id, now))
    }

    /// Returns the remaining time by which a list of leases is sorted. A member that does not lead runs no
    /// clocks and uses the checkpointed or granted time.
    fn listed_by(&self, id: LeaseId, lease: Lease<'_>, now: Instant) -> Duration {
        self.left(id, now).unwrap_or_else(|| noted_or_granted(&lease, self.rules.ttl_min))
    }

    /// Returns the ids of all leases of the state, ordered by remaining time, shortest first. Returns `None`
    /// if they are too many to be sorted in one turn.
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

    /// Returns true if stopped clocks are left to be dropped in another slice.
    pub fn has_to_forget(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Returns true if the leader has work on leases that it can do immediately: start clocks, revoke leases
    /// (only if `may_revoke` is true), or checkpoint leases. `has_room` returns true if the log accepts more
    /// entries after its last entry, `last`.
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

    /// Returns the number of leases that may be revoked in this turn.
    fn revokes_room(&self) -> usize {
        self.revokes_open_max
            .saturating_sub(self.revokes_open)
            .min(self.revokes_allowed)
            .min(REVOKES_PER_TURN)
    }

    /// Allows the next [`REVOKES_PER_TICK`] leases to be revoked; called at each tick.
    pub fn allow_revokes(&mut self) {
        self.revokes_allowed = REVOKES_PER_TICK;
        if !self.has_expired() {
            self.revokes_open_max = REVOKES_OPEN_MIN;
        }
    }

    fn has_expired(&self) -> bool {
        self.renewals.with(|expiry| expiry.is_due(self.time.as_of))
    }

    /// Raises the number of revocations that may be in flight, see [`REVOKES_OPEN_MAX`]. Called when the core has
    /// nothing to do and is about to sleep. Does nothing if no revocation was applied since the last time, as
    /// without a quorum.
    pub fn core_is_idle(&mut self) {
        if self.revokes_open >= self.revokes_open_max
            && self.has_expired()
            && std::mem::take(&mut self.revokes_applied)
        {
            let raised = self.revokes_open_max + self.revokes_open_max / 4;
            self.revokes_open_max = raised.min(REVOKES_OPEN_MAX);
        }
    }

    /// Returns expired leases, each of them only once, for the caller to revoke. A lease for which a renewal
    /// had arrived before the deadline is not among them. `keys_of` returns the number of keys of a lease.
    pub fn take_expired(&mut self, keys_of: impl Fn(LeaseId) -> usize) -> Vec<LeaseId> {
        let (room, as_of) = (self.revokes_room(), self.time.as_of);
        if room == 0 {
            return Vec::new();
        }
        let (open, revoked_keys) = (&mut self.revokes_open, &mut self.revoked_keys);
        // The writes of clients wait for the deletion of each key, too.
        let weight_of = |id| {
            let keys = keys_of(id);
            if keys > 0 {
                revoked_keys.insert(id, keys);
            }
            *open += 1 + keys;
            1 + keys
        };
        let expired = self.renewals.with(|expiry| {
            if expiry.is_due(as_of) { expiry.expired(as_of, room, weight_of) } else { Vec::new() }
        });
        self.metrics.lease.expired.add(expired.len() as u64);
        self.revokes_allowed = self.revokes_allowed.saturating_sub(expired.len());
        expired
    }

    /// Returns the leases of `expired` that may be revoked now. A lease that unapplied entries revoke and
    /// grant again is left out (COMPAT-460), because another revocation would end the new lease at the
    /// deadline of the old one. If too many entries are unapplied to be searched in one call, all leases are
    /// left out. Leases that are left out are checked again later.
    pub fn not_granted_again(
        &mut self,
        mut expired: Vec<LeaseId>,
        node: &Node,
        applied: Index,
        now: Instant,
    ) -> Vec<LeaseId> {
        let behind = self.granted_ahead.applied(applied);
        let last = node.status().last;
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
        let allowed = self.revokes_allowed;
        left.into_iter().for_each(|id| self.revocation_ended(id, true, now));
        self.revokes_allowed = allowed;
        if planted::measures() {
            let again = granted_ahead::looked_up(node.data_after(applied).map(|(_, data)| data));
            let count = expired.iter().filter(|id| again.contains(id)).count();
            planted::looked_at(planted::Measure::GrantedAhead, count);
        }
        expired
    }

    /// Records the end of a revocation. A failed revocation is tried again after a pause.
    pub fn revocation_ended(&mut self, id: LeaseId, failed: bool, now: Instant) {
        let keys = self.revoked_keys.remove(&id).unwrap_or(0);
        self.revokes_open = self.revokes_open.saturating_sub(1 + keys);
        self.revokes_applied |= !failed;
        if failed {
            // What refused this one would refuse the others, too, for example a full disk.
            self.revokes_allowed = 0;
            self.renewals.with(|expiry| expiry.retry(id, now, REVOKE_PAUSE));
        }
    }
}

#[cfg(test)]
mod tests;
