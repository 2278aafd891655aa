//! The segmented log, which is the database: a value is written once, in its raft entry, and read back from the
//! segment by its location. And the container for checkpoints.
//!
//! What it is: [`Log`] appends batches by group commit on a thread of its own (everything queued goes into one
//! vectored write and one fdatasync), [`Values`] and [`Entries`] read back, [`Log::open`] recovers,
//! [`checkpoint`] keeps framed, checksummed files of the caller's making.
//!
//! What it does not know: raft (it stores what it is told to), keys, what is inside an entry, which values are
//! live, when a checkpoint is due.
//!
//! Invariants:
//! - Nothing is reported as synced before the disk has synced it (test `crash`).
//! - What was reported is there after a crash; what was not is there as a prefix or not at all (test `crash`).
//! - A failed write or sync of a segment in use ends the log for good (test `faults`).
//! - Damage to acknowledged data is refused by name and offset, never skipped; only the remains of a write that
//!   was never acknowledged are cut off (test `damage`).
//! - What was there when the log was closed cleanly is there when it is opened, or opening is refused (test
//!   `damage`).
//! - Nothing but what the log wrote at this place of this use of a file reads as a record: no value, no copy, nothing
//!   that a recycled file has left (tests `forgery`, `space`).
//! - Files of every version open for ever (test `golden`).
//! - No input panics (test `damage`); a gap in what is appended is our own bug and does.
//!
//! The format is drawn in `format.rs`. Tests: beside the code and in `tests/it`.

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
