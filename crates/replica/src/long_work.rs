//! Runs long work for clients, such as hashes and snapshots of the whole state, on a thread of its own:
//! [`LongWork`].

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use stdx::{Turns, client_network};
use storage::block_on::block_on;
use storage::readers::Readers;
use storage::values::LogValues;
use tokio::sync::mpsc;

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Job {
    /// Network of the client, as for all that clients share.
    network: IpAddr,
    begin: Box<dyn FnOnce(Rc<LogValues>) -> Task + Send>,
}

/// Maximum number of futures that the thread has. A cancelled call leaves its future behind until the thread
/// polls it, and such futures are charged to no client.
const JOBS_MAX: usize = 1024;

/// One of the [`JOBS_MAX`] futures; frees its place when dropped.
struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// Returns a ticket, if there is a free place.
    fn take(jobs: &Arc<AtomicUsize>) -> Option<Ticket> {
        let ticket = Ticket(Arc::clone(jobs));
        (jobs.fetch_add(1, Relaxed) < JOBS_MAX).then_some(ticket)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The thread for work of clients that takes much processor time. It is started by the first such work.
///
/// The work is a future that does some 0.1 ms of it per poll. The thread polls one future at a time, serves
/// the networks of clients in turn, and yields the processor after each poll ([`Turns`]).
///
/// The alternative is to do the work in slices on the shard that serves the client. The kernel then sees a
/// shard that always computes. When such a thread has used up its share of the processor, each thread that
/// wakes up displaces it for milliseconds, and all calls of the shard wait with it. A thread that only answers
/// calls sleeps most of the time, so it runs as soon as it is woken.
pub struct LongWork {
    /// Sources of the thread's values; `None` if the member may not start threads.
    sources: Option<(Arc<Readers>, log::Values)>,
    /// Queue of the thread; `None` if the thread cannot be started.
    jobs: OnceLock<Option<mpsc::UnboundedSender<Job>>>,
    /// Number of futures that the thread has, those in its queue included.
    under_way: Arc<AtomicUsize>,
}

impl LongWork {
    /// Returns a handle that starts the thread when it is needed, and never if there are no sources of values
    /// for it.
    pub fn new(sources: Option<(Arc<Readers>, log::Values)>) -> LongWork {
        LongWork { sources, jobs: OnceLock::new(), under_way: Arc::default() }
    }

    /// Begins to run a future on the thread, for a client with the address `origin`. The future reads values
    /// from the argument of `work`, which does not wait for a disk. It needs no async runtime, and must end
    /// soon after its caller stopped waiting.
    ///
    /// # Errors
    ///
    /// Returns the work if there is no thread, or if the thread has very many futures. The caller has to do the
    /// work on its own thread.
    pub fn begin<W, F>(&self, origin: IpAddr, work: W) -> Result<(), W>
    where
        W: FnOnce(Rc<LogValues>) -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let Some(sources) = &self.sources else { return Err(work) };
        let Some(jobs) = self.jobs.get_or_init(|| start(sources.clone())) else { return Err(work) };
        let Some(ticket) = Ticket::take(&self.under_way) else { return Err(work) };
        let begin: Box<dyn FnOnce(Rc<LogValues>) -> Task + Send> = Box::new(move |values| {
            let working = work(values);
            Box::pin(async move {
                let _ticket = ticket;
                working.await;
            })
        });
        // The thread ends only when this handle is dropped, so it takes the job.
        let is_sent = jobs.send(Job { network: client_network(origin), begin }).is_ok();
        debug_assert!(is_sent, "the thread runs as long as it can be given work");
        Ok(())
    }
}

/// Starts the thread, which ends when the sender is dropped. The queue needs no bound: [`JOBS_MAX`] is one.
fn start((readers, log): (Arc<Readers>, log::Values)) -> Option<mpsc::UnboundedSender<Job>> {
    let (jobs, queue) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name("long-work".to_owned());
    let body = move || block_on(serve(queue, Rc::new(LogValues::fetched_by(&readers, log))));
    // Nothing waits for the end of the thread: it drops its work when the member's shared state is dropped.
    thread.spawn(body).ok().map(|_| jobs)
}

