//! Checks that no message of a peer can make a raft node panic: sends messages of arbitrary content to it.

use api::raftpb::{self, MessageType};
use bytes::Bytes;
use consensus::{
    ConfChange, ConfChangeKind, Config, Effects, Entry, EntryKind, Event, HardState, Node, Request,
    RestoredState, Role,
};
use numbers::{EntryId, Index, MemberId, Term};
use prost::Message as _;

use crate::commands;
use crate::script::{Scribe, Script};

/// Maximum number of steps that one input performs.
const STEPS_MAX: usize = 300;

/// Returns member 1 of three voters and a learner, with entries 1 to 10 of term 2, of which 8 are committed
/// and 6 applied.
fn follower() -> Node {
    let entry =
        |index| Entry { term: Term(2), index, kind: EntryKind::Normal, data: Bytes::from_static(b"x") };
    let restored = RestoredState {
        hard_state: HardState { term: Term(3), vote: MemberId::NONE, commit: Index(8) },
        voters: vec![MemberId(1), MemberId(2), MemberId(3)],
        learners: vec![MemberId(4)],
        // Member 3 is a witness, so what the node sends it as a leader is fuzzed too.
        witness: MemberId(3),
        applied: Index(6),
        applied_term: Term(2),
        first_index: Index(3),
        terms: vec![EntryId { index: Index(2), term: Term(2) }],
        entries: Index(7).through(Index(10)).map(entry).collect(),
    };
    Node::new(Config { id: MemberId(1), ..Config::default() }, restored).expect("starts")
}

/// A raft node, and the work that it has requested and that is not done yet: entries to sync, entries to
/// apply, and entries to fetch.
struct Member {
    node: Node,
    unsynced: Vec<u64>,
    commits: Vec<Entry>,
    fetches: Vec<consensus::Fetch>,
    /// Index of the last applied entry, which must never decrease.
    applied: Index,
}

impl Member {
    fn new() -> Member {
        Member {
            node: follower(),
            unsynced: Vec::new(),
            commits: Vec::new(),
            fetches: Vec::new(),
            applied: Index(6),
        }
    }

    /// Tries to make the node the leader of term 4, with the votes of member 2.
    fn lead(&mut self) {
        let answer = |kind| message(kind, 4);
        // Errors are ignored here, because earlier steps may have brought the node into a role in which it
        // refuses.
        let _ = self.node.request(Request::Campaign);
        self.settle();
        let _ = self.node.request(Request::Receive(answer(MessageType::MsgPreVoteResp)));
        self.settle();
        let _ = self.node.request(Request::Receive(answer(MessageType::MsgVoteResp)));
        self.settle();
    }

    fn settle(&mut self) {
        while self.take_effects() {}
        for number in std::mem::take(&mut self.unsynced) {
            self.node.step(Event::LogSynced(number)).expect("it was asked for");
        }
        while self.take_effects() {}
    }

    fn take_effects(&mut self) -> bool {
        let Some(effects) = self.node.effects() else { return false };
        let Effects { restore, append, messages, commit, fetches, .. } = effects;
        if let Some(restore) = restore {
            assert!(append.is_some(), "a restore comes with a number");
            assert!(restore.index > self.applied, "a state that is older than what was applied");
            self.commits.clear();
            self.applied = restore.index;
        }
        if let Some(append) = append {
            let in_order = append.entries.windows(2).all(|pair| pair[0].index + 1 == pair[1].index);
            assert!(in_order, "what is appended has no gap");
            self.unsynced.push(append.number);
        }
        for entry in &commit {
            assert_eq!(entry.index, self.applied + self.commits.len() as u64 + 1, "committed in order");
            self.commits.push(entry.clone());
        }
        for message in messages {
            // Every message that the node sends must be unchanged after encoding and decoding.
            assert_eq!(raftpb::Message::decode(&*message.encode_to_vec()), Ok(message));
        }
        self.fetches.extend(fetches);
        true
    }

