//! Holds the identities of clients: certificates, user names, passwords and tokens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::etcdserverpb::{AuthenticateRequest, AuthenticateResponse};
use api::{Code, Rpc, Status, error};
use client::{CallOptions, Channel};
use http::{HeaderName, HeaderValue};
use prost::Message;

use crate::pki::Pki;

/// Name of the user with the role root, who may do everything.
pub const ROOT: &str = "root";
/// Name of a user who may read and write all keys, and who authenticates by certificate if the run has
/// certificates.
pub const WORKER: &str = "worker";
/// Name of a user who may read and write all keys, and who authenticates by password.
pub const STAFF: &str = "staff";
/// Common name for certificates of clients that do not authenticate by certificate. There is no user of this
/// name.
const NOBODY: &str = "nobody";
/// Number of users whose permissions change. Each has a slot: if one is given up, another one takes the slot.
pub const SLOTS: usize = 3;
/// Time limit for a login.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(3);

/// The user on whose behalf a client acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The user [`ROOT`].
    Root,
    /// The user [`WORKER`], who authenticates by certificate if the run has certificates.
    Worker,
    /// The user [`STAFF`], who authenticates by password.
    Staff,
    /// The user who currently has this slot. If the flag is true and the run has certificates, the user
    /// authenticates by certificate, otherwise by password.
    Slot(usize, bool),
}

/// A user's account, as a client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name of the user; empty if the run has no users.
    pub name: String,
    /// Password; `None` if the user authenticates by certificate.
    pub password: Option<String>,
}

/// An auth token, and when the client received it.
#[derive(Clone, Debug)]
pub struct Token {
    text: HeaderValue,
    /// Time of receipt, in nanoseconds since the run began.
    pub since: u64,
}

/// Counters about users and certificates.
#[derive(Debug, Default)]
pub struct Figures {
    /// Number of tokens that clients have received.
    pub logins: AtomicU64,
    /// Number of logins that were refused or not answered.
    pub logins_failed: AtomicU64,
    /// Number of changes of users and roles that have succeeded.
    pub changes: AtomicU64,
    /// Number of changes of users and roles with an unknown result.
    pub changes_unknown: AtomicU64,
    /// Number of connection attempts with certificates that members must refuse.
    pub intrusions: AtomicU64,
    /// Number of times that a running member has loaded TLS files (certificates, keys, authorities and
    /// revocation lists) that a fault has changed. Loads at a member's start are not counted, nor are some
    /// loads at the end of a fault, when the member gets valid files again.
    pub reloads: AtomicU64,
}

/// Adds one to a counter.
pub fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}

/// The certificates and users of a run, and counters about them.
#[derive(Default)]
pub struct Security {
    /// Certificates; `None` if the run does not use TLS.
    pub pki: Option<Pki>,
    /// Users; `None` if the run has no users.
    pub users: Option<Users>,
    /// Counters about users and certificates.
    pub figures: Figures,
}

/// The users of a run.
#[derive(Default)]
pub struct Users {
    /// True if members sign tokens instead of storing them.
    pub are_signed: bool,
    required: AtomicBool,
    slots: Mutex<[Option<(String, String)>; SLOTS]>,
    /// Tokens, by user name and client number.
    tokens: Mutex<BTreeMap<(String, u64), Token>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the password with which a user is created.
pub fn first_password(user: &str) -> String {
    format!("{user}'s first")
}

/// Returns true if the client must log in again after this error.
pub fn wants_login(status: &Status) -> bool {
    [error::INVALID_AUTH_TOKEN, error::AUTH_OLD_REVISION, error::USER_EMPTY, error::USER_NOT_FOUND]
        .iter()
        .any(|known| known.message == status.message)
}

impl Users {
    /// Creates the state for a run with users. `are_signed` says whether members sign tokens.
    pub fn new(are_signed: bool) -> Users {
        Users { are_signed, ..Users::default() }
    }

    /// Records that authentication has been enabled. From now on, clients log in.
    pub fn require(&self) {
        self.required.store(true, Ordering::SeqCst);
    }

    /// Assigns a slot to the user with this name and password, or empties the slot.
    pub fn set(&self, slot: usize, user: Option<(String, String)>) {
        if let Some(place) = locked(&self.slots).get_mut(slot) {
            *place = user;
        }
    }
}

impl Security {
    /// Returns true if there currently is a user for this identity. For the permanent users, this is always
    /// true.
    pub fn is_there(&self, identity: Identity) -> bool {
        self.account(identity).is_some()
    }

