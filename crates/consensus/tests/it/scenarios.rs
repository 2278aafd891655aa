//! Required behavior of a cluster, one aspect per test.

use api::raftpb::{self, MessageType};
use consensus::{ConfChangeKind, Event, OtherPrograms, ProgressState, Refusal, Request, Role};
use mainstay_consensus as consensus;
use numbers::{Index, MemberId, Term};

use crate::sim::{Disk, Sim, ids};

/// Returns a cluster at rest, led by member 1.
fn led(voters: u64) -> Sim {
    let mut sim = Sim::new(7, voters);
    sim.rest();
    sim.must_take(1, Request::Campaign);
    sim.rest();
    assert_eq!(sim.leader(), Some(1));
    sim
}

#[track_caller]
fn same(sim: &Sim, ids: &[u64]) {
    for id in ids {
        assert_eq!(sim.member(*id).state, sim.member(ids[0]).state, "member {id}");
    }
}

#[test]
fn a_write_reaches_everybody() {
    let mut sim = led(3);
    let before = sim.member(1).state.index;
    sim.propose(1, 3, 8).expect("a leader");
    sim.propose(2, 2, 8).expect("forwarded");
    sim.rest();
    assert_eq!(sim.member(3).state.index, before + 5);
    same(&sim, &[1, 2, 3]);
    let progress = sim.node(1).progress();
    assert_eq!(
        progress.iter().map(|p| (p.id.0, p.matched.0)).collect::<Vec<_>>(),
        [1, 2, 3].map(|id| (id, before + 5))
    );
    assert!(sim.node(2).progress().is_empty(), "a follower knows of nobody's progress");
}

#[test]
fn the_fastest_majority_commits_while_the_leader_still_syncs() {
    let mut sim = led(3);
    let before = sim.node(1).status().commit;
    sim.propose(1, 1, 8).expect("a leader");
    assert_eq!(sim.member(1).unsynced(), 1, "the leader's own write is on its way");
    assert_eq!(sim.network.len(), 2, "the appends do not wait for it");
    for _ in 0..3 {
        for message in std::mem::take(&mut sim.network) {
            sim.deliver(message);
        }
        sim.sync(2, usize::MAX);
        sim.sync(3, usize::MAX);
    }
    assert_eq!(sim.member(1).unsynced(), 1);
    assert_eq!(sim.node(1).status().commit, before + 1);
    // The leader does not apply an entry that it has not synced itself.
    assert_eq!(sim.to_apply(1), 0);
    sim.sync(1, 1);
    assert_eq!(sim.to_apply(1), 1);
}

