//! Runs one call, from its first bytes to the end of its answer, as a state machine that a connection steps:
//! `Call::step`. This module assembles unary requests, runs streams, sends large answers in chunks, holds
//! answers back while the connection's queued answers are at their limit, enforces deadlines and detects
//! stalled streams. Of the transport it knows only the two halves of the call's HTTP/2 stream.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use api::{Code, Status};
use bytes::Bytes;
use http::StatusCode;
use http2::{Fields, Key, Payload, Reason};

use crate::assembler::{Assembler, PREFIX_BYTES};
use crate::context::{ConnectionContext, Stallable};
use crate::gzip;
use crate::head::Head;
use crate::inbound::Inbound;
use crate::inbox::{Inbox, RequestStream};
use crate::ledger::{CALL_BYTES, Charge, METADATA_BYTES, call_bytes};
use crate::outbound::{Outbound, Sending};
use crate::page::Page;
use crate::progress::{Progress, StallCheck, StreamProgress};
use crate::reply::check_len;
use crate::responder::{PIECE_BYTES, Responder};
use crate::service::{Answer, LocalBoxFuture, PieceSource, Service, Unary};

/// Status of a call that exceeded its deadline.
pub(crate) const DEADLINE: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// Unary call whose request message is being received.
pub(crate) struct UnaryRequest {
    head: Head,
    responder: Responder,
    assembler: Assembler,
    gzip: bool,
    message: Option<Bytes>,
    /// True if the message is complete, or the call is to be refused, so that the next step can continue.
    is_gathered: bool,
    refusal: Option<Box<Status>>,
    /// Set once the call has had to wait for more bytes from the client.
    waits: Option<Box<Waits>>,
}

/// State of a unary call that waits for more bytes from the client.
struct Waits {
    charge: Charge,
    _stallable: Stallable,
    /// Payload bytes received since the wait began.
    received: u64,
    progress: Progress,
}

/// Unary call that the service is answering.
pub(crate) struct PendingCall {
    future: LocalBoxFuture<Result<Answer, Status>>,
    responder: Responder,
    method: u16,
    gzip: bool,
    charge: Charge,
}

/// Unary call whose answer is ready, but not queued, because the connection's queued answers are at their
/// limit. The future of the call is dropped, so that it does not hold resources of the service, such as an
/// admitted disk read, while it waits for the client. An answer that is produced in chunks fails if it waits
/// too long, because it reads from a snapshot of the store that is kept only for a limited time.
pub(crate) struct FinishedCall {
    made: Answer,
    responder: Responder,
    method: u16,
    gzip: bool,
    /// Reservation for the call and its answer in the connection's memory account.
    charge: Charge,
}

/// Large answer that is produced in chunks, as the client's flow-control window opens.
pub(crate) struct PiecewiseAnswer {
    responder: Responder,
    source: PieceSource,
    len: usize,
    left: usize,
    begun: bool,
    /// True if the source was pending, so that the answer waits for something other than the client.
    waits: bool,
    method: u16,
    progress: StreamProgress,
    _stallable: Stallable,
    /// Memory that the source holds, in bytes.
    held: Rc<Cell<usize>>,
    /// Reservation in the connection's memory account for the bytes of the source, plus `base` bytes for the
    /// call.
    charge: Charge,
    base: usize,
}

/// Streaming call.
pub(crate) struct StreamingCall {
    future: LocalBoxFuture<Result<(), Status>>,
    pub(crate) sending: Rc<Sending>,
    pub(crate) inbox: Rc<Inbox>,
    /// Progress of the queued messages; `None` while no message waits for the client.
    progress: Option<Box<StreamProgress>>,
    /// Number of bytes that are reserved in [`Sending::account`] as request bytes of this call.
    charged: usize,
}

/// Request that must not begin yet, because the connection's queued answers are at their limit, the work
/// limit of the turn is reached, or an earlier request or answer of the connection is waiting. Contains the
/// part of the request's body that has been received.
pub(crate) struct WaitingRequest {
    pub(crate) responder: Responder,
    pub(crate) fields: Arc<Fields>,
    pub(crate) body: Vec<u8>,
    /// True if the client has sent the whole request.
    pub(crate) is_ended: bool,
    pub(crate) charge: Charge,
    /// Time of arrival, from which the call's deadline counts.
    pub(crate) since: Instant,
}

