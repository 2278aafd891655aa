//! Invalid messages of peers: none of them ends the process.

use api::raftpb::{self, EntryType, MessageType};
use bytes::Bytes;
use consensus::{
    ConfChange, ConfChangeKind, Config, Entry, EntryKind, Event, HardState, Node, NodeBug, OtherPrograms,
    Refusal, Request, RestoredState, Role,
};
use mainstay_consensus as consensus;
use numbers::{EntryId, Index, MemberId, Term};
use testkit::Random;

use crate::sim::conf_change;

/// Returns the first entry of a run of equal terms.
fn run(index: u64, term: u64) -> EntryId {
    EntryId { index: Index(index), term: Term(term) }
}

/// Returns member 1 of three. Its log has the entries 1 to 10 of term 2, of which 8 are committed and 6
/// applied.
fn restored() -> RestoredState {
    let entry =
        |index| Entry { term: Term(2), index, kind: EntryKind::Normal, data: Bytes::from_static(b"x") };
    RestoredState {
        hard_state: HardState { term: Term(3), vote: MemberId(0), commit: Index(8) },
        voters: vec![MemberId(1), MemberId(2), MemberId(3)],
        learners: vec![MemberId(4)],
        witness: MemberId::NONE,
        applied: Index(6),
        applied_term: Term(2),
        first_index: Index(3),
        terms: vec![run(2, 2)],
        entries: (7..=10).map(Index).map(entry).collect(),
    }
}

fn follower() -> Node {
    follower_with(Config::default())
}

fn follower_with(config: Config) -> Node {
    let mut node = Node::new(Config { id: MemberId(1), ..config }, restored()).expect("starts");
    drain(&mut node);
    node
}

/// Returns the leader of term 4, with entries up to 11.
fn leader() -> Node {
    elected(follower())
}

fn elected(mut node: Node) -> Node {
    node.request(Request::Campaign).expect("taken");
    drain(&mut node);
    node.request(Request::Receive(message(MessageType::MsgPreVoteResp, 4))).expect("taken");
    drain(&mut node);
    node.request(Request::Receive(message(MessageType::MsgVoteResp, 4))).expect("taken");
    drain(&mut node);
    assert_eq!(node.status().role, Role::Leader);
    assert_eq!(node.status().last, Index(11));
    node
}

/// Carries out all effects at once, and returns the messages.
fn drain(node: &mut Node) -> Vec<raftpb::Message> {
    let mut messages = Vec::new();
    while let Some(effects) = node.effects() {
        messages.extend(effects.messages);
        if let Some(append) = effects.append {
            node.step(Event::LogSynced(append.number)).expect("taken");
        }
    }
    messages
}

fn message(kind: MessageType, term: u64) -> raftpb::Message {
    raftpb::Message {
        r#type: Some(kind as i32),
        to: Some(1),
        from: Some(2),
        term: Some(term),
        ..Default::default()
    }
}

fn entry(index: u64, term: u64) -> raftpb::Entry {
    raftpb::Entry { r#type: None, term: Some(term), index: Some(index), data: Some(Bytes::from_static(b"y")) }
}

fn append(index: u64, log_term: u64, entries: Vec<raftpb::Entry>) -> raftpb::Message {
    raftpb::Message {
        index: Some(index),
        log_term: Some(log_term),
        entries,
        ..message(MessageType::MsgApp, 3)
    }
}

fn snapshot(index: u64, term: u64, voters: &[u64], learners: &[u64]) -> raftpb::Message {
    let conf_state =
        raftpb::ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..Default::default() };
    let metadata =
        raftpb::SnapshotMetadata { conf_state: Some(conf_state), index: Some(index), term: Some(term) };
    raftpb::Message {
        snapshot: Some(raftpb::Snapshot { data: None, metadata: Some(metadata) }),
        ..message(MessageType::MsgSnap, 3)
    }
}

#[track_caller]
fn refused(mut node: Node, message: raftpb::Message, why: &str) {
    let before = node.status();
    let Err(Refusal::Other(text)) = node.request(Request::Receive(message)) else {
        panic!("not refused: {why}")
    };
    assert_eq!(text, why);
    assert_eq!(node.status(), before);
    assert!(node.effects().is_none(), "something follows from what was refused");
}

#[track_caller]
fn taken(mut node: Node, message: raftpb::Message) -> Node {
    node.request(Request::Receive(message)).expect("taken");
    node
}

