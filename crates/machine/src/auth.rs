//! Stores users, roles and their permissions, which are replicated state like keys and leases.
//!
//! [`Auth`] is the state. Each entry changes it, or is refused, exactly as in etcd, because members that run
//! etcd may apply the same entries. [`Rights`] is the union of the permissions of one user; [`Gate`] checks a
//! request against them. Passwords are stored as bcrypt hashes, which are computed before the entry is
//! proposed; callers check passwords outside of this module. Tokens are not part of the state: [`AuthChange`]
//! describes changes for the token store.
//!
//! The auth revision counts changes of users and roles. A caller whose token was issued at an older auth
//! revision is refused when its entry is applied. So a write that was allowed before a change is not applied
//! after that change:
//!
//! ```text
//! auth revision 7   bob may write [a, b)
//! 7   bob's put of "ax" passes the check at arrival, and is proposed with (bob, 7)
//! 8   an entry revokes the permission of bob's role
//! 8   bob's put is applied: 7 < 8, "revision of auth store is old"; bob's client retries, and is denied
//! ```

mod entries;
mod gate;
mod interval_tree;
mod key_ranges;
mod rights;

use std::fmt;
use std::sync::Arc;

use api::Status;
use api::authpb::{Permission, Role, User, permission};
use api::error;
use api::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest, AuthUserAddRequest, AuthUserChangePasswordRequest,
    AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest,
};
use base64::Engine as _;
use bytes::Bytes;
use numbers::Index;
use prost::Message;

use crate::codec::{Input, Malformed, put_bytes, put_u64};
use crate::shared_map::SharedMap;

pub use gate::{Caller, Gate, LeaseRights, Right};
pub use key_ranges::KeyRanges;
pub use rights::{Rights, RightsCache};

/// Name of the user that must exist before authentication can be enabled, and of the role that allows
/// everything.
pub const ROOT: &str = "root";

/// Maximum auth revision of an imported state; a state with a higher one is refused. An auth revision that
/// starts at or below this value never reaches `u64::MAX` in practice, because each change adds only 1. After
/// an overflow, tokens with old revisions would be valid again.
pub const REVISION_MAX: u64 = i64::MAX as u64;

/// Effect of an entry on issued tokens.
#[derive(Clone, PartialEq, Eq)]
pub enum AuthChange {
    /// Users, roles or permissions changed.
    Changed,
    /// A user's password was changed, or the user was deleted. The tokens of this user become invalid.
    Forget(Box<str>),
    /// Authentication was enabled.
    Enabled,
    /// Authentication was disabled. All tokens become invalid.
    Disabled,
    /// A user has authenticated. Every member that issues simple tokens accepts the token of the user from
    /// now on.
    Authenticated {
        /// Name of the user.
        user: Box<str>,
        /// First part of the token: a random text drawn by the member that received the request.
        token_prefix: Box<str>,
        /// Log index of the entry, which is the second part of the token.
        index: Index,
    },
}

impl fmt::Debug for AuthChange {
    /// Formats the change without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthChange::Changed => f.write_str("Changed"),
            AuthChange::Forget(user) => f.debug_tuple("Forget").field(user).finish(),
            AuthChange::Enabled => f.write_str("Enabled"),
            AuthChange::Disabled => f.write_str("Disabled"),
            AuthChange::Authenticated { user, token_prefix: _, index } => f
                .debug_struct("Authenticated")
                .field("user", user)
                .field("index", index)
                .finish_non_exhaustive(),
        }
    }
}

/// Users and roles, and whether authentication is enabled. Copying costs one pointer per about 200 users or
/// roles, and a copy does not change when the original does.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    is_enabled: bool,
    revision: u64,
    users: SharedMap<Bytes, Arc<User>>,
    roles: SharedMap<Bytes, Arc<Role>>,
}

impl Default for Auth {
    /// Returns a state without users and roles, in which authentication is disabled.
    fn default() -> Auth {
        Auth { is_enabled: false, revision: 1, users: SharedMap::default(), roles: SharedMap::default() }
    }
}

