//! Runs a future on a thread that may block.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread, which blocks. The future must not need an async runtime: no
/// timers, sockets or tasks.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn another_thread_ends_the_wait() {
        let (sender, receiver) = oneshot::channel();
        let (asked, go) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            go.recv().expect("is asked");
            sender.send(7).expect("somebody waits");
        });
        let answer = block_on(async move {
            asked.send(()).expect("the thread runs");
            receiver.await
        });
        assert_eq!(answer, Ok(7));
        thread.join().expect("ends");
    }
}
