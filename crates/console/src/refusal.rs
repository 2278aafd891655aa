//! Defines the console's own error responses: [`Refusal`].

use http::StatusCode;

/// Reason why the console refuses a request. The response has the form of the JSON gateway's errors: a gRPC
/// code and a message.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }

    /// Returns the gRPC code that corresponds to the HTTP status.
    pub(crate) fn code(&self) -> api::Code {
        match self.status {
            StatusCode::NOT_FOUND => api::Code::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => api::Code::Unimplemented,
            StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => api::Code::PermissionDenied,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::SERVICE_UNAVAILABLE => api::Code::ResourceExhausted,
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => api::Code::Unavailable,
            _ => api::Code::InvalidArgument,
        }
    }
}
