//! Answers requests to peer listeners: [`answer`] serves the paths of etcd's protocol between members with
//! etcd's statuses and messages, and passes requests to all other paths to the [`crate::Handler`].

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use api::raftpb::{Message, MessageType};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prost::Message as _;

use crate::account::weight;
use crate::answer_body::AnswerBody;
use crate::answers::{check_sender, plain, refuse, stamp, wrong_method};
use crate::handler::VerifiedPeer;
use crate::hub::Hub;
use crate::identity::{self, RAFT_TO, SERVER_VERSION};
use crate::options::{
    FRAME_BYTES_MAX, MEMBERS_BODIES_BYTES_MAX, REQUEST_BYTES_MAX, STRANGERS_BODIES_BYTES_MAX,
    SURPLUS_BYTES_MAX,
};
use crate::pace::Pace;
use crate::peer::Kind;
use crate::share::Share;
use crate::slots::ConnectionSlot;
use crate::stream_writer::StreamWriter;
use crate::{paths, prober, snapshot_receiver};

/// Answers a request to a peer listener as etcd does, with the same status and message.
pub(crate) async fn answer(
    hub: Rc<Hub>,
    slot: &Rc<ConnectionSlot>,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    if slot.member.get() == 0 {
        slot.member.set(hub.known_sender(request.headers()));
    }
    let path = request.uri().path();
    if let Some(stream) = path.strip_prefix(paths::STREAMS) {
        let stream = stream.to_owned();
        return open_stream(&hub, &request, &stream);
    }
    match path {
        paths::MESSAGES => take_message(&hub, request).await,
        paths::SNAPSHOTS => snapshot_receiver::receive(&hub, slot, request).await,
        paths::PROBES => plain(StatusCode::OK, prober::answer()),
        _ => delegate(&hub, slot, request).await,
    }
}

/// Lets the handler answer a request to a path that does not belong to the protocol between members.
async fn delegate(hub: &Hub, slot: &ConnectionSlot, request: Request<Incoming>) -> Response<AnswerBody> {
    let (mut head, body) = request.into_parts();
    if slot.is_verified.get() {
        head.extensions.insert(VerifiedPeer);
    }
    let bytes_max = hub.local.handler.body_bytes_max(&head).min(REQUEST_BYTES_MAX);
    if bytes_max == 0 {
        return hub.local.handler.http(Request::from_parts(head, Bytes::new())).await.map(AnswerBody::from);
    }
    let alone = Cell::new(0);
    let body = match read(body, bytes_max, hub.local.read_timeout, (&alone, bytes_max)).await {
        Ok(body) => body,
        Err(Unread::TooLong) => return refuse(StatusCode::PAYLOAD_TOO_LARGE, "request body too large"),
        Err(_) => return refuse(StatusCode::BAD_REQUEST, "error reading request body"),
    };
    hub.local.handler.http(Request::from_parts(head, body)).await.map(AnswerBody::from)
}

/// Answers the request with which a peer dials a stream. `stream` is the end of the path: `msgapp/<peer id>`
/// or `message/<peer id>`.
fn open_stream(hub: &Rc<Hub>, request: &Request<Incoming>, stream: &str) -> Response<AnswerBody> {
    if request.method() != Method::GET {
        return wrong_method("GET");
    }
    let mut response = match accept_stream(hub, request.headers(), stream) {
        Ok(writer) => Response::new(AnswerBody::Stream(writer)),
        Err(refusal) => *refusal,
    };
    response.headers_mut().insert(SERVER_VERSION, hub.local.identity.server_version.clone());
    stamp(&hub.local, response)
}

/// Checks that the sender of a request belongs to this cluster and is compatible with its members.
///
/// # Errors
///
/// Returns the message of the refusal.
fn check_identity(hub: &Hub, headers: &HeaderMap) -> Result<(), &'static str> {
    hub.local.identity.check(headers)?;
    if hub.local.handler.has_witness() && !identity::knows_witnesses(headers) {
        return Err(identity::NO_WITNESSES);
    }
    Ok(())
}

