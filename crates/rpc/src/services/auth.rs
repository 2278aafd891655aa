//! Users and roles: changing them, looking at them, and showing a password for a token.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use api::error;
use api::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthEnableResponse, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
    AuthRoleListResponse, AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthStatusResponse,
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserListResponse,
    AuthUserRevokeRoleRequest, AuthenticateRequest, AuthenticateResponse, InternalAuthenticateRequest,
    ResponseHeader,
};
use api::{Rpc, Status};
use base64::Engine as _;
use bytes::Bytes;
use front::{Answer, Unary};
use machine::auth::{Auth, Gate};
use machine::{Outcome, check};
use numbers::Index;
use prost::Message;

use super::principal::Principal;
use super::{AtHand, Services, confirmed, decode, whole};
use replica::core::ClientRequest;
use telemetry::logging::Value;

/// Fields of `InternalRaftRequest`.
pub(super) mod field {
    pub const AUTH_ENABLE: u32 = 1000;
    pub const AUTH_DISABLE: u32 = 1011;
    pub const AUTHENTICATE: u32 = 1012;
    pub const USER_ADD: u32 = 1100;
    pub const USER_DELETE: u32 = 1101;
    pub const USER_CHANGE_PASSWORD: u32 = 1103;
    pub const USER_GRANT_ROLE: u32 = 1104;
    pub const USER_REVOKE_ROLE: u32 = 1105;
    pub const ROLE_ADD: u32 = 1200;
    pub const ROLE_DELETE: u32 = 1201;
    pub const ROLE_GRANT_PERMISSION: u32 = 1203;
    pub const ROLE_REVOKE_PERMISSION: u32 = 1204;
}

/// Longest name of a user who may authenticate, in bytes: it is written into the log when that fails.
const LOGGED_NAME_BYTES_MAX: usize = 1024;
/// How often an authentication is tried again whose password was checked at an auth revision that has passed.
const ATTEMPTS_MAX: u32 = 16;

impl Services {
    /// Proposes a change of users or roles that brings no password, as it came.
    pub(super) fn change_auth(self: &Rc<Self>, rpc: Rpc, message: Bytes) -> Result<Unary, Status> {
        let (field, what) = match rpc {
            Rpc::AuthEnable => (field::AUTH_ENABLE, checked::<AuthEnableRequest>("AuthEnable", &message)?),
            Rpc::AuthDisable => {
                (field::AUTH_DISABLE, checked::<AuthDisableRequest>("AuthDisable", &message)?)
            }
            Rpc::AuthUserDelete => {
                (field::USER_DELETE, checked::<AuthUserDeleteRequest>("AuthUserDelete", &message)?)
            }
            Rpc::AuthUserGrantRole => {
                (field::USER_GRANT_ROLE, checked::<AuthUserGrantRoleRequest>("AuthUserGrantRole", &message)?)
            }
            Rpc::AuthUserRevokeRole => (
                field::USER_REVOKE_ROLE,
                checked::<AuthUserRevokeRoleRequest>("AuthUserRevokeRole", &message)?,
            ),
            Rpc::AuthRoleAdd => (field::ROLE_ADD, checked::<AuthRoleAddRequest>("AuthRoleAdd", &message)?),
            Rpc::AuthRoleDelete => {
                (field::ROLE_DELETE, checked::<AuthRoleDeleteRequest>("AuthRoleDelete", &message)?)
            }
            Rpc::AuthRoleGrantPermission => (
                field::ROLE_GRANT_PERMISSION,
                checked::<AuthRoleGrantPermissionRequest>("AuthRoleGrantPermission", &message)?,
            ),
            Rpc::AuthRoleRevokePermission => (
                field::ROLE_REVOKE_PERMISSION,
                checked::<AuthRoleRevokePermissionRequest>("AuthRoleRevokePermission", &message)?,
            ),
            _ => return Err(error::UNKNOWN_METHOD),
        };
        self.propose_as_root(field, what, message)
    }

