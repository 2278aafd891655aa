//! Implements the outgoing links of a member to the other members: messages wait in a queue until the
//! simulated world takes them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::raftpb::Message;
use bytes::Bytes;
use peer::{Figures, RequestError, SnapshotSource, Target};
use replica::peer_links::{PeerLinks, ResponseFuture};
use tokio::sync::oneshot;

use crate::network::Host;

/// Port of the members' peer URLs.
const PORT: u16 = 2380;

/// Returns the peer URL of the member at a place.
pub fn url(place: Host) -> String {
    format!("http://10.0.{}.{}:{PORT}", place / 250, place % 250 + 1)
}

/// Returns the place that a peer URL names.
pub fn place_of(url: &str) -> Option<Host> {
    let address = url.strip_prefix("http://")?.split(':').next()?;
    let mut parts = address.split('.').skip(2);
    let high: Host = parts.next()?.parse().ok()?;
    let low: Host = parts.next()?.parse().ok()?;
    Some(high * 250 + low.checked_sub(1)?)
}

/// Channel that returns the response to the task that sent the request.
pub type Answer = oneshot::Sender<Result<http::Response<Bytes>, RequestError>>;

/// Data that a member sends to another.
pub enum Outgoing {
    /// Raft messages.
    Messages(Vec<Message>),
    /// Snapshot of the member's state, with the raft message that announces it.
    Snapshot(Message, Box<dyn SnapshotSource>),
    /// Request between members outside raft.
    Request {
        /// Member that the request goes to.
        target: Target,
        /// Request to send.
        request: http::Request<Bytes>,
        /// Time within which the response must arrive.
        timeout: Duration,
        /// Channel for the response.
        answer: Answer,
    },
}

#[derive(Default)]
struct State {
    outgoing: Vec<Outgoing>,
    members: BTreeMap<u64, Host>,
    /// Places of senders that this member does not know as members, so that it can still respond to them.
    remotes: BTreeMap<u64, Host>,
    active: BTreeMap<u64, Instant>,
    closed: bool,
}

/// Outgoing links of one process.
#[derive(Default)]
pub struct Links {
    state: Mutex<State>,
}

impl Links {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes everything that waits to be sent.
    pub fn take(&self) -> Vec<Outgoing> {
        std::mem::take(&mut self.state().outgoing)
    }

    /// Returns the place of the process with this id, if this process knows it as a member or has received a
    /// request from it.
    pub fn place_of(&self, id: u64) -> Option<Host> {
        let state = self.state();
        state.members.get(&id).or_else(|| state.remotes.get(&id)).copied()
    }

    /// Records the place from which a request of this sender came. Each request between members contains the
    /// sender's address, so this member can respond even to an unknown sender: a member that joined and
    /// stopped before it received an entry knows no other member after its restart.
    pub fn heard_of(&self, id: u64, place: Host) {
        let mut state = self.state();
        if !state.members.contains_key(&id) {
            state.remotes.insert(id, place);
        }
    }

    /// Returns ids and places of the other members that this member knows.
    pub fn members(&self) -> Vec<(u64, Host)> {
        self.state().members.iter().map(|(id, place)| (*id, *place)).collect()
    }

    /// Returns true if a connection to this member is up.
    pub fn is_active(&self, id: u64) -> bool {
        self.state().active.contains_key(&id)
    }

    /// Records that a connection to a member came up.
    pub fn connected(&self, id: u64, now: Instant) {
        self.state().active.entry(id).or_insert(now);
    }

    /// Records that a connection to a member broke.
    pub fn disconnected(&self, id: u64) {
        self.state().active.remove(&id);
    }
}

impl PeerLinks for Links {
    fn send(&self, messages: Vec<Message>) {
        let mut state = self.state();
        if !state.closed && !messages.is_empty() {
            state.outgoing.push(Outgoing::Messages(messages));
        }
    }

    fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        let mut state = self.state();
        let places =
            members.iter().filter_map(|(id, urls)| Some((*id, urls.iter().find_map(|u| place_of(u))?)));
        state.members = places.collect();
        let State { members, remotes, active, .. } = &mut *state;
        active.retain(|id, _| members.contains_key(id));
        remotes.retain(|id, _| !members.contains_key(id));
    }

    fn send_snapshot(&self, message: Message, source: Box<dyn SnapshotSource>) {
        let mut state = self.state();
        if !state.closed {
            state.outgoing.push(Outgoing::Snapshot(message, source));
        }
    }

    fn active_since(&self, id: u64) -> Option<Instant> {
        self.state().active.get(&id).copied()
    }

    fn release(&self, _id: u64) -> Option<(u32, u32)> {
        None
    }

    fn request(&self, target: Target, request: http::Request<Bytes>, timeout: Duration) -> ResponseFuture {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state();
        if !state.closed {
            state.outgoing.push(Outgoing::Request { target, request, timeout, answer });
        }
        drop(state);
        Box::pin(async move { answered.await.unwrap_or(Err(RequestError::Stopping)) })
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }

    fn close(&self) {
        self.state().closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_places() {
        for place in [0, 1, 249, 250, 999] {
            assert_eq!(place_of(&url(place)), Some(place));
        }
        assert_eq!(place_of("http://localhost:2380"), None);
    }

    #[test]
    fn an_unknown_sender_can_be_answered_until_it_is_a_member_that_leaves() {
        let links = Links::default();
        assert_eq!(links.place_of(7), None);
        links.heard_of(7, 3);
        assert_eq!(links.place_of(7), Some(3));
        // The log adds another member first.
        links.set_members(vec![(8, vec![url(1)])]);
        assert_eq!(links.place_of(7), Some(3));
        assert!(links.members().iter().all(|(id, _)| *id != 7), "nobody connects to it");
        links.set_members(vec![(7, vec![url(4)]), (8, vec![url(1)])]);
        links.heard_of(7, 3);
        assert_eq!(links.place_of(7), Some(4), "a member is where its URLs say");
        links.set_members(vec![(8, vec![url(1)])]);
        assert_eq!(links.place_of(7), None);
    }
}
