//! Hashes and checks passwords: bcrypt compatible with Go's `golang.org/x/crypto/bcrypt`, a cache of verified
//! passwords, and the queue of passwords that have to be hashed.

mod verified;
mod work_queue;

pub use verified::{Proof, Verified};
pub use work_queue::{Ask, Busy, Outcome, Pushed, Shareable, Task, Ticket, Work, WorkQueue};

use std::fmt;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::GeneralPurpose;
use blowfish::Blowfish;
use zeroize::Zeroizing;

use crate::keyed::{Entropy, equal};

/// Minimum bcrypt cost, which is the base-2 logarithm of the number of rounds.
pub const COST_MIN: u8 = 4;
/// Maximum bcrypt cost, which is the base-2 logarithm of the number of rounds.
pub const COST_MAX: u8 = 31;
/// Bcrypt cost that is used if no cost or an invalid cost is given.
pub const COST_DEFAULT: u8 = 10;
/// Maximum length of a new password in bytes. When a longer password is checked, only its first 72 bytes are
/// compared.
pub const PASSWORD_BYTES_MAX: usize = 72;

/// The alphabet of bcrypt; as in Go, unused bits of the last letter are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::BCRYPT,
    base64::engine::general_purpose::NO_PAD.with_decode_allow_trailing_bits(true),
);

/// Cost of hashing a password: the base-2 logarithm of the number of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(u8);

/// Error for a cost outside of 4 to 31. Its message is the one with which etcd warns before it uses the
/// default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCost {
    /// The given cost.
    pub given: u64,
}

impl InvalidCost {
    /// Message of etcd's warning. Its fields are `min-cost`, `max-cost`, `default-cost` and `given-cost`.
    pub const WARNING: &'static str = "use default bcrypt cost instead of the invalid given cost";
}

impl fmt::Display for InvalidCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "crypto/bcrypt: cost {} is outside allowed inclusive range {COST_MIN}..{COST_MAX}",
            self.given
        )
    }
}

impl std::error::Error for InvalidCost {}

impl Cost {
    /// Bcrypt cost that is used if no cost or an invalid cost is given.
    pub const DEFAULT: Cost = Cost(COST_DEFAULT);
    /// Lowest cost, at which hashes are very cheap and protect little; for tests and simulations.
    pub const LOWEST: Cost = Cost(COST_MIN);

    /// Creates the cost from the value of `--bcrypt-cost`.
    ///
    /// # Errors
    /// Returns an error if the cost is below 4 or above 31. In that case etcd warns and starts with
    /// [`Cost::DEFAULT`]; the caller should do the same.
    pub fn new(given: u64) -> Result<Cost, InvalidCost> {
        u8::try_from(given)
            .ok()
            .filter(|cost| (COST_MIN..=COST_MAX).contains(cost))
            .map(Cost)
            .ok_or(InvalidCost { given })
    }

    /// Returns the cost as a number.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// Error for a password that is too long to be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bcrypt: password length exceeds 72 bytes")
    }
}

impl std::error::Error for TooLong {}

/// Reason why a password does not match a stored hash. The messages are Go's; they are never sent to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unequal {
    /// The stored hash belongs to another password.
    Mismatch,
    /// The stored hash has fewer than 59 bytes.
    HashTooShort,
    /// The stored hash begins with this byte, not with a dollar sign.
    Prefix(u8),
    /// The stored hash has this algorithm version, which is above 2.
    Version(u8),
    /// The cost in the stored hash is not a number.
    CostNotANumber,
    /// The cost in the stored hash is a number outside of 4 to 31.
    Cost(i32),
    /// The salt in the stored hash is not valid base64 of bcrypt's alphabet.
    Salt,
}

impl fmt::Display for Unequal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unequal::Mismatch => {
                f.write_str("crypto/bcrypt: hashedPassword is not the hash of the given password")
            }
            Unequal::HashTooShort => {
                f.write_str("crypto/bcrypt: hashedSecret too short to be a bcrypted password")
            }
            Unequal::Prefix(first) => write!(
                f,
                "crypto/bcrypt: bcrypt hashes must start with '$', but hashedSecret started with '{}'",
                char::from(*first)
            ),
            Unequal::Version(version) => write!(
                f,
                "crypto/bcrypt: bcrypt algorithm version '{}' requested is newer than current version '2'",
                char::from(*version)
            ),
            Unequal::CostNotANumber => f.write_str("crypto/bcrypt: the cost is not a number"),
            Unequal::Cost(cost) => {
                write!(
                    f,
                    "crypto/bcrypt: cost {cost} is outside allowed inclusive range {COST_MIN}..{COST_MAX}"
                )
            }
            Unequal::Salt => f.write_str("crypto/bcrypt: the salt is not in bcrypt's base64"),
        }
    }
}

