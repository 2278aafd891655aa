//! Why a stream or a connection ended: [`Reason`] is the code on the wire, [`ConnectionError`] what this end found.

use std::fmt;

/// An error code (RFC 9113, section 7). Codes that are not known are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u32);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Reason {
            $($(#[$doc])* pub const $name: Reason = Reason($code);)*

            /// Returns the name that the standard gives to the code, if it has one.
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
    /// The other end did what the protocol does not allow, and no other code says what.
    PROTOCOL_ERROR = 0x1;
    /// The end that says so has failed.
    INTERNAL_ERROR = 0x2;
    /// More was sent than the flow-control window allowed, or a window exceeds 2^31-1.
    FLOW_CONTROL_ERROR = 0x3;
    /// SETTINGS were not acknowledged in time.
    SETTINGS_TIMEOUT = 0x4;
    /// A frame came for a stream that was half-closed or closed.
    STREAM_CLOSED = 0x5;
    /// A frame has a size that its type does not allow.
    FRAME_SIZE_ERROR = 0x6;
    /// The stream was refused before anything was done for it: the request may be repeated.
    REFUSED_STREAM = 0x7;
    /// The stream is not needed any more.
    CANCEL = 0x8;
    /// A header block cannot be decoded, so the tables of both ends differ.
    COMPRESSION_ERROR = 0x9;
    /// The connection of a CONNECT request was reset.
    CONNECT_ERROR = 0xa;
    /// The other end causes too much load.
    ENHANCE_YOUR_CALM = 0xb;
    /// The transport is not secure enough.
    INADEQUATE_SECURITY = 0xc;
    /// HTTP/1.1 is required.
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

/// A bound that the other end exceeded so often that its connection was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`crate::Limits::early_resets`]
    EarlyResets,
    /// [`crate::Limits::provoked_resets`]
    ProvokedResets,
    /// [`crate::Limits::settings`]
    Settings,
    /// [`crate::Limits::pings`]
    Pings,
    /// [`crate::Limits::empty_data`]
    EmptyData,
    /// [`crate::Limits::goaways`]
    GoAways,
    /// [`crate::Limits::continuations_max`]
    Continuations,
    /// [`crate::Limits::block_bytes_max`]
    HeaderBlock,
    /// A header list of more than four times [`crate::Options::header_list_bytes_max`]
    HeaderList,
}

impl Limit {
    /// Returns the limit's name as GOAWAY tells it to the other end. `too_many_pings` is a word of gRPC: clients that read
    /// it ping less often from then on.
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

/// What the other end did that ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The protocol does not allow it; the text says what, in English.
    Violation(&'static str),
    /// The protocol allows it, but not so often or so much.
    Limit(Limit),
}

/// An error that ends a connection (RFC 9113, section 5.4.1). When it is returned, GOAWAY with [`ConnectionError::reason`]
/// is in the output already, with the cause as its debug data: what is left to do is to write the output and to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// The code that was sent with GOAWAY.
    pub reason: Reason,
    /// What the other end did.
    pub cause: Cause,
}

impl ConnectionError {
    pub(crate) const fn violation(reason: Reason, what: &'static str) -> ConnectionError {
        ConnectionError { reason, cause: Cause::Violation(what) }
    }

    pub(crate) const fn limit(limit: Limit) -> ConnectionError {
        ConnectionError { reason: Reason::ENHANCE_YOUR_CALM, cause: Cause::Limit(limit) }
    }

    /// Returns the cause as text: an English phrase, or the name of a limit.
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
