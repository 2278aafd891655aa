//! Config, core loop, services.

pub mod config;
pub mod logging;
pub mod metrics;
