use std::fmt;

/// How a command ends when it does not end well: an exit code and, mostly, a text for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process.
    pub code: u8,
    /// What is printed behind `Error: `; `None` when the command has said it already.
    pub text: Option<String>,
}

impl Failure {
    /// Any failure that has no code of its own.
    pub const ERROR: u8 = 1;
    /// No connection.
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
    pub fn new(code: u8, text: impl Into<String>) -> Failure {
        Failure { code, text: Some(text.into()) }
    }

    /// Code 1 with this text.
    pub fn error(text: impl Into<String>) -> Failure {
        Failure::new(Failure::ERROR, text)
    }

    /// Code 128 with this text.
    pub fn bad_args(text: impl Into<String>) -> Failure {
        Failure::new(Failure::BAD_ARGS, text)
    }

    /// Code 4 with this text.
    pub fn bad_feature(text: impl Into<String>) -> Failure {
        Failure::new(Failure::BAD_FEATURE, text)
    }

    /// A code alone: the command has said on standard error what is wrong.
    pub fn said(code: u8) -> Failure {
        Failure { code, text: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "Error: {text}"),
            None => write!(f, "exit code {}", self.code),
        }
    }
}

impl From<api::Status> for Failure {
    fn from(status: api::Status) -> Failure {
        Failure::error(client::shown(&status))
    }
}
