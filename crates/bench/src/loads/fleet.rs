//! Keeps many idle clients in one thread: [`Fleet`]. Each client has a connection of its own with a lease, a
//! stream that renews it from time to time, and a stream with watches. Clients connect without blocking, from
//! as many loopback addresses as they need ports.
//!
//! `calls` does not serve this purpose: it connects one connection after the other, and keeps every connection
//! busy.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::Rpc;
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind, NamedGroup};

use crate::loadgen::calls::Target;
use crate::loadgen::connection::{Connection, Event, Options};
use crate::loadgen::poller::{Poller, Ready};
use crate::loadgen::socket::Socket;
use crate::loadgen::wire::{Fields, Message};

// Tags of the calls of a client.
const GRANT: u64 = 0;
const RENEW: u64 = 1;
const WATCH: u64 = 2;

/// Number of connections from one address. A source address has some 28,000 ports, and those of connections that
/// were closed a short time ago cannot be used again yet.
const CONNECTIONS_PER_ADDRESS: usize = 9_000;

/// First and longest pause before a client that could not connect tries again, as in gRPC.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(20));
/// Time after which a client that is not ready closes its connection and tries again.
const PATIENCE: Duration = Duration::from_secs(20);

const BUFFER_BYTES: usize = 64 << 10;

/// What each client does.
#[derive(Clone, Debug)]
pub struct Habits {
    /// TTL of the leases in seconds; a lease is renewed after a third of it. 0 for clients without a lease.
    pub ttl: u64,
    /// Number of watches that a client creates when it connects.
    pub watches: usize,
    /// Maximum number of clients that are connecting at the same time.
    pub at_once: usize,
    /// True if clients resume their TLS sessions when they connect again.
    pub resumes: bool,
}

/// Counters of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of attempts to connect that failed, or that the server ended before the client was ready.
    pub failed: u64,
    /// Number of connections that were lost after their client was ready.
    pub lost: u64,
    /// Number of completed TLS handshakes that were full ones, and that resumed a session.
    pub full: u64,
    pub resumed: u64,
    /// Number of lease renewals that were answered.
    pub renewals: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not connected.
    Idle,
    /// Waits for its lease or its watches.
    Connecting,
    Ready,
}

/// The newest TLS session of one client, with which it resumes at its next connection.
#[derive(Debug, Default)]
struct OwnSession(Mutex<Option<Tls13ClientSessionValue>>);

impl ClientSessionStore for OwnSession {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    // Sessions of TLS 1.2 are not resumed.
    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, session: Tls13ClientSessionValue) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Link {
    /// TLS session of the client; `None` if sessions are not resumed.
    session: Option<Arc<OwnSession>>,
    stage: Stage,
    /// Index of the endpoint in the target.
    endpoint: usize,
    /// Number of sockets that the client has had; tells late events of earlier ones apart.
    generation: u32,
    socket: Option<Box<Socket>>,
    connection: Option<Box<Connection>>,
    partial: Vec<u8>,
    lease: u64,
    /// True once the first renewal of the lease was answered.
    is_renewed: bool,
    /// Number of watches that the server has confirmed, and that were requested.
    created: usize,
    requested: usize,
    attempts: u32,
    /// True once the TLS handshake was counted.
    is_counted: bool,
}

/// Many clients with few requests.
pub struct Fleet {
    target: Target,
    addresses: Vec<SocketAddr>,
    sources: Vec<Option<IpAddr>>,
    habits: Habits,
    poller: Poller,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    links: Vec<Link>,
    /// Clients that are to connect, in order.
    waiting: VecDeque<usize>,
    /// Clients that try again at a time.
    retries: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Clients that began to connect, with the time by which they have to be ready and their generation.
    deadlines: VecDeque<(Instant, usize, u32)>,
    /// Renewals by the time at which they are due, with the generation of the client. All have the same
    /// interval, so the queue is sorted.
    renewals: VecDeque<(Instant, usize, u32)>,
    connecting: usize,
    is_ready: usize,
    created: usize,
    counts: Counts,
    jitter: u64,
}

