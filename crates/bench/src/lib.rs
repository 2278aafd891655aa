//! Loads and measures servers with etcd's API: etcd's `benchmark`, command for command, and more.
//!
//! Contents: the workloads of etcd's tool and their reports, word for word ([`loads`], [`report`]), executed
//! by [`loadgen`]; comparisons of servers in turn, with the resources that each one used; and reports as JSON,
//! CSV and one HTML page.
//!
//! Outside its scope: how the servers work inside. It talks to them as any client does, and reads `/proc` and
//! metrics.
//!
//! Invariants, and the tests that check them (`tests/it`):
//! * an open schedule keeps its rate whatever the server does, and latency counts from when an operation was
//!   due (`open_loop`);
//! * reports of given samples equal those of etcd's tool, byte for byte (`reports`: recorded from it);
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
