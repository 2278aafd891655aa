//! Answers to other members over HTTP, in the forms that Go's `net/http` gives them.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};

/// The content type of plain text.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// An answer to another member.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An error as Go's `http.Error` writes it.
pub fn refused(status: StatusCode, text: &str) -> Response<Bytes> {
    answer(status, PLAIN, format!("{text}\n"))
}
