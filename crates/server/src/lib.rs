//! The member: configuration, the core loop, the services, health and metrics.

pub mod boot;
pub mod config;
pub mod core;
pub mod encode;
pub mod expiry;
pub mod http;
pub mod inbox;
pub mod keeper;
pub mod logging;
pub mod metrics;
pub mod pending;
mod race;
pub mod services;
pub mod shared;
mod side;
pub mod values;
pub mod watch;
