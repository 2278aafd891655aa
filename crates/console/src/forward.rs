//! `/api/endpoint/<id>/<path>`: forwards a request to a member, and the response back; neither is ever held
//! in memory as a whole.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming, SizeHint};
use tokio::time::timeout;

use crate::answer::{self, AnswerBody, Refused};
use crate::body::{BodyError, Pieces};
use crate::connection::Phase;
use crate::forwarded::Permit;
use crate::limits::Limits;
use crate::service::Service;
use crate::upstream::{Link, OutBody, Target, UpstreamError};

/// Headers of a browser's request that are forwarded to members.
const PASSED_ON: [http::HeaderName; 3] = [AUTHORIZATION, CONTENT_TYPE, ACCEPT];

/// Pages of a member that may be requested.
const PAGES: [&str; 7] =
    ["metrics", "health", "livez", "readyz", "version", "debug/mainstay", "debug/requests"];
/// Prefixes of pages that may be requested with the name of a check.
const CHECKS: [&str; 2] = ["livez/", "readyz/"];

/// Returns the path at the member, with its query if the page has one.
///
/// # Errors
/// The path is not one that is forwarded, or not with this method.
fn path_at_member(method: &Method, rest: &str, query: Option<&str>) -> Result<String, Refused> {
    let is_call = rest.strip_prefix("v3/").is_some_and(|call| {
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        call.split('/').all(is_word)
    });
    let is_check = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let is_page =
        PAGES.contains(&rest) || CHECKS.iter().any(|prefix| rest.strip_prefix(prefix).is_some_and(is_check));
    if !is_call && !is_page {
        return Err(Refused::new(StatusCode::NOT_FOUND, format!("{rest} is not passed on to members")));
    }
    if *method != if is_call { Method::POST } else { Method::GET } {
        return Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, "calls use POST, pages use GET"));
    }
    let query = query.filter(|_| is_page).map(|query| format!("?{query}")).unwrap_or_default();
    Ok(format!("/{rest}{query}"))
}

/// Forwards a request, and returns its response as soon as it begins.
pub(crate) async fn forward(
    service: &Rc<Service>,
    target: Rc<Target>,
    rest: &str,
    request: Request<Incoming>,
    phase: Rc<Phase>,
) -> Result<Response<AnswerBody>, Refused> {
    let path = path_at_member(request.method(), rest, request.uri().query())?;
    let permit = service.permit(phase.address)?;
    let limits = &service.dialer.limits;
    let too_large = || {
        let text = format!("the request is larger than {} bytes", limits.body_bytes_max);
        Refused::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > limits.body_bytes_max {
        return Err(too_large());
    }
    let sent = Rc::new(Sent::default());
    let mut asked =
        Request::new(OutBody::Forwarded(Box::new(RequestBody::new(body, limits, phase, Rc::clone(&sent)))));
    *asked.method_mut() = head.method;
    *asked.uri_mut() =
        path.parse().map_err(|_| Refused::new(StatusCode::BAD_REQUEST, "the query is malformed"))?;
    for name in PASSED_ON {
        if let Some(value) = head.headers.get(&name) {
            asked.headers_mut().insert(name, value.clone());
        }
    }
    asked.headers_mut().insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("mainstay-console/", env!("CARGO_PKG_VERSION"))),
    );
    let is_page = *asked.method() == Method::GET;
    let sending = service.dialer.send(&target, asked);
    let answered = if is_page {
        let late = || {
            UpstreamError::Late(format!(
                "{}: no answer within {}",
                target.url,
                cli::go::duration(limits.page_timeout)
            ))
        };
        timeout(limits.page_timeout, sending).await.unwrap_or_else(|_| Err(late()))
    } else {
        sending.await
    };
    let (link, response) = match answered {
        Ok(answered) => answered,
        Err(_) if sent.is_too_large.get() => return Err(too_large()),
        Err(UpstreamError::Late(text)) => return Err(Refused::new(StatusCode::GATEWAY_TIMEOUT, text)),
        Err(UpstreamError::Unreachable(text)) => return Err(Refused::new(StatusCode::BAD_GATEWAY, text)),
        Err(UpstreamError::Broken(text)) => {
            let text =
                format!("the member gave no answer; it may or may not have carried out the request: {text}");
            return Err(Refused::new(StatusCode::BAD_GATEWAY, text));
        }
    };
    let (head, incoming) = response.into_parts();
    let content_type = head.headers.get(CONTENT_TYPE).cloned();
    let body = Forwarded { incoming, link: Some(link), target, sent, limits: *limits, _permit: permit };
    Ok(answer::forwarded(head.status, content_type, body))
}

