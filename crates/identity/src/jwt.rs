//! Signs and verifies JSON Web Tokens. A member can verify such a token by its signature alone, so members
//! need not store the tokens.
//!
//! This module accepts the same tokens as etcd, which uses version 5 of the library golang-jwt with its
//! defaults. Differences are documented at [`JwtError`] and [`KeyError`].

mod der;
mod keys;
mod method;
mod options;
mod pem;

pub use keys::{KeyError, KeyFormat, Keys, PUBLIC_KEYS_MAX};
pub use method::Method;
pub(crate) use options::split as split_options;
pub use options::{JwtOptions, OptionError};

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use serde_json::{Map, Value};

use crate::aging::Aging;
use crate::holder::{Holder, Life};
use crate::keyed::{Entropy, MacKey, Tag};
use crate::{Epoch, Now};
use method::{Family, Named};

/// Maximum length of a token in bytes. A longer token is refused without being decoded.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Time for which a verified token is remembered after it was looked up last.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Base64 without padding. Unused bits of the last letter are ignored, as in Go.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&base64::alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Error returned when a token is refused. The messages are those of golang-jwt, which etcd logs after
/// `failed to parse a JWT token`, and those of etcd; a client learns only that its token is invalid. Two
/// messages are Mainstay's own: [`JwtError::TooLong`] and [`JwtError::RevisionOutOfRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwtError {
    /// The token is longer than [`TOKEN_BYTES_MAX`].
    TooLong,
    /// The token does not contain exactly two dots.
    Segments,
    /// The header of the token, which is the part before the first dot, is not base64.
    HeaderBase64,
    /// The header of the token, which is the part before the first dot, is not a JSON object.
    HeaderJson,
    /// The claims of the token, which are the part between the dots, are not base64.
    ClaimsBase64,
    /// The claims of the token, which are the part between the dots, are not a JSON object.
    ClaimsJson,
    /// The header of the token names an unknown signing method.
    MethodUnknown,
    /// The header of the token names no signing method.
    NoMethod,
    /// The signature of the token, which is the part after the second dot, is not base64.
    SignatureBase64,
    /// The header of the token names a signing method that is not the configured one.
    OtherMethod,
    /// None of the keys has made the signature of the token.
    Signature(Method),
    /// The token has expired or is not valid yet.
    Times(Times),
    /// The claim `username` is missing or is not a string.
    NoUser,
    /// The claim `revision` is missing or is not a number.
    NoRevision,
    /// The claim `revision` is negative or not below 2^64. It is refused, because Go's result for such a
    /// number depends on the processor.
    RevisionOutOfRange,
}

/// Errors of the claims `exp` and `nbf`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    expires: Option<TimeError>,
    not_before: Option<TimeError>,
}

/// Error of the claim `exp` or of the claim `nbf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeError {
    /// The claim is not a number.
    Type,
    /// The current time is outside of the claim's limit.
    Now,
}

impl fmt::Display for JwtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JwtError::TooLong => {
                return write!(f, "token is malformed: token has more than {TOKEN_BYTES_MAX} bytes");
            }
            JwtError::Segments => "token is malformed: token contains an invalid number of segments",
            JwtError::HeaderBase64 => "token is malformed: could not base64 decode header",
            JwtError::HeaderJson => "token is malformed: could not JSON decode header",
            JwtError::ClaimsBase64 => "token is malformed: could not base64 decode claim",
            JwtError::ClaimsJson => "token is malformed: could not JSON decode claim",
            JwtError::MethodUnknown => "token is unverifiable: signing method (alg) is unavailable",
            JwtError::NoMethod => "token is unverifiable: signing method (alg) is unspecified",
            JwtError::SignatureBase64 => "token is malformed: could not base64 decode signature",
            JwtError::OtherMethod => {
                "token is unverifiable: error while executing keyfunc: invalid signing method"
            }
            JwtError::Signature(method) => match method.family() {
                Family::Rsa | Family::RsaPss => "token signature is invalid: crypto/rsa: verification error",
                Family::Ecdsa => "token signature is invalid: crypto/ecdsa: verification error",
                Family::Ed25519 => "token signature is invalid: ed25519: verification error",
                Family::Hmac => "token signature is invalid: signature is invalid",
            },
            JwtError::Times(times) => return times.fmt(f),
            JwtError::NoUser => "failed to obtain user claims from jwt token",
            JwtError::NoRevision => "failed to obtain revision claims from jwt token",
            JwtError::RevisionOutOfRange => "revision claim of jwt token is out of range",
        })
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expires = self.expires.map(|why| match why {
            TimeError::Type => "invalid type for claim: exp is invalid",
            TimeError::Now => "token is expired",
        });
        let not_before = self.not_before.map(|why| match why {
            TimeError::Type => "invalid type for claim: nbf is invalid",
            TimeError::Now => "token is not valid yet",
        });
        f.write_str("token has invalid claims: ")?;
        f.write_str(expires.unwrap_or_default())?;
        if expires.is_some() && not_before.is_some() {
            f.write_str(", ")?;
        }
        f.write_str(not_before.unwrap_or_default())
    }
}

