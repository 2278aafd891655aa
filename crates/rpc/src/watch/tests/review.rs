//! Watches whose users lose their permissions, while users and roles change all the time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use api::Status;
use api::authpb::{Permission, Role, User, permission};
use machine::auth::{Auth, Caller, Gate, RightsCache};
use numbers::Revision;

use super::world::{Client, World, settle, watch};
use super::{HOUR, MANY, keys_of};
use crate::watch::Permit;

/// Cache and counter that all users of a test share.
#[derive(Default)]
struct Asked {
    rights: RefCell<RightsCache>,
    questions: Cell<usize>,
}

struct Named(String, Rc<Asked>);

impl Permit for Named {
    fn allows(&self, _: &[u8], _: &[u8]) -> Result<(), Status> {
        Ok(())
    }

    fn begins(&self, _: Revision, _: Revision) -> Result<(), Status> {
        Ok(())
    }

    fn still_allows(
        &self,
        auth: &Auth,
        key: &[u8],
        range_end: &[u8],
        joined: &mut usize,
    ) -> Result<(), Status> {
        self.1.questions.set(self.1.questions.get() + 1);
        let mut rights = self.1.rights.borrow_mut();
        let before = rights.joined();
        let caller = Caller { user: &self.0, revision: auth.revision() };
        let gate = Gate::new(auth, caller, &mut rights);
        *joined += rights.joined() - before;
        gate.read(key, range_end)
    }
}

/// Returns users `u0`, `u1`, …, each with its own role of `permissions` permissions, the first of which is
/// for the key `k`. Users from `without` on have no permissions.
fn auth(revision: u64, users: usize, permissions: usize, without: usize) -> Auth {
    let user = |n| User { name: format!("u{n}").into(), roles: vec![format!("r{n}")], ..User::default() };
    let may_read = |n: usize| Permission {
        perm_type: permission::Type::Read as i32,
        key: if n == 0 { "k".into() } else { format!("other{n}").into() },
        range_end: Default::default(),
    };
    let role = |n| Role {
        name: format!("r{n}").into(),
        key_permission: (0..if n < without { permissions } else { 0 }).map(may_read).collect(),
    };
    Auth::of(true, revision, (0..users).map(user), (0..users).map(role))
}

fn clients(world: &World, asked: &Rc<Asked>, users: usize, watches: usize) -> Vec<Client> {
    let client = |n: usize| {
        let client = world.client_permitted(MANY, false, Box::new(Named(format!("u{n}"), Rc::clone(asked))));
        (0..watches).for_each(|_| client.create(watch("k", "")));
        client
    };
    let mut clients: Vec<Client> = (0..users).map(client).collect();
    settle(&mut clients);
    clients.iter().for_each(|client| drop(client.received()));
    clients
}

/// Lets the streams send their queued responses. They read no history meanwhile, because that waits for the
/// review.
fn step(clients: &mut [Client]) {
    clients.iter_mut().for_each(|client| while client.step() {});
}

