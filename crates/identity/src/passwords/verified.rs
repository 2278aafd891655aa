//! What is remembered of passwords that were verified.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::counting;
use crate::Epoch;
use crate::aging::{Aging, Used};
use crate::keyed::{Entropy, MacKey, Tag};

/// Passwords that were verified a short time ago, so that a client that authenticates for each of its calls costs one
/// bcrypt, not one per call. Shared by all threads.
///
/// It holds keyed hashes of user, stored hash and password, never a password; the key is drawn at the start of the process.
/// A changed password changes the stored hash, and with it what is asked for: nothing that was remembered is found again.
/// An entry leaves when it was not used for `idle`. It does not leave earlier while it is used: who uses it presents the right
/// password each time, which another bcrypt could only confirm. What `idle` bounds is how long somebody who can read this
/// process's memory could test guesses faster than bcrypt allows, after the client has gone.
///
/// Wrong passwords are not remembered: the time of an answer would tell what others have tried.
pub struct Verified {
    key: MacKey,
    epoch: Epoch,
    idle_ns: u64,
    entries_per_part_max: usize,
    parts: [Mutex<Aging<Known>>; PARTS],
}

/// Parts with a lock of their own, so that threads seldom meet.
const PARTS: usize = 16;

/// Entries that are looked at for expiry with each insertion; two, so that they go faster than they come.
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

/// The keyed hash of a user, its stored hash and a password: names what has to be proven, and tells nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Proof {
    pub(super) tag: Tag,
    /// Keyed hash of the user's name.
    pub(super) user: Tag,
}

impl Verified {
    /// How long an entry stays that nobody uses.
    pub const IDLE_DEFAULT: Duration = Duration::from_secs(10);
    /// How many entries there are at most. One takes some 100 bytes.
    pub const ENTRIES_MAX_DEFAULT: usize = 16_384;

    /// Draws the key. `now` is the earliest time that it will be told.
    pub fn new(idle: Duration, entries_max: usize, now: Instant, entropy: &mut Entropy) -> Verified {
        Verified {
            key: MacKey::new(entropy),
            epoch: Epoch(now),
            idle_ns: u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX),
            entries_per_part_max: (entries_max / PARTS).max(1),
            parts: std::array::from_fn(|_| Mutex::new(Aging::default())),
        }
    }

    /// Returns `Ok` if this password of this user was verified and is remembered, and renews it then. `stored` is the user's
    /// stored hash, `None` if there is no such user; the time does not tell which.
    ///
    /// # Errors
    /// What has to be proven, for [`super::WorkQueue::push`] and [`Verified::remember`].
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

    /// What stands for this user's work that is not shared with others.
    pub fn of_user(&self, user: &str) -> Proof {
        let user = self.key.tag(user.as_bytes());
        Proof { tag: user, user }
    }

    /// What has to be proven of a token, for [`super::WorkQueue::push`]. All tokens are of one user, nobody's: whose they are is
    /// not known yet.
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

    /// Remembers that this was verified. The entry that was not used for longest leaves if there are too many.
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

    /// Forgets everything of a user. Looks at all entries: users change seldom.
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

    /// Forgets everything, as when authentication is disabled.
    pub fn clear(&self) {
        for part in &self.parts {
            *part.lock().unwrap_or_else(PoisonError::into_inner) = Aging::default();
        }
    }

    /// Forgets what was not used for long. Once a second is enough; without it entries stay until others come.
    pub fn expire(&self, now: Instant) {
        let since_ns = self.epoch.ns(now).saturating_sub(self.idle_ns);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            // Each entry is moved once at most, and removed once.
            let mut steps = 2 * part.len();
            while part.pop_unused(since_ns, &mut steps).is_some() {}
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Returns true if nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn part(&self, tag: Tag) -> MutexGuard<'_, Aging<Known>> {
        // The map takes the low bits of the same number.
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
        // A clock that was read earlier on another thread takes nothing back.
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
