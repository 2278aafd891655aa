//! The segmented log, which is also the database: each value is written once, inside its raft entry, and is
//! read back from the segment by its location. The crate also contains the checkpoint files.
//!
//! Parts: [`Log`] appends batches with group commit on its own thread (all queued batches share one vectored
//! write and one fdatasync). [`Values`] and [`Entries`] read values and entries. [`Log::open`] recovers the
//! log after a restart. [`checkpoint`] stores framed, checksummed files whose contents the caller writes.
//!
//! The log does not know the raft protocol (it only stores raft's state), keys, the contents of entries,
//! which values are live, or when a checkpoint is due.
//!
//! Invariants:
//! - Nothing is reported as synced before the disk has synced it (test `crash`).
//! - Data reported as synced exists after a crash; data not reported exists as a prefix or not at all (test
//!   `crash`).
//! - A failed write or sync of a segment in use stops the log permanently (test `crash`).
//! - Damage to acknowledged data is reported with file and offset, and never skipped; only the remains of a
//!   write that was never acknowledged are cut off (test `damage`).
//! - Data that existed when the log was closed cleanly exists when it is opened again, or opening is refused
//!   (test `damage`).
//! - Only what the log itself wrote at this position, in this use of the file, is read as a record. Values of
//!   clients, copies of records, and old data in a recycled file are not (tests `forgery`, `space`).
//! - Files of every version stay readable forever (test `golden`).
//! - No content of a file causes a panic (test `damage`). A gap in the appended entries is a bug of the
//!   caller and does panic.
//!
//! Start reading with `format.rs` (the bytes), [`Log::append`], `writer.rs` (group commit) and `recovery.rs`.
//! Tests are beside the code and in `tests/it`.

#![forbid(unsafe_code)]

pub mod checkpoint;
mod clean_shutdown;
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
pub use error::{AppendError, Fatal, OpenError, REMEDY, ReadError, Refusal, ReleaseError};
pub use figures::{DURATION_BOUNDS_S, Durations, Figures, Stall};
pub use log::{Log, OnEvent};
pub use numbers::Location;
pub use types::{
    Batch, Entry, EntryPlace, HardState, LogEvent, Need, Options, Owner, Recovered, Repair, Replayed, Reset,
    SegmentState, Space, Synced, Value, ValueId, segment_bytes_for,
};
pub use values::{Entries, Values, Wanted, runs};