#[test]
fn what_never_comes_from_a_peer() {
    for kind in [0, 1, 10, 11, 12, 19, 20, 21, 22, 23, 24, -1, i32::MAX] {
        let mut strange = message(MessageType::MsgHup, 3);
        strange.r#type = Some(kind);
        refused(follower(), strange, &format!("a message of type {kind}, which no peer sends"));
    }
    refused(follower(), raftpb::Message::default(), "a message of type 0, which no peer sends");
    let beat = || message(MessageType::MsgHeartbeat, 3);
    refused(
        follower(),
        raftpb::Message { to: Some(9), ..beat() },
        "a message to 9, which is not this member",
    );
    refused(follower(), raftpb::Message { from: None, ..beat() }, "a message without a sender");
    refused(follower(), raftpb::Message { from: Some(1), ..beat() }, "a message from this member itself");
    refused(follower(), raftpb::Message { term: None, ..beat() }, "MsgHeartbeat without a term");
    refused(
        follower(),
        raftpb::Message { term: Some(u64::MAX), ..beat() },
        "a term or an index that is impossibly large",
    );
}

#[test]
fn heartbeats() {
    let commit = |index| raftpb::Message { commit: Some(index), ..message(MessageType::MsgHeartbeat, 3) };
    refused(follower(), commit(11), "a heartbeat that commits entry 11, the last one is 10");
    assert_eq!(taken(follower(), commit(10)).status().commit, Index(10));
    // A message of an older term is answered with the newer term, whatever its content.
    let mut node = taken(follower(), raftpb::Message { term: Some(2), ..commit(99) });
    assert_eq!(drain(&mut node)[0].r#type(), MessageType::MsgAppResp);
}

#[test]
fn appends() {
    refused(follower(), append(11, 0, vec![entry(12, 3)]), "an append after entry 11 of term 0");
    refused(follower(), append(0, 2, vec![]), "an append after entry 0 of term 2");
    refused(follower(), append(10, 2, vec![entry(12, 3)]), "entry 12 where 11 belongs");
    refused(follower(), append(10, 2, vec![entry(11, 3), entry(11, 3)]), "entry 11 where 12 belongs");
    // This entry would contradict a committed one.
    refused(follower(), append(8, 2, vec![entry(5, 3)]), "entry 5 where 9 belongs");
    refused(follower(), append(10, 2, vec![entry(11, 4)]), "entry 11 of term 4 after one of term 2");
    refused(follower(), append(10, 2, vec![entry(11, 1)]), "entry 11 of term 1 after one of term 2");
    refused(follower(), append(0, 0, vec![entry(1, 0)]), "entry 1 of term 0 after one of term 0");
    refused(follower(), append(10, 4, vec![]), "an append of term 3 after an entry of term 4");
    let huge = raftpb::Message { commit: Some(u64::MAX), ..append(10, 2, vec![]) };
    refused(follower(), huge, "a term or an index that is impossibly large");

    let typed = |kind, data: &'static [u8]| raftpb::Entry {
        r#type: Some(kind),
        data: Some(Bytes::from_static(data)),
        ..entry(11, 3)
    };
    refused(follower(), append(10, 2, vec![typed(7, b"")]), "an entry of the unknown type 7");
    let second = EntryType::EntryConfChangeV2 as i32;
    refused(follower(), append(10, 2, vec![typed(second, b"")]), "a conf change of the second form");
    refused(
        follower(),
        append(10, 2, vec![typed(1, &[0x10, 9, 0x18, 5])]),
        "a conf change of the unknown kind 9",
    );
    let mut node = follower();
    let garbage = Request::Receive(append(10, 2, vec![typed(1, &[0xff, 0xff])]));
    let Err(Refusal::Other(text)) = node.request(garbage) else { panic!("garbage is no conf change") };
    assert!(text.starts_with("a conf change that cannot be read: "), "{text}");

    let replaced = taken(follower(), append(8, 2, vec![entry(9, 3)]));
    assert_eq!((replaced.status().last, replaced.term_of(Index(9))), (Index(9), Some(Term(3))));
    // A commit index beyond the entries of an append is reduced to the last of them.
    let ahead = raftpb::Message { commit: Some(1000), ..append(10, 2, vec![entry(11, 3)]) };
    assert_eq!(taken(follower(), ahead).status().commit, Index(11));
}

