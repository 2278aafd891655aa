//! Represents requests that are not gRPC calls, such as pages and calls in JSON, for the service that answers
//! them. [`Exchange`] is one such request, over HTTP/1 or HTTP/2, with its [`RequestBody`]; [`ResponseBody`]
//! is the body of the answer. [`LocalStream`] is the client side of a streaming call that such a request
//! makes. This module does not know sockets.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::Status;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::request::Parts;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use crate::inbound::{Inbound, NextMessage};
use crate::inbox::RequestStream;
use crate::ledger::Charge;
use crate::listener::Origin;
use crate::long_turns::Ticket;
use crate::outbound::{Outbound, Sending};
use crate::pace::Pace;
use crate::shard_state::ShardState;
use accounting::ShardCounters;
use accounting::{Account, Held};

/// Value that the service stores for an HTTP/1 connection until the connection ends; `None` before. For an
/// HTTP/2 connection, the connection itself stores the value from [`crate::Service::connected`] instead.
pub(crate) type ConnectionValue = Rc<RefCell<Option<Box<dyn Any>>>>;

/// Request that is not a gRPC call.
pub struct Exchange {
    /// Method, path and headers of the request.
    pub head: Parts,
    /// Request body, readable as it arrives.
    pub body: RequestBody,
    /// Origin of the connection that carries the request.
    pub origin: Origin,
    /// Memory account of the connection.
    pub account: Rc<Account>,
    /// Counters of the shard that serves the connection.
    pub counters: Arc<ShardCounters>,
    kept: ConnectionValue,
    shard: Rc<ShardState>,
}

impl Exchange {
    pub(crate) fn new(
        head: Parts,
        body: RequestBody,
        origin: Origin,
        account: Rc<Account>,
        shard: Rc<ShardState>,
        kept: ConnectionValue,
    ) -> Exchange {
        let counters = shard.counters.clone();
        Exchange { head, body, origin, account, counters, kept, shard }
    }

    /// Calls `connected`, and stores the value that it returns until the connection ends. Does nothing if a
    /// value is already stored.
    pub fn keep(&self, connected: impl FnOnce() -> Option<Box<dyn Any>>) {
        let mut kept = self.kept.borrow_mut();
        if kept.is_none() {
            *kept = connected();
        }
    }

    /// Returns a future that resolves when the request may do long work that cannot be split. A shard allows
    /// one such piece of work, a long turn, between two polls of the network.
    pub fn long_turn(&self) -> impl Future<Output = ()> + use<> {
        poll_fn(self.long_turns())
    }

    /// Returns a poll function that becomes ready when the request may do long work, like
    /// [`Exchange::long_turn`]. The next call after a `Ready` requests another long turn.
    pub fn long_turns(&self) -> impl FnMut(&mut Context<'_>) -> Poll<()> + use<> {
        let (shard, mut ticket) = (self.shard.clone(), Ticket::default());
        move |cx| ticket.poll(&shard.long_turns, cx)
    }

    /// Returns the maximum length of a call's request message, in bytes.
    pub fn message_bytes_max(&self) -> usize {
        self.shard.options.message_bytes_max
    }

    /// Returns the maximum size of a body that [`RequestBody::gather`] accepts, in bytes.
    pub fn body_bytes_max(&self) -> usize {
        self.body.bytes_max
    }

    /// Returns the maximum length of a message of an answer, in bytes.
    pub fn answer_message_bytes_max(&self) -> usize {
        self.shard.options.answer_message_bytes_max
    }

    /// Checks the memory limits of the connection and of all clients together before a call begins.
    ///
    /// # Errors
    ///
    /// Returns etcd's `too many requests` if the calls of the connection hold more bytes than allowed, or if
    /// memory is short and the client holds much of it.
    pub fn check(&self) -> Result<(), Status> {
        let is_full = self.account.requests_bytes() > self.shard.options.request_bytes_max;
        if is_full || self.account.is_pressed() { Err(api::error::TOO_MANY_REQUESTS) } else { Ok(()) }
    }

