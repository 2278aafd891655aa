//! Defines [`Failure`], the error type of all commands.

use std::fmt;

/// Failure of a command: the exit code of the process and, usually, a message for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process.
    pub code: u8,
    /// Message for standard error; `None` if the command has printed it already.
    pub text: Option<String>,
    /// True if the tool should print the command's usage after the message.
    pub shows_usage: bool,
}

impl Failure {
    /// Exit code of a failure that has no specific code.
    pub const ERROR: u8 = 1;
    /// Exit code if a connection could not be made.
    pub const BAD_CONNECTION: u8 = 2;
    /// Exit code if `txn` or `watch` cannot parse a line of standard input.
    pub const INVALID_INPUT: u8 = 3;
    /// Exit code if a flag has an unsupported value.
    pub const BAD_FEATURE: u8 = 4;
    /// Exit code if a stream ended while a command was using it.
    pub const INTERRUPTED: u8 = 5;
    /// Exit code for invalid arguments.
    pub const BAD_ARGS: u8 = 128;

    /// Returns a failure with this code and message.
    pub fn new(code: u8, text: impl fmt::Display) -> Failure {
        Failure { code, text: Some(text.to_string()), shows_usage: false }
    }

    /// Returns a failure with code 1 and this text.
    pub fn error(text: impl fmt::Display) -> Failure {
        Failure::new(Failure::ERROR, text)
    }

    /// Returns a failure with code 1 and this message, after which the tool prints the command's usage. For
    /// arguments that contradict each other.
    pub fn usage(text: impl fmt::Display) -> Failure {
        Failure { shows_usage: true, ..Failure::error(text) }
    }

    /// Returns a failure with code 128 and this message, for invalid arguments.
    pub fn bad_args(text: impl fmt::Display) -> Failure {
        Failure::new(Failure::BAD_ARGS, text)
    }

    /// Returns a failure with code 4 and this message, for an unsupported value of a flag.
    pub fn bad_feature(text: impl fmt::Display) -> Failure {
        Failure::new(Failure::BAD_FEATURE, text)
    }

    /// Returns a failure with this code and no message, for a command that has printed the error itself.
    pub fn said(code: u8) -> Failure {
        Failure { code, text: None, shows_usage: false }
    }
}

/// Displays the message of the failure; displays nothing if the command has printed the message already.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.as_deref().unwrap_or_default())
    }
}

impl std::error::Error for Failure {}

/// Converts a gRPC status to a failure with code 1 and the message that etcd's tools print for this status.
impl From<api::Status> for Failure {
    fn from(status: api::Status) -> Failure {
        Failure::error(status.shown())
    }
}
