//! Loads and measures servers of etcd's API: etcd's `benchmark`, command for command, and more.
//!
//! What it is: the workloads of etcd's tool and their reports, word for word ([`loads`], [`report`]), run by `loadgen`;
//! comparisons of servers that take turns, with what each used; and reports as JSON, CSV and one page of HTML.
//!
//! What it does not know: how the servers work. It talks to them as any client does, and reads `/proc` and metrics.
//!
//! Invariants, and the tests that hold them (`tests/it`):
//! * a held rate is held whatever the server does, and latency counts from when an operation was due (`open_loop`);
//! * reports of given samples are those of etcd's tool, byte for byte (`reports`: recorded from it);
//! * whatever a server sends, the engine goes on or gives the connection up, and every call ends (`engine`);
//! * no flag is taken and ignored (`tool`).
//!
//! `docs/bench.md` says how to measure with it.

#![forbid(unsafe_code)]

mod commands;
mod compactor;
mod contests;
mod error;
mod given;
mod go;
mod html;
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
