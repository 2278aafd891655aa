//! The HTTP/2 connection below a [`crate::Channel`]: [`Session`] is what its calls and the task that drives it share,
//! [`Driver`] is that task. They know bytes of messages, and nothing of deadlines, endpoints and what may be repeated.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use api::{Code, Status};
use bytes::Bytes;
use http2::{Event, Fields, Input, Key, OpenError, Payload, Reason, Role, Template};
use slab::Slab;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::sync::{Notify, watch};

use crate::messages::Messages;
use crate::transport::Wire;

/// Pieces of output that one write takes.
const PIECES_MAX: usize = 64;
/// Output beyond which no call begins.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Reads of one turn, after which other tasks get theirs.
const READS_PER_TURN: usize = 16;
/// Paths whose heads are kept. A client has a few dozen methods.
const HEADS_MAX: usize = 128;

/// How a call ended.
enum End {
    /// By trailers, or by a head that is all there is.
    Told(Result<(), Status>),
    /// The server ended the body, and nothing else.
    Untold,
    Reset {
        reason: Reason,
        by_peer: bool,
    },
    /// The connection failed.
    Broken(Status),
}

/// A call, until both of its sides are dropped.
struct Call {
    key: Key,
    /// The answer has begun.
    has_head: bool,
    messages: Messages,
    /// Bytes that came and were not given back to the window.
    unreleased: usize,
    end: Option<End>,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    has_receiver: bool,
    has_sender: bool,
}

struct State {
    http2: http2::Connection,
    scheme: &'static str,
    authority: String,
    /// Heads of requests by path.
    heads: HashMap<Box<str>, Template>,
    calls: Slab<Call>,
    /// Places in `calls` by [`Key::slot`].
    by_slot: Vec<Option<usize>>,
    driver: Option<Waker>,
    /// The server said that it takes no more calls.
    is_leaving: bool,
    /// Why the connection is over.
    over: Option<Status>,
    /// What the server said when it went away for a reason.
    farewell: Option<String>,
    /// Number of the last PING that was sent, and of the last that was answered.
    pinged: u64,
    ponged: u64,
}

/// What the calls of a connection and the task that drives it share.
///
/// A lock and a waker: calls are moved between threads, and each command or event holds the lock for some hundred
/// nanoseconds. The alternative, a channel of commands to the task, would cost an allocation and two wake-ups a message.
pub(crate) struct Session {
    state: Mutex<State>,
    /// False once no channel is left that could begin a call.
    has_channels: AtomicBool,
    /// Bytes that ever came.
    received: AtomicU64,
    ponged: Notify,
    /// Tells those who wait to begin a call that they may try again.
    freed: Notify,
    /// True once the connection takes no more calls.
    closed: watch::Sender<bool>,
}

fn unavailable(why: impl std::fmt::Display) -> Status {
    Status::with(Code::Unavailable, format!("connection error: {why}"))
}

/// An answer whose trailers do not say how it ended.
const NO_STATUS: Status = Status::new(Code::Internal, "server closed the stream without sending trailers");

