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

/// A durable checkpoint. It contains at least the entries of the previous checkpoint, and only applied
/// entries.
#[derive(Clone, Copy, Debug)]
pub struct Checkpointed {
    /// Log index up to which entries are in the checkpoint.
    pub applied_index: Index,
    /// True if all runs were newly written, so that the checkpoint has no old location of a moved value.
    pub whole: bool,
    /// Total size of the checkpoint's files in bytes.
    pub bytes: u64,
    /// Time for which the checkpointer paused, in order to use only a small part of a processor core. Under
    /// load this is most of the duration.
    pub paused: Duration,
}

/// Reason why a checkpoint failed. The previous checkpoint stays valid.
#[derive(Debug)]
pub enum CheckpointError {
    /// A file could not be written, synced or removed.
    Files(log::OpenError),
    /// The state was compacted while it was being written, so versions are missing.
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
    /// Write the state of one moment as a checkpoint.
    Checkpoint {
        /// The state except keys and values.
        head: Box<Head>,
        /// Keys and values, including all versions that physically exist.
        state: AsOf,
        /// True if all runs are to be written new; false if runs of earlier checkpoints may be reused.
        whole: bool,
        /// Terms of the entries that the checkpoint covers.
        terms: Terms,
    },
    /// Find the live values in these segments and request their relocation.
    Relocate {
        /// Numbers of the segments.
        segments: Vec<u32>,
        /// Bytes of values to request in one portion.
        portion_bytes: usize,
    },
    /// Record the cause of this member's NOSPACE alarm in a file beside the log.
    Note(Cause),
    /// Reserve space for the next checkpoint, because the disk may become full.
    Reserve {
        /// True if the disk was found to be full, even if the file system reports free space, which does not
        /// include a quota on a file server, for example.
        is_short: bool,
        /// Token that is dropped when the order is received.
        queued: Arc<()>,
    },
    /// Drop this value, which takes long.
    Drop(Box<dyn Any + Send>),
    /// End the checkpointer.
    Stop,
}

/// An event that the checkpointer reports to the core.
pub enum Event {
    /// A checkpoint is durable, or has failed.
    Checkpointed(Result<Checkpointed, CheckpointError>),
    /// Request to move these values out of their segments. The core signals through the sender when that is
    /// done.
    Relocate(Vec<Relocation>, SyncSender<()>),
    /// All values of a relocation order were moved or could not be moved.
    Relocated,
}
