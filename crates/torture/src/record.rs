//! Record of all operations, watches and locks of the clients.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oracle::{Asker, GrantChange, Holding, Operation, Outcome, Watch};

use crate::outcome;

/// Record of all operations, watches and locks of the clients. All times are nanoseconds since the record was
/// created.
pub struct Record {
    began: Instant,
    next: AtomicU64,
    inner: Mutex<Recorded>,
}

/// Contents of the record.
#[derive(Default)]
pub struct Recorded {
    /// Finished operations.
    pub operations: Vec<Operation>,
    /// Finished watches.
    pub watches: Vec<Watch>,
    /// Finished periods in which a client believed that it held a lock.
    pub holdings: Vec<Holding>,
    /// Changes of users and their permissions.
    pub grants: Vec<GrantChange>,
    /// Users on whose behalf the operations and watches were sent.
    pub askers: Vec<Asker>,
    /// Number of failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Number of operations by outcome, in the order done, refused, unknown.
    pub tally: [u64; 3],
    /// Number of events that watches received.
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

    /// Returns a number that no other operation or watch of the run has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Locks and returns the contents.
    pub fn lock(&self) -> MutexGuard<'_, Recorded> {
        // A poisoned lock still holds consistent contents, because no client panics while it changes them.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a finished operation.
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
