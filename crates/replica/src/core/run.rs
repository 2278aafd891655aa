//! The core's loop.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use api::etcdserverpb::{CompactionRequest, InternalRaftRequest};
use api::{Status, raftpb};
use consensus::{Effects, EntryKind, Event, Fetch, Node, Request, Role};
use log::{Batch, Log, LogEvent, Space, Synced};
use machine::{Alarms, Machine};
use mvcc::{Location, View};
use planted::Bug;

use super::alarms::NospaceAlarm;
use super::answers::Answers;
use super::apply::Applying;
use super::attributes::Attributes;
use super::checkpoints::{Checkpoints, Thresholds};
use super::compactor::Compactor;
use super::history::History;
use super::install::Install;
use super::leadership::Leadership;
use super::leases::{LeaseClocks, LeaseRules};
use super::membership::{MemberRules, Membership};
use super::meters::Meters;
use super::parked::Parked;
use super::pressure::Pressure;
use super::proposals::{Proposal, Proposals, Waiter};
use super::reads::{Reads, Want};
use super::removal::Removal;
use super::room::Room;
use super::segments::{Moves, Segments};
use super::{Ask, Reply, ReplyBody, Ticket};
use crate::long_reads::Reader;
use crate::shared::{Published, Shared};
use config::Config;
use storage::checkpointer::Order;
use storage::compaction_hash::Job;
use storage::nospace::Cause;
use storage::values::LogValues;
use telemetry::logging::{Logger, Value};

/// How long a stop waits for what is under way.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// What boot made for the core.
pub struct Parts {
    /// What it shares with the other threads.
    pub shared: Arc<Shared>,
    /// Where it writes what an operator should know.
    pub logger: Arc<Logger>,
    /// The configuration.
    pub config: Config,
    /// The raft node, restored.
    pub node: Node,
    /// The state, restored.
    pub machine: Machine,
    /// The log, open.
    pub log: Log,
    /// Where the entries that were read at start lie.
    pub locations: VecDeque<(u64, log::Location)>,
    /// The checkpointer.
    pub orders: SyncSender<Order>,
    /// Whoever computes the hashes of compactions.
    pub hash_jobs: SyncSender<Job>,
    /// The attributes this member should have: its name and client URLs.
    pub attributes: (String, Vec<String>),
    /// Bytes of the checkpoint's files.
    pub checkpoint_bytes: u64,
    /// Reads entries that have left memory, for followers that lag.
    pub fetches: SyncSender<Fetch>,
    /// Members that are there already, as far as this member's own log does not say so.
    pub remotes: Vec<(u64, Vec<String>)>,
    /// The terms of the entries that the checkpoint has.
    pub terms: Vec<(u64, u64)>,
    /// When checkpoints are due.
    pub thresholds: Thresholds,
    /// What raised this member's NOSPACE alarm, if it is raised and known.
    pub cause: Cause,
    /// Told once this member may serve clients.
    pub ready: SyncSender<()>,
}

/// The core.
pub struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) logger: Arc<Logger>,
    pub(super) machine: Machine,
    pub(super) leases: LeaseClocks,
    /// Whether this member, which is to stop, has handed leadership over or has nobody to hand it to.
    pub(super) handed_over: bool,
    pub(super) config: Config,
    pub(super) node: Node,
    pub(super) log: Log,
    pub(super) history: History,
    pub(super) values: LogValues,
    pub(super) fetches: SyncSender<Fetch>,
    pub(super) orders: SyncSender<Order>,
    hash_jobs: SyncSender<Job>,
    pub(super) attributes: Attributes,
    pub(super) proposals: Proposals,
    pub(super) meters: Meters,
    pub(super) pressure: Pressure,
    pub(super) reads: Reads,
    pub(super) membership: Membership,
    pub(super) leadership: Leadership,
    /// Members that need the whole state.
    pub(super) snapshots_wanted: Vec<raftpb::Message>,
    pub(super) install: Install,
    pub(super) answers: Answers,
    /// What is committed and not applied yet.
    pub(super) applying: Applying,
    /// What is asked for and cannot be answered amid an entry.
    pub(super) deferred: Vec<Ask>,
    pub(super) removal: Removal,
    compactor: Compactor,
    pub(super) room: Room,
    pub(super) nospace: NospaceAlarm,
    pub(super) next_tick: Instant,
    pub(super) applied_since: bool,
    pub(super) thresholds: Thresholds,
    pub(super) checkpoints: Checkpoints,
    pub(super) segments: Segments,
    pub(super) moves: Moves,
    pub(super) alarms: Arc<Alarms>,
    pub(super) stopping: Option<Instant>,
    /// Why this member is out of service, if it is.
    pub(super) parked: Option<Parked>,
    ready: Option<SyncSender<()>>,
}

