//! The node: raft's decisions, as effects for others to carry out.

use bytes::Bytes;
use raft::eraftpb;
use raft::{RawNode, StateRole};

use crate::entry::{ConfChange, Entry, HardState};
use crate::tail::Tail;

/// How a node is set up. All times are in ticks.
#[derive(Clone, Debug)]
pub struct Config {
    /// This member's id; not 0.
    pub id: u64,
    /// Ticks without a leader after which a follower campaigns, at the least; it waits up to twice as long.
    pub election_ticks: usize,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Whether a member asks around before it raises the term.
    pub pre_vote: bool,
    /// Decides the election timeouts. Members of one cluster need different ones.
    pub seed: u64,
}

/// What a node starts from: the checkpoint's position and what the log holds after it.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Term, vote and commit index as last synced.
    pub hard_state: HardState,
    /// The members with a vote, as of `applied`.
    pub voters: Vec<u64>,
    /// The members without one, as of `applied`.
    pub learners: Vec<u64>,
    /// The index that the restored state has applied.
    pub applied: u64,
    /// The term of the entry at `applied`.
    pub applied_term: u64,
    /// All entries of the log after `applied`, in order.
    pub entries: Vec<Entry>,
}

/// What happened, in the past tense.
#[derive(Debug)]
pub enum Event {
    /// One tick went by.
    Ticked,
    /// A client's command is to be replicated: the bytes of an `InternalRaftRequest`.
    Proposed(Bytes),
    /// A membership change is to be replicated; the bytes are etcd's `ConfChange`.
    ConfChangeProposed(ConfChange, Bytes),
    /// The append batch with this number, and all before it, are on disk.
    LogSynced(u64),
    /// Everything up to this index has been applied.
    Applied(u64),
    /// A committed membership change has been applied to the member list.
    ConfChanged(ConfChange),
    /// It is time to campaign without waiting for a timeout.
    CampaignRequested,
    /// Entries up to this index are no longer needed in memory.
    Forgotten(u64),
}

/// A node's part in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks for votes, or whether it would get any.
    Candidate,
    /// Leads.
    Leader,
}

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its part.
    pub role: Role,
    /// The leader it knows of; 0 for none.
    pub leader: u64,
    /// The current term.
    pub term: u64,
    /// The newest committed index.
    pub commit: u64,
    /// The newest index in its log, synced or not.
    pub last: u64,
}

/// Entries and state for the log.
#[derive(Debug)]
pub struct Append {
    /// What [`Event::LogSynced`] has to name.
    pub number: u64,
    /// In order; the first may replace entries already in the log.
    pub entries: Vec<Entry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
}

/// What is to be done, in the imperative.
#[derive(Debug, Default)]
pub struct Effects {
    /// For the log.
    pub append: Option<Append>,
    /// Committed entries, to be applied in order.
    pub commit: Vec<Entry>,
    /// The node's new standing, if role or leader changed.
    pub standing: Option<Standing>,
}

/// The node could not take an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no leader to take a proposal.
    NoLeader,
    /// The raft crate's own words.
    Other(String),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::NoLeader => f.write_str("no leader takes proposals"),
            Refused::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refused {}

/// One member's raft node.
pub struct Node {
    raw: RawNode<Tail>,
    config: Config,
    ticks: u64,
    /// A hard state whose only news is the commit index: it goes to the log with the next thing that has to, for a
    /// commit index that is lost in a crash is found again.
    unsaved: Option<HardState>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.config.id).field("standing", &self.standing()).finish()
    }
}

impl Node {
    /// Starts a node from what was restored.
    ///
    /// # Errors
    ///
    /// When configuration and restored state do not go together; the text says why.
    pub fn new(config: Config, restored: Restored) -> Result<Node, Refused> {
        let mut tail =
            Tail { before_index: restored.applied, before_term: restored.applied_term, ..Tail::default() };
        tail.conf_state.voters = restored.voters;
        tail.conf_state.learners = restored.learners;
        let last_entry = restored.applied + restored.entries.len() as u64;
        tail.hard_state.term = restored.hard_state.term.max(restored.applied_term);
        tail.hard_state.vote = restored.hard_state.vote;
        // A commit index is not synced for its own sake, so the checkpoint may know a newer one; and it may name
        // entries beyond a log whose unsynced tail was lost.
        tail.hard_state.commit = restored.hard_state.commit.clamp(restored.applied, last_entry);
        let entries: Vec<eraftpb::Entry> = restored.entries.iter().map(Entry::to_raft).collect();
        for (at, entry) in entries.iter().enumerate() {
            if entry.index != restored.applied + 1 + at as u64 {
                return Err(Refused::Other(format!(
                    "the log has no entry {}",
                    restored.applied + 1 + at as u64
                )));
            }
        }
        tail.append(&entries);

        let raft_config = raft::Config {
            id: config.id,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            applied: restored.applied,
            max_size_per_msg: 1024 * 1024,
            max_inflight_msgs: 512,
            check_quorum: true,
            pre_vote: config.pre_vote,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config, tail, &logger).map_err(|e| Refused::Other(e.to_string()))?;
        let mut node = Node { raw, config, ticks: 0, unsaved: None };
        node.settle_timeout();
        Ok(node)
    }

