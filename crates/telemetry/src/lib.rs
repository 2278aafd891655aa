//! Collects and publishes what a member reports about itself: its log, its metrics, its audit log, traces,
//! and which clients and requests load it.
//!
//! * [`logging`] writes the structured log.
//! * [`metrics`] defines and counts metrics, and renders the response to a scrape.
//! * [`callers`] counts connections, requests, watches and leases per client address.
//! * [`audit`] writes the audit log: which client requested what.
//! * [`slow_requests`] keeps the most recent slow or expensive requests, with the clients that sent them.
//! * [`heavy_hitters`] estimates which keys, users and clients cause the most load.
//! * [`stages`] names the stages of a request, and selects the requests whose stages are measured.
//! * [`tracing`] keeps the spans of traced calls until they are sent.
//!
//! The crate does not know the server's state, its options or its peers: callers pass in everything that is
//! to be counted or written.
//!
//! Invariants: the names and types of etcd's metrics are kept. An output that fails never stops the process.
//! Updating a metric takes no lock. Start reading with `metrics/table.rs` and [`logging`]. Tests: beside the
//! code, and in `tests/it`.

#![forbid(unsafe_code)]

pub mod audit;
pub mod callers;
pub mod heavy_hitters;
pub mod logging;
pub mod metrics;
pub mod slow_requests;
pub mod stages;
pub mod tracing;
