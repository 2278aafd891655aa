//! Runs the HTTP/2 connection of a [`crate::Channel`]. [`Driver`] is the task that reads and writes the
//! connection. [`Session`] is the state that the calls share with this task. This module handles only the
//! bytes of messages, and neither deadlines nor endpoints nor retries.

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
use transport::{Stream, Wire};

use crate::messages::Messages;

/// Maximum number of slices of output in one vectored write.
const PIECES_MAX: usize = 64;
/// Limit of unsent output in bytes. While at least so much output is unsent, no new call is started.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of reads each time the driver is polled. After them, the driver yields to other tasks.
const READS_PER_TURN: usize = 16;
/// Maximum number of paths whose request header templates are cached. It is not reached normally, because a
/// client uses a few dozen methods. When it is reached, the cache is emptied.
const HEADS_MAX: usize = 128;

/// Reason why a call ended.
enum End {
    /// The server sent a gRPC status, in trailers or in a response that consists of headers only.
    Told(Result<(), Status>),
    /// The server ended the response without sending a gRPC status.
    Untold,
    Reset {
        reason: Reason,
        by_peer: bool,
    },
    /// The connection failed.
    Broken(Status),
}

/// State of a call. It is kept until both the sender and the receiver are dropped.
struct Call {
    key: Key,
    /// True once the response headers have arrived.
    has_head: bool,
    messages: Messages,
    /// Number of received bytes by which the call's receive window has not been extended again yet.
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
    /// Templates of the request headers, by path.
    heads: HashMap<Box<str>, Template>,
    calls: Slab<Call>,
    /// Indices into `calls`, by [`Key::slot`].
    by_slot: Vec<Option<usize>>,
    driver: Option<Waker>,
    /// True once the server has sent GOAWAY.
    is_leaving: bool,
    /// Status that all further calls return; `None` until the connection has ended.
    over: Option<Status>,
    /// Description of the server's GOAWAY frame; `None` unless the server has sent one with an error as its
    /// reason.
    farewell: Option<String>,
    /// Number of the last PING that was sent.
    pinged: u64,
    /// Number of the last PING that the server has answered.
    ponged: u64,
}

/// State that the calls of a connection share with the task that drives it.
///
/// Calls may move between threads, so the state is protected by a mutex, and a waker wakes the task. Each
/// command or event holds the mutex for only some hundred nanoseconds. The alternative, a channel of commands
/// to the task, would cost one allocation and two wake-ups per message.
pub(crate) struct Session {
    state: Mutex<State>,
    /// False once the last [`crate::Channel`] is dropped. After that, no call can be started.
    has_channels: AtomicBool,
    /// Total number of bytes received.
    received: AtomicU64,
    ponged: Notify,
    /// Wakes the tasks that wait in [`Session::open`], so that they try again to start their call.
    freed: Notify,
    /// True once the connection accepts no more calls.
    closed: watch::Sender<bool>,
}

fn unavailable(why: impl std::fmt::Display) -> Status {
    Status::with(Code::Unavailable, format!("connection error: {why}"))
}

/// Status of a call whose trailers contain no gRPC status.
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
        // Ignore poisoning: only a bug in this crate makes code panic while it holds this mutex, and another
        // panic here would not help the calls of this connection.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sender of a watch channel whose value becomes true when the connection accepts no more
    /// calls: it has ended, or its server is shutting down.
    pub(crate) fn closed(&self) -> &watch::Sender<bool> {
        &self.closed
    }

    /// Records that the last [`crate::Channel`] was dropped. The connection is closed when its last call has
    /// ended.
    pub(crate) fn let_go(&self) {
        self.has_channels.store(false, Ordering::Release);
        self.lock().wake_driver();
    }

    /// Returns the number of calls whose sender or receiver still exists.
    pub(crate) fn calls(&self) -> usize {
        self.lock().calls.len()
    }

    /// Returns the total number of bytes received on the connection.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Sends a PING and waits until the server has answered it.
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

    /// Starts a call and returns its index. Waits until the server allows one more stream and the unsent
    /// output is below [`OUTPUT_BYTES_MAX`]. `more` contains header fields that are sent in addition to those
    /// of every call.
    ///
    /// # Errors
    ///
    /// Returns `Unavailable` if the connection accepts no more calls; the server has certainly not seen this
    /// call. Returns `InvalidArgument` if a header field is not allowed.
    pub(crate) async fn open(
        &self,
        path: &str,
        more: &[(&[u8], &[u8])],
        message_bytes_max: usize,
    ) -> Result<usize, Status> {
        loop {
            // Create the future before the attempt, so that it also gets a notification that is sent between
            // the attempt and the await.
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
        // Wait while there is much unsent output. Header frames are not subject to flow control, so without
        // this limit the headers of new calls could fill the memory if a server stops reading.
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

    /// Sends the rest of a message as far as the server's flow-control window allows. Ready when all of
    /// `rest` is sent. If `is_last` is true, also ends the request body. Returns false if the call has
    /// already ended.
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
            // Stop if the call has ended already: a server may send its response before it has received the
            // whole request.
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

    /// Ends the request body of a call.
    pub(crate) fn finish(&self, place: usize) {
        let mut state = self.lock();
        let key = state.calls[place].key;
        // An error means that the call has already ended, so there is nothing to finish.
        let _ = state.http2.send_data(key, Payload::from(Bytes::new()), true);
        state.wake_driver();
    }

    /// Cancels a call. Does nothing if the call has already ended.
    pub(crate) fn cancel(&self, place: usize) {
        let mut state = self.lock();
        state.cancel(place);
        state.wake_driver();
    }

    /// Records that the sender of the call was dropped.
    pub(crate) fn drop_sender(&self, place: usize) {
        let mut state = self.lock();
        state.calls[place].has_sender = false;
        state.drop_unused(place);
    }

    /// Records that the receiver of the call was dropped. Messages that arrive later are discarded.
    pub(crate) fn drop_receiver(&self, place: usize) {
        let mut state = self.lock();
        state.calls[place].has_receiver = false;
        state.release(place, usize::MAX);
        state.calls[place].messages = Messages::new(0);
        state.drop_unused(place);
    }

    /// Returns the next message of a call, or `None` when the call ended with status OK.
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
        // Extend the receive window by all received bytes, although the message is not complete: a message
        // may be longer than the window, and its rest could not arrive otherwise.
        state.release(place, usize::MAX);
        Poll::Pending
    }
}

