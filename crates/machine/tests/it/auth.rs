//! Tests of entries that change users and roles, and of the resulting permissions.

use api::Status;
use api::authpb::{Permission, permission};
use api::error;
use api::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest,
    AuthStatusRequest, AuthUserAddRequest, AuthUserGrantRoleRequest, InternalAuthenticateRequest,
    InternalRaftRequest, LeaseRevokeRequest, RequestHeader,
};
use bytes::Bytes;
use mainstay_machine::auth::AuthChange;
use mainstay_machine::{Applied, Change, Command, Machine, Outcome};
use numbers::{Revision, Term};
use prost::Message as _;

use crate::image::{RULES, delete, grant, put, restored, run};
use crate::journal::Journal;

/// A machine with the users root and bob; bob may write [a, c) and read [a, m).
struct World {
    machine: Machine,
    journal: Journal,
}

fn hash() -> String {
    "aGFzaA==".to_owned()
}

fn allow(kind: permission::Type, key: &'static str, end: &'static str) -> InternalRaftRequest {
    let perm = Some(Permission { perm_type: kind as i32, key: key.into(), range_end: end.into() });
    let grant = AuthRoleGrantPermissionRequest { name: "r".to_owned(), perm };
    InternalRaftRequest { auth_role_grant_permission: Some(grant), ..InternalRaftRequest::default() }
}

impl World {
    fn new() -> World {
        let mut world = World { machine: Machine::new(RULES), journal: Journal::default() };
        let user = |name: &str| InternalRaftRequest {
            auth_user_add: Some(AuthUserAddRequest {
                name: name.to_owned(),
                hashed_password: hash(),
                ..AuthUserAddRequest::default()
            }),
            ..InternalRaftRequest::default()
        };
        let role = |user: &str, role: &str| InternalRaftRequest {
            auth_user_grant_role: Some(AuthUserGrantRoleRequest {
                user: user.to_owned(),
                role: role.to_owned(),
            }),
            ..InternalRaftRequest::default()
        };
        let add_role = InternalRaftRequest {
            auth_role_add: Some(AuthRoleAddRequest { name: "r".to_owned() }),
            ..InternalRaftRequest::default()
        };
        let enable =
            InternalRaftRequest { auth_enable: Some(AuthEnableRequest {}), ..InternalRaftRequest::default() };
        for request in [
            user("root"),
            role("root", "root"),
            user("bob"),
            add_role,
            allow(permission::Type::Read, "a", "m"),
            allow(permission::Type::Write, "a", "c"),
            role("bob", "r"),
            enable,
        ] {
            assert_eq!(world.ask("", request).outcome, Ok(Outcome::Done));
        }
        world
    }

    /// Applies a request of this user with the current auth revision.
    fn ask(&mut self, user: &str, request: InternalRaftRequest) -> Applied {
        let revision = if user.is_empty() { 0 } else { self.machine.auth.revision() };
        self.ask_as_of(user, revision, request)
    }

    fn ask_as_of(&mut self, user: &str, auth_revision: u64, mut request: InternalRaftRequest) -> Applied {
        request.header = Some(RequestHeader { id: 7, username: user.to_owned(), auth_revision });
        let data = Bytes::from(request.encode_to_vec());
        let location = self.journal.append(&data);
        let (index, term) = (self.machine.applied_index.next(), Term(1));
        let command = Command { index, term, data: &data, location };
        // The entry is applied in slices, as the core does.
        let mut left = 2;
        match self.machine.begin(command, &self.journal, &mut left, |_| true).unwrap() {
            Some(applied) => applied,
            None => loop {
                let progress = self.machine.go_on(&self.journal, &mut 2).unwrap();
                if let mainstay_machine::Progress::Whole(applied) = progress {
                    return *applied;
                }
            },
        }
    }

    fn refused(&mut self, user: &str, request: InternalRaftRequest) -> Status {
        let revision = self.machine.store.current_revision();
        let refused = self.ask(user, request).outcome.expect_err("it is refused");
        assert_eq!(self.machine.store.current_revision(), revision, "and nothing has changed");
        refused
    }
}

#[test]
fn entries_are_allowed_what_their_user_is() {
    let mut world = World::new();
    assert_eq!(world.refused("", put("a", "v", 0)), error::USER_EMPTY);
    assert_eq!(world.refused("eve", put("a", "v", 0)), error::PERMISSION_DENIED);
    assert_eq!(world.refused("bob", put("c", "v", 0)), error::PERMISSION_DENIED);
    assert!(world.ask("bob", put("b", "v", 0)).outcome.is_ok());
    assert!(world.ask("root", put("z", "v", 0)).outcome.is_ok());
    assert_eq!(world.refused("bob", delete("z")), error::PERMISSION_DENIED);
}