#[test]
fn an_acknowledgement_waits_for_the_sync_and_a_heartbeats_answer_does_not() {
    let mut sim = led(3);
    sim.propose(1, 1, 8).expect("a leader");
    for message in std::mem::take(&mut sim.network) {
        sim.deliver(message);
    }
    assert!(sim.network.is_empty(), "an acknowledgement left before its sync");
    let read = sim.read(1).expect("a leader");
    for _ in 0..2 {
        for message in std::mem::take(&mut sim.network) {
            sim.deliver(message);
        }
    }
    assert!(sim.answered_reads.contains_key(&read), "the read waits for a write's sync");
    assert!(sim.member(2).unsynced() > 0);
    let acknowledged = |sim: &Sim| sim.network.iter().any(|m| m.r#type() == MessageType::MsgAppResp);
    assert!(!acknowledged(&sim));
    sim.sync(2, usize::MAX);
    assert!(acknowledged(&sim));
}

#[test]
fn a_vote_waits_for_its_sync() {
    let mut sim = Sim::new(7, 3);
    sim.rest();
    sim.must_take(1, Request::Campaign);
    let deliver = |sim: &mut Sim| {
        for message in std::mem::take(&mut sim.network) {
            sim.deliver(message);
        }
    };
    // Pre-votes are sent without waiting for the disk.
    deliver(&mut sim);
    deliver(&mut sim);
    assert_eq!(sim.node(1).status().term, Term(2));
    assert!(sim.network.is_empty(), "a candidate asks before it has its own vote on disk");
    sim.sync(1, 1);
    deliver(&mut sim);
    assert!(sim.network.is_empty(), "a vote left before its sync");
    sim.sync(2, 1);
    deliver(&mut sim);
    assert_eq!(sim.leader(), Some(1));
}

#[test]
fn a_sole_voter_tells_its_learner_nothing_before_its_term_is_on_disk() {
    let mut sim = Sim::new(7, 1);
    sim.rest();
    sim.must_take(1, Request::Campaign);
    sim.rest();
    sim.propose_change(1, ConfChangeKind::AddLearner, 2).expect("a leader");
    sim.add(2, Disk::default());
    sim.rest();
    same(&sim, &[1, 2]);
    sim.checkpoint(1);
    sim.crash(1, 0);
    sim.start(1);
    sim.must_take(1, Request::Campaign);
    assert_eq!(sim.leader(), Some(1), "one vote is enough");
    assert!(sim.network.is_empty(), "the term is told before it is on disk");
    sim.sync(1, 1);
    assert!(!sim.network.is_empty());
    sim.rest();
    same(&sim, &[1, 2]);
}

#[test]
fn a_follower_catches_up_from_the_disk() {
    let mut sim = led(3);
    sim.isolate(&[3]);
    sim.ticks(3);
    for _ in 0..20 {
        sim.propose(1, 1, 100).expect("a leader");
        sim.rest();
    }
    sim.forget(1, 0);
    assert_eq!(sim.node(1).kept(), (0, 0));
    sim.heal();
    // A fetch that was answered without entries is requested again later.
    sim.tick(1);
    for message in std::mem::take(&mut sim.network) {
        sim.deliver(message);
    }
    sim.ticks(3);
    assert!(sim.fetched >= 20);
    assert_eq!(sim.restores, 0);
    same(&sim, &[1, 2, 3]);
}

#[test]
fn a_fetch_that_fails_is_repeated_and_one_is_under_way_at_a_time() {
    let mut sim = led(3);
    sim.isolate(&[3]);
    sim.propose(1, 10, 100).expect("a leader");
    sim.rest();
    sim.forget(1, 0);
    sim.heal();
    let wait = |sim: &mut Sim| {
        for _ in 0..20 {
            for id in [1, 2, 3] {
                sim.tick(id);
            }
            for message in std::mem::take(&mut sim.network) {
                sim.deliver(message);
            }
            sim.sync(3, usize::MAX);
        }
    };
    wait(&mut sim);
    assert_eq!(sim.member(1).fetches.len(), 1);
    let first = sim.member(1).fetches[0];
    assert_eq!((first.to, first.last), (MemberId(3), sim.node(1).status().last + 1));
    sim.fetch(1, 0);
    assert!(sim.member(1).fetches.is_empty(), "a disk that fails is not asked again at once");
    wait(&mut sim);
    assert_eq!(sim.member(1).fetches[0], first);
    // The fetched part is sent, and the rest is requested.
    sim.fetch(1, 4);
    wait(&mut sim);
    assert_eq!(sim.member(1).fetches[0].first, first.first + 4);
    sim.ticks(3);
    same(&sim, &[1, 2, 3]);
    // An answer to an outdated fetch is ignored.
    sim.must(1, Event::Fetched { fetch: first, entries: Vec::new() });
}

#[test]
fn a_follower_gets_a_snapshot_of_what_is_discarded() {
    let mut sim = led(3);
    sim.isolate(&[3]);
    sim.propose(1, 30, 8).expect("a leader");
    sim.rest();
    sim.checkpoint(1);
    sim.discard(1, 5);
    sim.heal();
    for _ in 0..10 {
        for id in [1, 2, 3] {
            sim.tick(id);
        }
        for message in std::mem::take(&mut sim.network) {
            if message.r#type() == MessageType::MsgSnap {
                let state = sim.node(1).progress()[2].state;
                assert_eq!(state, ProgressState::Snapshot { index: Index(sim.member(1).state.index) });
            }
            sim.deliver(message);
        }
    }
    sim.rest();
    assert_eq!(sim.restores, 1);
    same(&sim, &[1, 2, 3]);
    // Another follower loses its snapshot in a crash, and gets one again.
    sim.isolate(&[2]);
    sim.propose(1, 30, 8).expect("a leader");
    sim.rest();
    sim.checkpoint(1);
    sim.discard(1, 0);
    sim.heal();
    while sim.restores == 1 {
        sim.tick(1);
        for message in std::mem::take(&mut sim.network) {
            sim.deliver(message);
        }
    }
    sim.crash(2, 0);
    sim.start(2);
    sim.rest();
    sim.ticks(5);
    assert_eq!(sim.restores, 3);
    same(&sim, &[1, 2, 3]);
    sim.propose(1, 1, 8).expect("a leader");
    sim.rest();
    same(&sim, &[1, 2, 3]);
}

