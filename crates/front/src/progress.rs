//! Detects clients that have stopped reading or sending: [`Progress`] watches one counter, [`StreamProgress`]
//! one stream among the streams of a connection.

use std::time::{Duration, Instant};

use crate::Options;
use crate::responder::StreamBytes;

/// Detects that a counter has not changed for some time.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    seen: Option<(u64, Instant)>,
}

impl Progress {
    /// Returns true if the counter had the value `moved` at the last check.
    fn is_at(&self, moved: u64) -> bool {
        self.seen.is_some_and(|(seen, _)| seen == moved)
    }

    /// Returns true if the counter `moved` has had the same value in all checks for at least `timeout`.
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

/// Input of a check for stalled streams: the state of the connection and of its client.
pub(crate) struct StallCheck<'a> {
    pub(crate) now: Instant,
    pub(crate) options: &'a Options,
    /// Number of answer bytes that are queued on all streams of the connection.
    pub(crate) queued: usize,
    /// Total number of answer bytes that the connection has ever sent.
    pub(crate) sent: u64,
    /// True if the client has read no byte of any answer for the stall timeout.
    pub(crate) stands_still: bool,
    /// True if reading from the client was suspended at some time since the last check.
    pub(crate) was_deaf: bool,
}

/// Detects a stalled stream. A stream does not count as stalled merely because the client is slow, or takes
/// the data of other streams first.
#[derive(Debug, Default)]
pub(crate) struct StreamProgress {
    progress: Progress,
    /// Value that [`StallCheck::sent`] reaches when all bytes have been sent that were queued on other
    /// streams when this stream last made progress.
    due: u64,
}

impl StreamProgress {
    /// Returns true if the stream has made no progress for the stall timeout, and other streams are not the
    /// reason: either the bytes that were queued on them have been sent in the meantime, or no stream made
    /// progress.
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
