use std::future::Future;
use std::pin::pin;
use std::task::Context;

/// Bytes of one connection, of one direction, after which others get a turn: heartbeats must not wait for a long
/// queue to drain.
pub(crate) const TURN_BYTES: usize = 512 * 1024;

/// Lets the task be polled again after the others, and after the network was asked what is ready. Waking it would not do:
/// a `LocalSet` polls a task that wakes itself dozens of times before it looks at the network.
pub(crate) fn end_turn(cx: &mut Context<'_>) {
    // Never ready at the first poll.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}