    fn apply_next(&mut self, how: u8) {
        if self.commits.is_empty() {
            return;
        }
        let entry = self.commits.remove(0);
        if entry.kind == EntryKind::ConfChange {
            let kinds = [
                ConfChangeKind::AddVoter,
                ConfChangeKind::AddLearner,
                ConfChangeKind::Remove,
                ConfChangeKind::Update,
            ];
            let change =
                ConfChange { kind: kinds[usize::from(how & 3)], node: MemberId(u64::from(how >> 2) % 6) };
            // The change is not validated here, so the node may return an error. In a member, the state
            // machine refuses changes such as the removal of the last voter.
            let standing_alone = self.node.status();
            let _ = standing_alone;
            let _ = self.node.step(Event::ConfChanged(change));
        }
        self.applied = entry.index;
        self.node.step(Event::Applied(entry.index)).expect("it was committed");
        if how & 0x40 != 0 {
            self.node.step(Event::Forgotten(entry.index)).expect("it was applied");
        }
        if how & 0x80 != 0 {
            self.node.step(Event::Discarded(entry.index)).expect("it was applied");
        }
    }
}

fn message(kind: MessageType, term: u64) -> raftpb::Message {
    raftpb::Message {
        r#type: Some(kind as i32),
        to: Some(1),
        from: Some(2),
        term: Some(term),
        ..raftpb::Message::default()
    }
}

/// Builds a message mostly from numbers that are significant for the node, such as its term and the indexes
/// of its log.
fn composed(script: &mut Script<'_>, node: &Node) -> raftpb::Message {
    let standing = node.status();
    let indexes = [standing.last.0, standing.commit.0, standing.last.0, 0, 6, 3, standing.last.0 + 1];
    let terms = [standing.term.0, standing.term.0, standing.term.0, standing.term.0 + 1];
    let kind = script.pick(&[2, 3, 3, 3, 4, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18, 0, 23]);
    let index = script.near(&indexes);
    let log_term = if script.below(4) == 0 {
        script.near(&terms)
    } else {
        node.term_of(Index(index)).unwrap_or(Term(1)).0
    };
    let term = if matches!(kind, 2 | 15) && script.below(8) > 0 { 0 } else { script.near(&terms) };
    let entries = (1..=u64::from(script.below(4)))
        .map(|offset| {
            let how = script.u8();
            let data = match how & 3 {
                0 => Bytes::from(commands::conf_changes()[usize::from(how >> 2) % 5].encode_to_vec()),
                1 => Bytes::new(),
                _ => Bytes::from_static(b"12345678"),
            };
            raftpb::Entry {
                r#type: Some(if how & 3 == 0 { 1 } else { i32::from(how >= 250) * 2 }),
                term: Some(if how & 0x1c == 4 { script.near(&terms) } else { standing.term.0 }),
                index: Some(if how & 0x1c == 8 { script.near(&indexes) } else { index.wrapping_add(offset) }),
                data: Some(data),
            }
        })
        .collect();
    let voters = (1..=3).filter(|_| script.below(8) > 0).collect();
    let learners = (3..=5).filter(|_| script.below(3) == 0).collect();
    let conf_state = raftpb::ConfState { voters, learners, ..raftpb::ConfState::default() };
    raftpb::Message {
        r#type: Some(kind),
        to: Some(if script.below(32) > 0 { 1 } else { script.u64() }),
        from: Some(u64::from(script.pick(&[2, 2, 2, 3, 3, 4, 1, 0, 9_u8]))),
        term: Some(term),
        log_term: Some(log_term),
        index: Some(index),
        entries,
        commit: Some(script.near(&indexes)),
        snapshot: (kind == 7).then(|| raftpb::Snapshot {
            data: None,
            metadata: Some(raftpb::SnapshotMetadata {
                conf_state: Some(conf_state),
                index: Some(script.near(&indexes)),
                term: Some(script.near(&terms)),
            }),
        }),
        reject: Some(script.flip()),
        reject_hint: Some(script.near(&indexes)),
        context: script.flip().then(|| Bytes::from_static(b"CampaignTransfer")),
        vote: None,
        responses: Vec::new(),
    }
}

