use std::future::Future;
use std::pin::pin;
use std::task::Context;

/// Bytes in one direction of one connection after which other connections have their turn, because heartbeats
/// must not wait for a long queue to drain.
pub(crate) const TURN_BYTES: usize = 512 * 1024;

/// Schedules the task to be polled again after other tasks and after the network was polled. Waking the task
/// is not enough: a `LocalSet` polls a task that wakes itself dozens of times before it polls the network.
pub(crate) fn end_turn(cx: &mut Context<'_>) {
    // `yield_now` is never ready at its first poll.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}
