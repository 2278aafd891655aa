//! Manages the peers on the peer thread: [`Hub`] owns the state of all peers, carries out the commands and
//! queues the messages that other threads put into the inbox, and starts the tasks that communicate with the
//! peers. `peer_thread` calls the hub. The hub does not serve listeners.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stdx::{First, race};

use api::raftpb::Message;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, Response};
use tokio::sync::{mpsc, oneshot};

use crate::account::Account;
use crate::endpoint::Endpoint;
use crate::error::{PostError, RequestError};
use crate::handler::{SnapshotForm, SnapshotOutcome};
use crate::identity;
use crate::inbox::{Arrivals, Command, Inbox};
use crate::local_member::LocalMember;
use crate::options::{Level, REMOTES_MAX, SNAPSHOT_TIMEOUTS, SNAPSHOTS_RECEIVED_MAX};
use crate::peer::{Kind, Peer, QueueOutcome};
use crate::piece::Piece;
use crate::slots::SnapshotSlots;
use crate::target::Target;
use crate::{pipeline, prober, snapshot_post, stream_reader};

/// The peers of this member, and the state that all connections with them share.
pub(crate) struct Hub {
    pub(crate) local: Rc<LocalMember>,
    pub(crate) inbox: Arc<Inbox>,
    /// Slots for snapshots that are being received.
    pub(crate) receiving: SnapshotSlots,
    /// Bytes of request bodies that are being read from senders that claim to be members.
    pub(crate) members_bodies: Cell<usize>,
    /// Bytes of request bodies that are being read from all other senders.
    pub(crate) strangers_bodies: Cell<usize>,
    peers: RefCell<BTreeMap<u64, Rc<Peer>>>,
    /// Ids of the remotes, which are senders that are not known as members but can be answered. The one that
    /// sent least recently is first.
    remotes: RefCell<VecDeque<u64>>,
}

impl Hub {
    pub(crate) fn new(local: LocalMember, inbox: Arc<Inbox>) -> Hub {
        let receiving = SnapshotSlots::new(SNAPSHOTS_RECEIVED_MAX, local.read_timeout * SNAPSHOT_TIMEOUTS);
        Hub {
            local: Rc::new(local),
            inbox,
            receiving,
            members_bodies: Cell::new(0),
            strangers_bodies: Cell::new(0),
            peers: RefCell::default(),
            remotes: RefCell::default(),
        }
    }

    /// Returns the peer with this id if it is a member; `None` if it is only a remote.
    pub(crate) fn member(&self, id: u64) -> Option<Rc<Peer>> {
        self.peers.borrow().get(&id).filter(|peer| !peer.is_remote).cloned()
    }

    /// Returns the id of the member from which a request claims to come; 0 if the headers do not name a
    /// member, or if they do not match this cluster and version.
    pub(crate) fn known_sender(&self, headers: &http::HeaderMap) -> u64 {
        let from = headers.get(identity::SERVER_FROM).and_then(|id| identity::parse_id(id.to_str().ok()?));
        let known =
            from.filter(|id| self.member(*id).is_some() && self.local.identity.check(headers).is_ok());
        known.unwrap_or(0)
    }

    /// Remembers a sender that is not a known member, with its URLs, so that it can be answered (a remote).
    /// It may be a new member of which this member has not learned yet.
    pub(crate) fn add_remote(&self, id: u64, urls: &[String]) {
        let mut peers = self.peers.borrow_mut();
        let mut remotes = self.remotes.borrow_mut();
        if let Some(at) = remotes.iter().position(|known| *known == id) {
            // The sender is already in the list. Move it to the end, because it has sent most recently.
            remotes.remove(at);
            remotes.push_back(id);
            return;
        }
        if id == 0
            || id == self.local.identity.local_id
            || peers.contains_key(&id)
            || self.local.handler.is_removed(id)
            || !urls.iter().any(|url| Endpoint::dialable(url, self.local.client.dialer.has_tls()).is_ok())
        {
            return;
        }
        if remotes.len() >= REMOTES_MAX
            && let Some(oldest) = remotes.pop_front()
            && let Some(peer) = peers.remove(&oldest)
        {
            peer.close();
            self.inbox.forget_remote(oldest);
        }
        let account = self.inbox.add_remote(id);
        peers.insert(id, Rc::new(Peer::remote(&self.local, account, urls)));
        remotes.push_back(id);
        self.local.log_peer(Level::Info, "added remote peer", id, &urls.join(","));
    }

