//! `etcdctl`: a command-line client of a cluster, with etcd's commands, flags, outputs and exit codes.
//!
//! Structure: one file per family of commands ([`commands`]) with its flags and the functions that run it,
//! and one printer per output format ([`printer`]). The output equals that of etcdctl 3.7, byte for byte;
//! where etcdctl crashes, this tool reports an error.
//!
//! The crate does not handle the transport of messages (`client`), the syntax of flags (`cli`), or snapshot
//! files beyond their checksum (`utl`).
//!
//! Invariants:
//! * Data goes to standard output, everything else to standard error.
//! * No argument, input or response causes a panic.
//! * A snapshot file gets its final name only once it is complete and synced.
//!
//! Start reading with [`run_in`], `commands/get.rs` and `call.rs`.
//!
//! Tests: `tests/it`, whole outputs of etcdctl 3.7 for every command and format against a scripted server,
//! with the requests that each sends; beside the code; and `interop/etcdctl_same.py`, both tools against real
//! servers.

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
