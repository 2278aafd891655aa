//! Makes the calls of the simulated administrator, who changes users and roles, and of clients that request
//! tokens.

use std::collections::BTreeMap;

use api::etcdserverpb as pb;
use api::{Rpc, error};
use bytes::Bytes;
use oracle::{Asker, Asking, Grant, GrantChange, Outcome};
use prost::Message as _;

use super::{ROOT, Step, Token, login, password, wants_login};
use crate::clients::PATIENCE;
use crate::member::{Caller, Heard};
use crate::network::Host;
use crate::schedule::{MILLI, Nanos};
use crate::world::{Calling, Event, World};

/// Time that a call of the administrator may take.
const ADMIN_PATIENCE: Nanos = PATIENCE;

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
                // Root exists already, because an earlier call whose result was unknown has succeeded.
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

    /// Sends a client's request for a token. Returns false if the client needs no token or has one already.
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

    /// Handles a refused operation of a client: if the reason says that the token is not valid, the client's
    /// token is forgotten.
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

    /// Returns the token for a watcher's next stream: the token of any client with the same user, or else
    /// root's token. The outer `None` means that no token is available now; the inner one, that no token is
    /// needed.
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

    /// Records the user on whose behalf a watcher has requested these watches.
    pub(crate) fn watches_asked(&mut self, number: usize, ids: impl Iterator<Item = u64>) {
        if let Some(token) = self.users.as_ref().and_then(|users| users.streams.get(&number)) {
            for id in ids {
                let (user, token_at) = (token.user.clone(), token.since);
                self.history.askers.push(Asker { user, token_at, asking: Asking::Watch(id) });
            }
        }
    }

    /// Starts to disable authentication at the end of the run, so that the final state of the members can be
    /// read without a token.
    pub(crate) fn close_users(&mut self) {
        if let Some(users) = &mut self.users {
            users.closing = true;
        }
    }

    /// Returns true if no caller needs a token any more.
    pub(crate) fn is_open_to_all(&self) -> bool {
        let open = |place: &crate::member::Place| {
            // A witness knows no users.
            if Some(place.number) == self.profile.witness() {
                return true;
            }
            place.process.as_ref().is_none_or(|process| !process.stepped.published().auth.is_enabled())
        };
        self.users.as_ref().is_none_or(|users| users.closing && !users.needed && users.pending.is_none())
            && self.places.iter().all(open)
    }
}
