//! What the core does for its machines: it gives them what they have to know, and carries out what they want.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{
    AlarmRequest, AlarmType, InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest,
    LeaseRevokeRequest, RequestHeader,
};
use api::membershippb;
use api::{Status, error, raftpb};
use bytes::Bytes;
use consensus::{ConfChange, ConfChangeKind, Entry, EntryKind, Event, Node, Request, Restore};
use log::{Reset, Space};
use machine::{Applied, AsOf, Change, Command, Fatal, Machine, Outcome, Progress, Raised, VoterChange};
use planted::Bug;
use prost::Message as _;
use telemetry::logging::{Logger, Value};
use tokio::sync::oneshot;

use super::alarms::Present;
use super::answers::Answerable;
use super::apply::Begun;
use super::leases::{LeaseClocks, Renewal};
use super::membership::{self, MemberChange, Membership};
use super::parked::{IDLE, Parked, Response};
use super::proposals::{Given, Ground, Proposal, Waiter};
use super::reads::{Footing, RETRY, Waiting, Want};
use super::removal::{self, Sliced};
use super::room::{Purpose, Room, purpose_of};
use super::run::{Core, STOP_PATIENCE};
use super::space::Survey;
use super::{Ask, ReplyBody, Ticket};
use crate::long_reads::Reader;
use crate::shared::Shared;
use crate::transfer::Received;
use storage::checkpointer::{Checkpointed, Order, Relocation};
use storage::nospace::Cause;
use storage::values::AtHand;

/// Linearizable reads.
impl Core {
    fn footing(&self) -> Footing {
        let can_ask =
            self.node.standing().leader != 0 && (!self.leadership.leads() || self.leadership.has_settled());
        Footing { can_ask, pace: self.pressure.pace() }
    }

    /// How long what waits has to wait for the next round to begin, see [`super::reads::Reads::wait`].
    pub(super) fn round_waits(&self, now: Instant) -> Option<Duration> {
        if self.reads.is_waiting() { self.reads.wait(self.footing(), now) } else { None }
    }

    /// Begins a round for what waits, if there is somebody to ask.
    pub(super) fn start_round(&mut self, now: Instant) {
        if !self.reads.is_waiting() {
            return;
        }
        if self.reads_local() || (planted::is(Bug::StaleRead) && self.leadership.has_settled()) {
            let wants = self.reads.take_waiting();
            self.grant(wants, now);
            return;
        }
        let footing = self.footing();
        if let Some(number) = self.reads.begin(footing, || self.shared.request_id(), now)
            && self.node.request(Request::Read(number)).is_err()
        {
            self.reads.refused(now);
        }
    }

    /// Finishes the rounds that the applied state has come up to.
    pub(super) fn finish_rounds(&mut self, now: Instant) {
        let early = planted::is(Bug::HalfWayCountsAsApplied) && self.machine.has_unfinished();
        let applied = self.machine.applied_index + u64::from(early);
        while let Some(wants) = self.reads.finish(applied) {
            self.grant(wants, now);
        }
    }

    fn grant(&mut self, wants: Vec<Waiting>, now: Instant) {
        for (want, since) in wants {
            match want {
                Want::Read(ticket) => self.reads.readable(ticket),
                // Leadership was lost while it waited, and the clocks of leases are the next leader's.
                want if !self.leadership.leads() => self.refuse(want.ticket(), error::NOT_PRIMARY_LESSOR),
                // The round was confirmed to a member that has become the leader since. Its clocks do not run yet.
                want if !self.leadership.has_settled() => self.reads.push(want, since),
                Want::Renewal(ticket, id) => self.renew(ticket, id, since, now),
                Want::TimeToLive(ticket, id, keys) => self.time_to_live(ticket, id, keys, now),
            }
        }
    }

    /// Answers the reads that the state just published is new enough for.
    pub(super) fn answer_reads(&mut self) {
        for ticket in self.reads.take_readable() {
            self.reply(ticket, ReplyBody::Readable);
        }
    }

    /// Looks after rounds that nobody confirms, and reads whose clients were told that they took too long.
    pub(super) fn retry_reads(&mut self, now: Instant) {
        let retried = self.reads.retry(self.shared.limits.request_timeout, now);
        if retried.late {
            self.shared.metrics.server.slow_read_indexes.inc();
        }
        if retried.warns {
            self.logger.warn(
                "waiting for ReadIndex response took too long, retrying",
                &[("retry-timeout", Value::Duration(RETRY))],
            );
        }
        for want in retried.expired {
            self.shared.metrics.server.read_indexes_failed.inc();
            self.refuse(want.ticket(), error::TIMEOUT);
        }
    }
}

/// Room on the disk, and the alarm that tells of it.
impl Core {
    /// Looks at the disk now and then: raises and clears the alarm, and has room won back where it is short.
    pub(super) fn look_at_disk(&mut self, now: Instant) {
        let Some(look) = self.room.look(&self.log, now) else { return };
        if look.wants_reserve && self.orders.try_send(Order::Reserve).is_ok() {
            self.room.reserved();
        }
        if look.is_short {
            self.raise_no_space(Cause::Disk, now);
        }
        let within = self.shared.limits.quota_bytes.is_none_or(|quota| self.machine.in_use_bytes() < quota);
        let may_clear = self.room.is_roomy(&self.log) && within;
        let present = Present { alarms: &self.machine.alarms, has_leader: self.leadership.leader() != 0 };
        let ample = self.log.space() == Space::Ample;
        if let Some(action) = self.nospace.look(ample, may_clear, present, now) {
            self.logger.info("the disk has room again: clearing the NOSPACE alarm that it had raised", &[]);
            self.propose_alarm(action);
        }
        self.note_cause();
        if self.room.may_free(&self.log, now) && !self.checkpoints.is_to_free() && self.has_garbage() {
            self.room.freed(now);
            self.checkpoints.would_free(now);
        }
    }

    /// Raises the NOSPACE alarm for this member.
    pub(super) fn raise_no_space(&mut self, cause: Cause, now: Instant) {
        let present = Present { alarms: &self.machine.alarms, has_leader: self.leadership.leader() != 0 };
        let wanted = self.nospace.raise(cause, present, now);
        if wanted.note {
            self.note_cause();
        }
        if let Some(action) = wanted.propose {
            self.propose_alarm(action);
        }
    }

    /// An alarm was raised or cleared.
    pub(super) fn alarms_changed(&mut self, raised: Option<Raised>) {
        self.nospace.changed(raised, &self.machine.alarms);
        self.note_cause();
    }

