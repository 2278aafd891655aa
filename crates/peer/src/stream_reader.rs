//! Receives messages of a peer on a stream that this member dials: [`run`] dials one stream, reads the
//! messages and passes them to the handler, and dials again when the stream ends. This module does not
//! validate messages.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use stdx::{First, race};

use api::raftpb::{Message, MessageType};
use http::uri::InvalidUri;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;
use transport::end_turn;

use crate::client::name_host;
use crate::decoder::Decoder;
use crate::endpoint::Endpoint;
use crate::error::{ExchangeError, NoUrl, http_text};
use crate::fair_stream::TURN_BYTES;
use crate::identity::{self, RAFT_TO};
use crate::local_member::LocalMember;
use crate::options::{DIAL_PACE, DIAL_PACE_MAX, DIAL_TIMEOUT, Level};
use crate::paths;
use crate::peer::{Kind, Peer};
use crate::request_body::RequestBody;
use crate::socket::Socket;

/// Number of consecutive failed dials after which the interval between dials grows.
const QUICK_DIALS: u32 = 10;
/// Maximum number of bytes that are read from the body of an answer that refuses a stream.
const REFUSAL_BYTES_MAX: usize = 4096;

type Connection = hyper::client::conn::http1::Connection<Socket, RequestBody>;

/// Dials one stream of a peer and reads it, and dials again when it ends. Runs until the task is aborted.
pub(crate) async fn run(local: Rc<LocalMember>, peer: Rc<Peer>, kind: Kind) {
    let mut failures = 0_u32;
    let mut said = String::new();
    loop {
        let begun = Instant::now();
        match dial(&local, &peer, kind).await {
            Ok(stream) => {
                failures = 0;
                said.clear();
                peer.link_up(&local);
                local.log_peer(
                    Level::Info,
                    "established TCP streaming connection with remote peer",
                    peer.id,
                    kind.name(),
                );
                let reason = stream.read(&local, &peer, kind).await;
                peer.set_reached_at(kind, None);
                local.log_peer(
                    Level::Warn,
                    "lost TCP streaming connection with remote peer",
                    peer.id,
                    &reason,
                );
                peer.link_down(&local, &reason);
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                let text = error.to_string();
                peer.failed(&local, &text);
                // An error is logged only if its message differs from the last one, so that a peer that is
                // down does not fill the log.
                if said != text {
                    local.log_peer(Level::Warn, "cannot dial a stream of a peer", peer.id, &text);
                    said = text;
                }
            }
        }
        let slowed = DIAL_PACE * 2_u32.saturating_pow(failures.saturating_sub(QUICK_DIALS).min(8));
        let waited = tokio::time::sleep_until(begun + slowed.min(DIAL_PACE_MAX));
        if let First::Right(()) = race(waited, peer.presence.notified()).await {
            tokio::time::sleep_until(begun + DIAL_PACE).await;
        }
    }
}

/// Reason why a stream cannot be dialed.
#[derive(Debug)]
enum DialError {
    /// None of the peer's URLs is usable.
    NoUrl(NoUrl),
    /// The peer did not answer in time.
    TimedOut,
    /// The connection failed, or broke before the peer had answered.
    Exchange(ExchangeError),
    /// The path of the stream is not a valid URI. Does not happen, unless there is a bug.
    Path(InvalidUri),
    /// The peer does not know this member yet. Contains the peer's message.
    NotKnownYet(String),
    /// The peer reports that this member was removed.
    Removed,
    /// The cluster has a witness, and the peer does not know witnesses.
    NoWitnesses,
    /// The peer belongs to another cluster or has an incompatible version. Contains the peer's message.
    Refused(String),
    /// The peer refused the stream with another status. Contains the status and the peer's message.
    Status(StatusCode, String),
}

impl From<NoUrl> for DialError {
    fn from(error: NoUrl) -> DialError {
        DialError::NoUrl(error)
    }
}

impl From<ExchangeError> for DialError {
    fn from(error: ExchangeError) -> DialError {
        DialError::Exchange(error)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialError::NoUrl(error) => error.fmt(f),
            DialError::TimedOut => f.write_str("no answer to the dial of a stream"),
            DialError::Exchange(error) => error.fmt(f),
            DialError::Path(_) => f.write_str("no path"),
            DialError::NotKnownYet(text) => write!(f, "the peer does not know this member yet: {text}"),
            DialError::Removed => f.write_str("the peer reports that this member was removed"),
            DialError::Refused(text) => write!(f, "the peer refused the stream: {text}"),
            DialError::NoWitnesses => f.write_str(identity::NO_WITNESSES),
            DialError::Status(status, text) => write!(f, "unhandled status {status}: {text}"),
        }
    }
}

impl Error for DialError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            DialError::Exchange(error) => error.source(),
            DialError::Path(error) => Some(error),
            _ => None,
        }
    }
}

/// Stream that a peer has accepted.
struct Stream {
    /// Future that drives the HTTP connection; `None` once it has ended.
    connection: Option<Pin<Box<Connection>>>,
    body: Incoming,
}

async fn dial(local: &Rc<LocalMember>, peer: &Peer, kind: Kind) -> Result<Stream, DialError> {
    let endpoint = peer.endpoint()?;
    let attempt =
        tokio::time::timeout(DIAL_TIMEOUT + local.read_timeout, attempt(local, peer, kind, &endpoint));
    let stream = match attempt.await {
        Ok(stream) => stream,
        Err(_) => Err(DialError::TimedOut),
    };
    if stream.is_err() {
        peer.endpoint_failed(&endpoint);
    }
    stream
}

