//! Does the work of a turn for clients: reads, leases, writes, and the replies to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest, RequestHeader,
};
use api::{Status, error, raftpb};
use bytes::Bytes;
use consensus::{Node, Refusal, Request};
use log::Space;
use mvcc::View;
use numbers::{Index, LeaseId, MemberId, Revision, Seconds, Term};
use planted::Bug;
use prost::Message as _;
use telemetry::logging::{Logger, Value};

use super::{Core, STOP_TIMEOUT};
use crate::core::leases::Renewal;
use crate::core::membership::ChangeAnswer;
use crate::core::proposals::{Proposal, ProposalLimits, ProposalTerm, Waiter};
use crate::core::questions::Question;
use crate::core::reads::{RETRY, RoundConditions, RoundRequest, TimedRequest};
use crate::core::removal::Compaction;
use crate::core::room::{Purpose, Room, purpose_of};
use crate::core::{Reply, ReplyBody, RequestId};
use crate::long_reads::Reader;
use crate::shared::Published;
use crate::stages::RoundTimes;

/// Linearizable reads, and the rounds that confirm them.
impl Core {
    fn footing(&self) -> RoundConditions {
        let can_ask = self.node.status().leader.is_some()
            && (!self.leadership.leads() || self.leadership.has_settled());
        RoundConditions { can_ask, pace: self.pace.cpu.pace(), rides: false }
    }

    /// Returns the time until the next round may begin for the waiting reads, see
    /// [`crate::core::reads::Reads::wait`].
    pub(super) fn round_waits(&self, now: Instant) -> Option<Duration> {
        if self.reads.is_waiting() { self.reads.wait(self.footing(), now) } else { None }
    }

    /// Begins a ReadIndex round for the waiting reads, if a leader can be asked, and if the pause has passed
    /// or proposals leave in this turn (`rides`).
    pub(super) fn start_round(&mut self, rides: bool, now: Instant) {
        if !self.reads.is_waiting() {
            return;
        }
        if self.reads_local() || (planted::is(Bug::StaleRead) && self.leadership.has_settled()) {
            let wants = self.reads.take_waiting();
            self.grant(wants, None, now);
            return;
        }
        let footing = RoundConditions { rides, ..self.footing() };
        if let Some(number) = self.reads.begin(footing, || self.shared.ids.command_id(), now)
            && self.node.request(Request::Read(number)).is_err()
        {
            self.reads.refused(now);
        }
    }

    /// Continues the requests of confirmed rounds whose entries this member has applied.
    pub(super) fn finish_rounds(&mut self, now: Instant) {
        let early = planted::is(Bug::HalfWayCountsAsApplied) && self.machine.has_unfinished();
        let applied = self.machine.applied_index + u64::from(early);
        while let Some((wants, times)) = self.reads.finish(applied) {
            self.grant(wants, Some(times), now);
        }
    }

    fn grant(&mut self, wants: Vec<TimedRequest>, times: Option<RoundTimes>, now: Instant) {
        for (want, since) in wants {
            match want {
                RoundRequest::Read(request_id) => self.reads.readable(request_id, times),
                RoundRequest::Observer(number) => self.answer_observer(number),
                RoundRequest::Own => {
                    // This observer begins to serve with the next publication, for which there may be no other
                    // reason.
                    if !self.observers.serves() {
                        self.publication.request();
                    }
                    self.observers.own_round_ended(true);
                }
                // Leadership was lost while the request waited. The lease clocks now run on the next leader,
                // so the client has to ask that member.
                want if !self.leadership.leads() => {
                    if let Some(request_id) = want.request_id() {
                        self.refuse(request_id, error::NOT_PRIMARY_LESSOR);
                    }
                }
                // The round was confirmed while this member was a follower. This member has become the leader
                // since, but its lease clocks do not run yet. So the request needs another round, which
                // begins once they run.
                want if !self.leadership.has_settled() => self.reads.push(want, since),
                RoundRequest::Renewal(request_id, id) => self.renew(request_id, id, since, now),
                RoundRequest::TimeToLive(request_id, id, detail) => {
                    self.ask(Question::TimeToLive(request_id, id, detail), since);
                }
            }
        }
    }