#[test]
fn a_learner_joins_learns_and_gets_its_vote() {
    let mut sim = led(1);
    sim.propose(1, 10, 8).expect("a leader");
    sim.rest();
    sim.propose_change(1, ConfChangeKind::AddLearner, 2).expect("a leader");
    sim.rest();
    sim.add(2, Disk::default());
    sim.ticks(3);
    same(&sim, &[1, 2]);
    assert_eq!((ids(&sim.node(2).voters()), ids(&sim.node(2).learners())), (vec![1], vec![2]));
    assert!(sim.node(1).progress()[1].is_learner);
    // A learner neither campaigns nor is needed for a majority.
    sim.isolate(&[1]);
    sim.ticks(60);
    assert_eq!(sim.node(2).status().role, Role::Follower);
    sim.propose(1, 1, 8).expect("a leader");
    sim.rest();
    assert_eq!(sim.member(1).state.index, sim.node(1).status().last.0);
    sim.heal();
    sim.ticks(3);
    sim.propose_change(1, ConfChangeKind::AddVoter, 2).expect("a leader");
    sim.rest();
    assert_eq!(ids(&sim.node(2).voters()), [1, 2]);
    sim.isolate(&[1]);
    sim.propose(1, 1, 8).expect("a leader");
    sim.rest();
    assert!(sim.member(1).state.index < sim.node(1).status().last.0, "the new voter is needed");
    sim.heal();
    sim.ticks(3);
    same(&sim, &[1, 2]);
}

#[test]
fn leadership_is_handed_over() {
    let mut sim = led(3);
    sim.must_take(1, Request::Transfer(MemberId(3)));
    sim.rest();
    assert_eq!((sim.leader(), sim.node(1).transferring()), (Some(3), None));
    // Requested at a follower.
    sim.must_take(2, Request::Transfer(MemberId(2)));
    sim.rest();
    assert_eq!(sim.leader(), Some(2));
    // The transfer is to a member that lags behind, which first gets the missing entries.
    sim.isolate(&[1]);
    sim.propose(2, 5, 8).expect("a leader");
    sim.rest();
    sim.heal();
    sim.must_take(2, Request::Transfer(MemberId(1)));
    assert_eq!(sim.propose(2, 1, 8), Err(Refusal::Transferring));
    sim.ticks(3);
    assert_eq!(sim.leader(), Some(1));
    sim.ticks(1);
    same(&sim, &[1, 2, 3]);
}

#[test]
fn a_removed_leader_steps_down_and_a_removed_follower_disturbs_nobody() {
    let mut sim = led(4);
    sim.propose_change(1, ConfChangeKind::Remove, 1).expect("a leader");
    sim.rest();
    assert_eq!(sim.node(1).status().role, Role::Follower);
    assert_eq!(sim.propose(1, 1, 8), Err(Refusal::NoLeader));
    assert_eq!(
        sim.request(1, Request::Campaign),
        Err(Refusal::Other("this member must not campaign now".to_owned()))
    );
    sim.ticks(60);
    let leader = sim.leader().expect("the others elect one");
    assert_ne!(leader, 1);
    assert_eq!(ids(&sim.node(leader).voters()), [2, 3, 4]);
    let victim = if leader == 2 { 3 } else { 2 };
    // The removed member does not learn of its removal, and campaigns.
    sim.isolate(&[victim]);
    sim.propose_change(leader, ConfChangeKind::Remove, victim).expect("a leader");
    sim.rest();
    let term = sim.node(leader).status().term;
    sim.ticks(60);
    sim.heal();
    sim.ticks(60);
    assert_eq!(sim.leader(), Some(leader));
    assert_eq!(sim.node(leader).status().term, term);
}

/// Half of a cluster with an even number of voters, together with its leader, commits the removal of the
/// leader. The remaining members count the leader for their quorum until they know of the removal, so the
/// leader keeps running until then.
#[test]
fn a_removed_leader_goes_on_until_the_others_know() {
    for members in 3..=6 {
        let mut sim = led(members);
        sim.propose_change(1, ConfChangeKind::Remove, 1).expect("a leader");
        let change = sim.node(1).status().last;
        let tells = |message: &api::raftpb::Message| message.commit.is_some_and(|commit| commit >= change.0);
        for _ in 0..60 {
            sim.rest_losing(tells);
            sim.tick(1);
        }
        assert!(sim.node(1).is_leaving(), "nobody knows yet");
        assert_eq!(sim.node(1).status().role, Role::Follower);
        assert_eq!(sim.propose(1, 1, 8), Err(Refusal::NoLeader));
        assert_eq!(sim.read(1), Err(Refusal::NoLeader));
        assert_eq!(ids(&sim.node(1).voters()), (2..=members).collect::<Vec<u64>>());
        sim.rest();
        sim.tick(1);
        sim.rest();
        assert!(!sim.node(1).is_leaving(), "the others know");
        sim.crash(1, 0);
        sim.ticks(60);
        let leader = sim.leader().expect("the others elect one");
        sim.propose(leader, 1, 8).expect("a leader");
        sim.rest();
        let left: Vec<u64> = (2..=members).collect();
        same(&sim, &left);
        assert_eq!(ids(&sim.node(leader).voters()), left);
    }
}

