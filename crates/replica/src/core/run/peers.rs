//! Handles the messages of other members, carries out the effects of the raft node, and provides entries for
//! followers that lag behind.

use std::time::Instant;

use api::raftpb;
use api::raftpb::MessageType;
use consensus::{Effects, EntryKind, Event, Fetch, Request, Role};
use log::Batch;
use numbers::MemberId;
use planted::Bug;
use storage::catch_up::Fetched;
use telemetry::logging::Value;

use super::Core;
use super::clients::step_received;
use crate::arrivals::Charge;
use crate::core::Fatal;
use crate::core::room::Room;

/// Maximum bytes of entries that are kept in memory for followers. Older entries are read from the log.
const TAIL_BYTES: usize = 64 << 20;

/// Messages, and entries for followers that lag behind.
impl Core {
    /// Passes a received message to the raft node. A refused message is dropped, as if the network had lost
    /// it; raft repeats messages that matter.
    pub(super) fn step_received(&mut self, message: raftpb::Message) {
        step_received(&mut self.node, &self.logger, message);
    }

    /// Handles messages that other members have sent.
    pub(super) fn received(&mut self, messages: Vec<raftpb::Message>, mut charge: Charge, now: Instant) {
        for mut message in messages {
            let (kind, from) = (message.r#type.unwrap_or(0), message.from.unwrap_or(0));
            // A snapshot message is ignored here. It is handled together with its state, which arrives by
            // another path.
            let snapshot = kind == MessageType::MsgSnap as i32;
            let proposed = kind == MessageType::MsgProp as i32;
            let of_read =
                kind == MessageType::MsgReadIndex as i32 || kind == MessageType::MsgReadIndexResp as i32;
            let entries = !message.entries.is_empty() && !of_read;
            if proposed && self.leadership.leads() {
                self.space.room.thin_out(&self.log, &mut message);
            }
            // Entries that cannot be accepted now are dropped, as if the network had lost them: the disk is
            // full or hangs, or too many entries wait to be applied. The leader sends them again.
            let full = entries
                && if proposed {
                    message.entries.is_empty()
                } else {
                    !self.space.room.takes_entries(&self.log, &message.entries)
                        || !Room::takes_more(&self.log)
                        || self.apply.queue.is_far_behind()
                };
            if snapshot || full || self.machine.members.removed.contains(&from) {
                continue;
            }
            if self.leadership.leads() && self.membership.asks_to_remove_this(&message) {
                self.membership.depart(message, now);
            } else if self.leadership.leads() && proposed {
                let held = charge.part(&message);
                self.proposals.forward(message, held, now);
            } else {
                self.step_received(message);
            }
        }
    }

    /// Sends raft's messages. A snapshot message is kept, to be sent with the next published state.
    fn send(&mut self, messages: Vec<raftpb::Message>) {
        if messages.is_empty() {
            return;
        }
        let Some(peers) = self.shared.cluster.peers() else { return };
        let mut rest = Vec::with_capacity(messages.len());
        for message in messages {
            if message.r#type == Some(MessageType::MsgSnap as i32) {
                self.outgoing.want(message);
            } else {
                rest.extend(self.observers.hold(message));
            }
        }
        peers.send(rest);
    }

    /// Sends observers the entries that are published now.
    pub(super) fn send_published(&mut self) {
        // While an entry is partly applied, the published state lacks the entries before it, too.
        if !self.machine.is_whole() {
            return;
        }
        let messages = self.observers.take_unpublished();
        if !messages.is_empty()
            && let Some(peers) = self.shared.cluster.peers()
        {
            peers.send(messages);
        }
    }

    /// Orders the reading of entries that a follower needs and that are no longer in memory.
    fn fetch(&mut self, fetch: Fetch) -> Result<(), Fatal> {
        match self.workers.fetch(fetch) {
            Ok(()) => Ok(()),
            Err(fetch) => self.step(Event::Fetched { fetch, entries: Vec::new() }),
        }
    }

    /// Handles entries that were read for a follower, or the error of reading them. Damaged entries count as
    /// no longer in the log, so followers that need them get a snapshot instead.
    pub(super) fn fetched(&mut self, fetch: Fetch, read: Fetched) -> Result<(), Fatal> {
        let entries = match read {
            Ok(entries) => entries,
            Err(error) => {
                let why = error.to_string();
                self.logger.error(
                    "cannot read old entries for a follower, which gets a snapshot instead; if \
                     its log is damaged, rebuild this member from the others with `mainstay rebuild`",
                    &[("follower", Value::Id(fetch.to.0)), ("error", Value::Str(&why))],
                );
                self.step(Event::Discarded(fetch.last))?;
                Vec::new()
            }
        };
        self.step(Event::Fetched { fetch, entries })
    }

    /// Drops old entries from memory. A node that nobody follows, such as the member of a single-member cluster,
    /// an observer or a witness, drops all applied entries. Others keep the newest entries for those that lag behind.
    pub(super) fn forget(&mut self) -> Result<(), Fatal> {
        let applied = self.machine.applied_index;
        let feeds_nobody = self.observers.observes() || self.shared.member.is_witness;
        let has_followers = self.machine.members.by_id.len() > 1 && !feeds_nobody;
        if !has_followers && !self.node.feeds_observers() {
            return self.step(Event::Forgotten(applied));
        }
        let (entries, bytes) = self.node.kept();
        let last = self.node.status().last;
        let keep = self.options.snapshot_catchup_entries;
        let entries = entries as u64;
        // The limit may be exceeded by an eighth, so that entries are dropped many at a time and not one per
        // call.
        if entries > keep + keep / 8 {
            self.step(Event::Forgotten(applied.min(last.saturating_sub(keep))))?;
        } else if bytes > TAIL_BYTES {
            self.step(Event::Forgotten(applied.min(last.saturating_sub(entries / 2))))?;
        }
        Ok(())
    }

