//! What `--auth-token` names, behind one face.

use std::fmt;
use std::time::Instant;

use numbers::Index;

use crate::Now;
use crate::holder::Session;
use crate::jwt::{self, Jwt, JwtError, JwtOptions, KeyError, Keys, OptionError, SignError};
use crate::keyed::Entropy;
use crate::simple::{self, Settings, Store};

/// What `--auth-token` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An empty string: nobody can authenticate with a password.
    None,
    /// `simple`. etcd warns `simple token is not cryptographically signed`.
    Simple,
    /// `jwt,…`.
    Jwt(JwtOptions),
}

impl TokenKind {
    /// Reads the value of `--auth-token`.
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

/// Makes and checks tokens. Shared by all threads.
#[derive(Debug)]
pub enum Tokens {
    /// There are none.
    None,
    /// Simple tokens.
    Simple(Box<Store>),
    /// JSON Web Tokens.
    Jwt(Box<Jwt>),
}

/// Why a token was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is invalid: `etcdserver: invalid auth token`.
    Invalid,
    /// It is a JSON Web Token and invalid, for this reason, which belongs into the log.
    Jwt(JwtError),
    /// It may be a token of this entry, which this member has not applied yet. etcd waits until it has or the call's time is up,
    /// and then asks once more; the index may be made up, so nobody may wait without a bound.
    NotYet(Index),
    /// It is a JSON Web Token whose signature was not looked at yet: [`Tokens::check`] does so, which takes up to half a
    /// millisecond and belongs on a thread that serves no clients.
    Unverified,
}

/// Why there is no token for a user that was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssueError {
    /// `--auth-token` is empty.
    NoTokens,
    /// It could not be signed.
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
    /// Makes what `kind` says. `public` and `private` are the contents of the files that it names; `settings` are for simple
    /// tokens. `now` is the earliest time that it will be told.
    ///
    /// # Errors
    /// The keys do not fit.
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

    /// Authentication was enabled.
    pub fn enable(&self) {
        if let Tokens::Simple(store) = self {
            store.enable();
        }
    }

    /// Authentication was disabled: simple tokens are void. JSON Web Tokens say a revision of users and roles that is old if
    /// authentication is enabled again.
    pub fn disable(&self) {
        if let Tokens::Simple(store) = self {
            store.disable();
        }
    }

    /// A user was deleted or has another password: its simple tokens are void.
    pub fn forget(&self, user: &str) {
        if let Tokens::Simple(store) = self {
            store.forget(user);
        }
    }

    /// The prefix to propose with a user's name; empty unless tokens are simple.
    pub fn draw_prefix(&self, entropy: &mut Entropy) -> String {
        match self {
            Tokens::Simple(_) => simple::draw_prefix(entropy),
            Tokens::None | Tokens::Jwt(_) => String::new(),
        }
    }

    /// The entry at `index` authenticated a user; see [`Store::assign`]. Costs nothing unless tokens are simple.
    pub fn assign(&self, user: &str, prefix: &str, index: Index, now: Instant) {
        if let Tokens::Simple(store) = self {
            store.assign(user, prefix, index, now);
        }
    }

    /// The token to answer with, at the member that was asked; `number` is that of a simple one ([`simple::number`]), `revision`
    /// that of users and roles when its entry was applied. Signing takes up to 2 ms of processor time, so not on the thread that applies.
    ///
    /// # Errors
    /// There are no tokens, or only a public key.
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

    /// As [`Tokens::check`], but looks at no signature: JSON Web Tokens must have been checked before.
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

    /// Takes other keys than those in use, from the contents of the files; returns false if these are not for JSON Web
    /// Tokens.
    ///
    /// # Errors
    /// They do not fit the method. The keys in use stay.
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

    /// A number that is raised when sessions are withdrawn ([`Session::is_withdrawn`]).
    pub fn withdrawals(&self) -> u64 {
        match self {
            Tokens::Jwt(jwt) => jwt.generation(),
            Tokens::None | Tokens::Simple(_) => 0,
        }
    }

    /// Whose token this is. `applied` is the index that this member has applied and published, read before.
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

    /// Frees the memory of tokens that are no longer valid; a bounded part of it with each call. Once a second is enough.
    pub fn expire(&self, now: Instant) {
        match self {
            Tokens::None => {}
            Tokens::Simple(store) => drop(store.expire(now, EXPIRED_PER_CALL)),
            Tokens::Jwt(jwt) => jwt.expire(now),
        }
    }
}

/// Simple tokens that one call looks at: below 1 ms.
const EXPIRED_PER_CALL: usize = 2000;
