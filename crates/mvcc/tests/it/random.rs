//! A small seeded generator (xorshift64*), so that a failing list of operations can be reproduced.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a key out of `space` keys, in one of a few shapes: shared prefixes, zero bytes, lengths from 1
    /// to 40.
    pub fn key(&mut self, space: u64) -> Vec<u8> {
        let number = self.below(space);
        match number % 5 {
            0 => format!("/registry/pods/namespace-{}/pod-{number:06}", number % 7).into_bytes(),
            1 => vec![(number % 3) as u8; 1 + (number as usize / 5) % 40],
            2 => number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec(),
            3 => format!("k{number}").into_bytes(),
            _ => format!("/registry/pods/namespace-0/pod-0{}", number % 100_000).into_bytes(),
        }
    }
}
