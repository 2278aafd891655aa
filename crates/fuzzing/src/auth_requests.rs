//! Checks authorization against a simple model: changes users, roles and permissions, sends requests of these
//! users for a few keys, and compares the results with those of the model.

use std::collections::{BTreeMap, BTreeSet};

use api::Status;
use api::authpb::{Permission, UserAddOptions, permission};
use api::error;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest, DeleteRangeRequest, InternalAuthenticateRequest, InternalRaftRequest,
    PutRequest, RequestHeader, RequestOp, TxnRequest,
};
use bytes::Bytes;
use machine::auth::{Caller, Gate, ROOT, RightsCache};
use prost::Message as _;

use crate::apply::Twins;
use crate::permission_tree::PermissionTree;
use crate::script::Script;

/// Maximum number of steps that one input performs; the rest of the input is ignored.
const STEPS_MAX: usize = 120;

const USERS: [&str; 5] = [ROOT, "alice", "bob", "nobody", ""];
const ROLES: [&str; 5] = [ROOT, "r", "s", "t", ""];
const KEYS: [&[u8]; 9] = [b"a", b"aa", b"b", b"b\0", b"c", b"\0", b"\xff", b"m", b""];
const ENDS: [&[u8]; 9] = [b"", b"", b"", b"\0", b"b", b"c", b"\xff\xff", b"a", b"aa\0"];
const KINDS: [i32; 4] =
    [permission::Type::Read as i32, permission::Type::Write as i32, permission::Type::Readwrite as i32, 17];
/// Password hash of all users: any base64 text, because computing a `bcrypt` hash would be slow, and no check
/// reads the hash.
const HASH: &str = "aGFzaA==";

/// Permission of a role: kind, key and range end.
type Granted = (i32, &'static [u8], &'static [u8]);

#[derive(Default)]
struct User {
    has_password: bool,
    roles: BTreeSet<&'static str>,
}

/// A simple model of users and roles, with etcd's rules.
#[derive(Default)]
struct Model {
    is_enabled: bool,
    /// Number of changes. The auth revision, which is 1 at first, is increased by each change.
    changes: u64,
    users: BTreeMap<&'static str, User>,
    roles: BTreeMap<&'static str, Vec<Granted>>,
}

/// Returns true if the key is in the range of a permission or request.
fn within(at: &[u8], key: &[u8], end: &[u8]) -> bool {
    match end {
        [] => at == key,
        [0] => at >= key,
        end => at >= key && at < end,
    }
}

fn is_range(key: &[u8], end: &[u8]) -> bool {
    !key.is_empty() && (end.is_empty() || end == [0] || key < end)
}

impl Model {
    fn revision(&self) -> u64 {
        self.changes + 1
    }

    /// Returns true if the permissions cover the requested range. It is enough to check the points in the
    /// range at which a permission or the range begins or ends, because between these points nothing changes.
    fn covers(&self, user: &User, allows: &[i32], key: &[u8], end: &[u8]) -> bool {
        let granted: Vec<&Granted> = user
            .roles
            .iter()
            .filter_map(|role| self.roles.get(role))
            .flatten()
            .filter(|(kind, ..)| allows.contains(kind))
            .collect();
        if !end.is_empty() && end != [0] && key >= end {
            // etcd keeps the permissions in an interval tree. For a range that contains no keys (its end is
            // not above its key), etcd's result depends on the shape of this tree. So build a tree of the
            // same shape, with an implementation that the tested code does not use.
            return PermissionTree::of(granted.iter().map(|(_, key, end)| match *end {
                [] => (key.to_vec(), [key, &[0][..]].concat()),
                [0] => (key.to_vec(), Vec::new()),
                end => (key.to_vec(), end.to_vec()),
            }))
            .covers(key, end);
        }
        let allowed = |at: &[u8]| granted.iter().any(|(_, key, end)| within(at, key, end));
        let behind = |key: &[u8]| [key, &[0]].concat();
        let ends = granted.iter().flat_map(|(_, key, end)| [key.to_vec(), behind(key), end.to_vec()]);
        allowed(key) && ends.filter(|at| within(at, key, end)).all(|at| allowed(&at))
    }

