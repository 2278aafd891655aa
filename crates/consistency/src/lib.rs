//! Whether all members hold the same.
//!
//! * [`comparison`] tells other members what this one holds, and asks them.
//! * [`corruption`] is etcd's check by HashKV; [`divergence`] compares hashes of the state after every entry.
//! * [`monitor`] has the leader look at both now and then, and at the versions that the members run.
//!
//! What it does not know: clients. What it finds goes to the core as a request.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod corruption;
pub mod divergence;
pub mod monitor;