    fn propose_alarm(&mut self, action: AlarmAction) {
        let alarm = AlarmRequest {
            action: action as i32,
            member_id: self.shared.identity.member_id,
            alarm: AlarmType::Nospace as i32,
        };
        let alarm_cause = match action {
            AlarmAction::Activate => self.nospace.cause().in_entry(),
            _ => 0,
        };
        let request =
            InternalRaftRequest { alarm: Some(alarm), alarm_cause, ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }

    /// Has it noted beside the log what raised the alarm. Whether the checkpointer was told, and does it before anything else that
    /// it is told from now on.
    pub(super) fn note_cause(&mut self) -> bool {
        let Some(cause) = self.nospace.unnoted() else { return true };
        if self.orders.try_send(Order::Note(cause)).is_err() {
            return false;
        }
        self.nospace.was_noted();
        self.logger.debug("noted what raised NOSPACE", &[("cause", Value::Str(cause.name()))]);
        true
    }
}

/// A member out of service.
impl Core {
    /// Takes the member out of service.
    pub(super) fn park(&mut self, fatal: &Fatal, now: Instant) {
        self.logger.error(
            "OUT OF SERVICE: a committed entry depends on a value that cannot be read, and it cannot be applied without; rebuild this member from the others with `mainstay rebuild` or, if it is the only one, take a snapshot of what can still be read and restore from a backup",
            &[("index", Value::Uint(fatal.index)), ("why", Value::Str(&fatal.why))],
        );
        let alone = self.node.voters() == [self.shared.identity.member_id];
        let parked = Parked::new(fatal, alone && !self.history.was_replayed(fatal.index));
        let why = parked.why();
        for proposal in self.proposals.take_all() {
            self.shared.proposal_taken(proposal.data.len());
            self.refuse(proposal.ticket, why.clone());
        }
        for waiter in self.proposals.end() {
            if !matches!(waiter, Waiter::Expiry(_)) {
                self.give_up(waiter, why.clone());
            }
        }
        self.applying.clear();
        // Nobody would notice any more that it does not go on.
        self.end_install();
        self.removal.stop();
        // So that what was applied before is published, and that there is no leader to be told of.
        self.applied_since = true;
        self.next_tick = now + IDLE;
        self.parked = Some(parked);
        self.serve();
    }

    /// Whether the published state of a member out of service answers linearizable reads.
    pub(super) fn is_parked_complete(&self) -> bool {
        self.parked.as_ref().is_some_and(Parked::is_complete)
    }

    /// One turn of a member out of service. Whether it is told to stop.
    ///
    /// # Errors
    ///
    /// When the log failed.
    pub(super) fn parked_turn(&mut self, asks: &mut Vec<Ask>, now: Instant) -> Result<bool, String> {
        self.next_tick = now + IDLE;
        let mut stops = false;
        asks.append(&mut self.deferred);
        for ask in asks.drain(..) {
            self.take_parked(ask, &mut stops)?;
        }
        self.answer();
        self.release_doomed();
        self.release_discarded();
        Ok(stops)
    }

    fn take_parked(&mut self, ask: Ask, stops: &mut bool) -> Result<(), String> {
        let Some(parked) = &self.parked else { return Ok(()) };
        match parked.respond(ask) {
            Response::Nothing => {}
            Response::Stop => *stops = true,
            Response::Readable(ticket) => self.reply(ticket, ReplyBody::Readable),
            Response::Image(ticket) => self.answers.want_image(ticket),
            Response::Refuse(ticket, taken) => {
                let why = parked.why();
                if let Some(bytes) = taken {
                    self.shared.proposal_taken(bytes);
                }
                self.refuse(ticket, why);
            }
            Response::Outside(sender, ask) => {
                let ticket = self.answers.ticket_for(sender);
                self.take_parked(ask(ticket), stops)?;
            }
            Response::Discard(forget) => self.install.discard_part(forget),
            Response::Failed(why) => return Err(why),
        }
        Ok(())
    }
}

/// Leases.
impl Core {
    /// Whether this member leads, with all of its predecessors' entries applied, in this very moment.
    pub(super) fn leads_now(&self) -> bool {
        self.leadership.is_leading(self.node.standing())
    }

    /// A client wants its lease renewed. Only a leader that still leads may promise more time: one that was stopped or
    /// cut off for a while may have been replaced, and its successor have let the lease expire. So renewals share
    /// rounds of ReadIndex with linearizable reads; where one member is all voters, they are answered at once.
    ///
    /// A round also waits for this member's own apply: the others may have committed the grant, and told its owner,
    /// while this member's disk is still busy with the entry.
    pub(super) fn keep_alive(&mut self, ticket: Ticket, id: i64, now: Instant) {
        if !self.leadership.leads() {
            self.refuse(ticket, error::NOT_PRIMARY_LESSOR);
        } else if planted::is(Bug::RenewedByDeposed) {
            self.renew(ticket, id, now, now);
        } else {
            self.leases.hold(id, now);
            self.reads.push(Want::Renewal(ticket, id), now);
        }
    }

    /// Renews a lease; the renewal came at `since` and is confirmed.
    pub(super) fn renew(&mut self, ticket: Ticket, id: i64, since: Instant, now: Instant) {
        let (lease, applied) = (self.machine.leases.get(id), self.machine.applied_index);
        match self.leases.renew((ticket, id), lease, applied, since, now) {
            Renewal::Answered(ttl) => self.reply(ticket, ReplyBody::KeptAlive(ttl)),
            Renewal::TakesBack(ttl) => {
                let clear = vec![LeaseCheckpoint { id, remaining_ttl: 0 }];
                self.propose_note(clear, Waiter::KeepAlive(ticket, ttl));
            }
            Renewal::Waits => {}
        }
    }

    /// Proposes to note times left, and remembers which entry does.
    fn propose_note(&mut self, checkpoints: Vec<LeaseCheckpoint>, waiter: Waiter) {
        if !self.leads_now() {
            // Another leader would take what it is handed on for its own.
            self.give_up(waiter, error::NOT_PRIMARY_LESSOR);
            return;
        }
        let ids: Vec<i64> = checkpoints.iter().map(|checkpoint| checkpoint.id).collect();
        let before = self.node.standing().last;
        let request = InternalRaftRequest {
            lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
            ..InternalRaftRequest::default()
        };
        self.propose_own(request, waiter);
        let last = self.node.standing().last;
        if last > before {
            for id in ids {
                self.leases.noted(id, last);
            }
        }
    }

