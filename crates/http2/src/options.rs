//! Defines the limits that a connection imposes on its peer: [`Options`], and [`Limits`] against abuse.

use crate::frame::{WINDOW_BYTES, WINDOW_BYTES_MAX};
use crate::hpack::TABLE_BYTES;

/// Rate limit with a burst: `burst` occurrences in any short time, plus `per_second` per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of occurrences that are allowed without any time between them.
    pub burst: u32,
    /// Number of further occurrences per second that are allowed after the burst.
    pub per_second: u32,
}

impl Rate {
    /// Creates a rate limit from its burst and its rate per second.
    pub const fn new(burst: u32, per_second: u32) -> Rate {
        Rate { burst, per_second }
    }
}

/// Limits for behavior that the protocol allows, but that a well-behaved peer does not show often. Exceeding
/// a limit ends the connection with ENHANCE_YOUR_CALM and the name of the limit ([`crate::Limit::name`]).
///
/// Some input needs no limit here because its cost is bounded otherwise. Frames that need a response, such as
/// PING, are not processed while the peer does not read ([`Options::output_bytes_max`]). A SETTINGS frame
/// makes this end visit the open streams at most twice, however often it changes the initial window. Decoding
/// a header block stops, and ends the connection, at four times [`Options::header_list_bytes_max`]. PRIORITY
/// and unknown frames make this end store nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rate of streams that the peer resets in the same turn ([`crate::Connection::begin_turn`]) in which it
    /// opened them ("rapid reset", CVE-2023-44487). Each stream that is answered completely offsets one such
    /// reset.
    pub early_resets: Rate,
    /// Rate of streams that this end must reset or refuse because of the peer's input ("made you reset",
    /// CVE-2025-8671).
    pub provoked_resets: Rate,
    /// Rate of SETTINGS frames, without the first one and acknowledgements (CVE-2019-9515).
    pub settings: Rate,
    /// Rate of PING frames, without acknowledgements (CVE-2019-9512). If this end has sent HEADERS or DATA
    /// since the last PING, the count restarts, because gRPC clients measure bandwidth with one PING per
    /// answer.
    pub pings: Rate,
    /// Rate of empty DATA frames that do not end their stream (CVE-2019-9518).
    pub empty_data: Rate,
    /// Rate of GOAWAY frames. A well-behaved peer sends at most three: two for a graceful shutdown, and one
    /// for a later error.
    pub goaways: Rate,
    /// Maximum number of CONTINUATION frames in one header block (CVE-2024-27316).
    pub continuations_max: u32,
    /// Maximum encoded size of a header block in bytes, over all its frames. A block in a single frame is
    /// always accepted.
    pub block_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            early_resets: Rate::new(256, 32),
            provoked_resets: Rate::new(1024, 32),
            settings: Rate::new(100, 1),
            pings: Rate::new(1000, 100),
            empty_data: Rate::new(1000, 100),
            goaways: Rate::new(12, 1),
            continuations_max: 16,
            block_bytes_max: 80 * 1024,
        }
    }
}

