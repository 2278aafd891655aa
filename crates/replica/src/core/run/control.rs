//! Passes each request to the function that handles it, does the periodic work, and runs the turns of a
//! member that is out of service.

use std::time::Instant;

use api::etcdserverpb::{CompactionRequest, InternalRaftRequest};
use consensus::Event;
use numbers::MemberId;
use storage::nospace::Cause;
use telemetry::logging::Value;

use super::Core;
use crate::core::parked::{IDLE, OutOfService, Response};
use crate::core::proposals::{Proposal, Waiter};
use crate::core::questions::Question;
use crate::core::reads::RoundRequest;
use crate::core::{
    ClientRequest, ControlRequest, CoreRequest, Fatal, PeerRequest, ReplyBody, StorageRequest,
};
use crate::received::Outcome;

/// Dispatch of requests to the core.
impl Core {
    /// Handles one request or event.
    pub(super) fn take(&mut self, request: CoreRequest, now: Instant) -> Result<(), Fatal> {
        match request {
            CoreRequest::Client(request) => {
                self.take_from_client(request, now);
                Ok(())
            }
            CoreRequest::Peer(request) => self.take_from_peer(request, now),
            CoreRequest::Storage(request) => self.take_from_storage(request, now),
            CoreRequest::Control(request) => self.take_from_control(request, now),
            CoreRequest::Outside(sender, ask) => {
                let request_id = self.answers.id_for(sender);
                self.take(ask(request_id), now)
            }
        }
    }

    /// Handles a request of a client.
    fn take_from_client(&mut self, request: ClientRequest, now: Instant) {
        match request {
            ClientRequest::Propose { request_id, id, data, writer, wait_removed } => {
                let proposal = Proposal { request_id, id, data, wait_removed, since: now };
                self.proposals.push(proposal, writer, now);
            }
            ClientRequest::Read(request_id) => self.reads.push(RoundRequest::Read(request_id), now),
            ClientRequest::ChangeMembers(request_id, change, attempt) => {
                self.change_members(request_id, change, attempt, now)
            }
            ClientRequest::MoveLeader(request_id, to) => self.move_leader(request_id, to, now),
            ClientRequest::RaiseNoSpace => self.raise_no_space(Cause::Quota, now),
            ClientRequest::KeepAlive(request_id, id) => self.keep_alive(request_id, id, now),
            ClientRequest::TimeToLive(request_id, id, detail) => {
                self.reads.push(RoundRequest::TimeToLive(request_id, id, detail), now);
            }
            ClientRequest::LeaseKeys(request_id, id) => self.ask(Question::LeaseKeys(request_id, id), now),
            // Answered even while an entry is partly applied, because the lease may expire before the entry
            // is complete.
            ClientRequest::KeysToRenew(request_id, id) => {
                self.ask(Question::KeysToRenew(request_id, id), now)
            }
            ClientRequest::Leases(request_id) => self.ask(Question::Leases(request_id), now),
            ClientRequest::LeaseTimes(request_id, ids) => {
                self.ask(Question::LeaseTimes(request_id, ids), now);
            }
            ClientRequest::Image(request_id) => self.ask(Question::Image(request_id), now),
        }
    }

    /// Handles a request or message of another member.
    fn take_from_peer(&mut self, request: PeerRequest, now: Instant) -> Result<(), Fatal> {
        match request {
            PeerRequest::Messages(messages, charge) => self.received(messages, charge, now),
            PeerRequest::Unreachable(id) => self.step(Event::PeerUnreachable(id))?,
            PeerRequest::LeaderEnded(id) => self.leader_ended(id)?,
            PeerRequest::DatabaseOpened { to, index } => self.outgoing.begun(to, index),
            PeerRequest::SnapshotSent { to, delivered } => {
                self.outgoing.ended(to, delivered, now);
                self.step(Event::SnapshotReported { to, delivered })?;
            }
            PeerRequest::Holds(request_id) => {
                let held = self.machine.held();
                self.reply(request_id, ReplyBody::Holds(held, self.machine.applied_index));
            }
            PeerRequest::OfferSnapshot(request_id, attempt) => self.look_at_offer(request_id, attempt, now),
            PeerRequest::ReceiveSnapshot(request_id, attempt) => self.begin_install(request_id, attempt),
            PeerRequest::SnapshotBroken(claim, forget) => self.install.pause(claim, forget, now),
            PeerRequest::ResumeSnapshot(request_id, attempt) => self.resume_install(request_id, attempt),
            PeerRequest::SnapshotReceived(claim, received) => self.snapshot_received(claim, received, now)?,
            PeerRequest::SnapshotGivenUp(claim) => self.give_up_install(claim),
            PeerRequest::Place(placement) => self.place(placement, now),
            PeerRequest::StateTrail(request_id, from) => {
                let trail = self.machine.newest_state_trail(from, crate::core::STATE_TRAIL_POINTS_MAX);
                self.reply(request_id, ReplyBody::StateTrail(trail));
            }
            // Only members know who is removed: an observer may follow another history.
            PeerRequest::Removed(by) if self.membership.knows(by) => self.end_removed(now),
            PeerRequest::Removed(_) => {}
            PeerRequest::Observe(request_id, card) => self.register_observer(request_id, *card, now)?,
            PeerRequest::Follow(id, urls, interval) => self.follow_feeder(id, urls, interval)?,
        }
        Ok(())
    }

