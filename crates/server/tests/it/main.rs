//! Integration tests of the server crate, in one binary.

mod comparison;
mod config;
mod expect;
mod http;
mod logging;
mod metrics;
mod stepped;
