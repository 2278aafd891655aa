//! A request over HTTP/2 that is no gRPC call, as a state machine that a connection steps: [`Page`]. Its answer is sent as
//! the client's window opens. What was made of it and has not gone to the transport is charged to the connection, and an
//! answer that is made piece by piece is asked for a piece only when the window has room. It knows no paths.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use crate::call::{
    Call, ConnectionContext, Look, PIECE_BYTES, Stallable, Step, StreamProgress, Tracked, call_bytes,
};
use crate::exchange::{Exchange, Kept, RequestBody, ResponseBody};
use crate::ledger::{Charge, Ledger};
use crate::outgoing::Outgoing;
use crate::{LocalBoxFuture, Origin};

/// A request over HTTP/2 that is no gRPC call.
pub(crate) struct Page {
    state: State,
    is_head: bool,
    ledger: Rc<Ledger>,
    progress: StreamProgress,
    /// The answer waits for the client to open its window.
    waits_for_window: bool,
    _stallable: Stallable,
    /// Charge for the request, and the part of the answer that waits.
    charge: Charge,
    /// The request's part of it.
    base: usize,
}

enum State {
    /// The answer is being made.
    Answering(LocalBoxFuture<Response<ResponseBody>>, SendResponse<Outgoing>),
    /// The answer is on its way; bytes that were made and do not fit the client's window yet.
    Sending(SendStream<Outgoing>, ResponseBody, Bytes),
}

impl Page {
    /// Begins a request; `None` if it was refused for want of room.
    pub(crate) fn begin(
        around: &ConnectionContext,
        request: Request<RecvStream>,
        mut respond: SendResponse<Outgoing>,
        from: &Origin,
    ) -> Option<Box<Page>> {
        if around.requests.check().is_err() {
            // An error means that the stream is gone: nobody is left to tell.
            let _ = respond.send_response(empty(StatusCode::SERVICE_UNAVAILABLE), true);
            return None;
        }
        let mut charge = Charge::new(&around.requests.ledger);
        let base = call_bytes(request.headers());
        charge.raise_to(base);
        let is_head = request.method() == Method::HEAD;
        let (head, body) = request.into_parts();
        let body = RequestBody::http2(body, around.account.hold(0), &around.shard);
        // What the service keeps for connections of HTTP/2 is kept already.
        let kept: Kept = Rc::new(RefCell::new(Some(Box::new(()))));
        let (account, shard) = (around.account.clone(), around.shard.clone());
        let exchange = Exchange::new(head, body, from.clone(), account, shard, kept);
        let answering = around.service.clone().exchange(exchange);
        Some(Box::new(Page {
            state: State::Answering(answering, respond),
            is_head,
            ledger: Rc::default(),
            progress: StreamProgress::default(),
            waits_for_window: false,
            _stallable: Stallable::new(around),
            charge,
            base,
        }))
    }

    pub(crate) fn step(mut self: Box<Self>, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        if let State::Answering(answering, respond) = &mut self.state {
            let answer = match answering.as_mut().poll(cx) {
                Poll::Ready(answer) => answer,
                Poll::Pending if respond.poll_reset(cx).is_ready() => return Step::Over(None),
                Poll::Pending => return Step::Wait(Call::Page(self)),
            };
            let (mut head, mut body) = answer.into_parts();
            // HTTP/2 has no such headers.
            head.headers.remove(CONNECTION);
            head.headers.remove(TRANSFER_ENCODING);
            if let ResponseBody::Whole(bytes) = &body {
                head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            }
            let is_empty = self.is_head || matches!(&body, ResponseBody::Whole(bytes) if bytes.is_empty());
            let made = match &mut body {
                ResponseBody::Whole(bytes) if !is_empty => std::mem::take(bytes),
                _ => Bytes::new(),
            };
            around.made.add(made.len());
            self.charge.set(self.base + made.len());
            // Beyond what the calls of a connection may hold together the client is only told that there was an answer.
            if made.len() > self.base && around.requests.check().is_err() {
                let _ = respond.send_response(empty(StatusCode::SERVICE_UNAVAILABLE), true);
                return Step::Over(None);
            }
            let sent = respond.send_response(Response::from_parts(head, ()), is_empty);
            match sent {
                Ok(send) if !is_empty => self.state = State::Sending(send, body, made),
                _ => return Step::Over(None),
            }
        }
        self.send(around, cx)
    }