    /// Handles an event of the log, the disk or the checkpointer.
    fn take_from_storage(&mut self, request: StorageRequest, now: Instant) -> Result<(), Fatal> {
        match request {
            StorageRequest::Fetched(fetch, read) => self.fetched(fetch, read)?,
            // This event only makes the core run a turn. Each turn checks whether the values have arrived.
            StorageRequest::ValuesRead => {}
            StorageRequest::Checkpointed(result) => self.checkpointed(result, now)?,
            StorageRequest::Relocate(values, done) => self.relocate(values, done, now),
            StorageRequest::Relocated { is_whole } => {
                let is_whole = self.space.moves.done() && is_whole;
                self.space.tidying.ended(is_whole);
                self.space.compression.ended(is_whole, now);
                self.free_emptied();
            }
            StorageRequest::Log(event) => self.log_told(event, now)?,
        }
        Ok(())
    }

    /// Handles a request of the monitor or of the process.
    fn take_from_control(&mut self, request: ControlRequest, now: Instant) -> Result<(), Fatal> {
        match request {
            ControlRequest::Corrupt(member_id) => self.raise_corrupt(member_id),
            ControlRequest::DiffersFromFeeder(feeder, index) => {
                self.differs_from_feeder(feeder, index)?;
            }
            ControlRequest::ClusterVersion(version) => self.set_cluster_version(version),
            ControlRequest::Downgraded(version) => self.end_downgrade(&version),
            ControlRequest::Reports { reports, agreeing, differing } => {
                self.autopilot.reported(reports, agreeing, differing);
            }
            ControlRequest::Stop => {
                if !self.lifecycle.is_stopping() {
                    // The remaining times are checkpointed, so that the leases continue with them after the
                    // restart.
                    if self.leads_now() {
                        self.leases.others_are(self.node.others());
                        self.leases.note_before_stop(self.machine.applied_index.0);
                    }
                    self.shared.data.values.wind_down();
                    self.lifecycle.stop(now);
                    self.lease_slices(now);
                }
            }
        }
        Ok(())
    }
}

/// Work that is done at every tick.
impl Core {
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), Fatal> {
        if !self.pace.is_due(now) {
            return Ok(());
        }
        // Missed ticks are not repeated. Otherwise a member that was suspended would begin an election
        // immediately afterwards.
        self.note_late_tick(now);
        self.pace.tick_at(now + self.options.heartbeat_interval);
        self.pace.cpu.look(now);
        self.watch_disk(now)?;
        self.note_answers();
        self.step(Event::Ticked)?;
        self.resign_if_corrupt();
        self.advance_ticks(now)?;
        self.retry_reads(now);
        self.sweep_waiting(now);
        self.sweep_renewals(now);
        self.sweep_changes(now);
        self.look_at_moves(now);
        self.look_at_log(now)?;
        self.measure_disk();
        self.measure_readers(now);
        self.look_at_disk(now);
        self.tidy(now);
        self.look_at_compression(now);
        self.look_at_install(now);
        self.outgoing.look(now);
        self.propose_attributes(now);
        self.look_at_observers(now)?;
        self.look_at_autopilot(now);
        self.look_at_witness(now);
        if self.leads_now() {
            self.leases.others_are(self.node.others());
        }
        let leads = self.leads_now() && !self.lifecycle.is_stopping();
        if leads {
            self.leases.allow_revokes();
            self.leases.note_if_due(now);
        }
        let in_use = self.machine.in_use_bytes();
        if let Some(quota) = self.shared.member.limits.quota_bytes
            && let Some(percent) = self.space.quota_warning.look(in_use, quota)
        {
            self.logger.warn(
                "the data is close to its quota; at the quota, writes are refused until keys are deleted and compacted",
                &[
                    ("in-use-percent", Value::Uint(percent)),
                    ("in-use-bytes", Value::Uint(in_use)),
                    ("quota-backend-bytes", Value::Uint(quota)),
                ],
            );
        }
        let store = &self.machine.store;
        let (revision, compacted) = (store.current_revision(), store.compact_revision());
        if let Some(revision) = self.compactions.automatic.due(revision, compacted, leads, now) {
            self.logger.info("starting auto compaction", &[("revision", Value::Int(revision.0))]);
            let compaction = Some(CompactionRequest { revision: revision.0, physical: false });
            self.propose_own(InternalRaftRequest { compaction, ..Default::default() }, Waiter::Nobody);
        }
        Ok(())
    }
}

