//! Applies committed entries, removes versions of keys after compactions, orders checkpoints, and manages the
//! space on the disk.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use api::error;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use consensus::{Entry, EntryKind, Event, OtherPrograms};
use log::{LogEvent, Space, Synced};
use machine::auth::AuthChange;
use machine::image::Head;
use machine::{Applied, AsOf, Change, Command, Outcome, Progress, Raised};
use numbers::{ChangeId, Index, Revision, Term};
use planted::Bug;
use storage::checkpointer::{CheckpointError, Checkpointed, Haste, Order, Relocation};
use storage::nospace::Cause;
use storage::values::AtHand;
use telemetry::logging::Value;

use super::Core;
use crate::core::Fatal;
use crate::core::alarms::AlarmContext;
use crate::core::answers::Answerable;
use crate::core::apply::OpenEntry;
use crate::core::index_base::{EVICTIONS_PER_TURN, LEAVES_PER_TURN};
use crate::core::proposals::Waiter;
use crate::core::removal;
use crate::core::removal::SliceOutcome;
use crate::core::room::{Purpose, Room};
use crate::core::space::Survey;
use crate::long_reads::{KEPT_BYTES_MAX, Reader};

/// Events of the log.
impl Core {
    pub(super) fn log_told(&mut self, event: LogEvent, now: Instant) -> Result<(), Fatal> {
        match event {
            LogEvent::Synced(synced) => self.synced(synced),
            LogEvent::SpaceChanged(Space::Ample) => {
                self.logger.info("the disk has space for the log again", &[]);
                Ok(())
            }
            // No alarm is raised now, because the received state may have caused the shortage. If that state
            // is not installed, its space becomes free again. If it is installed, the next check of the disk
            // raises the alarm.
            LogEvent::SpaceChanged(_) if self.install.is_receiving() => Ok(()),
            LogEvent::SpaceChanged(space) => {
                self.logger.warn(
                    "the disk has no space for more log; raising the NOSPACE alarm",
                    &[("space", Value::Str(&format!("{space:?}")))],
                );
                self.raise_no_space(Cause::Disk, now);
                // The reserve for checkpoints is ordered now and not at the next check of the disk, because
                // the operations that are to end the shortage use up the remaining space.
                self.have_room_kept(true);
                Ok(())
            }
            LogEvent::Failed(fatal) => Err(fatal.into()),
        }
    }

    fn synced(&mut self, synced: Synced) -> Result<(), Fatal> {
        let number = self.space.room.synced(synced.ticket);
        self.publication.synced(synced.last_index, synced.written);
        if let Some(took) = synced.took {
            self.proposals.synced(took);
        }
        self.history.located(synced.locations);
        self.install.placed(synced.ticket, &synced.values);
        for (id, to) in synced.values {
            let change = ChangeId { main: Revision(id.main), sub: u32::try_from(id.sub).unwrap_or(u32::MAX) };
            if let Some(from) = self.space.moves.arrived(change)
                && self.machine.relocate(change, from, to)
            {
                self.index_base.moved();
                self.space.checkpoints.moved_out_of(from.segment());
            }
        }
        self.space.moves.tell();
        // The checkpointer may have reported the end of its order before its last values had arrived.
        if !self.space.moves.are_under_way() && !self.space.moves.are_ordered() {
            self.free_emptied();
        }
        if let Some(number) = number {
            self.step(Event::LogSynced(number))?;
        }
        Ok(())
    }
}

/// Space on the disk, and the NOSPACE alarm.
impl Core {
    /// Checks the disk at intervals. Raises or clears the NOSPACE alarm, and makes a checkpoint due that
    /// frees space if space is short.
    pub(super) fn look_at_disk(&mut self, now: Instant) {
        let Some(look) = self.space.room.look(&self.log, now) else { return };
        if look.wants_reserve {
            self.have_room_kept(look.is_short);
        }
        if look.is_short && !self.install.is_receiving() {
            self.raise_no_space(Cause::Disk, now);
        }
        let within =
            self.shared.member.limits.quota_bytes.is_none_or(|quota| self.machine.in_use_bytes() < quota);
        let may_clear = self.space.room.is_roomy(&self.log) && within;
        let present =
            AlarmContext { alarms: &self.machine.alarms, has_leader: self.leadership.leader().is_some() };
        let ample = self.space.room.is_ample(&self.log);
        if let Some(action) = self.space.nospace.look(ample, may_clear, present, now) {
            self.logger.info("the disk has space again; clearing the NOSPACE alarm raised for it", &[]);
            self.propose_alarm(action);
        }
        self.note_cause();
        if self.space.room.may_free(&self.log, now)
            && !self.space.checkpoints.is_to_free()
            && self.has_garbage()
        {
            self.space.room.freed(now);
            self.space.checkpoints.would_free(now);
        }
    }

