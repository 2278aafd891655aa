//! Queues and checks the membership changes that clients request, lets one of them be proposed at a time, and
//! decides how a leader that is to be removed gives up leadership. [`Membership`] is the entry point. When a
//! change is applied, `machine::validate` checks it again.

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

/// Minimum time for which a member must have been connected to count as healthy, as in etcd.
const HEALTHY_FOR: Duration = Duration::from_secs(5);
/// Time for which a removed member keeps running, so that the other members learn that it knows of its
/// removal.
const REMOVED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time for which a removed leader keeps running until enough other members know of its removal, in
/// election timeouts.
const LEAVING_TIMEOUTS: u32 = 10;
/// Time for which a leader tries to transfer leadership before its own removal is proposed anyway, in
/// election timeouts.
const DEPARTURE_TIMEOUTS: u32 = 2;
/// Number of learners that every release of etcd allows by default.
const ETCD_LEARNERS_MAX: u64 = 1;
/// Maximum number of changes in the queue behind the change in progress.
const CHANGES_MAX: usize = 64;

impl MemberChange {
    /// Returns true if the change removes the member with this id.
    pub(super) fn removes(&self, member: u64) -> bool {
        matches!(self, MemberChange::Remove(id) if *id == member)
    }

    /// Returns the change as a raft configuration change and as the message in its log entry. The entry of a
    /// new learner contains `learners_max`; each member that applies the entry checks its number of learners
    /// against it.
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
    /// True if a change that endangers the quorum is refused (flag `--strict-reconfig-check`).
    pub strict: bool,
    /// Maximum number of learners if all members are known not to run etcd.
    pub learners_max: u64,
    /// The election timeout.
    pub election_timeout: Duration,
    /// Time after which a client's request times out.
    pub request_timeout: Duration,
}

/// Facts about the cluster with which a change is checked.
#[derive(Clone, Copy)]
pub(super) struct ChangeContext<'a> {
    /// The members as of the last applied entry.
    pub members: &'a Members,
    /// The raft node.
    pub node: &'a Node,
    /// True if this member leads.
    pub leads: bool,
    /// Raft term of the last applied entry.
    pub applied_term: Term,
    /// Returns the time since when the member with this id has been connected; `None` if it is not.
    pub active_since: &'a dyn Fn(u64) -> Option<Instant>,
    /// Returns true if the member with this id has said that it knows witnesses.
    pub knows_witnesses: &'a dyn Fn(u64) -> bool,
    /// Returns a voter that could take over leadership immediately; `None` if there is none.
    pub successor: &'a dyn Fn() -> Option<MemberId>,
}

/// Decision of a leader whose own removal is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// The removal is proposed now, because the leader need not transfer leadership, or has stopped trying.
    Goes,
    /// The removal waits while the leader transfers leadership, or because no member can take over.
    Waits,
    /// The leader begins to transfer leadership to this member.
    HandsOver(MemberId),
}

/// The next action that the core has to take for membership changes.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing is to be done now.
    Nothing,
    /// Transfer leadership to this member, because this member's own removal is requested.
    HandOver(MemberId),
    /// Propose the next change, with [`Membership::encode_next`] and [`Membership::take_next`].
    ProposeNext,
    /// Refuse this request, whose change was taken out of the queue.
    Refuse(RequestId, Status),
    /// Pass this message of another member to raft. It proposes the removal of this member.
    Take(Box<raftpb::Message>),
    /// Forward these proposals, which remove this member, to the new leader.
    PassOn(Vec<Bytes>),
}

/// A change for which a client waits: the request, the change, and its time of arrival.
pub(super) type QueuedChange = (RequestId, MemberChange, Instant);

/// The answer to a request for a change.
#[derive(Debug, PartialEq)]
pub(super) struct ChangeAnswer {
    /// The request that is answered.
    pub request_id: RequestId,
    /// Result of the change.
    pub outcome: Result<(), Status>,
    /// Raft term in the reply.
    pub raft_term: Term,
}

/// Queues the membership changes that clients request, which are carried out one at a time, and tracks this
/// member's own removal.
///
/// This type checks and queues changes. It returns what the core has to propose, transfer or answer.
pub(super) struct Membership {
    rules: MemberRules,
    /// Changes that wait to be proposed.
    changes: VecDeque<QueuedChange>,
    /// Id of the change in progress, as its log entry contains it; `None` if no change is in progress.
    open: Option<u64>,
    /// Messages of other members that propose the removal of this member while it leads, with their times of
    /// arrival.
    departures: VecDeque<(raftpb::Message, Instant)>,
    /// Last time at which this member, as a leader whose removal is requested, began to transfer leadership;
    /// `None` if it has not.
    departure_tried: Option<Instant>,
    outcomes: Vec<ChangeAnswer>,
    /// Time at which the process of this member ends, because the member was removed from the cluster.
    removed_at: Option<Instant>,
    /// Members of the cluster that are not yet in this member's log: id and peer URLs.
    remotes: Vec<(u64, Vec<String>)>,
    /// The members as last published.
    members: Arc<Members>,
}

