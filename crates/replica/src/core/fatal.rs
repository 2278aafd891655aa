//! Errors that end the core of a member.

use std::fmt;

use numbers::Index;

/// An error that ends the loop of the core, and with it the process.
///
/// A failed disk, a block of the index that cannot be read, and a log that accepts no more entries are problems of the machine. An entry that cannot be
/// applied is in the log of every member. All other variants are bugs in Mainstay. In none of these cases was
/// a write acknowledged that is not on disk.
#[derive(Debug)]
pub enum Fatal {
    /// A write or sync of the log failed.
    Log(log::Fatal),
    /// The log refuses a batch for another reason than lack of space.
    LogRefused(log::Refusal),
    /// A committed entry cannot be applied.
    Apply(Box<machine::Fatal>),
    /// The core gave the raft node input that contradicts the node's state.
    Raft(consensus::NodeBug),
    /// An entry was committed before the log reported its location, so it is not on disk.
    Unlocated {
        /// The index of the entry.
        index: Index,
    },
    /// A block of the index could not be read or is damaged. The text names the file, the block and the remedy.
    Index(String),
    /// Raft accepted a snapshot, but no state was received.
    NoSnapshot,
    /// Raft accepted a snapshot that differs from the state that was received.
    OtherSnapshot {
        /// The index of the last entry in the snapshot.
        accepted: Index,
        /// The index of the last entry in the state received.
        received: Index,
    },
}

impl From<log::Fatal> for Fatal {
    fn from(fatal: log::Fatal) -> Fatal {
        Fatal::Log(fatal)
    }
}

impl From<machine::Fatal> for Fatal {
    fn from(fatal: machine::Fatal) -> Fatal {
        Fatal::Apply(Box::new(fatal))
    }
}

impl From<consensus::NodeBug> for Fatal {
    fn from(broken: consensus::NodeBug) -> Fatal {
        Fatal::Raft(broken)
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fatal::Log(fatal) => fatal.fmt(f),
            Fatal::LogRefused(reason) => write!(f, "the log accepts no more entries: {reason:?}"),
            Fatal::Apply(fatal) => fatal.fmt(f),
            Fatal::Raft(broken) => write!(f, "the raft node and the core disagree: {broken}"),
            Fatal::Unlocated { index } => {
                write!(f, "entry {index} was committed before the log reported its location")
            }
            Fatal::Index(fault) => {
                write!(f, "a part of the index cannot be read from the checkpoint: {fault}")
            }
            Fatal::NoSnapshot => f.write_str("raft accepted a snapshot that was not received"),
            Fatal::OtherSnapshot { accepted, received } => write!(
                f,
                "raft accepted a snapshot of entry {accepted}, but the state received is of entry {received}"
            ),
        }
    }
}

impl std::error::Error for Fatal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Fatal::Log(fatal) => std::error::Error::source(fatal),
            Fatal::LogRefused(_) => None,
            Fatal::Apply(fatal) => std::error::Error::source(&**fatal),
            Fatal::Raft(broken) => Some(broken),
            Fatal::Index(_) | Fatal::Unlocated { .. } | Fatal::NoSnapshot | Fatal::OtherSnapshot { .. } => {
                None
            }
        }
    }
}
