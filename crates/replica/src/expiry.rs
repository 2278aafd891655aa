//! Computes when leases expire: the deadline of each lease, and an ordered queue of the time slots in which
//! each lease is checked.
//!
//! Renewing a lease only moves its deadline. The place of the lease in the queue is then outdated; when its
//! slot is due, the lease moves to the slot of its new deadline. So a renewal costs one look-up in a map, and
//! the queue is not changed. Each lease has at most one place in the queue. The place is removed with the
//! lease, so memory is proportional to the number of existing leases.
//!
//! A new leader has to start the clocks of all leases, which it does in slices of limited length. While the
//! clock of a lease is not started yet, its remaining time is computed from the deadline that it will get.
//!
//! # Example: lease 7 with a TTL of 10 s; slots are 100 ms wide
//!
//! ```text
//!  0.00 s  granted            deadline 10.00 s, slot 100
//!  6.03 s  renewed            deadline 16.03 s, still slot 100: the queue is not touched
//! 10.00 s  slot 100 is due    the deadline has moved: the lease goes to slot 161 (16.03 s, rounded up)
//! 16.10 s  slot 161 is due    the lease is returned as expired, and its revocation is proposed
//! ```
//!
//! A renewal at 16.05 s comes too late: the deadline has passed, so the lease cannot be renewed, and the
//! client gets a TTL of 0 once the revocation is applied. A lease is returned as expired at most 100 ms late
//! and never early.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use machine::{Lease, Leases, SharedMap};
use numbers::{Index, LeaseId, Seconds};

/// Width of one slot of the queue, in nanoseconds.
const SLOT_NS: u64 = 100_000_000;
const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
/// Maximum number of queue entries that [`Expiry::expired`] checks for each lease that it may return. It
/// bounds the work of a call in which most of the entries are outdated.
const LOOKS_PER_LEASE: usize = 4;

/// The deadline of one lease, and whether shards may move it. There may be millions of leases, so the times
/// have the shortest types in which nearly all of them fit, and what few leases have is in maps of its own.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// Lower and upper part of the deadline in milliseconds since [`Expiry::epoch`], rounded up.
    deadline_low: u32,
    deadline_high: u16,
    /// Value of [`Expiry::looks`] at which the core last allowed shards to renew this lease without the core;
    /// 0 if there is no permission. The permission ends when `looks` gets another value.
    alone_looks: u16,
    /// Time from a renewal to the deadline, in seconds; [`WIDE`] if it is in [`Expiry::wide_ttls`].
    ttl_s: u32,
    /// Slot of the lease in the queue; [`NO_SLOT`] once the lease was returned as expired.
    slot: u32,
}

/// Value of `Timer::slot` for a lease that was returned as expired and so has no place in the queue.
const NO_SLOT: u32 = u32::MAX;
/// The last slot. It begins 13 years after the epoch. A lease with a later deadline has its place in this
/// slot, so in a term that lasts longer, each look at the queue also checks the leases in this slot.
const SLOT_MAX: u32 = u32::MAX - 1;
/// Value of [`Timer::ttl_s`] for a TTL that does not fit.
const WIDE: u32 = u32::MAX;
/// Latest deadline in milliseconds since the epoch, some 8,900 years after it.
const DEADLINE_MS_MAX: u64 = (1 << 48) - 1;

impl Timer {
    fn slot(&self) -> Option<u32> {
        (self.slot != NO_SLOT).then_some(self.slot)
    }

    /// Returns the deadline in nanoseconds since the epoch; the maximum is some 580 years.
    fn deadline_ns(&self) -> u64 {
        let ms = u64::from(self.deadline_high) << 32 | u64::from(self.deadline_low);
        ms.saturating_mul(NS_PER_MS)
    }

    /// Sets the deadline to this time in nanoseconds since the epoch, or to up to a millisecond later.
    fn set_deadline(&mut self, ns: u64) {
        let ms = ns.div_ceil(NS_PER_MS).min(DEADLINE_MS_MAX);
        (self.deadline_high, self.deadline_low) = ((ms >> 32) as u16, ms as u32);
    }
}

/// The place of a lease in the queue: its slot and its id. The id is in two halves, because a place then takes
/// 12 bytes instead of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    slot: u32,
    id_high: u32,
    id_low: u32,
}

impl Place {
    fn new(slot: u32, LeaseId(id): LeaseId) -> Place {
        Place { slot, id_high: (id as u64 >> 32) as u32, id_low: id as u32 }
    }

    fn id(self) -> LeaseId {
        LeaseId((u64::from(self.id_high) << 32 | u64::from(self.id_low)) as i64)
    }
}

