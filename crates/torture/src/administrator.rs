//! Makes the calls of the simulated administrator, who creates users at the start of the run, and changes the
//! permissions of some of them during the run.
//!
//! Every user whose permissions change has a role of its own. If the result of a change is unknown, the
//! change may still take effect at any later time. In this case the administrator stops using that user, and
//! creates another one with a new name.

use std::sync::Arc;
use std::time::Duration;

use api::etcdserverpb as pb;
use api::{Code, Rpc, Status, authpb, error};
use bytes::Bytes;
use oracle::{Grant, GrantChange};
use prost::Message;
use tokio::sync::watch;

use crate::phase::{Phase, pause};
use crate::rng::Rng;
use crate::security::{Identity, ROOT, SLOTS, STAFF, WORKER, count, first_password};
use crate::session::ClientContext;
use crate::user_client;

/// Largest number of permissions that a user gets.
const PERMISSIONS_MAX: usize = 4;
/// Time limit for each of the calls that create the permanent users.
const SET_UP_TIME_MAX: Duration = Duration::from_secs(30);

/// A permission of a role, and whether the role has it now.
struct Permission {
    key: Vec<u8>,
    range_end: Vec<u8>,
    kind: authpb::permission::Type,
    granted: bool,
}

/// A user, the user's role, and what the administrator knows about their state.
struct User {
    name: String,
    password: u64,
    has_role: bool,
    permissions: Vec<Permission>,
}

/// A request that changes users, roles or authentication, and the grants that it affects, for the oracle.
pub(crate) struct Change {
    rpc: Rpc,
    message: Vec<u8>,
    /// The affected grants; true for those that exist after the change, false for those that do not.
    about: Vec<(Grant, bool)>,
}

/// Result of a change, as far as the administrator knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Done,
    Refused,
    Unknown,
}

/// Returns the change that enables or disables authentication.
pub(crate) fn switch(on: bool) -> Change {
    let about = vec![(Grant::Authentication, on)];
    let rpc = if on { Rpc::AuthEnable } else { Rpc::AuthDisable };
    // Both requests are empty messages.
    Change { rpc, message: Vec::new(), about }
}

fn add_user(name: &str, password: String) -> Change {
    let add = pb::AuthUserAddRequest { name: name.to_owned(), password, ..Default::default() };
    Change { rpc: Rpc::AuthUserAdd, message: add.encode_to_vec(), about: Vec::new() }
}

fn add_role(name: &str) -> Change {
    let add = pb::AuthRoleAddRequest { name: name.to_owned() };
    Change { rpc: Rpc::AuthRoleAdd, message: add.encode_to_vec(), about: Vec::new() }
}

fn give_role(user: &str, role: &str) -> Change {
    let grant = pb::AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
    let about = vec![(Grant::Role(user.to_owned()), true)];
    Change { rpc: Rpc::AuthUserGrantRole, message: grant.encode_to_vec(), about }
}

fn allow(user: &str, role: &str, permission: &Permission) -> Change {
    let perm = authpb::Permission {
        perm_type: permission.kind as i32,
        key: permission.key.clone().into(),
        range_end: permission.range_end.clone().into(),
    };
    let grant = pb::AuthRoleGrantPermissionRequest { name: role.to_owned(), perm: Some(perm) };
    let about = vec![(permission.grant(user), true)];
    Change { rpc: Rpc::AuthRoleGrantPermission, message: grant.encode_to_vec(), about }
}

impl Permission {
    fn grant(&self, user: &str) -> Grant {
        use authpb::permission::Type;
        Grant::Keys {
            user: user.to_owned(),
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            read: self.kind != Type::Write,
            write: self.kind != Type::Read,
        }
    }
}

