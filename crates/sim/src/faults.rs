//! What goes wrong, when, and how it is put right again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use disk::Operation;

use crate::network::{CLIENTS, Host, Weather};
use crate::profile::Fault;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::staged::Step;
use crate::world::{Event, World};

/// Something that was made wrong for a while.
pub(crate) enum Undo {
    /// Cuts and slow links.
    Network,
    /// Loss, duplication, reordering.
    Weather,
    /// A disk without room.
    Full(Host),
    /// A slow disk.
    SlowDisk(Host),
    /// A clock's drift.
    Drift(Host),
}

/// By how many millionths a clock may be wrong.
pub(crate) const DRIFT_MAX_PPM: i64 = 20_000;

/// Bytes of a segment in use, at the most, before anything was written to it.
const SEGMENT_USED_MIN: u64 = 4096;

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "seg")
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
            self.places[at].slowness = self.dice.faults.between(2, 30);
        }
    }

    /// A member that is a member still, whatever its state.
    fn some_member(&mut self) -> Host {
        let all: Vec<Host> =
            self.places.iter().filter(|place| !place.retired).map(|place| place.number).collect();
        // A leader has more to lose.
        if self.dice.faults.one_in(4)
            && let Some(leader) = self.leader()
        {
            return leader;
        }
        if all.is_empty() { 0 } else { self.dice.faults.pick(&all) }
    }

    /// Whether the data of one more member may be damaged: the others have to hold everything.
    fn may_damage(&self) -> bool {
        self.profile.members >= 3
            // Of those that are removed nobody knows who is needed still.
            && !self.profile.fails(Fault::Shrink)
            && self.operator.is_whole()
            && self.places.iter().all(|place| place.retired || !(place.lost || place.decayed))
            // Whoever was added must have been started, and have caught up.
            && self.places.iter().filter(|place| !place.retired).all(|place| {
                self.checks.standing(place.number).is_some_and(|standing| standing.applied + 50 > self.checks.commit())
            })
    }

    fn duration(&mut self, low: Nanos, high: Nanos) -> Nanos {
        // Short ones are as likely as long ones.
        let shift = self.dice.faults.below(6);
        low + (self.dice.faults.below(high - low) >> shift)
    }

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
        let kinds: Vec<Fault> =
            Fault::ALL.iter().copied().filter(|fault| self.profile.fails(*fault)).collect();
        // Whether it is on or not, what the dice give is the same.
        if kinds.is_empty() {
            return;
        }
        let mut kind = self.dice.faults.pick(&kinds);
        for staged in [Fault::Strand, Fault::Ambush] {
            if self.profile.fails(staged) && self.dice.faults.one_in(4) {
                kind = staged;
            }
        }
        let at = self.some_member();
        let now = self.now();
        self.counts.faults += 1;
        if !matches!(kind, Fault::ClientLoss | Fault::Shrink | Fault::Farewell) {
            self.staged.disturbed(now);
        }
        self.trace.note(now, format_args!("fault {} at m{at}", kind.name()));
        match kind {
            Fault::Power | Fault::Kill => {
                self.crash(at, kind == Fault::Power);
            }
            Fault::Blackout => {
                for at in 0..self.places.len() {
                    if self.dice.faults.per_mille(700) {
                        self.crash(at, true);
                    }
                }
            }
            Fault::PowerAtOperation => {
                let nth = self.dice.faults.between(1, 40);
                self.places[at].disk.fail_next(Operation::Change, nth, disk::Fault::PowerCut);
            }
            Fault::Stop => {
                self.stop(at);
            }
            Fault::Pause => {
                // Now and then so long that others have elected another leader and let leases expire.
                let long = self.dice.faults.one_in(4);
                let length = if long {
                    self.dice.faults.between(4, 9) * SECOND
                } else {
                    self.duration(MILLI, 8 * SECOND)
                };
                self.places[at].paused_until = now + length;
            }
            Fault::Drift => {
                let ppm = self.dice.faults.below(2 * DRIFT_MAX_PPM as u64 + 1) as i64 - DRIFT_MAX_PPM;
                self.places[at].time.drift(now, ppm);
                let length = self.duration(SECOND, 20 * SECOND);
                self.schedule.after(length, Event::Undo(Undo::Drift(at)));
            }
            Fault::Jump => {
                let by = self.duration(MILLI, 5 * SECOND);
                self.places[at].time.jump(by);
                self.history.settings.lease_slack += by;
            }
            Fault::Partition | Fault::OneWay => self.cut(kind == Fault::OneWay),
            Fault::Loss | Fault::Duplication | Fault::Reordering | Fault::Cut => {
                let strength = self.dice.faults.pick(&[10, 50, 200]);
                let weather = &mut self.network.weather;
                match kind {
                    Fault::Loss => weather.loss = strength,
                    Fault::Duplication => weather.duplication = strength,
                    Fault::Cut => weather.breaking = strength,
                    _ => weather.reordering = strength,
                }
                let length = self.duration(100 * MILLI, 10 * SECOND);
                self.schedule.after(length, Event::Undo(Undo::Weather));
            }
            Fault::SlowLink => {
                let to = self.some_member();
                let delay = self.dice.faults.pick(&[50, 200, 800]) * MILLI;
                self.network.slow(at, to, delay);
                let length = self.duration(100 * MILLI, 10 * SECOND);
                self.schedule.after(length, Event::Undo(Undo::Network));
            }
            Fault::Stall => {
                self.places[at].stalled_until = now + self.duration(10 * MILLI, 6 * SECOND);
            }
            Fault::SlowDisk => {
                self.places[at].slowness = self.dice.faults.between(2, 30);
                let length = self.duration(SECOND, 10 * SECOND);
                self.schedule.after(length, Event::Undo(Undo::SlowDisk(at)));
            }
            Fault::Full => {
                let place = &mut self.places[at];
                let spare = self.dice.faults.below(u64::from(self.profile.segment_bytes));
                let most = self.profile.capacity().unwrap_or(u64::MAX);
                place.disk.set_capacity(Some((place.disk.used_bytes() + spare).min(most)));
                // A member that runs waits for room.
                place.may_not_start = true;
                let length = self.duration(100 * MILLI, 8 * SECOND);
                self.schedule.after(length, Event::Undo(Undo::Full(at)));
            }
            Fault::WriteError | Fault::SyncError | Fault::ReadError => {
                let nth = self.dice.faults.between(1, 20);
                let operation = match kind {
                    Fault::WriteError => Operation::Write,
                    Fault::SyncError => Operation::Sync,
                    _ => Operation::Read,
                };
                let place = &mut self.places[at];
                place.disk.fail_next(operation, nth, disk::Fault::Once(libc::EIO));
                // What cannot be read fails, and nothing else.
                place.may_end |= kind != Fault::ReadError;
                place.may_not_start = true;
            }
            Fault::DiskLost => {
                if self.may_damage() {
                    self.lose_disk(at);
                }
            }
            Fault::Decay => {
                if self.may_damage() {
                    self.decay(at);
                }
            }
            Fault::Strand | Fault::Ambush => self.staged.lurk(kind),
            // These have no moments of their own.
            Fault::NoHeir | Fault::Farewell => {}
            Fault::Break
            | Fault::ClientLoss
            | Fault::Flags
            | Fault::Shrink
            | Fault::Tight
            | Fault::Quota
            | Fault::Etcd => {}
        }
    }

    /// A process is told to stop.
    pub(crate) fn stop(&mut self, at: Host) {
        if let Some(process) = &mut self.places[at].process
            && !process.stopping
            && process.stepped.is_ready()
        {
            process.stopping = true;
            process.stepped.stop();
            self.settle(at);
        }
    }

    /// A process ends, and is started again after a while.
    pub(crate) fn crash(&mut self, at: Host, power: bool) {
        if self.places[at].lives == 0 || self.places[at].retired || self.places[at].lost {
            return;
        }
        self.end(at, power);
        let delay = self.duration(10 * MILLI, 6 * SECOND);
        self.start_after(at, delay);
    }

    fn lose_disk(&mut self, at: Host) {
        if self.places[at].lives == 0 {
            return;
        }
        self.end(at, true);
        let place = &mut self.places[at];
        place.lost = true;
        place.starts_at = None;
        let now = self.now();
        self.trace.note(now, format_args!("m{at} has lost its disk"));
    }

    /// Looks how far the newest segments of all logs are synced. What is written behind that belongs to later batches,
    /// which prove that this had been synced.
    pub(crate) fn settle_logs(&mut self) {
        if !self.profile.fails(Fault::Decay) {
            return;
        }
        for place in &mut self.places {
            let segments = place.disk.files().into_iter().filter(|(path, _)| is_segment(path));
            let used = segments.map(|(path, _)| (place.disk.used_len(&path).unwrap_or(0), path));
            // The next one is prepared already, and has nothing but a header.
            let newest = used.filter(|(used, _)| *used > SEGMENT_USED_MIN).max_by(|a, b| a.1.cmp(&b.1));
            place.settled_log = newest
                .filter(|(used, path)| place.disk.is_synced(path, used - 1))
                .map(|(used, path)| (path, used));
        }
    }

    fn decay(&mut self, at: Host) {
        let place = &self.places[at];
        let Some((newest, settled)) = place.settled_log.clone() else { return };
        let used = |path: &Path| place.disk.used_len(path).unwrap_or(0);
        let mut files: Vec<(PathBuf, u64)> = Vec::new();
        for (path, _) in place.disk.files() {
            let len = match used(&path) {
                // Of the last batch nobody knows whether it was synced: a torn write looks the same.
                len if path == newest && len > settled => settled,
                _ if is_segment(&path) && path >= newest => 0,
                len => len,
            };
            if len > 0 {
                files.push((path, len));
            }
        }
        if files.is_empty() {
            return;
        }
        // The log's end, every other time.
        let last = files.iter().find(|(path, _)| *path == newest).cloned();
        let (path, len) = match last {
            Some(last) if self.dice.faults.one_in(2) => last,
            _ => files[self.dice.faults.place(files.len())].clone(),
        };
        let (offset, bit) = (self.dice.faults.below(len), self.dice.faults.below(8) as u8);
        let place = &mut self.places[at];
        if place.disk.is_synced(&path, offset) && place.disk.flip_bit(&path, offset, bit).is_ok() {
            place.decayed = true;
            place.may_not_start = true;
            place.may_end = true;
            let now = self.now();
            self.trace.note(
                now,
                format_args!("m{at}: bit {bit} of byte {offset} of {} turns around", path.display()),
            );
            if self.dice.faults.one_in(2) {
                // It comes to light when the files are read again.
                self.crash(at, false);
            }
        }
    }

    fn cut(&mut self, one_way: bool) {
        let now = self.now();
        let all: Vec<Host> = (0..self.places.len()).filter(|at| !self.places[*at].retired).collect();
        let mut group: BTreeSet<Host> = all.iter().copied().filter(|_| self.dice.faults.one_in(2)).collect();
        let mut rest: BTreeSet<Host> = all.iter().copied().filter(|at| !group.contains(at)).collect();
        match self.dice.faults.below(4) {
            // One member alone.
            0 => {
                let alone = self.dice.faults.pick(&all);
                group = BTreeSet::from([alone]);
                rest = all.iter().copied().filter(|at| *at != alone).collect();
            }
            // A pair that does not hear each other, while all others do.
            1 => {
                let (a, b) = (self.dice.faults.pick(&all), self.dice.faults.pick(&all));
                group = BTreeSet::from([a]);
                rest = BTreeSet::from([b]);
            }
            // Clients on one side.
            2 => {
                rest.insert(CLIENTS);
            }
            _ => {}
        }
        self.trace.note(now, format_args!("from {group:?} to {rest:?} nothing passes, one way: {one_way}"));
        self.network.cut_groups(&group, &rest, now);
        if !one_way {
            self.network.cut_groups(&rest, &group, now);
        }
        let length = self.duration(50 * MILLI, 12 * SECOND);
        self.schedule.after(length, Event::Undo(Undo::Network));
    }

    pub(crate) fn undo(&mut self, undo: Undo) {
        let now = self.now();
        match undo {
            Undo::Network => self.network.join(),
            Undo::Weather => self.network.weather = Weather::default(),
            Undo::Full(at) => self.places[at].disk.set_capacity(self.profile.capacity()),
            Undo::SlowDisk(at) => self.places[at].slowness = 1,
            Undo::Drift(at) => self.places[at].time.drift(now, 0),
        }
    }

    /// A process could not be started.
    pub(crate) fn not_started(&mut self, at: Host, why: String) {
        let power = self.places[at].disk.is_dark();
        self.end(at, power);
        let place = &mut self.places[at];
        if place.decayed {
            place.lost = true;
            return;
        }
        if self.operator.is_removed(place.id) && why.contains("permanently removed") {
            // Its operator had not looked who is a member since.
            place.retired = true;
            return;
        }
        if !power && !place.may_not_start {
            return self.fail(format!("member {at} does not start: {why}"));
        }
        let delay = self.dice.faults.between(100 * MILLI, 3 * SECOND);
        self.start_after(at, delay);
    }

    /// All faults end: networks and disks are sound from now on, and enough members run.
    pub(crate) fn heal(&mut self) {
        let now = self.now();
        self.chaos = false;
        self.operator.look_again();
        self.network.heal();
        self.trace.note(now, format_args!("all faults end"));
        for at in 0..self.places.len() {
            let place = &mut self.places[at];
            place.time.drift(now, 0);
            place.paused_until = 0;
            place.stalled_until = 0;
            place.slowness = 1;
            let capacity = self.profile.capacity().map(|most| {
                let used = place.disk.used_bytes();
                let nearly = most > used && most - used < u64::from(self.profile.segment_bytes);
                // What is left is taken by somebody else, for good.
                if nearly && self.dice.faults.one_in(2) { used + self.dice.faults.below(512) } else { most }
            });
            place.disk.set_capacity(capacity);
            if !place.disk.is_dark() {
                place.disk.heal();
            }
            (place.may_end, place.may_not_start) = (false, false);
            if self.profile.fails(Fault::ReadError) && !(place.decayed || place.lost) {
                // One that could not read what it needed is out of service until it is started again.
                self.end(at, false);
            }
            let place = &mut self.places[at];
            if place.decayed || place.lost {
                // An operator would replace it; here the others have to do without.
                self.end(at, true);
                self.places[at].retired = true;
                self.places[at].starts_at = None;
            } else if self.places[at].lives > 0 {
                let delay = self.dice.faults.below(SECOND);
                self.places[at].starts_at = None;
                self.start_after(at, delay);
            }
        }
        let whole =
            self.places.len() == self.profile.members && self.places.iter().all(|place| !place.retired);
        let whole = whole && !self.profile.fails(Fault::Shrink);
        if whole && self.profile.members >= 3 && self.dice.faults.one_in(4) {
            // A majority is enough.
            let at = self.dice.faults.place(self.profile.members);
            self.end(at, true);
            self.places[at].retired = true;
            self.places[at].starts_at = None;
        }
    }
}
