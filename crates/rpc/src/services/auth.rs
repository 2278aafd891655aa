//! Users and roles: changing them, looking at them, and showing a password for a token.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use api::error;
use api::etcdserverpb::{
    AuthDisableRequest, AuthDisableResponse, AuthEnableRequest, AuthEnableResponse, AuthRoleAddRequest,
    AuthRoleAddResponse, AuthRoleDeleteRequest, AuthRoleDeleteResponse, AuthRoleGetRequest,
    AuthRoleGetResponse, AuthRoleGrantPermissionRequest, AuthRoleGrantPermissionResponse,
    AuthRoleListRequest, AuthRoleListResponse, AuthRoleRevokePermissionRequest,
    AuthRoleRevokePermissionResponse, AuthStatusRequest, AuthStatusResponse, AuthUserAddRequest,
    AuthUserAddResponse, AuthUserChangePasswordRequest, AuthUserChangePasswordResponse,
    AuthUserDeleteRequest, AuthUserDeleteResponse, AuthUserGetRequest, AuthUserGetResponse,
    AuthUserGrantRoleRequest, AuthUserGrantRoleResponse, AuthUserListRequest, AuthUserListResponse,
    AuthUserRevokeRoleRequest, AuthUserRevokeRoleResponse, AuthenticateRequest, AuthenticateResponse,
    InternalAuthenticateRequest, ResponseHeader,
};
use api::Status;
use base64::Engine as _;
use bytes::Bytes;
use front::{Answer, Unary};
use machine::Outcome;
use machine::auth::Auth;
use numbers::Index;
use prost::Message;

use super::principal::Principal;
use super::{Services, confirmed, decode, whole};
use replica::core::ClientRequest;
use telemetry::logging::Value;

/// Fields of `InternalRaftRequest`.
mod field {
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
    /// Proposes a change of users or roles as it came, and answers with what `answer` makes of a header.
    fn change<R: Message + Default>(
        self: &Rc<Self>,
        field: u32,
        message: Bytes,
        what: &'static str,
        answer: impl FnOnce(ResponseHeader) -> Answer + 'static,
    ) -> Result<Unary, Status> {
        let _: R = decode(message.clone())?;
        let principal = self.principal()?;
        self.propose(&principal, field, &message, false, what, |_, _, header| Ok(answer(header)))
    }

    pub(super) fn auth_enable(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        self.change::<AuthEnableRequest>(field::AUTH_ENABLE, message, "AuthEnable", |header| {
            whole(&AuthEnableResponse { header: Some(header) })
        })
    }

    pub(super) fn auth_disable(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        self.change::<AuthDisableRequest>(field::AUTH_DISABLE, message, "AuthDisable", |header| {
            whole(&AuthDisableResponse { header: Some(header) })
        })
    }

    pub(super) fn user_delete(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        self.change::<AuthUserDeleteRequest>(field::USER_DELETE, message, "AuthUserDelete", |header| {
            whole(&AuthUserDeleteResponse { header: Some(header) })
        })
    }

    pub(super) fn user_grant_role(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let what = "AuthUserGrantRole";
        self.change::<AuthUserGrantRoleRequest>(field::USER_GRANT_ROLE, message, what, |header| {
            whole(&AuthUserGrantRoleResponse { header: Some(header) })
        })
    }

    pub(super) fn user_revoke_role(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let what = "AuthUserRevokeRole";
        self.change::<AuthUserRevokeRoleRequest>(field::USER_REVOKE_ROLE, message, what, |header| {
            whole(&AuthUserRevokeRoleResponse { header: Some(header) })
        })
    }

    pub(super) fn role_add(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        self.change::<AuthRoleAddRequest>(field::ROLE_ADD, message, "AuthRoleAdd", |header| {
            whole(&AuthRoleAddResponse { header: Some(header) })
        })
    }

    pub(super) fn role_delete(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        self.change::<AuthRoleDeleteRequest>(field::ROLE_DELETE, message, "AuthRoleDelete", |header| {
            whole(&AuthRoleDeleteResponse { header: Some(header) })
        })
    }

    pub(super) fn role_grant_permission(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let what = "AuthRoleGrantPermission";
        self.change::<AuthRoleGrantPermissionRequest>(field::ROLE_GRANT_PERMISSION, message, what, |header| {
            whole(&AuthRoleGrantPermissionResponse { header: Some(header) })
        })
    }

    pub(super) fn role_revoke_permission(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let (what, field) = ("AuthRoleRevokePermission", field::ROLE_REVOKE_PERMISSION);
        self.change::<AuthRoleRevokePermissionRequest>(field, message, what, |header| {
            whole(&AuthRoleRevokePermissionResponse { header: Some(header) })
        })
    }

