//! Integration tests of the server crate, in one binary.

mod comparison;
mod http;
mod stepped;
