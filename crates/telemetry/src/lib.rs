//! Everything that a member reports about itself: its log, its metrics, its clients, and which of their
//! requests were slow.
//!
//! * [`logging`] writes the structured log.
//! * [`metrics`] defines and counts metrics, and renders the response to a scrape.
//! * [`callers`] counts per client address.
//! * [`audit`] writes which client requested what.
//! * [`slow_requests`] keeps the expensive requests, and the clients that sent them.
//! * [`stages`] names the stages of a request, and selects the requests that are measured. [`tracing`] keeps
//!   the spans of calls until they are sent.
//!
//! The crate does not know the server's state, its options or its peers: callers pass in everything that is
//! counted or written.
//!
//! Invariants: names and types of metrics are etcd's; an output that fails never stops the process; counting
//! takes no lock. Start reading with `metrics/table.rs` and [`logging`]. Tests: beside the code, and
//! `tests/it`.

#![forbid(unsafe_code)]

pub mod audit;
pub mod callers;
pub mod heavy_hitters;
pub mod logging;
pub mod metrics;
pub mod slow_requests;
pub mod stages;
pub mod tracing;
