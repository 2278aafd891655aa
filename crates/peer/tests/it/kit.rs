//! Members that record the calls of their handler.

use std::future::Future;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use api::raftpb::{Entry, Message, MessageType};
use bytes::Bytes;
use mainstay_peer::{BoxError, Handler, Listener, Log, Options, Peers, SnapshotForm, SnapshotOutcome};

pub const CLUSTER: u64 = 0xc1;
pub const DEADLINE: Duration = testkit::TIMEOUT;

/// Behavior of a snapshot's receiver.
pub type TakeSnapshot =
    Box<dyn Fn(Message, &mut dyn Iterator<Item = io::Result<Bytes>>) -> Result<(), BoxError> + Send + Sync>;

#[derive(Default)]
pub struct Heard {
    pub messages: Vec<(Instant, Message)>,
    pub unreachable: Vec<u64>,
    pub snapshots_sent: Vec<(u64, bool)>,
    pub removed: usize,
    pub removed_ids: Vec<u64>,
    pub lines: Vec<String>,
    /// Answer to GET /mainstay/snapshot; `None` for 404.
    pub receiver: Option<Bytes>,
    /// True if GET /mainstay/snapshot is answered with 503.
    pub busy: bool,
    /// True if the data of received entries is dropped, to save memory in tests with much data.
    pub forgets_data: bool,
    /// Formats of the received snapshots.
    pub forms: Vec<SnapshotForm>,
    pub app_bytes: usize,
}

#[derive(Default)]
pub struct Recorder {
    heard: Mutex<Heard>,
    changed: Condvar,
    pub take_snapshot: Mutex<Option<Arc<TakeSnapshot>>>,
}

impl Recorder {
    pub fn with<T>(&self, see: impl FnOnce(&mut Heard) -> T) -> T {
        let mut heard = self.heard.lock().unwrap();
        let seen = see(&mut heard);
        self.changed.notify_all();
        seen
    }