/// Progress of a request's body on its way to the member.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    is_whole: Cell<bool>,
    is_too_large: Cell<bool>,
}

/// The body of a browser's request.
pub(crate) struct RequestBody {
    incoming: Incoming,
    bytes_left: u64,
    phase: Rc<Phase>,
    sent: Rc<Sent>,
}

impl RequestBody {
    fn new(incoming: Incoming, limits: &Limits, phase: Rc<Phase>, sent: Rc<Sent>) -> RequestBody {
        let mut body = RequestBody { incoming, bytes_left: limits.body_bytes_max, phase, sent };
        body.note_end();
        body
    }

    fn note_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.sent.is_whole.set(true);
            self.phase.heard_out();
        }
    }
}

impl Pieces for RequestBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx)).transpose()?;
            self.note_end();
            let Some(frame) = frame else {
                self.sent.is_whole.set(true);
                self.phase.heard_out();
                return Poll::Ready(None);
            };
            // Trailers have no meaning for a member.
            let Ok(data) = frame.into_data() else { continue };
            let Some(left) = self.bytes_left.checked_sub(data.len() as u64) else {
                self.sent.is_too_large.set(true);
                return Poll::Ready(Some(Err("the request is too large".into())));
            };
            self.bytes_left = left;
            return Poll::Ready(Some(Ok(data)));
        }
    }

    fn is_ended(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// The body of a member's response. The connection to the member lasts as long as this body, and is kept for
/// another request if the response was read to its end.
pub(crate) struct Forwarded {
    incoming: Incoming,
    link: Option<Link>,
    target: Rc<Target>,
    sent: Rc<Sent>,
    limits: Limits,
    _permit: Permit,
}

impl Forwarded {
    fn give_back(&mut self) {
        if let Some(link) = self.link.take()
            && self.sent.is_whole.get()
        {
            self.target.keep(link, &self.limits);
        }
    }
}

impl Pieces for Forwarded {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.incoming).poll_frame(cx)).transpose()? else {
                self.give_back();
                return Poll::Ready(None);
            };
            let Ok(data) = frame.into_data() else { continue };
            return Poll::Ready(Some(Ok(data)));
        }
    }

    fn is_ended(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        // hyper does not poll a body with a known length for its end.
        if self.incoming.is_end_stream() {
            self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_and_pages_are_passed_on() {
        let path = |method: &Method, rest: &str, query: Option<&str>| {
            path_at_member(method, rest, query).map_err(|refused| refused.status.as_u16())
        };
        for (rest, query, at_member) in [
            ("v3/kv/range", None, "/v3/kv/range"),
            ("v3/kv/range", Some("key=x"), "/v3/kv/range"),
            ("v3/maintenance/transfer-leadership", None, "/v3/maintenance/transfer-leadership"),
        ] {
            assert_eq!(path(&Method::POST, rest, query), Ok(at_member.to_owned()));
            assert_eq!(path(&Method::GET, rest, query), Err(405), "{rest}");
        }
        for (rest, query, at_member) in [
            ("metrics", None, "/metrics"),
            ("health", Some("serializable=true"), "/health?serializable=true"),
            ("readyz", Some("verbose"), "/readyz?verbose"),
            ("readyz/non_learner", None, "/readyz/non_learner"),
            ("debug/mainstay", None, "/debug/mainstay"),
        ] {
            assert_eq!(path(&Method::GET, rest, query), Ok(at_member.to_owned()));
            assert_eq!(path(&Method::POST, rest, query), Err(405), "{rest}");
        }
        for rest in [
            "",
            "v3",
            "v3/",
            "v3//x",
            "v3/../metrics",
            "v3/%2e%2e/metrics",
            "v3/kv/range/",
            "v2/keys",
            "/metrics",
            "metrics/",
            "metrics/x",
            "debug",
            "debug/pprof/profile",
            "debug/vars",
            "readyz/",
            "readyz/../metrics",
            "members",
            "v3/kv/range\u{e9}",
        ] {
            assert_eq!(path(&Method::POST, rest, None), Err(404), "{rest}");
            assert_eq!(path(&Method::GET, rest, None), Err(404), "{rest}");
        }
    }
}
