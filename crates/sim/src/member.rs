//! Simulates one member: a place with a disk and a clock, and the process that runs at the place, if any.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Status;
use api::raftpb::Message;
use bytes::Bytes;
use clock::HandClock;
use disk::MemDisk;
use front::LocalBoxFuture;
use numbers::Seconds;
use peer::{BoxError, SnapshotSource};
use replica::transfer::ReceiveError;
use server::stepped::{Beginning, LogEnd, Stepped};

use crate::links::{Answer, Links};
use crate::network::Host;
use crate::schedule::Nanos;

/// Local time of a place. It is exact at first; later it may run too fast or too slow, jump, or stand still.
#[derive(Clone, Debug, Default)]
pub struct LocalTime {
    base_world: Nanos,
    base_local: Nanos,
    ppm: i64,
}

impl LocalTime {
    /// Returns the local time at a given world time.
    pub fn at(&self, now: Nanos) -> Nanos {
        let passed = i128::from(now.saturating_sub(self.base_world));
        let local = passed + passed * i128::from(self.ppm) / 1_000_000;
        self.base_local + u64::try_from(local).unwrap_or(0)
    }

    /// Returns the world time that passes while the given local duration passes, rounded up.
    pub fn in_world(&self, local: Duration) -> Nanos {
        let local = i128::try_from(local.as_nanos()).unwrap_or(0);
        let world = local * 1_000_000 / i128::from(1_000_000 + self.ppm) + 1;
        Nanos::try_from(world).unwrap_or(Nanos::MAX / 4).min(Nanos::MAX / 4)
    }

    /// Makes the clock run faster by `ppm` parts per million from now on; slower if `ppm` is negative.
    pub fn drift(&mut self, now: Nanos, ppm: i64) {
        *self = LocalTime { base_local: self.at(now), base_world: now.max(self.base_world), ppm };
    }

    /// Stops the clock for a duration, like the clock of a suspended machine.
    pub fn suspend(&mut self, now: Nanos, length: Nanos) {
        let base_world = self.base_world.max(now + length);
        *self = LocalTime { base_local: self.at(now), base_world, ppm: self.ppm };
    }

    /// Lets a suspended clock run again.
    pub fn resume(&mut self, now: Nanos) {
        *self = LocalTime { base_local: self.at(now), base_world: now, ppm: self.ppm };
    }

    /// Moves the clock forward by `by`.
    pub fn jump(&mut self, by: Nanos) {
        self.base_local += by;
    }

    /// Returns the drift in parts per million; positive is too fast.
    pub fn ppm(&self) -> i64 {
        self.ppm
    }
}

/// Factors by which a disk is slower than normal: a lasting factor, which applies until all faults end, and
/// the factor that applies now.
#[derive(Clone, Copy, Debug)]
pub struct Slowness {
    /// Factor that stays until all faults end.
    lasting: u64,
    now: u64,
}

impl Default for Slowness {
    fn default() -> Slowness {
        Slowness { lasting: 1, now: 1 }
    }
}

impl Slowness {
    /// Returns the slowness of a disk that is slower by this factor until all faults end.
    pub fn for_good(factor: u64) -> Slowness {
        Slowness { lasting: factor, now: factor }
    }

    /// Returns the factor that applies now.
    pub fn factor(self) -> u64 {
        self.now
    }

    /// Slows the disk down by this factor for a while. A disk that is already slower until all faults end
    /// keeps that factor if it is larger.
    pub fn begin(&mut self, factor: u64) {
        self.now = factor.max(self.lasting);
    }

    /// Ends the slowdown that [`Slowness::begin`] has begun.
    pub fn end(&mut self) {
        self.now = self.lasting;
    }
}