    /// Replies to the reads that the state just published may answer, and records how fresh it is.
    fn answer_reads(&mut self) {
        if let Some(began) = self.reads.take_finished() {
            let is_late = planted::is(Bug::StalenessFromAnswer);
            self.shared.confirm_as_of(if is_late { self.shared.member.clock.now() } else { began });
        }
        for (request_id, times) in self.reads.take_readable() {
            self.reply(request_id, ReplyBody::Readable(times));
        }
    }

    /// Repeats rounds that were not confirmed in time, and ends requests that have waited for the request
    /// timeout.
    pub(super) fn retry_reads(&mut self, now: Instant) {
        let retried = self.reads.retry(self.shared.member.limits.request_timeout, now);
        if retried.late {
            self.shared.diagnostics.metrics.server.slow_read_indexes.inc();
        }
        if retried.warns {
            self.logger.warn(
                "waiting for ReadIndex response took too long, retrying",
                &[("retry-timeout", Value::Duration(RETRY))],
            );
        }
        for want in retried.expired {
            match want {
                RoundRequest::Observer(number) => drop(self.observers.take_read(number)),
                RoundRequest::Own => self.observers.own_round_ended(false),
                want => {
                    self.shared.diagnostics.metrics.server.read_indexes_failed.inc();
                    if let Some(request_id) = want.request_id() {
                        self.refuse(request_id, error::TIMEOUT);
                    }
                }
            }
        }
    }
}

/// Renewal, expiry and checkpoints of leases.
impl Core {
    /// Returns true if this member leads and has applied all entries of earlier leaders. Messages that
    /// arrived in this turn are taken into account.
    pub(super) fn leads_now(&self) -> bool {
        self.leadership.is_leading(self.node.status())
    }

    /// Renews a lease for a client, once a ReadIndex round has confirmed that this member still leads. The
    /// round is needed because a leader that was suspended or cut off may have been replaced, and its
    /// successor may have let the lease expire. A round also waits until this member has applied the
    /// committed entries: other members may have committed the grant of the lease and reported it to a
    /// client, while this member has not applied the entry yet.
    ///
    /// Renewals share rounds with linearizable reads. If this member is the only voter, renewals need no
    /// round, and the shards answer most of them without the core (see [`crate::renewals`]).
    pub(super) fn keep_alive(&mut self, request_id: RequestId, id: LeaseId, now: Instant) {
        if !self.leadership.leads() {
            self.refuse(request_id, error::NOT_PRIMARY_LESSOR);
        } else if planted::is(Bug::RenewedByDeposed) {
            self.renew(request_id, id, now, now);
        } else {
            self.leases.hold(id, now);
            self.reads.push(RoundRequest::Renewal(request_id, id), now);
        }
    }

    /// Renews a lease for a request that arrived at `since` and whose round was confirmed.
    fn renew(&mut self, request_id: RequestId, id: LeaseId, since: Instant, now: Instant) {
        let (lease, applied) = (self.machine.leases.get(id), self.machine.applied_index);
        match self.leases.renew((request_id, id), lease, applied, since, now) {
            Renewal::Answered(ttl) => self.reply(request_id, ReplyBody::KeptAlive(ttl)),
            Renewal::TakesBack(ttl) => {
                let clear = vec![LeaseCheckpoint { id: id.0, remaining_ttl: 0 }];
                self.propose_note(clear, Purpose::Own, Waiter::KeepAlive(request_id, ttl));
            }
            Renewal::Waits => {}
        }
    }

    /// Proposes an entry with lease checkpoints, and records its index for each lease. The entry may use the
    /// disk space that is available for this `purpose`. Returns the index, or `None` if the entry was not
    /// appended to the log.
    fn propose_note(
        &mut self,
        checkpoints: Vec<LeaseCheckpoint>,
        purpose: Purpose,
        waiter: Waiter,
    ) -> Option<Index> {
        if !self.leads_now() {
            // A leader that was deposed in this turn would forward the entry to the new leader, which does
            // not expect checkpoints that it has not made. So the entry is not proposed.
            self.give_up(waiter, error::NOT_PRIMARY_LESSOR);
            return None;
        }
        let noted = checkpoints.clone();
        let before = self.node.status().last;
        let request = InternalRaftRequest {
            lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
            ..InternalRaftRequest::default()
        };
        self.propose_own_for(purpose, request, waiter);
        let index = Some(self.node.status().last).filter(|last| *last > before)?;
        self.leases.noted(&noted, index);
        Some(index)
    }