    /// Proposes a change of users or roles as it is.
    fn propose_as_root(
        self: &Rc<Self>,
        field: u32,
        what: &'static str,
        message: Bytes,
    ) -> Result<Unary, Status> {
        self.as_root(move |services, principal| {
            services.propose(principal, field, &message, false, what, |_, _, header| Ok(changed(header)))
        })
    }

    /// Proposes a change that brings a password, once that is hashed: never in the log, and never on a thread of clients.
    /// `None` is proposed as it is.
    fn change_password_of<R: Message + 'static>(
        self: &Rc<Self>,
        request: R,
        (user, password): (String, Option<String>),
        set_hash: fn(&mut R, String),
        (field, what): (u32, &'static str),
    ) -> Result<Unary, Status> {
        let Some(password) = password else {
            return self.propose_as_root(field, what, request.encode_to_vec().into());
        };
        // Who may not change users must not keep processors busy with hashes either.
        self.as_root(move |services, principal| {
            services.propose_hashed(principal.clone(), request, (user, password), set_hash, (field, what))
        })
    }

    /// Proposes a change with the hash of its password.
    fn propose_hashed<R: Message + 'static>(
        self: &Rc<Self>,
        principal: Principal,
        mut request: R,
        (user, password): (String, String),
        set_hash: fn(&mut R, String),
        (field, what): (u32, &'static str),
    ) -> Result<Unary, Status> {
        // COMPAT-193: only the hash is proposed, and members of etcd 3.4 do not know that field.
        if self.shared.may_be_before_3_5(&self.state().members) {
            return Err(error::NOT_CAPABLE);
        }
        let (services, call) = (Rc::clone(self), self.at_hand());
        Ok(Unary::Later(Box::pin(async move {
            let address = call.peer.ip();
            let hash = services.shared.credentials.hash(address, &user, password.as_bytes()).await?;
            drop(password);
            set_hash(&mut request, base64::engine::general_purpose::STANDARD.encode(hash));
            let message = request.encode_to_vec().into();
            let answer = |_: &Services, _, header| Ok(changed(header));
            // Hashing takes long: the caller may have lost its rights meanwhile, and apply knows nothing of outdated tokens.
            if services.state().auth.is_enabled() {
                services.wait_readable(false).await?;
            }
            services.may(&principal, Gate::admin)?;
            services.go_on(call);
            match services.propose(&principal, field, &message, false, what, answer)? {
                Unary::Done(answer) => answer,
                Unary::Later(answer) => answer.await,
            }
        })))
    }

    pub(super) fn user_add(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let mut request: AuthUserAddRequest = decode(message)?;
        let has_none = request.options.is_some_and(|options| options.no_password);
        let password = std::mem::take(&mut request.password);
        let who = (request.name.clone(), (!has_none).then_some(password));
        let set_hash = |request: &mut AuthUserAddRequest, hash| request.hashed_password = hash;
        self.change_password_of(request, who, set_hash, (field::USER_ADD, "AuthUserAdd"))
    }

    pub(super) fn user_change_password(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let mut request: AuthUserChangePasswordRequest = decode(message)?;
        let password = std::mem::take(&mut request.password);
        // As in etcd: an empty one can be shown to nobody.
        let who = (request.name.clone(), (!password.is_empty()).then_some(password));
        let set_hash = |request: &mut AuthUserChangePasswordRequest, hash| request.hashed_password = hash;
        let to = (field::USER_CHANGE_PASSWORD, "AuthUserChangePassword");
        self.change_password_of(request, who, set_hash, to)
    }

    /// Answers a question about users and roles from a state that has all that was acknowledged before.
    fn tell(
        self: &Rc<Self>,
        answer: impl FnOnce(&Services, &Auth, &Principal, ResponseHeader) -> Result<Answer, Status> + 'static,
    ) -> Result<Unary, Status> {
        let principal = self.principal()?;
        self.read(false, move |services| {
            let state = services.state();
            let header = services.header(state.view.snapshot().current_revision(), &state);
            Ok(Unary::Done(answer(services, &state.auth, &principal, header)))
        })
    }

