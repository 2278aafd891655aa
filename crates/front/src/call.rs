//! One call, from its first bytes to its last answer, as a state machine that a connection steps: `Call::step`. Here are
//! the gathering of a unary request, streams, answers in pieces, answers that wait for space, deadlines, and the look for
//! stalled streams. It knows neither the socket nor HTTP/2 beyond the two halves of its stream.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::{Code, Status};
use bytes::Bytes;
use http::StatusCode;
use http2::{Fields, Key, Payload, Reason};

use crate::assembler::{Assembler, PREFIX_BYTES};
use crate::context::{ConnectionContext, Stallable};
use crate::inbox::{Inbox, RequestStream};
use crate::ledger::Charge;
use crate::outbound::Sending;
use crate::page::Page;
use crate::reply::check_len;
use crate::responder::{Moves, Responder};
use crate::{Answer, Head, LocalBoxFuture, Options, PieceSource, Unary, gzip};

/// Bytes of a big answer made and queued at once, between two looks at other calls.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// The answer to a call that outlived its deadline.
pub(crate) const DEADLINE: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// Bytes charged for a call in flight besides its message: its future, its stream, its metadata.
pub(crate) const CALL_BYTES: usize = 4 * 1024;
/// Metadata that [`CALL_BYTES`] covers.
const METADATA_BYTES: usize = 1024;

/// Returns the bytes charged for a call with so many bytes of metadata, besides its message.
pub(crate) fn call_bytes(metadata_bytes: usize) -> usize {
    CALL_BYTES + metadata_bytes.saturating_sub(METADATA_BYTES)
}

/// Sees whether a counter moves.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    seen: Option<(u64, Instant)>,
}

impl Progress {
    /// Returns true if the counter had this value at the last look.
    fn is_at(&self, moved: u64) -> bool {
        self.seen.is_some_and(|(seen, _)| seen == moved)
    }

    /// Returns true if the counter has had this value for `timeout` or longer, as far as the looks show.
    pub(crate) fn is_stalled(&mut self, moved: u64, now: Instant, timeout: Duration) -> bool {
        match self.seen {
            Some((seen, since)) if seen == moved => now.saturating_duration_since(since) >= timeout,
            _ => {
                self.seen = Some((moved, now));
                false
            }
        }
    }
}

/// Facts about a connection when it looks for stalled streams.
pub(crate) struct Look<'a> {
    pub(crate) now: Instant,
    pub(crate) options: &'a Options,
    /// Answer bytes of the connection that wait.
    pub(crate) queued: usize,
    /// Bytes of calls that the connection ever sent.
    pub(crate) sent: u64,
    /// The client has taken nothing of any answer for as long as a stream may stand still.
    pub(crate) stands_still: bool,
    /// True if the client was not read from for a time since the last look.
    pub(crate) was_deaf: bool,
}

/// Sees whether a stream moves, whose client may take its time and other streams first.
#[derive(Debug, Default)]
pub(crate) struct StreamProgress {
    progress: Progress,
    /// The value of the connection's byte counter from which the connection has sent as much as waited beside the stream
    /// when the stream last moved.
    due: u64,
}

impl StreamProgress {
    /// Returns true if the stream has stood still for too long, and its turn had come meanwhile or no stream's does.
    pub(crate) fn is_stalled(&mut self, stream: Moves, look: &Look<'_>) -> bool {
        if !self.progress.is_at(stream.sent) {
            self.due = look.sent + look.queued.saturating_sub(stream.queued) as u64;
        }
        self.progress.is_stalled(stream.sent, look.now, look.options.stall_timeout)
            && (look.stands_still || look.sent >= self.due)
    }
}

/// A unary call whose message is not whole yet.
pub(crate) struct Gathering {
    head: Head,
    responder: Responder,
    assembler: Assembler,
    gzip: bool,
    message: Option<Bytes>,
    /// The call goes on with the next step: with its message, or with a refusal.
    is_gathered: bool,
    refusal: Option<Box<Status>>,
    /// Set once the call has to wait for the client.
    waits: Option<Box<Waits>>,
}

/// What a unary call needs that waits for its client.
struct Waits {
    charge: Charge,
    _stallable: Stallable,
    /// Bytes of payload that have come meanwhile.
    received: u64,
    progress: Progress,
}

/// A unary call whose answer is being made.
pub(crate) struct Pending {
    future: LocalBoxFuture<Result<Answer, Status>>,
    responder: Responder,
    method: u16,
    gzip: bool,
    charge: Charge,
}

/// A unary call whose answer is made and waits for room among those of its connection. Its future is gone: a place among those who
/// read from the disk must not wait for a client. An answer that comes in pieces may read from a state of the store, which it loses
/// if it waits for too long.
pub(crate) struct Finished {
    made: Answer,
    responder: Responder,
    method: u16,
    gzip: bool,
    /// Charge for the call and its answer.
    charge: Charge,
}