    /// Returns the account that currently belongs to an identity; `None` if its slot is empty.
    pub fn account(&self, identity: Identity) -> Option<Account> {
        let Some(users) = self.users.as_ref().filter(|users| users.required.load(Ordering::SeqCst)) else {
            return Some(Account { name: String::new(), password: None });
        };
        let known = |name: &str| Account { name: name.to_owned(), password: Some(first_password(name)) };
        let account = match identity {
            Identity::Root => known(ROOT),
            Identity::Staff => known(STAFF),
            Identity::Worker => known(WORKER),
            Identity::Slot(slot, _) => {
                let (name, password) = locked(&users.slots).get(slot).cloned().flatten()?;
                Account { name, password: Some(password) }
            }
        };
        let by_certificate =
            self.pki.is_some() && matches!(identity, Identity::Worker | Identity::Slot(_, true));
        Some(Account { password: account.password.filter(|_| !by_certificate), ..account })
    }

    /// Returns the common name of the certificate that a client with this account presents.
    pub fn certificate_name(account: &Account) -> &str {
        if account.password.is_some() || account.name.is_empty() { NOBODY } else { &account.name }
    }

    /// Returns the user to whom members attribute a call with this account and token. A client that has tried
    /// to log in while authentication was disabled has no token. If authentication is enabled again before
    /// its call arrives, members know only the client's certificate, whose name may belong to no user.
    pub fn seen_as<'a>(account: &'a Account, token: Option<&Token>) -> &'a str {
        if token.is_none() { Security::certificate_name(account) } else { &account.name }
    }

    /// Returns the token with which this client acts for the account. If the client has none, it logs in over
    /// this connection. Returns `None` if no token is needed.
    ///
    /// # Errors
    /// Returns the status of the failed login, or the error of the connection.
    pub async fn token(
        &self,
        channel: &Channel,
        account: &Account,
        client: u64,
        now: impl Fn() -> u64,
    ) -> Result<Option<Token>, Status> {
        let (Some(users), Some(password)) = (&self.users, &account.password) else { return Ok(None) };
        let holder = (account.name.clone(), client);
        if let Some(token) = locked(&users.tokens).get(&holder) {
            return Ok(Some(token.clone()));
        }
        let request = AuthenticateRequest { name: account.name.clone(), password: password.clone() };
        let options = CallOptions::default().within(LOGIN_TIME_MAX);
        let answer =
            channel.unary_with(Rpc::Authenticate.path(), &options, request.encode_to_vec().into()).await;
        if answer.as_ref().is_err_and(|status| status.message == error::AUTH_NOT_ENABLED.message) {
            // Authentication is disabled at the moment, so no token is needed.
            return Ok(None);
        }
        let answer = answer.inspect_err(|_| count(&self.figures.logins_failed))?;
        let answer = AuthenticateResponse::decode(answer).ok();
        let text = answer.and_then(|answer| HeaderValue::from_str(&answer.token).ok());
        let text = text.ok_or(Status::new(Code::Internal, "an answer without a token"))?;
        count(&self.figures.logins);
        let token = Token { text, since: now() };
        locked(&users.tokens).insert(holder, token.clone());
        Ok(Some(token))
    }

    /// Forgets a token that a member has refused, so that the client logs in again before its next call.
    pub fn forget(&self, user: &str, client: u64) {
        if let Some(users) = &self.users {
            locked(&users.tokens).remove(&(user.to_owned(), client));
        }
    }
}

impl Token {
    /// Adds the token to the options of a call, if there is one.
    pub fn put(token: Option<&Token>, options: CallOptions) -> CallOptions {
        match token {
            Some(token) => options.with(HeaderName::from_static("token"), token.text.clone()),
            None => options,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_token_is_seen_by_the_certificate_alone() {
        let token = Token { text: HeaderValue::from_static("t"), since: 1 };
        let staff = Account { name: STAFF.to_owned(), password: Some(first_password(STAFF)) };
        let worker = Account { name: WORKER.to_owned(), password: None };
        assert_eq!(Security::seen_as(&staff, Some(&token)), STAFF);
        assert_eq!(Security::seen_as(&staff, None), NOBODY, "authentication was off when it logged in");
        assert_eq!(Security::seen_as(&worker, None), WORKER);
    }
}
