//! What the tests of several crates have in common.
//!
//! * [`expect`] compares whole outputs with files.

pub mod expect;
