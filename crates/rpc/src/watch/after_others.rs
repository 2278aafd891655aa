//! Lets a task that still has work yield to the other tasks of its thread.

use std::future::Future as _;
use std::pin::pin;
use std::task::Context;

/// Wakes this task again after the other tasks of the thread have run and input from sockets was read.
pub(crate) fn after_others(cx: &mut Context<'_>) {
    let mut yielding = pin!(tokio::task::yield_now());
    if yielding.as_mut().poll(cx).is_ready() {
        cx.waker().wake_by_ref();
    }
}
