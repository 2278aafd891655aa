//! One member of the cluster as a replica: the core thread, what all threads share with it, and the ways to it.
//!
//! * [`core`] is the one thread that decides and writes. [`inbox`] has the queues to and from it, [`shared`] the state that it
//!   publishes, [`pending`] the open requests of a shard.
//! * [`long_reads`] registers readers of an old state, and what must not be removed for them; `attendance` knows which
//!   shards serve watches, and what these were told.
//! * [`transfer`] sends and receives whole states; [`joining`] determines the identity of a member without data; `expiry` keeps
//!   the deadlines of leases, which [`renewals`] shares with the shards; `arrivals` bounds messages of other members that wait for
//!   the core.
//! * [`browsers`] and [`expensive`] say which requests of clients are refused: by host and origin, and by how many there are.
//! * [`peer_links`] are the connections with the other members: real ones, or those of a simulation.
//!
//! What it does not know: gRPC, watches, HTTP pages. Invariants: I2 (only the core writes), I3 (it answers after the sync).

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod attendance;
pub mod browsers;
pub mod core;
pub mod credentials;
pub mod expensive;
mod expiry;
pub mod fold;
pub mod inbox;
pub mod joining;
pub mod long_reads;
pub mod peer_answer;
pub mod peer_links;
pub mod pending;
pub mod renewals;
pub mod seat;
pub mod shared;
pub mod stages;
mod sync;
pub mod transfer;
