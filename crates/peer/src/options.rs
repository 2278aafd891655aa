use std::fmt;
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a member's side of the protocol.
#[derive(Debug)]
pub struct Options {
    /// This member's id.
    pub local_id: u64,
    /// The id of its cluster.
    pub cluster_id: u64,
    /// The peer URLs this member advertises; they go out as `X-PeerURLs`.
    pub peer_urls: Vec<String>,
    /// The version this member announces, such as `3.7.1`.
    pub server_version: &'static str,
    /// The lowest cluster version this member can work with, such as `3.0.0`.
    pub min_cluster_version: &'static str,
    /// Time that a stream may be silent before its reader gives it up; link heartbeats go out three times as often.
    pub read_timeout: Duration,
    /// Time that the kernel may refuse to take bytes of a connection before it is given up.
    pub write_timeout: Duration,
    /// Listeners that the other members connect to.
    pub listeners: Vec<Listener>,
    /// TLS of connections to other members at `https` URLs. `None`: such URLs cannot be dialed.
    pub tls: Option<tls::ClientTls>,
    /// Address that connections to other members come from; `None`: the system chooses.
    pub local_address: Option<IpAddr>,
}

/// A listener that the other members connect to.
#[derive(Debug)]
pub struct Listener {
    /// The socket, which listens.
    pub socket: ListenerSocket,
    /// TLS of the listener; `None`: it takes plain HTTP. Members speak none through a Unix socket.
    pub tls: Option<tls::ServerTls>,
}

/// A socket that listens.
#[derive(Debug)]
pub enum ListenerSocket {
    /// A socket at an address and a port.
    Tcp(TcpListener),
    /// A socket with a file.
    Unix(UnixListener),
}

impl From<TcpListener> for ListenerSocket {
    fn from(socket: TcpListener) -> ListenerSocket {
        ListenerSocket::Tcp(socket)
    }
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A line for debugging.
    Debug,
    /// The course of things.
    Info,
    /// Coped with.
    Warn,
    /// Failed.
    Error,
}

/// The value of a log line's field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    /// One text.
    Text(&'a str),
    /// A list of texts.
    List(&'a [&'a str]),
}

impl fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Text(text) => text.fmt(f),
            Field::List(list) => list.fmt(f),
        }
    }
}

/// Takes the log: level, message, fields. Called on the peer thread; must not block.
pub type Log = Arc<dyn Fn(Level, &str, &[(&str, Field<'_>)]) + Send + Sync>;

/// Messages of one peer that may wait to be sent, of MsgApp and of all others each.
pub(crate) const QUEUED_MESSAGES_MAX: usize = 4096;
/// Bytes of MsgApp that may wait for one peer.
pub(crate) const QUEUED_APP_BYTES_MAX: usize = 64 << 20;
/// Bytes of other messages that may wait for one peer.
pub(crate) const QUEUED_OTHER_BYTES_MAX: usize = 16 << 20;
/// Messages that may wait for the pipeline of one peer, as in etcd.
pub(crate) const PIPELINED_MAX: usize = 64;
/// Requests of one pipeline under way at once, as in etcd.
pub(crate) const PIPELINE_CONNECTIONS: usize = 4;
/// The largest frame that is read, as in etcd.
pub(crate) const FRAME_BYTES_MAX: u64 = 512 << 20;
/// The largest message in front of a snapshot that is read, as in etcd: it has an image of etcd's old store.
pub(crate) const ENVELOPE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the messages that are being read at once of all who say that they are members.
pub(crate) const MEMBERS_BODIES_BYTES_MAX: usize = 1 << 30;
/// Bytes of the messages that are being read at once of all others.
pub(crate) const STRANGERS_BODIES_BYTES_MAX: usize = 64 << 20;
/// Bytes that a message may have beyond those that it is made of, such as fields of a newer version. The message keeps
/// all bytes that it came in.
pub(crate) const SURPLUS_BYTES_MAX: usize = 4 << 10;
/// The largest body of a request outside of raft.
pub(crate) const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The largest body of an answer outside of raft.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Connections that are served at once; more are closed as they come.
pub(crate) const CONNECTIONS_MAX: usize = 1024;
/// Requests of [`crate::Peers::request`] under way at once.
pub(crate) const REQUESTS_MAX: usize = 1024;
/// Unknown senders that are remembered so that they can be answered.
pub(crate) const REMOTES_MAX: usize = 64;
/// Lines about rejected connections in a second; the rest is counted.
pub(crate) const REJECTIONS_SAID_MAX: u32 = 5;
/// Time after which certificates of connections are looked at again, since they may have ended.
pub(crate) const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Snapshots that are sent at once, as in etcd.
pub(crate) const SNAPSHOTS_SENT_MAX: usize = 16;
/// Snapshots that are received at once.
pub(crate) const SNAPSHOTS_RECEIVED_MAX: usize = 4;
/// Pieces of a snapshot that wait between the network and the thread that makes or takes them.
pub(crate) const SNAPSHOT_PIECES_MAX: usize = 4;
/// Time that the receiver of a whole snapshot may work on it before its sender gives up.
pub(crate) const SNAPSHOT_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// A snapshot may pause this many read and write timeouts: its pieces come off a disk and go onto one.
pub(crate) const SNAPSHOT_TIMEOUTS: u32 = 4;
/// Maximum duration of a dial.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest time between two dials of one stream, as in etcd.
pub(crate) const DIAL_PACE: Duration = Duration::from_millis(100);
/// The longest time between two dials of one stream.
pub(crate) const DIAL_PACE_MAX: Duration = Duration::from_millis(500);
/// Time between two probes of a peer, as in etcd.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(4);
/// A clock further away than this is warned of, as in etcd.
pub(crate) const CLOCK_DRIFT_MAX: Duration = Duration::from_secs(1);
/// A kept connection is used again within this time only: etcd closes a silent one after 5 s.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4);
/// Connections kept for one address.
pub(crate) const IDLE_CONNECTIONS_MAX: usize = 8;
