//! One call, from its first bytes to its last answer, as a state machine that a connection steps: `Call::step`. Here are
//! the gathering of a unary request, streams, answers in pieces, answers that wait for space, deadlines, and the look for
//! stalled streams. It knows neither the socket nor HTTP/2 frames beyond `h2`'s streams.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::{Code, Status};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, StatusCode};

use crate::assembler::Assembler;
use crate::budget::Account;
use crate::ledger::{Charge, Ledger};
use crate::outbound::Sending;
use crate::outgoing::{Outgoing, check_len};
use crate::page::Page;
use crate::shard::ShardState;
use crate::{Answer, Head, LocalBoxFuture, Options, PieceSource, Service, Unary, gzip, reply};

/// Bytes of a big answer made and queued at once, between two looks at other calls.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// Answers above this keep a handle, so that one that stalls can be reset alone.
const TRACKED_ANSWER_BYTES: usize = 16 * 1024;

/// Work of a connection's turn, in bytes: requests unpacked, and answers that were packed, made in pieces, or found no
/// space.
#[derive(Debug, Default)]
pub(crate) struct Made(Cell<usize>);

impl Made {
    /// Bytes in one turn, after which other connections get theirs.
    const BYTES_MAX: usize = 1024 * 1024;

    /// Sets the work of the turn to zero.
    pub(crate) fn reset(&self) {
        self.0.set(0);
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }

    /// Returns true if it is as much as a turn may make.
    pub(crate) fn is_enough(&self) -> bool {
        self.0.get() > Made::BYTES_MAX
    }
}

/// The answer to a call that outlived its deadline.
pub(crate) const DEADLINE: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// State that the calls of one connection share.
pub(crate) struct ConnectionContext {
    pub(crate) shard: Rc<ShardState>,
    pub(crate) service: Rc<dyn Service>,
    /// Account of the connection, which is charged to the server's budget.
    pub(crate) account: Rc<Account>,
    /// Answer bytes in the transport's queues.
    pub(crate) answers: Rc<Ledger>,
    /// Room for requests.
    pub(crate) requests: Rc<RequestRoom>,
    /// Calls that wait for the client and may stall.
    pub(crate) stallable: Rc<Cell<usize>>,
    /// Work of the connection's turn.
    pub(crate) made: Rc<Made>,
    /// The calls that are open, and the last one, may wait a little, see [`Service::may_wait`].
    pub(crate) may_wait: Cell<bool>,
}

impl ConnectionContext {
    pub(crate) fn new(
        shard: Rc<ShardState>,
        service: Rc<dyn Service>,
        account: Rc<Account>,
    ) -> ConnectionContext {
        let requests = RequestRoom {
            ledger: Rc::new(Ledger::of(&account)),
            account: account.clone(),
            bytes_max: shard.options.request_bytes_max,
        };
        ConnectionContext {
            answers: Rc::new(Ledger::of(&account)),
            requests: Rc::new(requests),
            stallable: Rc::default(),
            made: Rc::default(),
            may_wait: Cell::new(false),
            shard,
            service,
            account,
        }
    }

    /// Returns true if the answers in the transport's queues leave room for another.
    pub(crate) fn has_room(&self) -> bool {
        self.answers.queued() < self.shard.options.answer_bytes_max
    }
}

/// Bytes charged for a call in flight besides its message: its future, its stream, its metadata.
pub(crate) const CALL_BYTES: usize = 4 * 1024;
/// Metadata that [`CALL_BYTES`] covers.
const METADATA_BYTES: usize = 1024;

/// Returns the bytes charged for a call with this metadata, besides its message.
pub(crate) fn call_bytes(metadata: &HeaderMap) -> usize {
    let bytes: usize = metadata.iter().map(|(name, value)| name.as_str().len() + value.len() + 64).sum();
    CALL_BYTES + bytes.saturating_sub(METADATA_BYTES)
}

/// The room for the requests of one connection.
pub(crate) struct RequestRoom {
    /// Request bytes in assembly and in unanswered unary calls, answers that wait for room, and something for each call in
    /// flight.
    pub(crate) ledger: Rc<Ledger>,
    account: Rc<Account>,
    bytes_max: usize,
}