/// A big answer that is made while the client's window opens.
pub(crate) struct Pieces {
    responder: Responder,
    source: PieceSource,
    len: usize,
    left: usize,
    begun: bool,
    /// The source waits for something that is not the client's doing.
    waits: bool,
    method: u16,
    progress: StreamProgress,
    _stallable: Stallable,
    /// Bytes that the source holds.
    held: Rc<Cell<usize>>,
    /// Charge for the source's bytes and `base` bytes for the call.
    charge: Charge,
    base: usize,
}

/// A streaming call.
pub(crate) struct Streaming {
    future: LocalBoxFuture<Result<(), Status>>,
    pub(crate) sending: Rc<Sending>,
    pub(crate) inbox: Rc<Inbox>,
    /// While something waits for the client.
    progress: Option<Box<StreamProgress>>,
    /// Bytes charged for the call to [`Sending::account`], as requests are.
    charged: usize,
}

/// A request that waits for room among the answers, with what has come of its body.
pub(crate) struct Waiting {
    pub(crate) responder: Responder,
    pub(crate) fields: Arc<Fields>,
    pub(crate) body: Vec<u8>,
    /// The client has sent all.
    pub(crate) is_ended: bool,
    pub(crate) charge: Charge,
    /// Time of its arrival, from which its deadline counts.
    pub(crate) since: Instant,
}

/// A call that was not answered on the spot.
pub(crate) enum Call {
    Waiting(Box<Waiting>),
    Gathering(Box<Gathering>),
    Pending(Box<Pending>),
    Finished(Box<Finished>),
    Pieces(Box<Pieces>),
    Streaming(Box<Streaming>),
    Page(Box<Page>),
}

/// The state of a call after a step.
pub(crate) enum Step {
    /// The call waits, in this state.
    Wait(Call),
    /// The call is over; its answer may still be on the way.
    Over,
}

impl Call {
    /// Goes on with the call as far as it can.
    pub(crate) fn step(self, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        match self {
            Call::Waiting(_) => Step::Wait(self),
            Call::Gathering(gathering) => gathering.step(around, cx),
            Call::Pending(pending) => pending.step(around, cx),
            Call::Finished(finished) => finished.step(around, cx),
            Call::Pieces(pieces) => pieces.step(around, cx),
            Call::Streaming(streaming) => streaming.step(around, cx),
            Call::Page(page) => page.step(around, cx),
        }
    }

    /// Ends the call because its deadline passed.
    pub(crate) fn expire(self, around: &ConnectionContext) {
        let counters = &around.shard.counters;
        let begun = self.begun_method();
        begun.into_iter().for_each(|method| counters.handled(method, DEADLINE.code));
        match self {
            // They have no deadline yet, or none at all.
            Call::Waiting(_) | Call::Page(_) => {}
            Call::Gathering(gathering) => gathering.responder.refuse(StatusCode::OK, &DEADLINE),
            Call::Pending(pending) => pending.responder.refuse(StatusCode::OK, &DEADLINE),
            Call::Finished(finished) => finished.responder.refuse(StatusCode::OK, &DEADLINE),
            // Inside a message no status can be told.
            Call::Pieces(pieces) => pieces.responder.reset(Reason::CANCEL),
            Call::Streaming(streaming) => streaming.sending.finish(&Err(DEADLINE)),
        }
    }

    /// Returns true if the call's answer waits for room.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self, Call::Finished(_))
    }

    /// Returns true if the call must be reset, because it holds data without progress. Its stream is reset when it is dropped.
    pub(crate) fn is_stalled(&mut self, look: &Look<'_>) -> bool {
        match self {
            Call::Waiting(_) | Call::Pending(_) | Call::Finished(_) => false,
            Call::Page(page) => page.is_stalled(look),
            Call::Gathering(gathering) => {
                let Some(waits) = &mut gathering.waits else { return false };
                if look.was_deaf {
                    waits.progress = Progress::default();
                }
                waits.progress.is_stalled(waits.received, look.now, look.options.request_timeout)
            }
            Call::Pieces(pieces) => {
                let moves = pieces.responder.moves();
                if pieces.waits && moves.queued == 0 {
                    pieces.progress = StreamProgress::default();
                    return false;
                }
                pieces.progress.is_stalled(moves, look)
            }
            Call::Streaming(streaming) => match streaming.sending.moves() {
                Some(moves) if moves.queued > 0 => {
                    streaming.progress.get_or_insert_default().is_stalled(moves, look)
                }
                _ => {
                    streaming.progress = None;
                    false
                }
            },
        }
    }

    /// The method whose counters must count that the call ended with its connection.
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

