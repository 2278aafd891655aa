//! Everything that a member reports about itself: its log, its metrics, its clients and which of their requests were slow.
//!
//! * [`logging`] writes the structured log.
//! * [`metrics`] defines and counts metrics, and renders the response to a scrape.
//! * [`callers`] counts per client address.
//! * [`audit`] writes which client requested what.
//! * [`slow_requests`] keeps the expensive requests, and the clients that sent them.
//! * [`stages`] names the stages of a request, and selects the requests that are measured.
//!
//! The crate does not know the server's state: callers pass in everything that is counted or written.

#![forbid(unsafe_code)]

pub mod audit;
pub mod callers;
pub mod heavy_hitters;
pub mod logging;
pub mod metrics;
pub mod slow_requests;
pub mod stages;
pub mod tracing;
