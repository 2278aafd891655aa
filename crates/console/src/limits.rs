use std::time::Duration;

/// Limits of the console's memory, connections and waiting times. `docs/reference/resources.md` says how much
/// memory follows from them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of browser connections. For another one, the connection that has been idle longest is
    /// closed. If all connections have a request in flight, the new one is closed.
    pub connections_max: usize,
    /// Maximum number of requests that are forwarded at the same time; further ones are refused with status
    /// 503. It must be smaller than the number of connections, so that the pages can be loaded even when this
    ///      limit is reached.
    pub forwarded_max: usize,
    /// Maximum number of requests that are forwarded at the same time for one client address; further ones
    /// are refused with status 503. A browser sends at most six at a time.
    pub forwarded_per_address: usize,
    /// Maximum size in bytes of each buffer of a connection: for the headers of a request, for bytes that are
    /// read ahead, and for bytes that are to be written.
    pub buffer_bytes: usize,
    /// Maximum size of the body of a request in bytes. The limit protects the members, because the console
    /// never holds a whole body. It allows the largest value that a member accepts by default, which has 2
    /// MiB in base64, and the JSON around it.
    pub body_bytes_max: u64,
    /// Time within which the headers of a request must arrive, counted from the start of the connection or
    /// the end of the previous response. So it is also the time after which an idle connection is closed.
    pub head_timeout: Duration,
    /// Time within which the body of a request must arrive.
    pub body_timeout: Duration,
    /// Time after which a connection is closed because the browser or the member accepts no bytes.
    pub stall_timeout: Duration,
    /// Time limit for connecting to a member, including the name look-up and the TLS handshake.
    pub dial_timeout: Duration,
    /// Time within which a member must begin its response to a request for a page. For other calls there is
    /// no limit.
    pub page_timeout: Duration,
    /// Time for which an idle connection to a member is kept. It is shorter than 10 s, after which members
    /// close it.
    pub idle_link: Duration,
    /// Time for which a list of members is used without asking again.
    pub members_fresh: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 64,
            forwarded_max: 48,
            forwarded_per_address: 24,
            buffer_bytes: 32 * 1024,
            body_bytes_max: 4 << 20,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            dial_timeout: Duration::from_secs(5),
            page_timeout: Duration::from_secs(10),
            idle_link: Duration::from_secs(5),
            members_fresh: Duration::from_secs(2),
        }
    }
}
