//! Runs an HTTP/2 request that is not a gRPC call, as a state machine that a connection steps: [`Page`]. The
//! answer is sent as the client's flow-control window opens. Memory for bytes that were produced, but not
//! passed to the transport yet, is reserved in the connection's memory account. The next chunk of an answer
//! is produced only when the window is open. This module does not know paths.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http2::{Fields, Payload, Reason};

use crate::context::{ConnectionContext, Stallable};
use crate::exchange::{ConnectionValue, Exchange, RequestBody, ResponseBody};
use crate::inbox::{Inbox, RequestStream};
use crate::ledger::{Charge, call_bytes};
use crate::progress::{StallCheck, StreamProgress};
use crate::responder::{PIECE_BYTES, Responder};
use crate::service::{LocalBoxFuture, Service};

/// HTTP/2 request that is not a gRPC call.
pub(crate) struct Page {
    state: State,
    responder: Responder,
    pub(crate) inbox: Rc<Inbox>,
    is_head: bool,
    progress: StreamProgress,
    /// True while the answer waits for the client to open its flow-control window.
    waits_for_window: bool,
    _stallable: Stallable,
    /// Memory reservation for the request and for the unsent part of the answer.
    charge: Charge,
    /// Bytes of `charge` that are for the request.
    base: usize,
}

enum State {
    /// The service is making the answer.
    Answering(LocalBoxFuture<Response<ResponseBody>>),
    /// The answer is being sent: the body that is still to be produced, and bytes that were produced and are
    /// not sent yet.
    Sending(ResponseBody, Bytes),
}

