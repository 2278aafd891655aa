//! Decides which faults happen and when, and ends them again.

mod kinds;
mod machines;

use std::path::Path;

use disk::{Lie, Operation};
use server::stepped::DataDirError;

use crate::member::Slowness;
use crate::network::{Host, Weather};
use crate::profile::Fault;
use crate::rng::Rng;
use crate::schedule::{MILLI, SECOND};
use crate::staged::Step;
use crate::world::{Event, Undo, World};

/// Highest clock drift, in parts per million.
pub(crate) const DRIFT_MAX_PPM: i64 = 20_000;

/// Returns the number of a log segment file; `None` for any other file.
fn segment_number(path: &Path) -> Option<u32> {
    path.extension().filter(|extension| *extension == "seg")?;
    u32::from_str_radix(path.file_stem()?.to_str()?, 16).ok()
}

impl World {
    pub(crate) fn begin_faults(&mut self) {
        if self.profile.crowd > 0 {
            let at = self.dice.faults.place(self.places.len());
            let delay = self.dice.faults.between(2 * SECOND, self.profile.chaos.max(3 * SECOND));
            self.schedule.after(delay, Event::Staged(Step::Crowd(at, self.profile.crowd)));
        }
        if self.profile.fails(Fault::SlowDisk) {
            let at = self.dice.faults.place(self.places.len());
            self.places[at].slowness = Slowness::for_good(self.dice.faults.between(2, 30));
        }
    }

    /// Draws the place of a member that is not retired, whether the member runs or not.
    fn some_member(&mut self) -> Host {
        let all: Vec<Host> =
            self.places.iter().filter(|place| !place.retired).map(|place| place.number).collect();
        // Faults at the leader reveal the most bugs, so the leader is chosen more often.
        if self.dice.faults.one_in(4)
            && let Some(leader) = self.leader()
        {
            return leader;
        }
        if all.is_empty() { 0 } else { self.dice.faults.pick(&all) }
    }

    /// Injects one fault of the profile at one member, and schedules the next one.
    pub(crate) fn fault(&mut self) {
        if !self.chaos {
            return;
        }
        if self.staged.is_delicate() {
            self.schedule.after(SECOND, Event::Fault);
            return;
        }
        let next = self.dice.faults.around(self.profile.fault_every);
        self.schedule.after(next, Event::Fault);
        let Some(kind) = self.pick_fault() else { return };
        let at = self.some_member();
        let now = self.now();
        self.counts.faults += 1;
        if !matches!(kind, Fault::ClientLoss | Fault::Shrink | Fault::Farewell) {
            self.staged.disturbed(now);
        }
        self.trace.note(now, format_args!("fault {} at m{at}", kind.name()));
        // Blocks of a base are read only on demand, so most flips in them are never noticed.
        if self.profile.fails(Fault::Decay) && self.has_blocks(at) {
            let name = format!("decay of blocks {}", self.counts.faults);
            if Rng::stream(self.profile.seed, &name).one_in(3) {
                self.decay(at);
            }
        }
        match kind {
            Fault::Power => self.crash(at, true),
            Fault::Kill => self.crash(at, false),
            Fault::Blackout => self.blackout(),
            Fault::PowerAtOperation => self.cut_power_at_operation(at),
            Fault::Stop => self.stop(at),
            Fault::Pause => self.pause(at),
            Fault::Suspend => self.suspend(at),
            Fault::Drift => self.drift(at),
            Fault::Jump => self.jump(at),
            Fault::Partition => self.cut(false),
            Fault::OneWay => self.cut(true),
            Fault::Loss | Fault::Duplication | Fault::Reordering | Fault::Cut => self.worsen_weather(kind),
            Fault::SlowLink => self.slow_link(at),
            Fault::Stall => self.stall(at),
            Fault::SlowDisk => self.slow_disk(at),
            Fault::Full => self.fill_disk(at),
            Fault::WriteError => self.fail_operation(at, Operation::Write),
            Fault::SyncError => self.fail_operation(at, Operation::Sync),
            Fault::ReadError => self.fail_operation(at, Operation::Read),
            Fault::FileError => self.fail_file_operation(at),
            Fault::DiskLost => self.lose_disk(at),
            Fault::Decay => self.decay(at),
            Fault::LostWrite => self.lie_about_write(at, Lie::Lost),
            Fault::Misdirected => self.lie_about_write(at, Lie::Misdirected),
            Fault::Wall => self.set_wall(at),
            Fault::Witness => self.lose_machine(at),
            Fault::Strand | Fault::Ambush => self.staged.lurk(kind),
            // These kinds are not single events: the code that they affect asks the profile whether they are
            // enabled.
            Fault::NoHeir
            | Fault::Farewell
            | Fault::Break
            | Fault::ClientLoss
            | Fault::Flags
            | Fault::Shrink
            | Fault::Tight
            | Fault::Quota
            | Fault::Etcd
            | Fault::Observers
            | Fault::Autopilot => {}
        }
    }

    /// Draws the kind of the next fault from those in the profile; returns `None` if the profile has none.
    fn pick_fault(&mut self) -> Option<Fault> {
        let kinds: Vec<Fault> =
            Fault::ALL.iter().copied().filter(|fault| self.profile.fails(*fault)).collect();
        // If no kind is enabled, no number is drawn, so that the later draws of the seed stay the same.
        if kinds.is_empty() {
            return None;
        }
        let mut kind = self.dice.faults.pick(&kinds);
        for staged in [Fault::Strand, Fault::Ambush] {
            if self.profile.fails(staged) && self.dice.faults.one_in(4) {
                kind = staged;
            }
        }
        if self.profile.fails(Fault::Autopilot) && self.dice.faults.one_in(4) {
            // A disk is lost only while all members are there, so it is tried more often.
            kind = Fault::DiskLost;
        }
        if self.profile.fails(Fault::Witness) && !self.machine_lost && self.dice.faults.one_in(4) {
            // Often the members are not in step, so it is tried more often.
            kind = Fault::Witness;
        }
        for lie in [Fault::LostWrite, Fault::Misdirected] {
            // Most faults of these kinds have no effect, so they are chosen more often.
            if self.profile.fails(lie) && self.dice.faults.one_in(6) {
                kind = lie;
            }
        }
        Some(kind)
    }

