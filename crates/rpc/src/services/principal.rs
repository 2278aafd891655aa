//! Finds out which user makes a call, and what the user may do.
//!
//! While authentication is disabled, identifying the user costs only a check of a flag. Otherwise a call's
//! token is looked up once, when the call arrives ([`Services::identify`]); without a token, the client's
//! certificate may name the user. Writes carry the user into the log, where apply checks the rights
//! ([`machine::auth`]). Reads are checked against the same state that answers them ([`Services::gate`]).

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use api::error;
use api::etcdserverpb::WatchCreateRequest;
use api::{Rpc, Status};
use bytes::Bytes;
use front::{Head, Metadata};
use identity::{Refused, Session};
use machine::auth::{Auth, Caller, Gate, RightsCache};
use machine::check;
use numbers::Revision;
use prost::Message as _;
use replica::shared::Published;
use telemetry::logging::Value;

use super::Services;
use super::strangers::Place;
use super::walk::index_unreadable;
use crate::audit::Who;
use crate::watch::Permit;

/// Maximum number of connections whose last token a shard caches. When the cache is full, it is cleared.
const SESSIONS_MAX: usize = 8192;
/// Maximum length in bytes of a cached token. A longer token is looked up again for each call.
const KEPT_TOKEN_BYTES_MAX: usize = 1024;

/// Metadata key that a JSON gateway adds to calls that it forwards (the `Accept` header of its client).
const GATEWAY_HEADER: &str = "grpcgateway-accept";

/// The user of a call. The default is no user: authentication is disabled, or the call had no token.
#[derive(Clone, Debug, Default)]
pub(super) struct Principal {
    user: Option<Arc<str>>,
    /// Auth revision at which the user was identified; 0 without a user.
    revision: u64,
    /// True if the user presented a token.
    has_token: bool,
    /// True if `revision` comes from a JSON Web Token, and so may be much older than the applied state.
    is_dated: bool,
}

impl Principal {
    /// Returns the user in the form of [`machine::auth`].
    pub fn caller(&self) -> Caller<'_> {
        Caller { user: self.user.as_deref().unwrap_or_default(), revision: self.revision }
    }

    /// Refuses a read if the auth revision of the state differs from the one at which the user was
    /// identified. The revision of a JSON Web Token is lower if users or roles changed since the token was
    /// issued, and higher if this member lags. As in etcd, every read of keys is checked, even a read that
    /// names no key.
    ///
    /// # Errors
    ///
    /// Returns an error if authentication is enabled, there is a user, and the auth revisions differ.
    pub fn is_of(&self, auth: &Auth) -> Result<(), Status> {
        let differs = self.revision != 0 && self.revision != auth.revision() && auth.is_enabled();
        if differs { Err(error::AUTH_OLD_REVISION) } else { Ok(()) }
    }

    /// Returns true if the user presented a JSON Web Token. Such a token cannot be revoked, so a member that
    /// has not applied a change of the user's password yet still accepts it.
    pub fn is_dated(&self) -> bool {
        self.is_dated
    }

    /// Returns the name of the user; empty without a user.
    pub fn name(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }
}

/// Cache of a shard: the last token of each connection, and the rights of users.
#[derive(Default)]
pub(super) struct Known {
    sessions: Rc<RefCell<Sessions>>,
    rights: RightsCache,
}

type Sessions = HashMap<SocketAddr, Session>;

/// Removes a connection's token from the cache when the connection closes.
struct SessionGuard {
    sessions: Rc<RefCell<Sessions>>,
    peer: SocketAddr,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.sessions.borrow_mut().remove(&self.peer);
    }
}

impl Known {
    /// Returns a guard that removes the connection's cached token when it is dropped.
    pub fn connected(&self, peer: SocketAddr) -> impl Sized + use<> {
        SessionGuard { sessions: Rc::clone(&self.sessions), peer }
    }
}

