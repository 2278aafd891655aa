//! Decides whether a request may begin: [`begin`] checks the head of the request like grpc-go's server, in
//! the same order and with the same error messages, determines the deadline, and creates the call. [`begin`]
//! does not read the request's message.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Code, Status};
use http::StatusCode;
use http2::Fields;

use crate::assembler::Assembler;
use crate::call::{DEADLINE, StreamingCall, UnaryRequest, begin_stream};
use crate::context::ConnectionContext;
use crate::head::Head;
use crate::listener::{Origin, Protocols};
use crate::metadata::Metadata;
use crate::page::Page;
use crate::responder::Responder;
use crate::service::{Kind, Service};

/// Kind of a request, determined from its header fields alone, so that it can be cached for requests with
/// equal header fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestKind {
    /// The request is not a gRPC call.
    Page,
    Call {
        method: u16,
        kind: Kind,
        timeout: Option<Duration>,
        gzip: bool,
        requires_leader: bool,
    },
}

/// Cache of the kinds of requests, by their header fields. It has few entries, because a client sends the
/// same few header lists again and again.
#[derive(Default)]
pub(crate) struct HeadCache {
    heads: [Option<(Arc<Fields>, RequestKind)>; 2],
    next: u8,
}

impl HeadCache {
    fn find(&self, fields: &Arc<Fields>) -> Option<RequestKind> {
        let mut known = self.heads.iter().flatten();
        known.find(|(its, _)| Arc::ptr_eq(its, fields)).map(|(_, request)| *request)
    }

    /// Caches the kind of a request if the HTTP/2 engine has cached its header fields, which is why more than
    /// one reference exists. Other header fields will probably not occur again.
    fn add(&mut self, fields: &Arc<Fields>, request: RequestKind) {
        if Arc::strong_count(fields) > 1 {
            self.heads[usize::from(self.next)] = Some((fields.clone(), request));
            self.next = (self.next + 1) % self.heads.len() as u8;
        }
    }
}

/// Request that was accepted.
pub(crate) enum AdmittedRequest {
    /// Unary call whose message has not arrived yet.
    Unary(Box<UnaryRequest>),
    /// Streaming call, with its deadline.
    Streaming(Box<StreamingCall>, Option<Instant>),
    Page(Box<Page>),
}

/// Checks a request's head like grpc-go's server, and begins the request. Returns `None` if the request was
/// refused; the refusal has then been sent. The deadline counts from `since`, the time at which the request
/// arrived.
pub(crate) fn begin(
    around: &Rc<ConnectionContext>,
    service: &Rc<dyn Service>,
    heads: &mut HeadCache,
    fields: Arc<Fields>,
    responder: Responder,
    since: Instant,
    now: Instant,
) -> Option<AdmittedRequest> {
    let request = match heads.find(&fields) {
        Some(request) => Ok(request),
        None => examine(around, &**service, &fields).inspect(|request| heads.add(&fields, *request)),
    };
    let request = request.and_then(|request| Ok((request, deadline(request, since, now)?)));
    match request {
        Err((http, status)) => {
            responder.refuse(http, &status);
            None
        }
        Ok((RequestKind::Page, _)) => {
            let method = service.page_method(&String::from_utf8_lossy(path(&fields)));
            around.may_wait.set(method.is_some_and(|method| around.shard.turnstile.may_wait(method)));
            Page::begin(around, service, &fields, responder).map(AdmittedRequest::Page)
        }
        Ok((RequestKind::Call { method, kind, gzip, requires_leader, .. }, deadline)) => {
            let head = Head {
                method,
                peer: around.origin.peer,
                common_name: around.origin.common_name.clone(),
                arrived: since,
                deadline,
                metadata: Metadata::from(fields),
                requires_leader,
            };
            around.may_wait.set(around.shard.turnstile.may_wait(method));
            let assembler = Assembler::new(around.shard.options.message_bytes_max, gzip);
            match kind {
                Kind::Unary => Some(AdmittedRequest::Unary(Box::new(UnaryRequest::new(
                    head, responder, assembler, gzip,
                )))),
                Kind::ServerStream | Kind::Bidi => {
                    let streaming = begin_stream(around, service, head, assembler, responder, gzip);
                    streaming.map(|streaming| AdmittedRequest::Streaming(streaming, deadline))
                }
            }
        }
    }
}

/// Returns the path of a request without its query.
fn path(fields: &Fields) -> &[u8] {
    let target = fields.path();
    target.split(|byte| *byte == b'?').next().unwrap_or(target)
}

fn deadline(
    request: RequestKind,
    since: Instant,
    now: Instant,
) -> Result<Option<Instant>, (StatusCode, Status)> {
    let RequestKind::Call { timeout: Some(timeout), .. } = request else { return Ok(None) };
    // If the clock cannot represent the deadline, because it is too far in the future, the call has no
    // deadline.
    let deadline = since.checked_add(timeout);
    if deadline.is_some_and(|deadline| deadline <= now) {
        return Err((StatusCode::OK, DEADLINE));
    }
    Ok(deadline)
}