/// Call that is in the table of its connection, because it was not answered immediately.
pub(crate) enum Call {
    Waiting(Box<WaitingRequest>),
    Gathering(Box<UnaryRequest>),
    Pending(Box<PendingCall>),
    Finished(Box<FinishedCall>),
    Pieces(Box<PiecewiseAnswer>),
    Streaming(Box<StreamingCall>),
    Page(Box<Page>),
}

/// The state of a call after a step.
pub(crate) enum Step {
    /// The call waits, in this state.
    Wait(Call),
    /// The call has ended; its answer may still be queued.
    Over,
}

impl Call {
    /// Continues the call as far as possible now.
    pub(crate) fn step(
        self,
        around: &Rc<ConnectionContext>,
        service: &Rc<dyn Service>,
        cx: &mut Context<'_>,
    ) -> Step {
        match self {
            Call::Waiting(_) => Step::Wait(self),
            Call::Gathering(gathering) => gathering.step(around, service, cx),
            Call::Pending(pending) => pending.step(around, service, cx),
            Call::Finished(finished) => finished.step(around, service, cx),
            Call::Pieces(pieces) => pieces.step(around, cx),
            Call::Streaming(mut streaming) => match streaming.poll(around, cx) {
                Poll::Ready(()) => Step::Over,
                Poll::Pending => Step::Wait(Call::Streaming(streaming)),
            },
            Call::Page(page) => match page.step(around, cx) {
                Some(page) => Step::Wait(Call::Page(page)),
                None => Step::Over,
            },
        }
    }

    /// Ends the call with a status, because its deadline passed or its connection is drained.
    pub(crate) fn end(self, around: &ConnectionContext, status: &Status) {
        let counters = &around.shard.counters;
        let begun = self.begun_method();
        begun.into_iter().for_each(|method| counters.handled(method, status.code));
        match self {
            // Nothing to do, because these have no deadline: a waiting call gets one only when it begins, and
            // a page never has one.
            Call::Waiting(_) | Call::Page(_) => {}
            Call::Gathering(gathering) => gathering.responder.refuse(StatusCode::OK, status),
            Call::Pending(pending) => pending.responder.refuse(StatusCode::OK, status),
            Call::Finished(finished) => finished.responder.refuse(StatusCode::OK, status),
            // The stream is reset, because a status cannot be sent inside a message, which may have begun.
            Call::Pieces(pieces) => pieces.responder.reset(Reason::CANCEL),
            Call::Streaming(streaming) => streaming.sending.finish(&Err(status.clone())),
        }
    }

    /// Returns true if the answer of the call is complete and waits until other answers of the connection are
    /// sent.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self, Call::Finished(_))
    }

    /// Returns true if the call holds data that has made no progress for too long. The caller then drops the
    /// call and resets its stream.
    pub(crate) fn is_stalled(&mut self, check: &StallCheck<'_>) -> bool {
        match self {
            Call::Waiting(_) | Call::Pending(_) | Call::Finished(_) => false,
            Call::Page(page) => page.is_stalled(check),
            Call::Gathering(gathering) => {
                let Some(waits) = &mut gathering.waits else { return false };
                if check.was_deaf {
                    waits.progress = Progress::default();
                }
                waits.progress.is_stalled(waits.received, check.now, check.options.request_timeout)
            }
            Call::Pieces(pieces) => {
                let bytes = pieces.responder.stream_bytes();
                if pieces.waits && bytes.queued == 0 {
                    pieces.progress = StreamProgress::default();
                    return false;
                }
                pieces.progress.is_stalled(bytes, check)
            }
            Call::Streaming(streaming) => match streaming.sending.stream_bytes() {
                Some(bytes) if bytes.queued > 0 => {
                    streaming.progress.get_or_insert_default().is_stalled(bytes, check)
                }
                _ => {
                    streaming.progress = None;
                    false
                }
            },
        }
    }

    /// Returns the method of the call if the call was counted as started, so that it must be counted as ended
    /// when it ends; otherwise `None`.
    pub(crate) fn begun_method(&self) -> Option<u16> {
        match self {
            Call::Waiting(_) | Call::Gathering(_) | Call::Page(_) => None,
            Call::Pending(pending) => Some(pending.method),
            Call::Finished(finished) => Some(finished.method),
            Call::Pieces(pieces) => Some(pieces.method),
            Call::Streaming(streaming) => Some(streaming.sending.method),
        }
    }
}

