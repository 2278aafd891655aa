//! Limits the memory and the work that clients cause: counts the bytes that the server holds for each
//! connection, and the work that a thread does for one connection before it serves others. Also contains the
//! counters of each shard (a thread that serves connections).
//!
//! Code that holds data for a client, from a socket buffer to a value read from disk, counts the bytes in the
//! [`Account`] of the client's connection. All accounts together share one memory limit, the [`Budget`].
//!
//! This crate does not handle sockets or HTTP, and does not know what the counted data is.
//!
//! Invariants: the bytes counted in an account never exceed the bytes that it has reserved from the budget; a
//! [`Held`] or a [`Charge`] gives its bytes back when it is dropped; a client for which the server holds much
//! memory does not prevent calls of other clients.
//!
//! Start reading with [`Budget`] and [`ShardCounters`]. Tests: beside the code.

#![forbid(unsafe_code)]

mod budget;
mod counters;

pub use budget::{
    Account, AccountTurn, Budget, CONNECTION_BYTES, Charge, Held, KEY_BYTES, note_work, party, work_left,
};
pub use counters::{MethodCounters, ShardCounters, TrafficCounters, add};