impl std::error::Error for JwtError {}

/// Error returned when a token cannot be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignError {
    /// Only a public key is configured, and signing needs a private key.
    VerifyOnly,
    /// The cryptographic library failed, for example because the operating system has no random bytes.
    Failed,
}

impl fmt::Display for SignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SignError::VerifyOnly => "auth: token signing attempted with verify-only key",
            SignError::Failed => "token could not be signed",
        })
    }
}

impl std::error::Error for SignError {}

/// Signs and verifies tokens. Shared by all threads.
///
/// Verified tokens are remembered by a keyed hash, so each member checks a token's signature once, not once
/// per request. A remembered token is forgotten when its key is removed, when it is not looked up for some
/// time, or when too many tokens are remembered. A remembered token that has expired is refused.
pub struct Jwt {
    /// Lifetime of a signed token in nanoseconds; with zero or less, tokens are expired when they are signed.
    ttl_ns: i64,
    keys: RwLock<Arc<Keys>>,
    /// Incremented after a key was removed.
    generation: AtomicU64,
    epoch: Epoch,
    mac: MacKey,
    remembered_per_part_max: usize,
    parts: [Mutex<Aging<Arc<Holder>>>; PARTS],
}

/// Number of parts of the table of remembered tokens. Each part has its own lock, which reduces contention.
const PARTS: usize = 16;

impl Jwt {
    /// Default maximum number of verified tokens that are remembered. A token takes about 250 bytes.
    pub const REMEMBERED_MAX_DEFAULT: usize = 32_768;