impl UnaryRequest {
    pub(crate) fn new(head: Head, responder: Responder, assembler: Assembler, gzip: bool) -> UnaryRequest {
        UnaryRequest {
            head,
            responder,
            assembler,
            gzip,
            message: None,
            is_gathered: false,
            refusal: None,
            waits: None,
        }
    }

    pub(crate) fn key(&self) -> Key {
        self.responder.key()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.head.deadline
    }

    /// Returns true if the message is complete or the call is to be refused, so that the next step can
    /// continue.
    pub(crate) fn is_gathered(&self) -> bool {
        self.is_gathered
    }

    fn refuse(&mut self, status: Status) {
        self.is_gathered = true;
        self.refusal = Some(Box::new(status));
    }

    /// Takes the next received bytes of the request; `end` is true for the last ones. Returns true if the
    /// message is complete or the call is to be refused, so that the next step can continue.
    pub(crate) fn take(&mut self, around: &ConnectionContext, payload: &[u8], end: bool) -> bool {
        if self.is_gathered {
            return true;
        }
        if let Some(waits) = &mut self.waits {
            waits.received += payload.len() as u64;
        }
        match self.cut(around, payload) {
            Err(status) => self.refuse(status),
            Ok(()) if !end => {}
            Ok(()) if self.assembler.is_mid_message() => self.refuse(TRUNCATED_CALL),
            Ok(()) if self.message.is_none() => self.refuse(NO_MESSAGE),
            Ok(()) => self.is_gathered = true,
        }
        if !self.is_gathered && self.waits.is_some() {
            self.charge_more(around);
        }
        self.is_gathered
    }

    fn cut(&mut self, around: &ConnectionContext, payload: &[u8]) -> Result<(), Status> {
        let mut work = 0;
        let cut = self.cut_all(around, payload, &mut work);
        around.add_work(work);
        cut
    }

    fn cut_all(
        &mut self,
        around: &ConnectionContext,
        mut payload: &[u8],
        work: &mut usize,
    ) -> Result<(), Status> {
        while let Some(assembled) = self.assembler.cut(&mut payload, work)? {
            if self.message.is_some() {
                // A further message is ignored, as in grpc-go, which answers the first one.
                continue;
            }
            around.shard.counters.received(self.head.method, assembled.wire_bytes);
            self.message = Some(assembled.message);
        }
        Ok(())
    }

    /// Marks the call as waiting for more bytes from the client, and reserves memory for it in the
    /// connection's memory account. Returns true if the memory limit is reached, so that the next step
    /// refuses the call.
    pub(crate) fn wait(&mut self, around: &Rc<ConnectionContext>) -> bool {
        if self.waits.is_none() {
            let (charge, _stallable) = (Charge::new(&around.account), Stallable::new(around));
            let waits = Waits { charge, _stallable, received: 0, progress: Progress::default() };
            self.waits = Some(Box::new(waits));
        }
        self.charge_more(around);
        self.is_gathered
    }

    /// Reserves memory for a call that waits for the client. Memory for the whole announced length of a
    /// message is reserved when the message begins, so that a message that was accepted can always be
    /// completed. If the memory limit is reached, marks the call as to be refused.
    fn charge_more(&mut self, around: &ConnectionContext) {
        let message = self.message.as_ref().map_or(0, Bytes::len);
        let bytes = self.assembler.announced().unwrap_or(0) as usize + message;
        if let Some(waits) = &mut self.waits {
            waits.charge.raise_to(call_bytes(self.head.metadata.heap_bytes()) + bytes);
        }
        if let Err(status) = around.check_requests() {
            self.refuse(status);
        }
    }

