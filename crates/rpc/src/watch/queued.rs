//! Responses that wait in a stream's queue: [`Queued`].

use api::etcdserverpb::WatchResponse;
use bytes::Bytes;
use front::Messages;

use super::response;

/// Memory of a waiting response besides its bytes, in bytes.
pub(super) const QUEUED_BYTES: usize = 128;

/// Bytes of a response that is short: each stream has its own copy, beside others that it sends with it. To share it would cost
/// more than to copy it, and what the copies take is little beside [`QUEUED_BYTES`].
pub(super) const SHORT_BYTES: usize = 512;

/// The bytes of responses that wait.
pub(super) enum Body {
    /// A response of this stream alone.
    One(Bytes),
    /// A response that several streams wait for: it is charged to the front's budget already.
    Shared(Bytes),
    /// Responses of at most [`SHORT_BYTES`], with the same number of events each.
    Short(Messages),
}

impl Body {
    /// Number of responses.
    pub fn responses(&self) -> u32 {
        match self {
            Body::One(_) | Body::Shared(_) => 1,
            Body::Short(messages) => messages.len() as u32,
        }
    }

    /// Bytes that they take on the wire.
    pub fn bytes(&self) -> usize {
        match self {
            Body::One(bytes) | Body::Shared(bytes) => bytes.len(),
            Body::Short(messages) => messages.wire_bytes(),
        }
    }
}

/// A response that waits, or some short ones that are sent together.
pub(super) struct Queued {
    /// The encoded responses.
    pub body: Body,
    /// Number of events in all of them.
    pub events: u32,
}

impl Queued {
    /// A response without events.
    pub fn control(response: &WatchResponse) -> Queued {
        Queued { body: Body::One(response::control(response)), events: 0 }
    }

    /// A response with so many events that several streams may wait for, from `Stream::share`.
    pub fn shared(bytes: Bytes, events: u32) -> Queued {
        Queued { body: Body::Shared(bytes), events }
    }

    /// Returns the bytes charged to the stream's client while it waits.
    pub fn charged_bytes(&self) -> usize {
        match &self.body {
            Body::One(bytes) => QUEUED_BYTES + bytes.len(),
            Body::Shared(_) => QUEUED_BYTES,
            Body::Short(messages) => QUEUED_BYTES * messages.len() + messages.wire_bytes(),
        }
    }
}
