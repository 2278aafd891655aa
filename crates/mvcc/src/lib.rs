//! Implements the multi-version index: which versions of which keys exist, and where in the log the value of
//! each version is stored.
//!
//! One thread writes ([`Store`], [`Writer`]); it publishes immutable views ([`View`]) that any number of
//! threads read without blocking and without blocking the writer. Two copy-on-write B+trees contain pointers
//! to immutable version records. One tree is ordered by key and counts live keys; the other is ordered by
//! revision.
//!
//! Leaves of the tree by key may be *stubs*, whose entries are read on demand from blocks of a [`Base`], through
//! the trait [`Blocks`], and evicted again ([`Cache`]). A store without a base has no stubs, and no cost of them.
//!
//! The crate reads no values, opens no files, and uses neither time nor randomness. Of a lease it stores only
//! the id.
//!
//! Invariants, and the tests that check them (`tests/it`):
//! * a view does not change, whatever is written or compacted later (`model`, `threads`);
//! * a later view that is read as of the [`Moment`] of an earlier view shows the state of that earlier view
//!   (`moments`);
//! * a transaction raises the revision by exactly one if it changed anything (`model`);
//! * a version of a key is found in O(log n), even if the key was written a million times (`version`, a unit
//!   test);
//! * nothing that a view can see is freed, and everything else is freed in the end (`leaks`, `threads`);
//! * a read through a block shows what the index had, and a block that is not what it should be is a fault, which
//!   every snapshot reports, and never an answer (`bases`, `base_edges`, `threads`);
//! * the progress of physical compaction does not affect what can be read, counted, hashed and loaded again
//!   (`model`, `load`).
//!
//! Start reading with [`Store`], [`View`] and [`Moment`]. A key with a single version takes at most 75 bytes
//! of memory in addition to its own length (tested in `leaks`). `cargo run --release -p mainstay-mvcc
//! --example measure_index` prints the cost of operations.
//!
//! Unsafe code is in `version` (record layout), `node`, `tree` (nodes), `base` (loaded blocks), `adoption`,
//! `changes` (stubs), `epoch` and `epochs` (reclamation);
//! unsafe blocks elsewhere give a pointer the lifetime of the owner that keeps its target alive, and `load`
//! also frees the objects of a load that failed.

mod adoption;
mod base;
mod changes;
mod compaction;
mod cursor;
mod epoch;
mod epochs;
mod hash;
mod load;
mod node;
mod range;
mod saved;
mod store;
mod sync;
mod tree;
mod version;
mod view;

pub use adoption::{AbsentBlock, AdoptProgress, Adoptable};
pub use base::{BLOCK_VERSIONS_MAX, Base, BlockId, Blocks, Cache, ChangeBlock, KeyBlock, NO_BLOCK};
pub use changes::{Changes, Looked};
pub use compaction::CompactProgress;
pub use epoch::Census;
pub use hash::{HashWalk, hash_versions};
pub use load::{LoadError, Loader};
pub use numbers::Location;
pub use range::{KeyRange, Range};
pub use saved::LoadedVersion;
pub use store::{Change, DeletedSome, Stats, Store, Writer};
pub use version::{KEY_BYTES_MAX, Value, Version};
pub use view::{Histories, Moment, RevisionError, Snapshot, View};
