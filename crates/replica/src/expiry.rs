//! When leases expire: deadlines, and an ordered queue of the places at which each lease is looked at.
//!
//! Renewing a lease only moves its deadline; its place in the queue is found out of date when its turn comes, and the
//! lease goes where it belongs by then. So a renewal is one look-up, however many leases there are. Each lease has at
//! most one place, which goes with it: what is held is in proportion to the leases that exist.
//!
//! A new leader has the clocks of all leases to start. It does so in slices; a lease whose turn has not come goes by the
//! deadline that it will get.
//!
//! # Example: lease 7 with a TTL of 10 s; slots are 100 ms wide
//!
//! ```text
//!  0.00 s  granted            deadline 10.00 s, slot 100
//!  6.03 s  renewed            deadline 16.03 s, still slot 100: the queue is not touched
//! 10.00 s  slot 100 is due    the deadline has moved: the lease goes to slot 161 (16.03 s, rounded up)
//! 16.10 s  slot 161 is due    the lease is given out as expired, and its revocation is proposed
//! ```
//!
//! A renewal at 16.05 s comes too late: the deadline has passed, so the lease cannot be saved, and the client is answered TTL 0
//! once the revocation is applied. A lease is given out up to 100 ms late and never early.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use machine::{Lease, Leases};
use numbers::{Index, LeaseId, Seconds};

/// The width of one slot of the queue.
const SLOT_NS: u64 = 100_000_000;
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Places looked at for each lease that may be given out at once: most may be out of date.
const LOOKS_PER_LEASE: usize = 4;

/// The deadline of one lease, and who may move it. There may be millions of leases: times are nanoseconds since [`Expiry::epoch`], each half as long
/// as an `Instant`.
#[derive(Clone, Copy, Debug)]
struct Timer {
    deadline_ns: u64,
    /// Time from a renewal to the deadline.
    ttl_ns: u64,
    /// The slot it stands in; [`NO_SLOT`] once it was given out as expired.
    slot: u64,
    /// The last log entry that notes a time left of this lease, or takes such a note back.
    noted_by: Index,
    /// The lease does not expire before this time, if it is behind the deadline: a renewal came before that and waits for its
    /// round. 0 if none waits.
    held_ns: u64,
    /// [`Expiry::looks`] when the core said that a renewal needs nothing but a new deadline. It holds as long as that has not
    /// changed; 0 if the core has not said so, or has taken it back.
    alone_looks: u64,
}

/// The slot of a lease that was given out.
const NO_SLOT: u64 = u64::MAX;

impl Timer {
    fn slot(&self) -> Option<u64> {
        (self.slot != NO_SLOT).then_some(self.slot)
    }

    /// Moves the deadline, for a renewal at this time.
    fn renew(&mut self, now_ns: u64) {
        self.deadline_ns = now_ns.saturating_add(self.ttl_ns);
    }

    fn ends_ns(&self) -> u64 {
        self.held_ns.max(self.deadline_ns)
    }
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease has its whole TTL again. The number is the last log entry that notes a time left of it, or takes such
    /// a note back; 0 if this leader has proposed none.
    Noted(Index),
    /// The deadline has passed: the lease is about to be revoked, and cannot be renewed.
    Expired,
    /// The lease does not exist.
    Unknown,
}

/// The deadlines of all leases, as one leader keeps them.
#[derive(Debug)]
pub struct Expiry {
    epoch: Instant,
    timers: BTreeMap<LeaseId, Timer>,
    /// Slot and lease. A lease never stands behind the slot of its deadline.
    queue: BTreeSet<(u64, LeaseId)>,
    starting: Option<Starting>,
    /// The latest time at which a lease was renewed. The core's time is that of the beginning of its turn, so its renewals would
    /// otherwise take back a little of what a shard has just promised.
    renewed_at_ns: u64,
    /// Number of calls of [`Expiry::look_again`], and one.
    looks: u64,
}

