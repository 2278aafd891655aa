/// A generator of pseudorandom numbers with a seed: SplitMix64 (Steele, Lea, Flood, "Fast splittable
/// pseudorandom number generators", 2014), with the constants of Vigna's `splitmix64.c`. The numbers are
/// predictable, so secrets must not be derived from them.
///
/// The numbers that follow from a seed must never change in a later release, because seeds of simulated runs
/// and of tests that found a bug are kept for years.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the generator for a seed. Seeds that differ in one bit give unrelated sequences.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number, with 64 random bits.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which must not be 0.
    ///
    /// # Panics
    /// Panics if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// Returns an index into a sequence of this length, which must not be 0.
    ///
    /// # Panics
    /// Panics if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a random element of a list.
    ///
    /// # Panics
    /// Panics if the list is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Returns true with a probability of 1 / `times`.
    ///
    /// # Panics
    /// Panics if `times` is 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns true with a probability of `percent` in 100.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns `count` random bytes, which cannot be compressed. Every eight bytes take one number of the
    /// sequence.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count.next_multiple_of(8));
        while bytes.len() < count {
            bytes.extend_from_slice(&self.number().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference() {
        // The first three numbers of splitmix64.c for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers = [random.number(), random.number(), random.number()];
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn numbers_are_spread_over_their_range() {
        let mut random = Random::new(7);
        let mut seen = [0_u32; 8];
        (0..8000).for_each(|_| seen[random.index(8)] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.fraction())));
        let ones = (0..8000).filter(|_| random.one_in(4)).count();
        assert!((1800..2200).contains(&ones), "{ones}");
        let some = (0..8000).filter(|_| random.percent(75)).count();
        assert!((5800..6200).contains(&some), "{some}");
        assert_eq!(Random::new(7).bytes(20), Random::new(7).bytes(24)[..20]);
    }
}
