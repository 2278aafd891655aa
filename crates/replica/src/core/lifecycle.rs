//! Tracks the stages of a member's service: it starts, serves clients, may be taken out of service, and
//! stops.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::parked::OutOfService;

/// The stage of service of this member. The core reports events to this type, and its other parts ask which
/// actions are still allowed.
pub(super) struct Lifecycle {
    /// Channel that is signaled once, when this member may serve clients; `None` after that.
    ready: Option<SyncSender<()>>,
    /// The reason why this member is out of service, if it is.
    parked: Option<OutOfService>,
    /// Time at which this member was asked to stop.
    stopping: Option<Instant>,
    /// True once a stopping member has begun to transfer leadership, or has found that it does not lead or
    /// that no member can take over.
    handed_over: bool,
    /// True if this member, as a stopping leader, has begun to transfer leadership.
    resigned: bool,
}

impl Lifecycle {
    /// Returns the value for a member that starts. `ready` is signaled once the member may serve clients.
    pub fn new(ready: SyncSender<()>) -> Lifecycle {
        Lifecycle { ready: Some(ready), parked: None, stopping: None, handed_over: false, resigned: false }
    }

    /// Signals that clients may be served; later calls do nothing.
    pub fn serve(&mut self) {
        if let Some(ready) = self.ready.take() {
            // An error is ignored: it means that boot no longer waits for the signal, because the member is
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

    /// Returns the time at which this member was asked to stop, if it still has to transfer leadership or to
    /// find out that no transfer is needed; otherwise `None`.
    pub fn has_to_hand_over(&self) -> Option<Instant> {
        self.stopping.filter(|_| !self.handed_over)
    }

    /// Records that the transfer of leadership is begun now, or is not possible or not needed.
    pub fn hands_over(&mut self) {
        self.handed_over = true;
    }

    /// Returns true if a stopping member need not begin a transfer of leadership any more.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over
    }

    /// Records that this member, as a stopping leader, begins to transfer leadership.
    pub fn resigns(&mut self) {
        self.resigned = true;
    }

    /// Returns true if this member, as a stopping leader, has begun to transfer leadership.
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
