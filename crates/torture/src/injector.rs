//! Faults, one after the other: which, when, to whom, for how long.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb as pb;

use crate::chronicle::Chronicle;
use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::network::Cut;
use crate::process::ClockOffset;
use crate::rng::Rng;
use crate::shaper::Quality;

/// How long a leader may take to be found.
const LEADER_TIME_MAX: Duration = Duration::from_secs(20);
/// A log with less than this is not worth damaging: what follows may be no proof.
const WRITTEN_BYTES_LEAST: u64 = 64 << 10;
/// How long it is tried to use up the room that a log has prepared, and in what portions.
const FILLING_TIME_MAX: Duration = Duration::from_secs(25);
const FILLING_BYTES: usize = 1 << 20;
/// How often it is looked at whether the run is to end, and whether all processes are there.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Injects faults until it is told to stop.
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
}

impl<'a> Injector<'a> {
    /// One that injects these faults, each about equally often.
    pub fn new(
        cluster: &'a mut Cluster,
        chronicle: &Arc<Chronicle>,
        (faults, every, rng): (Vec<Fault>, Duration, Rng),
        deadline: Instant,
        stopped: &'a dyn Fn() -> bool,
        say: &'a dyn Fn(&str),
    ) -> Injector<'a> {
        let chronicle = Arc::clone(chronicle);
        Injector { cluster, chronicle, faults, every, rng, queue: Vec::new(), deadline, stopped, say }
    }

    /// Injects until the deadline. What goes wrong is written to the chronicle.
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
        // Whatever failed on the way: the next one begins with nothing in its way.
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

    /// Takes back whatever can be taken back.
    ///
    /// # Errors
    /// The first failure; everything is tried.
    pub fn heal(&mut self) -> io::Result<()> {
        let mut result = match &mut self.cluster.network {
            Some(network) => network.heal(),
            None => Ok(()),
        };
        for at in 0..self.cluster.size() {
            if let Some(disk) = self.cluster.disk(at) {
                result = result.and(disk.thaw()).and(disk.free());
            }
            result = result.and(self.cluster.pause(at, false)).and(self.cluster.may_end(at, false));
        }
        result
    }

    /// Waits, and looks after the processes meanwhile. False: the run is over.
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

    /// Long enough for an election, which takes up to two seconds, and often short enough to end in the midst of one.
    fn lasting(&mut self) -> Duration {
        Duration::from_millis(self.rng.between(500, 4500))
    }

    fn last(&mut self) {
        let time = self.lasting();
        self.wait(time);
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

    fn inject(&mut self, fault: Fault, bar: usize) -> io::Result<()> {
        match fault {
            Fault::KillLeader | Fault::KillAny => {
                let at = if fault == Fault::KillLeader { self.leader() } else { self.any() };
                self.tell(bar, &[at], &format!("m{at} killed"));
                self.cluster.kill(at)?;
                self.companion(bar, at)?;
                self.last();
                self.cluster.start(at)
            }
            Fault::KillAll => {
                let mut all: Vec<usize> = (0..self.cluster.size()).collect();
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
            Fault::Pause => {
                let at = self.leader_or_any();
                self.tell(bar, &[at], &format!("m{at} stopped"));
                self.cluster.pause(at, true)?;
                self.companion(bar, at)?;
                self.last();
                self.cluster.pause(at, false)
            }
            Fault::Restart => {
                let at = self.leader_or_any();
                self.tell(bar, &[at], &format!("m{at} restarted"));
                self.cluster.stop(at)?;
                self.cluster.start(at)
            }
            Fault::Rolling => {
                let all: Vec<usize> = (0..self.cluster.size()).collect();
                self.tell(bar, &all, "all restarted in order");
                for at in all {
                    self.cluster.stop(at)?;
                    self.cluster.change_build(at)?;
                    self.cluster.start(at)?;
                    self.cluster.recover()?;
                }
                Ok(())
            }
            Fault::MoveLeader => self.move_leader(bar),
            Fault::Compact => self.compact(bar),
            Fault::Replace => {
                let at = self.leader_or_any();
                self.tell(bar, &[at], &format!("m{at} lost with its data, removed, added"));
                self.cluster.kill(at)?;
                self.cluster.replace(at)
            }
            Fault::FlipBit => self.flip_bit(bar),
            Fault::PartitionLeader => {
                let at = self.leader();
                self.partition(bar, &[at])
            }
            Fault::PartitionMinority => {
                let mut all: Vec<usize> = (0..self.cluster.size()).collect();
                self.rng.shuffle(&mut all);
                all.truncate((self.cluster.size() - 1) / 2);
                self.partition(bar, &all)
            }
            Fault::PartitionAll => {
                let all: Vec<usize> = (0..self.cluster.size()).collect();
                let cut = self.kind_of_cut();
                self.tell(bar, &all, &format!("everybody alone ({})", words(cut)));
                for from in 0..self.cluster.size() {
                    for to in 0..self.cluster.size() {
                        self.cut(from, to, cut)?;
                    }
                }
                self.last();
                Ok(())
            }
            Fault::OneWay => self.one_way(bar),
            Fault::SlowNet | Fault::LossyNet => {
                self.shape(bar, fault)?;
                self.last();
                self.last();
                Ok(())
            }
            Fault::SlowDisk => self.slow_disk(bar),
            Fault::StalledDisk => {
                let at = self.leader_or_any();
                self.tell(bar, &[at], &format!("disk of m{at} stands still"));
                self.on_disk(at, |disk| disk.freeze())?;
                self.last();
                self.on_disk(at, |disk| disk.thaw())
            }
            Fault::FullDisk => self.full_disk(bar),
            Fault::Clock => {
                let at = self.leader_or_any();
                let back = self.rng.percent(40);
                // A clock cannot be before the machine's start.
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
        }
    }

    /// Something small that happens while another member is away: only where a majority is left.
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

    fn kind_of_cut(&mut self) -> Cut {
        if self.rng.percent(70) { Cut::Silent } else { Cut::Unreachable }
    }

    fn cut(&mut self, from: usize, to: usize, cut: Cut) -> io::Result<()> {
        match &mut self.cluster.network {
            Some(network) if from != to => network.cut(from, to, cut),
            _ => Ok(()),
        }
    }

    /// These on one side, all others on the other.
    fn partition(&mut self, bar: usize, side: &[usize]) -> io::Result<()> {
        let cut = self.kind_of_cut();
        let names: Vec<String> = side.iter().map(|at| format!("m{at}")).collect();
        self.tell(bar, side, &format!("{} cut off ({})", names.join(" and "), words(cut)));
        for from in 0..self.cluster.size() {
            for to in 0..self.cluster.size() {
                if side.contains(&from) != side.contains(&to) {
                    self.cut(from, to, cut)?;
                }
            }
        }
        self.last();
        Ok(())
    }

    fn one_way(&mut self, bar: usize) -> io::Result<()> {
        let (at, outwards, all) = (self.leader_or_any(), self.rng.percent(50), self.rng.percent(50));
        let only = self.any();
        let mut others: Vec<usize> = (0..self.cluster.size()).filter(|other| *other != at).collect();
        if !all && only != at {
            others = vec![only];
        }
        let direction = if outwards { "to" } else { "from" };
        let names: Vec<String> = others.iter().map(|at| format!("m{at}")).collect();
        self.tell(
            bar,
            &[at],
            &format!("nothing gets through {direction} m{at}'s peers {}", names.join(", ")),
        );
        for other in others {
            let (from, to) = if outwards { (at, other) } else { (other, at) };
            self.cut(from, to, Cut::Silent)?;
        }
        self.last();
        Ok(())
    }

    /// Makes every link between members slow or lossy, until everything is healed.
    fn shape(&mut self, bar: usize, fault: Fault) -> io::Result<()> {
        let limited = self.any();
        let loss_percent = self.rng.between(2, 20);
        let all: Vec<usize> = (0..self.cluster.size()).collect();
        if fault == Fault::SlowNet {
            self.tell(bar, &all, &format!("links take up to 80 ms; those of m{limited} carry 100 kB/s"));
        } else {
            self.tell(
                bar,
                &all,
                &format!("links lose {loss_percent} % of all packets, some come twice or late"),
            );
        }
        for from in 0..self.cluster.size() {
            for to in (0..self.cluster.size()).filter(|to| *to != from) {
                let quality = if fault == Fault::SlowNet {
                    Quality {
                        delay_ms: self.rng.between(0, 60),
                        jitter_ms: self.rng.between(0, 20),
                        bytes_per_second: if from == limited { 100_000 } else { 0 },
                        ..Quality::default()
                    }
                } else {
                    Quality {
                        delay_ms: self.rng.between(0, 5),
                        jitter_ms: 3,
                        loss_percent,
                        twice_percent: 2,
                        reorder_percent: 5,
                        ..Quality::default()
                    }
                };
                if let Some(network) = &mut self.cluster.network {
                    network.shape(from, to, quality)?;
                }
            }
        }
        Ok(())
    }

    fn move_leader(&mut self, bar: usize) -> io::Result<()> {
        let from = self.leader();
        let to = (from + 1 + self.rng.index(self.cluster.size().saturating_sub(1))) % self.cluster.size();
        self.tell(bar, &[from, to], &format!("from m{from} to m{to}"));
        let target = self.cluster.status(to).ok().and_then(|status| status.header);
        let Some(target) = target.map(|header| header.member_id) else { return Ok(()) };
        let request = pb::MoveLeaderRequest { target_id: target };
        // It may have lost the leadership by itself meanwhile, or take too long: neither breaks a promise.
        if let Err(status) = self.cluster.call::<pb::MoveLeaderResponse>(
            from,
            "/etcdserverpb.Maintenance/MoveLeader",
            &request,
        ) {
            self.chronicle.detail(bar, &[from, to], &format!("not done: {}", status.message));
        }
        Ok(())
    }

    fn compact(&mut self, bar: usize) -> io::Result<()> {
        let at = self.any();
        let Ok(newest) = self.cluster.healthy(at) else { return Ok(()) };
        let revision = (newest - self.rng.below(50) as i64).max(1);
        let all: Vec<usize> = (0..self.cluster.size()).collect();
        self.tell(bar, &all, &format!("compacted to {revision} at m{at}, then all defragmented"));
        self.record_compaction(at, pb::CompactionRequest { revision, physical: true });
        for at in all {
            let request = pb::DefragmentRequest {};
            let answer: Result<pb::DefragmentResponse, _> = self.cluster.call_within(
                at,
                "/etcdserverpb.Maintenance/Defragment",
                &request,
                Duration::from_secs(30),
            );
            if let Err(status) = answer {
                self.chronicle.detail(bar, &[at], &format!("m{at} not defragmented: {}", status.message));
            }
        }
        Ok(())
    }

    /// Compacts as a client whose operations are recorded: the judge has to know of every compaction.
    fn record_compaction(&self, at: usize, request: pb::CompactionRequest) {
        self.cluster
            .operate(at, oracle::Request::Compact { revision: request.revision, physical: request.physical });
    }

    fn on_disk(
        &self,
        at: usize,
        act: impl Fn(&crate::small_disk::SmallDisk) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.cluster.disk(at) {
            Some(disk) => act(disk),
            None => Err(io::Error::other(format!("m{at} has no disk of its own"))),
        }
    }

    fn slow_disk(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        let (frozen, thawed) = (self.rng.between(40, 250), self.rng.between(5, 60));
        self.tell(bar, &[at], &format!("disk of m{at}: {frozen} ms still, {thawed} ms not, in turn"));
        let until = Instant::now() + self.lasting() + self.lasting();
        let mut going = true;
        while going && Instant::now() < until {
            self.on_disk(at, |disk| disk.freeze())?;
            going = self.wait(Duration::from_millis(frozen));
            self.on_disk(at, |disk| disk.thaw())?;
            going &= self.wait(Duration::from_millis(thawed));
        }
        Ok(())
    }

    fn full_disk(&mut self, bar: usize) -> io::Result<()> {
        // Some room is left now and then, so that it becomes full in the midst of something.
        let left = if self.rng.percent(50) { 0 } else { self.rng.below(3 << 20) };
        let members = if self.rng.percent(20) {
            (0..self.cluster.size()).collect()
        } else {
            vec![self.leader_or_any()]
        };
        let names: Vec<String> = members.iter().map(|at| format!("m{at}")).collect();
        self.tell(bar, &members, &format!("disk of {} full but for {left} bytes", names.join(", ")));
        for at in &members {
            self.cluster.may_end(*at, true)?;
            self.on_disk(*at, |disk| disk.fill(left))?;
        }
        // A member has room prepared for its log: somebody has to use it up.
        let until = Instant::now() + FILLING_TIME_MAX;
        let mut written = 0;
        while self.wait(Duration::ZERO) && Instant::now() < until && self.cluster.alarms() == 0 {
            let mut value = format!("full{bar}.{written}:").into_bytes();
            value.resize(FILLING_BYTES, b'.');
            let key = format!("bulk/{:02}", written % 4).into_bytes();
            let at = self.any();
            self.cluster
                .operate(at, oracle::Request::Put(oracle::Put { key, value, ..oracle::Put::default() }));
            written += 1;
        }
        let alarms = self.cluster.alarms();
        self.chronicle.detail(bar, &members, &format!("{written} MiB put meanwhile, {alarms} alarms raised"));
        self.last();
        for at in &members {
            self.on_disk(*at, |disk| disk.free())?;
        }
        Ok(())
    }

    fn flip_bit(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        self.cluster.kill(at)?;
        let Some((path, offset)) = self.flip_in(&self.cluster.data_dir(at)?.join("member"))? else {
            self.tell(bar, &[at], &format!("m{at} has no sealed file yet"));
            return self.cluster.start(at);
        };
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let what = format!("a bit of m{at}'s {file} at offset {offset}");
        self.tell(bar, &[at], &what);
        let from = self.cluster.log_bytes(at);
        self.cluster.start(at)?;
        let ended = self.cluster.wait_for_end(at, Duration::from_secs(30))?;
        let said = self.cluster.said(at, from);
        match ended.map(|status| status.code()) {
            Some(Some(1)) if said.contains(&file) && !said.contains("panicked") => {
                self.chronicle.detail(bar, &[at], "refused by name");
            }
            Some(_) => self.chronicle.trouble(
                "damage not named",
                format!("m{at} did not refuse in order, with {what} turned over: {said}"),
            ),
            None if self.cluster.has_said(
                at,
                from,
                "the checkpoint is damaged; the log holds everything",
            ) =>
            {
                self.chronicle.detail(bar, &[at], "started from the log instead");
                self.cluster.kill(at)?;
            }
            None => {
                self.chronicle.trouble(
                    "damage accepted",
                    format!("m{at} runs, although {what} is turned over: {said}"),
                );
                self.cluster.kill(at)?;
            }
        }
        self.cluster.replace(at)
    }

    /// Turns over a bit of a file that is not written any more, and that a start has to read.
    fn flip_in(&mut self, member_dir: &Path) -> io::Result<Option<(PathBuf, u64)>> {
        let mut files = Vec::new();
        if let Ok(entries) = std::fs::read_dir(member_dir.join("checkpoint")) {
            for entry in entries {
                let path = entry?.path();
                let is_sealed = path.file_name().is_some_and(|name| name == "MANIFEST")
                    || path.extension().is_some_and(|extension| extension == "run");
                if is_sealed && path.metadata()?.len() > 0 {
                    files.push(path);
                }
            }
        }
        // Without a checkpoint a start reads the whole log: then any record will do that others follow.
        let whole_log = files.is_empty();
        if whole_log && let Ok(entries) = std::fs::read_dir(member_dir.join("log")) {
            for entry in entries {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "seg") {
                    files.push(path);
                }
            }
            files.sort();
            files.truncate(1);
        }
        files.sort();
        if files.is_empty() {
            return Ok(None);
        }
        let path = files.swap_remove(self.rng.index(files.len()));
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut end = file.metadata()?.len();
        if whole_log {
            let bytes = std::fs::read(&path)?;
            let written = bytes.iter().rposition(|byte| *byte != 0).unwrap_or_default() as u64;
            if written < WRITTEN_BYTES_LEAST {
                return Ok(None);
            }
            end = written / 2;
        }
        let mut offset = self.rng.below(end);
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        // Zeros of a log may be padding, which nobody reads.
        while whole_log && byte == [0] && offset < end {
            offset += 1;
            file.read_exact_at(&mut byte, offset)?;
        }
        file.write_all_at(&byte.map(|byte| byte ^ (1 << self.rng.below(8))), offset)?;
        Ok(Some((path, offset)))
    }
}

fn words(cut: Cut) -> &'static str {
    match cut {
        Cut::Silent => "packets vanish",
        Cut::Unreachable => "unreachable",
    }
}

fn uptime_seconds() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok());
    seconds.ok_or_else(|| io::Error::other("/proc/uptime says nothing"))
}
