//! Makes links slow or lossy, in user space: the router sends the packets of such a link to a TUN device.
//! This program reads them from it, and forwards, delays or drops them. Unlike netem, this works with every
//! kernel that has TUN devices.

use std::collections::{BTreeMap, BinaryHeap};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::rng::Rng;

/// Quality of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// Delay of each packet in milliseconds.
    pub delay_ms: u64,
    /// Maximum additional delay, which is drawn at random for each packet, in milliseconds.
    pub jitter_ms: u64,
    /// Percentage of packets that are lost.
    pub loss_percent: u64,
    /// Percentage of packets that are delivered twice.
    pub twice_percent: u64,
    /// Percentage of packets that may overtake earlier ones.
    pub reorder_percent: u64,
    /// Bandwidth in bytes per second; 0 for no limit.
    pub bytes_per_second: u64,
}

/// Maximum number of packets in flight. Further packets are dropped, because the buffer of a real router is
/// limited too.
const PACKETS_MAX: usize = 8192;
/// Size in bytes of the buffer for one packet. No packet of a device with a usual MTU is larger.
const PACKET_BYTES_MAX: usize = 65_536;

type Links = Arc<Mutex<BTreeMap<(Ipv4Addr, Ipv4Addr), Quality>>>;

/// A TUN device, and the thread that serves it. Dropping the shaper ends the thread.
pub(crate) struct Shaper {
    links: Links,
    /// Closing this end of the pipe ends the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A packet that is being delayed. Its order is such that the heap returns the packet that is due first.
struct Packet {
    due: Instant,
    nth: u64,
    bytes: Vec<u8>,
}

impl PartialEq for Packet {
    fn eq(&self, other: &Packet) -> bool {
        self.nth == other.nth
    }
}
impl Eq for Packet {}
impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Packet) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Packet {
    fn cmp(&self, other: &Packet) -> std::cmp::Ordering {
        (other.due, other.nth).cmp(&(self.due, self.nth))
    }
}

impl Shaper {
    /// Creates the TUN device, and starts the thread.
    ///
    /// # Errors
    /// Returns the error of the operating system, for example if `/dev/net/tun` does not exist, or this
    /// process is not allowed to use it.
    pub fn open(name: &str, seed: u64) -> io::Result<Shaper> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(|error| io::Error::other(format!("/dev/net/tun: {error}")))?;
        // SAFETY: an `ifreq` is a valid value if all its bytes are zero.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the descriptor is open, and TUNSETIFF expects a pointer to an ifreq.
        if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let (stopped, stop) = io::pipe()?;
        let links = Links::default();
        let state = Under {
            device,
            links: Arc::clone(&links),
            rng: Rng::new(seed, 77),
            waiting: BinaryHeap::new(),
            busy_until: BTreeMap::new(),
            latest: BTreeMap::new(),
            packets: 0,
        };
        let thread =
            std::thread::Builder::new().name("shaper".to_owned()).spawn(move || state.run(&stopped))?;
        Ok(Shaper { links, stop: Some(stop), thread: Some(thread) })
    }

    /// Sets the quality of the link from `from` to `to`.
    pub fn set(&self, from: Ipv4Addr, to: Ipv4Addr, quality: Quality) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).insert((from, to), quality);
    }

    /// Removes the quality of all links. From then on, all packets are forwarded without delay.
    pub fn clear(&self) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Shaper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Ignore the result: the thread returns nothing, and has printed its error itself.
            let _ = thread.join();
        }
    }
}

/// State of the shaper's thread.
struct Under {
    device: File,
    links: Links,
    rng: Rng,
    waiting: BinaryHeap<Packet>,
    /// For each link with limited bandwidth, the time until which earlier packets occupy it.
    busy_until: BTreeMap<(Ipv4Addr, Ipv4Addr), Instant>,
    /// For each link, the due time of its last packet that later ones must not overtake.
    latest: BTreeMap<(Ipv4Addr, Ipv4Addr), Instant>,
    packets: u64,
}

impl Under {
    fn run(mut self, stopped: &io::PipeReader) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        loop {
            let now = Instant::now();
            while let Some(packet) = self.waiting.peek().filter(|packet| packet.due <= now) {
                // Ignore an error: a packet that the device does not accept is lost, as on a real link.
                let _ = self.device.write(&packet.bytes);
                self.waiting.pop();
            }
            let timeout = self.waiting.peek().map(|packet| packet.due.saturating_duration_since(now));
            match wait(&self.device, stopped, timeout) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    eprintln!("shaped links: {error}");
                    return;
                }
            }
            while let Ok(len) = self.device.read(&mut buffer) {
                self.take(buffer.get(..len).unwrap_or_default());
            }
        }
    }

    /// Decides whether and when a packet is forwarded, and queues it.
    fn take(&mut self, bytes: &[u8]) {
        let Some(link) = ends(bytes) else { return };
        let quality = self.links.lock().unwrap_or_else(PoisonError::into_inner).get(&link).copied();
        let quality = quality.unwrap_or_default();
        if self.waiting.len() >= PACKETS_MAX || self.rng.percent(quality.loss_percent) {
            return;
        }
        let now = Instant::now();
        let mut due = now;
        if let Some(nanos) = (bytes.len() as u64 * 1_000_000_000).checked_div(quality.bytes_per_second) {
            let busy = self.busy_until.entry(link).or_insert(now);
            *busy = (*busy).max(now) + Duration::from_nanos(nanos);
            due = *busy;
        }
        due += Duration::from_millis(quality.delay_ms + self.rng.between(0, quality.jitter_ms));
        if !self.rng.percent(quality.reorder_percent) {
            let latest = self.latest.entry(link).or_insert(due);
            *latest = (*latest).max(due);
            due = *latest;
        }
        let times = if self.rng.percent(quality.twice_percent) { 2 } else { 1 };
        for _ in 0..times {
            self.packets += 1;
            self.waiting.push(Packet { due, nth: self.packets, bytes: bytes.to_vec() });
        }
    }
}

/// Returns the source and the destination of an IPv4 packet; `None` for other packets.
fn ends(packet: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let address = |from: usize| -> Option<Ipv4Addr> {
        let bytes: [u8; 4] = packet.get(from..from + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    (packet.first()? >> 4 == 4).then_some(())?;
    Some((address(12)?, address(16)?))
}

/// Waits until the device has a packet or the timeout has passed. Returns true if the shaper was dropped.
fn wait(device: &File, stopped: &io::PipeReader, timeout: Option<Duration>) -> io::Result<bool> {
    let poll = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [poll(device.as_raw_fd()), poll(stopped.as_raw_fd())];
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both descriptors are open. The array and the timeout live until the call returns. A null signal
    // mask is allowed.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 2, time, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
    }
    Ok(fds[1].revents != 0)
}
