//! Manages the data directory of a member: opens it, writes checkpoints, restores it from a snapshot, reads
//! it while the member is stopped, and reads values.
//!
//! * [`opening`] loads the checkpoint and replays the log; [`beginning`] defines the identity and the first
//!   log entries of a member that has no data yet; [`Options`] are the options of a member that concern its
//!   data directory.
//! * [`checkpointer`] writes checkpoints and finds values that have to be moved out of old segments;
//!   [`terms`] encodes the raft terms that are stored with a checkpoint.
//! * [`values`] reads values that are in memory, large values in parts through [`buffers`] or, for several
//!   responses at the same time, once ([`shared_values`]), and neighboring values with [`read_ahead`];
//!   [`readers`] are threads that wait for the disk on behalf of threads that must not wait, and [`block_on`]
//!   runs a future on a thread that may block. [`catch_up`] reads log entries for followers that lag.
//! * [`restoration`] creates a data directory from an external state; [`stopped`] reads a data directory
//!   without starting a member.
//! * [`taken_over`] marks a directory that was taken over from etcd and still contains etcd's files,
//!   [`exported`] marks one that was exported to etcd, and [`recovered`] one whose cluster was formed again elsewhere. [`etcd_beside`] prevents etcd from starting in a
//!   directory that it has never used, and [`etcd_store`] describes a store that etcd has created there
//!   anyway. [`first_files`] lists the files that every start creates, and [`formats`]
//!   the formats of files that this release reads and writes. [`etcd_database`] converts the state
//!   to etcd's format. [`kv_hash`] and [`compaction_hash`] compute etcd's hashes of the state.
//! * [`log_dir`] finds the directory of the log. [`clean_shutdown`] and [`nospace`] read and write two small
//!   files beside the log; [`identity`] defines the ids of the member and its cluster.
//!
//! The crate knows nothing of elections, clients or other members. Callers that need notifications pass in a
//! callback or the sending end of a queue.
//!
//! Invariants: after a start, all acknowledged data is there; if some is missing, the start is refused with a
//! message that names the file, the offset and the remedy (I18). Neither the core (the thread that applies
//! log entries) nor a shard (a thread that serves clients) waits for a read from the disk;
//! `server/tests/it/stepped/uncached.rs` tests this.
//!
//! Start reading with [`opening::open`], [`values`] and [`checkpointer`]. Tests: beside the code, and
//! `mainstay/tests/it/damage_table.rs`.

#![forbid(unsafe_code)]

mod base;
pub mod beginning;
pub mod block_on;
pub mod buffers;
pub mod catch_up;
pub mod checkpointer;
pub mod clean_shutdown;
pub mod compaction_hash;
mod crc_combine;
mod error;
pub mod etcd_beside;
pub mod etcd_database;
pub mod etcd_store;
pub mod exported;
pub mod first_files;
pub mod formats;
pub mod identity;
pub mod kv_hash;
pub mod log_dir;
mod mark;
pub mod nospace;
pub mod observer_mark;
pub mod opening;
mod options;
pub mod read_ahead;
pub mod readers;
pub mod recovered;
pub mod restoration;
pub mod shared_values;
mod shell;
pub mod stopped;
pub mod taken_over;
pub mod terms;
pub mod values;
pub mod witness_mark;

pub use error::{DataDirError, FirstEntriesError, Inconsistency, LogDirMismatch, MissingEntries};
pub use identity::Identity;
pub use options::{Options, rules};
