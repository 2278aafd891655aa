//! The stages of a request, as metrics, logs and spans name them, and the selection of requests that are
//! measured.
//!
//! Reading the clock at each stage costs more than a stage of a small request itself. So all stages are
//! measured only for samples ([`Sampler`]), for traced requests, and for requests that take long anyway. Each
//! request is sampled with the same probability, independent of its contents and of earlier requests, so
//! histograms of the samples represent all requests.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use stdx::Random;

/// A stage of a request. Stages that a request does not pass are not reported for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the arrival of the request's head until it is passed to the core or reads the state, without
    /// [`Stage::Auth`]: receiving the message, waiting for the connection's earlier requests, decoding and
    /// checking.
    Front,
    /// Determining the user of the request by its token or password, if authentication is enabled.
    Auth,
    /// A write: until the core proposes it. A linearizable read: until the core requests a read index from
    /// the leader.
    Queue,
    /// A linearizable read: until the leader has confirmed its commit index for the read.
    ReadIndex,
    /// A linearizable read: until this member has applied up to the read index, and the read's thread knows
    /// that.
    ApplyWait,
    /// A write: until the log has written its entry to the file, which includes waiting for the previous
    /// sync.
    Append,
    /// A write: until the entry is synced to this member's disk.
    Fsync,
    /// A write: until a majority has the entry, if that is later.
    Replicate,
    /// A write: until the entry is applied and the new state is published.
    Apply,
    /// A read: finding the keys.
    Index,
    /// A read: reading the values.
    Values,
    /// A read: encoding the response. A response that is streamed in pieces, as its client accepts them, has
    /// neither this stage nor [`Stage::Values`].
    Encode,
    /// A read whose parts were not measured separately: [`Stage::Index`], [`Stage::Values`] and
    /// [`Stage::Encode`] together. Reads other than ranges always have only this stage.
    Range,
    /// A write: until its thread has encoded the response.
    Answer,
}

impl Stage {
    /// All stages, each at the position of its number (`stage as usize`).
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

/// Stages that a request passed, in order, with the time spent in each.
pub type StageTimes = Vec<(Stage, Duration)>;

/// Selects random samples, on average one in a given number of requests. Each thread has its own sampler.
///
/// It draws one random number per sample, not one per request: the number of requests until the next sample,
/// from the geometric distribution. The result is the same as an independent random decision for each
/// request, so requests that arrive in a pattern, such as alternating puts and ranges, are sampled equally.
/// If instead every 64th request were a sample, all samples of such a pattern would be of the same kind.
#[derive(Debug)]
pub struct Sampler {
    /// Number of requests until the next sample, including it; at least 1.
    left: Cell<u64>,
    one_in: u32,
    random: RefCell<Random>,
}

impl Sampler {
    /// Returns a sampler that selects one in `one_in` requests, or all with 0 or 1.
    pub fn new(one_in: u32, seed: u64) -> Sampler {
        let sampler = Sampler { left: Cell::new(1), one_in, random: RefCell::new(Random::new(seed)) };
        sampler.left.set(sampler.draw());
        sampler
    }

    /// Returns the number of requests that a sample stands for.
    pub fn one_in(&self) -> u32 {
        self.one_in.max(1)
    }

    /// Returns true if the current request is a sample.
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

    /// Draws the number of requests until the next sample, including it.
    #[cold]
    fn draw(&self) -> u64 {
        if self.one_in <= 1 {
            return 1;
        }
        let passes = 1.0 - 1.0 / f64::from(self.one_in);
        // The fraction is in (0, 1], so its logarithm is finite.
        let fraction = 1.0 - self.random.borrow_mut().fraction();
        // The cast saturates: too large a number becomes the largest `u64`.
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
        // Of 100,000 gaps, a quarter is 1, a quarter of the rest is 2, and so on.
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
