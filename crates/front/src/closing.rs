//! Signals the shutdown of a front: [`Closing`] is the receiver in shards and services, [`Close`] the sender
//! in tests and in services without a front.

use tokio::sync::watch;

/// Progress of a front's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// The front serves its clients.
    NotBegun,
    /// Connections close when their calls have ended.
    Graceful,
    /// Connections close now.
    Immediate,
}

/// Signals services that the front is shutting down, so that endless streams can end with their own status.
#[derive(Clone, Debug)]
pub struct Closing(pub(crate) watch::Receiver<Shutdown>);

/// Sender of the shutdown signal. Dropping it also makes [`Closing::begun`] resolve.
#[derive(Debug)]
pub struct Close(watch::Sender<Shutdown>);

impl Close {
    /// Begins the shutdown.
    pub fn begin(&self) {
        self.0.send_replace(Shutdown::Graceful);
    }
}

impl Closing {
    /// Returns both ends of a shutdown signal, for services that run without a front.
    pub fn by_hand() -> (Close, Closing) {
        let (close, closing) = watch::channel(Shutdown::NotBegun);
        (Close(close), Closing(closing))
    }

    /// Returns true if shutdown has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow() != Shutdown::NotBegun
    }

    /// Resolves when shutdown begins.
    pub async fn begun(&mut self) {
        // The error is ignored: it means that the front was dropped, which also counts as the beginning of
        // the shutdown.
        let _ = self.0.wait_for(|shutdown| *shutdown != Shutdown::NotBegun).await;
    }

    /// Resolves when connections must close without waiting for their calls.
    pub(crate) async fn immediate(&mut self) {
        // The error is ignored: it means that the front was dropped, in which case connections must also
        // close immediately.
        let _ = self.0.wait_for(|shutdown| *shutdown == Shutdown::Immediate).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll(future: impl Future<Output = ()>) -> Poll<()> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_shutdown_begins_before_it_is_immediate() {
        let (sender, receiver) = watch::channel(Shutdown::NotBegun);
        let mut closing = Closing(receiver);
        assert!(!closing.has_begun() && poll(closing.begun()).is_pending());
        sender.send_replace(Shutdown::Graceful);
        assert!(closing.has_begun() && poll(closing.begun()).is_ready());
        assert!(poll(closing.immediate()).is_pending());
        sender.send_replace(Shutdown::Immediate);
        assert!(poll(closing.begun()).is_ready() && poll(closing.immediate()).is_ready());
    }

    #[test]
    fn a_front_that_was_dropped_counts_as_shut_down() {
        let (close, mut closing) = Closing::by_hand();
        drop(close);
        assert!(poll(closing.begun()).is_ready() && poll(closing.immediate()).is_ready());
    }
}