impl std::error::Error for Unequal {}

/// Creates and checks hashes with the cost of `--bcrypt-cost`.
#[derive(Debug)]
pub struct Hashing {
    cost: Cost,
    decoy_salt: [u8; 16],
}

impl Hashing {
    /// Creates the hasher and draws the salt for decoy hashes.
    pub fn new(cost: Cost, entropy: &mut Entropy) -> Hashing {
        let mut decoy_salt = [0; 16];
        entropy(&mut decoy_salt);
        Hashing { cost, decoy_salt }
    }

    /// Returns the cost of new hashes.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Hashes a password, with the prefix `$2a$` that Go writes. Takes as long as [`Hashing::check`].
    ///
    /// # Errors
    /// Returns an error if the password has more than 72 bytes.
    pub fn hash(&self, password: &[u8], entropy: &mut Entropy) -> Result<String, TooLong> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(TooLong);
        }
        let mut salt = [0; 16];
        entropy(&mut salt);
        let hash = digest(password, self.cost, salt);
        Ok(format!("$2a${:02}${}{hash}", self.cost.0, BASE64.encode(salt)))
    }

    /// Returns true if the password matches a stored hash. `stored` is `None` if the user does not exist.
    ///
    /// The duration of the check does not reveal what was stored. If there is no user, or the hash is
    /// unreadable, a decoy is hashed with the cost of new hashes. For a stored hash of a lower cost, the
    /// missing rounds are added. Only a stored hash of a higher cost takes longer than a missing user.
    pub fn check(&self, stored: Option<&[u8]>, password: &[u8]) -> bool {
        let read = stored.and_then(|stored| StoredHash::read(stored).ok());
        let equal = read.as_ref().is_some_and(|stored| stored.is_of(password));
        for cost in self.decoys(read.map(|stored| stored.cost)) {
            std::hint::black_box(digest(password, Cost(cost), self.decoy_salt));
        }
        equal
    }

    /// Returns the costs of additional decoy hashes, so that all hashes together take as many rounds as one
    /// new hash. For a checked hash of cost c and new hashes of cost C: 2^c + 2^c + 2^(c + 1) + … + 2^(C - 1)
    /// = 2^C.
    fn decoys(&self, checked: Option<Cost>) -> Range<u8> {
        match checked {
            Some(checked) => checked.0..self.cost.0,
            None => self.cost.0..self.cost.0 + 1,
        }
    }
}

/// Compares a password with a stored hash as Go's `CompareHashAndPassword` does: only the first 72 bytes of a
/// password count.
///
/// # Errors
/// Returns an error if the password is a different one, or the stored hash cannot be read.
pub fn compare(stored: &[u8], password: &[u8]) -> Result<(), Unequal> {
    if StoredHash::read(stored)?.is_of(password) { Ok(()) } else { Err(Unequal::Mismatch) }
}

/// Returns the cost of a stored hash, as Go's `Cost` does.
///
/// # Errors
/// Returns an error if the stored hash cannot be read.
pub fn cost_of(stored: &[u8]) -> Result<Cost, Unequal> {
    StoredHash::read(stored).map(|stored| stored.cost)
}

/// A stored hash, parsed as Go does: `$2`, one letter or none, `$`, two digits of cost, one byte, 22 letters
/// of salt and 31 letters of hash. Anything after that is ignored.
struct StoredHash<'a> {
    cost: Cost,
    salt: [u8; 16],
    hash: &'a [u8],
}

/// Length of the salt in bcrypt's base64.
const SALT_LETTERS: usize = 22;
/// Length of the hash in bcrypt's base64.
const HASH_LETTERS: usize = 31;

