//! Entries that take long to apply: the core continues with everything else, and no client sees a partial result.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use api::authpb::Permission;
use api::etcdserverpb::{
    AuthEnableRequest, AuthEnableResponse, AuthRoleAddRequest, AuthRoleAddResponse,
    AuthRoleGrantPermissionRequest, AuthRoleGrantPermissionResponse, AuthUserAddRequest, AuthUserAddResponse,
    AuthUserGrantRoleRequest, AuthUserGrantRoleResponse, AuthenticateRequest, AuthenticateResponse, Compare,
    DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RequestOp, TxnRequest, TxnResponse, compare, request_op,
};
use api::raftpb::MessageType;
use api::{Rpc, Status};
use bytes::Bytes;
use numbers::{LeaseId, Seconds};
use prost::Message as _;

use super::world::World;

const KEYS: usize = 3000;
const SLICE: u64 = 100;

type Call = Pin<Box<dyn Future<Output = Result<Bytes, Status>>>>;

fn poll(call: &mut Call) -> Poll<Result<Bytes, Status>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn begin(world: &World, at: usize, rpc: Rpc, request: &impl prost::Message) -> Call {
    world.member(at).call(rpc, request.encode_to_vec().into())
}

fn op(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Starts members with slices of different sizes and with keys `k00000..` of this lease; the first member leads.
fn filled(members: usize, seed: u64, lease: i64, value: &[u8]) -> World {
    let mut world = World::new(members, seed, &[]);
    for (at, place) in world.places.iter_mut().enumerate() {
        place.applied_per_turn = [SLICE, 7, 2048][at];
    }
    world.start_all();
    world.lead(0);
    if lease != 0 {
        let request = LeaseGrantRequest { ttl: 1000, id: lease };
        let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &request).expect("is granted");
    }
    for chunk in (0..KEYS).collect::<Vec<_>>().chunks(120) {
        let put = |n: &usize| {
            op(request_op::Request::RequestPut(PutRequest {
                key: format!("k{n:05}").into(),
                value: value.to_vec().into(),
                lease,
                ..PutRequest::default()
            }))
        };
        let txn = TxnRequest { success: chunk.iter().map(put).collect(), ..TxnRequest::default() };
        let _: TxnResponse = world.call(0, Rpc::KvTxn, &txn).expect("is taken");
    }
    let index = world.member(0).probe().applied;
    world.until("all have applied it", |world| world.members().all(|m| m.probe().applied >= index));
    world
}

fn all() -> DeleteRangeRequest {
    DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: false }
}

fn count(serializable: bool) -> RangeRequest {
    RangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        count_only: true,
        serializable,
        ..RangeRequest::default()
    }
}

/// Returns true if the member knows of a committed entry that it has not applied.
fn is_amid(world: &World, at: usize) -> bool {
    let probe = world.member(at).probe();
    probe.commit > probe.applied
}

