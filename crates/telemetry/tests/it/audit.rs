//! The audit log: what is written, what is left out, and what happens if writing fails.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use clock::{Clock, HandClock};
use mainstay_telemetry::audit::{AuditLog, BYTES_MAX, Entry, Lines, RotatedFiles, Settings};
use mainstay_telemetry::logging::{Format, Level, Logger};
use mainstay_telemetry::metrics::{AuditMetrics, Metrics, MetricsDetail};
use testkit::{TempDir, wait_until};

struct Text(String);

impl Entry for Text {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn write(&self, out: &mut String) {
        out.push_str(&self.0);
    }
}

fn entry(text: impl Into<String>) -> Box<Text> {
    Box::new(Text(text.into()))
}

/// Keeps lines in memory, on a simulated disk that can be full or slow.
#[derive(Clone, Default)]
struct Memory(Arc<Disk>);

#[derive(Default)]
struct Disk {
    lines: Mutex<Vec<String>>,
    is_full: AtomicBool,
    is_held: Mutex<bool>,
    released: Condvar,
    /// Number of writes that have begun, whether finished or not.
    begun: AtomicUsize,
}

impl Memory {
    fn lines(&self) -> Vec<String> {
        self.0.lines.lock().expect("is whole").clone()
    }

    fn hold(&self, held: bool) {
        *self.0.is_held.lock().expect("is whole") = held;
        self.0.released.notify_all();
    }

    /// Blocks the disk while the log's thread writes one entry, so that further entries wait in the queue.
    fn hold_with_one(&self, log: &AuditLog) {
        self.hold(true);
        let before = self.0.begun.load(Ordering::SeqCst);
        log.push(entry("line"));
        let has_begun = || (self.0.begun.load(Ordering::SeqCst) > before).then_some(());
        wait_until("its thread is at the disk", testkit::TIMEOUT, has_begun);
    }
}

impl Lines for Memory {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let held = self.0.is_held.lock().expect("is whole");
        drop(self.0.released.wait_while(held, |held| *held).expect("is whole"));
        if self.0.is_full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let text = std::str::from_utf8(lines).expect("is text");
        assert!(text.ends_with('\n'), "whole lines");
        self.0.lines.lock().expect("is whole").extend(text.lines().map(str::to_owned));
        Ok(())
    }

    fn sync(&mut self) {}
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("is whole").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Told {
    fn count(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().expect("is whole")).matches(text).count()
    }
}

fn metrics() -> AuditMetrics {
    Metrics::new(&[], MetricsDetail::Basic).audit
}

fn log_to(memory: &Memory, entries_max: usize) -> (AuditLog, Told) {
    let told = Told::default();
    let logger = Logger::to(Level::Info, Format::Json, vec![Box::new(told.clone())]);
    let log =
        AuditLog::to(memory.clone(), memory.clone(), entries_max, Clock::real(), Arc::new(logger), metrics());
    (log.expect("starts"), told)
}

fn dropped_in(line: &str) -> Option<u64> {
    line.split_once("\"dropped\":")?.1.trim_end_matches('}').parse().ok()
}

#[test]
fn all_that_was_handed_over_is_written_before_it_stops() {
    let memory = Memory::default();
    let (log, _) = log_to(&memory, 1000);
    (0..500).for_each(|n| log.push(entry(format!("line {n}"))));
    log.push(entry(""));
    log.stop();
    let expected: Vec<String> = (0..500).map(|n| format!("line {n}")).collect();
    assert_eq!((memory.lines(), log.dropped()), (expected, 0), "an empty entry is no line");
}

#[test]
fn a_slow_disk_holds_nobody_up_and_what_it_costs_is_told() {
    let memory = Memory::default();
    let (log, _) = log_to(&memory, 10);
    memory.hold_with_one(&log);
    (0..1000).for_each(|n| log.push(entry(format!("line {n}"))));
    assert_eq!(log.dropped(), 990);
    memory.hold(false);
    let mut pushed = 1001;
    wait_until("the loss is told", testkit::TIMEOUT, || {
        log.push(entry("line later"));
        pushed += 1;
        memory.lines().iter().any(|line| dropped_in(line).is_some()).then_some(())
    });
    log.stop();
    let lines = memory.lines();
    let told: u64 = lines.iter().filter_map(|line| dropped_in(line)).sum();
    let written = lines.iter().filter(|line| line.starts_with("line")).count() as u64;
    assert_eq!((told + written, log.dropped()), (pushed, told));
}

#[test]
fn entries_that_wait_hold_a_bounded_number_of_bytes() {
    let memory = Memory::default();
    let (log, _) = log_to(&memory, 8192);
    memory.hold_with_one(&log);
    let large = "x".repeat(1 << 20);
    (0..64).for_each(|_| log.push(entry(large.clone())));
    let kept = 64 - log.dropped();
    assert_eq!(
        kept,
        (BYTES_MAX >> 20) as u64 - 1,
        "MiB are kept, of entries that are a little larger than one"
    );
    memory.hold(false);
    log.stop();
}

