//! `etcdctl`: a command-line client of a cluster, with etcd's commands, flags, outputs and exit codes.
//!
//! Each family of commands has one file in [`commands`], with its flags and the functions that run it. Each
//! output format has one printer in [`printer`]. The output is byte for byte that of etcdctl 3.7; where
//! etcdctl crashes, this tool reports an error.
//!
//! Other crates send the requests (`client`), parse flags (`cli`), and read snapshot files (`utl`). This
//! crate knows only the checksum of a snapshot file.
//!
//! Invariants:
//! * Results go to standard output, all other messages to standard error.
//! * No argument, input or response causes a panic.
//! * A snapshot file gets its final name only once it is complete and synced.
//!
//! Start reading with [`run_in`], `commands/get.rs` and `call.rs`.
//!
//! Tests: `tests/it` runs every command in every format against a scripted server, and compares the requests
//! and the whole output with those of etcdctl 3.7. Further tests are beside the code.
//! `interop/etcdctl_same.py` runs both tools against real servers.

mod call;
pub mod commands;
mod comparison;
mod globals;
mod load;
mod metrics;
mod numbers;
mod password;
pub mod printer;
mod process;
mod program;
mod ranges;
mod tool;
mod unquote;
mod words;

pub use process::Interruption;
pub use tool::{run, run_in};
