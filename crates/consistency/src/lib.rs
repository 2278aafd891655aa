//! Checks that all members hold the same data.
//!
//! * [`comparison`] computes the hashes of this member for other members, and requests their hashes.
//! * [`corruption`] is etcd's check by HashKV; [`divergence`] compares hashes of the state after each entry.
//! * [`monitor`] runs both checks regularly on the leader, as its [`Options`] say. It also checks the
//!   versions that the members run.
//!
//! The crate has no contact with clients. It sends its findings to the core, as requests.
//!
//! Invariant: the member that is blamed for a difference is the one that etcd would name. Start reading with
//! [`monitor::Monitor::start`], [`divergence::judge`] and [`corruption::check_initially`]. Tests: beside the
//! code, `server/tests/it/comparison.rs`, `mainstay/tests/it/corrupt.rs`.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod corruption;
pub mod divergence;
pub mod monitor;
mod options;

pub use options::Options;