    pub(super) fn auth_status(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthStatusRequest {} = decode(message)?;
        self.tell(|_, auth, _, header| {
            let (enabled, auth_revision) = (auth.is_enabled(), auth.revision());
            Ok(whole(&AuthStatusResponse { header: Some(header), enabled, auth_revision }))
        })
    }

    pub(super) fn user_get(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthUserGetRequest { name } = decode(message)?;
        let client = self.peer.get().ip();
        self.tell(move |services, auth, principal, header| {
            // Everybody may look at themselves.
            if let Err(status) = services.gate_of(auth, principal).admin()
                && name != principal.name()
            {
                return Err(status);
            }
            let roles = &auth.user(&name).ok_or(error::USER_NOT_FOUND)?.roles;
            services.expense(principal, client, |_| check::is_many(roles.len()).into())?;
            let roles = roles.clone();
            Ok(whole(&AuthUserGetResponse { header: Some(header), roles }))
        })
    }

    pub(super) fn user_list(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthUserListRequest {} = decode(message)?;
        self.expensive(&self.principal()?, self.peer.get().ip())?;
        self.tell(|services, auth, principal, header| {
            services.gate_of(auth, principal).admin()?;
            let users = auth.users().map(|user| text(&user.name)).collect();
            Ok(whole(&AuthUserListResponse { header: Some(header), users }))
        })
    }

    pub(super) fn role_get(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthRoleGetRequest { role } = decode(message)?;
        let client = self.peer.get().ip();
        self.tell(move |services, auth, principal, header| {
            // Everybody may look at the roles that are granted to them.
            if let Err(status) = services.gate_of(auth, principal).admin()
                && !auth.has_role(principal.name(), &role)
            {
                return Err(status);
            }
            let permissions = auth.role(&role).map_or(0, |role| role.key_permission.len());
            services.expense(principal, client, |_| check::is_many(permissions).into())?;
            Ok(whole(&AuthRoleGetResponse { header: Some(header), perm: auth.permissions(&role)? }))
        })
    }

    pub(super) fn role_list(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthRoleListRequest {} = decode(message)?;
        self.expensive(&self.principal()?, self.peer.get().ip())?;
        self.tell(|services, auth, principal, header| {
            services.gate_of(auth, principal).admin()?;
            let roles = auth.roles().map(|role| text(&role.name)).collect();
            Ok(whole(&AuthRoleListResponse { header: Some(header), roles }))
        })
    }

    pub(super) fn authenticate(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: AuthenticateRequest = decode(message)?;
        if request.name.len() > LOGGED_NAME_BYTES_MAX {
            // Nobody has such a name, and the log is not for it.
            let is_enabled = self.shared.state.load().auth.is_enabled();
            return Err(if is_enabled { error::AUTH_FAILED } else { error::AUTH_NOT_ENABLED });
        }
        self.caller_of(self.peer.get()).authentications.fetch_add(1, Relaxed);
        let (services, call) = (Rc::clone(self), self.at_hand());
        Ok(Unary::Later(Box::pin(async move {
            let answered = services.token_for(call, &request).await;
            if let Err(status) = &answered
                && *status != error::AUTH_NOT_ENABLED
            {
                let fields = [("user", Value::Str(&request.name)), ("error", Value::Str(&status.message))];
                services.logger.warn_of_strangers("invalid authentication was requested", &fields);
            }
            answered
        })))
    }

