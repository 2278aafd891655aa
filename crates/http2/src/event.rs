use std::sync::Arc;

use crate::fields::Fields;
use crate::reason::Reason;
use crate::stream::Key;

/// Something that has arrived from the peer, as returned by [`crate::Connection::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A request began (at a server), or its response began (at a client).
    Head {
        /// Stream of the request. At a server it is new.
        stream: Key,
        /// Header list. Requests with equal header lists may share one value.
        fields: Arc<Fields>,
        /// True if no body follows.
        end: bool,
    },
    /// A response with a status from 100 to 199 arrived; the final response follows. Only at a client.
    Informational {
        /// Stream of the request.
        stream: Key,
        /// Header list of the informational response.
        fields: Arc<Fields>,
    },
    /// A part of a body arrived: the payload of one DATA frame. The consumer must return its bytes to the
    /// flow-control window with [`crate::Connection::release`]; otherwise the peer must stop sending when the
    /// window is used up.
    Data {
        /// Stream of the body.
        stream: Key,
        /// Bytes of the body, borrowed from the input. Empty only if `end` is true.
        bytes: &'a [u8],
        /// True if the body ends here, without trailers.
        end: bool,
    },
    /// A body ended with trailers.
    Trailers {
        /// Stream of the body.
        stream: Key,
        /// Trailers, without pseudo-header fields.
        fields: Arc<Fields>,
    },
    /// A stream ended before request and response were complete. Its key is invalid from now on.
    Reset {
        /// Stream that ended; an earlier event or command introduced it.
        stream: Key,
        /// Error code. [`Reason::REFUSED_STREAM`] from the peer means that the request was not processed; the
        /// same code is reported for streams that a GOAWAY refuses.
        reason: Reason,
        /// True if the peer ended the stream; false if this end did, because of an error of the peer.
        by_peer: bool,
    },
    /// A PING arrived. Its acknowledgement is already in the output. The event lets the caller limit the rate
    /// of PINGs.
    Pinged,
    /// The acknowledgement of [`crate::Connection::ping`] with this number arrived.
    Pong(u64),
    /// SETTINGS arrived, and were applied and acknowledged.
    Settings,
    /// The peer accepts no more streams. Open streams of this end above `last` end with an [`Event::Reset`]
    /// each.
    GoAway {
        /// Highest identifier of a stream of this end that the peer has processed or will process.
        last: u32,
        /// Error code.
        reason: Reason,
        /// Additional debug data, for logs.
        debug: &'a [u8],
    },
}
