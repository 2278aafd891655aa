use stdx::Random;

/// Random numbers that follow from a seed ([`Random`]).
///
/// The schedule of faults and what each client asks follow from the run's seed. What happens does not: it is real
/// processes that run.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// A generator of its own for one purpose.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        let mut rng = Rng(Random::new(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        rng.word();
        rng
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0.number()
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: no number below a small end is visibly more likely than another.
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `from` to `to`, both of which may come.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from).saturating_add(1))
    }

    /// An index into something of this length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Puts things into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for end in (1..things.len()).rev() {
            let other = self.index(end + 1);
            things.swap(end, other);
        }
    }
}
