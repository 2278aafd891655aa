//! A responder that runs in a thread of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use mainstay_bench::loadgen::calls::Target;
use mainstay_bench::loadgen::responder::{Options, Responder};
use mainstay_bench::loadgen::socket::Endpoint;

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