impl RequestRoom {
    /// Refuses when the calls in flight hold as much as they may together, or all clients nearly do.
    pub(crate) fn check(&self) -> Result<(), Status> {
        if self.ledger.queued() > self.bytes_max || self.account.is_pressed() {
            return Err(api::error::TOO_MANY_REQUESTS);
        }
        Ok(())
    }
}

/// Counts a call among those that may stall, until it is dropped.
pub(crate) struct Stallable(Rc<Cell<usize>>);

impl Stallable {
    pub(crate) fn new(around: &ConnectionContext) -> Stallable {
        around.stallable.set(around.stallable.get() + 1);
        Stallable(around.stallable.clone())
    }
}

impl Drop for Stallable {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A stream whose answer is on its way; it is kept to see whether it moves.
pub(crate) struct Tracked {
    send: SendStream<Outgoing>,
    ledger: Rc<Ledger>,
    progress: StreamProgress,
}

impl Tracked {
    pub(crate) fn new(send: SendStream<Outgoing>, ledger: Rc<Ledger>) -> Tracked {
        Tracked { send, ledger, progress: StreamProgress::default() }
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.ledger.queued() == 0
    }

    /// Resets the stream if it has stood still for too long; then says so.
    pub(crate) fn reset_if_stalled(&mut self, look: &Look<'_>) -> bool {
        let stalled = self.progress.is_stalled(&self.ledger, look);
        if stalled {
            self.send.send_reset(Reason::CANCEL);
        }
        stalled
    }
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
    /// Answer bytes in the transport's queues.
    pub(crate) answers: &'a Ledger,
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
    pub(crate) fn is_stalled(&mut self, stream: &Ledger, look: &Look<'_>) -> bool {
        let moved = stream.moved();
        if !self.progress.is_at(moved) {
            let beside = look.answers.queued().saturating_sub(stream.queued());
            self.due = look.answers.moved() + beside as u64;
        }
        self.progress.is_stalled(moved, look.now, look.options.stall_timeout)
            && (look.stands_still || look.answers.moved() >= self.due)
    }
}

/// A unary call whose message is not whole yet.
pub(crate) struct Gathering {
    head: Head,
    recv: RecvStream,
    respond: SendResponse<Outgoing>,
    assembler: Assembler,
    gzip: bool,
    message: Option<Bytes>,
    /// Bytes of the last payload, whose window is not given back yet.
    unreleased: usize,
    /// Set once the call has to wait for the client.
    waits: Option<(Charge, Stallable)>,
    /// Bytes of payload that have come.
    received: u64,
    progress: Progress,
}

/// A unary call whose answer is being made.
pub(crate) struct Pending {
    future: LocalBoxFuture<Result<Answer, Status>>,
    respond: SendResponse<Outgoing>,
    method: u16,
    gzip: bool,
    charge: Charge,
}

/// A unary call whose answer is made and waits for room among those of its connection. Its future is gone: a state of the
/// store, or a place among those who read from the disk, must not wait for a client.
pub(crate) struct Finished {
    made: Answer,
    respond: SendResponse<Outgoing>,
    method: u16,
    gzip: bool,
    /// Charge for the call and its answer.
    charge: Charge,
}

/// A big answer that is made while the client's window opens.
pub(crate) struct Pieces {
    send: SendStream<Outgoing>,
    source: PieceSource,
    len: usize,
    left: usize,
    begun: bool,
    /// The source waits for something that is not the client's doing.
    waits: bool,
    method: u16,
    ledger: Rc<Ledger>,
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
    pub(crate) future: LocalBoxFuture<Result<(), Status>>,
    pub(crate) sending: Rc<Sending>,
    progress: StreamProgress,
    _charge: Charge,
}

/// A call that was not answered on the spot.
pub(crate) enum Call {
    Gathering(Box<Gathering>),
    Pending(Pending),
    Finished(Box<Finished>),
    Pieces(Box<Pieces>),
    Streaming(Streaming),
    Page(Box<Page>),
}

/// The state of a call after a step.
pub(crate) enum Step {
    /// The call waits, in this state.
    Wait(Call),
    /// The call is over; its answer may still be on the way.
    Over(Option<Tracked>),
}

impl Call {
    /// Goes on with the call as far as it can.
    pub(crate) fn step(self, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        match self {
            Call::Gathering(gathering) => gathering.step(around, cx),
            Call::Pending(pending) => pending.step(around, cx),
            Call::Finished(finished) => finished.step(around, cx),
            Call::Pieces(pieces) => pieces.step(around, cx),
            Call::Streaming(streaming) => streaming.step(around, cx),
            Call::Page(page) => page.step(around, cx),
        }
    }