    /// Records for each member how far its log is proven to be durable. If a log has grown since the last
    /// call, its older part is durable, because a batch is written only after the sync of the batch before
    /// it.
    pub(crate) fn settle_logs(&mut self) {
        (0..self.places.len()).for_each(|at| self.settle_log(at));
    }

    /// Records how far one member's log is proven to be durable.
    pub(crate) fn settle_log(&mut self, at: Host) {
        let place = &mut self.places[at];
        let Some(process) = &place.process else { return };
        let end = process.stepped.log_end();
        if place.log_end != end {
            (place.proven_log, place.log_end) = (place.log_end, end);
        }
    }

    /// Records the end of the log that a process has just opened. Everything before this end is durable.
    pub(crate) fn log_opened(&mut self, at: Host) {
        let place = &mut self.places[at];
        let end = place.process.as_ref().and_then(|process| process.stepped.log_end());
        (place.proven_log, place.log_end) = (end, end);
    }

    /// Carries out the scheduled end of a fault, or a scheduled drop of a page cache.
    pub(crate) fn undo(&mut self, undo: Undo) {
        let now = self.now();
        match undo {
            Undo::Network => self.network.join(),
            Undo::Weather => self.network.weather = Weather::default(),
            Undo::Full(at) => self.places[at].disk.set_capacity(self.profile.capacity()),
            Undo::SlowDisk(at) => self.places[at].slowness.end(),
            Undo::Drift(at) => self.places[at].time.drift(now, 0),
            Undo::Cache(at) => self.drop_cache_somehow(at),
        }
    }

    /// Handles a process that could not be started.
    pub(crate) fn not_started(&mut self, at: Host, error: &DataDirError) {
        let power = self.places[at].disk.is_dark();
        self.end(at, power);
        let place = &mut self.places[at];
        if place.decayed {
            place.lost = true;
            if self.places[at].observes {
                self.renew_observer(at);
            }
            return;
        }
        if self.operator.is_removed(place.id) && matches!(error, DataDirError::Removed { .. }) {
            // The operator has not listed the members since it requested the removal, so it has not retired
            // the member. Retire it here, so that it is not started again.
            place.retired = true;
            return;
        }
        if !power && !place.may_not_start {
            return self.fail(format!("member {at} does not start: {error}"));
        }
        let delay = self.dice.faults.between(100 * MILLI, 3 * SECOND);
        self.start_after(at, delay);
    }

    /// Ends all faults: from now on networks and disks work, and enough members run.
    pub(crate) fn heal(&mut self) {
        let now = self.now();
        self.chaos = false;
        self.operator.look_again();
        self.network.heal();
        self.trace.note(now, format_args!("all faults end"));
        for at in 0..self.places.len() {
            let place = &mut self.places[at];
            place.time.resume(now);
            place.time.drift(now, 0);
            place.clock_resets = false;
            place.disk.drop_cache(|_, _| false);
            place.paused_until = 0;
            place.stalled_until = 0;
            place.slowness = Slowness::default();
            let capacity = self.profile.capacity().map(|most| {
                let used = place.disk.used_bytes();
                let nearly = most > used && most - used < u64::from(self.profile.segment_bytes);
                // In some runs another program takes the remaining disk space permanently.
                if nearly && self.dice.faults.one_in(2) { used + self.dice.faults.below(512) } else { most }
            });
            place.disk.set_capacity(capacity);
            if !place.disk.is_dark() {
                place.disk.heal();
            }
            (place.may_end, place.may_not_start, place.may_not_read) = (false, false, false);
            if self.profile.fails(Fault::ReadError) && !(place.decayed || place.lost) {
                // A member that could not read data it needs stays out of service until its process restarts,
                // so every member is restarted.
                self.end(at, false);
            }
            let place = &mut self.places[at];
            if place.observes && (place.decayed || place.lost) {
                self.renew_observer(at);
            } else if place.decayed || place.lost {
                // An operator would replace the member. In this phase no member is replaced, so the others
                // must work without it.
                self.end(at, true);
                self.places[at].retired = true;
                self.places[at].starts_at = None;
            } else if self.places[at].lives > 0 || self.places[at].observes {
                let delay = self.dice.faults.below(SECOND);
                self.places[at].starts_at = None;
                self.start_after(at, delay);
            }
        }
        if self.profile.fails(Fault::Autopilot) && self.dice.faults.one_in(2) {
            return self.lose_one_for_good();
        }
        let whole = self.places_of_members().count() == self.profile.members
            && self.places_of_members().all(|place| !place.retired);
        let whole = whole && !self.profile.fails(Fault::Shrink);
        // Beside a witness the others must be in step before one is lost.
        let may_miss = self.profile.members >= 3 && self.profile.witness().is_none();
        if whole && may_miss && self.dice.faults.one_in(4) {
            // A majority of the members suffices, so one member may stay down until the end.
            let at = self.dice.faults.place(self.profile.members);
            self.end(at, true);
            self.places[at].retired = true;
            self.places[at].starts_at = None;
        }
    }
}
