//! Fetches small pages such as `/metrics` over HTTP/1.1, with limits on their size and on the time that a
//! request takes.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::evidence::Unseen;
use bytes::Bytes;
use client::{Endpoint, RawConnection, Transport};
use http::header::{ACCEPT, CONNECTION, DATE, HOST, USER_AGENT};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Body as _;
use hyper::rt::ReadBufCursor;
use stdx::calendar::parse_http_date;
use stdx::{First, race};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

/// Longest accepted head of a response, in bytes; a longer one is an error.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a response body in bytes; a larger one is an error. The metrics of a member have about 200
/// kB.
const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Largest number of bytes taken from the connection in one read.
const READ_BYTES: usize = 16 * 1024;

/// Reason why a page could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetError {
    /// The connection failed or broke. Contains the error message of the library.
    Connection(String),
    /// The response did not arrive within this time.
    Late(Duration),
    /// The response has a status other than 200.
    Status(u16),
    /// The head of the response is too long.
    HeadTooLong,
    /// The server closed the connection before it responded.
    HungUp,
    /// The response is not HTTP/1.1.
    NotHttp,
    /// The connection ended before the response was complete.
    BrokenOff,
    /// The body of the response is too large.
    TooLarge,
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GetError::Connection(why) => f.write_str(why),
            GetError::Late(within) => write!(f, "no answer within {}", cli::go::duration(*within)),
            GetError::Status(status) => write!(f, "HTTP status {status}"),
            GetError::HeadTooLong => f.write_str("its head is too long"),
            GetError::HungUp => f.write_str("the server closed the connection without an answer"),
            GetError::NotHttp => f.write_str("the answer is not HTTP/1.1"),
            GetError::BrokenOff => f.write_str("the answer breaks off"),
            GetError::TooLarge => write!(f, "larger than {BODY_BYTES_MAX} bytes"),
        }
    }
}

impl std::error::Error for GetError {}

impl From<GetError> for Unseen {
    fn from(error: GetError) -> Unseen {
        Unseen::because(error)
    }
}

/// A response, and the times that are needed to compare the server's clock with this machine's.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// Time in the `Date` header, in seconds since 1970.
    pub date_unix: Option<i64>,
    /// Body of the response.
    pub body: Vec<u8>,
    /// Time when the request was sent, in seconds since 1970 by this machine's clock.
    pub asked_unix: f64,
    /// Time when the head of the response had arrived, in seconds since 1970 by this machine's clock.
    pub answered_unix: f64,
}

/// Returns the time in seconds since 1970 by this machine's clock.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Fetches the page at `path` with one request, on a new connection.
///
/// # Errors
/// Returns an error if the connection fails, the response is not HTTP or is too large, it takes longer than
/// `within`, or its status is not 200.
pub async fn get(
    endpoint: &Endpoint,
    transport: &Transport,
    path: &str,
    within: Duration,
) -> Result<Answer, GetError> {
    let answer = timeout(within, get_unbounded(endpoint, transport, path))
        .await
        .map_err(|_| GetError::Late(within))??;
    match answer.status {
        200 => Ok(answer),
        status => Err(GetError::Status(status)),
    }
}

async fn get_unbounded(endpoint: &Endpoint, transport: &Transport, path: &str) -> Result<Answer, GetError> {
    let mut connection = RawConnection::open(endpoint, transport)
        .await
        .map_err(|error| GetError::Connection(error.to_string()))?;
    exchange(connection.stream(), &endpoint.host, path).await
}

/// Sends one request on a new connection, reads the response, and does not use the connection any further.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Send + Unpin),
    host: &str,
    path: &str,
) -> Result<Answer, GetError> {
    let request = http::Request::get(path)
        .header(HOST, host)
        .header(USER_AGENT, concat!("mainstay-doctor/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| GetError::Connection(error.to_string()))?;
    let has_read = Arc::new(AtomicBool::new(false));
    let wire = Wire { stream, has_read: Arc::clone(&has_read) };
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .title_case_headers(true)
        .handshake(wire)
        .await
        .map_err(|error| GetError::Connection(text(&error)))?;
    let asked_unix = unix_now();
    let answered = async {
        let response = sender.send_request(request).await.map_err(|error| {
            if error.is_parse_too_large() {
                GetError::HeadTooLong
            } else if error.is_incomplete_message() && !has_read.load(Ordering::Relaxed) {
                GetError::HungUp
            } else if error.is_parse() || error.is_incomplete_message() {
                GetError::NotHttp
            } else {
                GetError::Connection(text(&error))
            }
        })?;
        let answered_unix = unix_now();
        let (head, mut incoming) = response.into_parts();
        let date = head.headers.get(DATE).and_then(|value| value.to_str().ok());
        let date_unix = date.and_then(parse_http_date).and_then(|seconds| i64::try_from(seconds).ok());
        if incoming.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(GetError::TooLarge);
        }
        let mut body = Vec::new();
        while let Some(frame) = incoming.frame().await {
            let Ok(data) = frame.map_err(|error| broken_off(&error))?.into_data() else { continue };
            if body.len() + data.len() > BODY_BYTES_MAX {
                return Err(GetError::TooLarge);
            }
            body.extend_from_slice(&data);
        }
        Ok(Answer { status: head.status.as_u16(), date_unix, body, asked_unix, answered_unix })
    };
    // Drive the connection. This future never completes, not even after the connection has failed: in that
    // case `answered` fails too, and with a more precise error.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    match race(answered, driven).await {
        First::Left(answer) => answer,
        First::Right(()) => Err(GetError::BrokenOff),
    }
}

