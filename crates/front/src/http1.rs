//! Serves HTTP/1 on the client port, with hyper: [`serve`] runs one connection until it ends, and passes its
//! requests to [`crate::Service::exchange`]. This module knows neither gRPC nor paths.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use stdx::{First, race};

use http::Request;
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use tokio::io::AsyncWrite;
use transport::{Clock, ReadAhead, poll_read_bounded};

use crate::Service;
use crate::closing::Closing;
use crate::exchange::{ConnectionValue, Exchange, Http1Body, Phase, RequestBody};
use crate::ledger::Charge;
use crate::long_turns::Ticket;
use crate::new_connection::NewConnection;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::shard_state::ShardState;
use crate::socket::{SharedSocket, Socket, Transport};
use crate::turnstile::Pass;

/// Size limit of a request's head and of each of hyper's buffers, in bytes.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of bytes that are read beyond the current request, to notice a disconnect, while the
/// request has no answer yet or its answer is a stream. If this number is reached while the answer is a
/// stream, the client is disconnected, because clients of streams never send that much. Otherwise reading
/// stops, because the client may pipeline requests; the client is disconnected only if this lasts for the
/// stall timeout.
const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves an HTTP/1 connection until it ends.
pub(crate) async fn serve<S: Transport + 'static>(
    begun: NewConnection<S>,
    shard: Rc<ShardState>,
    service: Rc<dyn Service>,
    mut closing: Closing,
) -> io::Result<()> {
    let NewConnection { socket, origin, account, secured, .. } = begun;
    let validity = secured.as_ref().map(|secured| secured.validity().clone());
    let timeout = shard.options.first_bytes_timeout;
    let state = shard.clone();
    // Reserves memory for the maximum size of hyper's buffers, because hyper does not report their current
    // size.
    let _buffers = account.hold(BUFFER_BYTES_MAX);
    // Memory reservation for the current answer. It lasts until the next request, because hyper does not
    // report when an answer was sent.
    let held = Rc::new(RefCell::new(account.hold(0)));
    let whose = account.clone();
    let kept = ConnectionValue::default();
    let phase = Rc::new(Phase::default());
    let heard = phase.clone();
    let pace = Rc::new(Pace::new(account.clone(), shard.clone()));
    let turns = pace.clone();
    let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (service, held, whose, kept) = (service.clone(), held.clone(), whose.clone(), kept.clone());
        let (origin, shard, heard, pace) = (origin.clone(), state.clone(), heard.clone(), pace.clone());
        async move {
            let (head, body) = request.into_parts();
            held.borrow_mut().set(0);
            heard.begin();
            let method = service.page_method(head.uri.path());
            if method.is_some_and(|method| shard.turnstile.may_wait(method)) && !shard.closing.get() {
                Pass::default().through(&shard.turnstile, origin.peer.ip()).await;
            }
            let body = RequestBody::http1(body, Charge::new(&whose), &shard, heard.clone());
            let exchange = Exchange::new(head, body, origin, whose.clone(), shard, kept);
            let turn = whose.begin_turn();
            let mut answering = service.exchange(exchange);
            drop(turn);
            let answer = poll_fn(|cx| pace.poll(cx, |cx| answering.as_mut().poll(cx))).await;
            heard.answered();
            Ok::<_, Infallible>(answer.map(|body| Http1Body::new(body, held, pace)))
        }
    });
    let socket = Rc::new(RefCell::new(socket));
    let ahead = Rc::new(RefCell::new(ReadAhead::default()));
    let share = Share { socket: socket.clone(), shard: shard.clone(), ticket: Rc::default() };
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(Clock)
        .max_buf_size(BUFFER_BYTES_MAX)
        .header_read_timeout(timeout)
        .serve_connection(
            Hyper { socket: SharedSocket(socket.clone()), ahead: ahead.clone(), share: share.clone() },
            answer,
        );
    let mut connection = pin!(connection);
    // Resolves with an error when the connection must be closed: because the client has disconnected, is
    // stalled or is no longer admitted, or because its memory is needed.
    let mut watched = pin!(async {
        let (mut progress, stall_timeout) = (Progress::default(), shard.options.stall_timeout);
        let mut full_since = None;
        let mut looking = tokio::time::interval(stall_timeout / 4);
        poll_fn(|cx| {
            if phase.is_heard_out()
                && let Poll::Ready(Err(error)) = poll_ahead(&share, &ahead, cx)
            {
                return Poll::Ready(error.kind());
            }
            let is_full = phase.is_heard_out() && ahead.borrow().held_bytes() > AHEAD_BYTES_MAX;
            if is_full && phase.is_stream() {
                return Poll::Ready(io::ErrorKind::InvalidData);
            }
            account.set_buffers(socket.borrow().buffer_bytes() + ahead.borrow().held_bytes());
            if account.poll_doomed(cx).is_ready() {
                return Poll::Ready(io::ErrorKind::OutOfMemory);
            }
            if validity.as_ref().is_some_and(|validity| validity.poll_over(cx).is_ready()) {
                return Poll::Ready(io::ErrorKind::PermissionDenied);
            }
            while looking.poll_tick(cx).is_ready() {
                // While the read-ahead buffer is full, nothing is read, and a disconnect of the client is not
                // noticed. Therefore a connection on which the buffer stays full for the stall timeout is
                // closed.
                full_since = is_full.then(|| full_since.unwrap_or_else(Instant::now));
                if full_since.is_some_and(|since| since.elapsed() >= stall_timeout) {
                    return Poll::Ready(io::ErrorKind::InvalidData);
                }
                let socket = socket.borrow();
                if !socket.has_unsent() {
                    progress = Progress::default();
                } else if progress.is_stalled(socket.sent_bytes(), Instant::now(), stall_timeout) {
                    return Poll::Ready(io::ErrorKind::TimedOut);
                }
            }
            Poll::Pending
        })
        .await
    });
    match race(race(in_turns(&turns, connection.as_mut()), watched.as_mut()), closing.begun()).await {
        First::Left(First::Left(result)) => return result.map_err(io::Error::other),
        First::Left(First::Right(error)) => return Err(error.into()),
        First::Right(()) => {}
    }
    connection.as_mut().graceful_shutdown();
    match race(in_turns(&turns, connection), watched).await {
        First::Left(result) => result.map_err(io::Error::other),
        First::Right(error) => Err(error.into()),
    }
}

