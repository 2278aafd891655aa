//! The member: configuration, the core loop, the services, health and metrics.

pub mod config;
pub mod core;
pub mod encode;
pub mod expiry;
pub mod inbox;
pub mod logging;
pub mod metrics;
pub mod pending;
pub mod shared;
pub mod values;
pub mod watch;