    /// This member leads no more, or in another term.
    pub(super) fn stop_leases(&mut self, now: Instant) {
        for ticket in self.leases.stop(now) {
            self.refuse(ticket, error::NOT_PRIMARY_LESSOR);
        }
    }

    pub(super) fn lease_revoked(&mut self, id: i64) {
        for (ticket, _) in self.leases.revoked(id) {
            self.reply(ticket, ReplyBody::KeptAlive(0));
        }
    }

    /// Gives up renewals whose clients were told that they took too long.
    pub(super) fn sweep_renewals(&mut self, now: Instant) {
        for ticket in self.leases.sweep(now) {
            self.refuse(ticket, error::TIMEOUT);
        }
    }

    pub(super) fn time_to_live(&mut self, ticket: Ticket, id: i64, keys: bool, now: Instant) {
        if keys && !self.machine.is_whole() {
            self.deferred.push(Ask::TimeToLive(ticket, id, keys));
            return;
        }
        let body = self.leases.time_to_live(id, self.machine.leases.get(id), keys, now);
        self.reply(ticket, body);
    }

    /// The keys of a lease as this member knows them.
    pub(super) fn lease_keys(&mut self, ticket: Ticket, id: i64) {
        if !self.machine.is_whole() {
            self.deferred.push(Ask::LeaseKeys(ticket, id));
            return;
        }
        let keys = self.machine.leases.get(id).map(|lease| lease.keys.clone()).unwrap_or_default();
        self.reply(ticket, ReplyBody::LeaseKeys(keys));
    }

    /// Does the next slice of what has to be done for leases.
    pub(super) fn lease_slices(&mut self, now: Instant) {
        self.leases.forget_some();
        if self.leads_now() {
            self.leases.start_some(&self.machine.leases);
            self.expire_leases();
            self.note_some(now);
        } else {
            self.leases.end_noting();
        }
        if let Some(since) = self.stopping
            && !self.handed_over
            && (!self.leases.is_noting() || now.saturating_duration_since(since) > STOP_PATIENCE / 2)
        {
            self.handed_over = true;
            self.hand_over();
        }
    }

    /// Whether another slice can be done at once.
    pub(super) fn lease_slices_wait(&self) -> bool {
        if self.parked.is_some() {
            return false;
        }
        let may_note = || Room::takes_more(&self.log) && self.can_note();
        self.leases.has_to_forget()
            || self.leads_now() && self.leases.has_to_do(self.stopping.is_none(), may_note)
    }

    fn can_note(&self) -> bool {
        LeaseClocks::can_note(self.node.standing().last, self.machine.applied_index)
    }

    /// Proposes to revoke what has expired.
    fn expire_leases(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        for id in self.leases.take_expired() {
            let request = InternalRaftRequest {
                lease_revoke: Some(LeaseRevokeRequest { id }),
                ..InternalRaftRequest::default()
            };
            self.propose_own(request, Waiter::Expiry(id));
        }
    }

    /// Goes on with the notes of times left, by one entry at most.
    fn note_some(&mut self, now: Instant) {
        if !self.leases.is_noting() {
            return;
        }
        let leases = (&self.machine.leases, self.machine.applied_index);
        let has_room = Room::takes_more(&self.log);
        if let Some(notes) = self.leases.note_some(&self.node, leases, has_room, now) {
            self.propose_note(notes, Waiter::Nobody);
        }
    }
}

/// Changes of the members.
impl Core {
    /// Asks the changes of the members, with what they have to know.
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

    /// The voter that could lead at once: connected, and furthest of all.
    pub(super) fn successor(&self) -> Option<u64> {
        successor(&self.node, &self.machine, &self.shared)
    }

    /// A client wants the members changed: refuses what cannot or should not be, and queues the rest.
    pub(super) fn change_members(&mut self, ticket: Ticket, change: MemberChange, now: Instant) {
        let promotes = matches!(change, MemberChange::Promote(_));
        let wanted = self.ask_membership(|membership, present| membership.want(ticket, change, present, now));
        if let Err(status) = wanted {
            if promotes && self.leadership.leads() && status != error::TOO_MANY_REQUESTS {
                let failures = &self.shared.metrics.server.learner_promote_failures;
                failures.with(&[&status.message]).inc();
            }
            self.refuse(ticket, status);
        }
    }

    /// Does what is due about proposals of other members to remove this one.
    pub(super) fn hold_departures(&mut self, now: Instant) {
        if self.membership.has_departures() {
            let step = self.ask_membership(|membership, present| membership.next_departure(present, now));
            self.change(step);
        }
    }

