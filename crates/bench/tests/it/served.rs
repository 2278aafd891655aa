//! A responder in a thread of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use loadgen::calls::Target;
use loadgen::responder::{Options, Responder};
use loadgen::socket::Endpoint;

pub struct Served {
    pub address: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn start(options: Options) -> Self {
        Self::at("127.0.0.1:0", options)
    }

    pub fn at(address: &str, options: Options) -> Self {
        let mut responder = Responder::bind(address, options).unwrap();
        let address = responder.address().unwrap().to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || responder.run(&seen).unwrap());
        Self { address, stop, thread: Some(thread) }
    }

    pub fn target(&self) -> Target {
        Target::new(vec![Endpoint::parse(&self.address, None).unwrap()])
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A directory that goes away with the test.
pub struct Directory(pub std::path::PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mainstay-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