/// Outcome of an attempt to renew a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalOutcome {
    /// The lease was renewed: it has its whole TTL again. Contains the index of the last entry proposed by
    /// this leader that sets or clears the lease's checkpoint; 0 if there is none. If that entry is not
    /// applied yet, the caller has to clear the checkpoint before it answers.
    Noted(Index),
    /// The deadline has passed, so the lease cannot be renewed and is about to be revoked.
    Expired,
    /// The lease does not exist.
    Unknown,
}

/// The deadlines of all leases, as one leader keeps them.
#[derive(Debug)]
pub struct Expiry {
    epoch: Instant,
    timers: SharedMap<LeaseId, Timer>,
    /// Slots with their leases. The slot of a lease is never later than the slot of its deadline.
    queue: SharedMap<Place, ()>,
    /// Times before which leases do not expire even if their deadlines pass, in nanoseconds since the epoch. A
    /// renewal that arrived before the deadline of such a lease still waits for its ReadIndex round.
    held_ns: BTreeMap<LeaseId, u64>,
    /// TTLs in nanoseconds that do not fit into a [`Timer`].
    wide_ttls: BTreeMap<LeaseId, u64>,
    /// For each lease, the index of the last log entry that sets or clears its lease checkpoint (a recorded
    /// remaining time), until [`Expiry::forget_notes`] finds it applied.
    notes: SharedMap<LeaseId, Index>,
    /// The same notes in the order of their indexes.
    notes_by_index: SharedMap<(Index, LeaseId), ()>,
    starting: Option<Starting>,
    /// The latest time at which any lease was renewed. The core renews with the time at which its turn began,
    /// which can be earlier than the time of a renewal by a shard. No renewal uses an earlier time than this
    /// one. Otherwise the core could shorten the deadline that a shard has promised to a client.
    renewed_at_ns: u64,
    /// One more than the number of calls of [`Expiry::look_again`], so that it is never the 0 of a timer
    /// without permission.
    looks: u16,
}

/// The leases whose clocks are not started yet.
#[derive(Debug)]
struct Starting {
    /// The leases in the state at the time when this member became the leader.
    leases: Leases,
    /// Id up to which [`Expiry::start_some`] has started the clocks; `None` before its first call.
    behind: Option<LeaseId>,
    since: Instant,
    /// Minimum TTL that this leader grants, in seconds.
    ttl_min: Seconds,
    /// Time that each lease gets in addition to its remaining time.
    grace: Duration,
    /// If true, a lease with a lease checkpoint gets the remaining time in the checkpoint. If false, each
    /// lease gets its whole TTL.
    by_notes: bool,
}

/// Returns the remaining time in the checkpoint of a lease or, without a checkpoint, its whole TTL. A TTL
/// below `ttl_min` counts as `ttl_min`.
pub fn noted_or_granted(lease: &Lease<'_>, ttl_min: Seconds) -> Duration {
    let ttl = lease.ttl.max(ttl_min);
    let time = if lease.remaining > Seconds::ZERO { lease.remaining.min(ttl) } else { ttl };
    time.duration()
}

impl Starting {
    /// Returns the remaining time and the TTL of a lease whose clock is not started yet; `None` for other
    /// leases.
    fn left(&self, id: LeaseId) -> Option<(Duration, Duration)> {
        let lease = self.leases.get(id).filter(|_| self.behind.is_none_or(|behind| behind < id))?;
        let ttl = lease.ttl.max(self.ttl_min).duration();
        let left = if self.by_notes { noted_or_granted(&lease, self.ttl_min) } else { ttl };
        Some((left + self.grace, ttl))
    }
}

impl Expiry {
    /// Returns the value without any lease.
    pub fn new(now: Instant) -> Expiry {
        Expiry {
            epoch: now,
            timers: SharedMap::new(),
            queue: SharedMap::new(),
            held_ns: BTreeMap::new(),
            wide_ttls: BTreeMap::new(),
            notes: SharedMap::new(),
            notes_by_index: SharedMap::new(),
            starting: None,
            renewed_at_ns: 0,
            looks: 1,
        }
    }

    /// Returns deadlines for these leases: each has its checkpointed remaining time (only if `by_notes` is
    /// true) or its whole TTL, plus `grace`. [`Expiry::start_some`] starts the clocks.
    pub fn of(leases: Leases, by_notes: bool, ttl_min: Seconds, grace: Duration, now: Instant) -> Expiry {
        let starting = Some(Starting { leases, behind: None, since: now, ttl_min, grace, by_notes });
        Expiry { starting, ..Expiry::new(now) }
    }

    /// Returns the number of leases whose clocks run.
    pub fn clocks(&self) -> usize {
        self.timers.len()
    }

    /// Returns true if the clocks of some leases are not started yet.
    pub fn is_starting(&self) -> bool {
        self.starting.is_some()
    }

