//! The phases of a run, and functions with which clients wait for the next phase.

use std::time::Duration;

use tokio::sync::watch;

/// Phase of a run, as the clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Clients send requests.
    Work,
    /// Clients finish requests in flight; watches continue.
    Rest,
    /// Watches end once they have reached this revision.
    Drain(i64),
    /// All remaining work ends.
    Over,
}

/// Returns true while clients still send requests.
pub(crate) fn working(phase: &watch::Receiver<Phase>) -> bool {
    *phase.borrow() == Phase::Work
}

/// Waits for a duration. Returns false as soon as the work phase ends.
pub(crate) async fn pause(phase: &mut watch::Receiver<Phase>, time: Duration) -> bool {
    pause_until(phase, tokio::time::Instant::now() + time).await
}

/// Waits like [`pause`], until a point in time.
pub(crate) async fn pause_until(phase: &mut watch::Receiver<Phase>, due: tokio::time::Instant) -> bool {
    let over = phase.wait_for(|phase| *phase != Phase::Work);
    tokio::time::timeout_at(due, over).await.is_err()
}
