//! Accounting of clients: the memory that they make a member hold, the work of a turn, and the counters of each shard.
//!
//! Everything that holds something for a client charges the account of the client's connection ([`Account`]), from the
//! buffers of a socket to a value that was read from the disk. All accounts share one [`Budget`].
//!
//! What it does not know: sockets, HTTP, what is held and why.
//!
//! Invariants: the charges of an account never exceed what it has reserved in the budget; a [`Held`] or [`Charge`] gives
//! back what it took when it is dropped.
//!
//! Tests: beside the code.

#![forbid(unsafe_code)]

mod budget;
mod counters;

pub use budget::{
    Account, AccountTurn, Budget, CONNECTION_BYTES, Charge, Held, KEY_BYTES, note_work, party, work_left,
};
pub use counters::{MethodCounters, ShardCounters, add};
