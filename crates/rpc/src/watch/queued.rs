//! Responses that wait in a stream's queue: [`Queued`].

use api::etcdserverpb::WatchResponse;
use bytes::Bytes;
use front::Messages;

use super::response;

/// Memory in bytes that a waiting response takes in addition to its own bytes.
pub(super) const QUEUED_BYTES: usize = 128;

/// Maximum length in bytes of a short response. Each stream has its own copy of a short response, in one
/// buffer with other short responses of the stream. Sharing a short response between streams would cost more
/// than copying it, and each stream would still need [`QUEUED_BYTES`] for it.
pub(super) const SHORT_BYTES: usize = 512;

/// Bytes of the waiting responses.
pub(super) enum Body {
    /// A response that only this stream sends.
    One(Bytes),
    /// A response that several streams send. Memory for its bytes has already been reserved by
    /// `Stream::share`.
    Shared(Bytes),
    /// Responses of at most [`SHORT_BYTES`], with the same number of events each.
    Short(Messages),
}

impl Body {
    /// Returns the number of responses.
    pub fn responses(&self) -> u32 {
        match self {
            Body::One(_) | Body::Shared(_) => 1,
            Body::Short(messages) => messages.len() as u32,
        }
    }

    /// Returns the number of bytes that the responses take on the wire.
    pub fn bytes(&self) -> usize {
        match self {
            Body::One(bytes) | Body::Shared(bytes) => bytes.len(),
            Body::Short(messages) => messages.wire_bytes(),
        }
    }
}

/// A waiting response, or several short ones that are sent together.
pub(super) struct Queued {
    /// The encoded responses.
    pub body: Body,
    /// Number of events in all responses together.
    pub events: u32,
}

impl Queued {
    /// Returns an entry for a response without events.
    pub fn control(response: &WatchResponse) -> Queued {
        Queued { body: Body::One(response::control(response)), events: 0 }
    }

    /// Returns a response with this number of events whose bytes may be shared with other streams; `bytes`
    /// come from `Stream::share`.
    pub fn shared(bytes: Bytes, events: u32) -> Queued {
        Queued { body: Body::Shared(bytes), events }
    }

    /// Returns the number of bytes to reserve in the memory account of the client's connection while the
    /// response waits.
    pub fn charged_bytes(&self) -> usize {
        match &self.body {
            Body::One(bytes) => QUEUED_BYTES + bytes.len(),
            Body::Shared(_) => QUEUED_BYTES,
            Body::Short(messages) => QUEUED_BYTES * messages.len() + messages.wire_bytes(),
        }
    }
}