/// Reason why the user of a call is not identified, or not yet.
pub(super) enum Unidentified {
    /// The token may come from an entry that this member has not applied yet.
    NotYet,
    /// The signature of the token has to be verified first, by another thread.
    Unverified,
    /// The token is refused with this error.
    Refused(Status),
}

/// Source of a client's identity: the head of its call, or an [`Asker`] made from the head.
pub(super) trait Asks {
    /// Address of the client.
    fn peer(&self) -> SocketAddr;
    /// Returns the metadata of the call. May return `None` if it contains neither a token nor the header that
    /// shows that a gateway forwarded the call.
    fn metadata(&self) -> Option<&Metadata>;
    /// Returns the common name of the client's certificate, see [`front::Origin::common_name`].
    fn common_name(&self) -> Option<&Arc<str>>;
}

impl Asks for Head {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn metadata(&self) -> Option<&Metadata> {
        Some(&self.metadata)
    }

    fn common_name(&self) -> Option<&Arc<str>> {
        self.common_name.as_ref()
    }
}

/// Identity of a client, taken from the head of its call and kept as long as the call runs. Each open stream
/// holds one, possibly for days, so the struct is small if the client presents neither a token nor a
/// certificate.
#[derive(Clone)]
pub(super) struct Asker {
    /// Address of the client.
    pub peer: SocketAddr,
    presents: Option<Rc<Presents>>,
}

/// Credentials of a client: the name in its certificate, the metadata with its token, or both.
struct Presents {
    common_name: Option<Arc<str>>,
    metadata: Metadata,
}

impl Asker {
    pub fn of(head: &Head) -> Asker {
        let mut metadata = Metadata::default();
        let mut is_stranger = head.common_name.is_none();
        for key in ["token", "authorization", GATEWAY_HEADER] {
            if let Some(value) = head.metadata.get(key) {
                metadata.insert(key, value);
                is_stranger = false;
            }
        }
        let presents = || Rc::new(Presents { common_name: head.common_name.clone(), metadata });
        Asker { peer: head.peer, presents: (!is_stranger).then(presents) }
    }

    /// Returns true if the client presents no credentials.
    fn is_stranger(&self) -> bool {
        self.presents.is_none()
    }
}

impl Asks for Asker {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn metadata(&self) -> Option<&Metadata> {
        self.presents.as_ref().map(|presents| &presents.metadata)
    }

    fn common_name(&self) -> Option<&Arc<str>> {
        self.presents.as_ref()?.common_name.as_ref()
    }
}

impl Services {
    /// Returns the user of a call, or the reason why the user cannot be identified immediately.
    pub(super) fn identify(&self, asker: &impl Asks) -> Result<Principal, Unidentified> {
        self.identify_and(asker, |_| ()).map(|(principal, _)| principal)
    }

    /// Identifies the user as [`Services::identify`] does, and also returns the result of `keep` for the
    /// session of the call's token. That result is `None` if there is no token or authentication is disabled.
    fn identify_and<T>(
        &self,
        asker: &impl Asks,
        keep: impl Fn(&Session) -> T,
    ) -> Result<(Principal, Option<T>), Unidentified> {
        let state = self.shared.state.load();
        if !state.auth.is_enabled() {
            return Ok((Principal::default(), None));
        }
        let Some(token) = presented(asker) else { return Ok((self.by_certificate(asker, &state), None)) };
        let credentials = &self.shared.clients.credentials;
        let known = self.known.borrow();
        let mut sessions = known.sessions.borrow_mut();
        if let Some(session) = sessions.get(&asker.peer())
            && let Some(holder) = credentials.renew(session, token)
        {
            return Ok((principal(holder, &state), Some(keep(session))));
        }
        match credentials.session(token, state.applied_index) {
            Ok(session) => {
                let (principal, kept) = (principal(session.holder(), &state), keep(&session));
                if sessions.len() >= SESSIONS_MAX {
                    sessions.clear();
                }
                if token.len() <= KEPT_TOKEN_BYTES_MAX {
                    sessions.insert(asker.peer(), session);
                }
                Ok((principal, Some(kept)))
            }
            Err(Refused::NotYet(_)) => Err(Unidentified::NotYet),
            Err(Refused::Unverified) => Err(Unidentified::Unverified),
            Err(Refused::Invalid | Refused::Jwt(_)) => Err(Unidentified::Refused(self.invalid_token(token))),
        }
    }

