//! The beginning of a call: [`begin`] checks a request's head as grpc-go's server does, in its order and with its texts,
//! reads the deadline, and makes a call of it. It reads no message.

use std::fmt;
use std::task::Context;
use std::time::{Duration, Instant};

use api::{Code, Status};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, StatusCode};

use crate::assembler::Assembler;
use crate::call::{ConnectionContext, DEADLINE, Gathering, Step, begin_stream};
use crate::outgoing::Outgoing;
use crate::page::Page;
use crate::{Head, Kind, Origin, Serves, reply};

/// Looks at a request's head as grpc-go's server does. What it refuses is answered here; what it takes goes on as a call
/// as far as it can at once. Its time runs from `since`, when it came. Returns what became of it, and its deadline. All in
/// one, because what makes up a call is large, and moving it costs.
pub(crate) fn begin(
    around: &ConnectionContext,
    request: Request<RecvStream>,
    mut respond: SendResponse<Outgoing>,
    from: &Origin,
    since: Instant,
    now: Instant,
    cx: &mut Context<'_>,
) -> Option<(Step, Option<Instant>)> {
    if is_page(from, request.headers()) {
        let method = around.service.page_method(request.uri().path());
        around.may_wait.set(method.is_some_and(|method| around.shard.turnstile.may_wait(method)));
        return Some((Page::begin(around, request, respond, from)?.step(around, cx), None));
    }
    match examine(around, &request, since, now) {
        Err((http, status)) => {
            // An error means that the stream is gone: nobody is left to tell.
            let _ = respond.send_response(reply::refusal(http, &status), true);
            None
        }
        Ok(Examined { method, kind, deadline, gzip, requires_leader, client_api_version }) => {
            let (parts, recv) = request.into_parts();
            let metadata = parts.headers;
            let head = Head {
                method,
                peer: from.peer,
                common_name: from.common_name.clone(),
                arrived: since,
                deadline,
                metadata,
                requires_leader,
                client_api_version,
            };
            around.may_wait.set(around.shard.turnstile.may_wait(method));
            let assembler = Assembler::new(around.shard.options.message_bytes_max, gzip);
            let step = match kind {
                // Most are answered on the spot, so it is not put on the heap yet.
                Kind::Unary => Gathering::new(head, recv, respond, assembler, gzip).begin(around, cx),
                Kind::ServerStream | Kind::Bidi => {
                    begin_stream(around, head, recv, assembler, respond, gzip)?.step(around, cx)
                }
            };
            Some((step, deadline))
        }
    }
}

struct Examined {
    method: u16,
    kind: Kind,
    deadline: Option<Instant>,
    gzip: bool,
    requires_leader: bool,
    client_api_version: Option<HeaderValue>,
}

/// The metadata that every call is asked for: the first value of each, as a look-up by name would find it.
#[derive(Default)]
struct Known<'a> {
    content_type: Option<&'a HeaderValue>,
    timeout: Option<&'a HeaderValue>,
    encoding: Option<&'a HeaderValue>,
    has_leader: Option<&'a HeaderValue>,
    client_api_version: Option<&'a HeaderValue>,
}

impl<'a> Known<'a> {
    /// One walk over the handful of headers costs less than hashing one name, let alone five.
    fn of(headers: &'a HeaderMap) -> Known<'a> {
        let mut known = Known::default();
        for (name, value) in headers {
            let field = match name.as_str() {
                "content-type" => &mut known.content_type,
                "grpc-timeout" => &mut known.timeout,
                "grpc-encoding" => &mut known.encoding,
                "hasleader" => &mut known.has_leader,
                "client-api-version" => &mut known.client_api_version,
                _ => continue,
            };
            field.get_or_insert(value);
        }
        known
    }
}

fn examine(
    around: &ConnectionContext,
    request: &Request<RecvStream>,
    since: Instant,
    now: Instant,
) -> Result<Examined, (StatusCode, Status)> {
    let known = Known::of(request.headers());
    check_content_type(known.content_type)?;
    if request.method() != http::Method::POST {
        let text =
            format!("Received a HEADERS frame with :method \"{}\" which should be POST", request.method());
        return Err((StatusCode::METHOD_NOT_ALLOWED, Status::with(Code::Internal, text)));
    }
    let deadline = match known.timeout {
        None => None,
        Some(value) => {
            let timeout = parse_timeout(value.as_bytes()).map_err(|why| {
                let text = format!("malformed grpc-timeout: {why}");
                (StatusCode::BAD_REQUEST, Status::with(Code::Internal, text))
            })?;
            // A time that does not fit the clock counts as none.
            let deadline = since.checked_add(timeout);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Err((StatusCode::OK, DEADLINE));
            }
            deadline
        }
    };
    let path = request.uri().path();
    let Some(method) = around.service.method(path) else {
        return Err((StatusCode::OK, unknown_path(around, path)));
    };
    let gzip = match known.encoding.map(|value| value.as_bytes()) {
        None | Some(b"identity" | b"") => false,
        Some(b"gzip") => true,
        Some(other) => {
            let name = String::from_utf8_lossy(other);
            let text = format!("grpc: Decompressor is not installed for grpc-encoding \"{name}\"");
            return Err((StatusCode::OK, Status::with(Code::Unimplemented, text)));
        }
    };
    Ok(Examined {
        method: method.id,
        kind: method.kind,
        deadline,
        gzip,
        requires_leader: known.has_leader.is_some_and(|value| value == "true"),
        client_api_version: known.client_api_version.cloned(),
    })
}

