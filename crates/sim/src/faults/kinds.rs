//! Implements the individual faults: each function breaks something at one member, or between members.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use disk::{Lie, Operation, SECTOR_BYTES};

use super::{DRIFT_MAX_PPM, segment_number};
use crate::network::{CLIENTS, Host};
use crate::profile::Fault;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::world::{Event, Undo, World};

/// Length in bytes of the file tail where bits flip more often than elsewhere.
const LAST_BYTES: u64 = 200;

/// Disk operations that [`Fault::FileError`] may fail.
const FILE_OPERATIONS: &[Operation] = &[
    Operation::Create,
    Operation::Rename,
    Operation::Remove,
    Operation::Allocate,
    Operation::Open,
    Operation::List,
    Operation::Lock,
    Operation::Space,
    Operation::SyncDir,
    Operation::Write,
    Operation::Sync,
];

/// Returns false for the files whose only purpose is to stop etcd from using the directory; no member reads
/// them.
fn is_read(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name != "snap" && !name.starts_with("THIS-IS-DATA-OF-MAINSTAY")
}

impl World {
    /// Draws a duration between two bounds, in nanoseconds.
    fn duration(&mut self, low: Nanos, high: Nanos) -> Nanos {
        // The shift halves the drawn number up to five times, so that short durations are drawn about as
        // often as long ones.
        let shift = self.dice.faults.below(6);
        low + (self.dice.faults.below(high - low) >> shift)
    }

    /// Asks a process to shut down cleanly.
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

    /// Ends a process abruptly, and restarts it after a while.
    pub(crate) fn crash(&mut self, at: Host, power: bool) {
        if self.places[at].lives == 0 || self.places[at].retired || self.places[at].lost {
            return;
        }
        self.end(at, power);
        let delay = self.duration(10 * MILLI, 6 * SECOND);
        self.start_after(at, delay);
    }

    /// Cuts the power at the same moment at each member with a probability of 70 %.
    pub(super) fn blackout(&mut self) {
        for at in 0..self.places.len() {
            if self.dice.faults.per_mille(700) {
                self.crash(at, true);
            }
        }
    }

    /// Cuts a member's power in the middle of one of its next disk operations.
    pub(super) fn cut_power_at_operation(&mut self, at: Host) {
        let nth = self.dice.faults.between(1, 40);
        self.places[at].disk.fail_next(Operation::Change, nth, disk::Fault::PowerCut);
    }

    /// Stops a process for a while, as SIGSTOP does.
    pub(super) fn pause(&mut self, at: Host) {
        // A quarter of the pauses are so long that the other members elect another leader, which lets leases
        // expire.
        let long = self.dice.faults.one_in(4);
        let length =
            if long { self.dice.faults.between(4, 9) * SECOND } else { self.duration(MILLI, 8 * SECOND) };
        self.places[at].paused_until = self.now() + length;
    }

    /// Suspends a machine for a while: its process receives nothing, and its clock does not advance.
    pub(super) fn suspend(&mut self, at: Host) {
        let now = self.now();
        let length = self.duration(MILLI, 12 * SECOND);
        let place = &mut self.places[at];
        place.paused_until = place.paused_until.max(now + length);
        place.time.suspend(now, length);
    }

    /// Makes a member's clock run too fast or too slow for a while.
    pub(super) fn drift(&mut self, at: Host) {
        let now = self.now();
        let ppm = self.dice.faults.below(2 * DRIFT_MAX_PPM as u64 + 1) as i64 - DRIFT_MAX_PPM;
        self.places[at].time.drift(now, ppm);
        let length = self.duration(SECOND, 20 * SECOND);
        self.schedule.after(length, Event::Undo(Undo::Drift(at)));
    }

    /// Moves a member's clock forward in one step. A lease may then expire earlier by the same amount, so the
    /// oracle's tolerance grows.
    pub(super) fn jump(&mut self, at: Host) {
        let by = self.duration(MILLI, 5 * SECOND);
        self.places[at].time.jump(by);
        self.history.settings.lease_slack += by;
    }