    /// Opens a streaming call that has no HTTP/2 stream. `next` converts the request body into a poll
    /// function for the call's messages. The returned [`Inbound`] and [`Outbound`] are the arguments for
    /// [`crate::Service::stream`].
    pub fn open_stream(
        mut self,
        method: u16,
        next: impl FnOnce(RequestBody) -> NextMessage,
    ) -> (Inbound, Outbound, LocalStream) {
        if let Some(phase) = &mut self.body.phase {
            phase.is_stream.set(true);
        }
        let sending = Sending::local(&self.shard, &self.account, method);
        let inbound = Inbound::local(next(self.body), self.counters, method);
        (inbound, Outbound::new(sending.clone()), LocalStream { sending })
    }
}

/// Client side of a streaming call that has no HTTP/2 stream, for the code that converts the call's messages
/// to the answer of an HTTP request. Dropping it closes the call.
pub struct LocalStream {
    sending: Rc<Sending>,
}

impl LocalStream {
    /// Takes the next message of the answer; pending while there is none.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        self.sending.poll_local(cx)
    }
}

impl Drop for LocalStream {
    fn drop(&mut self) {
        self.sending.close();
    }
}

/// Body of a request, readable as it arrives.
pub struct RequestBody {
    source: Source,
    /// Memory reservation for buffered bytes of the body and for the data that the service makes from them.
    /// The answer has a reservation of its own.
    held: Charge,
    bytes_max: usize,
    timeout: std::time::Duration,
    phase: Option<Rc<Phase>>,
}

/// Progress of the current request on an HTTP/1 connection, which decides whether the connection is read
/// beyond the end of the request. That is necessary while a call waits or a stream lasts, because nothing is
/// written at these times, so that only the end of the input shows that the client has disconnected.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    is_stream: Cell<bool>,
    is_body_over: Cell<bool>,
    /// True once the service has returned the head of the answer.
    is_answered: Cell<bool>,
}

impl Phase {
    /// Resets the state for the next request.
    pub(crate) fn begin(&self) {
        self.is_stream.set(false);
        self.is_body_over.set(false);
        self.is_answered.set(false);
    }

    /// Notes that the answer begins. From then on the connection need not be read beyond the request, because
    /// a failing write shows that the client has disconnected. Exception: a streaming call, which may write
    /// nothing for a long time.
    pub(crate) fn answered(&self) {
        self.is_answered.set(true);
    }

    /// Returns true if the request is a streaming call.
    pub(crate) fn is_stream(&self) -> bool {
        self.is_stream.get()
    }

    /// Returns true if the connection must be read beyond the request to notice a disconnect: if the rest of
    /// the body is not needed, and the answer has not begun or is a stream.
    pub(crate) fn is_heard_out(&self) -> bool {
        self.is_body_over.get() && (self.is_stream.get() || !self.is_answered.get())
    }
}

enum Source {
    Http1(Incoming),
    Http2(RequestStream),
}

impl RequestBody {
    pub(crate) fn http1(body: Incoming, held: Charge, shard: &ShardState, phase: Rc<Phase>) -> RequestBody {
        let mut body = RequestBody::new(Source::Http1(body), held, shard);
        body.phase = Some(phase);
        body
    }

    pub(crate) fn http2(body: RequestStream, held: Charge, shard: &ShardState) -> RequestBody {
        RequestBody::new(Source::Http2(body), held, shard)
    }

    fn new(source: Source, held: Charge, shard: &ShardState) -> RequestBody {
        let (bytes_max, timeout) = (shard.options.http_body_bytes_max(), shard.options.first_bytes_timeout);
        RequestBody { source, held, bytes_max, timeout, phase: None }
    }

