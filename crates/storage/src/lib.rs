//! A member's data directory: opening it, writing checkpoints, restoring it, reading it while the member is
//! stopped, and reading values.
//!
//! * [`opening`] loads the checkpoint and replays the log; [`beginning`] has the identity and first entries
//!   of a member without data; [`Options`] are the options of a member that concern its data directory.
//! * [`checkpointer`] writes checkpoints and finds values that have to be moved out of old segments;
//!   [`terms`] has the raft terms that are stored with a checkpoint.
//! * [`values`] reads values that are in memory, large values in parts through [`buffers`], and neighbouring
//!   values with [`read_ahead`]; [`readers`] are threads that wait for the disk on behalf of other threads,
//!   and [`block_on`] is for threads that may block. [`catch_up`] reads entries for followers that lag.
//! * [`restoration`] creates a data directory from an external state; [`stopped`] reads a data directory
//!   without starting a member.
//! * [`taken_over`] is the mark of a directory that also contains etcd's files, [`exported`] the mark of a
//!   directory that was exported to etcd; [`etcd_beside`] prevents etcd from starting in all other
//!   directories, and [`etcd_store`] describes a store that etcd has created there; [`first_files`] lists the
//!   files that every start creates. [`etcd_database`] converts the state to etcd's format. [`kv_hash`] and
//!   [`compaction_hash`] compute etcd's hashes of the state.
//! * [`log_dir`] finds the directory of the log. [`clean_shutdown`] and [`nospace`] are two small files
//!   beside it; [`identity`] contains the ids of the member and its cluster.
//!
//! The crate does not depend on raft's decisions, clients or other members. Callers that need notifications
//! pass in a callback or the sending end of a queue.
//!
//! Invariants: acknowledged data exists after a start, or the start is refused with file, offset and remedy
//! (I18); neither the core nor a shard waits for a read from the disk
//! (`server/tests/it/stepped/uncached.rs`).
//!
//! Start reading with [`opening::open`], [`values`] and [`checkpointer`]. Tests: beside the code, and
//! `mainstay/tests/it/damage_table.rs`.

#![forbid(unsafe_code)]

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
pub mod identity;
pub mod kv_hash;
pub mod log_dir;
pub mod nospace;
pub mod opening;
mod options;
pub mod read_ahead;
pub mod readers;
pub mod restoration;
mod shell;
pub mod stopped;
pub mod taken_over;
pub mod terms;
pub mod values;

pub use error::{DataDirError, FirstEntriesError, Inconsistency, LogDirMismatch, MissingEntries};
pub use identity::Identity;
pub use options::{Options, rules};