impl Fleet {
    /// Creates a fleet of `size` clients, none of which is connected. They are spread over the endpoints.
    pub fn new(target: Target, size: usize, habits: Habits) -> io::Result<Fleet> {
        let mut addresses = Vec::new();
        for endpoint in &target.endpoints {
            let found = if endpoint.unix { None } else { endpoint.address.to_socket_addrs()?.next() };
            addresses.push(found.ok_or_else(|| {
                let text = format!("{}: only TCP addresses are supported here", endpoint.address);
                io::Error::new(io::ErrorKind::Unsupported, text)
            })?);
        }
        for endpoint in 0..addresses.len() {
            let invalid =
                |field: http2::InvalidField| io::Error::new(io::ErrorKind::InvalidInput, field.to_string());
            options(&target, endpoint).check().map_err(invalid)?;
        }
        let is_loopback =
            addresses.iter().all(|address| matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback()));
        let count = size.div_ceil(CONNECTIONS_PER_ADDRESS).max(1);
        if !is_loopback && count > 1 {
            let text =
                format!("{size} connections need several source addresses, which only 127.0.0.0/8 has");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let source = |number: usize| {
            // 127.77.0.1, 127.77.0.2, ...; far from the addresses that servers use.
            let [high, low] = u16::try_from(number + 1).unwrap_or(u16::MAX).to_be_bytes();
            is_loopback.then_some(IpAddr::V4(Ipv4Addr::new(127, 77, high, low)))
        };
        let has_tls = target.endpoints.iter().any(|endpoint| endpoint.tls.is_some());
        let links = (0..size).map(|index| Link {
            session: (has_tls && habits.resumes).then(Arc::default),
            stage: Stage::Idle,
            endpoint: index % addresses.len(),
            generation: 0,
            socket: None,
            connection: None,
            partial: Vec::new(),
            lease: 0,
            is_renewed: false,
            created: 0,
            requested: 0,
            attempts: 0,
            is_counted: false,
        });
        Ok(Fleet {
            links: links.collect(),
            sources: (0..count).map(source).collect(),
            addresses,
            target,
            habits,
            poller: Poller::new()?,
            ready: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            waiting: VecDeque::new(),
            retries: BinaryHeap::new(),
            deadlines: VecDeque::new(),
            renewals: VecDeque::new(),
            connecting: 0,
            is_ready: 0,
            created: 0,
            counts: Counts::default(),
            jitter: 1,
        })
    }

