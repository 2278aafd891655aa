//! Integration tests of the config crate, in one binary.

mod config_file;
mod options;