    /// Goes on once a new password is hashed: never in the log, and never on a thread of clients.
    fn change_hashed(
        self: &Rc<Self>,
        (user, password): (String, String),
        hashed: impl FnOnce(String) -> Bytes + 'static,
        (field, what): (u32, &'static str),
        answer: impl FnOnce(ResponseHeader) -> Answer + 'static,
    ) -> Result<Unary, Status> {
        // Who may not change users must not keep processors busy with hashes. Apply asks again.
        let principal = self.root()?;
        let (services, address) = (Rc::clone(self), self.peer.get().ip());
        Ok(Unary::Later(Box::pin(async move {
            let hash = services.shared.credentials.hash(address, &user, password.as_bytes()).await?;
            drop(password);
            let message = hashed(base64::engine::general_purpose::STANDARD.encode(hash));
            let answer = |_: &Services, _, header| Ok(answer(header));
            match services.propose(&principal, field, &message, false, what, answer)? {
                Unary::Done(answer) => answer,
                Unary::Later(answer) => answer.await,
            }
        })))
    }

    pub(super) fn user_add(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let mut request: AuthUserAddRequest = decode(message)?;
        let respond = |header| whole(&AuthUserAddResponse { header: Some(header) });
        let to = (field::USER_ADD, "AuthUserAdd");
        if request.options.is_some_and(|options| options.no_password) {
            let principal = self.principal()?;
            request.password.clear();
            let message = request.encode_to_vec().into();
            return self
                .propose(&principal, to.0, &message, false, to.1, move |_, _, header| Ok(respond(header)));
        }
        let who = (request.name.clone(), std::mem::take(&mut request.password));
        let hashed = move |hash| {
            request.hashed_password = hash;
            request.encode_to_vec().into()
        };
        self.change_hashed(who, hashed, to, respond)
    }

    pub(super) fn user_change_password(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let mut request: AuthUserChangePasswordRequest = decode(message.clone())?;
        let respond = |header| whole(&AuthUserChangePasswordResponse { header: Some(header) });
        let to = (field::USER_CHANGE_PASSWORD, "AuthUserChangePassword");
        if request.password.is_empty() {
            // As in etcd: a password that can be shown to nobody.
            let principal = self.principal()?;
            return self
                .propose(&principal, to.0, &message, false, to.1, move |_, _, header| Ok(respond(header)));
        }
        let who = (request.name.clone(), std::mem::take(&mut request.password));
        let hashed = move |hash| {
            request.hashed_password = hash;
            request.encode_to_vec().into()
        };
        self.change_hashed(who, hashed, to, respond)
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
        self.tell(move |services, auth, principal, header| {
            // Everybody may look at themselves.
            if let Err(status) = services.gate_of(auth, principal).admin()
                && name != principal.name()
            {
                return Err(status);
            }
            let roles = auth.user(&name).ok_or(error::USER_NOT_FOUND)?.roles.clone();
            Ok(whole(&AuthUserGetResponse { header: Some(header), roles }))
        })
    }

    pub(super) fn user_list(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthUserListRequest {} = decode(message)?;
        self.tell(|services, auth, principal, header| {
            services.gate_of(auth, principal).admin()?;
            let users = auth.users().map(|user| text(&user.name)).collect();
            Ok(whole(&AuthUserListResponse { header: Some(header), users }))
        })
    }

    pub(super) fn role_get(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthRoleGetRequest { role } = decode(message)?;
        self.tell(move |services, auth, principal, header| {
            // Everybody may look at the roles that are granted to them.
            if let Err(status) = services.gate_of(auth, principal).admin()
                && !auth.has_role(principal.name(), &role)
            {
                return Err(status);
            }
            Ok(whole(&AuthRoleGetResponse { header: Some(header), perm: auth.permissions(&role)? }))
        })
    }

    pub(super) fn role_list(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let AuthRoleListRequest {} = decode(message)?;
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
        let (services, address) = (Rc::clone(self), self.peer.get().ip());
        Ok(Unary::Later(Box::pin(async move {
            let answered = services.token_for(address, &request).await;
            if let Err(status) = &answered
                && *status != error::AUTH_NOT_ENABLED
            {
                let fields = [("user", Value::Str(&request.name)), ("error", Value::Str(&status.message))];
                services.logger.warn("invalid authentication was requested", &fields);
            }
            answered
        })))
    }

    /// Checks a password, lets all members know of the token, and returns it.
    async fn token_for(
        self: &Rc<Self>,
        address: IpAddr,
        request: &AuthenticateRequest,
    ) -> Result<Answer, Status> {
        let AuthenticateRequest { name, password } = request;
        let credentials = &self.shared.credentials;
        for _ in 0..ATTEMPTS_MAX {
            if !self.shared.state.load().reads_local {
                confirmed(self.pending.ask(ClientRequest::Read)?.await?)?;
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
            let prefix = credentials.draw_prefix();
            let asked = InternalAuthenticateRequest {
                name: name.clone(),
                simple_token: prefix.clone(),
                ..InternalAuthenticateRequest::default()
            };
            let (index, header) = self.authenticated(&asked).await?;
            let now = self.shared.state.load().auth.revision();
            if now != auth.revision() {
                // The password may have been changed between being checked and the entry.
                continue;
            }
            let token = credentials.issue(address, name, &prefix, index, now).await?;
            return Ok(whole(&AuthenticateResponse { header: Some(header), token }));
        }
        Err(error::AUTH_OLD_REVISION)
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

/// A name as clients get it.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