    /// Proposes the next change, when the one before is applied.
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
                self.logger.info("handing leadership over before being removed", &[("to", Value::Id(to))]);
                self.transfer_to(to);
            }
            membership::Step::ProposeNext => self.propose_next_change(),
            membership::Step::Take(message) => self.step_received(*message),
            membership::Step::PassOn(removals) => {
                let own = ConfChange { kind: ConfChangeKind::Remove, node: self.shared.identity.member_id };
                for data in removals {
                    // Without a leader it is lost, as in etcd.
                    let _ = self.node.request(Request::ProposeConfChange(own, data));
                }
            }
        }
    }

    fn propose_next_change(&mut self) {
        let id = self.shared.request_id();
        let Some((raft, data)) = self.membership.encode_next(id) else { return };
        // A follower's own disk has nothing to do with what it hands on.
        if self.leadership.leads() && !self.room.has(&self.log, data.len(), Purpose::Mends) {
            if let Some((ticket, ..)) = self.membership.take_next(None) {
                self.refuse(ticket, error::NO_SPACE);
            }
            return;
        }
        // Without a leader it waits here.
        if self.node.request(Request::ProposeConfChange(raft, data)).is_ok()
            && let Some((ticket, change, since)) = self.membership.take_next(Some(id))
        {
            let waiter = Waiter::Members(ticket, Box::new(change));
            let given = self.given();
            self.proposals.await_entry(id, waiter, since, given);
        }
    }

    /// Forgets changes that nobody waits for any more.
    pub(super) fn sweep_changes(&mut self, now: Instant) {
        let proposals = &self.proposals;
        self.membership.sweep(|id| proposals.is_awaited(id), now);
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
        self.membership.applied(applied.request_id);
        if applied.outcome.is_ok() {
            self.members_changed(change);
        }
        if let Some(Waiter::Members(ticket, _)) = self.proposals.take(applied.request_id) {
            let promoted = matches!(applied.outcome, Ok(VoterChange::AddVoter(_)));
            if promoted && self.machine.members.learners().len() < learners {
                self.shared.metrics.server.learner_promote_successes.inc();
            }
            self.membership.tell((ticket, applied.outcome.map(|_| ()), entry.term));
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

    /// Tells whoever talks to other members, and everyone who looks at the published state.
    pub(super) fn tell_members(&mut self) {
        let others = self.membership.changed(&self.machine.members);
        self.applied_since = true;
        if let Some(peers) = self.shared.peers() {
            self.shared.arrivals.set_members(others.iter().map(|(id, _)| *id));
            peers.set_members(others);
        }
    }

    /// This member is no longer part of the cluster: it ends, and does not start again.
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
            && let Some(Waiter::Members(ticket, _)) = self.proposals.take(id)
        {
            self.membership.tell((ticket, Ok(()), term));
        }
    }

    /// Makes this member's name and client URLs known, once after each start.
    pub(super) fn propose_attributes(&mut self, now: Instant) {
        let (members, node) = (&self.machine.members, &self.node);
        let own = self.shared.identity.member_id;
        let has_leader = || members.by_id.contains_key(&own) && node.standing().leader != 0;
        if let Some(request) = self.attributes.propose(has_leader, now) {
            self.propose_own(request, Waiter::Attributes);
        }
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

/// Taking over another member's state, and giving this one's.
impl Core {
    /// Another member is about to send its state. It is refused while the present one is being moved about.
    pub(super) fn begin_install(&mut self, ticket: Ticket, claim: u64, from: u64, term: u64) {
        // Nothing is held for who does not lead. A leader that this member has not heard of yet tries again.
        let standing = self.node.standing();
        if (standing.leader, standing.term) != (from, term) {
            self.refuse(ticket, error::NOT_LEADER);
            return;
        }
        let busy = self.moves.are_under_way() || self.checkpoints.is_busy() || self.stopping.is_some();
        if !self.install.begin(claim, busy) {
            self.refuse(ticket, error::TOO_MANY_REQUESTS);
            return;
        }
        self.shared.metrics.server.snapshot_apply_in_progress.set_u64(1);
        self.answers.want_image(ticket);
    }

    /// A snapshot that broke off goes on, if its sender leads.
    pub(super) fn resume_install(&mut self, ticket: Ticket, claim: u64, from: u64, term: u64) {
        let standing = self.node.standing();
        if (standing.leader, standing.term) != (from, term) {
            self.refuse(ticket, error::NOT_LEADER);
            return;
        }
        if self.install.resume(claim) {
            self.reply(ticket, ReplyBody::Readable);
        } else {
            self.refuse(ticket, error::TOO_MANY_REQUESTS);
        }
    }

    /// Writes values of a snapshot to the log.
    pub(super) fn place(
        &mut self,
        claim: u64,
        values: Vec<log::Value>,
        done: oneshot::Sender<Vec<(log::ValueId, log::Location)>>,
        now: Instant,
    ) {
        // Dropping the sender tells who receives that it cannot go on.
        if !self.install.may_place(claim) || values.is_empty() {
            return;
        }
        // What a full disk cannot take must not stand in the log's queue before the member's own entries.
        let bytes = values.iter().map(|value| value.data.len() + 128).sum();
        if !self.room.has(&self.log, bytes, Purpose::Frees) || self.room.is_full() {
            return;
        }
        if let Some(ticket) = self.room.hand_values(&mut self.log, values, now) {
            self.install.place(ticket, done);
        }
    }

    /// A whole state has arrived: raft is asked whether it still wants it.
    pub(super) fn snapshot_received(
        &mut self,
        claim: u64,
        received: Box<Received>,
        now: Instant,
    ) -> Result<(), String> {
        // What was built on the present state is worth nothing if that has moved on.
        let current = received.base_applied.is_none_or(|applied| applied == self.machine.applied_index);
        let message = received.message.clone();
        if !self.install.receive(claim, received) {
            self.give_up_install(claim);
            return Ok(());
        }
        if current && let Err(why) = self.node.request(Request::Receive(message)) {
            self.logger.warn("refused a snapshot", &[("reason", Value::Str(&why.to_string()))]);
        }
        self.carry_out(now)?;
        self.end_install();
        Ok(())
    }

    /// This attempt has come to its end.
    pub(super) fn give_up_install(&mut self, claim: u64) {
        if self.install.is_of(claim) {
            self.end_install();
        }
    }

    /// Gives up what broke off and was not gone on with in time.
    pub(super) fn look_at_install(&mut self, now: Instant) {
        if self.install.is_over(now) {
            self.end_install();
        }
    }

    /// Gives up receiving, unless raft has accepted what was received.
    pub(super) fn end_install(&mut self) {
        self.install.give_up();
        if !self.install.is_busy() {
            self.shared.metrics.server.snapshot_apply_in_progress.set_u64(0);
        }
    }

    /// Raft has accepted a snapshot: the received state takes the place of the present one.
    pub(super) fn restore(&mut self, restore: &Restore, now: Instant) -> Result<(), String> {
        let Some(received) = self.install.take_received() else {
            return Err("raft accepted a snapshot that was not received".to_owned());
        };
        let machine = received.machine;
        if (machine.applied_index, machine.applied_term) != (restore.index, restore.term) {
            return Err(format!(
                "raft accepted a snapshot of entry {}, but the state received is of entry {}",
                restore.index, machine.applied_index
            ));
        }
        self.logger.info(
            "installed a snapshot",
            &[
                ("index", Value::Uint(restore.index)),
                ("revision", Value::Int(machine.store.current_revision())),
                ("before", Value::Uint(self.machine.applied_index)),
            ],
        );
        let overtaken = self.shared.long_reads.end_all();
        self.answers.replaced();
        self.shared.metrics.long_reads.overtaken.add(overtaken as u64);
        let replaced = std::mem::replace(&mut self.machine, *machine);
        // An entry that was half-way, and those behind it, are in it.
        self.applying.clear();
        self.applying.applied();
        if !planted::is(Bug::ProposedAgainAfterSnapshot) {
            self.proposals.forget_commands();
        }
        self.history.restored(restore.index, restore.term);
        let store = &self.machine.store;
        self.removal.restored(store.compact_revision(), store.current_revision(), now);
        self.alarms = Arc::new(self.machine.alarms.clone());
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
                // What was held is ours to append: it cannot be refused.
                let _ = self.install_saved(self.machine.applied_index, now);
            }
        }
    }

    /// A checkpoint is durable. If it is the one of a state taken over, the log starts anew behind it.
    pub(super) fn install_saved(&mut self, applied_index: u64, now: Instant) -> Result<(), String> {
        let Some((reset, held)) = self.install.saved(applied_index) else { return Ok(()) };
        self.shared.metrics.server.snapshot_apply_in_progress.set_u64(0);
        let mut reset = Some(reset);
        for append in held {
            self.append_behind(reset.take(), append, now)?;
        }
        Ok(())
    }

    /// Hands the checkpointer what takes long to drop.
    pub(super) fn release_discarded(&mut self) {
        let orders = &self.orders;
        self.install.release(|what| match orders.try_send(Order::Drop(what)) {
            Err(TrySendError::Full(Order::Drop(what)) | TrySendError::Disconnected(Order::Drop(what))) => {
                Err(what)
            }
            _ => Ok(()),
        });
    }

    /// Sends the state just published to the members that need all of it.
    pub(super) fn send_snapshots(&mut self, view: &mvcc::View) {
        for mut message in std::mem::take(&mut self.snapshots_wanted) {
            // It may have waited for an entry to be whole, and its term be over.
            if message.term != Some(self.node.standing().term) {
                continue;
            }
            let Some(peers) = self.shared.peers() else { return };
            let head = self.machine.head();
            let state = self.shared.read_long_at(Reader::Snapshot, view.moment_of_everything());
            let metadata = api::raftpb::SnapshotMetadata {
                conf_state: Some(api::raftpb::ConfState {
                    voters: self.node.voters(),
                    learners: self.node.learners(),
                    ..Default::default()
                }),
                index: Some(head.applied_index),
                term: Some(head.applied_term),
            };
            message.snapshot = Some(api::raftpb::Snapshot { metadata: Some(metadata), data: None });
            let to = message.to.unwrap_or(0);
            self.logger.info(
                "sending a snapshot",
                &[("to", Value::Id(to)), ("index", Value::Uint(head.applied_index))],
            );
            let trail = self.machine.state_trail(0);
            let source = crate::transfer::Source::new(head, trail, state, &self.shared);
            peers.send_snapshot(message, Box::new(source));
        }
    }

    /// Answers whoever is about to receive a snapshot once the state is published.
    pub(super) fn image(&mut self, ticket: Ticket, view: &mvcc::View) {
        let head = Box::new(self.machine.head());
        let state = self.shared.read_long_at(Reader::Snapshot, view.moment());
        self.reply(ticket, ReplyBody::Image(head, Box::new(state)));
    }
}

