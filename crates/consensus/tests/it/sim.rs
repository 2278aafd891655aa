//! A cluster of nodes in one thread: disks that sync late and lose unsynced writes, a network that the test
//! controls, and the checks that must hold after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use api::raftpb::{self, MessageType};
use bytes::Bytes;
use consensus::{
    ConfChange, ConfChangeKind, Config, ConfirmedRead, Effects, Entry, EntryKind, Event, Fetch, HardState,
    Node, NodeBug, ObserverRead, Refusal, Request, RestoredState, Role,
};
use mainstay_consensus as consensus;
use numbers::{EntryId, Index, MemberId, Term};
use prost::Message as _;
use testkit::Random;

/// Converts member ids to the form that the simulation uses.
pub fn ids(members: &[MemberId]) -> Vec<u64> {
    members.iter().map(|id| id.0).collect()
}

/// The state that results from applying entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub index: u64,
    pub term: u64,
    pub voters: BTreeSet<u64>,
    pub learners: BTreeSet<u64>,
    pub removed: BTreeSet<u64>,
}

/// Id of the witness, in clusters that have one.
pub const WITNESS: u64 = 50;

impl State {
    fn data_voters(&self) -> usize {
        self.voters.iter().filter(|id| **id != WITNESS).count()
    }

    /// Applies a conf change like etcd's member list; `None` if the list refuses it, or if too few voters
    /// would be left.
    fn change(&mut self, change: ConfChange, voters_min: usize) -> Option<ConfChange> {
        let id = change.node.0;
        if self.removed.contains(&id) {
            return None;
        }
        match change.kind {
            ConfChangeKind::AddVoter => {
                self.learners.remove(&id);
                self.voters.insert(id);
            }
            ConfChangeKind::AddLearner if self.voters.contains(&id) => return None,
            ConfChangeKind::AddLearner => {
                self.learners.insert(id);
            }
            ConfChangeKind::Remove
                if self.voters.contains(&id) && id != WITNESS && self.data_voters() <= voters_min =>
            {
                return None;
            }
            ConfChangeKind::Remove => {
                self.voters.remove(&id);
                self.learners.remove(&id);
                self.removed.insert(id);
            }
            ConfChangeKind::Update => {}
        }
        Some(change)
    }
}

/// The data of a member that survive a crash.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub hard_state: HardState,
    pub checkpoint: State,
    /// Index and term of the entry before the first one.
    pub before: (u64, u64),
    pub entries: Vec<Entry>,
}

impl Disk {
    pub fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }

    pub fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.before.0 {
            return Some(self.before.1);
        }
        let at = index.checked_sub(self.before.0 + 1)?;
        self.entries.get(usize::try_from(at).ok()?).map(|e| e.term.0)
    }

    fn write(&mut self, write: Write) {
        if let Some(state) = write.restore {
            self.before = (state.index, state.term);
            self.entries.clear();
            self.checkpoint = state;
        }
        if let Some(first) = write.entries.first() {
            assert!(first.index > Index(self.checkpoint.index), "an applied entry is rewritten");
            let keep = usize::try_from(first.index.0 - self.before.0 - 1).expect("small");
            assert!(keep <= self.entries.len(), "a gap on disk");
            self.entries.truncate(keep);
            self.entries.extend(write.entries);
        }
        if let Some(hard_state) = write.hard_state {
            self.hard_state = hard_state;
        }
    }

    fn restored(&self) -> RestoredState {
        let applied = self.checkpoint.index;
        let mut terms: Vec<EntryId> = Vec::new();
        for index in self.before.0.max(1)..=applied {
            let term = Term(self.term_of(index).expect("on disk"));
            if terms.last().is_none_or(|run| run.term != term) {
                terms.push(EntryId { index: Index(index), term });
            }
        }
        RestoredState {
            hard_state: self.hard_state,
            voters: self.checkpoint.voters.iter().copied().map(MemberId).collect(),
            learners: self.checkpoint.learners.iter().copied().map(MemberId).collect(),
            witness: MemberId(if self.checkpoint.voters.contains(&WITNESS) { WITNESS } else { 0 }),
            applied: Index(applied),
            applied_term: Term(self.checkpoint.term),
            first_index: Index(self.before.0 + 1),
            terms,
            entries: self.entries.iter().filter(|e| e.index > Index(applied)).cloned().collect(),
        }
    }
}

