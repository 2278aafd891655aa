//! How a command of a tool fails.

use std::fmt;

/// The failure of a command: an exit code and, mostly, a text for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process.
    pub code: u8,
    /// Text for standard error; `None` if the command has printed it already.
    pub text: Option<String>,
    /// True if the usage of the command is printed behind the text, by the tools that do so.
    pub shows_usage: bool,
}

impl Failure {
    /// Any failure that has no code of its own.
    pub const ERROR: u8 = 1;
    /// Exit code for a connection that could not be made.
    pub const BAD_CONNECTION: u8 = 2;
    /// Lines on standard input of `txn` and `watch` that cannot be understood.
    pub const INVALID_INPUT: u8 = 3;
    /// A flag with a value that is not supported.
    pub const BAD_FEATURE: u8 = 4;
    /// A stream that ended under a command.
    pub const INTERRUPTED: u8 = 5;
    /// Wrong arguments.
    pub const BAD_ARGS: u8 = 128;

    /// A failure with this code and text.
    pub fn new(code: u8, text: impl fmt::Display) -> Failure {
        Failure { code, text: Some(text.to_string()), shows_usage: false }
    }

    /// Code 1 with this text.
    pub fn error(text: impl fmt::Display) -> Failure {
        Failure::new(Failure::ERROR, text)
    }

    /// Code 1 with this text and the command's usage: what was asked for makes no sense.
    pub fn usage(text: impl fmt::Display) -> Failure {
        Failure { shows_usage: true, ..Failure::error(text) }
    }

    /// Code 128 with this text.
    pub fn bad_args(text: impl fmt::Display) -> Failure {
        Failure::new(Failure::BAD_ARGS, text)
    }

    /// Code 4 with this text.
    pub fn bad_feature(text: impl fmt::Display) -> Failure {
        Failure::new(Failure::BAD_FEATURE, text)
    }

    /// A code alone: the command has printed on standard error what is wrong.
    pub fn said(code: u8) -> Failure {
        Failure { code, text: None, shows_usage: false }
    }
}

/// The text of the failure; empty if there is none.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.as_deref().unwrap_or_default())
    }
}

impl std::error::Error for Failure {}

/// Code 1 with the text that etcd's tools print for a status.
impl From<api::Status> for Failure {
    fn from(status: api::Status) -> Failure {
        Failure::error(status.shown())
    }
}
