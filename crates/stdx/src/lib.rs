//! Utilities that the standard library lacks and several crates need: calendar dates, Go's syntax of durations,
//! numbers, quoted strings and sizes, escaping of texts for logs, the first of two futures, futures with a
//! deadline, fair polling of futures, threads that yield to others, seeded randomness, grouping of client
//! addresses by network, free ports for servers.
//!
//! The crate does no IO except testing whether a port is free, reads no clock, has no dependencies, and knows
//! nothing of etcd. Invariant: dates and times are written as Go writes them. Start reading with
//! [`Gathering`], [`Turns`] and [`race()`]. Tests are beside the code.

#![forbid(unsafe_code)]

pub mod calendar;
mod gathering;
pub mod go;
pub mod log_text;
mod network;
mod ports;
mod race;
mod random;
mod turns;

pub use gathering::Gathering;
pub use network::client_network;
pub use ports::unused_port;
pub use race::{First, before, race};
pub use random::Random;
pub use turns::Turns;
