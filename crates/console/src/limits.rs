use std::time::Duration;

/// Limits of the console's memory, connections and waiting times. `docs/reference/resources.md` has the product of the limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest number of browser connections. A further connection replaces the one that has been idle
    /// longest. If all connections have a request in flight, the new one is closed.
    pub connections_max: usize,
    /// Largest number of requests forwarded at the same time; further ones are refused with 503. Smaller than
    /// the number of connections, so that the pages themselves can always be loaded.
    pub forwarded_max: usize,
    /// Largest number of forwarded requests per address. A browser has at most six in flight.
    pub forwarded_per_address: usize,
    /// Largest size in bytes of each buffer of a connection: the head of a request, the bytes read ahead, and
    /// the bytes that wait to be written.
    pub buffer_bytes: usize,
    /// Largest size of a request's body in bytes. The console never holds a whole body, so the limit protects
    /// the members. It allows a value of the largest size that a member accepts by default, which is 2 MiB in
    /// base64, plus its frame.
    pub body_bytes_max: u64,
    /// Time within which a request's head must arrive, counted from the start of the connection or the end of
    /// the previous response. Idle connections are closed after this time as well.
    pub head_timeout: Duration,
    /// Time within which a request's body must arrive.
    pub body_timeout: Duration,
    /// Time after which a browser, or a member, that accepts no bytes is given up.
    pub stall_timeout: Duration,
    /// Timeout of connecting to a member: name look-up, TCP and TLS.
    pub dial_timeout: Duration,
    /// Time within which a member has to begin its response with a page; a call may wait as long as its user likes.
    pub page_timeout: Duration,
    /// Time for which an idle connection to a member is kept. Members close idle connections after 10 s.
    pub idle_link: Duration,
    /// Time for which a fetched list of members counts as current.
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
