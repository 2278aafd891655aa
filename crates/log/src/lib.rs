//! Stores a member's raft entries and hard state in a log of segment files, and reads entries and values
//! back. The log is also the database of values: a value is written once, inside its raft entry, and is later
//! read from the segment by its location. The crate also stores checkpoint files.
//!
//! Parts: [`Log`] appends batches with group commit on its own thread (all queued batches share one vectored
//! write and one fdatasync). [`Values`] and [`Entries`] read values and entries. [`Log::open`] recovers the
//! log after a restart. [`checkpoint`] stores an image of the caller's state in files of checksummed blocks.
//!
//! The log does not interpret what it stores: it knows neither the raft protocol nor keys nor the contents of
//! entries. It does not decide which values are live, or when a checkpoint is due. It decompresses values, and
//! the caller compresses them.
//!
//! Invariants:
//! - Nothing is reported as synced before the disk has synced it (test `crash`).
//! - After a crash, all data that was reported as synced exists. Of the data that was not reported, a prefix
//!   in the order of writing may exist (test `crash`).
//! - A failed write or sync of a segment in use stops the log permanently (test `crash`).
//! - Damage to acknowledged data is reported with file and offset, and never skipped; only the remains of a
//!   write that was never acknowledged are cut off (test `damage`).
//! - Data that existed when the log was closed cleanly exists when it is opened again, or opening is refused
//!   (test `damage`).
//! - Only what the log itself wrote at this position, in this use of the file, is read as a record. Values of
//!   clients, copies of records, and old data in a recycled file are not (tests `forgery`, `space`).
//! - The files of all earlier versions of the format can be read (test `golden`).
//! - No content of a file causes a panic (test `damage`). Only a gap between the indexes of appended entries
//!   panics, because it is a bug of the caller.
//!
//! Start reading with `format.rs` (the bytes), [`Log::append`], `writer.rs` (group commit) and `recovery.rs`.
//! Tests are beside the code and in `tests/it`.

#![forbid(unsafe_code)]

pub mod checkpoint;
mod clean_shutdown;
mod compressed;
mod entry_index;
mod error;
mod figures;
mod format;
mod log;
mod preparation;
mod recovery;
mod scan;
mod segment;
mod types;
mod values;
mod writer;

pub use clean_shutdown::{LogEnd, ShutdownRecord};
pub use compression::{self, Dictionaries};
pub use error::{AppendError, Fatal, OpenError, REMEDY, ReadError, Refusal, ReleaseError};
pub use figures::{DURATION_BOUNDS_S, Durations, Figures, SIZE_BOUNDS, Sizes, Stall};
pub use format::{COMPRESSED_LEN_MAX, VERSIONS_READ as SEGMENT_VERSIONS_READ};
pub use log::{Log, OnEvent};
pub use numbers::Location;
pub use types::{
    Batch, Compressed, Entry, EntryPlace, HardState, LogEvent, Need, Options, Owner, Recovered, Repair,
    Replayed, Reset, SegmentState, Space, Synced, Value, ValueId, segment_bytes_for,
};
pub use values::{Entries, Values, Wanted, runs};