impl User {
    fn draw(number: u64, rng: &mut Rng) -> User {
        use authpb::permission::Type;
        let mut permissions: Vec<Permission> = Vec::new();
        for _ in 0..=rng.index(PERMISSIONS_MAX) {
            let (key, range_end) = user_client::some_range(rng);
            let kind = match rng.below(4) {
                0 => Type::Read,
                1 => Type::Write,
                _ => Type::Readwrite,
            };
            if permissions.iter().all(|one| (&one.key, &one.range_end) != (&key, &range_end)) {
                permissions.push(Permission { key, range_end, kind, granted: false });
            }
        }
        User { name: format!("u{number}"), password: 1, has_role: false, permissions }
    }

    fn role(&self) -> String {
        format!("r{}", self.name)
    }

    fn password(&self) -> String {
        format!("{}'s {}", self.name, self.password)
    }

    /// Returns the requests that create the user, in the order in which they must be sent.
    fn make(&self) -> Vec<Change> {
        let role = self.role();
        let mut changes = vec![add_role(&role), add_user(&self.name, self.password())];
        changes.push(give_role(&self.name, &role));
        changes.extend(self.permissions.iter().map(|permission| allow(&self.name, &role, permission)));
        changes
    }

    fn toggle_role(&self) -> Change {
        if !self.has_role {
            return give_role(&self.name, &self.role());
        }
        let revoke = pb::AuthUserRevokeRoleRequest { name: self.name.clone(), role: self.role() };
        let about = vec![(Grant::Role(self.name.clone()), false)];
        Change { rpc: Rpc::AuthUserRevokeRole, message: revoke.encode_to_vec(), about }
    }

    fn toggle(&self, permission: &Permission) -> Change {
        if !permission.granted {
            return allow(&self.name, &self.role(), permission);
        }
        let revoke = pb::AuthRoleRevokePermissionRequest {
            role: self.role(),
            key: permission.key.clone().into(),
            range_end: permission.range_end.clone().into(),
        };
        let about = vec![(permission.grant(&self.name), false)];
        Change { rpc: Rpc::AuthRoleRevokePermission, message: revoke.encode_to_vec(), about }
    }

    fn change_password(&self) -> Change {
        let password = self.password();
        let change =
            pb::AuthUserChangePasswordRequest { name: self.name.clone(), password, ..Default::default() };
        let about = vec![(Grant::Tokens(self.name.clone()), true)];
        Change { rpc: Rpc::AuthUserChangePassword, message: change.encode_to_vec(), about }
    }

    fn delete(&self) -> Change {
        let delete = pb::AuthUserDeleteRequest { name: self.name.clone() };
        let name = || self.name.clone();
        let about = vec![(Grant::Role(name()), false), (Grant::Tokens(name()), true)];
        Change { rpc: Rpc::AuthUserDelete, message: delete.encode_to_vec(), about }
    }
}

/// Returns what is known after a change failed with this status. Errors are recognized by their messages, as
/// in `outcome::of`.
fn known_after(status: &Status) -> Known {
    let certain = [
        error::PERMISSION_DENIED,
        error::INVALID_AUTH_TOKEN,
        error::AUTH_OLD_REVISION,
        error::USER_EMPTY,
        error::USER_NOT_FOUND,
        error::USER_ALREADY_EXIST,
        error::ROLE_NOT_FOUND,
        error::ROLE_ALREADY_EXIST,
        error::ROLE_NOT_GRANTED,
        error::PERMISSION_NOT_GRANTED,
        error::TOO_MANY_REQUESTS,
        error::NO_LEADER,
    ];
    if certain.iter().any(|known| known.message == status.message) || status.code == Code::InvalidArgument {
        return Known::Refused;
    }
    Known::Unknown
}

/// Sends the request for a change, and records the change for the oracle unless it certainly has no effect.
pub(crate) async fn carry_out(context: &ClientContext, client: u64, member: usize, change: &Change) -> Known {
    // If connecting fails, nothing was sent. So the change can never take effect, and counts as refused.
    let Ok(link) = context.open(member, Identity::Root, client).await else { return Known::Refused };
    let call = context.record.now();
    let options = link.options().within(context.timeout);
    let message = Bytes::from(change.message.clone());
    let known = match link.channel.unary_with(change.rpc.path(), &options, message).await {
        Ok(_) => Known::Done,
        Err(status) => {
            context.failed(&link, client, &status);
            known_after(&status)
        }
    };
    let figures = &context.security.figures;
    match known {
        Known::Refused => return known,
        Known::Done => count(&figures.changes),
        Known::Unknown => count(&figures.changes_unknown),
    }
    let returned = context.record.now();
    let mut recorded = context.record.lock();
    for (grant, granted) in change.about.iter().cloned() {
        let certain = known == Known::Done;
        recorded.grants.push(GrantChange { call, returned, certain, granted, grant });
    }
    known
}

