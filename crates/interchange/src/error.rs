//! Defines the errors that are returned when etcd's files cannot be read or written.

use std::fmt;
use std::io;

/// Error returned when a file cannot be read.
#[derive(Debug)]
pub enum Error {
    /// An operation on the file failed.
    Io {
        /// Operation that failed, such as `opening db`.
        doing: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file's contents are invalid.
    Damaged(Damage),
    /// The members of the cluster cannot be determined: they are unknown, or the files contradict each other.
    /// Contains the message for the operator.
    Members(String),
}

/// Damage of a file: its position and description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the file; `None` if only one file is read.
    pub file: Option<String>,
    /// Number of the damaged page; `None` if the file is not a database or the damage is in no single page.
    pub page: Option<u64>,
    /// Offset in bytes from the beginning of the file.
    pub offset: u64,
    /// Description of the damage.
    pub what: String,
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>, error: io::Error) -> Error {
        Error::Io { doing: doing.into(), error }
    }

    pub(crate) fn damaged(offset: u64, what: impl Into<String>) -> Error {
        Error::Damaged(Damage { file: None, page: None, offset, what: what.into() })
    }

    pub(crate) fn page(page: u64, offset: u64, what: impl Into<String>) -> Error {
        Error::Damaged(Damage { file: None, page: Some(page), offset, what: what.into() })
    }

    pub(crate) fn in_file(self, name: &str) -> Error {
        match self {
            Error::Damaged(damage) => Error::Damaged(Damage {
                file: Some(damage.file.unwrap_or_else(|| name.to_owned())),
                ..damage
            }),
            Error::Io { doing, error } => Error::Io { doing: format!("{doing} ({name})"), error },
            Error::Members(what) => Error::Members(what),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { doing, error } => write!(f, "{doing}: {error}"),
            Error::Damaged(damage) => damage.fmt(f),
            Error::Members(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        if let Some(page) = self.page {
            write!(f, "page {page}, ")?;
        }
        write!(f, "byte {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { error, .. } => Some(error),
            Error::Damaged(_) | Error::Members(_) => None,
        }
    }
}

/// Error returned when a file cannot be written.
#[derive(Debug)]
pub enum WriteError {
    /// The output failed.
    Io(io::Error),
    /// The given contents cannot be stored in such a file, or are not in the required order.
    Refused(String),
    /// The contents in the second pass differ from those in the first pass.
    Differs(String),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Io(error) => write!(f, "writing failed: {error}"),
            WriteError::Refused(what) => f.write_str(what),
            WriteError::Differs(what) => write!(f, "the contents changed while they were written: {what}"),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WriteError::Io(error) => Some(error),
            WriteError::Refused(_) | WriteError::Differs(_) => None,
        }
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        WriteError::Io(error)
    }
}
