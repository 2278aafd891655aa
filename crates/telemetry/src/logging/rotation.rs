//! Writes a log file with rotation: when the file is full, it is renamed to
//! `name-2026-11-22T21-30-00.123.ext`, and later compressed or removed. This works like the Go package
//! lumberjack, which etcd uses.
//!
//! If the full file cannot be renamed, or a new one cannot be created, lines are still written to the current
//! file, and rotation is tried again at the next line. So a failed rotation loses no line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::settings::LogRotation;
use clock::Clock;
use flate2::Compression;
use flate2::write::GzEncoder;
use stdx::calendar::{Utc, parse_rfc3339};

/// Function that returns the offset of local time from UTC, in seconds, at a time in seconds since 1970.
pub type Zone = fn(u64) -> i64;

const COMPRESSED: &str = ".gz";
const DAY: Duration = Duration::from_secs(86_400);
/// Length in bytes of a timestamp such as `2026-11-22T21-30-00.123`.
const TIMESTAMP_BYTES: usize = 23;

/// The current file of a log with rotation.
pub(super) struct RotatedFile {
    path: PathBuf,
    settings: LogRotation,
    file: File,
    size_bytes: u64,
    clock: Clock,
    zone: Zone,
    /// Wakes the thread that compresses and removes rotated files.
    cleaner: SyncSender<()>,
}

impl RotatedFile {
    /// Opens the file, and starts the thread that compresses and removes rotated files. If the file is full,
    /// rotates it.
    pub(super) fn open(
        path: &Path,
        settings: LogRotation,
        clock: Clock,
        zone: Zone,
    ) -> io::Result<RotatedFile> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let file = open_file(path, 0o600)?;
        let size_bytes = file.metadata()?.len();
        let (cleaner, wanted) = sync_channel(1);
        let cleaning =
            Cleaning { dir: dir.to_owned(), name: path.to_owned(), settings, clock: clock.clone() };
        thread::Builder::new().name("log-cleaner".to_owned()).spawn(move || {
            // The loop ends when the `RotatedFile` is dropped, because it owns the sender.
            while wanted.recv().is_ok() {
                // Ignore errors: they could be reported only in this log, which has just failed.
                let _ = cleaning.run();
            }
        })?;
        let mut rotated =
            RotatedFile { path: path.to_owned(), settings, file, size_bytes, clock, zone, cleaner };
        if rotated.size_bytes >= settings.file_bytes_max {
            rotated.rotate()?;
        }
        rotated.clean();
        Ok(rotated)
    }

    fn clean(&self) {
        // If the channel is full, the thread will be woken anyway, so nothing is lost.
        let _ = self.cleaner.try_send(());
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mode = self.file.metadata()?.permissions().mode() & 0o777;
        let mut now = self.clock.wall();
        let mut aside = self.aside(now);
        while aside.exists() || with_ending(&aside, COMPRESSED).exists() {
            now += Duration::from_millis(1);
            aside = self.aside(now);
        }
        match fs::rename(&self.path, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match open_file(&self.path, mode) {
            Ok(file) => self.file = file,
            Err(error) => {
                let _ = fs::rename(&aside, &self.path);
                return Err(error);
            }
        }
        self.size_bytes = self.file.metadata()?.len();
        self.clean();
        Ok(())
    }

    /// Returns the name to which a file that is full at the time `now` is renamed.
    fn aside(&self, now: SystemTime) -> PathBuf {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ahead = if self.settings.local_time { (self.zone)(since.as_secs()) } else { 0 };
        let date = Utc::from_unix(since.as_secs().saturating_add_signed(ahead)).to_string().replace(':', "-");
        let (stem, ending) = stem_and_ending(&self.path);
        self.path.with_file_name(format!("{stem}-{date}.{:03}{ending}", since.subsec_millis()))
    }
}

impl Write for RotatedFile {
    /// Writes a line to one file, never to two. If the file would become larger than the limit, rotates it
    /// first.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.size_bytes > 0 && self.size_bytes + line.len() as u64 > self.settings.file_bytes_max {
            // If rotation fails, write the line to the current file, which then becomes larger than the
            // limit.
            let _ = self.rotate();
        }
        self.file.write_all(line)?;
        self.size_bytes += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open_file(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(mode).open(path)
}

