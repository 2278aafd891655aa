//! Receives snapshots that other members send with `POST /raft/snapshot`: [`receive`] reads the message at
//! the front of the body, and passes the rest to the handler chunk by chunk, on a separate thread. This
//! module knows the format of the snapshot, but does not interpret it.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stdx::{First, race};

use api::raftpb::{Message, MessageType};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};

use crate::account::Account;
use crate::answer_body::AnswerBody;
use crate::answers::{check_sender, refuse, stamp, wrong_method};
use crate::decoder::{DecodeError, Intake, length_within};
use crate::error::BoxError;
use crate::handler::{Handler, SnapshotForm};
use crate::hub::Hub;
use crate::identity::{self, MAINSTAY_SNAPSHOT};
use crate::options::{
    ENVELOPE_BYTES_MAX, Level, MEMBERS_BODIES_BYTES_MAX, SNAPSHOT_PIECES_MAX, SNAPSHOT_TIMEOUTS,
};
use crate::pace::Pace;
use crate::piece::{self, Piece};
use crate::share::Share;
use crate::slots::{ConnectionSlot, Progress, SnapshotAdmission};

type Refusal = Box<Response<AnswerBody>>;

/// Receives a snapshot. Answers 204 if the handler has accepted it, and 500 with the handler's message if the
/// handler has refused it.
pub(crate) async fn receive(
    hub: &Rc<Hub>,
    slot: &Rc<ConnectionSlot>,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    if request.method() != Method::POST {
        return wrong_method("POST");
    }
    let (head, mut body) = request.into_parts();
    let taken = take(hub, slot, &head.headers, &mut body).await;
    if taken.is_err() {
        // Read the rest of the body and discard it. The sender may still be writing the body, and if the
        // connection were closed with unread bytes, the sender might not receive the answer.
        tokio::task::spawn_local(drain(body, hub.local.read_timeout));
    }
    stamp(
        &hub.local,
        match taken {
            Ok(()) => {
                let mut response = Response::new(AnswerBody::empty());
                *response.status_mut() = StatusCode::NO_CONTENT;
                response
            }
            Err(refusal) => *refusal,
        },
    )
}

async fn take(
    hub: &Rc<Hub>,
    slot: &Rc<ConnectionSlot>,
    headers: &HeaderMap,
    body: &mut Incoming,
) -> Result<(), Refusal> {
    let refuse = |status, text: &str| Box::new(refuse(status, text));
    if let Err(text) = hub.local.identity.check(headers) {
        hub.inbox.count_unknown_snapshot_failure();
        return Err(refuse(StatusCode::PRECONDITION_FAILED, text));
    }
    if let Some((id, urls)) = identity::sender(headers) {
        hub.add_remote(id, &urls);
    }
    // Refuse a sender that is neither a member nor a remote before the body is read. Remotes are accepted,
    // because a member that was just added may send a snapshot before this member knows that it was added.
    let known = headers.get(identity::SERVER_FROM).and_then(|id| identity::parse_id(id.to_str().ok()?));
    if known.is_none_or(|id| hub.inbox.account(id).is_none()) {
        hub.inbox.count_unknown_snapshot_failure();
        let text = "failed to process raft message (unknown sender)";
        return Err(refuse(StatusCode::FORBIDDEN, text));
    }
    let mut pace = Pace::new(hub.local.read_timeout * SNAPSHOT_TIMEOUTS);
    let mut share = Share::new(&hub.members_bodies);
    let (message, rest) = read_envelope(body, &mut pace, &mut share).await.map_err(|error| {
        hub.inbox.count_unknown_snapshot_failure();
        let status = match error {
            EnvelopeError::Crowded => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        refuse(status, &format!("failed to decode raft message ({error})"))
    })?;
    if message.r#type != Some(MessageType::MsgSnap as i32) {
        return Err(refuse(StatusCode::BAD_REQUEST, "wrong raft message type"));
    }
    check_sender(
        &hub.local,
        &message,
        "failed to process raft message (cannot process message to mismatch member)",
    )?;
    let form = match headers.get(MAINSTAY_SNAPSHOT).is_some_and(|value| value == "1") {
        true => SnapshotForm::Own,
        false => SnapshotForm::Etcd,
    };
    let from = message.from.unwrap_or(0);
    let Some(account) = hub.inbox.account(from) else {
        return Err(refuse(StatusCode::FORBIDDEN, "failed to process raft message (unknown sender)"));
    };
    let at_home =
        slot.address.is_some_and(|address| hub.member(from).is_some_and(|peer| peer.is_reached_at(address)));
    let Some(admission) = hub.receiving.take(slot, from, at_home, Instant::now()) else {
        let text = "failed to save KV snapshot (too many are being received)";
        return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    let SnapshotAdmission { number, progress, taker, before } = admission;
    let mut receiving = Receiving::begin(hub, number, &account);
    // Wait until the snapshots that were ended for this one have finished, because the handler processes one
    // snapshot at a time.
    let ends = async {
        for one in before {
            // Nothing is ever sent: the other end is dropped, which ends the wait with an error.
            let _ = one.await;
        }
    };
    let _ = tokio::time::timeout(hub.local.read_timeout, ends).await;
    match hand_over(hub, (&account, &progress), (message, form), rest, (body, pace), taker).await {
        Ok(()) => {
            receiving.delivered = true;
            hub.local.log_peer(Level::Info, "received and saved database snapshot", from, "");
            Ok(())
        }
        Err(error) => {
            let mut text = error.to_string();
            hub.local.log_peer(Level::Error, "failed to save incoming database snapshot", from, &text);
            if form == SnapshotForm::Etcd {
                text = format!("failed to save KV snapshot ({text})");
            }
            Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, &text))
        }
    }
}

