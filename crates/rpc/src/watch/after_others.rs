//! Lets a task yield until the other tasks of its thread have run.

use std::future::Future as _;
use std::pin::pin;
use std::task::Context;

/// Wakes this task once others had their turn, and what has arrived on sockets was taken in.
pub(crate) fn after_others(cx: &mut Context<'_>) {
    let mut yielding = pin!(tokio::task::yield_now());
    if yielding.as_mut().poll(cx).is_ready() {
        cx.waker().wake_by_ref();
    }
}
