use std::fmt;
use std::io;

use crate::loadgen::status::Status;
use rustls::pki_types::pem;

/// Reason why a measurement is not possible or was aborted.
#[derive(Debug)]
pub enum Error {
    /// The load generator reported an error.
    Load(crate::loadgen::Error),
    /// A put that produces events for a watch load failed.
    Put(crate::loadgen::Error),
    /// A put of `watch-latency` failed. It has its own variant, because etcd's tool prints its own message
    /// for it.
    LatencyPut(crate::loadgen::Error),
    /// The server cancelled a watch, with this reason.
    WatchCanceled(String),
    /// The server ended a watch stream.
    WatchEnded(Status),
    /// No event arrived for a minute, although some were expected.
    NoEvent,
    /// An event arrived for a watch that was not created.
    UnknownWatch,
    /// The key index reported an error for the revision of a read.
    Index(mvcc::RevisionError),
    /// A file, a directory or a server could not be used.
    At {
        /// Path, or name of the server.
        place: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The program of a server could not be started.
    Program {
        /// Name of the server.
        name: String,
        /// Path of the program.
        path: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A server did not answer after its start.
    NotReady {
        /// Name of the server.
        name: String,
        /// Error of the last request.
        error: crate::loadgen::Error,
        /// Last lines of the server's output.
        log: String,
    },
    /// The TLS settings cannot be used.
    Tls(TlsError),
    /// The named thread panicked.
    ThreadGone(&'static str),
    /// Operations failed in the load that runs in the background of the measured one. Contains their number.
    BesideFailed(u64),
    /// The events that a watch received are not those of the writes. Contains the difference.
    EventsDiffer(String),
    /// The store has objects of a Kubernetes cluster that this tool has not written.
    NotEmpty {
        /// Number of such objects.
        objects: u64,
    },
    /// The workload would change settings of a server that was not started for the comparison. Other clients
    /// may use that server, so this is refused.
    NotOurs,
}

/// Reason why the TLS settings cannot be used.
#[derive(Debug)]
pub enum TlsError {
    /// Only one of certificate and key was given.
    HalfPair,
    /// The TLS settings of the client are invalid.
    Client(client::TlsError),
    /// The TLS settings of the server are invalid.
    Server(rustls::Error),
    /// The server's certificate and key do not match.
    Pair {
        /// Path of the certificate.
        cert: String,
        /// Path of the key.
        key: String,
        /// Error of the TLS library.
        error: rustls::Error,
    },
    /// A file cannot be read.
    Pem {
        /// Path of the file.
        file: String,
        /// Error of the PEM parser.
        error: pem::Error,
    },
    /// A file contains no certificate. Contains the name of the file.
    NoCertificate(String),
    /// A certificate for a server of the comparison could not be generated.
    Made(rcgen::Error),
}

impl Error {
    /// Returns a function that turns an error of the operating system into an [`Error::At`] for this path or
    /// server.
    pub fn at(place: impl fmt::Display) -> impl Fn(io::Error) -> Error {
        let place = place.to_string();
        move |error| Error::At { place: place.clone(), error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load(error) => write!(f, "{error}"),
            Error::Put(error) => write!(f, "put: {error}"),
            Error::LatencyPut(error) => write!(f, "Failed to Put for watch latency benchmark: {error}"),
            Error::WatchCanceled(reason) => write!(f, "a watch was canceled: {reason}"),
            Error::WatchEnded(status) => write!(f, "a watch stream ended: {}", status.text()),
            Error::NoEvent => f.write_str("no event arrived for a minute"),
            Error::UnknownWatch => f.write_str("an event of a watch that was not created"),
            Error::Index(error) => write!(f, "{error:?}"),
            Error::At { place, error } => write!(f, "{place}: {error}"),
            Error::Program { name, path, error } => write!(f, "{name}: {path}: {error}"),
            Error::NotReady { name, error, log } => write!(f, "{name} did not start: {error}\n{log}"),
            Error::Tls(error) => write!(f, "{error}"),
            Error::ThreadGone(work) => write!(f, "{work} is gone"),
            Error::BesideFailed(operations) => {
                write!(f, "{operations} operations of the background load failed")
            }
            Error::EventsDiffer(difference) => f.write_str(difference),
            Error::NotEmpty { objects } => write!(
                f,
                "the server has {objects} keys below /registry/ that this tool has not written, and the load would \
                 overwrite such keys: use an empty server"
            ),
            Error::NotOurs => {
                f.write_str("this would enable authentication on a server that others may be using")
            }
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::HalfPair => f.write_str("--cert and --key must be given together"),
            TlsError::Client(error) => write!(f, "{error}"),
            TlsError::Server(error) => write!(f, "{error}"),
            TlsError::Pair { cert, key, error } => write!(f, "{cert} and {key}: {error}"),
            TlsError::Pem { file, error } => write!(f, "{file}: {error}"),
            TlsError::NoCertificate(file) => write!(f, "{file}: no certificate in it"),
            TlsError::Made(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}

impl std::error::Error for TlsError {}

impl From<crate::loadgen::Error> for Error {
    fn from(error: crate::loadgen::Error) -> Error {
        Error::Load(error)
    }
}

impl From<crate::loadgen::EndpointError> for Error {
    fn from(error: crate::loadgen::EndpointError) -> Error {
        Error::Load(error.into())
    }
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Error {
        Error::Tls(error)
    }
}

/// Converts an error to a failure with the error's message and exit code 1.
impl From<Error> for cli::Failure {
    fn from(error: Error) -> cli::Failure {
        cli::Failure::error(error)
    }
}