    fn invalid_token(&self, token: &[u8]) -> Status {
        let fingerprint = identity::fingerprint(token);
        self.logger
            .warn_of_strangers("invalid auth token", &[("token-fingerprint", Value::Str(&fingerprint))]);
        error::INVALID_AUTH_TOKEN
    }

    /// Returns the user named in the client's certificate, for a call without a token; no user if there is no
    /// certificate. A gateway that speaks JSON to its clients presents its own certificate for all of them,
    /// so the certificate of a call that it forwards does not name the user, and the call has no user. Calls
    /// of a gateway in this process have no user by certificate either ([`Head::new`]).
    fn by_certificate(&self, asker: &impl Asks, state: &Published) -> Principal {
        let Some(name) = asker.common_name() else { return Principal::default() };
        let revision = state.auth.revision();
        if asker.metadata().is_some_and(|metadata| metadata.contains_key(GATEWAY_HEADER)) {
            self.logger.warn_of_strangers(
                "ignoring common name in gRPC-gateway proxy request",
                &[
                    ("common-name", Value::Str(name)),
                    ("user-name", Value::Str(name)),
                    ("revision", Value::Uint(revision)),
                ],
            );
            return Principal::default();
        }
        Principal { user: Some(Arc::clone(name)), revision, has_token: false, is_dated: false }
    }

    /// Identifies the user as [`Services::identify`] does, but waits if that cannot be done immediately. If
    /// another member may have issued the token, waits until this member has applied everything that was
    /// committed before the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the token is refused, or if the wait fails.
    pub(super) async fn identified(&self, asker: &impl Asks) -> Result<Principal, Status> {
        self.identified_and(asker, |_| ()).await.map(|(principal, _)| principal)
    }

    /// Identifies the user as [`Services::identified`] does, and also returns the result of `keep` for the
    /// session of the call's token. That result is `None` if there is no token or authentication is disabled.
    async fn identified_and<T>(
        &self,
        asker: &impl Asks,
        keep: impl Fn(&Session) -> T,
    ) -> Result<(Principal, Option<T>), Status> {
        let before = match self.identify_and(asker, &keep) {
            Ok(identified) => return Ok(identified),
            Err(before) => before,
        };
        match before {
            Unidentified::Refused(status) => Err(status),
            Unidentified::NotYet => {
                // Anyone can make up an unknown token, so the number of waiting calls is limited.
                let place = self.unknown_tokens.enter()?;
                self.wait_confirmed(self.now()).await?;
                drop(place);
                // If the token is still unknown, no member has issued it, and it is refused.
                self.identify_and(asker, keep).map_err(|_| error::INVALID_AUTH_TOKEN)
            }
            Unidentified::Unverified => {
                let token = presented(asker).unwrap_or_default();
                self.shared.clients.credentials.verify(asker.peer().ip(), token).await?;
                self.identify_and(asker, keep).map_err(|_| self.invalid_token(token))
            }
        }
    }

    /// Returns the session of the token of a stream that is opened while authentication is disabled. The
    /// session is kept so that, if authentication is enabled later, new watches of the stream need not wait
    /// for the verification of a JWT signature.
    async fn session_for_later(&self, asker: &Asker) -> Option<Session> {
        let token = presented(asker)?;
        let credentials = &self.shared.clients.credentials;
        let recall = || credentials.session(token, self.shared.state.load().applied_index);
        match recall() {
            Err(Refused::Unverified) => {
                credentials.verify(asker.peer.ip(), token).await.ok()?;
                recall().ok()
            }
            recalled => recalled.ok(),
        }
    }

