//! The queue into the peer thread: [`Inbox`] bounds what waits per peer, and wakes the thread at most once per call. It
//! sends nothing.

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
use crate::handler::SnapshotForm;
use crate::peers::Target;
use crate::piece::Piece;

/// The queue of other threads' messages and commands to the peer thread.
pub(crate) struct Inbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arrivals: Arrivals,
    accounts: BTreeMap<u64, Arc<Account>>,
    unknown_snapshot_failures: u64,
    /// Set while the peer thread waits, so that only the first of many arrivals wakes it.
    waker: Option<Waker>,
    stopped: bool,
}

/// Everything that arrived since the last look.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Messages with room taken in their peer's account.
    pub(crate) messages: Vec<Message>,
    pub(crate) commands: Vec<Command>,
    /// Peers that messages were dropped for, each once.
    pub(crate) unreachable: Vec<u64>,
    /// Peers whose snapshot was not even begun.
    pub(crate) snapshots_refused: Vec<u64>,
}

/// A command to the peer thread, besides sending.
pub(crate) enum Command {
    /// The other members and their URLs from now on.
    Members(Vec<(u64, Vec<String>)>),
    /// Files of TLS were loaded again.
    TlsReloaded,
    /// A request outside of raft.
    Request {
        target: Target,
        request: http::Request<Bytes>,
        timeout: Duration,
        answer: oneshot::Sender<Result<http::Response<Bytes>, RequestError>>,
        permit: Option<OwnedSemaphorePermit>,
    },
    /// A snapshot whose pieces come from a thread of its own.
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

    /// Takes messages as far as there is room for them.
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

    /// Hands a command over; gives it back (to be dropped) when the peer thread is gone.
    pub(crate) fn push(&self, command: Command) {
        let mut state = self.lock();
        if !state.stopped {
            state.arrivals.commands.push(command);
            wake(state);
        }
    }

    /// A snapshot that will not be begun.
    pub(crate) fn refuse_snapshot(&self, to: u64) {
        let mut state = self.lock();
        state.arrivals.snapshots_refused.push(to);
        wake(state);
    }

    /// Stops the peer thread; later messages and commands are dropped.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.arrivals = Arrivals::default();
        wake(state);
    }

    /// Returns everything that arrived since the last look; `None` after the stop.
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

    /// Sets the members; takes effect for messages at once.
    pub(crate) fn set_members(&self, members: Vec<(u64, Vec<String>)>) {
        let mut state = self.lock();
        if state.stopped {
            return;
        }
        for account in state.accounts.values() {
            let is_member = members.iter().any(|member| member.0 == account.id);
            if account.known.swap(is_member, Ordering::Relaxed) && !is_member {
                account.reachable.store(false, Ordering::Relaxed);
            }
        }
        for (id, _) in &members {
            let account = state.accounts.entry(*id).or_insert_with(|| Arc::new(Account::new(*id)));
            account.known.store(true, Ordering::Relaxed);
            account.reachable.store(true, Ordering::Relaxed);
        }
        state.arrivals.commands.push(Command::Members(members));
        wake(state);
    }

    /// Messages to an unknown sender are taken from now on.
    pub(crate) fn add_remote(&self, id: u64) -> Arc<Account> {
        let mut state = self.lock();
        let account = state.accounts.entry(id).or_insert_with(|| Arc::new(Account::new(id)));
        account.reachable.store(true, Ordering::Relaxed);
        Arc::clone(account)
    }

    /// Messages to an unknown sender are taken no more, and nothing is kept of it.
    pub(crate) fn forget_remote(&self, id: u64) {
        let mut state = self.lock();
        if state.accounts.get(&id).is_some_and(|account| !account.known.load(Ordering::Relaxed)) {
            state.accounts.remove(&id);
        }
    }

    pub(crate) fn account(&self, id: u64) -> Option<Arc<Account>> {
        self.lock().accounts.get(&id).cloned()
    }

    pub(crate) fn count_unknown_snapshot_failure(&self) {
        self.lock().unknown_snapshot_failures += 1;
    }

    pub(crate) fn figures(&self) -> crate::Figures {
        let state = self.lock();
        crate::Figures {
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

/// Wakes the peer thread if it waits for something that is there now; after the lock, so that it does not meet it.
fn wake(mut state: MutexGuard<'_, State>) {
    let due = state.stopped || !state.arrivals.is_empty();
    let waker = if due { state.waker.take() } else { None };
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