/// Failure of a call.
pub(crate) struct Failed {
    pub(crate) status: Status,
    /// True if the server has confirmed that it did not process the call (RFC 9113, sections 6.8 and 8.7).
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
                // REFUSED_STREAM means that the server did not process the call. But do not trust it after
                // response headers: a server that has begun to respond has processed the call.
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

    /// Returns the template of the request headers for a path, from the cache if possible.
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

    /// Removes a call after both its sender and its receiver were dropped. Cancels the call if it has not
    /// ended.
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

    /// Extends the call's receive window again by `bytes` received bytes, but at most by
    /// [`Call::unreleased`].
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

    /// Processes an event of the connection. Returns true if the event is a GOAWAY.
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
            // The condition excludes a PONG for a PING that was never sent, which is ignored below.
            Event::Pong(number) if *number <= self.pinged => self.ponged = self.ponged.max(*number),
            Event::Informational { .. } | Event::Pinged | Event::Pong(_) | Event::Settings => {}
        }
        false
    }

    fn head_came(&mut self, place: usize, fields: &Fields, is_all: bool) {
        let call = &mut self.calls[place];
        call.has_head = true;
        if let Some(result) = status_of(fields) {
            // A gRPC status in the headers ends the call. `end` keeps this result, whatever follows.
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

    /// Ends all calls of the connection, with `Unavailable`.
    fn fail(&mut self, why: &str) {
        let why = self.farewell.as_deref().unwrap_or(why);
        let status = unavailable(why);
        for (_, call) in &mut self.calls {
            call.end(End::Broken(status.clone()));
        }
        self.over.get_or_insert(status);
    }
}

/// Task that drives a connection: passes received data to the calls and writes the calls' output. The task
/// closes the connection when no [`crate::Channel`] and no call is left, and then ends.
pub(crate) struct Driver {
    session: Arc<Session>,
    wire: Wire<Stream>,
    input: Input,
    /// True if the HTTP/2 state machine was blocked after the last read, so that it has not processed all
    /// received frames. The frames that are left in `input` must then be processed before more is read.
    was_blocked: bool,
}

impl Driver {
    pub(crate) fn new(session: Arc<Session>, wire: Wire<Stream>) -> Driver {
        Driver { session, wire, input: Input::default(), was_blocked: false }
    }

    /// Reads once and processes the received frames. Pending if no bytes arrived.
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

    /// Writes all pending output. Ready when everything is written and flushed.
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
            // Write before the result of the read is checked: after a protocol error in the input, this sends
            // the GOAWAY frame, if the socket accepts it without waiting.
            let read = self.poll_read(state, cx);
            let written = self.poll_write(state, cx);
            // Wake the tasks that wait in `open`: an event, a command of a call, or the last write may have
            // made it possible to start another call.
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
            // Do another round if the connection was blocked and no longer is. A blocked connection is not
            // read, so no wake-up for new input is registered, and the driver would sleep although input
            // waits.
            let goes_on = is_read || was_blocked && !state.http2.is_blocked();
            if !goes_on {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends GOAWAY and shuts the connection down.
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
        // Remove the waker, since calls need not wake the driver while it runs. It is stored again below,
        // before the driver waits.
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
    /// Fails all open calls. This also happens when the task is aborted, which closes the connection.
    fn drop(&mut self) {
        self.session.lock().fail("the connection was closed");
        self.session.closed.send_replace(true);
        self.session.freed.notify_waiters();
    }
}

/// Returns the gRPC status in response headers or trailers; `None` if they contain none.
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
