use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Directory for one test, which is empty at first. On drop it is removed with its contents, unless the test
/// fails or `MAINSTAY_TEST_KEEP` is set.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Creates a directory in `target/tmp` of the build, which is on a real disk. Its name begins with
    /// `name`, so that the directory of a failed test can be found.
    pub fn new(name: &str) -> TempDir {
        TempDir::within(&build_dir(), name).expect("a test can make its directory")
    }

    /// Creates a directory in memory if the machine has a file system for this (`/dev/shm`), otherwise on
    /// disk like [`TempDir::new`]. For tests that do not test the disk: in memory, syncs of other processes
    /// do not delay them.
    ///
    /// The path is short enough to be the address of a Unix socket.
    pub fn in_memory(name: &str) -> TempDir {
        TempDir::within(Path::new("/dev/shm"), &format!("mainstay-{name}"))
            .unwrap_or_else(|_| TempDir::new(name))
    }

    fn within(parent: &Path, name: &str) -> std::io::Result<TempDir> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{name}-{}-{number}", std::process::id()));
        // Remove a directory that an earlier process with the same id may have left.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        Ok(TempDir { path })
    }

    /// Returns the absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of an entry in the directory.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !std::thread::panicking() && std::env::var_os("MAINSTAY_TEST_KEEP").is_none() {
            // Ignore an error, because the test may already have removed the directory.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Returns the directory `target/tmp`. Cargo passes its path only to integration tests, as
/// `CARGO_TARGET_TMPDIR` at compile time, so this function derives it from the path of the test's binary in
/// `target/PROFILE/deps`. If `target/tmp` cannot be created, returns the system's temporary directory.
fn build_dir() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    let own = target.map(|target| target.join("tmp")).filter(|dir| std::fs::create_dir_all(dir).is_ok());
    own.unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_apart_and_go_away() {
        let (one, other, third) = (TempDir::new("same"), TempDir::new("same"), TempDir::in_memory("same"));
        let paths = [one.path(), other.path(), third.path()].map(Path::to_owned);
        for path in &paths {
            assert_eq!(std::fs::read_dir(path).expect("it exists").count(), 0);
            std::fs::write(path.join("file"), "x").expect("it can be written to");
        }
        drop((one, other, third));
        if std::env::var_os("MAINSTAY_TEST_KEEP").is_none() {
            assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
        }
    }

    #[test]
    fn directories_lie_where_the_build_does() {
        let dir = TempDir::new("place");
        assert!(dir.path().parent().is_some_and(|parent| parent.ends_with("tmp")), "{dir:?}");
    }
}