/// What goes into the log, and who waits for it.
impl Core {
    /// How many more proposals to wait for, and how long; `None` to go ahead.
    pub(super) fn gathering_wait(&self, now: Instant) -> Option<(usize, Duration)> {
        if self.machine.members.by_id.len() <= 1 {
            return self.proposals.wait(now);
        }
        let standing = self.node.standing();
        let under_way = match self.leadership.leads() {
            true => standing.last > standing.commit,
            false => self.proposals.is_under_way(),
        };
        self.proposals.wait_in_cluster(under_way, self.pressure.pace(), now)
    }

    /// Proposes what has gathered, unless it is better to wait: for more, for the log, or for a leader.
    pub(super) fn propose_gathered(&mut self, now: Instant) {
        if !self.proposals.has_gathered() || self.gathering_wait(now).is_some() {
            return;
        }
        let mut ground = self.ground();
        let (room, log, node, logger) = (&self.room, &self.log, &mut self.node, &self.logger);
        let thin_out = |message: &mut raftpb::Message| room.thin_out(log, message);
        let take = |message| step_received(node, logger, message);
        let handed_on_bytes = self.proposals.go(ground, thin_out, take, now);
        if !self.proposals.has_own() {
            return;
        }
        if self.stopping.is_some() {
            for proposal in self.proposals.take_all() {
                self.shared.proposal_taken(proposal.data.len());
                self.refuse(proposal.ticket, error::STOPPED);
            }
            return;
        }
        if !self.room.has_plenty(&self.log) {
            self.refuse_without_room();
        }
        // What was just proposed is not in the log yet.
        ground.queued_bytes += handed_on_bytes;
        let batch = self.proposals.next_batch(ground);
        let count = batch.len();
        if count == 0 {
            return;
        }
        if self.node.request(Request::Propose(batch)).is_err() {
            self.proposals.refused();
            return;
        }
        let given = self.given();
        self.proposals.proposed(count, given, |bytes| self.shared.proposal_taken(bytes));
    }

    fn ground(&self) -> Ground {
        Ground {
            leads: self.leadership.leads(),
            queued_bytes: self.queued_bytes(),
            queued_bytes_max: self.room.queued_bytes_max(&self.log),
        }
    }

    /// Whether what was held back for want of room has room again, though no sync of the log tells so: it was what is to
    /// be applied that took the room.
    pub(super) fn has_room_again(&self) -> bool {
        self.proposals.is_held_for_room() && self.queued_bytes() < self.room.queued_bytes_max(&self.log)
    }

    /// Bytes that wait to be synced or applied.
    fn queued_bytes(&self) -> usize {
        self.log.queued_bytes() + self.applying.bytes()
    }

    /// To whom a proposal goes that is made now.
    pub(super) fn given(&self) -> Given {
        Given { term: self.node.standing().term, bound: self.node.binds_proposals() }
    }

    /// Refuses what the disk has no room for.
    fn refuse_without_room(&mut self) {
        let (room, log) = (&self.room, &self.log);
        // While something is being written its room counts as taken, and may be there again: that is waited for.
        let waits = log.queued_bytes() != 0 && log.space() == Space::Ample;
        let stays =
            |proposal: &Proposal| waits || room.has(log, proposal.data.len(), purpose_of(&proposal.data));
        for proposal in self.proposals.take_out(stays) {
            self.shared.proposal_taken(proposal.data.len());
            self.refuse(proposal.ticket, error::NO_SPACE);
        }
    }