    /// Starts the clocks of up to `max` further leases. Skips leases for which `exists` returns false.
    pub fn start_some(&mut self, max: usize, exists: impl Fn(LeaseId) -> bool) {
        let Some(starting) = &self.starting else { return };
        let since = starting.since;
        let some: Vec<LeaseId> = starting.leases.after(starting.behind).take(max).map(|(id, _)| id).collect();
        planted::looked_at(planted::Measure::Leases, some.len());
        for id in &some {
            // A lease that was renewed, or revoked and granted again, after the leadership began (`since`)
            // already has a clock.
            if self.timers.get(id).is_none()
                && exists(*id)
                && let Some((left, ttl)) = self.starting.as_ref().and_then(|starting| starting.left(*id))
            {
                self.start(*id, left, ttl, since);
            }
        }
        match (some.last(), &mut self.starting) {
            (Some(last), Some(starting)) => starting.behind = Some(*last),
            _ => self.starting = None,
        }
    }

    /// Frees the deadlines of some `max` leases; the leases themselves stay in the state. Returns false once
    /// none are left. Called when leadership is lost, because dropping the whole [`Expiry`] in one step would
    /// take time proportional to the number of leases.
    pub fn forget_some(&mut self, max: usize) -> bool {
        self.starting = None;
        let mut forgotten = 0;
        while forgotten < max {
            let side = usize::from(self.held_ns.pop_first().is_some())
                + usize::from(self.wide_ttls.pop_first().is_some());
            let notes = self.notes.remove_chunk().max(self.notes_by_index.remove_chunk());
            let some = self.timers.remove_chunk().max(self.queue.remove_chunk()).max(notes).max(side);
            if some == 0 {
                return false;
            }
            forgotten += some;
        }
        true
    }

    /// Returns the time since the epoch in nanoseconds; the maximum is some 580 years.
    fn ns(&self, at: Instant) -> u64 {
        nanoseconds(at.saturating_duration_since(self.epoch))
    }

    fn slot_of(deadline_ns: u64) -> u32 {
        // Rounded up, so that no lease is checked before its deadline.
        u32::try_from(deadline_ns.div_ceil(SLOT_NS)).map_or(SLOT_MAX, |slot| slot.min(SLOT_MAX))
    }

    /// Returns the number of the last slot that is due at this time.
    fn due(&self, now: Instant) -> u32 {
        u32::try_from(self.ns(now) / SLOT_NS).map_or(SLOT_MAX, |slot| slot.min(SLOT_MAX))
    }

    fn ttl_ns(&self, id: LeaseId, timer: &Timer) -> u64 {
        let narrow = u64::from(timer.ttl_s) * NS_PER_SECOND;
        if timer.ttl_s == WIDE { self.wide_ttls.get(&id).copied().unwrap_or(u64::MAX) } else { narrow }
    }

    /// Returns the time at which a lease expires unless it is renewed.
    fn ends_ns(&self, id: LeaseId, timer: &Timer) -> u64 {
        self.held_ns.get(&id).map_or(timer.deadline_ns(), |held| timer.deadline_ns().max(*held))
    }

    /// Starts the clock of a lease, or restarts it. The lease expires at `now + left` unless it is renewed.
    /// Each renewal moves the deadline to the time of the renewal plus `ttl`.
    pub fn start(&mut self, id: LeaseId, left: Duration, ttl: Duration, now: Instant) {
        self.stop(id);
        let mut timer =
            Timer { deadline_low: 0, deadline_high: 0, alone_looks: 0, ttl_s: WIDE, slot: NO_SLOT };
        timer.set_deadline(self.ns(now).saturating_add(nanoseconds(left)));
        timer.slot = Expiry::slot_of(timer.deadline_ns());
        let whole_s = u32::try_from(ttl.as_secs()).ok().filter(|_| ttl.subsec_nanos() == 0);
        timer.ttl_s = whole_s.unwrap_or(WIDE);
        if timer.ttl_s == WIDE {
            self.wide_ttls.insert(id, nanoseconds(ttl));
        }
        self.timers.insert(id, timer);
        self.queue.insert(Place::new(timer.slot, id), ());
    }

    /// Removes a lease.
    pub fn stop(&mut self, id: LeaseId) {
        let Some(timer) = self.timers.remove(&id) else { return };
        if let Some(slot) = timer.slot() {
            self.queue.remove(&Place::new(slot, id));
        }
        self.held_ns.remove(&id);
        if timer.ttl_s == WIDE {
            self.wide_ttls.remove(&id);
        }
        self.forget_note(id);
    }

    /// Returns the timer of a lease, and starts the lease's clock first if [`Expiry::start_some`] has not
    /// done so yet.
    fn timer(&mut self, id: LeaseId) -> Option<Timer> {
        if self.timers.get(&id).is_none()
            && let Some(starting) = &self.starting
            && let Some((left, ttl)) = starting.left(id)
        {
            let since = starting.since;
            self.start(id, left, ttl, since);
        }
        self.timers.get(&id).copied()
    }

