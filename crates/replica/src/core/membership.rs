//! Changing the members: what is refused, one change at a time, and what follows from a change.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use api::etcdserverpb::InternalRaftRequest;
use api::{Status, error, membershippb, raftpb};
use bytes::Bytes;
use consensus::{ConfChange, ConfChangeKind, Entry, Event, Request};
use machine::{Command, Member, VoterChange};
use planted::Bug;
use prost::Message as _;

use super::Ticket;
use super::proposals::{Open, Waiter};
use super::room::Purpose;
use super::run::Core;
use telemetry::logging::Value;

/// How long members must have been connected for a change to be safe, as etcd has it.
const HEALTHY_FOR: Duration = Duration::from_secs(5);
/// How long a member that was removed goes on, so that others hear from it that it knows.
const REMOVED_PAUSE: Duration = Duration::from_secs(1);
/// How many election timeouts a leader that was removed goes on until enough others know of it.
const LEAVING_TIMEOUTS: u32 = 10;
/// How many election timeouts a leader tries to hand over before its own removal is proposed all the same.
const DEPARTURE_TIMEOUTS: u32 = 2;
/// Changes that may wait for the one under way.
const CHANGES_MAX: usize = 64;

/// A change of the members.
#[derive(Clone, Debug)]
pub enum MemberChange {
    /// Adds a member, with its id and peer URLs.
    Add(Member),
    /// Removes this one.
    Remove(u64),
    /// Gives a member other peer URLs.
    Update(Member),
    /// Makes a voter of a learner.
    Promote(u64),
}

impl MemberChange {
    /// As raft and the log have it; a learner is judged by `learners_max` wherever it is applied.
    fn to_raft(&self, id: u64, learners_max: u64) -> (ConfChange, raftpb::ConfChange) {
        use raftpb::ConfChangeType as Type;
        let (kind, wire, node, context) = match self {
            MemberChange::Add(member) if member.is_learner => (
                ConfChangeKind::AddLearner,
                Type::ConfChangeAddLearnerNode,
                member.id,
                Some(machine::learner_json(member, learners_max)),
            ),
            MemberChange::Add(member) => {
                (ConfChangeKind::AddVoter, Type::ConfChangeAddNode, member.id, Some(member.to_json()))
            }
            MemberChange::Remove(node) => (ConfChangeKind::Remove, Type::ConfChangeRemoveNode, *node, None),
            MemberChange::Update(member) => {
                (ConfChangeKind::Update, Type::ConfChangeUpdateNode, member.id, Some(member.to_json()))
            }
            MemberChange::Promote(node) => (
                ConfChangeKind::AddVoter,
                Type::ConfChangeAddNode,
                *node,
                Some(machine::promotion_json(*node)),
            ),
        };
        let change = raftpb::ConfChange {
            id: Some(id),
            r#type: Some(wire as i32),
            node_id: Some(node),
            context: context.map(Bytes::from),
        };
        (ConfChange { kind, node }, change)
    }
}

impl Core {
    /// A client wants the members changed: refuses what cannot or should not be, and queues the rest.
    pub(super) fn change_members(&mut self, ticket: Ticket, change: MemberChange, now: Instant) {
        if self.changes.len() >= CHANGES_MAX {
            self.refuse(ticket, error::TOO_MANY_REQUESTS);
            return;
        }
        match self.admit_change(&change, now) {
            Ok(()) => self.changes.push_back((ticket, change, now)),
            Err(status) => {
                if matches!(change, MemberChange::Promote(_)) && self.leadership.leads() {
                    let failures = &self.shared.metrics.server.learner_promote_failures;
                    failures.with(&[&status.message]).inc();
                }
                self.refuse(ticket, status);
            }
        }
    }

