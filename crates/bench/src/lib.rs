//! Loads and measures servers with etcd's API. It has all commands of etcd's `benchmark`, and more.
//!
//! Contents: the workloads of etcd's tool and its reports, word for word ([`loads`], [`report`]), which
//! [`loadgen`] runs; comparisons of several servers in turn, with the resources that each server used; and
//! reports as JSON, CSV and one HTML page.
//!
//! Outside of its scope: how the servers work inside. The tool talks to servers as any client does, and reads
//! `/proc` and metrics.
//!
//! Invariants, and the tests that check them (`tests/it`):
//! * an open schedule begins operations at the given rate whatever the server does, and latency counts from
//!   the time at which an operation was due (`open_loop`);
//! * from the same samples, reports equal those of etcd's tool, byte for byte (`reports`, with reports
//!   recorded from that tool);
//! * whatever a server sends, the engine continues or closes the connection, and every call ends (`engine`);
//! * no flag is accepted and then ignored (`tool`).
//!
//! Start reading with [`run_in`], [`loads`] and `contests.rs`. `docs/bench.md` explains how to measure.

#![forbid(unsafe_code)]

mod commands;
mod compactor;
mod contests;
mod error;
mod given;
mod go;
mod html;
pub mod loadgen;
pub mod loads;
mod machine;
pub mod outcome;
mod render;
pub mod report;
pub mod servers;
mod session;
pub mod tls;
mod usage;
mod watcher;

pub use commands::PROGRAM;
pub use error::{Error, TlsError};
pub use session::{run, run_in};
