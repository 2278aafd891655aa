//! Stores the user of a valid token, and the token's validity.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::keyed::{Secret, equal};
use crate::{Epoch, Now};

/// The user of a token; shared by all threads.
pub struct Holder {
    pub(crate) user: Arc<str>,
    pub(crate) revision: Option<u64>,
    /// Counter that is incremented when the holder may have become invalid: when all tokens of the store
    /// become invalid, or all tokens that a key has verified.
    pub(crate) generation: Arc<AtomicU64>,
    /// Value of `generation` when this holder was created.
    pub(crate) born: u64,
    pub(crate) void: AtomicBool,
    /// Time of the last use, in nanoseconds since the store's epoch.
    pub(crate) used_ns: AtomicU64,
    pub(crate) life: Life,
}

/// Validity period of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    /// Valid until the token has not been used for `ttl_ns` nanoseconds.
    Idle { epoch: Epoch, ttl_ns: u64 },
    /// Valid until this second since 1970; without limit if it is `None`.
    Until(Option<i64>),
}

/// Returns the time in nanoseconds by which a recorded use may lag behind the true one. A use that follows
/// the recorded one within this time is not recorded. All threads share a holder, so a connection that
/// presents its token with every request should not write to the holder each time.
const fn slack_ns(ttl_ns: u64) -> u64 {
    ttl_ns / 1024
}

/// Returns the time in nanoseconds after the recorded use at which a token expires. A token never expires
/// earlier than the TTL after its true last use, and with the default TTL at most 0.3 s later; etcd is up to
/// a second late.
pub(crate) const fn idle_ns(ttl_ns: u64) -> u64 {
    ttl_ns.saturating_add(slack_ns(ttl_ns))
}

impl Holder {
    /// Returns the name of the user.
    pub fn user(&self) -> &Arc<str> {
        &self.user
    }

    /// Returns the auth revision at which the token was made; `None` for a simple token, for which the newest
    /// auth revision always applies.
    pub fn revision(&self) -> Option<u64> {
        self.revision
    }

    /// Records a use, and returns true if the token is valid. If the result is false, the token may still be
    /// valid, so the caller must look it up again: its entry may only have been evicted from memory, or one
    /// of the new keys may verify it.
    pub(crate) fn renew(&self, now: Now) -> bool {
        if self.void.load(Ordering::Acquire) || self.generation.load(Ordering::Acquire) != self.born {
            return false;
        }
        match self.life {
            Life::Until(expires) => expires.is_none_or(|expires| now.unix_seconds < expires),
            Life::Idle { epoch, ttl_ns } => {
                let now_ns = epoch.ns(now.at);
                let used_ns = self.used_ns.load(Ordering::Relaxed);
                if used_ns.saturating_add(idle_ns(ttl_ns)) < now_ns {
                    return false;
                }
                if now_ns.saturating_sub(used_ns) > slack_ns(ttl_ns) {
                    self.used_ns.fetch_max(now_ns, Ordering::Relaxed);
                }
                true
            }
        }
    }

    /// Returns true if the key that verified the token was removed.
    pub(crate) fn is_withdrawn(&self) -> bool {
        matches!(self.life, Life::Until(_)) && self.generation.load(Ordering::Acquire) != self.born
    }

    pub(crate) fn used_ns(&self) -> u64 {
        self.used_ns.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("user", &self.user)
            .field("revision", &self.revision)
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

/// A token that was found valid, and its user; kept by the connection that has presented the token. With it,
/// later requests with the same token are checked without a lookup among all tokens: [`Session::renew`]
/// compares the two tokens in constant time and reads a few atomic variables. For a simple token it also
/// records the time of the use, but only if 1/1024 of the TTL has passed since the last recorded use.
pub struct Session {
    token: Secret,
    holder: Arc<Holder>,
}

impl Session {
    pub(crate) fn new(token: &[u8], holder: Arc<Holder>) -> Session {
        Session { token: Secret::new(token), holder }
    }

    /// If `token` is the token of this session and still valid, renews it and returns its user. If the result
    /// is `None`, call [`crate::Tokens::check`].
    #[inline]
    pub fn renew(&self, token: &[u8], now: Now) -> Option<&Holder> {
        (equal(token, self.token.bytes()) && self.holder.renew(now)).then_some(&*self.holder)
    }

    /// Returns a copy of the session for the same token.
    #[must_use]
    pub fn another(&self) -> Session {
        Session { token: Secret::new(self.token.bytes()), holder: Arc::clone(&self.holder) }
    }

    /// Returns true if the token is a JSON Web Token and the key that verified it was removed. The caller
    /// must end streams that were opened with such a token.
    pub fn is_withdrawn(&self) -> bool {
        self.holder.is_withdrawn()
    }

    /// Returns the user of the token at the time of its check.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("holder", &self.holder).finish_non_exhaustive()
    }
}
