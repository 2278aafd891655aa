//! Defines the errors of communication between members, with messages for the operator.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;
use http::header::InvalidHeaderValue;
use http::uri::InvalidUri;

/// Error of an implementation of [`crate::Handler`] or [`crate::SnapshotSource`]; only its message is used
/// here.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Error for a peer URL that cannot be used.
#[derive(Debug)]
pub struct UrlError {
    /// URL that is refused.
    pub url: String,
    /// Reason for the refusal.
    pub fault: UrlFault,
}

/// Reason why a peer URL is refused.
#[derive(Debug)]
pub enum UrlFault {
    /// The string is not a URI.
    Syntax(InvalidUri),
    /// The URL requires TLS, but this member has no TLS settings for connections to other members.
    Tls,
    /// The URI is not a peer URL. Contains the rule that the URI violates.
    Form(&'static str),
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UrlError { url, fault } = self;
        match fault {
            UrlFault::Syntax(error) => write!(f, "peer URL {url:?} is invalid: {error}"),
            UrlFault::Tls => write!(f, "peer URL {url:?}: this member has no TLS settings to dial it"),
            UrlFault::Form(what) => write!(f, "peer URL {url:?} is invalid: {what}"),
        }
    }
}

impl Error for UrlError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.fault {
            UrlFault::Syntax(error) => Some(error),
            UrlFault::Tls | UrlFault::Form(_) => None,
        }
    }
}

/// Error returned when none of the peer URLs of a member can be used.
#[derive(Debug)]
pub(crate) struct NoUrl {
    pub(crate) member_id: u64,
}

impl fmt::Display for NoUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no usable peer URL of member {:x}", self.member_id)
    }
}

impl Error for NoUrl {}

/// Reason why a request to a member or to a URL was not answered.
#[derive(Debug)]
pub enum RequestError {
    /// The URL cannot be used.
    Url(UrlError),
    /// No member has this id.
    UnknownMember(u64),
    /// None of the peer URLs of the member with this id can be used.
    NoUrl(u64),
    /// The request cannot be encoded as HTTP.
    Request(http::Error),
    /// The connection failed, or no complete answer arrived in time.
    Failed {
        /// Recipient of the request: a URL, or a member's id and address.
        to: String,
        /// Reason why the recipient did not answer.
        error: ExchangeError,
    },
    /// Too many requests of this member are in flight.
    TooMany,
    /// This member is stopping.
    Stopping,
}

impl From<UrlError> for RequestError {
    fn from(error: UrlError) -> RequestError {
        RequestError::Url(error)
    }
}

impl From<NoUrl> for RequestError {
    fn from(error: NoUrl) -> RequestError {
        RequestError::NoUrl(error.member_id)
    }
}

impl From<http::Error> for RequestError {
    fn from(error: http::Error) -> RequestError {
        RequestError::Request(error)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Url(error) => error.fmt(f),
            RequestError::UnknownMember(id) => write!(f, "member {id:x} is unknown"),
            RequestError::NoUrl(id) => NoUrl { member_id: *id }.fmt(f),
            RequestError::Request(error) => error.fmt(f),
            RequestError::Failed { to, error } => write!(f, "{to}: {error}"),
            RequestError::TooMany => f.write_str("too many requests to peers are in progress"),
            RequestError::Stopping => f.write_str("the member is stopping"),
        }
    }
}

impl Error for RequestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RequestError::Url(error) => error.source(),
            RequestError::Request(error) => error.source(),
            RequestError::Failed { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Reason why a server did not answer a request.
#[derive(Debug)]
pub enum ExchangeError {
    /// The address of the server is not a valid header value.
    Host(InvalidHeaderValue),
    /// The connection to the server cannot be opened.
    Connect(io::Error),
    /// The connection broke, or the received data is not HTTP.
    Http(hyper::Error),
    /// The answer was cut off or is too long.
    BrokenOff(BoxError),
    /// No answer arrived within this time.
    TimedOut(Duration),
}

impl From<hyper::Error> for ExchangeError {
    fn from(error: hyper::Error) -> ExchangeError {
        ExchangeError::Http(error)
    }
}

impl From<InvalidHeaderValue> for ExchangeError {
    fn from(error: InvalidHeaderValue) -> ExchangeError {
        ExchangeError::Host(error)
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExchangeError::Host(error) => error.fmt(f),
            ExchangeError::Connect(error) => error.fmt(f),
            ExchangeError::Http(error) => f.write_str(&http_text(error)),
            ExchangeError::BrokenOff(error) => write!(f, "the answer broke off: {error}"),
            ExchangeError::TimedOut(timeout) => write!(f, "no answer within {timeout:?}"),
        }
    }
}

impl Error for ExchangeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ExchangeError::Host(error) => Some(error),
            ExchangeError::Connect(error) => Some(error),
            ExchangeError::Http(error) => Some(error),
            ExchangeError::BrokenOff(error) => Some(&**error),
            ExchangeError::TimedOut(_) => None,
        }
    }
}

/// Formats an error of hyper together with its cause, because only the cause says what went wrong.
pub(crate) fn http_text(error: &hyper::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Reason why a member did not accept a posted message or snapshot.
#[derive(Debug)]
pub(crate) enum PostError {
    /// None of the member's URLs can be used.
    NoUrl(NoUrl),
    /// The exchange failed.
    Exchange(ExchangeError),
    /// The peer refused a message. Contains the status and the body of its answer.
    Message(StatusCode, String),
    /// The peer refused a snapshot, or the request that precedes it, for the data that the peer already has.
    /// Contains the status and the body of the peer's answer.
    Snapshot(StatusCode, String),
    /// The peer was removed or replaced before the snapshot could be sent.
    Left { member_id: u64 },
    /// The receiver did not answer the request for the data that it already has, which precedes a snapshot.
    Asking(RequestError),
    /// No member had the receiver's id when the snapshot was to be sent.
    Unknown,
    /// This member is stopping.
    Stopping,
    /// The snapshot could not be opened.
    Source(BoxError),
    /// This member failed to read the snapshot. Contains the message of the error; the error itself was
    /// passed to the connection, which it ends.
    BrokenOff(String),
}

impl From<NoUrl> for PostError {
    fn from(error: NoUrl) -> PostError {
        PostError::NoUrl(error)
    }
}

impl From<ExchangeError> for PostError {
    fn from(error: ExchangeError) -> PostError {
        PostError::Exchange(error)
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostError::NoUrl(error) => error.fmt(f),
            PostError::Exchange(error) => error.fmt(f),
            PostError::Message(status, text) => write!(f, "{status} to POST /raft: {text}"),
            PostError::Snapshot(status, text) => write!(f, "the receiver answered {status}: {text}"),
            PostError::Asking(error) => write!(f, "the receiver did not say what it has: {error}"),
            PostError::Left { member_id } => RequestError::UnknownMember(*member_id).fmt(f),
            PostError::Unknown => f.write_str("unknown member"),
            PostError::Stopping => f.write_str("the member is stopping"),
            PostError::Source(error) => error.fmt(f),
            PostError::BrokenOff(text) => f.write_str(text),
        }
    }
}

impl Error for PostError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PostError::Exchange(error) => error.source(),
            PostError::Asking(error) => error.source(),
            PostError::Source(error) => error.source(),
            _ => None,
        }
    }
}
