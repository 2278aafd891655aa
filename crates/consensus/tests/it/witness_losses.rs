//! What a witness must not make worse: leaders that are elected again, removals while it counts, and what a member says that
//! cannot lead.

use consensus::{ConfChangeKind, Event, Request};
use mainstay_consensus as consensus;
use numbers::MemberId;

use crate::sim::{Sim, WITNESS};

const TIMEOUT: usize = 10;

fn led() -> Sim {
    let mut sim = Sim::with_witness(7, 2);
    sim.rest();
    sim.must_take(2, Request::Campaign);
    sim.rest();
    assert_eq!(sim.leader(), Some(2));
    // 2 hands over to 1, which then leads for long.
    sim.must_take(2, Request::Transfer(MemberId(1)));
    sim.rest();
    assert_eq!(sim.leader(), Some(1));
    sim.ticks(5 * TIMEOUT);
    assert_eq!(sim.leader(), Some(1));
    assert!(!sim.node(1).counts_witness());
    sim
}

/// A leader that stands down and is elected again does not wait for the member it followed long ago.
#[test]
fn a_leader_elected_again_waits_for_a_member_that_answered_a_tick_ago() {
    let mut sim = led();
    let acknowledged = sim.commit;
    sim.must(1, Event::StepDownRequested);
    sim.ticks(TIMEOUT);
    // now the lease of W and 2 has expired or 1 campaigns itself
    sim.must_take(1, Request::Campaign);
    // 2 votes and is then slow for a few ticks (less than an election timeout).
    sim.isolate(&[2]);
    sim.rest();
    assert_eq!(sim.leader(), Some(1), "{}", sim.describe());
    sim.propose(1, 1, 8).expect("leads");
    sim.rest();
    let now = sim.commit;
    sim.crash(1, usize::MAX);
    sim.heal();
    sim.ticks(20 * TIMEOUT);
    assert!(
        now == acknowledged,
        "committed {now} (was {acknowledged}) with the witness at once, though member 2 was silent for 0 ticks; leader now {:?}",
        sim.leader()
    );
}

/// WitnessSet in the middle of a term.
#[test]
fn a_witness_that_is_added_does_not_make_a_present_member_lost() {
    let mut sim = Sim::new(7, 2);
    sim.rest();
    sim.must_take(2, Request::Campaign);
    sim.rest();
    sim.must_take(2, Request::Transfer(MemberId(1)));
    sim.rest();
    sim.ticks(5 * TIMEOUT);
    assert_eq!(sim.leader(), Some(1));
    sim.add(WITNESS, crate::sim::Disk::default());
    sim.propose_change(1, ConfChangeKind::AddVoter, WITNESS).expect("a leader");
    sim.rest();
    assert_eq!(sim.node(1).witness(), MemberId(WITNESS));
    let before = sim.commit;
    sim.isolate(&[2]);
    sim.propose(1, 1, 8).expect("leads");
    sim.rest();
    for tick in 0..TIMEOUT - 1 {
        assert_eq!(sim.commit, before, "committed after {tick} ticks");
        sim.ticks(1);
    }
}

/// A member that only has an old term is told to be behind the witness.
#[test]
fn not_behind_but_of_an_older_term() {
    let mut sim = led();
    sim.rest();
    // Member 2 is cut off; 1 is elected again, so W and 1 have a newer term, nothing was written but the first entry
    sim.isolate(&[2]);
    sim.must(1, Event::StepDownRequested);
    sim.ticks(TIMEOUT);
    // W votes in a newer term for a candidate that dies before it leads
    if sim.leader() != Some(1) {
        sim.must_take(1, Request::Campaign);
    }
    for _ in 0..6 {
        for message in std::mem::take(&mut sim.network) {
            if message.to() == WITNESS
                || message.from() == WITNESS && message.r#type() != api::raftpb::MessageType::MsgVoteResp
            {
                sim.deliver(message);
            }
        }
        sim.sync(1, 9);
        sim.sync(WITNESS, 9);
    }
    sim.crash(1, 0);
    sim.heal();
    let (t2, tw) = (sim.node(2).status().term, sim.node(WITNESS).status().term);
    let (l2, lw) = (sim.node(2).status().last, sim.node(WITNESS).status().last);
    assert!(tw > t2 && l2 >= lw, "{t2} {tw} {l2} {lw}");
    for _ in 0..10 * TIMEOUT {
        sim.ticks(1);
        assert!(
            !sim.node(2).is_behind_witness(),
            "says that it is behind the witness: last {l2}, that of the witness {lw}"
        );
        if sim.leader() == Some(2) {
            return;
        }
    }
    panic!("no leader");
}

/// Without pre-votes nobody says why there is no leader.
#[test]
fn behind_without_pre_vote() {
    let mut sim = Sim::with_witness(7, 2);
    sim.pre_vote = false;
    for id in sim.running() {
        sim.crash(id, usize::MAX);
    }
    for id in [1, 2, WITNESS] {
        sim.start(id);
    }
    sim.rest();
    sim.must_take(1, Request::Campaign);
    sim.rest();
    sim.isolate(&[2]);
    sim.propose(1, 4, 8).expect("a leader");
    sim.ticks(2 * TIMEOUT);
    sim.crash(1, usize::MAX);
    sim.heal();
    let mut says = 0;
    for _ in 0..20 * TIMEOUT {
        sim.ticks(1);
        says += u32::from(sim.node(2).is_behind_witness());
    }
    assert_eq!(sim.leader(), None);
    assert!(says > 0, "never says why");
}