    /// Moves the deadline of a lease to one TTL after this time.
    fn move_deadline(&mut self, id: LeaseId, timer: &Timer, now_ns: u64) {
        let deadline_ns = now_ns.saturating_add(self.ttl_ns(id, timer));
        if let Some(timer) = self.timers.get_mut(&id) {
            timer.set_deadline(deadline_ns);
        }
    }

    /// Records a renewal that has arrived and waits for its ReadIndex round. The lease does not expire before
    /// `until`, unless it had already expired at `as_of`.
    pub fn hold(&mut self, id: LeaseId, as_of: Instant, until: Instant) {
        let (as_of, until) = (self.ns(as_of), self.ns(until));
        if let Some(timer) = self.timer(id)
            && self.ends_ns(id, &timer) > as_of
        {
            let held = self.held_ns.entry(id).or_default();
            *held = until.max(*held);
        }
    }

    /// Renews a lease from `now` on, unless the lease had expired at `as_of`. `held` is the time passed as
    /// `until` to [`Expiry::hold`] when this renewal arrived.
    pub fn renew(&mut self, id: LeaseId, held: Instant, as_of: Instant, now: Instant) -> RenewalOutcome {
        let (held, as_of) = (self.ns(held), self.ns(as_of));
        self.renewed_at_ns = self.renewed_at_ns.max(self.ns(now));
        let now = self.renewed_at_ns;
        let Some(timer) = self.timer(id) else { return RenewalOutcome::Unknown };
        if self.ends_ns(id, &timer) <= as_of {
            return RenewalOutcome::Expired;
        }
        // A later time belongs to a renewal that arrived after this one and still waits. It must keep the
        // lease from expiring.
        if self.held_ns.get(&id).is_some_and(|known| *known <= held) {
            self.held_ns.remove(&id);
        }
        self.move_deadline(id, &timer, now);
        RenewalOutcome::Noted(self.notes.get(&id).copied().unwrap_or(Index(0)))
    }

    /// Allows shards to renew this lease without the core and to answer with the TTL `told`. The permission
    /// ends with the next lease checkpoint of the lease, or with [`Expiry::look_again`]. It is not given if
    /// `told` differs from the TTL that the clock uses, as for a lease that was granted by a member that runs
    /// etcd: a shard has only the TTL in the timer and would answer with the wrong one.
    pub fn renews_alone(&mut self, id: LeaseId, told: Seconds) {
        let Some(timer) = self.timers.get(&id) else { return };
        // A renewal must not be answered with a TTL of 0, which tells the client that the lease does not exist.
        let is_its_own = told > Seconds::ZERO && self.ttl_ns(id, timer) == nanoseconds(told.duration());
        let looks = if is_its_own && self.looks < u16::MAX { self.looks } else { 0 };
        if timer.alone_looks != looks
            && let Some(timer) = self.timers.get_mut(&id)
        {
            timer.alone_looks = looks;
        }
    }

    /// Renews a lease without the core, if that is allowed and the lease has not expired. Returns the TTL in
    /// seconds for the client; `None` if the core has to handle the renewal.
    pub fn renew_alone(&mut self, id: LeaseId, now: Instant) -> Option<Seconds> {
        let now = self.ns(now).max(self.renewed_at_ns);
        let timer = *self.timers.get(&id)?;
        if timer.alone_looks != self.looks {
            return None;
        }
        // Although the deadline has passed, the core may still renew the lease, because it lets no lease
        // expire while it lags behind in applying entries. A shard cannot know whether it does, so it leaves
        // the decision to the core.
        if self.ends_ns(id, &timer) <= now {
            return None;
        }
        self.renewed_at_ns = now;
        self.move_deadline(id, &timer, now);
        Some(Seconds((self.ttl_ns(id, &timer) / NS_PER_SECOND) as i64))
    }

    /// Ends the permission to renew this lease without the core, because the core is about to make a lease
    /// checkpoint of the lease. The next renewal has to clear that checkpoint, which only the core can do.
    pub fn about_to_be_noted(&mut self, id: LeaseId) {
        if let Some(timer) = self.timers.get_mut(&id) {
            timer.alone_looks = 0;
        }
    }

    /// Ends the permission of [`Expiry::renews_alone`] for all leases, so that the core handles the next
    /// renewal of each lease.
    pub fn look_again(&mut self) {
        // At the largest value, which is never reached in practice, no more permissions are given.
        self.looks = self.looks.saturating_add(1);
    }

    /// Records that the log entry `index` sets or clears a lease checkpoint of this lease.
    pub fn noted(&mut self, id: LeaseId, index: Index) {
        let Some(timer) = self.timers.get_mut(&id) else { return };
        timer.alone_looks = 0;
        self.forget_note(id);
        self.notes.insert(id, index);
        self.notes_by_index.insert((index, id), ());
    }

