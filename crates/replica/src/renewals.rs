//! Lets shards renew leases without the core, by sharing the lease deadlines with them. A shard renews a
//! lease itself if the core would only move the deadline. So on a member that is the only voter, most
//! renewals need no other thread.
//!
//! The core allows this only while no other member can lead. Otherwise the leader first has to confirm its
//! leadership with a quorum, which only the core can do. The first renewal of each lease always goes to the
//! core, which then allows the shards to renew the lease without it. The permission ends when the lease is
//! gone, or when a lease checkpoint (its remaining time, recorded in the log) is about to be made. The next
//! renewal then has to clear the checkpoint, which only the core can do.
//!
//! # Example: lease 7 with a TTL of 100 s, renewed every 30 s
//!
//! ```text
//!   0 s  granted: the core starts the lease's clock
//!  30 s  the shard asks the core, which renews the lease and allows shards to renew it
//!  60 s  the shard renews the lease alone
//!  90 s  the member is about to stop: the core checkpoints that 70 s are left, and withdraws the permission
//!  91 s  the shard asks the core, which answers once an entry that clears the checkpoint is applied
//! ```
//!
//! The core reads the deadline and withdraws the permission under one lock. Otherwise a shard could renew the
//! lease between the two steps, and the checkpoint would let the next leader end the lease too early.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use numbers::{LeaseId, Seconds};

use crate::expiry::Expiry;

/// Number of attempts to lock the deadlines, which take about a microsecond in total. After them a shard
/// leaves the renewal to the core.
const TRIES: usize = 64;

/// Deadlines of leases, and a flag that says whether shards may move them.
struct Deadlines {
    expiry: Expiry,
    is_open: bool,
}

/// Lets shards renew leases without the core.
pub struct Renewals(Mutex<Deadlines>);

impl Renewals {
    /// Returns a value without leases, in which shards may not renew.
    pub fn new(now: Instant) -> Renewals {
        Renewals(Mutex::new(Deadlines { expiry: Expiry::new(now), is_open: false }))
    }

    /// Renews a lease if the core is not needed for it. Returns the TTL in seconds to report to the client;
    /// `None` if the core has to renew the lease. Does not wait for the core to release the lock, because the
    /// core may process thousands of leases under it.
    pub fn renew(&self, id: LeaseId, now: Instant) -> Option<Seconds> {
        let mut deadlines = self.try_lock()?;
        if deadlines.is_open { deadlines.expiry.renew_alone(id, now) } else { None }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Deadlines>> {
        for _ in 0..TRIES {
            match self.0.try_lock() {
                Ok(deadlines) => return Some(deadlines),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                // The lock is most likely held by another shard for a renewal. That takes less time than a
                // request to the core, so the lock is tried again.
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Deadlines> {
        // Outside of tests, a panic under this lock stops the process. In tests, the data under the lock is
        // consistent even after a panic, so a poisoned lock is used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows or forbids renewals by shards. After a call with `false` has returned, no shard renews a lease
    /// any more.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.lock().is_open = is_open;
    }

    /// Runs `work` on the deadlines while no shard renews a lease.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Expiry) -> T) -> T {
        work(&mut self.lock().expiry)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_shard_renews_only_while_it_is_open_and_does_not_wait_for_the_core() {
        let start = Instant::now();
        let ttl = Duration::from_secs(10);
        let renewals = Renewals::new(start);
        renewals.with(|expiry| {
            expiry.start(LeaseId(1), ttl, ttl, start);
            expiry.start(LeaseId(2), ttl, ttl, start);
            expiry.renews_alone(LeaseId(1), Seconds(10));
        });
        assert_eq!(renewals.renew(LeaseId(1), start), None, "it is not open");
        renewals.set_open(true);
        assert_eq!(renewals.renew(LeaseId(1), start), Some(Seconds(10)));
        assert_eq!(renewals.renew(LeaseId(2), start), None, "the core has not seen it");
        assert_eq!(renewals.renew(LeaseId(3), start), None, "there is none");
        renewals.with(|_| assert_eq!(renewals.renew(LeaseId(1), start), None, "the core is at work"));
        renewals.set_open(false);
        assert_eq!(renewals.renew(LeaseId(1), start), None);
    }
}
