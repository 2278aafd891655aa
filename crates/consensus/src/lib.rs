//! One member's raft node: events in, effects out.
//!
//! Wraps the `raft` crate (TiKV's port of etcd's raft) so that none of its types leave this crate. Knows no disk, no
//! network, no clock and draws no randomness: time arrives as [`Event::Ticked`], and election timeouts are a function
//! of the seed, the term and the ticks seen, so that a cluster of nodes runs deterministically in one thread.
//!
//! # The order of things (invariant I3)
//!
//! 1. [`Node::step`] takes events; [`Node::effects`] says what follows from them.
//! 2. `Effects::append` goes to the log. Only when that batch is synced does the caller step [`Event::LogSynced`]
//!    with the batch's number, and only then may the entries count for this member's vote on commitment.
//! 3. `Effects::commit` holds entries that are committed *and* synced here: apply them in order, then step
//!    [`Event::Applied`].
//!
//! Appending, syncing and applying overlap: any number of batches may be on their way to the disk.
//!
//! Tests: `tests/it`.

mod entry;
mod node;
mod tail;

pub use entry::{ConfChange, ConfChangeKind, Entry, EntryKind, HardState};
pub use node::{Append, Config, Effects, Event, Node, Refused, Restored, Role, Standing};
