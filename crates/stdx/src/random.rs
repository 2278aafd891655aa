/// Random numbers that follow from a seed (xorshift64*): good enough to choose keys and to fill values. They are predictable,
/// so nothing secret may come of them.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number, of 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which is not 0.
    ///
    /// # Panics
    /// `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A number from 0 up to, and without, 1.
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// That many random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.number() >> 32) as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_one_others() {
        let take = |seed| -> Vec<u64> {
            let mut random = Random::new(seed);
            (0..4).map(|_| random.number()).collect()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn numbers_are_spread_over_their_range() {
        let mut random = Random::new(7);
        let mut seen = [0_u32; 8];
        (0..8000).for_each(|_| seen[random.below(8) as usize] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.fraction())));
        assert_eq!(random.bytes(5).len(), 5);
    }
}
