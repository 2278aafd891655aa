//! Implements simple tokens: random letters, of which every member stores a keyed hash.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use numbers::Index;

use crate::aging::{Aging, Used};
use crate::holder::{Holder, Life, idle_ns};
use crate::keyed::{Entropy, MacKey, Tag};
use crate::{Epoch, Now, Refused};

/// Letters that a token's prefix may contain.
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Number of letters of a token's prefix.
pub const PREFIX_LETTERS: usize = 16;
/// Maximum length of a token in bytes: prefix, dot and the largest index.
const TOKEN_BYTES_MAX: usize = PREFIX_LETTERS + 1 + 20;

/// Returns random letters: the prefix, with which a token begins. The member that received the request to
/// authenticate draws the prefix, and proposes an entry with it and the user's name. Every member applies the
/// entry, and so all members know the token.
pub fn draw_prefix(entropy: &mut Entropy) -> String {
    let mut prefix = String::with_capacity(PREFIX_LETTERS);
    while prefix.len() < PREFIX_LETTERS {
        let mut bytes = [0; PREFIX_LETTERS];
        entropy(&mut bytes);
        // Only bytes below 208 are used: 208 is a multiple of 52, so all letters are equally frequent.
        let letters =
            bytes.iter().filter(|byte| **byte < 208).map(|byte| char::from(LETTERS[usize::from(byte % 52)]));
        prefix.extend(letters.take(PREFIX_LETTERS - prefix.len()));
    }
    prefix
}

/// Returns the number in a token that the entry at `index` created, as etcd's members compute it. Up to etcd
/// 3.4 it is the index of the entry, from 3.5 on it is that index minus 1. (3.5.0 to 3.5.2 number as 3.4
/// does, and up to 3.5.4 each earlier failed entry lowers the number by one.)
pub fn number(index: Index, is_before_3_5: bool) -> Index {
    if is_before_3_5 { index } else { Index(index.0.saturating_sub(1)) }
}

/// Returns a token as the string that is sent to the client.
pub fn text(prefix: &str, number: Index) -> String {
    format!("{prefix}.{number}")
}

/// Limits of a [`Store`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Time to live of an unused token, as given with `--auth-token-ttl`; zero means 300 seconds, as in etcd.
    pub ttl: Duration,
    /// Maximum number of tokens per user; the least recently used one is removed first.
    pub tokens_per_user_max: usize,
    /// Maximum number of tokens; the least recently used one is removed first. A token takes about 350 bytes.
    pub tokens_max: usize,
}

impl Settings {
    /// Default time to live of an unused token.
    pub const TTL_DEFAULT: Duration = Duration::from_secs(300);
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { ttl: Settings::TTL_DEFAULT, tokens_per_user_max: 50_000, tokens_max: 200_000 }
    }
}

/// The valid tokens, by user. One thread applies entries and changes the store; all threads look tokens up.
///
/// The store has keyed hashes of tokens, so that the duration of a lookup reveals nothing about them; the
/// text of a token is only in the [`crate::Session`] of a connection that presented it. The set of valid
/// tokens is not replicated: as in etcd, each member counts the uses that it has seen, and removes tokens
/// that were not used on this member for the TTL. If a token is removed too early, its client only has to
/// authenticate again.
pub struct Store {
    key: MacKey,
    epoch: Epoch,
    settings: Settings,
    ttl_ns: u64,
    /// Incremented when all tokens become invalid.
    generation: Arc<AtomicU64>,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    enabled: bool,
    tokens: Aging<Arc<Holder>>,
    users: HashMap<Arc<str>, Aging<Arc<Holder>>>,
}

impl Used for Arc<Holder> {
    fn used_ns(&self) -> u64 {
        Holder::used_ns(self)
    }
}

/// Result of [`Store::expire`]: how many tokens were removed, and when the next one may expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Number of tokens that were removed.
    pub tokens: usize,
    /// Time at which the next token may expire; earlier calls do nothing. `None` if there are no tokens.
    pub next: Option<Instant>,
}

/// Number of entries that are checked for expiry with each new token. It is two, so that tokens are removed
/// faster than they are added.
const EXPIRED_PER_TOKEN: usize = 2;