/// Creates the permanent users, and enables authentication. All members must be healthy, because each change
/// must succeed.
///
/// # Errors
/// Returns an error that names the change that did not succeed in time.
pub async fn set_up(context: &ClientContext, client: u64) -> Result<(), String> {
    use authpb::permission::Type;
    let Some(users) = &context.security.users else { return Ok(()) };
    let mut changes = vec![add_user(ROOT, first_password(ROOT)), give_role(ROOT, ROOT)];
    for name in [WORKER, STAFF] {
        let all = Permission { key: vec![0], range_end: vec![0], kind: Type::Readwrite, granted: false };
        changes.extend([add_role(name), add_user(name, first_password(name)), give_role(name, name)]);
        changes.push(allow(name, name, &all));
    }
    changes.push(switch(true));
    for change in &changes {
        let set_up = async {
            while carry_out(context, client, 0, change).await != Known::Done {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let in_time = tokio::time::timeout(SET_UP_TIME_MAX, set_up).await;
        in_time.map_err(|_| format!("users cannot be set up: {} fails", change.rpc.path()))?;
    }
    users.require();
    Ok(())
}

/// Creates users and changes their permissions until the phase ends.
pub async fn work(context: Arc<ClientContext>, number: u64, mut rng: Rng, mut phase: watch::Receiver<Phase>) {
    let Some(users) = &context.security.users else { return };
    let mut made = 0;
    let mut places: [Option<User>; SLOTS] = [const { None }; SLOTS];
    while pause(&mut phase, Duration::from_millis(rng.between(50, 900))).await {
        let slot = rng.index(SLOTS);
        let member = rng.index(context.addresses.len());
        let Some(place) = places.get_mut(slot) else { continue };
        let Some(user) = place else {
            made += 1;
            let mut user = User::draw(made, &mut rng);
            if make(&context, number, &user).await {
                user.has_role = true;
                user.permissions.iter_mut().for_each(|permission| permission.granted = true);
                users.set(slot, Some((user.name.clone(), user.password())));
                *place = Some(user);
            }
            continue;
        };
        let nth = rng.index(user.permissions.len());
        let (known, is_gone) = match rng.below(40) {
            0 | 1 => {
                let known = carry_out(&context, number, member, &user.delete()).await;
                (known, known == Known::Done)
            }
            2..8 => {
                user.password += 1;
                let known = carry_out(&context, number, member, &user.change_password()).await;
                if known == Known::Done {
                    users.set(slot, Some((user.name.clone(), user.password())));
                } else {
                    user.password -= 1;
                }
                (known, false)
            }
            8..18 => {
                let known = carry_out(&context, number, member, &user.toggle_role()).await;
                user.has_role ^= known == Known::Done;
                (known, false)
            }
            _ => {
                let Some(permission) = user.permissions.get(nth) else { continue };
                let known = carry_out(&context, number, member, &user.toggle(permission)).await;
                if let Some(permission) = user.permissions.get_mut(nth) {
                    permission.granted ^= known == Known::Done;
                }
                (known, false)
            }
        };
        if is_gone || known == Known::Unknown {
            users.set(slot, None);
            *place = None;
        }
    }
}

/// Creates a user. Returns true only if each of the requests has certainly succeeded.
async fn make(context: &ClientContext, number: u64, user: &User) -> bool {
    for (nth, change) in user.make().iter().enumerate() {
        let member = nth % context.addresses.len().max(1);
        if carry_out(context, number, member, change).await != Known::Done {
            return false;
        }
    }
    true
}