    /// Carries out the commands that arrived from other threads, and queues the messages for their peers.
    pub(crate) fn take(self: &Rc<Self>, arrivals: Arrivals) {
        for command in arrivals.commands {
            match command {
                Command::Members(members) => self.set_members(members),
                Command::TlsReloaded => self.local.check_sessions(),
                Command::Request { target, request, timeout, answer, permit } => {
                    let hub = Rc::clone(self);
                    tokio::task::spawn_local(async move {
                        let mut answer = answer;
                        let exchange = hub.exchange(&target, request, timeout);
                        if let First::Left(answered) = race(exchange, answer.closed()).await {
                            // An error means that the caller no longer waits for the answer.
                            let _ = answer.send(answered);
                        }
                        drop(permit);
                    });
                }
                Command::Snapshot { message, form, pieces, done } => {
                    tokio::task::spawn_local(post_snapshot(Rc::clone(self), message, form, pieces, done));
                }
            }
        }
        let mut unreachable: BTreeSet<u64> = arrivals.unreachable.into_iter().collect();
        let peers = self.peers.borrow();
        for message in arrivals.messages {
            let to = message.to.unwrap_or(0);
            match peers.get(&to) {
                Some(peer) => match peer.enqueue(message) {
                    QueueOutcome::Queued => {}
                    QueueOutcome::PipelineNeeded => {
                        tokio::task::spawn_local(pipeline::run(Rc::clone(&self.local), Rc::clone(peer)));
                    }
                    QueueOutcome::Dropped => {
                        unreachable.insert(to);
                    }
                },
                // The peer was removed after the message had been counted against its limits. The message is
                // dropped and no longer counted.
                None => {
                    if let Some(account) = self.inbox.account(to) {
                        account.give_back(&message);
                    }
                }
            }
        }
        drop(peers);
        for id in unreachable {
            self.local.report_unreachable(id);
        }
        for id in arrivals.snapshots_refused {
            self.local.handler.snapshot_sent(id, SnapshotOutcome::Failed);
        }
    }

    /// Sets the other members. Closes the connections to members that are no longer in the list, and starts
    /// to dial the new ones.
    pub(crate) fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        let mut peers = self.peers.borrow_mut();
        self.remotes.borrow_mut().retain(|id| !members.iter().any(|member| member.0 == *id));
        let mut left = Vec::new();
        peers.retain(|id, peer| {
            let stays = peer.is_remote || members.iter().any(|member| member.0 == *id);
            if !stays {
                left.push(Rc::clone(peer));
            }
            stays
        });
        for (id, urls) in members {
            match peers.get(&id) {
                Some(peer) if !peer.is_remote => peer.set_urls(&self.local, &urls),
                _ => {
                    let Some(account) = self.inbox.account(id) else { continue };
                    if let Some(remote) = peers.insert(id, self.start_member(account, &urls)) {
                        left.push(remote);
                    }
                    self.local.log_peer(Level::Info, "added remote peer", id, &urls.join(","));
                }
            }
        }
        drop(peers);
        for peer in left {
            peer.close();
            self.local.log_peer(Level::Info, "removed remote peer", peer.id, "");
        }
    }

    /// Creates the state of a member, and starts the tasks that dial both streams and probe the member until
    /// it is closed.
    fn start_member(&self, account: Arc<Account>, urls: &[String]) -> Rc<Peer> {
        let (local, peer) = (&self.local, Rc::new(Peer::member(&self.local, account, urls)));
        for kind in [Kind::Message, Kind::App] {
            let task = tokio::task::spawn_local(stream_reader::run(Rc::clone(local), Rc::clone(&peer), kind));
            peer.own_task(task.abort_handle());
        }
        let task = tokio::task::spawn_local(prober::run(Rc::clone(local), Rc::clone(&peer)));
        peer.own_task(task.abort_handle());
        peer
    }

    async fn exchange(
        &self,
        target: &Target,
        mut request: Request<Bytes>,
        timeout: Duration,
    ) -> Result<Response<Bytes>, RequestError> {
        if let Target::Member(_) = target {
            // Add the headers that identify this member, so that the receiving member recognizes a member of
            // its cluster.
            self.local.identity.stamp(request.headers_mut());
        }
        match target {
            Target::Url(url) => {
                let endpoint = Endpoint::dialable(url, self.local.client.dialer.has_tls())?;
                let answered = self.local.client.exchange(&endpoint, request, timeout).await;
                answered.map_err(|error| RequestError::Failed { to: url.clone(), error })
            }
            Target::Member(id) => {
                // Requests with a client's token are sent only to members: the URLs of a remote are not
                // verified, and another server could steal the token.
                let has_token = request.headers().contains_key(AUTHORIZATION);
                let peer = self.peers.borrow().get(id).filter(|peer| !(peer.is_remote && has_token)).cloned();
                let peer = peer.ok_or(RequestError::UnknownMember(*id))?;
                let endpoint = peer.endpoint()?;
                let answered = self.local.client.exchange(&endpoint, request, timeout).await;
                answered.map_err(|error| {
                    peer.endpoint_failed(&endpoint);
                    let to = format!("member {id:x} at {}", endpoint.authority);
                    RequestError::Failed { to, error }
                })
            }
        }
    }
}

/// Sends one snapshot and reports the result to `done`. If the task is aborted, `done` and the queue of
/// chunks are dropped, and the thread that provides the chunks ends.
async fn post_snapshot(
    hub: Rc<Hub>,
    message: Message,
    form: SnapshotForm,
    pieces: mpsc::Receiver<Piece>,
    done: oneshot::Sender<Result<(), PostError>>,
) {
    let to = message.to.unwrap_or(0);
    let peer = hub.peers.borrow().get(&to).cloned();
    let sent = match peer {
        Some(peer) => snapshot_post::post(&hub.local, &peer, message, form, pieces).await,
        None => Err(PostError::Left { member_id: to }),
    };
    // An error is ignored: the snapshot's thread waits for the result, and if that thread has ended, the
    // result is not needed.
    let _ = done.send(sent);
}