#[derive(Debug)]
struct Write {
    number: u64,
    restore: Option<State>,
    entries: Vec<Entry>,
    hard_state: Option<HardState>,
}

pub struct Member {
    pub id: u64,
    pub node: Option<Node>,
    pub disk: Disk,
    writes: VecDeque<Write>,
    pub state: State,
    to_apply: VecDeque<Entry>,
    pub fetches: VecDeque<Fetch>,
    snapshot: Option<State>,
    starts: u64,
    /// Commit index up to which a majority was checked while this node led.
    checked: u64,
    pub role: Role,
    /// True if this is an observer and no member of the cluster.
    observes: bool,
}

impl Member {
    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("runs")
    }

    pub fn unsynced(&self) -> usize {
        self.writes.len()
    }
}

pub struct Sim {
    pub seed: u64,
    pub dice: Random,
    pub members: BTreeMap<u64, Member>,
    pub network: Vec<raftpb::Message>,
    /// Directed pairs of members between which no message passes.
    pub cut: BTreeSet<(u64, u64)>,
    snapshots: Vec<State>,
    leaders: BTreeMap<u64, u64>,
    pub committed: BTreeMap<u64, Entry>,
    /// The newest commit index known to any node.
    pub commit: u64,
    /// Commit index at the time when each read began, by context.
    reads: BTreeMap<u64, u64>,
    pub answered_reads: BTreeMap<u64, u64>,
    /// Reads that feeders make for their observers, by context.
    observers_reads: BTreeMap<u64, ObserverRead>,
    context: u64,
    payload: u64,
    pub restores: u64,
    pub fetched: u64,
    pub bytes_in_flight_max: usize,
    pub pre_vote: bool,
    /// Minimum number of voters that a removal must leave; normally neither of the last two is removed. If
    /// the leader of two removed itself and ended before the other member knew that the removal is committed,
    /// the other would request its vote forever.
    pub voters_min: usize,
}

pub fn conf_change(change: ConfChange) -> Bytes {
    use raftpb::ConfChangeType as T;
    let kind = match change.kind {
        ConfChangeKind::AddVoter => T::ConfChangeAddNode,
        ConfChangeKind::AddLearner => T::ConfChangeAddLearnerNode,
        ConfChangeKind::Remove => T::ConfChangeRemoveNode,
        ConfChangeKind::Update => T::ConfChangeUpdateNode,
    };
    let wire = raftpb::ConfChange {
        r#type: Some(kind as i32),
        node_id: Some(change.node.0),
        context: Some(Bytes::from_static(b"{}")),
        ..Default::default()
    };
    wire.encode_to_vec().into()
}

fn read_conf_change(data: &[u8]) -> ConfChange {
    use raftpb::ConfChangeType as T;
    let wire = raftpb::ConfChange::decode(data).expect("a conf change");
    let kind = match wire.r#type() {
        T::ConfChangeAddNode => ConfChangeKind::AddVoter,
        T::ConfChangeAddLearnerNode => ConfChangeKind::AddLearner,
        T::ConfChangeRemoveNode => ConfChangeKind::Remove,
        T::ConfChangeUpdateNode => ConfChangeKind::Update,
    };
    ConfChange { kind, node: MemberId(wire.node_id()) }
}

impl Sim {
    /// Returns a cluster of voters that were bootstrapped together.
    pub fn new(seed: u64, voters: u64) -> Sim {
        Sim::of(seed, &(1..=voters).collect::<Vec<_>>())
    }

    /// Returns a cluster of voters and a witness that were bootstrapped together.
    pub fn with_witness(seed: u64, voters: u64) -> Sim {
        Sim::of(seed, &(1..=voters).chain([WITNESS]).collect::<Vec<_>>())
    }