/// Reads the message at the front of the body. Returns it with the bytes after it that have already arrived.
async fn read_envelope(
    body: &mut Incoming,
    pace: &mut Pace,
    share: &mut Share<'_>,
) -> Result<(Message, Bytes), EnvelopeError> {
    let mut intake = Intake::default();
    let mut len = None;
    loop {
        match len {
            None => {
                if let Some(said) = intake.take_u64() {
                    len = Some(length_within(said, ENVELOPE_BYTES_MAX).map_err(EnvelopeError::Length)?);
                    continue;
                }
            }
            Some(len) => {
                if let Some(bytes) = intake.take(len) {
                    let message = Message::decode(bytes).map_err(EnvelopeError::Message)?;
                    return Ok((message, intake.rest()));
                }
            }
        }
        match pace.next(body).await {
            Some(Ok(piece)) if !share.grow(piece.len(), MEMBERS_BODIES_BYTES_MAX) => {
                return Err(EnvelopeError::Crowded);
            }
            Some(Ok(piece)) => intake.feed(piece),
            Some(Err(error)) => return Err(EnvelopeError::Broken(error)),
            None => return Err(EnvelopeError::Ended),
        }
    }
}

/// Reason why the message at the front of a snapshot cannot be read.
#[derive(Debug)]
enum EnvelopeError {
    /// The length of the message exceeds the limit.
    Length(DecodeError),
    /// The bytes are not a valid raft message.
    Message(prost::DecodeError),
    /// The connection broke, or the sender was too slow.
    Broken(io::Error),
    /// The request ended before the message was complete.
    Ended,
    /// The shared memory limit for messages from members would be exceeded.
    Crowded,
}

impl fmt::Display for EnvelopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvelopeError::Length(error) => error.fmt(f),
            EnvelopeError::Message(error) => error.fmt(f),
            EnvelopeError::Broken(error) => error.fmt(f),
            EnvelopeError::Ended => f.write_str("unexpected EOF"),
            EnvelopeError::Crowded => f.write_str("too many bytes are being read"),
        }
    }
}

impl std::error::Error for EnvelopeError {}

