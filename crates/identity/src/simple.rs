//! Simple tokens: random letters that every member remembers.

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

/// The letters of a token's prefix.
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// The length of a token's prefix.
pub const PREFIX_LETTERS: usize = 16;
/// The length of the longest token: prefix, dot and the greatest index.
const TOKEN_BYTES_MAX: usize = PREFIX_LETTERS + 1 + 20;

/// Draws a prefix. The member that a client asks draws it, and proposes it with the user's name; the token is made when the
/// entry is applied, on every member.
pub fn draw_prefix(entropy: &mut Entropy) -> String {
    let mut prefix = String::with_capacity(PREFIX_LETTERS);
    while prefix.len() < PREFIX_LETTERS {
        let mut bytes = [0; PREFIX_LETTERS];
        entropy(&mut bytes);
        // 208 is a multiple of 52: below it all letters are equally frequent.
        let letters =
            bytes.iter().filter(|byte| **byte < 208).map(|byte| char::from(LETTERS[usize::from(byte % 52)]));
        prefix.extend(letters.take(PREFIX_LETTERS - prefix.len()));
    }
    prefix
}

/// The number of a token that the entry at `index` made, by which members of etcd know it: up to 3.4 that is the index, from 3.5
/// on the one before it (3.5.0 to 3.5.2 number as 3.4 does, and up to 3.5.4 an entry that failed before it counts less).
pub fn number(index: Index, is_before_3_5: bool) -> Index {
    if is_before_3_5 { index } else { Index(index.0.saturating_sub(1)) }
}

/// The text of a token, as the member that was asked answers it.
pub fn text(prefix: &str, number: Index) -> String {
    format!("{prefix}.{number}")
}

/// Bounds of a [`Store`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a token lives that is not used, as given with `--auth-token-ttl`; zero is 300 seconds, as in etcd.
    pub ttl: Duration,
    /// How many tokens of one user live at most; the one that was not used for longest goes first.
    pub tokens_per_user_max: usize,
    /// How many tokens live at most; the one that was not used for longest goes first. One takes some 350 bytes.
    pub tokens_max: usize,
}

impl Settings {
    /// The life of a token that is not used, if nothing else is said.
    pub const TTL_DEFAULT: Duration = Duration::from_secs(300);
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { ttl: Settings::TTL_DEFAULT, tokens_per_user_max: 50_000, tokens_max: 200_000 }
    }
}

/// The tokens that live, by user. One thread applies entries and changes it; all threads look tokens up.
///
/// It holds keyed hashes of tokens, so that what a lookup costs tells nothing of them; a token's text is only in the
/// [`crate::Session`] of a connection that presented it. Which tokens live is not replicated: each member counts the uses
/// that it has seen, and ends what was unused there for the TTL, as etcd does. A token that left too early makes its client
/// authenticate again, nothing else.
pub struct Store {
    key: MacKey,
    epoch: Epoch,
    settings: Settings,
    ttl_ns: u64,
    /// Raised when all tokens become void.
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

/// What [`Store::expire`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// How many tokens left.
    pub tokens: usize,
    /// When the next may be due; earlier calls do nothing. `None` if there are no tokens.
    pub next: Option<Instant>,
}

/// Entries that are looked at for expiry with each new token; two, so that they go faster than they come.
const EXPIRED_PER_TOKEN: usize = 2;

impl Store {
    /// An empty store that is not enabled. `now` is the earliest time that it will be told.
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

    /// Authentication was enabled.
    pub fn enable(&self) {
        self.write(|state| state.enabled = true);
    }

    /// Authentication was disabled: no token is valid any more, and none is made.
    pub fn disable(&self) {
        let before = self.write(|state| {
            self.generation.fetch_add(1, Ordering::AcqRel);
            std::mem::take(state)
        });
        // A large map takes its time, which need not hold up others.
        drop(before);
    }

    /// A user was authenticated by the entry at `index`, with a prefix that a member drew. To be called when the entry is
    /// applied, before the index is published as applied. Does nothing while authentication is disabled.
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

    /// A user was deleted or has another password: its tokens are void. Takes up to 10 ms if there are 50,000.
    pub fn forget(&self, user: &str) {
        self.write(|state| {
            let Some(tokens) = state.users.remove(user) else { return };
            for (tag, holder) in tokens.iter() {
                holder.void.store(true, Ordering::Release);
                state.tokens.remove(tag);
            }
        });
    }

    /// Whose token this is, by either [`number`]: members of a cluster may have seen another version of it. Renews it.
    /// `applied` is the index that this member has applied and published, read before.
    ///
    /// # Errors
    /// It is no token of this store, or one of an entry that this member has not applied.
    pub fn check(&self, token: &[u8], applied: Index, now: Now) -> Result<Arc<Holder>, Refused> {
        let (prefix, number) = parts_of(token).ok_or(Refused::Invalid)?;
        // Up to etcd 3.4, and from 3.5 on.
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

    /// Ends tokens that were not used for the TTL, and looks at `steps` tokens at most. Tokens that are due are refused
    /// without it; this only frees their memory.
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

    /// How many tokens there are, with those that are due and were not ended yet.
    pub fn len(&self) -> usize {
        self.state.read().unwrap_or_else(PoisonError::into_inner).tokens.len()
    }

    /// Returns true if there is no token.
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

    /// A token has left `tokens`.
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

/// Prefix and number of a token that may be one of a store's: letters, a dot and digits.
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
        // 615 of each are expected.
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
