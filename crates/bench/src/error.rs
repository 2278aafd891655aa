use std::fmt;
use std::io;

use loadgen::status::Status;
use rustls::pki_types::pem;

/// Why a measurement was not made.
#[derive(Debug)]
pub enum Error {
    /// The load failed.
    Load(loadgen::Error),
    /// A put that a load of watches needs failed.
    Put(loadgen::Error),
    /// As [`Error::Put`], of `watch-latency`, which has a text of its own in etcd's tool.
    LatencyPut(loadgen::Error),
    /// The server canceled a watch, for this reason.
    WatchCanceled(String),
    /// The server ended a stream of watches.
    WatchEnded(Status),
    /// No event came for a minute.
    NoEvent,
    /// An event of a watch that was not created.
    UnknownWatch,
    /// The index refused a range.
    Index(mvcc::RevisionError),
    /// A file, a directory or a server could not be used.
    At {
        /// The path, or the server's name.
        place: String,
        /// Why.
        error: io::Error,
    },
    /// The program of a server could not be started.
    Program {
        /// The server's name.
        name: String,
        /// Path of the program.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// A server did not answer after it was started.
    NotReady {
        /// The server's name.
        name: String,
        /// Why the last attempt to ask it failed.
        error: loadgen::Error,
        /// The last lines that it printed.
        log: String,
    },
    /// Settings for TLS cannot be used.
    Tls(TlsError),
    /// The thread with this work ended too early.
    ThreadGone(&'static str),
    /// So many operations of the load beside the measured one failed.
    BesideFailed(u64),
    /// The workload would change the settings of a server that others may use.
    NotOurs,
}

/// Why settings for TLS cannot be used.
#[derive(Debug)]
pub enum TlsError {
    /// Only one of certificate and key is given.
    HalfPair,
    /// The settings of a client.
    Client(client::TlsError),
    /// The settings of a server.
    Server(rustls::Error),
    /// The certificate and the key of a server do not fit.
    Pair {
        /// Path of the certificate.
        cert: String,
        /// Path of the key.
        key: String,
        /// Why.
        error: rustls::Error,
    },
    /// A file cannot be read.
    Pem {
        /// The path of that file.
        file: String,
        /// Why.
        error: pem::Error,
    },
    /// A file with no certificate.
    NoCertificate(String),
    /// No certificate could be made.
    Made(rcgen::Error),
}

impl Error {
    /// An error of the operating system about this path or server.
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
            Error::NoEvent => f.write_str("no event came for a minute"),
            Error::UnknownWatch => f.write_str("an event of a watch that nobody asked for"),
            Error::Index(error) => write!(f, "{error:?}"),
            Error::At { place, error } => write!(f, "{place}: {error}"),
            Error::Program { name, path, error } => write!(f, "{name}: {path}: {error}"),
            Error::NotReady { name, error, log } => write!(f, "{name} did not start: {error}\n{log}"),
            Error::Tls(error) => write!(f, "{error}"),
            Error::ThreadGone(work) => write!(f, "{work} is gone"),
            Error::BesideFailed(operations) => {
                write!(f, "{operations} operations of the load beside failed")
            }
            Error::NotOurs => {
                f.write_str("authentication would have to be enabled on a server that others may use")
            }
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::HalfPair => f.write_str("--cert and --key have to be given together"),
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

impl From<loadgen::Error> for Error {
    fn from(error: loadgen::Error) -> Error {
        Error::Load(error)
    }
}

impl From<loadgen::EndpointError> for Error {
    fn from(error: loadgen::EndpointError) -> Error {
        Error::Load(error.into())
    }
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Error {
        Error::Tls(error)
    }
}

/// Code 1 with the text of the error.
impl From<Error> for cli::Failure {
    fn from(error: Error) -> cli::Failure {
        cli::Failure::error(error)
    }
}
