//! Forwards requests to members, under `/api/endpoint/<id>/<path>`, and their responses to the browser. No
//! request or response is ever in memory as a whole.

use std::rc::Rc;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

use crate::answer;
use crate::connection_state::ConnectionState;
use crate::permits::RequestPermits;
use crate::refusal::Refusal;
use crate::request_body::{BodyProgress, RequestBody, UpstreamBody};
use crate::response_body::{AnswerBody, MemberBody};
use crate::upstream::{Dialer, Target, UpstreamError};

/// Headers of a browser's request that are forwarded to members; all others are dropped.
const FORWARDED_HEADERS: [http::HeaderName; 3] = [AUTHORIZATION, CONTENT_TYPE, ACCEPT];

/// Pages of a member to which requests are forwarded.
const PAGES: [&str; 7] =
    ["metrics", "health", "livez", "readyz", "version", "debug/mainstay", "debug/requests"];
/// Prefixes of pages to which the name of a single health check may be added.
const CHECKS: [&str; 2] = ["livez/", "readyz/"];

/// Returns the path to request from the member, with the query if it is the path of a page.
///
/// # Errors
/// Returns a refusal if requests to this path, or with this method to this path, are not forwarded.
fn path_at_member(method: &Method, rest: &str, query: Option<&str>) -> Result<String, Refusal> {
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
        return Err(Refusal::new(StatusCode::NOT_FOUND, format!("{rest} is not passed on to members")));
    }
    if *method != if is_call { Method::POST } else { Method::GET } {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "calls use POST, pages use GET"));
    }
    let query = query.filter(|_| is_page).map(|query| format!("?{query}")).unwrap_or_default();
    Ok(format!("/{rest}{query}"))
}

/// Forwards a request to a member, and returns the member's response as soon as it begins.
pub(crate) async fn forward(
    dialer: &Dialer,
    permits: &Rc<RequestPermits>,
    target: Rc<Target>,
    rest: &str,
    request: Request<Incoming>,
    state: Rc<ConnectionState>,
) -> Result<Response<AnswerBody>, Refusal> {
    let path = path_at_member(request.method(), rest, request.uri().query())?;
    let permit = permits.permit(state.address)?;
    let limits = &dialer.limits;
    let too_large = || {
        let text = format!("the request is larger than {} bytes", limits.body_bytes_max);
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > limits.body_bytes_max {
        return Err(too_large());
    }
    let sent = Rc::new(BodyProgress::default());
    let mut outgoing =
        Request::new(UpstreamBody::Stream(Box::new(RequestBody::new(body, limits, state, Rc::clone(&sent)))));
    *outgoing.method_mut() = head.method;
    *outgoing.uri_mut() =
        path.parse().map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the query is malformed"))?;
    for name in FORWARDED_HEADERS {
        if let Some(value) = head.headers.get(&name) {
            outgoing.headers_mut().insert(name, value.clone());
        }
    }
    outgoing.headers_mut().insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("mainstay-console/", env!("CARGO_PKG_VERSION"))),
    );
    let is_page = *outgoing.method() == Method::GET;
    let sending = dialer.send(&target, outgoing);
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
        Err(UpstreamError::Late(text)) => return Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, text)),
        Err(UpstreamError::Unreachable(text)) => return Err(Refusal::new(StatusCode::BAD_GATEWAY, text)),
        Err(UpstreamError::Broken(text)) => {
            let text =
                format!("the member gave no answer; it may or may not have carried out the request: {text}");
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, text));
        }
    };
    let (head, incoming) = response.into_parts();
    let content_type = head.headers.get(CONTENT_TYPE).cloned();
    let body = MemberBody { incoming, link: Some(link), target, sent, limits: *limits, _permit: permit };
    Ok(answer::forwarded(head.status, content_type, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_and_pages_are_passed_on() {
        let path = |method: &Method, rest: &str, query: Option<&str>| {
            path_at_member(method, rest, query).map_err(|refusal| refusal.status.as_u16())
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