impl Session {
    pub(crate) fn new(scheme: &'static str, authority: String, options: &Arc<http2::Options>) -> Session {
        Session {
            state: Mutex::new(State {
                http2: http2::Connection::new(Role::Client, options, Instant::now()),
                scheme,
                authority,
                heads: HashMap::new(),
                calls: Slab::new(),
                by_slot: Vec::new(),
                driver: None,
                is_leaving: false,
                over: None,
                farewell: None,
                pinged: 0,
                ponged: 0,
            }),
            has_channels: AtomicBool::new(true),
            received: AtomicU64::new(0),
            ponged: Notify::new(),
            freed: Notify::new(),
            closed: watch::Sender::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it panics but for a bug of our own, and then every call of the connection may as well.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is told true once the connection takes no more calls: it is gone, or its server is going away.
    pub(crate) fn closed(&self) -> &watch::Sender<bool> {
        &self.closed
    }

    /// No channel is left: the connection ends with its last call.
    pub(crate) fn let_go(&self) {
        self.has_channels.store(false, Ordering::Release);
        self.lock().wake_driver();
    }

    /// Number of calls of which a side is held.
    pub(crate) fn calls(&self) -> usize {
        self.lock().calls.len()
    }

    /// Bytes that ever came.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns when the server has answered a PING that this sends.
    pub(crate) async fn ping(&self) {
        let number = {
            let mut state = self.lock();
            state.pinged += 1;
            let number = state.pinged;
            state.http2.ping(number);
            state.wake_driver();
            number
        };
        loop {
            let ponged = self.ponged.notified();
            if self.lock().ponged >= number {
                return;
            }
            ponged.await;
        }
    }

    /// Begins a call, once the server takes one more and what waits to be written is not too much, and returns its place.
    /// `more` are fields besides those of every call.
    ///
    /// # Errors
    ///
    /// The connection takes no more calls; the server has certainly not heard of this one. Or a field cannot be sent.
    pub(crate) async fn open(
        &self,
        path: &str,
        more: &[(&[u8], &[u8])],
        message_bytes_max: usize,
    ) -> Result<usize, Status> {
        loop {
            // Made before the look, so that no word of it is missed.
            let freed = self.freed.notified();
            if let Poll::Ready(opened) = self.try_open(path, more, message_bytes_max) {
                return opened;
            }
            freed.await;
        }
    }

    fn try_open(
        &self,
        path: &str,
        more: &[(&[u8], &[u8])],
        message_bytes_max: usize,
    ) -> Poll<Result<usize, Status>> {
        let mut state = self.lock();
        if let Some(why) = &state.over {
            return Poll::Ready(Err(why.clone()));
        }
        // Heads do not wait for windows. Beside a server that takes nothing, calls would fill memory with them.
        if state.http2.output().len() >= OUTPUT_BYTES_MAX {
            state.wake_driver();
            return Poll::Pending;
        }
        let invalid = |field: http2::InvalidField| Status::with(Code::InvalidArgument, field.to_string());
        let head = state.head(path).map_err(invalid)?;
        let key = match state.http2.open(&head, more, false) {
            Ok(key) => key,
            Err(OpenError::TooMany) => return Poll::Pending,
            Err(OpenError::Leaving) => {
                self.closed.send_replace(true);
                let why = state.farewell.as_deref().unwrap_or("the server is going away");
                return Poll::Ready(Err(unavailable(why)));
            }
            Err(OpenError::Invalid(field)) => return Poll::Ready(Err(invalid(field))),
        };
        let place = state.calls.insert(Call {
            key,
            has_head: false,
            messages: Messages::new(message_bytes_max),
            unreleased: 0,
            end: None,
            receiver: None,
            sender: None,
            has_receiver: true,
            has_sender: true,
        });
        if state.by_slot.len() <= key.slot() {
            state.by_slot.resize(key.slot() + 1, None);
        }
        state.by_slot[key.slot()] = Some(place);
        state.wake_driver();
        Poll::Ready(Ok(place))
    }

    /// Sends some of a call's body as the server's window opens, until nothing is left of it; then, with `is_last`, its
    /// end. False if the call is over.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        place: usize,
        rest: &mut Bytes,
        is_last: bool,
    ) -> Poll<bool> {
        let mut state = self.lock();
        let key = state.calls[place].key;
        loop {
            // A server may answer before it has heard all.
            if !state.http2.is_open(key) || state.calls[place].end.is_some() {
                return Poll::Ready(false);
            }
            let room = state.http2.room(key).min(rest.len());
            if room == 0 && !rest.is_empty() {
                state.calls[place].sender = Some(cx.waker().clone());
                state.http2.want_room(key);
                state.wake_driver();
                return Poll::Pending;
            }
            let part = rest.split_to(room);
            let is_end = is_last && rest.is_empty();
            let sent = state.http2.send_data(key, Payload::from(part), is_end);
            state.wake_driver();
            if rest.is_empty() || sent.is_err() {
                return Poll::Ready(sent.is_ok());
            }
        }
    }

    /// Ends what is sent on a call.
    pub(crate) fn finish(&self, place: usize) {
        let mut state = self.lock();
        let key = state.calls[place].key;
        // It fails for a call that is over already.
        let _ = state.http2.send_data(key, Payload::from(Bytes::new()), true);
        state.wake_driver();
    }

    /// Cancels a call, unless it is over.
    pub(crate) fn cancel(&self, place: usize) {
        let mut state = self.lock();
        state.cancel(place);
        state.wake_driver();
    }

    /// The sending side is dropped.
    pub(crate) fn drop_sender(&self, place: usize) {
        let mut state = self.lock();
        state.calls[place].has_sender = false;
        state.drop_unused(place);
    }

    /// The receiving side is dropped: what comes is not kept any more.
    pub(crate) fn drop_receiver(&self, place: usize) {
        let mut state = self.lock();
        state.calls[place].has_receiver = false;
        state.release(place, usize::MAX);
        state.calls[place].messages = Messages::new(0);
        state.drop_unused(place);
    }

    /// The next message of a call; `None` when it has ended well.
    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
        place: usize,
    ) -> Poll<Result<Option<Bytes>, Failed>> {
        let mut state = self.lock();
        let call = &mut state.calls[place];
        match call.messages.next() {
            Err(status) => return Poll::Ready(Err(Failed { status, is_unprocessed: false })),
            Ok(Some(message)) => {
                let bytes = message.len() + crate::messages::PREFIX_BYTES;
                state.release(place, bytes);
                return Poll::Ready(Ok(Some(message)));
            }
            Ok(None) => {}
        }
        if let Some(end) = &call.end {
            return Poll::Ready(call.result(end));
        }
        call.receiver = Some(cx.waker().clone());
        // The rest of a message may be longer than a window.
        state.release(place, usize::MAX);
        Poll::Pending
    }
}

