//! Membership changes: checks, their order (one change at a time), and their consequences. [`Membership`]
//! decides; the rules that also hold when a change is applied are in `machine::validate`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Status, error, raftpb};
use bytes::Bytes;
use consensus::{ConfChange, ConfChangeKind, Node};
use machine::Members;
use numbers::{Index, MemberId, Term};
use planted::Bug;
use prost::Message as _;

use super::{MemberChange, RequestId};

/// Time for which members must have been connected for a change to be safe, as in etcd.
const HEALTHY_FOR: Duration = Duration::from_secs(5);
/// Time for which a removed member continues, so that other members learn that it knows of its removal.
const REMOVED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of election timeouts for which a removed leader waits until enough other members know of
/// the removal.
const LEAVING_TIMEOUTS: u32 = 10;
/// Number of election timeouts for which a leader tries to hand over before its own removal is proposed
/// anyway.
const DEPARTURE_TIMEOUTS: u32 = 2;
/// Number of learners that every release of etcd allows.
const ETCD_LEARNERS_MAX: u64 = 1;
/// Maximum number of changes that wait for the one in progress.
const CHANGES_MAX: usize = 64;

impl MemberChange {
    /// Returns true if the change removes this member.
    pub(super) fn removes(&self, member: u64) -> bool {
        matches!(self, MemberChange::Remove(id) if *id == member)
    }

    /// Returns the change in the forms of raft and of the log. Every member that applies the entry of a
    /// learner checks it against `learners_max`.
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
        (ConfChange { kind, node: MemberId(node) }, change)
    }
}

/// Options that concern membership changes.
#[derive(Clone, Debug)]
pub(super) struct MemberRules {
    /// This member's id.
    pub own: u64,
    /// True if a change that endangers the quorum is refused (`--strict-reconfig-check`).
    pub strict: bool,
    /// Maximum number of learners if no member runs etcd.
    pub learners_max: u64,
    /// The election timeout.
    pub election_timeout: Duration,
    /// Time after which a client gets a timeout error.
    pub request_timeout: Duration,
}

/// Facts about this member by which a change is checked.
#[derive(Clone, Copy)]
pub(super) struct ChangeContext<'a> {
    /// The members as applied.
    pub members: &'a Members,
    /// The raft node.
    pub node: &'a Node,
    /// True if this member leads.
    pub leads: bool,
    /// Raft term of the last applied entry.
    pub applied_term: Term,
    /// Returns the time since when another member has been connected.
    pub active_since: &'a dyn Fn(u64) -> Option<Instant>,
    /// Returns the voter that could lead at once.
    pub successor: &'a dyn Fn() -> Option<MemberId>,
}

/// The step of a leader before its own removal is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// The removal is proposed: the leader need not hand over, or has stopped trying.
    Goes,
    /// The removal waits: the leader is handing over, or no member can take over.
    Waits,
    /// The leader begins to hand over to this member.
    HandsOver(MemberId),
}

/// The next action of the loop for membership changes.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing is to be done now.
    Nothing,
    /// Hand leadership over to this member, before the own member is removed.
    HandOver(MemberId),
    /// Propose the next change: [`Membership::encode_next`] and [`Membership::take_next`].
    ProposeNext,
    /// Refuse this request; its change was taken out of the queue.
    Refuse(RequestId, Status),
    /// Pass on to raft this proposal of another member to remove this member.
    Take(Box<raftpb::Message>),
    /// Forward these proposals, which remove this member, to the new leader.
    PassOn(Vec<Bytes>),
}

/// A change that a client waits for: the request, the change, and its time of arrival.
pub(super) type QueuedChange = (RequestId, MemberChange, Instant);

/// The answer to a request for a change.
#[derive(Debug, PartialEq)]
pub(super) struct ChangeAnswer {
    /// The request that is answered.
    pub request_id: RequestId,
    /// Result of the change.
    pub outcome: Result<(), Status>,
    /// Raft term that the reply carries.
    pub raft_term: Term,
}

