use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::Metadata;

/// Facts about a call before its first message.
#[derive(Debug)]
pub struct Head {
    /// The id that [`crate::Service::method`] gave.
    pub method: u16,
    /// Address of the client.
    pub peer: SocketAddr,
    /// As in [`crate::Origin::common_name`].
    pub common_name: Option<Arc<str>>,
    /// Time when the call's head arrived, as far as the turns of its connection tell.
    pub arrived: Instant,
    /// Time when the client stops waiting; the front drops the call then.
    pub deadline: Option<Instant>,
    /// All metadata, without pseudo headers.
    pub metadata: Metadata,
    /// True if the client insists on a member that knows a leader (metadata `hasleader: true`).
    pub requires_leader: bool,
}

/// A value that is visible ASCII, spaces and tabs.
fn text(value: &[u8]) -> Option<&str> {
    let is_text = value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    std::str::from_utf8(value).ok().filter(|_| is_text)
}

impl Head {
    /// Returns a head for calls that do not come from a gRPC connection, such as the JSON gateway's.
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

    /// The first value under this (lower case) key, if it is text.
    pub fn get(&self, key: &str) -> Option<&str> {
        text(self.metadata.get(key)?)
    }

    /// The client's version of the API (metadata `client-api-version`), if it says one: `Some(None)` is one that is no text.
    pub fn client_api_version(&self) -> Option<Option<&str>> {
        self.metadata.get("client-api-version").map(text)
    }
}