    /// Ends the call because its deadline passed.
    pub(crate) fn expire(self, around: &ConnectionContext) -> Option<Tracked> {
        let counters = &around.shard.counters;
        match self {
            // It has no deadline.
            Call::Page(mut page) => {
                page.reset();
                None
            }
            Call::Gathering(mut gathering) => {
                let _ = gathering.respond.send_response(reply::refusal(StatusCode::OK, &DEADLINE), true);
                None
            }
            Call::Pending(mut pending) => {
                counters.handled(pending.method, DEADLINE.code);
                let _ = pending.respond.send_response(reply::refusal(StatusCode::OK, &DEADLINE), true);
                None
            }
            Call::Finished(mut finished) => {
                counters.handled(finished.method, DEADLINE.code);
                let _ = finished.respond.send_response(reply::refusal(StatusCode::OK, &DEADLINE), true);
                None
            }
            Call::Pieces(mut pieces) => {
                counters.handled(pieces.method, DEADLINE.code);
                // Inside a message no status can be told.
                pieces.send.send_reset(Reason::CANCEL);
                None
            }
            Call::Streaming(streaming) => {
                counters.handled(streaming.sending.method, DEADLINE.code);
                let ledger = streaming.sending.ledger.clone();
                streaming.sending.finish(&Err(DEADLINE)).map(|send| Tracked::new(send, ledger))
            }
        }
    }

    /// Returns true if the call's answer waits for room.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self, Call::Finished(_))
    }

    /// Resets the call if it holds data without progress; then says so.
    pub(crate) fn reset_if_stalled(&mut self, look: &Look<'_>) -> bool {
        match self {
            Call::Pending(_) | Call::Finished(_) => false,
            Call::Page(page) => page.reset_if_stalled(look),
            Call::Gathering(gathering) => {
                if look.was_deaf {
                    gathering.progress = Progress::default();
                }
                let timeout = look.options.request_timeout;
                let stalled = gathering.progress.is_stalled(gathering.received, look.now, timeout);
                if stalled {
                    gathering.respond.send_reset(Reason::CANCEL);
                }
                stalled
            }
            Call::Pieces(pieces) => {
                if pieces.waits && pieces.ledger.queued() == 0 {
                    pieces.progress = StreamProgress::default();
                    return false;
                }
                let stalled = pieces.progress.is_stalled(&pieces.ledger, look);
                if stalled {
                    pieces.send.send_reset(Reason::CANCEL);
                }
                stalled
            }
            Call::Streaming(streaming) => {
                let ledger = &streaming.sending.ledger;
                if ledger.queued() == 0 {
                    streaming.progress = StreamProgress::default();
                    return false;
                }
                let stalled = streaming.progress.is_stalled(ledger, look);
                if stalled {
                    streaming.sending.reset(Reason::CANCEL);
                }
                stalled
            }
        }
    }

    /// The method whose counters must count that the call ended with its connection.
    pub(crate) fn begun_method(&self) -> Option<u16> {
        match self {
            Call::Gathering(_) | Call::Page(_) => None,
            Call::Pending(pending) => Some(pending.method),
            Call::Finished(finished) => Some(finished.method),
            Call::Pieces(pieces) => Some(pieces.method),
            Call::Streaming(streaming) => Some(streaming.sending.method),
        }
    }
}

