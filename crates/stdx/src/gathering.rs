use std::time::Duration;

/// Decides whether a thread that processes messages in turns should yield the processor
/// (`std::thread::yield_now`) before its next turn, so that this turn finds more messages.
///
/// A sleeping thread is woken by the first message that arrives, and may take the processor from the sender
/// before the sender has sent more. If all processors are busy, each wake-up then finds little to do, and
/// wake-ups and system calls cost more than the work itself. A thread that yields instead of sleeping runs
/// again after the other threads have run, and finds everything that all of them have sent.
///
/// Yielding has a disadvantage: the thread may have to wait some milliseconds for a thread that only
/// computes, while a sleeping thread would have been woken immediately. So a thread yields only under two
/// conditions. First, its turns find several messages on average, so messages come fast enough. Second,
/// yielding has been worth the wait: on average, the turns after a yield find at least one message for each
/// 400 us of waiting, and no wait takes 20 ms or longer. If the second condition fails, the thread stops
/// yielding for some thousand turns. All messages that a turn after a yield finds are counted, because it is
/// not known which of them arrived due to the yield.
///
/// ```
/// let mut gathering = stdx::Gathering::new(3);
/// assert!(!(0..1000).any(|_| gathering.turn(1)), "one client alone");
/// assert!((0..100).any(|_| gathering.turn(20)));
/// ```
#[derive(Debug)]
pub struct Gathering {
    /// Average number of messages found in recent turns, in units of 1/[`WHOLE`].
    average: u64,
    /// Minimum value of `average` at which the thread yields, in units of 1/[`WHOLE`] messages.
    enough: u64,
    /// Duration of the yield before the current turn; `None` if the thread did not yield.
    gave_way: Option<Duration>,
    /// Average duration of recent yields, in units of 1/[`WHOLE`] microseconds.
    waited_us: u64,
    /// Average number of messages found in recent turns after a yield, in units of 1/[`WHOLE`].
    found: u64,
    /// Number of turns for which the thread will not yield, because yielding was not worth it.
    pause: u32,
}

/// The value 1 of the averages, which are fixed-point numbers.
const WHOLE: u64 = 256;
/// Maximum number of messages that are counted for a turn, so that a single turn with very many does not
/// determine the averages.
const TURN_MAX: u64 = 32;
/// Maximum average time of a yield per message found after it, in microseconds.
const WORTH_US: u64 = 400;
/// Duration of a single yield that is too long, even if many messages are found after it.
const AT_ONCE: Duration = Duration::from_millis(20);
/// Initial value of the average number of messages found after a yield. It is high, so that the first few
/// yields do not decide yet whether yielding is worth it.
const CREDIT: u64 = 8 * WHOLE;
/// Number of turns for which a thread does not yield once yielding was not worth it.
const PAUSE_TURNS: u32 = 4000;

impl Gathering {
    /// Returns the state for a thread that yields while its turns find at least `enough` messages on average.
    /// `enough` must be at most 32.
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

    /// Records a turn that has found `things` messages. Returns true if the thread should yield before the
    /// next turn.
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
