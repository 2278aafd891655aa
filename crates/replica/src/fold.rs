//! Fast hash maps for keys that no client or peer can choose: numbers that this member generates, and string
//! constants of the program.
//!
//! The hash of the standard library resists clients that choose colliding keys, and costs some 150
//! instructions per lookup. The hash in this module ([`Fold`]) does not resist them and costs about ten. It
//! is meant for the few maps that every put or range accesses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map that uses [`Fold`]. Keys chosen by a client or a peer must never be inserted, because an
/// attacker could choose keys that all collide and make each lookup slow. Looking up such a key is safe.
pub type FoldMap<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// Hasher that XORs each word into a state of 64 bits, multiplies the result by a constant, and folds the
/// upper half of the product onto the lower half (as in wyhash). So all bits of the key affect all bits of
/// the hash.
#[derive(Default)]
pub struct Fold(u64);

impl Fold {
    #[inline]
    fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x2d35_8dcc_aa6c_78a5) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Fold {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.word(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.word(u64::from(byte));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.word(word);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher as _, Hash};

    fn hash(key: impl Hash) -> u64 {
        BuildHasherDefault::<Fold>::default().hash_one(key)
    }

    #[test]
    fn neighbours_spread_over_both_ends_of_the_hash() {
        // A hash map picks the bucket by the lower bits and compares entries by the upper seven bits.
        for start in [0, 1 << 20, 0x1234_5678_0000_0000, u64::MAX - 4096] {
            let low: HashSet<u64> = (0..4096).map(|n| hash(start + n) % 4096).collect();
            let high: HashSet<u64> = (0..4096).map(|n| hash(start + n) >> 57).collect();
            assert!(low.len() > 2048 && high.len() == 128, "{start}: {} and {}", low.len(), high.len());
        }
    }

    #[test]
    fn all_bytes_of_a_text_count() {
        let paths: HashSet<u64> = api::METHODS.iter().map(|method| hash(method.path)).collect();
        assert_eq!(paths.len(), api::METHODS.len());
        let text = "/etcdserverpb.KV/Range";
        for at in 0..text.len() {
            let mut other = text.as_bytes().to_vec();
            other[at] ^= 1;
            assert_ne!(hash(text), hash(std::str::from_utf8(&other).expect("is text")), "byte {at}");
        }
        assert_ne!(hash("a"), hash("a\0"));
    }
}
