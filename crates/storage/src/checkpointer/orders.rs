//! Messages between the core and the checkpointer.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use bytes::Bytes;
use log::Compressed;
use machine::image::{BaseError, Head};
use machine::{AsOf, Overtaken, SegmentUse};
use mvcc::{Base, Location};
use numbers::{ChangeId, Index};

use crate::nospace::Cause;
use crate::terms::Terms;

/// Describes a durable checkpoint. It covers at least the log entries that the previous checkpoint covers,
/// and only applied entries.
#[derive(Clone, Debug)]
pub struct Checkpointed {
    /// Index of the last log entry that the checkpoint covers.
    pub applied_index: Index,
    /// True if all runs were newly written, so that no run contains the location that a value had before it
    /// was moved.
    pub whole: bool,
    /// Total size of the checkpoint's files in bytes.
    pub bytes: u64,
    /// Total time of the pauses during this checkpoint, which keep the checkpointer from using more than a
    /// small part of a processor core. Under load this is most of the checkpoint's duration.
    pub paused: Duration,
    /// The base that was written, if it is in blocks, so that the index can read from it.
    pub base: Option<Arc<Base>>,
}

/// Reason why a checkpoint failed. The previous checkpoint stays valid.
#[derive(Debug)]
pub enum CheckpointError {
    /// A file could not be written, synced or removed.
    Files(log::OpenError),
    /// The state was compacted while it was being written, so versions are missing.
    Overtaken(Overtaken),
    /// A value was moved within the log while a base in blocks was written.
    Moved,
}

impl From<BaseError> for CheckpointError {
    fn from(error: BaseError) -> CheckpointError {
        match error {
            BaseError::Overtaken(error) => CheckpointError::Overtaken(error),
            BaseError::Moved => CheckpointError::Moved,
        }
    }
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
            CheckpointError::Moved => BaseError::Moved.fmt(f),
        }
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CheckpointError::Files(error) => error.source(),
            CheckpointError::Overtaken(_) | CheckpointError::Moved => None,
        }
    }
}

/// A value that is to be written again at the end of the log, so that its old segment can be deleted.
#[derive(Clone, Debug)]
pub struct Relocation {
    /// Id of the change that wrote the value.
    pub id: ChangeId,
    /// Current location of the value.
    pub from: Location,
    /// Bytes to be stored: the value, or its frame if it was compressed.
    pub data: Bytes,
    /// Says how to decompress `data`; `None` if it is the value as it is.
    pub compressed: Option<Compressed>,
}

/// Urgency of an order to move values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// Batch follows batch.
    AtOnce,
    /// There are pauses after the batches, and the rest is left where it is as soon as another order comes that
    /// takes long.
    InPauses,
}

/// Order from the core to the checkpointer.
pub enum Order {
    /// Write a checkpoint of the state at one revision.
    Checkpoint {
        /// The state except keys and values.
        head: Box<Head>,
        /// The versions of all keys at that revision, including those that a compaction has made unreadable
        /// but that are not removed yet.
        state: AsOf,
        /// True if everything is to be written into a new run; false if runs of earlier checkpoints may be
        /// reused.
        whole: bool,
        /// Raft terms of the log entries that the checkpoint covers.
        terms: Terms,
    },
    /// Find the live values in these segments and send them to the core, which writes them again at the end
    /// of the log.
    Relocate {
        /// Numbers of the segments.
        segments: Vec<u32>,
        /// Maximum bytes of values per batch that is sent to the core, except that the last value of a batch
        /// may exceed it.
        portion_bytes: usize,
        /// Urgency of the order.
        haste: Haste,
    },
    /// Find out which of these segments are worth compressing, and do with them what [`Order::Relocate`] says.
    Compress {
        /// Numbers of the segments, each with its live values.
        segments: Vec<(u32, SegmentUse)>,
        /// As in [`Order::Relocate`].
        portion_bytes: usize,
    },
    /// Record the cause of this member's NOSPACE alarm in a file beside the log.
    Note(Cause),
    /// Reserve space for the next checkpoint, because the disk may become full.
    Reserve {
        /// True if a write has failed because the disk was full. The file system may report free space
        /// nevertheless, for example because it does not know the quota of a file server.
        is_short: bool,
        /// Token that the checkpointer drops when it receives the order. The core keeps a weak reference to
        /// it, to know whether an order is still queued.
        queued: Arc<()>,
    },
    /// Drop this value. The core sends values that take long to drop, so that it need not wait.
    Drop(Box<dyn Any + Send>),
    /// End the checkpointer.
    Stop,
}

/// An event that the checkpointer reports to the core.
pub enum Event {
    /// A checkpoint is durable, or has failed.
    Checkpointed(Result<Checkpointed, CheckpointError>),
    /// Request to move these values out of their segments. The core sends a signal on the channel when all
    /// are on disk at their new locations.
    Relocate(Vec<Relocation>, SyncSender<()>),
    /// An order to move or compress values has ended.
    Relocated {
        /// True if all live values of the segments were moved, except those that could not be read or that
        /// the core refused, or were judged not to be worth it; false if another order came first.
        is_whole: bool,
    },
}