#[test]
fn snapshots() {
    let voters = &[1, 2, 3][..];
    refused(follower(), message(MessageType::MsgSnap, 3), "a snapshot of nothing");
    refused(follower(), snapshot(0, 2, voters, &[]), "a snapshot of nothing");
    refused(follower(), snapshot(20, 0, voters, &[]), "a snapshot of nothing");
    refused(follower(), snapshot(20, 4, voters, &[]), "a snapshot of entry 20 in term 4");
    refused(
        follower(),
        snapshot(u64::MAX, 3, voters, &[]),
        &format!("a snapshot of entry {} in term 3", u64::MAX),
    );
    refused(follower(), snapshot(20, 3, &[], &[]), "a snapshot without a voter");
    refused(follower(), snapshot(20, 3, &[], &[1]), "a snapshot without a voter");
    refused(follower(), snapshot(20, 3, &[1, 2, 1], &[]), "a member named twice");
    refused(follower(), snapshot(20, 3, voters, &[1]), "a member named twice");
    refused(follower(), snapshot(20, 3, &[0, 1], &[]), "a member with the id 0");
    refused(follower(), snapshot(8, 3, voters, &[]), "a snapshot that contradicts the committed entry 8");
    let mut joint = snapshot(20, 3, voters, &[]);
    let metadata = joint.snapshot.as_mut().and_then(|s| s.metadata.as_mut()).expect("set above");
    metadata.conf_state.as_mut().expect("set above").voters_outgoing = vec![1];
    refused(follower(), joint, "a snapshot in the middle of a joint conf change");

    let mut node = taken(follower(), snapshot(20, 3, voters, &[]));
    let effects = node.effects().expect("a snapshot to restore");
    assert_eq!(effects.restore.expect("accepted").index, Index(20));
    assert_eq!(
        (node.status().last, node.status().commit, node.term_of(Index(20))),
        (Index(20), Index(20), Some(Term(3)))
    );
    // A campaign now would search for conf changes in entries that no longer exist.
    let mut timeout = message(MessageType::MsgTimeoutNow, 3);
    timeout.from = Some(2);
    let mut node = taken(node, timeout);
    assert_eq!(node.status().role, Role::Follower);
    assert_eq!(
        node.request(Request::Campaign),
        Err(Refusal::Other("this member must not campaign now".to_owned()))
    );
    node.step(Event::LogSynced(effects.append.expect("comes with it").number)).expect("taken");
    node.request(Request::Campaign).expect("taken");
}

/// The raft crate identifies synced entries by index and term. A snapshot may have the index and term of an
/// entry that was overwritten before it was synced; the late report of that sync must not count as the sync
/// of the snapshot.
#[test]
fn a_late_sync_does_not_pass_for_a_snapshots() {
    let mut node = follower();
    let mut numbers = Vec::new();
    let replaced = raftpb::Message { term: Some(4), ..append(10, 2, vec![entry(11, 4)]) };
    let image = raftpb::Message { term: Some(4), ..snapshot(13, 3, &[1, 2, 3], &[]) };
    for message in [append(10, 2, vec![entry(11, 3), entry(12, 3), entry(13, 3)]), replaced, image] {
        node.request(Request::Receive(message)).expect("taken");
        let effects = node.effects().expect("something to write");
        numbers.push(effects.append.expect("something to write").number);
    }
    node.step(Event::LogSynced(numbers[0])).expect("taken");
    node = taken(node, message(MessageType::MsgTimeoutNow, 4));
    assert_eq!(node.status().role, Role::Follower);
    node.step(Event::LogSynced(numbers[2])).expect("taken");
    let node = taken(node, message(MessageType::MsgTimeoutNow, 4));
    assert_eq!(node.status().role, Role::Candidate);
}

