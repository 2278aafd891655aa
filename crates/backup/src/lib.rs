//! Continuous backup: ships the committed entries of a cluster to a bucket or a directory, and restores the state of
//! any moment from there.
//!
//! A process that makes a backup has a node in it that applies committed entries and serves nobody: an observer of a
//! cluster of Mainstay, or the copy of a shadow, which follows any etcd. Beside it, [`shipping`] reads the entries from
//! the node's log, puts them into parts, and extends a chain of manifests. Now and then it ships the whole state as a
//! base. A restore opens the newest base before the wanted moment and applies the entries after it, up to that moment.
//!
//! * [`store`] is the interface of a place for objects; [`place`] opens one by its URL: `directory` or `cloud`, with
//!   the `credentials` of AWS's file.
//! * [`part`], [`base`], [`object`] and [`manifest`] are the formats, [`chain`] the chain of manifests.
//! * [`source`] is the interface of the node, [`live`] the node of this process. `collector` reads its log, `queue`
//!   keeps what waits, [`shipper`] ships it.
//! * [`plan`] finds what a moment needs, `fetch` gets it, and [`moment`] restores it.
//! * [`command`] has the commands `mainstay backup` and those of `mainstay utl snapshot` that read a backup.
//!
//! The crate does not know raft, and not how the log or a checkpoint is stored: what it ships are entries and
//! transfers, in the forms in which members send them to each other.
//!
//! Invariants:
//! * Only entries that are committed and applied are shipped.
//! * Objects are created on the condition that none of their name exists, and never changed. Only `prune` deletes.
//! * Of two processes that extend a chain, one fails at each number, and then reads what the other has written.
//! * Whatever fails or is killed at any step, a restore gives the exact state of a moment, or an error.
//! * Memory and what waits have bounds.
//!
//! Start reading with `manifest.rs`, [`shipper::Shipper::step`] and [`moment::restore`]. Tests: beside the code, `tests/it`
//! with a model of a node and a store that fails, and `mainstay/tests/it/backup.rs` with processes.

#![forbid(unsafe_code)]

pub mod base;
pub mod chain;
mod cloud;
mod collector;
pub mod command;
mod credentials;
pub mod directory;
mod fetch;
pub mod live;
pub mod manifest;
pub mod moment;
pub mod object;
mod own_id;
pub mod part;
pub mod place;
pub mod plan;
mod queue;
pub mod shipper;
pub mod shipping;
pub mod source;
pub mod store;
mod trouble;

pub use collector::Collector;
pub use fetch::{Cache, cache_of, remove_cache, with_objects};
pub use own_id::own_id;
pub use queue::{Queue, Start, Waiting};
pub use trouble::{Fault, Trouble};