    /// An entry of a newer term than those before has been applied, see [`super::proposals::Proposals::lost`].
    pub(super) fn propose_again(&mut self, term: u64) {
        for (waiter, since) in self.proposals.lost(term, |bytes| self.shared.proposal_again(bytes)) {
            match waiter {
                Waiter::Members(ticket, change) => self.membership.was_lost((ticket, *change, since)),
                waiter => self.give_up(waiter, error::LEADER_CHANGED),
            }
        }
    }

    /// Proposes something of the core's own.
    pub(super) fn propose_own(&mut self, mut request: InternalRaftRequest, waiter: Waiter) {
        let id = self.shared.request_id();
        request.header = Some(RequestHeader { id, ..RequestHeader::default() });
        let data = Bytes::from(request.encode_to_vec());
        // A follower's own disk has nothing to do with what it hands on.
        let full = self.leadership.leads() && !self.room.has(&self.log, data.len(), Purpose::Own);
        let refused = full || self.node.request(Request::Propose(vec![data])).is_err();
        if refused {
            self.give_up(waiter, error::NO_LEADER);
        } else {
            let given = self.given();
            self.proposals.await_entry(id, waiter, self.shared.clock.now(), given);
        }
    }

    pub(super) fn give_up(&mut self, waiter: Waiter, status: Status) {
        match waiter {
            Waiter::Client(ticket, _) | Waiter::Members(ticket, _) => self.refuse(ticket, status),
            // The next leader is asked.
            Waiter::KeepAlive(ticket, _) => self.refuse(ticket, error::NOT_PRIMARY_LESSOR),
            Waiter::Expiry(id) => self.leases.revocation_ended(id, true, self.shared.clock.now()),
            Waiter::Attributes => self.attributes.were_lost(),
            Waiter::Nobody => {}
        }
    }

    /// Forgets what has waited for too long.
    pub(super) fn sweep_waiting(&mut self, now: Instant) {
        // The shards tell the clients; this is for what remains.
        let timeout = self.shared.limits.request_timeout + Duration::from_secs(1);
        let failed = &self.shared.metrics.server.proposals_failed;
        let given_up = self.proposals.sweep(timeout, now, |bytes| {
            self.shared.proposal_taken(bytes);
            failed.inc();
        });
        for waiter in given_up {
            self.shared.metrics.server.proposals_failed.inc();
            self.give_up(waiter, error::TIMEOUT);
        }
    }

    /// What raft cannot take is dropped, as if it had been lost on the way: it is sent again if it matters.
    pub(super) fn step_received(&mut self, message: raftpb::Message) {
        step_received(&mut self.node, &self.logger, message);
    }
}

/// Winning back what nobody needs: removals, checkpoints, and segments that are emptied.
impl Core {
    /// Removes a slice of what compactions made unreadable.
    pub(super) fn remove_slice(&mut self, now: Instant) {
        if !self.machine.is_whole() {
            return;
        }
        let compacted = self.machine.store.compact_revision();
        match self.removal.step(compacted, |revision| self.shared.all_saw(revision), now) {
            removal::Step::Nothing => return,
            removal::Step::Publish => {
                self.applied_since = true;
                return;
            }
            removal::Step::Remove => {}
        }
        let removable = self.shared.long_reads.removable(compacted, now);
        if removable.overtaken > 0 {
            self.shared.metrics.long_reads.overtaken.add(removable.overtaken as u64);
            self.logger.warn(
                "ended readers that kept a compaction from removing for too long",
                &[("readers", Value::Uint(removable.overtaken as u64)), ("revision", Value::Int(compacted))],
            );
        }
        let versions = self.machine.store.stats().versions;
        let done = self.machine.compact_step_through(removable.through, self.config.compaction_batch_limit);
        let removed = versions.saturating_sub(self.machine.store.stats().versions);
        let sliced = match done {
            true => Sliced::All,
            false if removed == 0 => Sliced::Waits,
            false => Sliced::Some,
        };
        let (told, took) = self.removal.sliced(sliced, now);
        if sliced != Sliced::Waits {
            let metrics = &self.shared.metrics.mvcc;
            metrics.db_compaction_keys.add(removed);
            let pause = self.shared.clock.now().saturating_duration_since(now);
            metrics.db_compaction_pause.observe_milliseconds(pause);
            // What was removed leaves memory with the next publications.
            self.applied_since = true;
        }
        if let Some(took) = took {
            if self.has_garbage() {
                self.checkpoints.would_free(now);
            }
            let metrics = &self.shared.metrics.mvcc;
            metrics.db_compaction_total.observe_milliseconds(took);
            metrics.db_compaction_last.set_u64(self.shared.clock.unix_seconds());
        }
        for reply in told {
            self.answers.push(reply);
        }
    }