    /// Orders the checkpointer to reserve space for the next checkpoint.
    fn have_room_kept(&mut self, is_short: bool) {
        let Some(queued) = self.space.room.order_of_reserve() else { return };
        if self.workers.order(Order::Reserve { is_short, queued }) {
            self.space.room.reserved();
        }
    }

    /// Raises this member's NOSPACE alarm for this cause.
    pub(super) fn raise_no_space(&mut self, cause: Cause, now: Instant) {
        // The alarm stops the writes of the whole cluster, which depends neither on the disk of an observer nor
        // on its view of the quota, which may be old.
        // A witness without space is a lost voter, which is no reason to stop the writes of all others.
        if self.shared.member.is_witness {
            return;
        }
        if self.observers.observes() && !planted::is(planted::Bug::ObserverRaisesAlarm) {
            return;
        }
        let present =
            AlarmContext { alarms: &self.machine.alarms, has_leader: self.leadership.leader().is_some() };
        let wanted = self.space.nospace.raise(cause, present, now);
        if wanted.note {
            self.note_cause();
        }
        if let Some(action) = wanted.propose {
            self.propose_alarm(action);
        }
    }

    /// Handles an applied entry that raised or cleared an alarm.
    fn alarms_changed(&mut self, raised: Option<Raised>) {
        self.space.nospace.changed(raised, &self.machine.alarms);
        self.note_cause();
    }

    fn propose_alarm(&mut self, action: AlarmAction) {
        let alarm = AlarmRequest {
            action: action as i32,
            member_id: self.shared.member.identity.member_id,
            alarm: AlarmType::Nospace as i32,
        };
        let alarm_cause = match action {
            AlarmAction::Activate => self.space.nospace.cause().in_entry(),
            _ => 0,
        };
        let request =
            InternalRaftRequest { alarm: Some(alarm), alarm_cause, ..InternalRaftRequest::default() };
        self.propose_own(request, Waiter::Nobody);
    }

    /// Orders the checkpointer to write the cause of the NOSPACE alarm to the note beside the log. Returns
    /// true if the note is up to date or the order was accepted. The checkpointer carries out an accepted
    /// order before any later order.
    fn note_cause(&mut self) -> bool {
        let Some(cause) = self.space.nospace.unnoted() else { return true };
        if !self.workers.order(Order::Note(cause)) {
            return false;
        }
        self.space.nospace.was_noted();
        self.logger.debug("recorded the cause of the NOSPACE alarm", &[("cause", Value::Str(cause.name()))]);
        true
    }
}

/// Applying committed entries, and their consequences.
impl Core {
    /// Returns true if the next turn has an entry to apply.
    pub(super) fn has_to_apply(&self) -> bool {
        !self.lifecycle.is_parked() && self.apply.queue.has_to_apply()
    }

    /// Applies committed entries, up to the amount of work that is left for this turn.
    pub(super) fn apply_some(&mut self, now: Instant) -> Result<(), Fatal> {
        let before = self.machine.applied_index;
        while !self.lifecycle.is_parked() {
            if self.apply.queue.is_amid() {
                if !self.apply.queue.can_go_on() {
                    break;
                }
                self.go_on(now)?;
            } else {
                let Some(entry) = self.apply.queue.next() else { break };
                self.begin_entry(&entry, now)?;
            }
        }
        if self.machine.applied_index > before && !self.lifecycle.is_parked() {
            self.step(Event::Applied(self.machine.applied_index))?;
            self.forget()?;
        }
        Ok(())
    }

