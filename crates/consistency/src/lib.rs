//! Checks that all members hold the same data.
//!
//! * [`comparison`] returns this member's hashes to other members, and requests theirs.
//! * [`corruption`] is etcd's check by HashKV; [`divergence`] compares hashes of the state after every entry.
//! * [`monitor`] runs both regularly on the leader, as its [`Options`] say, and checks the versions that the
//!   members run.
//!
//! The crate does not know clients. Its findings go to the core as requests.
//!
//! Invariant: a difference is attributed to the member that etcd would name. Start reading with
//! [`monitor::Monitor::start`], [`divergence::judge`] and [`corruption::check_initially`]. Tests: beside the
//! code, `server/tests/it/comparison.rs`, `mainstay/tests/it/corrupt.rs`.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod corruption;
pub mod divergence;
pub mod monitor;
mod options;

pub use options::Options;