impl Gathering {
    pub(crate) fn new(head: Head, responder: Responder, assembler: Assembler, gzip: bool) -> Gathering {
        Gathering {
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

    /// Returns true if the call goes on with its next step.
    pub(crate) fn is_gathered(&self) -> bool {
        self.is_gathered
    }

    fn refuse(&mut self, status: Status) {
        self.is_gathered = true;
        self.refusal = Some(Box::new(status));
    }

    /// Takes a part of the request; `end` says that it is the last. Returns true if the call goes on with its next step.
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
                // As grpc-go does, which answers the first and never looks further.
                continue;
            }
            around.shard.counters.received(self.head.method, assembled.wire_bytes);
            self.message = Some(assembled.message);
        }
        Ok(())
    }

    /// Lets the call wait for the client, and charges what it holds. Returns true if that is refused, and the call goes on with
    /// its next step.
    pub(crate) fn wait(&mut self, around: &Rc<ConnectionContext>) -> bool {
        if self.waits.is_none() {
            let (charge, _stallable) = (Charge::new(&around.account), Stallable::new(around));
            let waits = Waits { charge, _stallable, received: 0, progress: Progress::default() };
            self.waits = Some(Box::new(waits));
        }
        self.charge_more(around);
        self.is_gathered
    }

    /// Charges what the call holds while it waits for the client. The whole announced length is charged at once: a
    /// message that was begun can always be finished.
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

    fn step(self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        if self.is_gathered { self.serve(around, cx) } else { Step::Wait(Call::Gathering(self)) }
    }

    /// Goes on with what came of gathering.
    #[expect(clippy::boxed_local, reason = "it comes in its box, and is as long as an argument may be")]
    pub(crate) fn serve(self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
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
        let made = around.service.clone().unary(self.head, message);
        around.note_looked_at();
        match made {
            Unary::Done(result) => {
                answer(around, self.responder, method, self.gzip, result, charge, bytes, cx)
            }
            Unary::Later(future) => {
                let mut charge = charge.unwrap_or_else(|| Charge::new(&around.account));
                charge.raise_to(CALL_BYTES + bytes);
                let (responder, gzip) = (self.responder, self.gzip);
                Box::new(Pending { future, responder, method, gzip, charge }).step(around, cx)
            }
        }
    }
}

/// A unary call without a message, in grpc-go's words.
const NO_MESSAGE: Status = Status::new(Code::Unknown, "EOF");
/// A unary call that ends inside its message, in grpc-go's words.
const TRUNCATED_CALL: Status = Status::new(Code::Unknown, "unexpected EOF");

impl Pending {
    fn step(mut self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        let polled = self.future.as_mut().poll(cx);
        around.note_looked_at();
        match polled {
            Poll::Ready(result) => {
                answer(around, self.responder, self.method, self.gzip, result, Some(self.charge), 0, cx)
            }
            Poll::Pending if !self.responder.is_open() => {
                around.shard.counters.handled(self.method, Code::Canceled);
                Step::Over
            }
            Poll::Pending => Step::Wait(Call::Pending(self)),
        }
    }
}

impl Finished {
    /// The first step, once the call is charged with its answer. Beyond what the calls of a connection may hold together
    /// the client is only told that there was an answer, if that takes more than the call did.
    #[cold]
    fn begin(mut self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        let bytes = match &self.made {
            Answer::Whole(message) => message.len(),
            Answer::Pieces { held, .. } => held.get(),
        };
        // What made it is gone, and the metadata: a short answer takes no more than they did, and is always kept.
        let before = self.charge.bytes().max(CALL_BYTES);
        self.charge.set(CALL_BYTES + bytes.saturating_sub(METADATA_BYTES));
        around.add_work(bytes);
        if self.charge.bytes() > before && around.check_requests().is_err() {
            let status = around.service.unanswered(self.method);
            around.shard.counters.handled(self.method, status.code);
            self.responder.refuse(StatusCode::OK, &status);
            return Step::Over;
        }
        self.step(around, cx)
    }

    fn step(self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        if !self.responder.is_open() {
            around.shard.counters.handled(self.method, Code::Canceled);
            return Step::Over;
        }
        if !around.has_room() {
            return Step::Wait(Call::Finished(self));
        }
        let Finished { made, responder, method, gzip, mut charge } = *self;
        charge.set(CALL_BYTES);
        answer(around, responder, method, gzip, Ok(made), Some(charge), 0, cx)
    }
}