impl StoredHash<'_> {
    fn read(stored: &[u8]) -> Result<StoredHash<'_>, Unequal> {
        if stored.len() < 59 {
            return Err(Unequal::HashTooShort);
        }
        match stored {
            [b'$', version, ..] if *version > b'2' => return Err(Unequal::Version(*version)),
            [b'$', ..] => {}
            [first, ..] => return Err(Unequal::Prefix(*first)),
            [] => return Err(Unequal::HashTooShort),
        }
        let rest = if stored[2] == b'$' { &stored[3..] } else { &stored[4..] };
        let (cost, rest) = rest.split_at(2);
        // As in Go, the first of the two characters may be a sign.
        let cost = match cost {
            [sign @ (b'+' | b'-'), digit @ b'0'..=b'9'] => {
                i32::from(digit - b'0') * if *sign == b'-' { -1 } else { 1 }
            }
            [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => i32::from(tens - b'0') * 10 + i32::from(ones - b'0'),
            _ => return Err(Unequal::CostNotANumber),
        };
        let cost = u64::try_from(cost).ok().and_then(|c| Cost::new(c).ok()).ok_or(Unequal::Cost(cost))?;
        let (letters, hash) = rest[1..].split_at(SALT_LETTERS);
        let mut salt = [0; 16];
        match BASE64.decode_slice(letters, &mut salt) {
            Ok(16) => {}
            _ => return Err(Unequal::Salt),
        }
        Ok(StoredHash { cost, salt, hash: &hash[..hash.len().min(HASH_LETTERS)] })
    }

    fn is_of(&self, password: &[u8]) -> bool {
        equal(digest(password, self.cost, self.salt).as_bytes(), self.hash)
    }
}

/// Number of bcrypt rounds, of about 50 us each, after which the processor is yielded to other threads.
const ROUNDS_AT_ONCE: u32 = 4;

/// Returns the 31 letters of a hash.
fn digest(password: &[u8], cost: Cost, salt: [u8; 16]) -> String {
    // The key of bcrypt is the password followed by a zero byte, repeated. Only the first 72 bytes of the
    // password count.
    let counting = counting(password);
    let mut key = Zeroizing::new([0; PASSWORD_BYTES_MAX + 1]);
    key[..counting.len()].copy_from_slice(counting);
    let key = &key[..(counting.len() + 1).min(PASSWORD_BYTES_MAX)];
    BASE64.encode(bcrypt(key, cost, salt, std::thread::yield_now))
}

/// The algorithm of Provos and Mazieres, "A Future-Adaptable Password Scheme" (1999), in the form of all
/// implementations since OpenBSD's: the last of the 24 bytes is left out.
///
/// Calls `give_way` every few rounds to yield the processor. Hashing takes about 50 ms. Another thread that
/// wakes up during that time would otherwise wait until the kernel ends this thread's time slice, which may
/// take several milliseconds.
fn bcrypt(key: &[u8], cost: Cost, salt: [u8; 16], mut give_way: impl FnMut()) -> [u8; 23] {
    let mut state = Blowfish::bc_init_state();
    state.salted_expand_key(&salt, key);
    for round in 1..=1_u32 << cost.0 {
        if round.is_multiple_of(ROUNDS_AT_ONCE) {
            give_way();
        }
        state.bc_expand_key(key);
        state.bc_expand_key(&salt);
    }
    let mut hash = [0; 24];
    let (blocks, _) = hash.as_chunks_mut::<8>();
    let (words, _) = b"OrpheanBeholderScryDoubt".as_chunks::<8>();
    for (block, words) in blocks.iter_mut().zip(words) {
        let [a, b, c, d, e, f, g, h] = *words;
        let mut halves = [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])];
        for _ in 0..64 {
            halves = state.bc_encrypt(halves);
        }
        let [left, right] = halves.map(u32::to_be_bytes);
        block[..4].copy_from_slice(&left);
        block[4..].copy_from_slice(&right);
    }
    let [kept @ .., _] = hash;
    kept
}

