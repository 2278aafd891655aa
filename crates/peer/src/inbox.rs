//! Passes messages and commands from other threads to the peer thread. [`Inbox`] limits the messages queued
//! for each peer, and wakes the peer thread at most once per call. The peer thread sends the messages to the
//! peers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use api::raftpb::{Message, MessageType};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::account::Account;
use crate::error::{PostError, RequestError};
use crate::figures::Figures;
use crate::handler::SnapshotForm;
use crate::piece::Piece;
use crate::target::Target;

/// Queue of messages and commands from other threads to the peer thread.
pub(crate) struct Inbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arrivals: Arrivals,
    accounts: BTreeMap<u64, Arc<Account>>,
    unknown_snapshot_failures: u64,
    /// Waker of the peer thread while it waits. The first message or command removes the waker, so that
    /// further ones do not wake the thread again.
    waker: Option<Waker>,
    stopped: bool,
}

/// Messages, commands and reports that arrived since the peer thread last took them.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Messages to send. They are already counted against the limits of their peers.
    pub(crate) messages: Vec<Message>,
    pub(crate) commands: Vec<Command>,
    /// Ids of the peers whose messages were dropped, each listed once.
    pub(crate) unreachable: Vec<u64>,
    /// Ids of the peers to which a requested snapshot will not be sent, because it was refused before its
    /// transfer began.
    pub(crate) snapshots_refused: Vec<u64>,
}

/// Command that another thread gives to the peer thread.
pub(crate) enum Command {
    /// Sets the other members and their URLs.
    Members(Vec<(u64, Vec<String>)>),
    /// Checks the open TLS connections again, because TLS files were reloaded.
    TlsReloaded,
    /// Sends an HTTP request of [`crate::Peers::request`].
    Request {
        target: Target,
        request: http::Request<Bytes>,
        timeout: Duration,
        answer: oneshot::Sender<Result<http::Response<Bytes>, RequestError>>,
        permit: Option<OwnedSemaphorePermit>,
    },
    /// Sends a snapshot, whose chunks another thread provides.
    Snapshot {
        message: Message,
        form: SnapshotForm,
        pieces: mpsc::Receiver<Piece>,
        done: oneshot::Sender<Result<(), PostError>>,
    },
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues messages for their peers. Drops a message if the limits of its peer are reached, if no peer has
    /// its recipient's id, or if it is a MsgSnap. The first case is reported as unreachable, the last as a
    /// snapshot that failed.
    pub(crate) fn send(&self, messages: Vec<Message>) {
        let mut state = self.lock();
        if state.stopped {
            return;
        }
        let State { arrivals, accounts, .. } = &mut *state;
        for message in messages {
            let to = message.to.unwrap_or(0);
            let Some(account) = accounts.get(&to).filter(|account| account.reachable.load(Ordering::Relaxed))
            else {
                continue;
            };
            if message.r#type == Some(MessageType::MsgSnap as i32) {
                arrivals.snapshots_refused.push(to);
            } else if account.take(&message) {
                arrivals.messages.push(message);
            } else {
                account.counters.send_failures.add(1);
                if !arrivals.unreachable.contains(&to) {
                    arrivals.unreachable.push(to);
                }
            }
        }
        wake(state);
    }

    /// Queues a command. Drops it if the peer thread has stopped.
    pub(crate) fn push(&self, command: Command) {
        let mut state = self.lock();
        if !state.stopped {
            state.arrivals.commands.push(command);
            wake(state);
        }
    }

    /// Reports that a snapshot to this peer will not be sent.
    pub(crate) fn refuse_snapshot(&self, to: u64) {
        let mut state = self.lock();
        state.arrivals.snapshots_refused.push(to);
        wake(state);
    }

    /// Stops the peer thread. Messages and commands that are queued now or arrive later are dropped.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.arrivals = Arrivals::default();
        wake(state);
    }

    /// Becomes ready with everything that arrived since the last call; with `None` after [`Inbox::stop`].
    pub(crate) fn poll_arrivals(&self, cx: &mut Context<'_>) -> Poll<Option<Arrivals>> {
        let mut state = self.lock();
        if state.stopped {
            return Poll::Ready(None);
        }
        if state.arrivals.is_empty() {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(std::mem::take(&mut state.arrivals)))
    }

    /// Sets the other members. [`Inbox::send`] accepts messages to them immediately; the peer thread dials
    /// them later.
    pub(crate) fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        let mut state = self.lock();
        if state.stopped {
            return;
        }
        for account in state.accounts.values() {
            let is_member = members.iter().any(|member| member.0 == account.id);
            if account.is_member.swap(is_member, Ordering::Relaxed) && !is_member {
                account.reachable.store(false, Ordering::Relaxed);
            }
        }
        for (id, _) in &members {
            let account = state.accounts.entry(*id).or_insert_with(|| Arc::new(Account::new(*id)));
            account.is_member.store(true, Ordering::Relaxed);
            account.reachable.store(true, Ordering::Relaxed);
        }
        state.arrivals.commands.push(Command::Members(members));
        wake(state);
    }

    /// Creates the account of a sender that is not a known member. From now on, messages to it are accepted.
    pub(crate) fn add_remote(&self, id: u64) -> Arc<Account> {
        let mut state = self.lock();
        let account = state.accounts.entry(id).or_insert_with(|| Arc::new(Account::new(id)));
        account.reachable.store(true, Ordering::Relaxed);
        Arc::clone(account)
    }

    /// Removes the account of a sender that is not a known member. From now on, messages to it are dropped.
    pub(crate) fn forget_remote(&self, id: u64) {
        let mut state = self.lock();
        if state.accounts.get(&id).is_some_and(|account| !account.is_member.load(Ordering::Relaxed)) {
            state.accounts.remove(&id);
        }
    }

    pub(crate) fn account(&self, id: u64) -> Option<Arc<Account>> {
        self.lock().accounts.get(&id).cloned()
    }

    pub(crate) fn count_unknown_snapshot_failure(&self) {
        self.lock().unknown_snapshot_failures += 1;
    }

    pub(crate) fn figures(&self) -> Figures {
        let state = self.lock();
        Figures {
            peers: state.accounts.iter().map(|(id, account)| (*id, account.figures())).collect(),
            unknown_snapshot_failures: state.unknown_snapshot_failures,
        }
    }
}

impl Arrivals {
    fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.commands.is_empty()
            && self.unreachable.is_empty()
            && self.snapshots_refused.is_empty()
    }
}

/// Wakes the peer thread if it waits and there is something for it to do. Releases the lock first, so that
/// the woken thread does not block on it.
fn wake(mut state: MutexGuard<'_, State>) {
    let due = state.stopped || !state.arrivals.is_empty();
    let waker = if due { state.waker.take() } else { None };
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