    fn survey(&self) -> Survey<'_> {
        Survey {
            log: &self.log,
            machine: &self.machine,
            room: &self.room,
            segments: &self.segments,
            kept_behind: self.kept_behind(self.machine.applied_index),
            dead_bytes_min: self.thresholds.reclaim_dead_bytes,
        }
    }

    /// Whether sealed segments hold so little that a checkpoint would free some, or have some emptied.
    pub(super) fn has_garbage(&self) -> bool {
        self.survey().has_garbage()
    }

    /// Whether values were moved out of segments that hold nothing any more, and only a whole checkpoint frees those.
    pub(super) fn has_emptied(&self) -> bool {
        self.checkpoints.has_emptied(|segment| self.survey().is_empty(segment))
    }

    /// Orders a checkpoint if one is due and may be taken.
    pub(super) fn order_checkpoint(&mut self, now: Instant) {
        // While a snapshot is being received, nothing may go that it counts on.
        if self.checkpoints.is_busy() || self.install.is_receiving() || !self.machine.is_whole() {
            return;
        }
        if self.install.wants_checkpoint() {
            self.order_install(now);
            return;
        }
        // On a full disk the entry that settles a leader may wait for what this checkpoint frees.
        let leadership = &self.leadership;
        let unsettled = leadership.leader() == 0 || (leadership.leads() && !leadership.has_settled());
        if unsettled && self.log.space() == Space::Ample {
            return;
        }
        let log_bytes = self.log.figures().written_bytes();
        let usage = |segment| self.machine.usage().get(&segment).is_none_or(|usage| usage.values == 0);
        let Some(whole) = self.checkpoints.due(log_bytes, usage, now) else { return };
        // The entry that raised an alarm may leave the log with it.
        if !self.note_cause() {
            return;
        }
        let moment = self.shared.state.load().view.moment_of_everything();
        let mut empty_segments = self.survey().empty_segments();
        empty_segments.retain(|segment| self.checkpoints.frees(*segment, whole));
        let terms = self.history.terms();
        let mut head = Box::new(self.machine.head());
        if planted::is(Bug::AppliedIndexEarly) {
            head.applied_index += 1;
        }
        let state = self.shared.read_long_at(Reader::Checkpoint, moment);
        let order = Order::Checkpoint { head, state, whole, terms };
        if self.orders.try_send(order).is_err() {
            return;
        }
        self.checkpoints.ordered(empty_segments, whole, log_bytes, now);
        if planted::is(Bug::SegmentDeletedEarly) {
            let early = self.checkpoints.take_empty();
            early.into_iter().for_each(|segment| self.segments.doom(segment));
        }
    }

    /// The entry up to which nothing is kept for followers that lag.
    fn kept_behind(&self, applied_index: u64) -> u64 {
        match self.machine.members.by_id.len() {
            0 | 1 => applied_index,
            // A follower that lags gets the whole state then.
            _ if self.room.is_tight(&self.log) => applied_index,
            _ => applied_index.saturating_sub(self.config.snapshot_catchup_entries),
        }
    }

    /// A checkpoint was made, or failed.
    pub(super) fn checkpointed(
        &mut self,
        result: Result<Checkpointed, String>,
        now: Instant,
    ) -> Result<(), String> {
        match result {
            Ok(done) => {
                for segment in self.checkpoints.saved(&done, now) {
                    self.segments.doom(segment);
                }
                self.log.forget_below(self.kept_behind(done.applied_index));
                self.logger
                    .debug("saved a checkpoint", &[("applied-index", Value::Uint(done.applied_index))]);
                self.install_saved(done.applied_index, now)?;
                self.reclaim();
            }
            Err(why) => {
                self.checkpoints.failed(now);
                self.install.retry();
                self.logger.warn("could not save a checkpoint", &[("error", Value::Str(&why))]);
            }
        }
        self.measure_disk();
        Ok(())
    }

    /// Has the live values of segments moved that hold little.
    fn reclaim(&mut self) {
        let segments = self.survey().worth_emptying(self.checkpoints.applied_index());
        if !segments.is_empty() {
            // If the checkpointer is busy, the next checkpoint asks again.
            let portion_bytes = self.room.portion_bytes(&self.log);
            let _ = self.orders.try_send(Order::Relocate { segments, portion_bytes });
        }
    }

    /// Tells the others how much of the disk is in use.
    pub(super) fn measure_disk(&self) {
        let log_bytes: u64 = self.log.segments().iter().map(|s| s.used_bytes).sum();
        self.shared.set_disk_bytes(log_bytes + self.checkpoints.bytes());
    }

    pub(super) fn measure_readers(&self, now: Instant) {
        let (readers, since) = self.shared.long_reads.figures();
        let metrics = &self.shared.metrics.long_reads;
        metrics.open.set_u64(readers as u64);
        metrics.oldest.set_u64(since.map_or(0, |since| now.saturating_duration_since(since).as_secs()));
    }

    pub(super) fn relocate(&mut self, values: Vec<Relocation>, done: SyncSender<()>, now: Instant) {
        let receiving = self.install.is_receiving();
        let bytes = values.iter().map(|value| value.data.len() + 128).sum();
        let fits = self.room.has(&self.log, bytes, Purpose::Moves) && !self.room.is_full();
        if !fits || self.stopping.is_some() || receiving || values.is_empty() {
            let _ = done.try_send(());
            return;
        }
        let mut batch = Vec::with_capacity(values.len());
        let mut moving = Vec::with_capacity(values.len());
        for value in values {
            let id = log::ValueId { main: value.main, sub: i64::from(value.sub) };
            moving.push(((value.main, value.sub), value.from));
            batch.push(log::Value { id, data: value.data });
        }
        // What the log does not take now stays where it is: the next checkpoint asks again.
        if self.room.hand_values(&mut self.log, batch, now).is_none() {
            let _ = done.try_send(());
            return;
        }
        self.moves.begin(moving, done);
    }

    /// Deletes the segments that nothing durable needs and nobody reads any more.
    pub(super) fn release_doomed(&mut self) {
        if self.install.is_receiving() {
            return;
        }
        let (log, logger) = (&mut self.log, &self.logger);
        self.applied_since |= self.segments.release(|segment| {
            if let Err(why) = log.release(segment) {
                logger.warn("could not release a segment", &[("error", Value::Str(&format!("{why:?}")))]);
            }
        });
    }
}

/// Applying what is committed, and what follows from it.
impl Core {
    /// Whether the next turn has something to apply.
    pub(super) fn has_to_apply(&self) -> bool {
        self.parked.is_none() && self.applying.has_to_apply()
    }

    /// Applies what is committed, as far as this turn goes.
    pub(super) fn apply_some(&mut self, now: Instant) -> Result<(), String> {
        let before = self.machine.applied_index;
        while self.parked.is_none() {
            if self.applying.is_amid() {
                if !self.applying.can_go_on() {
                    break;
                }
                self.go_on(now)?;
            } else {
                let Some(entry) = self.applying.next() else { break };
                self.begin_entry(&entry, now)?;
            }
        }
        if self.machine.applied_index > before && self.parked.is_none() {
            self.step(Event::Applied(self.machine.applied_index))?;
            self.forget()?;
        }
        Ok(())
    }

    fn begin_entry(&mut self, entry: &Entry, now: Instant) -> Result<(), String> {
        let location = self.history.take_location(entry.index)?;
        let command = Command { index: entry.index, term: entry.term, data: &entry.data, location };
        // Its bytes count beside what it does.
        let bytes = 1 + entry.data.len() as u64 / 1024;
        match entry.kind {
            EntryKind::Normal => {
                let since = self.shared.clock.now();
                let begun = Begun { index: entry.index, term: entry.term, bytes: entry.data.len(), since };
                let proposals = &self.proposals;
                let values = AtHand::new(&self.values, &[]);
                let mut left = self.applying.left();
                let outcome = self.machine.begin(command, &values, &mut left, |id| proposals.is_awaited(id));
                self.applying.set_left(left.saturating_sub(bytes));
                match outcome {
                    Ok(Some(applied)) => self.applied(&begun, applied, now),
                    Ok(None) => self.applying.begun(begun),
                    Err(fatal) => self.cannot_apply(&fatal, now)?,
                }
            }
            EntryKind::ConfChange => {
                self.applying.set_left(self.applying.left().saturating_sub(bytes));
                self.passed(entry.index, entry.term);
                self.apply_conf_change(entry, command)?;
            }
        }
        Ok(())
    }