    /// Stops all lease clocks, because this member no longer leads, or leads in another term.
    pub(super) fn stop_leases(&mut self, now: Instant) {
        for request_id in self.leases.stop(now) {
            self.refuse(request_id, error::NOT_PRIMARY_LESSOR);
        }
    }

    pub(super) fn lease_revoked(&mut self, id: LeaseId) {
        for (request_id, _) in self.leases.revoked(id) {
            self.reply(request_id, ReplyBody::KeptAlive(Seconds::ZERO));
        }
    }

    /// Ends the waiting renewals of expired leases once they have waited for the request timeout.
    pub(super) fn sweep_renewals(&mut self, now: Instant) {
        for request_id in self.leases.sweep(now) {
            self.refuse(request_id, error::TIMEOUT);
        }
    }

    /// Does the next slice of the work on leases: starting and dropping clocks, revoking expired leases, and
    /// making checkpoints. When the member stops, also transfers leadership once the checkpoints are made.
    pub(super) fn lease_slices(&mut self, now: Instant) {
        self.leases.forget_some();
        if self.leads_now() {
            self.leases.start_some(&self.machine.leases);
            self.expire_leases(now);
            self.note_some(now);
        } else {
            self.leases.end_noting();
        }
        if let Some(since) = self.lifecycle.has_to_hand_over()
            && self.leases.has_noted(now.saturating_duration_since(since), STOP_TIMEOUT / 2)
        {
            self.lifecycle.hands_over();
            self.hand_over();
        }
    }

    /// Returns true if another slice of the work on leases can be done now, so that the core need not sleep
    /// before its next turn.
    pub(super) fn lease_slices_wait(&self) -> bool {
        if self.lifecycle.is_parked() {
            return false;
        }
        let has_room = || Room::takes_more(&self.log);
        let reach = (self.node.status().last, self.machine.applied_index);
        self.leases.has_to_forget()
            || self.leads_now() && self.leases.has_to_do(!self.lifecycle.is_stopping(), has_room, reach)
    }

    /// Proposes to revoke the leases that have expired.
    fn expire_leases(&mut self, now: Instant) {
        if self.lifecycle.is_stopping() {
            return;
        }
        let leases = &self.machine.leases;
        let expired = self.leases.take_expired(|id| leases.key_count(id));
        let expired = self.leases.not_granted_again(expired, &self.node, self.machine.applied_index, now);
        if expired.is_empty() {
            return;
        }
        let revocations: Vec<(u64, Bytes)> = expired
            .iter()
            .map(|id| {
                self.encode_own(InternalRaftRequest {
                    lease_revoke: Some(LeaseRevokeRequest { id: id.0 }),
                    ..InternalRaftRequest::default()
                })
            })
            .collect();
        // They are proposed at once, which costs raft less than one proposal for each.
        let mut bytes = 0;
        let fits = |(_, data): &&(u64, Bytes)| {
            bytes += Room::bytes_of([data.len()].into_iter());
            !self.leadership.leads() || self.space.room.has(&self.log, bytes, Purpose::Own)
        };
        let fitting = revocations.iter().take_while(fits).count();
        let batch: Vec<Bytes> = revocations.iter().take(fitting).map(|(_, data)| data.clone()).collect();
        let is_taken = fitting > 0 && self.node.request(Request::Propose(batch)).is_ok();
        let given = self.given();
        for (number, (lease, (id, _))) in expired.into_iter().zip(revocations).enumerate() {
            if is_taken && number < fitting {
                self.proposals.await_entry(id, Waiter::Expiry(lease), now, given);
            } else {
                self.give_up(Waiter::Expiry(lease), error::NO_LEADER);
            }
        }
    }

