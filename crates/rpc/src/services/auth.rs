//! Answers the calls of the Auth service: changes and queries of users and roles, and logins.

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
use front::Answer;
use machine::auth::{Auth, Gate};
use machine::{Outcome, check};
use prost::Message;

use super::call::Call;
use super::{Services, decode, whole};
use telemetry::logging::Value;

/// Field numbers of `InternalRaftRequest`.
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

/// Maximum length in bytes of a user name that may log in. The limit exists because failed logins write the
/// name to the log.
const LOGGED_NAME_BYTES_MAX: usize = 1024;
/// Maximum number of attempts of a login. A login is repeated if the auth revision changes after the password
/// was checked.
const ATTEMPTS_MAX: u32 = 16;

/// Answers a change of users or roles that contains no password. The request is proposed unchanged.
pub(super) async fn change(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let (field, what) = match call.rpc {
        Rpc::AuthEnable => (field::AUTH_ENABLE, checked::<AuthEnableRequest>("AuthEnable", &message)?),
        Rpc::AuthDisable => (field::AUTH_DISABLE, checked::<AuthDisableRequest>("AuthDisable", &message)?),
        Rpc::AuthUserDelete => {
            (field::USER_DELETE, checked::<AuthUserDeleteRequest>("AuthUserDelete", &message)?)
        }
        Rpc::AuthUserGrantRole => {
            (field::USER_GRANT_ROLE, checked::<AuthUserGrantRoleRequest>("AuthUserGrantRole", &message)?)
        }
        Rpc::AuthUserRevokeRole => {
            (field::USER_REVOKE_ROLE, checked::<AuthUserRevokeRoleRequest>("AuthUserRevokeRole", &message)?)
        }
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
    call.as_root().await?;
    Ok(changed(call.propose(field, message, what).await?.header))
}

/// A change of a user that contains a password.
struct PasswordChange<R> {
    request: R,
    user: String,
    /// New password of the user; `None` if the user gets no password. Without a password, the request is
    /// proposed without a hash.
    password: Option<String>,
    set_hash: fn(&mut R, String),
    field: u32,
    /// etcd's name for the request.
    what: &'static str,
}

impl<R: Message> PasswordChange<R> {
    /// Proposes the change with the hash of its password. A password is never written to the log, and never
    /// hashed on a shard's thread.
    async fn propose(mut self, call: &mut Call) -> Result<Answer, Status> {
        // Checked before the password is hashed, so that a caller without the right to change users cannot
        // cause that work.
        call.as_root().await?;
        if let Some(password) = self.password.take() {
            // COMPAT-193: only the hash is proposed, in a field that members of etcd 3.4 do not know. So the
            // change is refused while the cluster may contain such a member.
            if call.shared().cluster.may_be_before_3_5(&call.services.state().members) {
                return Err(error::NOT_CAPABLE);
            }
            let hash = call
                .shared()
                .clients
                .credentials
                .hash(call.client(), &self.user, password.as_bytes())
                .await?;
            drop(password);
            (self.set_hash)(&mut self.request, base64::engine::general_purpose::STANDARD.encode(hash));
            // The rights are checked again: hashing takes long, the caller may have lost its rights since,
            // and apply cannot recognize outdated tokens.
            if call.services.state().auth.is_enabled() {
                call.services.wait_readable(false).await?;
            }
            call.may(Gate::admin)?;
        }
        let message = self.request.encode_to_vec().into();
        Ok(changed(call.propose(self.field, message, self.what).await?.header))
    }
}

/// Answers an AuthUserAdd.
pub(super) async fn user_add(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let mut request: AuthUserAddRequest = decode(message)?;
    let has_none = request.options.is_some_and(|options| options.no_password);
    let password = std::mem::take(&mut request.password);
    let (user, password) = (request.name.clone(), (!has_none).then_some(password));
    let set_hash = |request: &mut AuthUserAddRequest, hash| request.hashed_password = hash;
    let (field, what) = (field::USER_ADD, "AuthUserAdd");
    PasswordChange { request, user, password, set_hash, field, what }.propose(call).await
}

/// Answers an AuthUserChangePassword.
pub(super) async fn user_change_password(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let mut request: AuthUserChangePasswordRequest = decode(message)?;
    let password = std::mem::take(&mut request.password);
    // An empty password is not hashed: as in etcd, a user with an empty password cannot log in.
    let (user, password) = (request.name.clone(), (!password.is_empty()).then_some(password));
    let set_hash = |request: &mut AuthUserChangePasswordRequest, hash| request.hashed_password = hash;
    let (field, what) = (field::USER_CHANGE_PASSWORD, "AuthUserChangePassword");
    PasswordChange { request, user, password, set_hash, field, what }.propose(call).await
}

/// Waits until this member has applied everything that was acknowledged before the request. Returns the users
/// and roles from which the request is answered, and the response header.
async fn users_and_roles(call: &mut Call) -> Result<(Arc<Auth>, ResponseHeader), Status> {
    call.principal()?;
    let read = call.readable(false).await?;
    call.reads(read);
    let state = call.services.state();
    let header = call.services.header(state.view.snapshot().current_revision(), &state);
    Ok((Arc::clone(&state.auth), header))
}

/// Returns the rights of the call's user according to these users and roles.
fn gate(call: &Call, auth: &Auth) -> Result<Gate, Status> {
    Ok(call.services.gate_of(auth, call.principal()?))
}

/// Answers an AuthStatus.
pub(super) async fn status(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let AuthStatusRequest {} = decode(message)?;
    let (auth, header) = users_and_roles(call).await?;
    let (enabled, auth_revision) = (auth.is_enabled(), auth.revision());
    Ok(whole(&AuthStatusResponse { header: Some(header), enabled, auth_revision }))
}

/// Answers an AuthUserGet.
pub(super) async fn user_get(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let AuthUserGetRequest { name } = decode(message)?;
    let (auth, header) = users_and_roles(call).await?;
    // Users who are not root may read only their own entry.
    if let Err(status) = gate(call, &auth)?.admin()
        && name != call.principal()?.name()
    {
        return Err(status);
    }
    let roles = &auth.user(&name).ok_or(error::USER_NOT_FOUND)?.roles;
    call.expense(|_| check::is_many(roles.len()).into())?;
    Ok(whole(&AuthUserGetResponse { header: Some(header), roles: roles.clone() }))
}

/// Answers an AuthUserList.
pub(super) async fn user_list(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let AuthUserListRequest {} = decode(message)?;
    call.expensive()?;
    let (auth, header) = users_and_roles(call).await?;
    gate(call, &auth)?.admin()?;
    let users = auth.users().map(|user| text(&user.name)).collect();
    Ok(whole(&AuthUserListResponse { header: Some(header), users }))
}

/// Answers an AuthRoleGet.
pub(super) async fn role_get(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let AuthRoleGetRequest { role } = decode(message)?;
    let (auth, header) = users_and_roles(call).await?;
    // Users who are not root may read only the roles that are granted to them.
    if let Err(status) = gate(call, &auth)?.admin()
        && !auth.has_role(call.principal()?.name(), &role)
    {
        return Err(status);
    }
    let permissions = auth.role(&role).map_or(0, |role| role.key_permission.len());
    call.expense(|_| check::is_many(permissions).into())?;
    let perm = auth.permissions(&role)?;
    Ok(whole(&AuthRoleGetResponse { header: Some(header), perm }))
}

/// Answers an AuthRoleList.
pub(super) async fn role_list(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let AuthRoleListRequest {} = decode(message)?;
    call.expensive()?;
    let (auth, header) = users_and_roles(call).await?;
    gate(call, &auth)?.admin()?;
    let roles = auth.roles().map(|role| text(&role.name)).collect();
    Ok(whole(&AuthRoleListResponse { header: Some(header), roles }))
}

/// Answers an Authenticate.
pub(super) async fn authenticate(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: AuthenticateRequest = decode(message)?;
    let shared = Arc::clone(call.shared());
    if request.name.len() > LOGGED_NAME_BYTES_MAX {
        // No user has such a long name. The login is refused here, because a failed login would write the
        // name to the log.
        let is_enabled = shared.state.load().auth.is_enabled();
        return Err(if is_enabled { error::AUTH_FAILED } else { error::AUTH_NOT_ENABLED });
    }
    call.services.caller_of(call.peer).authentications.fetch_add(1, Relaxed);
    let answered = token_for(call, &request).await;
    if let Err(status) = &answered
        && *status != error::AUTH_NOT_ENABLED
    {
        let fields = [("user", Value::Str(&request.name)), ("error", Value::Str(&status.message))];
        call.services.logger.warn_of_strangers("invalid authentication was requested", &fields);
    }
    answered
}

/// Checks the password of a login, proposes the login to all members, and returns the user's new token.
async fn token_for(call: &mut Call, request: &AuthenticateRequest) -> Result<Answer, Status> {
    let AuthenticateRequest { name, password } = request;
    let (shared, address) = (Arc::clone(call.shared()), call.client());
    let credentials = &shared.clients.credentials;
    // A login has no user, whatever token the call presents.
    call.go_on_as_nobody();
    for _ in 0..ATTEMPTS_MAX {
        if !shared.state.load().reads_local {
            let place = call.services.logins.enter()?;
            call.confirmed(Some(place)).await?;
        }
        let auth = Arc::clone(&shared.state.load().auth);
        let stored = match auth.password_hash(name) {
            Ok(stored) => Some(stored.as_ref()),
            Err(status) if status == error::AUTH_NOT_ENABLED => return Err(status),
            // If the user does not exist, the password is hashed anyway. Otherwise the response time would
            // show whether the user exists.
            Err(_) => None,
        };
        if !credentials.is_password(address, name, stored, password.as_bytes()).await? {
            return Err(auth.password_hash(name).err().unwrap_or(error::AUTH_FAILED));
        }
        if let Some(answer) = call.services.issued_lately(name, auth.revision()) {
            return Ok(answer);
        }
        // The whole time since the arrival counts as the auth stage: most of it was spent on checking the
        // password.
        call.begun.auth = call.services.now().saturating_duration_since(call.begun.arrived);
        let prefix = credentials.draw_prefix();
        let asked = InternalAuthenticateRequest {
            name: name.clone(),
            simple_token: prefix.clone(),
            ..InternalAuthenticateRequest::default()
        };
        let message = asked.encode_to_vec().into();
        let applied = call.propose_login(field::AUTHENTICATE, message).await?;
        let Outcome::Authenticated { index } = applied.outcome else { return Err(error::STOPPED) };
        let (now, number) = {
            let state = shared.state.load();
            let is_before_3_5 = shared.cluster.may_be_before_3_5(&state.members);
            (state.auth.revision(), identity::simple::number(index, is_before_3_5))
        };
        if now != auth.revision() {
            // The password may have been changed after it was checked and before the entry was applied, so it
            // is checked again.
            continue;
        }
        let token = credentials.issue(address, name, &prefix, number, now).await?;
        return Ok(whole(&AuthenticateResponse { header: Some(applied.header), token }));
    }
    Err(error::AUTH_OLD_REVISION)
}

impl Services {
    /// Returns a token that the user got a short time ago at this auth revision, if one exists. The published
    /// state is held only for this look-up.
    fn issued_lately(&self, name: &str, auth_revision: u64) -> Option<Answer> {
        let state = self.state();
        if state.auth.revision() != auth_revision {
            return None;
        }
        let token =
            self.shared.clients.credentials.issued_lately(name, auth_revision, state.applied_index)?;
        let header = self.header(state.view.snapshot().current_revision(), &state);
        Some(whole(&AuthenticateResponse { header: Some(header), token }))
    }
}

/// Returns `what`, etcd's name for the request, if the message can be decoded as `R`.
fn checked<R: Message + Default>(what: &'static str, message: &Bytes) -> Result<&'static str, Status> {
    let _: R = decode(message.clone())?;
    Ok(what)
}

/// Returns the response to a change of users or roles. All these response messages consist only of a header.
fn changed(header: ResponseHeader) -> Answer {
    whole(&AuthEnableResponse { header: Some(header) })
}

/// Returns a name as text for clients. Invalid UTF-8 is replaced.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
