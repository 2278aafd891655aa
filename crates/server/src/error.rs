//! Defines the errors with which a member fails to start, and those with which a running member ends.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::credentials::CredentialError;
use crate::tls::TlsError;
use consistency::corruption::InitialCheckError;
use replica::core::Fatal;
use storage::DataDirError;

/// Reason why a member does not start.
#[derive(Debug)]
pub enum StartError {
    /// The host name of a listen URL has no address.
    Resolve {
        /// URL given in the flag.
        url: String,
        /// Error of the resolver; `None` if the resolver returned an empty list.
        error: Option<io::Error>,
    },
    /// The member cannot listen at a URL.
    Listen {
        /// URL given in the flag.
        url: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The data directory cannot be opened.
    DataDir(DataDirError),
    /// A thread cannot be started.
    Thread {
        /// Name of the thread or threads, as a phrase that follows "cannot start".
        what: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The limit on the files that the process may have open is too low.
    OpenFiles {
        /// Limit of open files of the process.
        limit: usize,
        /// Least limit that the member needs.
        needed: usize,
    },
    /// The member was told to stop before it was ready.
    Stopped,
    /// The core failed before the member was ready.
    Core(Fatal),
    /// The thread of the core panicked before the member was ready, which is a bug.
    CorePanicked,
    /// The data of the member differs from that of the other members, or could not be compared with theirs.
    InitialCheck(InitialCheckError),
    /// The tokens of users cannot be made as the options require.
    Credentials(CredentialError),
    /// TLS cannot be set up as the options require.
    Tls(TlsError),
    /// The cluster's version is newer than the release that this member presents.
    TooOld {
        /// Version of the cluster, as this member knows it.
        cluster_version: String,
        /// Release that this member presents.
        own: &'static str,
    },
    /// The audit log cannot be opened.
    AuditLog {
        /// Path of the file, as given in the option.
        path: PathBuf,
        /// Error of the operating system.
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
            StartError::Resolve { url, error: None } => write!(f, "{url} does not resolve to any address"),
            StartError::Listen { url, error } => {
                write!(f, "cannot listen on {url}: {error}{}", listen_advice(error))
            }
            StartError::DataDir(error) => error.fmt(f),
            StartError::Thread { what, error } => write!(f, "cannot start {what}: {error}"),
            StartError::OpenFiles { limit, needed } => write!(
                f,
                "the limit on open files, {limit}, is too low: this member needs at least {needed} (ulimit \
                 -n, LimitNOFILE)"
            ),
            StartError::Stopped => f.write_str("stopped before this member was registered with the cluster"),
            StartError::Core(fatal) => fatal.fmt(f),
            StartError::CorePanicked => f.write_str(
                "the core thread panicked before the member was ready. This is a bug; the panic message is \
                 above in the log or on standard error",
            ),
            StartError::InitialCheck(error) => error.fmt(f),
            StartError::Credentials(error) => error.fmt(f),
            StartError::Tls(error) => error.fmt(f),
            // The message begins with etcd's words.
            StartError::TooOld { cluster_version, own } => write!(
                f,
                "invalid downgrade; server version is lower than determined cluster version: the cluster runs at \
                 {cluster_version}, this member at {own} (--api-version); run `etcdctl downgrade enable` first"
            ),
            StartError::AuditLog { path, error } => {
                write!(f, "cannot open {}, named by --audit-log: {error}", path.display())
            }
        }
    }
}

/// Returns advice about a socket at which the member cannot listen; empty if the system's error is clear
/// enough.
fn listen_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        // Errors without an OS code are made by Mainstay. Their message already names the file, so no advice
        // is added.
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

/// Reason why a running member ended, or what failed during its shutdown.
#[derive(Debug)]
pub enum EndError {
    /// The core failed.
    Core(Fatal),
    /// The thread of the core panicked, which is a bug.
    CorePanicked,
    /// The file that records a clean shutdown cannot be written.
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
            EndError::CorePanicked => f.write_str("the core thread panicked"),
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
