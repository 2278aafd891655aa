//! Code shared by the command-line tools: tables of commands and flags, from which parser, help and
//! completion are derived; the streams of a tool and its failures; and output in the formats of etcd's tools.
//!
//! All tools have the same structure. A command is one file with its flags (constants of type [`Flag`]), its
//! [`Command`] and the function that runs it; the function reads flags with [`Matches::get`], uses an [`Io`]
//! and returns a [`Failure`]. The crate also contains the command-line syntax of etcd's own tools (flags
//! anywhere, `--name=value`, `--name value`, `-w json`), their environment variables and error texts, their
//! tables in boxes, and Go's JSON. It re-exports [`stdx::go`] for Go's formats of durations, quoted strings
//! and sizes.
//!
//! The server's table of flags (crate `config`) is built from the same [`Flag`] and [`Value`], with its own
//! row type, syntax and error texts.
//!
//! The crate does not know etcd's API, except URLs and the text of a status, nor any command or the network.
//!
//! Invariants: reading a flag cannot fail, since the constant that declares the flag also reads it; data goes
//! to standard output, and progress is written to standard error only if it is a terminal.
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
