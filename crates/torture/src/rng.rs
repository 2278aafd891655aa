use stdx::Random;

/// A generator of random numbers that are determined by a seed ([`Random`]).
///
/// The seed of a run determines the schedule of the faults and the requests of each client. It does not
/// determine the course of the run, because the members are real processes.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// Creates a generator for one purpose, independent of those for other purposes with the same seed.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        let mut rng = Rng(Random::new(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        rng.word();
        rng
    }

    /// Returns 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0.number()
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // Take the high half of the product. This slightly prefers some numbers, but not noticeably for a
        // small `end`.
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number from `from` to `to`, including both.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from).saturating_add(1))
    }

    /// Returns a random index into a list of this length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Shuffles a list with the algorithm of Fisher and Yates.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for end in (1..things.len()).rev() {
            let other = self.index(end + 1);
            things.swap(end, other);
        }
    }
}