impl Store {
    /// Creates an empty store, not enabled. `now` must not be later than the time of any later call.
    pub fn new(mut settings: Settings, now: Instant, entropy: &mut Entropy) -> Store {
        if settings.ttl.is_zero() {
            settings.ttl = Settings::TTL_DEFAULT;
        }
        Store {
            key: MacKey::new(entropy),
            epoch: Epoch(now),
            ttl_ns: u64::try_from(settings.ttl.as_nanos()).unwrap_or(u64::MAX),
            settings,
            generation: Arc::default(),
            state: RwLock::default(),
        }
    }

    /// Enables the store. Must be called when authentication was enabled; before, no token is created.
    pub fn enable(&self) {
        self.write(|state| state.enabled = true);
    }

    /// Invalidates all tokens. Must be called when authentication was disabled; no token is created until the
    /// store is enabled again.
    pub fn disable(&self) {
        let before = self.write(|state| {
            self.generation.fetch_add(1, Ordering::AcqRel);
            std::mem::take(state)
        });
        // Freeing a large map takes time, so it happens without the lock.
        drop(before);
    }

    /// Creates the token of a user that the entry at `index` authenticated, with the prefix in that entry.
    /// Must be called when the entry is applied, before its index is published as applied. Does nothing while
    /// authentication is disabled.
    pub fn assign(&self, user: &str, prefix: &str, index: Index, now: Instant) {
        let tag = self.key.tag(text(prefix, index).as_bytes());
        let now_ns = self.epoch.ns(now);
        self.write(|state| {
            if !state.enabled {
                return;
            }
            let mut steps = EXPIRED_PER_TOKEN;
            self.expire_some(state, now_ns, &mut steps);
            state.remove(tag);
            let name =
                state.users.get_key_value(user).map_or_else(|| user.into(), |(name, _)| Arc::clone(name));
            let holder = Arc::new(Holder {
                user: Arc::clone(&name),
                revision: None,
                generation: Arc::clone(&self.generation),
                born: self.generation.load(Ordering::Acquire),
                void: AtomicBool::new(false),
                used_ns: AtomicU64::new(now_ns),
                life: Life::Idle { epoch: self.epoch, ttl_ns: self.ttl_ns },
            });
            state.tokens.insert(tag, Arc::clone(&holder));
            let of_user = state.users.entry(name).or_default();
            of_user.insert(tag, holder);
            if of_user.len() > self.settings.tokens_per_user_max.max(1)
                && let Some((tag, _)) = of_user.pop_least_used()
            {
                state.remove(tag);
            }
            while state.tokens.len() > self.settings.tokens_max.max(1) {
                let Some((tag, holder)) = state.tokens.pop_least_used() else { break };
                state.leave(tag, &holder);
            }
        });
    }

    /// Invalidates all tokens of a user. Must be called when the user was deleted or its password was
    /// changed. Takes up to 10 ms for 50,000 tokens.
    pub fn forget(&self, user: &str) {
        self.write(|state| {
            let Some(tokens) = state.users.remove(user) else { return };
            for (tag, holder) in tokens.iter() {
                holder.void.store(true, Ordering::Release);
                state.tokens.remove(tag);
            }
        });
    }

    /// Returns the user of this token and renews the token. The number in the token may follow either rule of
    /// [`number`], because members of a cluster may use different rules. `applied` is the index that this
    /// member has applied and published, read before the call.
    ///
    /// # Errors
    /// Returns [`Refused::NotYet`] if the token is not in this store but may belong to an entry that this
    /// member has not applied. Returns [`Refused::Invalid`] if the token is otherwise unknown, has expired,
    /// or does not have the form of a simple token.
    pub fn check(&self, token: &[u8], applied: Index, now: Now) -> Result<Arc<Holder>, Refused> {
        let (prefix, number) = parts_of(token).ok_or(Refused::Invalid)?;
        // The token may have been numbered by the rule up to etcd 3.4 or by the rule from 3.5 on, so one of
        // two entries may have created it.
        let entries = [number, Index(number.0.saturating_add(1))];
        let found = entries.into_iter().find_map(|index| {
            let tag = self.key.tag(text(prefix, index).as_bytes());
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            state.tokens.get(tag).cloned()
        });
        match found {
            Some(holder) if holder.renew(now) => Ok(holder),
            None if entries[1] > applied => Err(Refused::NotYet(entries[1])),
            _ => Err(Refused::Invalid),
        }
    }