    /// Checks a password, lets all members know of the token, and returns it.
    async fn token_for(
        self: &Rc<Self>,
        mut call: AtHand,
        request: &AuthenticateRequest,
    ) -> Result<Answer, Status> {
        let AuthenticateRequest { name, password } = request;
        let address = call.peer.ip();
        let credentials = &self.shared.credentials;
        for _ in 0..ATTEMPTS_MAX {
            if !self.shared.state.load().reads_local {
                let place = self.logins.enter()?;
                confirmed(self.pending.ask(ClientRequest::Read)?.await?)?;
                drop(place);
            }
            let auth = Arc::clone(&self.shared.state.load().auth);
            let stored = match auth.password_hash(name) {
                Ok(stored) => Some(stored.as_ref()),
                Err(status) if status == error::AUTH_NOT_ENABLED => return Err(status),
                // Hashed all the same, so that the time does not tell who exists.
                Err(_) => None,
            };
            if !credentials.is_password(address, name, stored, password.as_bytes()).await? {
                return Err(auth.password_hash(name).err().unwrap_or(error::AUTH_FAILED));
            }
            if let Some(answer) = self.issued_lately(name, auth.revision()) {
                return Ok(answer);
            }
            // Others may have been served since: the entry counts as this client's. The password is what took the time.
            call.begun.auth = self.now().saturating_duration_since(call.begun.arrived);
            self.go_on(call);
            let prefix = credentials.draw_prefix();
            let asked = InternalAuthenticateRequest {
                name: name.clone(),
                simple_token: prefix.clone(),
                ..InternalAuthenticateRequest::default()
            };
            let (index, header) = self.authenticated(&asked).await?;
            let (now, number) = {
                let state = self.shared.state.load();
                let is_before_3_5 = self.shared.may_be_before_3_5(&state.members);
                (state.auth.revision(), identity::simple::number(index, is_before_3_5))
            };
            if now != auth.revision() {
                // The password may have been changed between being checked and the entry.
                continue;
            }
            let token = credentials.issue(address, name, &prefix, number, now).await?;
            return Ok(whole(&AuthenticateResponse { header: Some(header), token }));
        }
        Err(error::AUTH_OLD_REVISION)
    }

    /// Answers with a token that the user was issued a moment ago at this auth revision. Holds the state no longer than that.
    fn issued_lately(&self, name: &str, auth_revision: u64) -> Option<Answer> {
        let state = self.state();
        if state.auth.revision() != auth_revision {
            return None;
        }
        let token = self.shared.credentials.issued_lately(name, auth_revision, state.applied_index)?;
        let header = self.header(state.view.snapshot().current_revision(), &state);
        Some(whole(&AuthenticateResponse { header: Some(header), token }))
    }

    /// Proposes that a user has authenticated; returns the entry's index.
    async fn authenticated(
        self: &Rc<Self>,
        request: &InternalAuthenticateRequest,
    ) -> Result<(Index, ResponseHeader), Status> {
        let told = Rc::new(Cell::new(None));
        let tells = Rc::clone(&told);
        let message = request.encode_to_vec().into();
        let nobody = Principal::default();
        let proposed = self.propose(&nobody, field::AUTHENTICATE, &message, false, "Authenticate", {
            move |_, outcome, header| {
                let Outcome::Authenticated { index } = outcome else { return Err(error::STOPPED) };
                tells.set(Some((index, header)));
                Ok(Answer::Whole(Bytes::new()))
            }
        })?;
        match proposed {
            Unary::Done(answer) => drop(answer?),
            Unary::Later(answer) => drop(answer.await?),
        }
        told.take().ok_or(error::STOPPED)
    }
}

/// Gives etcd's name for a request back, if the message is one.
fn checked<R: Message + Default>(what: &'static str, message: &Bytes) -> Result<&'static str, Status> {
    let _: R = decode(message.clone())?;
    Ok(what)
}

/// The answer to any change of users and roles: all of these messages have a header, and nothing else.
fn changed(header: ResponseHeader) -> Answer {
    whole(&AuthEnableResponse { header: Some(header) })
}

/// A name as clients get it.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
