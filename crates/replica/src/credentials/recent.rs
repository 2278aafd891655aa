//! Remembers recently issued tokens, so that a client which authenticates again as the same user gets the
//! same token without new work.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use identity::Secret;

/// Time for which a token is issued again. It is short, because the token may be unknown to another member,
/// for example after that member has restarted. A client that is refused there authenticates again
/// immediately. It must get a new token, because the remembered one would be refused again.
const ISSUED_AGAIN: Duration = Duration::from_millis(100);

/// Maximum number of remembered tokens: the number of places, each for one token.
const PLACES: usize = 256;

/// Conditions under which a token was issued. It is issued again only under equal conditions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Grounds {
    /// Auth revision at which the password of the user was checked.
    pub(super) auth_revision: u64,
    /// Number of times that keys of tokens had been withdrawn when the token was made.
    pub(super) withdrawals: u64,
}

struct Issued {
    user: Box<str>,
    token: Secret,
    grounds: Grounds,
    at: Instant,
}

/// Recently issued tokens, by user. The hash of the user name selects one place, so users whose names select
/// the same place overwrite each other's tokens.
pub(super) struct Recent {
    hasher: RandomState,
    places: Box<[Mutex<Option<Issued>>]>,
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { hasher: RandomState::new(), places: (0..PLACES).map(|_| Mutex::new(None)).collect() }
    }

    fn place(&self, user: &str) -> MutexGuard<'_, Option<Issued>> {
        let place = self.hasher.hash_one(user) % PLACES as u64;
        lock(&self.places[usize::try_from(place).expect("is small")])
    }

    /// Returns the token that was recently issued to this user, if it was issued under these conditions.
    pub(super) fn get(&self, user: &str, grounds: Grounds, now: Instant) -> Option<String> {
        let place = self.place(user);
        let issued = place.as_ref()?;
        let is_the_same = *issued.user == *user
            && issued.grounds == grounds
            && now.duration_since(issued.at) < ISSUED_AGAIN;
        let token = is_the_same.then(|| issued.token.bytes().to_vec())?;
        String::from_utf8(token).ok()
    }

    /// Remembers a token that was issued.
    pub(super) fn put(&self, user: &str, token: &str, grounds: Grounds, now: Instant) {
        let issued = Issued { user: user.into(), token: Secret::new(token.as_bytes()), grounds, at: now };
        *self.place(user) = Some(issued);
    }

    /// Removes the tokens that are too old to be issued again.
    pub(super) fn expire(&self, now: Instant) {
        for place in &self.places {
            lock(place).take_if(|issued| now.duration_since(issued.at) >= ISSUED_AGAIN);
        }
    }
}

fn lock(place: &Mutex<Option<Issued>>) -> MutexGuard<'_, Option<Issued>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_issued_again_for_a_moment_and_on_the_same_grounds_only() {
        let (recent, now) = (Recent::new(), Instant::now());
        let grounds = |auth_revision, withdrawals| Grounds { auth_revision, withdrawals };
        recent.put("bob", "a.1", grounds(3, 0), now);
        let soon = now + ISSUED_AGAIN / 2;
        assert_eq!(recent.get("bob", grounds(3, 0), soon).as_deref(), Some("a.1"));
        assert_eq!(recent.get("eve", grounds(3, 0), soon), None);
        assert_eq!(recent.get("bob", grounds(4, 0), soon), None, "users or roles have changed");
        assert_eq!(recent.get("bob", grounds(3, 1), soon), None, "a key has gone");
        assert_eq!(recent.get("bob", grounds(3, 0), now + ISSUED_AGAIN), None);
        recent.expire(soon);
        assert!(recent.get("bob", grounds(3, 0), soon).is_some());
        recent.expire(now + ISSUED_AGAIN);
        assert!(recent.place("bob").is_none());
        // More users than places: each user finds its own token, or none.
        for user in 0..10 * PLACES {
            recent.put(&user.to_string(), &format!("t.{user}"), grounds(3, 0), now);
        }
        let found: Vec<_> = (0..10 * PLACES)
            .filter_map(|user| recent.get(&user.to_string(), grounds(3, 0), soon).map(|token| (user, token)))
            .collect();
        assert!(!found.is_empty() && found.len() <= PLACES);
        assert!(found.iter().all(|(user, token)| *token == format!("t.{user}")));
    }
}