impl Gathering {
    pub(crate) fn new(
        head: Head,
        recv: RecvStream,
        respond: SendResponse<Outgoing>,
        assembler: Assembler,
        gzip: bool,
    ) -> Gathering {
        Gathering {
            head,
            recv,
            respond,
            assembler,
            gzip,
            message: None,
            unreleased: 0,
            waits: None,
            received: 0,
            progress: Progress::default(),
        }
    }

    /// The first step, before the call has a place on the heap.
    pub(crate) fn begin(mut self, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        match self.gather(around, cx) {
            Poll::Pending => match self.charge(around) {
                Ok(()) => Step::Wait(Call::Gathering(Box::new(self))),
                Err(status) => self.serve(around, Some(Err(status)), cx),
            },
            Poll::Ready(gathered) => self.serve(around, gathered, cx),
        }
    }

    fn step(mut self: Box<Self>, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        match self.gather(around, cx) {
            Poll::Pending => match self.charge(around) {
                Ok(()) => Step::Wait(Call::Gathering(self)),
                Err(status) => self.serve(around, Some(Err(status)), cx),
            },
            Poll::Ready(gathered) => self.serve(around, gathered, cx),
        }
    }

    /// Charges what the call holds while it waits for the client. The whole announced length is charged at once: a
    /// message that was begun can always be finished.
    fn charge(&mut self, around: &ConnectionContext) -> Result<(), Status> {
        let message = self.message.as_ref().map_or(0, Bytes::len);
        let bytes = self.assembler.announced().unwrap_or(0) + message;
        if let Some((charge, _)) = &mut self.waits {
            charge.raise_to(CALL_BYTES + bytes);
        } else {
            let mut charge = Charge::new(&around.requests.ledger);
            charge.raise_to(call_bytes(&self.head.metadata) + bytes);
            self.waits = Some((charge, Stallable::new(around)));
        }
        around.requests.check()
    }

    fn serve(
        mut self,
        around: &ConnectionContext,
        gathered: Option<Result<Bytes, Status>>,
        cx: &mut Context<'_>,
    ) -> Step {
        let message = match gathered {
            // The client is gone.
            None => return Step::Over(None),
            Some(Err(status)) => {
                // Errors of h2 here and below mean that the stream is gone: nobody is left to tell.
                let _ = self.respond.send_response(reply::refusal(StatusCode::OK, &status), true);
                return Step::Over(None);
            }
            Some(Ok(message)) => message,
        };
        // The library still gives the whole request of a client that has cancelled it meanwhile.
        if self.waits.is_some() && self.respond.poll_reset(cx).is_ready() {
            return Step::Over(None);
        }
        if let Err(status) = around.requests.check() {
            let _ = self.respond.send_response(reply::refusal(StatusCode::OK, &status), true);
            return Step::Over(None);
        }
        let (method, bytes) = (self.head.method, message.len());
        around.shard.counters.started(method);
        match around.service.clone().unary(self.head, message) {
            Unary::Done(result) => {
                let charge = self.waits.map(|(charge, _)| charge);
                let step = answer(around, self.respond, method, self.gzip, result, charge, bytes, cx);
                // The window of its last payload goes back with the last handle of the stream. One of an answer on its way is
                // kept, after the client has taken that, until the next look for what stands still.
                if !matches!(step, Step::Over(None)) && self.unreleased > 0 {
                    let _ = self.recv.flow_control().release_capacity(self.unreleased);
                }
                step
            }
            Unary::Later(future) => {
                if self.unreleased > 0 {
                    let _ = self.recv.flow_control().release_capacity(self.unreleased);
                }
                drop(self.recv);
                let charge = self.waits.map(|(charge, _)| charge);
                let mut charge = charge.unwrap_or_else(|| Charge::new(&around.requests.ledger));
                charge.raise_to(CALL_BYTES + bytes);
                Pending { future, respond: self.respond, method, gzip: self.gzip, charge }.step(around, cx)
            }
        }
    }

    fn release(&mut self) {
        let n = std::mem::take(&mut self.unreleased);
        if n > 0 {
            // It fails only for a stream that is gone, which the next poll reports.
            let _ = self.recv.flow_control().release_capacity(n);
        }
    }