    /// Continues to set or clear lease checkpoints; proposes at most one entry.
    fn note_some(&mut self, now: Instant) {
        if !self.leases.is_noting() {
            return;
        }
        let leases = (&self.machine.leases, self.machine.applied_index);
        let has_room = Room::takes_more(&self.log);
        if let Some(notes) = self.leases.note_some(&self.node, leases, has_room, now) {
            // Lease checkpoints can take megabytes. They must not use the space that is reserved for
            // operations which end a shortage of space.
            let taken = self.propose_note(notes, Purpose::Frees, Waiter::Nobody);
            self.leases.proposed(taken);
        }
    }
}

/// Interval at which a leader checks if its last batch was applied, if `--raft-pipeline` is off.
const ONE_BY_ONE_LOOK: Duration = Duration::from_micros(200);

/// Proposals, and the requests that wait for the entries of proposals.
impl Core {
    /// Returns the number of further proposals to wait for, and the maximum time. Returns `None` if the
    /// waiting proposals should be made now.
    pub(super) fn batching_wait(&self, now: Instant) -> Option<(usize, Duration)> {
        let one_by_one = !self.options.raft_pipeline && self.leadership.leads();
        if one_by_one && self.node.status().last > self.machine.applied_index {
            // The wait is short. The end of this member's sync wakes the core, but the acknowledgement of
            // another member can also commit the batch, and nothing wakes the core when it is applied.
            return Some((usize::MAX, ONE_BY_ONE_LOOK));
        }
        if self.machine.members.by_id.len() <= 1 {
            // If an entry proposed by the core itself is not committed yet, the log syncs soon anyway. The
            // waiting proposals are made now, so that they share that sync.
            let raft_status = self.node.status();
            let own = raft_status.last > raft_status.commit
                && !self.proposals.has_gathered_through(raft_status.last);
            return if own { None } else { self.proposals.wait(now) };
        }
        self.proposals.wait_in_cluster(self.is_proposing(), self.pace.cpu.pace(), now)
    }

    /// Returns true if proposals are in flight: on a leader until they are committed, on a follower until
    /// they are applied.
    fn is_proposing(&self) -> bool {
        let raft_status = self.node.status();
        match self.leadership.leads() {
            true => raft_status.last > raft_status.commit,
            false => self.proposals.is_under_way(),
        }
    }

    /// Proposes the gathered commands, unless the batch should wait for more commands, for space in the log's
    /// queue, or for a leader. Returns true if messages with proposals leave in this turn.
    pub(super) fn propose_gathered(&mut self, now: Instant) -> bool {
        self.proposals.look(self.is_proposing(), now);
        if !self.proposals.has_gathered() || self.batching_wait(now).is_some() {
            return false;
        }
        let mut ground = self.ground();
        let (room, log, node, logger) = (&self.space.room, &self.log, &mut self.node, &self.logger);
        let thin_out = |message: &mut raftpb::Message| room.thin_out(log, message);
        let take = |message| step_received(node, logger, message);
        let forwarded_bytes = self.proposals.go(ground, thin_out, take, now);
        // The forwarded commands were just proposed, and are not yet contained in the log's byte counts. They
        // are added here, so that both kinds of commands together stay within the limit.
        ground.queued_bytes += forwarded_bytes;
        let proposed = self.proposals.has_own() && self.propose_of_clients(ground);
        proposed || forwarded_bytes > 0
    }

    /// Proposes the gathered commands of this member's own clients, as many as `ground` allows. Returns false
    /// if none was proposed.
    fn propose_of_clients(&mut self, ground: ProposalLimits) -> bool {
        if self.lifecycle.is_stopping() {
            for proposal in self.proposals.take_all() {
                self.shared.core.proposal_taken(proposal.data.len());
                self.refuse(proposal.request_id, error::STOPPED);
            }
            return false;
        }
        if !self.space.room.has_plenty(&self.log) {
            self.refuse_without_room();
        }
        let batch = self.proposals.next_batch(ground);
        let count = batch.len();
        if count == 0 {
            return false;
        }
        if self.node.request(Request::Propose(batch)).is_err() {
            self.proposals.refused();
            return false;
        }
        self.proposals.gathered_through(self.node.status().last);
        let given = self.given();
        self.proposals.proposed(count, given, |bytes| self.shared.core.proposal_taken(bytes));
        true
    }