    fn admit_change(&self, change: &MemberChange, now: Instant) -> Result<(), Status> {
        if self.config.strict_reconfig_check {
            self.is_safe(change, now)?;
        }
        if let MemberChange::Promote(id) = change {
            self.is_caught_up(*id)?;
        }
        let (_, wire) = change.to_raft(0, self.config.max_learners);
        let learners_max = usize::try_from(self.config.max_learners).unwrap_or(usize::MAX);
        machine::validate(&self.machine.members, &wire, learners_max)
    }

    /// Members other than learners, and how many of them have made themselves known.
    fn voting(&self, but: u64) -> (usize, usize) {
        let voting = self.machine.members.by_id.values().filter(|m| !m.is_learner && m.id != but);
        voting.fold((0, 0), |(all, started), m| (all + 1, started + usize::from(!m.name.is_empty())))
    }

    fn connected_since(&self, id: u64, since: Instant) -> bool {
        id == self.shared.identity.member_id
            || self.shared.peers().is_some_and(|p| p.active_since(id).is_some_and(|at| at <= since))
    }

    fn connected(&self, since: Instant) -> usize {
        self.machine.members.voters().into_iter().filter(|id| self.connected_since(*id, since)).count()
    }

    /// etcd's `--strict-reconfig-check`: the cluster must not lose its quorum by the change.
    fn is_safe(&self, change: &MemberChange, now: Instant) -> Result<(), Status> {
        let enough = |all: usize, started: usize| started > all / 2;
        let healthy_since = now.checked_sub(HEALTHY_FOR).unwrap_or(now);
        let members = &self.machine.members;
        match change {
            MemberChange::Add(member) => {
                let (all, started) = self.voting(0);
                // A second member may join a first one that was restored.
                let restores = started == 1 && all == 1;
                if !member.is_learner && !restores && !enough(all + 1, started) {
                    return Err(error::MEMBER_NOT_ENOUGH_STARTED);
                }
                // Those that never started are counted above; the others have to be there.
                let mut voters = members.by_id.values().filter(|m| !m.is_learner && !m.name.is_empty());
                if voters.any(|member| !self.connected_since(member.id, healthy_since)) {
                    return Err(error::UNHEALTHY);
                }
            }
            MemberChange::Remove(id) => {
                if members.by_id.get(id).is_some_and(|member| member.is_learner) {
                    return Ok(());
                }
                let (all, started) = self.voting(*id);
                if !enough(all, started) {
                    return Err(error::MEMBER_NOT_ENOUGH_STARTED);
                }
                // One that is down is no part of the quorum in use.
                let own = *id == self.shared.identity.member_id;
                if !own && self.shared.peers().is_none_or(|peers| peers.active_since(*id).is_none()) {
                    return Ok(());
                }
                let voters = members.voters().len();
                let connected = self.connected(healthy_since);
                if connected.saturating_sub(1) < 1 + voters.saturating_sub(1) / 2 {
                    return Err(error::UNHEALTHY);
                }
            }
            MemberChange::Promote(_) => {
                let (all, started) = self.voting(0);
                if !enough(all + 1, started + 1) {
                    return Err(error::MEMBER_NOT_ENOUGH_STARTED);
                }
            }
            MemberChange::Update(_) => {}
        }
        Ok(())
    }

    /// Whether a learner has nine tenths of what the leader has.
    fn is_caught_up(&self, id: u64) -> Result<(), Status> {
        if !self.leadership.leads() {
            return Err(error::NOT_LEADER);
        }
        let Some(member) = self.machine.members.by_id.get(&id) else { return Err(error::MEMBER_NOT_FOUND) };
        if !member.is_learner {
            return Err(error::MEMBER_NOT_LEARNER);
        }
        let matched = self.node.progress().iter().find(|p| p.id == id).map_or(0, |p| p.matched);
        let own = self.node.standing().last;
        if u128::from(matched) * 10 < u128::from(own) * 9 {
            return Err(error::LEARNER_NOT_READY);
        }
        Ok(())
    }