    /// The whole message, once the client has ended its side; `None` if the client is gone.
    fn gather(
        &mut self,
        around: &ConnectionContext,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            match self.recv.poll_data(cx) {
                Poll::Pending => {
                    self.release();
                    return Poll::Pending;
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(None),
                Poll::Ready(Some(Ok(payload))) => {
                    self.release();
                    self.unreleased = payload.len();
                    self.received += payload.len() as u64;
                    self.assembler.push(payload);
                    if let Err(status) = self.cut(around) {
                        return Poll::Ready(Some(Err(status)));
                    }
                }
                Poll::Ready(None) => {
                    if self.assembler.is_mid_message() {
                        return Poll::Ready(Some(Err(TRUNCATED_CALL)));
                    }
                    return Poll::Ready(Some(self.message.take().ok_or(NO_MESSAGE)));
                }
            }
            if self.message.is_some() && self.recv.is_end_stream() {
                return Poll::Ready(self.message.take().map(Ok));
            }
        }
    }

    fn cut(&mut self, around: &ConnectionContext) -> Result<(), Status> {
        while let Some(assembled) = self.assembler.next()? {
            if self.message.is_some() {
                // As grpc-go does, which answers the first and never looks further.
                continue;
            }
            around.shard.counters.received(self.head.method, assembled.wire_bytes);
            if assembled.wire_bytes < assembled.message.len() {
                around.made.add(assembled.message.len());
            }
            self.message = Some(assembled.message);
        }
        Ok(())
    }
}

/// A unary call without a message, in grpc-go's words.
const NO_MESSAGE: Status = Status::new(Code::Unknown, "EOF");
/// A unary call that ends inside its message, in grpc-go's words.
const TRUNCATED_CALL: Status = Status::new(Code::Unknown, "unexpected EOF");

impl Pending {
    fn step(mut self, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        match self.future.as_mut().poll(cx) {
            Poll::Ready(result) => {
                answer(around, self.respond, self.method, self.gzip, result, Some(self.charge), 0, cx)
            }
            Poll::Pending if self.respond.poll_reset(cx).is_ready() => {
                around.shard.counters.handled(self.method, Code::Canceled);
                Step::Over(None)
            }
            Poll::Pending => Step::Wait(Call::Pending(self)),
        }
    }
}

impl Finished {
    /// The first step, once the call is charged with its answer. Beyond what the calls of a connection may hold together
    /// the client is only told that there was an answer, if that takes more than the call did.
    #[cold]
    fn begin(mut self: Box<Self>, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        let bytes = match &self.made {
            Answer::Whole(message) => message.len(),
            Answer::Pieces { held, .. } => held.get(),
        };
        // What made it is gone, and the metadata: a short answer takes no more than they did, and is always kept.
        let before = self.charge.bytes().max(CALL_BYTES);
        self.charge.set(CALL_BYTES + bytes.saturating_sub(METADATA_BYTES));
        around.made.add(bytes);
        if self.charge.bytes() > before && around.requests.check().is_err() {
            let status = around.service.unanswered(self.method);
            around.shard.counters.handled(self.method, status.code);
            let _ = self.respond.send_response(reply::refusal(StatusCode::OK, &status), true);
            return Step::Over(None);
        }
        self.step(around, cx)
    }

    fn step(mut self: Box<Self>, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        if self.respond.poll_reset(cx).is_ready() {
            around.shard.counters.handled(self.method, Code::Canceled);
            return Step::Over(None);
        }
        if !around.has_room() {
            return Step::Wait(Call::Finished(self));
        }
        let Finished { made, respond, method, gzip, mut charge } = *self;
        charge.set(CALL_BYTES);
        answer(around, respond, method, gzip, Ok(made), Some(charge), 0, cx)
    }
}

