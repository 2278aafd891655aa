//! What the tests of several crates have in common.
//!
//! * [`expect`] compares whole outputs with files.

#![forbid(unsafe_code)]

pub mod expect;