/// The membership changes that clients request, one after the other, and the steps of a member that is
/// removed.
///
/// This type checks and queues; it returns what to propose, hand over or answer.
pub(super) struct Membership {
    rules: MemberRules,
    /// Changes that wait.
    changes: VecDeque<QueuedChange>,
    /// Id in the entry of the change in progress.
    open: Option<u64>,
    /// Proposals of other members to remove this member, which leads, with their times of arrival.
    departures: VecDeque<(raftpb::Message, Instant)>,
    /// Time at which this leader, which is to be removed, last began to hand over.
    departure_tried: Option<Instant>,
    outcomes: Vec<ChangeAnswer>,
    /// Time at which this member ends, because it was removed from the cluster.
    removed_at: Option<Instant>,
    /// Existing members that are not yet in this member's log.
    remotes: Vec<(u64, Vec<String>)>,
    /// The members as last published.
    members: Arc<Members>,
}

impl Membership {
    /// Returns a table without requests. `remotes` are members that exist already but are not yet in this
    /// member's log.
    pub fn new(rules: MemberRules, members: &Members, remotes: Vec<(u64, Vec<String>)>) -> Membership {
        Membership {
            rules,
            changes: VecDeque::new(),
            open: None,
            departures: VecDeque::new(),
            departure_tried: None,
            outcomes: Vec::new(),
            removed_at: None,
            remotes,
            members: Arc::new(members.clone()),
        }
    }

    /// Checks and queues a membership change of a client.
    ///
    /// # Errors
    ///
    /// etcd's error if the change is invalid or unsafe, or if too many changes wait.
    pub fn want(
        &mut self,
        request_id: RequestId,
        change: MemberChange,
        present: ChangeContext<'_>,
        now: Instant,
    ) -> Result<(), Status> {
        if self.changes.len() >= CHANGES_MAX {
            return Err(error::TOO_MANY_REQUESTS);
        }
        if let MemberChange::Promote(id) = change {
            is_caught_up(id, present)?;
        }
        self.may_be(&change, present, now)?;
        self.changes.push_back((request_id, change, now));
        Ok(())
    }

    /// Checks if a change may be proposed, given the current members and their connections.
    fn may_be(&self, change: &MemberChange, present: ChangeContext<'_>, now: Instant) -> Result<(), Status> {
        if self.rules.strict {
            self.is_safe(change, present, now)?;
        }
        let learners_max = self.learners_max(present.node);
        let (_, wire) = change.to_raft(0, learners_max);
        let learners_max = usize::try_from(learners_max).unwrap_or(usize::MAX);
        machine::validate(present.members, &wire, learners_max)
    }

    /// Returns the maximum number of learners after a change proposed now. If a member may run etcd, it is
    /// one (COMPAT-177): members that run etcd 3.5 allow no more, and later releases do not by default. They
    /// would refuse the entry that this member applies, and exit when that learner publishes its name.
    fn learners_max(&self, node: &Node) -> u64 {
        if node.has_no_etcd() {
            self.rules.learners_max
        } else {
            self.rules.learners_max.min(ETCD_LEARNERS_MAX)
        }
    }

    fn connected_since(&self, id: u64, since: Instant, present: ChangeContext<'_>) -> bool {
        id == self.rules.own || (present.active_since)(id).is_some_and(|at| at <= since)
    }

    fn connected(&self, since: Instant, present: ChangeContext<'_>) -> usize {
        let voters = present.members.voters().into_iter();
        voters.filter(|id| self.connected_since(*id, since, present)).count()
    }