    /// Goes on with the entry that was begun.
    fn go_on(&mut self, now: Instant) -> Result<(), String> {
        let values = AtHand::new(&self.values, self.applying.arrived());
        let mut left = self.applying.left();
        let progress = self.machine.go_on(&values, &mut left);
        let missing = values.into_missing();
        self.applying.set_left(0);
        match progress {
            Ok(Progress::More) => {}
            Ok(Progress::Waits) => self.fetch_values(&missing),
            Ok(Progress::Whole(applied)) => {
                // What it left of the turn is for those behind it.
                self.applying.set_left(left);
                if let Some(begun) = self.applying.ended() {
                    self.applied(&begun, *applied, now);
                }
            }
            Err(fatal) => self.cannot_apply(&fatal, now)?,
        }
        Ok(())
    }

    fn fetch_values(&mut self, missing: &[mvcc::Value]) {
        self.applying.wait_for(self.values.fetch_first(missing));
    }

    fn cannot_apply(&mut self, fatal: &Fatal, now: Instant) -> Result<(), String> {
        if !fatal.is_unreadable || planted::is(Bug::UnreadableValueIsFatal) {
            return Err(fatal.to_string());
        }
        self.park(fatal, now);
        Ok(())
    }

    /// An entry is being applied whole, or was.
    fn passed(&mut self, index: u64, term: u64) {
        if self.history.applied(index, term) {
            self.propose_again(term);
        }
        self.applied_since = true;
        self.applying.applied();
        self.checkpoints.entry_applied();
    }

    /// An entry was applied.
    fn applied(&mut self, begun: &Begun, applied: Applied, now: Instant) {
        self.passed(begun.index, begun.term);
        let took = self.shared.clock.now().saturating_duration_since(begun.since);
        if applied.op == machine::UNDECODABLE
            && let Err(status) = &applied.outcome
        {
            self.logger.error(
                "an entry of the log is no request that this version can decode: it changes nothing on members of this version; if there are members of another one, compare their states (`mainstay doctor`)",
                &[("index", Value::Uint(begun.index)), ("why", Value::Str(&status.message))],
            );
        }
        self.meters.applied(applied.op, &applied.outcome, begun.bytes, took);
        if took > self.config.warning_apply_duration {
            self.shared.metrics.server.slow_apply.inc();
            self.logger.warn(
                "apply request took too long",
                &[
                    ("took", Value::Duration(took)),
                    ("index", Value::Uint(begun.index)),
                    ("size", Value::Uint(begun.bytes as u64)),
                ],
            );
        }
        if let Some(change) = applied.change {
            self.changed(change, now);
        }
        let waiter = self.proposals.take(applied.request_id).unwrap_or(Waiter::Nobody);
        match waiter {
            Waiter::Expiry(id) => {
                let gone = applied.outcome.is_ok() || applied.outcome == Err(error::LEASE_NOT_FOUND);
                self.leases.revocation_ended(id, !gone, now);
            }
            Waiter::Attributes => self.attributes.applied(),
            Waiter::Nobody => {}
            waiter => {
                let revision = self.machine.store.current_revision();
                let named = applied.outcome.as_ref().is_ok_and(Outcome::names_values);
                let state = named.then(|| Box::new(self.as_applied()));
                let (outcome, raft_term) = (applied.outcome, begun.term);
                self.answers.once_published(Answerable { waiter, outcome, state, revision, raft_term });
            }
        }
        if self.leadership.applied(begun.term, self.node.standing()) {
            // Times left that were noted in earlier terms are all known only now.
            self.leases.start(&self.machine.leases, now);
        }
    }

    /// The state as it is now, which stays readable: what comes later in this turn may compact it away.
    fn as_applied(&mut self) -> AsOf {
        let moment = self.machine.store.moment();
        self.answers.state(moment, |moment| self.shared.read_long_at(Reader::Range, moment))
    }

    fn changed(&mut self, change: Change, now: Instant) {
        match change {
            Change::LeaseGranted { id, ttl } => {
                self.leases.granted(id, ttl, self.leadership.has_settled(), now);
            }
            Change::LeaseRevoked(id) => self.lease_revoked(id),
            Change::Compacted(revision) => {
                // etcd has no hashes of compactions from before it was started.
                let is_hashed = !self.history.was_replayed(self.machine.applied_index);
                self.removal.compacted(revision, self.machine.store.current_revision(), is_hashed, now);
            }
            Change::Alarms(raised) => {
                self.alarms = Arc::new(self.machine.alarms.clone());
                self.alarms_changed(raised);
            }
            Change::Members => self.tell_members(),
        }
    }
}

/// The voter that could lead at once: connected, and furthest of all.
fn successor(node: &Node, machine: &Machine, shared: &Shared) -> Option<u64> {
    let peers = shared.peers()?;
    let corrupt = AlarmType::Corrupt as i32;
    node.progress()
        .into_iter()
        .filter(|p| !p.is_learner && p.recently_active && p.id != shared.identity.member_id)
        .filter(|p| peers.active_since(p.id).is_some())
        .filter(|p| !machine.alarms.is_raised(corrupt, p.id))
        .max_by_key(|p| p.matched)
        .map(|p| p.id)
}

/// What raft cannot take is dropped, as if it had been lost on the way: it is sent again if it matters.
fn step_received(node: &mut Node, logger: &Logger, message: raftpb::Message) {
    let (kind, from) = (message.r#type.unwrap_or(0), message.from.unwrap_or(0));
    let commit = message.commit.unwrap_or(0);
    if let Err(why) = node.request(Request::Receive(message)) {
        let last = node.standing().last;
        if kind == raftpb::MessageType::MsgHeartbeat as i32 && commit > last {
            // Only what this member has acknowledged is committed to it by a heartbeat.
            logger.error(
                "this member's log has lost entries that it had acknowledged: rebuild it from the others with \
                 `mainstay rebuild`",
                &[("leader", Value::Id(from)), ("acknowledged", Value::Uint(commit)), ("last", Value::Uint(last))],
            );
            return;
        }
        logger.debug(
            "dropped a message",
            &[
                ("from", Value::Id(from)),
                ("type", Value::Int(i64::from(kind))),
                ("reason", Value::Str(&why.to_string())),
            ],
        );
    }
}
