//! Authenticates clients: checks their passwords, and creates and checks their tokens.
//!
//! * [`passwords`]: bcrypt compatible with Go's, [`passwords::Verified`] (a cache of verified passwords) and
//!   [`passwords::WorkQueue`] (passwords that wait to be hashed, in a fair order).
//! * [`Tokens`]: the tokens chosen by `--auth-token`: [`simple`] tokens or [`jwt`]. A connection keeps the
//!   [`Session`] of its token.
//! * [`presented`] finds the token in the metadata of a call; [`fingerprint`] is a short hash of the token
//!   that a log may show.
//!
//! The crate opens no file and no socket, starts no thread and reads no clock: key files are passed as bytes,
//! time as [`Now`], and randomness as [`Entropy`]; only signing with the methods PS and ES, and checking the
//! point of an elliptic-curve key, take randomness from the operating system. The crate does not know users
//! and roles: the caller stores passwords and permissions. Calls that the caller has to make:
//!
//! | when | what |
//! |---|---|
//! | start | [`TokenKind::parse`], read the files that it names, [`Tokens::new`] |
//! | Authenticate arrives | [`passwords::Verified::recall`]; if unknown, [`passwords::WorkQueue::push`] for a pool thread |
//! | the password is right | [`passwords::Verified::remember`]; propose the user's name with a prefix from [`Tokens::draw_prefix`] |
//! | the entry is applied, on every member | [`Tokens::assign`], before its index is published as applied |
//! | ... on the member that was asked | [`Tokens::issue`]: the token to answer with |
//! | authentication is enabled or disabled | [`Tokens::enable`], [`Tokens::disable`] |
//! | a user is deleted or has a new password | [`Tokens::forget`], [`passwords::Verified::forget`] |
//! | a call arrives | [`presented`]; [`Session::renew`]; if `None`, [`Tokens::recall`]; if unverified, [`Tokens::check`] on a pool thread |
//! | about once a second | [`Tokens::expire`], [`passwords::Verified::expire`] |
//!
//! Invariants: no input of a client causes a panic; everything that clients can make the crate store is
//! bounded; `Debug` shows no secret. Start reading with [`Tokens`]. Tests are beside the code, and in
//! `tests/it`.

#![forbid(unsafe_code)]

mod aging;
mod holder;
pub mod jwt;
mod keyed;
pub mod passwords;
pub mod simple;
mod tokens;

pub use holder::{Holder, Session};
pub use keyed::{Entropy, Secret, Tag, system_entropy};
pub use tokens::{IssueError, Refused, TokenKind, Tokens};

use std::fmt::Write as _;
use std::time::Instant;

/// The current time, as read by the caller.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic time.
    pub at: Instant,
    /// Time of day, in seconds since 1970.
    pub unix_seconds: i64,
}

/// An instant from which nanoseconds are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    /// Returns the nanoseconds from the epoch to `at`; 0 for an earlier time.
    fn ns(self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Returns the token that a call presents, if any. `first` returns the first value of a metadata key. As in
/// etcd, the value of `token` is used even if it is empty, otherwise that of `authorization`; a leading
/// `Bearer ` is removed.
pub fn presented<'a>(first: impl Fn(&str) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let value = first("token").or_else(|| first("authorization"))?;
    Some(value.strip_prefix(b"Bearer ").unwrap_or(value))
}

/// Returns the part of a token that a log may show: the first twelve hexadecimal digits of its SHA-256.
pub fn fingerprint(token: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, token);
    digest.as_ref()[..6].iter().fold(String::with_capacity(12), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_found_as_etcd_finds_it() {
        let present = |token: Option<&'static str>, authorization: Option<&'static str>| {
            presented(|key| match key {
                "token" => token.map(str::as_bytes),
                "authorization" => authorization.map(str::as_bytes),
                _ => None,
            })
            .map(|token| String::from_utf8_lossy(token).into_owned())
        };
        assert_eq!(present(None, None), None);
        assert_eq!(present(Some("a"), Some("b")).as_deref(), Some("a"));
        assert_eq!(present(Some(""), Some("b")).as_deref(), Some(""));
        assert_eq!(present(None, Some("b")).as_deref(), Some("b"));
        assert_eq!(present(None, Some("Bearer b")).as_deref(), Some("b"));
        assert_eq!(present(Some("Bearer Bearer b"), None).as_deref(), Some("Bearer b"));
        assert_eq!(present(None, Some("bearer b")).as_deref(), Some("bearer b"));
        assert_eq!(present(None, Some("Bearer")).as_deref(), Some("Bearer"));
    }

    #[test]
    fn fingerprints_are_those_of_etcd() {
        // Expected value: printf abc | sha256sum
        assert_eq!(fingerprint(b"abc"), "ba7816bf8f01");
        assert_eq!(fingerprint(b""), "e3b0c44298fc");
    }
}