    /// Applies etcd's `--strict-reconfig-check`: the cluster must not lose its quorum by the change.
    fn is_safe(&self, change: &MemberChange, present: ChangeContext<'_>, now: Instant) -> Result<(), Status> {
        let enough = |all: usize, started: usize| started > all / 2;
        let healthy_since = now.checked_sub(HEALTHY_FOR).unwrap_or(now);
        let members = present.members;
        match change {
            MemberChange::Add(member) => {
                let (all, started) = voting(members, 0);
                // A second member may join a first one that was restored.
                let restores = started == 1 && all == 1;
                if !member.is_learner && !restores && !enough(all + 1, started) {
                    return Err(error::MEMBER_NOT_ENOUGH_STARTED);
                }
                // The connected members must be a quorum of the voters with the new member. This holds for a
                // learner, too, because it may be promoted.
                let voters = members.voters().len();
                if voters > 1 && !enough(voters + 1, self.connected(healthy_since, present)) {
                    return Err(error::UNHEALTHY);
                }
            }
            MemberChange::Remove(id) => {
                if members.by_id.get(id).is_some_and(|member| member.is_learner) {
                    return Ok(());
                }
                let (all, started) = voting(members, *id);
                if !enough(all, started) {
                    return Err(error::MEMBER_NOT_ENOUGH_STARTED);
                }
                // A member that is down is not part of the current quorum.
                let own = *id == self.rules.own;
                if !own && (present.active_since)(*id).is_none() {
                    return Ok(());
                }
                let voters = members.voters().len();
                let connected = self.connected(healthy_since, present);
                if connected.saturating_sub(1) < 1 + voters.saturating_sub(1) / 2 {
                    return Err(error::UNHEALTHY);
                }
            }
            MemberChange::Promote(_) => {
                let (all, started) = voting(members, 0);
                if !enough(all + 1, started + 1) {
                    return Err(error::MEMBER_NOT_ENOUGH_STARTED);
                }
            }
            MemberChange::Update(_) => {}
        }
        Ok(())
    }

    /// Decides if a leader that is to be removed hands over first. Without that, the remaining members may
    /// not learn that the removal is committed. A leader that finds no member to hand over to proposes its
    /// removal after a while, see [`consensus::Node::is_leaving`]; but one of two members never does. If it
    /// ended before the other learned of the removal, the other would wait for its vote for ever; and without
    /// the other nothing is committed anyway.
    fn departs(&mut self, since: Instant, present: ChangeContext<'_>, now: Instant) -> Departure {
        let attempt = self.rules.election_timeout;
        let voters = present.node.voters().len();
        let late = voters > 2 && now.saturating_duration_since(since) >= attempt * DEPARTURE_TIMEOUTS;
        if !present.leads || late || voters < 2 || planted::is(Bug::RemovedLeading) {
            return Departure::Goes;
        }
        // A leader takes no writes while it hands over. One of two members, which keeps trying, pauses
        // between two attempts.
        let paused = voters == 2 && self.departure_tried.is_some_and(|at| now < at + 2 * attempt);
        if !paused
            && present.node.transferring().is_none()
            && let Some(to) = (present.successor)()
        {
            self.departure_tried = Some(now);
            return Departure::HandsOver(to);
        }
        Departure::Waits
    }

    /// Returns true if another member forwards a proposal to remove this member.
    pub fn asks_to_remove_this(&self, message: &raftpb::Message) -> bool {
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
        (removes && change.node_id == Some(self.rules.own)).then(|| data.clone())
    }

    /// Queues another member's proposal to remove this member, which leads and hands over first.
    pub fn depart(&mut self, message: raftpb::Message, now: Instant) {
        // A proposal that finds the queue full counts as lost by the network.
        if self.departures.len() < CHANGES_MAX {
            self.departures.push_back((message, now));
        }
    }

    /// Returns true if another member's proposal to remove this member waits.
    pub fn has_departures(&self) -> bool {
        !self.departures.is_empty()
    }

