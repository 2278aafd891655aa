//! Defines [`Tokens`], one interface for the kinds of tokens that `--auth-token` can select.

use std::fmt;
use std::time::Instant;

use numbers::Index;

use crate::Now;
use crate::holder::Session;
use crate::jwt::{self, Jwt, JwtError, JwtOptions, KeyError, Keys, OptionError, SignError};
use crate::keyed::Entropy;
use crate::simple::{self, Settings, Store};

/// The value of `--auth-token`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An empty string: clients cannot authenticate with a password.
    None,
    /// `simple`. etcd warns `simple token is not cryptographically signed`.
    Simple,
    /// `jwt,…`.
    Jwt(JwtOptions),
}

impl TokenKind {
    /// Parses the value of `--auth-token`.
    ///
    /// # Errors
    /// See [`OptionError`].
    pub fn parse(text: &str) -> Result<TokenKind, OptionError> {
        let (kind, options) = jwt::split_options(text)?;
        match kind {
            "" => Ok(TokenKind::None),
            "simple" => Ok(TokenKind::Simple),
            "jwt" => JwtOptions::new(&options).map(TokenKind::Jwt),
            other => Err(OptionError::UnknownKind(other.to_owned())),
        }
    }
}

/// Creates and checks tokens. Shared by all threads.
#[derive(Debug)]
pub enum Tokens {
    /// Clients cannot get tokens, and every token is refused.
    None,
    /// Simple tokens.
    Simple(Box<Store>),
    /// JSON Web Tokens.
    Jwt(Box<Jwt>),
}

/// Error returned when a token is not accepted, or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The token is invalid: `etcdserver: invalid auth token`.
    Invalid,
    /// The JSON Web Token is invalid; the reason is for the log.
    Jwt(JwtError),
    /// The token may come from this entry, which this member has not applied yet. etcd waits until the entry
    /// is applied or the call's deadline is reached, and then checks the token again. The wait must be
    /// bounded, because the index in a token may be forged.
    NotYet(Index),
    /// The signature of the JSON Web Token has not been checked yet. [`Tokens::check`] checks it, which takes
    /// up to half a millisecond and should run on a thread that serves no clients.
    Unverified,
}