    /// Returns the rights of a user in this state.
    pub(super) fn gate(&self, state: &Published, principal: &Principal) -> Gate {
        self.gate_of(&state.auth, principal)
    }

    /// Returns the rights of a user with these users and roles.
    pub(super) fn gate_of(&self, auth: &Auth, principal: &Principal) -> Gate {
        let gate = Gate::new(auth, principal.caller(), &mut self.known.borrow_mut().rights);
        // The token is checked again here, because it was looked up before the call waited. If the user's
        // password was changed in the meantime, the user's simple tokens are no longer valid.
        let is_outdated = principal.has_token
            && self.shared.clients.credentials.is_outdated(principal.name(), principal.revision);
        if is_outdated { gate.outdated() } else { gate }
    }

    /// Returns the slot in which a call waits for a confirmation if it has no user while authentication is
    /// enabled; `None` for other calls.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Strangers::enter`](super::strangers::Strangers::enter).
    pub(super) fn place_of(&self, principal: &Principal) -> Result<Option<Place>, Status> {
        self.is_stranger(principal).then(|| self.strangers.enter()).transpose()
    }

    /// Returns true if a call has no user while authentication is enabled.
    fn is_stranger(&self, principal: &Principal) -> bool {
        principal.user.is_none() && self.shared.state.load().auth.is_enabled()
    }

    /// Refuses a call without a user while authentication is enabled.
    ///
    /// # Errors
    ///
    /// Returns an error if the call has no user and authentication is enabled.
    pub(super) fn some_user(&self, principal: &Principal) -> Result<(), Status> {
        if self.is_stranger(principal) { Err(error::USER_EMPTY) } else { Ok(()) }
    }

    /// Returns true if authentication is enabled and the token belongs to root or to a user with the role
    /// `root`.
    pub(super) async fn is_roots(&self, token: http::HeaderValue, peer: Option<SocketAddr>) -> bool {
        let Some(peer) = peer.filter(|_| self.shared.state.load().auth.is_enabled()) else { return false };
        let mut head = Head::new(Rpc::MaintenanceStatus as u16, peer, self.now());
        let mut metadata = http::HeaderMap::new();
        metadata.insert(http::header::AUTHORIZATION, token);
        head.metadata = Metadata::from(&metadata);
        match self.identified(&head).await {
            Ok(principal) => self.gate(&self.shared.state.load(), &principal).admin().is_ok(),
            Err(_) => false,
        }
    }

    /// Refuses a response that was read for a caller whose rights may have changed since the caller was
    /// identified: users or roles have changed, or authentication was enabled for a caller without a user.
    ///
    /// # Errors
    ///
    /// Returns an error if the auth revision changed, or if the principal has no user and authentication is
    /// enabled.
    pub(super) fn still(&self, principal: &Principal) -> Result<(), Status> {
        if let Some(fault) = self.shared.data.index_fault() {
            return Err(index_unreadable(fault));
        }
        let state = self.shared.state.load();
        if principal.revision == 0 {
            return if state.auth.is_enabled() { Err(error::USER_EMPTY) } else { Ok(()) };
        }
        if principal.revision != state.auth.revision() { Err(error::AUTH_OLD_REVISION) } else { Ok(()) }
    }
}

/// Rights of the user of a watch stream. If `WITHIN` is true, another call inside the server, such as a lock,
/// opened the stream. In that case the audit log records that call, and not its watches.
pub(super) struct UserPermit<const WITHIN: bool> {
    services: Rc<Services>,
    /// Identity of the client that opened the stream, with its token.
    asker: Asker,
    /// The user and its session; `None` if the client presents no credentials and so has no user.
    known: Option<Box<KnownUser>>,
}

