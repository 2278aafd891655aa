//! Simulates, by a script, situations that random faults reach too rarely.

use api::Rpc;
use api::etcdserverpb as pb;
use prost::Message as _;

use crate::member::Caller;
use crate::network::Host;
use crate::profile::{Kinds, Profile, Work};
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::wire;
use crate::world::{Calling, World};

fn calm(seed: u64, work: &[Work]) -> World {
    World::new(seed, calm_profile(seed, work), false)
}

fn calm_profile(seed: u64, work: &[Work]) -> Profile {
    let mut profile = Profile::of(seed);
    profile.members = 3;
    profile.clients = 8;
    profile.faults = Kinds(0);
    profile.work = Kinds(work.iter().fold(0, |kinds, work| kinds | 1 << *work as u8));
    profile.keys = 3;
    profile.flags.catchup_entries = 10;
    profile.flags.snapshot_count = 10;
    profile.checkpoint_entries = 20;
    profile.segment_bytes = 64 << 10;
    profile.flags.election = 500 * MILLI;
    profile.flags.heartbeat = 50 * MILLI;
    profile.flags.pre_vote = true;
    profile.delay = MILLI / 2;
    profile.sync = MILLI / 2;
    profile.turn = MILLI / 50;
    profile.think = 10 * MILLI;
    profile
}

fn pass(world: &mut World, time: Nanos) {
    let until = world.now() + time;
    while world.now() < until {
        assert!(world.step(), "{:?}", world.failure);
    }
}

/// Runs the world until a condition holds; returns `false` if it does not hold within this time.
fn wait(world: &mut World, patience: Nanos, holds: impl Fn(&World) -> bool) -> bool {
    let until = world.now() + patience;
    while !holds(world) {
        if world.now() > until {
            return false;
        }
        pass(world, 10 * MILLI);
    }
    true
}

fn leader(world: &World) -> Option<Host> {
    world.members().into_iter().find(|at| world.leads_settled(*at))
}

fn put(world: &mut World, at: Host, key: &str, value: &str) {
    let put =
        pb::PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    world.next_operation += 1;
    let operation = world.next_operation;
    let calling = Calling::Unary(Rpc::KvPut, put.encode_to_vec().into());
    world.place_call(Caller::Operator, operation, at, calling, 20 * SECOND);
}

fn version(world: &mut World, at: Host, key: &str) -> i64 {
    let range = oracle::Range { key: key.into(), serializable: true, ..oracle::Range::default() };
    let request = oracle::Request::Range(range);
    let (rpc, message) = wire::encode(&request);
    let answer = world.ask_now(at, rpc, message.to_vec()).expect("is answered");
    match wire::decode(&request, answer) {
        Some((_, oracle::Response::Range(range))) => range.kvs.first().map_or(0, |kv| kv.version),
        other => panic!("{other:?}"),
    }
}

/// An observer starts again in a cluster in which nothing is written. It must serve clients all the same.
#[test]
fn an_observer_that_starts_again_serves_though_nothing_is_written() {
    for seed in 0..8 {
        let mut profile = calm_profile(seed, &[Work::Put]);
        profile.observers = 1;
        let mut world = World::new(seed, profile, false);
        let observer = 3;
        let serves =
            |world: &World| world.places[observer].process.as_ref().is_some_and(|p| p.stepped.is_ready());
        assert!(wait(&mut world, 20 * SECOND, serves));
        world.working = false;
        // After a while, checkpoints contain all entries, so that a start has nothing to apply.
        pass(&mut world, 40 * SECOND);
        for _ in 0..3 {
            world.end(observer, false);
            world.start_after(observer, SECOND);
            assert!(wait(&mut world, 20 * SECOND, serves), "seed {seed}: {}", world.describe());
        }
    }
}

/// A follower has forwarded a write and waits for its result. It installs a snapshot that already contains
/// the write; then another member becomes leader. The follower must not forward the write a second time.
#[test]
fn a_write_that_a_snapshot_brought_is_not_proposed_again() {
    let mut happened = 0;
    for seed in 0..20 {
        let mut world = calm(seed, &[Work::Put, Work::BigValues, Work::Compact]);
        assert!(wait(&mut world, 20 * SECOND, |world| leader(world).is_some()));
        pass(&mut world, SECOND);
        let first = leader(&world).expect("leads");
        let others: Vec<Host> = (0..3).filter(|at| *at != first).collect();
        let (behind, other) = (others[0], others[1]);
        let now = world.now();
        world.network.cut(first, behind, now);
        world.network.cut(other, behind, now);
        put(&mut world, behind, "once", "1");
        let far = |world: &World| {
            let (first, behind) = (world.checks.standing(first), world.checks.standing(behind));
            first.zip(behind).is_some_and(|(first, behind)| first.first > behind.last + 1)
        };
        let lost = wait(&mut world, 3 * SECOND, far);
        let snapshots = world.counts.snapshots;
        world.network.heal();
        let taken = wait(&mut world, 3 * SECOND, |world| world.counts.snapshots > snapshots);
        pass(&mut world, 100 * MILLI);
        let arrived = version(&mut world, behind, "once") == 1;
        world.end(first, true);
        assert!(wait(&mut world, 20 * SECOND, |world| leader(world).is_some()));
        let in_time = world.now() < now + 6 * SECOND;
        happened += u64::from(lost && taken && arrived && in_time);
        pass(&mut world, 5 * SECOND);
        for at in others {
            assert!(version(&mut world, at, "once") <= 1, "seed {seed}: the write was applied twice");
        }
    }
    assert!(happened >= 2, "what is tested has happened in {happened} worlds only");
}
