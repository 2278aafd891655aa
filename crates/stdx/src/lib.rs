//! Provides utilities that the standard library lacks and several crates need: calendar dates; Go's syntax of
//! durations, numbers, quoted strings and sizes; escaping of strings for logs; waiting for the first of two
//! futures; futures with a deadline; fair polling of many futures; the decision when a thread yields; threads that repeat a task; random
//! numbers from a seed; the network of a client address; the networks of zones; and free ports for servers.
//!
//! The crate does no I/O except to find a free port, reads no clock, has no dependencies, and knows nothing
//! of etcd. Invariant: dates and times are formatted as Go formats them. Start reading with [`Gathering`],
//! [`Turns`] and [`race()`]. Tests are beside the code.

#![forbid(unsafe_code)]

pub mod calendar;
mod gathering;
pub mod go;
pub mod log_text;
mod network;
mod periodic;
mod ports;
mod race;
mod random;
mod turns;
pub mod zones;

pub use gathering::Gathering;
pub use network::client_network;
pub use periodic::{FirstRun, Periodic};
pub use ports::unused_port;
pub use race::{First, before, race};
pub use random::Random;
pub use turns::Turns;