    /// Returns the next action for proposals to remove this member.
    pub fn next_departure(&mut self, present: ChangeContext<'_>, now: Instant) -> Step {
        let Some(since) = self.departures.front().map(|(_, since)| *since) else { return Step::Nothing };
        let late = now.saturating_duration_since(since) >= self.rules.request_timeout;
        let departure = self.departs(since, present, now);
        if departure != Departure::Goes {
            if late {
                // The proposal is dropped, because its sender has timed out.
                self.departures.pop_front();
            }
            return match departure {
                Departure::HandsOver(to) => Step::HandOver(to),
                Departure::Waits | Departure::Goes => Step::Nothing,
            };
        }
        let raft_status = present.node.status();
        let waits = raft_status.leader == MemberId::NONE
            || (!present.leads && present.applied_term != raft_status.term);
        if waits && !late {
            return Step::Nothing;
        }
        let Some((message, _)) = self.departures.pop_front() else { return Step::Nothing };
        if present.leads {
            return Step::Take(Box::new(message));
        }
        // A member that bound its proposal to the term proposes it again itself; other members rely on its
        // being forwarded.
        if message.term.unwrap_or(0) != 0 || message.context.is_some() {
            return Step::Nothing;
        }
        Step::PassOn(message.entries.iter().filter_map(|entry| self.removal_of_this(entry)).collect())
    }

    /// Returns true if a change waits and none is in progress: raft takes one at a time.
    pub fn has_next(&self) -> bool {
        self.open.is_none() && !self.changes.is_empty()
    }

    /// Returns the next action for the next change.
    pub fn next_change(&mut self, present: ChangeContext<'_>, now: Instant) -> Step {
        let Some((_, change, since)) = self.changes.front().filter(|_| self.open.is_none()) else {
            return Step::Nothing;
        };
        let since = *since;
        if matches!(change, MemberChange::Remove(id) if *id == self.rules.own) {
            match self.departs(since, present, now) {
                Departure::Goes => {}
                Departure::Waits => return Step::Nothing,
                Departure::HandsOver(to) => return Step::HandOver(to),
            }
        }
        // A new leader turns a change into an empty entry if it arrives before the leader has applied its
        // first entry.
        if !present.leads && present.applied_term != present.node.status().term {
            return Step::Nothing;
        }
        // Other changes may have been applied since the request. When an entry is applied, members check it
        // against the membership but not against connections; and members that run etcd check learners by
        // their own limit, not by the limit in the entry. So everything is checked again here.
        let Some((request_id, change, _)) = self.changes.front() else { return Step::Nothing };
        let request_id = *request_id;
        match self.may_be(change, present, now) {
            Ok(()) => Step::ProposeNext,
            Err(status) => {
                self.changes.pop_front();
                Step::Refuse(request_id, status)
            }
        }
    }

    /// Returns the next change as raft takes it and as the log has it, with this id.
    pub fn encode_next(&self, id: u64, node: &Node) -> Option<(ConfChange, Bytes)> {
        let (_, change, _) = self.changes.front()?;
        let mut change = change.clone();
        if let MemberChange::Update(member) = &mut change {
            // Members that run older etcd set the learner flag from a change of URLs; other members ignore it
            // there.
            let known = self.members.by_id.get(&member.id);
            member.is_learner = known.is_some_and(|known| known.is_learner);
        }
        let (raft, wire) = change.to_raft(id, self.learners_max(node));
        Some((raft, Bytes::from(wire.encode_to_vec())))
    }

    /// Returns true if this member's own option allows more learners than may be added now (COMPAT-177).
    pub fn is_held_back(&self, node: &Node) -> bool {
        self.learners_max(node) < self.rules.learners_max
    }

    /// Takes out the next change: it was proposed with this id, or refused.
    pub fn take_next(&mut self, proposed: Option<u64>) -> Option<QueuedChange> {
        self.open = proposed;
        self.changes.pop_front()
    }

    /// Takes back a change that was lost with its leader; it is proposed again before all others.
    pub fn was_lost(&mut self, change: QueuedChange) {
        self.open = None;
        self.changes.push_front(change);
    }

    /// Forgets changes that no request waits for any more: changes that were not proposed in time, and a
    /// change whose proposal was lost, which `waits` tells by its id.
    pub fn sweep(&mut self, waits: impl FnOnce(u64) -> bool, now: Instant) {
        let timeout = self.rules.request_timeout;
        self.changes.retain(|(_, _, since)| now.saturating_duration_since(*since) < timeout);
        if self.open.is_some_and(|id| !waits(id)) {
            self.open = None;
        }
    }

