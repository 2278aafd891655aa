use std::fmt;
use std::io;

use crate::status::Status;

/// Why a load could not be run, or why one of its operations failed.
#[derive(Debug)]
pub enum Error {
    /// No connection could be made.
    Dial(io::Error),
    /// The operating system does not say what the sockets are ready for.
    Poll(io::Error),
    /// A call failed.
    Status(Status),
    /// A call was not answered in time.
    DeadlineExceeded,
    /// The server's answer to a login is no text.
    TokenNotText,
    /// The text of an endpoint cannot be used.
    Endpoint(EndpointError),
    /// A key is too short for its number.
    KeyTooShort {
        /// The number.
        number: i64,
        /// Size of the key, in bytes.
        bytes: usize,
    },
    /// A thread of the load could not be started.
    NoThread(io::Error),
    /// A thread of the load has ended too early.
    ThreadGone,
    /// The calls before the load were not answered in time.
    NotPrepared,
    /// Another thread of the load failed.
    Stopped,
    /// Operations were not answered in time after the load had ended.
    Unanswered {
        /// The number of operations without an answer.
        operations: usize,
        /// The time that their answers were waited for, in seconds.
        seconds: u64,
    },
    /// An operation of a held rate did not begin in time, since all clients waited for answers.
    NotBegun,
    /// The workload's error of an operation.
    Workload(Box<dyn std::error::Error + Send + Sync>),
}

/// An error in the text of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// The scheme is none of `http`, `https`, `unix` and `unixs`.
    UnknownScheme {
        /// The text of the endpoint.
        endpoint: String,
        /// The scheme.
        scheme: String,
    },
    /// The text has neither a host with a port nor the path of a socket.
    NoAddress(String),
    /// The scheme asks for TLS, and there are no settings for it.
    NoTls(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Dial(error) => write!(f, "dial error: {error}"),
            Error::Poll(error) => write!(f, "{error}"),
            Error::Status(status) => f.write_str(&status.text()),
            Error::DeadlineExceeded => f.write_str("context deadline exceeded"),
            Error::TokenNotText => f.write_str("the token is no text"),
            Error::Endpoint(error) => write!(f, "{error}"),
            Error::KeyTooShort { number, bytes } => {
                write!(f, "the key of number {number} needs more than {bytes} bytes: raise --key-size")
            }
            Error::NoThread(error) => write!(f, "no thread: {error}"),
            Error::ThreadGone => f.write_str("a load thread is gone"),
            Error::NotPrepared => {
                f.write_str("the server does not answer what has to be set up before the load")
            }
            Error::Stopped => f.write_str("stopped"),
            Error::Unanswered { operations, seconds } => {
                write!(f, "{operations} operations were not answered within {seconds} s after the load ended")
            }
            Error::NotBegun => f.write_str("not begun: no client was free within the time"),
            Error::Workload(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndpointError::UnknownScheme { endpoint, scheme } => {
                write!(f, "endpoint {endpoint:?}: unknown scheme {scheme:?}; use http, https, unix or unixs")
            }
            EndpointError::NoAddress(endpoint) => {
                write!(f, "endpoint {endpoint:?} has to be HOST:PORT, or a URL of http, https, unix or unixs")
            }
            EndpointError::NoTls(endpoint) => {
                write!(f, "endpoint {endpoint:?} asks for TLS: give --cacert or --insecure-skip-tls-verify")
            }
        }
    }
}

impl std::error::Error for Error {}

impl std::error::Error for EndpointError {}

impl From<EndpointError> for Error {
    fn from(error: EndpointError) -> Error {
        Error::Endpoint(error)
    }
}