    /// Waits until `see` returns a value.
    #[track_caller]
    pub fn wait<T>(&self, what: &str, mut see: impl FnMut(&mut Heard) -> Option<T>) -> T {
        let until = Instant::now() + DEADLINE;
        let mut heard = self.heard.lock().unwrap();
        loop {
            if let Some(seen) = see(&mut heard) {
                return seen;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain: {what}; log: {:#?}", heard.lines);
            heard = self.changed.wait_timeout(heard, left).unwrap().0;
        }
    }

    /// Waits for this many raft messages and takes them.
    #[track_caller]
    pub fn wait_messages(&self, count: usize) -> Vec<Message> {
        self.wait("messages", |heard| {
            (heard.messages.len() >= count).then(|| {
                std::mem::take(&mut heard.messages).into_iter().map(|(_, message)| message).collect()
            })
        })
    }
}

impl Handler for Recorder {
    fn received(&self, messages: &mut Vec<Message>) {
        let now = Instant::now();
        self.with(|heard| {
            for mut message in messages.drain(..) {
                if heard.forgets_data {
                    for entry in &mut message.entries {
                        heard.app_bytes += entry.data.take().map_or(0, |data| data.len());
                    }
                }
                heard.messages.push((now, message));
            }
        });
    }

    fn is_removed(&self, id: u64) -> bool {
        self.heard.lock().unwrap().removed_ids.contains(&id)
    }

    fn unreachable(&self, id: u64) {
        self.with(|heard| heard.unreachable.push(id));
    }

    fn snapshot_sent(&self, to: u64, outcome: SnapshotOutcome) {
        let delivered = outcome == SnapshotOutcome::Delivered;
        self.with(|heard| heard.snapshots_sent.push((to, delivered)));
    }

    fn removed(&self, _: u64) {
        self.with(|heard| heard.removed += 1);
    }

    fn receive_snapshot(
        &self,
        message: Message,
        form: SnapshotForm,
        body: &mut dyn Iterator<Item = io::Result<Bytes>>,
    ) -> Result<(), BoxError> {
        self.with(|heard| heard.forms.push(form));
        let take = self.take_snapshot.lock().unwrap().clone();
        take.map_or(Err("no snapshot was expected".into()), |take| take(message, body))
    }

    fn http(
        &self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = http::Response<Bytes>> + Send>> {
        let (receiver, busy) = self.with(|heard| (heard.receiver.clone(), heard.busy));
        Box::pin(async move {
            let (status, body) = match (request.uri().path(), receiver) {
                ("/mainstay/snapshot", _) if busy => (503, Bytes::from_static(b"the member is stopping\n")),
                ("/mainstay/snapshot", Some(receiver)) => (200, receiver),
                ("/echo", _) => (200, request.into_body()),
                _ => (404, Bytes::from_static(b"404 page not found\n")),
            };
            let mut response = http::Response::new(body);
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
            response
        })
    }
}

pub struct Member {
    pub id: u64,
    pub url: String,
    pub recorder: Arc<Recorder>,
    pub peers: Peers,
}

#[derive(Clone, Copy)]
pub struct Timeouts {
    pub read: Duration,
    pub write: Duration,
}

pub const TIMEOUTS: Timeouts = Timeouts { read: Duration::from_secs(5), write: Duration::from_secs(5) };

/// Timeouts so long that streams send no heartbeats during a test, which makes their content predictable.
pub const WITHOUT_BEATS: Timeouts = Timeouts { read: Duration::from_secs(1000), ..TIMEOUTS };

/// Returns a listener on a free port, and its URL.
pub fn listen() -> (TcpListener, String) {
    let (listener, address) = testkit::ports::listen();
    (listener, format!("http://{address}"))
}

/// Returns a URL without a listener, whose port no other test uses.
pub fn nowhere() -> String {
    format!("http://{}", testkit::ports::free_address())
}

/// Opens a listener again at an address used before.
pub fn listen_again(url: &str) -> TcpListener {
    until("the address is free", || TcpListener::bind(url.strip_prefix("http://").unwrap()).ok())
}

pub fn member(id: u64) -> Member {
    let (listener, url) = listen();
    member_at(id, CLUSTER, listener, &url, TIMEOUTS)
}

/// Starts a member with [`WITHOUT_BEATS`].
pub fn member_without_beats(id: u64) -> Member {
    let (listener, url) = listen();
    member_at(id, CLUSTER, listener, &url, WITHOUT_BEATS)
}

pub fn member_at(id: u64, cluster_id: u64, listener: TcpListener, url: &str, timeouts: Timeouts) -> Member {
    member_with(id, cluster_id, Listener { socket: listener.into(), tls: None }, None, url, timeouts)
}

pub fn member_with(
    id: u64,
    cluster_id: u64,
    listener: Listener,
    tls: Option<tls::ClientTls>,
    url: &str,
    timeouts: Timeouts,
) -> Member {
    let options = Options {
        local_id: id,
        cluster_id,
        peer_urls: vec![url.to_owned()],
        server_version: "3.7.1",
        min_cluster_version: "3.0.0",
        read_timeout: timeouts.read,
        write_timeout: timeouts.write,
        listeners: vec![listener],
        tls,
        local_address: None,
        zone: String::new(),
    };
    let recorder = Arc::new(Recorder::default());
    let lines = Arc::clone(&recorder);
    let log: Log = Arc::new(move |level, message, fields| {
        lines.with(|heard| heard.lines.push(format!("{level:?} {message} {fields:?}")));
    });
    let peers = Peers::start(options, Arc::clone(&recorder) as Arc<dyn Handler>, log).unwrap();
    Member { id, url: url.to_owned(), recorder, peers }
}

/// Adds members to each other's membership.
pub fn introduce(members: &[&Member]) {
    for one in members {
        let others = members.iter().filter(|other| other.id != one.id);
        one.peers.set_members(others.map(|other| (other.id, vec![other.url.clone()])).collect());
    }
}

/// Waits until both streams are up in both directions between two members.
#[track_caller]
pub fn wait_streams(one: &Member, other: &Member) {
    for (from, to) in [(one, other), (other, one)] {
        for stream in ["msgapp", "message"] {
            wait_log(from, "established TCP streaming connection with remote peer", to.id, stream);
            wait_log(from, "a remote peer connected to a stream", to.id, stream);
        }
    }
}

#[track_caller]
pub fn wait_log(member: &Member, text: &str, peer: u64, detail: &str) {
    member.recorder.wait(&format!("{text} {peer:x} {detail}"), |heard| {
        let id = format!("\"{peer:x}\"");
        heard.lines.iter().any(|l| l.contains(text) && l.contains(&id) && l.contains(detail)).then_some(())
    });
}

/// Starts two members whose streams are up.
pub fn pair(timeouts: Timeouts) -> (Member, Member) {
    let ((l1, u1), (l2, u2)) = (listen(), listen());
    let pair = (member_at(1, CLUSTER, l1, &u1, timeouts), member_at(2, CLUSTER, l2, &u2, timeouts));
    introduce(&[&pair.0, &pair.1]);
    wait_streams(&pair.0, &pair.1);
    pair
}

pub fn message(kind: MessageType, from: u64, to: u64, term: u64) -> Message {
    Message {
        r#type: Some(kind as i32),
        to: Some(to),
        from: Some(from),
        term: Some(term),
        ..Message::default()
    }
}

pub fn heartbeat(from: u64, to: u64, term: u64) -> Message {
    message(MessageType::MsgHeartbeat, from, to, term)
}

/// Returns a MsgApp with the single entry `index`, with `bytes` bytes of data.
pub fn app(from: u64, to: u64, index: u64, bytes: usize) -> Message {
    let data = Some(Bytes::from(vec![index as u8; bytes]));
    let entry = Entry { r#type: Some(0), term: Some(7), index: Some(index), data };
    Message {
        log_term: Some(7),
        index: Some(index - 1),
        commit: Some(index - 1),
        entries: vec![entry],
        ..message(MessageType::MsgApp, from, to, 7)
    }
}

/// Waits for a condition by polling.
#[track_caller]
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    testkit::wait_until(what, DEADLINE, look)
}

/// Runs a future on this thread and returns its output.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    testkit::block_on(DEADLINE, future)
}

/// Accepts the next connection of a listener.
#[track_caller]
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let stream = until("a connection", || listener.accept().ok()).0;
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}