    /// Moves a member's time of day forward or back, by up to years. In a third of the cases, the member
    /// instead behaves like a machine whose clock stops while it is off: at each process start, its time of
    /// day goes back to the value at the previous start.
    pub(super) fn set_wall(&mut self, at: Host) {
        let dice = &mut self.dice.faults;
        if dice.one_in(3) {
            self.places[at].clock_resets = true;
            if dice.one_in(2) {
                self.crash(at, false);
            }
            return;
        }
        let seconds = dice.pick(&[1, 60, 3600, 24 * 3600, 1000 * 24 * 3600]);
        let by = Duration::from_nanos(dice.below(seconds * SECOND));
        let hand = &self.places[at].hand;
        let wall = hand.wall();
        hand.set_wall(if dice.one_in(2) { wall + by } else { wall.checked_sub(by).unwrap_or(UNIX_EPOCH) });
    }

    /// Cuts the network between two groups of members, in one direction or in both.
    pub(super) fn cut(&mut self, one_way: bool) {
        let now = self.now();
        let all: Vec<Host> = (0..self.places.len()).filter(|at| !self.places[*at].retired).collect();
        let mut group: BTreeSet<Host> = all.iter().copied().filter(|_| self.dice.faults.one_in(2)).collect();
        let mut rest: BTreeSet<Host> = all.iter().copied().filter(|at| !group.contains(at)).collect();
        match self.dice.faults.below(4) {
            // Isolates one member.
            0 => {
                let alone = self.dice.faults.pick(&all);
                group = BTreeSet::from([alone]);
                rest = all.iter().copied().filter(|at| *at != alone).collect();
            }
            // Separates two members that all others can still reach.
            1 => {
                let (a, b) = (self.dice.faults.pick(&all), self.dice.faults.pick(&all));
                group = BTreeSet::from([a]);
                rest = BTreeSet::from([b]);
            }
            // Puts the clients on one side of the cut.
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

    /// Loses, duplicates or reorders messages between all members, or breaks their connections, for a while.
    pub(super) fn worsen_weather(&mut self, kind: Fault) {
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

    /// Delays everything that one member sends to another for a while.
    pub(super) fn slow_link(&mut self, at: Host) {
        let to = self.some_member();
        let delay = self.dice.faults.pick(&[50, 200, 800]) * MILLI;
        self.network.slow(at, to, delay);
        let length = self.duration(100 * MILLI, 10 * SECOND);
        self.schedule.after(length, Event::Undo(Undo::Network));
    }

    /// Stops a member's disk from finishing any operation for a while.
    pub(super) fn stall(&mut self, at: Host) {
        self.places[at].stalled_until = self.now() + self.duration(10 * MILLI, 6 * SECOND);
    }

    /// Slows a member's disk down by a factor of 2 to 30 for a while.
    pub(super) fn slow_disk(&mut self, at: Host) {
        let factor = self.dice.faults.between(2, 30);
        self.places[at].slowness.begin(factor);
        let length = self.duration(SECOND, 10 * SECOND);
        self.schedule.after(length, Event::Undo(Undo::SlowDisk(at)));
    }

    /// Leaves less than a segment of space on a member's disk for a while.
    pub(super) fn fill_disk(&mut self, at: Host) {
        let place = &mut self.places[at];
        let spare = self.dice.faults.below(u64::from(self.profile.segment_bytes));
        let most = self.profile.capacity().unwrap_or(u64::MAX);
        place.disk.set_capacity(Some((place.disk.used_bytes() + spare).min(most)));
        // A running member waits until there is space, but a starting member may fail.
        place.may_not_start = true;
        let length = self.duration(100 * MILLI, 8 * SECOND);
        self.schedule.after(length, Event::Undo(Undo::Full(at)));
    }

    /// Fails one of the next operations of the given kind on a member's disk.
    pub(super) fn fail_operation(&mut self, at: Host, operation: Operation) {
        let nth = self.dice.faults.between(1, 20);
        let place = &mut self.places[at];
        place.disk.fail_next(operation, nth, disk::Fault::Once(libc::EIO));
        // A failed read makes only the request fail, unless it is of a block of the index (`--memory-budget`),
        // while any other failed operation may end the process.
        place.may_end |= operation != Operation::Read;
        place.may_not_read |= operation == Operation::Read;
        place.may_not_start = true;
    }

    /// Fails one of the next operations of any kind on a member's disk, with any error. A failed write or
    /// sync may end the process at any time; another failed operation may end it only while it starts or
    /// shuts down.
    pub(super) fn fail_file_operation(&mut self, at: Host) {
        let dice = &mut self.dice.faults;
        let operation = dice.pick(FILE_OPERATIONS);
        let code = dice.pick(&[libc::EIO, libc::EROFS, libc::EDQUOT, libc::ENOSPC]);
        let nth = dice.between(1, 6);
        let place = &mut self.places[at];
        place.disk.fail_next(operation, nth, disk::Fault::Once(code));
        let is_stopping = place.process.as_ref().is_some_and(|process| process.stopping);
        place.may_end |= is_stopping || matches!(operation, Operation::Write | Operation::Sync);
        place.may_not_start = true;
        let now = self.now();
        self.trace.note(now, format_args!("m{at}: {operation:?} number {nth} will fail with errno {code}"));
    }

    /// Returns true if the data at this place may be damaged, because all other members have the whole state.
    fn may_damage(&self, at: Host) -> bool {
        // The data of an observer is a copy.
        self.places[at].observes
            || self.profile.members >= 3
            // After members were removed, it is not known which members a majority needs, so nothing is
            // damaged.
            && !self.profile.fails(Fault::Shrink)
            && self.operator.is_whole(self.profile.fails(Fault::Autopilot))
            && self.places_of_members().all(|place| place.retired || !(place.lost || place.decayed))
            // Every member, including an added one, must have started and almost caught up.
            && self.places_of_members().filter(|place| !place.retired).all(|place| {
                self.checks.standing(place.number).is_some_and(|standing| standing.applied + 50 > self.checks.commit())
            })
    }

    /// Makes a member's disk report some of its next writes as done although they are lost or misplaced, if
    /// the other members have the whole state. The damage becomes visible later, when the page cache is
    /// dropped.
    pub(super) fn lie_about_write(&mut self, at: Host, lie: Lie) {
        if !self.may_damage(at) {
            return;
        }
        let nth = self.dice.faults.between(1, 8);
        // If only one write is lost, the next write to the same sector often repairs it, so in some cases
        // several writes are lost.
        let count = self.dice.faults.pick(&[1, 1, 3, 10]);
        self.places[at].disk.lie_about_writes(lie, nth, count);
        self.schedule.after(100 * MILLI, Event::Undo(Undo::Cache(at)));
    }

    /// Drops a member's page cache, so that writes that the disk reported as done but lost or misplaced
    /// become visible. The member keeps running, or its process is ended. If there is no such write yet,
    /// tries again later. If there is one, does so in half of the cases, too.
    pub(super) fn drop_cache_somehow(&mut self, at: Host) {
        if !self.chaos {
            return;
        }
        if self.places[at].disk.lies().is_empty() || self.dice.faults.one_in(2) {
            let length = self.duration(50 * MILLI, 2 * SECOND);
            return self.schedule.after(length, Event::Undo(Undo::Cache(at)));
        }
        match self.dice.faults.below(4) {
            0 => self.crash(at, true),
            1 => {
                self.drop_cache(at);
                self.crash(at, false);
            }
            _ => self.drop_cache(at),
        }
    }

    /// Drops a member's page cache, so that the member reads what its disk really contains. A misreported
    /// sector stays damaged only if its write is known to have been synced (as in the part of the log that
    /// [`World::decay`] may damage), or if it lies after the end of the log. All other sectors are repaired,
    /// so the member reads what it wrote.
    pub(crate) fn drop_cache(&mut self, at: Host) {
        let lies = self.places[at].disk.lies();
        if lies.is_empty() {
            // There may be lies about files that have no name any more.
            self.places[at].disk.drop_cache(|_, _| false);
            return;
        }
        self.settle_log(at);
        let may_damage = self.chaos && self.may_damage(at);
        let place = &self.places[at];
        let shows = |(path, offset): &(PathBuf, u64)| {
            let (Some(proven), Some(end)) = (place.proven_log, place.log_end) else { return false };
            let is_told = match segment_number(path) {
                Some(number) => {
                    let (from, to) = ((number, *offset), (number, *offset + SECTOR_BYTES as u64));
                    to <= (proven.segment, u64::from(proven.offset))
                        || from >= (end.segment, u64::from(end.offset))
                }
                None => true,
            };
            may_damage && is_told && is_read(path) && place.disk.is_synced(path, *offset)
        };
        let shown: BTreeSet<(PathBuf, u64)> = lies.into_iter().filter(shows).collect();
        let changed = place.disk.drop_cache(|path, offset| shown.contains(&(path.to_owned(), offset)));
        if changed == 0 {
            return;
        }
        let place = &mut self.places[at];
        (place.decayed, place.may_not_start, place.may_end) = (true, true, true);
        let now = self.now();
        for (path, offset) in shown {
            self.trace.note(
                now,
                format_args!(
                    "m{at}: the sector at byte {offset} of {} is not what was written",
                    path.display()
                ),
            );
        }
    }

    /// Destroys all data of a member permanently, if the other members have the whole state.
    pub(super) fn lose_disk(&mut self, at: Host) {
        if !self.may_damage(at) || self.places[at].lives == 0 {
            return;
        }
        if self.places[at].observes {
            return self.renew_observer(at);
        }
        self.end(at, true);
        let place = &mut self.places[at];
        place.lost = true;
        place.starts_at = None;
        let now = self.now();
        self.trace.note(now, format_args!("m{at} has lost its disk"));
    }

    /// Returns the names, without their ends, of a member's base runs in blocks.
    fn bases_in_blocks(&self, at: Host) -> Vec<String> {
        let files = self.places[at].disk.files();
        files
            .iter()
            .filter_map(|(path, _)| Some(file_name(path).strip_suffix("-changes.run")?.to_owned()))
            .collect()
    }

    /// Returns true if a member has a base run in blocks.
    pub(crate) fn has_blocks(&self, at: Host) -> bool {
        !self.bases_in_blocks(at).is_empty()
    }

    /// Flips one bit in a member's synced files, if the other members have the whole state.
    pub(crate) fn decay(&mut self, at: Host) {
        if !self.may_damage(at) {
            return;
        }
        let place = &self.places[at];
        let Some(proven) = place.proven_log else { return };
        let used = |path: &Path| place.disk.used_len(path).unwrap_or(0);
        let mut files: Vec<(PathBuf, u64)> = Vec::new();
        for (path, _) in place.disk.files().into_iter().filter(|(path, _)| is_read(path)) {
            let len = match (used(&path), segment_number(&path)) {
                (len, Some(number)) if number == proven.segment => len.min(u64::from(proven.offset)),
                // It is not known whether the last batch was synced, and the member would take damage in an
                // unsynced batch for a torn write. So the part after the proven end is never hit.
                (_, Some(number)) if number > proven.segment => 0,
                (len, _) => len,
            };
            if len > 0 {
                files.push((path, len));
            }
        }
        if files.is_empty() {
            return;
        }
        // If the member has a base in blocks, half of the flips go to its blocks, which are read on demand.
        let bases = self.bases_in_blocks(at);
        let mut blocks = files.clone();
        blocks.retain(|(path, _)| {
            let name = file_name(path);
            bases.iter().any(|base| name == format!("{base}.run") || name == format!("{base}-changes.run"))
        });
        let hits_block = !blocks.is_empty() && self.dice.faults.one_in(2);
        if hits_block {
            files = blocks;
        }
        // Half of the flips go to the segment in which the proven log ends.
        let last = files.iter().find(|(path, _)| segment_number(path) == Some(proven.segment)).cloned();
        let (path, len) = match last {
            Some(last) if self.dice.faults.one_in(2) => last,
            _ => files[self.dice.faults.place(files.len())].clone(),
        };
        // The newest bytes have the fewest other copies, so half of the flips go to the last bytes of the
        // file.
        let back = if hits_block || self.dice.faults.one_in(2) { len } else { len.min(LAST_BYTES) };
        let offset = len - 1 - self.dice.faults.below(back);
        let bit = self.dice.faults.below(8) as u8;
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
                // A restart makes the member read its files again, so that it notices the damage.
                self.crash(at, false);
            }
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
