//! What waits for the client of one stream, filled by the hub's thread and emptied by the shard's.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::Status;
use bytes::Bytes;
use tokio::sync::Notify;

/// Bytes of events that may wait.
const BYTES_MAX: usize = 4 << 20;
/// Responses with events that may wait.
const RESPONSES_MAX: usize = 4096;

/// Responses on their way to the client of one stream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Bytes>,
    bytes: usize,
    /// How the stream ends, behind the queue.
    end: Option<Status>,
    /// Something was refused since the queue was empty for the last time.
    refused: bool,
}

/// What the shard has to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send this.
    Message(Bytes),
    /// All was sent, and the hub was refused something: it may go on.
    Drained,
    /// End the stream.
    End(Status),
}

impl Outbox {
    /// Queues an answer to a request of the client, which is never refused: there is one for each request, and the next
    /// request waits for it.
    pub(crate) fn answer(&self, message: Bytes) {
        let mut state = self.state();
        state.bytes += message.len();
        state.queue.push_back(message);
        drop(state);
        self.changed.notify_one();
    }

    /// Queues events, unless so much waits already: then returns false, and [`Next::Drained`] follows when there is room.
    pub(crate) fn offer(&self, message: &Bytes) -> bool {
        let mut state = self.state();
        let is_full = state.bytes + message.len() > BYTES_MAX || state.queue.len() >= RESPONSES_MAX;
        if is_full && !state.queue.is_empty() {
            state.refused = true;
            return false;
        }
        state.bytes += message.len();
        state.queue.push_back(message.clone());
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Ends the stream once the queue is sent.
    pub(crate) fn end(&self, status: Status) {
        self.state().end.get_or_insert(status);
        self.changed.notify_one();
    }

    /// Waits for what to do next. Only one task may wait.
    pub(crate) async fn next(&self) -> Next {
        loop {
            let waited = self.changed.notified();
            {
                let mut state = self.state();
                if let Some(message) = state.queue.pop_front() {
                    state.bytes -= message.len();
                    return Next::Message(message);
                }
                if let Some(status) = &state.end {
                    return Next::End(status.clone());
                }
                if std::mem::take(&mut state.refused) {
                    return Next::Drained;
                }
            }
            waited.await;
        }
    }

    /// The next response, if one waits.
    pub(crate) fn rest(&self) -> Option<Bytes> {
        let mut state = self.state();
        let message = state.queue.pop_front()?;
        state.bytes -= message.len();
        Some(message)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
