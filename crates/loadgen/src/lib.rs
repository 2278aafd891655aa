//! A load generator for gRPC that costs a fraction of what it measures.
//!
//! What it is: a gRPC client that does no IO ([`connection`], on the crate `http2`), many of them over non-blocking
//! sockets in one thread ([`calls`], [`socket`], [`poller`]); schedules that do not hide stalls ([`drive`]) and what they
//! measure ([`samples`], [`histogram`]); single calls around a load ([`ask`]); protobuf by hand for the few messages a load is
//! made of ([`wire`]); and a server that answers every request at once and does nothing ([`responder`]), as the baseline.
//!
//! What it does not know: the workloads, reports and commands of `bench`; how the servers work.
//!
//! Invariants:
//! * A held rate is held whatever the server does, and latency counts from when an operation was due (`bench`'s test
//!   `open_loop`).
//! * Whatever a server sends, the client goes on or gives the connection up, and every call ends (`bench`'s test `engine`).
//!
//! Unsafe code: [`poller`] (epoll, a timer) and one socket option in [`socket`].

pub mod ask;
pub mod calls;
pub mod connection;
pub mod drive;
mod error;
pub mod histogram;
pub mod poller;
pub mod responder;
pub mod samples;
pub mod socket;
pub mod status;
pub mod wire;

pub use error::{EndpointError, Error};