    /// Removes tokens that were not used for the TTL, checking at most `steps` tokens. Expired tokens are
    /// refused anyway; this call only frees their memory.
    pub fn expire(&self, now: Instant, mut steps: usize) -> Expired {
        let now_ns = self.epoch.ns(now);
        self.write(|state| {
            let tokens = self.expire_some(state, now_ns, &mut steps);
            let next = state.tokens.first_used_ns().map(|used_ns| {
                self.epoch.0
                    + Duration::from_nanos(used_ns.saturating_add(idle_ns(self.ttl_ns)).saturating_add(1))
            });
            Expired { tokens, next }
        })
    }

    /// Returns the number of tokens, including expired ones that have not been removed yet.
    pub fn len(&self) -> usize {
        self.state.read().unwrap_or_else(PoisonError::into_inner).tokens.len()
    }

    /// Returns true if the store has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn expire_some(&self, state: &mut State, now_ns: u64, steps: &mut usize) -> usize {
        let since_ns = now_ns.saturating_sub(idle_ns(self.ttl_ns));
        let mut tokens = 0;
        while let Some((tag, holder)) = state.tokens.pop_unused(since_ns, steps) {
            state.leave(tag, &holder);
            tokens += 1;
        }
        tokens
    }
}

impl State {
    fn remove(&mut self, tag: Tag) {
        if let Some(holder) = self.tokens.remove(tag) {
            self.leave(tag, &holder);
        }
    }

    /// Completes the removal of a token that was removed from `tokens`: marks its holder as void, and removes
    /// the token from the list of its user.
    fn leave(&mut self, tag: Tag, holder: &Holder) {
        holder.void.store(true, Ordering::Release);
        if let Some(of_user) = self.users.get_mut(&holder.user) {
            of_user.remove(tag);
            if of_user.len() == 0 {
                self.users.remove(&holder.user);
            }
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("settings", &self.settings)
            .field("tokens", &self.len())
            .finish_non_exhaustive()
    }
}

/// Returns prefix and number of a token in the form of simple tokens: letters, a dot and digits.
fn parts_of(token: &[u8]) -> Option<(&str, Index)> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let (prefix, digits) = token.split_at_checked(PREFIX_LETTERS)?;
    let digits = digits.strip_prefix(b".")?;
    let is_padded = digits.len() > 1 && digits.starts_with(b"0");
    if !prefix.iter().all(u8::is_ascii_alphabetic) || digits.is_empty() || is_padded {
        return None;
    }
    let number = digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    Some((std::str::from_utf8(prefix).ok()?, Index(number?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_of_all_letters_equally() {
        let mut random = testkit::Random::new(5);
        let mut seen = HashMap::new();
        for _ in 0..2000 {
            let prefix =
                draw_prefix(&mut |bytes: &mut [u8]| bytes.copy_from_slice(&random.bytes(bytes.len())));
            assert_eq!(prefix.len(), PREFIX_LETTERS);
            prefix.bytes().for_each(|letter| *seen.entry(letter).or_insert(0) += 1);
        }
        assert_eq!(seen.len(), 52);
        // About 615 of each letter are expected.
        assert!(seen.values().all(|count| (480..760).contains(count)), "{seen:?}");
    }

    #[test]
    fn only_letters_dot_and_digits_are_tokens() {
        let token = |text: &str| parts_of(text.as_bytes()).map(|(_, number)| number);
        assert_eq!(token("abcdefghijklmnop.7"), Some(Index(7)));
        assert_eq!(token("abcdefghijklmnoP.18446744073709551615"), Some(Index(u64::MAX)));
        assert_eq!(parts_of(b"abcdefghijklmnop.0"), Some(("abcdefghijklmnop", Index(0))));
        for wrong in [
            "",
            ".",
            "abcdefghijklmnop",
            "abcdefghijklmnop.",
            "abcdefghijklmnop.007",
            "abcdefghijklmnop.-1",
            "abcdefghijklmnop.+1",
            "abcdefghijklmnop.1_0",
            "abcdefghijklmnop.1.2",
            "abcdefghijklmnop.18446744073709551616",
            "abcdefghijklmnop.000000000000000000001",
            "abcdefghijklmno.1",
            "abcdefghijklmn0p.1",
            "Bearer abcdefghijklmnop.1",
            "abcdefghijklmn\u{e9}.1",
        ] {
            assert_eq!(token(wrong), None, "{wrong}");
        }
    }
}