/// Error returned when an authenticated user cannot get a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueError {
    /// `--auth-token` is empty.
    NoTokens,
    /// The token could not be signed.
    Sign(SignError),
}

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IssueError::NoTokens => f.write_str("auth: authentication failed, invalid user ID or password"),
            IssueError::Sign(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for IssueError {}

impl Tokens {
    /// Creates the tokens for `kind`. `public` and `private` are the contents of the files that it names;
    /// `settings` apply to simple tokens. `now` must not be later than the time of any later call.
    ///
    /// # Errors
    /// Returns an error if a key is missing or cannot be read, or if the keys do not match the method or each
    /// other.
    pub fn new(
        kind: &TokenKind,
        settings: Settings,
        public: Option<&[u8]>,
        private: Option<&[u8]>,
        now: Instant,
        entropy: &mut Entropy,
    ) -> Result<Tokens, KeyError> {
        Ok(match kind {
            TokenKind::None => Tokens::None,
            TokenKind::Simple => Tokens::Simple(Box::new(Store::new(settings, now, entropy))),
            TokenKind::Jwt(options) => {
                let keys = Keys::read(options.method, public, private)?;
                let jwt = Jwt::new(options.ttl_ns, keys, Jwt::REMEMBERED_MAX_DEFAULT, now, entropy);
                Tokens::Jwt(Box::new(jwt))
            }
        })
    }

    /// Must be called when authentication was enabled. Simple tokens are created only after this call.
    pub fn enable(&self) {
        if let Tokens::Simple(store) = self {
            store.enable();
        }
    }

    /// Must be called when authentication was disabled: invalidates simple tokens. JSON Web Tokens contain an
    /// auth revision, which will be outdated when authentication is enabled again.
    pub fn disable(&self) {
        if let Tokens::Simple(store) = self {
            store.disable();
        }
    }

    /// Must be called when a user was deleted or its password was changed: invalidates the user's simple
    /// tokens.
    pub fn forget(&self, user: &str) {
        if let Tokens::Simple(store) = self {
            store.forget(user);
        }
    }

    /// Returns a random prefix, the first part of a simple token (`prefix.number`); empty unless tokens are
    /// simple. The member that has checked a user's password draws the prefix, and proposes an entry with it
    /// and the user's name. Every member applies the entry, and so all members know the token.
    pub fn draw_prefix(&self, entropy: &mut Entropy) -> String {
        match self {
            Tokens::Simple(_) => simple::draw_prefix(entropy),
            Tokens::None | Tokens::Jwt(_) => String::new(),
        }
    }

    /// Must be called when the entry at `index` has authenticated a user; see [`Store::assign`]. Does nothing
    /// unless tokens are simple.
    pub fn assign(&self, user: &str, prefix: &str, index: Index, now: Instant) {
        if let Tokens::Simple(store) = self {
            store.assign(user, prefix, index, now);
        }
    }

    /// Returns the token for the client; called on the member that received the request. `number` is the
    /// number in a simple token ([`simple::number`]); `revision` is the auth revision when the entry was
    /// applied. Signing takes up to 2 ms of processor time, so it must not run on the thread that applies
    /// entries.
    ///
    /// # Errors
    /// Returns an error if tokens are disabled, if only a public key is configured, or if signing fails.
    pub fn issue(
        &self,
        user: &str,
        prefix: &str,
        number: Index,
        revision: u64,
        now: Now,
    ) -> Result<String, IssueError> {
        match self {
            Tokens::None => Err(IssueError::NoTokens),
            Tokens::Simple(_) => Ok(simple::text(prefix, number)),
            Tokens::Jwt(jwt) => jwt.sign(user, revision, now).map_err(IssueError::Sign),
        }
    }

    /// Checks a token as [`Tokens::check`] does, but without checking a signature: accepts only JSON Web
    /// Tokens that were checked before.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn recall(&self, token: &[u8], applied: Index, now: Now) -> Result<Session, Refused> {
        let Tokens::Jwt(jwt) = self else { return self.check(token, applied, now) };
        let Some(holder) = jwt.recall(token, now) else {
            jwt.look(token, now).map_err(Refused::Jwt)?;
            return Err(Refused::Unverified);
        };
        Ok(Session::new(token, holder))
    }

    /// Replaces the keys in use with those in the given files. Returns false, and does nothing, if tokens are
    /// not JSON Web Tokens.
    ///
    /// # Errors
    /// Returns an error if a key is missing or cannot be read, or if the keys do not match the method or each
    /// other. In that case the keys in use stay.
    pub fn replace_keys(
        &self,
        method: jwt::Method,
        public: Option<&[u8]>,
        private: Option<&[u8]>,
    ) -> Result<bool, KeyError> {
        let Tokens::Jwt(jwt) = self else { return Ok(false) };
        jwt.replace_keys(Keys::read(method, public, private)?);
        Ok(true)
    }

    /// Returns a counter that is incremented when sessions are withdrawn ([`Session::is_withdrawn`]).
    pub fn withdrawals(&self) -> u64 {
        match self {
            Tokens::Jwt(jwt) => jwt.generation(),
            Tokens::None | Tokens::Simple(_) => 0,
        }
    }

    /// Checks a token and returns a session with its user. `applied` is the index that this member has
    /// applied and published, read before the call.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn check(&self, token: &[u8], applied: Index, now: Now) -> Result<Session, Refused> {
        let holder = match self {
            Tokens::None => return Err(Refused::Invalid),
            Tokens::Simple(store) => store.check(token, applied, now)?,
            Tokens::Jwt(jwt) => jwt.check(token, now).map_err(Refused::Jwt)?,
        };
        Ok(Session::new(token, holder))
    }

    /// Frees the memory of expired or unused tokens. A call checks a bounded number of simple tokens, or all
    /// remembered JSON Web Tokens. One call per second is enough.
    pub fn expire(&self, now: Instant) {
        match self {
            Tokens::None => {}
            Tokens::Simple(store) => drop(store.expire(now, EXPIRED_PER_CALL)),
            Tokens::Jwt(jwt) => jwt.expire(now),
        }
    }
}

/// Number of simple tokens that one call of [`Tokens::expire`] checks, which takes less than 1 ms.
const EXPIRED_PER_CALL: usize = 2000;
