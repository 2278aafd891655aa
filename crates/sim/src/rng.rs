//! Draws random numbers from one seed, with an independent stream for each concern of the simulated world.
//!
//! The generator is Xoshiro256** (Blackman, Vigna 2018); [`Random`] fills its state. Each stream has a name.
//! If one concern draws more or fewer numbers, for example because its faults are disabled, the numbers of
//! other concerns stay the same.

use stdx::Random;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates the stream of this name for a seed.
    pub fn stream(seed: u64, name: &str) -> Rng {
        // FNV-1a hash of the name. There are few short names, so this simple hash gives each stream a
        // different seed.
        let named = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut filling = Random::new(seed ^ named.rotate_left(17));
        Rng { state: std::array::from_fn(|_| filling.number()) }
    }

    /// Returns a random 64-bit number.
    pub fn draw(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let drawn = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let mut state = [a, b, c ^ a, d ^ b];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= b << 17;
        state[3] = state[3].rotate_left(45);
        self.state = state;
        drawn
    }

    /// Returns a number below `limit`, which must not be 0. Multiplying instead of dividing makes some
    /// numbers slightly more likely, here by less than one in 2^32.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "nothing is below 0");
        let wide = u128::from(self.draw()) * u128::from(limit);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns an index into a list that is not empty.
    pub fn place(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// Returns an element of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.place(from.len())]
    }

    /// Returns true once in `times` calls on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns true in `of` of 1000 calls on average.
    pub fn per_mille(&mut self, of: u64) -> bool {
        self.below(1000) < of
    }

    /// Returns an exponentially distributed duration with this mean: often shorter than the mean, sometimes
    /// many times as long.
    pub fn around(&mut self, mean: u64) -> u64 {
        // Computes -ln(u) in steps of 1/1024, from the number of leading zeros of the random number and the
        // bits after them. Only integers are used, so that every machine draws the same numbers.
        let drawn = self.draw() | 1;
        let zeros = u64::from(drawn.leading_zeros());
        let fraction = if zeros < 63 { (drawn << (zeros + 1)) >> 54 } else { 0 };
        let log2 = zeros * 1024 + (1024 - fraction);
        // The factor 710 / 1024 is ln 2. A straight line between powers of two approximates the logarithm.
        (u128::from(mean) * u128::from(log2) * 710 / (1024 * 1024)).try_into().unwrap_or(u64::MAX)
    }

    /// Returns an index into a list of weights; the probability of each index is proportional to its weight.
    /// At least one weight must not be 0.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut drawn = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if drawn < *weight {
                return index;
            }
            drawn -= weight;
        }
        weights.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let take = |seed, name| -> Vec<u64> {
            let mut rng = Rng::stream(seed, name);
            (0..4).map(|_| rng.draw()).collect()
        };
        assert_eq!(take(1, "faults"), take(1, "faults"));
        assert_ne!(take(1, "faults"), take(1, "schedule"));
        assert_ne!(take(1, "faults"), take(2, "faults"));
    }

    #[test]
    fn draws_are_where_they_should_be() {
        let mut rng = Rng::stream(7, "test");
        let mut seen = [0u32; 8];
        for _ in 0..8000 {
            seen[rng.place(8)] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        let mean: u64 = (0..10_000).map(|_| rng.around(1000)).sum::<u64>() / 10_000;
        assert!((900..1200).contains(&mean), "{mean}");
        assert!((0..100).all(|_| rng.weighted(&[0, 3, 0]) == 1));
    }
}
