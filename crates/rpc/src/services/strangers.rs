//! Places for calls of strangers: callers who show neither a valid token nor a certificate of a user, while authentication is
//! enabled.
//!
//! A member of a cluster may lag behind the entry that disables authentication, or that makes a token known. So it refuses a
//! stranger only once the leader has confirmed that it knows the newest state, which may take as long as a request at most. etcd
//! waits likewise: for an entry, or for its ReadIndex. Anyone can be a stranger, and a shard has a bounded number of requests to
//! the core: without a bound of their own, strangers could take all of them.

use std::cell::Cell;
use std::rc::Rc;

use api::{Status, error};

/// Strangers of one shard that wait at the same time: a small part of its requests to the core
/// ([`replica::inbox::OPEN_REQUESTS_PER_SHARD_MAX`]).
const STRANGERS_MAX: usize = 4096;

/// The strangers of a shard that wait for a confirmation: those that log in, those with tokens that this member does not know, or all
/// others.
#[derive(Default)]
pub(super) struct Strangers {
    count: Rc<Cell<usize>>,
}

/// The place of a stranger that waits, which it leaves when this is dropped.
pub(super) struct Place(Rc<Cell<usize>>);

impl Strangers {
    /// Takes a place.
    ///
    /// # Errors
    ///
    /// `too many requests`, if no place is free.
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
