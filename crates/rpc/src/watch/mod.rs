//! Delivers the changes of keys to the clients that watch them. Each shard has one [`Hub`].
//!
//! The core publishes a state and wakes the shards. A hub walks the changes since its last state once, finds
//! the matching watches, and puts encoded responses into the queues of their streams.
//!
//! A watch that has received everything up to the hub's revision is *synced*. A watch that begins in the
//! past, or whose stream's queue is full, is *unsynced*: its stream reads history for it, slice by slice at
//! its own pace, until the watch has caught up. A slice is read only when the client can take it, so history
//! never waits in memory for a slow client. Streams that read history wait in a queue: in one turn of the
//! shard, all of them together read no more than takes 0.1 to 0.2 ms (`hub::HISTORY`), so that they do not
//! delay other calls. They read more only if they would fall behind new writes otherwise (`pace`). Streams
//! that hold fetched values come first, and streams with a watch that was synced before do not have to wait
//! for all streams that arrived before them.
//!
//! However many watches a change matches, one turn of the shard delivers it to a bounded number of them.
//! Until all matching watches have received the change, the hub's revision does not rise and no progress is
//! reported. Other calls run between two turns. A revision with very many changes is walked in several turns:
//! the matching watches become unsynced, and their streams read the revision in the same way, keeping the
//! response under construction until its last change.
//!
//! This module does not handle other shards, the creation of states, or users.
//!
//! Invariants, and the tests that check them (`tests`, beside the code):
//! - a watch receives every matching change once, in order, or an error that the change was compacted
//!   (`every_event_once_in_order`);
//! - all events of one revision are in one response, unless the client asked for fragments (the same test);
//! - a watch that had received everything when a change was published gets the change whatever is compacted
//!   next, for a minute (`held::a_revision_that_is_being_read_is_read_to_its_end_though_it_was_compacted`);
//! - a stream holds at most [`QUEUE_BYTES_MAX`] of responses, or one response and a few others, and it holds no view between
//!   two polls (`a_slow_stream_holds_little_and_delays_nobody`); it holds no history for a client that takes
//!   nothing (`lagging::no_history_is_read_for_clients_that_take_nothing`);
//! - no turn checks more watches, or walks more changes, than its limit (`Portion`), whatever clients watch
//!   and write (`many_watches_of_one_key_are_told_in_turns`,
//!   `a_revision_of_very_many_changes_is_told_in_turns`); the same holds for all streams that read history
//!   together (`turns::streams_that_are_behind_take_turns`), which have read enough after far less
//!   (`lagging::a_turn_reads_little_history_however_many_streams_are_behind`), and yet catch up
//!   (`lagging::watches_catch_up_however_fast_others_write`);
//! - everything runs on one thread, and no task is woken while a cell is borrowed.

mod after_others;
mod by_id;
mod counts;
mod drive;
mod event;
pub mod fuzzing;
mod hold;
mod hub;
mod index;
mod long;
mod pace;
mod permit;
mod portion;
mod queued;
mod response;
mod slice;
mod state;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use after_others::after_others;
pub use drive::{Requests, Responses};
pub use hub::Hub;
pub use permit::{Anyone, Permit};
pub use stream::QUEUE_BYTES_MAX;
