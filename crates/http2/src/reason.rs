//! Defines reasons for the end of a stream or connection: [`Reason`] is the error code on the wire,
//! [`ConnectionError`] an error that this end has detected.

use std::fmt;

/// Error code (RFC 9113, section 7). Codes that the standard does not define are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u32);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Reason {
            $($(#[$doc])* pub const $name: Reason = Reason($code);)*

            /// Returns the name of the code in the standard; `None` for an unknown code.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// Graceful shutdown, or a request whose rest is not needed.
    NO_ERROR = 0x0;
    /// The peer violated the protocol in a way that no other code describes.
    PROTOCOL_ERROR = 0x1;
    /// The sender of this code has an internal error.
    INTERNAL_ERROR = 0x2;
    /// More was sent than the flow-control window allowed, or a window exceeds 2^31-1.
    FLOW_CONTROL_ERROR = 0x3;
    /// SETTINGS were not acknowledged in time.
    SETTINGS_TIMEOUT = 0x4;
    /// A frame arrived for a stream that was half-closed or closed.
    STREAM_CLOSED = 0x5;
    /// A frame has a size that its type does not allow.
    FRAME_SIZE_ERROR = 0x6;
    /// The stream was refused before any processing, so the request may be retried.
    REFUSED_STREAM = 0x7;
    /// The stream is not needed any more.
    CANCEL = 0x8;
    /// A header block cannot be decoded, so the compression tables of both ends differ.
    COMPRESSION_ERROR = 0x9;
    /// The connection of a CONNECT request was reset.
    CONNECT_ERROR = 0xa;
    /// The peer causes too much load.
    ENHANCE_YOUR_CALM = 0xb;
    /// The properties of the transport do not meet the minimum requirements for security.
    INADEQUATE_SECURITY = 0xc;
    /// The request must be made with HTTP/1.1 instead.
    HTTP_1_1_REQUIRED = 0xd;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "0x{:x}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Limit that the peer has exceeded, which ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The peer has exceeded the rate limit [`crate::Limits::early_resets`].
    EarlyResets,
    /// The peer has exceeded the rate limit [`crate::Limits::provoked_resets`].
    ProvokedResets,
    /// The peer has exceeded the rate limit [`crate::Limits::settings`].
    Settings,
    /// The peer has exceeded the rate limit [`crate::Limits::pings`].
    Pings,
    /// The peer has exceeded the rate limit [`crate::Limits::empty_data`].
    EmptyData,
    /// The peer has exceeded the rate limit [`crate::Limits::goaways`].
    GoAways,
    /// A header block has more CONTINUATION frames than [`crate::Limits::continuations_max`].
    Continuations,
    /// A header block in several frames is larger than [`crate::Limits::block_bytes_max`].
    HeaderBlock,
    /// A decoded header list is larger than four times [`crate::Options::header_list_bytes_max`].
    HeaderList,
}

impl Limit {
    /// Returns the name of the limit that is sent in GOAWAY. gRPC defines the name `too_many_pings`: clients
    /// that receive it ping less often.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::EarlyResets => "too_many_early_resets",
            Limit::ProvokedResets => "too_many_stream_errors",
            Limit::Settings => "too_many_settings",
            Limit::Pings => "too_many_pings",
            Limit::EmptyData => "too_many_empty_data_frames",
            Limit::GoAways => "too_many_goaways",
            Limit::Continuations => "too_many_continuations",
            Limit::HeaderBlock => "header_block_too_large",
            Limit::HeaderList => "header_list_too_large",
        }
    }
}

/// Behavior of the peer that ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A protocol violation, described by an English phrase.
    Violation(&'static str),
    /// A limit was exceeded by behavior that the protocol allows.
    Limit(Limit),
}

/// Error that ends a connection (RFC 9113, section 5.4.1). When it is returned, the output already contains a
/// GOAWAY with [`ConnectionError::reason`] and the cause as debug data; the caller only has to write the
/// output and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// Error code that was sent with GOAWAY.
    pub reason: Reason,
    /// Behavior of the peer that caused the error.
    pub cause: Cause,
}

impl ConnectionError {
    pub(crate) const fn violation(reason: Reason, what: &'static str) -> ConnectionError {
        ConnectionError { reason, cause: Cause::Violation(what) }
    }

    pub(crate) const fn limit(limit: Limit) -> ConnectionError {
        ConnectionError { reason: Reason::ENHANCE_YOUR_CALM, cause: Cause::Limit(limit) }
    }

    /// Returns the cause as a string: an English phrase, or the name of a limit.
    pub const fn text(&self) -> &'static str {
        match self.cause {
            Cause::Violation(what) => what,
            Cause::Limit(limit) => limit.name(),
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.text())
    }
}

impl std::error::Error for ConnectionError {}
