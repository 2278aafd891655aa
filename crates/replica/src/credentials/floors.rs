//! Revokes JSON Web Tokens, which cannot be changed once they are signed: for each user, [`Floors`] keeps the
//! minimum auth revision that a valid token must contain.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of users for which a minimum is kept. If another user is added, the newest minimum replaces
/// all of them and applies to all users. This also revokes valid tokens; their users have to authenticate
/// again.
const USERS_MAX: usize = 10_000;

/// Minimum auth revision of each user's tokens: the revision at which the user's password was last changed or
/// the user was deleted. This process knows only the changes that it has applied itself. For earlier ones,
/// the auth revision of the state with which the process began is the minimum of all users.
#[derive(Debug, Default)]
pub(super) struct Floors {
    /// Upper bound of all minimums in `floors`. A token with this revision or a higher one is accepted
    /// without locking `floors`.
    newest: AtomicU64,
    floors: Mutex<OfUsers>,
}

#[derive(Debug, Default)]
struct OfUsers {
    of_all: u64,
    of_user: HashMap<Box<str>, u64>,
}

impl Floors {
    fn lock(&self) -> MutexGuard<'_, OfUsers> {
        // No code panics while it holds this lock with half-changed data, so a poisoned lock still guards
        // consistent data.
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes tokens of this user invalid if their auth revision is lower than this one.
    pub fn raise(&self, user: &str, auth_revision: u64) {
        let mut floors = self.lock();
        if floors.of_user.len() >= USERS_MAX && !floors.of_user.contains_key(user) {
            floors.of_all = auth_revision;
            floors.of_user.clear();
        } else {
            floors.of_user.insert(user.into(), auth_revision);
        }
        drop(floors);
        self.newest.fetch_max(auth_revision, Ordering::Release);
    }

    /// Makes tokens of all users invalid if their auth revision is lower than this one. Used for a state that
    /// was loaded or received, because its password changes are not known.
    pub fn raise_all(&self, auth_revision: u64) {
        *self.lock() = OfUsers { of_all: auth_revision, of_user: HashMap::new() };
        self.newest.store(auth_revision, Ordering::Release);
    }

    pub fn is_below(&self, user: &str, auth_revision: u64) -> bool {
        if auth_revision >= self.newest.load(Ordering::Acquire) {
            return false;
        }
        let floors = self.lock();
        auth_revision < floors.of_user.get(user).copied().unwrap_or(0).max(floors.of_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_from_before_their_users_change_are_below() {
        let floors = Floors::default();
        floors.raise_all(5);
        floors.raise("root", 9);
        let below = |user, revisions: [u64; 4]| revisions.map(|revision| floors.is_below(user, revision));
        assert_eq!(below("root", [4, 5, 8, 9]), [true, true, true, false]);
        assert_eq!(below("bob", [4, 5, 8, 9]), [true, false, false, false]);
        // The auth revision of a received state may be lower.
        floors.raise_all(7);
        assert_eq!(below("root", [6, 7, 8, 9]), [true, false, false, false]);
    }

    #[test]
    fn what_is_kept_of_users_is_bounded() {
        let floors = Floors::default();
        for number in 1..=USERS_MAX as u64 + 1 {
            floors.raise(&number.to_string(), number);
        }
        assert_eq!(floors.lock().of_user.len(), 0);
        assert!(floors.is_below("root", USERS_MAX as u64) && !floors.is_below("1", USERS_MAX as u64 + 1));
    }
}
