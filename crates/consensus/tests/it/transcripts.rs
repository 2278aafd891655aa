//! Transcripts: events in, all effects out.

use std::fmt::Write as _;

use bytes::Bytes;
use consensus::{
    ConfChange, ConfChangeKind, Config, Entry, EntryKind, Event, HardState, Node, Refusal, Request,
    RestoredState,
};
use mainstay_consensus as consensus;
use numbers::{Index, MemberId, Term};

fn config() -> Config {
    Config { id: MemberId(7), seed: 1, ..Config::default() }
}

fn bootstrap() -> RestoredState {
    RestoredState {
        hard_state: HardState { term: Term(1), vote: MemberId(0), commit: Index(1) },
        voters: vec![MemberId(7)],
        entries: vec![Entry {
            term: Term(1),
            index: Index(1),
            kind: EntryKind::ConfChange,
            data: Bytes::from_static(b"add 7"),
        }],
        ..RestoredState::default()
    }
}

/// Returns the effects as lines, without applying entries or confirming syncs.
fn drain(node: &mut Node, out: &mut String, numbers: &mut Vec<u64>) {
    while let Some(effects) = node.effects() {
        if let Some(status) = effects.status {
            let _ = writeln!(out, "  status {:?} leader {} term {}", status.role, status.leader, status.term);
        }
        if let Some(append) = effects.append {
            let _ = write!(out, "  append");
            if let Some(hs) = append.hard_state {
                let _ = write!(out, " [term {} vote {} commit {}]", hs.term, hs.vote, hs.commit);
            }
            for entry in &append.entries {
                let _ = write!(out, " {}.{} {:?}", entry.term, entry.index, entry.data);
            }
            out.push('\n');
            numbers.push(append.number);
        }
        for entry in &effects.commit {
            let _ =
                writeln!(out, "  commit {}.{} {:?} {:?}", entry.term, entry.index, entry.kind, entry.data);
        }
    }
}

#[test]
fn a_single_voter_from_bootstrap_to_a_committed_write() {
    let mut node = Node::new(config(), bootstrap()).expect("starts");
    let mut out = String::new();
    let mut numbers = Vec::new();
    let request = |node: &mut Node, request: Request, out: &mut String, numbers: &mut Vec<u64>| {
        let _ = writeln!(out, "{request:?}");
        node.request(request).expect("taken");
        drain(node, out, numbers);
    };
    let step = |node: &mut Node, event: Event, out: &mut String, numbers: &mut Vec<u64>| {
        let _ = writeln!(out, "{event:?}");
        node.step(event).expect("taken");
        drain(node, out, numbers);
    };
    drain(&mut node, &mut out, &mut numbers);
    let added = ConfChange { kind: ConfChangeKind::AddVoter, node: MemberId(7) };
    step(&mut node, Event::ConfChanged(added), &mut out, &mut numbers);
    step(&mut node, Event::Applied(Index(1)), &mut out, &mut numbers);
    request(&mut node, Request::Campaign, &mut out, &mut numbers);
    request(&mut node, Request::Propose(vec![Bytes::from_static(b"put")]), &mut out, &mut numbers);
    request(&mut node, Request::Propose(vec![Bytes::from_static(b"del")]), &mut out, &mut numbers);
    let (first, last) = (numbers[0], numbers[2]);
    step(&mut node, Event::LogSynced(first), &mut out, &mut numbers);
    step(&mut node, Event::Applied(Index(2)), &mut out, &mut numbers);
    step(&mut node, Event::LogSynced(last), &mut out, &mut numbers);
    let expected = "  commit 1.1 ConfChange b\"add 7\"
ConfChanged(ConfChange { kind: AddVoter, node: 7 })
Applied(1)
Campaign
  status Leader leader 7 term 2
  append [term 2 vote 7 commit 1] 2.2 b\"\"
Propose([b\"put\"])
  append 2.3 b\"put\"
Propose([b\"del\"])
  append 2.4 b\"del\"
LogSynced(2)
  commit 2.2 Normal b\"\"
Applied(2)
LogSynced(4)
  commit 2.3 Normal b\"put\"
  commit 2.4 Normal b\"del\"
";
    assert_eq!(out, expected, "\n{out}");
}

/// Invariant I3: nothing commits before the log has synced it, whatever else happens.
#[test]
fn nothing_commits_before_it_is_synced() {
    let mut node = Node::new(config(), bootstrap()).expect("starts");
    let mut out = String::new();
    let mut numbers = Vec::new();
    drain(&mut node, &mut out, &mut numbers);
    node.step(Event::Applied(Index(1))).expect("taken");
    node.request(Request::Campaign).expect("taken");
    for n in 0..100u8 {
        node.request(Request::Propose(vec![Bytes::copy_from_slice(&[n])])).expect("taken");
        node.step(Event::Ticked).expect("taken");
        while let Some(effects) = node.effects() {
            assert!(effects.commit.is_empty(), "committed without a sync");
        }
    }
    assert_eq!(node.status().commit, Index(1));
    assert_eq!(node.status().last, Index(102));
}

#[test]
fn a_restart_commits_what_was_acknowledged_under_a_new_term() {
    let entries = (4..=6u64)
        .map(|index| Entry {
            term: Term(2),
            index: Index(index),
            kind: EntryKind::Normal,
            data: Bytes::from(format!("e{index}")),
        })
        .collect();
    let restored = RestoredState {
        // The commit index on disk lags behind, because it is not synced for its own sake.
        hard_state: HardState { term: Term(2), vote: MemberId(7), commit: Index(3) },
        voters: vec![MemberId(7)],
        learners: vec![],
        applied: Index(3),
        applied_term: Term(2),
        entries,
        ..RestoredState::default()
    };
    let mut node = Node::new(config(), restored).expect("starts");
    let mut out = String::new();
    let mut numbers = Vec::new();
    node.request(Request::Campaign).expect("taken");
    drain(&mut node, &mut out, &mut numbers);
    node.step(Event::LogSynced(numbers[0])).expect("taken");
    drain(&mut node, &mut out, &mut numbers);
    let expected = "  status Leader leader 7 term 3
  append [term 3 vote 7 commit 3] 3.7 b\"\"
  commit 2.4 Normal b\"e4\"
  commit 2.5 Normal b\"e5\"
  commit 2.6 Normal b\"e6\"
  commit 3.7 Normal b\"\"
";
    assert_eq!(out, expected, "\n{out}");
    node.step(Event::Applied(Index(7))).expect("taken");
    node.step(Event::Forgotten(Index(5))).expect("taken");
    assert_eq!(node.kept(), (2, 2));
}

#[test]
fn a_gap_in_the_restored_log_is_refused() {
    let mut restored = bootstrap();
    restored.entries.push(Entry {
        term: Term(1),
        index: Index(3),
        kind: EntryKind::Normal,
        data: Bytes::new(),
    });
    let refused = Node::new(config(), restored).expect_err("a gap");
    assert_eq!(refused, Refusal::Other("the log has no entry 2".to_owned()));
}

#[test]
fn a_proposal_without_a_leader_is_refused() {
    let mut node = Node::new(config(), bootstrap()).expect("starts");
    assert_eq!(node.request(Request::Propose(vec![Bytes::from_static(b"x")])), Err(Refusal::NoLeader));
}
