//! Decides when to update receive windows (RFC 9113, section 5.2) and when to enlarge them.

use crate::frame::WINDOW_BYTES_MAX;

/// Pause in milliseconds between a measurement that did not enlarge the window and the next measurement.
const PAUSE_MS: u32 = 1000;

/// Returns the number of bytes by which a WINDOW_UPDATE frame should enlarge a receive window; 0 if an update
/// is not worth a frame yet. `target` is the size that the window should have, `may_receive` the bytes that
/// the peer may still send, `unreleased` the bytes that the consumer holds.
///
/// The part of the window that the consumer does not hold is available to the peer. An update is sent when
/// half of that part is used up: so updates are rare, and arrive before the sender has to stop. The half is
/// not computed from the whole window, because then no update would be sent while the consumer holds more
/// than half of it, and a sender that has used up the rest would wait until the consumer releases bytes,
/// which it may never do. Example with a window of 1,000 bytes, of which one call holds 600, and another call
/// whose bytes are released immediately:
///
/// ```text
/// may send 400, nothing is missing      no update
/// 150 come and go: may send 250         150 are missing: less than half of 400
/// 60 come and go: may send 190          210 are missing: update, may send 400
/// ```
pub(crate) fn update(target: u32, may_receive: i64, unreleased: u64) -> u32 {
    let free = i64::from(target) - unreleased as i64;
    if free > 0 && may_receive <= free / 2 {
        // With a negative `may_receive`, the result can exceed the target by the bytes that the peer was
        // allowed to send in excess before.
        u32::try_from(free - may_receive).unwrap_or(WINDOW_BYTES_MAX).min(WINDOW_BYTES_MAX)
    } else {
        0
    }
}

/// Enlarges receive windows to the product of the network's delay and throughput, so that they do not limit
/// the throughput.
///
/// The bytes that arrive between a PING and its acknowledgement are the bytes of one round trip. If they
/// nearly fill the window, the window is the bottleneck and is doubled. Example with a window of 64 KiB, a
/// delay of 50 ms and a sender that can send 10 MiB/s:
///
/// ```text
/// ping; 64 KiB come; answer    64 KiB in a round trip, as many as the window: 128 KiB
/// ping; 128 KiB come; answer   256 KiB, and then 512 KiB
/// ping; 512 KiB come; answer   1 MiB
/// ping; 512 KiB come; answer   half of the window: it stays, and is measured again after a second
/// ```
///
/// A measurement begins only when half of a window is used, so short requests cause none.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Receive window that each stream should have, in bytes.
    pub(crate) target: u32,
    max: u32,
    measuring: Measuring,
}

/// State of the measurement that decides whether the windows grow.
#[derive(Clone, Copy, Debug)]
enum Measuring {
    /// A measurement may begin.
    No,
    /// A PING was sent and is not acknowledged yet. The number counts the bytes of the current burst that
    /// have arrived so far, including those before the PING.
    Came(u32),
    /// The last measurement did not enlarge the window. It ended at this time in milliseconds, after which
    /// there is a pause.
    Paused(u32),
}

impl Growth {
    pub(crate) fn new(target: u32, max: u32) -> Growth {
        Growth { target, max: max.min(WINDOW_BYTES_MAX), measuring: Measuring::No }
    }

    /// Notes a received DATA frame of `bytes` bytes. `may_receive` is the stream's window after the frame,
    /// `unreleased` the number of bytes that the consumer holds. Returns true if a PING must be sent now,
    /// which begins a measurement.
    pub(crate) fn received(&mut self, bytes: u32, may_receive: i64, unreleased: u32, now: u32) -> bool {
        let is_due = match &mut self.measuring {
            Measuring::Came(came) => {
                *came = came.saturating_add(bytes);
                return false;
            }
            Measuring::Paused(since) => now.wrapping_sub(*since) >= PAUSE_MS,
            Measuring::No => true,
        };
        if self.target >= self.max || may_receive > i64::from(self.target / 2) || !is_due {
            return false;
        }
        // The bytes that used up the window before this frame also count, because they belong to the same
        // burst. Bytes that wait for the consumer do not count.
        let before = i64::from(self.target) - may_receive - i64::from(unreleased);
        let before = u32::try_from(before.max(0)).unwrap_or(u32::MAX);
        self.measuring = Measuring::Came(before.saturating_add(bytes));
        true
    }

