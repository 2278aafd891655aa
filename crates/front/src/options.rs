use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use accounting::Budget;
use stdx::zones::ZoneNetworks;

use crate::Rejection;

/// Limits and timeouts of a front. [`Options::default`] has etcd's default for each option that etcd has.
#[derive(Clone)]
pub struct Options {
    /// Number of shards, each of which has a thread; 0 means one per core.
    pub shards: usize,
    /// Number of method ids that the service uses. All ids are below this number, so the counters are stored
    /// in arrays of this length.
    pub methods: usize,
    /// Maximum number of open connections over all shards; further connections are closed on accept.
    pub connections_max: usize,
    /// Maximum number of open connections per address, or per IPv6 network of 64 bits; further ones are
    /// closed on accept.
    pub connections_per_address_max: usize,
    /// Maximum length of a gRPC message from a client, in bytes without its prefix. The limit applies to the
    /// message both before and after decompression.
    pub message_bytes_max: usize,
    /// Maximum length of a gRPC message to a client, in bytes without its prefix; below 4 GiB. A call whose
    /// answer is longer fails.
    pub answer_message_bytes_max: usize,
    /// Memory limit for all clients together. Several fronts may share one budget.
    pub budget: Budget,
    /// Maximum number of open HTTP/2 streams per connection.
    pub max_concurrent_streams: u32,
    /// Receive window of a stream, in bytes.
    pub stream_window_bytes: u32,
    /// Receive window of a connection, in bytes.
    pub connection_window_bytes: u32,
    /// Maximum size of a request's decoded header list, in bytes.
    pub header_list_bytes_max: u32,
    /// Number of queued answer bytes of a connection at which its further answers and new requests begin to
    /// wait.
    pub answer_bytes_max: usize,
    /// Maximum number of bytes that one connection's calls in flight may hold: incomplete messages, messages
    /// of unanswered unary calls, answers that wait, and 4 KiB for each call. Above this limit, a new call
    /// fails with etcd's `too many requests`, and a call whose answer would have to wait fails with the
    /// status of [`crate::Service::unanswered`].
    pub request_bytes_max: usize,
    /// Number of requests of one connection that may wait while the connection's queued answers are at their
    /// limit; further requests are refused with `REFUSED_STREAM`, which clients retry.
    pub waiting_requests_max: usize,
    /// Number of unsent bytes of one streaming call at which [`crate::Outbound::send`] begins to wait.
    pub stream_buffer_bytes_max: usize,
    /// Networks of clients by zone. The bytes of the connections from each zone are counted
    /// ([`accounting::ShardCounters::zones`]).
    pub zones: ZoneNetworks,
    /// Time limit for the first bytes of a new connection, and in HTTP/1 for the headers and body of a
    /// request.
    pub first_bytes_timeout: Duration,
    /// Time without a received byte after which an incomplete unary request is reset, and a connection with
    /// an incomplete frame or header block is closed. This time and the keepalive times do not run while
    /// reading from the client is suspended because the client does not read its output.
    pub request_timeout: Duration,
    /// Time without progress after which a stream that holds unsent data is reset. The stream counts as
    /// stalled only if in that time all data was sent that other streams had queued before, or if the client
    /// reads nothing at all. A connection whose queued answers are at their limit is closed after the same
    /// time without progress.
    pub stall_timeout: Duration,
    /// Time without a byte from the client after which the server sends a ping.
    pub keepalive_interval: Duration,
    /// Time without a byte from the client, after the server's ping, after which the connection is closed.
    pub keepalive_timeout: Duration,
    /// Minimum interval between the pings of a client with open calls. A client that pings more often is
    /// disconnected, as in grpc-go.
    pub keepalive_min_time: Duration,
    /// True if a client without open calls may also ping once per [`Options::keepalive_min_time`]; otherwise
    /// it may ping once in 2 hours.
    pub keepalive_permit_without_stream: bool,
    /// Time limit for a TLS handshake, including name look-ups for the client.
    pub handshake_timeout: Duration,
    /// Resolver for listeners that compare certificates with addresses ([`crate::Listener::checks_address`]).
    pub resolver: Arc<dyn tls::Resolver + Send + Sync>,
    /// Interval at which each TLS connection is checked again. It is closed if its client would not be
    /// admitted now, for example because its certificate has expired.
    pub certificates_checked_every: Duration,
    /// Callback for completed TLS handshakes whose client was admitted; the argument is true if the client has
    /// resumed a session. Called on any thread; must not block.
    pub handshaken: Arc<dyn Fn(bool) + Send + Sync>,
    /// Callback for connections that TLS rejects. Calls are rate limited; [`Rejection::not_reported`] counts
    /// the rejections that were left out. Called on any thread; must not block.
    pub rejected: Arc<dyn Fn(&Rejection) + Send + Sync>,
}

impl Options {
    /// Returns the maximum size of the body of a request that is not a gRPC call, in bytes. It allows the
    /// longest message in base64 with some white space. The service may allow more
    /// ([`crate::RequestBody::allow`]).
    pub fn http_body_bytes_max(&self) -> usize {
        self.message_bytes_max.saturating_mul(2)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("shards", &self.shards)
            .field("connections_max", &self.connections_max)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            shards: 0,
            methods: 128,
            connections_max: 200_000,
            connections_per_address_max: usize::MAX,
            message_bytes_max: (1536 + 512) * 1024,
            // etcd also uses this value, the maximum of grpc-go.
            answer_message_bytes_max: i32::MAX as usize,
            budget: Budget::new(1 << 30),
            max_concurrent_streams: u32::MAX,
            stream_window_bytes: 64 * 1024 - 1,
            connection_window_bytes: 1024 * 1024,
            header_list_bytes_max: 64 * 1024,
            answer_bytes_max: 16 * 1024 * 1024,
            request_bytes_max: 256 * 1024 * 1024,
            waiting_requests_max: 10_000,
            stream_buffer_bytes_max: 512 * 1024,
            zones: ZoneNetworks::default(),
            first_bytes_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(300),
            keepalive_interval: Duration::from_secs(2 * 3600),
            keepalive_timeout: Duration::from_secs(20),
            keepalive_min_time: Duration::from_secs(5),
            keepalive_permit_without_stream: false,
            handshake_timeout: tls::HANDSHAKE_TIMEOUT,
            resolver: Arc::new(tls::SystemResolver),
            certificates_checked_every: Duration::from_secs(60),
            handshaken: Arc::new(|_| {}),
            rejected: Arc::new(|_| {}),
        }
    }
}
