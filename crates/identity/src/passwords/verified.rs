//! Caches verified passwords.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::counting;
use crate::Epoch;
use crate::aging::{Aging, Used};
use crate::keyed::{Entropy, MacKey, Tag};

/// Cache of passwords that were verified recently. With it, a client that authenticates before each of its
/// calls does not cause a bcrypt computation per call, but usually only one. Shared by all threads.
///
/// It stores keyed hashes of user, stored hash and password, never a password; the key is drawn at the start
/// of the process. Changing a password changes the stored hash and therefore the lookup key, so old entries
/// are never found again. An entry is removed if it was not used for `idle`. An entry stays as long as it is
/// used, because each use presents the correct password, and another bcrypt computation could only confirm
/// that. `idle` bounds the time, after a client's last use, in which an attacker who can read this process's
/// memory could test guesses faster than bcrypt allows.
///
/// Wrong passwords are not cached: otherwise the duration of a response would reveal which passwords other
/// clients have tried.
pub struct Verified {
    key: MacKey,
    epoch: Epoch,
    idle_ns: u64,
    entries_per_part_max: usize,
    parts: [Mutex<Aging<Known>>; PARTS],
}

/// Number of parts of the cache. Each part has its own lock, which reduces contention.
const PARTS: usize = 16;

/// Number of entries that are checked for expiry at each insertion. It is two, so that entries are removed
/// faster than they are added.
const EXPIRED_PER_INSERTION: usize = 2;

struct Known {
    used_ns: u64,
    /// Keyed hash of the user's name.
    user: Tag,
}

impl Used for Known {
    fn used_ns(&self) -> u64 {
        self.used_ns
    }
}

/// Keyed hash of a user, its stored hash and a password. It identifies one check of a password in the cache
/// and in the work queue, and reveals nothing about the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Proof {
    pub(super) tag: Tag,
    /// Keyed hash of the user's name.
    pub(super) user: Tag,
}

impl Verified {
    /// Default time after which an unused entry is removed.
    pub const IDLE_DEFAULT: Duration = Duration::from_secs(10);
    /// Default maximum number of entries. An entry takes about 100 bytes.
    pub const ENTRIES_MAX_DEFAULT: usize = 16_384;

