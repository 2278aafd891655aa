//! Checks that all members have the same data, and raises the CORRUPT alarm if they do not.
//!
//! * [`comparison`] computes the hashes of this member for other members, and requests their hashes.
//! * [`corruption`] makes etcd's checks, which compare hashes of all data (HashKV). [`divergence`] compares
//!   hashes of the state after each of the last entries.
//! * [`monitor`] makes both kinds of checks regularly on the leader, at the intervals in the [`Options`]. It
//!   also checks which versions the members run.
//! * [`reports`] asks the members what the leader's autopilot wants to know about them.
//!
//! The crate does not communicate with clients. It sends its findings as requests to the core of the member,
//! which raises the alarm.
//!
//! Invariant: in etcd's checks, the alarm names the member that etcd would name. Start reading with
//! [`monitor::Monitor::start`], [`divergence::judge`] and [`corruption::check_initially`]. Tests: beside the
//! code, `server/tests/it/comparison.rs`, `mainstay/tests/it/corrupt.rs`.

#![forbid(unsafe_code)]

pub mod comparison;
pub mod corruption;
pub mod divergence;
pub mod monitor;
mod options;

pub mod reports;

pub use options::Options;
