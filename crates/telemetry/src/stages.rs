//! Defines the stages of a request, as metrics, logs and traces name them, and selects the requests whose
//! stages are measured.
//!
//! Reading the clock at each stage would cost more than the stages of a small request. So the stages are
//! measured only for sampled requests ([`Sampler`]), for traced requests, and for requests that take long
//! anyway. Each request is sampled with the same probability, whatever it contains and whatever came before,
//! so histograms of the samples are representative of all requests.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use stdx::Random;

/// A stage of a request. Unless its description says otherwise, a stage begins when the request's previous
/// stage ends. Stages that a request does not pass are not reported for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Time from the arrival of the request's headers until the request is passed to the core (the thread
    /// that runs raft), or starts to read the state, without the time of [`Stage::Auth`]. It includes
    /// receiving the message, waiting for earlier requests of the connection, decoding and checking.
    Front,
    /// Time to determine the user of the request from its token or password, if authentication is enabled.
    Auth,
    /// Time in the core's queue. For a write, until the core proposes it; for a linearizable read, until the
    /// core requests a read index from the leader.
    Queue,
    /// For a linearizable read: time until the leader has confirmed its commit index for the read.
    ReadIndex,
    /// For a linearizable read: time until this member has applied the log up to the read index, and the
    /// thread that serves the read has been woken.
    ApplyWait,
    /// For a write: time until its entry is written to the log's file. It includes waiting for the previous
    /// fsync.
    Append,
    /// For a write: time until its entry is synced to this member's disk.
    Fsync,
    /// For a write: time from the local sync until a majority has the entry, if that is later than the sync.
    Replicate,
    /// For a write: time until its entry is applied and the new state is visible to reads.
    Apply,
    /// For a read: time to find the keys in the index.
    Index,
    /// For a read: time to read the values.
    Values,
    /// For a read: time to encode the response. A response that is streamed in chunks, as fast as its client
    /// accepts them, has neither this stage nor [`Stage::Values`].
    Encode,
    /// For a read whose stages were not measured one by one: [`Stage::Index`], [`Stage::Values`] and
    /// [`Stage::Encode`] together. Reads other than ranges always have only this stage.
    Range,
    /// For a write: time until the thread that serves the client has encoded the response.
    Answer,
}

impl Stage {
    /// All stages, each at the index `stage as usize`.
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

    /// Returns the stage's name in metrics, logs and spans, such as `read_index`.
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

/// The stages that a request has passed, in their order, with the time spent in each.
pub type StageTimes = Vec<(Stage, Duration)>;

/// Selects requests at random, on average one in a given number. Each thread has its own sampler.
///
/// A sampler draws one random number per sample, not one per request: the number of requests until the next
/// sample, from the geometric distribution. The result is the same as an independent random decision for each
/// request. Sampling every 64th request would be cheaper, but if puts and ranges alternate, all samples would
/// be of one kind.
#[derive(Debug)]
pub struct Sampler {
    /// Number of requests until the next sample, counting that one; at least 1.
    left: Cell<u64>,
    one_in: u32,
    random: RefCell<Random>,
}

impl Sampler {
    /// Returns a sampler that selects on average one in `one_in` requests, or every request if `one_in` is 0
    /// or 1.
    pub fn new(one_in: u32, seed: u64) -> Sampler {
        let sampler = Sampler { left: Cell::new(1), one_in, random: RefCell::new(Random::new(seed)) };
        sampler.left.set(sampler.draw());
        sampler
    }

    /// Returns the number of requests that each sample stands for.
    pub fn one_in(&self) -> u32 {
        self.one_in.max(1)
    }

    /// Counts a request. Returns true if the request is a sample.
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

    /// Draws the number of requests until the next sample, counting that one.
    #[cold]
    fn draw(&self) -> u64 {
        if self.one_in <= 1 {
            return 1;
        }
        let passes = 1.0 - 1.0 / f64::from(self.one_in);
        // Take the fraction from (0, 1] instead of [0, 1), so that its logarithm is finite.
        let fraction = 1.0 - self.random.borrow_mut().fraction();
        // The cast saturates: a number that is too large becomes the largest `u64`, so the addition must
        // saturate too.
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
        // 5,000 samples of each kind are expected; the standard deviation is 70.
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
        // Of 100,000 gaps between samples, a quarter must be 1, a quarter of the rest 2, and so on.
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
