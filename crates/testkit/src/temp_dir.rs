use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of one test. It exists and is empty at first; when the value is dropped it is removed with all that is
/// in it, unless the test fails or `MAINSTAY_TEST_KEEP` is set.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Creates a directory in `target/tmp` of the build, which is on a real disk. The name begins with `name`, for those
    /// who look at what a failed test left.
    pub fn new(name: &str) -> TempDir {
        TempDir::within(&build_dir(), name).expect("a test can make its directory")
    }

    /// Creates a directory in memory if the machine has such a file system (`/dev/shm`), for tests that are not about
    /// the disk: other processes' syncs do not delay them. Otherwise it is as [`TempDir::new`] makes it.
    ///
    /// Its path is short enough for the address of a socket.
    pub fn in_memory(name: &str) -> TempDir {
        TempDir::within(Path::new("/dev/shm"), &format!("mainstay-{name}"))
            .unwrap_or_else(|_| TempDir::new(name))
    }

    fn within(parent: &Path, name: &str) -> std::io::Result<TempDir> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{name}-{}-{number}", std::process::id()));
        // A process that had the same id may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        Ok(TempDir { path })
    }

    /// The directory's path, which is absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of something in the directory.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !std::thread::panicking() && std::env::var_os("MAINSTAY_TEST_KEEP").is_none() {
            // A test may have removed it itself.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// `target/tmp`, as cargo names it to integration tests in `CARGO_TARGET_TMPDIR` at compile time: tests are run from
/// `target/PROFILE/deps`. The system's directory if it cannot be made.
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