/// The only member with the newest writes is removed while the other lags.
#[test]
fn the_only_member_with_the_writes_is_removed() {
    let mut sim = led();
    sim.voters_min = 1;
    sim.isolate(&[2]);
    sim.propose(1, 4, 8).expect("a leader");
    sim.ticks(2 * TIMEOUT);
    assert!(sim.node(1).counts_witness());
    // Member 2 is connected again, answers heartbeats, but its catching up takes a while.
    sim.heal();
    let slow = |message: &api::raftpb::Message| {
        message.to() == 2 && message.r#type() == api::raftpb::MessageType::MsgApp
    };
    sim.rest_losing(slow);
    assert!(sim.propose_change(1, ConfChangeKind::Remove, 1).is_err(), "member 2 lacks what member 1 has");
    // Nor if another member forwards it.
    let _ = sim.propose_change(2, ConfChangeKind::Remove, 1);
    sim.rest_losing(slow);
    for _ in 0..5 * TIMEOUT {
        for id in sim.running() {
            sim.tick(id);
        }
        sim.rest_losing(slow);
    }
    assert!(sim.member(1).state.voters.contains(&1), "it is not removed");
    // Once member 2 has everything, the removal is taken.
    sim.ticks(3 * TIMEOUT);
    let acknowledged = sim.commit;
    assert!(!sim.node(1).counts_witness());
    sim.propose_change(1, ConfChangeKind::Remove, 1).expect("all are in step");
    sim.rest();
    sim.ticks(1);
    sim.crash(1, usize::MAX);
    sim.ticks(20 * TIMEOUT);
    assert_eq!(sim.leader(), Some(2), "acknowledged {acknowledged}: {}", sim.describe());
}

/// A peer that does not know the witness asks the leader to hand over to it.
#[test]
fn a_transfer_to_the_witness_that_another_member_forwards() {
    let mut sim = led();
    let term = sim.node(1).status().term.0;
    let ask = api::raftpb::Message {
        r#type: Some(api::raftpb::MessageType::MsgTransferLeader as i32),
        to: Some(1),
        from: Some(WITNESS),
        term: Some(term),
        ..Default::default()
    };
    let _ = sim.request(1, Request::Receive(ask));
    sim.rest();
    assert_eq!(sim.node(1).transferring(), None, "proposals are refused: {:?}", sim.propose(1, 1, 8));
}

/// Closed loop of clients; member 2 is alive and a third as fast; one stall of 1.2 timeouts.
#[test]
fn a_slower_member_comes_back_into_step_under_load() {
    let mut sim = led();
    sim.bytes_in_flight_max = 1 << 20;
    let mut counted = 0;
    for tick in 0..600 {
        for id in sim.running() {
            sim.tick(id);
        }
        // member 2 has time for two writes to its disk in each tick, except for one stall
        let mut budget = if (50..62).contains(&tick) { 0 } else { 2 };
        for _ in 0..12 {
            let outstanding = sim.node(1).status().last.0 - sim.node(1).status().commit.0;
            if outstanding < 8 {
                let _ = sim.propose(1, 1, 8);
            }
            for message in std::mem::take(&mut sim.network) {
                sim.deliver(message);
            }
            for id in [1, WITNESS] {
                sim.sync(id, usize::MAX);
                sim.apply(id, usize::MAX);
            }
            if budget > 0 && sim.member(2).unsynced() > 0 {
                sim.sync(2, 1);
                budget -= 1;
            }
            sim.apply(2, usize::MAX);
            while !sim.member(1).fetches.is_empty() {
                sim.fetch(1, usize::MAX);
            }
        }
        if tick > 62 && sim.node(1).counts_witness() {
            counted += 1;
        }
    }
    assert!(counted < 300, "after one stall of 12 ticks the witness counts in {counted} of 537 ticks");
}

/// A removal that is under way when the other member falls silent is not committed with the witness.
#[test]
fn a_removal_under_way_waits_for_the_member_that_stays() {
    let mut sim = led();
    sim.voters_min = 1;
    sim.isolate(&[2]);
    sim.propose(1, 2, 8).expect("a leader");
    sim.propose_change(1, ConfChangeKind::Remove, 1).expect("all were in step");
    sim.ticks(5 * TIMEOUT);
    assert!(sim.node(1).counts_witness());
    assert!(sim.member(1).state.voters.contains(&1), "it is not removed: {}", sim.describe());
    sim.heal();
    sim.ticks(5 * TIMEOUT);
    sim.crash(1, usize::MAX);
    sim.ticks(20 * TIMEOUT);
    assert_eq!(sim.leader(), Some(2), "{}", sim.describe());
}

#[test]
fn a_process_of_the_wrong_kind_is_refused() {
    use consensus::{Config, HardState, Node, RestoredState};
    use numbers::{Index, Term};
    for (is_witness, witness) in [(true, 9), (false, 1), (true, 1), (false, 9)] {
        let config = Config { id: MemberId(1), is_witness, ..Config::default() };
        let restored = RestoredState {
            hard_state: HardState { term: Term(1), vote: MemberId(0), commit: Index(0) },
            voters: vec![MemberId(1), MemberId(2), MemberId(9)],
            witness: MemberId(witness),
            ..RestoredState::default()
        };
        let fits = is_witness == (witness == 1);
        assert_eq!(Node::new(config.clone(), restored).is_ok(), fits, "{is_witness} {witness}");
        // The same if the node hears of it later.
        let mut node = Node::new(config, RestoredState::default()).expect("knows no members yet");
        let set = node.step(Event::WitnessSet(MemberId(witness)));
        let add = consensus::ConfChange { kind: ConfChangeKind::AddVoter, node: MemberId(1) };
        let added = set.and_then(|()| node.step(Event::ConfChanged(add)));
        assert_eq!(added.is_ok(), fits, "{is_witness} {witness}: {added:?}");
    }
}
