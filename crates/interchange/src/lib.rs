//! Reads and writes etcd's own formats, so that Mainstay can take over an etcd member's data and give it
//! back: bbolt databases, snapshot files, and whole data directories with their WAL.
//!
//! Parts: [`bolt`] reads and writes the database file; [`backend`] reads and writes the contents of etcd's
//! buckets in it; [`snapshot`] reads and writes the file of `etcdctl snapshot save`; [`Status`] and
//! [`hash_kv()`] compute the hashes and counts that etcdutl prints; [`wal`] reads and writes the write-ahead
//! log; [`DataDir`] reads a member's directory, and [`NewDataDir`] creates one; [`V2Tree`] is the store of
//! API version 2 (the v2 store), which 3.4 and 3.5 keep beside the database.
//!
//! Not in this crate: a running server, Mainstay's own file formats, and the effect of log entries on the
//! state (the crate returns entries; the state machine applies them).
//!
//! Invariants:
//! - Everything streams: memory holds the path through a tree and one value, whatever the size of a file.
//!   Exceptions: `status` takes 32 bytes per key, `hash_kv` 80 bytes per key with a change at or below the
//!   compact revision, a check two bits per page, and a WAL 24 bytes per entry. The v2 store takes several
//!   times the size of its image, which has at most 1 GiB.
//! - A database is written from front to back, without a temporary file, so that a snapshot can be sent
//!   directly to a client.
//! - No input makes the crate panic or loop endlessly (test `damage`); errors name page and offset.
//! - Files written by real etcd are read completely. Files written by this crate are equivalent to etcd's in
//!   everything that HashKV covers (tests `golden`, and `etcd` with real etcd).
//!
//! Start reading with [`backend`] and [`DataDir`]. Tests are beside the code and in `tests/it`. Tests that
//! need real etcd look for its programs in the directory `MAINSTAY_TEST_ETCD_DIR`; without it they print that
//! they are skipped, and pass.

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
