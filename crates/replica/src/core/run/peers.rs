//! Work with the other members: raft, leadership, membership changes, and snapshots.

use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Instant;

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use api::raftpb::MessageType;
use api::{Status, error, membershippb, raftpb};
use consensus::{
    ConfChange, ConfChangeKind, Effects, Entry, EntryKind, Event, Fetch, Node, Refused, Request, Restore,
    Role, Standing,
};
use log::{Batch, Reset};
use machine::{Command, Machine, VoterChange};
use numbers::{Index, MemberId};
use planted::Bug;
use storage::catch_up::Fetched;
use storage::checkpointer::Order;
use telemetry::logging::Value;

use super::Core;
use super::clients::step_received;
use crate::arrivals::Charge;
use crate::cluster_version::minor;
use crate::core::leadership::Leaves;
use crate::core::membership::{Membership, Told};
use crate::core::proposals::Waiter;
use crate::core::room::{Purpose, Room};
use crate::core::{Fatal, MemberChange, Placement, ReplyBody, RequestId, SnapshotAttempt, membership};
use crate::long_reads::Reader;
use crate::received::{Outcome, Received};
use crate::shared::Shared;

/// Maximum bytes of entries kept in memory for followers; older entries are read from the log.
const TAIL_BYTES: usize = 64 << 20;

const CORRUPT: i32 = AlarmType::Corrupt as i32;

/// Messages, and entries for followers that lag behind.
impl Core {
    /// Passes a received message to the raft node. A refused message is dropped, as if the network had lost
    /// it; the sender repeats it if it matters.
    fn step_received(&mut self, message: raftpb::Message) {
        step_received(&mut self.node, &self.logger, message);
    }

