//! A member's data directory: opened, checkpointed, restored, read while the member is stopped, and its values read.
//!
//! * [`opening`] finds out what the checkpoint and the log hold; [`beginning`] is what a member has when there is nothing.
//! * [`checkpointer`] writes checkpoints and finds values that have to move out of old segments; [`terms`] are kept beside.
//! * [`values`] reads values that are in memory, large ones in parts through [`buffers`], those that lie behind each other by [`read_ahead`]; [`readers`] are the threads that wait for a disk in place of others, and
//!   [`block_on`] is for threads that may wait themselves. [`catch_up`] reads entries for followers that lag.
//! * [`restoration`] makes a data directory of a state from elsewhere; [`stopped`] reads one without starting a member.
//! * [`taken_over`] is the mark of a directory that etcd's files are in as well, [`exported`] that of one that was exported to etcd; [`etcd_beside`] keeps etcd out of all others; [`first_files`] are those that every start makes. [`etcd_database`] is the state in etcd's form. [`kv_hash`] and [`compaction_hash`] are etcd's hashes of it.
//! * [`log_dir`] finds the directory of the log. [`clean_shutdown`] and [`nospace`] are two small files beside it; [`identity`] says whose all of it is.
//!
//! What it does not know: raft's decisions, clients, other members. Callers that must be told of something hand in a
//! callback or the sending end of a queue.

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
pub mod exported;
pub mod first_files;
pub mod identity;
pub mod kv_hash;
pub mod log_dir;
pub mod nospace;
pub mod opening;
pub mod read_ahead;
pub mod readers;
pub mod restoration;
pub mod stopped;
pub mod taken_over;
pub mod terms;
pub mod values;

pub use error::{DataDirError, FirstEntriesError, Inconsistency, Lacking, Misplaced};
pub use identity::Identity;