/// Returns the reason why a body is incomplete: the error of the operating system if reading failed,
/// otherwise [`GetError::BrokenOff`].
fn broken_off(error: &hyper::Error) -> GetError {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause {
        Some(cause) if cause.raw_os_error().is_some() => GetError::Connection(cause.to_string()),
        _ => GetError::BrokenOff,
    }
}

/// Returns the message of the error's cause, which is more precise, or the error's own message if it has no
/// cause.
fn text(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Adapter that lets hyper read from and write to a tokio stream.
struct Wire<'s, S> {
    stream: &'s mut S,
    /// Set to true when the first byte of the response has arrived.
    has_read: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> hyper::rt::Read for Wire<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut space = [0; READ_BYTES];
        let room = into.remaining().min(READ_BYTES);
        let mut buffer = ReadBuf::new(&mut space[..room]);
        let polled = Pin::new(&mut *self.stream).poll_read(cx, &mut buffer);
        if !buffer.filled().is_empty() {
            self.has_read.store(true, Ordering::Relaxed);
        }
        into.put_slice(buffer.filled());
        match polled {
            // Some servers end a TLS connection without the close_notify alert. Treat this as a normal end:
            // HTTP's own framing shows whether the response is complete.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for Wire<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Returns the result of a request to a server that sends these bytes and then closes the connection.
    fn read(answer: &[u8]) -> Result<Answer, GetError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut here, mut there) = tokio::io::duplex(1 << 20);
            let bytes = answer.to_vec();
            let server = tokio::spawn(async move {
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    there.read_buf(&mut asked).await.unwrap();
                }
                there.write_all(&bytes).await.unwrap();
                String::from_utf8(asked).unwrap()
            });
            let answer = exchange(&mut here, "m1:2379", "/metrics").await;
            let asked = server.await.unwrap();
            let agent = concat!("User-Agent: mainstay-doctor/", env!("CARGO_PKG_VERSION"));
            assert_eq!(
                asked,
                format!("GET /metrics HTTP/1.1\r\nHost: m1:2379\r\n{agent}\r\nAccept: */*\r\nConnection: close\r\n\r\n")
            );
            answer
        })
    }

    #[test]
    fn heads_are_read_or_refused() {
        let dated =
            b"HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 0\r\n\r\n";
        let answer = read(dated).unwrap();
        assert_eq!((answer.status, answer.date_unix), (404, Some(784_111_777)));
        for (wrong, why) in [
            (&b""[..], GetError::HungUp),
            (b"PRI * HTTP/2.0\r\n\r\n", GetError::NotHttp),
            (b"HTTP/1.1 x\r\n\r\n", GetError::NotHttp),
            (b"HTTP/1.1 200\r\nContent-Length: -1\r\n\r\n", GetError::NotHttp),
            (b"HTTP/1.1 200 OK\r\nContent-Le", GetError::NotHttp),
            (&[b'x'; 2 * HEAD_BYTES_MAX], GetError::NotHttp),
            (&[&b"HTTP/1.1 200 OK\r\n"[..], &[b'x'; 2 * HEAD_BYTES_MAX]].concat(), GetError::HeadTooLong),
        ] {
            assert_eq!(read(wrong), Err(why), "{}", String::from_utf8_lossy(&wrong[..wrong.len().min(50)]));
        }
    }

    #[test]
    fn bodies_end_by_their_length_their_last_chunk_or_the_connection() {
        for whole in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcdefgh"[..],
            b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n\r\nabcde",
        ] {
            assert_eq!(read(whole).unwrap().body, b"abcde");
        }
        for broken in
            ["3\r\nab", "3\r\nabcd\r\n", "zz\r\n", "ffffffffffffffffff\r\n", "ffffffffffffffff\r\nx", ""]
        {
            let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{broken}");
            assert_eq!(read(answer.as_bytes()), Err(GetError::BrokenOff), "{broken:?}");
        }
        let short = read(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcde");
        assert_eq!(short, Err(GetError::BrokenOff));
        let large = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY_BYTES_MAX + 1);
        assert_eq!(read(large.as_bytes()), Err(GetError::TooLarge));
    }
}