    fn ground(&self) -> ProposalLimits {
        ProposalLimits {
            leads: self.leadership.leads(),
            queued_bytes: self.queued_bytes(),
            queued_bytes_max: self.space.room.queued_bytes_max(&self.log),
        }
    }

    /// Returns true if commands that were held back for lack of space in the queue can be proposed now,
    /// because entries were applied. The core checks this before it sleeps, because applying an entry does
    /// not wake it, while the end of a sync does.
    pub(super) fn has_room_again(&self) -> bool {
        self.proposals.is_held_for_room() && self.queued_bytes() < self.space.room.queued_bytes_max(&self.log)
    }

    /// Returns the bytes of entries that wait to be synced or applied.
    pub(super) fn queued_bytes(&self) -> usize {
        self.log.queued_bytes() + self.apply.queue.bytes()
    }

    /// Returns the term of the leader to which a proposal made now is given, and whether the proposal is
    /// bound to that term.
    pub(super) fn given(&self) -> ProposalTerm {
        ProposalTerm { term: self.node.status().term, bound: self.node.binds_proposals() }
    }

    /// Refuses the gathered commands for which the disk has no space.
    fn refuse_without_room(&mut self) {
        let (room, log) = (&self.space.room, &self.log);
        // While a batch is being written, the space that it uses is subtracted twice, so the command may fit
        // once the write has ended. Until then no command is refused.
        let waits = log.queued_bytes() != 0 && log.space() == Space::Ample;
        let stays =
            |proposal: &Proposal| waits || room.has(log, proposal.data.len(), purpose_of(&proposal.data));
        for proposal in self.proposals.take_out(stays) {
            self.shared.core.proposal_taken(proposal.data.len());
            self.refuse(proposal.request_id, error::NO_SPACE);
        }
    }

    /// Proposes again the commands that a leader of an earlier term did not append. Called when the first
    /// entry of the newer `term` is applied. See [`crate::core::proposals::Proposals::lost`].
    pub(super) fn propose_again(&mut self, term: Term) {
        for (waiter, since) in self.proposals.lost(term, |bytes| self.shared.core.proposal_again(bytes)) {
            match waiter {
                Waiter::Members(request_id, change) => self.membership.was_lost((request_id, *change, since)),
                waiter => self.give_up(waiter, error::LEADER_CHANGED),
            }
        }
    }

    /// Proposes a request of the core itself. `waiter` receives the outcome.
    pub(super) fn propose_own(&mut self, request: InternalRaftRequest, waiter: Waiter) {
        self.propose_own_for(Purpose::Own, request, waiter);
    }

    /// Proposes a request of the core itself, which may use the disk space that is available for this
    /// `purpose`. `waiter` receives the outcome.
    fn propose_own_for(&mut self, purpose: Purpose, request: InternalRaftRequest, waiter: Waiter) {
        let (id, data) = self.encode_own(request);
        // A follower forwards the entry, so its own disk does not matter. On a leader the entry may not fit
        // into the rest of a segment, and that rest is wasted. So the bytes are counted twice. Entries with
        // the purpose `Own`, which may use the last byte of the space, are small and counted once.
        let wasted = if purpose == Purpose::Own { 0 } else { data.len() };
        let full = self.leadership.leads() && !self.space.room.has(&self.log, data.len() + wasted, purpose);
        let refused = full || self.node.request(Request::Propose(vec![data])).is_err();
        if refused {
            self.give_up(waiter, error::NO_LEADER);
        } else {
            let given = self.given();
            self.proposals.await_entry(id, waiter, self.shared.member.clock.now(), given);
        }
    }