    /// Takes the next bytes of the body that have arrived; `None` at the end of the body.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StatusCode>>> {
        match &mut self.source {
            Source::Http1(body) => loop {
                let frame = match std::task::ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    None => {
                        self.is_over();
                        return Poll::Ready(None);
                    }
                    Some(Err(_)) => return Poll::Ready(Some(Err(StatusCode::BAD_REQUEST))),
                    Some(Ok(frame)) => frame,
                };
                if let Ok(data) = frame.into_data() {
                    return Poll::Ready(Some(Ok(data)));
                }
            },
            Source::Http2(body) => {
                let data = std::task::ready!(body.poll(cx));
                Poll::Ready(data.map(|data| data.map_err(|_| StatusCode::BAD_REQUEST)))
            }
        }
    }

    /// Notes that the body is complete or its rest is not needed. From then on only reads beyond the request
    /// show whether the client is still connected.
    fn is_over(&self) {
        self.phase.iter().for_each(|phase| phase.is_body_over.set(true));
    }

    /// Sets the number of bytes that the service holds for this request. They stay reserved in the
    /// connection's memory account until the body is dropped.
    pub fn hold(&mut self, bytes: usize) {
        self.held.set(bytes);
    }

    /// Sets the size limit of [`RequestBody::gather`], in bytes, in place of
    /// [`crate::Options::http_body_bytes_max`].
    pub fn allow(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Reads the whole body. The memory reservation grows with the bytes read.
    ///
    /// # Errors
    ///
    /// Returns the HTTP status to answer with if the body is too large, too slow or cut off.
    pub async fn gather(&mut self) -> Result<Bytes, StatusCode> {
        let timeout = self.timeout;
        match tokio::time::timeout(timeout, self.gather_patiently()).await {
            Ok(gathered) => gathered,
            Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
        }
    }

    async fn gather_patiently(&mut self) -> Result<Bytes, StatusCode> {
        let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
        while let Some(data) = poll_fn(|cx| self.poll_chunk(cx)).await {
            let data = data?;
            if first.len() + whole.len() + data.len() > self.bytes_max {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            // Most bodies arrive in one chunk, which is returned without being copied.
            if first.is_empty() && whole.is_empty() {
                first = data;
                self.held.set(first.len());
                continue;
            }
            whole.extend_from_slice(&std::mem::take(&mut first));
            whole.extend_from_slice(&data);
            self.held.set(whole.capacity());
        }
        Ok(if whole.is_empty() { first } else { whole.freeze() })
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.is_over();
    }
}

/// Poll function for the next bytes of an answer; `None` at its end. After an error the answer is aborted, so
/// that the client sees that it is incomplete.
pub type ChunkSource = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>>;

/// Body of an answer.
pub enum ResponseBody {
    /// Complete body.
    Whole(Bytes),
    /// Body that is produced in chunks, as the client takes it.
    Chunks(ChunkSource),
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> ResponseBody {
        ResponseBody::Whole(bytes)
    }
}

/// Body of an answer over HTTP/1. The memory of a chunk that was passed to hyper stays reserved until hyper
/// takes the next chunk or the next request begins, because hyper does not report when the bytes were sent.
pub(crate) struct Http1Body {
    body: ResponseBody,
    held: Rc<RefCell<Held>>,
    pace: Rc<Pace>,
}

impl Http1Body {
    pub(crate) fn new(body: ResponseBody, held: Rc<RefCell<Held>>, pace: Rc<Pace>) -> Http1Body {
        if let ResponseBody::Whole(bytes) = &body {
            held.borrow_mut().set(bytes.len());
            pace.note(bytes.len());
        }
        Http1Body { body, held, pace }
    }
}

impl hyper::body::Body for Http1Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let body = &mut *self;
        match &mut body.body {
            ResponseBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            ResponseBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            ResponseBody::Chunks(source) => {
                let chunk = std::task::ready!(body.pace.poll(cx, |cx| source(cx)));
                if let Some(Ok(bytes)) = &chunk {
                    body.held.borrow_mut().set(bytes.len());
                    body.pace.note(bytes.len());
                }
                Poll::Ready(chunk.map(|bytes| bytes.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.body, ResponseBody::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Chunks(_) => SizeHint::default(),
        }
    }
}
