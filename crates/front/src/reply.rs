//! Defines the header lists of answers ([`Templates`]), and encodes `grpc-message`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::LazyLock;

use api::{Code, Status};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, StatusCode};
use http2::Template;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Header lists that are sent often, prepared for encoding.
pub(crate) struct Templates {
    /// Head of an answer with messages.
    pub(crate) opening: Template,
    /// Head of an answer with compressed messages.
    pub(crate) opening_packed: Template,
    /// Trailers, one list for each status code, without `grpc-message`.
    trailers: Vec<Template>,
    /// Heads of answers that consist of a status only, one for each status code, without `grpc-message`.
    refusals: Vec<Template>,
    /// Empty list, for answers with only variable fields.
    pub(crate) nothing: Template,
}

/// Header lists of answers, shared by all connections. The encoder of each connection tracks which of these
/// lists it has sent.
pub(crate) static TEMPLATES: LazyLock<Templates> = LazyLock::new(|| {
    const OPENING: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];
    let template = |fields: &[(&str, &str)]| {
        Template::new(fields.iter().copied()).unwrap_or_else(|error| unreachable!("{error}"))
    };
    let numbers: Vec<String> = Code::ALL.iter().map(|code| (*code as usize).to_string()).collect();
    Templates {
        opening: template(&OPENING),
        opening_packed: template(&[&OPENING[..], &[("grpc-encoding", "gzip")]].concat()),
        trailers: numbers.iter().map(|number| template(&[("grpc-status", number)])).collect(),
        refusals: (numbers.iter().map(|number| [&OPENING[..], &[("grpc-status", number)]].concat()))
            .map(|fields| template(&fields))
            .collect(),
        nothing: template(&[]),
    }
});

/// Name and value of a header field.
pub(crate) type Field<'a> = (&'a [u8], &'a [u8]);

impl Templates {
    /// Returns the head of an answer with messages.
    pub(crate) fn opening(&self, packed: bool) -> &Template {
        if packed { &self.opening_packed } else { &self.opening }
    }

    /// Returns the trailers of a successful answer.
    pub(crate) fn good_end(&self) -> &Template {
        &self.trailers[Code::Ok as usize]
    }

    /// Calls `send` with the trailers that end an answer with this result: a template, and additional fields.
    pub(crate) fn with_trailers<T>(
        &self,
        result: &Result<(), Status>,
        send: impl FnOnce(&Template, &[Field<'_>]) -> T,
    ) -> T {
        match result {
            Ok(()) => send(self.good_end(), &[]),
            Err(status) => {
                let message = field_value(&status.message);
                send(&self.trailers[status.code as usize], &[(b"grpc-message", message.as_bytes())])
            }
        }
    }

    /// Calls `send` with the head of an answer that consists of a status only: a template, and additional
    /// fields.
    pub(crate) fn with_refusal<T>(
        &self,
        http: StatusCode,
        status: &Status,
        send: impl FnOnce(&Template, &[Field<'_>]) -> T,
    ) -> T {
        let message = field_value(&status.message);
        let message: Field<'_> = (b"grpc-message", message.as_bytes());
        if http != StatusCode::OK {
            let number = (status.code as usize).to_string();
            let content_type: Field<'_> = (b"content-type", b"application/grpc");
            let status: Field<'_> = (b"grpc-status", number.as_bytes());
            return send(
                &self.nothing,
                &[(b":status", http.as_str().as_bytes()), content_type, status, message],
            );
        }
        let template = &self.refusals[status.code as usize];
        if status.code == Code::Unimplemented {
            send(template, &[message, (b"grpc-accept-encoding", b"gzip")])
        } else {
            send(template, &[message])
        }
    }
}

/// Returns the trailers that end a gRPC answer, for callers that do not send them over HTTP/2: `grpc-status`,
/// and `grpc-message` for an error.
pub fn trailers(result: &Result<(), Status>) -> HeaderMap {
    let code = result.as_ref().err().map_or(Code::Ok, |status| status.code);
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
    if let Err(status) = result
        // This never fails, because the encoded message consists of visible ASCII and spaces.
        && let Ok(message) = HeaderValue::from_str(&percent_encoded(&status.message))
    {
        trailers.insert(GRPC_MESSAGE, message);
    }
    trailers
}

/// Fails with the same message as grpc-go if a message is too long to be sent.
pub(crate) fn check_len(len: usize, bytes_max: usize) -> Result<(), Status> {
    if len > bytes_max {
        let text = format!("grpc: trying to send message larger than max ({len} vs. {bytes_max})");
        return Err(Status::with(Code::ResourceExhausted, text));
    }
    Ok(())
}

/// Encodes a `grpc-message` for HTTP/2. Leading and trailing spaces are also encoded, because an HTTP/2 field
/// value cannot begin or end with a space.
fn field_value(text: &str) -> Cow<'_, str> {
    let encoded = percent_encoded(text);
    if !encoded.starts_with(' ') && !encoded.ends_with(' ') {
        return encoded;
    }
    let inner = encoded.trim_matches(' ');
    let leading = encoded.len() - encoded.trim_start_matches(' ').len();
    let trailing = encoded.len() - leading - inner.len();
    Cow::Owned(["%20".repeat(leading), inner.to_owned(), "%20".repeat(trailing)].concat())
}

/// Encodes a `grpc-message`: each byte that is not a space or visible ASCII, and each `%`, becomes `%XX`.
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
            // The result is ignored, because writing to a string cannot fail.
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
    fn spaces_at_an_end_are_encoded() {
        assert_eq!(field_value("  two words \n "), "%20%20two words %0A%20");
        assert_eq!(field_value("  "), "%20%20");
        assert_eq!((field_value(""), field_value("100%")), ("".into(), "100%25".into()));
    }

    #[test]
    fn every_code_has_its_number() {
        for (place, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(place, code as usize);
            let result = if code == Code::Ok { Ok(()) } else { Err(Status::new(code, "text")) };
            assert_eq!(trailers(&result)["grpc-status"], (code as usize).to_string());
            let shown = TEMPLATES.with_trailers(&result, |template, _| format!("{template:?}"));
            assert_eq!(shown, format!("{{\"grpc-status\": \"{place}\"}}"));
        }
    }

    #[test]
    fn a_message_too_long_is_refused_with_the_words_of_grpc() {
        assert_eq!(check_len(10, 10), Ok(()));
        let text = "grpc: trying to send message larger than max (11 vs. 10)";
        assert_eq!(check_len(11, 10), Err(Status::new(Code::ResourceExhausted, text)));
    }
}
