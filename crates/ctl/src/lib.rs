//! `etcdctl`: a cluster from the command line, with etcd's own commands, flags, outputs and exit codes.
//!
//! What it is: one file per family of commands ([`commands`]) with its flags and the functions that run it, and one printer
//! per output format ([`printer`]). What it prints is what etcdctl 3.7 prints, byte for byte; where that crashes, this says what is wrong.
//!
//! What it does not know: how messages travel (`client`), the syntax of flags (`cli`), and files of snapshots beyond
//! their checksum (`utl`).
//!
//! Invariants:
//! * Data goes to standard output, everything else to standard error.
//! * Nothing that is typed, read or answered makes it panic.
//! * A file of a snapshot has its name only once it is whole and on the disk.
//!
//! Tests: `tests/it`, whole outputs of etcdctl 3.7 for every command and format against a scripted server, with the
//! requests that each sends; beside the code; and `interop/etcdctl_same.py`, both tools against real servers.

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