/// The user of a watch stream, with the session of its token.
struct KnownUser {
    /// The user at the time when the last watch was created.
    user: RefCell<Principal>,
    /// Session of the token, if the token was valid when the stream was opened.
    session: Option<Session>,
    /// Error with which the token was refused when the stream was opened.
    refused: Option<Status>,
    /// True while the signature of the token is verified again, for watches that are created later.
    is_verifying: OnceCell<Rc<Cell<bool>>>,
}

impl<const WITHIN: bool> UserPermit<WITHIN> {
    /// Returns the rights of the user of a stream that is being opened. Waits as [`Services::identified`]
    /// does. The wait, for example until another thread has verified the token's signature, happens once for
    /// all watches of the stream, so no watch has to wait later.
    pub async fn of(services: &Rc<Services>, asker: Asker) -> Self {
        let services = Rc::clone(services);
        if asker.is_stranger() {
            return UserPermit { services, asker, known: None };
        }
        let (session, refused) = match services.identified_and(&asker, Session::another).await {
            Ok((_, None)) => (services.session_for_later(&asker).await, None),
            Ok((_, session)) => (session, None),
            Err(status) => (None, Some(status)),
        };
        let (user, is_verifying) = (RefCell::default(), OnceCell::new());
        let known = Some(Box::new(KnownUser { user, session, refused, is_verifying }));
        UserPermit { services, asker, known }
    }

    /// Starts a verification of the token's signature in the background, for watches that are created later.
    fn verify_for_later(&self) {
        // Without credentials there is no token to verify.
        let Some(known) = &self.known else { return };
        let is_verifying = known.is_verifying.get_or_init(Rc::default);
        if is_verifying.replace(true) {
            return;
        }
        let (services, asker) = (Rc::clone(&self.services), self.asker.clone());
        let is_verifying = Rc::clone(is_verifying);
        tokio::task::spawn_local(async move {
            drop(services.session_for_later(&asker).await);
            is_verifying.set(false);
        });
    }

    fn session(&self) -> Option<&Session> {
        self.known.as_ref()?.session.as_ref()
    }

    /// Returns the user at the time when the last watch was created.
    fn user(&self) -> Principal {
        self.known.as_ref().map_or_else(Principal::default, |known| known.user.borrow().clone())
    }

    fn identify(&self) -> Result<Principal, Status> {
        let state = self.services.shared.state.load();
        if let Some(session) = self.session()
            && state.auth.is_enabled()
            && let Some(token) = presented(&self.asker)
            && let Some(holder) = self.services.shared.clients.credentials.renew(session, token)
        {
            return Ok(principal(holder, &state));
        }
        self.services.identify(&self.asker).map_err(|why| match why {
            Unidentified::Refused(status) => status,
            Unidentified::NotYet => self.refusal(),
            Unidentified::Unverified => {
                self.verify_for_later();
                self.refusal()
            }
        })
    }

    fn refusal(&self) -> Status {
        let refused = self.known.as_ref().and_then(|known| known.refused.clone());
        refused.unwrap_or(error::INVALID_AUTH_TOKEN)
    }
}

impl<const WITHIN: bool> Permit for UserPermit<WITHIN> {
    fn allows(&self, key: &[u8], range_end: &[u8]) -> Result<(), Status> {
        let principal = self.identify();
        let services = &self.services;
        let mut call =
            if WITHIN { None } else { services.begin_stream_audit(Rpc::Watch, &self.asker, &principal) };
        call.iter_mut().for_each(|call| call.asks(&watched(key, range_end)));
        let allowed = principal.and_then(|principal| {
            services.gate(&services.shared.state.load(), &principal).read(key, range_end)?;
            if let Some(known) = &self.known {
                *known.user.borrow_mut() = principal;
            }
            Ok(())
        });
        call.into_iter().for_each(|call| call.ended(&allowed));
        allowed
    }

