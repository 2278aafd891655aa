//! One member: a place with a disk and a clock, and the process that runs there, if one does.

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

/// A place's own time: right at first, it may run too fast or too slow, jump, and stand still.
#[derive(Clone, Debug, Default)]
pub struct LocalTime {
    base_world: Nanos,
    base_local: Nanos,
    ppm: i64,
}

impl LocalTime {
    /// What it shows.
    pub fn at(&self, now: Nanos) -> Nanos {
        let passed = i128::from(now.saturating_sub(self.base_world));
        let local = passed + passed * i128::from(self.ppm) / 1_000_000;
        self.base_local + u64::try_from(local).unwrap_or(0)
    }

    /// How long the world takes while this much passes here; a little longer rather than shorter.
    pub fn in_world(&self, local: Duration) -> Nanos {
        let local = i128::try_from(local.as_nanos()).unwrap_or(0);
        let world = local * 1_000_000 / i128::from(1_000_000 + self.ppm) + 1;
        Nanos::try_from(world).unwrap_or(Nanos::MAX / 4).min(Nanos::MAX / 4)
    }

    /// Runs faster by so many millionths from now on.
    pub fn drift(&mut self, now: Nanos, ppm: i64) {
        *self = LocalTime { base_local: self.at(now), base_world: now.max(self.base_world), ppm };
    }

    /// Stands still for so long, as the clock of a machine that is suspended.
    pub fn suspend(&mut self, now: Nanos, length: Nanos) {
        let base_world = self.base_world.max(now + length);
        *self = LocalTime { base_local: self.at(now), base_world, ppm: self.ppm };
    }

    /// Stands still no more.
    pub fn resume(&mut self, now: Nanos) {
        *self = LocalTime { base_local: self.at(now), base_world: now, ppm: self.ppm };
    }

    /// Jumps forward.
    pub fn jump(&mut self, by: Nanos) {
        self.base_local += by;
    }

    /// By how many millionths it is too fast.
    pub fn ppm(&self) -> i64 {
        self.ppm
    }
}

/// Where a member is.
pub struct Place {
    /// Its number.
    pub number: Host,
    /// Its disk.
    pub disk: MemDisk,
    /// Its time.
    pub time: LocalTime,
    /// The clock that its process sees.
    pub hand: Arc<HandClock>,
    /// The process.
    pub process: Option<Process>,
    /// The id of the member, once it has been started.
    pub id: u64,
    /// What it begins with if it joins a cluster; `None`: it forms one.
    pub beginning: Option<Beginning>,
    /// How often a process was started here.
    pub lives: u64,
    /// Until when the process stands still.
    pub paused_until: Nanos,
    /// Until when the disk takes nothing.
    pub stalled_until: Nanos,
    /// By how much its disk is slower than others.
    pub slowness: u64,
    /// A fault of the disk is in place, or was since the process started: that it ends is no surprise.
    pub may_end: bool,
    /// One is in place with which a process may not start.
    pub may_not_start: bool,
    /// Its data is damaged or gone: it is to be replaced.
    pub lost: bool,
    /// It is no member any more, and will not be started again.
    pub retired: bool,
    /// When it is to be started, if it is.
    pub starts_at: Option<Nanos>,
    /// A bit of its data has turned around, or its disk has lied about a write.
    pub decayed: bool,
    /// Time of day when its process was started last.
    pub started_wall: Option<SystemTime>,
    /// Its time of day begins at every start where it began at the last one.
    pub clock_resets: bool,
    /// Where its log ended when it was looked at last: all of it was durable.
    pub log_end: Option<LogEnd>,
    /// The part of its log of which something proves that it was durable: a batch behind it, since that was begun only
    /// then, or the end noted at the last start.
    pub proven_log: Option<LogEnd>,
}

impl Place {
    /// An empty place.
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
            lives: 0,
            paused_until: 0,
            stalled_until: 0,
            slowness: 1,
            may_end: false,
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