/// Values of the header fields that are needed for every call. If a field is repeated, its first value
/// counts.
#[derive(Default)]
struct CallFields<'a> {
    content_type: Option<&'a [u8]>,
    timeout: Option<&'a [u8]>,
    encoding: Option<&'a [u8]>,
    has_leader: Option<&'a [u8]>,
}

impl<'a> CallFields<'a> {
    /// Collects the fields in one pass over the headers, which is cheaper than four look-ups.
    fn of(headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> CallFields<'a> {
        let mut known = CallFields::default();
        for (name, value) in headers {
            let field = match name {
                b"content-type" => &mut known.content_type,
                b"grpc-timeout" => &mut known.timeout,
                b"grpc-encoding" => &mut known.encoding,
                b"hasleader" => &mut known.has_leader,
                _ => continue,
            };
            field.get_or_insert(value);
        }
        known
    }
}

fn examine(
    around: &ConnectionContext,
    service: &dyn Service,
    fields: &Fields,
) -> Result<RequestKind, (StatusCode, Status)> {
    let known = CallFields::of(fields.regular());
    if is_page(&around.origin, known.content_type) {
        return Ok(RequestKind::Page);
    }
    check_content_type(known.content_type)?;
    if fields.method() != b"POST" {
        let method = String::from_utf8_lossy(fields.method());
        let text = format!("Received a HEADERS frame with :method \"{method}\" which should be POST");
        return Err((StatusCode::METHOD_NOT_ALLOWED, Status::with(Code::Internal, text)));
    }
    let timeout = match known.timeout {
        None => None,
        Some(value) => Some(parse_timeout(value).map_err(|why| {
            let text = format!("malformed grpc-timeout: {why}");
            (StatusCode::BAD_REQUEST, Status::with(Code::Internal, text))
        })?),
    };
    let path = String::from_utf8_lossy(path(fields));
    let Some(method) = service.method(&path) else {
        return Err((StatusCode::OK, unknown_path(service, &path)));
    };
    let gzip = match known.encoding {
        None | Some(b"identity" | b"") => false,
        Some(b"gzip") => true,
        Some(other) => {
            let name = String::from_utf8_lossy(other);
            let text = format!("grpc: Decompressor is not installed for grpc-encoding \"{name}\"");
            return Err((StatusCode::OK, Status::with(Code::Unimplemented, text)));
        }
    };
    let requires_leader = known.has_leader == Some(b"true");
    Ok(RequestKind::Call { method: method.id, kind: method.kind, timeout, gzip, requires_leader })
}

/// Returns true for an HTTP/2 request that etcd answers like an HTTP/1 request. Only connections with TLS
/// have such requests: without TLS, etcd passes every HTTP/2 connection to gRPC.
fn is_page(from: &Origin, content_type: Option<&[u8]>) -> bool {
    from.is_tls
        && match from.serves {
            Protocols::Grpc => false,
            Protocols::Pages => true,
            Protocols::All => !is_grpc(content_type.unwrap_or_default()),
        }
}

/// Returns true if etcd would pass a request with this content type to gRPC, on a connection that also
/// carries other HTTP requests. A gRPC-Web call is not passed to gRPC: it is an ordinary HTTP request whose
/// body contains the frames and trailers of gRPC (COMPAT-185).
fn is_grpc(content_type: &[u8]) -> bool {
    content_type.windows(GRPC_TYPE.len()).any(|part| part == GRPC_TYPE)
        && !content_type.starts_with(GRPC_WEB_TYPE)
}

const GRPC_WEB_TYPE: &[u8] = b"application/grpc-web";
const GRPC_TYPE: &[u8] = b"application/grpc";

fn check_content_type(value: Option<&[u8]>) -> Result<(), (StatusCode, Status)> {
    let value = value.unwrap_or_default();
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

fn unknown_path(services: &dyn Service, path: &str) -> Status {
    let text = match path.strip_prefix('/').unwrap_or(path).rsplit_once('/') {
        None => format!("malformed method name: \"{path}\""),
        Some((service, method)) if services.has_service(service) => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
    };
    Status::with(Code::Unimplemented, text)
}

/// Error for a malformed `grpc-timeout`, displayed with grpc-go's message.
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

/// Parses `grpc-timeout`: up to 8 digits and a unit.
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
        let fields: [(&[u8], &[u8]); 4] = [
            (b"hasleader", b"true"),
            (b"te", b"trailers"),
            (b"grpc-timeout", b"1S"),
            (b"hasleader", b"false"),
        ];
        let known = CallFields::of(fields.into_iter());
        assert_eq!((known.has_leader, known.timeout), (Some(&b"true"[..]), Some(&b"1S"[..])));
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