    /// Creates the cache and draws its key. `now` must not be later than the time of any later call.
    pub fn new(idle: Duration, entries_max: usize, now: Instant, entropy: &mut Entropy) -> Verified {
        Verified {
            key: MacKey::new(entropy),
            epoch: Epoch(now),
            idle_ns: u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX),
            entries_per_part_max: (entries_max / PARTS).max(1),
            parts: std::array::from_fn(|_| Mutex::new(Aging::default())),
        }
    }

    /// Returns `Ok` and renews the entry if this password of this user was verified and is remembered.
    /// `stored` is the user's stored hash, or `None` if the user does not exist; the duration does not reveal
    /// which.
    ///
    /// # Errors
    /// Returns the proof that has to be verified, for [`super::WorkQueue::push`] and [`Verified::remember`].
    pub fn recall(
        &self,
        user: &str,
        stored: Option<&[u8]>,
        password: &[u8],
        now: Instant,
    ) -> Result<(), Proof> {
        let (kind, stored): (&[u8], &[u8]) = match stored {
            Some(stored) => (b"+", stored),
            None => (b"-", &[b'-'; 60]),
        };
        let tag = self.key.tag_of_all(&[user.as_bytes(), kind, stored, counting(password)]);
        if self.knows(tag, now) { Ok(()) } else { Err(Proof { tag, user: self.key.tag(user.as_bytes()) }) }
    }

    /// Returns a proof for work of this user whose result is not shared between requests, such as hashing a
    /// new password.
    pub fn of_user(&self, user: &str) -> Proof {
        let user = self.key.tag(user.as_bytes());
        Proof { tag: user, user }
    }

    /// Returns the proof for checking a token, for [`super::WorkQueue::push`]. All tokens count as tokens of
    /// one user with an empty name, because their true users are not known yet.
    pub fn of_token(&self, token: &[u8]) -> Proof {
        Proof { tag: self.key.tag_of_all(&[b"token", token]), user: self.key.tag(b"") }
    }

    fn knows(&self, tag: Tag, now: Instant) -> bool {
        let now_ns = self.epoch.ns(now);
        let mut part = self.part(tag);
        let Some(known) = part.get_mut(tag) else {
            return false;
        };
        if known.used_ns.saturating_add(self.idle_ns) < now_ns {
            part.remove(tag);
            return false;
        }
        known.used_ns = known.used_ns.max(now_ns);
        true
    }

    /// Remembers that the password of this proof was verified and is correct. If the cache has too many
    /// entries, removes the least recently used one.
    pub fn remember(&self, proof: &Proof, now: Instant) {
        let now_ns = self.epoch.ns(now);
        let mut part = self.part(proof.tag);
        let since_ns = now_ns.saturating_sub(self.idle_ns);
        let mut steps = EXPIRED_PER_INSERTION;
        while part.pop_unused(since_ns, &mut steps).is_some() {}
        part.insert(proof.tag, Known { used_ns: now_ns, user: proof.user });
        while part.len() > self.entries_per_part_max {
            part.pop_least_used();
        }
    }

    /// Removes all entries of a user. Scans the whole cache, which is acceptable because users are changed
    /// rarely.
    pub fn forget(&self, user: &str) {
        let user = self.key.tag(user.as_bytes());
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let of_user: Vec<Tag> =
                part.iter().filter(|(_, known)| known.user == user).map(|(tag, _)| tag).collect();
            for tag in of_user {
                part.remove(tag);
            }
        }
    }

    /// Removes all entries, for example when authentication is disabled.
    pub fn clear(&self) {
        for part in &self.parts {
            *part.lock().unwrap_or_else(PoisonError::into_inner) = Aging::default();
        }
    }

    /// Removes entries that were not used for the idle time. One call per second is enough. Without calls,
    /// unused entries are removed only when others are inserted.
    pub fn expire(&self, now: Instant) {
        let since_ns = self.epoch.ns(now).saturating_sub(self.idle_ns);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            // Enough steps to move each entry back once and remove it once.
            let mut steps = 2 * part.len();
            while part.pop_unused(since_ns, &mut steps).is_some() {}
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Returns true if the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn part(&self, tag: Tag) -> MutexGuard<'_, Aging<Known>> {
        // The high bits choose the part, because the map inside the part uses the low bits of the same
        // number.
        let part = (tag.short() >> 60) as usize % PARTS;
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified").field("entries", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn verified(entries_max: usize, now: Instant) -> Verified {
        Verified::new(10 * SECOND, entries_max, now, &mut crate::keyed::system_entropy())
    }

    #[test]
    fn is_known_until_it_was_idle() {
        let start = Instant::now();
        let verified = verified(100, start);
        let known = |seconds: u32| {
            verified.recall("alice", Some(b"hash"), b"secret", start + seconds * SECOND).is_ok()
        };
        let proof = verified.recall("alice", Some(b"hash"), b"secret", start).unwrap_err();
        assert!(!known(0));
        verified.remember(&proof, start);
        assert!(known(10));
        assert!(known(20));
        // A time that another thread read earlier does not shorten the life of an entry.
        assert!(known(12));
        assert!(known(30));
        assert!(!known(41));
        assert!(verified.is_empty());
    }

    #[test]
    fn anything_else_is_not_known() {
        let now = Instant::now();
        let verified = verified(100, now);
        verified.remember(&verified.recall("alice", Some(b"hash"), b"secret", now).unwrap_err(), now);
        for (user, stored, password) in [
            ("alicf", Some(&b"hash"[..]), &b"secret"[..]),
            ("alice", Some(b"hasi"), b"secret"),
            ("alice", Some(b"hash"), b"secres"),
            ("alice", Some(b"hash"), b""),
            ("alice", None, b"secret"),
            ("aliceh", Some(b"ash"), b"secret"),
        ] {
            assert!(verified.recall(user, stored, password, now).is_err());
        }
        let proof = |len: usize| verified.recall("alice", Some(b"hash"), &vec![b'x'; len], now).unwrap_err();
        assert_eq!(proof(72), proof(100));
        assert_ne!(proof(71), proof(72));
    }

    #[test]
    fn is_bounded_and_keeps_what_is_used() {
        let start = Instant::now();
        let verified = verified(PARTS * 8, start);
        let recall = |user: &str, now: Instant| verified.recall(user, Some(b"hash"), b"secret", now);
        verified.remember(&recall("used", start).unwrap_err(), start);
        for number in 0..10_000_u32 {
            let now = start + Duration::from_millis(u64::from(number));
            assert!(recall("used", now).is_ok());
            verified.remember(&recall(&number.to_string(), now).unwrap_err(), now);
            assert!(verified.len() <= PARTS * 8);
        }
        verified.expire(start + 100 * SECOND);
        assert!(verified.is_empty());
    }

    #[test]
    fn a_user_is_forgotten() {
        let now = Instant::now();
        let verified = verified(1000, now);
        let recall = |number: u32| {
            let user = if number.is_multiple_of(2) { "even" } else { "odd" };
            verified.recall(user, Some(b"hash"), &number.to_le_bytes(), now)
        };
        (0..100).for_each(|number| verified.remember(&recall(number).unwrap_err(), now));
        assert!((0..100).all(|number| recall(number).is_ok()));
        verified.forget("even");
        assert!((0..100).all(|number| recall(number).is_ok() == (number % 2 == 1)));
        verified.clear();
        assert!(verified.is_empty());
    }
}
