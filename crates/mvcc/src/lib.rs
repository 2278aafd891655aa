//! The multi-version index: which versions of which keys there are, and where their values lie.
//!
//! One thread writes ([`Store`], [`Writer`]); it publishes immutable views ([`View`]) that any number of threads
//! read without ever waiting, or making the writer wait. Two copy-on-write B+trees hold pointers to immutable
//! version records: one ordered by key, with counts of live keys, one by revision.
//!
//! It does not know: what values say, files, time, chance, requests, leases beyond their number.
//!
//! Invariants, and the tests that hold them (`tests/it`):
//! * a view stays what it was, whatever is written or compacted later (`model`, `threads`);
//! * a later view read as of a moment is the view of that moment (`moments`);
//! * a transaction raises the revision by exactly one if it changed anything (`model`);
//! * a key written a million times is searched in O(log n) (`version`, a unit test);
//! * nothing a view can see is freed, and everything else is in the end (`leaks`, `threads`);
//! * what can be read, counted, hashed and loaded again does not depend on how far physical compaction got
//!   (`model`, `load`).
//!
//! `cargo run --release -p mainstay-mvcc --example measure_index` prints what operations and keys cost.
//!
//! Unsafe code is in `version` (record layout), `node`, `tree` (nodes), `epoch` and `epochs` (reclamation); the few blocks
//! elsewhere only tie a pointer to the lifetime of the snapshot that keeps it alive.

mod compaction;
mod cursor;
mod epoch;
mod epochs;
mod hash;
mod load;
mod node;
mod range;
mod store;
mod sync;
mod tree;
mod version;
mod view;

pub use compaction::CompactProgress;
pub use epoch::Census;
pub use hash::{HashWalk, hash_versions};
pub use load::{LoadError, LoadedVersion, Loader};
pub use numbers::Location;
pub use range::{KeyRange, Range};
pub use store::{Change, DeletedSome, Stats, Store, Writer};
pub use version::{KEY_BYTES_MAX, Value, Version};
pub use view::{Changes, Histories, Looked, Moment, RevisionError, Snapshot, View};
