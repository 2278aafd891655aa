//! Locks and elections whose callers wait, leave, lose their leases or lose their leader.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use api::etcdserverpb::{
    AuthRoleGrantPermissionRequest, AuthRoleGrantPermissionResponse, AuthRoleRevokePermissionRequest,
    AuthRoleRevokePermissionResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, RangeRequest, RangeResponse,
};
use api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use api::{Code, Rpc, Status, authpb::Permission};
use front::{First, race};
use prost::Message;
use tokio::sync::oneshot;

use super::sliced::with_bob;
use super::world::World;

/// A call that may take long. Dropping it simulates a client that leaves.
struct Asked<A> {
    answer: Rc<RefCell<Option<Result<A, Status>>>>,
    _client: oneshot::Sender<()>,
}

impl<A: Message + Default + 'static> Asked<A> {
    fn at(world: &World, at: usize, rpc: Rpc, request: &impl Message) -> Asked<A> {
        let answer = Rc::default();
        let (client, left) = oneshot::channel();
        let asked = Asked { answer: Rc::clone(&answer), _client: client };
        let call = world.member(at).call(rpc, request.encode_to_vec().into());
        world.member(at).spawn(async move {
            if let First::Left(answered) = race(call, left).await {
                *answer.borrow_mut() = Some(answered.map(|bytes| A::decode(bytes).expect("decodes")));
            }
        });
        asked
    }

    fn is_answered(&self) -> bool {
        self.answer.borrow().is_some()
    }

    fn wait(self, world: &mut World) -> Result<A, Status> {
        world.until("it is answered", |_| self.is_answered());
        self.answer.take().expect("is answered")
    }
}

fn lock(world: &World, at: usize, lease: i64) -> Asked<LockResponse> {
    Asked::at(world, at, Rpc::Lock, &LockRequest { name: "door".into(), lease })
}

fn campaign(world: &World, at: usize, lease: i64, value: &str) -> Asked<CampaignResponse> {
    let request = CampaignRequest { name: "seat".into(), lease, value: value.to_owned().into() };
    Asked::at(world, at, Rpc::ElectionCampaign, &request)
}

fn unlock(world: &mut World, at: usize, key: &str) {
    let request = UnlockRequest { key: key.to_owned().into() };
    let _: UnlockResponse = world.call(at, Rpc::LockUnlock, &request).expect("is unlocked");
}

fn grant(world: &mut World, leases: &[i64], ttl: i64) {
    for id in leases {
        let request = LeaseGrantRequest { ttl, id: *id };
        let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &request).expect("is granted");
    }
}

/// Returns the keys below a name, as the member of this place sees them.
fn keys(world: &mut World, at: usize, name: &str) -> Vec<String> {
    let request = RangeRequest {
        key: format!("{name}/").into(),
        range_end: format!("{name}0").into(),
        ..RangeRequest::default()
    };
    let found: RangeResponse = world.call(at, Rpc::KvRange, &request).expect("answers");
    found.kvs.into_iter().map(|kv| String::from_utf8(kv.key.to_vec()).expect("is text")).collect()
}

fn until_keys(world: &mut World, at: usize, name: &str, expected: &[&str]) {
    for _ in 0..1000 {
        if keys(world, at, name) == expected {
            return;
        }
        if !world.work().expect("all go on") {
            world.wait();
        }
    }
    assert_eq!(keys(world, at, name), expected);
}

#[test]
fn a_lock_is_handed_on_in_order() {
    let mut world = World::started(1, 1, &[]);
    grant(&mut world, &[10, 11, 12], 600);
    let first = lock(&world, 0, 10).wait(&mut world).expect("is free");
    assert_eq!(first.key, "door/a");
    let again = lock(&world, 0, 10).wait(&mut world).expect("is its own");
    assert_eq!(again, first, "the same lease has it already");
    let [second, third] = [11, 12].map(|lease| {
        let waiting = lock(&world, 0, lease);
        until_keys(&mut world, 0, "door", &["door/a", "door/b", "door/c"][..lease as usize - 9]);
        waiting
    });
    assert!(!second.is_answered() && !third.is_answered());
    unlock(&mut world, 0, "door/a");
    let second = second.wait(&mut world).expect("is its turn");
    assert_eq!(second.key, "door/b");
    let revision = |header: Option<api::etcdserverpb::ResponseHeader>| header.expect("has one").revision;
    assert!(revision(second.header) > revision(first.header));
    assert!(!third.is_answered());
    unlock(&mut world, 0, "door/b");
    assert_eq!(third.wait(&mut world).expect("is its turn").key, "door/c");
    unlock(&mut world, 0, "door/c");
    assert_eq!(keys(&mut world, 0, "door"), [""; 0]);
}