    fn step(
        self: Box<Self>,
        around: &Rc<ConnectionContext>,
        service: &Rc<dyn Service>,
        cx: &mut Context<'_>,
    ) -> Step {
        if self.is_gathered { self.serve(around, service, cx) } else { Step::Wait(Call::Gathering(self)) }
    }

    /// Passes the complete message to the service, or refuses the call if it was to be refused or if the
    /// memory limit is reached.
    #[expect(clippy::boxed_local, reason = "it comes in its box, and is as long as an argument may be")]
    pub(crate) fn serve(
        self: Box<Self>,
        around: &Rc<ConnectionContext>,
        service: &Rc<dyn Service>,
        cx: &mut Context<'_>,
    ) -> Step {
        if let Some(status) = self.refusal {
            self.responder.refuse(StatusCode::OK, &status);
            return Step::Over;
        }
        let Some(message) = self.message else { unreachable!("it goes on once its message is whole") };
        if let Err(status) = around.check_requests() {
            self.responder.refuse(StatusCode::OK, &status);
            return Step::Over;
        }
        let (method, bytes) = (self.head.method, message.len());
        around.shard.counters.started(method);
        let charge = self.waits.map(|waits| waits.charge);
        let made = service.clone().unary(self.head, message);
        around.note_examined();
        match made {
            Unary::Done(result) => {
                answer(around, service, self.responder, method, self.gzip, result, charge, bytes, cx)
            }
            Unary::Later(future) => {
                let mut charge = charge.unwrap_or_else(|| Charge::new(&around.account));
                charge.raise_to(CALL_BYTES + bytes);
                let (responder, gzip) = (self.responder, self.gzip);
                Box::new(PendingCall { future, responder, method, gzip, charge }).step(around, service, cx)
            }
        }
    }
}

/// Status of a unary call that ends without a message, as in grpc-go.
const NO_MESSAGE: Status = Status::new(Code::Unknown, "EOF");
/// Status of a unary call that ends inside its message, as in grpc-go.
const TRUNCATED_CALL: Status = Status::new(Code::Unknown, "unexpected EOF");

impl PendingCall {
    fn step(
        mut self: Box<Self>,
        around: &Rc<ConnectionContext>,
        service: &Rc<dyn Service>,
        cx: &mut Context<'_>,
    ) -> Step {
        let polled = self.future.as_mut().poll(cx);
        around.note_examined();
        match polled {
            Poll::Ready(result) => answer(
                around,
                service,
                self.responder,
                self.method,
                self.gzip,
                result,
                Some(self.charge),
                0,
                cx,
            ),
            Poll::Pending if !self.responder.is_open() => {
                around.shard.counters.handled(self.method, Code::Canceled);
                Step::Over
            }
            Poll::Pending => Step::Wait(Call::Pending(self)),
        }
    }
}

impl FinishedCall {
    /// Reserves memory for the answer, and sends the answer as soon as possible. If the answer needs more
    /// memory than was reserved for the call before, and the memory limit is reached, the client receives a
    /// status instead.
    #[cold]
    fn begin(
        mut self: Box<Self>,
        around: &Rc<ConnectionContext>,
        service: &Rc<dyn Service>,
        cx: &mut Context<'_>,
    ) -> Step {
        let bytes = match &self.made {
            Answer::Whole(message) => message.len(),
            Answer::Pieces { held, .. } => held.get(),
        };
        // The service's future and the metadata have been freed. So an answer that needs no more memory than
        // these is always kept, because it does not increase the reservation.
        let before = self.charge.bytes().max(CALL_BYTES);
        self.charge.set(CALL_BYTES + bytes.saturating_sub(METADATA_BYTES));
        around.add_work(bytes);
        if self.charge.bytes() > before && around.check_requests().is_err() {
            let status = service.unanswered(self.method);
            around.shard.counters.handled(self.method, status.code);
            self.responder.refuse(StatusCode::OK, &status);
            return Step::Over;
        }
        self.step(around, service, cx)
    }

