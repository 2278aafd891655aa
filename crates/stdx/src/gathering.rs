use std::time::Duration;

/// Decides whether a thread yields the processor (`std::thread::yield_now`) before it sleeps or looks for
/// more work.
///
/// A sleeping thread is woken by the first message that arrives, and may take the processor from the sender
/// before the sender has sent more. If processors are busy, each wake-up finds little to do, and wake-ups,
/// system calls and responses cost more than the work itself. A thread that yields instead is still runnable
/// after the other threads have had their turn, and finds everything that all of them sent.
///
/// The disadvantage: a yielding thread may wait behind threads that only compute, for a time slice of some
/// milliseconds, while a sleeping thread would have been woken at once. So a thread yields only under two
/// conditions. First, its turns find several messages even without yielding, which shows that messages are
/// queued anyway. Second, the turns after a yield find at least one message for each 400 us of waiting, and
/// no wait takes 20 ms. If the second condition fails, the thread stops yielding for some thousand turns. All
/// messages that a turn after a yield finds are counted, because those that arrived due to the yield cannot
/// be distinguished from others.
///
/// ```
/// let mut gathering = stdx::Gathering::new(3);
/// assert!(!(0..1000).any(|_| gathering.turn(1)), "one client alone");
/// assert!((0..100).any(|_| gathering.turn(20)));
/// ```
#[derive(Debug)]
pub struct Gathering {
    /// Average number of messages that recent turns found, in units of 1/[`WHOLE`].
    average: u64,
    /// Average from which on the thread yields, in the same unit.
    enough: u64,
    /// Time for which the thread yielded after the last turn; `None` if it did not yield.
    gave_way: Option<Duration>,
    /// Average time of recent yields, in units of 1/[`WHOLE`] microsecond.
    waited_us: u64,
    /// Average number of messages found by the turns after a yield, in units of 1/[`WHOLE`].
    found: u64,
    /// Number of further turns in which the thread does not yield.
    pause: u32,
}

/// Fixed-point unit of the averages.
const WHOLE: u64 = 256;
/// Maximum number of messages counted per turn: one large turn says little about the next one.
const TURN_MAX: u64 = 32;
/// Maximum average time of a yield per message found after it, in microseconds.
const WORTH_US: u64 = 400;
/// Duration from which on a single yield is too long, however many messages are found after it.
const AT_ONCE: Duration = Duration::from_millis(20);
/// Initial value of the average of messages found after a yield. It is a credit, because the first few yields
/// show little.
const CREDIT: u64 = 8 * WHOLE;
/// Number of turns in which a thread does not yield after yielding was not worth it.
const PAUSE_TURNS: u32 = 4000;

impl Gathering {
    /// Returns the state of a thread that yields while its turns find at least `enough` messages on average,
    /// up to 32.
    pub const fn new(enough: u64) -> Gathering {
        Gathering {
            average: 0,
            enough: WHOLE * enough,
            gave_way: None,
            waited_us: 0,
            found: CREDIT,
            pause: 0,
        }
    }

    /// Records a turn that found `things` messages. Returns true if the thread should yield before the next
    /// turn.
    pub fn turn(&mut self, things: u64) -> bool {
        self.average = (15 * self.average + WHOLE * things.min(TURN_MAX)) / 16;
        if let Some(took) = self.gave_way.take() {
            let took_us = u64::try_from(took.min(AT_ONCE).as_micros()).unwrap_or(u64::MAX);
            self.waited_us = (7 * self.waited_us + WHOLE * took_us) / 8;
            self.found = (7 * self.found + WHOLE * things.min(TURN_MAX)) / 8;
            if took >= AT_ONCE || self.waited_us > WORTH_US * self.found {
                (self.waited_us, self.found, self.pause) = (0, CREDIT, PAUSE_TURNS);
            }
        }
        self.pause = self.pause.saturating_sub(1);
        self.pause == 0 && self.average >= self.enough
    }

    /// Records that the thread yielded before its current turn, for the time `took`.
    pub fn gave_way(&mut self, took: Duration) {
        self.gave_way = Some(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_turns_that_find_much_by_themselves_let_others_go_first() {
        let mut gathering = Gathering::new(3);
        // One turn with many messages does not show that messages are queued all the time.
        assert!(!gathering.turn(1000));
        // Each turn finds a read and its response, which is not enough, however often it happens.
        assert!((0..10_000).all(|_| !gathering.turn(2)));
        assert!((0..100).filter(|_| gathering.turn(5)).count() > 80);
        // Without load the state is as at the beginning.
        assert!((0..100).filter(|_| gathering.turn(1)).count() < 20);
        assert!(!gathering.turn(1));
    }

    /// Counts how many of `turns` turns, with `things` messages each, ask the thread to yield; each yield
    /// takes `took`.
    fn yields(gathering: &mut Gathering, turns: usize, things: u64, took: Duration) -> usize {
        let gives_way = |_: &usize| {
            let gives_way = gathering.turn(things);
            if gives_way {
                gathering.gave_way(took);
            }
            gives_way
        };
        (0..turns).filter(gives_way).count()
    }

    #[test]
    fn others_that_take_long_and_bring_little_do_not_go_first() {
        let mut gathering = Gathering::new(3);
        assert!(yields(&mut gathering, 1000, 20, Duration::from_millis(2)) > 900, "100 us for each");
        // The turns find one message per 640 us of waiting, as if another thread only computed and there were
        // few clients.
        let many = yields(&mut gathering, 20_000, 5, Duration::from_micros(3200));
        assert!((5..100).contains(&many), "tried again now and then: {many}");
        // The thread that computes has ended.
        let turns = 2 * PAUSE_TURNS as usize;
        let after = yields(&mut gathering, turns, 5, Duration::from_micros(300));
        assert!(after > turns / 3, "{after}");
        // One long yield is enough to stop, however many messages follow it.
        assert!(gathering.turn(1_000_000));
        gathering.gave_way(AT_ONCE);
        assert!(!gathering.turn(1_000_000), "it is left at once");
        assert_eq!(
            yields(&mut gathering, PAUSE_TURNS as usize - 2, 1_000_000, AT_ONCE),
            0,
            "and for a while"
        );
    }

    #[test]
    fn whatever_a_clock_says_is_taken() {
        let mut gathering = Gathering::new(1);
        assert!(yields(&mut gathering, 20_000, 2, Duration::MAX) < 20);
        assert!(yields(&mut gathering, 20_000, u64::from(u32::MAX), Duration::ZERO) > 10_000);
    }
}