    /// Notes that the PING was acknowledged, and enlarges the window if it was the bottleneck.
    pub(crate) fn measured(&mut self, now: u32) {
        let Measuring::Came(came) = self.measuring else { return };
        self.measuring = Measuring::No;
        if u64::from(came) * 3 / 2 >= u64::from(self.target) {
            self.target = self.target.saturating_mul(2).min(self.max);
        } else {
            self.measuring = Measuring::Paused(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_come_for_half_a_window_and_wait_for_the_consumer() {
        assert_eq!(update(1000, 1000, 0), 0);
        assert_eq!(update(1000, 501, 0), 0);
        assert_eq!(update(1000, 500, 0), 500);
        assert_eq!(update(1000, 0, 1000), 0);
        assert_eq!(update(1000, 0, 400), 600);
        // More than half is held.
        assert_eq!(update(1000, 0, 999), 1);
        assert_eq!(update(1000, 250, 600), 0);
        assert_eq!(update(1000, 190, 600), 210);
        // The consumer holds more than the target, so no update is due before it releases bytes.
        assert_eq!(update(1000, -500, 1200), 0);
        // The window has grown, or was too large before.
        assert_eq!(update(2000, 0, 0), 2000);
        assert_eq!(update(1000, -500, 0), 1500);
        assert_eq!(update(1000, 3000, 0), 0);
        assert_eq!(update(0, 0, 0), 0);
        assert_eq!(update(1, 0, 0), 1);
    }

    #[test]
    fn a_window_grows_while_it_is_the_bound() {
        let mut growth = Growth::new(64 << 10, 1 << 20);
        // Little of the window is used.
        assert!(!growth.received(1000, 60_000, 1000, 0));
        let mut now = 0;
        while growth.target < 512 << 10 {
            let before = growth.target;
            // The consumer releases immediately: half of the window has arrived, the last part in this frame,
            // then the rest.
            assert!(growth.received(1000, i64::from(before / 2), 1000, now));
            assert!(!growth.received(before / 2, 0, 0, now));
            now += 50;
            growth.measured(now);
            assert_eq!(growth.target, 2 * before);
        }
        // The consumer holds everything that arrived.
        assert!(growth.received(1000, 0, 512 << 10, now));
        growth.received(100_000, 0, 512 << 10, now);
        growth.measured(now);
        assert_eq!(growth.target, 512 << 10);
        assert!(!growth.received(1, 0, 0, now + PAUSE_MS - 1));
        assert!(growth.received(1 << 20, 0, 0, now + PAUSE_MS));
        growth.measured(now);
        assert_eq!(growth.target, 1 << 20);
        assert!(!growth.received(1, 0, 0, now + 2 * PAUSE_MS));
    }

    /// Times wrap after 49 days, and connections may be silent for as long.
    #[test]
    fn a_connection_that_was_silent_for_weeks_is_measured() {
        for weeks in [4, 5, 6] {
            let now = weeks * 7 * 24 * 3_600_000;
            let mut growth = Growth::new(64 << 10, 1 << 20);
            assert!(growth.received(1000, 0, 64 << 10, now), "{weeks}");
            growth.measured(now);
            assert!(!growth.received(1000, 0, 64 << 10, now.wrapping_add(PAUSE_MS - 1)), "{weeks}");
            assert!(growth.received(1000, 0, 64 << 10, now.wrapping_add(now)), "{weeks}");
        }
    }
}