    /// Creates the signer and verifier of tokens. `now` must not be later than the time of any later call.
    pub fn new(ttl_ns: i64, keys: Keys, remembered_max: usize, now: Instant, entropy: &mut Entropy) -> Jwt {
        Jwt {
            ttl_ns,
            keys: RwLock::new(Arc::new(keys)),
            generation: AtomicU64::new(0),
            epoch: Epoch(now),
            mac: MacKey::new(entropy),
            remembered_per_part_max: (remembered_max / PARTS).max(1),
            parts: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Replaces the keys; the new keys may be for another method. Tokens of a removed key are refused from
    /// now on, even on connections that have presented them before, and are no longer remembered.
    pub fn replace_keys(&self, mut keys: Keys) {
        let (before, after) = {
            let mut current = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            keys.succeed(&current);
            let after = Arc::new(keys);
            (std::mem::replace(&mut *current, Arc::clone(&after)), after)
        };
        // Incremented only after the keys were replaced: a thread that sees the new counter then also reads
        // the new keys. If another thread verifies a token with an old key at this moment, the token becomes
        // invalid together with that key.
        if !before.end(&after) {
            return;
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let void: Vec<Tag> =
                part.iter().filter(|(_, holder)| holder.is_withdrawn()).map(|(tag, _)| tag).collect();
            for tag in void {
                part.remove(tag);
            }
        }
    }

    /// Returns a counter that is incremented after a key was removed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the keys in use.
    pub fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Signs a token for a user, with this auth revision. Takes up to 2 ms of processor time with RSA.
    ///
    /// # Errors
    /// Returns an error if no private key is configured, or signing fails.
    pub fn sign(&self, user: &str, revision: u64, now: Now) -> Result<String, SignError> {
        let keys = self.keys();
        if !keys.can_sign() {
            return Err(SignError::VerifyOnly);
        }
        let expires = now.unix_seconds.saturating_add(self.ttl_ns.div_euclid(1_000_000_000));
        let header = format!(r#"{{"alg":"{}","typ":"JWT"}}"#, keys.method());
        let claims = format!(r#"{{"exp":{expires},"revision":{revision},"username":{}}}"#, json_string(user));
        let mut token = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
        let signature = keys.sign(token.as_bytes()).ok_or(SignError::Failed)?;
        token.push('.');
        BASE64.encode_string(signature, &mut token);
        Ok(token)
    }

    /// Returns the user of this token if it was verified before and is remembered.
    pub fn recall(&self, token: &[u8], now: Now) -> Option<Arc<Holder>> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        self.remembered_as(self.mac.tag(token), now)
    }

    fn remembered_as(&self, tag: Tag, now: Now) -> Option<Arc<Holder>> {
        let known = self.part(tag).get(tag).map(Arc::clone)?;
        if !known.renew(now) {
            return None;
        }
        known.used_ns.fetch_max(self.epoch.ns(now.at), Ordering::Relaxed);
        Some(known)
    }

    /// Checks everything about a token except its signature. Takes some microseconds, whereas checking the
    /// signature takes 20 to 500 microseconds. [`Jwt::check`] checks the signature too.
    ///
    /// # Errors
    /// Returns an error if the token is malformed, uses another method, is not valid now, or has no user or
    /// revision.
    pub fn look(&self, token: &[u8], now: Now) -> Result<(), JwtError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(JwtError::TooLong);
        }
        Unverified::parse(self.keys().method(), token)?.claims(now.unix_seconds).map(drop)
    }

    /// Verifies a token and returns its user.
    ///
    /// # Errors
    /// Returns an error if none of the keys has signed the token, or it is not valid now.
    pub fn check(&self, token: &[u8], now: Now) -> Result<Arc<Holder>, JwtError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(JwtError::TooLong);
        }
        let tag = self.mac.tag(token);
        let now_ns = self.epoch.ns(now.at);
        if let Some(known) = self.remembered_as(tag, now) {
            return Ok(known);
        }
        let (claims, gone) = verify(&self.keys(), token, now.unix_seconds)?;
        let holder = Arc::new(Holder {
            user: claims.user.into(),
            revision: Some(claims.revision),
            generation: gone,
            born: 0,
            void: AtomicBool::new(false),
            used_ns: AtomicU64::new(now_ns),
            life: Life::Until(claims.expires),
        });
        let mut part = self.part(tag);
        part.insert(tag, Arc::clone(&holder));
        if part.len() > self.remembered_per_part_max {
            part.pop_least_used();
        }
        Ok(holder)
    }

    /// Forgets verified tokens that were not looked up for some time. Expired tokens are refused anyway; this
    /// call only frees their memory.
    pub fn expire(&self, now: Instant) {
        let since_ns =
            self.epoch.ns(now).saturating_sub(u64::try_from(REMEMBERED.as_nanos()).unwrap_or(u64::MAX));
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            // Enough steps to move each entry once and remove it once.
            let mut steps = 2 * part.len();
            while part.pop_unused(since_ns, &mut steps).is_some() {}
        }
    }

    /// Returns the number of verified tokens that are remembered.
    pub fn remembered(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    fn part(&self, tag: Tag) -> MutexGuard<'_, Aging<Arc<Holder>>> {
        // The high bits choose the part, because the map inside the part uses the low bits of the same
        // number.
        let part = (tag.short() >> 60) as usize % PARTS;
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt")
            .field("keys", &*self.keys())
            .field("remembered", &self.remembered())
            .finish_non_exhaustive()
    }
}

/// The claims of a valid token.
#[derive(Debug, PartialEq, Eq)]
struct Claims {
    user: String,
    revision: u64,
    /// Time of expiry in seconds since 1970; `None` if the token does not expire.
    expires: Option<i64>,
}

/// A decoded token whose signature is not checked yet.
struct Unverified<'t> {
    signed: &'t [u8],
    signature: Vec<u8>,
    claims: Map<String, Value>,
}

