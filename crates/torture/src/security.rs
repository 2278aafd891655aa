//! Identities of clients: certificates, names, passwords and tokens.

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

/// User with the role root, who may do everything.
pub const ROOT: &str = "root";
/// User that may read and write all keys; it authenticates by certificate if the run has certificates.
pub const WORKER: &str = "worker";
/// User that may read and write all keys; it authenticates by password.
pub const STAFF: &str = "staff";
/// Common name of a certificate that belongs to no user.
const NOBODY: &str = "nobody";
/// Number of users whose permissions change.
pub const SLOTS: usize = 3;
/// Time that a login may take.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(3);

/// User, or slot of a changing user, on whose behalf a client acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The user that may do everything.
    Root,
    /// The user [`WORKER`], authenticated by certificate.
    Worker,
    /// The user [`STAFF`], authenticated by password.
    Staff,
    /// User in this slot among those whose permissions change. It authenticates by certificate if the flag is
    /// true and the run has certificates.
    Slot(usize, bool),
}

/// User account as a client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name of the user; empty if the run has no users.
    pub name: String,
    /// Password; `None` if the user authenticates by certificate.
    pub password: Option<String>,
}

/// Auth token, and the time at which the client received it.
#[derive(Clone, Debug)]
pub struct Token {
    text: HeaderValue,
    /// Time of receipt, in nanoseconds since the run began.
    pub since: u64,
}

/// Counters about users and certificates.
#[derive(Debug, Default)]
pub struct Figures {
    /// Tokens that clients received.
    pub logins: AtomicU64,
    /// Logins that were refused or not answered.
    pub logins_failed: AtomicU64,
    /// Changes of users and roles that were acknowledged.
    pub changes: AtomicU64,
    /// Changes of users and roles with an unknown result.
    pub changes_unknown: AtomicU64,
    /// Attempts to connect with certificates that must be refused.
    pub intrusions: AtomicU64,
    /// Times that a member loaded changed files.
    pub reloads: AtomicU64,
}

/// Adds one to a counter.
pub fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}

/// Certificates, users and counters of a run.
#[derive(Default)]
pub struct Security {
    /// Certificates; `None` for plain HTTP.
    pub pki: Option<Pki>,
    /// Users; `None` if the run has no users.
    pub users: Option<Users>,
    /// Counters about users and certificates.
    pub figures: Figures,
}

/// The users of a run.
#[derive(Default)]
pub struct Users {
    /// True if tokens are signed, so that members do not store them.
    pub are_signed: bool,
    required: AtomicBool,
    slots: Mutex<[Option<(String, String)>; SLOTS]>,
    /// Tokens by user name and client number.
    tokens: Mutex<BTreeMap<(String, u64), Token>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the initial password of a user.
pub fn first_password(user: &str) -> String {
    format!("{user}'s first")
}

/// Returns true if the client has to authenticate again after this error.
pub fn wants_login(status: &Status) -> bool {
    [error::INVALID_AUTH_TOKEN, error::AUTH_OLD_REVISION, error::USER_EMPTY, error::USER_NOT_FOUND]
        .iter()
        .any(|known| known.message == status.message)
}

impl Users {
    /// Creates the users' state, with signed or stored tokens.
    pub fn new(are_signed: bool) -> Users {
        Users { are_signed, ..Users::default() }
    }

    /// Records that authentication is enabled; from now on clients log in.
    pub fn require(&self) {
        self.required.store(true, Ordering::SeqCst);
    }

    /// Puts a user into a slot, or empties the slot.
    pub fn set(&self, slot: usize, user: Option<(String, String)>) {
        if let Some(place) = locked(&self.slots).get_mut(slot) {
            *place = user;
        }
    }
}

impl Security {
    /// Returns true if a user currently exists for the identity; the permanent users always exist.
    pub fn is_there(&self, identity: Identity) -> bool {
        self.account(identity).is_some()
    }

    /// Returns the current account of an identity; `None` if its slot is empty.
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

    /// Returns the common name of the certificate that this user presents.
    pub fn certificate_name(account: &Account) -> &str {
        if account.password.is_some() || account.name.is_empty() { NOBODY } else { &account.name }
    }

    /// Returns the user to whom members attribute a call of this account with this token. A client that tried
    /// to log in while authentication was disabled has no token. If authentication is enabled again before
    /// the call arrives, members see only the client's certificate, whose name belongs to no user.
    pub fn seen_as<'a>(account: &'a Account, token: Option<&Token>) -> &'a str {
        if token.is_none() { Security::certificate_name(account) } else { &account.name }
    }

    /// Returns the token with which this client acts for a user, and requests one over this connection if the
    /// client has none. `None` means that the client needs no token.
    ///
    /// # Errors
    /// Returns the status of the server, or the error of the connection.
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
            // Authentication is disabled, so that no token is needed.
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

    /// Forgets a token that a server refused; before its next call the client requests another one.
    pub fn forget(&self, user: &str, client: u64) {
        if let Some(users) = &self.users {
            locked(&users.tokens).remove(&(user.to_owned(), client));
        }
    }
}

impl Token {
    /// Adds this token, if there is one, to the options of a call.
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
