//! A gRPC client that costs as little as it can: many connections, many calls on each, one thread.

pub mod calls;
pub mod connection;
pub mod frame;
pub mod hpack;
pub mod poller;
pub mod socket;