/// The leases whose clocks are still to be started.
#[derive(Debug)]
struct Starting {
    /// The leases as they were when the leader settled.
    leases: Leases,
    /// The last lease that had its turn.
    behind: Option<LeaseId>,
    since: Instant,
    /// The shortest TTL that this leader grants, seconds.
    ttl_min: Seconds,
    /// Time that each lease gets in addition to its noted remaining time or its TTL.
    grace: Duration,
    /// False if each lease gets its whole TTL, whatever is noted.
    by_notes: bool,
}

/// The time left of a lease as of the last note, or its whole TTL; no TTL is shorter than `ttl_min` seconds.
pub fn noted_or_granted(lease: &Lease, ttl_min: Seconds) -> Duration {
    let ttl = lease.ttl.max(ttl_min);
    let time = if lease.remaining > Seconds::ZERO { lease.remaining.min(ttl) } else { ttl };
    time.duration()
}

impl Starting {
    /// The time that a lease gets whose turn has not come, and its TTL.
    fn left(&self, id: LeaseId) -> Option<(Duration, Duration)> {
        let lease = self.leases.get(id).filter(|_| self.behind.is_none_or(|behind| behind < id))?;
        let ttl = lease.ttl.max(self.ttl_min).duration();
        let left = if self.by_notes { noted_or_granted(lease, self.ttl_min) } else { ttl };
        Some((left + self.grace, ttl))
    }
}

impl Expiry {
    /// Begins with no leases.
    pub fn new(now: Instant) -> Expiry {
        Expiry {
            epoch: now,
            timers: BTreeMap::new(),
            queue: BTreeSet::new(),
            starting: None,
            renewed_at_ns: 0,
            looks: 1,
        }
    }

    /// Begins with these leases: each has the time left as of its last note, if it goes `by_notes`, or its whole TTL, and
    /// `grace` on top. See [`Expiry::start_some`].
    pub fn of(leases: Leases, by_notes: bool, ttl_min: Seconds, grace: Duration, now: Instant) -> Expiry {
        let starting = Some(Starting { leases, behind: None, since: now, ttl_min, grace, by_notes });
        Expiry { starting, ..Expiry::new(now) }
    }

    /// The number of leases whose clocks run.
    pub fn clocks(&self) -> usize {
        self.timers.len()
    }

    /// Returns true if there are leases whose clocks are still to be started.
    pub fn is_starting(&self) -> bool {
        self.starting.is_some()
    }

