//! Defines the status of a call, and its text in the reports of etcd's tool.

/// Status with which a call ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// gRPC status code; 0 is success.
    pub code: u32,
    /// Message from the server.
    pub message: String,
}

impl Status {
    /// Creates the status of a call to a server that cannot be reached.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: 14, message: message.into() }
    }

    /// Returns the text of the status as etcd's tool prints it in its error distribution.
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
