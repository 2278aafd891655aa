//! Builds the console's responses. Each has security headers that restrict what browsers may do with it.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::refusal::Refusal;
use crate::response_body::{AnswerBody, MemberBody};

/// Content security policy: browsers load nothing from other origins and run no inline code, and no other
/// page can show a page of the console in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every response.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

fn secure(headers: &mut HeaderMap) {
    for (name, value) in &HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Returns a response with this content type and body.
pub(crate) fn whole(
    status: StatusCode,
    content_type: &'static str,
    cache: &'static str,
    body: impl Into<Bytes>,
) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::of(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    secure(headers);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}

/// Returns a JSON response, which browsers do not cache.
pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Response<AnswerBody> {
    whole(status, "application/json", "no-store", value.to_string())
}

/// Returns a response that forwards the body of a member's response, with this status and content type.
pub(crate) fn forwarded(
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: MemberBody,
) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Stream(Box::new(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    secure(headers);
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl From<Refusal> for Response<AnswerBody> {
    fn from(refusal: Refusal) -> Response<AnswerBody> {
        let code = refusal.code() as i32;
        json(refusal.status, &json!({ "code": code, "message": refusal.text }))
    }
}