    /// Returns a request of the core itself as the data of an entry, and the id of its command.
    fn encode_own(&self, mut request: InternalRaftRequest) -> (u64, Bytes) {
        let id = self.shared.ids.command_id();
        let (mut username, mut auth_revision) = (String::new(), 0);
        if self.machine.auth.is_enabled() {
            // The core proposes as root, so that its requests are always permitted.
            (username, auth_revision) = (machine::auth::ROOT.to_owned(), self.machine.auth.revision());
        }
        request.header = Some(RequestHeader { id, username, auth_revision });
        (id, Bytes::from(request.encode_to_vec()))
    }

    pub(super) fn give_up(&mut self, waiter: Waiter, status: Status) {
        match waiter {
            Waiter::Client(request_id, _) | Waiter::Members(request_id, _) => self.refuse(request_id, status),
            // After this error the client sends the renewal to the next leader.
            Waiter::KeepAlive(request_id, _) => self.refuse(request_id, error::NOT_PRIMARY_LESSOR),
            Waiter::Expiry(id) => self.leases.revocation_ended(id, true, self.shared.member.clock.now()),
            Waiter::Attributes => self.attributes.were_lost(),
            Waiter::Autopilot => self.autopilot_ended(Err(status)),
            Waiter::Nobody => {}
        }
    }

    /// Ends requests that have waited too long for their entries.
    pub(super) fn sweep_waiting(&mut self, now: Instant) {
        // The shards have already answered these clients with a timeout error. The core only frees the memory
        // of their requests.
        let timeout = self.shared.member.limits.request_timeout + Duration::from_secs(1);
        let failed = &self.shared.diagnostics.metrics.server.proposals_failed;
        let given_up = self.proposals.sweep(timeout, now, |bytes| {
            self.shared.core.proposal_taken(bytes);
            failed.inc();
        });
        for waiter in given_up {
            self.shared.diagnostics.metrics.server.proposals_failed.inc();
            self.give_up(waiter, error::TIMEOUT);
        }
    }
}

/// Publication of the state, and replies to requests.
impl Core {
    /// Returns true if the newest state of this member answers linearizable reads without a ReadIndex round.
    fn reads_local(&self) -> bool {
        self.leadership.has_settled()
            && self.node.voters() == [MemberId(self.shared.member.identity.member_id)]
    }

    /// Returns true if this member leads and no other member can lead.
    pub(super) fn leads_alone(&self) -> bool {
        self.reads_local() && self.leads_now()
    }

    fn publish_view(&mut self) -> Arc<View> {
        self.apply.queue.published();
        let view = self.machine.store.publish();
        self.space.segments.published(&view);
        view
    }

    pub(super) fn publish(&mut self) {
        // The metric is updated even if nothing is applied, so that it also shows the pending proposals of a
        // leader that has no quorum and so applies nothing.
        self.shared.diagnostics.metrics.server.proposals_pending.set_u64(self.proposals.open() as u64);
        if !self.publication.is_due() && !self.apply.queue.is_unpublished() {
            return;
        }
        self.publication.done();
        let view = match self.machine.is_whole() {
            true => self.publish_view(),
            // An entry is partly applied and must not be visible, so the view stays the same. The publication
            // is due because data outside the view has changed, for example the leader.
            false => Arc::clone(&self.shared.state.load().view),
        };
        let (moment, removed_through) = (view.moment(), self.compactions.removal.through());
        // Asserted because watches rely on it: all versions that a compaction at `removed_through` keeps are
        // still present.
        assert!(
            view.removed_through() <= removed_through,
            "removed through {}, published {removed_through}",
            view.removed_through()
        );
        let raft_status = self.node.status();
        self.leases.open_to_shards(self.leads_alone() && !self.lifecycle.is_parked());
        self.shared
            .diagnostics
            .metrics
            .mvcc
            .db_open_read_transactions
            .set_u64(self.space.segments.open_views() as u64);
        let published = Published {
            view,
            applied_index: self.machine.applied_index,
            applied_term: self.machine.applied_term,
            commit_index: raft_status.commit,
            leader: if self.lifecycle.is_parked() { 0 } else { raft_status.leader.0 },
            reads_local: if self.lifecycle.is_parked() {
                self.is_parked_complete()
            } else {
                self.reads_local()
            },
            alarms: Arc::clone(&self.publication.alarms),
            members: Arc::clone(self.membership.members()),
            auth: Arc::clone(&self.publication.auth),
            in_use_bytes: self.machine.in_use_bytes(),
            removed_through,
            is_wrong: self.lifecycle.is_parked() && self.observers.observes(),
        };
        published.assert_follows(&self.shared.state.load());
        self.shared.state.store(Arc::new(published));
        for Compaction { previous, revision } in self.compactions.removal.take_unpublished() {
            // This reader keeps the versions that the compaction makes unreadable, because the hash is
            // computed from them, too.
            let state = self.shared.read_long_at(Reader::Hash, moment.keeping_from(previous));
            let hashes = &self.shared.data.compaction_hashes;
            if !hashes.order(&self.workers.hasher, state, previous, revision) {
                self.logger.warn(
                    "too many compactions are waiting for their hashes; the hash of this one is not computed",
                    &[("revision", Value::Int(revision.0))],
                );
            }
        }
        // As in etcd, a member serves clients once its first proposal is applied, which proves that it has
        // applied all entries committed before its start. A round of an observer proves the same.
        if self.attributes.have_caught_up() || self.observers.serves() {
            self.lifecycle.serve();
        }
    }

