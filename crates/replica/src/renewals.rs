//! The deadlines of leases as the core and the shards share them: a shard renews a lease by itself where the core would do nothing
//! but move the deadline. So most renewals of a member that is the only voter take no other thread.
//!
//! The core opens this while no other member can lead: a leader among several voters asks a quorum first, which takes the core.
//! Even then the core sees the first renewal of each lease, and says that the next ones need nothing else. That ends when a
//! time left of the lease is to be noted in the log, since a renewal has to take the note back, and when the lease is gone.
//!
//! # Example: lease 7 with a TTL of 100 s, renewed each 30 s
//!
//! ```text
//!   0 s  granted: the core starts its clock
//!  30 s  the shard asks the core, which renews it and says that it renews alone
//!  60 s  the shard renews it
//!  90 s  the member is about to stop: the core notes that 70 s are left, and that it has to look at renewals again
//!  91 s  the shard asks the core, which answers once an entry that takes the note back is applied
//! ```
//!
//! The deadline is read for the note and the lease taken from the shards under one lock. Otherwise a renewal between the two would
//! be answered, and the note behind it would let the next leader end the lease too early.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use numbers::{LeaseId, Seconds};

use crate::expiry::Expiry;

/// How often a shard tries to get at the deadlines before it asks the core: for about a microsecond.
const TRIES: usize = 64;

/// The deadlines of leases, and whether shards may move them.
struct Deadlines {
    expiry: Expiry,
    is_open: bool,
}

/// Renewals of leases by the shards.
pub struct Renewals(Mutex<Deadlines>);

impl Renewals {
    /// Returns renewals that are not open, without leases.
    pub fn new(now: Instant) -> Renewals {
        Renewals(Mutex::new(Deadlines { expiry: Expiry::new(now), is_open: false }))
    }

    /// Renews a lease if no other thread is needed for it. Returns the TTL in seconds that the client is told; `None` if the core
    /// is to be asked. Does not wait for the core, which may look at thousands of leases at once.
    pub fn renew(&self, id: LeaseId, now: Instant) -> Option<Seconds> {
        let mut deadlines = self.try_lock()?;
        if deadlines.is_open { deadlines.expiry.renew_alone(id, now) } else { None }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Deadlines>> {
        for _ in 0..TRIES {
            match self.0.try_lock() {
                Ok(deadlines) => return Some(deadlines),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                // Another shard renews a lease, which takes less than to ask the core.
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Deadlines> {
        // A panic under this lock stops the process, but for tests: what it holds is whole then.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says if shards may renew leases. When this returns after `false`, no shard renews one any more.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.lock().is_open = is_open;
    }

    /// Does something with the deadlines while no shard renews a lease.
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
