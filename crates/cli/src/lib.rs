//! What the command-line tools share: tables of commands and flags, from which parser, help and completion follow; the
//! streams that a tool works with and how it fails; and output in the forms that users of etcd's tools know.
//!
//! What it is: one shape for all tools. A command is one file with its flags (constants of type [`Flag`]), its [`Command`]
//! and the function that runs it; the function reads flags by [`Matches::get`], works with an [`Io`] and returns a
//! [`Failure`]. Further the syntax of etcd's own tools (flags anywhere, `--name=value`, `--name value`, `-w json`), their
//! environment variables, their error texts; box tables; Go's ways of writing durations, quoted strings, sizes and JSON.
//!
//! What it does not know: etcd's API beyond the text of a status, any command, the network.
//!
//! Invariants: reading a flag cannot fail, since the constant that declares the flag also reads it; data goes to standard output, progress only to a terminal on standard error.
//!
//! Tests: `tests/it`, and beside the code.

#![forbid(unsafe_code)]

mod command;
pub mod completion;
mod failure;
pub mod go;
mod help;
mod io;
pub mod json;
pub mod man;
mod matches;
mod parser;
mod progress;
mod table;

pub use command::{Command, Flag, FlagRow, Kind, Program};
pub use failure::Failure;
pub use io::{Input, Io, Output, Printed};
pub use matches::{FlagValue, Matches};
pub use parser::{Invocation, UsageError, did_you_mean, near_names};
pub use progress::Progress;
pub use table::Table;
