//! What etcd's benchmark does, command by command, with its keys and its requests.

pub mod authenticate;
pub mod index;
pub mod lease;
pub mod range;
pub mod stm;
pub mod watch;
pub mod write;

/// Random numbers (xorshift64*), good enough to choose keys and fill values.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed; another one for each thread and purpose.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Seeded by the clock.
    pub fn from_clock(salt: u64) -> Self {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos() as u64);
        Self::new(nanos ^ salt.rotate_left(32))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// One below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// From 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// That many random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.number() >> 32) as u8).collect()
    }
}
