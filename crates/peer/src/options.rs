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
    /// Time after which a stream on which no bytes arrive is closed. So that other members do not close idle
    /// streams, this member sends a link heartbeat three times in this interval.
    pub read_timeout: Duration,
    /// Time after which a connection is closed if the kernel has accepted none of its bytes.
    pub write_timeout: Duration,
    /// Listeners that the other members connect to.
    pub listeners: Vec<Listener>,
    /// TLS settings for connections to `https` URLs of other members; `None` if such URLs cannot be dialed.
    pub tls: Option<tls::ClientTls>,
    /// Zone of this member, of at most 64 visible ASCII characters; empty if it has none.
    pub zone: String,
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
    /// A single string.
    Text(&'a str),
    /// A list of strings.
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

/// Log callback: level, message, fields. Called on the peer thread and on the threads of snapshots; must not
/// block.
pub type Log = Arc<dyn Fn(Level, &str, &[(&str, Field<'_>)]) + Send + Sync>;

/// Maximum number of messages queued for one peer; MsgApp and all other messages each have this limit.
/// Further messages are dropped.
pub(crate) const QUEUED_MESSAGES_MAX: usize = 4096;
/// Maximum number of bytes of MsgApp queued for one peer. Further messages are dropped.
pub(crate) const QUEUED_APP_BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes of messages other than MsgApp queued for one peer. Further messages are dropped.
pub(crate) const QUEUED_OTHER_BYTES_MAX: usize = 16 << 20;
/// Maximum number of messages queued for one peer's pipeline, as in etcd. Further messages are dropped.
pub(crate) const PIPELINED_MAX: usize = 64;
/// Maximum number of requests that one peer's pipeline sends concurrently, as in etcd.
pub(crate) const PIPELINE_CONNECTIONS: usize = 4;
/// Size limit in bytes of a received frame, as in etcd. A larger frame ends its stream.
pub(crate) const FRAME_BYTES_MAX: u64 = 512 << 20;
/// Size limit in bytes of the message at the front of a snapshot; a larger one is refused (etcd allows 1
/// TiB). In a snapshot from a member that runs etcd, the message contains an image of etcd's v2 store, so it
/// may be large.
pub(crate) const ENVELOPE_BYTES_MAX: u64 = 64 << 20;
/// Memory limit in bytes for all request bodies that are being read from senders that claim to be members.
pub(crate) const MEMBERS_BODIES_BYTES_MAX: usize = 1 << 30;
/// Memory limit in bytes for all request bodies that are being read from other senders.
pub(crate) const STRANGERS_BODIES_BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes of unknown fields in an encoded message, for example fields of a newer version.
/// The limit is needed because a decoded message keeps the memory of all its encoded bytes, and unknown
/// fields do not count in its size.
pub(crate) const SURPLUS_BYTES_MAX: usize = 4 << 10;
/// Size limit in bytes of the body of a request that the caller's handler answers, such as `/members`.
pub(crate) const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Size limit in bytes of the body of an answer to a request of this member.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Maximum number of accepted connections. For a further one, another connection is closed, preferably one
/// that belongs to no member; if none can be closed, the new one is refused.
pub(crate) const CONNECTIONS_MAX: usize = 1024;
/// Maximum number of concurrent requests of [`crate::Peers::request`]. Further requests fail.
pub(crate) const REQUESTS_MAX: usize = 1024;
/// Maximum number of senders that are remembered although they are not known as members, so that messages can
/// be sent to them.
pub(crate) const REMOTES_MAX: usize = 64;
/// Maximum number of log lines per second about rejected connections. Further rejections are only counted,
/// and the next line contains their number.
pub(crate) const REJECTIONS_SAID_MAX: u32 = 5;
/// Interval at which the certificates of open connections are checked again: they may have expired meanwhile.
pub(crate) const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of snapshots that are sent concurrently, as in etcd. Further snapshots fail.
pub(crate) const SNAPSHOTS_SENT_MAX: usize = 16;
/// Maximum number of snapshots that are received concurrently. Further ones are refused, unless they displace
/// another one.
pub(crate) const SNAPSHOTS_RECEIVED_MAX: usize = 4;
/// Maximum number of chunks of one snapshot that are queued between the peer thread and the thread that reads
/// or saves the snapshot.
pub(crate) const SNAPSHOT_PIECES_MAX: usize = 4;
/// Time that the sender of a snapshot waits for the answer after the last chunk was sent. The receiver
/// processes the snapshot in this time.
pub(crate) const SNAPSHOT_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Factor by which the read and write timeouts are longer for snapshots than for messages, because snapshots
/// are read from disks and written to disks.
pub(crate) const SNAPSHOT_TIMEOUTS: u32 = 4;
/// Time limit for resolving the host name of a member and connecting to it.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between two dials of one stream, as in etcd.
pub(crate) const DIAL_PACE: Duration = Duration::from_millis(100);
/// Maximum time between two dials of one stream, reached after several failures.
pub(crate) const DIAL_PACE_MAX: Duration = Duration::from_millis(500);
/// Interval between two probes of a peer, as in etcd.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(4);
/// Clock difference above which a warning is logged, as in etcd.
pub(crate) const CLOCK_DRIFT_MAX: Duration = Duration::from_secs(1);
/// Time for which an idle connection is kept for reuse. It must be shorter than 5 s, after which a member
/// that runs etcd closes an idle connection.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4);
/// Maximum number of idle connections that are kept for reuse per URL.
pub(crate) const IDLE_CONNECTIONS_MAX: usize = 8;
