use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::Metadata;

/// Data about a call that is known before its first message: method, client, times and metadata.
#[derive(Debug)]
pub struct Head {
    /// Method id from [`crate::Service::method`].
    pub method: u16,
    /// Address of the client.
    pub peer: SocketAddr,
    /// User name from the client's certificate, see [`crate::Origin::common_name`].
    pub common_name: Option<Arc<str>>,
    /// Time at which the call's head arrived: the beginning of the connection's turn in which it was read.
    pub arrived: Instant,
    /// Time at which the client stops waiting, and at which the front ends the call; `None` if the client has
    /// set no deadline.
    pub deadline: Option<Instant>,
    /// All metadata, without pseudo headers.
    pub metadata: Metadata,
    /// True if the client requires a member that has a leader (metadata `hasleader: true`).
    pub requires_leader: bool,
}

/// Returns the value as a string if it consists of visible ASCII, spaces and tabs.
fn text(value: &[u8]) -> Option<&str> {
    let is_text = value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    std::str::from_utf8(value).ok().filter(|_| is_text)
}

impl Head {
    /// Creates a head for a call that does not come over gRPC, such as a call of the JSON gateway.
    pub fn new(method: u16, peer: SocketAddr, arrived: Instant) -> Head {
        Head {
            method,
            peer,
            common_name: None,
            arrived,
            deadline: None,
            metadata: Metadata::default(),
            requires_leader: false,
        }
    }

    /// Returns the first value of a metadata key if it consists of visible ASCII, spaces and tabs. The key
    /// must be in lower case.
    pub fn get(&self, key: &str) -> Option<&str> {
        text(self.metadata.get(key)?)
    }

    /// Returns the client's API version (metadata `client-api-version`): `None` if the client sent none,
    /// `Some(None)` if it is not visible ASCII.
    pub fn client_api_version(&self) -> Option<Option<&str>> {
        self.metadata.get("client-api-version").map(text)
    }
}
