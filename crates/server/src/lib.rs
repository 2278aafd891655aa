//! The member: configuration, the core loop, the services, health and metrics.
//!
//! * [`boot`] goes from a configuration and a data directory to a running member.
//! * [`core`] is the one thread that decides and writes; [`inbox`] is how others reach it, [`shared`] what it
//!   publishes for them.
//! * [`services`] answer calls, one set per shard; [`watch`] is one of them, [`pending`] their questions to the core.
//! * [`values`] reads what is at hand; `readers` are the threads that wait for a disk in place of a shard or the core.
//! * [`keeper`] writes checkpoints and finds values that have to move.
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
mod block_on;
pub mod boot;
mod catch_up;
mod compaction_hash;
pub mod comparison;
pub mod core;
pub mod corruption;
mod crc_combine;
pub mod divergence;
mod encode;
pub mod etcd_database;
mod evidence;
mod expiry;
mod fold;
mod forwarding;
pub mod http;
pub mod inbox;
pub mod joining;
pub mod keeper;
mod kv_hash;
mod long_reads;
mod memory;
mod monitor;
mod open;
pub mod peer_links;
mod peering;
pub mod pending;
mod readers;
pub mod restoration;
pub mod services;
pub mod shared;
pub mod stepped;
pub mod stopped;
mod sync;
mod terms;
mod transfer;
pub mod values;
pub mod watch;
