//! `etcdctl`: a command-line client of a cluster, with etcd's commands, flags, outputs and exit codes.
//!
//! Structure: one file per family of commands ([`commands`]) with its flags and the functions that run it,
//! and one printer per output format ([`printer`]). The output is equal to that of etcdctl 3.7, byte for
//! byte. In cases where etcdctl crashes, this tool reports an error.
//!
//! Not in this crate: the transport of messages (`client`), the syntax of flags (`cli`), and the contents of
//! snapshot files except their checksum (`utl`).
//!
//! Invariants:
//! * Data goes to standard output, everything else to standard error.
//! * No argument, input or response causes a panic.
//! * A snapshot file gets its final name only once it is complete and synced.
//!
//! Start reading with [`run_in`], `commands/get.rs` and `call.rs`.
//!
//! Tests: `tests/it` compares the whole output of every command and format with that of etcdctl 3.7, against
//! a scripted server, and the requests that each command sends; further tests are beside the code;
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
