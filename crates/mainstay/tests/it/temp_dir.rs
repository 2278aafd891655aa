use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of a test's own, on the disk that the build uses; removed at the end, unless
/// `MAINSTAY_TEST_KEEP` is set.
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a test can make its directory");
        TempDir { path }
    }

    /// One in memory where the machine has such a file system, for what is not about the disk: syncs of other work
    /// then hold nothing up.
    pub fn in_memory(name: &str) -> TempDir {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/dev/shm").join(format!("mainstay-{name}-{}-{number}", std::process::id()));
        if std::fs::create_dir(&path).is_ok() { TempDir { path } } else { TempDir::new(name) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::env::var_os("MAINSTAY_TEST_KEEP").is_none() {
            // What stays behind lies in the build's own directory.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
