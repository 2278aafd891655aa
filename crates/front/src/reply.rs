use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::LazyLock;

use api::{Code, Status};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GZIP: HeaderValue = HeaderValue::from_static("gzip");

// A constant would be made, and dropped, whole at each use.
static NUMBERS: [HeaderValue; Code::ALL.len()] = [
    HeaderValue::from_static("0"),
    HeaderValue::from_static("1"),
    HeaderValue::from_static("2"),
    HeaderValue::from_static("3"),
    HeaderValue::from_static("4"),
    HeaderValue::from_static("5"),
    HeaderValue::from_static("6"),
    HeaderValue::from_static("7"),
    HeaderValue::from_static("8"),
    HeaderValue::from_static("9"),
    HeaderValue::from_static("10"),
    HeaderValue::from_static("11"),
    HeaderValue::from_static("12"),
    HeaderValue::from_static("13"),
    HeaderValue::from_static("14"),
    HeaderValue::from_static("15"),
    HeaderValue::from_static("16"),
];

/// Entries that a prepared map has places for.
const PLACES: usize = 12;

/// The headers of an answer that carries messages, and the trailers of one that went well. To copy such a map costs half
/// of what filling a new one does. They have a few places more than they need: the HTTP/2 library asks each for five headers
/// that must not be there, which costs more in a crowded map.
static OPENING: LazyLock<HeaderMap> = LazyLock::new(|| {
    let mut headers = HeaderMap::with_capacity(PLACES);
    headers.insert(CONTENT_TYPE, GRPC);
    headers
});
static DONE: LazyLock<HeaderMap> = LazyLock::new(|| {
    let mut trailers = HeaderMap::with_capacity(PLACES);
    put_status(&mut trailers, &Ok(()));
    trailers
});

/// The head of an answer that carries messages.
pub(crate) fn opening(gzip: bool) -> Response<()> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.clone_from(&OPENING);
    if gzip {
        headers.insert(GRPC_ENCODING, GZIP);
    }
    response
}

/// The trailers that end an answer: `grpc-status`, and `grpc-message` for an error.
pub fn trailers(result: &Result<(), Status>) -> HeaderMap {
    if result.is_ok() {
        return DONE.clone();
    }
    let mut trailers = HeaderMap::with_capacity(2);
    put_status(&mut trailers, result);
    trailers
}

/// An answer that is nothing but a status.
pub(crate) fn refusal(http: StatusCode, status: &Status) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = http;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    if status.code == Code::Unimplemented {
        headers.insert(GRPC_ACCEPT_ENCODING, GZIP);
    }
    put_status(headers, &Err(status.clone()));
    response
}

fn put_status(headers: &mut HeaderMap, result: &Result<(), Status>) {
    match result {
        Ok(()) => {
            headers.insert(GRPC_STATUS, NUMBERS[0].clone());
        }
        Err(status) => {
            headers.insert(GRPC_STATUS, NUMBERS[status.code as usize].clone());
            // The encoded text is visible ASCII and spaces, which a header value always takes.
            if let Ok(message) = HeaderValue::from_str(&percent_encoded(&status.message)) {
                headers.insert(GRPC_MESSAGE, message);
            }
        }
    }
}

/// The `grpc-message` encoding: everything but visible ASCII, space included and `%` excluded, becomes `%XX`.
fn percent_encoded(text: &str) -> Cow<'_, str> {
    let plain = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'%';
    if text.as_bytes().iter().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for byte in text.as_bytes() {
        if plain(byte) {
            encoded.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    Cow::Owned(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encoded_as_grpc_says() {
        assert_eq!(percent_encoded("etcdserver: key not found"), "etcdserver: key not found");
        assert_eq!(percent_encoded("100% ü\n"), "100%25 %C3%BC%0A");
    }

    #[test]
    fn every_code_has_its_number() {
        for code in Code::ALL {
            assert_eq!(NUMBERS[code as usize].as_bytes(), (code as usize).to_string().as_bytes());
        }
    }
}
