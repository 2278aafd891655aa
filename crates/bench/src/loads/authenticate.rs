//! `authenticate`: names and passwords, again and again; what a client without token reuse does to a server.

use api::Rpc;
use loadgen::wire::Message;

use super::range::Same;

/// Logs in as that user with each operation.
pub fn authenticate(name: &str, password: &str) -> Same {
    let mut message = Vec::new();
    Message(&mut message).bytes(1, name.as_bytes()).bytes(2, password.as_bytes());
    Same { method: Rpc::Authenticate, message }
}
