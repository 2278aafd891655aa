//! The queue of responses for the client of one stream. The hub's thread fills the queue, and the thread of
//! the shard that serves the stream sends the responses to the client.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::Status;
use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// Maximum size of the queued responses in bytes. Events that would exceed it are refused, unless the queue
/// is empty.
const BYTES_MAX: usize = 4 << 20;
/// Maximum number of queued responses. Further events are refused; answers to requests are not.
const RESPONSES_MAX: usize = 4096;
/// Maximum number of queued answers of a stream of watches. While so many are queued, no further request of
/// the stream is read.
const ANSWERS_MAX: usize = 128;

/// Granularity of the memory reservation for a queue, in bytes. The reservation in the memory account of the
/// client's connection is updated as soon as it differs from the size of the queue by this much.
pub(crate) const CHARGE_STEP_BYTES: usize = 32 << 10;

/// Queue of responses for the client of one stream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The queue of responses, and the status with which the stream ends.
    state: Mutex<State>,
    /// Notified when [`Outbox::next`] may have something to return.
    changed: Notify,
    /// Notified when the number of queued answers falls below [`ANSWERS_MAX`].
    has_room: Notify,
    /// Notified when [`State::bytes`] and [`State::charged`] differ by [`CHARGE_STEP_BYTES`] or more.
    outgrown: Notify,
}

/// A response that is queued for the client.
#[derive(Debug)]
struct Waiting {
    /// The response as an encoded protobuf message.
    message: Bytes,
    /// True for an answer to a request of the client, false for events.
    is_answer: bool,
    /// Permit that the shard drops once it has sent the response to the client; `None` if the response needs
    /// no permit.
    place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Default)]
struct State {
    /// Responses in the order in which the client gets them.
    queue: VecDeque<Waiting>,
    /// Total size of the responses in [`State::queue`], in bytes.
    bytes: usize,
    /// Size of the memory reservation for the queue, in bytes: the last result of [`Outbox::to_charge`].
    charged: usize,
    /// Number of answers in [`State::queue`]; the others are events.
    answers: usize,
    /// Status with which the stream ends once [`State::queue`] is sent; `None` while the stream continues.
    end: Option<Status>,
    /// True if events were refused since [`State::queue`] was last empty.
    refused: bool,
}

/// Action that the shard has to carry out next for a stream.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send this encoded response, and then drop the permit, if there is one.
    Message(Bytes, Option<OwnedSemaphorePermit>),
    /// Tell the hub that the queue is empty and accepts events again, because [`Outbox::offer`] has refused
    /// events before.
    Drained,
    /// End the stream with this status; the queue is empty.
    End(Status),
}

impl Outbox {
    /// Queues the answer to a request of the client, even if the queue is full. The number of queued answers
    /// stays bounded nevertheless: the next request of the client is read only after this answer is queued
    /// and [`Outbox::room`] has returned.
    pub(crate) fn answer(&self, message: Bytes) {
        self.push(Waiting { message, is_answer: true, place: None });
    }

    /// Queues the answer to a request of the client, even if the queue is full. `place` is the permit of the
    /// request, and is dropped once the shard has sent the answer to the client.
    pub(crate) fn answer_in_place(&self, message: Bytes, place: OwnedSemaphorePermit) {
        self.push(Waiting { message, is_answer: true, place: Some(place) });
    }

    /// Waits until fewer than [`ANSWERS_MAX`] answers are queued. Only one task at a time may wait.
    pub(crate) async fn room(&self) {
        while self.state().answers >= ANSWERS_MAX {
            // `Notify` stores a notification that arrives between the check and this await, so it is not
            // lost.
            self.has_room.notified().await;
        }
    }

    /// Waits until the memory reservation for the queue has to be updated, and returns its new size: the
    /// total size of the queued responses in bytes. Only one task at a time may wait.
    pub(crate) async fn to_charge(&self) -> usize {
        loop {
            let outgrown = self.outgrown.notified();
            {
                let mut state = self.state();
                if state.is_outgrown() {
                    state.charged = state.bytes;
                    return state.bytes;
                }
            }
            outgrown.await;
        }
    }

    fn push(&self, waiting: Waiting) {
        let mut state = self.state();
        state.push(waiting);
        self.pushed(state);
    }

    /// Wakes the tasks that wait for this queue, after a response was added.
    fn pushed(&self, state: MutexGuard<'_, State>) {
        let is_outgrown = state.is_outgrown();
        drop(state);
        self.changed.notify_one();
        if is_outgrown {
            self.outgrown.notify_one();
        }
    }

    /// Queues events and returns true. Returns false if the queue is full; in that case, [`Outbox::next`]
    /// returns [`Next::Drained`] once the queue is empty.
    pub(crate) fn offer(&self, message: &Bytes) -> bool {
        let mut state = self.state();
        let is_full = state.bytes + message.len() > BYTES_MAX || state.queue.len() >= RESPONSES_MAX;
        if is_full && !state.queue.is_empty() {
            state.refused = true;
            return false;
        }
        state.push(Waiting { message: message.clone(), is_answer: false, place: None });
        self.pushed(state);
        true
    }

    /// Makes the stream end with this status once all queued responses are sent. If a status was set before,
    /// that status stays.
    pub(crate) fn end(&self, status: Status) {
        self.state().end.get_or_insert(status);
        self.changed.notify_one();
    }

    /// Waits until the shard has to act for the stream, and returns the action. Only one task at a time may
    /// wait.
    pub(crate) async fn next(&self) -> Next {
        loop {
            let waited = self.changed.notified();
            {
                let mut state = self.state();
                if let Some(Waiting { message, place, .. }) = self.pop(&mut state) {
                    return Next::Message(message, place);
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

    /// Takes the next response out of the queue; `None` if the queue is empty.
    #[cfg(test)]
    pub(crate) fn rest(&self) -> Option<Bytes> {
        self.pop(&mut self.state()).map(|waiting| waiting.message)
    }

    fn pop(&self, state: &mut State) -> Option<Waiting> {
        let waiting = state.queue.pop_front()?;
        state.bytes -= waiting.message.len();
        if state.is_outgrown() {
            self.outgrown.notify_one();
        }
        state.answers -= usize::from(waiting.is_answer);
        if waiting.is_answer && state.answers + 1 == ANSWERS_MAX {
            self.has_room.notify_one();
        }
        Some(waiting)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock, so poisoning is ignored.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns true if the memory reservation for the queue has to be updated.
    fn is_outgrown(&self) -> bool {
        self.bytes.abs_diff(self.charged) >= CHARGE_STEP_BYTES
    }

    fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.message.len();
        self.answers += usize::from(waiting.is_answer);
        self.queue.push_back(waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn requests_wait_while_their_answers_are_not_taken() {
        let outbox = Outbox::default();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..ANSWERS_MAX {
            assert!(pin!(outbox.room()).poll(&mut context).is_ready());
            outbox.answer(Bytes::from_static(b"answer"));
        }
        let mut room = pin!(outbox.room());
        assert!(room.as_mut().poll(&mut context).is_pending());
        let next = pin!(outbox.next()).poll(&mut context);
        assert!(matches!(next, Poll::Ready(Next::Message(..))));
        assert!(room.as_mut().poll(&mut context).is_ready());
        // Queued events do not block the client's requests: the client has to be able to cancel a watch.
        for _ in 0..ANSWERS_MAX {
            assert!(outbox.offer(&Bytes::from_static(b"event")));
        }
        assert!(pin!(outbox.room()).poll(&mut context).is_ready());
    }
}