    fn send(mut self: Box<Self>, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        let State::Sending(send, body, made) = &mut self.state else {
            unreachable!("an answer is sent once it is made")
        };
        if send.poll_reset(cx).is_ready() {
            return Step::Over(None);
        }
        // Without room among the connection's answers each stream keeps one piece at a time.
        let queued_max = if around.has_room() { PIECE_BYTES } else { 1 };
        if self.ledger.queued() >= queued_max {
            self.ledger.wake_on_release(cx.waker());
            return Step::Wait(Call::Page(self));
        }
        // While nothing is made, a byte of the window is enough to begin: more would be kept from other streams.
        let wanted = made.len().clamp(1, PIECE_BYTES);
        send.reserve_capacity(wanted);
        let room = send.capacity().min(wanted);
        self.waits_for_window = room == 0;
        if room == 0 && !(made.is_empty() && is_over(body)) {
            match send.poll_capacity(cx) {
                Poll::Pending => return Step::Wait(Call::Page(self)),
                Poll::Ready(Some(Ok(_))) => {
                    cx.waker().wake_by_ref();
                    return Step::Wait(Call::Page(self));
                }
                Poll::Ready(_) => return Step::Over(None),
            }
        }
        if made.is_empty() {
            let next = match body {
                ResponseBody::Whole(_) => Poll::Ready(None),
                ResponseBody::Chunks(source) => source(cx),
            };
            match next {
                Poll::Pending => return Step::Wait(Call::Page(self)),
                Poll::Ready(Some(Ok(bytes))) => {
                    around.made.add(bytes.len());
                    self.charge.set(self.base + bytes.len());
                    *made = bytes;
                }
                Poll::Ready(Some(Err(_))) => {
                    send.send_reset(Reason::INTERNAL_ERROR);
                    return Step::Over(None);
                }
                Poll::Ready(None) => {
                    send.reserve_capacity(0);
                    let end = Outgoing::part(Bytes::new(), &around.answers, Some(&self.ledger));
                    let sent = send.send_data(end, true);
                    let Page { state: State::Sending(send, ..), ledger, .. } = *self else {
                        unreachable!("it is being sent")
                    };
                    return Step::Over(sent.is_ok().then(|| Tracked::new(send, ledger)));
                }
            }
            // The window may have room for more of it than for the byte that was asked for.
            cx.waker().wake_by_ref();
            return Step::Wait(Call::Page(self));
        }
        let piece = made.split_to(room);
        let left = made.len();
        if send.send_data(Outgoing::part(piece, &around.answers, Some(&self.ledger)), false).is_err() {
            return Step::Over(None);
        }
        self.charge.set(self.base + left);
        cx.waker().wake_by_ref();
        Step::Wait(Call::Page(self))
    }

    /// Resets the stream if what waits in it does not move; then says so.
    pub(crate) fn reset_if_stalled(&mut self, look: &Look<'_>) -> bool {
        let waits = match &self.state {
            State::Answering(..) => false,
            State::Sending(_, _, made) => {
                self.waits_for_window || !made.is_empty() || self.ledger.queued() > 0
            }
        };
        if !waits {
            self.progress = StreamProgress::default();
            return false;
        }
        let stalled = self.progress.is_stalled(&self.ledger, look);
        if stalled {
            self.reset();
        }
        stalled
    }

    /// Ends the stream with nothing but a reset.
    pub(crate) fn reset(&mut self) {
        match &mut self.state {
            State::Answering(_, respond) => respond.send_reset(Reason::CANCEL),
            State::Sending(send, ..) => send.send_reset(Reason::CANCEL),
        }
    }
}

/// Returns true if nothing more of the answer is to be made.
fn is_over(body: &ResponseBody) -> bool {
    matches!(body, ResponseBody::Whole(_))
}

fn empty(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}