    /// Lets its clock go on to what it shows now.
    pub fn tick(&mut self, now: Nanos) {
        let shown = u64::try_from(self.hand.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let local = self.time.at(now);
        if local > shown {
            self.hand.advance(Duration::from_nanos(local - shown));
        }
    }
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A client whose history is judged.
    Client(usize),
    /// A client that does one operation.
    Extra,
    /// A client that wants a token.
    Login(usize),
    /// The administrator of users.
    Administrator,
    /// The operator of the cluster.
    Operator,
    /// One of many who do the same at the same time, and are not listened to.
    Crowd,
}

/// What a client hears of its call.
#[derive(Debug)]
pub enum Heard {
    /// The answer's bytes.
    Answer(Result<Bytes, Status>),
    /// A lease's new time to live.
    Renewal(Result<Seconds, Status>),
    /// Nobody listens there: the call was never made.
    Nobody,
    /// The connection broke.
    Broken,
}

/// Who is told of the answer to a request between members.
#[derive(Clone)]
pub enum Reply {
    /// A member's task, once.
    Task(Rc<RefCell<Option<Answer>>>),
    /// The snapshot of this number that a member sends.
    Snapshot(u64),
}

/// What a task of a process has come to.
pub enum Done {
    /// A client's call.
    Call(Caller, u64, Heard),
    /// A request of another member: whose, in which life, and whom to tell.
    Served((Host, u64), Reply, http::Response<Bytes>),
    /// A watch stream: whose, and which of its streams.
    Stream(usize, u64),
    /// A snapshot of this member, in this life, was received; whether all is well.
    Received((Host, u64), Result<(), ReceiveError>),
}

/// A snapshot that is being sent.
pub struct Sending {
    /// Number among this life's.
    pub number: u64,
    /// To whom.
    pub to: u64,
    /// The message that goes with it.
    pub message: Message,
    /// Where it comes from, until it is opened.
    pub source: Option<Box<dyn SnapshotSource>>,
    /// The pieces, once it is.
    pub pieces: Option<Pieces>,
    /// What is under way already.
    pub sent: Vec<std::io::Result<Bytes>>,
}

/// A running process.
pub struct Process {
    /// The member. First, so that it is dropped first.
    pub stepped: Stepped,
    /// Its id.
    pub id: u64,
    /// Which life of the place it is.
    pub life: u64,
    /// Its ways to the others.
    pub links: Arc<Links>,
    /// What its tasks have come to.
    pub done: Rc<RefCell<Vec<Done>>>,
    /// Clients' calls that are being answered.
    pub calls: Vec<(Caller, u64)>,
    /// Watchers with a stream here.
    pub streams: Vec<(usize, u64)>,
    /// Snapshots that go out.
    pub sending: Vec<Sending>,
    /// Snapshots sent so far.
    pub snapshots: u64,
    /// When its core turns next.
    pub turn_at: Nanos,
    /// When its next timer is due.
    pub timer_at: Nanos,
    /// Whether a turn of the log is under way.
    pub log_busy: bool,
    /// Whether a look at the work in the background is under way.
    pub background_busy: bool,
    /// Whether a read of values is under way.
    pub read_busy: bool,
    /// It has been told to stop in order.
    pub stopping: bool,
}

/// The pieces of a snapshot, read one by one: what they are read from stays as it was when it was opened.
pub struct Pieces {
    future: LocalBoxFuture<Result<(), BoxError>>,
    next: Rc<RefCell<Option<std::io::Result<Bytes>>>>,
}

/// What reading a piece gave.
pub enum Piece {
    /// A piece.
    Next(std::io::Result<Bytes>),
    /// There was no more.
    End,
    /// It could not be opened.
    Failed(BoxError),
}

/// Lets the polling task go on once.
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Pieces {
    /// Opens a source for a receiver that says what it has, if it does.
    pub fn open(mut source: Box<dyn SnapshotSource>, receiver: Option<Bytes>) -> Pieces {
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

    /// Reads one.
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

/// A member's disk. In some runs much of it is not in memory, so that values have to be fetched; in some a power cut keeps names
/// in any order.
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
