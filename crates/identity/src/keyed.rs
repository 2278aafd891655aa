//! Computes keyed hashes, which are stored in place of passwords and tokens.

use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use ring::hmac;

/// Fills the slice with unpredictable random bytes. [`system_entropy`] is the source in production; a
/// simulation provides seeded bytes.
pub type Entropy<'a> = dyn FnMut(&mut [u8]) + 'a;

/// Returns a source of the operating system's random bytes.
///
/// # Panics
/// The returned function panics if the operating system cannot provide random bytes, because no secret can be
/// created without them.
pub fn system_entropy() -> impl FnMut(&mut [u8]) {
    use ring::rand::SecureRandom as _;
    let random = ring::rand::SystemRandom::new();
    move |bytes| random.fill(bytes).expect("the operating system gives random bytes")
}

/// An HMAC-SHA256 key that is drawn when the process starts and never leaves it.
pub(crate) struct MacKey(hmac::Key);

impl MacKey {
    pub fn new(entropy: &mut Entropy) -> MacKey {
        let mut key = zeroize::Zeroizing::new([0; 32]);
        entropy(&mut *key);
        MacKey(hmac::Key::new(hmac::HMAC_SHA256, &*key))
    }

    /// Returns the keyed hash of one value.
    pub fn tag(&self, bytes: &[u8]) -> Tag {
        Tag::of(&hmac::sign(&self.0, bytes))
    }

    /// Returns the keyed hash of several values. Each is hashed with its length, so that different lists
    /// never have the same input.
    pub fn tag_of_all(&self, parts: &[&[u8]]) -> Tag {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        Tag::of(&context.sign())
    }
}

/// The first 128 bits of a keyed hash. Without the key it is infeasible to find a value with a given tag, and
/// the duration of a comparison of tags reveals nothing about their values.
#[derive(Clone, Copy, Eq, PartialOrd, Ord)]
pub struct Tag(u128);

impl Tag {
    fn of(mac: &hmac::Tag) -> Tag {
        let mut first = [0; 16];
        first.copy_from_slice(&mac.as_ref()[..16]);
        Tag(u128::from_le_bytes(first))
    }

    /// Returns 64 bits of the tag, for uses in which collisions do no harm.
    pub(crate) fn short(self) -> u64 {
        self.0 as u64
    }
}

impl PartialEq for Tag {
    fn eq(&self, other: &Tag) -> bool {
        self.0 ^ other.0 == 0
    }
}

impl Hash for Tag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0 as u64);
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tag(..)")
    }
}

/// A hasher that uses a tag as its own hash.
pub(crate) type Prehashed = BuildHasherDefault<Identity>;

#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // The trait requires this method. It is not used: tags and numbers are hashed with `write_u64`.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// Compares two byte strings in a time that depends only on their lengths.
pub(crate) fn equal(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let (left_words, left_rest) = left.as_chunks::<8>();
    let (right_words, right_rest) = right.as_chunks::<8>();
    let words = left_words.iter().zip(right_words).fold(0, |differences, (left, right)| {
        differences | (u64::from_ne_bytes(*left) ^ u64::from_ne_bytes(*right))
    });
    let rest =
        left_rest.iter().zip(right_rest).fold(0, |differences, (left, right)| differences | (left ^ right));
    std::hint::black_box(words | u64::from(rest)) == 0
}

/// Secret bytes: overwritten when dropped, and not shown by `Debug`.
#[derive(Clone)]
pub struct Secret(zeroize::Zeroizing<Box<[u8]>>);

impl Secret {
    /// Creates a secret with a copy of the bytes.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(zeroize::Zeroizing::new(bytes.into()))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        equal(self.bytes(), other.bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_is_equality() {
        let text: Vec<u8> = (0..40).collect();
        for len in 0..text.len() {
            let same = text[..len].to_vec();
            assert!(equal(&text[..len], &same));
            assert!(!equal(&text[..len], &text[..len + 1]));
            for at in 0..len {
                let mut other = same.clone();
                other[at] ^= 0x40;
                assert!(!equal(&text[..len], &other));
            }
        }
    }

    #[test]
    fn where_values_are_divided_matters() {
        let mut random = testkit::Random::new(1);
        let key = MacKey::new(&mut |bytes: &mut [u8]| bytes.copy_from_slice(&random.bytes(bytes.len())));
        let tag = key.tag_of_all(&[b"ab", b"c"]);
        assert_eq!(tag, key.tag_of_all(&[b"ab", b"c"]));
        assert_ne!(tag, key.tag_of_all(&[b"a", b"bc"]));
        assert_ne!(tag, key.tag_of_all(&[b"abc"]));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", Secret::new(b"hunter2")), "Secret(..)");
    }
}
