//! Queues of the orders that the core gives to the threads that work for it.

use std::sync::mpsc::{SyncSender, TrySendError};

use consensus::Fetch;
use storage::checkpointer::Order;
use storage::compaction_hash::Job;

/// The queues of the threads that work for the core. The core never waits for space in a queue. If a queue is
/// full, the core gives the order again later, or does without it.
pub(super) struct Workers {
    /// Writes checkpoints, moves values, and drops large objects.
    pub checkpointer: SyncSender<Order>,
    /// Reads entries that are no longer in memory, for followers that lag behind.
    pub catch_up: SyncSender<Fetch>,
    /// Computes the hashes of compactions.
    pub hasher: SyncSender<Job>,
}

impl Workers {
    /// Gives an order to the checkpointer. Returns false if its queue is full or closed.
    pub fn order(&self, order: Order) -> bool {
        self.checkpointer.try_send(order).is_ok()
    }

    /// Orders entries to be read for a follower. Returns the order if the queue is full or closed.
    pub fn fetch(&self, fetch: Fetch) -> Result<(), Fetch> {
        self.catch_up.try_send(fetch).map_err(|error| match error {
            TrySendError::Full(fetch) | TrySendError::Disconnected(fetch) => fetch,
        })
    }
}