    /// Whether a leader that is to be removed should wait, since it hands over first: otherwise those that are left may
    /// not hear that the removal is committed. One that finds nobody to hand over to proposes its removal after a while,
    /// see [`consensus::Node::is_leaving`]; but one of two never does. Should it end before the other one hears, that one
    /// would wait for its vote for ever; and without the other one nothing is committed anyway.
    fn hands_over_first(&mut self, since: Instant, now: Instant) -> bool {
        let patience = self.config.election_timeout * DEPARTURE_TIMEOUTS;
        let voters = self.node.voters().len();
        let late = voters > 2 && now.saturating_duration_since(since) >= patience;
        if !self.leadership.leads() || late || voters < 2 || planted::is(Bug::RemovedLeading) {
            return false;
        }
        // No leader takes writes while it hands over. One of two, which goes on trying, does for as long in between.
        let attempt = self.config.election_timeout;
        let paused = voters == 2 && self.departure_tried.is_some_and(|at| now < at + 2 * attempt);
        if !paused
            && self.node.transferring().is_none()
            && let Some(to) = self.successor()
        {
            self.departure_tried = Some(now);
            self.logger.info("handing leadership over before being removed", &[("to", Value::Id(to))]);
            self.transfer_to(to);
        }
        true
    }

    /// Whether another member forwards a proposal to remove this one.
    pub(super) fn asks_to_remove_this(&self, message: &raftpb::Message) -> bool {
        message.r#type == Some(raftpb::MessageType::MsgProp as i32)
            && message.entries.iter().any(|entry| self.removal_of_this(entry).is_some())
    }