    pub fn size(&self) -> usize {
        self.links.len()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Number of clients that are connected and have their lease and their watches.
    pub fn ready(&self) -> usize {
        self.is_ready
    }

    /// Number of watches that the server has confirmed on the open connections.
    pub fn watches(&self) -> usize {
        self.created
    }

    /// Lets all clients that are not connected connect, as many at a time as the habits say.
    pub fn connect_all(&mut self) {
        let idle = self.links.iter().enumerate().filter(|(_, link)| link.stage == Stage::Idle);
        self.waiting = idle.map(|(index, _)| index).collect();
        self.retries.clear();
    }

    /// Closes all connections, and lets all clients connect again at once, each to the next endpoint.
    pub fn storm(&mut self) {
        for index in 0..self.links.len() {
            self.close(index);
            let link = &mut self.links[index];
            link.endpoint = (link.endpoint + 1) % self.addresses.len();
            link.attempts = 0;
        }
        self.habits.at_once = self.links.len();
        self.connect_all();
    }

    /// Requests more watches of each client that is ready, so that it has `watches`.
    pub fn raise_watches(&mut self, watches: usize) {
        self.habits.watches = watches;
        for index in 0..self.links.len() {
            if self.links[index].stage == Stage::Ready {
                self.links[index].stage = Stage::Connecting;
                self.is_ready -= 1;
                self.connecting += 1;
                let deadline = Instant::now() + PATIENCE.saturating_mul(10);
                self.deadlines.push_back((deadline, index, self.links[index].generation));
                self.ask_for_watches(index);
                self.flush(index);
            }
        }
    }

    /// Runs until `until` returns true, or `deadline` has passed. Returns false in the latter case.
    pub fn run(&mut self, deadline: Instant, mut until: impl FnMut(&Fleet) -> bool) -> io::Result<bool> {
        loop {
            let now = Instant::now();
            if until(self) {
                return Ok(true);
            }
            if now >= deadline {
                return Ok(false);
            }
            self.begin_due(now);
            self.renew_due(now);
            let mut ready = std::mem::take(&mut self.ready);
            let longest = deadline.saturating_duration_since(now).min(Duration::from_millis(5));
            self.poller.wait(Some(longest), &mut ready)?;
            for one in &ready {
                let (index, generation) = ((one.token & 0xffff_ffff) as usize, (one.token >> 32) as u32);
                if self.links.get(index).is_none_or(|link| link.generation != generation) {
                    continue;
                }
                if one.writable {
                    self.flush(index);
                }
                if one.readable {
                    self.read(index);
                }
            }
            self.ready = ready;
        }
    }

    /// Begins the connections that are due, and gives up those that take too long.
    fn begin_due(&mut self, now: Instant) {
        while let Some((at, index, generation)) = self.deadlines.front().copied() {
            let link = &self.links[index];
            let is_over = link.generation != generation || link.stage != Stage::Connecting;
            if !is_over && at > now {
                break;
            }
            self.deadlines.pop_front();
            if !is_over {
                self.fail(index);
            }
        }
        while let Some(Reverse((at, index))) = self.retries.peek().copied() {
            if at > now {
                break;
            }
            self.retries.pop();
            self.waiting.push_back(index);
        }
        while self.connecting < self.habits.at_once
            && let Some(index) = self.waiting.pop_front()
        {
            if self.links[index].stage == Stage::Idle {
                self.begin(index);
            }
        }
    }

    fn begin(&mut self, index: usize) {
        let source = self.sources[index % self.sources.len()];
        let link = &mut self.links[index];
        let options = options(&self.target, link.endpoint);
        let endpoint = &self.target.endpoints[link.endpoint];
        link.generation = link.generation.wrapping_add(1) & 0x7fff_ffff;
        link.stage = Stage::Connecting;
        self.connecting += 1;
        let now = Instant::now();
        self.deadlines.push_back((now + PATIENCE, index, link.generation));
        let token = u64::from(link.generation) << 32 | index as u64;
        let mut endpoint = endpoint.clone();
        endpoint.tls = endpoint.tls.map(|tls| with_session(&tls, link.session.clone()));
        let begun = Socket::begin(&endpoint, self.addresses[link.endpoint], source)
            .and_then(|socket| self.poller.add(&socket, token).map(|()| socket));
        let Ok(socket) = begun else { return self.fail(index) };
        link.socket = Some(Box::new(socket));
        let mut connection = Connection::new(options, now);
        if self.habits.ttl > 0 {
            let mut message = Vec::new();
            Message(&mut message).uint(1, self.habits.ttl);
            connection.call(Rpc::LeaseGrant, &message, GRANT, true, true);
        }
        link.connection = Some(Box::new(connection));
        self.ask_for_watches(index);
        self.settle(index);
        // The poller reports the socket when it is connected, and that sends the requests.
    }

    /// Requests the watches that the client does not have yet.
    fn ask_for_watches(&mut self, index: usize) {
        let wanted = self.habits.watches;
        let link = &mut self.links[index];
        let Some(connection) = &mut link.connection else { return };
        for number in link.requested..wanted {
            let key = format!("w/{index:x}/{number:x}");
            let mut message = Vec::new();
            Message(&mut message).message(1, |create| {
                create.bytes(1, key.as_bytes());
            });
            if number == 0 {
                connection.call(Rpc::Watch, &message, WATCH, true, false);
            } else {
                connection.send(WATCH, &message);
            }
        }
        link.requested = link.requested.max(wanted);
    }

    /// Notes that the client is ready, if it is.
    fn settle(&mut self, index: usize) {
        let link = &mut self.links[index];
        let has_all = link.created >= self.habits.watches && (self.habits.ttl == 0 || link.is_renewed);
        if link.stage == Stage::Connecting && has_all && (self.habits.ttl > 0 || self.habits.watches > 0) {
            link.stage = Stage::Ready;
            link.attempts = 0;
            self.connecting -= 1;
            self.is_ready += 1;
        }
    }

    fn renew_due(&mut self, now: Instant) {
        while let Some((at, index, generation)) = self.renewals.front().copied() {
            if at > now {
                break;
            }
            self.renewals.pop_front();
            let link = &mut self.links[index];
            if link.generation != generation {
                continue;
            }
            let Some(connection) = &mut link.connection else { continue };
            let mut message = Vec::new();
            Message(&mut message).uint(1, link.lease);
            connection.send(RENEW, &message);
            self.renewals.push_back((at + self.interval(), index, generation));
            self.flush(index);
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(self.habits.ttl) / 3
    }

    fn read(&mut self, index: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        if let Some(connection) = &mut self.links[index].connection {
            connection.begin_turn(Instant::now());
        }
        while let Some(socket) = &mut self.links[index].socket {
            let bytes = match socket.read(&mut buffer) {
                Ok(0) => {
                    self.fail(index);
                    break;
                }
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.fail(index);
                    break;
                }
            };
            if !self.take(index, &buffer[..bytes]) {
                self.fail(index);
                break;
            }
        }
        self.buffer = buffer;
        self.note_handshake(index);
        self.flush(index);
    }

    fn note_handshake(&mut self, index: usize) {
        let link = &mut self.links[index];
        if link.is_counted {
            return;
        }
        match link.socket.as_ref().and_then(|socket| socket.handshake_kind()) {
            None => return,
            Some(HandshakeKind::Resumed) => self.counts.resumed += 1,
            Some(_) => self.counts.full += 1,
        }
        link.is_counted = true;
    }

    /// Processes received bytes. Returns false if the connection has to be closed.
    fn take(&mut self, index: usize, bytes: &[u8]) -> bool {
        let link = &mut self.links[index];
        let Some(mut connection) = link.connection.take() else { return false };
        let mut joined = std::mem::take(&mut link.partial);
        let input = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined[..]
        };
        let (mut done, mut is_good) = (0, true);
        let mut lease = 0;
        loop {
            match connection.next(input, &mut done) {
                Ok(None) => break,
                Ok(Some(Event::Message { tag: GRANT, body })) => lease = Fields(&body).number(2),
                Ok(Some(Event::Message { tag: RENEW, .. })) => {
                    link.is_renewed = true;
                    self.counts.renewals += 1;
                }
                Ok(Some(Event::Message { body, .. })) => {
                    let answer = Fields(&body);
                    let is_created = answer.number(3) != 0 && answer.number(4) == 0;
                    link.created += usize::from(is_created);
                    self.created += usize::from(is_created);
                }
                Ok(Some(Event::Ended { tag: GRANT, status })) if status.code == 0 => {}
                Ok(Some(Event::Ended { .. })) | Err(_) => {
                    is_good = false;
                    break;
                }
            }
        }
        joined = if joined.is_empty() { bytes[done..].to_vec() } else { joined.split_off(done) };
        joined.shrink_to_fit();
        link.partial = joined;
        is_good &= !connection.spent();
        link.connection = Some(connection);
        if lease != 0 {
            link.lease = lease;
            // As in etcd's client, the lease is renewed at once, and the stream stays open. Renewals of clients
            // that connect together are spread over the interval by the time that it takes to connect all.
            let mut message = Vec::new();
            Message(&mut message).uint(1, lease);
            if let Some(connection) = &mut link.connection {
                connection.call(Rpc::LeaseKeepAlive, &message, RENEW, true, false);
            }
            self.renewals.push_back((Instant::now() + self.interval(), index, self.links[index].generation));
        }
        self.settle(index);
        is_good
    }