/// Sends the result of a unary call; an answer for which there is no room waits. `charge` is what the call is charged
/// with so far, `bytes` the length of its request if that is not in it.
#[expect(clippy::too_many_arguments, reason = "all of them are moved out of a call that is over")]
fn answer(
    around: &ConnectionContext,
    mut respond: SendResponse<Outgoing>,
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
            let _ = respond.send_response(reply::refusal(StatusCode::OK, &status), true);
            Step::Over(None)
        }
        Ok(made) if !around.has_room() => {
            let charge = charge.unwrap_or_else(|| Charge::new(&around.requests.ledger));
            Box::new(Finished { made, respond, method, gzip, charge }).begin(around, cx)
        }
        Ok(Answer::Whole(message)) => {
            counters.handled(method, Code::Ok);
            let packed = if gzip {
                around.made.add(message.len());
                gzip::pack(&message).ok()
            } else {
                None
            };
            let compressed = packed.is_some();
            let message = packed.unwrap_or(message);
            counters.sent(method, message.len());
            let tracked = (message.len() > TRACKED_ANSWER_BYTES).then(|| Rc::new(Ledger::default()));
            let Ok(mut send) = respond.send_response(reply::opening(compressed), false) else {
                return Step::Over(None);
            };
            let out = Outgoing::message(message, compressed, &around.answers, tracked.as_ref());
            let sent = send.send_data(out, false).and_then(|()| send.send_trailers(reply::trailers(&Ok(()))));
            Step::Over(tracked.filter(|_| sent.is_ok()).map(|ledger| Tracked::new(send, ledger)))
        }
        Ok(Answer::Pieces { len, source, held }) => {
            // A client with its window shut can have any number of these wait.
            let mut charge = charge.unwrap_or_else(|| Charge::new(&around.requests.ledger));
            charge.raise_to(CALL_BYTES + bytes);
            let base = charge.bytes();
            charge.set(base + held.get());
            let Ok(send) = respond.send_response(reply::opening(false), false) else {
                counters.handled(method, Code::Canceled);
                return Step::Over(None);
            };
            let ledger = Rc::new(Ledger::default());
            let progress = StreamProgress::default();
            let _stallable = Stallable::new(around);
            let (left, begun, waits) = (len, false, false);
            let pieces = Pieces {
                send,
                source,
                len,
                left,
                begun,
                waits,
                method,
                ledger,
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
    fn step(mut self: Box<Self>, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        let counters = &around.shard.counters;
        if self.send.poll_reset(cx).is_ready() {
            counters.handled(self.method, Code::Canceled);
            return Step::Over(None);
        }
        // Without room among the connection's answers each stream keeps one piece at a time, however short.
        let queued_max = if around.has_room() { PIECE_BYTES } else { 1 };
        if self.ledger.queued() >= queued_max {
            self.ledger.wake_on_release(cx.waker());
            return Step::Wait(Call::Pieces(self));
        }
        // A byte more than the piece is asked for, so that the prefix fits too.
        self.send.reserve_capacity(self.left.min(PIECE_BYTES) + 5);
        let capacity = self.send.capacity();
        let mut wanted = if self.begun { capacity } else { capacity.saturating_sub(5) };
        if wanted == 0 && self.waits {
            // The client has taken back the window for which the source waits. What was fetched for the source takes room
            // from others until it is taken, and may have to be fetched again; so it is taken, a byte of it waits for the
            // window, and the client's time runs.
            wanted = 1;
        }
        if wanted == 0 && self.left > 0 {
            match self.send.poll_capacity(cx) {
                Poll::Pending => return Step::Wait(Call::Pieces(self)),
                Poll::Ready(Some(Ok(_))) => {
                    cx.waker().wake_by_ref();
                    return Step::Wait(Call::Pieces(self));
                }
                Poll::Ready(_) => {
                    counters.handled(self.method, Code::Canceled);
                    return Step::Over(None);
                }
            }
        }
        let piece = (self.source)(wanted.min(self.left), cx);
        self.charge.set(self.base + self.held.get());
        self.waits = piece.is_pending();
        let piece = match piece {
            Poll::Pending => return Step::Wait(Call::Pieces(self)),
            Poll::Ready(Ok(piece)) => piece.unwrap_or_default(),
            Poll::Ready(Err(status)) => {
                counters.handled(self.method, status.code);
                self.send.reserve_capacity(0);
                if self.begun {
                    // Inside a message no status can be told.
                    self.send.send_reset(Reason::INTERNAL_ERROR);
                } else {
                    let _ = self.send.send_trailers(reply::trailers(&Err(status)));
                }
                return Step::Over(None);
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
        around.made.add(piece.len());
        let (answers, own) = (&around.answers, Some(&self.ledger));
        let out = if self.begun {
            Outgoing::part(piece, answers, own)
        } else {
            Outgoing::first_part(self.len, piece, false, answers, own)
        };
        self.begun = true;
        if self.send.send_data(out, false).is_err() {
            counters.handled(self.method, Code::Canceled);
            return Step::Over(None);
        }
        if self.left > 0 {
            cx.waker().wake_by_ref();
            return Step::Wait(Call::Pieces(self));
        }
        counters.handled(self.method, Code::Ok);
        counters.sent(self.method, self.len);
        self.send.reserve_capacity(0);
        let sent = self.send.send_trailers(reply::trailers(&Ok(())));
        Step::Over(sent.is_ok().then(|| Tracked::new(self.send, self.ledger)))
    }
}

impl Streaming {
    fn step(mut self, around: &ConnectionContext, cx: &mut Context<'_>) -> Step {
        let counters = &around.shard.counters;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(result) => {
                let code = result.as_ref().err().map_or(Code::Ok, |status| status.code);
                counters.handled(self.sending.method, code);
                let tracked = self.sending.finish(&result);
                Step::Over(tracked.map(|send| Tracked::new(send, self.sending.ledger.clone())))
            }
            Poll::Pending if self.sending.poll_gone(cx).is_ready() => {
                counters.handled(self.sending.method, Code::Canceled);
                self.sending.reset(Reason::CANCEL);
                Step::Over(None)
            }
            Poll::Pending => Step::Wait(Call::Streaming(self)),
        }
    }
}

/// Begins a streaming call; `None` if it was refused for want of room.
pub(crate) fn begin_stream(
    around: &ConnectionContext,
    head: Head,
    recv: RecvStream,
    assembler: Assembler,
    mut respond: SendResponse<Outgoing>,
    gzip: bool,
) -> Option<Call> {
    let mut charge = Charge::new(&around.requests.ledger);
    if let Err(status) = around.requests.check() {
        let _ = respond.send_response(reply::refusal(StatusCode::OK, &status), true);
        return None;
    }
    charge.raise_to(call_bytes(&head.metadata));
    let counters: &Arc<_> = &around.shard.counters;
    let method = head.method;
    counters.started(method);
    let sending = Sending::new(respond, around, gzip, method);
    let inbound = crate::Inbound::new(recv, assembler, counters.clone(), method, &around.requests);
    let outbound = crate::Outbound::new(sending.clone());
    let future = around.service.clone().stream(head, inbound, outbound);
    Some(Call::Streaming(Streaming { future, sending, progress: StreamProgress::default(), _charge: charge }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stands_still_only_once_its_turn_has_come() {
        let (options, start) = (Options::default(), Instant::now());
        let (connection, stream) = (Ledger::default(), Ledger::default());
        // 100 bytes of it wait, and 1000 of others.
        connection.charge(1100);
        stream.charge(100);
        let mut progress = StreamProgress::default();
        let mut is_stalled = |timeouts: u32, stands_still| {
            let now = start + timeouts * options.stall_timeout;
            let (options, answers) = (&options, &connection);
            progress.is_stalled(&stream, &Look { now, options, answers, stands_still, was_deaf: false })
        };
        assert!(!is_stalled(0, false));
        // The client takes the others slowly, while new ones come.
        for timeouts in 1..10 {
            connection.release(100);
            connection.charge(100);
            assert!(!is_stalled(timeouts, false));
        }
        connection.release(100);
        assert!(is_stalled(10, false));
        // One that moves has time again, as long as anything of the others does.
        connection.release(10);
        stream.release(10);
        assert!(!is_stalled(20, false));
        assert!(!is_stalled(21, false));
        assert!(is_stalled(21, true));
    }
}
