//! Who clients are: their certificates, names, passwords and tokens.

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

/// The user that may do everything.
pub const ROOT: &str = "root";
/// A user that may read and write all keys; it shows a certificate, if there are certificates.
pub const WORKER: &str = "worker";
/// A user that may read and write all keys; it has a password.
pub const STAFF: &str = "staff";
/// The common name of a certificate that is no user's.
const NOBODY: &str = "nobody";
/// How many users there are whose rights change.
pub const SLOTS: usize = 3;
/// How long a login may take.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(3);

/// Whom a client acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The user that may do everything.
    Root,
    /// A user that may read and write all keys, by its certificate.
    Worker,
    /// A user that may read and write all keys, by its password.
    Staff,
    /// The user that has this place among those whose rights change; by its certificate if there are certificates and the
    /// second is true.
    Slot(usize, bool),
}

/// A user as a client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The name; empty if there are no users.
    pub name: String,
    /// `None`: by certificate.
    pub password: Option<String>,
}

/// A token, and since when the client has it.
#[derive(Clone, Debug)]
pub struct Token {
    text: HeaderValue,
    /// In nanoseconds of the run.
    pub since: u64,
}

/// How often what was done.
#[derive(Debug, Default)]
pub struct Figures {
    /// Tokens that clients were given.
    pub logins: AtomicU64,
    /// Logins that were refused or not answered.
    pub logins_failed: AtomicU64,
    /// Changes of users and roles that were acknowledged.
    pub changes: AtomicU64,
    /// Those of which nobody knows.
    pub changes_unknown: AtomicU64,
    /// Attempts to get in with certificates that must not be taken.
    pub intrusions: AtomicU64,
    /// Times that a member took over changed files.
    pub reloads: AtomicU64,
}

/// Adds one.
pub fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}

/// How clients and members of a run identify themselves.
#[derive(Default)]
pub struct Security {
    /// `None`: everything is plain HTTP.
    pub pki: Option<Pki>,
    /// `None`: there are no users.
    pub users: Option<Users>,
    /// What was counted.
    pub figures: Figures,
}

/// The users of a run.
#[derive(Default)]
pub struct Users {
    /// Whether tokens are signed, and not kept by members.
    pub are_signed: bool,
    required: AtomicBool,
    slots: Mutex<[Option<(String, String)>; SLOTS]>,
    /// By user and number of the client.
    tokens: Mutex<BTreeMap<(String, u64), Token>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The password that a user has at first.
pub fn first_password(user: &str) -> String {
    format!("{user}'s first")
}

/// Whether a client has to authenticate again.
pub fn wants_login(status: &Status) -> bool {
    [error::INVALID_AUTH_TOKEN, error::AUTH_OLD_REVISION, error::USER_EMPTY, error::USER_NOT_FOUND]
        .iter()
        .any(|known| known.message == status.message)
}

impl Users {
    /// Users with tokens of one kind or the other.
    pub fn new(are_signed: bool) -> Users {
        Users { are_signed, ..Users::default() }
    }

    /// From now on members ask who their clients are.
    pub fn require(&self) {
        self.required.store(true, Ordering::SeqCst);
    }

    /// Puts a user in a place, or nobody.
    pub fn set(&self, slot: usize, user: Option<(String, String)>) {
        if let Some(place) = locked(&self.slots).get_mut(slot) {
            *place = user;
        }
    }
}

impl Security {
    /// Whether there is somebody in this place; true for those that are always there.
    pub fn is_there(&self, identity: Identity) -> bool {
        self.account(identity).is_some()
    }

    /// Who that is now; `None` if nobody has the place.
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

    /// The common name of the certificate that this user shows.
    pub fn certificate_name(account: &Account) -> &str {
        if account.password.is_some() || account.name.is_empty() { NOBODY } else { &account.name }
    }

    /// As whom members see a call of this user with this token. Who found authentication off when it logged in has none; if it
    /// is on again when the call is made, only the certificate is left, which is nobody's.
    pub fn seen_as<'a>(account: &'a Account, token: Option<&Token>) -> &'a str {
        if token.is_none() { Security::certificate_name(account) } else { &account.name }
    }

    /// The token of a user for this client: the one that it has, or a new one, asked for over this connection. `None`: it
    /// needs none.
    ///
    /// # Errors
    /// The server's, or the connection's.
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
            // An administrator has switched it off: nobody needs a token.
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

    /// A server did not take a client's token: the next call asks for another one.
    pub fn forget(&self, user: &str, client: u64) {
        if let Some(users) = &self.users {
            locked(&users.tokens).remove(&(user.to_owned(), client));
        }
    }
}

impl Token {
    /// The options of a call with this token.
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
