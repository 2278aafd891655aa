//! Performs TLS handshakes on a separate thread, so that they do not delay established connections:
//! [`HandshakeThread`]. A handshake takes milliseconds of processor time, a hostile one tens of milliseconds.

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

/// Handle of a thread that performs many handshakes concurrently. Clones share the thread.
///
/// Each handshake has an origin, such as the address of the client. The thread serves the origins in turn
/// ([`Turns`]), with one step of one handshake each. So an origin with many handshakes delays each step of
/// another one by one step only. The callers must limit the number of handshakes and their time
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
    /// Starts the thread. It ends and drops its handshakes when `until` is ready or the last handle was
    /// dropped. `blocking_threads_max` is the maximum number of threads for [`tokio::task::spawn_blocking`],
    /// on which names are looked up.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn start(
        name: String,
        blocking_threads_max: usize,
        until: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<(HandshakeThread<O>, JoinHandle<()>)> {
        // The channel is unbounded, because the callers limit the number of handshakes: `front` by a quota,
        // `peer` by its connection slots and by the few connections that it opens.
        let (jobs, receiver) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(blocking_threads_max)
            .thread_name("tls-look-up")
            .build()?;
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            runtime.block_on(race(until, serve(receiver)));
            // End without waiting for name look-ups, which may take long.
            runtime.shutdown_background();
        })?;
        Ok((HandshakeThread { jobs }, thread))
    }

    /// Begins to run a future on the thread. If the thread ends first, the future is dropped. Returns false
    /// if the thread has already ended.
    pub fn begin<F: Future<Output = ()> + 'static>(
        &self,
        origin: O,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> bool {
        self.jobs.send(Job { origin, begin: Box::new(move || Box::pin(work())) }).is_ok()
    }

    /// Runs a future on the thread, and waits for its output. If the caller stops waiting, the future is
    /// dropped.
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
                // An error means that the caller no longer waits.
                let _ = done.send(output);
            }
        });
        if !has_begun {
            return Err(ended());
        }
        result.await.map_err(|_| ended())
    }
}

/// Runs the main loop of the thread: starts queued handshakes, and polls one handshake at a time, serving the
/// origins in turn. Ends when all handles were dropped.
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
            // Let the runtime poll the network before the next step.
            end_turn(cx);
        }
        Poll::Pending
    })
    .await;
}

/// Runs a handshake; returns `None` if it is not complete at the deadline. The deadline is checked before
/// each step, so that no expensive signature is computed in a step after the deadline.
pub async fn before_deadline<T>(deadline: Instant, handshake: impl Future<Output = T>) -> Option<T> {
    let over = tokio::time::sleep_until(deadline.into());
    before(|| Instant::now() >= deadline, over, handshake).await
}

/// Schedules the current task to be polled again after other tasks have run and the network was polled. It is
/// not sufficient to wake the task: a `LocalSet` would poll it dozens of times before it polls the network.
pub fn end_turn(cx: &mut Context<'_>) {
    // The first poll of `yield_now` is always pending and schedules the task. The result is not needed.
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