#[test]
fn a_client_that_leaves_gives_its_place_up() {
    let mut world = World::started(1, 2, &[]);
    grant(&mut world, &[1, 2, 3], 600);
    lock(&world, 0, 1).wait(&mut world).expect("is free");
    let second = lock(&world, 0, 2);
    until_keys(&mut world, 0, "door", &["door/1", "door/2"]);
    let third = lock(&world, 0, 3);
    until_keys(&mut world, 0, "door", &["door/1", "door/2", "door/3"]);
    drop(second);
    until_keys(&mut world, 0, "door", &["door/1", "door/3"]);
    assert!(!third.is_answered(), "the first still has it");
    unlock(&mut world, 0, "door/1");
    third.wait(&mut world).expect("is its turn");
    // A client that already has the lock keeps it when its call is dropped.
    assert_eq!(keys(&mut world, 0, "door"), ["door/3"]);

    campaign(&world, 0, 1, "one").wait(&mut world).expect("is the first");
    let second = campaign(&world, 0, 2, "two");
    until_keys(&mut world, 0, "seat", &["seat/1", "seat/2"]);
    drop(second);
    until_keys(&mut world, 0, "seat", &["seat/1"]);
}

#[test]
fn a_lock_ends_with_its_lease() {
    let mut world = World::started(1, 3, &[]);
    grant(&mut world, &[1, 2, 3], 600);
    grant(&mut world, &[4], 5);
    lock(&world, 0, 4).wait(&mut world).expect("is free");
    let second = lock(&world, 0, 2);
    until_keys(&mut world, 0, "door", &["door/2", "door/4"]);
    let third = lock(&world, 0, 3);
    until_keys(&mut world, 0, "door", &["door/2", "door/3", "door/4"]);
    // The lease of a waiting call is revoked. The call gets an error when it would be its turn.
    let revoke = LeaseRevokeRequest { id: 2 };
    let _: LeaseRevokeResponse = world.call(0, Rpc::LeaseRevoke, &revoke).expect("is revoked");
    assert!(!second.is_answered() && !third.is_answered());
    // The lease of the lock's holder expires.
    third.wait(&mut world).expect("is its turn");
    let lost = second.wait(&mut world).expect_err("it has no key");
    assert_eq!((lost.code, &*lost.message), (Code::Unknown, "mutex: session is expired"));
    let unknown = lock(&world, 0, 9).wait(&mut world).expect_err("there is no such lease");
    assert_eq!((unknown.code, &*unknown.message), (Code::Unknown, "etcdserver: requested lease not found"));
    let negative = lock(&world, 0, -1).wait(&mut world).expect_err("there is no such lease");
    assert_eq!(&*negative.message, "etcdserver: requested lease not found");
}

#[test]
fn a_lock_without_a_lease_gets_one_that_nobody_renews() {
    let mut world = World::started(1, 4, &[]);
    let locked = lock(&world, 0, 0).wait(&mut world).expect("is free");
    let leases: LeaseLeasesResponse =
        world.call(0, Rpc::LeaseLeases, &LeaseLeasesRequest {}).expect("are listed");
    let [lease] = &leases.leases[..] else { panic!("{leases:?}") };
    assert_eq!(locked.key, format!("door/{:x}", lease.id));
    let request = LeaseTimeToLiveRequest { id: lease.id, keys: true };
    let lives: LeaseTimeToLiveResponse = world.call(0, Rpc::LeaseTimeToLive, &request).expect("lives");
    assert_eq!((lives.granted_ttl, lives.keys), (60, vec![locked.key]));
    world.until("it has expired", |world| world.member(0).probe().leases == 0);
    assert_eq!(keys(&mut world, 0, "door"), [""; 0]);
}