/// The failure of a call.
pub(crate) struct Failed {
    pub(crate) status: Status,
    /// True if the server said that it never looked at the call (RFC 9113, sections 6.8 and 8.7).
    pub(crate) is_unprocessed: bool,
}

impl Call {
    fn result(&self, end: &End) -> Result<Option<Bytes>, Failed> {
        let (status, is_unprocessed) = match end {
            End::Told(Ok(())) if self.messages.is_mid_message() => {
                (Status::new(Code::Internal, "unexpected EOF"), false)
            }
            End::Told(Ok(())) => return Ok(None),
            End::Told(Err(status)) => (status.clone(), false),
            End::Untold => (NO_STATUS, false),
            End::Broken(status) => (status.clone(), false),
            End::Reset { reason, by_peer } => {
                let code = match *reason {
                    Reason::CANCEL => Code::Canceled,
                    Reason::REFUSED_STREAM => Code::Unavailable,
                    _ => Code::Internal,
                };
                let who = if *by_peer { "by the server" } else { "here" };
                let text = format!("connection error: the stream was reset {who}: {reason}");
                // Not of a call that the server has begun to answer, whatever it says afterwards.
                let refused = *by_peer && *reason == Reason::REFUSED_STREAM;
                (Status::with(code, text), refused && !self.has_head)
            }
        };
        Err(Failed { status, is_unprocessed })
    }

    fn wake(&mut self) {
        self.receiver.take().into_iter().chain(self.sender.take()).for_each(Waker::wake);
    }

    fn end(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
        }
        self.wake();
    }
}

impl State {
    fn wake_driver(&mut self) {
        self.driver.take().into_iter().for_each(Waker::wake);
    }

