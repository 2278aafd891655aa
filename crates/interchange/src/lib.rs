//! etcd's own formats, in and out: bbolt databases, snapshot files, and whole data directories with their WAL.
//!
//! What it is: [`bolt`] reads and writes the database file; [`backend`] knows what etcd keeps in which bucket;
//! [`snapshot`] is the file of `etcdctl snapshot save`; [`Status`] and [`hash_kv()`] are the figures that etcdutl gives;
//! [`wal`] reads and writes the write-ahead log; [`DataDir`] reads a member's directory, [`NewDataDir`] makes one;
//! [`V2Tree`] is the old store of API version 2, which 3.4 and 3.5 keep beside the database.
//!
//! What it does not know: a running server, Mainstay's own formats, what an entry of the log does to the state (it
//! gives entries out, for the state machine to apply).
//!
//! Invariants:
//! - Everything streams: memory holds a path through a tree and one value, whatever the size of a file. Four things
//!   take more, each said at its place: a few bytes per key for `status` and `hash_kv`, two bits per page for a check,
//!   24 bytes per entry of a WAL, and the old store, whose image is of 1 GiB at most.
//! - A database is written front to back, without a temporary file, so that a snapshot may go straight to a client.
//! - No input panics or runs for ever (test `damage`); what is wrong is said with page and offset.
//! - What real etcd wrote is read in full, and what is written here is what etcd would have written as far as HashKV
//!   goes (tests `golden`, and with real etcd `etcd`).
//!
//! Tests: beside the code and in `tests/it`. Those that need real etcd say so and pass when `MAINSTAY_TEST_ETCD_DIR`
//! does not name a directory with its programs.

#![forbid(unsafe_code)]

pub mod backend;
pub mod bolt;
mod command;
mod data_dir;
mod error;
mod fingerprint;
mod hash_kv;
mod json_scan;
mod leftover;
mod new_data_dir;
mod roster;
mod sink;
pub mod snapshot;
mod source;
mod status;
mod v2_store;
mod v2_tree;
pub mod wal;
mod wire;

pub use command::{Command, Malformed, in_todays_words};
pub use data_dir::DataDir;
pub use error::{Damage, Error, WriteError};
pub use fingerprint::Fingerprint;
pub use hash_kv::{HashKv, HashKvError, hash_kv};
pub use leftover::{holds_nothing, is_in_use};
pub use new_data_dir::{NewDataDir, NewMember};
pub use sink::FileSink;
pub use source::Source;
pub use status::Status;
pub use v2_store::{OldStore, members_image, members_of_image};
pub use v2_tree::{V2Node, V2Tree};