    /// Handles messages that other members have sent.
    pub(super) fn received(&mut self, messages: Vec<raftpb::Message>, mut charge: Charge, now: Instant) {
        for mut message in messages {
            let (kind, from) = (message.r#type.unwrap_or(0), message.from.unwrap_or(0));
            // A snapshot message takes another way, together with its state.
            let snapshot = kind == MessageType::MsgSnap as i32;
            let proposed = kind == MessageType::MsgProp as i32;
            let entries = !message.entries.is_empty() && kind != MessageType::MsgReadIndex as i32;
            if proposed && self.leadership.leads() {
                self.room.thin_out(&self.log, &mut message);
            }
            // Entries that the log cannot take, because the disk is full or hangs, are treated as lost by the
            // network: they are sent again.
            let full = entries
                && if proposed {
                    message.entries.is_empty()
                } else {
                    !self.room.takes_entries(&self.log, &message.entries)
                        || !Room::takes_more(&self.log)
                        || self.applying.is_far_behind()
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

    /// Sends raft's messages. A snapshot message is set aside, to be sent with the published state.
    fn send(&mut self, messages: Vec<raftpb::Message>) {
        if messages.is_empty() {
            return;
        }
        let Some(peers) = self.shared.peers() else { return };
        let mut rest = Vec::with_capacity(messages.len());
        for message in messages {
            if message.r#type == Some(MessageType::MsgSnap as i32) {
                self.snapshots_wanted.push(message);
            } else {
                rest.push(message);
            }
        }
        peers.send(rest);
    }

    /// Orders entries to be read that a follower needs and that are no longer in memory.
    fn fetch(&mut self, fetch: Fetch) -> Result<(), Fatal> {
        match self.fetches.try_send(fetch) {
            Ok(()) => Ok(()),
            Err(
                std::sync::mpsc::TrySendError::Full(fetch)
                | std::sync::mpsc::TrySendError::Disconnected(fetch),
            ) => self.step(Event::Fetched { fetch, entries: Vec::new() }),
        }
    }

    /// Handles entries that were read for a follower, or could not be read. Damaged entries count as released
    /// from the log: followers that need them get a snapshot instead.
    pub(super) fn fetched(&mut self, fetch: Fetch, read: Fetched) -> Result<(), Fatal> {
        let entries = match read {
            Ok(entries) => entries,
            Err(error) => {
                let why = error.to_string();
                self.logger.error(
                    "cannot read old entries for a follower, which gets a snapshot instead; rebuild this \
                     member, whose log is damaged, from the others with `mainstay rebuild`",
                    &[("follower", Value::Id(fetch.to.0)), ("error", Value::Str(&why))],
                );
                self.step(Event::Discarded(fetch.last))?;
                Vec::new()
            }
        };
        self.step(Event::Fetched { fetch, entries })
    }

    /// Lets entries leave memory: a single member needs none, other members keep the newest for followers
    /// that lag behind.
    pub(super) fn forget(&mut self) -> Result<(), Fatal> {
        let applied = self.machine.applied_index;
        if self.machine.members.by_id.len() <= 1 {
            return self.step(Event::Forgotten(applied));
        }
        let (entries, bytes) = self.node.kept();
        let last = self.node.standing().last;
        let keep = self.options.snapshot_catchup_entries;
        let entries = entries as u64;
        // The limit is exceeded by an eighth first, so that this is not done for every entry.
        if entries > keep + keep / 8 {
            self.step(Event::Forgotten(applied.min(last.saturating_sub(keep))))?;
        } else if bytes > TAIL_BYTES {
            self.step(Event::Forgotten(applied.min(last.saturating_sub(entries / 2))))?;
        }
        Ok(())
    }

    /// Reports to raft which entries the log has released.
    pub(super) fn look_at_log(&mut self, now: Instant) -> Result<(), Fatal> {
        match self.history.first_index(now) {
            Some(first) => self.step(Event::Discarded(first)),
            None => Ok(()),
        }
    }
}

/// Carrying out the raft node's effects.
impl Core {
    /// Reports an event of this member to the raft node. Input of clients and peers must not go this way: it
    /// is a [`consensus::Request`], whose refusal does not end the member.
    pub(super) fn step(&mut self, event: Event) -> Result<(), Fatal> {
        Ok(self.node.step(event)?)
    }

    pub(super) fn carry_out(&mut self, now: Instant) -> Result<(), Fatal> {
        self.apply_some(now)?;
        loop {
            while self.parked.is_none()
                && let Some(effects) = self.node.effects()
            {
                self.follow(effects, now)?;
                self.campaign_alone();
            }
            // Their effects are carried out in this turn, because the next turn may come only with the next
            // tick.
            if !self.campaign_alone() && !self.begin_to_lead(now) {
                return Ok(());
            }
        }
    }

    fn follow(&mut self, effects: Effects, now: Instant) -> Result<(), Fatal> {
        if !self.leads_now() {
            // Done before a vote for another member is sent.
            self.leases.open_to_shards(false);
        }
        // Messages go first: sending and the member's own disk then work in parallel.
        self.send(effects.messages);
        if let Some(standing) = effects.standing {
            self.stands(standing, now);
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
        for fetch in effects.fetches {
            self.fetch(fetch)?;
        }
        self.applying.committed(effects.commit);
        self.apply_some(now)
    }

    /// Campaigns at once if this member is the only voter, because no other member could win. Returns true if
    /// it has campaigned.
    fn campaign_alone(&mut self) -> bool {
        if self.parked.is_some() {
            return false;
        }
        let standing = self.node.standing();
        let alone = self.node.voters() == [MemberId(self.shared.identity.member_id)];
        if standing.role != Role::Follower || !alone || self.machine.applied_index < standing.commit {
            return false;
        }
        // Refused while the log is not synced; the end of the sync causes another turn.
        let taken = self.node.request(Request::Campaign);
        assert!(taken.is_ok() || !planted::is(Bug::RefusalFatal), "a campaign was refused");
        taken.is_ok()
    }

    /// Makes the first proposals of a leader that has just applied the first entry of its term; a start waits
    /// for them. Returns false if that has not just happened.
    fn begin_to_lead(&mut self, now: Instant) -> bool {
        if self.parked.is_some() || !self.leadership.take_settled() {
            return false;
        }
        // In this order: a member that is ready to serve knows the cluster version.
        self.decide_version_alone();
        self.propose_attributes(now);
        true
    }

    fn append(&mut self, append: consensus::Append, now: Instant) -> Result<(), Fatal> {
        let Some(append) = self.install.hold(append) else { return Ok(()) };
        self.append_behind(None, append, now)
    }

    /// Hands a batch to the log; with `reset` the log restarts after a snapshot.
    fn append_behind(
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
        self.room.hand(&mut self.log, batch, append.number, now)?;
        if planted::is(Bug::LeaderCountsUnsynced) && self.leadership.leads() {
            self.step(Event::LogSynced(append.number))?;
        }
        Ok(())
    }
}

/// Leadership.
impl Core {
    /// Returns the voter that could lead at once: the connected voter with the most entries.
    fn successor(&self) -> Option<MemberId> {
        successor(&self.node, &self.machine, &self.shared)
    }

    /// Checks if the disk hangs in a sync: a member with such a disk must not lead.
    pub(super) fn watch_disk(&mut self, now: Instant) -> Result<(), Fatal> {
        let oldest = self.room.oldest();
        let members = &self.machine.members;
        let has_others = || members.voters().len() >= 2;
        let step = self.leadership.watch_disk(oldest, self.options.election_timeout, has_others, now);
        if let Some(stalled) = step.stalled {
            self.step(Event::DiskStalled(stalled))?;
            if stalled {
                self.logger.warn(
                    "the disk has not finished a sync for an election timeout",
                    &[("leads", Value::Bool(self.leadership.leads()))],
                );
            }
        }
        match step.leaves {
            None => {}
            Some(Leaves::HandsOver) => {
                if let Some(to) = self.successor() {
                    self.logger
                        .warn("transferring leadership because the disk stalls", &[("to", Value::Id(to.0))]);
                    self.transfer_to(to);
                }
            }
            Some(Leaves::GivesUp) => {
                self.logger.warn("giving up leadership because the disk stalls", &[]);
                self.step(Event::StepDownRequested)?;
            }
        }
        Ok(())
    }

    /// Hands leadership over before this member stops, so that the cluster need not wait for an election
    /// timeout.
    pub(super) fn hand_over(&mut self) {
        if !self.leadership.leads() {
            return;
        }
        let Some(to) = self.successor() else { return };
        self.logger.info("transferring leadership before stopping", &[("to", Value::Id(to.0))]);
        self.resigned = true;
        self.transfer_to(to);
    }

    /// Asks raft to hand leadership to another member. A leader that was deposed in this turn cannot; the
    /// callers for which it matters try again at the next tick.
    fn transfer_to(&mut self, to: MemberId) {
        if let Err(why) = self.node.request(Request::Transfer(to)) {
            let why = why.to_string();
            self.logger.debug(
                "leadership was not transferred",
                &[("to", Value::Id(to.0)), ("reason", Value::Str(&why))],
            );
        }
    }

    pub(super) fn move_leader(&mut self, request_id: RequestId, to: MemberId, now: Instant) {
        // The member may have been deposed in this turn, which `leads` shows only at the end of the turn.
        if !self.leadership.leads() || self.node.standing().role != Role::Leader {
            self.refuse(request_id, error::NOT_LEADER);
            return;
        }
        let voter = self.machine.members.by_id.get(&to.0).is_some_and(|member| !member.is_learner);
        if !voter {
            self.refuse(request_id, error::BAD_LEADER_TRANSFEREE);
            return;
        }
        if to == MemberId(self.shared.identity.member_id) {
            self.reply(request_id, ReplyBody::LeaderMoved);
            return;
        }
        match self.node.request(Request::Transfer(to)) {
            Ok(()) => {
                self.leadership.wait_for(request_id, to, now + self.shared.limits.request_timeout);
            }
            Err(Refused::NoLeader | Refused::Transferring) => self.refuse(request_id, error::NOT_LEADER),
            Err(Refused::Other(_)) => self.refuse(request_id, error::BAD_LEADER_TRANSFEREE),
        }
    }

    /// Answers the clients that wait for a member to lead.
    pub(super) fn look_at_moves(&mut self, now: Instant) {
        for (request_id, leads) in self.leadership.take_moved(self.node.standing().leader, now) {
            if leads {
                self.reply(request_id, ReplyBody::LeaderMoved);
            } else {
                self.refuse(request_id, error::LEADER_TRANSFER_TIMEOUT);
            }
        }
    }

    /// Shortens the first election timeout after a start, once messages from other members arrive.
    pub(super) fn advance_ticks(&mut self, now: Instant) -> Result<(), Fatal> {
        let own = self.shared.identity.member_id;
        let (members, peers) = (&self.machine.members, self.shared.peers());
        let connected = |id: &u64| *id != own && peers.is_some_and(|peers| peers.active_since(*id).is_some());
        let hears = || members.by_id.keys().any(connected);
        if !self.leadership.advances(self.node.standing(), hears, now) {
            return Ok(());
        }
        // The first message of a slow leader may still be in flight: two ticks are left for it.
        for _ in 2..self.election_ticks() {
            self.step(Event::Ticked)?;
        }
        Ok(())
    }

    /// Handles the end of the leader's process: its host refuses connections, so waiting for its heartbeats
    /// is useless. The election timeout counts as over, except for the random part that keeps members from
    /// campaigning at the same time. If this is a mistake, the leader's next heartbeat corrects it.
    pub(super) fn leader_ended(&mut self, id: MemberId) -> Result<(), Fatal> {
        if !self.leadership.has_ended(id, self.node.standing()) {
            return Ok(());
        }
        self.logger.warn("the leader's process has exited", &[("leader", Value::Id(id.0))]);
        for _ in 0..self.election_ticks() {
            self.step(Event::Ticked)?;
        }
        Ok(())
    }

    fn election_ticks(&self) -> u128 {
        self.options.election_timeout.as_millis() / self.options.heartbeat_interval.as_millis().max(1)
    }

    fn stands(&mut self, standing: Standing, now: Instant) {
        let stood = self.leadership.stands(standing);
        if stood.stops_leases {
            self.stop_leases(now);
        }
        if stood.cuts_off {
            self.install.cut_off(now);
        }
        self.applied_since = true;
        let Some(before) = stood.was else { return };
        self.reads.ask_again();
        if planted::is(planted::Bug::ProposedAgainEarly) && standing.leader.is_some() {
            self.propose_again(standing.term);
        }
        self.shared.leader_is(standing.leader.0, now);
        if standing.leader == MemberId::NONE {
            self.logger.warn(
                "lost the leader",
                &[("was", Value::Id(before.0)), ("term", Value::Uint(standing.term.0))],
            );
        } else {
            self.shared.metrics.server.leader_changes.inc();
            let what = if self.leadership.leads() { "became leader" } else { "follows" };
            self.logger.info(
                what,
                &[("term", Value::Uint(standing.term.0)), ("leader", Value::Id(standing.leader.0))],
            );
        }
        self.look_at_moves(now);
        // A start waits for this proposal.
        self.propose_attributes(now);
    }
}

/// Membership changes.
impl Core {
    /// Calls `ask` with the state of membership changes and the facts that it needs.
    fn ask_membership<R>(&mut self, ask: impl FnOnce(&mut Membership, membership::Present<'_>) -> R) -> R {
        let Core { membership, node, machine, leadership, shared, .. } = self;
        let peers = shared.peers();
        let active_since = |id| peers.and_then(|peers| peers.active_since(id));
        let successor = || successor(node, machine, shared);
        let present = membership::Present {
            members: &machine.members,
            node,
            leads: leadership.leads(),
            applied_term: machine.applied_term,
            active_since: &active_since,
            successor: &successor,
        };
        ask(membership, present)
    }

    /// Handles a membership change of a client: refuses it if it is invalid or unsafe, and queues it
    /// otherwise. `asks_again` is the flag of
    /// [`ClientRequest::ChangeMembers`](super::super::ClientRequest::ChangeMembers).
    pub(super) fn change_members(
        &mut self,
        request_id: RequestId,
        change: MemberChange,
        asks_again: bool,
        now: Instant,
    ) {
        let promotes = matches!(change, MemberChange::Promote(_));
        let wanted =
            self.ask_membership(|membership, present| membership.want(request_id, change, present, now));
        if let Err(status) = wanted {
            if asks_again && MemberChange::is_of_members(&status) {
                return self.refuse(request_id, status);
            }
            if promotes && self.leadership.leads() && status != error::TOO_MANY_REQUESTS {
                let failures = &self.shared.metrics.server.learner_promote_failures;
                failures.with(&[&status.message]).inc();
            }
            self.refuse_change(request_id, status);
        }
    }

    /// Refuses a membership change. If fewer learners are allowed than the option says, the reason is logged,
    /// because etcd's error text does not contain it.
    fn refuse_change(&mut self, request_id: RequestId, status: Status) {
        if status == error::TOO_MANY_LEARNERS && self.membership.is_held_back(&self.node) {
            let reason = "a voter runs etcd or has not reported yet, or a learner runs etcd; --max-learners has no effect";
            self.logger.warn("refused a learner", &[("reason", Value::Str(reason))]);
        }
        self.refuse(request_id, status);
    }

    /// Handles proposals of other members to remove this member.
    pub(super) fn hold_departures(&mut self, now: Instant) {
        if self.membership.has_departures() {
            let step = self.ask_membership(|membership, present| membership.next_departure(present, now));
            self.change(step);
        }
    }

    /// Proposes the next membership change, once the one before is applied.
    pub(super) fn propose_change(&mut self, now: Instant) {
        if self.membership.has_next() && self.stopping.is_none() {
            let step = self.ask_membership(|membership, present| membership.next_change(present, now));
            self.change(step);
        }
    }

    fn change(&mut self, step: membership::Step) {
        match step {
            membership::Step::Nothing => {}
            membership::Step::HandOver(to) => {
                self.logger.info("transferring leadership before being removed", &[("to", Value::Id(to.0))]);
                self.transfer_to(to);
            }
            membership::Step::ProposeNext => self.propose_next_change(),
            membership::Step::Refuse(request_id, status) => self.refuse_change(request_id, status),
            membership::Step::Take(message) => self.step_received(*message),
            membership::Step::PassOn(removals) => {
                let own = ConfChange {
                    kind: ConfChangeKind::Remove,
                    node: MemberId(self.shared.identity.member_id),
                };
                for data in removals {
                    // Without a leader the proposal is lost, as in etcd.
                    let _ = self.node.request(Request::ProposeConfChange(own, data));
                }
            }
        }
    }

    fn propose_next_change(&mut self) {
        let id = self.shared.command_id();
        let Some((raft, data)) = self.membership.encode_next(id, &self.node) else { return };
        // On a follower the own disk does not matter for a forwarded entry.
        if self.leadership.leads() && !self.room.has(&self.log, data.len(), Purpose::Mends) {
            if let Some((request_id, ..)) = self.membership.take_next(None) {
                self.refuse(request_id, error::NO_SPACE);
            }
            return;
        }
        // Without a leader the change waits here.
        if self.node.request(Request::ProposeConfChange(raft, data)).is_ok()
            && let Some((request_id, change, since)) = self.membership.take_next(Some(id))
        {
            let waiter = Waiter::Members(request_id, Box::new(change));
            let given = self.given();
            self.proposals.await_entry(id, waiter, since, given);
        }
    }

    /// Forgets changes that no request waits for any more.
    pub(super) fn sweep_changes(&mut self, now: Instant) {
        let proposals = &self.proposals;
        self.membership.sweep(|id| proposals.is_awaited(id), now);
    }

    pub(super) fn apply_conf_change(&mut self, entry: &Entry, command: Command<'_>) -> Result<(), Fatal> {
        let learners = self.machine.members.learners().len();
        let applied = self.machine.apply_conf_change(command)?;
        let change = match &applied.outcome {
            Ok(VoterChange::AddVoter(node)) => ConfChange { kind: ConfChangeKind::AddVoter, node: *node },
            Ok(VoterChange::AddLearner(node)) => ConfChange { kind: ConfChangeKind::AddLearner, node: *node },
            Ok(VoterChange::Remove(node)) => ConfChange { kind: ConfChangeKind::Remove, node: *node },
            // Raft has to be told even of an update: until then it takes no other change.
            Ok(VoterChange::Update(node)) => ConfChange { kind: ConfChangeKind::Update, node: *node },
            Err(_) => ConfChange { kind: ConfChangeKind::Update, node: MemberId::NONE },
        };
        self.step(Event::ConfChanged(change))?;
        self.membership.applied(applied.request_id);
        if applied.outcome.is_ok() {
            self.members_changed(change);
        }
        if let Some(Waiter::Members(request_id, _)) = self.proposals.take(applied.request_id) {
            let promoted = matches!(applied.outcome, Ok(VoterChange::AddVoter(_)));
            if promoted && self.machine.members.learners().len() < learners {
                self.shared.metrics.server.learner_promote_successes.inc();
            }
            let (outcome, raft_term) = (applied.outcome.map(|_| ()), entry.term);
            self.membership.tell(Told { request_id, outcome, raft_term });
        }
        Ok(())
    }

    fn members_changed(&mut self, change: ConfChange) {
        self.tell_members();
        let own = self.shared.identity.member_id;
        let what = match change.kind {
            ConfChangeKind::AddVoter => "added or promoted a member",
            ConfChangeKind::AddLearner => "added a learner",
            ConfChangeKind::Remove => "removed a member",
            ConfChangeKind::Update => "updated a member",
        };
        self.logger.info(what, &[("member-id", Value::Id(change.node.0))]);
        if change.kind == ConfChangeKind::Remove && change.node == MemberId(own) {
            self.end_removed(self.shared.clock.now());
        }
    }

    /// Passes the members to the connections with other members, and publishes them.
    pub(super) fn tell_members(&mut self) {
        let others = self.membership.changed(&self.machine.members);
        self.applied_since = true;
        if let Some(peers) = self.shared.peers() {
            self.shared.arrivals.set_members(others.iter().map(|(id, _)| *id));
            peers.set_members(others);
        }
    }

    /// Ends this member, which is no longer part of the cluster. If its own log contains the removal, it does
    /// not start again. If only a peer reports it, nothing is recorded: the peer may have been turned into a
    /// separate cluster, or belong to another cluster with the same ids, and this member may have the only
    /// copy of the data.
    pub(super) fn end_removed(&mut self, now: Instant) {
        if !self.membership.was_removed(now) {
            return;
        }
        let own = self.shared.identity.member_id;
        self.logger.warn(
            "the member has been permanently removed from the cluster; its data directory must be removed",
            &[("member-id", Value::Id(own))],
        );
        let term = self.machine.applied_term;
        let proposed = self.membership.tell_of_removal(term).filter(|id| {
            let waiter = self.proposals.waiter(*id);
            matches!(waiter, Some(Waiter::Members(_, change)) if change.removes(own))
        });
        if let Some(id) = proposed
            && let Some(Waiter::Members(request_id, _)) = self.proposals.take(id)
        {
            self.membership.tell(Told { request_id, outcome: Ok(()), raft_term: term });
        }
    }

    /// Publishes this member's name and client URLs, once after each start.
    pub(super) fn propose_attributes(&mut self, now: Instant) {
        if self.leadership.leads() && !self.leadership.has_settled() {
            return;
        }
        let (members, node) = (&self.machine.members, &self.node);
        let own = self.shared.identity.member_id;
        let are_old = self.shared.may_be_before_3_5(members);
        let has_leader = || members.by_id.contains_key(&own) && node.standing().leader.is_some();
        if let Some(request) = self.attributes.propose(has_leader, are_old, now) {
            self.propose_own(request, Waiter::Attributes);
        }
    }

    /// Sets the cluster version if this is the only member of a new cluster, which has no other member to
    /// agree with. All entries from before its last stop, one of which may have set the version, are applied.
    fn decide_version_alone(&mut self) {
        let members = &self.machine.members;
        let own = self.shared.identity.member_id;
        let alone = members.by_id.len() == 1 && members.by_id.contains_key(&own);
        if !alone || !members.cluster_version.is_empty() {
            return;
        }
        if let Some(version) = minor(self.shared.api_version) {
            self.propose_cluster_version(version.to_string());
        }
    }

    /// Sets the cluster version to the version that all members support.
    pub(super) fn set_cluster_version(&mut self, version: String) {
        if !self.leadership.leads()
            || !self.leadership.has_settled()
            || self.machine.members.cluster_version == version
            // The entry would make members before 3.5 exit. COMPAT-195: the version stays undecided until one
            // of them leads.
            || self.shared.has_told_before_3_5(&self.machine.members)
        {
            return;
        }
        self.propose_cluster_version(version);
    }

    fn propose_cluster_version(&mut self, version: String) {
        self.logger.info(
            "setting the cluster version",
            &[("from", Value::Str(&self.machine.members.cluster_version)), ("to", Value::Str(&version))],
        );
        let set = membershippb::ClusterVersionSetRequest { ver: version };
        let request =
            InternalRaftRequest { cluster_version_set: Some(set), ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }

    /// Ends the downgrade to this version, if it is in progress.
    pub(super) fn end_downgrade(&mut self, version: &str) {
        if !self.leadership.leads()
            || !self.leadership.has_settled()
            || self.machine.members.downgrade_target.as_deref() != Some(version)
        {
            return;
        }
        self.logger.info("the cluster has been downgraded", &[("cluster-version", Value::Str(version))]);
        let set = membershippb::DowngradeInfoSetRequest::default();
        let request = InternalRaftRequest { downgrade_info_set: Some(set), ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }
}

/// A member whose state differs.
impl Core {
    /// Raises the CORRUPT alarm for a member whose state differs from that of most others, so that all
    /// members know it. The id 0 stands for an unknown member.
    pub(super) fn raise_corrupt(&mut self, member_id: u64) {
        let raised = if member_id == 0 {
            // The alarm may have been raised for a known member by now.
            self.machine.alarms.any(CORRUPT)
        } else {
            self.machine.alarms.is_raised(CORRUPT, member_id)
        };
        if raised || !self.leadership.leads() {
            return;
        }
        self.logger.error(
            "raising the CORRUPT alarm; the cluster accepts no writes until it is disarmed; replace the \
             member that it names (remove it, delete its data directory, add it again), then disarm the \
             alarm",
            &[("member-id", Value::Id(member_id))],
        );
        let alarm = AlarmRequest { action: AlarmAction::Activate as i32, member_id, alarm: CORRUPT };
        let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }

    /// Hands leadership over if the CORRUPT alarm names this member, to a reachable member that it does not
    /// name.
    pub(super) fn resign_if_corrupt(&mut self) {
        let own = self.shared.identity.member_id;
        if !self.leadership.leads()
            || !self.machine.alarms.is_raised(CORRUPT, own)
            || self.node.transferring().is_some()
        {
            return;
        }
        let Some(to) = self.successor() else { return };
        self.logger.warn(
            "transferring leadership because this member's state differs from the others'",
            &[("to", Value::Id(to.0))],
        );
        self.transfer_to(to);
    }

    /// Counts and logs heartbeats that a leader sent late, because other members may conclude that it is
    /// gone.
    pub(super) fn note_late_tick(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next_tick);
        // The tick itself is due one interval after the last.
        if !self.leadership.leads()
            || late <= self.options.heartbeat_interval
            || self.machine.members.by_id.len() < 2
        {
            return;
        }
        self.shared.metrics.server.heartbeat_send_failures.inc();
        self.logger.warn(
            "leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk",
            &[
                ("heartbeat-interval", Value::Duration(self.options.heartbeat_interval)),
                ("expected-duration", Value::Duration(2 * self.options.heartbeat_interval)),
                ("exceeded-duration", Value::Duration(late - self.options.heartbeat_interval)),
            ],
        );
    }
}

/// Installing another member's state, and sending this member's state.
impl Core {
    /// Answers if a whole state that is offered would be taken now: its sender leads, and no other one is
    /// being received. While an earlier one is being saved, the answer waits.
    pub(super) fn look_at_offer(&mut self, request_id: RequestId, attempt: SnapshotAttempt, now: Instant) {
        let standing = self.node.standing();
        if (standing.leader, standing.term) != (attempt.from, attempt.term) {
            self.refuse(request_id, error::NOT_LEADER);
        } else if self.stopping.is_none() && self.install.hold_offer(request_id, now) {
            // A later tick answers the offer.
        } else if self.install.is_under_way() || self.stopping.is_some() {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
        } else {
            self.reply(request_id, ReplyBody::Readable(None));
        }
    }

    /// Begins to receive another member's state. Refused while values of the present state are being moved.
    pub(super) fn begin_install(&mut self, request_id: RequestId, attempt: SnapshotAttempt) {
        // Only the current leader may send. A leader that this member does not know yet tries again.
        let standing = self.node.standing();
        if (standing.leader, standing.term) != (attempt.from, attempt.term) {
            self.refuse(request_id, error::NOT_LEADER);
            return;
        }
        let shortage = attempt.whole_bytes.and_then(|bytes| self.room.shortage_of_state(&self.log, bytes));
        if let Some(shortage) = shortage {
            self.reply(request_id, ReplyBody::Shortage(shortage));
            return;
        }
        let busy = self.moves.are_under_way() || self.checkpoints.is_busy() || self.stopping.is_some();
        if !self.install.begin(attempt.claim, busy) {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
            return;
        }
        self.shared.metrics.server.snapshot_apply_in_progress.set_u64(1);
        self.answers.want_image(request_id);
    }

    /// Resumes a snapshot whose stream broke off, if its sender leads.
    pub(super) fn resume_install(&mut self, request_id: RequestId, attempt: SnapshotAttempt) {
        let standing = self.node.standing();
        if (standing.leader, standing.term) != (attempt.from, attempt.term) {
            self.refuse(request_id, error::NOT_LEADER);
            return;
        }
        if self.install.resume(attempt.claim) {
            self.reply(request_id, ReplyBody::Readable(None));
        } else {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
        }
    }

    /// Writes values of a snapshot to the log.
    pub(super) fn place(&mut self, placement: Placement, now: Instant) {
        let Placement { claim, values, is_whole, done } = placement;
        // Dropping the sender tells the receiving thread that it cannot continue.
        if !self.install.may_place(claim) || values.is_empty() {
            return;
        }
        // Values that a full disk cannot take must not wait in the log's queue before the member's own
        // entries.
        let bytes = Room::bytes_of(values.iter().map(|value| value.data.len()));
        if is_whole && let Some(shortage) = self.room.shortage_of_state(&self.log, bytes as u64) {
            // The receiver may have given up; then there is nobody to answer.
            let _ = done.send(Err(shortage));
            return;
        }
        if !self.room.has(&self.log, bytes, Purpose::Frees) || self.room.is_full() {
            return;
        }
        if let Some(ticket) = self.room.hand_values(&mut self.log, values, now) {
            self.install.place(ticket, done);
        }
    }

    /// Handles a state that has arrived completely: raft decides if it is still needed.
    pub(super) fn snapshot_received(
        &mut self,
        claim: u64,
        received: Box<Received>,
        now: Instant,
    ) -> Result<(), Fatal> {
        // A state that was built on the present one is useless if that one has changed.
        let current = received.base_applied.is_none_or(|applied| applied == self.machine.applied_index);
        let message = received.message.clone();
        let is_past = self.node.standing().term.0 > message.term();
        if !self.install.receive(claim, received) {
            self.give_up_install(claim);
            return Ok(());
        }
        if is_past {
            // Raft would drop the message of an older term silently.
            self.install.tell(Outcome::GivenUp(error::LEADER_CHANGED));
        } else if current && let Err(why) = self.node.request(Request::Receive(message)) {
            let why = why.to_string();
            self.logger.warn("refused a snapshot", &[("reason", Value::Str(&why))]);
            self.install.tell(Outcome::Refused(why));
        }
        self.carry_out(now)?;
        self.end_install();
        Ok(())
    }

    /// Ends this attempt to receive a state.
    pub(super) fn give_up_install(&mut self, claim: u64) {
        if self.install.is_of(claim) {
            self.end_install();
        }
    }

    /// Gives up an attempt that broke off and was not resumed in time, and answers offers that have waited.
    pub(super) fn look_at_install(&mut self, now: Instant) {
        if self.install.is_over(now) {
            self.end_install();
        }
        // Refused even if the state has been saved in the meantime: the leader most likely still has the
        // entries after it.
        for request_id in self.install.offers_over(now) {
            self.refuse(request_id, error::TOO_MANY_REQUESTS);
        }
    }

    /// Gives up receiving, unless raft has accepted the received state.
    pub(super) fn end_install(&mut self) {
        self.install.give_up();
        if !self.install.is_busy() {
            self.shared.metrics.server.snapshot_apply_in_progress.set_u64(0);
        }
    }

    /// Replaces the present state with the received one, because raft has accepted its snapshot.
    fn restore(&mut self, restore: &Restore, now: Instant) -> Result<(), Fatal> {
        let Some(received) = self.install.take_received() else {
            return Err(Fatal::NoSnapshot);
        };
        let machine = received.machine;
        if (machine.applied_index, machine.applied_term) != (restore.index, restore.term) {
            return Err(Fatal::OtherSnapshot { accepted: restore.index, received: machine.applied_index });
        }
        self.logger.info(
            "installed a snapshot",
            &[
                ("index", Value::Uint(restore.index.0)),
                ("revision", Value::Int(machine.store.current_revision().0)),
                ("before", Value::Uint(self.machine.applied_index.0)),
            ],
        );
        let overtaken = self.shared.long_reads.end_all();
        self.answers.replaced();
        self.shared.metrics.long_reads.overtaken.add(overtaken as u64);
        let replaced = std::mem::replace(&mut self.machine, *machine);
        // The new state contains the partly applied entry, and the entries that waited after it.
        self.applying.clear();
        self.applying.applied();
        if !planted::is(Bug::ProposedAgainAfterSnapshot) {
            self.proposals.forget_commands();
        }
        self.history.restored(restore.index, restore.term);
        let store = &self.machine.store;
        self.removal.restored(store.compact_revision(), store.current_revision(), now);
        self.alarms = Arc::new(self.machine.alarms.clone());
        self.auth = Arc::new(self.machine.auth.clone());
        self.shared.credentials.auth_restored(self.auth.is_enabled(), self.auth.revision());
        self.tell_members();
        self.install.installed(Reset { index: restore.index, term: restore.term }, replaced);
        Ok(())
    }

    pub(super) fn order_install(&mut self, now: Instant) {
        let moment = self.shared.state.load().view.moment();
        let state = self.shared.read_long_at(Reader::Checkpoint, moment);
        let terms = self.history.known_terms();
        let order = Order::Checkpoint { head: Box::new(self.machine.head()), state, whole: true, terms };
        if self.orders.try_send(order).is_ok() {
            self.install.saving();
            self.checkpoints.begun(self.log.figures().written_bytes(), now);
            if planted::is(Bug::SnapshotAcknowledgedEarly) {
                // The held batches are this member's own entries and cannot be refused.
                let _ = self.install_saved(self.machine.applied_index, now);
            }
        }
    }

    /// Handles a durable checkpoint. If it covers an installed state, the log restarts after that state.
    pub(super) fn install_saved(&mut self, applied_index: Index, now: Instant) -> Result<(), Fatal> {
        let Some((reset, held)) = self.install.saved(applied_index) else { return Ok(()) };
        self.shared.metrics.server.snapshot_apply_in_progress.set_u64(0);
        let mut reset = Some(reset);
        for append in held {
            self.append_behind(reset.take(), append, now)?;
        }
        Ok(())
    }

    /// Passes objects whose drop takes long to the checkpointer.
    pub(super) fn release_discarded(&mut self) {
        let orders = &self.orders;
        self.install.release(|what| match orders.try_send(Order::Drop(what)) {
            Err(TrySendError::Full(Order::Drop(what)) | TrySendError::Disconnected(Order::Drop(what))) => {
                Err(what)
            }
            _ => Ok(()),
        });
    }

    /// Sends the state just published to the members that need a snapshot.
    pub(super) fn send_snapshots(&mut self, view: &mvcc::View) {
        for mut message in std::mem::take(&mut self.snapshots_wanted) {
            // The message may have waited until an entry was complete, and its term may be over.
            if message.term != Some(self.node.standing().term.0) {
                continue;
            }
            let Some(peers) = self.shared.peers() else { return };
            let head = self.machine.head();
            let state = self.shared.read_long_at(Reader::Transfer, view.moment_of_everything());
            let metadata = api::raftpb::SnapshotMetadata {
                conf_state: Some(api::raftpb::ConfState {
                    voters: self.node.voters().into_iter().map(|id| id.0).collect(),
                    learners: self.node.learners().into_iter().map(|id| id.0).collect(),
                    ..Default::default()
                }),
                index: Some(head.applied_index.0),
                term: Some(head.applied_term.0),
            };
            message.snapshot = Some(api::raftpb::Snapshot { metadata: Some(metadata), data: None });
            let to = message.to.unwrap_or(0);
            self.logger.info(
                "sending a snapshot",
                &[("to", Value::Id(to)), ("index", Value::Uint(head.applied_index.0))],
            );
            let trail = self.machine.state_trail(Index(0));
            let source = crate::transfer::Source::new(MemberId(to), head, trail, state, &self.shared);
            peers.send_snapshot(message, Box::new(source));
        }
    }
}

/// Returns the voter that could lead at once: the connected voter with the most entries.
fn successor(node: &Node, machine: &Machine, shared: &Shared) -> Option<MemberId> {
    let peers = shared.peers()?;
    let corrupt = AlarmType::Corrupt as i32;
    node.progress()
        .into_iter()
        .filter(|p| !p.is_learner && p.recently_active && p.id != MemberId(shared.identity.member_id))
        .filter(|p| peers.active_since(p.id.0).is_some())
        .filter(|p| !machine.alarms.is_raised(corrupt, p.id.0))
        .max_by_key(|p| p.matched)
        .map(|p| p.id)
}
