//! Records all operations, watches and locks of the clients, for the oracle.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oracle::{Asker, GrantChange, Holding, Operation, Outcome, Watch};

use crate::outcome;

/// Record of all operations, watches and locks of the clients. Times are in nanoseconds since the record was
/// created.
pub struct Record {
    began: Instant,
    next: AtomicU64,
    inner: Mutex<Recorded>,
}

/// Contents of the record.
#[derive(Default)]
pub struct Recorded {
    /// Operations that have ended.
    pub operations: Vec<Operation>,
    /// Watches that have ended.
    pub watches: Vec<Watch>,
    /// Periods in which a client believed that it held a lock.
    pub holdings: Vec<Holding>,
    /// Changes of users and permissions.
    pub grants: Vec<GrantChange>,
    /// The user on whose behalf each operation or watch was sent.
    pub askers: Vec<Asker>,
    /// Number of failures, by their short name ([`outcome::kind`]).
    pub failures: BTreeMap<String, u64>,
    /// Number of operations by outcome: done, refused, unknown.
    pub tally: [u64; 3],
    /// Number of events that the watches have received.
    pub events: u64,
}

impl Default for Record {
    fn default() -> Record {
        Record { began: Instant::now(), next: AtomicU64::new(1), inner: Mutex::default() }
    }
}

impl Record {
    /// Returns the nanoseconds since the record was created.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Converts a time of the record to an instant.
    pub fn instant(&self, at: u64) -> Instant {
        self.began + Duration::from_nanos(at)
    }

    /// Returns a number that identifies an operation or watch; no other one in the run has it.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Locks and returns the contents.
    pub fn lock(&self) -> MutexGuard<'_, Recorded> {
        // Use the contents even if the lock is poisoned: no client panics while it changes them.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an operation that has ended.
    pub fn did(&self, operation: Operation) {
        let mut inner = self.lock();
        inner.tally[match operation.outcome {
            Outcome::Done(..) => 0,
            Outcome::Refused(_) => 1,
            Outcome::Unknown(_) => 2,
        }] += 1;
        if let Some(kind) = outcome::kind(&operation.outcome) {
            *inner.failures.entry(kind).or_default() += 1;
        }
        inner.operations.push(operation);
    }
}