#[test]
fn a_lock_outlives_its_leader() {
    let mut world = World::started(3, 5, &[]);
    world.lead(0);
    grant(&mut world, &[1, 2, 3], 600);
    lock(&world, 1, 1).wait(&mut world).expect("is free");
    let second = lock(&world, 1, 2);
    until_keys(&mut world, 1, "door", &["door/1", "door/2"]);
    let third = lock(&world, 2, 3);
    until_keys(&mut world, 2, "door", &["door/1", "door/2", "door/3"]);
    world.kill(0);
    world.until("another leads", |world| world.leader().is_some_and(|leader| leader != 0));
    assert!(!second.is_answered() && !third.is_answered(), "they wait on");
    unlock(&mut world, 2, "door/1");
    second.wait(&mut world).expect("is its turn");
    assert!(!third.is_answered());
    // The member that serves the second call is lost; the client retries at another member, with the same lease.
    world.start(0).expect("starts again");
    world.until("it knows a leader", |world| world.member(0).published().leader != 0);
    world.kill(1);
    let second = lock(&world, 0, 2).wait(&mut world).expect("is still its own");
    assert_eq!(second.key, "door/2");
    unlock(&mut world, 0, "door/2");
    assert_eq!(third.wait(&mut world).expect("is its turn").key, "door/3");
}