    /// Takes one event.
    ///
    /// # Errors
    ///
    /// Only proposals are refused, and then nothing has changed.
    pub fn step(&mut self, event: Event) -> Result<(), Refused> {
        let outcome = match event {
            Event::Ticked => {
                self.ticks += 1;
                self.raw.tick();
                Ok(())
            }
            Event::Proposed(data) => self.propose(eraftpb::Entry { data, ..eraftpb::Entry::default() }),
            Event::ConfChangeProposed(change, data) => {
                use protobuf::Message as _;
                let form = change.to_raft().write_to_bytes().map_err(|e| Refused::Other(e.to_string()))?;
                self.propose(eraftpb::Entry {
                    entry_type: eraftpb::EntryType::EntryConfChange,
                    data: form.into(),
                    context: data,
                    ..eraftpb::Entry::default()
                })
            }
            Event::LogSynced(number) => {
                self.raw.on_persist_ready(number);
                Ok(())
            }
            Event::Applied(index) => {
                self.raw.advance_apply_to(index);
                Ok(())
            }
            Event::ConfChanged(change) => {
                let state = self
                    .raw
                    .apply_conf_change(&change.to_raft())
                    .map_err(|e| Refused::Other(e.to_string()))?;
                self.raw.mut_store().conf_state = state;
                Ok(())
            }
            Event::CampaignRequested => self.raw.campaign().map_err(|e| Refused::Other(e.to_string())),
            Event::Forgotten(index) => {
                let applied = self.raw.raft.raft_log.applied;
                self.raw.mut_store().forget(index.min(applied));
                Ok(())
            }
        };
        self.settle_timeout();
        outcome
    }

    fn propose(&mut self, entry: eraftpb::Entry) -> Result<(), Refused> {
        if self.raw.raft.leader_id == 0 {
            return Err(Refused::NoLeader);
        }
        let mut message = eraftpb::Message::default();
        message.set_msg_type(eraftpb::MessageType::MsgPropose);
        message.from = self.config.id;
        message.entries = vec![entry].into();
        match self.raw.raft.step(message) {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) => Err(Refused::NoLeader),
            Err(other) => Err(Refused::Other(other.to_string())),
        }
    }

    /// What follows from the events so far; `None` once there is nothing more to do.
    pub fn effects(&mut self) -> Option<Effects> {
        if !self.raw.has_ready() {
            return None;
        }
        let mut ready = self.raw.ready();
        let mut effects = Effects::default();
        if ready.ss().is_some() {
            effects.standing = Some(self.standing());
        }
        // A single voter has nobody to talk to: peers, their messages and reads through them come with clusters.
        assert!(ready.take_messages().is_empty(), "a member without peers sends to nobody");
        assert!(ready.take_persisted_messages().is_empty(), "a member without peers sends to nobody");
        effects.commit = ready.take_committed_entries().into_iter().map(Entry::from_raft).collect();
        if let Some(hs) = ready.hs() {
            self.unsaved = Some(HardState { term: hs.term, vote: hs.vote, commit: hs.commit });
        }
        let must_sync = ready.must_sync();
        let number = ready.number();
        let entries = ready.take_entries();
        if let Some(hs) = ready.hs() {
            self.raw.mut_store().hard_state = hs.clone();
        }
        self.raw.mut_store().append(&entries);
        self.raw.advance_append_async(ready);
        if must_sync {
            let entries = entries.into_iter().map(Entry::from_raft).collect();
            effects.append = Some(Append { number, entries, hard_state: self.unsaved.take() });
        }
        Some(effects)
    }

    /// Where the node stands now.
    pub fn standing(&self) -> Standing {
        let raft = &self.raw.raft;
        Standing {
            role: match raft.state {
                StateRole::Leader => Role::Leader,
                StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
            leader: raft.leader_id,
            term: raft.term,
            commit: raft.raft_log.committed,
            last: raft.raft_log.last_index(),
        }
    }

    /// The ids of those with a vote, in order.
    pub fn voters(&self) -> Vec<u64> {
        let mut voters = self.raw.store().conf_state.voters.clone();
        voters.sort_unstable();
        voters
    }

    /// The ids of those without one, in order.
    pub fn learners(&self) -> Vec<u64> {
        let mut learners = self.raw.store().conf_state.learners.clone();
        learners.sort_unstable();
        learners
    }

    /// Entries and payload bytes kept in memory.
    pub fn kept(&self) -> (usize, usize) {
        let tail = self.raw.store();
        (tail.entries.len(), tail.bytes)
    }

    /// Replaces the raft crate's random election timeout by ours: a function of the seed, the term and how long the
    /// node has run, so that a run repeats, and two members that collide once do not collide for ever.
    fn settle_timeout(&mut self) {
        let ticks = self.config.election_ticks as u64;
        let mut x = self.config.seed
            ^ self.raw.raft.term.rotate_left(17)
            ^ (self.ticks / (2 * ticks)).rotate_left(41);
        // SplitMix64's finalizer (Steele, Lea, Flood 2014).
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        let timeout = ticks + x % ticks;
        self.raw
            .raft
            .set_randomized_election_timeout(usize::try_from(timeout).unwrap_or(self.config.election_ticks));
    }
}