    fn begin_entry(&mut self, entry: &Entry, now: Instant) -> Result<(), Fatal> {
        let location = self.history.take_location(entry.index)?;
        let todays = match entry.kind {
            EntryKind::Normal => interchange::in_todays_words(&entry.data),
            EntryKind::ConfChange => None,
        };
        let data = todays.as_ref().unwrap_or(&entry.data);
        let command = Command { index: entry.index, term: entry.term, data, location };
        // An entry counts as one unit of work, plus one for each KiB of its size, in addition to the work for
        // its changes.
        let bytes = 1 + entry.data.len() as u64 / 1024;
        match entry.kind {
            EntryKind::Normal => {
                let since = self.shared.member.clock.now();
                let begun =
                    OpenEntry { index: entry.index, term: entry.term, bytes: entry.data.len(), since };
                let proposals = &self.proposals;
                let values = AtHand::new(&self.apply.values, &[]);
                let mut left = self.apply.queue.left();
                let outcome = self.machine.begin(command, &values, &mut left, |id| proposals.is_awaited(id));
                self.apply.queue.set_left(left.saturating_sub(bytes));
                match outcome {
                    Ok(Some(applied)) => self.applied(&begun, applied, now),
                    Ok(None) => self.apply.queue.begun(begun),
                    Err(fatal) => self.cannot_apply(fatal, now)?,
                }
            }
            EntryKind::ConfChange => {
                self.apply.queue.set_left(self.apply.queue.left().saturating_sub(bytes));
                self.passed(entry.index, entry.term);
                self.apply_conf_change(entry, command)?;
            }
        }
        Ok(())
    }

    /// Continues the entry that was begun in an earlier turn.
    fn go_on(&mut self, now: Instant) -> Result<(), Fatal> {
        let values = AtHand::new(&self.apply.values, self.apply.queue.arrived());
        let mut left = self.apply.queue.left();
        let progress = self.machine.go_on(&values, &mut left);
        let missing = values.into_missing();
        self.apply.queue.set_left(0);
        match progress {
            Ok(Progress::More) => {}
            Ok(Progress::Waits) => self.fetch_values(&missing),
            Ok(Progress::Whole(applied)) => {
                // The entry is complete, so what is left of this turn's work can be used for the next
                // entries. In all other cases nothing more is applied in this turn.
                self.apply.queue.set_left(left);
                if let Some(begun) = self.apply.queue.ended() {
                    self.applied(&begun, *applied, now);
                }
            }
            Err(fatal) => self.cannot_apply(fatal, now)?,
        }
        Ok(())
    }

    fn fetch_values(&mut self, missing: &[mvcc::Value]) {
        self.apply.queue.wait_for(self.apply.values.fetch_first(missing));
    }

    fn cannot_apply(&mut self, fatal: machine::Fatal, now: Instant) -> Result<(), Fatal> {
        if !fatal.is_unreadable || planted::is(Bug::UnreadableValueIsFatal) {
            return Err(fatal.into());
        }
        self.park(&fatal, now);
        Ok(())
    }

    /// Records that an entry was applied, or that a membership change is being applied.
    fn passed(&mut self, index: Index, term: Term) {
        if self.history.applied(index, term) {
            self.propose_again(term);
        }
        self.publication.request();
        self.apply.queue.applied();
        self.space.checkpoints.entry_applied();
    }

    /// Handles the outcome of an entry that was applied.
    fn applied(&mut self, begun: &OpenEntry, applied: Applied, now: Instant) {
        self.passed(begun.index, begun.term);
        let took = self.shared.member.clock.now().saturating_duration_since(begun.since);
        if applied.op == machine::UNDECODABLE
            && let Err(status) = &applied.outcome
        {
            self.logger.error(
                "this version cannot decode an entry of the log, so the entry changes nothing on members of this version; if there are members of another version, compare their states (`mainstay doctor`)",
                &[("index", Value::Uint(begun.index.0)), ("why", Value::Str(&status.message))],
            );
        }
        self.apply.meters.applied(applied.op, &applied.outcome, begun.bytes, took);
        if took > self.options.warning_apply_duration {
            self.shared.diagnostics.metrics.server.slow_apply.inc();
            self.logger.warn(
                "apply request took too long",
                &[
                    ("took", Value::Duration(took)),
                    ("expected-duration", Value::Duration(self.options.warning_apply_duration)),
                    ("operation", Value::Str(applied.op)),
                    ("index", Value::Uint(begun.index.0)),
                    ("size", Value::Uint(begun.bytes as u64)),
                ],
            );
        }
        if let Some(change) = applied.change {
            self.changed(change, now);
        }
        let waiter = self.proposals.take(applied.request_id);
        if waiter.is_none() && applied.outcome == Ok(Outcome::LeaseCheckpointed) {
            self.leases.noted_by_another();
        }
        match waiter.unwrap_or(Waiter::Nobody) {
            Waiter::Expiry(id) => {
                let gone = applied.outcome.is_ok() || applied.outcome == Err(error::LEASE_NOT_FOUND);
                self.leases.revocation_ended(id, !gone, now);
            }
            Waiter::Attributes => {
                let own = self.machine.members.by_id.get(&self.shared.member.identity.member_id);
                self.attributes.applied(own.map(|own| (own.name.as_str(), own.client_urls.as_slice())));
            }
            Waiter::Autopilot => self.autopilot_ended(applied.outcome.map(|_| ())),
            Waiter::Nobody => {}
            waiter => {
                let revision = self.machine.store.current_revision();
                let named = applied.outcome.as_ref().is_ok_and(Outcome::names_values);
                let state = named.then(|| Box::new(self.as_applied()));
                let (outcome, raft_term) = (applied.outcome, begun.term);
                self.answers.once_published(Answerable { waiter, outcome, state, revision, raft_term });
            }
        }
        if self.leadership.applied(begun.term, self.node.status()) {
            // The lease clocks start only now, because now all lease checkpoints of earlier terms are
            // applied, and the clocks start with the checkpointed times.
            let doubted = self.node.take_followed_etcd() || self.node.others() == OtherPrograms::SomeEtcd;
            self.leases.start(&self.machine.leases, doubted, now);
        }
    }

