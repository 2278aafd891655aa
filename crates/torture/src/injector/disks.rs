//! Injects faults of disks, and of the files on them.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Injector;

/// Smallest size in bytes of a log in which a bit is flipped. In a shorter log, there may be no later record
/// after the flipped bit. Only a later record proves that the damaged one had been synced, so that the member
/// must report the damage.
const WRITTEN_BYTES_LEAST: u64 = 64 << 10;
/// Longest time for which data is written to use up the space that logs have allocated in advance.
const FILLING_TIME_MAX: Duration = Duration::from_secs(25);
const FILLING_BYTES: usize = 1 << 20;

impl Injector<'_> {
    /// Freezes and thaws the file system of a member in quick succession.
    pub(super) fn slow_disk(&mut self, bar: usize) -> io::Result<()> {
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

    /// Freezes the file system of a member for a while.
    pub(super) fn stall_disk(&mut self, bar: usize) -> io::Result<()> {
        let at = self.leader_or_any();
        self.tell(bar, &[at], &format!("disk of m{at} stands still"));
        self.on_disk(at, |disk| disk.freeze())?;
        self.last();
        self.on_disk(at, |disk| disk.thaw())
    }

    /// Fills the file system of one member or of all members. Then writes data, until the logs have used up
    /// the space that they have allocated in advance.
    pub(super) fn full_disk(&mut self, bar: usize) -> io::Result<()> {
        // In half of the cases, leave some space, so that the disk becomes full in the middle of a write.
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
        // The members have allocated space for their logs in advance. Write data until it is used up and an
        // alarm is raised.
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

    /// Flips a bit in a file of a member that is down, checks that the member reports the damage when it is
    /// started, and replaces the member.
    pub(super) fn flip_bit(&mut self, bar: usize) -> io::Result<()> {
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
            None if self.cluster.has_said(at, from, "the checkpoint is damaged; the log is complete") => {
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

    /// Flips a bit in a file that is complete and that the member must read when it starts. Returns the
    /// file's path and the offset; `None` if there is no such file.
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
        // Without a checkpoint, the member reads the whole log when it starts. A damaged record must be
        // reported if there are later records after it. So use the first half of the first segment.
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
        // Skip zeros in a log: they may be padding, which the member does not read.
        while whole_log && byte == [0] && offset < end {
            offset += 1;
            file.read_exact_at(&mut byte, offset)?;
        }
        file.write_all_at(&byte.map(|byte| byte ^ (1 << self.rng.below(8))), offset)?;
        Ok(Some((path, offset)))
    }

    /// Calls a function with the file system of a member.
    ///
    /// # Errors
    /// Returns an error if the member has no file system of its own, or the error of the function.
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
}