/// Limits and windows that a connection grants the peer. Connections share one value in an `Arc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Receive window of a stream in bytes, at most 2^31-1: the number of bytes that the peer may send before
    /// the consumer has released any.
    pub stream_window_bytes: u32,
    /// Size in bytes up to which receive windows of streams grow when the network delay makes the window the
    /// bottleneck, as measured by pings. A value not larger than [`Options::stream_window_bytes`] disables
    /// growth.
    pub stream_window_bytes_max: u32,
    /// Receive window of the connection in bytes, from 65,535 to 2^31-1. The actual window is never smaller
    /// than one stream window, and once stream windows have grown, never smaller than four of them.
    ///
    /// A stream whose consumer stops uses up one stream window of the connection's window, which leaves only
    /// the rest to other streams. So the value should be several times [`Options::stream_window_bytes`].
    pub connection_window_bytes: u32,
    /// Maximum number of streams that the peer may have open at a time; `u32::MAX` for no limit. Only for
    /// servers, because a client accepts no streams.
    pub streams_max: u32,
    /// Maximum size of a header list that is accepted, in bytes as RFC 9113, section 6.5.2 counts them: for
    /// each field its name, its value and 32 bytes. A request with a larger list is answered with status 431;
    /// the stream of a response with a larger list is reset. A list of more than four times this size ends
    /// the connection ([`crate::Limit::HeaderList`]). A block larger than [`Limits::block_bytes_max`] ends
    /// the connection as well.
    pub header_list_bytes_max: u32,
    /// Size of the header compression table that the peer is asked to use, in bytes as RFC 7541, section 4.1
    /// counts them. A value above 4,096, the default of HTTP/2, has no effect. Until the peer has received a
    /// lower value, it may use the default.
    pub header_table_bytes: u32,
    /// Number of bytes of pending output at which further bodies stay queued in their streams. From twice
    /// this value on, no input is taken from the peer ([`crate::Connection::is_blocked`]). PING
    /// acknowledgements are sent after the output that is already pending. So with a much larger value, a
    /// client that receives a large answer over a slow network could time out while it waits for one.
    pub output_bytes_max: usize,
    /// Limits against abuse by the peer.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            stream_window_bytes: WINDOW_BYTES,
            stream_window_bytes_max: 4 << 20,
            connection_window_bytes: 1 << 20,
            streams_max: u32::MAX,
            header_list_bytes_max: 64 * 1024,
            header_table_bytes: TABLE_BYTES as u32,
            output_bytes_max: 64 * 1024,
            limits: Limits::default(),
        }
    }
}

impl Options {
    /// Returns the receive window of new streams, limited to the protocol's maximum.
    pub(crate) fn stream_window(&self) -> u32 {
        self.stream_window_bytes.min(WINDOW_BYTES_MAX)
    }

    /// Returns the receive window of the connection, limited to the protocol's range.
    pub(crate) fn connection_window(&self) -> u32 {
        self.connection_window_bytes.clamp(WINDOW_BYTES, WINDOW_BYTES_MAX)
    }
}

/// Counter of occurrences for a [`Rate`]. Times are in milliseconds of the connection's clock, which wraps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    used: u32,
    since: u32,
}

impl Bucket {
    /// Counts one occurrence. Returns false if it exceeds the rate.
    pub(crate) fn take(&mut self, rate: Rate, now: u32) -> bool {
        if self.used == 0 {
            self.since = now;
        }
        let passed = u64::from(now.wrapping_sub(self.since));
        let regained = passed * u64::from(rate.per_second) / 1000;
        if regained > 0 {
            self.used = u32::try_from(regained).map_or(0, |regained| self.used.saturating_sub(regained));
            // `since` advances only by the time of whole regained units, so that the rest of the time counts
            // for the next unit.
            let spent = regained * 1000 / u64::from(rate.per_second);
            self.since = self.since.wrapping_add(spent as u32);
        }
        self.used = self.used.saturating_add(1);
        self.used <= rate.burst
    }

    /// Returns true if the full burst is available again.
    pub(crate) fn is_full(&self, rate: Rate, now: u32) -> bool {
        let passed = u64::from(now.wrapping_sub(self.since));
        self.used == 0
            || rate.burst == u32::MAX
            || passed * u64::from(rate.per_second) / 1000 >= u64::from(self.used)
    }

    /// Reverses one counted occurrence.
    pub(crate) fn give_back(&mut self) {
        self.used = self.used.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_allows_a_burst_and_then_a_rate() {
        let rate = Rate::new(10, 2);
        let mut bucket = Bucket::default();
        // A clock that is about to wrap.
        let start = u32::MAX - 300;
        assert!((0..10).all(|_| bucket.take(rate, start)));
        assert!(!bucket.take(rate, start.wrapping_add(499)));
        let mut bucket = Bucket::default();
        assert!((0..10).all(|_| bucket.take(rate, start)));
        for half in 1..20 {
            assert!(bucket.take(rate, start.wrapping_add(half * 500)), "{half}");
        }
        assert!(!bucket.take(rate, start.wrapping_add(19 * 500 + 499)));
        let later = start.wrapping_add(1_000_000);
        assert!((0..10).all(|_| bucket.take(rate, later)));
        assert!(!bucket.take(rate, later));
        bucket.give_back();
        bucket.give_back();
        assert!(bucket.take(rate, later));
        assert!(!bucket.take(rate, later));
    }
}