/// Host of one member: its disk, its clocks and, while it runs, its process.
pub struct Place {
    /// Number of the place.
    pub number: Host,
    /// Disk of the member.
    pub disk: MemDisk,
    /// Local time of the place.
    pub time: LocalTime,
    /// Clock object that the member's process reads.
    pub hand: Arc<HandClock>,
    /// Running process; `None` while the member is down.
    pub process: Option<Process>,
    /// Member id, set at the first start of the member.
    pub id: u64,
    /// Initial data of a member that joins a cluster, or of an observer; `None` for a founding member.
    pub beginning: Option<Beginning>,
    /// True if the place is that of an observer.
    pub observes: bool,
    /// Places of the members and observers that an observer's flags name as feeders, in this order.
    pub feeds: Vec<Host>,
    /// True if the disk has not been used by a process yet.
    pub disk_is_new: bool,
    /// Number of process starts at this place.
    pub lives: u64,
    /// World time until which the process is paused.
    pub paused_until: Nanos,
    /// World time until which the disk finishes no operation.
    pub stalled_until: Nanos,
    /// Speed of the disk.
    pub slowness: Slowness,
    /// True if a disk fault is active, or has been active since the process started. In that case, the
    /// process may end by itself.
    pub may_end: bool,
    /// True if a read of the disk may fail, which ends a member that reads a block of its index then.
    pub may_not_read: bool,
    /// True if a disk fault is active that may prevent a start.
    pub may_not_start: bool,
    /// True if the member's data is damaged or gone, so that it has to be replaced.
    pub lost: bool,
    /// True if the member will not be started again, for example because it was removed from the cluster.
    pub retired: bool,
    /// World time of the next start; `None` if none is planned.
    pub starts_at: Option<Nanos>,
    /// True if a bit of the member's data was flipped, or its disk misreported a write.
    pub decayed: bool,
    /// Time of day at the last start of the process.
    pub started_wall: Option<SystemTime>,
    /// True if the time of day restarts at each process start from the value of the start before.
    pub clock_resets: bool,
    /// End of the log at the last check; everything before it was durable.
    pub log_end: Option<LogEnd>,
    /// Part of the log that is proven to be durable: either a later batch was written, which happens only
    /// after the sync of this part, or the process recorded this end when it started.
    pub proven_log: Option<LogEnd>,
}

impl Place {
    /// Creates an empty place.
    pub fn new(seed: u64, number: Host, epoch: Instant) -> Place {
        let wall = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        Place {
            number,
            disk: disk_of(seed, number as u64),
            time: LocalTime::default(),
            hand: HandClock::new(epoch, wall),
            process: None,
            id: 0,
            beginning: None,
            observes: false,
            feeds: Vec::new(),
            disk_is_new: true,
            lives: 0,
            paused_until: 0,
            stalled_until: 0,
            slowness: Slowness::default(),
            may_end: false,
            may_not_read: false,
            may_not_start: false,
            lost: false,
            retired: false,
            starts_at: None,
            decayed: false,
            started_wall: None,
            clock_resets: false,
            log_end: None,
            proven_log: None,
        }
    }

    /// Replaces the disk by an empty one. The place must have no process.
    pub fn replace_disk(&mut self, seed: u64) {
        self.disk = disk_of(seed, self.number as u64);
        self.disk_is_new = true;
        (self.lost, self.decayed) = (false, false);
        (self.log_end, self.proven_log) = (None, None);
    }

    /// Advances the clock to the current local time.
    pub fn tick(&mut self, now: Nanos) {
        let shown = u64::try_from(self.hand.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let local = self.time.at(now);
        if local > shown {
            self.hand.advance(Duration::from_nanos(local - shown));
        }
    }
}

/// Sender of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Client whose history the oracle judges.
    Client(usize),
    /// Client that makes only this call.
    Extra,
    /// Client that requests an auth token.
    Login(usize),
    /// Administrator of users and roles.
    Administrator,
    /// Operator, who changes the members of the cluster.
    Operator,
    /// One of many clients that make the same call at the same time; responses to these calls are ignored.
    Crowd,
}

/// Result of a call as the client sees it.
#[derive(Debug)]
pub enum Heard {
    /// Response bytes, or the status that the member returned.
    Answer(Result<Bytes, Status>),
    /// New time to live of a lease, or the status that the member returned.
    Renewal(Result<Seconds, Status>),
    /// Connection refused; the call was never made.
    Nobody,
    /// Connection lost.
    Broken,
}

/// Receiver of the response to a request between members.
#[derive(Clone)]
pub enum Reply {
    /// Task of a member that waits for the response; the channel to the task can be taken out once.
    Task(Rc<RefCell<Option<Answer>>>),
    /// Task that sends the snapshot with this number.
    Snapshot(u64),
}

/// Result of a finished task of a process.
pub enum Done {
    /// A client's call has ended: caller, operation number, result.
    Call(Caller, u64, Heard),
    /// A request of another member was handled: the sender's place and process start number, the receiver of
    /// the response, and the response.
    Served((Host, u64), Reply, http::Response<Bytes>),
    /// A watch stream was closed: watcher number and stream number.
    Stream(usize, u64),
    /// A snapshot was received: the sender's place and process start number, and the result.
    Received((Host, u64), Result<(), ReceiveError>),
}

/// Snapshot that a member is sending.
pub struct Sending {
    /// Sequence number of the snapshot: 1 for the first that this process sends.
    pub number: u64,
    /// Id of the receiving member.
    pub to: u64,
    /// Raft message that announces the snapshot.
    pub message: Message,
    /// Source of the snapshot, until it is opened.
    pub source: Option<Box<dyn SnapshotSource>>,
    /// Reader of the snapshot's chunks, once the source is open.
    pub pieces: Option<Pieces>,
    /// Chunks that were already read and sent.
    pub sent: Vec<std::io::Result<Bytes>>,
}

