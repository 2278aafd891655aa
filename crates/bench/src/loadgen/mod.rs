//! Generates load on gRPC servers, with only a fraction of the CPU time that the measured server needs for
//! it.
//!
//! Contents: a gRPC client without IO ([`connection`], based on the crate `http2`); many such clients over
//! non-blocking sockets in one thread ([`calls`], [`socket`], [`poller`]); schedules that reveal stalls of
//! the server ([`drive`]); measurements ([`samples`], [`histogram`]); single calls before and after a load
//! ([`ask`]); hand-written protobuf for the few messages of a load ([`wire`]); and, as a baseline, a server
//! that answers every request without doing any work ([`responder`]).
//!
//! This module does not know the workloads, reports and commands of the rest of the crate, nor how the
//! servers work.
//!
//! Invariants:
//! * An open schedule begins operations at the given rate whatever the server does, and latency counts from
//!   the time at which an operation was due (test `open_loop`).
//! * Whatever a server sends, the client continues or closes the connection, and every call ends (test
//!   `engine`).
//!
//! Start reading with [`connection`] and [`drive`]. Tests: beside the code, and `tests/it`.

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