impl Membership {
    /// Returns an empty queue. `remotes` are members of the cluster that are not yet in this member's log.
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

    /// Checks and queues a membership change that a client requests.
    ///
    /// # Errors
    ///
    /// Returns etcd's error if the change is invalid or unsafe, or if too many changes wait.
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

    /// Checks if a change may be proposed with the current members and their connections; returns etcd's
    /// error if not.
    fn may_be(&self, change: &MemberChange, present: ChangeContext<'_>, now: Instant) -> Result<(), Status> {
        if self.rules.strict {
            self.is_safe(change, present, now)?;
        }
        if let MemberChange::Add(member) = change
            && member.is_witness
            && !(present.node.has_no_etcd() && self.all_know_witnesses(present))
        {
            return Err(error::WITNESS_BESIDE_ETCD);
        }
        if let MemberChange::Remove(id) = change
            && present.leads
            && !present.node.may_remove(MemberId(*id))
        {
            return Err(error::REMOVAL_WHILE_WITNESS_COUNTS);
        }
        let learners_max = self.learners_max(present.node);
        let (_, wire) = change.to_raft(0, learners_max);
        let learners_max = usize::try_from(learners_max).unwrap_or(usize::MAX);
        machine::validate(present.members, &wire, learners_max)
    }

    fn all_know_witnesses(&self, present: ChangeContext<'_>) -> bool {
        let mut others = present.members.by_id.keys().filter(|id| **id != self.rules.own);
        others.all(|id| (present.knows_witnesses)(*id))
    }

    /// Returns the maximum number of learners that a change proposed now may lead to. If a member may run
    /// etcd, the maximum is 1 (COMPAT-177), because etcd 3.5 allows only one learner, and so do later
    /// releases by default. An etcd member would refuse the entry of a second learner, which this member
    /// applies, and would exit when that learner publishes its name.
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

