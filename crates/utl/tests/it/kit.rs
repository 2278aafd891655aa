//! Helpers shared by the tests.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use cli::Io;
use disk::{Disk, RealDisk};
use storage::DataDirError;
use storage::stopped::Stopped;
use testkit::TempDir;

pub const RELEASES: [&str; 4] = ["3.4", "3.5", "3.6", "3.7"];
/// HashKV of all golden snapshots at revisions 5 to 10; the compact revision is 4.
pub const HASHES: [u32; 6] =
    [1_468_967_122, 2_897_024_621, 222_074_713, 486_260_849, 3_310_584_188, 2_237_637_283];

/// Returns a file made by real etcd.
pub fn golden(name: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interchange/tests/it/golden");
    let file = std::fs::File::open(dir.join(format!("{name}.gz"))).expect("is there");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("is sound");
    bytes
}

/// Output and exit code of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    pub code: u8,
    pub out: String,
    pub err: String,
}

/// Runs the tool in this process.
pub fn utl(args: &[&str]) -> Told {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let (io, printed) = Io::in_memory();
    let code = utl::run_in(&args, &Io { clock: || UNIX_EPOCH, ..io });
    Told { code, out: printed.out(), err: printed.err() }
}

/// Retries while a directory is locked: a child process started by another test inherits the locks of all
/// tests until it executes its program.
fn unlocked<T>(attempt: impl Fn() -> T, is_locked: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found = attempt();
        if !is_locked(&found) || Instant::now() > deadline {
            return found;
        }
        std::thread::yield_now();
    }
}

/// Runs a command that must succeed.
pub fn done(args: &[&str]) -> Told {
    let told = unlocked(|| utl(args), |told| told.code != 0 && told.err.contains(" is locked"));
    assert_eq!(told.code, 0, "{args:?}: {}", told.err);
    told
}

/// Runs a command that must be refused; returns its error text.
pub fn refused(args: &[&str], code: u8) -> String {
    let told = utl(args);
    assert_eq!((told.code, told.out.as_str()), (code, ""), "{args:?}: {}", told.err);
    let last = told.err.lines().last().unwrap_or_default();
    last.strip_prefix("Error: ").unwrap_or_else(|| panic!("{args:?}: {}", told.err)).to_owned()
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Writes a golden snapshot to a directory.
pub fn snapshot(dir: &TempDir, release: &str) -> PathBuf {
    let path = dir.join(format!("{release}.db"));
    std::fs::write(&path, golden(&format!("{release}-snapshot"))).expect("is written");
    path
}

/// Writes a golden data directory.
pub fn etcd_dir(dir: &TempDir, release: &str) -> PathBuf {
    let path = dir.join(format!("{release}.etcd"));
    let member = path.join("member");
    std::fs::create_dir_all(member.join("snap")).expect("is made");
    std::fs::create_dir_all(member.join("wal")).expect("is made");
    std::fs::write(member.join("snap/db"), golden(&format!("{release}-db"))).expect("is written");
    let wal = member.join("wal/0000000000000000-0000000000000000.wal");
    std::fs::write(wal, golden(&format!("{release}-wal"))).expect("is written");
    path
}

/// Opens the state of a stopped Mainstay member.
pub fn open(path: &Path) -> Stopped {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let is_locked = |found: &Result<Stopped, _>| matches!(found, Err(DataDirError::Locked { .. }));
    unlocked(|| Stopped::open(&disk, path), is_locked)
        .unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns everything below a directory: paths, modes and contents.
pub fn everything(path: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut all = Vec::new();
    for entry in std::fs::read_dir(path).expect("is there") {
        let path = entry.expect("is one").path();
        let mode = std::fs::metadata(&path).expect("is there").permissions().mode() & 0o7777;
        if path.is_dir() {
            all.extend(everything(&path));
            all.push((path, mode, Vec::new()));
        } else {
            let bytes = std::fs::read(&path).expect("can be read");
            all.push((path, mode, bytes));
        }
    }
    all.sort();
    all
}

/// Returns the names of all files in the directory, sorted.
pub fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir.join(""))
        .expect("is there")
        .map(|entry| entry.expect("is one").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
