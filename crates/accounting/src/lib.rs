//! Accounting per client: the memory that a client makes a member hold, the work of a connection's turn, and
//! the counters of each shard.
//!
//! Code that holds data for a client, from a socket buffer to a value read from disk, charges the account of
//! the client's connection ([`Account`]). All accounts share one [`Budget`].
//!
//! This crate does not handle sockets or HTTP, and does not know what the charged data is.
//!
//! Invariants: the charges of an account never exceed what it has reserved in the budget; a [`Held`] or
//! [`Charge`] gives its bytes back when it is dropped; a client that holds much memory does not keep others from
//! their calls.
//!
//! Start reading with [`Budget`] and [`ShardCounters`]. Tests: beside the code.

#![forbid(unsafe_code)]

mod budget;
mod counters;

pub use budget::{
    Account, AccountTurn, Budget, CONNECTION_BYTES, Charge, Held, KEY_BYTES, note_work, party, work_left,
};
pub use counters::{MethodCounters, ShardCounters, add};
