//! Integration tests of the telemetry crate, in one binary.

mod audit;
mod logging;
mod metrics;
