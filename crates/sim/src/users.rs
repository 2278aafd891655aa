//! Simulates users, roles and tokens: an administrator grants and revokes permissions while clients send
//! operations with tokens.
//!
//! The number of users is fixed: each of the `SLOTS` slots has one user with its own role. If the result of a
//! change is unknown, the change may still take effect at any later time. The administrator then gives up the
//! user of the slot and creates another one with new names, so that the oracle never has to judge the old
//! user.

mod administration;

use std::collections::BTreeMap;

use api::Rpc;
use api::etcdserverpb as pb;
use api::{authpb, error};
use oracle::Grant;
use prost::Message as _;

use crate::rng::Rng;
use crate::schedule::Nanos;

/// Name of the user and of the role that may do everything.
pub(crate) const ROOT: &str = "root";
/// Number of users besides root at any time.
const SLOTS: usize = 3;
/// Largest number of permissions of a user.
const PERMISSIONS_MAX: usize = 4;
/// A permission of a role.
#[derive(Clone, Debug)]
struct Permission {
    key: Vec<u8>,
    range_end: Vec<u8>,
    kind: authpb::permission::Type,
    granted: bool,
}

/// A user and its role.
#[derive(Clone, Debug)]
struct User {
    name: String,
    password: u64,
    has_role: bool,
    permissions: Vec<Permission>,
    /// Number of creation steps done; the user is complete when all steps are done.
    made: usize,
}

/// Auth token: name of its user, text of the token, and the time at which the client received it.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub user: String,
    text: String,
    pub since: Nanos,
}

/// Call of the administrator.
#[derive(Clone, Debug)]
enum Step {
    /// Request a token for the administrator.
    Login,
    AddRoot,
    GrantRoot,
    Enable,
    Disable,
    /// Do the next step of creating the user of this slot.
    Make(usize),
    /// Grant or revoke one permission of the user of this slot.
    Toggle(usize, usize),
    /// Grant the role to the user of this slot, or revoke it.
    Role(usize),
    /// Change the password of the user of this slot.
    Password(usize),
    /// Delete the user of this slot and create another one.
    Delete(usize),
}

/// The administrator and the state of the users as the administrator knows it.
pub(crate) struct Users {
    rng: Rng,
    pending: Option<(u64, Step, Nanos)>,
    /// Two flags: root exists, and root has its role.
    root: [bool; 2],
    /// True if authentication is enabled, as far as the administrator knows.
    pub enabled: bool,
    /// True if authentication may be enabled, in which case clients need tokens.
    pub needed: bool,
    /// True once authentication is being disabled for the rest of the run.
    pub closing: bool,
    /// Users by slot, complete or still being created.
    users: Vec<User>,
    /// Name and password number of the user with which clients of each slot log in; `None` if the slot has no
    /// complete user.
    current: Vec<Option<(String, u64)>>,
    generations: u64,
    root_token: Option<Token>,
    /// Tokens by client number.
    tokens: BTreeMap<usize, Token>,
    /// Tokens of watch streams by watcher number.
    pub streams: BTreeMap<usize, Token>,
}