    fn step(
        self: Box<Self>,
        around: &Rc<ConnectionContext>,
        service: &Rc<dyn Service>,
        cx: &mut Context<'_>,
    ) -> Step {
        if !self.responder.is_open() {
            around.shard.counters.handled(self.method, Code::Canceled);
            return Step::Over;
        }
        if !around.has_room() {
            return Step::Wait(Call::Finished(self));
        }
        let FinishedCall { made, responder, method, gzip, mut charge } = *self;
        charge.set(CALL_BYTES);
        answer(around, service, responder, method, gzip, Ok(made), Some(charge), 0, cx)
    }
}

/// Sends the result of a unary call, or keeps it until the connection's queued answers are below their limit.
/// `charge` is the memory reservation of the call so far, if it has one; `bytes` is the length of the request
/// if the reservation does not include it.
#[expect(clippy::too_many_arguments, reason = "all of them are moved out of a call that is over")]
fn answer(
    around: &Rc<ConnectionContext>,
    service: &Rc<dyn Service>,
    responder: Responder,
    method: u16,
    gzip: bool,
    result: Result<Answer, Status>,
    charge: Option<Charge>,
    bytes: usize,
    cx: &mut Context<'_>,
) -> Step {
    let counters = &around.shard.counters;
    let bytes_max = around.shard.options.answer_message_bytes_max;
    let result = result.and_then(|answer| {
        let len = match &answer {
            Answer::Whole(message) => message.len(),
            Answer::Pieces { len, .. } => *len,
        };
        // The limit is checked before compression. Compression can make a message a few bytes longer, but the
        // limit need not be exact to a few bytes.
        check_len(len, bytes_max).map(|()| answer)
    });
    match result {
        Err(status) => {
            counters.handled(method, status.code);
            responder.refuse(StatusCode::OK, &status);
            Step::Over
        }
        Ok(made) if !around.has_room() => {
            let charge = charge.unwrap_or_else(|| Charge::new(&around.account));
            Box::new(FinishedCall { made, responder, method, gzip, charge }).begin(around, service, cx)
        }
        Ok(Answer::Whole(message)) => {
            counters.handled(method, Code::Ok);
            let packed = if gzip {
                around.add_work(message.len());
                gzip::pack(&message).ok()
            } else {
                None
            };
            let compressed = packed.is_some();
            let message = packed.unwrap_or(message);
            counters.sent(method, message.len());
            responder.answer(message, compressed);
            Step::Over
        }
        Ok(Answer::Pieces { len, source, held, .. }) => {
            // Memory for the answer is reserved in the connection's account, because a client that keeps its
            // window closed can make any number of such answers wait.
            let mut charge = charge.unwrap_or_else(|| Charge::new(&around.account));
            charge.raise_to(CALL_BYTES + bytes);
            let base = charge.bytes();
            charge.set(base + held.get());
            if !responder.open(false) {
                counters.handled(method, Code::Canceled);
                return Step::Over;
            }
            let progress = StreamProgress::default();
            let _stallable = Stallable::new(around);
            let (left, begun, waits) = (len, false, false);
            let pieces = PiecewiseAnswer {
                responder,
                source,
                len,
                left,
                begun,
                waits,
                method,
                progress,
                _stallable,
                held,
                charge,
                base,
            };
            Box::new(pieces).step(around, cx)
        }
    }
}

