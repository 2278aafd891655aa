//! Builds HTTP responses to other members, in the form in which Go's `net/http` writes them.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};

/// Content type of JSON.
pub(super) const JSON: &str = "application/json";
/// Content type of plain text.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

/// Builds a response to another member.
pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Builds an error response as Go's `http.Error` writes it.
pub(crate) fn refused(status: StatusCode, text: &str) -> Response<Bytes> {
    answer(status, PLAIN, format!("{text}\n"))
}
