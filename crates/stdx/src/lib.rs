//! What the standard library lacks and several crates need: calendar dates, the first of two futures, seeded randomness.
//!
//! It does no IO, reads no clock, and depends on nothing. Tests are beside the code.

#![forbid(unsafe_code)]

pub mod calendar;
mod race;
mod random;

pub use race::{First, race};
pub use random::Random;