/// Copies bytes out of an entry, because a slice of the entry would keep the whole entry in memory.
fn own(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn own_permission(permission: &Permission) -> Permission {
    Permission {
        perm_type: permission.perm_type,
        key: own(&permission.key),
        range_end: own(&permission.range_end),
    }
}

/// Returns the decoded password hash of a request. etcd before 3.5 put the plain password into the entry, and
/// each member hashed it at apply with its own salt. The stored hashes would then differ between members, so
/// such an entry is refused.
fn hashed_password(password: &str, hashed: &str) -> Result<Bytes, Status> {
    if !password.is_empty() && hashed.is_empty() {
        return Err(error::INVALID_AUTH_MGMT);
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(hashed);
    decoded.map(Bytes::from).map_err(|_| error::NO_PASSWORD_USER)
}

impl Auth {
    /// Creates the state from users, roles and an auth revision of another source, such as an imported
    /// database. If a name occurs twice, the later user or role replaces the earlier one.
    ///
    /// # Panics
    ///
    /// Panics if the revision is above [`REVISION_MAX`]. Callers have to refuse such a revision when they
    /// read it.
    pub fn of(
        is_enabled: bool,
        revision: u64,
        users: impl IntoIterator<Item = User>,
        roles: impl IntoIterator<Item = Role>,
    ) -> Auth {
        assert!(revision <= REVISION_MAX, "auth revision {revision} comes from nowhere");
        let mut auth = Auth { is_enabled, revision, ..Auth::default() };
        for user in users {
            auth.put_user(user);
        }
        for role in roles {
            auth.put_role(role);
        }
        auth
    }

    /// Returns true if authentication is enabled, so that requests need a user.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns the auth revision: 1 at first. Each change of users or roles adds 1, and so does disabling
    /// authentication.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the user of this name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name.as_bytes()).map(|user| &**user)
    }

    /// Returns all users, sorted by name.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.iter().map(|(_, user)| &**user)
    }

    /// Returns the users whose names are after this name, or all users if `None`, sorted by name.
    pub fn users_after(&self, name: Option<&[u8]>) -> impl Iterator<Item = &User> {
        self.users.after(name).map(|(_, user)| &**user)
    }

    /// Returns the roles whose names are after this name, or all roles if `None`, sorted by name.
    pub fn roles_after(&self, name: Option<&[u8]>) -> impl Iterator<Item = &Role> {
        self.roles.after(name).map(|(_, role)| &**role)
    }

    /// Returns the role of this name.
    pub fn role(&self, name: &str) -> Option<&Role> {
        self.roles.get(name.as_bytes()).map(|role| &**role)
    }

    /// Returns all roles, sorted by name.
    pub fn roles(&self) -> impl Iterator<Item = &Role> {
        self.roles.iter().map(|(_, role)| &**role)
    }

    /// Returns the permissions of this role as a client sees them. For the role root, which has access to all
    /// keys, returns one permission for all keys, whatever permissions the role has.
    ///
    /// # Errors
    ///
    /// Returns an error if no role has this name.
    pub fn permissions(&self, role: &str) -> Result<Vec<Permission>, Status> {
        let role = self.role(role).ok_or(error::ROLE_NOT_FOUND)?;
        if role.name == ROOT.as_bytes() {
            let everything = Permission {
                perm_type: permission::Type::Readwrite as i32,
                key: Bytes::new(),
                range_end: Bytes::from_static(&[0]),
            };
            return Ok(vec![everything]);
        }
        Ok(role.key_permission.clone())
    }

    /// Returns true if this user exists and has this role.
    pub fn has_role(&self, user: &str, role: &str) -> bool {
        self.user(user).is_some_and(|user| user.roles.iter().any(|granted| granted == role))
    }

    /// Returns the hash of this user's password, with which a password can be checked.
    ///
    /// # Errors
    ///
    /// Returns etcd's error if authentication is not enabled, the user does not exist, or the user has no
    /// password.
    pub fn password_hash(&self, user: &str) -> Result<&Bytes, Status> {
        if !self.is_enabled {
            return Err(error::AUTH_NOT_ENABLED);
        }
        let user = self.user(user).ok_or(error::AUTH_FAILED)?;
        if has_no_password(user) {
            return Err(error::NO_PASSWORD_USER);
        }
        Ok(&user.password)
    }

    /// Returns numbers that identify the state, for comparing it with another one: whether authentication is
    /// enabled, the auth revision, and a checksum of each user and role. The list is empty for the initial
    /// state.
    pub fn digest(&self) -> Vec<u64> {
        if *self == Auth::default() {
            return Vec::new();
        }
        let users = self.users().map(Message::encode_to_vec);
        let all = users.chain(self.roles().map(Message::encode_to_vec));
        let sums = all.map(|bytes| u64::from(crc32c::crc32c(&bytes)));
        [u64::from(self.is_enabled), self.revision].into_iter().chain(sums).collect()
    }

    fn put_user(&mut self, user: User) {
        self.users.insert(user.name.clone(), Arc::new(user));
    }

    fn put_role(&mut self, role: Role) {
        self.roles.insert(role.name.clone(), Arc::new(role));
    }

    /// Returns a mutable reference to the user of this name.
    fn user_mut(&mut self, name: &str) -> Result<&mut User, Status> {
        self.users.get_mut(name.as_bytes()).map(Arc::make_mut).ok_or(error::USER_NOT_FOUND)
    }

    /// Returns a mutable reference to the role of this name.
    fn role_mut(&mut self, name: &str) -> Result<&mut Role, Status> {
        self.roles.get_mut(name.as_bytes()).map(Arc::make_mut).ok_or(error::ROLE_NOT_FOUND)
    }

    /// Enables authentication. Returns `None` if it was enabled already. The auth revision does not change.
    pub(crate) fn enable(&mut self) -> Result<Option<AuthChange>, Status> {
        if self.is_enabled {
            return Ok(None);
        }
        let root = self.user(ROOT).ok_or(error::ROOT_USER_NOT_EXIST)?;
        if !root.roles.iter().any(|role| role == ROOT) {
            return Err(error::ROOT_ROLE_NOT_EXIST);
        }
        self.is_enabled = true;
        Ok(Some(AuthChange::Enabled))
    }

    /// Disables authentication. Returns `None` if it was disabled already.
    pub(crate) fn disable(&mut self) -> Option<AuthChange> {
        if !self.is_enabled {
            return None;
        }
        self.is_enabled = false;
        self.revision += 1;
        Some(AuthChange::Disabled)
    }

    pub(crate) fn add_user(&mut self, request: &AuthUserAddRequest) -> Result<AuthChange, Status> {
        if request.name.is_empty() {
            return Err(error::USER_EMPTY);
        }
        if self.user(&request.name).is_some() {
            return Err(error::USER_ALREADY_EXIST);
        }
        let options = request.options.unwrap_or_default();
        let password = match options.no_password {
            true => Bytes::new(),
            false => hashed_password(&request.password, &request.hashed_password)?,
        };
        let name = own(request.name.as_bytes());
        self.put_user(User { name, password, roles: Vec::new(), options: Some(options) });
        self.revision += 1;
        Ok(AuthChange::Changed)
    }

    pub(crate) fn delete_user(&mut self, request: &AuthUserDeleteRequest) -> Result<AuthChange, Status> {
        if self.is_enabled && request.name == ROOT {
            return Err(error::INVALID_AUTH_MGMT);
        }
        self.users.remove(request.name.as_bytes()).ok_or(error::USER_NOT_FOUND)?;
        self.revision += 1;
        Ok(AuthChange::Forget(request.name.as_str().into()))
    }

    pub(crate) fn change_password(
        &mut self,
        request: &AuthUserChangePasswordRequest,
    ) -> Result<AuthChange, Status> {
        let user = self.user_mut(&request.name)?;
        user.password = match has_no_password(user) {
            true => Bytes::new(),
            false => hashed_password(&request.password, &request.hashed_password)?,
        };
        self.revision += 1;
        Ok(AuthChange::Forget(request.name.as_str().into()))
    }

    /// Grants a role to a user. If the user already has the role, returns `None`, and nothing changes, not
    /// even the auth revision.
    pub(crate) fn grant_role(
        &mut self,
        request: &AuthUserGrantRoleRequest,
    ) -> Result<Option<AuthChange>, Status> {
        let has_role = self.has_role(&request.user, &request.role);
        let is_known = request.role == ROOT || self.role(&request.role).is_some();
        let user = self.user_mut(&request.user)?;
        if !is_known {
            return Err(error::ROLE_NOT_FOUND);
        }
        if has_role {
            return Ok(None);
        }
        user.roles.push(request.role.clone());
        user.roles.sort_unstable();
        self.revision += 1;
        Ok(Some(AuthChange::Changed))
    }

    pub(crate) fn revoke_role(&mut self, request: &AuthUserRevokeRoleRequest) -> Result<AuthChange, Status> {
        if self.is_enabled && request.name == ROOT && request.role == ROOT {
            return Err(error::INVALID_AUTH_MGMT);
        }
        let has_role = self.has_role(&request.name, &request.role);
        let user = self.user_mut(&request.name)?;
        if !has_role {
            return Err(error::ROLE_NOT_GRANTED);
        }
        user.roles.retain(|role| *role != request.role);
        self.revision += 1;
        Ok(AuthChange::Changed)
    }

    pub(crate) fn add_role(&mut self, request: &AuthRoleAddRequest) -> Result<AuthChange, Status> {
        if request.name.is_empty() {
            return Err(error::ROLE_EMPTY);
        }
        if self.role(&request.name).is_some() {
            return Err(error::ROLE_ALREADY_EXIST);
        }
        self.put_role(Role { name: own(request.name.as_bytes()), key_permission: Vec::new() });
        self.revision += 1;
        Ok(AuthChange::Changed)
    }

    pub(crate) fn delete_role(&mut self, request: &AuthRoleDeleteRequest) -> Result<AuthChange, Status> {
        if self.is_enabled && request.role == ROOT {
            return Err(error::INVALID_AUTH_MGMT);
        }
        self.roles.remove(request.role.as_bytes()).ok_or(error::ROLE_NOT_FOUND)?;
        let having: Vec<Bytes> = self
            .users()
            .filter(|user| user.roles.contains(&request.role))
            .map(|user| user.name.clone())
            .collect();
        for name in having {
            if let Some(user) = self.users.get_mut(&name) {
                Arc::make_mut(user).roles.retain(|role| *role != request.role);
            }
        }
        self.revision += 1;
        Ok(AuthChange::Changed)
    }

    /// Grants a permission to a role. If the role has a permission with the same key and range end, its type
    /// is replaced. As in etcd, only the first permission with the same key is compared: if its range end
    /// differs, the permission is added, even if a later one has the same key and range end.
    pub(crate) fn grant_permission(
        &mut self,
        request: &AuthRoleGrantPermissionRequest,
    ) -> Result<AuthChange, Status> {
        let permission = request.perm.as_ref().ok_or(error::PERMISSION_NOT_GIVEN)?;
        if !key_ranges::is_valid(&permission.key, &permission.range_end) {
            return Err(error::INVALID_AUTH_MGMT);
        }
        let granted = &mut self.role_mut(&request.name)?.key_permission;
        let first = granted.partition_point(|known| known.key < permission.key);
        match granted.get_mut(first) {
            Some(known) if known.key == permission.key && known.range_end == permission.range_end => {
                known.perm_type = permission.perm_type;
            }
            _ => {
                let behind = granted.partition_point(|known| known.key <= permission.key);
                granted.insert(behind, own_permission(permission));
            }
        }
        self.revision += 1;
        Ok(AuthChange::Changed)
    }

    pub(crate) fn revoke_permission(
        &mut self,
        request: &AuthRoleRevokePermissionRequest,
    ) -> Result<AuthChange, Status> {
        let granted = &mut self.role_mut(&request.role)?.key_permission;
        let before = granted.len();
        granted.retain(|known| known.key != request.key || known.range_end != request.range_end);
        if granted.len() == before {
            return Err(error::PERMISSION_NOT_GRANTED);
        }
        self.revision += 1;
        Ok(AuthChange::Changed)
    }

    /// Returns the change for the entry of a user whose password or certificate was checked before the entry
    /// was proposed.
    pub(crate) fn authenticated(
        &self,
        user: &str,
        token_prefix: &str,
        index: Index,
    ) -> Result<AuthChange, Status> {
        if !self.is_enabled {
            return Err(error::AUTH_NOT_ENABLED);
        }
        match self.user(user) {
            Some(known) if !has_no_password(known) => {
                Ok(AuthChange::Authenticated { user: user.into(), token_prefix: token_prefix.into(), index })
            }
            _ => Err(error::AUTH_FAILED),
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, u64::from(self.is_enabled));
        put_u64(out, self.revision);
        put_u64(out, self.users.len() as u64);
        self.users().for_each(|user| put_bytes(out, &user.encode_to_vec()));
        put_u64(out, self.roles.len() as u64);
        self.roles().for_each(|role| put_bytes(out, &role.encode_to_vec()));
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Auth, Malformed> {
        let mut auth = Auth { is_enabled: input.bool()?, revision: input.u64()?, ..Auth::default() };
        if auth.revision > REVISION_MAX {
            return Err(Malformed("an auth revision out of range"));
        }
        for _ in 0..input.u64()? {
            let user = User::decode(input.bytes()?).map_err(|_| Malformed("a user that is no message"))?;
            auth.put_user(user);
        }
        for _ in 0..input.u64()? {
            let role = Role::decode(input.bytes()?).map_err(|_| Malformed("a role that is no message"))?;
            auth.put_role(role);
        }
        Ok(auth)
    }
}

fn has_no_password(user: &User) -> bool {
    user.options.is_some_and(|options| options.no_password)
}

#[cfg(test)]
mod tests;
