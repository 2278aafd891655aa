//! One member of the cluster as a replica: the core thread, what all threads share with it, and the ways to it.
//!
//! * [`core`] is the one thread that decides and writes. [`inbox`] is how others reach it, [`shared`] what it publishes for
//!   them, [`pending`] the open requests of a shard.
//! * [`long_reads`] says who reads an old state slice by slice, and what must not be removed for them; `attendance` which
//!   shards serve watches, and what these were told.
//! * [`transfer`] sends and receives whole states; [`joining`] finds out who a member without data is; `expiry` knows when
//!   leases end; `arrivals` bounds what other members have sent and the core has not taken.
//! * [`peer_links`] are the ways to the other members: real ones, or those of a simulation.
//!
//! What it does not know: gRPC, watches, HTTP pages. Invariants: I2 (only the core writes), I3 (it answers after the sync).

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod attendance;
pub mod core;
mod expiry;
pub mod fold;
pub mod inbox;
pub mod joining;
pub mod long_reads;
pub mod peer_answer;
pub mod peer_links;
pub mod pending;
pub mod shared;
mod sync;
pub mod transfer;