    fn removal_of_this(&self, entry: &raftpb::Entry) -> Option<Bytes> {
        let data = entry.data.as_ref()?;
        if entry.r#type != Some(raftpb::EntryType::EntryConfChange as i32) {
            return None;
        }
        let change = raftpb::ConfChange::decode(data.clone()).ok()?;
        let removes = change.r#type == Some(raftpb::ConfChangeType::ConfChangeRemoveNode as i32);
        (removes && change.node_id == Some(self.shared.identity.member_id)).then(|| data.clone())
    }

    /// Another member proposes to remove this one, which leads and hands over first.
    pub(super) fn depart(&mut self, message: raftpb::Message, now: Instant) {
        // What finds no room counts as lost on its way.
        if self.departures.len() < CHANGES_MAX {
            self.departures.push_back((message, now));
        }
    }

    /// Does what is due about proposals to remove this member.
    pub(super) fn hold_departures(&mut self, now: Instant) {
        let Some(since) = self.departures.front().map(|(_, since)| *since) else { return };
        if self.hands_over_first(since, now) {
            if now.saturating_duration_since(since) >= self.shared.limits.request_timeout {
                // Lost, as far as its sender knows.
                self.departures.pop_front();
            }
            return;
        }
        let standing = self.node.standing();
        let waits =
            standing.leader == 0 || (!self.leadership.leads() && self.machine.applied_term != standing.term);
        if waits && now.saturating_duration_since(since) < self.shared.limits.request_timeout {
            return;
        }
        let Some((message, _)) = self.departures.pop_front() else { return };
        if self.leadership.leads() {
            self.step_received(message);
            return;
        }
        // A member that bound its proposal to the term proposes it again itself; the others count on its being
        // passed on.
        if message.term.unwrap_or(0) != 0 || message.context.is_some() {
            return;
        }
        let own = ConfChange { kind: ConfChangeKind::Remove, node: self.shared.identity.member_id };
        let removals: Vec<Bytes> =
            message.entries.iter().filter_map(|entry| self.removal_of_this(entry)).collect();
        for data in removals {
            // Without a leader it is lost, as in etcd.
            let _ = self.node.request(Request::ProposeConfChange(own, data));
        }
    }

    /// Proposes the next change, when the one before is applied: raft takes one at a time.
    pub(super) fn propose_change(&mut self, now: Instant) {
        if self.change_open.is_some() || self.stopping.is_some() {
            return;
        }
        let Some((ticket, change, since)) = self.changes.front().cloned() else { return };
        let own = self.shared.identity.member_id;
        if matches!(change, MemberChange::Remove(id) if id == own) && self.hands_over_first(since, now) {
            return;
        }
        // A new leader makes an empty entry of a change that comes before it has applied its first entry.
        if !self.leadership.leads() && self.machine.applied_term != self.node.standing().term {
            return;
        }
        let id = self.shared.request_id();
        let (raft, wire) = change.to_raft(id, self.config.max_learners);
        let data = Bytes::from(wire.encode_to_vec());
        // A follower's own disk has nothing to do with what it hands on.
        if self.leadership.leads() && !self.room.has(&self.log, data.len(), Purpose::Mends) {
            self.changes.pop_front();
            self.refuse(ticket, error::NO_SPACE);
            return;
        }
        // Without a leader it waits here.
        if self.node.request(Request::ProposeConfChange(raft, data)).is_ok() {
            self.changes.pop_front();
            self.change_open = Some(id);
            let waiter = Waiter::Members(ticket, Box::new(change));
            self.waiting.insert(id, Open::new(waiter, since, self.given()));
        }
    }

    /// Forgets changes that nobody waits for any more: those that were not proposed in time, and one whose proposal
    /// was lost.
    pub(super) fn sweep_changes(&mut self, now: Instant) {
        let timeout = self.shared.limits.request_timeout;
        self.changes.retain(|(_, _, since)| now.saturating_duration_since(*since) < timeout);
        if self.change_open.is_some_and(|id| !self.waiting.contains_key(&id)) {
            self.change_open = None;
        }
    }

    pub(super) fn apply_conf_change(&mut self, entry: &Entry, command: Command<'_>) -> Result<(), String> {
        let learners = self.machine.members.learners().len();
        let applied = self.machine.apply_conf_change(command).map_err(|e| e.to_string())?;
        let change = match &applied.outcome {
            Ok(VoterChange::AddVoter(node)) => ConfChange { kind: ConfChangeKind::AddVoter, node: *node },
            Ok(VoterChange::AddLearner(node)) => ConfChange { kind: ConfChangeKind::AddLearner, node: *node },
            Ok(VoterChange::Remove(node)) => ConfChange { kind: ConfChangeKind::Remove, node: *node },
            // Raft has to hear of it all the same: until then it takes no other change.
            Ok(VoterChange::Update(node)) => ConfChange { kind: ConfChangeKind::Update, node: *node },
            Err(_) => ConfChange { kind: ConfChangeKind::Update, node: 0 },
        };
        self.step(Event::ConfChanged(change))?;
        if self.change_open == Some(applied.request_id) {
            self.change_open = None;
        }
        if applied.outcome.is_ok() {
            self.members_changed(change);
        }
        if let Some(Waiter::Members(ticket, _)) = self.taken_from_waiting(applied.request_id) {
            let promoted = matches!(applied.outcome, Ok(VoterChange::AddVoter(_)));
            if promoted && self.machine.members.learners().len() < learners {
                self.shared.metrics.server.learner_promote_successes.inc();
            }
            self.member_outcomes.push((ticket, applied.outcome.map(|_| ()), entry.term));
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
        self.logger.info(what, &[("member-id", Value::Id(change.node))]);
        if change.kind == ConfChangeKind::Remove && change.node == own {
            self.end_removed(self.shared.clock.now());
        }
    }

    /// Tells the room that talks to other members, and everyone who looks at the published state.
    pub(super) fn tell_members(&mut self) {
        self.members = std::sync::Arc::new(self.machine.members.clone());
        self.applied_since = true;
        if let Some(peers) = self.shared.peers() {
            let own = self.shared.identity.member_id;
            let members = &self.machine.members;
            let known = members.by_id.values().map(|member| (member.id, member.peer_urls.clone()));
            let mut others: Vec<(u64, Vec<String>)> = known.filter(|(id, _)| *id != own).collect();
            // A member that joins reads in the log how the cluster came about. Until it finds itself there, it goes by
            // what it was told, or it would lose sight of those who send it the log.
            if !members.by_id.contains_key(&own) {
                let told = self
                    .remotes
                    .iter()
                    .filter(|(id, _)| !members.by_id.contains_key(id) && !members.removed.contains(id));
                others.extend(told.cloned());
            }
            self.shared.arrivals.set_members(others.iter().map(|(id, _)| *id));
            peers.set_members(others);
        }
    }

    /// This member is no longer part of the cluster: it ends, and does not start again.
    pub(super) fn end_removed(&mut self, now: Instant) {
        if self.removed_at.is_some() {
            return;
        }
        self.logger.warn(
            "the member has been permanently removed from the cluster; its data directory must be removed",
            &[("member-id", Value::Id(self.shared.identity.member_id))],
        );
        self.removed_at = Some(now + REMOVED_PAUSE);
        // A client who wanted just that hears of it, though the entry may never come here.
        let own = self.shared.identity.member_id;
        let removes = |change: &MemberChange| matches!(change, MemberChange::Remove(id) if *id == own);
        let term = self.machine.applied_term;
        let (queued, rest) =
            std::mem::take(&mut self.changes).into_iter().partition(|(_, change, _)| removes(change));
        self.changes = rest;
        let queued: VecDeque<_> = queued;
        let mut tickets: Vec<Ticket> = queued.into_iter().map(|(ticket, ..)| ticket).collect();
        let proposed = self.change_open.filter(|id| {
            let open = self.waiting.get(id).map(|open| &open.waiter);
            matches!(open, Some(Waiter::Members(_, change)) if removes(change))
        });
        if let Some(id) = proposed
            && let Some(Waiter::Members(ticket, _)) = self.taken_from_waiting(id)
        {
            tickets.push(ticket);
        }
        self.member_outcomes.extend(tickets.into_iter().map(|ticket| (ticket, Ok(()), term)));
    }

    /// Whether this member has come to its end since it was removed.
    pub(super) fn has_left(&self, now: Instant) -> bool {
        let patience = self.config.election_timeout * LEAVING_TIMEOUTS;
        self.removed_at.is_some_and(|at| now >= at && (!self.node.is_leaving() || now >= at + patience))
    }

    /// Makes this member's name and client URLs known, once after each start.
    pub(super) fn propose_attributes(&mut self, now: Instant) {
        // It may have been lost on its way to the leader, or with it. Twice does no harm: the second changes nothing.
        let pause = self.config.election_timeout / 2;
        if self.attributes_known || self.attributes_proposed.is_some_and(|at| now < at + pause) {
            return;
        }
        let id = self.shared.identity.member_id;
        if !self.machine.members.by_id.contains_key(&id) || self.node.standing().leader == 0 {
            return;
        }
        let (name, client_urls) = self.attributes.clone();
        let attributes = membershippb::Attributes { name, client_urls };
        let set =
            membershippb::ClusterMemberAttrSetRequest { member_id: id, member_attributes: Some(attributes) };
        self.attributes_proposed = Some(now);
        let request =
            InternalRaftRequest { cluster_member_attr_set: Some(set), ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Attributes);
    }

    /// Agrees on the version that all members have.
    pub(super) fn set_cluster_version(&mut self, version: String) {
        if !self.leadership.leads()
            || !self.leadership.has_settled()
            || self.machine.members.cluster_version == version
        {
            return;
        }
        self.logger.info(
            "setting the cluster version",
            &[("from", Value::Str(&self.machine.members.cluster_version)), ("to", Value::Str(&version))],
        );
        let set = membershippb::ClusterVersionSetRequest { ver: version };
        let request =
            InternalRaftRequest { cluster_version_set: Some(set), ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }
}
