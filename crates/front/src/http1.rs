use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Service;
use crate::race::{First, race};
use crate::shard::{Closing, ShardState};
use crate::socket::{SharedSocket, Socket, Transport};

/// Bytes read at once into hyper's buffer.
const READ_BYTES: usize = 8 * 1024;

/// Serves a connection that speaks HTTP/1 until it ends.
pub(crate) async fn serve<S: Transport + 'static>(
    socket: Socket<S>,
    peer: SocketAddr,
    shard: Rc<ShardState>,
    service: Rc<dyn Service>,
    mut closing: Closing,
) -> io::Result<()> {
    let timeout = shard.options.first_bytes_timeout;
    let body_bytes_max = shard.options.http_body_bytes_max;
    let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
        let service = service.clone();
        async move {
            let (mut parts, body) = request.into_parts();
            let body = Limited::new(body, body_bytes_max).collect();
            let body = match tokio::time::timeout(timeout, body).await {
                Ok(Ok(body)) => body.to_bytes(),
                Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                    return Ok::<_, Infallible>(plain(StatusCode::PAYLOAD_TOO_LARGE));
                }
                Ok(Err(_)) => return Ok(plain(StatusCode::BAD_REQUEST)),
                Err(_) => return Ok(plain(StatusCode::REQUEST_TIMEOUT)),
            };
            parts.extensions.insert(peer);
            Ok(service.http(Request::from_parts(parts, body)).await.map(Full::new))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(Clock)
        .header_read_timeout(timeout)
        .serve_connection(Hyper(SharedSocket(Rc::new(std::cell::RefCell::new(socket)))), answer);
    let mut connection = pin!(connection);
    if let First::Left(result) = race(connection.as_mut(), closing.begun()).await {
        return result.map_err(io::Error::other);
    }
    connection.as_mut().graceful_shutdown();
    connection.await.map_err(io::Error::other)
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
