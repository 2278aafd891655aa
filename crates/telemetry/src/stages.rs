//! The stages of a request, as metrics, logs and spans name them, and which requests are measured.
//!
//! Reading the clock at each stage costs more than a stage of a small request itself. So all stages are measured only of samples
//! ([`Sampler`]), of requests that are traced, and of those that take a while anyway. Each request is a sample with the same
//! probability, whatever it asks and whatever came before, so the histograms of samples are those of all requests.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use stdx::Random;

/// A stage of a request. What a request does not pass is not told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the arrival of the request's head until it goes to the core or reads the state, without [`Stage::Auth`]: its message
    /// arrives, the connection's earlier requests are served, it is decoded and checked.
    Front,
    /// Finding out on whose behalf the request is made, by its token or password; while authentication is enabled.
    Auth,
    /// A write: until the core proposes it. A linearizable read: until the core asks the leader.
    Queue,
    /// A linearizable read: until the leader has confirmed how far it has committed.
    ReadIndex,
    /// A linearizable read: until this member has applied as much, and the read's thread knows.
    ApplyWait,
    /// A write: until the log has written its entry to the file; the sync before it comes first.
    Append,
    /// A write: until this member's disk has the entry.
    Fsync,
    /// A write: until a majority has the entry, if that comes later.
    Replicate,
    /// A write: until the entry is applied and the state with it is published.
    Apply,
    /// A read: finding the keys.
    Index,
    /// A read: reading the values.
    Values,
    /// A read: putting the answer together. An answer that is made piece by piece, as its client takes it, has neither this nor
    /// [`Stage::Values`].
    Encode,
    /// A read whose parts were not measured one by one, as those of reads other than ranges never are: [`Stage::Index`],
    /// [`Stage::Values`] and [`Stage::Encode`] together.
    Range,
    /// A write: until its thread has made the answer.
    Answer,
}

impl Stage {
    /// All stages, each at the place of its number (`stage as usize`).
    pub const ALL: [Stage; 14] = [
        Stage::Front,
        Stage::Auth,
        Stage::Queue,
        Stage::ReadIndex,
        Stage::ApplyWait,
        Stage::Append,
        Stage::Fsync,
        Stage::Replicate,
        Stage::Apply,
        Stage::Index,
        Stage::Values,
        Stage::Encode,
        Stage::Range,
        Stage::Answer,
    ];

    /// The name in metrics, logs and spans, such as `read_index`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Front => "front",
            Stage::Auth => "auth",
            Stage::Queue => "queue",
            Stage::ReadIndex => "read_index",
            Stage::ApplyWait => "apply_wait",
            Stage::Append => "append",
            Stage::Fsync => "fsync",
            Stage::Replicate => "replicate",
            Stage::Apply => "apply",
            Stage::Index => "index",
            Stage::Values => "values",
            Stage::Encode => "encode",
            Stage::Range => "range",
            Stage::Answer => "answer",
        }
    }
}

/// The stages that a request passed, in their order, with the time spent in each.
pub type StageTimes = Vec<(Stage, Duration)>;

/// Picks samples at random, one request out of so many on average. A thread has its own.
///
/// Instead of a random number for each request there is one for each sample: how many requests to let pass until the next, drawn
/// from the geometric distribution. That is the same as a throw of dice for each request: requests that come in a pattern, such as
/// a put and a range by turns, are sampled alike. Taking every 64th would measure only one of the two kinds for ever.
#[derive(Debug)]
pub struct Sampler {
    /// Requests until the next sample, that one included; at least 1.
    left: Cell<u64>,
    one_in: u32,
    random: RefCell<Random>,
}

impl Sampler {
    /// Returns a sampler that picks one request out of `one_in`, or all with 0 or 1.
    pub fn new(one_in: u32, seed: u64) -> Sampler {
        let sampler = Sampler { left: Cell::new(1), one_in, random: RefCell::new(Random::new(seed)) };
        sampler.left.set(sampler.draw());
        sampler
    }

    /// Returns how many requests a sample stands for.
    pub fn one_in(&self) -> u32 {
        self.one_in.max(1)
    }

    /// Returns true if the request that comes now is a sample.
    #[inline]
    pub fn takes(&self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        if left > 0 {
            return false;
        }
        self.left.set(self.draw());
        true
    }

    /// Draws the number of requests until the next sample, that one included.
    #[cold]
    fn draw(&self) -> u64 {
        if self.one_in <= 1 {
            return 1;
        }
        let passes = 1.0 - 1.0 / f64::from(self.one_in);
        // In (0, 1]: its logarithm is finite.
        let fraction = 1.0 - self.random.borrow_mut().fraction();
        // A cast of what is too large gives the largest number.
        ((fraction.ln() / passes.ln()) as u64).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_its_place_and_a_name_of_its_own() {
        for (at, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, at);
            assert!(Stage::ALL.iter().all(|other| *other == stage || other.name() != stage.name()));
        }
    }

    #[test]
    fn requests_that_come_in_a_pattern_are_sampled_alike() {
        const REQUESTS: usize = 1_280_000;
        let sampler = Sampler::new(64, 7);
        let mut samples = [0; 4];
        for request in 0..REQUESTS {
            samples[request % 4] += usize::from(sampler.takes());
        }
        // 5,000 of each kind are expected; the standard deviation is 70.
        assert!(samples.iter().all(|count| (4_650..5_350).contains(count)), "{samples:?}");
    }

    #[test]
    fn gaps_between_samples_are_those_of_dice() {
        let sampler = Sampler::new(4, 3);
        let (mut gap, mut gaps) = (0, [0; 3]);
        for _ in 0..400_000 {
            gap += 1;
            if sampler.takes() {
                if gap <= 3 {
                    gaps[gap - 1] += 1;
                }
                gap = 0;
            }
        }
        // Of 100,000 gaps a quarter is 1, three quarters of that 2, and so on.
        for (count, expected) in gaps.into_iter().zip([25_000, 18_750, 14_062]) {
            assert!(i32::abs(count - expected) < 900, "{gaps:?}");
        }
    }

    #[test]
    fn all_requests_are_samples_where_all_are_asked_for() {
        for one_in in [0, 1] {
            let sampler = Sampler::new(one_in, 1);
            assert!((0..100).all(|_| sampler.takes()));
        }
    }
}
