//! The member: configuration, the core loop, the services, health and metrics.
//!
//! * [`boot`] goes from a configuration and a data directory to a running member.
//! * [`core`] is the one thread that decides and writes; [`inbox`] is how others reach it, [`shared`] what it
//!   publishes for them.
//! * [`services`] answer calls, one set per shard; [`watch`] is one of them, [`pending`] their questions to the core.
//! * [`values`] reads what is at hand; `readers` are the threads that wait for a disk in place of a shard or the core.
//! * `long_reads` says who reads an old state slice by slice, and what must not be removed for them.
//! * `comparison` tells other members what this one holds, `divergence` and `corruption` compare it on the leader.
//! * `callers` counts per client address, `notable` keeps what was expensive.
//! * [`http`] answers health, version, metrics and what is worth knowing for a diagnosis; [`metrics`] names and counts.
//! * [`stepped`] is the same member without threads, sockets and real time, for simulation; [`clock`] is its time.
//! * [`config`] and [`logging`] are what they say.
//!
//! Invariants: I2 (only the core writes), I3 (it answers after the sync), I8 (`watch`), I9 (limits answer with etcd's
//! errors). Tests: beside the code, `tests/it`, and end to end in the `mainstay` crate.

mod arrivals;
mod assembly;
mod attendance;
pub mod boot;
pub mod comparison;
pub mod core;
pub mod corruption;
pub mod divergence;
mod encode;
mod expiry;
mod fold;
mod forwarding;
pub mod http;
pub mod inbox;
pub mod joining;
mod long_reads;
mod memory;
mod monitor;
pub mod peer_links;
mod peering;
pub mod pending;
pub mod services;
pub mod shared;
pub mod stepped;
mod sync;
mod transfer;
pub mod watch;
