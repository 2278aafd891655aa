//! When leases expire: a timer wheel with lazy entries.
//!
//! Renewing a lease only moves its deadline; its old place on the wheel is found out of date when its turn comes, and
//! the lease goes where it belongs by then. So a renewal is one look-up, however many leases there are.
//! (The idea of hashed and hierarchical timing wheels: Varghese and Lauck, 1987.)

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// The width of one slot.
const SLOT: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
struct Timer {
    deadline: Instant,
    ttl: Duration,
    /// Given out as expired; its revocation is on its way.
    expired: bool,
}

/// All deadlines that one leader keeps.
#[derive(Debug)]
pub struct Expiry {
    epoch: Instant,
    timers: HashMap<i64, Timer>,
    slots: BTreeMap<u64, Vec<i64>>,
}

impl Expiry {
    /// Begins with no leases.
    pub fn new(now: Instant) -> Expiry {
        Expiry { epoch: now, timers: HashMap::new(), slots: BTreeMap::new() }
    }

    fn slot_of(&self, deadline: Instant) -> u64 {
        let since = deadline.saturating_duration_since(self.epoch);
        // Rounded up: a lease is never early.
        u64::try_from(since.as_nanos().div_ceil(SLOT.as_nanos())).unwrap_or(u64::MAX)
    }

    /// Starts the clock of a lease: `left` from now, and `ttl` from each renewal.
    pub fn start(&mut self, id: i64, left: Duration, ttl: Duration, now: Instant) {
        let deadline = now.checked_add(left).unwrap_or(now + Duration::from_secs(1 << 31));
        self.timers.insert(id, Timer { deadline, ttl, expired: false });
        let slot = self.slot_of(deadline);
        self.slots.entry(slot).or_default().push(id);
    }

    /// Forgets a lease.
    pub fn stop(&mut self, id: i64) {
        self.timers.remove(&id);
    }

    /// Renews a lease; `false` if there is none, or it has expired.
    pub fn renew(&mut self, id: i64, now: Instant) -> bool {
        match self.timers.get_mut(&id) {
            Some(timer) if !timer.expired => {
                timer.deadline = now.checked_add(timer.ttl).unwrap_or(now + Duration::from_secs(1 << 31));
                true
            }
            _ => false,
        }
    }

    /// The time a lease has left; zero once it has expired.
    pub fn left(&self, id: i64, now: Instant) -> Option<Duration> {
        self.timers.get(&id).map(|timer| timer.deadline.saturating_duration_since(now))
    }

    /// Up to `max` leases whose time is up, each given out once. See [`Expiry::retry`].
    pub fn expired(&mut self, now: Instant, max: usize) -> Vec<i64> {
        let mut out = Vec::new();
        while out.len() < max {
            let Some((&slot, _)) = self.slots.first_key_value() else { break };
            let due = self.epoch + SLOT * u32::try_from(slot).unwrap_or(u32::MAX);
            if due > now {
                break;
            }
            let Some(mut ids) = self.slots.remove(&slot) else { break };
            // They may have come in the order of a hash map, which must not show.
            ids.sort_unstable();
            while let Some(id) = ids.pop() {
                let Some(timer) = self.timers.get_mut(&id) else { continue };
                if timer.deadline > now {
                    let at = self.slot_of(timer_deadline(&self.timers, id).unwrap_or(now));
                    self.slots.entry(at.max(slot + 1)).or_default().push(id);
                } else if !timer.expired {
                    timer.expired = true;
                    out.push(id);
                }
                if out.len() == max {
                    break;
                }
            }
            if !ids.is_empty() {
                self.slots.entry(slot).or_default().append(&mut ids);
            }
        }
        out
    }

    /// A revocation failed: the lease is given out again after `pause`.
    pub fn retry(&mut self, id: i64, now: Instant, pause: Duration) {
        if let Some(timer) = self.timers.get_mut(&id) {
            timer.expired = false;
            timer.deadline = now;
            let slot = self.slot_of(now + pause);
            self.slots.entry(slot).or_default().push(id);
        }
    }

    /// All leases with the time they have left.
    pub fn iter(&self, now: Instant) -> impl Iterator<Item = (i64, Duration)> {
        self.timers.iter().map(move |(id, timer)| (*id, timer.deadline.saturating_duration_since(now)))
    }
}

fn timer_deadline(timers: &HashMap<i64, Timer>, id: i64) -> Option<Instant> {
    timers.get(&id).map(|timer| timer.deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_expires_once_and_never_early() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(1, 2 * SECOND, 2 * SECOND, start);
        assert!(expiry.expired(start + 2 * SECOND - Duration::from_millis(1), 10).is_empty());
        assert_eq!(expiry.expired(start + 2 * SECOND, 10), [1]);
        assert!(expiry.expired(start + 20 * SECOND, 10).is_empty());
        assert!(!expiry.renew(1, start + 3 * SECOND));
        expiry.retry(1, start + 20 * SECOND, SECOND);
        assert_eq!(expiry.expired(start + 21 * SECOND, 10), [1]);
    }

    #[test]
    fn a_renewed_lease_lives_on() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        expiry.start(7, 2 * SECOND, 2 * SECOND, start);
        for n in 1..50u32 {
            let now = start + SECOND * n;
            assert!(expiry.renew(7, now));
            assert!(expiry.expired(now, 10).is_empty());
        }
        assert_eq!(expiry.left(7, start + SECOND * 50), Some(SECOND));
        assert_eq!(expiry.expired(start + SECOND * 51, 10), [7]);
    }

    #[test]
    fn many_expire_in_portions() {
        let start = Instant::now();
        let mut expiry = Expiry::new(start);
        for id in 0..1000 {
            expiry.start(id, SECOND, SECOND, start);
        }
        expiry.stop(999);
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
        assert!(all.into_iter().eq(0..999));
    }
}