/// Converts a header list into the head of an HTTP request; `None` if the method, the target or a field is
/// not valid HTTP.
fn parts(fields: &Fields) -> Option<Parts> {
    let mut uri = Uri::builder().path_and_query(PathAndQuery::try_from(fields.path()).ok()?);
    if let Some(authority) = fields.authority().filter(|authority| !authority.is_empty()) {
        uri = uri.authority(authority).scheme(fields.scheme()?);
    }
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(fields.method()).ok()?;
    *request.uri_mut() = uri.build().ok()?;
    *request.version_mut() = Version::HTTP_2;
    for (name, value) in fields.regular() {
        let (name, value) = (HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
        request.headers_mut().append(name, value);
    }
    Some(request.into_parts().0)
}

impl Page {
    /// Begins a request: passes it to the service. Returns `None` if the request was refused.
    pub(crate) fn begin(
        around: &Rc<ConnectionContext>,
        service: &Rc<dyn Service>,
        fields: &Fields,
        mut responder: Responder,
    ) -> Option<Box<Page>> {
        if around.check_requests().is_err() {
            responder.open_page(&empty(StatusCode::SERVICE_UNAVAILABLE), true);
            return None;
        }
        let Some(head) = parts(fields) else {
            responder.reset(Reason::PROTOCOL_ERROR);
            return None;
        };
        let mut charge = Charge::new(&around.account);
        let base = call_bytes(fields.heap_bytes());
        charge.raise_to(base);
        let is_head = head.method == Method::HEAD;
        let (stream, inbox) = RequestStream::new(around, responder.key());
        let body = RequestBody::http2(stream, Charge::new(&around.account), &around.shard);
        // A dummy fills the place of the service's value, so that the service stores none here: the value for
        // an HTTP/2 connection is stored in the connection.
        let kept: ConnectionValue = Rc::new(RefCell::new(Some(Box::new(()))));
        let (account, shard) = (around.account.clone(), around.shard.clone());
        let exchange = Exchange::new(head, body, around.origin.clone(), account, shard, kept);
        let answering = service.clone().exchange(exchange);
        Some(Box::new(Page {
            state: State::Answering(answering),
            responder,
            inbox,
            is_head,
            progress: StreamProgress::default(),
            waits_for_window: false,
            _stallable: Stallable::new(around),
            charge,
            base,
        }))
    }

    /// Continues the request as far as possible. Returns it if it waits; `None` once it is over.
    pub(crate) fn step(
        mut self: Box<Self>,
        around: &Rc<ConnectionContext>,
        cx: &mut Context<'_>,
    ) -> Option<Box<Page>> {
        if let State::Answering(answering) = &mut self.state {
            let polled = answering.as_mut().poll(cx);
            around.note_examined();
            let answer = match polled {
                Poll::Ready(answer) => answer,
                Poll::Pending if !self.responder.is_open() => return None,
                Poll::Pending => return Some(self),
            };
            let (mut head, mut body) = answer.into_parts();
            // These headers are removed, because HTTP/2 forbids them.
            for name in [CONNECTION, TRANSFER_ENCODING] {
                head.headers.remove(name);
            }
            for name in ["keep-alive", "proxy-connection", "upgrade", "te"] {
                head.headers.remove(name);
            }
            if let ResponseBody::Whole(bytes) = &body {
                head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            }
            let is_empty = self.is_head || matches!(&body, ResponseBody::Whole(bytes) if bytes.is_empty());
            let made = match &mut body {
                ResponseBody::Whole(bytes) if !is_empty => std::mem::take(bytes),
                _ => Bytes::new(),
            };
            around.add_work(made.len());
            self.charge.set(self.base + made.len());
            // If the memory limit for the connection's calls is reached or memory is short, a large answer is
            // discarded and replaced by status 503.
            if made.len() > self.base && around.check_requests().is_err() {
                self.responder.open_page(&empty(StatusCode::SERVICE_UNAVAILABLE), true);
                return None;
            }
            if !self.responder.open_page(&head, is_empty) || is_empty {
                return None;
            }
            self.state = State::Sending(body, made);
        }
        self.send(around, cx)
    }

    fn send(mut self: Box<Self>, around: &ConnectionContext, cx: &mut Context<'_>) -> Option<Box<Page>> {
        let responder = &self.responder;
        let State::Sending(body, made) = &mut self.state else {
            unreachable!("an answer is sent once it is made")
        };
        if !responder.is_open() {
            return None;
        }
        // If the connection's queued answers are at their limit, a stream queues another chunk only when
        // nothing of it is queued.
        let queued_max = if around.has_room() { PIECE_BYTES } else { 1 };
        if responder.queued_bytes() >= queued_max {
            responder.want_room();
            return Some(self);
        }
        // If no produced bytes are left, one byte of window suffices to ask the body for its next chunk.
        let room = responder.room().min(made.len().clamp(1, PIECE_BYTES));
        self.waits_for_window = room == 0;
        if room == 0 && !(made.is_empty() && is_over(body)) {
            responder.want_room();
            return Some(self);
        }
        if made.is_empty() {
            let next = match body {
                ResponseBody::Whole(_) => Poll::Ready(None),
                ResponseBody::Chunks(source) => source(cx),
            };
            around.note_examined();
            match next {
                Poll::Pending => return Some(self),
                Poll::Ready(Some(Ok(bytes))) => {
                    around.add_work(bytes.len());
                    self.charge.set(self.base + bytes.len());
                    *made = bytes;
                }
                Poll::Ready(Some(Err(_))) => {
                    self.responder.reset(Reason::INTERNAL_ERROR);
                    return None;
                }
                Poll::Ready(None) => {
                    self.responder.end_page();
                    return None;
                }
            }
            // The produced bytes are sent in the next step, which computes again how many fit into the
            // window: up to here only one byte was needed.
            cx.waker().wake_by_ref();
            return Some(self);
        }
        let piece = made.split_to(room);
        let left = made.len();
        if !responder.send(Payload::from(piece)) {
            return None;
        }
        self.charge.set(self.base + left);
        cx.waker().wake_by_ref();
        Some(self)
    }

    /// Returns true if unsent bytes of the answer have made no progress for too long.
    pub(crate) fn is_stalled(&mut self, check: &StallCheck<'_>) -> bool {
        let bytes = self.responder.stream_bytes();
        let waits = match &self.state {
            State::Answering(_) => false,
            State::Sending(_, made) => self.waits_for_window || !made.is_empty() || bytes.queued > 0,
        };
        if !waits {
            self.progress = StreamProgress::default();
            return false;
        }
        self.progress.is_stalled(bytes, check)
    }
}

/// Returns true if the body has no bytes to produce, because it was complete from the beginning.
fn is_over(body: &ResponseBody) -> bool {
    matches!(body, ResponseBody::Whole(_))
}

fn empty(status: StatusCode) -> http::response::Parts {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response.into_parts().0
}
