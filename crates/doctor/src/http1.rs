//! A reader of small pages over HTTP/1.1, with bounds on size and time. A whole HTTP client would bring its own TLS and
//! pools for what is a request line, a head and a body.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stdx::calendar::parse_http_date;

use client::{Endpoint, RawConnection, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Longest head taken.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Largest body taken; a member's metrics are some 200 kB.
const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// An answer, and when it was had.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP's status.
    pub status: u16,
    /// The server's time at `Date`, in seconds since 1970.
    pub date_unix: Option<i64>,
    /// The body.
    pub body: Vec<u8>,
    /// When the request went out, in seconds since 1970 by the clock here.
    pub asked_unix: f64,
    /// When the head of the answer had come.
    pub answered_unix: f64,
}

/// Seconds since 1970 by the clock here.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Gets a page.
///
/// # Errors
/// A text: no connection, no HTTP, too large, too late, or another status than 200.
pub async fn get(
    endpoint: &Endpoint,
    transport: &Transport,
    path: &str,
    within: Duration,
) -> Result<Answer, String> {
    let answer = timeout(within, get_unbounded(endpoint, transport, path))
        .await
        .map_err(|_| format!("no answer within {}", cli::go::duration(within)))??;
    match answer.status {
        200 => Ok(answer),
        status => Err(format!("HTTP status {status}")),
    }
}

async fn get_unbounded(endpoint: &Endpoint, transport: &Transport, path: &str) -> Result<Answer, String> {
    let mut connection = RawConnection::open(endpoint, transport).await.map_err(|error| error.to_string())?;
    let stream = connection.stream();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: mainstay-doctor/{}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        endpoint.host,
        env!("CARGO_PKG_VERSION")
    );
    let asked_unix = unix_now();
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut read = Vec::new();
    let head_bytes = loop {
        if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if read.len() > HEAD_BYTES_MAX {
            return Err("its head is too long".to_owned());
        }
        if stream.read_buf(&mut read).await.map_err(|error| error.to_string())? == 0 {
            return Err(match read.is_empty() {
                true => "the server hung up without an answer".to_owned(),
                false => "the answer is no HTTP/1.1".to_owned(),
            });
        }
    };
    let answered_unix = unix_now();
    let head = Head::read(&read[..head_bytes]).ok_or("the answer is no HTTP/1.1")?;
    let mut body = read.split_off(head_bytes);
    // A body without a length ends with the connection; one with a length may end there without a goodbye.
    let whole = |body: &[u8]| match (head.is_chunked, head.length) {
        (true, _) => unchunked(body).is_some(),
        (false, Some(length)) => body.len() >= length,
        (false, None) => false,
    };
    // Chunks are looked at again only when there is twice as much, lest the work grow with the square.
    let mut look_at = 0;
    loop {
        if body.len() > BODY_BYTES_MAX || head.length.is_some_and(|length| length > BODY_BYTES_MAX) {
            return Err(format!("larger than {BODY_BYTES_MAX} bytes"));
        }
        let is_last = !head.is_chunked || body.ends_with(b"0\r\n\r\n") || body.len() >= look_at;
        if is_last && whole(&body) {
            break;
        }
        if is_last && head.is_chunked {
            look_at = body.len().saturating_mul(2).max(64 * 1024);
        }
        match stream.read_buf(&mut body).await {
            Ok(0) => break,
            Ok(_) => {}
            // Without TLS's own goodbye the length decides, as below.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    let body = match (head.is_chunked, head.length) {
        (true, _) => unchunked(&body).ok_or("the answer breaks off")?,
        (false, Some(length)) if body.len() < length => return Err("the answer breaks off".to_owned()),
        (false, Some(length)) => {
            body.truncate(length);
            body
        }
        (false, None) => body,
    };
    Ok(Answer { status: head.status, date_unix: head.date_unix, body, asked_unix, answered_unix })
}

#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    is_chunked: bool,
    length: Option<usize>,
    date_unix: Option<i64>,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Head> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        if !words.next()?.starts_with("HTTP/1.") {
            return None;
        }
        let status = words.next()?.parse().ok()?;
        let mut head = Head { status, is_chunked: false, length: None, date_unix: None };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "transfer-encoding" => head.is_chunked = value.eq_ignore_ascii_case("chunked"),
                "content-length" => head.length = Some(value.parse().ok()?),
                "date" => {
                    head.date_unix = parse_http_date(value).and_then(|seconds| i64::try_from(seconds).ok())
                }
                _ => {}
            }
        }
        Some(head)
    }
}

/// The content of a chunked body; `None` when it is not all there, or malformed.
fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        rest = rest.get(end + 2..)?;
        if size == 0 {
            // Trailers, if any, are of no use.
            return Some(content);
        }
        let chunk = rest.get(..size)?;
        content.extend_from_slice(chunk);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_or_refused() {
        let head = Head::read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTRANSFER-ENCODING: chunked\r\n\r\n")
            .unwrap();
        assert_eq!(head, Head { status: 200, is_chunked: true, length: Some(5), date_unix: None });
        for wrong in [
            &b"PRI * HTTP/2.0\r\n\r\n"[..],
            b"HTTP/1.1 x\r\n\r\n",
            b"HTTP/1.1 200\r\nContent-Length: -1\r\n\r\n",
        ] {
            assert_eq!(Head::read(wrong), None);
        }
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(unchunked(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n").as_deref(), Some(&b"abcde"[..]));
        for wrong in [
            &b"3\r\nab"[..],
            b"3\r\nabcd\r\n",
            b"zz\r\n",
            b"ffffffffffffffffff\r\n",
            b"ffffffffffffffff\r\nx",
            b"",
        ] {
            assert_eq!(unchunked(wrong), None);
        }
    }
}