fn accept_stream(
    hub: &Rc<Hub>,
    headers: &HeaderMap,
    stream: &str,
) -> Result<StreamWriter, Box<Response<AnswerBody>>> {
    let refuse = |status, text| Box::new(refuse(status, text));
    check_identity(hub, headers).map_err(|text| refuse(StatusCode::PRECONDITION_FAILED, text))?;
    let (kind, from) = match stream.split_once('/') {
        Some(("msgapp", from)) if !from.contains('/') => (Kind::App, from),
        Some(("message", from)) if !from.contains('/') => (Kind::Message, from),
        _ => return Err(refuse(StatusCode::NOT_FOUND, "invalid path")),
    };
    let from = identity::parse_id(from).ok_or_else(|| refuse(StatusCode::NOT_FOUND, "invalid from"))?;
    if hub.local.handler.is_removed(from) {
        let mut gone = Response::new(AnswerBody::empty());
        *gone.status_mut() = StatusCode::GONE;
        return Err(Box::new(gone));
    }
    let Some(peer) = hub.member(from) else {
        if let Some(urls) = identity::urls(headers) {
            hub.add_remote(from, &urls);
        }
        return Err(refuse(StatusCode::NOT_FOUND, "error sender not found"));
    };
    if headers.get(RAFT_TO) != Some(&hub.local.identity.local_hex) {
        return Err(refuse(StatusCode::PRECONDITION_FAILED, "to field mismatch"));
    }
    peer.account.note_sender(headers);
    Ok(StreamWriter::attach(Rc::clone(&hub.local), peer, kind))
}

/// Receives one message of a peer's pipeline, and answers the request.
async fn take_message(hub: &Rc<Hub>, request: Request<Incoming>) -> Response<AnswerBody> {
    if request.method() != Method::POST {
        return wrong_method("POST");
    }
    let (head, body) = request.into_parts();
    stamp(
        &hub.local,
        match accept_message(hub, &head.headers, body).await {
            Ok(()) => {
                let mut taken = Response::new(AnswerBody::empty());
                *taken.status_mut() = StatusCode::NO_CONTENT;
                taken
            }
            Err(refusal) => *refusal,
        },
    )
}

async fn accept_message(
    hub: &Rc<Hub>,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<(), Box<Response<AnswerBody>>> {
    let refuse = |status, text| Box::new(refuse(status, text));
    check_identity(hub, headers).map_err(|text| refuse(StatusCode::PRECONDITION_FAILED, text))?;
    if let Some((id, urls)) = identity::sender(headers) {
        hub.add_remote(id, &urls);
    }
    let room = match hub.known_sender(headers) {
        0 => (&hub.strangers_bodies, STRANGERS_BODIES_BYTES_MAX),
        from => {
            if let Some(peer) = hub.member(from) {
                peer.account.note_sender(headers);
            }
            (&hub.members_bodies, MEMBERS_BODIES_BYTES_MAX)
        }
    };
    let body =
        read(body, FRAME_BYTES_MAX as usize, hub.local.read_timeout, room).await.map_err(
            |why| match why {
                Unread::Crowded => {
                    let text = "error reading raft message (too many bytes are being read)";
                    refuse(StatusCode::SERVICE_UNAVAILABLE, text)
                }
                Unread::TooLong | Unread::Broken => {
                    refuse(StatusCode::BAD_REQUEST, "error reading raft message")
                }
            },
        )?;
    let bytes = body.len() as u64;
    let message = Message::decode(body)
        .ok()
        .filter(|message| bytes <= (weight(message) + SURPLUS_BYTES_MAX) as u64)
        .ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "error unmarshalling raft message"))?;
    check_sender(&hub.local, &message, "error processing raft message")?;
    if message.r#type == Some(MessageType::MsgSnap as i32) {
        return Err(refuse(StatusCode::BAD_REQUEST, "wrong raft message type"));
    }
    let account = hub.inbox.account(message.from.unwrap_or(0));
    if let Some(account) = &account {
        account.counters.received_bytes.add(bytes);
    }
    let mut messages = vec![message];
    hub.local.handler.received(&mut messages);
    if let Some(account) = account {
        account.counters.receive_failures.add(messages.len() as u64);
    }
    Ok(())
}

/// Reason why the body of a request was not read completely.
enum Unread {
    TooLong,
    Broken,
    /// The shared memory limit would be exceeded, because other bodies are being read.
    Crowded,
}

/// Reads a body of at most `bytes_max` bytes. Fails if it arrives more slowly than [`Pace`] allows. The bytes
/// count against a memory limit that several bodies share: `room` is its counter and its maximum in bytes.
async fn read(
    mut body: Incoming,
    bytes_max: usize,
    silence_max: Duration,
    room: (&Cell<usize>, usize),
) -> Result<Bytes, Unread> {
    let mut share = Share::new(room.0);
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut pace = Pace::new(silence_max);
    while let Some(piece) = pace.next(&mut body).await {
        let piece = piece.map_err(|_| Unread::Broken)?;
        if first.len() + all.len() + piece.len() > bytes_max {
            return Err(Unread::TooLong);
        }
        if !share.grow(piece.len(), room.1) {
            return Err(Unread::Crowded);
        }
        // Keep the first chunk without copying it, because most bodies have only one. If there are more, all
        // are copied into one buffer.
        if first.is_empty() && all.is_empty() {
            first = piece;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&piece);
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}
