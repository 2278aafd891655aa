use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::raftpb::Message;
use tokio::sync::{mpsc, oneshot};

use crate::error::PostError;
use crate::handler::{Handler, OpenedSnapshot, SnapshotForm, SnapshotOutcome, SnapshotSource};
use crate::inbox::{Command, Inbox};
use crate::options::{Field, Level, Log, SNAPSHOT_PIECES_MAX, SNAPSHOTS_SENT_MAX};
use crate::piece::Piece;
use crate::target::Target;

/// Path at which a Mainstay member reports which data it already has, so that the sender can omit this data
/// from the snapshot.
const RECEIVER_PATH: &str = "/mainstay/snapshot?format=2";
/// Time limit for the receiver's answer to the request to [`RECEIVER_PATH`].
const RECEIVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends snapshots, each on a separate thread.
pub(crate) struct SnapshotSender {
    inbox: Arc<Inbox>,
    handler: Arc<dyn Handler>,
    log: Log,
    sending: Arc<Mutex<BTreeSet<u64>>>,
}

impl SnapshotSender {
    pub(crate) fn new(inbox: Arc<Inbox>, handler: Arc<dyn Handler>, log: Log) -> SnapshotSender {
        SnapshotSender { inbox, handler, log, sending: Arc::default() }
    }

    pub(crate) fn send(&self, message: Message, source: Box<dyn SnapshotSource>) {
        let to = message.to.unwrap_or(0);
        {
            let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            if sending.len() >= SNAPSHOTS_SENT_MAX || !sending.insert(to) {
                drop(sending);
                self.inbox.refuse_snapshot(to);
                return;
            }
        }
        let (inbox, handler, log) =
            (Arc::clone(&self.inbox), Arc::clone(&self.handler), Arc::clone(&self.log));
        let sending = Arc::clone(&self.sending);
        let work = move || {
            let sent = send(&inbox, message, source);
            // Remove the peer's entry before the handler is told the result: the handler may then immediately
            // send the next snapshot, which would be refused otherwise.
            sending.lock().unwrap_or_else(PoisonError::into_inner).remove(&to);
            let id = format!("{to:x}");
            match &sent {
                Ok(()) => log(Level::Info, "sent database snapshot", &[("to", Field::Text(&id))]),
                Err(error) => {
                    let text = error.to_string();
                    log(
                        Level::Warn,
                        "failed to send database snapshot",
                        &[("to", Field::Text(&id)), ("error", Field::Text(&text))],
                    );
                }
            }
            if sent.is_ok() {
                handler.snapshot_sent(to, SnapshotOutcome::Delivered);
            } else {
                handler.snapshot_sent(to, SnapshotOutcome::Failed);
                handler.unreachable(to);
            }
        };
        if std::thread::Builder::new().name("snapshot-send".to_owned()).spawn(work).is_err() {
            self.sending.lock().unwrap_or_else(PoisonError::into_inner).remove(&to);
            self.inbox.refuse_snapshot(to);
        }
    }
}

fn send(inbox: &Inbox, mut message: Message, mut source: Box<dyn SnapshotSource>) -> Result<(), PostError> {
    let to = message.to.unwrap_or(0);
    let account = inbox.account(to).ok_or(PostError::Unknown)?;
    let counters = &account.counters.snapshots_sent;
    counters.begin();
    let begun = Instant::now();
    let attempt = || -> Result<(), PostError> {
        let (answer, answered) = oneshot::channel();
        let mut request = http::Request::new(bytes::Bytes::new());
        *request.uri_mut() = http::Uri::from_static(RECEIVER_PATH);
        let target = Target::Member(to);
        inbox.push(Command::Request { target, request, timeout: RECEIVER_TIMEOUT, answer, permit: None });
        let answered = answered.blocking_recv().map_err(|_| PostError::Stopping)?;
        let receiver = match answered {
            Ok(answer) if answer.status() == http::StatusCode::OK => Some(answer),
            Ok(answer) if answer.status() == http::StatusCode::NOT_FOUND => None,
            // Only a 404 means that the member runs etcd. Any other status is an error, for example of a busy
            // member.
            Ok(answer) => {
                let text = String::from_utf8_lossy(answer.body()).trim_end().to_owned();
                return Err(PostError::Snapshot(answer.status(), text));
            }
            Err(error) => return Err(PostError::Asking(error)),
        };
        let OpenedSnapshot { form, data, pieces: opened } =
            source.open(receiver).map_err(PostError::Source)?;
        if form == SnapshotForm::Etcd
            && let Some(snapshot) = &mut message.snapshot
        {
            snapshot.data = Some(data);
        }
        let (give, pieces) = mpsc::channel(SNAPSHOT_PIECES_MAX);
        let (done, sent) = oneshot::channel();
        inbox.push(Command::Snapshot { message, form, pieces, done });
        let mut failure = None;
        let pieces = opened.map(Some).chain([None]);
        for piece in pieces {
            let piece = match piece {
                Some(Ok(bytes)) => Piece::Bytes(bytes),
                Some(Err(error)) => {
                    failure = Some(PostError::BrokenOff(error.to_string()));
                    Piece::Failed(error)
                }
                None => Piece::End,
            };
            // Stop if the chunk cannot be passed on, because the connection has ended. `sent` below contains
            // the reason.
            if give.blocking_send(piece).is_err() || failure.is_some() {
                break;
            }
        }
        drop(give);
        let sent = sent.blocking_recv().map_err(|_| PostError::Stopping)?;
        failure.map_or(sent, Err)
    };
    let sent = attempt();
    counters.end(sent.is_ok().then(|| begun.elapsed()));
    sent
}
