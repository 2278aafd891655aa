use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue};

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
    pub metadata: HeaderMap,
    /// True if the client insists on a member that knows a leader (metadata `hasleader: true`).
    pub requires_leader: bool,
    /// The client's version of the API (metadata `client-api-version`), as it came.
    pub client_api_version: Option<HeaderValue>,
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
            metadata: HeaderMap::new(),
            requires_leader: false,
            client_api_version: None,
        }
    }

    /// The first value under this (lower case) key, if it is text.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).and_then(|value| value.to_str().ok())
    }
}
