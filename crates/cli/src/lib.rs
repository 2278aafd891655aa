//! What the command-line tools share: tables of commands and flags, from which parser, help and completion follow; and
//! output in the forms that users of etcd's tools know.
//!
//! What it is: the syntax of etcd's own tools (flags anywhere, `--name=value`, `--name value`, `-w json`), their
//! environment variables, their error texts; box tables; Go's ways of writing durations, quoted strings, sizes and JSON.
//!
//! What it does not know: etcd's API, any command, the network.
//!
//! Invariants: every flag of a table can be asked for by its name and kind, any other asking is a mistake of the program
//! and panics; data goes to standard output, progress only to a terminal on standard error.
//!
//! Tests: `tests/it`, and beside the code.

mod command;
pub mod completion;
pub mod go;
mod help;
pub mod json;
mod matches;
mod parser;
mod progress;
mod table;

pub use command::{Command, Flag, Kind, Program};
pub use matches::Matches;
pub use parser::{Invocation, UsageError};
pub use progress::Progress;
pub use table::Table;
