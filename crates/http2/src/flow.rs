//! Windows (RFC 9113, section 5.2): how much more may be received, and how far receive windows grow.

use crate::frame::WINDOW_BYTES_MAX;

/// Milliseconds until the next measurement after one that did not let the window grow.
const PAUSE_MS: u32 = 1000;

/// How many bytes to add to a receive window, given what it should be, what the other end may still send, and what the
/// consumer holds; 0 if it is not worth a frame yet.
///
/// Updates are sent when half of what the consumer does not hold is used up, so they cost little and come before the sender
/// has to stop. What the consumer holds does not count for that half: otherwise nothing would be given back once it holds
/// more than half of the window, and a sender that has used up the rest would wait for ever. An example with a window of 1,000 bytes,
/// of which 600 are held by one call, and another call whose bytes are released at once:
///
/// ```text
/// may send 400, nothing is missing      no update
/// 150 come and go: may send 250         150 are missing: less than half of 400
/// 60 come and go: may send 190          210 are missing: update, may send 400
/// ```
pub(crate) fn update(target: u32, may_receive: i64, unreleased: u64) -> u32 {
    let free = i64::from(target) - unreleased as i64;
    if free > 0 && may_receive <= free / 2 {
        // It exceeds the target by no more than what was allowed too much before.
        u32::try_from(free - may_receive).unwrap_or(WINDOW_BYTES_MAX).min(WINDOW_BYTES_MAX)
    } else {
        0
    }
}

/// Lets receive windows grow to what the network's delay times its throughput demands.
///
/// What comes between a ping and its answer is what fits into a round trip. If that is nearly the window, the window is the
/// bound, and is doubled. An example with a window of 64 KiB, a delay of 50 ms and a sender that could send 10 MiB/s:
///
/// ```text
/// ping; 64 KiB come; answer    64 KiB in a round trip, as many as the window: 128 KiB
/// ping; 128 KiB come; answer   256 KiB, and then 512 KiB
/// ping; 512 KiB come; answer   1 MiB
/// ping; 512 KiB come; answer   half of the window: it stays, and is measured again after a second
/// ```
///
/// Measurements begin only when a window was used by half, so short requests cause none.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Receive window of each stream that sends, in bytes.
    pub(crate) target: u32,
    max: u32,
    measuring: Measuring,
}

/// State of the measurement that decides whether the windows grow.
#[derive(Clone, Copy, Debug)]
enum Measuring {
    /// The next one may begin.
    No,
    /// So many bytes came since the ping that is not answered yet.
    Came(u32),
    /// There is a pause since this time, after a measurement.
    Paused(u32),
}

impl Growth {
    pub(crate) fn new(target: u32, max: u32) -> Growth {
        Growth { target, max: max.min(WINDOW_BYTES_MAX), measuring: Measuring::No }
    }

    /// Notes that a DATA frame of so many bytes came, after which the stream may send `may_receive` more, while the consumer
    /// holds `unreleased`. Returns true if a ping is to be sent now.
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
        // What came before belongs to the same burst, unless it waits for the consumer.
        let before = i64::from(self.target) - may_receive - i64::from(unreleased);
        let before = u32::try_from(before.max(0)).unwrap_or(u32::MAX);
        self.measuring = Measuring::Came(before.saturating_add(bytes));
        true
    }

    /// The ping is answered.
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
        // The consumer holds more than the window should be: the sender could not go on anyway.
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
            // A consumer that is done at once: half of the window came, the last of it in this frame, and then the rest.
            assert!(growth.received(1000, i64::from(before / 2), 1000, now));
            assert!(!growth.received(before / 2, 0, 0, now));
            now += 50;
            growth.measured(now);
            assert_eq!(growth.target, 2 * before);
        }
        // A consumer that holds all that came.
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
