//! Injects faults, one after the other: decides which fault to inject, when, into which members, and for how
//! long.

mod certificates;
mod disks;
mod links;
mod members;
mod users;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chronicle::Chronicle;
use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::rng::Rng;

pub(crate) use certificates::{Revoked, question};

/// Longest wait until a member reports that it is the leader. After that, a random member is taken instead.
const LEADER_TIME_MAX: Duration = Duration::from_secs(20);
/// Interval at which the injector checks whether the run is over, and whether processes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Injects faults, one after the other, until the run ends.
pub struct Injector<'a> {
    cluster: &'a mut Cluster,
    chronicle: Arc<Chronicle>,
    faults: Vec<Fault>,
    every: Duration,
    rng: Rng,
    queue: Vec<Fault>,
    deadline: Instant,
    stopped: &'a dyn Fn() -> bool,
    say: &'a dyn Fn(&str),
    /// Client certificates that were revoked, so that members must refuse them until the end of the run.
    revoked: Revoked,
}

impl<'a> Injector<'a> {
    /// Creates an injector. It injects each of these faults about equally often, and pauses for `every`
    /// before each fault.
    pub fn new(
        cluster: &'a mut Cluster,
        chronicle: &Arc<Chronicle>,
        (faults, every, rng): (Vec<Fault>, Duration, Rng),
        deadline: Instant,
        stopped: &'a dyn Fn() -> bool,
        say: &'a dyn Fn(&str),
    ) -> Injector<'a> {
        let chronicle = Arc::clone(chronicle);
        let (queue, revoked) = (Vec::new(), Revoked::new());
        Injector { cluster, chronicle, faults, every, rng, queue, deadline, stopped, say, revoked }
    }

    /// Injects faults until the deadline, and records violations in the chronicle.
    pub fn run(&mut self) {
        while self.wait(self.every) {
            if self.queue.is_empty() {
                self.queue.clone_from(&self.faults);
                self.rng.shuffle(&mut self.queue);
            }
            let Some(fault) = self.queue.pop() else { continue };
            self.one(fault);
        }
    }

    fn one(&mut self, fault: Fault) {
        let bar = self.chronicle.begin(fault.name());
        let injected = self.inject(fault, bar);
        // Heal the cluster even if injecting failed, because the next fault must start from a healed cluster.
        let healed = self.heal();
        self.chronicle.over(bar);
        if let Err(error) = injected.and(healed) {
            self.trouble(fault, &error);
        }
        match self.cluster.recover() {
            Ok(()) => {
                if fault == Fault::FullDisk {
                    self.cluster.disarm();
                }
                self.chronicle.recovered(bar);
            }
            Err(error) => self.trouble(fault, &error),
        }
    }

    fn trouble(&self, fault: Fault, error: &io::Error) {
        (self.say)(&format!("after {fault}: {error}"));
        self.chronicle.trouble("not recovered", format!("after {fault}: {error}"));
    }

    /// Undoes all faults that last until they are undone: cuts, frozen or full disks, and paused processes.
    ///
    /// # Errors
    /// Returns the first error. The other steps are tried nevertheless.
    pub fn heal(&mut self) -> io::Result<()> {
        let mut result = match &mut self.cluster.network {
            Some(network) => network.heal(),
            None => Ok(()),
        };
        for at in 0..self.cluster.size() {
            if let Some(disk) = self.cluster.disk(at) {
                result = result.and(disk.thaw()).and(disk.free());
            }
            result = result.and(self.cluster.pause(at, false));
        }
        // Look for ended processes first: those that have ended until now were allowed to. From now on, such
        // an end is a violation again.
        self.cluster.look();
        for at in 0..self.cluster.size() {
            result = result.and(self.cluster.may_end(at, false));
        }
        result
    }

    /// Waits, and meanwhile looks for ended processes. Returns false as soon as the run is over.
    fn wait(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            self.cluster.look();
            let now = Instant::now();
            if (self.stopped)() || now >= self.deadline {
                return false;
            }
            if now >= until {
                return true;
            }
            std::thread::sleep(LOOK_EVERY.min(until - now));
        }
    }

    /// Draws the duration of a fault. Many faults last longer than an election, which takes up to two
    /// seconds; others end in the middle of one.
    fn lasting(&mut self) -> Duration {
        Duration::from_millis(self.rng.between(500, 4500))
    }

    fn last(&mut self) {
        let time = self.lasting();
        self.wait(time);
    }

    /// Returns the indexes of all members.
    fn all(&self) -> Vec<usize> {
        (0..self.cluster.size()).collect()
    }

    fn any(&mut self) -> usize {
        self.rng.index(self.cluster.size())
    }

    fn leader(&mut self) -> usize {
        match self.cluster.leader(LEADER_TIME_MAX) {
            Some(at) => at,
            None => self.any(),
        }
    }

    fn leader_or_any(&mut self) -> usize {
        if self.rng.percent(50) { self.leader() } else { self.any() }
    }

    fn tell(&self, bar: usize, members: &[usize], text: &str) {
        self.chronicle.detail(bar, members, text);
        let name = self.chronicle.lock().bars.get(bar).map(|bar| bar.name.clone()).unwrap_or_default();
        (self.say)(&format!("{name}: {text}"));
    }

    /// Injects a fault. Returns when the fault is over, or the run is.
    fn inject(&mut self, fault: Fault, bar: usize) -> io::Result<()> {
        match fault {
            Fault::KillLeader => {
                let at = self.leader();
                self.kill(bar, at)
            }
            Fault::KillAny => {
                let at = self.any();
                self.kill(bar, at)
            }
            Fault::KillAll => self.kill_all(bar),
            Fault::Pause => self.pause(bar),
            Fault::Restart => self.restart(bar),
            Fault::Rolling => self.rolling(bar),
            Fault::MoveLeader => self.move_leader(bar),
            Fault::Compact => self.compact(bar),
            Fault::Replace => self.replace(bar),
            Fault::FlipBit => self.flip_bit(bar),
            Fault::PartitionLeader => {
                let at = self.leader();
                self.partition(bar, &[at])
            }
            Fault::PartitionMinority => {
                let mut all = self.all();
                self.rng.shuffle(&mut all);
                all.truncate((self.cluster.size() - 1) / 2);
                self.partition(bar, &all)
            }
            Fault::PartitionAll => self.partition_all(bar),
            Fault::OneWay => self.one_way(bar),
            Fault::SlowNet | Fault::LossyNet => {
                self.shape(bar, fault)?;
                self.last();
                self.last();
                Ok(())
            }
            Fault::SlowDisk => self.slow_disk(bar),
            Fault::StalledDisk => self.stall_disk(bar),
            Fault::FullDisk => self.full_disk(bar),
            Fault::Clock => self.set_clock(bar),
            Fault::RotateCerts => self.rotate_leaves(bar),
            Fault::RotateCa => self.rotate_authorities(bar),
            Fault::RevokeCert => self.revoke_certificate(bar),
            Fault::RevokeMember => self.revoke_member(bar),
            Fault::BrokenPem => self.break_pem(bar),
            Fault::AuthOff => self.switch_authentication(bar),
        }
    }
}
