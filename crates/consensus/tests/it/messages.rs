//! Which messages members save, and that what those messages are for still happens.

use api::raftpb::{self, MessageType};
use bytes::Bytes;
use consensus::{Event, Request};
use mainstay_consensus as consensus;

use crate::sim::Sim;

/// Returns a cluster at rest, led by member 1, all of whose members know that it runs Mainstay.
fn led(voters: u64) -> Sim {
    let mut sim = Sim::new(7, voters);
    sim.rest();
    sim.must_take(1, Request::Campaign);
    sim.rest();
    sim.ticks(3);
    assert_eq!(sim.leader(), Some(1));
    sim
}

/// Delivers the messages that are in flight, and returns their kinds and receivers, in order of receivers.
fn exchange(sim: &mut Sim) -> Vec<(MessageType, u64)> {
    let mut messages = std::mem::take(&mut sim.network);
    let mut told: Vec<_> = messages.iter().map(|message| (message.r#type(), message.to())).collect();
    told.sort_unstable_by_key(|(kind, to)| (*to, *kind as i32));
    messages.drain(..).for_each(|message| sim.deliver(message));
    told
}

#[test]
fn a_read_of_a_follower_of_three_takes_two_messages() {
    let mut sim = led(3);
    let read = sim.read(2).expect("knows a leader");
    assert_eq!(exchange(&mut sim), [(MessageType::MsgReadIndex, 1)]);
    assert_eq!(exchange(&mut sim), [(MessageType::MsgReadIndexResp, 2)]);
    assert_eq!(sim.answered_reads[&read], sim.commit);
    assert!(sim.network.is_empty());
}

#[test]
fn a_read_of_a_follower_of_five_needs_one_more_member() {
    let mut sim = led(5);
    let read = sim.read(2).expect("knows a leader");
    exchange(&mut sim);
    assert_eq!(exchange(&mut sim), [2, 3, 4, 5].map(|to| (MessageType::MsgHeartbeat, to)));
    sim.rest();
    assert_eq!(sim.answered_reads[&read], sim.commit);
    // Without other members, the asker and the leader are no majority.
    sim.isolate(&[1, 2]);
    let alone = sim.read(2).expect("it believes to know the leader");
    sim.rest();
    assert!(!sim.answered_reads.contains_key(&alone));
}

/// Returns a read that member `from` forwards to member 1, which names this term.
fn forwarded(from: u64, context: u64, term: u64) -> raftpb::Message {
    let data = Some(Bytes::copy_from_slice(&context.to_be_bytes()));
    let entry = raftpb::Entry { data, term: Some(term), ..raftpb::Entry::default() };
    let (to, from) = (Some(1), Some(from));
    let r#type = Some(MessageType::MsgReadIndex as i32);
    raftpb::Message { r#type, to, from, entries: vec![entry], ..raftpb::Message::default() }
}

#[test]
fn a_read_that_names_no_term_or_an_older_one_is_confirmed_by_heartbeats() {
    let mut sim = led(3);
    let term = sim.node(1).status().term.0;
    for named in [0, term - 1, term + 1] {
        sim.must_take(1, Request::Receive(forwarded(2, named, named)));
        assert_eq!(exchange(&mut sim), [2, 3].map(|to| (MessageType::MsgHeartbeat, to)), "it names {named}");
        let told = exchange(&mut sim);
        assert_eq!(told, [(MessageType::MsgHeartbeatResp, 1); 2]);
        let answer = sim.network.pop().expect("confirmed");
        assert_eq!((answer.r#type(), answer.to()), (MessageType::MsgReadIndexResp, 2));
        assert!(sim.network.is_empty());
    }
    // The asker has no vote, so it does not count.
    sim.must_take(1, Request::Receive(forwarded(9, 9, term)));
    assert_eq!(exchange(&mut sim).len(), 2);
}

#[test]
fn reads_that_arrive_together_share_their_heartbeats() {
    let mut sim = led(5);
    // Without effects in between, as in one turn of a core.
    let node = sim.node_mut(1);
    for from in 2..=4 {
        node.request(Request::Receive(forwarded(from, from, 0))).expect("taken");
    }
    node.request(Request::Read(77)).expect("taken");
    let effects = node.effects().expect("heartbeats");
    assert_eq!(effects.messages.len(), 4, "{:?}", effects.messages);
    let context = effects.messages[0].context.clone();
    let mut answers = Vec::new();
    let mut confirmed = Vec::new();
    for from in [2, 3] {
        let response = raftpb::Message {
            r#type: Some(MessageType::MsgHeartbeatResp as i32),
            to: Some(1),
            from: Some(from),
            term: Some(node.status().term.0),
            context: context.clone(),
            ..raftpb::Message::default()
        };
        node.request(Request::Receive(response)).expect("taken");
        assert!(from == 3 || node.effects().is_none(), "two of five are no majority");
    }
    while let Some(effects) = node.effects() {
        answers.extend(effects.messages.iter().map(|message| (message.r#type(), message.to())));
        confirmed.extend(effects.reads.iter().map(|read| read.number));
    }
    assert_eq!(answers, [2, 3, 4].map(|to| (MessageType::MsgReadIndexResp, to)));
    assert_eq!(confirmed, [77]);
}

/// Counts the appends without entries among the messages in flight.
fn empty_appends(sim: &Sim) -> usize {
    sim.network
        .iter()
        .filter(|message| message.r#type() == MessageType::MsgApp && message.entries.is_empty())
        .count()
}

#[test]
fn reads_beside_a_write_cause_no_appends() {
    let mut sim = led(3);
    sim.propose(1, 1, 8).expect("a leader");
    exchange(&mut sim);
    sim.tick(1);
    exchange(&mut sim);
    // The followers have not synced, so each response to a heartbeat finds the leader ahead of what it knows.
    let mut repeated = 0;
    for _ in 0..5 {
        sim.read(1).expect("a leader");
        for _ in 0..3 {
            exchange(&mut sim);
            repeated += empty_appends(&sim);
        }
    }
    assert!(repeated <= 2, "{repeated} appends: one per follower and tick are enough");
    sim.rest();
    assert_eq!(sim.member(3).state.index, sim.node(1).status().last.0);
}

#[test]
fn a_commit_is_told_and_not_acknowledged() {
    let mut sim = led(3);
    sim.propose(1, 1, 8).expect("a leader");
    sim.sync(1, usize::MAX);
    assert_eq!(exchange(&mut sim), [2, 3].map(|to| (MessageType::MsgApp, to)));
    sim.sync(2, usize::MAX);
    sim.sync(3, usize::MAX);
    assert_eq!(exchange(&mut sim), [(MessageType::MsgAppResp, 1); 2]);
    assert_eq!(empty_appends(&sim), 2, "the commit");
    exchange(&mut sim);
    assert!(sim.network.is_empty(), "{:?}", sim.network);
    assert_eq!(sim.node(2).status().commit, sim.node(1).status().commit);
}

#[test]
fn a_lost_acknowledgement_is_repeated() {
    let mut sim = led(3);
    sim.isolate(&[3]);
    sim.propose(1, 1, 8).expect("a leader");
    sim.sync(1, usize::MAX);
    exchange(&mut sim);
    sim.sync(2, usize::MAX);
    sim.network.retain(|message| message.r#type() != MessageType::MsgAppResp);
    sim.rest();
    let last = sim.node(1).status().last;
    assert!(sim.node(1).status().commit < last, "the only acknowledgement is lost");
    sim.ticks(5);
    assert_eq!(sim.node(1).status().commit, last);
    // The acknowledgement of a member whose vote is not needed is lost while the commit is being told.
    sim.heal();
    sim.ticks(5);
    sim.propose(1, 1, 8).expect("a leader");
    for _ in 0..3 {
        exchange(&mut sim);
        [1, 2, 3].into_iter().for_each(|id| sim.sync(id, usize::MAX));
        sim.network.retain(|message| message.r#type() != MessageType::MsgAppResp || message.from() != 3);
    }
    let last = sim.node(1).status().last;
    sim.ticks(5);
    let matched = sim.node(1).progress().into_iter().find(|progress| progress.id.0 == 3).map(|it| it.matched);
    assert_eq!(matched, Some(last));
}

#[test]
fn a_commit_travels_with_the_next_append() {
    let mut sim = led(3);
    sim.propose(1, 1, 8).expect("a leader");
    sim.sync(1, usize::MAX);
    exchange(&mut sim);
    sim.sync(2, usize::MAX);
    let acknowledgements = std::mem::take(&mut sim.network);
    // The acknowledgement that commits, and the next proposal, in one turn.
    let node = sim.node_mut(1);
    for message in acknowledgements {
        node.request(Request::Receive(message)).expect("taken");
    }
    node.request(Request::Propose(vec![Bytes::from_static(b"next")])).expect("a leader");
    let mut sent = Vec::new();
    while let Some(effects) = node.effects() {
        sent.extend(effects.messages);
        if let Some(append) = effects.append {
            node.step(Event::LogSynced(append.number)).expect("taken");
        }
    }
    let commit = node.status().commit.0;
    let told: Vec<_> =
        sent.iter().map(|message| (message.to(), message.entries.len(), message.commit())).collect();
    assert_eq!(told, [(2, 1, commit), (3, 1, commit)]);
}

#[test]
fn a_read_that_arrives_twice_delays_no_other() {
    let mut sim = led(5);
    let node = sim.node_mut(1);
    let term = node.status().term.0;
    node.request(Request::Receive(forwarded(2, 5, 0))).expect("taken");
    assert!(node.effects().is_some());
    for (from, context) in [(3, 6), (2, 5)] {
        node.request(Request::Receive(forwarded(from, context, 0))).expect("taken");
    }
    let context = node.effects().expect("heartbeats").messages[0].context.clone();
    let mut answered = Vec::new();
    for from in [4, 5] {
        let (r#type, to) = (Some(MessageType::MsgHeartbeatResp as i32), Some(1));
        let (from, term, context) = (Some(from), Some(term), context.clone());
        let response = raftpb::Message { r#type, to, from, term, context, ..raftpb::Message::default() };
        node.request(Request::Receive(response)).expect("taken");
        while let Some(effects) = node.effects() {
            answered.extend(effects.messages.iter().map(|message| (message.r#type(), message.to())));
        }
    }
    assert_eq!(answered, [2, 3].map(|to| (MessageType::MsgReadIndexResp, to)));
}
