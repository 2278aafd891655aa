//! Stages of a member's service: it starts, serves clients, may be taken out of service, and stops.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::parked::OutOfService;

/// The stage of service of this member. The core reports what happens; other parts check which actions are
/// still allowed.
pub(super) struct Lifecycle {
    /// Channel that is signalled once, when this member may serve clients; `None` after that.
    ready: Option<SyncSender<()>>,
    /// The reason why this member is out of service, if it is.
    parked: Option<OutOfService>,
    /// Time at which this member was asked to stop.
    stopping: Option<Instant>,
    /// True if this member is stopping and has transferred leadership, or no transfer is needed.
    handed_over: bool,
    /// True if this member led when it was asked to stop.
    resigned: bool,
}

impl Lifecycle {
    /// Returns the state of a member that starts. `ready` is signalled once the member may serve clients.
    pub fn new(ready: SyncSender<()>) -> Lifecycle {
        Lifecycle { ready: Some(ready), parked: None, stopping: None, handed_over: false, resigned: false }
    }

    /// Signals that clients may be served; later calls do nothing.
    pub fn serve(&mut self) {
        if let Some(ready) = self.ready.take() {
            // Boot waits for the signal. If it has given up waiting, the channel is closed and the member is
            // about to stop.
            let _ = ready.try_send(());
        }
    }

    /// Takes the member out of service.
    pub fn park(&mut self, parked: OutOfService) {
        self.parked = Some(parked);
    }

    /// Returns the reason why this member is out of service, if it is.
    pub fn parked(&self) -> Option<&OutOfService> {
        self.parked.as_ref()
    }

    /// Returns true if this member is out of service.
    pub fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Records that this member was asked to stop.
    pub fn stop(&mut self, now: Instant) {
        self.stopping = Some(now);
    }

    /// Returns the time at which this member was asked to stop, if it was.
    pub fn stopping(&self) -> Option<Instant> {
        self.stopping
    }

    /// Returns true if this member was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Returns the time at which this member was asked to stop, while leadership still has to be transferred;
    /// otherwise `None`.
    pub fn has_to_hand_over(&self) -> Option<Instant> {
        self.stopping.filter(|_| !self.handed_over)
    }

    /// Records that leadership was transferred, or that no transfer is needed.
    pub fn hands_over(&mut self) {
        self.handed_over = true;
    }

    /// Returns true if a stopping member has transferred leadership, or no transfer was needed.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over
    }

    /// Records that this member led when it was asked to stop.
    pub fn resigns(&mut self) {
        self.resigned = true;
    }

    /// Returns true if this member led when it was asked to stop.
    pub fn has_resigned(&self) -> bool {
        self.resigned
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_member_signals_once_that_it_serves_and_hands_over_once_when_it_stops() {
        let (ready, signal) = mpsc::sync_channel(2);
        let (mut lifecycle, now) = (Lifecycle::new(ready), Instant::now());
        lifecycle.serve();
        lifecycle.serve();
        assert_eq!(signal.iter().count(), 1);
        assert_eq!(lifecycle.has_to_hand_over(), None);
        lifecycle.stop(now);
        assert_eq!((lifecycle.stopping(), lifecycle.has_to_hand_over()), (Some(now), Some(now)));
        lifecycle.hands_over();
        assert_eq!((lifecycle.stopping(), lifecycle.has_to_hand_over()), (Some(now), None));
    }
}
