use std::sync::Arc;

use crate::fields::Fields;
use crate::reason::Reason;
use crate::stream::Key;

/// What the other end said, as [`crate::Connection::next`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A request began (server), or the response to one (client).
    Head {
        /// The stream. At a server it is new.
        stream: Key,
        /// The header list. Requests that are alike share one.
        fields: Arc<Fields>,
        /// True if no body follows.
        end: bool,
    },
    /// A response with a status from 100 to 199 came; the actual one follows. Only clients see it.
    Informational {
        /// The stream.
        stream: Key,
        /// The header list.
        fields: Arc<Fields>,
    },
    /// A part of the body came, as long as its frame. The consumer gives it back to the window with
    /// [`crate::Connection::release`]; what is not given back stops the sender.
    Data {
        /// The stream.
        stream: Key,
        /// The bytes, where they were read. Empty only with `end`.
        bytes: &'a [u8],
        /// True if the body ends, without trailers.
        end: bool,
    },
    /// The body ended with trailers.
    Trailers {
        /// The stream.
        stream: Key,
        /// The header list, without pseudo-header fields.
        fields: Arc<Fields>,
    },
    /// The stream is over before its time. Its key is of no use any more.
    Reset {
        /// The stream. It was seen before.
        stream: Key,
        /// Why. [`Reason::REFUSED_STREAM`] by the peer means that nothing was done for it, also after GOAWAY.
        reason: Reason,
        /// True if the other end ended it, false if this end did because of a mistake of the other.
        by_peer: bool,
    },
    /// A PING came. It is answered already; the caller may judge how often they come.
    Pinged,
    /// The answer to [`crate::Connection::ping`] with this number.
    Pong(u64),
    /// SETTINGS came, and are in force and acknowledged.
    Settings,
    /// The other end takes no more streams: those above `last` that are open end as [`Event::Reset`].
    GoAway {
        /// The last stream of this end that it took or will take.
        last: u32,
        /// Why.
        reason: Reason,
        /// What it adds, for logs.
        debug: &'a [u8],
    },
}