    fn forget_note(&mut self, id: LeaseId) {
        if let Some(index) = self.notes.remove(&id) {
            self.notes_by_index.remove(&(index, id));
        }
    }

    /// Forgets the applied entries of up to `max` calls of [`Expiry::noted`]. Returns true if some are left.
    pub fn forget_notes(&mut self, applied: Index, max: usize) -> bool {
        for _ in 0..max {
            let Some(((index, id), ())) = self.notes_by_index.first() else { return false };
            if *index > applied {
                break;
            }
            self.forget_note(*id);
        }
        true
    }

    /// Returns the remaining time of a lease; zero once it has expired, `None` if it does not exist.
    pub fn left(&self, id: LeaseId, now: Instant) -> Option<Duration> {
        let deadline_ns = match self.timers.get(&id) {
            Some(timer) => timer.deadline_ns(),
            None => {
                let starting = self.starting.as_ref()?;
                self.ns(starting.since).saturating_add(nanoseconds(starting.left(id)?.0))
            }
        };
        Some(Duration::from_nanos(deadline_ns.saturating_sub(self.ns(now))))
    }

    /// Returns true if a slot of the queue is due, so that [`Expiry::expired`] has work to do.
    pub fn is_due(&self, now: Instant) -> bool {
        self.queue.first().is_some_and(|(place, ())| place.slot <= self.due(now))
    }

    /// Returns leases whose deadline has passed, until the sum of their weights reaches `max`. Each lease is returned
    /// only once, unless [`Expiry::retry`] is called for it. If more leases have expired or more slots are due than a
    /// call handles, the next call continues.
    pub fn expired(
        &mut self,
        now: Instant,
        max: usize,
        mut weight_of: impl FnMut(LeaseId) -> usize,
    ) -> Vec<LeaseId> {
        let (due, now) = (self.due(now), self.ns(now));
        let (mut out, mut weight) = (Vec::new(), 0_usize);
        for _ in 0..max.saturating_mul(LOOKS_PER_LEASE) {
            let Some(&place) = self.queue.first().map(|(place, ())| place).filter(|it| it.slot <= due) else {
                break;
            };
            if weight >= max {
                break;
            }
            self.queue.remove(&place);
            let id = place.id();
            let Some(timer) = self.timers.get(&id).copied() else { continue };
            let ends = self.ends_ns(id, &timer);
            let slot =
                (ends > now).then(|| Expiry::slot_of(ends).max(place.slot.saturating_add(1).min(SLOT_MAX)));
            match slot {
                Some(slot) => drop(self.queue.insert(Place::new(slot, id), ())),
                None => {
                    self.held_ns.remove(&id);
                    weight = weight.saturating_add(weight_of(id).max(1));
                    out.push(id);
                }
            }
            if let Some(timer) = self.timers.get_mut(&id) {
                timer.slot = slot.unwrap_or(NO_SLOT);
                if slot.is_none() {
                    // A shard may have read the clock before the deadline and then been suspended. It must
                    // not renew the lease after the lease was returned as expired.
                    timer.alone_looks = 0;
                }
            }
        }
        out
    }

    /// Handles a revocation that could not be proposed, or was refused. The lease is returned as expired
    /// again after `pause`, and cannot be renewed until then.
    pub fn retry(&mut self, id: LeaseId, now: Instant, pause: Duration) {
        let slot = Expiry::slot_of(self.ns(now + pause));
        if let Some(timer) = self.timers.get_mut(&id)
            && timer.slot().is_none()
        {
            timer.slot = slot;
            self.queue.insert(Place::new(slot, id), ());
        }
    }

    /// Returns the id of a lease whose clock runs; different seeds select leases all over their order.
    pub fn some_id(&self, seed: u64) -> Option<LeaseId> {
        self.timers.some_key(seed).copied()
    }

    /// Returns the leases with running clocks whose ids are greater than `id` (all of them if `id` is
    /// `None`), with their remaining times, in the order of the ids.
    pub fn after(&self, id: Option<LeaseId>, now: Instant) -> impl Iterator<Item = (LeaseId, Duration)> {
        let (timers, now) = (self.timers.after(id.as_ref()), self.ns(now));
        timers.map(move |(id, timer)| (*id, Duration::from_nanos(timer.deadline_ns().saturating_sub(now))))
    }
}

