//! One member's raft node: events in, effects out.
//!
//! This crate wraps the `raft` crate (TiKV's port of etcd's raft), and none of the types of `raft` are
//! visible outside. Messages between members are etcd's `raftpb`. The crate uses no disk, network, clock or
//! random numbers: time arrives as [`Event::Ticked`], and election timeouts are a function of the seed, the
//! term and the ticks seen, so that a cluster of nodes runs deterministically in one thread.
//!
//! # Order of operations (invariant I3)
//!
//! 1. [`Node::step`] takes events; [`Node::effects`] returns the resulting actions.
//! 2. `Effects::restore`, if present, is carried out first. `Effects::append` goes to the log. When that
//!    batch is synced, the caller steps [`Event::LogSynced`] with the number of the batch. Only from then on
//!    does this member count for the commit of these entries, and only then are the messages sent that
//!    acknowledge them.
//! 3. `Effects::commit` holds entries that are committed *and* synced on this member. The caller applies them
//!    in order and then steps [`Event::Applied`].
//!
//! Appending, syncing, applying and sending overlap: any number of batches may be in flight to the disk.
//!
//! # Input from other members
//!
//! A message that no correct peer sends is refused before the raft crate sees it, and changes nothing
//! (`validate.rs`).
//!
//! Start reading with [`Node`] and the files of `node/`, then `outbox.rs` (messages that wait for a sync),
//! `batches.rs` (batches on their way to the disk) and `window.rs` (bytes in flight). Tests: `tests/it`
//! (`transcripts`, `scenarios`, `refusals`, and the simulated cluster of `chaos`).

#![forbid(unsafe_code)]

mod batches;
mod effects;
mod entry;
mod event;
mod feeds;
mod followers;
mod leaderless;
mod node;
mod outbox;
mod programs;
mod tail;
mod terms;
mod upstream;
mod validate;
mod window;
mod wire;
mod witness;

pub use effects::{
    Append, ConfirmedRead, Effects, ObserverRead, OtherPrograms, Progress, ProgressState, RaftStatus,
    Restore, Role,
};
pub use entry::{ConfChange, ConfChangeKind, Entry, EntryKind, HardState};
pub use event::{Config, Event, Fetch, NodeBug, Refusal, Request, RestoredState};
pub use node::Node;
