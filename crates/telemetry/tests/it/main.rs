//! Integration tests of the telemetry crate, in one binary.

mod logging;
mod metrics;
