//! Why a member does not start, and why it ended.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::credentials::CredentialError;
use crate::tls::TlsError;
use consistency::corruption::InitialCheckError;
use replica::core::Fatal;
use storage::DataDirError;

/// Why a member does not start.
#[derive(Debug)]
pub enum StartError {
    /// A host that the member should listen at has no address.
    Resolve {
        /// The URL of the flag.
        url: String,
        /// The answer of the resolver; `None` if it gave an empty list.
        error: Option<io::Error>,
    },
    /// The member cannot listen there.
    Listen {
        /// The URL of the flag.
        url: String,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// The data directory cannot be opened.
    DataDir(DataDirError),
    /// A thread cannot be started.
    Thread {
        /// The thread or threads, as a phrase that follows "cannot start".
        what: &'static str,
        /// The answer of the operating system.
        error: io::Error,
    },
    /// The process may have too few files open at once.
    OpenFiles {
        /// The limit.
        limit: usize,
        /// The limit that the member needs at least.
        needed: usize,
    },
    /// The member was told to stop before it was ready.
    Stopped,
    /// The core could not go on before the member was ready.
    Core(Fatal),
    /// The thread of the core has panicked before the member was ready, which is a bug.
    CorePanicked,
    /// The data of the member differs from that of the others, or could not be compared.
    InitialCheck(InitialCheckError),
    /// The tokens of users cannot be made as the options say.
    Credentials(CredentialError),
    /// TLS cannot be set up as the options say.
    Tls(TlsError),
    /// The cluster runs at a version that is newer than the release this member presents.
    TooOld {
        /// The version of the cluster, as this member knows it.
        cluster_version: String,
        /// The release.
        own: &'static str,
    },
    /// The audit log cannot be opened.
    AuditLog {
        /// The file, as given.
        path: PathBuf,
        /// The answer of the operating system.
        error: io::Error,
    },
}

impl From<TlsError> for StartError {
    fn from(error: TlsError) -> StartError {
        StartError::Tls(error)
    }
}

impl From<DataDirError> for StartError {
    fn from(error: DataDirError) -> StartError {
        StartError::DataDir(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Resolve { url, error: Some(error) } => write!(f, "cannot resolve {url}: {error}"),
            StartError::Resolve { url, error: None } => write!(f, "{url} has no address"),
            StartError::Listen { url, error } => {
                write!(f, "cannot listen on {url}: {error}{}", listen_advice(error))
            }
            StartError::DataDir(error) => error.fmt(f),
            StartError::Thread { what, error } => write!(f, "cannot start {what}: {error}"),
            StartError::OpenFiles { limit, needed } => write!(
                f,
                "the limit on open files, {limit}, is too low: this member needs {needed} at least (ulimit -n, \
                 LimitNOFILE)"
            ),
            StartError::Stopped => f.write_str("stopped before the cluster had heard of this member"),
            StartError::Core(fatal) => fatal.fmt(f),
            StartError::CorePanicked => f.write_str(
                "the core's thread panicked before the member was ready, which is a bug: the panic's text is above in \
                 the log or on standard error",
            ),
            StartError::InitialCheck(error) => error.fmt(f),
            StartError::Credentials(error) => error.fmt(f),
            StartError::Tls(error) => error.fmt(f),
            // etcd's words first.
            StartError::TooOld { cluster_version, own } => write!(
                f,
                "invalid downgrade; server version is lower than determined cluster version: the cluster runs at \
                 {cluster_version}, this member at {own} (--api-version); `etcdctl downgrade enable` comes first"
            ),
            StartError::AuditLog { path, error } => {
                write!(f, "cannot open {}, named by --audit-log: {error}", path.display())
            }
        }
    }
}

/// What to do about a socket that cannot be listened at, where the system's answer does not tell it.
fn listen_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        // An error of our own says what is there.
        _ if error.raw_os_error().is_none() => "",
        io::ErrorKind::AddrInUse => "; `ss -ltnp` shows which process listens there",
        io::ErrorKind::AddrNotAvailable => "; `ip address` shows the addresses of this machine",
        _ => "",
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            StartError::Resolve { error, .. } => error.as_ref().map(|error| error as _),
            StartError::Listen { error, .. }
            | StartError::Thread { error, .. }
            | StartError::AuditLog { error, .. } => Some(error),
            StartError::DataDir(error) => error.source(),
            StartError::Core(fatal) => fatal.source(),
            StartError::InitialCheck(error) => error.source(),
            StartError::Credentials(error) => error.source(),
            StartError::Tls(error) => error.source(),
            StartError::OpenFiles { .. }
            | StartError::TooOld { .. }
            | StartError::Stopped
            | StartError::CorePanicked => None,
        }
    }
}

/// Why a member that ran has ended, or what it could not do when it stopped.
#[derive(Debug)]
pub enum EndError {
    /// The core could not go on.
    Core(Fatal),
    /// The thread of the core has panicked, which is a bug.
    CorePanicked,
    /// The file that says how the member was stopped cannot be written.
    CleanShutdown(log::OpenError),
}

impl From<Fatal> for EndError {
    fn from(fatal: Fatal) -> EndError {
        EndError::Core(fatal)
    }
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndError::Core(fatal) => fatal.fmt(f),
            EndError::CorePanicked => f.write_str("the core's thread panicked"),
            EndError::CleanShutdown(error) => error.fmt(f),
        }
    }
}

impl Error for EndError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            EndError::Core(fatal) => fatal.source(),
            EndError::CorePanicked => None,
            EndError::CleanShutdown(error) => error.source(),
        }
    }
}