fn assert_all_same(world: &mut World) {
    world.until("all have applied the same", |world| {
        let mut probes = world.members().map(|member| member.probe());
        let first = probes.next().expect("one runs");
        first.applied == first.last_index && probes.all(|probe| probe.applied == first.applied)
    });
    let hashes: Vec<_> =
        world.members().map(|member| (member.probe().state_hash, member.probe().revision)).collect();
    assert!(hashes.iter().all(|hash| hash.0.is_some() && *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn while_a_large_deletion_is_applied_heartbeats_go_out_and_reads_are_answered() {
    let mut world = filled(3, 51, 0, b"v");
    let heartbeats = Arc::new(AtomicU64::new(0));
    let (counted, leader) = (Arc::clone(&heartbeats), world.places[0].id);
    world.lose(Some(Box::new(move |message| {
        let is_one = message.r#type == Some(MessageType::MsgHeartbeat as i32);
        counted.fetch_add(u64::from(is_one && message.from == Some(leader)), Ordering::Relaxed);
        false
    })));
    let before = world.member(0).probe();
    let mut deletion = begin(&world, 0, Rpc::KvDeleteRange, &all());
    let (mut amid, mut answer) = (0, None);
    while answer.is_none() {
        world.work().expect("all go on");
        if is_amid(&world, 0) && world.member(0).probe().applied == before.applied {
            amid += 1;
            // No part of the entry is visible, and calls that do not need it do not wait.
            let found: RangeResponse = world.call(0, Rpc::KvRange, &count(true)).expect("is answered");
            assert_eq!(found.count, KEYS as i64);
            let (published, probe) = (world.member(0).published(), world.member(0).probe());
            assert_eq!(published.applied_index, before.applied);
            assert_eq!(published.view.snapshot().current_revision(), before.revision);
            assert_eq!((probe.state_hash, probe.revision), (before.state_hash, before.revision));
        }
        // A tick is due at every turn.
        for place in &world.places {
            place.clock.advance(Duration::from_millis(100));
        }
        if let Poll::Ready(done) = poll(&mut deletion) {
            answer = Some(done);
        }
    }
    world.lose(None);
    let answer = DeleteRangeResponse::decode(answer.expect("is there").expect("deletes")).expect("decodes");
    assert_eq!(
        (answer.deleted, answer.header.expect("has one").revision),
        (KEYS as i64, before.revision.0 + 1)
    );
    assert!(amid >= KEYS as u64 / SLICE - 2, "it took {amid} turns");
    let heartbeats = heartbeats.load(Ordering::Relaxed);
    // The heartbeats go to two followers.
    assert!(heartbeats >= amid, "{heartbeats} heartbeats in {amid} turns");
    assert_eq!(world.leader(), Some(0));
    assert_all_same(&mut world);
    for at in 0..3 {
        let found: RangeResponse = world.call(at, Rpc::KvRange, &count(false)).expect("is answered");
        assert_eq!(found.count, 0);
    }
}

#[test]
fn a_member_that_is_killed_amid_a_deletion_applies_it_whole_after_its_restart() {
    let mut world = filled(3, 52, 0, b"v");
    let deletion = begin(&world, 0, Rpc::KvDeleteRange, &all());
    for killed in [1, 0] {
        world.until("it is amid the entry", |world| is_amid(world, killed));
        world.work().expect("all go on");
        world.crash(killed);
    }
    drop(deletion);
    // The remaining member has the entry, but may not know that it is committed.
    for at in [0, 1] {
        world.start(at).expect("starts");
    }
    world.until("somebody leads", |world| world.leader().is_some());
    world.put(2, "other", b"1").expect("is taken");
    assert_all_same(&mut world);
    let found: RangeResponse = world.call(0, Rpc::KvRange, &count(false)).expect("is answered");
    assert_eq!(found.count, 0);
}

#[test]
fn nobody_sees_the_keys_of_a_lease_half_revoked() {
    let mut world = filled(1, 53, 77, b"v");
    let revoke = LeaseRevokeRequest { id: 77 };
    let mut revocation = begin(&world, 0, Rpc::LeaseRevoke, &revoke);
    world.until("it is amid the entry", |world| is_amid(world, 0));
    world.work().expect("all go on");
    assert!(is_amid(&world, 0) && world.member(0).probe().leases == 1);
    // A request for the lease's keys waits until the entry is applied completely.
    let keys = LeaseTimeToLiveRequest { id: 77, keys: true };
    let mut keys = begin(&world, 0, Rpc::LeaseTimeToLive, &keys);
    let plain: LeaseTimeToLiveResponse = world
        .call(0, Rpc::LeaseTimeToLive, &LeaseTimeToLiveRequest { id: 77, keys: false })
        .expect("is answered");
    assert!(plain.ttl > 900 && is_amid(&world, 0), "whoever does not need them is answered: {plain:?}");
    let mut turns = 0;
    while is_amid(&world, 0) {
        assert!(poll(&mut keys).is_pending() && poll(&mut revocation).is_pending());
        world.work().expect("all go on");
        turns += 1;
    }
    assert!(turns > 10, "{turns}");
    let keys = LeaseTimeToLiveResponse::decode(world.run(keys).expect("is answered")).expect("decodes");
    assert_eq!((keys.ttl, keys.keys.len()), (-1, 0));
    world.run(revocation).expect("is revoked");
    let found: RangeResponse = world.call(0, Rpc::KvRange, &count(false)).expect("is answered");
    assert_eq!(found.count, 0);
}

#[test]
fn leases_that_are_renewed_in_time_live_though_apply_is_behind() {
    let mut world = filled(3, 56, 0, b"v");
    for id in [5, 6, 7] {
        let request = LeaseGrantRequest { ttl: 2, id };
        let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &request).expect("is granted");
    }
    let _deletion = begin(&world, 0, Rpc::KvDeleteRange, &all());
    world.until("it is amid the entry", |world| is_amid(world, 0));
    let began = world.places[0].clock.elapsed();
    // This renewal waits for the entry.
    let mut early = Box::pin(world.member(0).renew(LeaseId(5)));
    let mut late = None;
    let mut context = Context::from_waker(Waker::noop());
    while is_amid(&world, 0) {
        assert!(early.as_mut().poll(&mut context).is_pending());
        world.work().expect("all go on");
        for place in &world.places {
            place.clock.advance(Duration::from_millis(100));
        }
        if late.is_none() && world.places[0].clock.elapsed() - began > Duration::from_millis(2500) {
            // A renewal that only needs the applied state comes in time, too.
            let mut renewal = Box::pin(world.member(0).renew(LeaseId(6)));
            assert!(renewal.as_mut().poll(&mut context).is_pending());
            late = Some(renewal);
        }
    }
    assert_eq!(world.run(early), Ok(Seconds(2)));
    assert_eq!(world.run(late.expect("it took long enough")), Ok(Seconds(2)));
    world.until("nobody renews the third", |world| world.member(0).probe().leases == 2);
    world.until("nobody renews the others", |world| world.member(0).probe().leases == 0);
    assert_eq!(world.leader(), Some(0));
}

#[test]
fn reads_that_wait_for_apply_are_forgotten_with_their_callers() {
    let mut world = filled(3, 57, 0, b"value");
    let slow = 1;
    world.places[slow].disk.set_misses_per_mille(1000);
    world.places[slow].member.as_mut().expect("runs").hold_reads(true);
    let txn = TxnRequest {
        compare: vec![Compare {
            key: "k".into(),
            range_end: "l".into(),
            result: compare::CompareResult::Less as i32,
            target: compare::CompareTarget::Value as i32,
            target_union: Some(compare::TargetUnion::Value("x".into())),
        }],
        success: vec![op(request_op::Request::RequestDeleteRange(DeleteRangeRequest {
            key: "k00001".into(),
            ..DeleteRangeRequest::default()
        }))],
        ..TxnRequest::default()
    };
    let answer: TxnResponse = world.call(0, Rpc::KvTxn, &txn).expect("is taken");
    assert!(answer.succeeded);
    world.until("the follower knows of it", |world| is_amid(world, slow));
    // Each read follows another write, so that each read waits for an entry of its own.
    let mut reads = Vec::new();
    for n in 1..=40 {
        world.put(0, "other", b"1").expect("is taken");
        reads.push(begin(&world, slow, Rpc::KvRange, &count(false)));
        assert!(reads.last_mut().is_some_and(|read| poll(read).is_pending()));
        world.settle().expect("all go on");
        let (rounds, waiting) = world.member(slow).probe().reads;
        assert!(rounds <= 32 && waiting == n, "{rounds} rounds, {waiting} reads");
    }
    // Half of the callers leave; the others get a timeout.
    reads.truncate(20);
    let until = world.places[slow].clock.now() + Duration::from_secs(20);
    world.until("time has gone by", |world| world.places[slow].clock.now() >= until);
    assert_eq!(world.member(slow).probe().reads, (0, 0));
    for read in reads {
        assert_eq!(world.run(read).map(|_| ()), Err(api::error::TIMEOUT));
    }
    world.places[slow].member.as_mut().expect("runs").hold_reads(false);
    let found: RangeResponse = world.call(slow, Rpc::KvRange, &count(false)).expect("is answered");
    assert_eq!(found.count, KEYS as i64 - 1);
}

#[test]
fn a_follower_that_compares_what_is_not_in_memory_waits_for_the_disk_without_its_core() {
    let mut world = filled(3, 54, 0, b"value");
    let slow = 1;
    world.places[slow].disk.set_misses_per_mille(1000);
    world.places[slow].member.as_mut().expect("runs").hold_reads(true);
    let txn = TxnRequest {
        compare: vec![Compare {
            key: "k".into(),
            range_end: "l".into(),
            result: compare::CompareResult::Less as i32,
            target: compare::CompareTarget::Value as i32,
            target_union: Some(compare::TargetUnion::Value("x".into())),
        }],
        success: vec![op(request_op::Request::RequestDeleteRange(DeleteRangeRequest {
            key: "k01".into(),
            range_end: "k02".into(),
            prev_kv: false,
        }))],
        ..TxnRequest::default()
    };
    let reads = world.places[slow].disk.reads();
    let answer: TxnResponse = world.call(0, Rpc::KvTxn, &txn).expect("is taken");
    assert!(answer.succeeded);
    world.until("the follower knows of it", |world| is_amid(world, slow));
    world.settle().expect("all go on");
    assert!(is_amid(&world, slow));
    assert_eq!(world.places[slow].disk.reads(), reads, "its core reads nothing itself");
    // The follower continues with everything else: it answers the leader's messages, and serves calls that do
    // not need the entry.
    let term = world.member(slow).probe().term;
    let until = world.places[slow].clock.now() + Duration::from_secs(20);
    world.until("time has gone by", |world| world.places[slow].clock.now() >= until);
    assert_eq!((world.leader(), world.member(slow).probe().term), (Some(0), term));
    let found: RangeResponse = world.call(slow, Rpc::KvRange, &count(true)).expect("is answered");
    assert_eq!(found.count, KEYS as i64);
    world.put(0, "other", b"1").expect("is taken");
    // The missing values are fetched in batches.
    world.places[slow].member.as_mut().expect("runs").hold_reads(false);
    world.until("it has applied it", |world| !is_amid(world, slow));
    assert!(world.places[slow].disk.reads() > reads);
    assert_all_same(&mut world);
}

#[test]
fn what_followers_hand_on_waits_for_the_log_as_the_leaders_own_does() {
    let mut world = World::started(3, 55, &[]);
    world.lead(0);
    // So little space is left that the bytes waiting for the log are counted.
    let used = world.places[0].disk.used_bytes();
    world.places[0].disk.set_capacity(Some(used + (1 << 20)));
    let until = world.places[0].clock.now() + Duration::from_secs(3);
    world.until("it has looked at its disk", |world| world.places[0].clock.now() >= until);
    world.settle().expect("all go on");
    world.places[0].log_held = true;
    let last = world.member(0).probe().last_index;
    let put = |n: usize| PutRequest {
        key: format!("k{n}").into(),
        value: vec![b'v'; 1000].into(),
        ..PutRequest::default()
    };
    let calls: Vec<Call> = (0..40).map(|n| begin(&world, 1 + n % 2, Rpc::KvPut, &put(n))).collect();
    for _ in 0..50 {
        world.work().expect("all go on");
    }
    let queued = world.member(0).probe().last_index - last;
    assert!((1..=10).contains(&queued), "{queued} entries of 1 KB wait for the log");
    world.places[0].log_held = false;
    for call in calls {
        world.run(call).expect("is taken");
    }
    assert_all_same(&mut world);
    let found: RangeResponse = world.call(0, Rpc::KvRange, &count(false)).expect("is answered");
    assert_eq!(found.count, 40);
}

/// Creates `bob`, who may write only `bob`, and enables authentication. Returns bob's and root's tokens.
pub fn with_bob(world: &mut World) -> (String, String) {
    let password = || "p".to_owned();
    for name in ["root", "bob"] {
        let add = AuthUserAddRequest { name: name.into(), password: password(), ..Default::default() };
        let _: AuthUserAddResponse = world.call(0, Rpc::AuthUserAdd, &add).expect("is added");
        let add = AuthRoleAddRequest { name: name.into() };
        let _: AuthRoleAddResponse = world.call(0, Rpc::AuthRoleAdd, &add).expect("is added");
        let grant = AuthUserGrantRoleRequest { user: name.into(), role: name.into() };
        let _: AuthUserGrantRoleResponse = world.call(0, Rpc::AuthUserGrantRole, &grant).expect("is granted");
    }
    let perm = Permission { perm_type: 2, key: "bob".into(), range_end: Bytes::new() };
    let grant = AuthRoleGrantPermissionRequest { name: "bob".into(), perm: Some(perm) };
    let _: AuthRoleGrantPermissionResponse =
        world.call(0, Rpc::AuthRoleGrantPermission, &grant).expect("is granted");
    let _: AuthEnableResponse = world.call(0, Rpc::AuthEnable, &AuthEnableRequest {}).expect("is enabled");
    let [bob, root] = ["bob", "root"].map(|name| {
        let who = AuthenticateRequest { name: name.into(), password: password() };
        world.call::<_, AuthenticateResponse>(0, Rpc::Authenticate, &who).expect("is right").token
    });
    (bob, root)
}

#[test]
fn a_user_renews_a_lease_in_time_though_a_long_entry_is_amid() {
    let mut world = filled(1, 58, 0, b"v");
    for id in [5, 6] {
        let request = LeaseGrantRequest { ttl: 2, id };
        let _: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &request).expect("is granted");
    }
    for (key, lease) in [("bob", 5), ("other", 6)] {
        let put = PutRequest { key: key.into(), value: "v".into(), lease, ..PutRequest::default() };
        let _: PutResponse = world.call(0, Rpc::KvPut, &put).expect("is put");
    }
    let (bob, root) = with_bob(&mut world);
    world.member(0).present(Some(&root));
    let mut deletion = begin(&world, 0, Rpc::KvDeleteRange, &all());
    world.until("it is amid the entry", |world| is_amid(world, 0));
    assert!(poll(&mut deletion).is_pending());
    world.member(0).present(Some(&bob));
    let mut context = Context::from_waker(Waker::noop());
    let mut renewals = [5, 6].map(|id| (world.member(0).renew(LeaseId(id)), None));
    while is_amid(&world, 0) {
        for (renewal, answer) in renewals.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(answered) = renewal.as_mut().poll(&mut context) {
                *answer = Some(answered);
            }
        }
        world.work().expect("all go on");
        for place in &world.places {
            place.clock.advance(Duration::from_millis(100));
        }
    }
    let [(_, own), (_, foreign)] = renewals;
    assert_eq!(own, Some(Ok(Seconds(2))), "it is renewed amid the entry");
    assert_eq!(foreign, Some(Err(api::error::PERMISSION_DENIED)), "who may not is told so at once");
    world.until("nobody renews them any more", |world| world.member(0).probe().leases == 0);
    world.run(deletion).expect("is deleted");
}
