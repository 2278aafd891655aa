//! Limits the waiting calls of unauthenticated callers: those without a valid token and without a client
//! certificate of a user, while authentication is enabled.
//!
//! A member may lag behind the entry that disables authentication or that makes a token known. So it refuses
//! an unauthenticated caller only after the leader has confirmed that this member knows the newest state,
//! which may take up to the request timeout. etcd also waits: for the entry that creates the token, or for
//! ReadIndex. Anyone can be an unauthenticated caller, and a shard can have only a limited number of requests
//! to the core. Without a separate limit, unauthenticated callers could use up all these requests.

use std::cell::Cell;
use std::rc::Rc;

use api::{Status, error};

/// Maximum number of unauthenticated callers of one kind that wait on a shard. It is a small fraction of the
/// requests that a shard may have open at the core ([`replica::inbox::OPEN_REQUESTS_PER_SHARD_MAX`]), so most
/// of those requests remain for other callers.
const STRANGERS_MAX: usize = 4096;

/// Number of unauthenticated callers of one kind that wait for a confirmation on a shard. The kinds are
/// logins, calls with unknown tokens, and calls without a token.
#[derive(Default)]
pub(super) struct Strangers {
    count: Rc<Cell<usize>>,
}

/// Slot of a waiting unauthenticated caller; freed when dropped.
pub(super) struct Place(Rc<Cell<usize>>);

impl Strangers {
    /// Takes a slot.
    ///
    /// # Errors
    ///
    /// Returns `too many requests` if no slot is free.
    pub fn enter(&self) -> Result<Place, Status> {
        if self.count.get() >= STRANGERS_MAX {
            return Err(error::TOO_MANY_REQUESTS);
        }
        self.count.set(self.count.get() + 1);
        Ok(Place(Rc::clone(&self.count)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