/// Returns true for a request over HTTP/2 that etcd answers as one over HTTP/1. Without TLS it hands every connection that
/// speaks HTTP/2 to gRPC.
fn is_page(from: &Origin, headers: &HeaderMap) -> bool {
    from.is_tls
        && match from.serves {
            Serves::Grpc => false,
            Serves::Pages => true,
            Serves::All => !is_grpc(headers),
        }
}

/// Returns true for the requests that etcd hands to gRPC: on connections that carry pages too, this header decides. A call in
/// gRPC-Web is a plain request whose body holds what gRPC has in frames and trailers of HTTP/2 (COMPAT-185).
fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(http::header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    content_type.windows(GRPC_TYPE.len()).any(|part| part == GRPC_TYPE)
        && !content_type.starts_with(GRPC_WEB_TYPE)
}

const GRPC_WEB_TYPE: &[u8] = b"application/grpc-web";
const GRPC_TYPE: &[u8] = b"application/grpc";

fn check_content_type(value: Option<&HeaderValue>) -> Result<(), (StatusCode, Status)> {
    let value = value.map_or(&b""[..], |value| value.as_bytes());
    if let Some(rest) = value.strip_prefix(b"application/grpc")
        && matches!(rest.first(), None | Some(b'+' | b';'))
    {
        return Ok(());
    }
    let value = String::from_utf8_lossy(value);
    let text = if value.is_empty() {
        "malformed header: missing HTTP content-type".to_owned()
    } else {
        format!("invalid gRPC request content-type \"{value}\"")
    };
    Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, Status::with(Code::InvalidArgument, text)))
}

fn unknown_path(around: &ConnectionContext, path: &str) -> Status {
    let text = match path.strip_prefix('/').unwrap_or(path).rsplit_once('/') {
        None => format!("malformed method name: \"{path}\""),
        Some((service, method)) if around.service.has_service(service) => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
    };
    Status::with(Code::Unimplemented, text)
}

/// Why a `grpc-timeout` is none, in gRPC's words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TimeoutError {
    value: String,
    why: &'static str,
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transport: {}: \"{}\"", self.why, self.value)
    }
}

impl std::error::Error for TimeoutError {}

/// Reads `grpc-timeout`: up to 8 digits and a unit.
fn parse_timeout(value: &[u8]) -> Result<Duration, TimeoutError> {
    let refused = |why| TimeoutError { value: String::from_utf8_lossy(value).into_owned(), why };
    let (unit, digits) = match value.split_last() {
        Some((unit, digits)) if !digits.is_empty() => (unit, digits),
        _ => return Err(refused("timeout string is too short")),
    };
    if digits.len() > 8 {
        return Err(refused("timeout string is too long"));
    }
    if !b"HMSmun".contains(unit) {
        return Err(refused("timeout unit is not recognized"));
    }
    let mut amount: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(refused("timeout is not a number"));
        }
        amount = amount * 10 + u64::from(digit - b'0');
    }
    match unit {
        b'H' => Ok(Duration::from_secs(amount * 3600)),
        b'M' => Ok(Duration::from_secs(amount * 60)),
        b'S' => Ok(Duration::from_secs(amount)),
        b'm' => Ok(Duration::from_millis(amount)),
        b'u' => Ok(Duration::from_micros(amount)),
        _ => Ok(Duration::from_nanos(amount)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_values_the_first_counts() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("hasleader", "true"), ("te", "trailers"), ("grpc-timeout", "1S"), ("hasleader", "false")]
        {
            headers.append(name, HeaderValue::from_static(value));
        }
        let known = Known::of(&headers);
        assert_eq!(known.has_leader, headers.get("hasleader"));
        assert_eq!(known.timeout, headers.get("grpc-timeout"));
        assert!(known.has_leader.is_some_and(|value| value == "true"));
        assert!(known.content_type.is_none() && known.encoding.is_none());
    }

    #[test]
    fn timeouts_are_read_in_all_units() {
        assert_eq!(parse_timeout(b"5S"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_timeout(b"2H"), Ok(Duration::from_secs(7200)));
        assert_eq!(parse_timeout(b"250m"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_timeout(b"99999999n"), Ok(Duration::from_nanos(99_999_999)));
        for bad in ["", "S", "5", "5x", "123456789S", "-5S", "5 S"] {
            assert!(parse_timeout(bad.as_bytes()).is_err(), "{bad}");
        }
        let unit = "transport: timeout unit is not recognized: \"bad\"";
        assert_eq!(parse_timeout(b"bad").unwrap_err().to_string(), unit, "the unit is looked at first");
    }
}
