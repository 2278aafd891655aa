//! Runs the task of one watch stream. The task reads the client's requests, queues the stream for reading
//! history, and sends responses. [`Hub::stream`] and [`Hub::serve`] create it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use accounting::Account;
use api::{Code, Status, error};
use bytes::Bytes;
use front::{Head, Inbound, LocalBoxFuture, Messages, Outbound, TrySend};

use clock::Sleep;
use telemetry::callers::Caller;
use telemetry::tracing::Within;

use super::after_others::after_others;
use super::counts::Sent;
use super::hub::{Hub, Registration};
use super::permit::Permit;
use super::portion::UNLIMITED;
use super::queued::{Body, Queued};
use super::stream::RoomSource;
use crate::services::index_unreadable;

/// Maximum number of requests that a stream answers in one poll before other tasks run.
const REQUESTS_PER_POLL_MAX: usize = 128;

/// Source of a stream's requests, for example a client's stream in the `front` crate.
pub trait Requests: Unpin + 'static {
    /// See [`Inbound::poll_next`].
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>>;
}

/// Sink for a stream's responses, for example a client's stream in the `front` crate.
pub trait Responses: Unpin + 'static {
    /// See [`Outbound::open`].
    fn open(&mut self) -> Result<(), Status>;
    /// See [`Outbound::poll_ready`].
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>>;
    /// See [`Outbound::try_send`].
    fn try_send(&mut self, message: Bytes) -> Result<(), TrySend>;
    /// See [`Outbound::try_send_shared`].
    fn try_send_shared(&mut self, message: Bytes) -> Result<(), TrySend> {
        self.try_send(message)
    }
    /// See [`Outbound::try_send_messages`]. If the sink takes only some of the messages, it returns the
    /// others as the error; the caller then calls [`Responses::poll_ready`] before it sends them.
    fn try_send_messages(&mut self, messages: Messages) -> Result<(), TrySend<Messages>> {
        let left = messages.send_first(|first| self.try_send(first))?;
        if left.is_empty() { Ok(()) } else { Err(TrySend::Full(left)) }
    }
    /// See [`Outbound::account`].
    fn account(&self) -> Option<Rc<Account>> {
        None
    }
    /// See [`Outbound::poll_room`].
    fn poll_room(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }
    /// Returns a function with the result of [`Outbound::room`].
    fn room(&self) -> RoomSource {
        Box::new(|| UNLIMITED)
    }
}

impl Requests for Inbound {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        Inbound::poll_next(self, cx)
    }
}

impl Responses for Outbound {
    fn open(&mut self) -> Result<(), Status> {
        Outbound::open(self)
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Outbound::poll_ready(self, cx)
    }

    fn try_send(&mut self, message: Bytes) -> Result<(), TrySend> {
        Outbound::try_send(self, message)
    }

    fn try_send_shared(&mut self, message: Bytes) -> Result<(), TrySend> {
        Outbound::try_send_shared(self, message)
    }

    fn try_send_messages(&mut self, messages: Messages) -> Result<(), TrySend<Messages>> {
        Outbound::try_send_messages(self, messages)
    }

    fn account(&self) -> Option<Rc<Account>> {
        Some(Outbound::account(self))
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Outbound::poll_room(self, cx)
    }

    fn room(&self) -> RoomSource {
        Box::new(Outbound::room(self))
    }
}

impl Hub {
    /// Serves one watch stream until the client disconnects, the server stops (`closed` resolves), or an
    /// error ends the stream. If the client closes only its sending side, its watches continue, as in etcd,
    /// whose gateway depends on that.
    pub fn stream<C: Future<Output = ()> + Unpin + 'static>(
        self: &Rc<Self>,
        head: &Head,
        client: (Arc<Caller>, Box<dyn Permit>, Option<Within>),
        inbound: Inbound,
        outbound: Outbound,
        closed: C,
    ) -> impl Future<Output = Result<(), Status>> + Unpin + use<C> {
        run(Rc::clone(self), head.requires_leader, client, inbound, outbound, closed)
    }

    /// Serves a stream as [`Hub::stream`] does, if the stream was not received by the `front` crate. `closed`
    /// resolves when the server stops. `client` contains the client's statistics, its permit, and the span of
    /// the stream if the stream is traced: the span of each watch is inside it.
    pub fn serve(
        self: &Rc<Self>,
        needs_leader: bool,
        client: (Arc<Caller>, Box<dyn Permit>, Option<Within>),
        requests: impl Requests,
        responses: impl Responses,
        closed: impl Future<Output = ()> + Unpin + 'static,
    ) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(run(Rc::clone(self), needs_leader, client, requests, responses, closed))
    }
}

/// Serves a stream until it ends; `closed` resolves when the server stops. This is a hand-written future,
/// because an `async` function would store its arguments twice for as long as the stream is open.
fn run<R: Requests, W: Responses, C: Future<Output = ()> + Unpin + 'static>(
    hub: Rc<Hub>,
    needs_leader: bool,
    client: (Arc<Caller>, Box<dyn Permit>, Option<Within>),
    requests: R,
    mut responses: W,
    mut closed: C,
) -> impl Future<Output = Result<(), Status>> + Unpin + use<R, W, C> {
    // The response head is sent now, because some clients wait for it before they send their first request.
    let opened = match needs_leader && !hub.has_leader() {
        true => Err(error::NO_LEADER),
        false => responses.open(),
    };
    let mut drive = opened.map(|()| {
        let place = hub.open(needs_leader, client, responses.account());
        Drive { place, requests: Some(requests), responses, tick: None }
    });
    poll_fn(move |cx| match &mut drive {
        Err(status) => Poll::Ready(Err(status.clone())),
        Ok(_) if Pin::new(&mut closed).poll(cx).is_ready() => Poll::Ready(Err(error::STOPPED)),
        Ok(drive) => drive.poll(cx),
    })
}