    fn keys(&self, caller: Caller<'_>, allows: &[i32], key: &[u8], end: &[u8]) -> Result<(), Status> {
        if !self.is_enabled {
            return Ok(());
        }
        if caller.revision == 0 {
            return Err(error::USER_EMPTY);
        }
        if caller.revision < self.revision() {
            return Err(error::AUTH_OLD_REVISION);
        }
        match self.users.get(caller.user) {
            Some(user) if user.roles.contains(ROOT) => Ok(()),
            Some(user) if self.covers(user, allows, key, end) => Ok(()),
            _ => Err(error::PERMISSION_DENIED),
        }
    }

    fn read(&self, caller: Caller<'_>, key: &[u8], end: &[u8]) -> Result<(), Status> {
        self.keys(caller, &[KINDS[0], KINDS[2]], key, end)
    }

    fn write(&self, caller: Caller<'_>, key: &[u8], end: &[u8]) -> Result<(), Status> {
        self.keys(caller, &[KINDS[1], KINDS[2]], key, end)
    }

    fn admin(&self, caller: Caller<'_>) -> Result<(), Status> {
        if !self.is_enabled {
            return Ok(());
        }
        match self.users.get(caller.user) {
            _ if caller.user.is_empty() => Err(error::USER_EMPTY),
            None => Err(error::USER_NOT_FOUND),
            Some(user) if user.roles.contains(ROOT) => Ok(()),
            Some(_) => Err(error::PERMISSION_DENIED),
        }
    }

    /// Makes a change in the model. Returns true if the model is different afterwards.
    fn change(&mut self, change: &Change) -> Result<bool, Status> {
        let is_enabled = self.is_enabled;
        let user = |users: &mut BTreeMap<_, User>, name| match users.contains_key(name) {
            true => Ok(()),
            false => Err(error::USER_NOT_FOUND),
        };
        match *change {
            Change::Enable => {
                if is_enabled {
                    return Ok(false);
                }
                let root = self.users.get(ROOT).ok_or(error::ROOT_USER_NOT_EXIST)?;
                if !root.roles.contains(ROOT) {
                    return Err(error::ROOT_ROLE_NOT_EXIST);
                }
                self.is_enabled = true;
                return Ok(false);
            }
            Change::Disable => {
                self.is_enabled = false;
                if !is_enabled {
                    return Ok(false);
                }
            }
            Change::AddUser(name, has_password) => {
                if name.is_empty() {
                    return Err(error::USER_EMPTY);
                }
                if self.users.contains_key(name) {
                    return Err(error::USER_ALREADY_EXIST);
                }
                self.users.insert(name, User { has_password, roles: BTreeSet::new() });
            }
            Change::DeleteUser(name) => {
                if is_enabled && name == ROOT {
                    return Err(error::INVALID_AUTH_MGMT);
                }
                self.users.remove(name).ok_or(error::USER_NOT_FOUND)?;
            }
            Change::Password(name) => user(&mut self.users, name)?,
            Change::GrantRole(name, role) => {
                user(&mut self.users, name)?;
                if role != ROOT && !self.roles.contains_key(role) {
                    return Err(error::ROLE_NOT_FOUND);
                }
                if !self.users.get_mut(name).is_some_and(|user| user.roles.insert(role)) {
                    return Ok(false);
                }
            }
            Change::RevokeRole(name, role) => {
                if is_enabled && name == ROOT && role == ROOT {
                    return Err(error::INVALID_AUTH_MGMT);
                }
                user(&mut self.users, name)?;
                if !self.users.get_mut(name).is_some_and(|user| user.roles.remove(role)) {
                    return Err(error::ROLE_NOT_GRANTED);
                }
            }
            Change::AddRole(role) => {
                if role.is_empty() {
                    return Err(error::ROLE_EMPTY);
                }
                if self.roles.contains_key(role) {
                    return Err(error::ROLE_ALREADY_EXIST);
                }
                self.roles.insert(role, Vec::new());
            }
            Change::DeleteRole(role) => {
                if is_enabled && role == ROOT {
                    return Err(error::INVALID_AUTH_MGMT);
                }
                self.roles.remove(role).ok_or(error::ROLE_NOT_FOUND)?;
                for user in self.users.values_mut() {
                    user.roles.remove(role);
                }
            }
            Change::Grant(role, granted) => {
                if !is_range(granted.1, granted.2) {
                    return Err(error::INVALID_AUTH_MGMT);
                }
                let all = self.roles.get_mut(role).ok_or(error::ROLE_NOT_FOUND)?;
                // As in etcd, replace a permission only if it is the first one with this key and has the same
                // range end. Otherwise add a permission, even if a later one has the same range.
                match all.iter_mut().find(|(_, key, _)| *key == granted.1) {
                    Some(first) if first.2 == granted.2 => first.0 = granted.0,
                    _ => {
                        all.push(granted);
                        all.sort_by_key(|(_, key, _)| *key);
                    }
                }
            }
            Change::Revoke(role, key, end) => {
                let all = self.roles.get_mut(role).ok_or(error::ROLE_NOT_FOUND)?;
                let before = all.len();
                all.retain(|(_, of, to)| (*of, *to) != (key, end));
                if all.len() == before {
                    return Err(error::PERMISSION_NOT_GRANTED);
                }
            }
        }
        self.changes += 1;
        Ok(true)
    }
}