/// Fuzz target: performs the steps of a script on a raft node. Checks that the node does not panic, and that
/// its term and commit index never decrease.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut member = Member::new();
    while member.take_effects() {}
    let (mut term, mut commit) = (Term(0), Index(0));
    for _ in 0..STEPS_MAX {
        if script.is_done() {
            break;
        }
        step(&mut script, &mut member);
        let standing = member.node.status();
        assert!(standing.term >= term && standing.commit >= commit, "terms and commits only rise");
        (term, commit) = (standing.term, standing.commit);
    }
    member.settle();
}

fn step(script: &mut Script<'_>, member: &mut Member) {
    let node = &mut member.node;
    match script.below(20) {
        0..=6 => {
            let message = composed(script, node);
            let before = node.status();
            if node.request(Request::Receive(message)).is_err() {
                assert_eq!(node.status().commit, before.commit);
            }
        }
        7 => {
            if let Ok(message) = raftpb::Message::decode(script.run()) {
                let _ = node.request(Request::Receive(message));
            }
        }
        8 => {
            for _ in 0..script.below(30) {
                let _ = node.step(Event::Ticked);
            }
        }
        9 => {
            let _ =
                node.request(Request::Propose(vec![Bytes::from_static(b"p"); usize::from(script.below(4))]));
        }
        10 => {
            let change =
                ConfChange { kind: ConfChangeKind::AddLearner, node: MemberId(script.below(7).into()) };
            let data = Bytes::from(commands::conf_changes()[1].encode_to_vec());
            let _ = node.request(Request::ProposeConfChange(change, data));
        }
        11 => {
            let _ = node.request(Request::Read(script.u64()));
        }
        12 => {
            let event = match script.below(6) {
                0 => {
                    let _ = node.request(Request::Transfer(MemberId(script.below(6).into())));
                    return;
                }
                1 => Event::StepDownRequested,
                2 => Event::PeerUnreachable(MemberId(script.below(6).into())),
                3 => {
                    Event::SnapshotReported { to: MemberId(script.below(6).into()), delivered: script.flip() }
                }
                4 if script.flip() => Event::DiskStalled,
                4 => Event::DiskRecovered,
                _ => {
                    let _ = node.request(Request::Campaign);
                    return;
                }
            };
            let _ = node.step(event);
        }
        13 => member.lead(),
        14 | 15 => {
            member.take_effects();
        }
        16 => {
            if !member.unsynced.is_empty() {
                let number = member.unsynced.remove(0);
                node.step(Event::LogSynced(number)).expect("it was asked for");
            }
        }
        17 => {
            let how = script.u8();
            member.apply_next(how);
        }
        18 => {
            if let Some(fetch) = member.fetches.pop() {
                let term = script.near(&[1, 2]);
                let entry = |index| Entry {
                    term: Term(term),
                    index,
                    kind: EntryKind::Normal,
                    data: Bytes::from_static(b"x"),
                };
                let first = if script.below(8) > 0 { fetch.first } else { Index(script.u64() >> 2) };
                let entries = (0..u64::from(script.below(4))).map(|offset| entry(first + offset)).collect();
                // An error is allowed, because the entries are arbitrary.
                let _ = node.step(Event::Fetched { fetch, entries });
            }
        }
        _ => {
            assert!(node.status().role != Role::Leader || node.status().leader == MemberId(1));
        }
    }
}

/// Returns arbitrary scripts, and a script with messages as members send them.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = commands::seeds();
    let kinds = [MessageType::MsgApp, MessageType::MsgHeartbeat, MessageType::MsgVote, MessageType::MsgSnap];
    let mut scribe = Scribe::default();
    for kind in kinds {
        scribe = scribe.u8(7).run(&message(kind, 4).encode_to_vec());
    }
    seeds.push(scribe.done());
    seeds
}
