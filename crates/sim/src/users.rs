//! Users, roles and tokens: an administrator grants and revokes permissions while clients work and send
//! tokens.
//!
//! Each slot has a user with its own role. If the result of a change is unknown, the change may still take
//! effect at any later time. The administrator then gives up that user and creates another one with new
//! names, so that the oracle never has to judge the old user.

use std::collections::BTreeMap;

use api::Rpc;
use api::etcdserverpb as pb;
use api::{authpb, error};
use bytes::Bytes;
use oracle::{Asker, Asking, Grant, GrantChange, Outcome};
use prost::Message as _;

use crate::clients::PATIENCE;
use crate::member::{Caller, Heard};
use crate::network::Host;
use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos};
use crate::world::{Calling, Event, World};

/// Name of the user and of the role that may do everything.
pub(crate) const ROOT: &str = "root";
/// Number of users besides root at any time.
const SLOTS: usize = 3;
/// Largest number of permissions of a user.
const PERMISSIONS_MAX: usize = 4;
/// Time that a call of the administrator may take.
const ADMIN_PATIENCE: Nanos = PATIENCE;

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

/// Auth token: its user, its text, and the time at which the client received it.
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
    /// Change the user's password.
    Password(usize),
    /// Delete the user and create another one.
    Delete(usize),
}

/// The administrator and the state of the users as the administrator knows it.
pub(crate) struct Users {
    rng: Rng,
    pending: Option<(u64, Step, Nanos)>,
    /// True if root exists, and true if root has its role.
    root: [bool; 2],
    /// True if authentication is enabled, as far as the administrator knows.
    pub enabled: bool,
    /// True if authentication may be enabled, so that clients need tokens.
    pub needed: bool,
    /// True once authentication is to be disabled for the rest of the run.
    pub closing: bool,
    /// Users by slot, complete or still being created.
    users: Vec<User>,
    /// Names and passwords of the users that clients use, by slot.
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

    /// Returns name and password of the user of a client or a watcher. Every fourth client uses root, as does
    /// each client whose user is still being created.
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

    /// Gives up the user of this slot and draws another one.
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

impl World {
    /// Makes the administrator's next call.
    pub(crate) fn administrate(&mut self) {
        let Some(users) = &mut self.users else { return };
        let pause = if users.closing { 50 * MILLI } else { 20 * MILLI + users.rng.around(120 * MILLI) };
        self.schedule.after(pause, Event::Administrator);
        let running = self.running();
        let keys = self.profile.keys;
        let now = self.now();
        let Some(users) = &mut self.users else { return };
        if users.pending.is_some() || running.is_empty() {
            return;
        }
        let at = users.rng.pick(&running);
        let Some(step) = users.next(keys) else { return };
        let (rpc, message) = match &step {
            Step::Login => (Rpc::Authenticate, login(ROOT, 0)),
            Step::AddRoot => {
                let (name, password) = (ROOT.to_owned(), password(ROOT, 0));
                let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
                (Rpc::AuthUserAdd, add.encode_to_vec())
            }
            Step::GrantRoot => {
                let grant = pb::AuthUserGrantRoleRequest { user: ROOT.to_owned(), role: ROOT.to_owned() };
                (Rpc::AuthUserGrantRole, grant.encode_to_vec())
            }
            Step::Enable => {
                users.needed = true;
                (Rpc::AuthEnable, Vec::new())
            }
            Step::Disable => (Rpc::AuthDisable, Vec::new()),
            Step::Make(slot) => users.users[*slot].make(),
            Step::Toggle(slot, nth) => {
                let user = &users.users[*slot];
                user.toggle(&user.permissions[*nth])
            }
            Step::Role(slot) => users.users[*slot].toggle_role(),
            Step::Password(slot) => {
                let user = &users.users[*slot];
                let (name, password) = (user.name.clone(), password(&user.name, user.password + 1));
                let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
                (Rpc::AuthUserChangePassword, change.encode_to_vec())
            }
            Step::Delete(slot) => {
                let delete = pb::AuthUserDeleteRequest { name: users.users[*slot].name.clone() };
                (Rpc::AuthUserDelete, delete.encode_to_vec())
            }
        };
        self.next_operation += 1;
        let operation = self.next_operation;
        users.pending = Some((operation, step, now));
        self.place_call(
            Caller::Administrator,
            operation,
            at,
            Calling::Unary(rpc, message.into()),
            ADMIN_PATIENCE,
        );
    }