    fn flush(&mut self, index: usize) {
        let link = &mut self.links[index];
        let (Some(socket), Some(connection)) = (&mut link.socket, &mut link.connection) else { return };
        loop {
            let output = connection.output();
            let is_last = output.is_empty();
            match socket.send(output) {
                Ok(()) if is_last => return,
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The kernel reports this while the connection is being opened.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
                Err(_) => return self.fail(index),
            }
        }
    }

    /// Closes the connection of a client, which tries again later.
    fn fail(&mut self, index: usize) {
        match self.links[index].stage {
            Stage::Idle => return,
            Stage::Connecting => self.counts.failed += 1,
            Stage::Ready => self.counts.lost += 1,
        }
        self.close(index);
        let link = &mut self.links[index];
        let pause = PAUSE.0.saturating_mul(1 << link.attempts.min(10)).min(PAUSE.1);
        link.attempts += 1;
        // A linear congruential generator is random enough to spread retries, between 80 % and 120 %.
        self.jitter =
            self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pause = pause.mul_f64(0.8 + 0.4 * (self.jitter >> 40) as f64 / (1 << 24) as f64);
        self.retries.push(Reverse((Instant::now() + pause, index)));
    }

    fn close(&mut self, index: usize) {
        let link = &mut self.links[index];
        match link.stage {
            Stage::Idle => {}
            Stage::Connecting => self.connecting -= 1,
            Stage::Ready => self.is_ready -= 1,
        }
        self.created -= link.created;
        link.stage = Stage::Idle;
        (link.socket, link.connection, link.partial) = (None, None, Vec::new());
        (link.lease, link.created, link.requested) = (0, 0, 0);
        (link.is_renewed, link.is_counted) = (false, false);
        // Events and renewals of the closed connection are dropped.
        link.generation = link.generation.wrapping_add(1) & 0x7fff_ffff;
    }
}

/// Returns the TLS settings of one client, which resumes only its own session.
fn with_session(tls: &ClientConfig, session: Option<Arc<OwnSession>>) -> Arc<ClientConfig> {
    let mut config = tls.clone();
    config.resumption = match session {
        Some(session) => Resumption::store(session),
        None => Resumption::disabled(),
    };
    Arc::new(config)
}

fn options(target: &Target, endpoint: usize) -> Options {
    let to = &target.endpoints[endpoint];
    Options { tls: to.tls.is_some(), token: target.token.clone(), ..Options::new(to.address.clone()) }
}