#[test]
fn a_full_disk_is_told_once_and_the_log_goes_on_when_there_is_room() {
    let memory = Memory::default();
    let (log, told) = log_to(&memory, 1000);
    log.push(entry("before"));
    wait_until("it is written", testkit::TIMEOUT, || (memory.lines().len() == 1).then_some(()));
    memory.0.is_full.store(true, Ordering::SeqCst);
    for n in 0..5 {
        log.push(entry(format!("lost {n}")));
        wait_until("it is dropped", testkit::TIMEOUT, || (log.dropped() == n + 1).then_some(()));
    }
    memory.0.is_full.store(false, Ordering::SeqCst);
    log.push(entry("after"));
    log.stop();
    let lines = memory.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!((lines[0].as_str(), dropped_in(&lines[1]), lines[2].as_str()), ("before", Some(5), "after"));
    assert_eq!(told.count("cannot write the audit log"), 1);
    assert_eq!(told.count("writing to the audit log works again"), 1);
}

fn settings(path: PathBuf, files_max: u64) -> Settings {
    Settings { path, file_bytes_max: 100, files_max }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn files_are_rotated_and_bounded_and_for_their_owner_only() {
    let dir = TempDir::new("audit");
    let path = dir.path().join("audit.log");
    fs::write(&path, "cut o").expect("is written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("is allowed");
    let mut files = RotatedFiles::open(&settings(path.clone(), 3)).expect("opens");
    for n in 0..20 {
        files.append(format!("{n:029}\n").as_bytes()).expect("is written");
    }
    let older = |n: u32| dir.path().join(format!("audit.log.{n}"));
    assert!(!older(3).exists() && fs::read_dir(dir.path()).expect("is there").count() == 3);
    let mut all = [read(&older(2)), read(&older(1)), read(&path)].concat();
    assert!(all.ends_with(&format!("{:029}\n", 19)) && all.lines().all(|line| line.len() == 29));
    for file in [path.clone(), older(1), older(2)] {
        let metadata = fs::metadata(&file).expect("is there");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{}", file.display());
        assert!(metadata.len() <= 100);
    }
    // An incomplete line stays separate from the next one.
    fs::write(&path, "cut o").expect("is written");
    let mut files = RotatedFiles::open(&settings(path.clone(), 1)).expect("opens");
    files.append(b"next\n").expect("is written");
    all = read(&path);
    assert_eq!(all, "cut o\nnext\n");
    // With a single file, old contents are removed.
    (0..4).for_each(|n| files.append(format!("{n:029}\n").as_bytes()).expect("is written"));
    assert_eq!(read(&path).lines().count(), 2, "the third did not fit, and began it again");
    assert!(RotatedFiles::open(&settings(dir.path().to_owned(), 1)).is_err());
}

#[test]
fn somebody_else_may_take_the_file_away_or_cut_it_off() {
    let dir = TempDir::new("audit");
    let path = dir.path().join("audit.log");
    let mut files = RotatedFiles::open(&settings(path.clone(), 2)).expect("opens");
    files.append(b"first\n").expect("is written");
    fs::File::options().write(true).open(&path).expect("is there").set_len(0).expect("is cut off");
    files.append(b"second\n").expect("is written");
    assert_eq!(read(&path), "second\n");
}

/// Returns the contents of each file, the newest first.
fn all(path: &Path, files: u64) -> Vec<String> {
    let older = (1..files).map(|number| PathBuf::from(format!("{}.{number}", path.display())));
    std::iter::once(path.to_owned())
        .chain(older)
        .map(|file| fs::read_to_string(file).unwrap_or_default())
        .collect()
}

/// Writes `a`, `b` and `c`, each with a file of its own, of four files at most.
fn three_files(dir: &TempDir) -> (PathBuf, RotatedFiles) {
    let path = dir.path().join("audit.log");
    let mut files =
        RotatedFiles::open(&Settings { file_bytes_max: 4, ..settings(path.clone(), 4) }).expect("opens");
    for line in ["a", "b", "c"] {
        files.append(format!("{line}\n\n\n").as_bytes()).expect("is written");
    }
    (path, files)
}

#[test]
fn a_file_that_was_moved_away_takes_no_older_ones_with_it() {
    let dir = TempDir::new("audit");
    let (path, mut files) = three_files(&dir);
    assert_eq!(all(&path, 4), ["c\n\n\n", "b\n\n\n", "a\n\n\n", ""]);
    for line in ["d", "e"] {
        fs::remove_file(&path).expect("is there");
        files.append(format!("{line}\n\n\n").as_bytes()).expect("is written");
        assert_eq!(all(&path, 4), [&format!("{line}\n\n\n"), "b\n\n\n", "a\n\n\n", ""]);
    }
    files.append(b"f\n\n\n").expect("is written");
    assert_eq!(all(&path, 4), ["f\n\n\n", "e\n\n\n", "b\n\n\n", "a\n\n\n"]);
}

#[test]
fn a_rotation_that_fails_leaves_the_files_and_is_tried_again() {
    let dir = TempDir::new("audit");
    let (path, mut files) = three_files(&dir);
    // No new file can be opened, because a directory has its name.
    let in_the_way = dir.path().join("audit.log.new");
    fs::create_dir(&in_the_way).expect("can be made");
    for _ in 0..3 {
        files.append(b"d\n\n\n").expect_err("no new file");
        assert_eq!(all(&path, 4), ["c\n\n\n", "b\n\n\n", "a\n\n\n", ""]);
    }
    fs::remove_dir(&in_the_way).expect("is there");
    files.append(b"e\n\n\n").expect("is written");
    assert_eq!(all(&path, 4), ["e\n\n\n", "c\n\n\n", "b\n\n\n", "a\n\n\n"]);
}

#[test]
fn a_rotation_that_failed_halfway_deletes_no_file_when_it_is_tried_again() {
    let dir = TempDir::new("audit");
    let (path, mut files) = three_files(&dir);
    // The older files were moved, and the newest was not.
    fs::rename(dir.path().join("audit.log.2"), dir.path().join("audit.log.3")).expect("is there");
    fs::rename(dir.path().join("audit.log.1"), dir.path().join("audit.log.2")).expect("is there");
    files.append(b"d\n\n\n").expect("is written");
    assert_eq!(all(&path, 4), ["d\n\n\n", "c\n\n\n", "b\n\n\n", "a\n\n\n"]);
}

#[test]
fn a_stop_does_not_wait_for_ever_for_a_disk_that_hangs() {
    let memory = Memory::default();
    memory.hold(true);
    let (log, _) = log_to(&memory, 10);
    (0..20).for_each(|n| log.push(entry(format!("line {n}"))));
    let log = Arc::new(log);
    let (sender, stopped) = std::sync::mpsc::channel();
    let stopping = Arc::clone(&log);
    let thread = std::thread::spawn(move || {
        stopping.stop();
        sender.send(()).expect("somebody waits");
    });
    stopped.recv_timeout(Duration::from_secs(60)).expect("it gives up");
    thread.join().expect("ends");
    memory.hold(false);
}

#[test]
fn refused_calls_displace_no_others_and_have_a_rate_and_files_of_their_own() {
    let (accepted, refused) = (Memory::default(), Memory::default());
    accepted.hold(true);
    refused.hold(true);
    let logger = Arc::new(Logger::to(Level::Info, Format::Json, vec![]));
    let metrics = metrics();
    let clock = HandClock::new(Instant::now(), SystemTime::now());
    let log =
        AuditLog::to(accepted.clone(), refused.clone(), 64, Clock::by_hand(&clock), logger, metrics.clone());
    let log = log.expect("starts");
    let address = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number));
    let (mut made, pushed) = (0, 20_000);
    for number in 0..pushed {
        // Large entries, of many addresses.
        log.push_refused(address(number % 5000), || {
            made += 1;
            entry("r".repeat(100 << 10))
        });
    }
    for n in 0..64 {
        log.push(entry(format!("line {n}")));
    }
    assert_eq!(log.dropped(), 0, "each kind has its places");
    assert!(made <= 1024, "{made} were looked at");
    accepted.hold(false);
    refused.hold(false);
    log.stop();
    assert_eq!(accepted.lines(), (0..64).map(|n| format!("line {n}")).collect::<Vec<_>>());
    let (lines, told): (Vec<_>, Vec<_>) = refused.lines().into_iter().partition(|line| line.starts_with('r'));
    assert!((1..=20).contains(&lines.len()), "{} lines of {made}", lines.len());
    let not_shown: u64 = told
        .iter()
        .map(|line| line.split_once("\"refused_not_shown\":").expect("a count").1)
        .map(|count| count.trim_end_matches('}').parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(not_shown + lines.len() as u64, u64::from(pushed));
    assert!(told.len() < 40 && told.iter().any(|line| line.contains("\"remote\":\"10.0.")), "{told:?}");
}

#[test]
fn refused_calls_are_beside_the_others_in_a_file_for_its_owner_only() {
    let dir = TempDir::new("audit");
    let path = dir.path().join("audit.log");
    let logger = Arc::new(Logger::to(Level::Info, Format::Json, vec![]));
    let settings = Settings { path: path.clone(), file_bytes_max: 4000, files_max: 3 };
    let clock = HandClock::new(Instant::now(), SystemTime::now());
    let log = AuditLog::start(&settings, Clock::by_hand(&clock), logger, metrics()).expect("starts");
    log.push(entry("kept"));
    for _ in 0..50 {
        log.push_refused(IpAddr::from([10, 0, 0, 1]), || entry("r".repeat(1000)));
        clock.advance(Duration::from_secs(1));
    }
    log.stop();
    assert_eq!(read(&path), "kept\n");
    let refused = dir.path().join("audit.log.refused");
    let metadata = fs::metadata(&refused).expect("is there");
    assert!(metadata.len() <= 70_000 && metadata.permissions().mode() & 0o777 == 0o600);
    assert_eq!(fs::read_dir(dir.path()).expect("is there").count(), 2, "one in eight of the files");
}