/// Returns the part of a password that is hashed: its first 72 bytes.
fn counting(password: &[u8]) -> &[u8] {
    &password[..password.len().min(PASSWORD_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashing() -> Hashing {
        let mut random = testkit::Random::new(3);
        Hashing::new(Cost(4), &mut |bytes: &mut [u8]| bytes.copy_from_slice(&random.bytes(bytes.len())))
    }

    fn hash(password: &[u8]) -> Result<String, TooLong> {
        hashing().hash(password, &mut crate::keyed::system_entropy())
    }

    #[test]
    fn hashing_offers_the_processor_to_others_every_few_rounds() {
        let mut offers = 0;
        bcrypt(b"password\0", Cost(6), [7; 16], || offers += 1);
        assert_eq!(offers, 64 / ROUNDS_AT_ONCE);
    }

    #[test]
    fn costs_outside_of_the_range_are_told() {
        for given in [0, 3, 32, 256, 260, u64::MAX] {
            assert_eq!(Cost::new(given), Err(InvalidCost { given }));
        }
        assert_eq!((4..=31).filter_map(|cost| Cost::new(cost).ok()).count(), 28);
        assert_eq!(
            InvalidCost { given: 32 }.to_string(),
            "crypto/bcrypt: cost 32 is outside allowed inclusive range 4..31"
        );
    }

    #[test]
    fn what_is_hashed_is_verified() {
        for password in [&b""[..], b"a", b"a\0b", b"\0", "käse".as_bytes(), &[b'x'; 71], &[b'x'; 72]] {
            let stored = hash(password).unwrap();
            assert!(stored.starts_with("$2a$04$") && stored.len() == 60, "{stored}");
            assert_eq!(compare(stored.as_bytes(), password), Ok(()));
            assert_eq!(compare(stored.as_bytes(), b"other"), Err(Unequal::Mismatch));
            assert_eq!(cost_of(stored.as_bytes()), Ok(Cost(4)));
            assert!(hashing().check(Some(stored.as_bytes()), password));
            assert!(!hashing().check(None, password));
        }
    }

    #[test]
    fn long_passwords_are_refused_and_compared_by_their_beginning() {
        let refused = hash(&[b'x'; 73]).unwrap_err();
        assert_eq!(refused.to_string(), "bcrypt: password length exceeds 72 bytes");
        let stored = hash(&[b'x'; 72]).unwrap();
        assert_eq!(compare(stored.as_bytes(), &[b'x'; 1_000_000]), Ok(()));
        assert_eq!(compare(stored.as_bytes(), &[b'x'; 71]), Err(Unequal::Mismatch));
    }

    #[test]
    fn hashes_that_cannot_be_read_are_told_in_the_words_of_go() {
        let whole = hash(b"p").unwrap();
        for len in 0..59 {
            assert_eq!(compare(&whole.as_bytes()[..len], b"p"), Err(Unequal::HashTooShort));
        }
        let with = |at: usize, byte: u8| {
            let mut stored = whole.clone().into_bytes();
            stored[at] = byte;
            compare(&stored, b"p").map_err(|why| why.to_string())
        };
        assert_eq!(compare(&whole.as_bytes()[..59], b"p"), Err(Unequal::Mismatch));
        assert_eq!(compare(format!("{whole}, and more").as_bytes(), b"p"), Ok(()));
        assert_eq!(with(2, b'b'), Ok(()));
        assert_eq!(with(2, b'y'), Ok(()));
        assert_eq!(with(1, b'1'), Ok(()));
        assert_eq!(with(6, b'!'), Ok(()));
        assert_eq!(with(4, b'+'), Ok(()));
        for (at, byte, text) in [
            (0, b'x', "crypto/bcrypt: bcrypt hashes must start with '$', but hashedSecret started with 'x'"),
            (
                1,
                b'3',
                "crypto/bcrypt: bcrypt algorithm version '3' requested is newer than current version '2'",
            ),
            (4, b'3', "crypto/bcrypt: cost 34 is outside allowed inclusive range 4..31"),
            (4, b'-', "crypto/bcrypt: cost -4 is outside allowed inclusive range 4..31"),
            (5, b'3', "crypto/bcrypt: cost 3 is outside allowed inclusive range 4..31"),
            (4, b'x', "crypto/bcrypt: the cost is not a number"),
            (10, b'!', "crypto/bcrypt: the salt is not in bcrypt's base64"),
            (40, b'!', "crypto/bcrypt: hashedPassword is not the hash of the given password"),
        ] {
            assert_eq!(with(at, byte), Err(text.to_owned()));
        }
    }

    #[test]
    fn every_check_takes_as_many_rounds_as_a_new_hash() {
        for own in COST_MIN..=COST_MAX {
            let hashing = Hashing { cost: Cost(own), decoy_salt: [0; 16] };
            let rounds = |checked: Option<Cost>| {
                let decoys: u64 = hashing.decoys(checked).map(|cost| 1 << cost).sum();
                decoys + checked.map_or(0, |checked| 1 << checked.0)
            };
            assert_eq!(rounds(None), 1 << own);
            for checked in COST_MIN..=COST_MAX {
                assert_eq!(rounds(Some(Cost(checked))), 1 << own.max(checked));
            }
        }
    }

    #[test]
    fn no_stored_bytes_make_it_panic() {
        let mut random = testkit::Random::new(11);
        let whole = hash(b"p").unwrap().into_bytes();
        for _ in 0..2000 {
            let mut stored = whole.clone();
            for _ in 0..=random.index(3) {
                let at = random.index(stored.len());
                // Do not change the tens digit of the cost: high costs take minutes.
                if at != 4 && at != 5 {
                    stored[at] = random.number() as u8;
                }
            }
            stored.truncate(random.index(62));
            let _ = compare(&stored, b"p");
            let garbage = random.index(80);
            let garbage = random.bytes(garbage);
            let _ = cost_of(&garbage);
        }
    }
}
