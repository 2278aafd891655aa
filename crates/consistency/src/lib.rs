//! Checks that all members hold the same data.
//!
//! * [`comparison`] returns this member's hashes to others, and asks for theirs.
//! * [`corruption`] is etcd's check by HashKV; [`divergence`] compares hashes of the state after every entry.
//! * [`monitor`] runs both regularly on the leader, and checks the versions that the members run.
//!
//! What it does not know: clients. What it finds goes to the core as a request.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod corruption;
pub mod divergence;
pub mod monitor;