/// Decodes and verifies a token. The checks are in the order of golang-jwt, so that a token with several
/// errors is reported with the same error.
///
/// Returns the claims, and a counter that stays 0 until the key is removed.
fn verify(keys: &Keys, token: &[u8], now: i64) -> Result<(Claims, Arc<AtomicU64>), JwtError> {
    let token = Unverified::parse(keys.method(), token)?;
    let Some(gone) = keys.verify(token.signed, &token.signature) else {
        return Err(JwtError::Signature(keys.method()));
    };
    Ok((token.claims(now)?, Arc::clone(gone)))
}

impl<'t> Unverified<'t> {
    fn parse(method: Method, token: &'t [u8]) -> Result<Unverified<'t>, JwtError> {
        let mut dots = (0..token.len()).filter(|at| token[*at] == b'.');
        let (Some(first), Some(second), None) = (dots.next(), dots.next(), dots.next()) else {
            return Err(JwtError::Segments);
        };
        let header = BASE64.decode(&token[..first]).map_err(|_| JwtError::HeaderBase64)?;
        let header = object(&header).ok_or(JwtError::HeaderJson)?;
        let claims = BASE64.decode(&token[first + 1..second]).map_err(|_| JwtError::ClaimsBase64)?;
        let claims = object(&claims).ok_or(JwtError::ClaimsJson)?;
        let name = header.get("alg").and_then(Value::as_str).ok_or(JwtError::NoMethod)?;
        let named = match Named::find(name) {
            Named::Unknown => return Err(JwtError::MethodUnknown),
            named => named,
        };
        let signature = BASE64.decode(&token[second + 1..]).map_err(|_| JwtError::SignatureBase64)?;
        if named != Named::Method(method) {
            return Err(JwtError::OtherMethod);
        }
        Ok(Unverified { signed: &token[..second], signature, claims })
    }

    /// Returns the token's claims if it is valid at `now`.
    fn claims(&self, now: i64) -> Result<Claims, JwtError> {
        let claims = &self.claims;
        let expires = seconds(claims, "exp");
        let not_before = seconds(claims, "nbf");
        let times = Times {
            expires: match expires {
                Err(why) => Some(why),
                Ok(Some(expires)) if now >= expires => Some(TimeError::Now),
                Ok(_) => None,
            },
            not_before: match not_before {
                Err(why) => Some(why),
                Ok(Some(not_before)) if now < not_before => Some(TimeError::Now),
                Ok(_) => None,
            },
        };
        if times != Times::default() {
            return Err(JwtError::Times(times));
        }
        let Some(Value::String(user)) = claims.get("username") else {
            return Err(JwtError::NoUser);
        };
        let revision = claims.get("revision").and_then(Value::as_f64).ok_or(JwtError::NoRevision)?;
        // As in Go, a number with a fraction is accepted and truncated.
        if !(0.0..TWO_TO_64).contains(&revision) {
            return Err(JwtError::RevisionOutOfRange);
        }
        Ok(Claims { user: user.clone(), revision: revision as u64, expires: expires.unwrap_or_default() })
    }
}

const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

/// Parses a JSON object. As in Go, `null` is read as an empty object, and if a name occurs more than once,
/// its last occurrence wins.
fn object(json: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(json).ok()? {
        Value::Object(object) => Some(object),
        Value::Null => Some(Map::new()),
        _ => None,
    }
}

/// Returns the claim `exp` or `nbf` in whole seconds since 1970, or `None` if it is missing or, as in
/// golang-jwt, zero. A token with a time further in the future than golang-jwt can represent is never valid.
fn seconds(claims: &Map<String, Value>, name: &str) -> Result<Option<i64>, TimeError> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let number = value.as_f64().ok_or(TimeError::Type)?;
    if number == 0.0 {
        return Ok(None);
    }
    let whole = number.floor();
    // Go counts seconds from the year 1 in 64 bits. A time of expiry beyond that range overflows there into
    // the distant past, so a token with such an `exp` counts as expired. A token with such an `nbf` never
    // becomes valid.
    if whole.abs() < 9.22e18 {
        return Ok(Some(whole as i64));
    }
    Ok(Some(if number < 0.0 || name == "exp" { i64::MIN } else { i64::MAX }))
}

/// Returns a JSON string as Go writes it, with the escapes for HTML.
fn json_string(text: &str) -> String {
    let plain = Value::from(text).to_string();
    let mut escaped = String::with_capacity(plain.len());
    for character in plain.chars() {
        match character {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            other => escaped.push(other),
        }
    }
    escaped
}
