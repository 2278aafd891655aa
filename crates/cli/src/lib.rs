//! Framework for the command-line tools of Mainstay. A tool declares its commands and flags in tables, from
//! which the parser, help texts, completion scripts and manual pages are derived. The crate also has the
//! streams and the error type of commands, and prints output in the formats of etcd's tools.
//!
//! All tools have the same structure. A command is one file with its flags (constants of type [`Flag`]), its
//! [`Command`] and the function that runs it; the function reads flags with [`Matches::get`], uses an [`Io`]
//! and returns a [`Failure`]. Syntax, environment variables, error messages and output are those of etcd's
//! tools: flags may be anywhere (`--name=value`, `--name value`, `-w json`), tables are printed in boxes, and
//! JSON is encoded as in Go. The crate re-exports [`stdx::go`] for Go's formats of durations, quoted strings
//! and sizes.
//!
//! The server's table of flags (crate `config`) is built from the same [`Flag`] and [`Value`], with its own
//! row type, syntax and error messages.
//!
//! The crate contains no commands, does not use the network, and knows only two things of etcd's API: URLs
//! and the message of a status.
//!
//! Invariants: reading a flag cannot fail, since the same constant declares the flag and reads it. Results go
//! to standard output. Progress is shown only if standard error is a terminal.
//!
//! Start reading with [`Program`], [`Command`] and [`Flag`]. Tests: `tests/it`, and beside the code.

#![forbid(unsafe_code)]

mod command;
pub mod completion;
mod failure;
mod flag;
mod help;
mod io;
pub mod json;
pub mod man;
mod matches;
mod parser;
mod progress;
mod run;
mod table;
mod value;

pub use command::{Command, Program};
pub use failure::Failure;
pub use flag::{Flag, FlagRow, Kind};
pub use io::{Input, Io, Output, Printed};
pub use matches::Matches;
pub use parser::{Invocation, UsageError, did_you_mean, near_names};
pub use progress::Progress;
pub use stdx::go;
pub use table::Table;
pub use value::{FlagValue, Nanoseconds, Value};