/// The turns of a member that is out of service.
impl Core {
    /// Takes this member out of service, because the error `fatal` prevents it from applying an entry.
    pub(super) fn park(&mut self, fatal: &machine::Fatal, now: Instant) {
        self.logger.error(
            "OUT OF SERVICE: a committed entry cannot be applied, because a value that it depends on cannot be read; rebuild this member from the others with `mainstay rebuild` or, if it is the only one, save a snapshot of what can still be read and restore from a backup",
            &[("index", Value::Uint(fatal.index.0)), ("why", Value::Str(&fatal.why))],
        );
        self.end_service(fatal, now);
    }

    /// Refuses the requests of clients from now on, with the reason.
    pub(super) fn end_service(&mut self, fatal: &machine::Fatal, now: Instant) {
        let alone = self.node.voters() == [MemberId(self.shared.member.identity.member_id)];
        let parked = OutOfService::new(fatal, alone && !self.history.was_replayed(fatal.index));
        let why = parked.why();
        for proposal in self.proposals.take_all() {
            self.shared.core.proposal_taken(proposal.data.len());
            self.refuse(proposal.request_id, why.clone());
        }
        for waiter in self.proposals.end() {
            if !matches!(waiter, Waiter::Expiry(_)) {
                self.give_up(waiter, why.clone());
            }
        }
        self.apply.queue.clear();
        // From now on the core no longer installs received states. A thread that waits until a received state
        // is installed gets the error now.
        self.install.tell(Outcome::GivenUp(parked.why()));
        for request_id in self.install.take_offers() {
            self.refuse(request_id, parked.why());
        }
        self.end_install();
        self.compactions.removal.stop();
        // This turn must publish a state that contains the entries applied before the failure and names no
        // leader.
        self.publication.request();
        self.pace.tick_at(now + IDLE);
        self.lifecycle.park(parked);
        self.lifecycle.serve();
    }

    /// Returns true if this member is out of service and its published state answers linearizable reads.
    pub(super) fn is_parked_complete(&self) -> bool {
        self.lifecycle.parked().is_some_and(OutOfService::is_complete)
    }

    /// Runs one turn of a member that is out of service. Returns true if it was asked to stop.
    ///
    /// # Errors
    ///
    /// Returns an error if the log failed.
    pub(super) fn parked_turn(&mut self, asks: &mut Vec<CoreRequest>, now: Instant) -> Result<bool, Fatal> {
        self.pace.tick_at(now + IDLE);
        let mut stops = false;
        if let Some(parked) = self.lifecycle.parked() {
            let why = parked.why();
            for request_id in self.questions.take_refused() {
                self.refuse(request_id, why.clone());
            }
        }
        for ask in asks.drain(..) {
            self.take_parked(ask, now, &mut stops)?;
        }
        self.answer_questions(now);
        self.answer();
        self.delete_pending();
        self.release_discarded();
        Ok(stops)
    }

    fn take_parked(&mut self, request: CoreRequest, now: Instant, stops: &mut bool) -> Result<(), Fatal> {
        let Some(parked) = self.lifecycle.parked() else { return Ok(()) };
        match parked.respond(request) {
            Response::Nothing => {}
            Response::Stop => *stops = true,
            Response::Readable(request_id) => self.reply(request_id, ReplyBody::Readable(None)),
            Response::Image(request_id) => self.ask(Question::Image(request_id), now),
            Response::Refuse(request_id, taken) => {
                let why = parked.why();
                if let Some(bytes) = taken {
                    self.shared.core.proposal_taken(bytes);
                }
                self.refuse(request_id, why);
            }
            Response::Outside(sender, ask) => {
                let request_id = self.answers.id_for(sender);
                self.take_parked(ask(request_id), now, stops)?;
            }
            Response::TurnAway(received) => {
                let why = parked.why();
                self.install.turn_away(received, why);
            }
            Response::Discard(forget) => self.install.discard_part(forget),
            Response::Failed(fatal) => return Err(fatal.into()),
        }
        Ok(())
    }
}