    /// The head of a request to a path.
    fn head(&mut self, path: &str) -> Result<Template, http2::InvalidField> {
        if let Some(head) = self.heads.get(path) {
            return Ok(head.clone());
        }
        let head = Template::new([
            (":method", "POST"),
            (":scheme", self.scheme),
            (":path", path),
            (":authority", &self.authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", concat!("mainstay-client/", env!("CARGO_PKG_VERSION"))),
        ])?;
        if self.heads.len() >= HEADS_MAX {
            self.heads.clear();
        }
        self.heads.insert(path.into(), head.clone());
        Ok(head)
    }

    fn cancel(&mut self, place: usize) {
        let call = &mut self.calls[place];
        self.http2.reset(call.key, Reason::CANCEL);
        call.end(End::Reset { reason: Reason::CANCEL, by_peer: false });
    }

    /// Forgets a call of which no side is held; one that is not over is cancelled.
    fn drop_unused(&mut self, place: usize) {
        let call = &self.calls[place];
        if call.has_sender || call.has_receiver {
            return;
        }
        let key = call.key;
        self.http2.reset(key, Reason::CANCEL);
        self.calls.remove(place);
        if self.by_slot.get(key.slot()) == Some(&Some(place)) {
            self.by_slot[key.slot()] = None;
        }
        self.wake_driver();
    }

    /// Gives so many bytes, at most those that it holds, back to a call's window.
    fn release(&mut self, place: usize, bytes: usize) {
        let call = &mut self.calls[place];
        let bytes = bytes.min(call.unreleased);
        if bytes > 0 {
            call.unreleased -= bytes;
            self.http2.release(call.key, bytes);
            if !self.http2.output().is_empty() {
                self.wake_driver();
            }
        }
    }

    fn place_of(&self, key: Key) -> Option<usize> {
        let place = (*self.by_slot.get(key.slot())?)?;
        (self.calls.get(place)?.key == key).then_some(place)
    }

    /// Takes an event; returns true if the server is going away.
    fn take(&mut self, event: &Event<'_>) -> bool {
        match event {
            Event::Head { stream, fields, end } => {
                if let Some(place) = self.place_of(*stream) {
                    self.head_came(place, fields, *end);
                }
            }
            Event::Data { stream, bytes, end } => {
                let Some(place) = self.place_of(*stream) else {
                    self.http2.release(*stream, bytes.len());
                    return false;
                };
                let call = &mut self.calls[place];
                call.unreleased += bytes.len();
                if call.has_receiver && call.end.is_none() {
                    call.messages.push(bytes);
                } else {
                    self.release(place, usize::MAX);
                }
                let call = &mut self.calls[place];
                if *end {
                    call.end(End::Untold);
                } else if let Some(receiver) = call.receiver.take() {
                    receiver.wake();
                }
            }
            Event::Trailers { stream, fields } => {
                if let Some(place) = self.place_of(*stream) {
                    let end = status_of(fields).map_or(End::Untold, End::Told);
                    self.calls[place].end(end);
                }
            }
            Event::Reset { stream, reason, by_peer } => {
                if let Some(place) = self.place_of(*stream) {
                    self.calls[place].end(End::Reset { reason: *reason, by_peer: *by_peer });
                }
            }
            Event::GoAway { reason, debug, .. } => {
                if *reason != Reason::NO_ERROR {
                    let debug = String::from_utf8_lossy(debug);
                    self.farewell = Some(format!("the server closed the connection: {reason} {debug}"));
                }
                return true;
            }
            // Answers to nothing that was asked change nothing.
            Event::Pong(number) if *number <= self.pinged => self.ponged = self.ponged.max(*number),
            Event::Informational { .. } | Event::Pinged | Event::Pong(_) | Event::Settings => {}
        }
        false
    }

    fn head_came(&mut self, place: usize, fields: &Fields, is_all: bool) {
        let call = &mut self.calls[place];
        call.has_head = true;
        if let Some(result) = status_of(fields) {
            // Whatever follows has no meaning any more.
            call.end(End::Told(result));
        } else if fields.status() != Some(200) {
            let code = http::StatusCode::from_u16(fields.status().unwrap_or_default());
            let code = code.map_or_else(|_| String::new(), |code| code.to_string());
            let text = format!("unexpected HTTP status code received from server: {code}");
            call.end(End::Told(Err(Status::with(Code::Unknown, text))));
            self.http2.reset(call.key, Reason::CANCEL);
        } else if is_all {
            call.end(End::Untold);
        }
    }

    /// The connection is over, for all its calls.
    fn fail(&mut self, why: &str) {
        let why = self.farewell.as_deref().unwrap_or(why);
        let status = unavailable(why);
        for (_, call) in &mut self.calls {
            call.end(End::Broken(status.clone()));
        }
        self.over.get_or_insert(status);
    }
}

/// Drives a connection: what arrives is handed to its calls, and what they say is sent. It ends with the connection, which
/// it closes when no channel and no call is left.
pub(crate) struct Driver {
    session: Arc<Session>,
    wire: Box<dyn Wire>,
    input: Input,
    /// What was left in the input when the connection was blocked comes before what is read.
    was_blocked: bool,
}

impl Driver {
    pub(crate) fn new(session: Arc<Session>, wire: Box<dyn Wire>) -> Driver {
        Driver { session, wire, input: Input::default(), was_blocked: false }
    }

