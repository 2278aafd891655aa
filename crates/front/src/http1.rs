//! HTTP/1 on the client port, served by hyper: [`serve`] runs one connection until it ends. Requests go to
//! [`crate::Service::http`] with their whole body, which is charged as it grows. It knows no gRPC and no paths.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use stdx::{First, race};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::budget::{Account, Held};
use crate::call::Progress;
use crate::shard::{Closing, ShardState};
use crate::socket::{SharedSocket, Socket, Transport};
use crate::standing::Standing;
use crate::{Origin, Service};

/// Bytes read at once into hyper's buffer.
const READ_BYTES: usize = 8 * 1024;

/// Most bytes of a request's head, and of hyper's buffers each way.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Serves a connection that speaks HTTP/1 until it ends.
pub(crate) async fn serve<S: Transport + 'static>(
    socket: Socket<S>,
    origin: Origin,
    account: Rc<Account>,
    standing: Option<Rc<Standing>>,
    shard: Rc<ShardState>,
    service: Rc<dyn Service>,
    mut closing: Closing,
) -> io::Result<()> {
    let timeout = shard.options.first_bytes_timeout;
    let body_bytes_max = shard.options.http_body_bytes_max;
    // hyper's buffers, which are not to be looked into.
    let _buffers = account.hold(BUFFER_BYTES_MAX);
    // Charged until the next request: the connection is not told when an answer has gone.
    let held = Rc::new(RefCell::new(account.hold(0)));
    let whose = account.clone();
    let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (service, held, whose) = (service.clone(), held.clone(), whose.clone());
        let origin = origin.clone();
        async move {
            let (mut parts, body) = request.into_parts();
            held.borrow_mut().set(0);
            let body = match tokio::time::timeout(timeout, gather(body, body_bytes_max, &held)).await {
                Ok(Ok(body)) => body,
                Ok(Err(status)) => return Ok::<_, Infallible>(plain(status)),
                Err(_) => return Ok(plain(StatusCode::REQUEST_TIMEOUT)),
            };
            parts.extensions.insert(origin.peer);
            parts.extensions.insert(origin);
            let turn = whose.begin_turn();
            let mut answering = service.http(Request::from_parts(parts, body));
            drop(turn);
            let answer = poll_fn(|cx| {
                let _turn = whose.begin_turn();
                answering.as_mut().poll(cx)
            })
            .await;
            held.borrow_mut().set(answer.body().len());
            Ok(answer.map(Full::new))
        }
    });
    let socket = Rc::new(RefCell::new(socket));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(Clock)
        .max_buf_size(BUFFER_BYTES_MAX)
        .header_read_timeout(timeout)
        .serve_connection(Hyper(SharedSocket(socket.clone())), answer);
    let mut connection = pin!(connection);
    // Ends with an error when the connection must close.
    let mut watched = pin!(async {
        let (mut progress, stall_timeout) = (Progress::default(), shard.options.stall_timeout);
        let mut looking = tokio::time::interval(stall_timeout / 4);
        poll_fn(|cx| {
            account.set_buffers(socket.borrow().buffer_bytes());
            if account.poll_doomed(cx).is_ready() {
                return Poll::Ready(io::ErrorKind::OutOfMemory);
            }
            if standing.as_ref().is_some_and(|standing| standing.poll_over(cx).is_ready()) {
                return Poll::Ready(io::ErrorKind::PermissionDenied);
            }
            while looking.poll_tick(cx).is_ready() {
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
    match race(race(connection.as_mut(), watched.as_mut()), closing.begun()).await {
        First::Left(First::Left(result)) => return result.map_err(io::Error::other),
        First::Left(First::Right(error)) => return Err(error.into()),
        First::Right(()) => {}
    }
    connection.as_mut().graceful_shutdown();
    match race(connection, watched).await {
        First::Left(result) => result.map_err(io::Error::other),
        First::Right(error) => Err(error.into()),
    }
}

/// Takes the body of a request, which is charged as it grows.
async fn gather(mut body: Incoming, bytes_max: usize, held: &RefCell<Held>) -> Result<Bytes, StatusCode> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
        if whole.len() + data.len() > bytes_max {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        whole.extend_from_slice(&data);
        held.borrow_mut().set(whole.capacity());
    }
    Ok(whole.freeze())
}

fn plain(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// The socket as hyper wants it: what hyper flushes is really written.
struct Hyper<S>(SharedSocket<S>);

impl<S: Transport> hyper::rt::Read for Hyper<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Others get their turn: what a client sends may be cheap for it and dear to decrypt.
        if self.0.0.borrow_mut().renew_spent_allowance() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut space = [0; READ_BYTES];
        let room = into.remaining().min(READ_BYTES);
        let mut buffer = ReadBuf::new(&mut space[..room]);
        let polled = Pin::new(&mut self.0).poll_read(cx, &mut buffer);
        into.put_slice(buffer.filled());
        polled
    }
}

impl<S: Transport> hyper::rt::Write for Hyper<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.0.borrow_mut().poll_send(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// hyper's view of tokio's clock.
#[derive(Clone, Copy)]
struct Clock;

struct Alarm(Pin<Box<tokio::time::Sleep>>);

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl hyper::rt::Sleep for Alarm {}

impl hyper::rt::Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Alarm(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}
