//! Who a valid token belongs to, and until when.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::keyed::{Secret, equal};
use crate::{Epoch, Now};

/// Who a token belongs to, as all threads share it.
pub struct Holder {
    pub(crate) user: Arc<str>,
    pub(crate) revision: Option<u64>,
    /// Raised when all tokens of its store become void, or all that its key has verified.
    pub(crate) generation: Arc<AtomicU64>,
    /// The generation that this was made in.
    pub(crate) born: u64,
    pub(crate) void: AtomicBool,
    /// The last use, in nanoseconds since the store's epoch.
    pub(crate) used_ns: AtomicU64,
    pub(crate) life: Life,
}

/// Until when a token is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    /// Until it was not used for this time.
    Idle { epoch: Epoch, ttl_ns: u64 },
    /// Until this second since 1970; for ever if there is none.
    Until(Option<i64>),
}

/// By how much a use may be later than the one that is noted. Holders are shared: a connection that presents its token with
/// each of many requests does not write each time.
const fn slack_ns(ttl_ns: u64) -> u64 {
    ttl_ns / 1024
}

/// How long after the use that is noted a token ends. It is never shorter than the TTL after the last use; 0.3 s longer at
/// most with the default TTL, where etcd is up to a second late.
pub(crate) const fn idle_ns(ttl_ns: u64) -> u64 {
    ttl_ns.saturating_add(slack_ns(ttl_ns))
}

impl Holder {
    /// The name of the user.
    pub fn user(&self) -> &Arc<str> {
        &self.user
    }

    /// The revision of users and roles that the token was made at. `None` for a simple token: it has always the newest.
    pub fn revision(&self) -> Option<u64> {
        self.revision
    }

    /// Notes a use, and tells if the token is valid. One that is not may be valid again as far as its store knows: it left the
    /// store's memory, or keys were replaced.
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

    /// Returns true if the key has gone that its token was verified by.
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

/// A token that was found valid, as a connection keeps it, so that the next request with the same token needs no lookup: a
/// comparison in constant time, three loads and seldom a store.
pub struct Session {
    token: Secret,
    holder: Arc<Holder>,
}

impl Session {
    pub(crate) fn new(token: &[u8], holder: Arc<Holder>) -> Session {
        Session { token: Secret::new(token), holder }
    }

    /// Whose token this is, if it is the one of this session and still valid. Renews it. `None` means: ask
    /// [`crate::Tokens::check`].
    #[inline]
    pub fn renew(&self, token: &[u8], now: Now) -> Option<&Holder> {
        (equal(token, self.token.bytes()) && self.holder.renew(now)).then_some(&*self.holder)
    }

    /// Another one of the same token.
    #[must_use]
    pub fn another(&self) -> Session {
        Session { token: Secret::new(self.token.bytes()), holder: Arc::clone(&self.holder) }
    }

    /// Returns true if the key has gone that verified the token, if it is a JSON Web Token: nothing that was granted to its
    /// holder may go on.
    pub fn is_withdrawn(&self) -> bool {
        self.holder.is_withdrawn()
    }

    /// Whose token it was when it was checked.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("holder", &self.holder).finish_non_exhaustive()
    }
}
