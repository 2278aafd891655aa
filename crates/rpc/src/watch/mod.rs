//! Watches: changes on their way to clients, one [`Hub`] per shard.
//!
//! What it is: the core publishes a state and wakes the shards. A hub walks the changes since its last state once,
//! finds the watches they concern, and puts encoded responses into the queues of their streams. A watch that has
//! received everything up to the hub's revision is *synced*. One that begins in the past, or whose stream's queue is
//! full, is *unsynced*: its stream reads history for it, slice by slice at its own pace, until it has caught up. Streams that
//! read history stand in line for it: all of them together do no more in a turn than the synced watches. Streams that hold
//! values which were fetched for them come first, and those with a watch that was synced before do not wait for all others.
//! However many watches a change concerns, a turn of the shard tells a bounded number of them; until all have been told,
//! the hub's revision stays, nobody is told of progress, and other calls run between two turns. A revision with very many
//! changes is walked a portion a turn: the watches that it concerns become unsynced, and their streams read it the same
//! way, keeping what they have made of it until its last change.
//!
//! What it does not know: other shards, how states come about, users.
//!
//! Invariants, and the tests that hold them (`tests`, beside the code):
//! - a watch is told of every matching change once, in order, or that it was compacted (`every_event_once_in_order`);
//! - all events of one revision are in one response, unless the client asked for fragments (the same);
//! - a watch that had everything when a change was published gets it whatever is compacted next, for a minute
//!   (`held::a_revision_that_is_being_read_is_read_to_its_end_though_it_was_compacted`);
//! - a stream holds at most [`QUEUE_BYTES_MAX`] of responses or one of them, and no view between two polls
//!   (`a_slow_stream_holds_little_and_delays_nobody`);
//! - no turn looks at more watches, or walks over more changes, than its portion, whatever clients watch and write
//!   (`many_watches_of_one_key_are_told_in_turns`, `a_revision_of_very_many_changes_is_told_in_turns`), and so for all
//!   streams that read history together (`turns::streams_that_are_behind_take_turns`);
//! - everything runs on one thread, and no task is woken while a cell is borrowed.

mod after_others;
mod by_id;
mod drive;
mod event;
pub mod fuzzing;
mod hold;
mod hub;
mod index;
mod long;
mod permit;
mod portion;
mod queued;
mod response;
mod slice;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use after_others::after_others;
pub use drive::{Requests, Responses};
pub use hub::Hub;
pub use permit::{Anyone, Permit};
pub use stream::QUEUE_BYTES_MAX;