    /// Looks at up to `max` leases whose clocks are still to be started, and starts those of leases that `exists` knows.
    pub fn start_some(&mut self, max: usize, exists: impl Fn(LeaseId) -> bool) {
        let Some(starting) = &self.starting else { return };
        let since = starting.since;
        let some: Vec<LeaseId> = starting.leases.after(starting.behind).take(max).map(|(id, _)| id).collect();
        planted::looked_at(planted::Measure::Leases, some.len());
        for id in &some {
            // One that was granted again since has a clock; one that was revoked needs none.
            if !self.timers.contains_key(id)
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

    /// Forgets up to `max` leases of a leader that leads no more; `false` once there are none. To be used instead of
    /// dropping it, which takes time in proportion to the leases.
    pub fn forget_some(&mut self, max: usize) -> bool {
        self.starting = None;
        for _ in 0..max {
            if self.timers.pop_first().is_none() && self.queue.pop_first().is_none() {
                return false;
            }
            self.queue.pop_first();
        }
        true
    }

    /// The time since the epoch, in nanoseconds: at most some 580 years.
    fn ns(&self, at: Instant) -> u64 {
        nanoseconds(at.saturating_duration_since(self.epoch))
    }

    fn slot_of(deadline_ns: u64) -> u64 {
        // Rounded up: a lease is never early.
        deadline_ns.div_ceil(SLOT_NS)
    }

    /// The last slot whose time has come.
    fn due(&self, now: Instant) -> u64 {
        self.ns(now) / SLOT_NS
    }

    /// Starts the clock of a lease: `left` from now, and `ttl` from each renewal.
    pub fn start(&mut self, id: LeaseId, left: Duration, ttl: Duration, now: Instant) {
        self.stop(id);
        let deadline_ns = self.ns(now).saturating_add(nanoseconds(left));
        let slot = Expiry::slot_of(deadline_ns);
        let ttl_ns = nanoseconds(ttl);
        let timer = Timer { deadline_ns, ttl_ns, slot, noted_by: Index(0), held_ns: 0, alone_looks: 0 };
        self.timers.insert(id, timer);
        self.queue.insert((slot, id));
    }

    /// Forgets a lease.
    pub fn stop(&mut self, id: LeaseId) {
        if let Some(slot) = self.timers.remove(&id).and_then(|timer| timer.slot()) {
            self.queue.remove(&(slot, id));
        }
    }

    /// The timer of a lease; its clock is started if its turn has not come.
    fn timer(&mut self, id: LeaseId) -> Option<&mut Timer> {
        if !self.timers.contains_key(&id)
            && let Some(starting) = &self.starting
            && let Some((left, ttl)) = starting.left(id)
        {
            let since = starting.since;
            self.start(id, left, ttl, since);
        }
        self.timers.get_mut(&id)
    }

    /// A renewal has come and waits. Unless the time of the lease was up as of `as_of`, it does not expire before `until`.
    pub fn hold(&mut self, id: LeaseId, as_of: Instant, until: Instant) {
        let (as_of, until) = (self.ns(as_of), self.ns(until));
        if let Some(timer) = self.timer(id)
            && timer.ends_ns() > as_of
        {
            timer.held_ns = timer.held_ns.max(until);
        }
    }

    /// Renews a lease that exists, from `now` on, unless its time was up as of `as_of`. `held` is until when this renewal
    /// has held it.
    pub fn renew(&mut self, id: LeaseId, held: Instant, as_of: Instant, now: Instant) -> Renewed {
        let (held, as_of) = (self.ns(held), self.ns(as_of));
        self.renewed_at_ns = self.renewed_at_ns.max(self.ns(now));
        let now = self.renewed_at_ns;
        match self.timer(id) {
            None => Renewed::Unknown,
            Some(timer) if timer.ends_ns() <= as_of => Renewed::Expired,
            Some(timer) => {
                // One that came later may wait longer.
                if timer.held_ns <= held {
                    timer.held_ns = 0;
                }
                timer.renew(now);
                Renewed::Noted(timer.noted_by)
            }
        }
    }

    /// Renewals of this lease need nothing but a new deadline from now on, and are answered with the TTL `told`: until a time
    /// left is noted of it, or [`Expiry::look_again`]. A lease whose clients are told another TTL than it has here, because a
    /// member that runs etcd granted it, is left to the core: the timer has no room for both.
    pub fn renews_alone(&mut self, id: LeaseId, told: Seconds) {
        let looks = self.looks;
        if let Some(timer) = self.timers.get_mut(&id) {
            // 0 would say that the lease is gone.
            let is_its_own = told > Seconds::ZERO && timer.ttl_ns == nanoseconds(told.duration());
            timer.alone_looks = if is_its_own { looks } else { 0 };
        }
    }

    /// Renews a lease if nothing but a new deadline is needed for it, and its time is not up. Returns the TTL that the client
    /// is told; `None` if the core has to look at the renewal.
    pub fn renew_alone(&mut self, id: LeaseId, now: Instant) -> Option<Seconds> {
        let now = self.ns(now).max(self.renewed_at_ns);
        let timer = self.timers.get_mut(&id)?;
        if timer.alone_looks != self.looks {
            return None;
        }
        // Stricter than the core, by whose time a lease may live on while apply is behind.
        if timer.ends_ns() <= now {
            return None;
        }
        self.renewed_at_ns = now;
        timer.renew(now);
        Some(Seconds((timer.ttl_ns / NS_PER_SECOND) as i64))
    }

    /// A time left of this lease is about to be noted: renewals have to take that back.
    pub fn about_to_be_noted(&mut self, id: LeaseId) {
        if let Some(timer) = self.timers.get_mut(&id) {
            timer.alone_looks = 0;
        }
    }

    /// Ends what [`Expiry::renews_alone`] began, for all leases: the core has to look at the next renewal of each.
    pub fn look_again(&mut self) {
        self.looks += 1;
    }

    /// The log entry `index` notes a time left of this lease, or takes such a note back.
    pub fn noted(&mut self, id: LeaseId, index: Index) {
        if let Some(timer) = self.timers.get_mut(&id) {
            timer.noted_by = index;
            timer.alone_looks = 0;
        }
    }

    /// The time that a lease which exists has left; zero once it has expired.
    pub fn left(&self, id: LeaseId, now: Instant) -> Option<Duration> {
        let deadline_ns = match self.timers.get(&id) {
            Some(timer) => timer.deadline_ns,
            None => {
                let starting = self.starting.as_ref()?;
                self.ns(starting.since).saturating_add(nanoseconds(starting.left(id)?.0))
            }
        };
        Some(Duration::from_nanos(deadline_ns.saturating_sub(self.ns(now))))
    }

    /// Returns true if [`Expiry::expired`] has something to do.
    pub fn is_due(&self, now: Instant) -> bool {
        self.queue.first().is_some_and(|(slot, _)| *slot <= self.due(now))
    }

    /// Returns up to `max` leases whose deadline has passed, each once (see [`Expiry::retry`]). There may be more; the
    /// next call goes on.
    pub fn expired(&mut self, now: Instant, max: usize) -> Vec<LeaseId> {
        let (due, now) = (self.due(now), self.ns(now));
        let mut out = Vec::new();
        for _ in 0..max.saturating_mul(LOOKS_PER_LEASE) {
            let Some(&(slot, id)) = self.queue.first().filter(|(slot, _)| *slot <= due) else { break };
            if out.len() == max {
                break;
            }
            self.queue.remove(&(slot, id));
            let Some(timer) = self.timers.get(&id).copied() else { continue };
            let slot = (timer.ends_ns() > now).then(|| Expiry::slot_of(timer.ends_ns()).max(slot + 1));
            match slot {
                Some(slot) => drop(self.queue.insert((slot, id))),
                None => out.push(id),
            }
            if let Some(timer) = self.timers.get_mut(&id) {
                timer.slot = slot.unwrap_or(NO_SLOT);
                if slot.is_none() {
                    // A shard's time may be of before the deadline, if it was held up since it looked at the clock.
                    timer.alone_looks = 0;
                }
            }
        }
        out
    }

    /// A revocation could not be proposed, or was refused: the lease is given out again after `pause`. It cannot be
    /// renewed any more.
    pub fn retry(&mut self, id: LeaseId, now: Instant, pause: Duration) {
        let slot = Expiry::slot_of(self.ns(now + pause));
        if let Some(timer) = self.timers.get_mut(&id)
            && timer.slot().is_none()
        {
            timer.slot = slot;
            self.queue.insert((slot, id));
        }
    }

    /// The leases behind this id, or all, whose clocks run, with the time they have left, by id.
    pub fn after(&self, id: Option<LeaseId>, now: Instant) -> impl Iterator<Item = (LeaseId, Duration)> {
        let behind = id.map_or(Bound::Unbounded, Bound::Excluded);
        let (timers, now) = (self.timers.range((behind, Bound::Unbounded)), self.ns(now));
        timers.map(move |(id, timer)| (*id, Duration::from_nanos(timer.deadline_ns.saturating_sub(now))))
    }
}

/// A time longer than some 580 years is as long as that.
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
        // A node of the tree has eleven, with their ids: it is to fit into a piece of 640 bytes of the allocator.
        assert!(size_of::<Timer>() <= 48, "a timer has {} bytes", size_of::<Timer>());
    }

