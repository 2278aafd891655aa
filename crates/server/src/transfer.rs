//! A member's whole state on its way to another.

use std::io;
use std::sync::Arc;

use api::raftpb;
use bytes::Bytes;
use http::{Response, StatusCode};
use machine::image::Head;
use machine::{Machine, Rules};

use crate::core::Pinned;
use crate::shared::Shared;

/// What a sender asks for before it sends.
pub const PATH: &str = "/mainstay/snapshot";

/// A state that has arrived whole.
pub struct Received {
    /// The message it came with.
    pub message: raftpb::Message,
    /// The state.
    pub machine: Box<Machine>,
    /// What the receiver had applied when this was built on its own state; `None` if it was not.
    pub base_applied: Option<u64>,
}

/// The state of a moment, to be sent.
pub struct Source {
    head: Head,
    view: Pinned,
}

impl Source {
    /// The state of this view.
    pub fn new(head: Head, view: Pinned, _shared: &Arc<Shared>) -> Source {
        Source { head, view }
    }
}

impl peer::SnapshotSource for Source {
    fn open(&mut self, _receiver: Option<Bytes>) -> Result<peer::Pieces<'_>, String> {
        let _ = (&self.head, &self.view);
        Err("not yet".to_owned())
    }
}

/// What this member holds already.
pub fn holds(_shared: &Shared) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// Takes states that other members send.
pub struct Receiver {
    _shared: Arc<Shared>,
    _rules: Rules,
}

impl Receiver {
    /// For this member.
    pub fn new(shared: Arc<Shared>, rules: Rules) -> Receiver {
        Receiver { _shared: shared, _rules: rules }
    }

    /// Takes one.
    pub fn receive(
        &self,
        _message: raftpb::Message,
        _body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), String> {
        Err("not yet".to_owned())
    }
}