    /// Handles the response to the administrator's call.
    pub(crate) fn administrator_told(&mut self, operation: u64, heard: Heard) {
        let (now, keys) = (self.now(), self.profile.keys);
        let Some(users) = &mut self.users else { return };
        if users.pending.as_ref().is_none_or(|(open, ..)| *open != operation) {
            return;
        }
        let Some((_, step, call)) = users.pending.take() else { return };
        let (done, message, refused) = match heard {
            Heard::Answer(Ok(message)) => (true, message, None),
            Heard::Answer(Err(status)) => match crate::wire::failed(&status) {
                Outcome::Refused(_) => (false, Bytes::new(), Some(status.message.to_string())),
                _ => (false, Bytes::new(), None),
            },
            Heard::Nobody => (false, Bytes::new(), Some(String::new())),
            _ => (false, Bytes::new(), None),
        };
        let told = format!("administrator: {step:?}: done {done}, refused {refused:?}");
        let mut changes: Vec<(Grant, bool)> = Vec::new();
        let mut gives_up = None;
        if let Some(why) = &refused {
            if wants_login(why) {
                users.root_token = None;
            }
            match &step {
                // An earlier call, whose result was unknown, did succeed.
                Step::AddRoot if why.contains("already exists") => users.root[0] = true,
                Step::Login if why.contains("not enabled") => {
                    (users.enabled, users.needed) = (false, false);
                }
                _ => {}
            }
        } else {
            match step.clone() {
                Step::Login => {
                    if let Ok(answer) = pb::AuthenticateResponse::decode(message)
                        && done
                    {
                        users.root_token =
                            Some(Token { user: ROOT.to_owned(), text: answer.token, since: now });
                    }
                }
                Step::AddRoot => users.root[0] |= done,
                Step::GrantRoot => users.root[1] |= done,
                Step::Enable => {
                    users.enabled |= done;
                    changes.push((Grant::Authentication, true));
                }
                Step::Disable => {
                    if done {
                        (users.enabled, users.needed) = (false, false);
                        (users.root_token, users.tokens) = (None, BTreeMap::new());
                    }
                    changes.push((Grant::Authentication, false));
                }
                Step::Make(slot) => {
                    let user = &mut users.users[slot];
                    match user.made {
                        0 | 1 => {}
                        2 => {
                            user.has_role = true;
                            changes.push((Grant::Role(user.name.clone()), true));
                        }
                        nth => {
                            user.permissions[nth - 3].granted = true;
                            changes.push((user.keys(&user.permissions[nth - 3]), true));
                        }
                    }
                    user.made += 1;
                    if user.is_made() && done {
                        users.current[slot] = Some((user.name.clone(), user.password));
                    }
                    gives_up = (!done).then_some(slot);
                }
                Step::Toggle(slot, nth) => {
                    let user = &mut users.users[slot];
                    let granted = !user.permissions[nth].granted;
                    user.permissions[nth].granted = granted;
                    changes.push((user.keys(&user.permissions[nth]), granted));
                    gives_up = (!done).then_some(slot);
                }
                Step::Role(slot) => {
                    let user = &mut users.users[slot];
                    user.has_role = !user.has_role;
                    changes.push((Grant::Role(user.name.clone()), user.has_role));
                    gives_up = (!done).then_some(slot);
                }
                Step::Password(slot) => {
                    let user = &mut users.users[slot];
                    user.password += 1;
                    changes.push((Grant::Tokens(user.name.clone()), true));
                    users.current[slot] = Some((user.name.clone(), user.password));
                    gives_up = (!done).then_some(slot);
                }
                Step::Delete(slot) => {
                    let name = users.users[slot].name.clone();
                    changes.push((Grant::Role(name.clone()), false));
                    changes.push((Grant::Tokens(name), true));
                    gives_up = Some(slot);
                }
            }
        }
        if let Some(slot) = gives_up {
            users.give_up(slot, keys);
        }
        for (grant, granted) in changes {
            let change = GrantChange { call, returned: now, certain: done, granted, grant };
            self.history.grants.push(change);
        }
        self.trace.event(now, 15, &[operation, u64::from(done)]);
        self.trace.note(now, format_args!("{told}"));
    }

