//! What the standard library lacks and several crates need: calendar dates, texts as logs show them, the first of two futures, futures
//! that end at a time, futures that are polled by turns, threads that let others go first, seeded randomness, whose address is whose, ports
//! for servers.
//!
//! It does no IO but looking whether a port is free, reads no clock, and depends on nothing. Tests are beside the code.

#![forbid(unsafe_code)]

pub mod calendar;
mod gathering;
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