#[test]
fn a_long_entry_that_is_not_allowed_is_not_begun() {
    let mut world = World::new();
    for number in 0..20 {
        assert!(world.ask("root", put(&format!("b{number}"), "v", 0)).outcome.is_ok());
    }
    let mut all = delete("b");
    if let Some(delete) = &mut all.delete_range {
        delete.range_end = "z".into();
    }
    assert_eq!(world.refused("bob", all.clone()), error::PERMISSION_DENIED);
    assert!(!world.machine.has_unfinished());
    assert!(world.ask("root", all).outcome.is_ok());
    assert_eq!(world.machine.store.snapshot().live_keys(), 0);
}

#[test]
fn a_permission_that_was_taken_away_is_gone_for_what_was_proposed_before() {
    let mut world = World::new();
    let before = world.machine.auth.revision();
    let revoked =
        AuthRoleRevokePermissionRequest { role: "r".to_owned(), key: "a".into(), range_end: "c".into() };
    let revoke =
        InternalRaftRequest { auth_role_revoke_permission: Some(revoked), ..InternalRaftRequest::default() };
    assert_eq!(world.refused("bob", revoke.clone()), error::PERMISSION_DENIED);
    assert_eq!(world.ask("root", revoke).change, Some(Change::Auth(Box::new(AuthChange::Changed))));
    let late = world.ask_as_of("bob", before, put("b", "v", 0));
    assert_eq!(late.outcome, Err(error::AUTH_OLD_REVISION));
    assert_eq!(world.refused("bob", put("b", "v", 0)), error::PERMISSION_DENIED);
}

#[test]
fn a_lease_with_keys_of_others_is_not_revoked_nor_tied_to_more() {
    let mut world = World::new();
    assert!(world.ask("bob", grant(5, 60)).outcome.is_ok());
    assert!(world.ask("bob", put("a", "v", 5)).outcome.is_ok());
    assert!(world.ask("root", put("z", "v", 5)).outcome.is_ok());
    let revoke = InternalRaftRequest {
        lease_revoke: Some(LeaseRevokeRequest { id: 5 }),
        ..InternalRaftRequest::default()
    };
    assert_eq!(world.refused("bob", put("b", "v", 5)), error::PERMISSION_DENIED);
    assert_eq!(world.refused("bob", revoke.clone()), error::PERMISSION_DENIED);
    assert!(world.ask("root", revoke).outcome.is_ok());
}

#[test]
fn an_authentication_changes_no_state_and_is_told() {
    let mut world = World::new();
    let (hash, auth) = (world.machine.state_hash(), world.machine.auth.clone());
    let who = |name: &str| InternalRaftRequest {
        authenticate: Some(InternalAuthenticateRequest {
            name: name.to_owned(),
            simple_token: "abc".to_owned(),
            ..InternalAuthenticateRequest::default()
        }),
        ..InternalRaftRequest::default()
    };
    let applied = world.ask("", who("bob"));
    let index = world.machine.applied_index;
    assert_eq!(applied.outcome, Ok(Outcome::Authenticated { index }));
    let told = AuthChange::Authenticated { user: "bob".into(), token_prefix: "abc".into(), index };
    assert_eq!(applied.change, Some(Change::Auth(Box::new(told))));
    assert_eq!(world.ask("", who("eve")).outcome, Err(error::AUTH_FAILED));
    assert_eq!((world.machine.state_hash(), &world.machine.auth), (hash, &auth));
}

#[test]
fn questions_in_the_log_change_nothing() {
    let mut world = World::new();
    let hash = world.machine.state_hash();
    let status =
        InternalRaftRequest { auth_status: Some(AuthStatusRequest {}), ..InternalRaftRequest::default() };
    assert_eq!(world.ask("", status).outcome, Ok(Outcome::Done));
    assert_eq!(world.machine.state_hash(), hash);
}

#[test]
fn users_come_back_from_a_checkpoint() {
    let mut world = World::new();
    let base = run(&mut world.machine, Revision(0));
    let restored = restored(&[base]).expect("a sound checkpoint");
    assert_eq!(restored.auth, world.machine.auth);
    assert!(restored.auth.is_enabled());
}
