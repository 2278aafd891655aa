//! Injects faults of processes: kills, pauses, restarts or replaces members, moves leadership, and compacts
//! revisions.

use std::io;
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb as pb;

use super::Injector;
use crate::fault::Fault;
use crate::process::ClockOffset;

impl Injector<'_> {
    /// Kills a member, and starts it again after a while.
    pub(super) fn kill(&mut self, bar: usize, at: usize) -> io::Result<()> {
        self.tell(bar, &[at], &format!("m{at} killed"));
        self.cluster.kill(at)?;
        self.companion(bar, at)?;
        self.last();
        self.cluster.start(at)
    }

    /// Kills all members at the same time, and starts them one after the other, in random order.
    pub(super) fn kill_all(&mut self, bar: usize) -> io::Result<()> {
        let mut all = self.all();
        self.tell(bar, &all, "all killed");
        self.cluster.kill_together(&all)?;
        self.rng.shuffle(&mut all);
        for at in all {
            let time = Duration::from_millis(self.rng.between(0, 700));
            self.wait(time);
            self.cluster.start(at)?;
        }
        Ok(())
    }

    /// Pauses a member's process with SIGSTOP for a while.
    pub(super) fn pause(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        self.tell(bar, &[at], &format!("m{at} stopped"));
        self.cluster.pause(at, true)?;
        self.companion(bar, at)?;
        self.last();
        self.cluster.pause(at, false)
    }

    /// Shuts a member down cleanly, and starts it again.
    pub(super) fn restart(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        self.tell(bar, &[at], &format!("m{at} restarted"));
        self.cluster.stop(at)?;
        self.cluster.start(at)
    }

    /// Restarts all members cleanly, one after the other. If there are two builds, each member changes to the
    /// other one.
    pub(super) fn rolling(&mut self, bar: usize) -> io::Result<()> {
        let all = self.all();
        self.tell(bar, &all, "all restarted in order");
        for at in all {
            self.cluster.stop(at)?;
            self.cluster.change_build(at)?;
            self.cluster.start(at)?;
            self.cluster.recover()?;
        }
        Ok(())
    }

    /// Kills a member, deletes its data, and replaces it with a new member with the same addresses.
    pub(super) fn replace(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        self.tell(bar, &[at], &format!("m{at} lost with its data, removed, added"));
        self.cluster.kill(at)?;
        self.cluster.replace(at)
    }

    /// Kills a member, and starts it again with clocks that are ahead of or behind those of the machine.
    pub(super) fn set_clock(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        let back = self.rng.percent(40);
        // A boot clock cannot be earlier than the boot, so move it back by at most half of the uptime.
        let seconds = if back {
            -(self.rng.below(uptime_seconds()? / 2 + 1) as i64)
        } else {
            self.rng.between(1, 12 * 86_400) as i64
        };
        self.tell(bar, &[at], &format!("m{at} killed; its clock is now {seconds} s ahead"));
        self.cluster.kill(at)?;
        self.cluster.set_clock(at, ClockOffset { seconds })?;
        self.cluster.start(at)
    }

    /// Asks the leader to transfer the leadership to another member.
    pub(super) fn move_leader(&mut self, bar: usize) -> io::Result<()> {
        let from = self.leader();
        let to = (from + 1 + self.rng.index(self.cluster.size().saturating_sub(1))) % self.cluster.size();
        self.tell(bar, &[from, to], &format!("from m{from} to m{to}"));
        let target = self.cluster.status(to).ok().and_then(|status| status.header);
        let Some(target) = target.map(|header| header.member_id) else { return Ok(()) };
        let request = pb::MoveLeaderRequest { target_id: target };
        // An error is no violation: the leader may have lost its leadership meanwhile, or the transfer may
        // take too long.
        if let Err(status) =
            self.cluster.call::<pb::MoveLeaderResponse>(from, Rpc::MaintenanceMoveLeader, &request)
        {
            self.chronicle.detail(bar, &[from, to], &format!("not done: {}", status.message));
        }
        Ok(())
    }

    /// Compacts close to the newest revision, and then defragments all members.
    pub(super) fn compact(&mut self, bar: usize) -> io::Result<()> {
        let at = self.any();
        let Ok(newest) = self.cluster.healthy(at) else { return Ok(()) };
        let revision = (newest - self.rng.below(50) as i64).max(1);
        let all: Vec<usize> = (0..self.cluster.size()).collect();
        self.tell(bar, &all, &format!("compacted to {revision} at m{at}, then all defragmented"));
        self.record_compaction(at, pb::CompactionRequest { revision, physical: true });
        for at in all {
            let request = pb::DefragmentRequest {};
            let answer: Result<pb::DefragmentResponse, _> =
                self.cluster.call_within(at, Rpc::MaintenanceDefragment, &request, Duration::from_secs(30));
            if let Err(status) = answer {
                self.chronicle.detail(bar, &[at], &format!("m{at} not defragmented: {}", status.message));
            }
        }
        Ok(())
    }

    /// Sends a compaction as a client whose operations are recorded, because the oracle must know every
    /// compaction.
    pub(super) fn record_compaction(&self, at: usize, request: pb::CompactionRequest) {
        self.cluster
            .operate(at, oracle::Request::Compact { revision: request.revision, physical: request.physical });
    }

    /// Sometimes adds a second fault while the member `away` is down or paused. The second fault never takes
    /// away the majority.
    fn companion(&mut self, bar: usize, away: usize) -> io::Result<()> {
        let chosen = self.rng.below(10);
        let others: Vec<usize> = (0..self.cluster.size()).filter(|at| *at != away).collect();
        let other = others.get(self.rng.index(others.len())).copied();
        match (chosen, other) {
            (0 | 1, Some(_)) if self.faults.contains(&Fault::SlowNet) => self.shape(bar, Fault::SlowNet),
            (2, Some(_)) if self.faults.contains(&Fault::LossyNet) => self.shape(bar, Fault::LossyNet),
            (3 | 4, Some(other)) if self.cluster.size() >= 5 => {
                self.chronicle.detail(bar, &[away, other], &format!("m{other} killed at the same time"));
                self.cluster.kill(other)
            }
            (5, Some(other)) if self.faults.contains(&Fault::Compact) => {
                if let Ok(newest) = self.cluster.healthy(other) {
                    self.chronicle.detail(bar, &[away], &format!("compacted to {newest} meanwhile"));
                    let request = pb::CompactionRequest { revision: newest, physical: false };
                    self.record_compaction(other, request);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn uptime_seconds() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok());
    seconds.ok_or_else(|| io::Error::other("/proc/uptime says nothing"))
}
