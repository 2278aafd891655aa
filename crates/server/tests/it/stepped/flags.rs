//! Members with different options, as during an operator's rolling change of flags.

use std::future::Future as _;
use std::task::{Context, Waker};
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, MemberAddRequest,
    MemberAddResponse, PutRequest,
};
use disk::Fault;
use mainstay_server::stepped::Stepped;
use numbers::{LeaseId, Revision, Seconds};
use prost::Message as _;

use super::world::World;

/// Waits until all members have applied the same entries, and compares their states.
fn are_equal(world: &mut World) {
    world.until("all have applied the same", |world| {
        let first = world.member(0).probe().applied;
        world.members().all(|member| member.probe().applied == first && member.probe().commit == first)
    });
    let hashes: Vec<_> = world.members().map(|member| member.probe().state_hash).collect();
    assert!(hashes[0].is_some() && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    let members: Vec<_> = world.members().map(|member| member.published().members.by_id.clone()).collect();
    assert!(members.iter().all(|other| *other == members[0]), "{members:?}");
    assert!(!world.text().contains("raising the CORRUPT alarm"));
}

/// Three members with election timeouts of one, three and ten seconds.
fn mixed() -> World {
    let mut world = World::new(3, 4, &[]);
    world.set_options(1, &["--election-timeout=3000", "--max-learners=2"]);
    world.set_options(2, &["--election-timeout=10000", "--max-learners=5"]);
    world.start_all();
    world
}

#[test]
fn a_power_loss_at_the_first_start_does_not_prevent_the_next_one_without_syncs_either() {
    for seed in 0..20 {
        let mut world = World::new(1, seed, &["--unsafe-no-fsync"]);
        for _ in 0..2 {
            world.start(0).expect("starts");
            world.crash(0);
        }
        world.start_all();
    }
}

#[test]
fn a_log_of_its_own_is_found_wherever_the_power_went_at_the_first_start() {
    for nth in 1..=60 {
        let mut world = World::new(1, nth, &["--wal-dir=/w"]);
        world.places[0].disk.fail_at(nth, Fault::PowerCut);
        if world.start(0).is_ok() {
            let mut steps = 0..100;
            while steps.next().is_some() && world.work().is_ok() {
                world.wait();
            }
        }
        world.crash(0);
        world.start_all();
        world.put(0, "k", b"v").expect("it serves");
        world.crash(0);
        world.set_options(0, &[]);
        let why = world.start(0).expect_err("its log is elsewhere");
        assert!(why.contains("the log of this member is in /w"), "{nth}: {why}");
        world.set_options(0, &["--wal-dir=/w"]);
        world.start_all();
        assert_eq!(world.get(0, "k").as_deref(), Some(&b"v"[..]), "{nth}");
        let files = world.places[0].disk.files();
        assert!(files.iter().all(|(path, _)| !path.starts_with("/m1/member/log")), "{files:?}");
    }
}

#[test]
fn without_the_pipeline_a_batch_waits_for_the_one_before() {
    for (options, expected) in [(&[][..], 3), (&["--raft-pipeline=false"][..], 1)] {
        let mut world = World::started(1, 3, options);
        world.until("all is applied", |world| {
            world.member(0).probe().applied == world.member(0).probe().last_index
        });
        let before = world.member(0).probe().last_index;
        world.places[0].log_held = true;
        let mut puts = Vec::new();
        for key in ["a", "b", "c"] {
            let request = PutRequest { key: key.into(), value: "v".into(), ..PutRequest::default() };
            let mut put = Box::pin(world.member(0).call(Rpc::KvPut, request.encode_to_vec().into()));
            assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            puts.push(put);
            while world.work().expect("goes on") {}
        }
        assert_eq!(world.member(0).probe().last_index - before, expected, "{options:?}");
        world.places[0].log_held = false;
        assert!(world.run_all(puts).iter().all(Result::is_ok));
        assert_eq!(world.member(0).probe().last_index - before, 3);
    }
    // The same options in a cluster of three members.
    let mut world = World::started(3, 3, &["--raft-pipeline=false", "--batch-fsync-window=0"]);
    for number in 0..20 {
        world.put(number % 3, &format!("k{number}"), b"v").expect("is put");
    }
    are_equal(&mut world);
}

#[test]
fn whoever_leads_compacts_by_age() {
    let mut world = World::started(3, 5, &["--auto-compaction-retention=10s"]);
    for leads in [0, 1, 2] {
        world.lead(leads);
        let mut revision = Revision(0);
        for key in ["a", "b", "c"] {
            let put = world.put(leads, key, b"v").expect("is put");
            revision = Revision(put.header.expect("has a header").revision);
        }
        let began = world.places[leads].clock.elapsed();
        world.until("its history is compacted on all", |world| {
            world.members().all(|member| member.probe().compact_revision >= revision)
        });
        let took = world.places[leads].clock.elapsed() - began;
        assert!(took >= Duration::from_secs(10), "history is kept that long: {took:?}");
    }
    are_equal(&mut world);
}

#[test]
fn remaining_times_outlive_leaders_and_restarts_whatever_the_gates_say() {
    let mut world = World::new(3, 6, &[]);
    world.set_options(1, &["--feature-gates=LeaseCheckpoint=true"]);
    let both = ["--experimental-enable-lease-checkpoint", "--experimental-enable-lease-checkpoint-persist"];
    world.set_options(2, &both);
    world.start_all();
    let _: LeaseGrantResponse =
        world.call(0, Rpc::LeaseGrant, &LeaseGrantRequest { ttl: 1000, id: 7 }).expect("is granted");
    let began = world.places[0].clock.elapsed();
    world.until("two notes were due", |world| {
        world.places[0].clock.elapsed() - began > Duration::from_secs(130)
    });
    let left = |world: &mut World| {
        let asked = LeaseTimeToLiveRequest { id: 7, keys: false };
        let told: LeaseTimeToLiveResponse = world.call(0, Rpc::LeaseTimeToLive, &asked).expect("is told");
        assert_eq!(told.granted_ttl, 1000);
        assert!((800..950).contains(&told.ttl), "{told:?}");
    };
    for leads in [1, 2, 0] {
        world.lead(leads);
        left(&mut world);
    }
    are_equal(&mut world);
    (0..3).for_each(|at| world.crash(at));
    world.start_all();
    left(&mut world);
    are_equal(&mut world);
}

#[test]
fn short_leases_are_the_same_for_members_with_other_election_timeouts() {
    let mut world = mixed();
    for (at, shortest) in [(0, 2), (1, 5), (2, 15)] {
        for ttl in [1, 4, 60] {
            let id = 1000 * (at as i64 + 1) + ttl;
            let granted: LeaseGrantResponse =
                world.call(at, Rpc::LeaseGrant, &LeaseGrantRequest { ttl, id }).expect("is granted");
            assert_eq!(
                granted.ttl,
                ttl.max(shortest),
                "the member that is asked says how short a lease may be"
            );
            let asked = LeaseTimeToLiveRequest { id, keys: false };
            let told: LeaseTimeToLiveResponse =
                world.call(at, Rpc::LeaseTimeToLive, &asked).expect("is told");
            assert_eq!(told.granted_ttl, granted.ttl, "the same as the client of the grant was told");
        }
    }
    are_equal(&mut world);
    // Each member leads once.
    for leads in [0, 1, 2] {
        world.lead(leads);
        for (at, shortest) in [(0, 2), (1, 5), (2, 15)] {
            let asked = LeaseTimeToLiveRequest { id: 1000 * (at as i64 + 1) + 60, keys: false };
            let told: LeaseTimeToLiveResponse =
                world.call(2 - at, Rpc::LeaseTimeToLive, &asked).expect("is told");
            assert_eq!(told.granted_ttl, 60, "{told:?}");
            let id = 5000 + 10 * leads as i64 + at as i64;
            let granted: LeaseGrantResponse =
                world.call(at, Rpc::LeaseGrant, &LeaseGrantRequest { ttl: 1, id }).expect("is granted");
            let asked = LeaseTimeToLiveRequest { id, keys: false };
            let told: LeaseTimeToLiveResponse =
                world.call(2 - at, Rpc::LeaseTimeToLive, &asked).expect("is told");
            assert_eq!((granted.ttl, told.granted_ttl), (shortest, shortest));
            assert!(told.ttl <= shortest, "{told:?}");
        }
    }
    are_equal(&mut world);
    // The members replay their logs, and each gets a different option.
    for at in 0..3 {
        world.crash(at);
        world.set_options(
            at,
            &[["--election-timeout=5000"], ["--election-timeout=1000"], ["--election-timeout=2000"]][at],
        );
    }
    world.start_all();
    are_equal(&mut world);
    let leader = world.leader().expect("somebody leads");
    let look = world.places[leader].clock.elapsed();
    world.until("the leader has compared the states", |world| {
        world.places[leader].clock.elapsed() - look > std::time::Duration::from_secs(6)
    });
    are_equal(&mut world);
}

#[test]
fn a_renewal_promises_no_more_than_the_next_leader_knows_of() {
    let mut world = mixed();
    let granted: LeaseGrantResponse =
        world.call(0, Rpc::LeaseGrant, &LeaseGrantRequest { ttl: 1, id: 7 }).expect("is granted");
    assert_eq!(granted.ttl, 2);
    // As leader, this member would let no lease expire before 15 s. But it may lose leadership earlier, so
    // it promises a shorter TTL.
    world.lead(2);
    let renewal = world.member(2).renew(LeaseId(7));
    assert_eq!(world.run(renewal), Ok(Seconds(granted.ttl)));
}

#[test]
fn learners_are_counted_against_the_limit_of_the_member_that_is_asked() {
    let mut world = mixed();
    let add = |n: u32| MemberAddRequest {
        peer_urls: vec![format!("http://10.0.1.{n}:2380")],
        is_learner: true,
        is_witness: false,
    };
    let began = world.places[0].clock.elapsed();
    world.until("they have been connected for a while", |world| {
        world.places[0].clock.elapsed() - began > std::time::Duration::from_secs(8)
    });
    for (at, n) in [(0, 1), (1, 2), (2, 3)] {
        let added: Result<MemberAddResponse, _> = world.call(at, Rpc::ClusterMemberAdd, &add(n));
        assert!(added.is_ok(), "{at}: {added:?}");
    }
    let refused: Result<MemberAddResponse, _> = world.call(0, Rpc::ClusterMemberAdd, &add(4));
    assert_eq!(refused.map(|_| ()), Err(api::error::TOO_MANY_LEARNERS));
    are_equal(&mut world);
    let learners: Vec<usize> =
        world.members().map(|member: &Stepped| member.probe().learners.len()).collect();
    assert_eq!(learners, [3, 3, 3]);
}
