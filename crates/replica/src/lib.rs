//! Replicates the state of one cluster member. The crate contains the core (the thread that decides and
//! writes), the state that all threads share with the core, and the queues to and from the core.
//!
//! * [`core`] is the only thread that decides and writes. [`inbox`] has the queues to and from the core,
//!   [`requests`] what goes through them, [`shared`] the state that the core publishes, [`pending`] the open
//!   requests of a shard.
//! * [`long_reads`] registers readers of an old state and keeps compaction from removing the versions that
//!   they need; `attendance` counts the watches of each shard and records up to which revision the watches
//!   were notified.
//! * [`long_work`] is a thread for work of clients that would keep a shard busy.
//! * [`transfer`] sends and receives snapshots; [`received`] is a snapshot that was received completely;
//!   [`other_members`] asks the members of a cluster before this member is one of them; [`cluster_version`]
//!   compares versions; `expiry` keeps the deadlines of leases, which [`renewals`] shares with the shards;
//!   `arrivals` bounds the memory of messages from other members that wait for the core.
//! * [`browsers`] and [`expensive`] decide which client requests are refused: by host and origin, or by
//!   request rate.
//! * [`autopilot`] has what the leader's autopilot is told and what it tells; `core/autopilot.rs` decides.
//! * [`peer_links`] are the connections with the other members: real connections, or those of a simulation.
//!
//! The parts of [`core`] decide, each over its own fields, and are tested without a core: writes
//! (`proposals`, `batching`, `writing`, `apply`, `answers`), reads (`reads`), leases (`leases`), raft
//! (`leadership`, `membership`, `autopilot`, `install`), space (`checkpoints`, `removal`, `segments`, `room`), failures
//! (`alarms`, `parked`).
//!
//! The crate does not know gRPC, watches or HTTP pages. Invariants of `ARCHITECTURE.md` that it keeps: I2
//! (only the core writes the state), I3 (the core answers a write after the sync), I14 (a linearizable read
//! sees every write that was acknowledged before). A turn of the core does a limited amount of work.
//!
//! Start reading with `core/run.rs`: `Core` and its `turn`. Tests: beside the code,
//! `server/tests/it/stepped.rs`.

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod attendance;
pub mod autopilot;
pub mod browsers;
pub mod cluster_version;
pub mod core;
pub mod credentials;
pub mod expensive;
mod expiry;
pub mod fold;
pub mod inbox;
pub mod long_reads;
pub mod long_work;
pub mod observing;
pub mod other_members;
pub mod peer_links;
pub mod pending;
pub mod received;
pub mod renewals;
pub mod requests;
pub mod seat;
pub mod shared;
pub mod stages;
mod sync;
pub mod transfer;