    pub(super) fn reply(&mut self, request_id: RequestId, body: ReplyBody) {
        let reply = Reply {
            request_id,
            revision: self.machine.store.current_revision(),
            raft_term: self.machine.applied_term,
            body,
        };
        self.answers.push(reply);
    }

    pub(super) fn refuse(&mut self, request_id: RequestId, status: Status) {
        self.reply(request_id, ReplyBody::Outcome(Err(status), None));
    }

    pub(super) fn answer(&mut self) {
        let view = Arc::clone(&self.shared.state.load().view);
        let removal = &mut self.compactions.removal;
        self.answers.published(removal.is_open(), |reply| removal.keep(reply));
        for ChangeAnswer { request_id, outcome, raft_term } in self.membership.take_told() {
            let body = match outcome {
                Ok(()) => ReplyBody::MembersChanged,
                Err(status) => ReplyBody::Outcome(Err(status), None),
            };
            let reply = Reply { request_id, revision: Revision(0), raft_term, body };
            self.answers.push(reply);
        }
        self.answer_reads();
        if self.machine.is_whole() {
            self.send_snapshots(&view);
            for request_id in self.answers.take_images() {
                self.image(request_id, &mut None);
            }
        }
        let (shared, is_whole) = (&self.shared, self.machine.is_whole());
        self.answers.deliver(|shard, replies| {
            if !replies.is_empty() {
                shared.core.outboxes[shard].send_all(replies);
            } else if is_whole {
                // While an entry is partly applied, there is no new view, so watches need no wake-up.
                shared.core.wake_watches(shard);
            }
        });
    }
}

/// Passes a received message to the raft node. A refused message is logged and dropped, as if the network had
/// lost it; raft repeats messages that matter.
pub(super) fn step_received(node: &mut Node, logger: &Logger, message: raftpb::Message) {
    let (kind, from) = (message.r#type.unwrap_or(0), message.from.unwrap_or(0));
    let commit = message.commit.unwrap_or(0);
    if let Err(why) = node.request(Request::Receive(message)) {
        let last = node.status().last;
        if kind == raftpb::MessageType::MsgHeartbeat as i32 && commit > last.0 {
            // A leader sends a member only commit indexes up to which that member has acknowledged its log.
            // So this member had acknowledged entries that are no longer in its log.
            logger.error(
                "this member's log has lost entries that it had acknowledged: rebuild it from the others with \
                 `mainstay rebuild`",
                &[("leader", Value::Id(from)), ("acknowledged", Value::Uint(commit)), ("last", Value::Uint(last.0))],
            );
            return;
        }
        if let Refusal::OtherHistory { .. } = &why {
            logger.error(
                "the feeder has another history than this observer: one of the two has lost or changed data, or \
                 they belong to different clusters; nothing of it is taken; if the feeder is right, delete this \
                 observer's data directory",
                &[("feeder", Value::Id(from)), ("reason", Value::Str(&why.to_string()))],
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
