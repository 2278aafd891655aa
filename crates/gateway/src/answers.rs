//! Creates the responses of etcd's JSON gateway: [`status`] maps a gRPC code to an HTTP status, [`error`]
//! returns the body of a response that reports an error, [`result_line`] and [`error_line`] return the lines
//! of a streamed response.

use api::descriptor::Message;
use api::{Code, Status};

use crate::encode::{self, Malformed, Texts};

/// Returns the HTTP status that the gateway sends for a gRPC code.
pub fn status(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::Canceled => 499,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::DeadlineExceeded => 504,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::PermissionDenied => 403,
        Code::Unauthenticated => 401,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
    }
}

/// Returns the response body of a call that ended with this error.
pub fn error(status: &Status) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + status.message.len());
    put(&mut out, status, Texts::Plain);
    out
}

/// Returns the line that ends a streamed response with an error.
pub fn error_line(status: &Status) -> Vec<u8> {
    let mut out = b"{\"error\":".to_vec();
    put(&mut out, status, Texts::ForHtml);
    out.extend_from_slice(b"}\n");
    out
}

/// Returns the line for one message of a streamed response.
///
/// # Errors
///
/// Returns an error if `bytes` are not a valid encoding of the message.
pub fn result_line(message: &'static Message, bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::with_capacity(64 + bytes.len() * 2);
    out.extend_from_slice(b"{\"result\":");
    encode::encode_as(message, bytes, Texts::ForHtml, &mut out)?;
    out.extend_from_slice(b"}\n");
    Ok(out)
}

fn put(out: &mut Vec<u8>, status: &Status, texts: Texts) {
    out.push(b'{');
    if status.code != Code::Ok {
        out.extend_from_slice(b"\"code\":");
        out.extend_from_slice((status.code as u8).to_string().as_bytes());
    }
    if !status.message.is_empty() {
        if status.code != Code::Ok {
            out.push(b',');
        }
        out.extend_from_slice(b"\"message\":");
        encode::text(&status.message, texts, out);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_code_and_message() {
        let status = Status::new(Code::InvalidArgument, "a \"<b>\"\n");
        assert_eq!(error(&status), br#"{"code":3,"message":"a \"<b>\"\n"}"#);
        assert_eq!(
            error_line(&status),
            b"{\"error\":{\"code\":3,\"message\":\"a \\\"\\u003cb\\u003e\\\"\\n\"}}\n"
        );
        assert_eq!(error(&Status::new(Code::Unknown, "")), br#"{"code":2}"#);
    }
}