impl Users {
    pub(crate) fn new(seed: u64) -> Users {
        Users {
            rng: Rng::stream(seed, "users at work"),
            pending: None,
            root: [false; 2],
            enabled: false,
            needed: false,
            closing: false,
            users: Vec::new(),
            current: vec![None; SLOTS],
            generations: 0,
            root_token: None,
            tokens: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    /// Returns name and password number of the user for a client or a watcher. Every fourth client uses root;
    /// a client whose slot has no complete user uses root as well.
    fn user_of(&self, number: usize) -> (String, u64) {
        let own = number.checked_rem(SLOTS + 1).filter(|slot| *slot < SLOTS);
        own.and_then(|slot| self.current[slot].clone()).unwrap_or((ROOT.to_owned(), 0))
    }

    fn draw_user(&mut self, keys: u64) -> User {
        self.generations += 1;
        let mut permissions: Vec<Permission> = Vec::new();
        for _ in 0..self.rng.between(1, PERMISSIONS_MAX as u64) {
            let key = |number: u64| format!("k{number:03}").into_bytes();
            let from = self.rng.below(keys);
            let (first, range_end) = match self.rng.below(5) {
                0 => (b"k".to_vec(), b"l".to_vec()),
                1 => (Vec::new(), vec![0]),
                2 => (key(from), Vec::new()),
                _ => (key(from), key(from + 1 + self.rng.below(keys))),
            };
            let first = if first.is_empty() { vec![0] } else { first };
            let kind = self.rng.pick(&[
                authpb::permission::Type::Readwrite,
                authpb::permission::Type::Readwrite,
                authpb::permission::Type::Read,
                authpb::permission::Type::Write,
            ]);
            let new = |one: &Permission| one.key != first || one.range_end != range_end;
            if permissions.iter().all(new) {
                permissions.push(Permission { key: first, range_end, kind, granted: false });
            }
        }
        let name = format!("u{}", self.generations);
        User { name, password: 1, has_role: false, permissions, made: 0 }
    }

    /// Returns the administrator's next step.
    fn next(&mut self, keys: u64) -> Option<Step> {
        if self.needed && self.root_token.is_none() {
            return Some(Step::Login);
        }
        if self.closing {
            return (self.enabled || self.needed).then_some(Step::Disable);
        }
        if !self.root[0] {
            return Some(Step::AddRoot);
        }
        if !self.root[1] {
            return Some(Step::GrantRoot);
        }
        while self.users.len() < SLOTS {
            let user = self.draw_user(keys);
            self.users.push(user);
        }
        if let Some(slot) = self.users.iter().position(|user| !user.is_made()) {
            return Some(Step::Make(slot));
        }
        if !self.enabled {
            return Some(Step::Enable);
        }
        let slot = self.rng.place(SLOTS);
        Some(match self.rng.below(40) {
            0 => Step::Disable,
            1..4 => Step::Delete(slot),
            4..8 => Step::Password(slot),
            8..15 => Step::Role(slot),
            _ => Step::Toggle(slot, self.rng.place(self.users[slot].permissions.len())),
        })
    }

    /// Gives up the user of this slot, and draws a new user for the slot.
    fn give_up(&mut self, slot: usize, keys: u64) {
        self.users[slot] = self.draw_user(keys);
        self.current[slot] = None;
    }
}

impl User {
    fn steps(&self) -> usize {
        3 + self.permissions.len()
    }

    fn is_made(&self) -> bool {
        self.made >= self.steps()
    }

    fn role(&self) -> String {
        format!("r{}", self.name)
    }

    fn keys(&self, permission: &Permission) -> Grant {
        use authpb::permission::Type;
        Grant::Keys {
            user: self.name.clone(),
            key: permission.key.clone(),
            range_end: permission.range_end.clone(),
            read: permission.kind != Type::Write,
            write: permission.kind != Type::Read,
        }
    }

    fn toggle(&self, permission: &Permission) -> (Rpc, Vec<u8>) {
        if permission.granted {
            let revoke = pb::AuthRoleRevokePermissionRequest {
                role: self.role(),
                key: permission.key.clone().into(),
                range_end: permission.range_end.clone().into(),
            };
            return (Rpc::AuthRoleRevokePermission, revoke.encode_to_vec());
        }
        let perm = authpb::Permission {
            perm_type: permission.kind as i32,
            key: permission.key.clone().into(),
            range_end: permission.range_end.clone().into(),
        };
        let grant = pb::AuthRoleGrantPermissionRequest { name: self.role(), perm: Some(perm) };
        (Rpc::AuthRoleGrantPermission, grant.encode_to_vec())
    }

    fn toggle_role(&self) -> (Rpc, Vec<u8>) {
        if self.has_role {
            let revoke = pb::AuthUserRevokeRoleRequest { name: self.name.clone(), role: self.role() };
            return (Rpc::AuthUserRevokeRole, revoke.encode_to_vec());
        }
        let grant = pb::AuthUserGrantRoleRequest { user: self.name.clone(), role: self.role() };
        (Rpc::AuthUserGrantRole, grant.encode_to_vec())
    }

    fn make(&self) -> (Rpc, Vec<u8>) {
        match self.made {
            0 => {
                let add = pb::AuthRoleAddRequest { name: self.role() };
                (Rpc::AuthRoleAdd, add.encode_to_vec())
            }
            1 => {
                let (name, password) = (self.name.clone(), password(&self.name, self.password));
                let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
                (Rpc::AuthUserAdd, add.encode_to_vec())
            }
            2 => self.toggle_role(),
            step => self.toggle(&self.permissions[step - 3]),
        }
    }
}

fn password(user: &str, number: u64) -> String {
    format!("{user}'s {number}")
}

fn login(user: &str, number: u64) -> Vec<u8> {
    let (name, password) = (user.to_owned(), password(user, number));
    pb::AuthenticateRequest { name, password }.encode_to_vec()
}

/// Returns true if an error means that the client has to authenticate again.
pub(crate) fn wants_login(why: &str) -> bool {
    [error::INVALID_AUTH_TOKEN, error::AUTH_OLD_REVISION, error::USER_EMPTY, error::USER_NOT_FOUND]
        .iter()
        .any(|status| why.contains(&*status.message))
}
