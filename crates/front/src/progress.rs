//! Detection of clients that neither read nor send: [`Progress`] watches one counter, [`StreamProgress`] one
//! stream among others.

use std::time::{Duration, Instant};

use crate::Options;
use crate::responder::StreamBytes;

/// Detects whether a counter moves.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    seen: Option<(u64, Instant)>,
}

impl Progress {
    /// Returns true if the counter had the value `moved` at the last check.
    fn is_at(&self, moved: u64) -> bool {
        self.seen.is_some_and(|(seen, _)| seen == moved)
    }

    /// Returns true if every check within the last `timeout` or longer saw the same counter value.
    pub(crate) fn is_stalled(&mut self, moved: u64, now: Instant, timeout: Duration) -> bool {
        match self.seen {
            Some((seen, since)) if seen == moved => now.saturating_duration_since(since) >= timeout,
            _ => {
                self.seen = Some((moved, now));
                false
            }
        }
    }
}

/// State of a connection while it checks for stalled streams.
pub(crate) struct StallCheck<'a> {
    pub(crate) now: Instant,
    pub(crate) options: &'a Options,
    /// Answer bytes of the connection that are queued.
    pub(crate) queued: usize,
    /// Total answer bytes of calls that the connection has sent.
    pub(crate) sent: u64,
    /// True if the client has read no byte of any answer for the stall timeout.
    pub(crate) stands_still: bool,
    /// True if at some time since the last check the client was not read from.
    pub(crate) was_deaf: bool,
}

/// Detects a stalled stream. The client may be slow and may take other streams first.
#[derive(Debug, Default)]
pub(crate) struct StreamProgress {
    progress: Progress,
    /// Value of the connection's counter of sent bytes at which everything has been sent that was queued on
    /// other streams when this stream last made progress.
    due: u64,
}

impl StreamProgress {
    /// Returns true if the stream has made no progress for the stall timeout, although in that time the bytes
    /// queued on other streams were sent, or no stream of the connection made progress.
    pub(crate) fn is_stalled(&mut self, stream: StreamBytes, check: &StallCheck<'_>) -> bool {
        if !self.progress.is_at(stream.sent) {
            self.due = check.sent + check.queued.saturating_sub(stream.queued) as u64;
        }
        self.progress.is_stalled(stream.sent, check.now, check.options.stall_timeout)
            && (check.stands_still || check.sent >= self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stands_still_only_once_its_turn_has_come() {
        let (options, start) = (Options::default(), Instant::now());
        // 100 bytes of this stream are queued, and 1000 bytes of others.
        let (mut connection, mut stream) =
            (StreamBytes { sent: 0, queued: 1100 }, StreamBytes { sent: 0, queued: 100 });
        let mut progress = StreamProgress::default();
        let mut is_stalled = |connection: StreamBytes, stream: StreamBytes, timeouts: u32, stands_still| {
            let now = start + timeouts * options.stall_timeout;
            let StreamBytes { sent, queued } = connection;
            progress.is_stalled(
                stream,
                &StallCheck { now, options: &options, queued, sent, stands_still, was_deaf: false },
            )
        };
        assert!(!is_stalled(connection, stream, 0, false));
        // The client reads the other streams slowly, and new data is queued on them all the time.
        for timeouts in 1..10 {
            connection.sent += 100;
            assert!(!is_stalled(connection, stream, timeouts, false));
        }
        connection.sent += 100;
        assert!(is_stalled(connection, stream, 10, false));
        // A stream that makes progress gets a new timeout, as long as any other stream makes progress too.
        for moves in [&mut connection, &mut stream] {
            moves.sent += 10;
            moves.queued -= 10;
        }
        assert!(!is_stalled(connection, stream, 20, false));
        assert!(!is_stalled(connection, stream, 21, false));
        assert!(is_stalled(connection, stream, 21, true));
    }
}