/// Entries are overwritten and written again while the disk hangs: the sync of the first write must not count
/// as the sync of the last one, although index and term are the same.
#[test]
fn a_late_sync_does_not_pass_for_that_of_the_same_entries_written_again() {
    let mut node = follower();
    let mut numbers = Vec::new();
    let at = |term, entries| raftpb::Message { term: Some(term), ..append(10, 2, entries) };
    let first = || vec![entry(11, 3), entry(12, 3)];
    let again = vec![entry(11, 3), entry(12, 3), entry(13, 5)];
    // The last term is on disk before its entries, so that only the entries can make an acknowledgement wait.
    let beat = message(MessageType::MsgHeartbeat, 5);
    for message in [at(3, first()), at(4, vec![entry(11, 4)]), beat, at(5, again)] {
        node.request(Request::Receive(message)).expect("taken");
        let effects = node.effects().expect("something to write");
        numbers.push(effects.append.expect("something to write").number);
        assert!(effects.messages.is_empty());
    }
    let acknowledged = |node: &mut Node| -> Vec<(u64, u64)> {
        std::iter::from_fn(|| node.effects())
            .flat_map(|effects| effects.messages)
            .filter(|m| m.r#type() == MessageType::MsgAppResp)
            .map(|m| (m.term(), m.index()))
            .collect()
    };
    node.step(Event::LogSynced(numbers[0])).expect("taken");
    // This acknowledgement goes to the leader of term 3, which was deposed long ago.
    assert_eq!(acknowledged(&mut node), [(3, 12)]);
    node.step(Event::LogSynced(numbers[2])).expect("taken");
    assert_eq!(acknowledged(&mut node), [(4, 11)]);
    // The disk now has entry 11 of term 4.
    let mut node = taken(node, at(5, first()));
    assert_eq!(acknowledged(&mut node), []);
    node.step(Event::LogSynced(numbers[3])).expect("taken");
    assert_eq!(acknowledged(&mut node), [(5, 13), (5, 12)]);
}

#[test]
fn answers_to_a_leader() {
    let answer = |index, reject, hint| raftpb::Message {
        index: Some(index),
        reject: Some(reject),
        reject_hint: Some(hint),
        log_term: Some(2),
        ..message(MessageType::MsgAppResp, 4)
    };
    refused(leader(), answer(12, false, 0), "an answer about entry 12, the last one is 11");
    refused(leader(), answer(12, true, 3), "an answer about entry 12, the last one is 11");
    refused(leader(), answer(10, true, 12), "a hint at entry 12, the last one is 11");
    assert_eq!(taken(leader(), answer(11, false, 0)).status().commit, Index(11));
    let stranger = raftpb::Message { from: Some(99), ..answer(11, false, 0) };
    refused(leader(), stranger, "raft: cannot step as peer not found");
}

#[test]
fn forwarded_requests() {
    let read = |entries| raftpb::Message { entries, ..message(MessageType::MsgReadIndex, 0) };
    refused(leader(), read(vec![]), "MsgReadIndex without its one context");
    refused(leader(), read(vec![entry(0, 0), entry(0, 0)]), "MsgReadIndex without its one context");
    refused(leader(), read(vec![raftpb::Entry::default()]), "MsgReadIndex without its one context");
    refused(leader(), message(MessageType::MsgReadIndex, 4), "MsgReadIndex with a term");
    refused(
        follower(),
        message(MessageType::MsgReadIndexResp, 3),
        "MsgReadIndexResp without its one context",
    );
    refused(leader(), message(MessageType::MsgProp, 0), "a proposal of nothing");
    refused(leader(), message(MessageType::MsgProp, 4), "a proposal of nothing");
    let bound = |term| raftpb::Message { entries: vec![entry(0, 0)], ..message(MessageType::MsgProp, term) };
    let term = leader().status().term;
    assert_eq!(leader().request(Request::Receive(bound((term - 1).0))), Err(Refusal::NoLeader));
    assert_eq!(leader().request(Request::Receive(bound(term.0))), Ok(()));
    assert_eq!(follower().request(Request::Receive(bound(3))), Err(Refusal::NoLeader));
    // The raft crate cannot forward a message that has a term, and this follower knows a leader.
    let follower = taken(follower(), message(MessageType::MsgHeartbeat, 3));
    let mut node = follower;
    drain(&mut node);
    refused(
        node,
        message(MessageType::MsgTransferLeader, 3),
        "a transfer request to a member that does not lead",
    );
}

#[test]
fn what_the_caller_says_wrongly() {
    let other = |text: &str| Err(Refusal::Other(text.to_owned()));
    let mut node = follower();
    let broken = |text: &str| Err(NodeBug(text.to_owned()));
    assert_eq!(node.step(Event::Applied(Index(9))), broken("entry 9 is applied, committed is 8"));
    assert_eq!(node.step(Event::LogSynced(1000)), broken("batch 1000 is synced, the last one was 1"));
    assert_eq!(node.request(Request::Read(1)), Err(Refusal::NoLeader));
    assert_eq!(node.request(Request::Transfer(MemberId(2))), Err(Refusal::NoLeader));
    assert_eq!(
        leader().request(Request::Transfer(MemberId(4))),
        other("member 4 has no vote and cannot lead")
    );
    let refused = |change: fn(&mut RestoredState)| {
        let mut restored = restored();
        change(&mut restored);
        Node::new(Config { id: MemberId(1), ..Config::default() }, restored).expect_err("refused").to_string()
    };
    assert_eq!(refused(|r| r.voters = vec![MemberId(1), MemberId(1)]), "a member named twice");
    assert_eq!(refused(|r| r.learners = vec![MemberId(0)]), "a member with the id 0");
    assert_eq!(
        refused(|r| r.terms = vec![run(1, 2), run(1, 2)]),
        "the log's terms are out of order at entry 1"
    );
    assert_eq!(refused(|r| r.terms = vec![run(1, 9)]), "the log's terms contradict the term of entry 6");
    let nobody = Node::new(Config::default(), restored()).expect_err("refused");
    assert_eq!(nobody.to_string(), "a member with the id 0");
}

/// A vote belongs to its term, so with a checkpoint of a newer term the member has not voted yet.
#[test]
fn a_vote_of_an_older_term_binds_nobody() {
    let entries = Vec::new();
    let hard_state = HardState { term: Term(3), vote: MemberId(2), commit: Index(6) };
    let restored = RestoredState { hard_state, applied_term: Term(5), terms: vec![], entries, ..restored() };
    let mut node = Node::new(Config { id: MemberId(1), ..Config::default() }, restored).expect("starts");
    let ask = raftpb::Message {
        from: Some(3),
        index: Some(9),
        log_term: Some(5),
        ..message(MessageType::MsgVote, 5)
    };
    node.request(Request::Receive(ask)).expect("taken");
    let answer = drain(&mut node);
    assert_eq!((answer[0].r#type(), answer[0].reject()), (MessageType::MsgVoteResp, false));
}

/// Entries that the caller has read back must match the log. Other entries are not sent to any follower.
#[test]
fn only_the_entries_of_the_log_are_sent() {
    let mut node = leader();
    for index in [8, 11] {
        node.step(Event::Applied(node.status().commit.min(Index(index)))).expect("taken");
    }
    node.step(Event::Forgotten(Index(8))).expect("taken");
    let reject = raftpb::Message {
        reject: Some(true),
        index: Some(10),
        reject_hint: Some(4),
        log_term: Some(2),
        ..message(MessageType::MsgAppResp, 4)
    };
    node.request(Request::Receive(reject)).expect("taken");
    let fetch = node.effects().expect("a fetch").fetches[0];
    assert_eq!((fetch.to, fetch.first, fetch.last), (MemberId(2), Index(5), Index(9)));
    let entry = |index, term| Entry { term, index, kind: EntryKind::Normal, data: Bytes::from_static(b"x") };
    let again = |node: &mut Node| {
        node.request(Request::Receive(message(MessageType::MsgHeartbeatResp, 4))).expect("taken");
        assert_eq!(node.effects().expect("asked for again").fetches, [fetch]);
    };
    for wrong in [
        vec![entry(Index(5), Term(3))],
        vec![entry(Index(6), Term(2))],
        vec![entry(Index(5), Term(2)), entry(Index(7), Term(2))],
        vec![],
    ] {
        node.step(Event::Fetched { fetch, entries: wrong }).expect("taken");
        assert!(node.effects().is_none(), "something else than the log is sent");
        again(&mut node);
    }
    node.step(Event::Fetched { fetch, entries: vec![entry(Index(5), Term(2)), entry(Index(6), Term(2))] })
        .expect("taken");
    let sent = drain(&mut node);
    assert_eq!(sent[0].entries.iter().map(|e| e.index()).collect::<Vec<_>>(), [5, 6]);
    // Once the common entry of both logs is known, the next entries are read while these are sent.
    let accept = raftpb::Message { index: Some(6), ..message(MessageType::MsgAppResp, 4) };
    node.request(Request::Receive(accept)).expect("taken");
    let fetch = node.effects().expect("a fetch").fetches[0];
    assert_eq!((fetch.first, fetch.last), (Index(7), Index(9)));
    node.step(Event::Fetched { fetch, entries: vec![entry(Index(7), Term(2))] }).expect("taken");
    let effects = node.effects().expect("an append and a fetch");
    assert_eq!(effects.messages[0].entries[0].index(), 7);
    assert_eq!(effects.fetches[0].first, Index(8));
}

#[test]
fn proposals_wait_while_leadership_is_handed_over() {
    let mut node = leader();
    node.request(Request::Transfer(MemberId(2))).expect("taken");
    assert_eq!(node.transferring(), Some(MemberId(2)));
    let command = || vec![Bytes::from_static(b"z")];
    assert_eq!(node.request(Request::Propose(command())), Err(Refusal::Transferring));
    let last = node.status().last;
    // A member that binds its proposal to a term proposes again; an etcd member does not.
    let forwarded =
        |term| raftpb::Message { entries: vec![entry(0, 0)], ..message(MessageType::MsgProp, term) };
    assert_eq!(node.request(Request::Receive(forwarded(4))), Err(Refusal::Transferring));
    node.request(Request::Receive(forwarded(0))).expect("kept");
    assert_eq!(node.status().last, last);
    for _ in 0..10 {
        node.step(Event::Ticked).expect("taken");
        // Responses of another member keep the leader in office.
        let answer = raftpb::Message { from: Some(3), ..message(MessageType::MsgHeartbeatResp, 4) };
        node.request(Request::Receive(answer)).expect("taken");
    }
    assert_eq!(node.transferring(), None);
    assert_eq!(node.status().last, Index(last.0 + 1), "what was kept is proposed");
    node.request(Request::Propose(command())).expect("taken");
}

/// Returns member 2's request for a vote in term 5, to which leadership is being handed over.
fn vote_of_transferee() -> raftpb::Message {
    raftpb::Message {
        from: Some(2),
        index: Some(99),
        log_term: Some(4),
        context: Some(Bytes::from_static(b"CampaignTransfer")),
        ..message(MessageType::MsgVote, 5)
    }
}

#[test]
fn what_members_of_etcd_forward_while_leadership_is_handed_over_goes_to_the_next_leader() {
    let mut node = leader();
    node.request(Request::Transfer(MemberId(2))).expect("taken");
    let big = || raftpb::Entry { data: Some(Bytes::from(vec![0; 1 << 20])), ..entry(0, 0) };
    let forwarded = || raftpb::Message { entries: vec![big()], ..message(MessageType::MsgProp, 0) };
    for _ in 0..7 {
        node.request(Request::Receive(forwarded())).expect("kept");
    }
    let refused = node.request(Request::Receive(forwarded()));
    assert_eq!(refused, Err(Refusal::Transferring), "8 MiB are kept at most");
    drain(&mut node);
    // The node votes for another member, and does not know the leader yet.
    node.request(Request::Receive(vote_of_transferee())).expect("taken");
    assert!(node.transferring().is_none() && node.keeps_proposals());
    // The vote is not on disk yet, so nothing may be sent.
    let vote = node.effects().expect("a vote").append.expect("for the disk");
    let next = raftpb::Message { from: Some(2), ..message(MessageType::MsgHeartbeat, 5) };
    node.request(Request::Receive(next)).expect("taken");
    while node.effects().is_some() {}
    assert!(node.keeps_proposals(), "who stops has to wait");
    node.step(Event::LogSynced(vote.number)).expect("taken");
    let sent = drain(&mut node);
    let passed: Vec<_> = sent.iter().filter(|sent| sent.r#type() == MessageType::MsgProp).collect();
    assert_eq!(passed.len(), 7);
    assert!(
        passed.iter().all(|one| one.to() == 2 && one.term() == 0 && one.entries[0].data().len() == 1 << 20)
    );
    assert!(!node.keeps_proposals());
}

/// Values that Mainstay members send in answers and heartbeats, and that leaders send in heartbeats if no
/// member runs etcd.
const HINTS: [u64; 2] = [0x4d41_494e_5354, 0x4d41_494e_5355];

#[test]
fn heartbeats_of_a_leader_that_was_deposed_are_not_taken_for_those_of_etcd() {
    let mut node = leader();
    let answer = raftpb::Message { index: Some(11), ..message(MessageType::MsgAppResp, 4) };
    node.request(Request::Receive(answer)).expect("taken");
    drain(&mut node);
    // Heartbeats are created, but not sent, when another member becomes leader.
    node.step(Event::Ticked).expect("taken");
    node.request(Request::Receive(message(MessageType::MsgHeartbeat, 5))).expect("taken");
    assert_eq!(node.status().role, Role::Follower);
    let sent = drain(&mut node);
    let hints: Vec<u64> = sent
        .iter()
        .filter(|message| message.r#type() == MessageType::MsgHeartbeat && message.term() == 4)
        .map(|message| message.reject_hint())
        .collect();
    assert!(!hints.is_empty() && hints.iter().all(|hint| *hint == HINTS[0]), "{hints:x?}");
}

#[test]
fn a_learner_that_runs_etcd_counts_and_one_that_was_not_started_does_not() {
    let mut node = leader();
    let answer = |from, hint| raftpb::Message {
        from: Some(from),
        reject_hint: Some(hint),
        ..message(MessageType::MsgHeartbeatResp, 4)
    };
    // Member 4 is the learner.
    for (from, hint, expected) in [
        (2, HINTS[0], (false, OtherPrograms::Unheard)),
        (3, HINTS[0], (true, OtherPrograms::Unheard)),
        (4, 0, (false, OtherPrograms::SomeEtcd)),
        (4, HINTS[0], (true, OtherPrograms::Mainstay)),
        (3, 0, (false, OtherPrograms::SomeEtcd)),
    ] {
        node.request(Request::Receive(answer(from, hint))).expect("taken");
        drain(&mut node);
        assert_eq!((node.has_no_etcd(), node.others()), expected, "{from} {hint:x}");
    }
}

#[test]
fn a_follower_goes_by_the_last_heartbeat() {
    let mut node = follower();
    for (hint, no_etcd, etcd_leads) in [(HINTS[1], true, false), (HINTS[0], false, false), (0, false, true)] {
        for hint in [hint, HINTS[1], hint] {
            let beat = raftpb::Message { reject_hint: Some(hint), ..message(MessageType::MsgHeartbeat, 4) };
            node.request(Request::Receive(beat)).expect("taken");
        }
        assert_eq!((node.has_no_etcd(), node.take_followed_etcd()), (no_etcd, etcd_leads), "{hint:x}");
    }
}

#[test]
fn a_leader_that_speaks_as_etcd_drops_what_is_forwarded_while_it_hands_over() {
    let mut node = elected(follower_with(Config { speaks_as_etcd: true, ..Config::default() }));
    node.request(Request::Transfer(MemberId(2))).expect("taken");
    let forwarded = raftpb::Message { entries: vec![entry(0, 0)], ..message(MessageType::MsgProp, 0) };
    assert_eq!(node.request(Request::Receive(forwarded)), Err(Refusal::Transferring));
    assert!(!node.keeps_proposals());
}

#[test]
fn a_membership_change_that_was_kept_waits_for_the_one_before_it() {
    let mut node = leader();
    let change = ConfChange { kind: ConfChangeKind::AddLearner, node: MemberId(9) };
    let data = conf_change(change);
    // The leader's own first entry is not applied, so an unapplied change might be among the entries before
    // it.
    let last = node.status().last;
    node.request(Request::Transfer(MemberId(2))).expect("taken");
    let next =
        raftpb::Entry { r#type: Some(EntryType::EntryConfChange as i32), data: Some(data), ..entry(0, 0) };
    let forwarded = raftpb::Message { entries: vec![next], ..message(MessageType::MsgProp, 0) };
    node.request(Request::Receive(forwarded)).expect("kept");
    while node.transferring().is_some() {
        node.step(Event::Ticked).expect("taken");
        let answer = raftpb::Message { from: Some(3), ..message(MessageType::MsgHeartbeatResp, 4) };
        node.request(Request::Receive(answer)).expect("taken");
    }
    assert!(!node.keeps_proposals());
    assert_eq!(node.status().last, last, "raft would put an empty entry in its place");
}

#[test]
fn what_members_of_etcd_forward_is_not_proposed_long_after() {
    let mut node = leader();
    node.request(Request::Receive(vote_of_transferee())).expect("taken");
    let forwarded = raftpb::Message { entries: vec![entry(0, 0)], ..message(MessageType::MsgProp, 0) };
    node.request(Request::Receive(forwarded)).expect("kept");
    for _ in 0..21 {
        assert!(node.keeps_proposals());
        node.step(Event::Ticked).expect("taken");
        drain(&mut node);
    }
    assert!(!node.keeps_proposals(), "two election timeouts have passed");
}

/// Random messages whose fields are at a bound or next to one. None of them ends the process, whatever the
/// state of the node.
#[test]
fn noise() {
    let mut leaders = 0;
    let seeds = std::env::var("MAINSTAY_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    for seed in 0..seeds {
        let mut dice = Random::new(seed);
        let mut node = if dice.one_in(2) { follower() } else { leader() };
        let mut unsynced: Vec<u64> = Vec::new();
        let mut members = vec![1, 2, 3, 4];
        let mut commits: Vec<Entry> = Vec::new();
        for _ in 0..300 {
            let status = node.status();
            leaders += u64::from(status.role == Role::Leader);
            let noisy = noise_message(&mut dice, &node);
            let _ = node.request(Request::Receive(noisy));
            if dice.one_in(10) {
                let _ = node.step(Event::Ticked);
                let _ = node.request(Request::Read(dice.below(5)));
                let _ = node.request(Request::Propose(vec![Bytes::from_static(b"p")]));
            }
            if dice.one_in(60) {
                let _ = node.request(Request::Campaign);
            }
            while dice.one_in(2)
                && let Some(effects) = node.effects()
            {
                if effects.restore.is_some() {
                    commits.clear();
                }
                unsynced.extend(effects.append.map(|append| append.number));
                commits.extend(effects.commit);
                for fetch in effects.fetches {
                    let _ = node.step(Event::Fetched { fetch, entries: Vec::new() });
                }
            }
            if dice.one_in(3) && !unsynced.is_empty() {
                node.step(Event::LogSynced(unsynced.remove(0))).expect("taken");
            }
            if dice.one_in(3) && !commits.is_empty() {
                let entry = commits.remove(0);
                if entry.kind == EntryKind::ConfChange {
                    let change = ConfChange { kind: ConfChangeKind::AddLearner, node: MemberId(9) };
                    members.push(9);
                    node.step(Event::ConfChanged(change)).expect("taken");
                }
                node.step(Event::Applied(entry.index)).expect("taken");
                if dice.one_in(3) {
                    node.step(Event::Forgotten(entry.index)).expect("taken");
                }
                if dice.one_in(3) {
                    node.step(Event::Discarded(entry.index)).expect("taken");
                }
            }
        }
    }
    assert!(leaders > 1000, "noise never meets a leader: {leaders}");
}

fn noise_message(dice: &mut Random, node: &Node) -> raftpb::Message {
    let status = node.status();
    let index = |dice: &mut Random| {
        let bounds = [0, 1, status.commit.0, status.last.0, status.last.0 + 1, 1 << 40, u64::MAX];
        match dice.below(4) {
            0 => dice.pick(&bounds),
            1 => dice.pick(&bounds).saturating_sub(1),
            _ => status.last.saturating_sub(dice.below(6)).0,
        }
    };
    let term = |dice: &mut Random| match dice.below(12) {
        0 => 0,
        1 => status.term.0 + 1,
        2 => status.term.previous().0,
        _ => status.term.0,
    };
    let kind = dice.pick(&[2, 3, 3, 3, 4, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18]);
    let at = index(dice);
    let log_term = if dice.one_in(4) { term(dice) } else { node.term_of(Index(at)).unwrap_or(Term(1)).0 };
    let entries = (0..dice.below(4))
        .map(|offset| {
            let index = if dice.one_in(20) { index(dice) } else { at.saturating_add(1 + offset) };
            let change = ConfChange { kind: ConfChangeKind::AddLearner, node: MemberId(9) };
            let change = dice.one_in(8).then(|| conf_change(change));
            raftpb::Entry {
                r#type: Some(i32::from(change.is_some())),
                term: Some(if dice.one_in(20) { term(dice) } else { status.term.0 }),
                index: Some(index),
                data: Some(change.unwrap_or_else(|| Bytes::from_static(b"12345678"))),
            }
        })
        .collect();
    let voters = [1, 2, 3].into_iter().filter(|_| !dice.one_in(8)).collect();
    let conf_state = raftpb::ConfState { voters, learners: vec![4], ..Default::default() };
    raftpb::Message {
        r#type: Some(kind),
        to: Some(1),
        from: Some(dice.pick(&[2, 2, 3, 3, 4, 1, 0, 9])),
        term: Some(if matches!(kind, 2 | 15) && !dice.one_in(10) { 0 } else { term(dice) }),
        log_term: Some(log_term),
        index: Some(at),
        entries,
        commit: Some(index(dice)),
        snapshot: (kind == 7).then(|| raftpb::Snapshot {
            data: None,
            metadata: Some(raftpb::SnapshotMetadata {
                conf_state: Some(conf_state),
                index: Some(index(dice)),
                term: Some(term(dice)),
            }),
        }),
        reject: Some(dice.one_in(3)),
        reject_hint: Some(index(dice)),
        context: dice.one_in(3).then(|| Bytes::from_static(b"CampaignTransfer")),
        vote: None,
        responses: Vec::new(),
    }
}

#[test]
fn what_is_not_applied_stays_in_memory_whatever_is_to_be_forgotten() {
    let mut node = leader();
    let known = |node: &Node, behind| node.data_after(Index(behind)).map(|(index, _)| index.0).collect();
    // Entries that are not on disk yet are included.
    node.request(Request::Propose(vec![Bytes::from_static(b"y")])).expect("taken");
    for asked in [8, 20, u64::MAX] {
        node.step(Event::Forgotten(Index(asked))).expect("taken");
        let entries: Vec<u64> = known(&node, 6);
        assert_eq!(entries, Vec::from_iter(7..=12));
    }
    node.step(Event::Applied(Index(8))).expect("taken");
    node.step(Event::Forgotten(Index(20))).expect("taken");
    let entries: Vec<u64> = known(&node, 6);
    assert_eq!(entries, Vec::from_iter(9..=12));
}