/// Change of users and roles.
#[derive(Clone, Copy, Debug)]
enum Change {
    Enable,
    Disable,
    AddUser(&'static str, bool),
    DeleteUser(&'static str),
    Password(&'static str),
    GrantRole(&'static str, &'static str),
    RevokeRole(&'static str, &'static str),
    AddRole(&'static str),
    DeleteRole(&'static str),
    Grant(&'static str, Granted),
    Revoke(&'static str, &'static [u8], &'static [u8]),
}

impl Change {
    fn read(script: &mut Script<'_>) -> Change {
        let (user, role) = (script.pick(&USERS), script.pick(&ROLES));
        match script.below(14) {
            0 => Change::Enable,
            1 => Change::Disable,
            2 => Change::AddUser(user, script.flip()),
            3 => Change::DeleteUser(user),
            4 => Change::Password(user),
            5 | 6 => Change::GrantRole(user, role),
            7 => Change::RevokeRole(user, role),
            8 => Change::AddRole(role),
            9 => Change::DeleteRole(role),
            10..=12 => Change::Grant(role, (script.pick(&KINDS), script.pick(&KEYS), script.pick(&ENDS))),
            _ => Change::Revoke(role, script.pick(&KEYS), script.pick(&ENDS)),
        }
    }

    fn request(self, header: RequestHeader) -> InternalRaftRequest {
        let mut request = InternalRaftRequest { header: Some(header), ..InternalRaftRequest::default() };
        let own = str::to_owned;
        match self {
            Change::Enable => request.auth_enable = Some(AuthEnableRequest {}),
            Change::Disable => request.auth_disable = Some(AuthDisableRequest {}),
            Change::AddUser(name, has_password) => {
                request.auth_user_add = Some(AuthUserAddRequest {
                    name: own(name),
                    hashed_password: if has_password { own(HASH) } else { String::new() },
                    options: Some(UserAddOptions { no_password: !has_password }),
                    ..AuthUserAddRequest::default()
                });
            }
            Change::DeleteUser(name) => {
                request.auth_user_delete = Some(AuthUserDeleteRequest { name: own(name) });
            }
            Change::Password(name) => {
                request.auth_user_change_password = Some(AuthUserChangePasswordRequest {
                    name: own(name),
                    hashed_password: own(HASH),
                    ..AuthUserChangePasswordRequest::default()
                });
            }
            Change::GrantRole(user, role) => {
                request.auth_user_grant_role =
                    Some(AuthUserGrantRoleRequest { user: own(user), role: own(role) });
            }
            Change::RevokeRole(name, role) => {
                request.auth_user_revoke_role =
                    Some(AuthUserRevokeRoleRequest { name: own(name), role: own(role) });
            }
            Change::AddRole(name) => request.auth_role_add = Some(AuthRoleAddRequest { name: own(name) }),
            Change::DeleteRole(role) => {
                request.auth_role_delete = Some(AuthRoleDeleteRequest { role: own(role) });
            }
            Change::Grant(name, (perm_type, key, range_end)) => {
                let (key, range_end) = (Bytes::from_static(key), Bytes::from_static(range_end));
                request.auth_role_grant_permission = Some(AuthRoleGrantPermissionRequest {
                    name: own(name),
                    perm: Some(Permission { perm_type, key, range_end }),
                });
            }
            Change::Revoke(role, key, range_end) => {
                request.auth_role_revoke_permission = Some(AuthRoleRevokePermissionRequest {
                    role: own(role),
                    key: Bytes::from_static(key),
                    range_end: Bytes::from_static(range_end),
                });
            }
        }
        request
    }
}

/// Generates a caller from the script, mostly with the current auth revision, sometimes with another one or
/// without a token.
fn caller(script: &mut Script<'_>, revision: u64) -> Caller<'static> {
    let user = script.pick(&USERS);
    let revision = match script.below(8) {
        0 => 0,
        1 => revision.saturating_sub(1),
        2 => revision + 1,
        _ => revision,
    };
    Caller { user, revision }
}

fn header(caller: Caller<'_>) -> RequestHeader {
    RequestHeader { id: 1, username: caller.user.to_owned(), auth_revision: caller.revision }
}

/// Compares the results of the gate (Mainstay's authorization checks) with those of the model, for every
/// range of [`KEYS`] and [`ENDS`].
fn ask(twins: &Twins, cache: &mut RightsCache, model: &Model, caller: Caller<'_>) {
    let gate = Gate::new(twins.auth(), caller, cache);
    assert_eq!(gate.admin(), model.admin(caller));
    assert_eq!(gate.is_open(), !model.is_enabled);
    for key in KEYS {
        for end in ENDS {
            assert_eq!(gate.read(key, end), model.read(caller, key, end), "{caller:?} reads {key:?} {end:?}");
            assert_eq!(
                gate.write(key, end),
                model.write(caller, key, end),
                "{caller:?} writes {key:?} {end:?}"
            );
        }
    }
}

/// Generates a write request of a user from the script. Returns the request, and the result that the model
/// expects.
fn write(
    script: &mut Script<'_>,
    model: &Model,
    caller: Caller<'_>,
) -> (InternalRaftRequest, Result<(), Status>) {
    let mut request = InternalRaftRequest { header: Some(header(caller)), ..InternalRaftRequest::default() };
    let mut key = || loop {
        let key = script.pick(&KEYS);
        if !key.is_empty() {
            return key;
        }
        if script.is_done() {
            return b"a";
        }
    };
    let (first, second, third) = (key(), key(), key());
    let (kind, end, prev_kv) = (script.below(4), script.pick(&ENDS), script.flip());
    let put = |key, prev_kv| PutRequest { key: Bytes::from_static(key), prev_kv, ..PutRequest::default() };
    let delete = |key, end| DeleteRangeRequest {
        key: Bytes::from_static(key),
        range_end: Bytes::from_static(end),
        prev_kv,
    };
    let previous = |key, end| if prev_kv { model.read(caller, key, end) } else { Ok(()) };
    let allowed = match kind {
        0 => {
            request.put = Some(put(first, prev_kv));
            model.write(caller, first, b"").and_then(|()| previous(first, b""))
        }
        1 => {
            request.delete_range = Some(delete(first, end));
            model.write(caller, first, end).and_then(|()| previous(first, end))
        }
        _ => {
            let op = |request| RequestOp { request: Some(request) };
            let nested = TxnRequest {
                success: vec![op(Request::RequestPut(put(third, false)))],
                failure: vec![op(Request::RequestDeleteRange(delete(second, b"")))],
                ..TxnRequest::default()
            };
            let range = api::etcdserverpb::RangeRequest {
                key: Bytes::from_static(first),
                range_end: Bytes::from_static(end),
                ..Default::default()
            };
            // The second put is in the branch that is not executed, because permissions must be checked for
            // both branches.
            request.txn = Some(TxnRequest {
                success: vec![op(Request::RequestRange(range)), op(Request::RequestTxn(nested))],
                failure: vec![op(Request::RequestPut(put(second, false)))],
                ..TxnRequest::default()
            });
            model
                .read(caller, first, end)
                .and_then(|()| model.write(caller, second, b""))
                .and_then(|()| model.write(caller, third, b""))
                .and_then(|()| model.write(caller, second, b""))
                .and_then(|()| previous(second, b""))
        }
    };
    (request, allowed)
}

/// Fuzz target: makes the changes and requests of a script, and compares each result with the model.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let (mut twins, mut model) = (Twins::default(), Model::default());
    let mut cache = RightsCache::default();
    for _ in 0..STEPS_MAX {
        if script.is_done() {
            break;
        }
        match script.below(16) {
            0..=7 => {
                let caller = caller(&mut script, model.revision());
                let change = Change::read(&mut script);
                let expected = match model.admin(caller) {
                    // The caller is refused first: every change of users, roles or authentication requires
                    // root, even disabling authentication that is not enabled.
                    Err(refused) => Err(refused),
                    Ok(()) => model.change(&change).map(drop),
                };
                let request = change.request(header(caller));
                assert_eq!(twins.outcome(&Bytes::from(request.encode_to_vec())), expected, "{change:?}");
            }
            8 => {
                let name = script.pick(&USERS).to_owned();
                let expected = match model.users.get(name.as_str()) {
                    _ if !model.is_enabled => Err(error::AUTH_NOT_ENABLED),
                    Some(user) if user.has_password => Ok(()),
                    _ => Err(error::AUTH_FAILED),
                };
                let authenticate =
                    InternalAuthenticateRequest { name, simple_token: "t".to_owned(), ..Default::default() };
                let request = InternalRaftRequest {
                    header: Some(header(Caller::default())),
                    authenticate: Some(authenticate),
                    ..InternalRaftRequest::default()
                };
                assert_eq!(twins.outcome(&Bytes::from(request.encode_to_vec())), expected);
            }
            9..=11 => {
                let caller = caller(&mut script, model.revision());
                let (request, allowed) = write(&mut script, &model, caller);
                let outcome = twins.outcome(&Bytes::from(request.encode_to_vec()));
                match allowed {
                    Err(refused) => assert_eq!(outcome, Err(refused), "{request:?}"),
                    // The request may still be refused because a transaction contains two puts of the same
                    // key.
                    Ok(()) => assert!(
                        outcome.as_ref().err().is_none_or(|why| *why == error::DUPLICATE_KEY),
                        "{request:?}: {outcome:?}"
                    ),
                }
            }
            12 | 13 => {
                let caller = caller(&mut script, model.revision());
                ask(&twins, &mut cache, &model, caller);
            }
            14 => match script.below(3) {
                0 => twins.restart(),
                1 => twins.restore_snapshot(),
                _ => twins.transfer(),
            },
            _ => twins.compact_step(script.u8()),
        }
        let auth = twins.auth();
        assert_eq!((auth.is_enabled(), auth.revision()), (model.is_enabled, model.revision()));
    }
    for user in USERS {
        ask(&twins, &mut cache, &model, Caller { user, revision: model.revision() });
    }
    twins.finish();
}

/// Returns scripts of arbitrary bytes, and the same scripts preceded by steps that enable authentication and
/// grant some permissions.
pub fn seeds() -> Vec<Vec<u8>> {
    let root = [0, 7];
    let change =
        |user: u8, role: u8, kind: u8, more: &[u8]| [&[0], &root[..], &[user, role, kind], more].concat();
    let enabled = [
        change(0, 0, 2, &[1]),
        change(0, 0, 5, &[]),
        change(1, 0, 2, &[1]),
        change(0, 1, 8, &[]),
        change(0, 1, 10, &[2, 0, 4]),
        change(0, 1, 10, &[0, 4, 3]),
        change(1, 1, 5, &[]),
        change(0, 0, 0, &[]),
        vec![12, 1, 7, 8, 1],
    ]
    .concat();
    let mut seeds: Vec<Vec<u8>> = crate::commands::seeds();
    let random: Vec<Vec<u8>> = seeds.iter().map(|random| [&enabled[..], random].concat()).collect();
    seeds.extend(random);
    seeds
}
