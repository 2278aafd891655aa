//! A thread for TLS handshakes, so that established connections do not wait for them: [`HandshakeThread`]. A
//! handshake costs milliseconds of processor time, a hostile one tens of milliseconds.

use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Instant;

use stdx::{First, Turns, before, race};
use tokio::sync::{mpsc, oneshot};

type Work = Pin<Box<dyn Future<Output = ()>>>;

struct Job<O> {
    origin: O,
    begin: Box<dyn FnOnce() -> Work + Send>,
}

/// Handle of a thread that performs handshakes, many at a time. Clones share the thread.
///
/// Origins take turns ([`Turns`]), one step of one handshake each, so that an address with many handshakes delays
/// others by one step at a time. The callers bound the number of handshakes, and their time
/// ([`before_deadline`]).
pub struct HandshakeThread<O> {
    jobs: mpsc::UnboundedSender<Job<O>>,
}

impl<O> Clone for HandshakeThread<O> {
    fn clone(&self) -> HandshakeThread<O> {
        HandshakeThread { jobs: self.jobs.clone() }
    }
}

impl<O: Copy + Eq + Hash + Send + Sync + 'static> HandshakeThread<O> {
    /// Starts the thread. It ends, and drops its handshakes, when `until` is ready or the last handle is dropped.
    /// `blocking_threads_max` limits the threads for [`tokio::task::spawn_blocking`], which look names up.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn start(
        name: String,
        blocking_threads_max: usize,
        until: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<(HandshakeThread<O>, JoinHandle<()>)> {
        // The callers bound the number of queued jobs: `front` by its quota of handshakes, `peer` by its
        // connection slots and by the few connections that it opens.
        let (jobs, receiver) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(blocking_threads_max)
            .thread_name("tls-look-up")
            .build()?;
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            runtime.block_on(race(until, serve(receiver)));
            // A name look-up may take long, so the end of the thread does not wait for it.
            runtime.shutdown_background();
        })?;
        Ok((HandshakeThread { jobs }, thread))
    }

    /// Runs a future on the thread. The future is dropped if the thread ends first. Returns false if the
    /// thread has ended.
    pub fn begin<F: Future<Output = ()> + 'static>(
        &self,
        origin: O,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> bool {
        self.jobs.send(Job { origin, begin: Box::new(move || Box::pin(work())) }).is_ok()
    }

    /// Runs a future on the thread, and returns its output. The future is dropped if the caller stops waiting for
    /// it.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread has ended.
    pub async fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        origin: O,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<T> {
        let (mut done, result) = oneshot::channel();
        let ended = || io::Error::other("it has ended");
        let has_begun = self.begin(origin, move || async move {
            if let First::Left(output) = race(work(), done.closed()).await {
                // The receiver may have been dropped.
                let _ = done.send(output);
            }
        });
        if !has_begun {
            return Err(ended());
        }
        result.await.map_err(|_| ended())
    }
}

/// Polls handshakes in turns until no more can be queued.
async fn serve<O: Copy + Eq + Hash + Send + Sync + 'static>(mut jobs: mpsc::UnboundedReceiver<Job<O>>) {
    let mut turns = Turns::new();
    poll_fn(|cx| {
        loop {
            match jobs.poll_recv(cx) {
                Poll::Ready(Some(Job { origin, begin })) => turns.add(origin, begin()),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        if turns.poll_one(cx).is_ready() {
            // Polls the network before the next turn.
            end_turn(cx);
        }
        Poll::Pending
    })
    .await;
}

/// Runs a handshake until its deadline; returns `None` if it is not complete then. The deadline is checked
/// before each step, because a step may compute an expensive signature.
pub async fn before_deadline<T>(deadline: Instant, handshake: impl Future<Output = T>) -> Option<T> {
    let over = tokio::time::sleep_until(deadline.into());
    before(|| Instant::now() >= deadline, over, handshake).await
}

/// Schedules the task to be polled again after other tasks have run and the network was polled. Waking the
/// task is not enough: a `LocalSet` polls a task that wakes itself dozens of times before it polls the
/// network.
pub fn end_turn(cx: &mut Context<'_>) {
    // `yield_now` is never ready at its first poll.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Sends a message when it is dropped.
    struct Farewell(std::sync::mpsc::Sender<&'static str>);

    impl Drop for Farewell {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }

    #[test]
    fn a_thread_returns_outputs_and_drops_what_has_not_ended() {
        let (close, closed) = oneshot::channel::<()>();
        let until = async { drop(closed.await) };
        let (thread, joined) = HandshakeThread::start("tls-test".to_owned(), 1, until).unwrap();
        let (said, heard) = channel();
        testkit::block_on(testkit::TIMEOUT, async {
            assert_eq!(thread.run(1, || async { 7 }).await.unwrap(), 7);
            let farewell = Farewell(said.clone());
            // A caller that stops waiting.
            let waiting = thread.run(2, move || async move {
                let _farewell = farewell;
                std::future::pending::<()>().await;
            });
            assert!(tokio::time::timeout(std::time::Duration::from_millis(1), waiting).await.is_err());
        });
        assert_eq!(heard.recv_timeout(testkit::TIMEOUT), Ok("dropped"));
        // A thread that ends.
        let farewell = Farewell(said);
        assert!(thread.begin(2, move || async move {
            let _farewell = farewell;
            std::future::pending::<()>().await;
        }));
        drop(close);
        joined.join().unwrap();
        assert_eq!(heard.recv_timeout(testkit::TIMEOUT), Ok("dropped"));
        assert!(!thread.begin(1, || async {}));
    }

    #[test]
    fn a_thread_ends_with_its_last_handle() {
        let (thread, joined) =
            HandshakeThread::<u8>::start("tls-test".to_owned(), 1, std::future::pending()).unwrap();
        drop(thread);
        joined.join().unwrap();
    }
}
