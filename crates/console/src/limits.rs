use std::time::Duration;

/// What bounds the console's memory, connections and waiting. The product of the bounds is in `docs/reference/resources.md`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of browsers. A further one takes the place of the one that has had no request under way for longest; if all have one,
    /// it is closed.
    pub connections_max: usize,
    /// Requests that are forwarded at the same time; further ones are refused with 503. Fewer than connections, so that the pages
    /// themselves can always be loaded.
    pub forwarded_max: usize,
    /// Of these, requests of one address. A browser has no more than six under way.
    pub forwarded_per_address: usize,
    /// Bytes of a request's head, and of the bytes that are read ahead or wait to be written on a connection, each.
    pub buffer_bytes: usize,
    /// Bytes of a request's body. A body is never held, so this bounds what a member is sent: a value of the largest size that a member
    /// takes by default is 2 MiB in base64, with its frame a little more.
    pub body_bytes_max: u64,
    /// Time in which a request's head must have come, from the begin of a connection or the end of the answer before. It closes
    /// connections that are idle, too.
    pub head_timeout: Duration,
    /// Time in which a request's body must have come.
    pub body_timeout: Duration,
    /// Time after which a browser, or a member, that takes no bytes is given up.
    pub stall_timeout: Duration,
    /// Time limit of connecting to a member: name, TCP and TLS.
    pub dial_timeout: Duration,
    /// Time in which a member has to begin its answer with a page; a call may wait for as long as its user likes.
    pub page_timeout: Duration,
    /// Time for which a connection to a member is kept for the next request. Members close idle ones after 10 s.
    pub idle_link: Duration,
    /// Time for which a list of members that was fetched is taken as current.
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
