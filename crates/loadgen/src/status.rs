//! How a call ended, and etcd's words for it.

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// gRPC's code, 0 if all is well.
    pub code: u32,
    /// The server's message.
    pub message: String,
}

impl Status {
    /// The server cannot be reached.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: 14, message: message.into() }
    }

    /// The text etcd's tool has in its error distribution.
    pub fn text(&self) -> String {
        const NAMES: [&str; 17] = [
            "OK",
            "Canceled",
            "Unknown",
            "InvalidArgument",
            "DeadlineExceeded",
            "NotFound",
            "AlreadyExists",
            "PermissionDenied",
            "ResourceExhausted",
            "FailedPrecondition",
            "Aborted",
            "OutOfRange",
            "Unimplemented",
            "Internal",
            "Unavailable",
            "DataLoss",
            "Unauthenticated",
        ];
        if self.message.starts_with("etcdserver: ") {
            return self.message.clone();
        }
        match NAMES.get(self.code as usize) {
            Some(name) => format!("rpc error: code = {name} desc = {}", self.message),
            None => format!("rpc error: code = Code({}) desc = {}", self.code, self.message),
        }
    }
}
