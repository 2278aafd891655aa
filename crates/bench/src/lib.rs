//! Puts load on servers with etcd's API, and measures them. It has all commands of etcd's `benchmark`, and
//! further ones.
//!
//! Contents: the workloads of etcd's tool and its reports, word for word ([`loads`], [`report`]); the load
//! generator that runs them ([`loadgen`]); comparisons of several servers, one after the other, with the
//! resources that each server used; and reports as JSON, CSV and an HTML page.
//!
//! The tool does not depend on how the servers work inside. It talks to servers as any client does, and reads
//! `/proc` and metrics.
//!
//! Invariants, and the tests that check them (`tests/it`):
//! * An open schedule begins operations at the given rate whatever the server does, and latency counts from
//!   the time at which an operation was due (`open_loop`).
//! * From the same samples, reports are equal to those of etcd's tool, byte for byte (`reports`, which
//!   compares them with reports recorded from that tool).
//! * Whatever a server sends, the load generator continues or closes the connection, and every call ends
//!   (`engine`).
//! * No flag is accepted and then ignored (`tool`).
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