impl PiecewiseAnswer {
    /// Produces and queues at most one chunk, so that other calls run before the next one.
    fn step(mut self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        let counters = &around.shard.counters;
        if !self.responder.is_open() {
            counters.handled(self.method, Code::Canceled);
            return Step::Over;
        }
        // If the connection's queued answers are at their limit, a stream queues another chunk only when
        // nothing of it is queued.
        let queued_max = if around.has_room() { PIECE_BYTES } else { 1 };
        if self.responder.queued_bytes() >= queued_max {
            self.responder.want_room();
            return Step::Wait(Call::Pieces(self));
        }
        let room = self.responder.room().min(self.left.min(PIECE_BYTES) + PREFIX_BYTES);
        let mut wanted = if self.begun { room } else { room.saturating_sub(PREFIX_BYTES) };
        if wanted == 0 && (self.waits || room > 0) {
            // One byte is requested although the client's window is closed or too small. There are two cases.
            // First (`waits`), the source was called before and was pending, and the client has reduced its
            // window since. The data that was fetched for the source occupies memory that other clients need
            // until the source is called again. So the source is called for one byte, which then waits in the
            // stream for the window, under the stall timeout. Second (`room > 0`), the window is smaller than
            // a gRPC prefix: if nothing were queued, the HTTP/2 engine would report the available space again
            // and again.
            wanted = 1;
        }
        if wanted == 0 && self.left > 0 {
            self.responder.want_room();
            return Step::Wait(Call::Pieces(self));
        }
        let piece = (self.source)(wanted.min(self.left), cx);
        around.note_examined();
        self.charge.set(self.base + self.held.get());
        self.waits = piece.is_pending();
        let piece = match piece {
            Poll::Pending => return Step::Wait(Call::Pieces(self)),
            Poll::Ready(Ok(piece)) => piece.unwrap_or_default(),
            Poll::Ready(Err(status)) => {
                counters.handled(self.method, status.code);
                if self.begun {
                    // The stream is reset, because a status cannot be sent inside a message, which has begun.
                    self.responder.reset(Reason::INTERNAL_ERROR);
                } else {
                    self.responder.finish(&Err(status));
                }
                return Step::Over;
            }
        };
        assert!(
            piece.len() <= self.left && (!piece.is_empty() || self.left == 0),
            "a piece source announced {} bytes and gave {} with {} left",
            self.len,
            piece.len(),
            self.left
        );
        self.left -= piece.len();
        around.add_work(piece.len());
        let payload =
            if self.begun { Payload::from(piece) } else { Payload::message_start(self.len, piece, false) };
        self.begun = true;
        if !self.responder.send(payload) {
            counters.handled(self.method, Code::Canceled);
            return Step::Over;
        }
        if self.left > 0 {
            cx.waker().wake_by_ref();
            return Step::Wait(Call::Pieces(self));
        }
        counters.handled(self.method, Code::Ok);
        counters.sent(self.method, self.len);
        self.responder.finish(&Ok(()));
        Step::Over
    }
}

impl StreamingCall {
    /// Continues the call as far as possible now. Becomes ready when the call has ended.
    pub(crate) fn poll(&mut self, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Poll<()> {
        let counters = &around.shard.counters;
        let polled = self.future.as_mut().poll(cx);
        around.note_examined();
        match polled {
            Poll::Ready(result) => {
                let code = result.as_ref().err().map_or(Code::Ok, |status| status.code);
                counters.handled(self.sending.method, code);
                self.sending.finish(&result);
                Poll::Ready(())
            }
            Poll::Pending if self.sending.is_gone() => {
                counters.handled(self.sending.method, Code::Canceled);
                self.sending.reset(Reason::CANCEL);
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for StreamingCall {
    fn drop(&mut self) {
        // Resets the stream explicitly: the service may still hold the `Outbound`, which shares `sending`,
        // so that dropping this reference would not close the stream.
        self.sending.reset(Reason::CANCEL);
        self.sending.account.release_request(self.charged);
    }
}

/// Begins a streaming call; `None` if it was refused because the memory limit is reached.
pub(crate) fn begin_stream(
    around: &Rc<ConnectionContext>,
    service: &Rc<dyn Service>,
    head: Head,
    assembler: Assembler,
    responder: Responder,
    gzip: bool,
) -> Option<Box<StreamingCall>> {
    if let Err(status) = around.check_requests() {
        responder.refuse(StatusCode::OK, &status);
        return None;
    }
    let charged = call_bytes(head.metadata.heap_bytes());
    around.account.charge_request(charged);
    let method = head.method;
    around.shard.counters.started(method);
    let (stream, inbox) = RequestStream::new(around, responder.key());
    let sending = Sending::new(responder, gzip, method);
    let inbound = Inbound::new(stream, assembler, method);
    let outbound = Outbound::new(sending.clone());
    let future = service.clone().stream(head, inbound, outbound);
    Some(Box::new(StreamingCall { future, sending, inbox, progress: None, charged }))
}
