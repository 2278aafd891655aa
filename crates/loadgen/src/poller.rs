//! Waits for many sockets and for a point in time, with Linux's epoll and timerfd.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Waits for sockets to become ready. Returns at most 256 of them per call, the rest in the next call.
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// Socket that has become ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// Token given to [`Poller::add`].
    pub token: u64,
    /// True if there are bytes to read, or the peer has closed the connection.
    pub readable: bool,
    /// True if the peer has closed the connection or its sending side, so that the stream ends after the
    /// bytes that can still be read.
    pub closed: bool,
    /// True if the socket accepts bytes again.
    pub writable: bool,
}

const TIMER: u64 = u64::MAX;

impl Poller {
    const BATCH: usize = 256;

    /// Creates a poller without sockets.
    pub fn new() -> io::Result<Self> {
        // SAFETY: creates a descriptor and touches no memory of this process.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let epoll = owned(epoll)?;
        // SAFETY: creates a descriptor and touches no memory of this process.
        let timer =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        let timer = owned(timer)?;
        let poller =
            Self { epoll, timer, events: vec![libc::epoll_event { events: 0, u64: 0 }; Self::BATCH] };
        poller.control(poller.timer.as_raw_fd(), TIMER, libc::EPOLLIN | libc::EPOLLET)?;
        Ok(poller)
    }

    /// Adds a socket, which is reported each time it becomes readable or writable (edge-triggered). Closing
    /// the socket removes it.
    pub fn add(&self, socket: &impl AsRawFd, token: u64) -> io::Result<()> {
        assert_ne!(token, TIMER, "the timer's token");
        self.control(
            socket.as_raw_fd(),
            token,
            libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET,
        )
    }

    fn control(&self, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` lives through the call, and the kernel copies it.
        let done =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes [`Poller::wait`] return once after this time, with microsecond resolution where the machine
    /// supports it. Replaces an earlier timer.
    pub fn wake_after(&self, time: Duration) -> io::Result<()> {
        // A time of zero would disarm the timer.
        let time = time.max(Duration::from_nanos(1));
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: time.as_secs().min(1 << 31) as libc::time_t,
                tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
            },
        };
        // SAFETY: `spec` lives through the call; the old value is not requested.
        let done = unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut())
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until a socket is ready or the time is over, and replaces `ready` with the ready sockets.
    pub fn wait(&mut self, longest: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let milliseconds = longest.map_or(-1, |time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
        // SAFETY: the kernel writes at most `BATCH` events, and the buffer has space for that many.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                Self::BATCH as i32,
                milliseconds,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        for event in self.events.iter().take(count as usize) {
            let (token, events) = (event.u64, event.events as i32);
            if token == TIMER {
                continue;
            }
            let closed = events & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) != 0;
            ready.push(Ready {
                token,
                readable: closed || events & libc::EPOLLIN != 0,
                closed,
                writable: events & (libc::EPOLLOUT | libc::EPOLLERR) != 0,
            });
        }
        Ok(())
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the preceding call has just created the descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