    /// Reads once and hands over what came. Pending if nothing came.
    fn poll_read(&mut self, state: &mut State, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if state.http2.is_blocked() {
            return Poll::Pending;
        }
        if !self.was_blocked {
            let mut space = ReadBuf::new(self.input.space());
            let polled = Pin::new(&mut self.wire).poll_read(cx, &mut space);
            let bytes = space.filled().len();
            self.input.filled(bytes);
            self.session.received.fetch_add(bytes as u64, Ordering::Relaxed);
            if bytes == 0 {
                self.input.consume(0);
                ready!(polled)?;
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
        }
        let mut at = 0;
        let taken = loop {
            match state.http2.next(self.input.unread(), &mut at) {
                Ok(Some(event)) => {
                    if state.take(&event) {
                        state.is_leaving = true;
                        self.session.closed.send_replace(true);
                    }
                    if matches!(event, Event::Pong(_)) {
                        self.session.ponged.notify_waiters();
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        };
        self.was_blocked = state.http2.is_blocked();
        self.input.consume(at);
        Poll::Ready(taken)
    }

    /// Writes what there is. Ready when all of it is written.
    fn poll_write(&mut self, state: &mut State, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            state.http2.gather();
            while let Some(key) = state.http2.next_writable() {
                if let Some(place) = state.place_of(key) {
                    state.calls[place].sender.take().into_iter().for_each(Waker::wake);
                }
            }
            let output = state.http2.output();
            if output.is_empty() {
                return Pin::new(&mut self.wire).poll_flush(cx);
            }
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let count = output.slices(&mut pieces);
            let bytes = ready!(Pin::new(&mut self.wire).poll_write_vectored(cx, &pieces[..count]))?;
            if bytes == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            output.advance(bytes);
        }
    }

    fn poll_turn(&mut self, state: &mut State, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        state.http2.begin_turn(Instant::now());
        for _ in 0..READS_PER_TURN {
            let was_blocked = state.http2.is_blocked();
            // The error of what came is told before the connection ends, if the server takes it at once.
            let read = self.poll_read(state, cx);
            let written = self.poll_write(state, cx);
            // Whatever made room for another call: an event, a command, or what was just written.
            if state.http2.output().len() < OUTPUT_BYTES_MAX && (state.http2.may_open() || state.is_leaving) {
                self.session.freed.notify_waiters();
            }
            let is_read = matches!(read, Poll::Ready(Ok(())));
            if let Poll::Ready(read) = read {
                read?;
            }
            if let Poll::Ready(Err(error)) = written {
                return Poll::Ready(Err(error));
            }
            let is_unused = !self.session.has_channels.load(Ordering::Acquire) && state.calls.is_empty();
            if is_unused && written.is_ready() {
                return self.poll_close(state, cx);
            }
            // While it was blocked nothing was read, and nobody says that something came.
            let goes_on = is_read || was_blocked && !state.http2.is_blocked();
            if !goes_on {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Says that no more calls come, and ends the connection.
    fn poll_close(&mut self, state: &mut State, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        state.http2.close(Reason::NO_ERROR, b"");
        ready!(self.poll_write(state, cx))?;
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let session = Arc::clone(&this.session);
        let mut state = session.lock();
        // Nobody has to wake it while it runs.
        state.driver = None;
        match this.poll_turn(&mut state, cx) {
            Poll::Ready(ended) => {
                if let Err(error) = ended {
                    state.fail(&shown(&error));
                }
                Poll::Ready(())
            }
            Poll::Pending => {
                state.driver = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn shown(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::BrokenPipe => "broken pipe".to_owned(),
        _ => error.to_string(),
    }
}

impl Drop for Driver {
    /// Also when the task is aborted: every call hears that its connection is gone.
    fn drop(&mut self) {
        self.session.lock().fail("the connection was closed");
        self.session.closed.send_replace(true);
        self.session.freed.notify_waiters();
    }
}

/// The status that a head or trailers tell.
fn status_of(fields: &Fields) -> Option<Result<(), Status>> {
    let number = fields.get(b"grpc-status")?;
    let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
    let code = Code::from_number(number.unwrap_or(Code::Unknown as u32));
    if code == Code::Ok {
        return Some(Ok(()));
    }
    let message = fields.get(b"grpc-message").unwrap_or_default();
    Some(Err(Status::with(code, percent_decoded(message))))
}

fn percent_decoded(encoded: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((first, tail)) = rest.split_first() {
        let byte = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)).map(|(h, l)| h * 16 + l),
            _ => None,
        };
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_grpc_says() {
        assert_eq!(percent_decoded(b"100%25 %C3%BC%0A"), "100% ü\n");
        assert_eq!(percent_decoded(b"50% off %4"), "50% off %4");
    }
}