/// Reason why a snapshot was not accepted.
#[derive(Debug)]
enum ReceiveError {
    /// No thread can be started for the snapshot.
    NoThread(io::Error),
    /// The handler refused the snapshot with this error, whose message is sent to the sender.
    Handler(BoxError),
    /// The thread that runs the handler ended without a result. Happens only if the handler panicked.
    NoResult,
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::NoThread(error) => write!(f, "cannot start a thread: {error}"),
            ReceiveError::Handler(error) => error.fmt(f),
            ReceiveError::NoResult => f.write_str("the receiver of the snapshot ended without a result"),
        }
    }
}

impl std::error::Error for ReceiveError {}

/// Runs the handler on a separate thread, and passes the chunks of the snapshot to it as fast as it takes
/// them.
async fn hand_over(
    hub: &Hub,
    (account, progress): (&Arc<Account>, &Progress),
    (message, form): (Message, SnapshotForm),
    rest: Bytes,
    (body, mut pace): (&mut Incoming, Pace),
    taker: oneshot::Sender<()>,
) -> Result<(), ReceiveError> {
    let (give, pieces) = mpsc::channel(SNAPSHOT_PIECES_MAX);
    let (done, taken) = oneshot::channel();
    let handler: Arc<dyn Handler> = Arc::clone(&hub.local.handler);
    let work = move || {
        let mut pieces = piece::Incoming::new(pieces);
        let result = handler.receive_snapshot(message, form, &mut pieces);
        drop(taker);
        // An error means that the request was cancelled meanwhile, so that the result is not needed.
        let _ = done.send(result);
    };
    let thread = std::thread::Builder::new().name("snapshot-receive".to_owned()).spawn(work);
    thread.map_err(ReceiveError::NoThread)?;

    let feed = async {
        let mut first = (!rest.is_empty()).then_some(Ok(rest));
        loop {
            let next = match first.take() {
                Some(first) => Some(first),
                None => pace.next(body).await,
            };
            let piece = match next {
                Some(Ok(bytes)) => {
                    account.counters.snapshots_received.bytes.add(bytes.len() as u64);
                    account.counters.received_bytes.add(bytes.len() as u64);
                    progress.note_received(bytes.len(), Instant::now());
                    Piece::Bytes(bytes)
                }
                Some(Err(error)) => Piece::Failed(error),
                None => {
                    progress.note_complete();
                    Piece::End
                }
            };
            let is_last = !matches!(piece, Piece::Bytes(_));
            let given = Instant::now();
            // Stop after the last chunk, or if the handler takes no more chunks because it has already
            // accepted or refused the snapshot.
            if give.send(piece).await.is_err() || is_last {
                break;
            }
            progress.note_wait(given.elapsed());
        }
        drop(give);
        std::future::pending::<()>().await;
    };
    match race(taken, feed).await {
        First::Left(Ok(result)) => result.map_err(ReceiveError::Handler),
        _ => Err(ReceiveError::NoResult),
    }
}

/// Reads the rest of a body and discards it, for at most this time.
async fn drain(mut body: Incoming, at_most: Duration) {
    let all = async { while let Some(Ok(_)) = body.frame().await {} };
    // The result is ignored: the body is dropped now, whether it has ended or the time is over. If the sender
    // is still sending, the connection is closed.
    let _ = tokio::time::timeout(at_most, all).await;
}

/// Guard for a snapshot that is being received. Dropping it frees the snapshot's slot and counts the result,
/// even if the request is cancelled.
struct Receiving<'a> {
    hub: &'a Hub,
    number: u64,
    account: &'a Account,
    begun: Instant,
    delivered: bool,
}

impl<'a> Receiving<'a> {
    fn begin(hub: &'a Hub, number: u64, account: &'a Account) -> Receiving<'a> {
        account.counters.snapshots_received.begin();
        Receiving { hub, number, account, begun: Instant::now(), delivered: false }
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.hub.receiving.leave(self.number);
        self.account.counters.snapshots_received.end(self.delivered.then(|| self.begun.elapsed()));
    }
}