/// Sends the result of a unary call; an answer for which there is no room waits. `charge` is what the call is charged
/// with so far, `bytes` the length of its request if that is not in it.
#[expect(clippy::too_many_arguments, reason = "all of them are moved out of a call that is over")]
fn answer(
    around: &Rc<ConnectionContext>,
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
        // A compressed message is shorter, but for a few bytes that no bound depends on.
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
            Box::new(Finished { made, responder, method, gzip, charge }).begin(around, cx)
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
            // A client with its window shut can have any number of these wait.
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
            let pieces = Pieces {
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

impl Pieces {
    /// Makes at most one piece, then lets others run.
    fn step(mut self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        let counters = &around.shard.counters;
        if !self.responder.is_open() {
            counters.handled(self.method, Code::Canceled);
            return Step::Over;
        }
        // Without room among the connection's answers each stream keeps one piece at a time, however short.
        let queued_max = if around.has_room() { PIECE_BYTES } else { 1 };
        if self.responder.queued_bytes() >= queued_max {
            self.responder.want_room();
            return Step::Wait(Call::Pieces(self));
        }
        let room = self.responder.room().min(self.left.min(PIECE_BYTES) + PREFIX_BYTES);
        let mut wanted = if self.begun { room } else { room.saturating_sub(PREFIX_BYTES) };
        if wanted == 0 && (self.waits || room > 0) {
            // The client has taken back the window for which the source waits. What was fetched for the source takes room
            // from others until it is taken, and may have to be fetched again; so it is taken, a byte of it waits for the
            // window, and the client's time runs. Likewise where there is less room than a prefix takes: the engine would say
            // at once, again and again, that there is some.
            wanted = 1;
        }
        if wanted == 0 && self.left > 0 {
            self.responder.want_room();
            return Step::Wait(Call::Pieces(self));
        }
        let piece = (self.source)(wanted.min(self.left), cx);
        around.note_looked_at();
        self.charge.set(self.base + self.held.get());
        self.waits = piece.is_pending();
        let piece = match piece {
            Poll::Pending => return Step::Wait(Call::Pieces(self)),
            Poll::Ready(Ok(piece)) => piece.unwrap_or_default(),
            Poll::Ready(Err(status)) => {
                counters.handled(self.method, status.code);
                if self.begun {
                    // Inside a message no status can be told.
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

impl Streaming {
    fn step(mut self: Box<Self>, around: &Rc<ConnectionContext>, cx: &mut Context<'_>) -> Step {
        let counters = &around.shard.counters;
        let polled = self.future.as_mut().poll(cx);
        around.note_looked_at();
        match polled {
            Poll::Ready(result) => {
                let code = result.as_ref().err().map_or(Code::Ok, |status| status.code);
                counters.handled(self.sending.method, code);
                self.sending.finish(&result);
                Step::Over
            }
            Poll::Pending if self.sending.is_gone() => {
                counters.handled(self.sending.method, Code::Canceled);
                self.sending.reset(Reason::CANCEL);
                Step::Over
            }
            Poll::Pending => Step::Wait(Call::Streaming(self)),
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        // The service may keep its end.
        self.sending.reset(Reason::CANCEL);
        self.sending.account.release_request(self.charged);
    }
}

/// Begins a streaming call; `None` if it was refused for want of room.
pub(crate) fn begin_stream(
    around: &Rc<ConnectionContext>,
    head: Head,
    assembler: Assembler,
    responder: Responder,
    gzip: bool,
) -> Option<Box<Streaming>> {
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
    let inbound = crate::Inbound::new(stream, assembler, method);
    let outbound = crate::Outbound::new(sending.clone());
    let future = around.service.clone().stream(head, inbound, outbound);
    Some(Box::new(Streaming { future, sending, inbox, progress: None, charged }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stands_still_only_once_its_turn_has_come() {
        let (options, start) = (Options::default(), Instant::now());
        // 100 bytes of it wait, and 1000 of others.
        let (mut connection, mut stream) = (Moves { sent: 0, queued: 1100 }, Moves { sent: 0, queued: 100 });
        let mut progress = StreamProgress::default();
        let mut is_stalled = |connection: Moves, stream: Moves, timeouts: u32, stands_still| {
            let now = start + timeouts * options.stall_timeout;
            let Moves { sent, queued } = connection;
            progress.is_stalled(
                stream,
                &Look { now, options: &options, queued, sent, stands_still, was_deaf: false },
            )
        };
        assert!(!is_stalled(connection, stream, 0, false));
        // The client takes the others slowly, while new ones come.
        for timeouts in 1..10 {
            connection.sent += 100;
            assert!(!is_stalled(connection, stream, timeouts, false));
        }
        connection.sent += 100;
        assert!(is_stalled(connection, stream, 10, false));
        // One that moves has time again, as long as anything of the others does.
        for moves in [&mut connection, &mut stream] {
            moves.sent += 10;
            moves.queued -= 10;
        }
        assert!(!is_stalled(connection, stream, 20, false));
        assert!(!is_stalled(connection, stream, 21, false));
        assert!(is_stalled(connection, stream, 21, true));
    }
}