    fn of(seed: u64, voters: &[u64]) -> Sim {
        let mut sim = Sim {
            seed,
            dice: Random::new(seed),
            members: BTreeMap::new(),
            network: Vec::new(),
            cut: BTreeSet::new(),
            snapshots: Vec::new(),
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            commit: 0,
            reads: BTreeMap::new(),
            answered_reads: BTreeMap::new(),
            observers_reads: BTreeMap::new(),
            context: 0,
            payload: 0,
            restores: 0,
            fetched: 0,
            bytes_in_flight_max: 500,
            pre_vote: true,
            voters_min: 2,
        };
        let entries: Vec<Entry> = (1..)
            .zip(voters)
            .map(|(index, id)| Entry {
                term: Term(1),
                index: Index(index),
                kind: EntryKind::ConfChange,
                data: conf_change(ConfChange { kind: ConfChangeKind::AddVoter, node: MemberId(*id) }),
            })
            .collect();
        for id in voters.iter().copied() {
            let commit = Index(voters.len() as u64);
            let disk = Disk {
                hard_state: HardState { term: Term(1), vote: MemberId(0), commit },
                checkpoint: State { voters: voters.iter().copied().collect(), ..State::default() },
                before: (0, 0),
                entries: entries.clone(),
            };
            sim.add(id, disk);
        }
        sim
    }

    /// Adds a member with this disk, and starts it.
    pub fn add(&mut self, id: u64, disk: Disk) {
        self.add_node(id, disk, false);
    }

    /// Adds an observer without data, and starts it.
    pub fn add_observer(&mut self, id: u64) {
        self.add_node(id, Disk::default(), true);
    }

    /// Lets an observer take its entries from `feeder`.
    pub fn observe(&mut self, observer: u64, feeder: u64) {
        for id in self.running() {
            let is_it = id == feeder;
            let observer = MemberId(observer);
            self.must(
                id,
                if is_it { Event::ObserverAdded(observer) } else { Event::ObserverRemoved(observer) },
            );
        }
        self.must(observer, Event::FeederChosen { feeder: MemberId(feeder), silence_max: 0 });
    }

    fn add_node(&mut self, id: u64, disk: Disk, observes: bool) {
        let member = Member {
            id,
            node: None,
            disk,
            writes: VecDeque::new(),
            state: State::default(),
            to_apply: VecDeque::new(),
            fetches: VecDeque::new(),
            snapshot: None,
            starts: 0,
            checked: 0,
            role: Role::Follower,
            observes,
        };
        self.members.insert(id, member);
        self.start(id);
    }

    pub fn member(&self, id: u64) -> &Member {
        &self.members[&id]
    }

    pub fn node(&self, id: u64) -> &Node {
        self.members[&id].node()
    }

    /// Returns a member's node without carrying out its effects.
    pub fn node_mut(&mut self, id: u64) -> &mut Node {
        self.members.get_mut(&id).and_then(|member| member.node.as_mut()).expect("it runs")
    }

    pub fn running(&self) -> Vec<u64> {
        self.members.values().filter(|m| m.node.is_some()).map(|m| m.id).collect()
    }

    pub fn leader(&self) -> Option<u64> {
        self.running()
            .into_iter()
            .filter(|id| self.node(*id).status().role == Role::Leader)
            .max_by_key(|id| self.node(*id).status().term)
    }

    pub fn start(&mut self, id: u64) {
        let member = self.members.get_mut(&id).expect("known");
        member.starts += 1;
        let config = Config {
            id: MemberId(id),
            // The server chooses seeds; here one for each member and start.
            seed: self.seed ^ (id << 32) ^ member.starts,
            bytes_in_flight_max: self.bytes_in_flight_max,
            pre_vote: self.pre_vote,
            observes: member.observes,
            is_witness: id == WITNESS,
            ..Config::default()
        };
        member.node = Some(Node::new(config, member.disk.restored()).expect("starts"));
        member.state = member.disk.checkpoint.clone();
        member.role = Role::Follower;
        self.settle(id);
    }

