//! Defines the phases of a run, and functions with which clients wait until the work phase ends.

use std::time::Duration;

use tokio::sync::watch;

/// A phase of a run. Clients follow its changes, to know when to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Clients send requests.
    Work,
    /// Clients finish their requests in flight. Watches continue.
    Rest,
    /// Each watch ends when it has received everything up to this revision.
    Drain(i64),
    /// Everything ends, even if it is not finished.
    Over,
}

/// Returns true while clients still send requests.
pub(crate) fn working(phase: &watch::Receiver<Phase>) -> bool {
    *phase.borrow() == Phase::Work
}

/// Waits for `time`. Returns false as soon as the work phase has ended.
pub(crate) async fn pause(phase: &mut watch::Receiver<Phase>, time: Duration) -> bool {
    pause_until(phase, tokio::time::Instant::now() + time).await
}

/// Waits until `due`. Returns false as soon as the work phase has ended.
pub(crate) async fn pause_until(phase: &mut watch::Receiver<Phase>, due: tokio::time::Instant) -> bool {
    let over = phase.wait_for(|phase| *phase != Phase::Work);
    tokio::time::timeout_at(due, over).await.is_err()
}