#[test]
fn a_removed_leader_whom_nobody_answers_follows_the_next() {
    let mut sim = led(3);
    sim.propose_change(1, ConfChangeKind::Remove, 1).expect("a leader");
    let change = sim.node(1).status().last;
    let tells = |message: &api::raftpb::Message| message.commit.is_some_and(|commit| commit >= change.0);
    for _ in 0..3 {
        sim.rest_losing(tells);
        sim.tick(1);
    }
    assert!(sim.node(1).is_leaving());
    sim.isolate(&[1]);
    sim.ticks(60);
    let leader = sim.leader().expect("two of three elect one");
    assert_eq!(ids(&sim.node(leader).voters()), [2, 3]);
    sim.heal();
    sim.ticks(30);
    assert_eq!(sim.leader(), Some(leader));
    same(&sim, &[2, 3]);
}

/// The commit of a removal is written to disk even if nothing else has to be written. Otherwise the remaining
/// three of four members, one of which is down, would wait after a restart for the removed member.
#[test]
fn who_is_left_knows_of_a_removal_after_a_crash() {
    for removed in [4, 1] {
        let mut sim = led(4);
        sim.propose_change(1, ConfChangeKind::Remove, removed).expect("a leader");
        sim.rest();
        sim.ticks(3);
        let left: Vec<u64> = (1..=4).filter(|id| *id != removed).collect();
        (1..=4).for_each(|id| sim.crash(id, 0));
        left[..2].iter().for_each(|id| sim.start(*id));
        sim.ticks(60);
        let leader = sim.leader().expect("two of three are enough");
        assert_eq!(ids(&sim.node(leader).voters()), left);
    }
}

/// The removed member ends once it knows of its removal. By then the remaining members have the removal on
/// disk, even if their disks are as late as possible: otherwise they would wait forever for the vote of the
/// removed member. One of the four members is down during the whole test.
#[test]
fn who_is_left_knows_before_the_removed_member_ends() {
    for (members, removed) in [(2, 2), (2, 1), (4, 2)] {
        let mut sim = led(members);
        sim.voters_min = 1;
        if members == 4 {
            sim.crash(4, 0);
        }
        let left: Vec<u64> = sim.running().into_iter().filter(|id| *id != removed).collect();
        sim.propose_change(1, ConfChangeKind::Remove, removed).expect("a leader");
        let mut steps = 0;
        while sim.node(removed).is_leaving() || !sim.member(removed).state.removed.contains(&removed) {
            steps += 1;
            assert!(steps < 1000, "{removed} does not hear of its removal\n{}", sim.describe());
            let messages = std::mem::take(&mut sim.network);
            let quiet = messages.is_empty();
            messages.into_iter().for_each(|message| sim.deliver(message));
            sim.sync(removed, usize::MAX);
            sim.running().into_iter().for_each(|id| sim.apply(id, usize::MAX));
            let late = left.iter().copied().find(|id| sim.member(*id).unsynced() > 0);
            match late {
                Some(late) if quiet => sim.sync(late, 1),
                None if quiet => sim.tick(1),
                _ => {}
            }
        }
        sim.crash(removed, 0);
        left.iter().for_each(|id| sim.crash(*id, 0));
        left.iter().for_each(|id| sim.start(*id));
        sim.ticks(60);
        let leader = sim.leader().unwrap_or_else(|| panic!("nobody leads\n{}", sim.describe()));
        assert!(!ids(&sim.node(leader).voters()).contains(&removed));
        sim.propose(leader, 1, 8).expect("a leader");
    }
}