    /// Ends the process of a member. The first `kept` of its unsynced writes have reached the disk.
    pub fn crash(&mut self, id: u64, kept: usize) {
        let member = self.members.get_mut(&id).expect("known");
        member.node = None;
        for write in member.writes.drain(..).take(kept) {
            member.disk.write(write);
        }
        member.writes.clear();
        member.to_apply.clear();
        member.fetches.clear();
        member.snapshot = None;
        member.checked = 0;
    }

    /// Steps an event into a running node and carries out its effects at once.
    pub fn step(&mut self, id: u64, event: Event) -> Result<(), NodeBug> {
        let node = self.members.get_mut(&id).expect("known").node.as_mut().expect("runs");
        let outcome = node.step(event);
        self.settle(id);
        outcome
    }

    pub fn request(&mut self, id: u64, request: Request) -> Result<(), Refusal> {
        let node = self.members.get_mut(&id).expect("known").node.as_mut().expect("runs");
        let outcome = node.request(request);
        self.settle(id);
        outcome
    }

    pub fn must_take(&mut self, id: u64, request: Request) {
        self.request(id, request).expect("taken");
    }

    pub fn must(&mut self, id: u64, event: Event) {
        self.step(id, event).expect("taken");
    }

    fn settle(&mut self, id: u64) {
        self.check(id);
        while let Some(effects) =
            self.members.get_mut(&id).expect("known").node.as_mut().expect("runs").effects()
        {
            self.carry_out(id, effects);
        }
        self.check(id);
    }

