//! Waits until one of many sockets is ready or a point in time is reached, with Linux's epoll and timerfd.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{self, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

/// Waits until sockets are ready. One call reports at most 256 sockets; the next calls report the others.
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
}

/// A socket that is ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// Token given to [`Poller::add`].
    pub token: u64,
    /// True if there are bytes to read, or the end of the stream.
    pub readable: bool,
    /// True if the peer has closed at least its sending side. In this case the bytes that can still be read
    /// are the last ones.
    pub closed: bool,
    /// True if the socket accepts output again.
    pub writable: bool,
}

const TIMER: u64 = u64::MAX;

impl Poller {
    const BATCH: usize = 256;

    /// Creates a poller without sockets.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, timer })
    }

    /// Adds a socket. The poller reports it once when it becomes readable or writable, and not repeatedly
    /// while it stays so (edge-triggered). Closing the socket removes it.
    pub fn add(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        assert_ne!(token, TIMER, "the timer's token");
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), events)?)
    }

    /// Sets a timer: [`Poller::wait`] returns once after this time, with microsecond resolution if the
    /// machine supports it. Replaces an earlier timer.
    pub fn wake_after(&self, time: Duration) -> io::Result<()> {
        // Use at least a nanosecond, because zero would disarm the timer.
        let time = time.clamp(Duration::from_nanos(1), Duration::from_secs(1 << 31));
        let it_value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        time::timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval, it_value },
        )?;
        Ok(())
    }

    /// Waits until a socket is ready, the timer expires, or `longest` has passed. Replaces the contents of
    /// `ready` with the sockets that are ready.
    pub fn wait(&mut self, longest: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let longest = longest.and_then(|time| Timespec::try_from(time).ok());
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); Self::BATCH];
        let events = match epoll::wait(&self.epoll, &mut buffer, longest.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in events {
            let (token, events) = (event.data.u64(), event.flags);
            if token == TIMER {
                continue;
            }
            let closed = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            ready.push(Ready {
                token,
                readable: closed || events.contains(EventFlags::IN),
                closed,
                writable: events.intersects(EventFlags::OUT | EventFlags::ERR),
            });
        }
        Ok(())
    }
}
