//! Messages between the core and the checkpointer.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use bytes::Bytes;
use machine::image::Head;
use machine::{AsOf, Overtaken};
use mvcc::Location;
use numbers::{ChangeId, Index};

use crate::nospace::Cause;
use crate::terms::Terms;

/// A durable checkpoint. It contains at least the entries of the checkpoint before it, and only applied
/// entries.
#[derive(Clone, Copy, Debug)]
pub struct Checkpointed {
    /// Log index up to which entries are in the checkpoint.
    pub applied_index: Index,
    /// True if all runs were written new, so that the checkpoint contains no old location of a moved value.
    pub whole: bool,
    /// Total size of the checkpoint's files in bytes.
    pub bytes: u64,
    /// Time that the checkpointer paused, so that it takes a small part of one core. Under load that is most
    /// of the time.
    pub paused: Duration,
}

/// Reason why a checkpoint failed. The checkpoint before it stays valid.
#[derive(Debug)]
pub enum CheckpointError {
    /// A file could not be written, synced or removed.
    Files(log::OpenError),
    /// The state was compacted while it was being written.
    Overtaken(Overtaken),
}

impl From<log::OpenError> for CheckpointError {
    fn from(error: log::OpenError) -> CheckpointError {
        CheckpointError::Files(error)
    }
}

impl From<Overtaken> for CheckpointError {
    fn from(error: Overtaken) -> CheckpointError {
        CheckpointError::Overtaken(error)
    }
}

impl CheckpointError {
    /// Returns true if the file system of the data directory has no space for the checkpoint.
    pub fn is_full(&self) -> bool {
        let CheckpointError::Files(log::OpenError::Io { error, .. }) = self else { return false };
        disk::is_full(error)
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointError::Files(error) => error.fmt(f),
            CheckpointError::Overtaken(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CheckpointError::Files(error) => error.source(),
            CheckpointError::Overtaken(_) => None,
        }
    }
}

/// A value that is to be moved.
#[derive(Clone, Debug)]
pub struct Relocation {
    /// Id of the change that wrote the value.
    pub id: ChangeId,
    /// Current location of the value.
    pub from: Location,
    /// Bytes of the value.
    pub data: Bytes,
}

/// Order from the core to the checkpointer.
pub enum Order {
    /// Writes the state of this moment.
    Checkpoint {
        /// The state except keys and values.
        head: Box<Head>,
        /// Keys and values, including all versions that physically exist.
        state: AsOf,
        /// True to write everything, false to write only the changes since the last checkpoint.
        whole: bool,
        /// Terms of the entries before the checkpoint.
        terms: Terms,
    },
    /// Finds the live values in these segments and requests their relocation.
    Relocate {
        /// Numbers of the segments.
        segments: Vec<u32>,
        /// Bytes of values to request at once.
        portion_bytes: usize,
    },
    /// Records the cause of this member's NOSPACE alarm in a file beside the log.
    Note(Cause),
    /// Reserves space for the next checkpoint, because the disk may become full.
    Reserve {
        /// True if the disk was found to be full, whatever the file system reports as free: a quota of a
        /// server is not included in that.
        is_short: bool,
        /// Dropped when the order is received.
        queued: Arc<()>,
    },
    /// Drops this value, because dropping takes long.
    Drop(Box<dyn Any + Send>),
    /// Ends the checkpointer.
    Stop,
}

/// An event that the checkpointer reports to the core.
pub enum Event {
    /// A checkpoint was made, or failed.
    Checkpointed(Result<Checkpointed, CheckpointError>),
    /// Requests to move these values out of their segments; the core signals the sender when that is done.
    Relocate(Vec<Relocation>, SyncSender<()>),
    /// All values of an order to relocate were moved or could not be moved.
    Relocated,
}