impl Core {
    /// Puts a core together.
    pub fn new(parts: Parts) -> Core {
        let now = parts.shared.clock.now();
        let shards = parts.shared.shards.len();
        let applied = parts.machine.applied_index;
        let compacted = parts.machine.store.compact_revision();
        let pause = parts.config.compaction_sleep_interval;
        let advances = parts.config.initial_election_tick_advance;
        let own = parts.shared.identity.member_id;
        let attributes = Attributes::new(own, parts.attributes, parts.config.election_timeout / 2);
        let member_rules = MemberRules {
            own,
            strict: parts.config.strict_reconfig_check,
            learners_max: parts.config.max_learners,
            election_timeout: parts.config.election_timeout,
            request_timeout: parts.shared.limits.request_timeout,
        };
        let membership = Membership::new(member_rules, &parts.machine.members, parts.remotes);
        let saved = (applied, parts.checkpoint_bytes);
        let checkpoints = Checkpoints::new(parts.thresholds, parts.config.snapshot_count, saved, now);
        let rules = LeaseRules {
            ttl_min: parts.shared.limits.lease_ttl_min,
            request_timeout: parts.shared.limits.request_timeout,
            grace: parts.config.election_timeout,
            note_interval: parts.thresholds.note_interval,
        };
        let room = Room::new(now, &parts.log);
        let nospace = NospaceAlarm::new(parts.shared.identity.member_id, parts.cause);
        Core {
            values: LogValues::fetched_by(&parts.shared.readers, parts.shared.values.clone()),
            applying: Applying::new(&parts.shared.core),
            deferred: Vec::new(),
            history: History::new(parts.log.entries(), parts.locations, parts.terms, now),
            fetches: parts.fetches,
            logger: parts.logger,
            leases: LeaseClocks::new(rules, Arc::clone(&parts.shared.metrics), now),
            handed_over: false,
            compactor: Compactor::new(parts.config.auto_compaction, now),
            alarms: Arc::new(parts.machine.alarms.clone()),
            machine: parts.machine,
            config: parts.config,
            node: parts.node,
            log: parts.log,
            orders: parts.orders,
            hash_jobs: parts.hash_jobs,
            attributes,
            proposals: Proposals::new(now),
            reads: Reads::default(),
            membership,
            leadership: Leadership::new(advances, now),
            snapshots_wanted: Vec::new(),
            install: Install::default(),
            answers: Answers::new(shards),
            meters: Meters::new(Arc::clone(&parts.shared.metrics)),
            pressure: if parts.shared.threads { Pressure::here(now) } else { Pressure::none(now) },
            removal: Removal::new(compacted, pause, now),
            room,
            nospace,
            next_tick: now,
            applied_since: true,
            thresholds: parts.thresholds,
            checkpoints,
            segments: Segments::default(),
            moves: Moves::default(),
            stopping: None,
            parked: None,
            ready: Some(parts.ready),
            shared: parts.shared,
        }
    }