    /// Sends a client's request for a token. Returns false if the client needs none or has one.
    pub(crate) fn client_logs_in(&mut self, number: usize, at: Host) -> bool {
        let Some(users) = &mut self.users else { return false };
        if !users.needed {
            return false;
        }
        if std::mem::take(&mut self.desks[number].needs_no_token) {
            users.tokens.remove(&number);
            return false;
        }
        let (user, password) = users.user_of(number);
        if users.tokens.get(&number).is_some_and(|token| token.user == user) {
            return false;
        }
        users.tokens.remove(&number);
        self.next_operation += 1;
        let operation = self.next_operation;
        self.desks[number].login = Some((operation, user.clone()));
        let calling = Calling::Unary(Rpc::Authenticate, login(&user, password).into());
        self.place_call(Caller::Login(number), operation, at, calling, PATIENCE);
        true
    }

    /// Handles the response to a client's request for a token.
    pub(crate) fn login_told(&mut self, number: usize, operation: u64, heard: Heard) {
        let now = self.now();
        let desk = &mut self.desks[number];
        if desk.login.as_ref().is_none_or(|(open, _)| *open != operation) {
            return;
        }
        let Some((_, user)) = desk.login.take() else { return };
        desk.answered = false;
        if let Heard::Answer(Err(status)) = &heard {
            desk.needs_no_token = *status == error::AUTH_NOT_ENABLED;
        }
        if let (Heard::Answer(Ok(message)), Some(users)) = (&heard, &mut self.users)
            && let Ok(answer) = pb::AuthenticateResponse::decode(message.clone())
        {
            users.tokens.insert(number, Token { user, text: answer.token, since: now });
            desk.answered = true;
        }
        let pause = if desk.answered { MILLI } else { 50 * MILLI };
        self.trace.event(now, 15, &[operation, number as u64]);
        self.schedule.after(pause, Event::ClientNext(number));
    }

    /// Records the user on whose behalf a client's operation was sent.
    pub(crate) fn asks(&mut self, number: usize, operation: u64) {
        if let Some(token) = self.users.as_ref().and_then(|users| users.tokens.get(&number)) {
            let (user, token_at) = (token.user.clone(), token.since);
            self.history.askers.push(Asker { user, token_at, asking: Asking::Operation(operation) });
        }
    }

    /// Handles the refusal of a client's operation for this reason.
    pub(crate) fn client_refused(&mut self, number: usize, why: &str) {
        if let Some(users) = &mut self.users
            && wants_login(why)
        {
            users.tokens.remove(&number);
        }
    }

    /// Returns the token that a call carries.
    pub(crate) fn token_of(&self, caller: Caller) -> Option<String> {
        let users = self.users.as_ref()?;
        match caller {
            Caller::Client(number) => users.tokens.get(&number).map(|token| token.text.clone()),
            Caller::Login(_) => None,
            Caller::Administrator | Caller::Operator | Caller::Extra | Caller::Crowd => {
                users.root_token.as_ref().map(|token| token.text.clone())
            }
        }
    }

    /// Returns the token for a watcher's next stream: the token of any client with the same user. The outer
    /// `None` means that no token is available now.
    pub(crate) fn stream_token(&mut self, number: usize) -> Option<Option<String>> {
        let Some(users) = &mut self.users else { return Some(None) };
        users.streams.remove(&number);
        if !users.needed {
            return Some(None);
        }
        let (user, _) = users.user_of(number);
        let own = users.tokens.values().find(|token| token.user == user);
        let token = own.or(users.root_token.as_ref()).cloned()?;
        let text = token.text.clone();
        users.streams.insert(number, token);
        Some(Some(text))
    }

    /// Records the user on whose behalf a watcher's watches were requested.
    pub(crate) fn watches_asked(&mut self, number: usize, ids: impl Iterator<Item = u64>) {
        if let Some(token) = self.users.as_ref().and_then(|users| users.streams.get(&number)) {
            for id in ids {
                let (user, token_at) = (token.user.clone(), token.since);
                self.history.askers.push(Asker { user, token_at, asking: Asking::Watch(id) });
            }
        }
    }

    /// Starts to disable authentication at the end of the run, so that the state of the members can be read.
    pub(crate) fn close_users(&mut self) {
        if let Some(users) = &mut self.users {
            users.closing = true;
        }
    }

    /// Returns true if no caller needs a token any more.
    pub(crate) fn is_open_to_all(&self) -> bool {
        let open = |place: &crate::member::Place| {
            place.process.as_ref().is_none_or(|process| !process.stepped.published().auth.is_enabled())
        };
        self.users.as_ref().is_none_or(|users| users.closing && !users.needed && users.pending.is_none())
            && self.places.iter().all(open)
    }
}