struct Drive<R, W> {
    place: Registration,
    /// `None` once the client has closed its sending side.
    requests: Option<R>,
    responses: W,
    /// Timer of periodic progress; set when a watch of the stream asks for progress.
    tick: Option<Box<Sleep>>,
}

impl<R: Requests, W: Responses> Drive<R, W> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let stream = Rc::clone(&self.place.stream);
        let hub = Rc::clone(&self.place.hub);
        stream.wait(None);
        let mut again = self.read(cx)?;
        again |= self.tick(cx);
        hub.tell_progress(&stream);
        if let Some(fault) = hub.index_fault() {
            // Events may lack previous values.
            return Poll::Ready(Err(index_unreadable(&fault)));
        }
        let sent_all = self.write(cx)?;
        if let Some(status) = stream.ending() {
            return Poll::Ready(Err(status));
        }
        // Fetched values are taken even if the client reads no responses, because values that stay with the
        // readers would delay the fetches of other streams.
        let has_fetched = stream.poll_fetched(cx).is_ready();
        if !sent_all {
            stream.give_up_claim();
            hub.pause_reading(&stream);
        } else if has_fetched && stream.may_read() {
            stream.ask_for_room(|| self.responses.room());
            let has_room = match self.responses.poll_room(cx) {
                Poll::Pending => false,
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(error::WATCH_CANCELED)),
            };
            if has_room || stream.goes_on_without_room() {
                // The stream reads one slice per turn, and the other streams read theirs in between.
                hub.read_later(&stream);
            } else {
                hub.pause_reading(&stream);
            }
        }
        if again && sent_all {
            after_others(cx);
        }
        stream.wait(Some(cx.waker()));
        Poll::Pending
    }

    /// Answers requests. Returns true if more requests may have arrived, for which no waker is registered.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Status> {
        for _ in 0..REQUESTS_PER_POLL_MAX {
            if self.place.stream.is_half_sent() {
                return Ok(false);
            }
            let Some(requests) = &mut self.requests else { return Ok(false) };
            if !self.place.stream.has_room(0) {
                return Ok(true);
            }
            match requests.poll_next(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(Some(message))) => self.place.hub.request(&self.place.stream, message)?,
                Poll::Ready(Ok(None)) => self.requests = None,
                Poll::Ready(Err(status)) if status.code == Code::Canceled => {
                    return Err(error::WATCH_CANCELED);
                }
                Poll::Ready(Err(status)) => return Err(status),
            }
        }
        Ok(true)
    }

    /// Sends periodic progress notifications when they are due. Returns true if some are left to be sent.
    fn tick(&mut self, cx: &mut Context<'_>) -> bool {
        let (hub, stream) = (&self.place.hub, &self.place.stream);
        if self.tick.is_none() && stream.wants_ticks.get() {
            self.tick = Some(Box::new(hub.sleep(hub.progress_interval(stream))));
        }
        if stream.is_ticking() {
            hub.tell_periodic_progress(stream);
        }
        while let Some(tick) = &mut self.tick
            && Pin::new(&mut *tick).poll(cx).is_ready()
        {
            // A round of notifications that has begun is finished first, so a watch gets at most one
            // notification per round.
            if !stream.is_ticking() {
                stream.rare().ticks_from.set(Some(i64::MIN));
                hub.tell_periodic_progress(stream);
            }
            tick.reset(hub.progress_interval(stream));
        }
        stream.is_ticking()
    }

    /// Sends queued responses. Returns true if none are left.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, Status> {
        if self.place.stream.is_drained() {
            return Ok(true);
        }
        let begun = self.place.hub.counts.begin_turn();
        let mut sent = Sent::default();
        let sent_all = self.send_queued(cx, &mut sent);
        self.place.hub.counts.end_turn(begun, &sent, sent_all == Ok(true));
        sent_all
    }

    fn send_queued(&mut self, cx: &mut Context<'_>, sent: &mut Sent) -> Result<bool, Status> {
        let stream = &self.place.stream;
        while !stream.is_drained() {
            match self.responses.poll_ready(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Err(error::WATCH_CANCELED),
            }
            let Some(Queued { body, events }) = stream.pop() else { break };
            let responses = body.responses();
            let refused = match body {
                Body::One(bytes) => self.responses.try_send(bytes).map_err(|refused| refused.map(Body::One)),
                Body::Shared(bytes) => {
                    self.responses.try_send_shared(bytes).map_err(|refused| refused.map(Body::Shared))
                }
                Body::Short(messages) => {
                    self.responses.try_send_messages(messages).map_err(|refused| refused.map(Body::Short))
                }
            };
            match refused {
                Ok(()) => sent.add(responses, events),
                Err(TrySend::Full(body)) => {
                    let left = body.responses();
                    debug_assert!((1..=responses).contains(&left), "{left} of {responses} are left");
                    // All responses of the batch have the same number of events, so the events can be divided
                    // by responses.
                    let events_left = events / responses * left;
                    stream.put_back(Queued { body, events: events_left });
                    if left == responses {
                        cx.waker().wake_by_ref();
                        return Ok(false);
                    }
                    sent.add(responses - left, events - events_left);
                }
                Err(TrySend::TooLong(status)) => return Err(status),
                Err(TrySend::Closed) => return Err(error::WATCH_CANCELED),
            }
        }
        Ok(true)
    }
}