/// Splits the file name at its last dot, as Go's `filepath.Ext` does: `server.log` becomes `server` and
/// `.log`.
fn stem_and_ending(path: &Path) -> (String, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match name.rfind('.') {
        Some(at) => (name[..at].to_owned(), name[at..].to_owned()),
        None => (name, String::new()),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// State of the thread that compresses and removes rotated files.
struct Cleaning {
    dir: PathBuf,
    name: PathBuf,
    settings: LogRotation,
    clock: Clock,
}

impl Cleaning {
    fn run(&self) -> io::Result<()> {
        let LogRotation { files_max, age_days_max, compress, .. } = self.settings;
        let mut older = self.older()?;
        let mut outcome = Ok(());
        let mut remove = |path: &Path| {
            if let Err(error) = fs::remove_file(path) {
                outcome = Err(error);
            }
        };
        // A rotated file and its complete or partial compressed version have the same timestamp. Count them
        // as one file.
        let mut kept: Vec<String> = Vec::new();
        older.retain(|(stamp, path)| {
            if kept.last() != Some(stamp) {
                kept.push(stamp.clone());
            }
            let is_too_many = files_max > 0 && kept.len() as u64 > files_max;
            let is_too_old = age_days_max > 0
                && time_of(stamp).is_some_and(|moved| {
                    let age = self.clock.wall().duration_since(moved).unwrap_or_default();
                    age.as_secs() / DAY.as_secs() >= age_days_max
                });
            if is_too_many || is_too_old {
                remove(path);
            }
            !is_too_many && !is_too_old
        });
        let is_plain = |path: &Path| !path.to_string_lossy().ends_with(COMPRESSED);
        for (_, path) in older.iter().filter(|(_, path)| compress && is_plain(path)) {
            if let Err(error) = compress_file(path) {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// Returns the timestamps and paths of the rotated files, the newest first.
    fn older(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let (stem, ending) = stem_and_ending(&self.name);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let stamp = name.strip_prefix(&stem).and_then(|rest| rest.strip_prefix('-'));
            let stamp = stamp.and_then(|rest| {
                let plain = rest.strip_suffix(COMPRESSED).unwrap_or(rest);
                plain.strip_suffix(ending.as_str())
            });
            // Skip files whose names only begin like those of rotated files, because they must not be
            // removed.
            if let Some(stamp) = stamp.filter(|stamp| time_of(stamp).is_some()) {
                found.push((stamp.to_owned(), path));
            }
        }
        found.sort_by(|a, b| b.cmp(a));
        Ok(found)
    }
}

/// Parses a timestamp such as `2026-11-22T21-30-00.123`. Returns `None` for any other text.
fn time_of(stamp: &str) -> Option<SystemTime> {
    if stamp.len() != TIMESTAMP_BYTES || !stamp.is_ascii() {
        return None;
    }
    parse_rfc3339(&format!("{}T{}Z", &stamp[..10], stamp[11..].replace('-', ":")))
}

/// Compresses a rotated file, and removes the original. Overwrites what an interrupted attempt left behind.
fn compress_file(path: &Path) -> io::Result<()> {
    let into = with_ending(path, COMPRESSED);
    let mut from = File::open(path)?;
    let mode = from.metadata()?.permissions().mode() & 0o777;
    let to = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&into)?;
    let pack = || -> io::Result<()> {
        let mut encoder = GzEncoder::new(to, Compression::default());
        let mut buffer = vec![0; 64 << 10];
        loop {
            let filled = from.read(&mut buffer)?;
            if filled == 0 {
                break;
            }
            encoder.write_all(buffer.get(..filled).unwrap_or_default())?;
        }
        encoder.finish()?.sync_all()
    };
    match pack() {
        Ok(()) => fs::remove_file(path),
        Err(error) => {
            let _ = fs::remove_file(&into);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use clock::HandClock;
    use testkit::TempDir;

    use super::*;

    /// 2026-11-22T21:30:00Z.
    const NOW: u64 = 1_795_383_000;

    const SETTINGS: LogRotation = LogRotation {
        file_bytes_max: 100,
        age_days_max: 0,
        files_max: 0,
        local_time: false,
        compress: false,
    };

    fn hand() -> Clock {
        Clock::by_hand(&HandClock::new(Instant::now(), UNIX_EPOCH + Duration::from_secs(NOW)))
    }

    fn names(dir: &TempDir) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(dir.path()).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn full_files_are_moved_aside_and_no_line_is_lost() {
        let dir = TempDir::in_memory("rotation");
        let path = dir.path().join("below/server.log");
        let mut file = RotatedFile::open(&path, SETTINGS, hand(), |_| 0).unwrap();
        for number in 0..25 {
            writeln!(file, "line {number:014}").unwrap();
        }
        // Each file has five lines of twenty bytes. The clock stands still, so the names differ only in their
        // milliseconds: each rotation takes the next free one.
        let read = |name: &str| fs::read_to_string(dir.path().join("below").join(name)).unwrap();
        let mut lines = String::new();
        for aside in 0..4 {
            let text = read(&format!("server-2026-11-22T21-30-00.{aside:03}.log"));
            assert_eq!(text.len(), 100);
            lines.push_str(&text);
        }
        lines.push_str(&read("server.log"));
        assert_eq!(lines.lines().count(), 25);
        assert!(lines.ends_with("line 00000000000024\n"));
        // A file that is full when it is opened is rotated; otherwise writing continues in it.
        drop(RotatedFile::open(&path, SETTINGS, hand(), |_| 0).unwrap());
        assert_eq!(read("server-2026-11-22T21-30-00.004.log").len(), 100);
        let zone: Zone = |_| -3600;
        let settings = LogRotation { file_bytes_max: 10, local_time: true, ..SETTINGS };
        let mut file = RotatedFile::open(&path, settings, hand(), zone).unwrap();
        writeln!(file, "longer than the file may be").unwrap();
        writeln!(file, "next").unwrap();
        assert_eq!(read("server-2026-11-22T20-30-00.000.log"), "longer than the file may be\n");
    }

    #[test]
    fn a_line_is_written_though_the_file_cannot_be_moved() {
        let dir = TempDir::in_memory("rotation-fails");
        let path = dir.path().join("below/server.log");
        let mut file = RotatedFile::open(&path, SETTINGS, hand(), |_| 0).unwrap();
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        for _ in 0..10 {
            writeln!(file, "twenty bytes a line").unwrap();
        }
        assert_eq!(file.file.metadata().unwrap().len(), 200);
        fs::create_dir(path.parent().unwrap()).unwrap();
        writeln!(file, "again").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "again\n");
    }

    #[test]
    fn older_files_are_compressed_and_removed() {
        let dir = TempDir::in_memory("rotation-cleaning");
        let others =
            ["server.log", "server-old.log", "server-2026-11-22.log", "server-2026-11-22T21-30-00.000.txt"];
        for name in others {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let aside = |day: u64, ending: &str| format!("server-2026-11-{day:02}T21-30-00.000.log{ending}");
        for (name, text) in [
            (aside(10, ".gz"), "x"),
            (aside(19, ""), "oldest"),
            (aside(19, ".gz"), "half of it"),
            (aside(20, ""), "older"),
            (aside(21, ""), "old"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let clean = |settings| {
            let name = dir.path().join("server.log");
            Cleaning { dir: dir.path().to_owned(), name, settings, clock: hand() }.run().unwrap();
            let kept = names(&dir).into_iter().filter(|name| !others.contains(&name.as_str()));
            kept.collect::<Vec<_>>()
        };
        assert_eq!(clean(SETTINGS).len(), 5, "nothing is removed unless it is asked for");
        let kept = clean(LogRotation { age_days_max: 4, ..SETTINGS });
        assert_eq!(kept, [aside(19, ""), aside(19, ".gz"), aside(20, ""), aside(21, "")]);
        let kept = clean(LogRotation { compress: true, ..SETTINGS });
        assert_eq!(kept, [aside(19, ".gz"), aside(20, ".gz"), aside(21, ".gz")]);
        let packed = File::open(dir.path().join(aside(19, ".gz"))).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "oldest", "what an attempt before left is written over");
        assert_eq!(clean(LogRotation { files_max: 2, ..SETTINGS }), [aside(20, ".gz"), aside(21, ".gz")]);
        assert_eq!(names(&dir).len(), others.len() + 2);
    }
}