    /// Records that the change with this id was applied.
    pub fn applied(&mut self, id: u64) {
        if self.open == Some(id) {
            self.open = None;
        }
    }

    /// Queues the result of a change for its client, to be sent once the change is published.
    pub fn tell(&mut self, told: ChangeAnswer) {
        self.outcomes.push(told);
    }

    /// Takes out the queued results of membership changes, to be sent to clients.
    pub fn take_told(&mut self) -> Vec<ChangeAnswer> {
        std::mem::take(&mut self.outcomes)
    }

    /// Records that this member is no longer part of the cluster; it ends after a pause. Returns true if this
    /// was not known before.
    pub fn was_removed(&mut self, now: Instant) -> bool {
        let news = self.removed_at.is_none();
        self.removed_at.get_or_insert(now + REMOVED_PAUSE);
        news
    }

    /// Returns true if this member is known to be no longer part of the cluster.
    pub fn is_removed(&self) -> bool {
        self.removed_at.is_some()
    }

    /// Answers the clients that requested this member's removal with success, though the entry may never be
    /// applied here. Returns the id in the entry of the change in progress, if there is one.
    pub fn tell_of_removal(&mut self, term: Term) -> Option<u64> {
        let own = self.rules.own;
        let (queued, rest): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.changes).into_iter().partition(|(_, change, _)| change.removes(own));
        self.changes = rest;
        let told = |request_id| ChangeAnswer { request_id, outcome: Ok(()), raft_term: term };
        self.outcomes.extend(queued.into_iter().map(|(request_id, ..)| told(request_id)));
        self.open
    }

    /// Returns true if this member, which was removed, may end now. `is_leaving` says if it still makes sure
    /// that enough other members know of the removal.
    pub fn has_left(&self, is_leaving: bool, now: Instant) -> bool {
        let timeout = self.rules.election_timeout * LEAVING_TIMEOUTS;
        self.removed_at.is_some_and(|at| now >= at && (!is_leaving || now >= at + timeout))
    }

    /// Returns the members as last published.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Takes over the current members. Returns the others, with their peer URLs.
    pub fn changed(&mut self, members: &Members) -> Vec<(u64, Vec<String>)> {
        self.members = Arc::new(members.clone());
        let own = self.rules.own;
        let known = members.by_id.values().map(|member| (member.id, member.peer_urls.clone()));
        let mut others: Vec<(u64, Vec<String>)> = known.filter(|(id, _)| *id != own).collect();
        // A joining member reads in the log how the cluster was formed. Until it finds itself in the
        // membership, it uses the members from its start, or it would lose the connection to the members that
        // send it the log.
        if !members.by_id.contains_key(&own) {
            let known = |id: &u64| members.by_id.contains_key(id) || members.removed.contains(id);
            others.extend(self.remotes.iter().filter(|(id, _)| !known(id)).cloned());
        }
        others
    }
}

/// Returns the number of members other than learners and `but`, and how many of them have published their
/// names.
fn voting(members: &Members, but: u64) -> (usize, usize) {
    let voting = members.by_id.values().filter(|m| !m.is_learner && m.id != but);
    voting.fold((0, 0), |(all, started), m| (all + 1, started + usize::from(!m.name.is_empty())))
}

/// Checks that a learner has nine tenths of the leader's log.
///
/// # Errors
///
/// etcd's errors: this member does not lead, the id is not the id of a learner, or the learner is not in sync
/// with the leader.
fn is_caught_up(id: u64, present: ChangeContext<'_>) -> Result<(), Status> {
    if !present.leads {
        return Err(error::NOT_LEADER);
    }
    let Some(member) = present.members.by_id.get(&id) else { return Err(error::MEMBER_NOT_FOUND) };
    if !member.is_learner {
        return Err(error::MEMBER_NOT_LEARNER);
    }
    let matched =
        present.node.progress().iter().find(|p| p.id == MemberId(id)).map_or(Index(0), |p| p.matched);
    let own = present.node.status().last;
    if u128::from(matched.0) * 10 < u128::from(own.0) * 9 {
        return Err(error::LEARNER_NOT_READY);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