    #[test]
    fn a_lease_expires_once_and_never_early() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(LeaseId(1), 2 * SECOND, 2 * SECOND, start);
        assert!(expiry.expired(start + 2 * SECOND - Duration::from_millis(1), 10).is_empty());
        assert_eq!(expiry.expired(start + 2 * SECOND, 10), [1].map(LeaseId));
        assert!(expiry.expired(start + 20 * SECOND, 10).is_empty());
        assert_eq!(
            expiry.renew(LeaseId(1), start + 3 * SECOND, start + 3 * SECOND, start + 3 * SECOND),
            Renewed::Expired
        );
        expiry.retry(LeaseId(1), start + 20 * SECOND, SECOND);
        assert_eq!(
            expiry.renew(LeaseId(1), start + 20 * SECOND, start + 20 * SECOND, start + 20 * SECOND),
            Renewed::Expired,
            "nothing revives it"
        );
        assert_eq!(expiry.expired(start + 21 * SECOND, 10), [1].map(LeaseId));
    }

    #[test]
    fn a_renewed_lease_lives_on() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(LeaseId(7), 2 * SECOND, 2 * SECOND, start);
        for n in 1..50u32 {
            let now = start + SECOND * n;
            assert_eq!(expiry.renew(LeaseId(7), now, now, now), Renewed::Noted(Index(0)));
            assert!(expiry.expired(now, 10).is_empty());
        }
        assert_eq!(expiry.left(LeaseId(7), start + SECOND * 50), Some(SECOND));
        assert_eq!(expiry.expired(start + SECOND * 51, 10), [7].map(LeaseId));
    }

    #[test]
    fn a_lease_that_was_given_out_is_not_renewed_alone_by_a_time_of_before() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(LeaseId(1), SECOND * 10, SECOND * 10, start);
        expiry.renews_alone(LeaseId(1), Seconds(10));
        assert_eq!(expiry.expired(start + SECOND * 11, 10), [LeaseId(1)]);
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
        // The core's time is that of its turn's beginning: what was promised since stays.
        assert_eq!(expiry.renew(id, at(1), at(1), at(1)), Renewed::Noted(Index(0)));
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
        assert_eq!(expiry.expired(at(13), 10), [id]);
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
            Renewed::Expired
        );
        assert_eq!(expiry.expired(start + SECOND, 10), [7].map(LeaseId));
        assert_eq!(expiry.renew(LeaseId(8), start, start, start), Renewed::Unknown);
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
            let some = expiry.expired(start + SECOND, 64);
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
        // Too late.
        expiry.hold(LeaseId(3), at(2), at(9));
        assert_eq!(expiry.expired(at(2), 10), [3].map(LeaseId));
        expiry.hold(LeaseId(3), at(2), at(9));
        assert_eq!(expiry.renew(LeaseId(3), at(9), at(3), at(3)), Renewed::Expired);
        // Another of the same lease comes, and the first is carried out: the other still holds it.
        expiry.hold(LeaseId(1), at(4), at(11));
        assert_eq!(expiry.renew(LeaseId(1), at(8), at(6), at(6)), Renewed::Noted(Index(0)));
        assert_eq!(expiry.expired(at(9), 10), [2].map(LeaseId), "its renewal was given up");
        assert_eq!(expiry.renew(LeaseId(1), at(11), at(10), at(10)), Renewed::Noted(Index(0)));
        assert!(expiry.expired(at(11), 10).is_empty());
        assert_eq!(expiry.expired(at(12), 10), [1].map(LeaseId), "nothing holds it");
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
            let _ = expiry.expired(start + SECOND * round, 10);
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
        // Renewed, revoked, and granted again before their turn.
        assert_eq!(expiry.renew(LeaseId(500), now, now, now), Renewed::Noted(Index(0)));
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
        assert_eq!(slices, 999 / 64);
        assert_eq!((expiry.timers.len(), expiry.queue.len()), (0, 0));
    }
}