/// Running process of a member.
pub struct Process {
    /// Member under test. It is the first field, so that it is dropped before the others.
    pub stepped: Stepped,
    /// Member id.
    pub id: u64,
    /// Number of this process start at its place.
    pub life: u64,
    /// Outgoing links to the other members.
    pub links: Arc<Links>,
    /// Results of finished tasks that the world has not handled yet.
    pub done: Rc<RefCell<Vec<Done>>>,
    /// Calls of clients that are in flight, by caller and operation number.
    pub calls: Vec<(Caller, u64)>,
    /// Watch streams that this process serves, by watcher number and stream number.
    pub streams: Vec<(usize, u64)>,
    /// Snapshots that are being sent.
    pub sending: Vec<Sending>,
    /// Number of snapshots sent so far.
    pub snapshots: u64,
    /// World time at which the core, the member's main loop, next runs.
    pub turn_at: Nanos,
    /// World time of the next timer.
    pub timer_at: Nanos,
    /// True if a write of the log is scheduled.
    pub log_busy: bool,
    /// True if a step of the background work is scheduled.
    pub background_busy: bool,
    /// True if a read of values is scheduled.
    pub read_busy: bool,
    /// True if the process was asked to shut down cleanly.
    pub stopping: bool,
}

/// Reader of a snapshot, which returns it chunk by chunk. The chunks come from a view that does not change
/// after the source was opened.
pub struct Pieces {
    future: LocalBoxFuture<Result<(), BoxError>>,
    next: Rc<RefCell<Option<std::io::Result<Bytes>>>>,
}

/// Result of reading a chunk of a snapshot.
pub enum Piece {
    /// The next chunk, or the error that occurred when it was read.
    Next(std::io::Result<Bytes>),
    /// End of the snapshot.
    End,
    /// The snapshot source could not be opened.
    Failed(BoxError),
}

/// Future that is pending at its first poll and ready at the second.
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Pieces {
    /// Opens a snapshot source. `receiver` describes the data that the receiving member already has.
    pub fn open(mut source: Box<dyn SnapshotSource>, receiver: Option<http::Response<Bytes>>) -> Pieces {
        let next = Rc::new(RefCell::new(None));
        let out = Rc::clone(&next);
        let future = Box::pin(async move {
            let Some(receiver) = receiver else { return Err("the receiver does not say what it has".into()) };
            for piece in source.open(Some(receiver))?.pieces {
                *out.borrow_mut() = Some(piece);
                Once(false).await;
            }
            Ok(())
        });
        Pieces { future, next }
    }

    /// Reads the next chunk.
    pub fn read(&mut self) -> Piece {
        let mut context = Context::from_waker(Waker::noop());
        match self.future.as_mut().poll(&mut context) {
            Poll::Ready(Ok(())) => Piece::End,
            Poll::Ready(Err(error)) => Piece::Failed(error),
            Poll::Pending => match self.next.borrow_mut().take() {
                Some(piece) => Piece::Next(piece),
                None => Piece::Failed("a piece that is none".into()),
            },
        }
    }
}

/// Creates a member's disk. In some seeds, reads often miss the page cache, so that values have to be fetched
/// from disk. In some seeds, a power cut may lose any of the unsynced directory entries.
fn disk_of(seed: u64, number: u64) -> MemDisk {
    let disk = MemDisk::new(seed ^ number << 40);
    if (seed ^ number).is_multiple_of(3) {
        disk.keep_names_in_any_order();
    }
    disk.set_misses_per_mille([0, 0, 30, 500][(seed % 4) as usize]);
    disk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_slow_for_good_stays_slow_after_another_fault() {
        let mut slowness = Slowness::for_good(20);
        slowness.begin(30);
        assert_eq!(slowness.factor(), 30);
        slowness.end();
        assert_eq!(slowness.factor(), 20);
        slowness.begin(2);
        assert_eq!(slowness.factor(), 20);
        let mut slowness = Slowness::default();
        slowness.begin(30);
        slowness.end();
        assert_eq!(slowness.factor(), 1);
    }

    #[test]
    fn local_time_drifts_and_jumps_but_never_goes_back() {
        let mut time = LocalTime::default();
        assert_eq!(time.at(1000), 1000);
        time.drift(1000, 100_000);
        assert_eq!(time.at(11_000), 12_000);
        assert!((9_090..9_100).contains(&time.in_world(Duration::from_nanos(10_000))));
        time.drift(11_000, -100_000);
        assert_eq!(time.at(21_000), 21_000);
        time.jump(500);
        assert_eq!(time.at(21_000), 21_500);
        time.drift(21_000, 0);
        time.suspend(21_000, 1000);
        time.drift(21_500, 0);
        assert_eq!((time.at(21_500), time.at(22_000), time.at(22_500)), (21_500, 21_500, 22_000));
    }
}
