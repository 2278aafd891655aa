//! What clients did, as it grows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oracle::{Asker, GrantChange, Holding, Operation, Outcome, Watch};

use crate::outcome;

/// What all clients did, as it grows. All times are nanoseconds since it was made.
pub struct Record {
    began: Instant,
    next: AtomicU64,
    inner: Mutex<Recorded>,
}

/// What is recorded.
#[derive(Default)]
pub struct Recorded {
    /// Finished operations.
    pub operations: Vec<Operation>,
    /// Finished watches.
    pub watches: Vec<Watch>,
    /// Finished holdings of locks.
    pub holdings: Vec<Holding>,
    /// What was changed of users and their rights.
    pub grants: Vec<GrantChange>,
    /// Whose operations and watches those are.
    pub askers: Vec<Asker>,
    /// How often what failed.
    pub failures: BTreeMap<String, u64>,
    /// How many operations came out how: done, refused, unknown.
    pub tally: [u64; 3],
    /// How many events came over watches.
    pub events: u64,
}

impl Default for Record {
    fn default() -> Record {
        Record { began: Instant::now(), next: AtomicU64::new(1), inner: Mutex::default() }
    }
}

impl Record {
    /// Nanoseconds since the beginning.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// When that was, or will be.
    pub fn instant(&self, at: u64) -> Instant {
        self.began + Duration::from_nanos(at)
    }

    /// A number that no other operation or watch has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// What is recorded until now.
    pub fn lock(&self) -> MutexGuard<'_, Recorded> {
        // A client that panicked has not left anything half done here.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation has come to its end.
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