async fn attempt(
    local: &Rc<LocalMember>,
    peer: &Peer,
    kind: Kind,
    endpoint: &Endpoint,
) -> Result<Stream, DialError> {
    let socket =
        local.client.dialer.connect(endpoint, DIAL_TIMEOUT, local.write_timeout).await.map_err(|error| {
            if error.kind() == std::io::ErrorKind::ConnectionRefused {
                local.handler.refused(peer.id);
            }
            ExchangeError::Connect(error)
        })?;
    let address = socket.address();
    let handshake = hyper::client::conn::http1::handshake(socket).await;
    let (mut sender, connection) = handshake.map_err(ExchangeError::from)?;
    let mut connection = Box::pin(connection);

    let mut request = Request::new(RequestBody::empty());
    let path = format!("{}{}/{:x}", paths::STREAMS, kind.name(), local.identity.local_id);
    *request.uri_mut() = path.parse().map_err(DialError::Path)?;
    name_host(&mut request, endpoint).map_err(ExchangeError::from)?;
    local.identity.stamp(request.headers_mut());
    request.headers_mut().insert(RAFT_TO, identity::hex(peer.id));

    let mut ended = false;
    let answer = {
        let mut answer = pin!(sender.send_request(request));
        poll_fn(|cx| {
            if !ended {
                ended = connection.as_mut().poll(cx).is_ready();
            }
            answer.as_mut().poll(cx)
        })
        .await
        .map_err(ExchangeError::from)?
    };
    let status = answer.status();
    if status == StatusCode::OK {
        if local.handler.has_witness() && !identity::knows_witnesses(answer.headers()) {
            return Err(DialError::NoWitnesses);
        }
        peer.account.note_sender(answer.headers());
        peer.set_reached_at(kind, address);
        let connection = (!ended).then_some(connection);
        return Ok(Stream { connection, body: answer.into_body() });
    }
    if status == StatusCode::GONE {
        local.report_removal(peer.id);
    }
    let body = Limited::new(answer.into_body(), REFUSAL_BYTES_MAX).collect();
    let body = match race(body, async { if ended { std::future::pending().await } else { connection.await } })
        .await
    {
        First::Left(Ok(body)) => body.to_bytes(),
        _ => bytes::Bytes::new(),
    };
    let said = String::from_utf8_lossy(&body).trim_end().to_owned();
    Err(match status {
        StatusCode::NOT_FOUND => DialError::NotKnownYet(said),
        StatusCode::GONE => DialError::Removed,
        StatusCode::PRECONDITION_FAILED => DialError::Refused(said),
        _ => DialError::Status(status, said),
    })
}

impl Stream {
    /// Reads messages until the stream ends, and returns the reason why it ended.
    async fn read(mut self, local: &LocalMember, peer: &Peer, kind: Kind) -> String {
        let mut decoder = match kind {
            Kind::App => Decoder::of_apps(local.identity.local_id, peer.id),
            Kind::Message => Decoder::of_messages(),
        };
        let mut messages = Vec::new();
        let mut heard = Instant::now();
        let mut alarm = pin!(tokio::time::sleep_until(heard + local.read_timeout));
        poll_fn(|cx| {
            let (mut bytes, mut ended) = (0, None);
            // Each poll of the connection lets hyper deliver at most one chunk to the body. So the connection
            // and the body are polled in turn until both are pending.
            loop {
                let before = bytes;
                if let Some(connection) = &mut self.connection
                    && connection.as_mut().poll(cx).is_ready()
                {
                    self.connection = None;
                }
                while ended.is_none() {
                    match Pin::new(&mut self.body).poll_frame(cx) {
                        Poll::Pending => break,
                        Poll::Ready(None) => ended = Some("the peer closed the stream".to_owned()),
                        Poll::Ready(Some(Err(error))) => ended = Some(http_text(&error)),
                        Poll::Ready(Some(Ok(frame))) => {
                            let Ok(piece) = frame.into_data() else { continue };
                            bytes += piece.len();
                            if let Err(error) = decoder.decode(piece, &mut messages) {
                                peer.account.counters.receive_failures.add(1);
                                ended = Some(error.to_string());
                            }
                        }
                    }
                }
                if ended.is_some() || bytes == before || bytes >= TURN_BYTES {
                    break;
                }
            }
            if bytes > 0 {
                peer.account.counters.received_bytes.add(bytes as u64);
                deliver(local, peer, &mut messages);
                // Read after the handler has returned: the time that it took is not the peer's silence.
                heard = Instant::now();
            }
            if let Some(reason) = ended {
                return Poll::Ready(reason);
            }
            if bytes >= TURN_BYTES {
                end_turn(cx);
                return Poll::Pending;
            }
            loop {
                std::task::ready!(alarm.as_mut().poll(cx));
                let due = heard + local.read_timeout;
                if due <= Instant::now() {
                    return Poll::Ready(format!("the peer was silent for {:?}", local.read_timeout));
                }
                alarm.as_mut().reset(due);
            }
        })
        .await
    }
}

/// Passes the messages that are addressed to this member to the handler and drops the others. A MsgSnap is
/// dropped, too: the data of a snapshot does not arrive on streams.
fn deliver(local: &LocalMember, peer: &Peer, messages: &mut Vec<Message>) {
    let came = messages.len();
    messages.retain(|message| {
        message.to == Some(local.identity.local_id) && message.r#type != Some(MessageType::MsgSnap as i32)
    });
    peer.account.counters.receive_failures.add((came - messages.len()) as u64);
    if !messages.is_empty() {
        local.handler.received(messages);
        peer.account.counters.receive_failures.add(messages.len() as u64);
        messages.clear();
    }
}
