//! Requests that are no gRPC calls: pages, and calls in JSON. [`Exchange`] is one, over HTTP/1 or HTTP/2, with its
//! [`RequestBody`]; [`ResponseBody`] is what answers it. [`LocalStream`] is the client's side of a streaming call that such a
//! request makes. It knows no sockets.

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

use crate::http1::Pace;
use crate::inbound::NextMessage;
use crate::inbox::RequestStream;
use crate::ledger::Charge;
use crate::long_turns::Ticket;
use crate::outbound::Sending;
use crate::shard::ShardState;
use crate::{Inbound, LocalBoxFuture, Origin, Outbound};
use accounting::ShardCounters;
use accounting::{Account, Held};

/// What a service keeps for a connection that speaks HTTP/1; empty until the service puts something in. For HTTP/2 it is what
/// [`crate::Service::connected`] gave, which is kept elsewhere.
pub(crate) type Kept = Rc<RefCell<Option<Box<dyn Any>>>>;

/// A request that is no gRPC call.
pub struct Exchange {
    /// Method, path and headers.
    pub head: Parts,
    /// The body, as it arrives.
    pub body: RequestBody,
    /// Where the request comes from.
    pub origin: Origin,
    /// Account of the connection.
    pub account: Rc<Account>,
    /// Counters of the shard.
    pub counters: Arc<ShardCounters>,
    kept: Kept,
    shard: Rc<ShardState>,
}

impl Exchange {
    pub(crate) fn new(
        head: Parts,
        body: RequestBody,
        origin: Origin,
        account: Rc<Account>,
        shard: Rc<ShardState>,
        kept: Kept,
    ) -> Exchange {
        let counters = shard.counters.clone();
        Exchange { head, body, origin, account, counters, kept, shard }
    }

    /// Keeps what `connected` gives until the connection ends, if nothing is kept for it.
    pub fn keep(&self, connected: impl FnOnce() -> Option<Box<dyn Any>>) {
        let mut kept = self.kept.borrow_mut();
        if kept.is_none() {
            *kept = connected();
        }
    }

    /// Returns a future that waits until the request may take long: there is one such turn between two looks of the shard at
    /// the network. For what is not made in slices.
    pub fn long_turn(&self) -> impl Future<Output = ()> + use<> {
        poll_fn(self.long_turns())
    }

    /// Returns a function that is ready when the request may take long, as [`Exchange::long_turn`] is. Once it was ready it waits for
    /// another such turn.
    pub fn long_turns(&self) -> impl FnMut(&mut Context<'_>) -> Poll<()> + use<> {
        let (shard, mut ticket) = (self.shard.clone(), Ticket::default());
        move |cx| ticket.poll(&shard.long_turns, cx)
    }

    /// Largest message of a call, in bytes.
    pub fn message_bytes_max(&self) -> usize {
        self.shard.options.message_bytes_max
    }

    /// Largest body that is taken whole, in bytes.
    pub fn body_bytes_max(&self) -> usize {
        self.body.bytes_max
    }

    /// Largest message of an answer, in bytes.
    pub fn answer_message_bytes_max(&self) -> usize {
        self.shard.options.answer_message_bytes_max
    }

    /// Refuses a call when the calls of its connection hold as much as they may, or all clients nearly as much as they may.
    ///
    /// # Errors
    ///
    /// etcd's `too many requests`.
    pub fn check(&self) -> Result<(), Status> {
        let is_full = self.account.requests_bytes() > self.shard.options.request_bytes_max;
        if is_full || self.account.is_pressed() { Err(api::error::TOO_MANY_REQUESTS) } else { Ok(()) }
    }

    /// Opens a streaming call without a stream of HTTP/2: `next` makes its requests of
    /// the body. The service's two ends are for
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

/// The client's side of a streaming call that a request makes without a stream of HTTP/2. The call's end sees it closed when
/// this is dropped.
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

/// The body of a request, as it arrives.
pub struct RequestBody {
    source: Source,
    /// Charge for what is held of it, and of what is made of it; the answer has its own.
    held: Charge,
    bytes_max: usize,
    timeout: std::time::Duration,
    phase: Option<Rc<Phase>>,
}

/// How far the request of a connection of HTTP/1 has come: with a call that waits or lasts, nothing but the end of the
/// connection says that its client has gone.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    is_stream: Cell<bool>,
    is_body_over: Cell<bool>,
    /// The answer has begun.
    is_answered: Cell<bool>,
}

impl Phase {
    /// Another request begins.
    pub(crate) fn begin(&self) {
        self.is_stream.set(false);
        self.is_body_over.set(false);
        self.is_answered.set(false);
    }

    /// The answer begins. Whether the client takes it shows if it has gone, but for a streaming call, which may have nothing
    /// to say for long.
    pub(crate) fn answered(&self) {
        self.is_answered.set(true);
    }

    /// Returns true if the request is a streaming call.
    pub(crate) fn is_stream(&self) -> bool {
        self.is_stream.get()
    }

    /// Returns true if the request has sent all that it may, and its client waits.
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

    /// Takes what has arrived of the body; `None` at its end.
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

    /// Nothing more of it is read, so that only what is read besides shows whether the client is still there.
    fn is_over(&self) {
        self.phase.iter().for_each(|phase| phase.is_body_over.set(true));
    }

    /// Charges bytes that a service holds of the body, until it is dropped.
    pub fn hold(&mut self, bytes: usize) {
        self.held.set(bytes);
    }

    /// Takes the whole body up to this many bytes, instead of [`crate::Options::http_body_bytes_max`].
    pub fn allow(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Takes the whole body, which is charged as it grows.
    ///
    /// # Errors
    ///
    /// The status that answers a body which is too large, too slow, or cut.
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
            // Most bodies arrive in one piece.
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

/// Gives the next bytes of an answer; `None` at its end. After an error the answer is cut, so that the client sees that it is
/// not whole.
pub type ChunkSource = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>>;

/// The body of an answer.
pub enum ResponseBody {
    /// It is ready.
    Whole(Bytes),
    /// It is made while the client takes it.
    Chunks(ChunkSource),
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> ResponseBody {
        ResponseBody::Whole(bytes)
    }
}

/// The body of an answer over HTTP/1. The part that the transport has is charged until the next one is taken, or the next
/// request comes: the transport does not say when it has gone.
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

/// Answers an exchange with a service that takes whole requests.
pub(crate) fn answer_whole<S: crate::Service + ?Sized + 'static>(
    service: Rc<S>,
    mut exchange: Exchange,
) -> LocalBoxFuture<http::Response<ResponseBody>> {
    Box::pin(async move {
        let body = match exchange.body.gather().await {
            Ok(body) => body,
            Err(status) => return plain(status),
        };
        let mut head = exchange.head;
        head.extensions.insert(exchange.origin.peer);
        head.extensions.insert(exchange.origin);
        service.http(http::Request::from_parts(head, body)).await.map(ResponseBody::from)
    })
}

fn plain(status: StatusCode) -> http::Response<ResponseBody> {
    let mut response = http::Response::new(ResponseBody::from(Bytes::new()));
    *response.status_mut() = status;
    response
}