    fn carry_out(&mut self, id: u64, effects: Effects) {
        let member = self.members.get_mut(&id).expect("known");
        let mut restored = None;
        if let Some(restore) = effects.restore {
            self.restores += 1;
            let state = member.snapshot.take().expect("a snapshot came before");
            assert_eq!((state.index, state.term), (restore.index.0, restore.term.0));
            assert_eq!(ids(&restore.voters), state.voters.iter().copied().collect::<Vec<_>>());
            assert_eq!(ids(&restore.learners), state.learners.iter().copied().collect::<Vec<_>>());
            assert!(effects.append.is_some(), "a snapshot without a number");
            member.state = state.clone();
            member.to_apply.clear();
            let has_witness = state.voters.contains(&WITNESS);
            restored = Some(state);
            let node = member.node.as_mut().expect("runs");
            node.step(Event::WitnessSet(MemberId(if has_witness { WITNESS } else { 0 }))).expect("taken");
        }
        if let Some(append) = effects.append {
            member.writes.push_back(Write {
                number: append.number,
                restore: restored,
                entries: append.entries,
                hard_state: append.hard_state,
            });
        }
        for entry in effects.commit {
            assert!(
                member.disk.term_of(entry.index.0) == Some(entry.term.0),
                "committed before it was synced"
            );
            match self.committed.get(&entry.index.0) {
                // A witness has the same entries without their payloads.
                Some(known) if id == WITNESS || known.data.is_empty() => assert_eq!(
                    (known.term, known.index, known.kind),
                    (entry.term, entry.index, entry.kind),
                    "committed entries differ"
                ),
                Some(known) => assert_eq!(known, &entry, "committed entries differ"),
                None => {
                    self.committed.insert(entry.index.0, entry.clone());
                }
            }
            member.to_apply.push_back(entry);
        }
        let mut answers = Vec::new();
        for ConfirmedRead { number: context, index: Index(index) } in effects.reads {
            let floor = self.reads[&context];
            assert!(index >= floor, "a read saw {index} after {floor} was committed");
            self.answered_reads.insert(context, index);
            if let Some(read) = self.observers_reads.remove(&context) {
                answers.push((read, Index(index)));
            }
        }
        member.fetches.extend(effects.fetches);
        if let Some(status) = effects.status {
            member.role = status.role;
        }
        for mut message in effects.messages {
            // A proposal may have a term, because it may be bound to one.
            if message.r#type() != MessageType::MsgProp {
                assert_eq!(message.term() == 0, message.r#type() == MessageType::MsgReadIndex);
            }
            if message.r#type() == MessageType::MsgSnap {
                let state = self.members[&id].state.clone();
                let metadata = raftpb::SnapshotMetadata {
                    conf_state: Some(raftpb::ConfState {
                        voters: state.voters.iter().copied().collect(),
                        learners: state.learners.iter().copied().collect(),
                        ..Default::default()
                    }),
                    index: Some(state.index),
                    term: Some(state.term),
                };
                let at = self.snapshots.len() as u64;
                message.snapshot = Some(raftpb::Snapshot {
                    metadata: Some(metadata),
                    data: Some(Bytes::copy_from_slice(&at.to_be_bytes())),
                });
                self.snapshots.push(state);
            }
            self.network.push(message);
        }
        let node = self.members.get_mut(&id).expect("known").node.as_mut().expect("runs");
        for (read, index) in answers {
            // A leader that was removed takes no more requests.
            let _ = node.request(Request::AnswerObserver(read, index));
        }
        for read in effects.observer_reads {
            self.context += 1;
            self.reads.insert(self.context, self.commit);
            if node.request(Request::Read(self.context)).is_ok() {
                self.observers_reads.insert(self.context, read);
            }
        }
    }

    /// Checks the invariants that hold at all times.
    fn check(&mut self, id: u64) {
        let node = self.node(id);
        let status = node.status();
        let voters = node.voters();
        self.commit = self.commit.max(status.commit.0);
        if status.role != Role::Leader {
            // The members at that time committed this index, so the present members need not have a majority
            // for it.
            self.members.get_mut(&id).expect("known").checked = status.commit.0;
            return;
        }
        assert_ne!(id, WITNESS, "the witness leads");
        let leader = *self.leaders.entry(status.term.0).or_insert(id);
        assert_eq!(leader, id, "two leaders in term {}", status.term);
        // A deposed leader may lack entries that the newer one commits.
        if self.leaders.last_key_value().is_some_and(|(term, _)| *term == status.term.0) {
            for (index, entry) in self.committed.iter().rev().take(20) {
                let term = self.node(id).term_of(Index(*index));
                let discarded = *index <= self.members[&id].disk.before.0;
                assert!(
                    discarded || term == Some(entry.term),
                    "the leader lacks the committed entry {index}"
                );
            }
        }
        let member = &self.members[&id];
        if status.commit > Index(member.checked) {
            let term = self.node(id).term_of(status.commit).expect("in the log");
            let holders = voters
                .iter()
                .filter(|voter| {
                    self.members.get(&voter.0).is_some_and(|m| {
                        m.disk.checkpoint.index >= status.commit.0
                            || m.disk.term_of(status.commit.0) == Some(term.0)
                    })
                })
                .count();
            assert!(
                holders > voters.len() / 2,
                "entry {} is committed on {holders} of {voters:?}",
                status.commit
            );
            self.members.get_mut(&id).expect("known").checked = status.commit.0;
        }
    }

    pub fn tick(&mut self, id: u64) {
        self.must(id, Event::Ticked);
    }

    /// Lets the oldest `count` writes of a member reach its disk.
    pub fn sync(&mut self, id: u64, count: usize) {
        let member = self.members.get_mut(&id).expect("known");
        let mut number = None;
        for _ in 0..count.min(member.writes.len()) {
            let write = member.writes.pop_front().expect("counted");
            number = Some(write.number);
            member.disk.write(write);
        }
        if let Some(number) = number {
            self.must(id, Event::LogSynced(number));
        }
    }

    pub fn apply(&mut self, id: u64, count: usize) {
        for _ in 0..count {
            let member = self.members.get_mut(&id).expect("known");
            let Some(entry) = member.to_apply.pop_front() else { return };
            assert_eq!(entry.index, Index(member.state.index + 1), "committed entries leave a gap");
            member.state.index = entry.index.0;
            member.state.term = entry.term.0;
            if entry.kind == EntryKind::ConfChange
                && let Some(change) = member.state.change(read_conf_change(&entry.data), self.voters_min)
            {
                if change.node.0 == WITNESS {
                    let is_added = change.kind != ConfChangeKind::Remove;
                    self.must(id, Event::WitnessSet(MemberId(if is_added { WITNESS } else { 0 })));
                }
                self.must(id, Event::ConfChanged(change));
            }
            // A snapshot may have been installed in between.
            if self.members[&id].state.index == entry.index.0 {
                self.must(id, Event::Applied(entry.index));
            }
        }
    }

    pub fn to_apply(&self, id: u64) -> usize {
        self.members[&id].to_apply.len()
    }

    /// Saves the applied state; the log keeps its entries.
    pub fn checkpoint(&mut self, id: u64) {
        let member = self.members.get_mut(&id).expect("known");
        // While a snapshot is being written, the snapshot is the checkpoint.
        if member.writes.iter().all(|w| w.restore.is_none()) && member.state.index <= member.disk.last() {
            member.disk.checkpoint = member.state.clone();
        }
    }

    pub fn forget(&mut self, id: u64, keep: u64) {
        let index = self.members[&id].state.index.saturating_sub(keep);
        self.must(id, Event::Forgotten(Index(index)));
    }

    /// Makes the log drop all but the last `keep` of the entries in the checkpoint.
    pub fn discard(&mut self, id: u64, keep: u64) {
        let member = self.members.get_mut(&id).expect("known");
        let index = member.disk.checkpoint.index.saturating_sub(keep);
        if index <= member.disk.before.0 || member.writes.iter().any(|w| w.restore.is_some()) {
            return;
        }
        let term = member.disk.term_of(index).expect("on disk");
        let gone = usize::try_from(index - member.disk.before.0).expect("small");
        member.disk.entries.drain(..gone);
        member.disk.before = (index, term);
        self.must(id, Event::Discarded(Index(index + 1)));
    }

    /// Answers the oldest fetch with at most `count` entries.
    pub fn fetch(&mut self, id: u64, count: usize) {
        let member = self.members.get_mut(&id).expect("known");
        let Some(fetch) = member.fetches.pop_front() else { return };
        assert!(fetch.first < fetch.last && fetch.bytes_max > 0);
        let entries: Vec<Entry> = member
            .disk
            .entries
            .iter()
            .filter(|e| (fetch.first..fetch.last).contains(&e.index))
            .take(count)
            .cloned()
            .collect();
        let entries =
            if entries.first().is_some_and(|e| e.index == fetch.first) { entries } else { Vec::new() };
        self.fetched += entries.len() as u64;
        self.must(id, Event::Fetched { fetch, entries });
    }

    /// Proposes commands of `bytes` bytes each.
    pub fn propose(&mut self, id: u64, count: usize, bytes: usize) -> Result<(), Refusal> {
        let commands = (0..count)
            .map(|_| {
                self.payload += 1;
                let mut data = self.payload.to_be_bytes().to_vec();
                data.resize(bytes.max(8), 0);
                Bytes::from(data)
            })
            .collect();
        self.request(id, Request::Propose(commands))
    }

    pub fn propose_change(&mut self, id: u64, kind: ConfChangeKind, node: u64) -> Result<(), Refusal> {
        let change = ConfChange { kind, node: MemberId(node) };
        self.request(id, Request::ProposeConfChange(change, conf_change(change)))
    }

    /// Begins a read; returns its context.
    pub fn read(&mut self, id: u64) -> Result<u64, Refusal> {
        self.context += 1;
        self.reads.insert(self.context, self.commit);
        self.request(id, Request::Read(self.context)).map(|()| self.context)
    }

    /// Delivers a message, or loses it if the connection is cut or the receiver is down.
    pub fn deliver(&mut self, message: raftpb::Message) {
        let (from, to) = (message.from(), message.to());
        let snapshot = message.snapshot.clone().filter(|_| message.r#type() == MessageType::MsgSnap);
        let up = self.members.get(&to).is_some_and(|m| m.node.is_some()) && !self.cut.contains(&(from, to));
        if up {
            if let Some(snapshot) = &snapshot {
                let at = u64::from_be_bytes(snapshot.data()[..].try_into().expect("eight bytes"));
                let state = self.snapshots[usize::try_from(at).expect("small")].clone();
                self.members.get_mut(&to).expect("known").snapshot = Some(state);
            }
            let wire = message.encode_to_vec();
            let message = raftpb::Message::decode(&wire[..]).expect("own encoding");
            match self.request(to, Request::Receive(message.clone())) {
                Ok(()) | Err(Refusal::NoLeader | Refusal::Transferring) => {}
                Err(refusal @ Refusal::OtherHistory { .. }) => panic!("{refusal}"),
                Err(Refusal::Other(text)) if text.ends_with("which is not the feeder") => {}
                Err(Refusal::Other(text)) if text.ends_with("to an observer") => {}
                Err(Refusal::Other(text)) if text.ends_with("with another history") => {}
                Err(Refusal::Other(text)) => {
                    let known = [
                        "a transfer request to a member that does not lead",
                        "raft: cannot step as peer not found",
                        "a removal of a member that has what the others may lack",
                        "a transfer of leadership to the witness",
                    ];
                    assert!(
                        known.contains(&text.as_str()),
                        "a sound message is refused: {text}: {message:?}"
                    );
                }
            }
        }
        if snapshot.is_some() && self.members.get(&from).is_some_and(|m| m.node.is_some()) {
            self.must(from, Event::SnapshotReported { to: MemberId(to), delivered: up });
        }
    }

    /// Loses a message; the sender of a snapshot is notified.
    pub fn lose(&mut self, message: &raftpb::Message) {
        let (from, to) = (message.from(), message.to());
        if message.r#type() == MessageType::MsgSnap
            && self.members.get(&from).is_some_and(|m| m.node.is_some())
        {
            self.must(from, Event::SnapshotReported { to: MemberId(to), delivered: false });
        }
    }

    /// Continues without ticks until nothing more happens.
    pub fn rest(&mut self) {
        self.rest_losing(|_| false);
    }

    /// Continues like [`Sim::rest`], but loses some messages.
    pub fn rest_losing(&mut self, loses: impl Fn(&raftpb::Message) -> bool) {
        for _ in 0..10_000 {
            let messages = std::mem::take(&mut self.network);
            let mut quiet = messages.is_empty();
            for message in messages {
                if loses(&message) {
                    self.lose(&message);
                } else {
                    self.deliver(message);
                }
            }
            for id in self.running() {
                quiet &= self.member(id).unsynced() == 0
                    && self.to_apply(id) == 0
                    && self.member(id).fetches.is_empty();
                self.sync(id, usize::MAX);
                self.apply(id, usize::MAX);
                while !self.member(id).fetches.is_empty() {
                    self.fetch(id, usize::MAX);
                }
            }
            if quiet {
                return;
            }
        }
        panic!(
            "the cluster does not come to rest: {:?}\n{}",
            self.network.iter().take(6).collect::<Vec<_>>(),
            self.describe()
        );
    }

    /// Returns the status of all members, for the output of a failed test.
    pub fn describe(&self) -> String {
        let line = |m: &Member| {
            let node = m
                .node
                .as_ref()
                .map(|n| (n.status(), n.progress(), n.voters(), n.learners(), n.transferring()));
            format!("{} applied {} disk {:?}..{} {node:?}", m.id, m.state.index, m.disk.before, m.disk.last())
        };
        self.members.values().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Ticks all running members, with a rest after each tick.
    pub fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            for id in self.running() {
                self.tick(id);
            }
            self.rest();
        }
    }

    /// Cuts members off from all others, in both directions.
    pub fn isolate(&mut self, ids: &[u64]) {
        let all: Vec<u64> = self.members.keys().copied().collect();
        for a in ids {
            for b in all.iter().filter(|b| !ids.contains(b)) {
                self.cut.insert((*a, *b));
                self.cut.insert((*b, *a));
            }
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }
}
