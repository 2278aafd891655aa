use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Rejected;
use accounting::Budget;

/// Limits and timeouts of a front. [`Options::default`] has etcd's defaults where etcd has one.
#[derive(Clone)]
pub struct Options {
    /// Shard threads; 0 means one per core.
    pub shards: usize,
    /// Number of method ids that the service uses: ids are below this. It sizes the counters.
    pub methods: usize,
    /// Connections open at once, over all shards; further ones are closed on accept.
    pub connections_max: usize,
    /// Connections open at once from one address, or from one IPv6 network of 64 bits; further ones are closed on accept.
    pub connections_per_address_max: usize,
    /// Largest gRPC message taken, in bytes without its prefix, after decompression too.
    pub message_bytes_max: usize,
    /// Largest gRPC message given, in bytes without its prefix; below 4 GiB. A call whose answer is larger fails.
    pub answer_message_bytes_max: usize,
    /// Bound of the memory that all clients together make the server hold. Several fronts may share one.
    pub budget: Budget,
    /// HTTP/2 streams open at once per connection.
    pub max_concurrent_streams: u32,
    /// Receive window of a stream, in bytes.
    pub stream_window_bytes: u32,
    /// Receive window of a connection, in bytes.
    pub connection_window_bytes: u32,
    /// Largest decoded header list taken, in bytes.
    pub header_list_bytes_max: u32,
    /// Answer bytes one connection may have on their way before further answers and its new requests wait.
    pub answer_bytes_max: usize,
    /// Bytes one connection's calls in flight may hold: messages in assembly and in unanswered unary calls, answers that
    /// wait, and 4 KiB for each call. Beyond that a new call is answered with etcd's `too many requests`, and one whose
    /// answer would have to wait with what [`crate::Service::unanswered`] says.
    pub request_bytes_max: usize,
    /// Requests of one connection that may wait while its answers are over their limit; further ones are
    /// refused (`REFUSED_STREAM`, which clients retry).
    pub waiting_requests_max: usize,
    /// Bytes one streaming call may hold unsent before [`crate::Outbound::send`] waits.
    pub stream_buffer_bytes_max: usize,
    /// Time for a new connection to send its first bytes, and for HTTP/1 to send a request's headers and body.
    pub first_bytes_timeout: Duration,
    /// Time without a byte after which an unfinished unary request, frame or header block is given up. It does not run,
    /// nor does keepalive's time, while the client is not read from because it takes nothing.
    pub request_timeout: Duration,
    /// A stream holding unsent data this long without any progress is reset, if its turn came meanwhile or the client takes
    /// nothing at all; a connection that holds as many answers as
    /// it may this long, and takes nothing of any, is closed.
    pub stall_timeout: Duration,
    /// The server pings a connection that was silent this long.
    pub keepalive_interval: Duration,
    /// A connection silent this long after the server's ping is closed.
    pub keepalive_timeout: Duration,
    /// Least time between a client's pings while it has calls open.
    pub keepalive_min_time: Duration,
    /// True if a client without open calls may ping every [`Options::keepalive_min_time`]; otherwise every 2 h.
    pub keepalive_permit_without_stream: bool,
    /// Time for a TLS handshake, with what is looked up of the client.
    pub handshake_timeout: Duration,
    /// Looks up names for listeners that compare certificates with addresses ([`crate::Listener::checks_address`]).
    pub resolver: Arc<dyn tls::Resolver + Send + Sync>,
    /// Interval at which each TLS connection is checked again and closed if its client would not be let in now, for example
    /// because its certificate has ended.
    pub certificates_checked_every: Duration,
    /// Is told of connections that TLS does not let in, some a second at most. It is called on any thread and must not wait.
    pub rejected: Arc<dyn Fn(&Rejected) + Send + Sync>,
}

impl Options {
    /// Largest body of a request that is no gRPC call, in bytes, unless the service allows for more ([`crate::RequestBody::allow`]): of a
    /// message in base64, with some space around it.
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
            // As etcd's, which is grpc-go's largest.
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
            rejected: Arc::new(|_| {}),
        }
    }
}
