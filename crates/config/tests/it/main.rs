//! Integration tests of the config crate, in one binary.

mod options;