    fn begins(&self, start: Revision, now: Revision) -> Result<(), Status> {
        if WITHIN || !check::watch_is_expensive(start, now) {
            return Ok(());
        }
        self.services.expensive(&self.user(), self.asker.peer.ip())
    }

    fn still_allows(
        &self,
        auth: &Auth,
        key: &[u8],
        range_end: &[u8],
        joined: &mut usize,
    ) -> Result<(), Status> {
        if self.session().is_some_and(Session::is_withdrawn) {
            return Err(error::INVALID_AUTH_TOKEN);
        }
        let mut principal = self.user();
        if principal.user.is_some() {
            principal.revision = auth.revision();
        }
        let joined_before = self.services.known.borrow().rights.joined();
        let gate = self.services.gate_of(auth, &principal);
        *joined += self.services.known.borrow().rights.joined() - joined_before;
        gate.read(key, range_end)
    }
}

/// Returns a request to watch these keys, for the audit log.
fn watched(key: &[u8], range_end: &[u8]) -> Bytes {
    let request = WatchCreateRequest {
        key: Bytes::copy_from_slice(key),
        range_end: Bytes::copy_from_slice(range_end),
        ..WatchCreateRequest::default()
    };
    request.encode_to_vec().into()
}

/// Returns the caller in the form that the audit log records.
pub(super) fn who(asker: &impl Asks, principal: &Result<Principal, Status>, needs_user: bool) -> Who {
    let user = principal.as_ref().ok().and_then(|principal| principal.user.clone()).unwrap_or_default();
    let by = match (presented(asker), user.is_empty()) {
        (Some(_), _) => "token",
        (None, false) => "certificate",
        (None, true) => "none",
    };
    let is_stranger = needs_user && user.is_empty();
    Who { user, by, certificate: asker.common_name().cloned(), remote: asker.peer(), is_stranger }
}

/// Returns the token that a call presents, if any.
pub(super) fn presented(asker: &impl Asks) -> Option<&[u8]> {
    let metadata = asker.metadata()?;
    identity::presented(|key| metadata.get(key))
}

fn principal(holder: &identity::Holder, state: &Published) -> Principal {
    Principal {
        user: Some(Arc::clone(holder.user())),
        revision: holder.revision().unwrap_or(state.auth.revision()),
        has_token: true,
        is_dated: holder.revision().is_some(),
    }
}

#[cfg(test)]
mod tests {
    use clock::Clock;
    use machine::auth::AuthChange;
    use numbers::Index;
    use replica::credentials::Credentials;

    use super::*;

    #[test]
    fn what_an_open_stream_knows_of_its_user_is_small() {
        // Each open stream holds an `Asker`, and each watch stream a `UserPermit`.
        assert!(size_of::<Asker>() <= 40, "{} bytes", size_of::<Asker>());
        assert!(size_of::<UserPermit<false>>() <= 56, "{} bytes", size_of::<UserPermit<false>>());
    }

    #[test]
    fn the_token_of_a_connection_goes_with_it() {
        let credentials = Credentials::simple(Clock::real(), Box::new(identity::system_entropy()));
        credentials.auth_changed(&AuthChange::Enabled, 3);
        let authenticated = AuthChange::Authenticated {
            user: "bob".into(),
            token_prefix: "abcdefghijklmnop".into(),
            index: Index(9),
        };
        credentials.auth_changed(&authenticated, 3);
        let known = Known::default();
        let peers = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let guards = peers.map(|peer| known.connected(peer));
        for peer in peers {
            let session = credentials.session(b"abcdefghijklmnop.9", Index(9)).expect("is known");
            known.sessions.borrow_mut().insert(peer, session);
        }
        let [first, second] = guards;
        drop(first);
        assert_eq!(known.sessions.borrow().keys().collect::<Vec<_>>(), [&peers[1]]);
        drop(second);
        assert!(known.sessions.borrow().is_empty());
    }
}