#[test]
fn a_leader_proclaims_and_resigns() {
    let mut world = World::started(1, 6, &[]);
    grant(&mut world, &[1, 2], 600);
    let name = LeaderRequest { name: "seat".into() };
    let none: Status = world.call::<_, LeaderResponse>(0, Rpc::ElectionLeader, &name).expect_err("nobody");
    assert_eq!((none.code, &*none.message), (Code::Unknown, "election: no leader"));
    let won = campaign(&world, 0, 1, "one").wait(&mut world).expect("is the first");
    let leader = won.leader.expect("has one");
    let rev = won.header.expect("has one").revision;
    assert_eq!(leader, LeaderKey { name: "seat".into(), key: "seat/1".into(), rev, lease: 1 });
    let again = campaign(&world, 0, 1, "uno").wait(&mut world).expect("leads already");
    assert_eq!(again.leader, Some(leader.clone()));
    let led: LeaderResponse = world.call(0, Rpc::ElectionLeader, &name).expect("there is one");
    assert_eq!(led.kv.expect("has one").value, "uno");
    let second = campaign(&world, 0, 2, "two");
    until_keys(&mut world, 0, "seat", &["seat/1", "seat/2"]);

    let proclaim =
        |rev| ProclaimRequest { leader: Some(LeaderKey { rev, ..leader.clone() }), value: "x".into() };
    let refused = world
        .call::<_, ProclaimResponse>(0, Rpc::ElectionProclaim, &proclaim(rev - 1))
        .expect_err("was made at another revision");
    assert_eq!((refused.code, &*refused.message), (Code::Unknown, "election: not leader"));
    let _: ProclaimResponse = world.call(0, Rpc::ElectionProclaim, &proclaim(rev)).expect("leads");
    let resign = |rev| ResignRequest { leader: Some(LeaderKey { rev, ..leader.clone() }) };
    let _: ResignResponse = world.call(0, Rpc::ElectionResign, &resign(rev - 1)).expect("is not said");
    assert!(!second.is_answered());
    let _: ResignResponse = world.call(0, Rpc::ElectionResign, &resign(rev)).expect("resigns");
    let won = second.wait(&mut world).expect("is its turn").leader.expect("has one");
    let led: LeaderResponse = world.call(0, Rpc::ElectionLeader, &name).expect("there is one");
    let kv = led.kv.expect("has one");
    assert_eq!((&kv.value[..], kv.create_revision), (&b"two"[..], won.rev));
    for rpc in [Rpc::ElectionProclaim, Rpc::ElectionResign] {
        let missing = world.call::<_, ResignResponse>(0, rpc, &ResignRequest { leader: None });
        let missing = missing.expect_err("needs a leader");
        assert_eq!((missing.code, &*missing.message), (Code::Unknown, r#""leader" field must be provided"#));
    }
}

#[test]
fn each_step_of_a_lock_is_made_by_its_client() {
    let mut world = World::started(1, 7, &[]);
    grant(&mut world, &[1, 2], 600);
    let (bob, root) = with_bob(&mut world);
    let refused = lock(&world, 0, 1).wait(&mut world).expect_err("nobody may");
    assert_eq!((refused.code, &*refused.message), (Code::Unknown, "etcdserver: user name is empty"));
    world.member(0).present(Some(&bob));
    let refused = lock(&world, 0, 1).wait(&mut world).expect_err("bob may not");
    assert_eq!((refused.code, &*refused.message), (Code::Unknown, "etcdserver: permission denied"));
    world.member(0).present(Some(&root));
    assert_eq!(keys(&mut world, 0, "door"), [""; 0], "no key was made");
    lock(&world, 0, 1).wait(&mut world).expect("root may");

    // Permission changes while bob waits do not end his call, as long as they still allow it.
    let perm = Permission { perm_type: 2, key: "door/".into(), range_end: "door0".into() };
    let allow = AuthRoleGrantPermissionRequest { name: "bob".into(), perm: Some(perm) };
    let _: AuthRoleGrantPermissionResponse =
        world.call(0, Rpc::AuthRoleGrantPermission, &allow).expect("is granted");
    world.member(0).present(Some(&bob));
    let waiting = lock(&world, 0, 2);
    until_keys(&mut world, 0, "door", &["door/1", "door/2"]);
    world.member(0).present(Some(&root));
    let perm = Permission { perm_type: 2, key: "other".into(), range_end: "".into() };
    let allow = AuthRoleGrantPermissionRequest { name: "bob".into(), perm: Some(perm) };
    let _: AuthRoleGrantPermissionResponse =
        world.call(0, Rpc::AuthRoleGrantPermission, &allow).expect("is granted");
    unlock(&mut world, 0, "door/1");
    waiting.wait(&mut world).expect("is his turn");
    unlock(&mut world, 0, "door/2");

    // Bob's client disconnects. His key is deleted, although its deletion needs his permission.
    lock(&world, 0, 1).wait(&mut world).expect("root may");
    world.member(0).present(Some(&bob));
    let waiting = lock(&world, 0, 2);
    until_keys(&mut world, 0, "door", &["door/1", "door/2"]);
    drop(waiting);
    until_keys(&mut world, 0, "door", &["door/1"]);

    // Without permission, the call does not wait.
    let waiting = lock(&world, 0, 2);
    until_keys(&mut world, 0, "door", &["door/1", "door/2"]);
    world.member(0).present(Some(&root));
    let revoke = AuthRoleRevokePermissionRequest {
        role: "bob".into(),
        key: "door/".into(),
        range_end: "door0".into(),
    };
    let _: AuthRoleRevokePermissionResponse =
        world.call(0, Rpc::AuthRoleRevokePermission, &revoke).expect("is revoked");
    let refused = waiting.wait(&mut world).expect_err("he may not any more");
    assert_eq!((refused.code, &*refused.message), (Code::Unknown, "etcdserver: permission denied"));
}

#[test]
fn a_key_that_goes_wakes_only_the_one_behind_it() {
    const WAITING: i64 = 40;
    let mut world = World::started(1, 8, &[]);
    let leases: Vec<i64> = (1..=WAITING + 1).collect();
    grant(&mut world, &leases, 6000);
    lock(&world, 0, 1).wait(&mut world).expect("is free");
    let mut line = VecDeque::new();
    for lease in 2..=WAITING + 1 {
        line.push_back((lease, lock(&world, 0, lease)));
        world.until("it waits", |world| watches(world) == lease - 1);
    }
    let ranges = |world: &World| world.member(0).watches_and_ranges().1;
    for held in 1..=4 {
        let before = ranges(&world);
        unlock(&mut world, 0, &format!("door/{held:x}"));
        let (lease, next) = line.pop_front().expect("waits");
        assert_eq!(
            (lease, next.wait(&mut world).expect("is its turn").key),
            (held + 1, format!("door/{lease:x}").into())
        );
        assert!(ranges(&world) - before <= 3, "only one looked whose turn it is");
        assert!(line.iter().all(|(_, other)| !other.is_answered()));
        assert_eq!(watches(&world), line.len() as i64, "each waits for one key");
    }
    drop(line);
    world.until("nobody watches", |world| watches(world) == 0);
    until_keys(&mut world, 0, "door", &["door/5"]);
}

fn watches(world: &World) -> i64 {
    world.member(0).watches_and_ranges().0
}

/// Puts so many unrelated keys below a name that a check of the waiting line takes several turns.
fn lengthen(world: &mut World, name: &str) {
    for i in 0..300 {
        world.put(0, &format!("{name}/z{i}"), b"").expect("is put");
    }
}

fn has_key(world: &mut World, at: usize, key: &str) -> bool {
    let request = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
    let found: RangeResponse = world.call(at, Rpc::KvRange, &request).expect("answers");
    !found.kvs.is_empty()
}

#[test]
fn who_asks_again_for_what_it_has_does_not_lose_it_by_leaving() {
    let mut world = World::started(3, 9, &[]);
    world.lead(0);
    grant(&mut world, &[1, 2], 6000);
    lock(&world, 1, 1).wait(&mut world).expect("is free");
    let waiting = lock(&world, 2, 2);
    until_keys(&mut world, 2, "door", &["door/1", "door/2"]);
    campaign(&world, 1, 1, "one").wait(&mut world).expect("is the first");
    let running = campaign(&world, 2, 2, "two");
    until_keys(&mut world, 2, "seat", &["seat/1", "seat/2"]);
    let try_all = |world: &mut World, turns: std::ops::Range<usize>| {
        for turns in turns {
            let (again, anew) = (lock(world, 1, 1), campaign(world, 1, 1, "one"));
            for _ in 0..turns {
                if !world.work().expect("all go on") {
                    world.wait();
                }
            }
            drop((again, anew));
            assert!(has_key(world, 0, "door/1") && has_key(world, 0, "seat/1"), "left after {turns} turns");
            world.settle().expect("all go on");
            assert!(has_key(world, 0, "door/1") && has_key(world, 0, "seat/1"), "left after {turns} turns");
            assert!(!waiting.is_answered() && !running.is_answered());
        }
    };
    try_all(&mut world, 0..16);
    // A longer waiting line is checked in several turns.
    lengthen(&mut world, "door");
    lengthen(&mut world, "seat");
    try_all(&mut world, 4..16);
    lock(&world, 2, 1).wait(&mut world).expect("has it still");
    campaign(&world, 2, 1, "one").wait(&mut world).expect("leads still");
}

#[test]
fn who_asked_twice_and_was_answered_once_keeps_the_lock() {
    let mut world = World::started(3, 10, &[]);
    world.lead(0);
    grant(&mut world, &[1, 2], 6000);
    lock(&world, 0, 1).wait(&mut world).expect("is free");
    let waiting = lock(&world, 0, 2);
    until_keys(&mut world, 2, "door", &["door/1", "door/2"]);
    let again = lock(&world, 2, 2);
    world.until("both wait", |world| world.member(2).watches_and_ranges().0 == 1);
    // The member that served the second call is cut off and sees no changes.
    world.cut(2, true);
    unlock(&mut world, 0, "door/1");
    waiting.wait(&mut world).expect("is its turn");
    assert!(!again.is_answered());
    drop(again);
    world.work().expect("all go on");
    world.cut(2, false);
    world.until("it has caught up", |world| {
        world.member(2).published().applied_index == world.member(0).published().applied_index
    });
    world.settle().expect("all go on");
    until_keys(&mut world, 2, "door", &["door/2"]);

    // A waiting client also gives up the key that it requested a second time.
    let other = {
        grant(&mut world, &[3], 6000);
        lock(&world, 0, 3)
    };
    until_keys(&mut world, 1, "door", &["door/2", "door/3"]);
    let again = lock(&world, 1, 3);
    world.until("it waits", |world| world.member(1).watches_and_ranges().0 == 1);
    drop(again);
    until_keys(&mut world, 0, "door", &["door/2"]);
    drop(other);
}

#[test]
fn who_waits_for_a_lock_is_not_refused_half_way_for_what_it_looks_at() {
    let mut world = World::started(1, 11, &["--max-expensive-calls=1"]);
    grant(&mut world, &[1], 6000);
    for i in 10..40 {
        world.put(0, &format!("door/z{i}"), b"").expect("is put");
    }
    let waiting = lock(&world, 0, 1);
    for i in (10..40).rev() {
        world.until("it waits", |world| watches(world) == 1);
        unlock(&mut world, 0, &format!("door/z{i}"));
        world.settle().expect("all go on");
    }
    waiting.wait(&mut world).expect("is its turn");
    // Each of these calls counts as one range request.
    let name = LeaderRequest { name: "seat".into() };
    let said = (0..1000).find_map(|_| {
        world
            .call::<_, LeaderResponse>(0, Rpc::ElectionLeader, &name)
            .err()
            .filter(|said| said.message.contains("too many"))
    });
    assert!(said.is_some(), "they are counted");
    let refused = lock(&world, 0, 1).wait(&mut world).expect_err("has made too many");
    assert_eq!(&*refused.message, "etcdserver: too many requests");
    assert!(has_key(&mut world, 0, "door/1"), "it has the lock still");
}

/// The watch of a waiting call is charged to the client's connection, since a client may have many waiting calls.
#[test]
fn what_a_waiting_call_watches_is_charged_to_its_connection() {
    let mut world = World::started(1, 12, &[]);
    grant(&mut world, &[1, 2], 6000);
    let long = "z".repeat(100_000);
    for name in ["door", "seat"] {
        world.put(0, &format!("{name}/{long}"), b"").expect("is put");
    }
    let account = accounting::Budget::new(64 << 20).open([127, 0, 0, 1].into());
    let own = account.held_bytes();
    let turn = account.begin_turn();
    let (waiting, standing) = (lock(&world, 0, 1), campaign(&world, 0, 2, "me"));
    drop(turn);
    world.until("both wait", |world| watches(world) == 2);
    let held = account.held_bytes() - own;
    assert!((200_000..300_000).contains(&held), "{held} bytes");
    drop(standing);
    world.until("one waits", |world| watches(world) == 1);
    let held = account.held_bytes() - own;
    assert!((100_000..200_000).contains(&held), "{held} bytes");
    unlock(&mut world, 0, &format!("door/{long}"));
    waiting.wait(&mut world).expect("is its turn");
    assert_eq!(account.held_bytes(), own);
}

/// COMPAT-146: a key that is created again stands behind keys created in between, so it does not hold the lock.
#[test]
fn a_key_that_was_made_again_while_its_lock_waited_does_not_have_the_lock() {
    let mut world = World::started(1, 13, &[]);
    grant(&mut world, &[1, 2, 3], 6000);
    lock(&world, 0, 1).wait(&mut world).expect("is free");
    let second = lock(&world, 0, 2);
    until_keys(&mut world, 0, "door", &["door/1", "door/2"]);
    unlock(&mut world, 0, "door/2");
    let third = lock(&world, 0, 3);
    until_keys(&mut world, 0, "door", &["door/1", "door/3"]);
    world.put(0, "door/2", b"").expect("is put");
    assert!(!second.is_answered() && !third.is_answered());
    unlock(&mut world, 0, "door/1");
    let expired = second.wait(&mut world).expect_err("another key is older");
    assert_eq!((expired.code, &*expired.message), (Code::Unknown, "mutex: session is expired"));
    assert_eq!(third.wait(&mut world).expect("is the oldest").key, "door/3");
    assert_eq!(keys(&mut world, 0, "door"), ["door/2", "door/3"], "the new key is not the call's to delete");
}