    /// Reports the index of the log's first entry to raft, so that raft knows which entries are no longer in
    /// the log.
    pub(super) fn look_at_log(&mut self, now: Instant) -> Result<(), Fatal> {
        match self.history.first_index(now) {
            Some(first) => self.step(Event::Discarded(first)),
            None => Ok(()),
        }
    }
}

/// Events for the raft node, and carrying out its effects.
impl Core {
    /// Reports an event of this member to the raft node. If the node refuses an event, that is a bug, and
    /// this member ends. Therefore input of clients and peers is passed as a [`consensus::Request`] instead,
    /// whose refusal has no such effect.
    pub(super) fn step(&mut self, event: Event) -> Result<(), Fatal> {
        Ok(self.node.step(event)?)
    }

    pub(super) fn carry_out(&mut self, now: Instant) -> Result<(), Fatal> {
        self.apply_some(now)?;
        loop {
            while !self.lifecycle.is_parked()
                && let Some(effects) = self.node.effects()
            {
                self.follow(effects, now)?;
                self.campaign_alone();
            }
            // The campaign and the first proposals of a leader have effects of their own. The loop carries
            // them out in this turn, because the next turn may come only with the next tick.
            if !self.campaign_alone() && !self.begin_to_lead(now) {
                return Ok(());
            }
        }
    }

    fn follow(&mut self, effects: Effects, now: Instant) -> Result<(), Fatal> {
        if !self.leads_now() {
            // The shards must stop renewing leases before a vote for another member is sent: with that vote
            // the other member can lead and let the leases expire.
            self.leases.open_to_shards(false);
        }
        // Messages are sent before entries are written, so that the network and this member's disk work in
        // parallel. If this turn runs on the thread of the other members, they leave after the turn.
        self.send(effects.messages);
        if let Some(raft_status) = effects.status {
            self.stands(raft_status, now);
        }
        if let Some(restore) = effects.restore {
            self.restore(&restore, now)?;
        }
        if let Some(append) = effects.append {
            self.append(append, now)?;
        }
        for read in effects.reads {
            self.reads.confirm(read.number, read.index, now);
        }
        for read in effects.observer_reads {
            self.read_for_observer(read, now);
        }
        for fetch in effects.fetches {
            self.fetch(fetch)?;
        }
        self.apply.queue.committed(effects.commit);
        self.apply_some(now)
    }

    /// Begins an election immediately if this member is the only voter, because no other member could win.
    /// Returns true if an election was begun.
    fn campaign_alone(&mut self) -> bool {
        if self.lifecycle.is_parked() {
            return false;
        }
        let raft_status = self.node.status();
        let alone = self.node.voters() == [MemberId(self.shared.member.identity.member_id)];
        if raft_status.role != Role::Follower || !alone || self.machine.applied_index < raft_status.commit {
            return false;
        }
        // Raft refuses while the log is not synced. The end of the sync causes another turn, which tries
        // again.
        let taken = self.node.request(Request::Campaign);
        assert!(taken.is_ok() || !planted::is(Bug::RefusalFatal), "a campaign was refused");
        taken.is_ok()
    }

    /// Makes the first proposals of a leader that has just applied the first entry of its term. This member
    /// serves no clients before they are applied. Returns false if this member has not just settled as the
    /// leader.
    fn begin_to_lead(&mut self, now: Instant) -> bool {
        if self.lifecycle.is_parked() || !self.leadership.take_settled() {
            return false;
        }
        // The version is proposed before the attributes. When the attributes are applied, the member begins
        // to serve, and then it must already know the cluster version.
        self.decide_version_alone();
        self.propose_attributes(now);
        true
    }

    fn append(&mut self, append: consensus::Append, now: Instant) -> Result<(), Fatal> {
        let Some(append) = self.install.hold(append) else { return Ok(()) };
        self.append_behind(None, append, now)
    }

    /// Gives a batch of raft to the log. With `reset`, the log first restarts after a snapshot.
    pub(super) fn append_behind(
        &mut self,
        reset: Option<log::Reset>,
        append: consensus::Append,
        now: Instant,
    ) -> Result<(), Fatal> {
        let entries = append
            .entries
            .into_iter()
            .map(|entry| log::Entry {
                term: entry.term,
                index: entry.index,
                entry_type: match entry.kind {
                    EntryKind::Normal => 0,
                    EntryKind::ConfChange => 1,
                },
                data: entry.data,
            })
            .collect();
        let hard_state =
            append.hard_state.map(|hs| log::HardState { term: hs.term, vote: hs.vote, commit: hs.commit });
        let batch = Batch { reset, entries, hard_state, ..Batch::default() };
        self.space.room.hand(&mut self.log, batch, append.number, now)?;
        if planted::is(Bug::LeaderCountsUnsynced) && self.leadership.leads() {
            self.step(Event::LogSynced(append.number))?;
        }
        Ok(())
    }
}