    /// Returns a reader of the current state. The state stays readable for the reader, although a compaction
    /// later in this turn may remove versions.
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
                // As in etcd, a member computes no hashes for compactions whose entries were in its log at
                // its start.
                let is_hashed = !self.history.was_replayed(self.machine.applied_index);
                self.compactions.removal.compacted(
                    revision,
                    self.machine.store.current_revision(),
                    is_hashed,
                    now,
                );
            }
            Change::Alarms(raised) => {
                self.publication.alarms_changed(&self.machine);
                self.alarms_changed(raised);
            }
            Change::Members => self.tell_members(),
            Change::Auth(change) => self.auth_changed(&change),
        }
    }

    /// Handles an applied entry that changed users or roles, or authenticated a user.
    fn auth_changed(&mut self, change: &AuthChange) {
        // The token of an authentication from before this member's start is not created again, because it may
        // have expired long ago.
        let is_old = matches!(change, AuthChange::Authenticated { .. })
            && self.history.was_replayed(self.machine.applied_index);
        if !is_old {
            self.shared.clients.credentials.auth_changed(change, self.machine.auth.revision());
        }
        match change {
            // An authentication does not change the state, so the published tables stay valid.
            AuthChange::Authenticated { .. } => {}
            AuthChange::Changed | AuthChange::Forget(_) | AuthChange::Enabled | AuthChange::Disabled => {
                self.publication.auth_changed(&self.machine);
            }
        }
    }
}

/// The index with a memory budget.
impl Core {
    /// Adopts a part of a base that was written, and evicts blocks if too many are in memory.
    pub(super) fn work_on_index(&mut self, now: Instant) {
        let Some(cache) = self.index_base.cache().cloned() else { return };
        if self.machine.is_whole() {
            self.adopt_some(now);
        }
        let evicted = if cache.is_over() { self.machine.store.evict(EVICTIONS_PER_TURN) } else { 0 };
        self.index_base.evicted();
        if evicted > 0 {
            // The memory of evicted blocks is freed once a later view has replaced the current one.
            self.publication.request();
        }
    }

    fn adopt_some(&mut self, now: Instant) {
        if self.machine.store.is_adopting() {
            let progress = self.machine.store.adopt_step(LEAVES_PER_TURN);
            self.publication.request();
            if progress.done {
                self.logger.debug(
                    "the index reads settled keys from the newest checkpoint",
                    &[("pinned-bytes", Value::Uint(self.machine.store.stats().pinned_bytes))],
                );
                // The files of the base before are removed now, so that there may be space for a reserve.
                self.have_room_kept(false);
                self.reclaim();
            }
        } else if !self.space.moves.are_under_way()
            && let Some((base, moment)) = self.index_base.take_adoptable(&self.machine.store, now)
        {
            self.machine.store.adopt(base, &moment);
            self.publication.request();
        } else if self.space.room.is_tight(&self.log)
            && self.index_base.give_up_waiting(&self.machine.store, now)
        {
            // While a base waits, no values are moved, which would free segments.
            self.reclaim();
        }
    }

    /// Returns an error if a block of the index could not be read, so that what was applied since may be
    /// wrong. Called before anything of it is published.
    pub(super) fn check_index(&self) -> Result<(), Fatal> {
        match self.index_base.cache().and_then(|cache| cache.fault()) {
            Some(fault) => Err(Fatal::Index(fault.to_owned())),
            None => Ok(()),
        }
    }
}