/// Polls the future that serves a connection. Each poll begins a new turn, because other tasks of the shard
/// ran before it.
fn in_turns<F: Future>(pace: &Pace, mut serving: Pin<&mut F>) -> impl Future<Output = F::Output> {
    poll_fn(move |cx| {
        pace.begin_turn();
        serving.as_mut().poll(cx)
    })
}

/// Reads beyond the current request. Resolves with an error when the client has disconnected, and with `Ok`
/// when the buffer is full. The bytes count against the same allowance as those that hyper reads and writes,
/// so a connection gets no additional work per turn by reading ahead.
fn poll_ahead<S: Transport>(
    share: &Share<S>,
    ahead: &RefCell<ReadAhead>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let mut socket = SharedSocket(share.socket.clone());
    ahead.borrow_mut().poll_fill(&mut socket, cx, AHEAD_BYTES_MAX, |cx| share.poll(cx))
}

/// Access to the allowance of a connection: the bytes that it may read and write before other connections
/// run. Reads count, because decrypting input costs the server much more than sending it costs the client;
/// writes count, because answers may be long. All readers and writers of the connection use the same
/// allowance.
struct Share<S> {
    socket: Rc<RefCell<Socket<S>>>,
    shard: Rc<ShardState>,
    ticket: Rc<RefCell<Ticket>>,
}

impl<S> Clone for Share<S> {
    fn clone(&self) -> Share<S> {
        Share { socket: self.socket.clone(), shard: self.shard.clone(), ticket: self.ticket.clone() }
    }
}

impl<S: Transport> Share<S> {
    /// Becomes ready when the connection may read and write more bytes. If the allowance is used up, the
    /// connection waits in the queue for long turns for another one.
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if self.socket.borrow().is_allowance_spent() {
            ready!(self.ticket.borrow_mut().poll(&self.shard.long_turns, cx));
            self.socket.borrow_mut().renew_allowance();
        }
        Poll::Ready(())
    }
}

/// Socket adapter for hyper, which gathers hyper's writes until hyper flushes, and makes reads and writes
/// wait when the connection's allowance is used up. Without that limit hyper would serve one connection as
/// long as the client keeps sending.
struct Hyper<S> {
    socket: SharedSocket<S>,
    ahead: Rc<RefCell<ReadAhead>>,
    share: Share<S>,
}

impl<S: Transport> hyper::rt::Read for Hyper<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.borrow_mut().take(&mut into) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.share.poll(cx));
        poll_read_bounded(&mut self.socket, cx, into)
    }
}

impl<S: Transport> hyper::rt::Write for Hyper<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.share.poll(cx));
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.share.poll(cx));
        self.socket.0.borrow_mut().poll_send(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
