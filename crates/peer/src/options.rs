use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use transport::ListenerSocket;

/// Settings for communication between members.
#[derive(Debug)]
pub struct Options {
    /// Id of this member.
    pub local_id: u64,
    /// Id of the cluster.
    pub cluster_id: u64,
    /// Peer URLs that this member advertises in the header `X-PeerURLs`.
    pub peer_urls: Vec<String>,
    /// Version that this member announces, such as `3.7.1`.
    pub server_version: &'static str,
    /// Lowest cluster version that this member can work with, such as `3.0.0`.
    pub min_cluster_version: &'static str,
    /// Time without received bytes after which the reader of a stream closes it. This member sends three link
    /// heartbeats in this time.
    pub read_timeout: Duration,
    /// Time after which a connection is closed if the kernel has accepted none of its bytes.
    pub write_timeout: Duration,
    /// Listeners that the other members connect to.
    pub listeners: Vec<Listener>,
    /// TLS settings for connections to `https` URLs of other members; `None` if such URLs cannot be dialed.
    pub tls: Option<tls::ClientTls>,
    /// Local address for connections to other members; `None` if the operating system chooses it.
    pub local_address: Option<IpAddr>,
}

/// Listener that the other members connect to.
#[derive(Debug)]
pub struct Listener {
    /// Listening socket.
    pub socket: ListenerSocket,
    /// TLS settings; `None` for plain HTTP. Must be `None` for a Unix socket.
    pub tls: Option<tls::ServerTls>,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details for debugging.
    Debug,
    /// Information about normal operation.
    Info,
    /// A problem that was handled.
    Warn,
    /// A failure.
    Error,
}

/// Value of a field in a log line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    /// A single text.
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

/// Log callback: level, message, fields. Called on the peer thread; must not block.
pub type Log = Arc<dyn Fn(Level, &str, &[(&str, Field<'_>)]) + Send + Sync>;

/// Maximum number of messages queued for one peer; counted separately for MsgApp and for all others.
pub(crate) const QUEUED_MESSAGES_MAX: usize = 4096;
/// Maximum bytes of MsgApp queued for one peer.
pub(crate) const QUEUED_APP_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of other messages queued for one peer.
pub(crate) const QUEUED_OTHER_BYTES_MAX: usize = 16 << 20;
/// Maximum number of messages queued for one peer's pipeline, as in etcd.
pub(crate) const PIPELINED_MAX: usize = 64;
/// Maximum number of concurrent requests of one pipeline, as in etcd.
pub(crate) const PIPELINE_CONNECTIONS: usize = 4;
/// Size limit in bytes of a received frame, as in etcd.
pub(crate) const FRAME_BYTES_MAX: u64 = 512 << 20;
/// Size limit in bytes of the message at the front of a snapshot, as in etcd: it contains an image of etcd's
/// v2 store.
pub(crate) const ENVELOPE_BYTES_MAX: u64 = 64 << 20;
/// Limit in bytes for all messages that are being read from senders that claim to be members.
pub(crate) const MEMBERS_BODIES_BYTES_MAX: usize = 1 << 30;
/// Limit in bytes for all messages that are being read from other senders.
pub(crate) const STRANGERS_BODIES_BYTES_MAX: usize = 64 << 20;
/// Maximum number of encoded bytes of a message that belong to unknown fields, for example those of a newer
/// version. The limit is needed because the decoded message keeps all bytes in which it was received.
pub(crate) const SURPLUS_BYTES_MAX: usize = 4 << 10;
/// Size limit in bytes of the body of a request outside of raft.
pub(crate) const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Size limit in bytes of the body of an answer outside of raft.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Maximum number of connections that are served; further ones are closed.
pub(crate) const CONNECTIONS_MAX: usize = 1024;
/// Maximum number of concurrent requests of [`crate::Peers::request`].
pub(crate) const REQUESTS_MAX: usize = 1024;
/// Maximum number of unknown senders that are remembered, so that they can be answered.
pub(crate) const REMOTES_MAX: usize = 64;
/// Maximum number of log lines per second about rejected connections; further rejections are only counted.
pub(crate) const REJECTIONS_SAID_MAX: u32 = 5;
/// Interval at which certificates of open connections are checked again, since they may have expired.
pub(crate) const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of snapshots that are sent concurrently, as in etcd.
pub(crate) const SNAPSHOTS_SENT_MAX: usize = 16;
/// Maximum number of snapshots that are received concurrently.
pub(crate) const SNAPSHOTS_RECEIVED_MAX: usize = 4;
/// Maximum number of snapshot pieces queued between the network and the thread that produces or takes them.
pub(crate) const SNAPSHOT_PIECES_MAX: usize = 4;
/// Time for which the receiver may process a whole snapshot before its sender gives up.
pub(crate) const SNAPSHOT_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Number of read and write timeouts for which a snapshot may pause, because its pieces are read from and
/// written to disks.
pub(crate) const SNAPSHOT_TIMEOUTS: u32 = 4;
/// Time limit for a dial.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between two dials of one stream, as in etcd.
pub(crate) const DIAL_PACE: Duration = Duration::from_millis(100);
/// Maximum time between two dials of one stream.
pub(crate) const DIAL_PACE_MAX: Duration = Duration::from_millis(500);
/// Interval between two probes of a peer, as in etcd.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(4);
/// Clock difference above which a warning is logged, as in etcd.
pub(crate) const CLOCK_DRIFT_MAX: Duration = Duration::from_secs(1);
/// Time for which an idle connection is kept for reuse; etcd closes a silent one after 5 s.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4);
/// Maximum number of idle connections per address.
pub(crate) const IDLE_CONNECTIONS_MAX: usize = 8;