/// Reclaiming space: removals, checkpoints, and emptied segments.
impl Core {
    /// Removes a slice of the versions that compactions made unreadable.
    pub(super) fn remove_slice(&mut self, now: Instant) {
        if !self.machine.is_whole() {
            return;
        }
        match self.compactions.removal.step(|revision| self.shared.core.attendance.all_saw(revision), now) {
            removal::Step::Nothing => return,
            removal::Step::Publish => {
                self.publication.request();
                return;
            }
            removal::Step::Remove => {}
        }
        // Versions above `through` are not removed yet: they belong to a compaction whose removal has not
        // begun, and watches may still need them.
        let wanted = self.compactions.removal.through();
        let quota_bytes = self.shared.member.limits.quota_bytes.unwrap_or(u64::MAX);
        let kept_bytes = self.machine.store.stats().removable_bytes;
        let keeps_few =
            kept_bytes <= KEPT_BYTES_MAX.min(quota_bytes / 8) && !self.space.room.is_tight(&self.log);
        let removable = self.shared.data.long_reads.removable(wanted, keeps_few, now);
        if removable.overtaken > 0 {
            self.shared.diagnostics.metrics.long_reads.overtaken.add(removable.overtaken as u64);
            self.logger.warn(
                "aborted long-running reads that delayed the removal of compacted revisions for too long",
                &[("readers", Value::Uint(removable.overtaken as u64)), ("revision", Value::Int(wanted.0))],
            );
        }
        let versions = self.machine.store.stats().versions;
        let done = self.machine.compact_step_through(removable.through, self.compactions.versions_per_slice);
        let removed = versions.saturating_sub(self.machine.store.stats().versions);
        let sliced = match done {
            true => SliceOutcome::All,
            false if removed == 0 => SliceOutcome::Waits,
            false => SliceOutcome::Some,
        };
        let (told, took) = self.compactions.removal.sliced(sliced, now);
        if sliced != SliceOutcome::Waits {
            let metrics = &self.shared.diagnostics.metrics.mvcc;
            metrics.db_compaction_keys.add(removed);
            let pause = self.shared.member.clock.now().saturating_duration_since(now);
            metrics.db_compaction_pause.observe_milliseconds(pause);
            // A publication is requested, because the memory of the removed versions is freed only when later
            // views have replaced the current one.
            self.publication.request();
        }
        if let Some(took) = took {
            if self.has_garbage() {
                self.space.checkpoints.would_free(now);
            }
            let metrics = &self.shared.diagnostics.metrics.mvcc;
            metrics.db_compaction_total.observe_milliseconds(took);
            metrics.db_compaction_last.set_u64(self.shared.member.clock.unix_seconds());
        }
        for reply in told {
            self.answers.push(reply);
        }
    }