/// Runs jobs until all senders are dropped. Jobs that are still running are dropped then.
async fn serve(mut queue: mpsc::UnboundedReceiver<Job>, values: Rc<LogValues>) {
    let mut turns = Turns::new();
    poll_fn(|cx| {
        loop {
            loop {
                match queue.poll_recv(cx) {
                    Poll::Ready(Some(Job { network, begin })) => turns.add(network, begin(values.clone())),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => break,
                }
            }
            if turns.poll_one(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    use disk::MemDisk;
    use numbers::{ClusterId, Index, MemberId};

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Returns sources of values that no test reads.
    fn sources() -> Option<(Arc<Readers>, log::Values)> {
        let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
        let disk = Arc::new(MemDisk::new(1));
        let opened = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {}));
        let (log, _) = opened.expect("opens");
        Some((Readers::new(log.values()), log.values()))
    }

    /// Sends a message when it is dropped.
    struct Farewell(Sender<&'static str>);

    impl Drop for Farewell {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }

    #[test]
    fn work_runs_on_its_own_thread_and_is_dropped_with_the_handle() {
        let work = LongWork::new(sources());
        let (sender, receiver) = channel();
        let own = thread::current().id();
        let begun = work.begin(CLIENT, move |_| async move {
            tokio::task::yield_now().await;
            sender.send(thread::current().id()).expect("the test waits");
        });
        assert!(begun.is_ok());
        assert_ne!(receiver.recv_timeout(testkit::TIMEOUT).expect("it runs"), own);
        let (sender, receiver) = channel();
        let farewell = Farewell(sender);
        let begun = work.begin(CLIENT, move |_| async move {
            let _farewell = farewell;
            std::future::pending::<()>().await;
        });
        assert!(begun.is_ok());
        drop(work);
        assert_eq!(receiver.recv_timeout(testkit::TIMEOUT), Ok("dropped"));
    }

    #[test]
    fn clients_take_turns() {
        let work = LongWork::new(sources());
        let (sender, receiver) = channel();
        let (go, gate) = channel::<()>();
        // All work is queued before any of it runs.
        let begun = work.begin(CLIENT, move |_| {
            gate.recv().expect("the test opens the gate");
            async {}
        });
        assert!(begun.is_ok());
        for (address, steps) in [(1, 3), (1, 3), (2, 2)] {
            let sender = sender.clone();
            let begun = work.begin(Ipv4Addr::new(10, 0, 0, address).into(), move |_| async move {
                for _ in 0..steps {
                    sender.send(address).expect("the test waits");
                    tokio::task::yield_now().await;
                }
            });
            assert!(begun.is_ok());
        }
        drop(sender);
        go.send(()).expect("the thread waits");
        let order: Vec<u8> = receiver.iter().collect();
        assert_eq!(order, [1, 2, 1, 2, 1, 1, 1, 1], "{order:?}");
    }

    #[test]
    fn the_thread_has_a_bounded_number_of_futures() {
        let work = LongWork::new(sources());
        let (go, gate) = channel::<()>();
        let (done, finished) = channel::<()>();
        let waits = move |_: Rc<LogValues>| {
            gate.recv().expect("the test opens the gate");
            async {}
        };
        assert!(work.begin(CLIENT, waits).is_ok());
        for _ in 1..JOBS_MAX {
            let done = done.clone();
            assert!(work.begin(CLIENT, move |_| async move { drop(done) }).is_ok());
        }
        drop(done);
        assert!(work.begin(CLIENT, |_| async {}).is_err(), "the caller has to do it");
        go.send(()).expect("the thread waits");
        assert!(finished.recv().is_err(), "all others ran");
        // A future drops its ticket last, so the thread may still be about to do that.
        let deadline = std::time::Instant::now() + testkit::TIMEOUT;
        while work.begin(CLIENT, |_| async {}).is_err() {
            assert!(std::time::Instant::now() < deadline);
            thread::yield_now();
        }
    }

    #[test]
    fn where_no_thread_may_be_started_the_work_is_returned() {
        let work = LongWork::new(None);
        assert!(work.begin(CLIENT, |_| async {}).is_err());
    }
}