/// No member ends because of a change that removes no member, so the commit of such a change may be
/// forgotten, and the leader's hanging disk delays nothing. The commit of a removal is announced and
/// confirmed only once it is on the leader's disk.
#[test]
fn only_the_commit_of_a_removal_waits_for_the_disk_of_whoever_tells_it() {
    for (kind, node, tells) in [
        (ConfChangeKind::Update, 2, true),
        (ConfChangeKind::AddLearner, 4, true),
        (ConfChangeKind::AddVoter, 4, true),
        (ConfChangeKind::Remove, 3, false),
    ] {
        let mut sim = led(3);
        sim.propose_change(1, kind, node).expect("a leader");
        let change = sim.node(1).status().last;
        for _ in 0..4 {
            for message in std::mem::take(&mut sim.network) {
                sim.deliver(message);
            }
            sim.sync(2, usize::MAX);
            sim.sync(3, usize::MAX);
        }
        assert!(sim.member(1).unsynced() > 0);
        assert_eq!(sim.node(1).status().commit, change);
        sim.network.clear();
        (0..2).for_each(|_| sim.tick(1));
        let sends = |sim: &Sim, kind| sim.network.iter().any(|message| message.r#type() == kind);
        assert_eq!(sends(&sim, MessageType::MsgHeartbeat), tells, "{kind:?}");
        sim.must_take(1, Request::Transfer(MemberId(2)));
        assert_eq!(sends(&sim, MessageType::MsgTimeoutNow), tells, "{kind:?}");
        sim.sync(1, usize::MAX);
        assert!(sends(&sim, MessageType::MsgTimeoutNow), "{kind:?}");
    }
}

#[test]
fn a_leader_says_in_its_first_message_that_it_binds_proposals() {
    let mut sim = led(3);
    assert!((1..=3).all(|id| sim.node(id).binds_proposals()));
    sim.must_take(1, Request::Transfer(MemberId(2)));
    sim.rest();
    assert_eq!(sim.leader(), Some(2));
    assert!((1..=3).all(|id| sim.node(id).binds_proposals()), "without a tick");
    // A member that has received no message of the leader yet does not assume that the leader binds
    // proposals.
    sim.crash(3, 0);
    sim.start(3);
    assert!(!sim.node(3).binds_proposals());
}

#[test]
fn members_say_that_they_do_not_run_etcd_and_hear_it_of_the_others() {
    let mut sim = led(3);
    (0..2).for_each(|_| sim.tick(1));
    sim.rest();
    assert_eq!(sim.node(1).others(), OtherPrograms::Mainstay);
    (0..2).for_each(|_| sim.tick(1));
    sim.rest();
    assert!((1..=3).all(|id| sim.node(id).has_no_etcd()));
    assert_eq!(sim.node(2).others(), OtherPrograms::Unheard, "it does not lead");
    // Answers of an earlier term may be outdated.
    sim.isolate(&[3]);
    sim.must_take(1, Request::Transfer(MemberId(2)));
    sim.rest();
    (0..2).for_each(|_| sim.tick(2));
    sim.rest();
    assert_eq!((sim.leader(), sim.node(2).others()), (Some(2), OtherPrograms::Unheard));
    assert!(!sim.node(1).has_no_etcd() && !sim.node(2).has_no_etcd());
}

#[test]
fn reads_at_the_leader_at_followers_and_behind_a_partition() {
    let mut sim = led(3);
    let at_leader = sim.read(1).expect("a leader");
    let at_follower = sim.read(2).expect("knows a leader");
    sim.rest();
    assert_eq!(sim.answered_reads[&at_leader], sim.commit);
    assert_eq!(sim.answered_reads[&at_follower], sim.commit);
    sim.isolate(&[1]);
    let alone = sim.read(1).expect("it believes to lead");
    sim.rest();
    sim.tick(2);
    sim.must(2, Event::StepDownRequested);
    // The other members elect one of them and write.
    for _ in 0..60 {
        for id in [2, 3] {
            sim.tick(id);
        }
        sim.rest();
    }
    let leader = sim.leader().expect("elected");
    assert_ne!(leader, 1);
    sim.propose(leader, 1, 8).expect("a leader");
    sim.rest();
    assert!(!sim.answered_reads.contains_key(&alone), "answered without a majority");
    let stale = sim.read(1).expect("it still believes to lead");
    sim.rest();
    sim.heal();
    sim.ticks(5);
    assert!(!sim.answered_reads.contains_key(&stale));
    let now = sim.read(1).expect("it knows the leader");
    sim.rest();
    assert_eq!(sim.answered_reads[&now], sim.commit);
}

#[test]
fn reads_wait_until_the_leader_has_committed_in_its_term() {
    let mut sim = led(3);
    sim.must_take(1, Request::Transfer(MemberId(2)));
    while sim.leader() != Some(2) || sim.network.is_empty() {
        let message = sim.network.remove(0);
        sim.deliver(message);
        for id in [1, 2, 3] {
            if sim.leader() != Some(2) {
                sim.sync(id, usize::MAX);
            }
        }
    }
    // The leader's first append is in flight; member 3 receives it before it is on any disk.
    let early = sim.read(2).expect("a leader");
    for message in std::mem::take(&mut sim.network) {
        sim.deliver(message);
    }
    let forwarded = sim.read(3).expect("knows the leader");
    for _ in 0..3 {
        for message in std::mem::take(&mut sim.network) {
            sim.deliver(message);
        }
    }
    assert!(sim.answered_reads.is_empty(), "answered before anything was committed");
    sim.rest();
    assert_eq!(sim.answered_reads[&early], sim.commit);
    assert_eq!(sim.answered_reads[&forwarded], sim.commit);
    // Waiting reads are dropped with the leadership of the leader that holds them.
    sim.isolate(&[2]);
    sim.must(2, Event::StepDownRequested);
    assert_eq!(sim.read(2), Err(Refusal::NoLeader));
}

#[test]
fn one_membership_change_at_a_time() {
    let mut sim = led(3);
    sim.propose_change(1, ConfChangeKind::AddLearner, 4).expect("a leader");
    let refused = sim.propose_change(1, ConfChangeKind::AddLearner, 5);
    assert_eq!(
        refused,
        Err(Refusal::Other("an earlier membership change may not be applied yet".to_owned()))
    );
    sim.rest();
    sim.propose_change(1, ConfChangeKind::AddLearner, 5).expect("the first one is applied");
    sim.rest();
    assert_eq!(ids(&sim.node(3).learners()), [4, 5]);
}

#[test]
fn reads_that_wait_are_bounded() {
    let mut sim = led(3);
    sim.isolate(&[1]);
    for _ in 0..4096 {
        sim.read(1).expect("there is room");
    }
    assert_eq!(sim.read(1), Err(Refusal::Other("too many reads wait for confirmation".to_owned())));
}

#[test]
fn a_member_that_comes_back_does_not_depose_the_leader() {
    let mut sim = led(3);
    let term = sim.node(1).status().term;
    sim.isolate(&[3]);
    sim.ticks(100);
    assert_eq!(sim.node(3).status().role, Role::Candidate);
    sim.propose(1, 1, 8).expect("a leader");
    sim.heal();
    sim.ticks(30);
    assert_eq!((sim.leader(), sim.node(1).status().term), (Some(1), term));
    same(&sim, &[1, 2, 3]);
}

#[test]
fn a_leader_without_a_majority_steps_down() {
    let mut sim = led(3);
    sim.isolate(&[1]);
    for _ in 0..25 {
        sim.tick(1);
        sim.rest();
    }
    assert_ne!(sim.node(1).status().role, Role::Leader);
    assert_eq!(sim.read(1), Err(Refusal::NoLeader));
}

#[test]
fn a_leader_steps_down_when_told() {
    let mut sim = led(3);
    let term = sim.node(1).status().term;
    sim.must(1, Event::StepDownRequested);
    assert_eq!((sim.node(1).status().role, sim.node(1).status().term), (Role::Follower, term));
    sim.ticks(60);
    let leader = sim.leader().expect("somebody leads again");
    assert!(sim.node(leader).status().term > term);
}

#[test]
fn a_member_with_a_stalled_disk_does_not_campaign() {
    let mut sim = led(3);
    sim.must(2, Event::DiskStalled);
    sim.must_take(1, Request::Transfer(MemberId(2)));
    sim.rest();
    assert_eq!(sim.leader(), Some(1));
    assert_eq!(
        sim.request(2, Request::Campaign),
        Err(Refusal::Other("this member must not campaign now".to_owned()))
    );
    sim.ticks(12);
    sim.must(3, Event::DiskStalled);
    sim.crash(1, 0);
    sim.ticks(100);
    assert_eq!(sim.leader(), None);
    sim.must(2, Event::DiskRecovered);
    sim.ticks(60);
    assert_eq!(sim.leader(), Some(2));
    // A member that is already campaigning gives up when it finds the leader.
    sim.crash(2, 0);
    sim.must(3, Event::DiskRecovered);
    sim.ticks(60);
    assert_eq!(sim.node(3).status().role, Role::Candidate);
    sim.must(3, Event::DiskStalled);
    assert_eq!(sim.node(3).status().role, Role::Follower);
}

#[test]
fn bytes_in_flight_are_limited_and_lost_appends_found() {
    let mut sim = led(3);
    let under_way = |sim: &Sim, to| {
        let to_it = sim.network.iter().filter(|m| m.to() == to).flat_map(|m| &m.entries);
        to_it.map(|e| e.data().len()).sum::<usize>()
    };
    for _ in 0..20 {
        sim.propose(1, 1, 100).expect("a leader");
    }
    assert_eq!((under_way(&sim, 2), under_way(&sim, 3)), (500, 500));
    // All appends in flight are lost; later ones still arrive, and member 3 refuses them.
    let lost: Vec<_> = sim.network.drain(..).filter(|m| m.to() == 2).collect();
    sim.rest();
    for message in lost {
        sim.deliver(message);
    }
    sim.ticks(10);
    same(&sim, &[1, 2, 3]);
    assert_eq!(sim.member(1).state.index, sim.node(1).status().last.0);
}

/// Batches of an idle leader leave nothing behind, and a crash of all members loses nothing acknowledged.
#[test]
fn everybody_crashes() {
    let mut sim = led(3);
    sim.propose(1, 5, 8).expect("a leader");
    sim.rest();
    sim.ticks(2);
    let commit = sim.commit;
    for id in [1, 2, 3] {
        sim.crash(id, 0);
    }
    for id in [1, 2, 3] {
        sim.start(id);
    }
    sim.ticks(60);
    let leader = sim.leader().expect("elected");
    assert!(sim.node(leader).status().commit > Index(commit));
    same(&sim, &[1, 2, 3]);
}

/// Returns a led cluster of three with observer 101 fed by `feeder`, and observer 102 fed by 101.
fn observed(feeder: u64) -> Sim {
    let mut sim = led(3);
    sim.add_observer(101);
    sim.add_observer(102);
    sim.observe(101, feeder);
    sim.observe(102, 101);
    sim.ticks(2);
    same(&sim, &[1, 101, 102]);
    sim
}

#[test]
fn observers_follow_any_member_and_each_other() {
    for feeder in [1, 2] {
        let mut sim = observed(feeder);
        sim.propose(1, 3, 8).expect("a leader");
        sim.propose(102, 2, 8).expect("forwarded over three");
        sim.rest();
        same(&sim, &[1, 2, 3, 101, 102]);
        let context = sim.read(102).expect("it knows its feeder");
        sim.rest();
        assert_eq!(sim.answered_reads.get(&context), Some(&sim.commit));
        let status = sim.node(102).status();
        assert_eq!((status.leader, status.role), (MemberId(1), Role::Follower));
        assert_eq!(sim.node(102).source(), MemberId(101));
        assert_eq!(sim.node(feeder).observers().iter().map(|p| p.id.0).collect::<Vec<_>>(), [101]);
        assert_eq!(ids(&sim.node(101).voters()), [1, 2, 3]);
        assert!(sim.node(101).learners().is_empty() && sim.node(1).learners().is_empty());
        assert!(sim.node(1).progress().iter().all(|p| p.id.0 <= 3), "an observer is no follower");
    }
}

#[test]
fn an_observer_counts_for_no_quorum() {
    let mut sim = observed(1);
    sim.isolate(&[2, 3]);
    let commit = sim.node(1).status().commit;
    sim.propose(1, 1, 8).expect("it leads still");
    sim.rest();
    assert_eq!(sim.node(1).status().commit, commit);
    let context = sim.read(101).expect("it knows its feeder");
    sim.rest();
    assert!(!sim.answered_reads.contains_key(&context), "a read that no majority confirms");
    sim.ticks(60);
    assert_ne!(sim.node(1).status().role, Role::Leader, "the leader lost its quorum");
    assert_eq!(sim.node(101).status().leader, MemberId(0), "and its observers hear that");
    assert_eq!(sim.member(101).state.index, commit.0);
}

#[test]
fn an_observer_that_is_far_behind_gets_old_entries_or_a_snapshot() {
    let mut sim = observed(2);
    sim.isolate(&[101]);
    for _ in 0..20 {
        sim.propose(1, 1, 100).expect("a leader");
        sim.rest();
    }
    sim.checkpoint(2);
    sim.forget(2, 0);
    let restores = sim.restores;
    sim.heal();
    sim.ticks(130);
    same(&sim, &[2, 101, 102]);
    assert!(sim.fetched >= 20 && sim.restores == restores);
    sim.isolate(&[101]);
    for _ in 0..20 {
        sim.propose(1, 1, 100).expect("a leader");
        sim.rest();
    }
    sim.checkpoint(2);
    sim.discard(2, 0);
    sim.heal();
    sim.ticks(130);
    same(&sim, &[2, 101, 102]);
    assert!(sim.restores > restores);
}

#[test]
fn an_observer_goes_to_another_feeder_and_takes_its_lower_term() {
    let mut sim = observed(3);
    // Without a majority, member 3 campaigns in ever newer terms, and tells them to its observer.
    sim.pre_vote = false;
    sim.crash(3, usize::MAX);
    sim.start(3);
    sim.observe(101, 3);
    sim.isolate(&[3, 101, 102]);
    sim.ticks(80);
    let lonely = sim.node(101).status().term;
    assert!(lonely > sim.node(1).status().term);
    sim.propose(1, 2, 8).expect("a leader");
    sim.heal();
    sim.isolate(&[3]);
    sim.observe(101, 2);
    sim.ticks(6);
    same(&sim, &[1, 2, 101, 102]);
    assert_eq!(sim.node(101).status().term, sim.node(1).status().term);
    assert!(sim.node(1).status().term < lonely, "and no member has heard of that term");
    sim.propose(101, 1, 8).expect("forwarded");
    sim.rest();
    same(&sim, &[1, 2, 101, 102]);
}

#[test]
fn a_feeder_with_another_history_is_refused() {
    let mut sim = observed(1);
    sim.propose(1, 3, 8).expect("a leader");
    sim.rest();
    let index = sim.member(101).state.index;
    let message = raftpb::Message {
        r#type: Some(MessageType::MsgApp as i32),
        to: Some(101),
        from: Some(1),
        term: Some(9),
        log_term: Some(8),
        index: Some(index),
        commit: Some(index),
        ..raftpb::Message::default()
    };
    let refused = sim.request(101, Request::Receive(message));
    assert_eq!(refused, Err(Refusal::OtherHistory { index: Index(index), term: 8 }));
    let before = sim.member(101).state.clone();
    sim.ticks(2);
    assert_eq!(sim.member(101).state, before);
}

#[test]
fn observers_that_feed_each_other_notice_it() {
    let mut sim = observed(1);
    sim.observe(101, 102);
    sim.must(101, Event::ObserverAdded(MemberId(102)));
    sim.ticks(20);
    assert_eq!(sim.node(101).status().leader, MemberId(0));
    assert_eq!(sim.node(102).status().leader, MemberId(0));
    assert_eq!(sim.read(101), Err(Refusal::NoLeader));
    assert_eq!(sim.propose(102, 1, 8), Err(Refusal::NoLeader));
    sim.observe(101, 3);
    sim.must(101, Event::ObserverAdded(MemberId(102)));
    sim.propose(1, 1, 8).expect("a leader");
    sim.ticks(30);
    same(&sim, &[1, 101, 102]);
    assert_eq!((sim.node(101).feed_depth(), sim.node(102).feed_depth()), (1, 2));
}

#[test]
fn an_observer_that_cannot_be_reached_costs_its_feeder_one_message_a_tick() {
    let mut sim = observed(1);
    sim.crash(101, usize::MAX);
    sim.propose(1, 3, 8).expect("a leader");
    sim.rest();
    for _ in 0..3 {
        sim.must(1, Event::PeerUnreachable(MemberId(101)));
        sim.must(1, Event::SnapshotReported { to: MemberId(101), delivered: false });
    }
    assert!(sim.network.iter().all(|message| message.to() != 101), "it is asked again without being heard");
    sim.tick(1);
    assert_eq!(sim.network.iter().filter(|message| message.to() == 101).count(), 1, "a heartbeat");
    sim.rest();
    sim.start(101);
    sim.observe(101, 1);
    sim.ticks(3);
    same(&sim, &[1, 101]);
}

#[test]
fn an_observer_that_returns_without_its_data_is_fed_from_the_beginning() {
    let mut sim = observed(1);
    sim.propose(1, 3, 8).expect("a leader");
    sim.rest();
    sim.crash(101, 0);
    sim.add_observer(101);
    sim.must(101, Event::FeederChosen { feeder: MemberId(1), silence_max: 0 });
    // The feeder does not know yet that the observer has started again. Its heartbeats are taken.
    sim.ticks(2);
    assert_eq!(sim.node(101).status().leader, MemberId(1));
    sim.must(1, Event::ObserverAdded(MemberId(101)));
    sim.ticks(2);
    same(&sim, &[1, 101]);
}
