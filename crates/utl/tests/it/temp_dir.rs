//! A directory that goes away with its test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct TempDir(PathBuf);

static COUNT: AtomicU32 = AtomicU32::new(0);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mainstay-utl-{}-{count}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        TempDir(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
