//! Carries out membership changes, publishes the attributes of this member, and sets the cluster version.

use std::time::Instant;

use api::etcdserverpb::InternalRaftRequest;
use api::{Status, error, membershippb};
use consensus::{ConfChange, ConfChangeKind, Entry, Event, Request};
use machine::{Command, VoterChange};
use numbers::MemberId;
use telemetry::logging::Value;

use super::Core;
use super::leadership::successor;
use crate::cluster_version::minor;
use crate::core::membership::{ChangeAnswer, Membership};
use crate::core::proposals::Waiter;
use crate::core::room::Purpose;
use crate::core::{ChangeAttempt, Fatal, MemberChange, RequestId, membership};

/// Membership changes.
impl Core {
    /// Calls `ask` with [`Membership`], and with the facts about the cluster that it needs to decide.
    pub(super) fn ask_membership<R>(
        &mut self,
        ask: impl FnOnce(&mut Membership, membership::ChangeContext<'_>) -> R,
    ) -> R {
        let Core { membership, node, machine, leadership, shared, .. } = self;
        let peers = shared.cluster.peers();
        let active_since = |id| peers.and_then(|peers| peers.active_since(id));
        let knows_witnesses = |id| peers.is_some_and(|peers| peers.knows_witnesses(id));
        let successor = || successor(node, machine, shared);
        let present = membership::ChangeContext {
            members: &machine.members,
            node,
            leads: leadership.leads(),
            applied_term: machine.applied_term,
            active_since: &active_since,
            knows_witnesses: &knows_witnesses,
            successor: &successor,
        };
        ask(membership, present)
    }

    /// Handles a membership change that a client requests: refuses it if it is invalid or unsafe, and queues
    /// it otherwise.
    pub(super) fn change_members(
        &mut self,
        request_id: RequestId,
        change: MemberChange,
        attempt: ChangeAttempt,
        now: Instant,
    ) {
        let promotes = matches!(change, MemberChange::Promote(_));
        let wanted =
            self.ask_membership(|membership, present| membership.want(request_id, change, present, now));
        if let Err(status) = wanted {
            if attempt == ChangeAttempt::Tentative && MemberChange::is_of_members(&status) {
                return self.refuse(request_id, status);
            }
            if promotes && self.leadership.leads() && status != error::TOO_MANY_REQUESTS {
                let failures = &self.shared.diagnostics.metrics.server.learner_promote_failures;
                failures.with(&[&status.message]).inc();
            }
            self.refuse_change(request_id, status);
        }
    }

    /// Refuses a membership change. If fewer learners are allowed than this member's own option says, that
    /// reason is also logged, because etcd's error text does not contain it.
    fn refuse_change(&mut self, request_id: RequestId, status: Status) {
        if status == error::TOO_MANY_LEARNERS && self.membership.is_held_back(&self.node) {
            let reason = "a voter runs etcd or has not reported yet, or a learner runs etcd; --max-learners has no effect";
            self.logger.warn("refused a learner", &[("reason", Value::Str(reason))]);
        }
        self.refuse(request_id, status);
    }

    /// Handles waiting proposals of other members to remove this member.
    pub(super) fn hold_departures(&mut self, now: Instant) {
        if self.membership.has_departures() {
            let step = self.ask_membership(|membership, present| membership.next_departure(present, now));
            self.change(step);
        }
    }

    /// Proposes the next membership change, once the previous one is applied.
    pub(super) fn propose_change(&mut self, now: Instant) {
        if self.membership.has_next() && !self.lifecycle.is_stopping() {
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
                    node: MemberId(self.shared.member.identity.member_id),
                };
                for data in removals {
                    // If there is no leader, the proposal is lost, as in etcd, and its sender times out.
                    let _ = self.node.request(Request::ProposeConfChange(own, data));
                }
            }
        }
    }

    fn propose_next_change(&mut self) {
        let id = self.shared.ids.command_id();
        let Some((raft, data)) = self.membership.encode_next(id, &self.node) else { return };
        // A follower only forwards the change, so the space on its own disk does not matter.
        if self.leadership.leads() && !self.space.room.has(&self.log, data.len(), Purpose::Mends) {
            if let Some((request_id, ..)) = self.membership.take_next(None) {
                self.refuse(request_id, error::NO_SPACE);
            }
            return;
        }
        // Without a leader the request fails, and the change stays in the queue for the next leader.
        if self.node.request(Request::ProposeConfChange(raft, data)).is_ok()
            && let Some((request_id, change, since)) = self.membership.take_next(Some(id))
        {
            let waiter = Waiter::Members(request_id, Box::new(change));
            let given = self.given();
            self.proposals.await_entry(id, waiter, since, given);
        }
    }

    /// Forgets membership changes for which no request waits any more.
    pub(super) fn sweep_changes(&mut self, now: Instant) {
        let proposals = &self.proposals;
        self.membership.sweep(|id| proposals.is_awaited(id), now);
    }

    pub(super) fn apply_conf_change(&mut self, entry: &Entry, command: Command<'_>) -> Result<(), Fatal> {
        let learners = self.machine.members.learners().len();
        let applied = self.machine.apply_conf_change(command)?;
        self.set_witness()?;
        let change = match &applied.outcome {
            Ok(VoterChange::AddVoter(node)) => ConfChange { kind: ConfChangeKind::AddVoter, node: *node },
            Ok(VoterChange::AddLearner(node)) => ConfChange { kind: ConfChangeKind::AddLearner, node: *node },
            Ok(VoterChange::Remove(node)) => ConfChange { kind: ConfChangeKind::Remove, node: *node },
            // Raft accepts no further change before it is notified that this one is applied. So it is
            // notified even of a change that does not change voters, and of one that failed.
            Ok(VoterChange::Update(node)) => ConfChange { kind: ConfChangeKind::Update, node: *node },
            Err(_) => ConfChange { kind: ConfChangeKind::Update, node: MemberId::NONE },
        };
        self.step(Event::ConfChanged(change))?;
        if self.observers.feeds(change.node.0) {
            self.drop_observer(change.node.0)?;
        }
        self.membership.applied(applied.request_id);
        if applied.outcome.is_ok() {
            self.members_changed(change);
        }
        let (outcome, raft_term) = (applied.outcome.as_ref().map(|_| ()).map_err(Clone::clone), entry.term);
        match self.proposals.take(applied.request_id) {
            Some(Waiter::Members(request_id, _)) => {
                self.count_promotion(&applied.outcome, learners);
                self.membership.tell(ChangeAnswer { request_id, outcome, raft_term });
            }
            Some(Waiter::Autopilot) => {
                self.count_promotion(&applied.outcome, learners);
                self.autopilot_ended(outcome);
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts a promotion that this member has proposed; `learners` is the number of learners before.
    fn count_promotion(&self, outcome: &Result<VoterChange, Status>, learners: usize) {
        if matches!(outcome, Ok(VoterChange::AddVoter(_))) && self.machine.members.learners().len() < learners
        {
            self.shared.diagnostics.metrics.server.learner_promote_successes.inc();
        }
    }

    fn members_changed(&mut self, change: ConfChange) {
        self.tell_members();
        let own = self.shared.member.identity.member_id;
        let what = match change.kind {
            ConfChangeKind::AddVoter => "added or promoted a member",
            ConfChangeKind::AddLearner => "added a learner",
            ConfChangeKind::Remove => "removed a member",
            ConfChangeKind::Update => "updated a member",
        };
        self.logger.info(what, &[("member-id", Value::Id(change.node.0))]);
        if change.kind == ConfChangeKind::Remove && change.node == MemberId(own) {
            self.end_removed(self.shared.member.clock.now());
        }
    }

    /// Passes the list of the other members to the connections, and publishes the current members with this
    /// turn's state.
    pub(super) fn tell_members(&mut self) {
        let others = self.observers.links(self.membership.changed(&self.machine.members));
        self.publication.request();
        if let Some(peers) = self.shared.cluster.peers() {
            // All observers share the room of strangers.
            let rooms = others.iter().map(|(id, _)| *id).filter(|id| !self.observers.feeds(*id));
            self.shared.core.arrivals.set_members(rooms);
            peers.set_members(others);
        }
    }

    /// Begins to stop this member, because it is no longer part of the cluster.
    ///
    /// If this member's own log contains the removal, the member also refuses later starts. If only a peer
    /// reports the removal, the report is not recorded on disk: that peer may have been turned into a
    /// separate cluster, or belong to another cluster with the same ids, and this member may have the only
    /// copy of the data.
    pub(super) fn end_removed(&mut self, now: Instant) {
        if !self.membership.was_removed(now) {
            return;
        }
        let own = self.shared.member.identity.member_id;
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
            self.membership.tell(ChangeAnswer { request_id, outcome: Ok(()), raft_term: term });
        }
    }

    /// Publishes this member's name and client URLs, once after each start.
    pub(super) fn propose_attributes(&mut self, now: Instant) {
        if self.leadership.leads() && !self.leadership.has_settled() || self.observers.observes() {
            return;
        }
        let (members, node) = (&self.machine.members, &self.node);
        let own = self.shared.member.identity.member_id;
        let are_old = self.shared.cluster.may_be_before_3_5(members);
        let has_leader = || members.by_id.contains_key(&own) && node.status().leader.is_some();
        if let Some(request) = self.attributes.propose(has_leader, are_old, now) {
            self.propose_own(request, Waiter::Attributes);
        }
    }

    /// Sets the cluster version if this is the only member of a new cluster, so that no other member has to
    /// agree. Called after all entries from before the last stop are applied, because one of them may have
    /// set the version.
    pub(super) fn decide_version_alone(&mut self) {
        let members = &self.machine.members;
        let own = self.shared.member.identity.member_id;
        let alone = members.by_id.len() == 1 && members.by_id.contains_key(&own);
        if !alone || !members.cluster_version.is_empty() {
            return;
        }
        if let Some(version) = minor(self.shared.member.api_version) {
            self.propose_cluster_version(version.to_string());
        }
    }

    /// Sets the cluster version to `version`, which all members support.
    pub(super) fn set_cluster_version(&mut self, version: String) {
        if !self.leadership.leads()
            || !self.leadership.has_settled()
            || self.machine.members.cluster_version == version
            // etcd members before 3.5 exit when they apply the entry that would be proposed here. So while
            // such a member is in the cluster, this member does not decide the version. A 3.4 member that
            // becomes the leader decides it, in a form that 3.4 understands (COMPAT-195).
            || self.shared.cluster.has_told_before_3_5(&self.machine.members)
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

    /// Proposes to end the downgrade to this version, if this member leads and that downgrade is in progress.
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
