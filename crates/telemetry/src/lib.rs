//! Everything that a member reports about itself: its log, its metrics, its clients and which of their requests were slow.
//!
//! * [`logging`] writes the structured log.
//! * [`metrics`] names and counts, and renders what a scrape gets.
//! * [`callers`] counts per client address.
//! * [`audit`] writes who asked for what.
//! * [`slow_requests`] keeps the expensive requests, and the clients that sent them.
//! * [`stages`] names the stages of a request, and picks the requests that are measured.
//!
//! What it does not know: the server's state. Others hand in what is to be counted or written.

#![forbid(unsafe_code)]

pub mod audit;
pub mod callers;
pub mod heavy_hitters;
pub mod logging;
pub mod metrics;
pub mod slow_requests;
pub mod stages;
pub mod tracing;