#[test]
fn events_go_on_though_users_change_faster_than_all_watches_are_asked_for() {
    let (users, watches) = (4, 600);
    let mut world = World::new(1_572_864, HOUR);
    let asked = Rc::default();
    let mut clients = clients(&world, &asked, users, watches);
    let (mut heard, mut newest_of_last) = (vec![0; users], 0);
    let (turns, revoked_at) = (60, 20);
    let mut revoked = 0;
    let hear = |clients: &[Client], heard: &mut Vec<usize>, newest_of_last: &mut i64| {
        for (n, client) in clients.iter().enumerate() {
            let received = client.received();
            heard[n] += keys_of(&received).count();
            if n == users - 1 {
                let events = received.iter().flat_map(|response| &response.events);
                let revisions = events.filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision);
                *newest_of_last = revisions.max().unwrap_or(0).max(*newest_of_last);
            }
        }
    };
    for turn in 0..turns {
        // The last user loses its permission at this turn.
        let without = if turn < revoked_at { users } else { users - 1 };
        world.auth = auth(10 + turn, users, 1, without);
        world.put("k", 1);
        if turn == revoked_at {
            revoked = world.store.current_revision().0;
        }
        world.publish();
        world.work();
        step(&mut clients);
        hear(&clients, &mut heard, &mut newest_of_last);
    }
    // A round takes three turns. Delivering the changes that it allows takes some more turns.
    let turns = turns as usize;
    assert!(heard[0] >= watches * (turns - 20), "{heard:?}");
    while world.work() {
        step(&mut clients);
    }
    settle(&mut clients);
    hear(&clients, &mut heard, &mut newest_of_last);
    assert_eq!(heard[..users - 1], vec![watches * turns; users - 1], "in the end all is told");
    assert!(newest_of_last > 0 && newest_of_last < revoked, "{newest_of_last} was told, {revoked} revoked");
}

#[test]
fn a_turn_joins_a_bounded_number_of_permissions() {
    let (users, permissions) = (100, 400);
    let mut world = World::new(1_572_864, HOUR);
    let asked: Rc<Asked> = Rc::default();
    let mut clients = clients(&world, &asked, users, 1);
    world.auth = auth(10, users, permissions, users - 1);
    world.put("k", 1);
    world.publish();
    let mut turns = 0;
    loop {
        let (joined, questions) = (asked.rights.borrow().joined(), asked.questions.get());
        let more = world.work();
        turns += 1;
        let joined = asked.rights.borrow().joined() - joined;
        // The last check of a turn may exceed the limit.
        assert!(joined <= 1024 + permissions + 1, "{joined} permissions in a turn");
        assert!(asked.questions.get() - questions <= 1024);
        if !more {
            break;
        }
    }
    assert!(turns >= users * permissions / 2048, "{turns} turns");
    step(&mut clients);
    let told = clients.iter().filter(|client| keys_of(&client.received()).count() == 1).count();
    assert_eq!(told, users - 1, "the last may not read it");
}

#[test]
fn a_review_that_is_over_holds_no_state() {
    let mut world = World::new(1_572_864, HOUR);
    world.auth = auth(10, 1, 1, 1);
    world.put("k", 1);
    world.publish();
    let reviewed = Arc::downgrade(&world.shared.state.load_full());
    while world.work() {}
    // No client watches, so the hub has no turn.
    world.put("k", 1);
    world.publish();
    assert!(reviewed.upgrade().is_none(), "what it holds cannot be removed by a compaction");
}

#[test]
fn a_stream_that_has_no_watch_yet_is_no_obstacle() {
    let mut world = World::new(1_572_864, HOUR);
    let asked = Rc::default();
    let mut clients = clients(&world, &asked, 1, 1);
    // The newest of all streams has no watch.
    clients.push(world.client_permitted(MANY, false, Box::new(Named("u0".to_owned(), asked))));
    settle(&mut clients);
    world.auth = auth(10, 1, 1, 1);
    world.put("k", 1);
    world.publish();
    while world.work() {}
    settle(&mut clients);
    assert_eq!(keys_of(&clients[0].received()).count(), 1);
}

/// A shard without watches does not notice changes of users and roles. A kube-apiserver that starts right
/// after authentication was enabled opens the first watches of such a shard.
#[test]
fn the_first_watch_of_a_shard_may_come_after_users_have_changed() {
    let mut world = World::new(1_572_864, HOUR);
    let asked: Rc<Asked> = Rc::default();
    world.auth = auth(10, 1, 1, 1);
    world.put("k", 1);
    world.publish();
    let mut clients = clients(&world, &asked, 1, 1);
    world.put("k", 1);
    world.publish();
    while world.work() {
        step(&mut clients);
    }
    step(&mut clients);
    assert_eq!(keys_of(&clients[0].received()).count(), 1);
}
