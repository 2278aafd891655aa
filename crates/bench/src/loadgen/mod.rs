//! Load generator for gRPC that uses only a fraction of the resources that the measured server uses.
//!
//! Contents: a gRPC client without IO ([`connection`], based on the crate `http2`); many such clients over
//! non-blocking sockets in one thread ([`calls`], [`socket`], [`poller`]); schedules that do not hide stalls
//! of the server ([`drive`]), and the measurements ([`samples`], [`histogram`]); single calls around a load
//! ([`ask`]); hand-written protobuf for the few messages of a load ([`wire`]); and a server that answers
//! every request at once without doing any work ([`responder`]), as the baseline.
//!
//! Outside of its scope: the workloads, reports and commands of the rest of the crate, and how the servers
//! work.
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