    fn survey(&self) -> Survey<'_> {
        self.space.survey(&self.log, &self.machine, self.kept_behind(self.machine.applied_index))
    }

    /// Returns true if sealed segments hold so much garbage that a checkpoint is worthwhile: it frees
    /// segments, or lets values be moved out of them.
    fn has_garbage(&self) -> bool {
        self.survey().has_garbage()
    }

    /// Returns true if values were moved out of a segment that is empty now. Only a whole checkpoint frees
    /// such a segment.
    pub(super) fn has_emptied(&self) -> bool {
        self.space.checkpoints.has_emptied(|segment| self.survey().is_empty(segment))
    }

    /// Makes a whole checkpoint due if values were moved out of a segment that is empty now. Runs of earlier
    /// checkpoints refer to the old locations of the moved values. Only a whole checkpoint replaces all runs, and
    /// so lets the segment be deleted. Returns false if there is no such segment.
    pub(super) fn free_emptied(&mut self) -> bool {
        let has_emptied = self.has_emptied();
        if has_emptied {
            self.space.checkpoints.want_whole();
        }
        has_emptied
    }

    /// Returns the head of a checkpoint that is ordered now.
    pub(super) fn checkpoint_head(&self) -> Box<Head> {
        let mut head = Box::new(self.machine.head());
        // Values that are on their way may arrive, compressed, before the run is written.
        head.compressed_values |= self.options.compresses_values && self.space.moves.were_ordered();
        if head.compressed_values {
            self.shared.data.note_compressed_values();
        }
        head
    }

    /// Orders a checkpoint if one is due and may be taken.
    pub(super) fn order_checkpoint(&mut self, now: Instant) {
        // A stopping member makes no new files. This loses nothing: the next start reads from the log the
        // entries that are in no checkpoint, and applies them again.
        if self.lifecycle.is_stopping() {
            return;
        }
        // While a snapshot is being received, no segment may be deleted, because the snapshot refers to
        // values in the segments. A checkpoint would let segments be deleted.
        if self.space.checkpoints.is_busy() || self.install.is_receiving() || !self.machine.is_whole() {
            return;
        }
        // An installed state is saved by a whole checkpoint, because the runs on disk do not contain the
        // locations of its values. No other checkpoint is taken until that one is saved, not even between two
        // attempts to save it: another checkpoint would reuse the old runs, and yet free segments to which
        // these runs refer.
        if self.install.is_unsaved() {
            if self.install.wants_checkpoint(now) {
                self.order_install(now);
            }
            return;
        }
        // While no leader is settled, a checkpoint is taken only on a disk that is short of space. There the
        // first entry of the leader's term may wait for the space that this checkpoint frees.
        if self.leadership.is_unsettled() && self.log.space() == Space::Ample {
            return;
        }
        if self.index_base.cache().is_some() {
            // A base may be written, for which no value may move before the index has adopted it. Values that are on
            // their way arrive with the next syncs.
            let store = &self.machine.store;
            // On a disk that is short of space they may wait for what this checkpoint frees. If they arrive while the base
            // is written, it fails or is not adopted.
            let waits_for_moves = self.space.moves.are_under_way() && !self.space.room.is_tight(&self.log);
            if waits_for_moves || store.is_adopting() {
                return;
            }
            if store.is_removal_done()
                && self.index_base.is_due(&store.stats(), store.compact_revision(), now)
            {
                self.space.checkpoints.want_whole();
            }
        }
        let log_bytes = self.log.figures().written_bytes();
        let usage = |segment| self.machine.usage().get(&segment).is_none_or(|usage| usage.values == 0);
        let Some(whole) = self.space.checkpoints.due(log_bytes, usage, now) else { return };
        // A base that waits for the removal of versions, perhaps for long, is given up: the new checkpoint may have one,
        // too. A base that does not wait is adopted first.
        self.index_base.give_up_waiting(&self.machine.store, now);
        if self.index_base.keeps_places(&self.machine.store) {
            return;
        }
        // The cause of the alarm must be in the note before the checkpoint is made. After the checkpoint, the
        // entry that raised the alarm, and that also contains the cause, may be deleted from the log.
        if !self.note_cause() {
            return;
        }
        let moment = self.shared.state.load().view.moment_of_everything();
        let mut empty_segments = self.survey().empty_segments();
        empty_segments.retain(|segment| self.space.checkpoints.frees(*segment, whole));
        let terms = self.history.terms();
        let mut head = self.checkpoint_head();
        if planted::is(Bug::AppliedIndexEarly) {
            head.applied_index += 1;
        }
        let state = self.shared.read_long_at(Reader::Checkpoint, moment);
        let order = Order::Checkpoint { head, state, whole, terms };
        if !self.workers.order(order) {
            return;
        }
        self.index_base.ordered(moment, whole);
        self.space.checkpoints.ordered(empty_segments, whole, log_bytes, now);
        if planted::is(Bug::SegmentDeletedEarly) {
            let early = self.space.checkpoints.take_empty();
            early.into_iter().for_each(|segment| self.space.segments.delete_later(segment));
        }
    }

    /// Returns the log index up to which the log may drop its entries, because no follower that lags behind
    /// should need them.
    fn kept_behind(&self, applied_index: Index) -> Index {
        match self.machine.members.by_id.len() {
            0 | 1 => applied_index,
            // A witness never leads, so nobody takes entries from it.
            _ if self.shared.member.is_witness => applied_index,
            // On a disk that is short of space, no entries are kept for followers. A follower that needs a
            // deleted entry gets the whole state instead.
            _ if self.space.room.is_tight(&self.log) => applied_index,
            _ => {
                let kept = applied_index.saturating_sub(self.options.snapshot_catchup_entries);
                self.outgoing.kept_behind().map_or(kept, |behind| behind.min(kept))
            }
        }
    }

    /// Handles the result of a checkpoint.
    pub(super) fn checkpointed(
        &mut self,
        result: Result<Checkpointed, CheckpointError>,
        now: Instant,
    ) -> Result<(), Fatal> {
        match result {
            Ok(done) => {
                let (saved, applied) = (done.applied_index, self.machine.applied_index);
                assert!(saved <= applied, "entry {saved} is in a checkpoint, but only {applied} is applied");
                for segment in self.space.checkpoints.saved(&done, now) {
                    self.space.segments.delete_later(segment);
                }
                self.space.room.checkpointed(true);
                self.log.forget_below(self.kept_behind(done.applied_index));
                self.logger
                    .debug("saved a checkpoint", &[("applied-index", Value::Uint(done.applied_index.0))]);
                self.install_saved(done.applied_index, now)?;
                self.index_base.written(done.base, now);
                self.reclaim();
            }
            Err(error) => {
                self.space.checkpoints.failed(now);
                self.index_base.failed(now);
                let why = error.to_string();
                self.install.failed(&why, now);
                self.logger.warn("could not save a checkpoint", &[("error", Value::Str(&why))]);
                if error.is_full() {
                    // The next `look_at_disk` raises the alarm because of this call. The next checkpoint that
                    // is saved ends the shortage, so the failed one is tried again soon.
                    self.space.room.checkpointed(false);
                    self.space.checkpoints.retry(now);
                }
            }
        }
        self.measure_disk();
        Ok(())
    }

    /// Orders the checkpointer to move the live values out of sparsely used segments.
    fn reclaim(&mut self) {
        if self.index_base.keeps_places(&self.machine.store) {
            // Called again once the base is adopted.
            return;
        }
        let segments = self.survey().worth_emptying(self.space.checkpoints.applied_index());
        if !segments.is_empty() {
            // The result is ignored: if the checkpointer is busy, the values are moved after the next
            // checkpoint, which calls this function again.
            let _ = self.order_relocation(segments, Haste::AtOnce);
        }
    }

    /// Orders the checkpointer to move the live values out of these segments. Returns false if it is busy.
    fn order_relocation(&mut self, segments: Vec<u32>, haste: Haste) -> bool {
        self.order_moves(|portion_bytes| Order::Relocate { segments, portion_bytes, haste })
    }

    /// Gives the checkpointer an order to move values, in batches of the size that `order` receives. Returns
    /// false if it is busy.
    fn order_moves(&mut self, order: impl FnOnce(usize) -> Order) -> bool {
        let is_ordered = self.workers.order(order(self.space.room.portion_bytes(&self.log)));
        if is_ordered {
            self.space.moves.ordered();
        }
        is_ordered
    }

    /// Returns the numbers of all segments.
    fn segment_numbers(&self) -> BTreeSet<u32> {
        self.log.segments().iter().map(|segment| segment.seq).collect()
    }

    /// Returns true if the checkpointer may be given an order to move values that is not urgent.
    fn may_move_at_leisure(&mut self) -> bool {
        // Where space is short, all of it is left to what frees more and to the checkpoints of that. Other
        // work of the checkpointer goes first, too.
        if self.space.room.is_tight(&self.log)
            || self.log.values().has_hidden_limit()
            || self.space.checkpoints.is_busy()
            || self.space.checkpoints.is_to_free()
            || self.space.moves.are_ordered()
            || self.space.moves.are_under_way()
            || self.index_base.keeps_places(&self.machine.store)
            || self.install.is_receiving()
            || self.install.is_unsaved()
            || self.lifecycle.is_stopping()
            || self.lifecycle.is_parked()
            || self.leadership.is_unsettled()
            || !self.machine.is_whole()
        {
            return false;
        }
        // The last value of a segment may have been removed after the others were moved, and nothing else may ask
        // for the checkpoint that frees it. Versions that wait to be removed, because a reader needs them, cannot
        // be moved, so their segments would stay although everything else was copied.
        !self.free_emptied() && self.machine.store.is_removal_done()
    }

    /// Orders the checkpointer to empty segments that hold only a little garbage, if there is much of it in
    /// all and the budget for such work suffices.
    pub(super) fn tidy(&mut self, now: Instant) {
        let whole_bytes = self.survey().whole_checkpoint_bytes();
        let budget = self.space.tidying.budget(self.log.segment_bytes(), whole_bytes, now);
        let Some(budget_bytes) = budget.filter(|_| self.may_move_at_leisure()) else { return };
        let is_left_alone = |segment, live| self.space.tidying.is_left_alone(segment, live);
        let saved_through = self.space.checkpoints.applied_index();
        let segments = self.survey().worth_tidying(saved_through, budget_bytes, is_left_alone);
        if segments.is_empty() {
            self.space.tidying.found_nothing();
        } else if self.order_relocation(segments.iter().map(|(seq, _)| *seq).collect(), Haste::InPauses) {
            let exist = self.segment_numbers();
            self.space.tidying.ordered(&segments, |segment| exist.contains(&segment));
        }
    }

    /// Orders the checkpointer to compress the values in old segments, if this is wanted and worthwhile.
    pub(super) fn look_at_compression(&mut self, now: Instant) {
        let is_due = self.options.compresses_values && self.space.compression.is_due(now);
        if !is_due || !self.may_move_at_leisure() {
            return;
        }
        let is_judged = |segment| self.space.compression.is_judged(segment);
        let segments = self.survey().worth_compressing(self.space.checkpoints.applied_index(), is_judged);
        if segments.is_empty() {
            return;
        }
        let ordered: Vec<u32> = segments.iter().map(|(segment, _)| *segment).collect();
        if self.order_moves(|portion_bytes| Order::Compress { segments, portion_bytes }) {
            self.logger.debug(
                "compressing the values in old segments that are worth it",
                &[("segments", Value::Uint(ordered.len() as u64))],
            );
            let exist = self.segment_numbers();
            self.space.compression.ordered(ordered, |segment| exist.contains(&segment));
        }
    }

    /// Publishes the number of bytes on disk to the other threads.
    pub(super) fn measure_disk(&self) {
        let log_bytes: u64 = self.log.segments().iter().map(|s| s.used_bytes).sum();
        self.shared.data.set_disk_bytes(log_bytes + self.space.checkpoints.bytes());
    }

    pub(super) fn measure_readers(&self, now: Instant) {
        let (readers, since) = self.shared.data.long_reads.figures();
        let metrics = &self.shared.diagnostics.metrics.long_reads;
        metrics.open.set_u64(readers as u64);
        metrics.oldest.set_u64(since.map_or(0, |since| now.saturating_duration_since(since).as_secs()));
    }

    pub(super) fn relocate(&mut self, values: Vec<Relocation>, done: SyncSender<()>, now: Instant) {
        let receiving = self.install.is_receiving();
        let bytes = Room::bytes_of(values.iter().map(|value| value.data.len()));
        let fits = self.space.room.has(&self.log, bytes, Purpose::Moves) && !self.space.room.is_full();
        // A checkpoint may be a base in blocks, during which no value may move. And a moved value brings its leaf into
        // memory, so that a large index needs a base first.
        let store = &self.machine.store;
        let is_large = store.base().is_some()
            && self.index_base.is_large(&store.stats())
            && !self.space.room.is_tight(&self.log);
        let stays = self.index_base.cache().is_some()
            && (self.space.checkpoints.is_busy() || self.index_base.keeps_places(store) || is_large);
        if !fits || self.lifecycle.is_stopping() || receiving || stays || values.is_empty() {
            // Without a signal the mover ends: the values behind these would be refused, too. They stay where
            // they are, and are moved after the next checkpoint.
            self.space.moves.refused();
            return;
        }
        let mut batch = Vec::with_capacity(values.len());
        let mut moving = Vec::with_capacity(values.len());
        for value in values {
            let id = log::ValueId { main: value.id.main.0, sub: i64::from(value.id.sub) };
            moving.push((value.id, value.from));
            batch.push(log::Value { id, data: value.data, compressed: value.compressed });
        }
        if self.space.room.hand_values(&mut self.log, batch, now).is_none() {
            // Without a signal the mover ends: the values behind these would be refused, too. They stay where
            // they are, and are moved after the next checkpoint.
            self.space.moves.refused();
            return;
        }
        self.space.moves.begin(moving, done);
    }

    /// Deletes the segments that no durable file needs and to which no view refers.
    pub(super) fn delete_pending(&mut self) {
        if self.install.is_receiving() {
            return;
        }
        if self.space.segments.pending_delete() > 0 && self.machine.store.old_bases() > 0 {
            // A view that still reads an older base may load a block with locations in these segments.
            self.publication.request();
            return;
        }
        let (log, logger) = (&mut self.log, &self.logger);
        let has_to_publish = self.space.segments.release(|segment| {
            if let Err(why) = log.release(segment) {
                logger.warn("could not release a segment", &[("error", Value::Str(&format!("{why:?}")))]);
            }
        });
        if has_to_publish {
            self.publication.request();
        }
    }
}