    /// Applies the rules of etcd's `--strict-reconfig-check`: the change must not cost the cluster its
    /// quorum.
    fn is_safe(&self, change: &MemberChange, present: ChangeContext<'_>, now: Instant) -> Result<(), Status> {
        let enough = |all: usize, started: usize| started > all / 2;
        let healthy_since = now.checked_sub(HEALTHY_FOR).unwrap_or(now);
        let members = present.members;
        match change {
            MemberChange::Add(member) => {
                let (all, started) = voting(members, 0);
                // A single member must be able to add a second one, for example when a cluster is restored,
                // although one started member is no quorum of two.
                let restores = started == 1 && all == 1;
                if !member.is_learner && !restores && !enough(all + 1, started) {
                    return Err(error::MEMBER_NOT_ENOUGH_STARTED);
                }
                // The connected members must be a quorum of the voters including the new member. This is also
                // checked for a learner, because the learner may be promoted later.
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
                // The member is not connected, so its removal takes no healthy member out of the quorum and
                // is safe.
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

    /// Decides if a leader whose removal is requested first transfers leadership. Without the transfer, the
    /// remaining members may not learn that the removal is committed.
    ///
    /// In a cluster of three or more voters, a leader that finds no successor proposes its removal after some
    /// time, see [`consensus::Node::is_leaving`]. In a cluster of two voters the leader keeps trying to
    /// transfer leadership. If it ended before the other member learned of the removal, the other member
    /// could never become the leader, because it would need the vote of a process that no longer runs.
    /// Waiting loses nothing: while the other member is down, no entry can be committed anyway.
    fn departs(&mut self, since: Instant, present: ChangeContext<'_>, now: Instant) -> Departure {
        let attempt = self.rules.election_timeout;
        // A witness cannot take over, so it does not count.
        let witness = present.node.witness();
        let voters = present.node.voters().into_iter().filter(|id| *id != witness).count();
        let late = voters > 2 && now.saturating_duration_since(since) >= attempt * DEPARTURE_TIMEOUTS;
        if !present.leads || late || voters < 2 || planted::is(Bug::RemovedLeading) {
            return Departure::Goes;
        }
        // A leader accepts no writes during a transfer. So the leader of two voters, which keeps trying,
        // pauses between two attempts to let clients write.
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

    /// Returns true if the message forwards a proposal to remove this member.
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

    /// Queues a message that proposes the removal of this member. This member leads, and transfers leadership
    /// before the removal is proposed.
    pub fn depart(&mut self, message: raftpb::Message, now: Instant) {
        // If the queue is full, the message is dropped, as if the network had lost it.
        if self.departures.len() < CHANGES_MAX {
            self.departures.push_back((message, now));
        }
    }

    /// Returns true if a message that proposes the removal of this member waits.
    pub fn has_departures(&self) -> bool {
        !self.departures.is_empty()
    }

    /// Returns the next action for messages that propose the removal of this member.
    pub fn next_departure(&mut self, present: ChangeContext<'_>, now: Instant) -> Step {
        let Some(since) = self.departures.front().map(|(_, since)| *since) else { return Step::Nothing };
        let late = now.saturating_duration_since(since) >= self.rules.request_timeout;
        let departure = self.departs(since, present, now);
        if departure != Departure::Goes {
            if late {
                // The request of the sender has timed out, so its proposal is dropped.
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
        // A proposal that names a term or has a context comes from a member that proposes it again itself, so
        // it is dropped here. All other senders rely on this member to forward their proposals.
        if message.term.unwrap_or(0) != 0 || message.context.is_some() {
            return Step::Nothing;
        }
        Step::PassOn(message.entries.iter().filter_map(|entry| self.removal_of_this(entry)).collect())
    }

    /// Returns true if no change waits, is in progress, or is expected.
    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.changes.is_empty() && self.departures.is_empty()
    }

    /// Begins a change of the leader itself, with this id, past the queue. Returns it as a raft configuration
    /// change and as the bytes of its log entry; the caller proposes it, and calls [`Membership::opened`]. The
    /// quorum is protected whatever `--strict-reconfig-check` says.
    ///
    /// # Errors
    ///
    /// Returns etcd's error if the change is invalid or unsafe, or if another change waits or is in progress.
    pub fn encode_own(
        &self,
        change: &MemberChange,
        id: u64,
        present: ChangeContext<'_>,
        now: Instant,
    ) -> Result<(ConfChange, Bytes), Status> {
        if !self.is_idle() {
            return Err(error::TOO_MANY_REQUESTS);
        }
        if let MemberChange::Promote(id) = change {
            is_caught_up(*id, present)?;
        }
        self.is_safe(change, present, now)?;
        self.may_be(change, present, now)?;
        let (raft, wire) = change.to_raft(id, self.learners_max(present.node));
        Ok((raft, Bytes::from(wire.encode_to_vec())))
    }

    /// Records that the change with this id was proposed past the queue, so that no other is proposed until it is
    /// applied or lost.
    pub fn opened(&mut self, id: u64) {
        self.open = Some(id);
    }

    /// Returns true if a change waits and none is in progress, because raft accepts only one at a time.
    pub fn has_next(&self) -> bool {
        self.open.is_none() && !self.changes.is_empty()
    }

    /// Returns the next action for the queued changes.
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
        // Until this member has applied an entry of the leader's term, the leader possibly has not either.
        // Such a leader would replace the change with an empty entry, so the change is proposed later.
        if !present.leads && present.applied_term != present.node.status().term {
            return Step::Nothing;
        }
        // The change is checked a second time, because other changes may have been applied since it was
        // queued. The check when the entry is applied does not replace this one: it does not look at
        // connections, and members that run etcd use their own limit of learners instead of the limit in the
        // entry.
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

    /// Returns the next change, with this id, as a raft configuration change and as the bytes of its log
    /// entry.
    pub fn encode_next(&self, id: u64, node: &Node) -> Option<(ConfChange, Bytes)> {
        let (_, change, _) = self.changes.front()?;
        let mut change = change.clone();
        if let MemberChange::Update(member) = &mut change {
            // When a member's URLs change, older releases of etcd also set the learner flag from the entry.
            // So the entry repeats the current flag. Other releases ignore the flag in the entry.
            let known = self.members.by_id.get(&member.id);
            member.is_learner = known.is_some_and(|known| known.is_learner);
            member.is_witness = known.is_some_and(|known| known.is_witness);
        }
        let (raft, wire) = change.to_raft(id, self.learners_max(node));
        Some((raft, Bytes::from(wire.encode_to_vec())))
    }

    /// Returns true if this member's `--max-learners` allows more learners than can be added now, because a
    /// member may run etcd (COMPAT-177).
    pub fn is_held_back(&self, node: &Node) -> bool {
        self.learners_max(node) < self.rules.learners_max
    }

    /// Removes and returns the next change. `proposed` is the id with which the change was proposed; `None`
    /// if the change was refused.
    pub fn take_next(&mut self, proposed: Option<u64>) -> Option<QueuedChange> {
        self.open = proposed;
        self.changes.pop_front()
    }

    /// Puts back a change whose proposal was lost with its leader. It is proposed again before all other
    /// changes.
    pub fn was_lost(&mut self, change: QueuedChange) {
        self.open = None;
        self.changes.push_front(change);
    }

    /// Forgets changes for which no request waits any more: queued changes whose clients have timed out, and
    /// the change in progress if its proposal was lost. `waits` returns true if a request still waits for the
    /// entry with the given id.
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

    /// Queues the result of a change for the client. It is sent once the change is published.
    pub fn tell(&mut self, told: ChangeAnswer) {
        self.outcomes.push(told);
    }

    /// Removes and returns the results of membership changes that are to be sent to clients.
    pub fn take_told(&mut self) -> Vec<ChangeAnswer> {
        std::mem::take(&mut self.outcomes)
    }

    /// Records that this member is no longer part of the cluster. Its process ends after a pause. Returns
    /// true at the first call.
    pub fn was_removed(&mut self, now: Instant) -> bool {
        let news = self.removed_at.is_none();
        self.removed_at.get_or_insert(now + REMOVED_PAUSE);
        news
    }

    /// Returns true if this member is known to be no longer part of the cluster.
    pub fn is_removed(&self) -> bool {
        self.removed_at.is_some()
    }

    /// Called when this member learns that it was removed. Answers the queued requests for its removal with
    /// success, because this member may never apply the entry. A change that was already proposed is not
    /// answered here. The id in its entry is returned, if there is one, so that the caller can answer its
    /// request if that change is this removal.
    pub fn tell_of_removal(&mut self, term: Term) -> Option<u64> {
        let own = self.rules.own;
        let (queued, rest): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.changes).into_iter().partition(|(_, change, _)| change.removes(own));
        self.changes = rest;
        let told = |request_id| ChangeAnswer { request_id, outcome: Ok(()), raft_term: term };
        self.outcomes.extend(queued.into_iter().map(|(request_id, ..)| told(request_id)));
        self.open
    }

    /// Returns true if this member, which was removed, may end its process now. `is_leaving` is true while
    /// this member still makes sure that enough other members know of the removal, for which it waits only a
    /// limited time.
    pub fn has_left(&self, is_leaving: bool, now: Instant) -> bool {
        let timeout = self.rules.election_timeout * LEAVING_TIMEOUTS;
        self.removed_at.is_some_and(|at| now >= at && (!is_leaving || now >= at + timeout))
    }

    /// Returns true if the cluster has this member, as far as this member knows.
    pub fn knows(&self, id: MemberId) -> bool {
        self.members.by_id.contains_key(&id.0) || self.remotes.iter().any(|remote| remote.0 == id.0)
    }

    /// Returns the members, as last set by [`Membership::changed`].
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Stores the current members. Returns the ids and peer URLs of the other members, to which this member
    /// needs connections.
    pub fn changed(&mut self, members: &Members) -> Vec<(u64, Vec<String>)> {
        self.members = Arc::new(members.clone());
        let own = self.rules.own;
        let known = members.by_id.values().map(|member| (member.id, member.peer_urls.clone()));
        let mut others: Vec<(u64, Vec<String>)> = known.filter(|(id, _)| *id != own).collect();
        // While a joining member applies the log from its beginning, `members` is the membership of an
        // earlier time. Until `members` contains this member, the members known from its start are added.
        // Otherwise this member would lose the connections to the members that send it the log.
        if !members.by_id.contains_key(&own) {
            let known = |id: &u64| members.by_id.contains_key(id) || members.removed.contains(id);
            others.extend(self.remotes.iter().filter(|(id, _)| !known(id)).cloned());
        }
        others
    }
}

/// Counts the voters other than the member `but`. Returns their number, and the number of those that have
/// been started: they have published a name.
fn voting(members: &Members, but: u64) -> (usize, usize) {
    let voting = members.by_id.values().filter(|m| !m.is_learner && m.id != but);
    voting.fold((0, 0), |(all, started), m| (all + 1, started + usize::from(!m.name.is_empty())))
}

/// Checks that a learner has at least nine tenths of the leader's log, which a promotion to voter requires.
///
/// # Errors
///
/// Returns etcd's error if this member does not lead, if the id is not that of a learner, or if the learner
/// is not in sync with the leader.
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
    if u128::from(matched.0) * 10 < u128::from(own.0) * 9 && !planted::is(Bug::AutopilotPromotesEarly) {
        return Err(error::LEARNER_NOT_READY);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
