use std::fmt;
use std::io;

use crate::loadgen::status::Status;

/// Reason why a load or one of its operations has failed.
#[derive(Debug)]
pub enum Error {
    /// No connection could be made.
    Dial(io::Error),
    /// The operating system failed to wait for the sockets.
    Poll(io::Error),
    /// A call ended with this status.
    Status(Status),
    /// A call was not answered in time.
    DeadlineExceeded,
    /// The token in the server's login response is not valid UTF-8.
    TokenNotText,
    /// The text of an endpoint is not valid.
    Endpoint(EndpointError),
    /// A key has too few bytes for its number.
    KeyTooShort {
        /// Number that must be written into the key.
        number: i64,
        /// Size of the key, in bytes.
        bytes: usize,
    },
    /// A thread could not be started.
    NoThread(io::Error),
    /// A thread panicked.
    ThreadGone,
    /// The requests that prepare the clients were not answered in time.
    NotPrepared,
    /// The run was stopped, because another thread of the load has failed.
    Stopped,
    /// Some operations had no response within the time limit after the last operation had begun.
    Unanswered {
        /// Number of operations without a response.
        operations: usize,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// An operation with a fixed time did not begin, because all clients were still waiting for responses at
    /// the end of the time limit.
    NotBegun,
    /// Error that the workload has found in a response.
    Workload(Box<dyn std::error::Error + Send + Sync>),
}

/// Reason why the text of an endpoint is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// The scheme is none of `http`, `https`, `unix` and `unixs`.
    UnknownScheme {
        /// Text of the endpoint.
        endpoint: String,
        /// Unknown scheme.
        scheme: String,
    },
    /// The text contains neither a host with a port nor the path of a socket.
    NoAddress(String),
    /// The scheme requires TLS, but there are no TLS settings. Contains the text of the endpoint.
    NoTls(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Dial(error) => write!(f, "dial error: {error}"),
            Error::Poll(error) => write!(f, "{error}"),
            Error::Status(status) => f.write_str(&status.text()),
            Error::DeadlineExceeded => f.write_str("context deadline exceeded"),
            Error::TokenNotText => f.write_str("the token is not text"),
            Error::Endpoint(error) => write!(f, "{error}"),
            Error::KeyTooShort { number, bytes } => {
                write!(f, "the key of number {number} needs more than {bytes} bytes: raise --key-size")
            }
            Error::NoThread(error) => write!(f, "no thread: {error}"),
            Error::ThreadGone => f.write_str("a load thread is gone"),
            Error::NotPrepared => {
                f.write_str("the server does not answer the requests that prepare the load")
            }
            Error::Stopped => f.write_str("stopped"),
            Error::Unanswered { operations, seconds } => {
                write!(f, "{operations} operations were not answered within {seconds} s after the load ended")
            }
            Error::NotBegun => f.write_str("not started: no client was free in time"),
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
                write!(f, "endpoint {endpoint:?} must be HOST:PORT, or a URL of http, https, unix or unixs")
            }
            EndpointError::NoTls(endpoint) => {
                write!(f, "endpoint {endpoint:?} requires TLS: give --cacert or --insecure-skip-tls-verify")
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
