use std::time::Duration;

/// Decides whether a thread lets others run (`std::thread::yield_now`) before it sleeps or looks for more work.
///
/// A thread that sleeps is woken by the first thing that comes, and takes the processor from whoever brings it, before that one has
/// brought more: where processors are busy, each wake finds little to do, and wakes, system calls and answers cost more than the
/// work. A thread that gives way instead is still there when the others have had their turn, and finds what all of them brought.
///
/// The price is that it may stand behind threads that only compute, for a slice of some milliseconds, where it would have been
/// woken at once. So it is done only while turns find several things by themselves, which is to say that there is a queue anyway,
/// and only while the turns behind it find a thing for each 400 us of it, and none takes 20 ms. Else it is left for some thousand
/// turns. What counts is what such a turn finds, whenever it came: what giving way itself has brought cannot be told.
///
/// ```
/// let mut gathering = stdx::Gathering::new(3);
/// assert!(!(0..1000).any(|_| gathering.turn(1)), "one client alone");
/// assert!((0..100).any(|_| gathering.turn(20)));
/// ```
#[derive(Debug)]
pub struct Gathering {
    /// Number of things that recent turns found, on average, in parts of [`WHOLE`].
    average: u64,
    /// The average from which on the thread gives way, in the same parts.
    enough: u64,
    /// Time for which the thread gave way after the last turn; `None` if it did not.
    gave_way: Option<Duration>,
    /// Average time for which the thread gave way lately, in parts of a microsecond.
    waited_us: u64,
    /// Average number of things that the turns behind it found, in the same parts.
    found: u64,
    /// Number of turns for which the thread does not give way.
    pause: u32,
}

/// Parts of one, in averages.
const WHOLE: u64 = 256;
/// Largest number of things that a turn counts for: one large turn says little of the next.
const TURN_MAX: u64 = 32;
/// Longest time that giving way may take for each thing that is found behind it, in microseconds, on average.
const WORTH_US: u64 = 400;
/// Time after which giving way once is too long, whatever is found behind it.
const AT_ONCE: Duration = Duration::from_millis(20);
/// Things that count as found before it was tried: the first few times say little.
const CREDIT: u64 = 8 * WHOLE;
/// Number of turns for which a thread does not give way after it was not worth it.
const PAUSE_TURNS: u32 = 4000;

impl Gathering {
    /// Makes the state of a thread that gives way while its turns find at least so many things on average, up to 32.
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

    /// Takes note of a turn that found so many things. Returns true if the thread is to give way before the next.
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

    /// Takes note that the thread gave way, for this time.
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
        // One large turn is no queue.
        assert!(!gathering.turn(1000));
        // A read and its answer in one turn, however often.
        assert!((0..10_000).all(|_| !gathering.turn(2)));
        assert!((0..100).filter(|_| gathering.turn(5)).count() > 80);
        // It ends as it began.
        assert!((0..100).filter(|_| gathering.turn(1)).count() < 20);
        assert!(!gathering.turn(1));
    }

    /// Counts the turns, out of `turns` with `things` each, before which the thread gives way, for `took` each time.
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
        // 640 us for each: a neighbour that only computes, and few clients.
        let many = yields(&mut gathering, 20_000, 5, Duration::from_micros(3200));
        assert!((5..100).contains(&many), "tried again now and then: {many}");
        // The neighbour is gone.
        let turns = 2 * PAUSE_TURNS as usize;
        let after = yields(&mut gathering, turns, 5, Duration::from_micros(300));
        assert!(after > turns / 3, "{after}");
        // One that takes a while at once is enough, whatever comes behind it.
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