    /// Runs until it is told to stop.
    ///
    /// # Errors
    ///
    /// When the member cannot go on: the disk failed, or an entry cannot be applied. Nothing was acknowledged that is
    /// not on disk.
    pub fn run(mut self) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        shared.core.receive_here();
        let mut asks = Vec::new();
        self.begin();
        let outcome = loop {
            let (patience, wanted) = self.before_sleep();
            shared.core.drain(&mut asks, patience, wanted);
            let now = shared.clock.now();
            match self.turn(&mut asks, now) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(why) => break Err(why),
            }
        };
        let _ = self.orders.send(Order::Stop);
        shared.core.close();
        outcome
    }

    /// Before the first turn.
    pub fn begin(&mut self) {
        self.tell_members();
    }

    /// To be asked between two turns: how long to sleep, and how many asks are worth waking for.
    pub fn before_sleep(&self) -> (Duration, usize) {
        self.shared.set_wakes_for_reads(self.reads.is_idle());
        self.patience()
    }

    /// Whether the log, driven by hand, has something to do.
    pub fn log_wants_turn(&self) -> bool {
        self.log.wants_turn()
    }

    /// Has the log, driven by hand, do all it has to do.
    pub fn log_turn(&mut self, batches_max: usize) {
        self.log.turn_of(batches_max);
    }

    /// One turn: takes these asks, and does all that follows and that is due. Whether the core has come to its end.
    pub fn turn(&mut self, asks: &mut Vec<Ask>, now: Instant) -> Result<bool, String> {
        if self.parked.is_some() {
            return self.parked_turn(asks, now);
        }
        self.applying.begin_turn(self.thresholds.applied_per_turn);
        planted::begin(planted::Measure::Applied);
        if self.machine.is_whole() {
            for ask in std::mem::take(&mut self.deferred) {
                match ask {
                    // Its round is confirmed and applied; amid the next entry there may be another.
                    Ask::TimeToLive(ticket, id, keys) if self.leadership.has_settled() => {
                        self.time_to_live(ticket, id, keys, now);
                    }
                    ask => self.take(ask, now)?,
                }
            }
        }
        for ask in asks.drain(..) {
            self.take(ask, now)?;
        }
        self.room.retry(&mut self.log)?;
        self.propose_gathered(now);
        self.hold_departures(now);
        self.propose_change(now);
        self.start_round(now);
        self.tick(now)?;
        self.lease_slices(now);
        self.carry_out(now)?;
        self.finish_rounds(now);
        self.leases.look(self.machine.applied_index, self.node.standing().commit, now);
        self.remove_slice(now);
        // From here on the newest view and the state are of one moment, but for an entry that is half-way.
        self.publish();
        self.answer();
        if self.parked.is_some() {
            return Ok(false);
        }
        // A state that was replaced goes before the checkpointer begins with the new one's checkpoint.
        self.release_discarded();
        self.order_checkpoint(now);
        self.release_doomed();
        if self.membership.has_left(self.node.is_leaving(), now) {
            return Ok(true);
        }
        Ok(self.stopping.is_some_and(|since| {
            let idle = self.proposals.open() == 0 && self.handed_over && self.node.transferring().is_none();
            idle || now.saturating_duration_since(since) > STOP_PATIENCE
        }))
    }

    /// How long to sleep, and how many asks are worth waking for.
    fn patience(&self) -> (Duration, usize) {
        let now = self.shared.clock.now();
        let mut patience = self.next_tick.saturating_duration_since(now);
        if let Some(left) = self.removal.wait(now) {
            patience = patience.min(left);
        }
        if let Some(left) = self.round_waits(now) {
            patience = patience.min(left);
        }
        let answers = !self.deferred.is_empty() && self.machine.is_whole();
        if self.lease_slices_wait() || self.has_to_apply() || answers {
            patience = Duration::ZERO;
        }
        match self.gathering_wait(now) {
            // A sync of the log wakes the core whatever it waits for.
            _ if self.proposals.is_held_back() && !self.has_room_again() => (patience, usize::MAX),
            Some((more, left)) if self.proposals.has_gathered() => (patience.min(left), more),
            _ if self.proposals.has_gathered() => (Duration::ZERO, 1),
            _ => (patience, 1),
        }
    }

    fn take(&mut self, ask: Ask, now: Instant) -> Result<(), String> {
        match ask {
            Ask::Propose { ticket, id, data, writer, wait_removed } => {
                let proposal = Proposal { ticket, id, data, wait_removed, since: now };
                self.proposals.push(proposal, writer, now);
            }
            Ask::Read(ticket) => self.reads.push(Want::Read(ticket), now),
            Ask::ChangeMembers(ticket, change) => self.change_members(ticket, change, now),
            Ask::MoveLeader(ticket, to) => self.move_leader(ticket, to, now),
            Ask::Outside(sender, ask) => {
                let ticket = self.answers.ticket_for(sender);
                self.take(ask(ticket), now)?;
            }
            Ask::Messages(messages, charge) => self.received(messages, charge, now),
            Ask::Unreachable(id) => self.step(Event::PeerUnreachable(id))?,
            Ask::LeaderEnded(id) => self.leader_ended(id)?,
            Ask::SnapshotSent { to, delivered } => self.step(Event::SnapshotReported { to, delivered })?,
            Ask::Holds(ticket) => {
                let held = self.machine.held();
                self.reply(ticket, ReplyBody::Holds(held, self.machine.applied_index));
            }
            Ask::ReceiveSnapshot(ticket, claim, from, term) => {
                self.begin_install(ticket, claim, from, term);
            }
            Ask::SnapshotBroken(claim, forget) => self.install.pause(claim, forget, now),
            Ask::ResumeSnapshot(ticket, claim, from, term) => {
                self.resume_install(ticket, claim, from, term);
            }
            Ask::SnapshotReceived(claim, received) => self.snapshot_received(claim, received, now)?,
            Ask::SnapshotGivenUp(claim) => self.give_up_install(claim),
            Ask::Place(claim, values, done) => self.place(claim, values, done, now),
            Ask::Fetched(fetch, read) => self.fetched(fetch, read)?,
            // The turn looks for them.
            Ask::ValuesRead => {}
            Ask::StateTrail(ticket, from) => {
                let trail = self.machine.newest_state_trail(from, super::STATE_TRAIL_POINTS_MAX);
                self.reply(ticket, ReplyBody::StateTrail(trail));
            }
            Ask::Removed => self.end_removed(now),
            Ask::Corrupt(member_id) => self.raise_corrupt(member_id),
            Ask::ClusterVersion(version) => self.set_cluster_version(version),
            Ask::RaiseNoSpace => self.raise_no_space(Cause::Quota, now),
            Ask::KeepAlive(ticket, id) => self.keep_alive(ticket, id, now),
            Ask::TimeToLive(ticket, id, keys) => {
                self.reads.push(Want::TimeToLive(ticket, id, keys), now);
            }
            Ask::LeaseKeys(ticket, id) => self.lease_keys(ticket, id),
            Ask::Leases(ticket) => {
                let list = self.leases.list(&self.machine.leases, now);
                self.reply(ticket, list);
            }
            Ask::LeaseTimes(ticket, ids) => {
                let times = self.leases.times(&ids, &self.machine.leases, now);
                self.reply(ticket, times);
            }
            Ask::Image(ticket) => self.answers.want_image(ticket),
            Ask::Checkpointed(result) => self.checkpointed(result, now)?,
            Ask::Relocate(values, done) => self.relocate(values, done, now),
            // The old places are free once no checkpoint names them any more.
            Ask::Relocated => {
                if self.has_emptied() {
                    self.checkpoints.want_whole();
                }
            }
            Ask::Log(event) => self.log_told(event, now)?,
            Ask::Stop => {
                if self.stopping.is_none() {
                    // So that a restart goes on where the leases stand now.
                    if self.leads_now() {
                        self.leases.note_below(Duration::from_secs(1));
                    }
                    self.stopping = Some(now);
                    self.lease_slices(now);
                }
            }
        }
        Ok(())
    }

    fn log_told(&mut self, event: LogEvent, now: Instant) -> Result<(), String> {
        match event {
            LogEvent::Synced(synced) => self.synced(synced),
            LogEvent::SpaceChanged(Space::Ample) => {
                self.logger.info("the disk has room for the log again", &[]);
                Ok(())
            }
            LogEvent::SpaceChanged(space) => {
                self.logger.warn(
                    "the disk has no room for more log: raising the NOSPACE alarm",
                    &[("space", Value::Str(&format!("{space:?}")))],
                );
                self.raise_no_space(Cause::Disk, now);
                Ok(())
            }
            LogEvent::Failed(fatal) => Err(fatal.to_string()),
        }
    }

    fn synced(&mut self, synced: Synced) -> Result<(), String> {
        let number = self.room.synced(synced.ticket);
        self.history.located(synced.locations);
        self.install.placed(synced.ticket, &synced.values);
        for (id, to) in synced.values {
            let key = (id.main, u32::try_from(id.sub).unwrap_or(u32::MAX));
            if let Some(from) = self.moves.arrived(key) {
                let to = Location { segment: to.segment, offset: to.offset };
                if self.machine.relocate(key.0, key.1, from, to) {
                    self.checkpoints.moved_out_of(from.segment);
                }
            }
        }
        self.moves.tell();
        if let Some(number) = number {
            self.step(Event::LogSynced(number))?;
        }
        Ok(())
    }

    /// Tells the raft node what this member did. There is no such way for what clients and peers want: that is a
    /// [`consensus::Request`], and refused without an end of the member.
    pub(super) fn step(&mut self, event: Event) -> Result<(), String> {
        self.node.step(event).map_err(|e| format!("the raft node and the core do not agree: {e}"))
    }

    fn tick(&mut self, now: Instant) -> Result<(), String> {
        if now < self.next_tick {
            return Ok(());
        }
        // Ticks that were missed are not made up for: a node that was stopped should not campaign at once.
        self.note_late_tick(now);
        self.next_tick = now + self.config.heartbeat_interval;
        self.pressure.look(now);
        self.watch_disk(now)?;
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
        self.look_at_install(now);
        self.propose_attributes(now);
        if self.leads_now() && self.stopping.is_none() {
            self.leases.allow_revokes();
            self.leases.note_if_due(now);
            let revision = self.machine.store.current_revision();
            if let Some(revision) = self.compactor.due(revision, now) {
                self.logger.info("compacting by age", &[("revision", Value::Int(revision))]);
                let compaction = Some(CompactionRequest { revision, physical: false });
                self.propose_own(InternalRaftRequest { compaction, ..Default::default() }, Waiter::Nobody);
            }
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self, now: Instant) -> Result<(), String> {
        self.apply_some(now)?;
        while self.parked.is_none()
            && let Some(effects) = self.node.effects()
        {
            self.follow(effects, now)?;
            self.campaign_alone();
        }
        self.campaign_alone();
        Ok(())
    }

    fn follow(&mut self, effects: Effects, now: Instant) -> Result<(), String> {
        // First of all: sending and the own disk work at the same time.
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
        for (context, index) in effects.reads {
            self.reads.confirm(context, index);
        }
        for fetch in effects.fetches {
            self.fetch(fetch)?;
        }
        self.applying.committed(effects.commit);
        self.apply_some(now)
    }

    /// The only voter does not wait for a timeout: nobody else could win.
    fn campaign_alone(&mut self) {
        if self.parked.is_some() {
            return;
        }
        let standing = self.node.standing();
        let alone = self.node.voters() == [self.shared.identity.member_id];
        if standing.role == Role::Follower && alone && self.machine.applied_index >= standing.commit {
            // Refused while its log is not synced: once it is, there is another turn.
            let taken = self.node.request(Request::Campaign);
            assert!(taken.is_ok() || !planted::is(Bug::RefusalFatal), "a campaign was refused");
        }
    }

    pub(super) fn append(&mut self, append: consensus::Append, now: Instant) -> Result<(), String> {
        let Some(append) = self.install.hold(append) else { return Ok(()) };
        self.append_behind(None, append, now)
    }

    /// Hands the log a batch; `reset` says that it starts anew behind a snapshot.
    pub(super) fn append_behind(
        &mut self,
        reset: Option<log::Reset>,
        append: consensus::Append,
        now: Instant,
    ) -> Result<(), String> {
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

    /// Whether this member's newest state answers linearizable reads by itself.
    pub(super) fn reads_local(&self) -> bool {
        self.leadership.has_settled() && self.node.voters() == [self.shared.identity.member_id]
    }

    fn publish_view(&mut self) -> Arc<View> {
        self.applying.published();
        let view = self.machine.store.publish();
        self.segments.published(&view);
        view
    }

    fn publish(&mut self) {
        // Also where nothing is applied: a leader without a majority is to show what waits.
        self.shared.metrics.server.proposals_pending.set_u64(self.proposals.open() as u64);
        if !self.applied_since && !self.applying.is_unpublished() {
            return;
        }
        self.applied_since = false;
        let view = match self.machine.is_whole() {
            true => self.publish_view(),
            // Only what is beside the state has changed: who leads, for example.
            false => Arc::clone(&self.shared.state.load().view),
        };
        let moment = view.moment();
        let standing = self.node.standing();
        self.shared.metrics.mvcc.db_open_read_transactions.set_u64(self.segments.open_views() as u64);
        self.shared.state.store(Arc::new(Published {
            view,
            applied_index: self.machine.applied_index,
            applied_term: self.machine.applied_term,
            commit_index: standing.commit,
            leader: if self.parked.is_some() { 0 } else { standing.leader },
            reads_local: if self.parked.is_some() { self.is_parked_complete() } else { self.reads_local() },
            alarms: Arc::clone(&self.alarms),
            members: Arc::clone(self.membership.members()),
            in_use_bytes: self.machine.in_use_bytes(),
            removed_through: self.removal.through(),
        }));
        for (previous, revision) in self.removal.take_unpublished() {
            // It covers what the compaction removes.
            let state = self.shared.read_long_at(Reader::Hash, moment.keeping_from(previous));
            let hashes = &self.shared.compaction_hashes;
            if !hashes.order(&self.hash_jobs, state, previous, revision) {
                self.logger.warn(
                    "too many compactions at once: this one's hash is not computed",
                    &[("revision", Value::Int(revision))],
                );
            }
        }
        // As in etcd, a member serves once the cluster has heard of it: it has caught up that far.
        if self.attributes.are_known() {
            self.serve();
        }
    }

    /// Lets clients in.
    pub(super) fn serve(&mut self) {
        if let Some(ready) = self.ready.take() {
            // Boot waits for it; if it has given up, the member is about to stop.
            let _ = ready.try_send(());
        }
    }

    pub(super) fn reply(&mut self, ticket: Ticket, body: ReplyBody) {
        let reply = Reply {
            ticket,
            revision: self.machine.store.current_revision(),
            raft_term: self.machine.applied_term,
            body,
        };
        self.answers.push(reply);
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, status: Status) {
        self.reply(ticket, ReplyBody::Outcome(Err(status), None));
    }

    pub(super) fn answer(&mut self) {
        let view = Arc::clone(&self.shared.state.load().view);
        let removal = &mut self.removal;
        self.answers.published(removal.is_open(), |reply| removal.keep(reply));
        for (ticket, outcome, raft_term) in self.membership.take_told() {
            let body = match outcome {
                Ok(()) => ReplyBody::MembersChanged,
                Err(status) => ReplyBody::Outcome(Err(status), None),
            };
            let reply = Reply { ticket, revision: 0, raft_term, body };
            self.answers.push(reply);
        }
        self.answer_reads();
        if self.machine.is_whole() {
            self.send_snapshots(&view);
            for ticket in self.answers.take_images() {
                // The published view is of this very moment: publishing comes right before answering.
                self.image(ticket, &view);
            }
        }
        let (shared, is_whole) = (&self.shared, self.machine.is_whole());
        self.answers.deliver(|shard, replies| {
            if !replies.is_empty() {
                shared.shards[shard].send_all(replies);
            } else if is_whole {
                // Amid an entry nothing new is published.
                shared.wake_watches(shard);
            }
        });
    }
}
