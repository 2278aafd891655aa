//! What a connection allows the other end: [`Options`], and [`Limits`] against those who mean harm.

use std::time::Duration;

use crate::frame::{WINDOW_BYTES, WINDOW_BYTES_MAX};
use crate::hpack::TABLE_BYTES;

/// How often something may happen: so many times at once, and so many more each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Times at once.
    pub burst: u32,
    /// Times a second after that.
    pub per_second: u32,
}

impl Rate {
    /// So many times at once, and so many more each second.
    pub const fn new(burst: u32, per_second: u32) -> Rate {
        Rate { burst, per_second }
    }
}

/// Bounds for what the protocol allows and no well-behaved end does often. Exceeding one ends the connection with
/// ENHANCE_YOUR_CALM and the name of the limit ([`crate::Limit::name`]).
///
/// What is bounded in other ways needs no limit here: frames that are answered, such as PING, are not read while the other
/// end does not take the answers ([`Options::output_bytes_max`]); a SETTINGS frame looks at the open streams at most twice,
/// however often it changes the initial window; header blocks that unpack to megabytes are not unpacked, and end the connection ([`Options::header_list_bytes_max`]); PRIORITY
/// and unknown frames leave nothing behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that the other end resets in the turn ([`crate::Connection::begin_turn`]) in which it opened them ("rapid
    /// reset", CVE-2023-44487). A stream that is answered completely makes up for one.
    pub early_resets: Rate,
    /// Streams that this end has to reset or refuse because of what the other end sent ("made you reset", CVE-2025-8671).
    pub provoked_resets: Rate,
    /// SETTINGS frames, the first and acknowledgements not counted (CVE-2019-9515).
    pub settings: Rate,
    /// PING frames, acknowledgements not counted (CVE-2019-9512). What is sent of calls makes up for all before it: clients of
    /// gRPC measure the network with a ping for each answer.
    pub pings: Rate,
    /// DATA frames without data that do not end their stream (CVE-2019-9518).
    pub empty_data: Rate,
    /// GOAWAY frames. An end that leaves sends two, and one more if it then finds an error.
    pub goaways: Rate,
    /// CONTINUATION frames of one header block (CVE-2024-27316).
    pub continuations_max: u32,
    /// Bytes of one header block as it is sent, over all its frames. A block of one frame is always taken.
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

/// What a connection allows the other end. Connections share one in an `Arc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Receive window of a stream in bytes, at most 2^31-1: what the other end may send before the consumer has released
    /// anything.
    pub stream_window_bytes: u32,
    /// Bytes up to which receive windows of streams grow when the network's delay makes the window the bound (as measured
    /// by pings). A value that is not larger than [`Options::stream_window_bytes`] switches this off.
    pub stream_window_bytes_max: u32,
    /// Receive window of the connection in bytes, from 65,535 to 2^31-1. It is never smaller than that of one stream, and
    /// once those have grown, never smaller than four of them.
    ///
    /// A stream whose consumer stops keeps its own window of this one, and what is left is for all others: it should be
    /// several times [`Options::stream_window_bytes`].
    pub connection_window_bytes: u32,
    /// Streams that the other end may have open at once; `u32::MAX` for no bound. A client allows none in any case.
    pub streams_max: u32,
    /// Largest header list that is taken, in bytes as RFC 9113, section 6.5.2 counts them: 32 for each field besides its
    /// texts. A request with a larger one is answered with status 431, a response with a larger one is reset; one that is more
    /// than four times as large ends the connection ([`crate::Limit::HeaderList`]), and so does one whose block exceeds
    /// [`Limits::block_bytes_max`].
    pub header_list_bytes_max: u32,
    /// Size of the table for header blocks that the other end is asked to keep to, in bytes as RFC 7541, section 4.1 counts
    /// them. At most 4,096 are ever used: those are what holds until the other end has heard of this.
    pub header_table_bytes: u32,
    /// Output in bytes beyond which bodies wait in their streams, and beyond twice of which nothing is taken from the other
    /// end ([`crate::Connection::is_blocked`]). Answers to PING wait behind it: with much more, a client on a slow network that
    /// takes a large answer would think that nobody is there.
    pub output_bytes_max: usize,
    /// Time for the other end to acknowledge the settings.
    pub settings_timeout: Duration,
    /// Bounds for what nobody should do often.
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
            settings_timeout: Duration::from_secs(20),
            limits: Limits::default(),
        }
    }
}

impl Options {
    /// The receive window of new streams, within what the protocol allows.
    pub(crate) fn stream_window(&self) -> u32 {
        self.stream_window_bytes.min(WINDOW_BYTES_MAX)
    }

    /// The receive window of the connection, within what the protocol allows.
    pub(crate) fn connection_window(&self) -> u32 {
        self.connection_window_bytes.clamp(WINDOW_BYTES, WINDOW_BYTES_MAX)
    }
}

/// Counts what a [`Rate`] allows. Times are milliseconds of the connection's clock, which wraps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    used: u32,
    since: u32,
}

impl Bucket {
    /// Counts one; false if it is one too many.
    pub(crate) fn take(&mut self, rate: Rate, now: u32) -> bool {
        if self.used == 0 {
            self.since = now;
        }
        let passed = u64::from(now.wrapping_sub(self.since));
        let regained = passed * u64::from(rate.per_second) / 1000;
        if regained > 0 {
            self.used = u32::try_from(regained).map_or(0, |regained| self.used.saturating_sub(regained));
            // What is left of a second counts on.
            let spent = regained * 1000 / u64::from(rate.per_second);
            self.since = self.since.wrapping_add(spent as u32);
        }
        self.used = self.used.saturating_add(1);
        self.used <= rate.burst
    }

    /// Returns true if as much is allowed as if nothing had ever been counted.
    pub(crate) fn is_full(&self, rate: Rate, now: u32) -> bool {
        let passed = u64::from(now.wrapping_sub(self.since));
        self.used == 0
            || rate.burst == u32::MAX
            || passed * u64::from(rate.per_second) / 1000 >= u64::from(self.used)
    }

    /// Takes one back.
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