/// Returns a time in nanoseconds; the maximum is some 580 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use machine::GrantedLease;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_timer_is_small() {
        // With the 16 bytes of a lease in the replicated state these are 52 bytes. An eighth of the memory of the
        // maps may be unused, so that a lease takes less than 64 bytes in all.
        assert_eq!((size_of::<(LeaseId, Timer)>(), size_of::<(Place, ())>()), (24, 12));
    }

    #[test]
    fn numbers_that_do_not_fit_into_a_timer_are_kept() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        let (half, hundred_years) = (SECOND / 2, SECOND * 3_155_760_000);
        for (id, ttl) in (1..).zip([half, hundred_years, hundred_years * 2]) {
            let id = LeaseId(id);
            expiry.start(id, SECOND, ttl, start);
            assert_eq!(expiry.renew(id, start, start, start), RenewalOutcome::Noted(Index(0)));
            assert_eq!(expiry.left(id, start), Some(ttl));
            for index in [100, 101, 99, 100 + u64::from(u32::MAX), 7, u64::MAX, 5000] {
                expiry.noted(id, Index(index));
                assert_eq!(expiry.renew(id, start, start, start), RenewalOutcome::Noted(Index(index)));
            }
        }
        assert_eq!((expiry.wide_ttls.len(), expiry.notes.len()), (2, 3));
        assert_eq!(expiry.expired(start + SECOND, 10, |_| 1), [1].map(LeaseId));
        assert!(expiry.expired(start + hundred_years - SECOND, 10, |_| 1).is_empty());
        assert_eq!(expiry.expired(start + hundred_years, 10, |_| 1), [2].map(LeaseId));
        for id in 1..=3 {
            expiry.hold(LeaseId(id), start, start + SECOND);
            expiry.noted(LeaseId(id), Index(u64::MAX));
            expiry.stop(LeaseId(id));
        }
        let side =
            (expiry.wide_ttls.len(), expiry.notes.len(), expiry.notes_by_index.len(), expiry.held_ns.len());
        assert_eq!((side, expiry.timers.len(), expiry.queue.len()), ((0, 0, 0, 0), 0, 0));
    }

    #[test]
    fn applied_notes_are_forgotten_in_order() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        let noted = |expiry: &mut Expiry, id| match expiry.renew(LeaseId(id), start, start, start) {
            RenewalOutcome::Noted(index) => index,
            other => unreachable!("{id} is not renewed: {other:?}"),
        };
        for id in 1..=4 {
            expiry.start(LeaseId(id), SECOND, SECOND, start);
            expiry.noted(LeaseId(id), Index(10 + id as u64));
        }
        // A later entry for a lease takes the place of the earlier one.
        expiry.noted(LeaseId(1), Index(15));
        assert!(expiry.forget_notes(Index(11), 10));
        assert_eq!([1, 2, 3, 4].map(|id| noted(&mut expiry, id)), [15, 12, 13, 14].map(Index));
        assert!(expiry.forget_notes(Index(14), 2), "no more than two at a time");
        assert_eq!([1, 2, 3, 4].map(|id| noted(&mut expiry, id)), [15, 0, 0, 14].map(Index));
        expiry.stop(LeaseId(4));
        assert_eq!((expiry.notes.len(), expiry.notes_by_index.len()), (1, 1));
        assert!(!expiry.forget_notes(Index(15), 10));
        assert_eq!(noted(&mut expiry, 1), Index(0));
    }

    #[test]
    fn a_deadline_is_never_early_and_at_most_a_millisecond_late() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        for (id, ns) in (1..).zip([1_u64, 999_999, 1_000_000, 4_294_967_295_999_999, 4_294_967_296_000_001]) {
            let ttl = Duration::from_nanos(ns);
            expiry.start(LeaseId(id), ttl, SECOND, start);
            let left = expiry.left(LeaseId(id), start).expect("its clock runs");
            assert!(left >= ttl && left < ttl + Duration::from_millis(1), "{ttl:?} became {left:?}");
        }
        expiry.start(LeaseId(9), Duration::MAX, SECOND, start);
        assert!(expiry.left(LeaseId(9), start) > Some(SECOND * 3_155_760_000));
    }

    #[test]
    fn places_are_ordered_by_slot_and_keep_their_ids() {
        for id in [1, -1, i64::MIN, i64::MAX, 1 << 32, 0x1234_5678_9abc_def0].map(LeaseId) {
            assert_eq!(Place::new(7, id).id(), id);
            assert!(Place::new(7, id) < Place::new(8, LeaseId(i64::MIN)));
        }
    }

    #[test]
    fn a_lease_expires_once_and_never_early() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(LeaseId(1), 2 * SECOND, 2 * SECOND, start);
        assert!(expiry.expired(start + 2 * SECOND - Duration::from_millis(1), 10, |_| 1).is_empty());
        assert_eq!(expiry.expired(start + 2 * SECOND, 10, |_| 1), [1].map(LeaseId));
        assert!(expiry.expired(start + 20 * SECOND, 10, |_| 1).is_empty());
        assert_eq!(
            expiry.renew(LeaseId(1), start + 3 * SECOND, start + 3 * SECOND, start + 3 * SECOND),
            RenewalOutcome::Expired
        );
        expiry.retry(LeaseId(1), start + 20 * SECOND, SECOND);
        assert_eq!(
            expiry.renew(LeaseId(1), start + 20 * SECOND, start + 20 * SECOND, start + 20 * SECOND),
            RenewalOutcome::Expired,
            "nothing revives it"
        );
        assert_eq!(expiry.expired(start + 21 * SECOND, 10, |_| 1), [1].map(LeaseId));
    }

    #[test]
    fn a_renewed_lease_lives_on() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(LeaseId(7), 2 * SECOND, 2 * SECOND, start);
        for n in 1..50u32 {
            let now = start + SECOND * n;
            assert_eq!(expiry.renew(LeaseId(7), now, now, now), RenewalOutcome::Noted(Index(0)));
            assert!(expiry.expired(now, 10, |_| 1).is_empty());
        }
        assert_eq!(expiry.left(LeaseId(7), start + SECOND * 50), Some(SECOND));
        assert_eq!(expiry.expired(start + SECOND * 51, 10, |_| 1), [7].map(LeaseId));
    }

    #[test]
    fn a_lease_that_was_given_out_is_not_renewed_alone_by_a_time_of_before() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(LeaseId(1), SECOND * 10, SECOND * 10, start);
        expiry.renews_alone(LeaseId(1), Seconds(10));
        assert_eq!(expiry.expired(start + SECOND * 11, 10, |_| 1), [LeaseId(1)]);
        assert_eq!(expiry.renew_alone(LeaseId(1), start + SECOND * 9), None, "its revocation is under way");
        expiry.retry(LeaseId(1), start + SECOND * 11, SECOND);
        assert_eq!(expiry.renew_alone(LeaseId(1), start + SECOND * 9), None);
    }

    #[test]
    fn a_lease_is_renewed_alone_while_nothing_is_noted_of_it_and_its_time_is_not_up() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let (id, ttl) = (LeaseId(7), Some(Seconds(10)));
        let mut expiry = Expiry::new(start);
        expiry.start(id, 10 * SECOND, 10 * SECOND, start);
        assert_eq!(expiry.renew_alone(id, at(1)), None, "nobody has said so");
        assert_eq!(expiry.left(id, at(1)), Some(9 * SECOND));
        expiry.renews_alone(id, Seconds(9));
        assert_eq!(expiry.renew_alone(id, at(2)), None, "its client is told another TTL than it has here");
        expiry.renews_alone(id, Seconds(10));
        assert_eq!(expiry.renew_alone(id, at(2)), ttl);
        assert_eq!(expiry.left(id, at(2)), Some(10 * SECOND));
        // The core uses the time at which its turn began. The later deadline that a shard has promised stays
        // valid.
        assert_eq!(expiry.renew(id, at(1), at(1), at(1)), RenewalOutcome::Noted(Index(0)));
        assert_eq!(expiry.left(id, at(2)), Some(10 * SECOND));
        type End = fn(&mut Expiry);
        let ends: [(&str, End); 4] = [
            ("it is to be noted", |expiry| expiry.about_to_be_noted(LeaseId(7))),
            ("it was noted", |expiry| expiry.noted(LeaseId(7), Index(3))),
            ("all are looked at again", Expiry::look_again),
            ("it was granted again", |expiry| {
                let now = expiry.epoch + Duration::from_nanos(expiry.renewed_at_ns);
                expiry.start(LeaseId(7), 10 * SECOND, 10 * SECOND, now);
            }),
        ];
        for (why, end) in ends {
            end(&mut expiry);
            assert_eq!(expiry.renew_alone(id, at(3)), None, "{why}");
            expiry.renews_alone(id, Seconds(10));
            assert_eq!(expiry.renew_alone(id, at(3)), ttl, "{why}");
        }
        assert_eq!(expiry.renew_alone(id, at(13)), None, "its time is up");
        assert_eq!(expiry.expired(at(13), 10, |_| 1), [id]);
        assert_eq!(expiry.renew_alone(id, at(13)), None);
        expiry.stop(id);
        expiry.renews_alone(id, Seconds(10));
        assert_eq!(expiry.renew_alone(id, at(13)), None, "it is gone");
    }

    #[test]
    fn a_lease_whose_time_is_up_is_not_renewed_even_before_it_is_looked_at() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(LeaseId(7), SECOND, SECOND, start);
        assert_eq!(
            expiry.renew(LeaseId(7), start + SECOND, start + SECOND, start + SECOND),
            RenewalOutcome::Expired
        );
        assert_eq!(expiry.expired(start + SECOND, 10, |_| 1), [7].map(LeaseId));
        assert_eq!(expiry.renew(LeaseId(8), start, start, start), RenewalOutcome::Unknown);
    }

    #[test]
    fn many_expire_in_portions() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        for id in 0..1000 {
            expiry.start(LeaseId(id), SECOND, SECOND, start);
        }
        expiry.stop(LeaseId(999));
        let mut all = Vec::new();
        loop {
            let some = expiry.expired(start + SECOND, 64, |_| 1);
            assert!(some.len() <= 64);
            if some.is_empty() {
                break;
            }
            all.extend(some);
        }
        all.sort_unstable();
        assert!(all.into_iter().eq((0..999).map(LeaseId)));
    }

    #[test]
    fn a_lease_whose_renewal_waits_does_not_expire() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut expiry = Expiry::new(start);
        for id in [1, 2, 3] {
            expiry.start(LeaseId(id), 2 * SECOND, 2 * SECOND, start);
        }
        expiry.hold(LeaseId(1), at(1), at(8));
        expiry.hold(LeaseId(2), at(1), at(8));
        // The renewal comes too late.
        expiry.hold(LeaseId(3), at(2), at(9));
        assert_eq!(expiry.expired(at(2), 10, |_| 1), [3].map(LeaseId));
        expiry.hold(LeaseId(3), at(2), at(9));
        assert_eq!(expiry.renew(LeaseId(3), at(9), at(3), at(3)), RenewalOutcome::Expired);
        // Another renewal of the same lease arrives before the first one is carried out. The second renewal
        // still keeps the lease from expiring after the first one is carried out.
        expiry.hold(LeaseId(1), at(4), at(11));
        assert_eq!(expiry.renew(LeaseId(1), at(8), at(6), at(6)), RenewalOutcome::Noted(Index(0)));
        assert_eq!(expiry.expired(at(9), 10, |_| 1), [2].map(LeaseId), "its renewal was given up");
        assert_eq!(expiry.renew(LeaseId(1), at(11), at(10), at(10)), RenewalOutcome::Noted(Index(0)));
        assert!(expiry.expired(at(11), 10, |_| 1).is_empty());
        assert_eq!(expiry.expired(at(12), 10, |_| 1), [1].map(LeaseId), "nothing holds it");
    }

    #[test]
    fn a_lease_leaves_nothing_behind() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        for round in 0..100 {
            for id in 0..50 {
                expiry.start(LeaseId(id), SECOND * (1 + round * 7 + id as u32), 1000 * SECOND, start);
                let _ = expiry.renew(LeaseId(id), start + SECOND / 2, start + SECOND / 2, start + SECOND / 2);
            }
            let _ = expiry.expired(start + SECOND * round, 10, |_| 1);
            for id in 0..50 {
                expiry.stop(LeaseId(id));
            }
        }
        assert_eq!((expiry.timers.len(), expiry.queue.len()), (0, 0));
        for _ in 0..100 {
            expiry.start(LeaseId(1), SECOND, SECOND, start);
            expiry.retry(LeaseId(1), start, SECOND);
        }
        assert_eq!((expiry.timers.len(), expiry.queue.len()), (1, 1));
    }

    #[test]
    fn clocks_are_started_in_slices_and_nobody_can_tell() {
        let start = Instant::now();
        let leases = |ids: std::ops::Range<i64>| {
            Leases::granted(ids.map(|id| GrantedLease {
                id: LeaseId(id),
                ttl: Seconds(60),
                remaining: Seconds(if id % 2 == 0 { 0 } else { 10 }),
            }))
            .expect("can be granted")
        };
        let mut expiry = Expiry::of(leases(1..1001), true, Seconds(2), 5 * SECOND, start);
        let now = start + SECOND;
        let check = |expiry: &Expiry| {
            assert_eq!(expiry.left(LeaseId(998), now), Some(64 * SECOND));
            assert_eq!(expiry.left(LeaseId(999), now), Some(14 * SECOND));
            assert_eq!(expiry.left(LeaseId(1001), now), None);
        };
        check(&expiry);
        // These leases are renewed, revoked, and granted again before their clocks are started.
        assert_eq!(expiry.renew(LeaseId(500), now, now, now), RenewalOutcome::Noted(Index(0)));
        expiry.stop(LeaseId(600));
        expiry.stop(LeaseId(700));
        expiry.start(LeaseId(700), 3 * SECOND, 3 * SECOND, now);
        let mut slices = 0;
        while expiry.is_starting() {
            let before = expiry.timers.len();
            expiry.start_some(64, |id| id != LeaseId(600));
            assert!(expiry.timers.len() <= before + 64);
            check(&expiry);
            slices += 1;
        }
        assert_eq!(slices, 1000 / 64 + 2);
        assert_eq!((expiry.timers.len(), expiry.queue.len()), (999, 999));
        assert_eq!(expiry.left(LeaseId(500), now), Some(60 * SECOND));
        assert_eq!(
            (expiry.left(LeaseId(600), now), expiry.left(LeaseId(700), now)),
            (None, Some(3 * SECOND))
        );
        let mut slices = 0;
        while expiry.forget_some(64) {
            slices += 1;
        }
        assert!((999 / 256..=999 / 64).contains(&slices), "{slices}");
        assert_eq!((expiry.timers.len(), expiry.queue.len()), (0, 0));
    }
}
