//! Makes calls over many connections in one thread: waits until sockets are ready, and passes the events of
//! the calls to a [`Handler`].

use std::io;
use std::time::{Duration, Instant};

use api::Rpc;
use http2::InvalidField;

use crate::loadgen::connection::{Connection, Event, Options, Violation};
use crate::loadgen::poller::{Poller, Ready};
use crate::loadgen::socket::{Endpoint, Socket};
use crate::loadgen::status::Status;

/// Receives the events of calls. Its methods may start further calls.
pub trait Handler {
    /// Handles a response message of the call that was started with this tag.
    fn message(&mut self, calls: &mut Calls, tag: u64, body: &[u8]);
    /// Handles the end of the call that was started with this tag.
    fn ended(&mut self, calls: &mut Calls, tag: u64, status: Status);
    /// Called at the end of each turn, after all events that have arrived were delivered; also at the end of
    /// a turn without events.
    fn turned(&mut self, calls: &mut Calls);
}

/// Servers to connect to, and the settings of the connections.
#[derive(Clone)]
pub struct Target {
    /// Endpoints of the servers. The calls of a connection are distributed over them in turn.
    pub endpoints: Vec<Endpoint>,
    /// Time limit for connecting to one address.
    pub dial_timeout: Duration,
    /// Auth token; see [`Options::token`].
    pub token: Option<String>,
    /// Flow-control window of a stream in bytes; see [`Options::stream_window`].
    pub stream_window: u32,
    /// Flow-control window of a connection in bytes; see [`Options::connection_window`].
    pub connection_window: u32,
}

impl Target {
    /// Returns a target with the default flow-control windows.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        let usual = Options::new("");
        Self {
            endpoints,
            dial_timeout: Duration::from_secs(10),
            token: None,
            stream_window: usual.stream_window,
            connection_window: usual.connection_window,
        }
    }
}

struct Link {
    endpoint: usize,
    connection: Connection,
    socket: Option<Socket>,
    /// Received bytes that are only the beginning of a frame.
    partial: Vec<u8>,
    /// True if the socket accepts output as far as is known: no write has blocked since the poller last
    /// reported it writable.
    writable: bool,
    /// True if there is received input that must not be processed before the server accepts some of the
    /// output.
    held_up: bool,
    /// True if the server has closed its sending side. In this case the poller reports nothing more, so
    /// everything that remains must be read immediately.
    closed: bool,
    dirty: bool,
    retry: Option<Instant>,
    /// Number of sockets that this link has had. It tells events of the current socket from late events of
    /// earlier ones.
    generation: u32,
}

/// All connections of one thread.
pub struct Calls {
    target: Target,
    poller: Poller,
    links: Vec<Link>,
    /// Number of calls made so far on each logical connection. It determines the endpoint of the next call.
    turns: Vec<usize>,
    /// Number of real connections of each logical one.
    links_each: usize,
    dirty: Vec<usize>,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    /// Number of links that are not connected at the moment.
    down: usize,
    /// Number of times that a connection was lost.
    pub lost: u64,
    /// Time at which the timer expires, or has expired; `None` if it was never set.
    timer: Option<Instant>,
    /// Number of times that the timer was set.
    pub timers: u64,
}

const RETRY: Duration = Duration::from_millis(100);
const REDIAL_MAX: Duration = Duration::from_millis(500);
const BUFFER_BYTES: usize = 256 << 10;

impl Calls {
    /// Opens `connections` logical connections. Each of them consists of a real connection to each endpoint,
    /// as in etcd's client.
    pub fn open(target: Target, connections: usize) -> io::Result<Self> {
        Self::open_to(target, connections, true)
    }

    /// Opens `connections` connections, each to one endpoint; the endpoints take turns.
    pub fn open_single(target: Target, connections: usize) -> io::Result<Self> {
        Self::open_to(target, connections, false)
    }

    fn open_to(target: Target, connections: usize, to_all: bool) -> io::Result<Self> {
        assert!(!target.endpoints.is_empty(), "an endpoint at least");
        let endpoints = target.endpoints.len();
        let links_each = if to_all { endpoints } else { 1 };
        let mut calls = Self {
            poller: Poller::new()?,
            links: Vec::new(),
            turns: vec![0; connections],
            links_each,
            dirty: Vec::new(),
            ready: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            down: 0,
            lost: 0,
            timer: None,
            timers: 0,
            target,
        };
        for endpoint in 0..calls.target.endpoints.len() {
            let invalid =
                |field: InvalidField| io::Error::new(io::ErrorKind::InvalidInput, field.to_string());
            calls.options(endpoint).check().map_err(invalid)?;
        }
        let now = Instant::now();
        for at in 0..connections {
            let first = if to_all { 0 } else { at % endpoints };
            for endpoint in first..first + links_each {
                let connection = Connection::new(calls.options(endpoint), now);
                calls.links.push(Link {
                    endpoint,
                    connection,
                    socket: None,
                    partial: Vec::new(),
                    writable: true,
                    held_up: false,
                    closed: false,
                    dirty: false,
                    retry: None,
                    generation: 0,
                });
                let at = calls.links.len() - 1;
                calls.dial(at, calls.target.dial_timeout)?;
            }
        }
        Ok(calls)
    }

    /// Returns the number of logical connections.
    pub fn connections(&self) -> usize {
        self.turns.len()
    }

    /// Returns the TCP segment size of the first connection, in bytes; `None` if unknown.
    pub fn segment_bytes(&self) -> Option<u32> {
        self.links.first()?.socket.as_ref()?.segment_bytes()
    }

    /// Starts a call with a single request message on a logical connection. [`Connection::call`] explains the
    /// parameters.
    pub fn call(&mut self, connection: usize, method: Rpc, message: &[u8], tag: u64, keep: bool) {
        let link = self.pick(connection);
        self.links[link].connection.call(method, message, tag, keep, true);
        self.mark(link);
    }

    /// Starts a call on which [`Calls::send`] can send further messages. Returns the index of the real
    /// connection that carries it.
    pub fn open_stream(&mut self, connection: usize, method: Rpc, message: &[u8], tag: u64) -> usize {
        let link = self.pick(connection);
        self.links[link].connection.call(method, message, tag, true, false);
        self.mark(link);
        link
    }

    /// Sends a further message on a call that was started with [`Calls::open_stream`]. Returns false if the
    /// call has ended.
    pub fn send(&mut self, link: usize, tag: u64, message: &[u8]) -> bool {
        self.mark(link);
        self.links.get_mut(link).is_some_and(|link| link.connection.send(tag, message))
    }

    /// Cancels a call that was started with [`Calls::open_stream`].
    pub fn cancel(&mut self, link: usize, tag: u64) {
        self.mark(link);
        if let Some(link) = self.links.get_mut(link) {
            link.connection.cancel(tag);
        }
    }

    /// Sets a timer: [`Calls::turn`] returns at `time` at the latest, after it has called
    /// [`Handler::turned`]. An earlier timer stays, and the turn then ends at that one: setting a timer takes
    /// some ten microseconds on a virtual machine, which is more than a request takes.
    pub fn wake_at(&mut self, now: Instant, time: Instant) -> io::Result<()> {
        if self.timer.is_some_and(|timer| timer > now && timer <= time) {
            return Ok(());
        }
        self.timer = Some(time);
        self.timers += 1;
        self.poller.wake_after(time.saturating_duration_since(now))
    }

    /// Runs one turn: sends the pending output, waits up to `longest` for events, and delivers those that
    /// have arrived.
    pub fn turn<H: Handler>(&mut self, longest: Duration, handler: &mut H) -> io::Result<()> {
        self.flush_all(handler);
        if self.down > 0 {
            self.redial(handler);
        }
        let longest = if self.down > 0 { longest.min(RETRY) } else { longest };
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(Some(longest), &mut ready)?;
        for one in &ready {
            let (at, generation) = ((one.token & 0xffff_ffff) as usize, (one.token >> 32) as u32);
            let Some(link) = self.links.get_mut(at).filter(|link| link.generation == generation) else {
                continue;
            };
            link.writable |= one.writable;
            link.closed |= one.closed;
            if one.readable {
                self.read(at, handler);
            }
            self.flush(at, handler);
        }
        self.ready = ready;
        handler.turned(self);
        self.flush_all(handler);
        Ok(())
    }

    fn options(&self, endpoint: usize) -> Options {
        let to = &self.target.endpoints[endpoint];
        Options {
            tls: to.tls.is_some(),
            token: self.target.token.clone(),
            stream_window: self.target.stream_window,
            connection_window: self.target.connection_window,
            ..Options::new(if to.unix { "localhost".to_owned() } else { to.address.clone() })
        }
    }

    fn pick(&mut self, connection: usize) -> usize {
        let turn = self.turns[connection];
        self.turns[connection] = (turn + 1) % self.links_each;
        connection * self.links_each + turn
    }

    fn mark(&mut self, at: usize) {
        if let Some(link) = self.links.get_mut(at).filter(|link| !link.dirty) {
            link.dirty = true;
            self.dirty.push(at);
        }
    }

    fn dial(&mut self, at: usize, longest: Duration) -> io::Result<()> {
        let link = &mut self.links[at];
        let endpoint = &self.target.endpoints[link.endpoint];
        let socket = Socket::connect(endpoint, longest)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", endpoint.address)))?;
        link.generation += 1;
        self.poller.add(&socket, u64::from(link.generation) << 32 | at as u64)?;
        link.socket = Some(socket);
        link.writable = true;
        self.mark(at);
        Ok(())
    }

    fn read<H: Handler>(&mut self, at: usize, handler: &mut H) {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.links[at].connection.begin_turn(Instant::now());
        // If processing had stopped with input left over, process that input first, before newly read bytes.
        let mut was_held_up = std::mem::take(&mut self.links[at].held_up);
        loop {
            let link = &mut self.links[at];
            let Some(socket) = &mut link.socket else { break };
            if link.connection.is_blocked() {
                link.held_up = true;
                break;
            }
            let read = if was_held_up { Ok(None) } else { socket.read(&mut buffer).map(Some) };
            let bytes = match read {
                Ok(Some(0)) => {
                    self.lose(at, "the server closed the connection", handler);
                    break;
                }
                Ok(read) => &buffer[..read.unwrap_or(0)],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.lose(at, &error.to_string(), handler);
                    break;
                }
            };
            if let Err(violation) = self.take(at, bytes, handler) {
                self.lose(at, violation.0, handler);
                break;
            }
            if self.links[at].connection.spent() {
                self.lose(at, "the server is going away", handler);
                break;
            }
            self.mark(at);
            // A read that did not fill the buffer has emptied the socket. So stop reading: the poller will
            // report further bytes.
            let is_empty = bytes.len() < buffer.len() && !was_held_up && !self.links[at].closed;
            if is_empty && self.target.endpoints[self.links[at].endpoint].tls.is_none() {
                self.links[at].held_up = self.links[at].connection.is_blocked();
                break;
            }
            was_held_up = false;
        }
        self.buffer = buffer;
    }

    /// Processes received bytes of a connection: the incomplete frame that is left from before, followed by
    /// `bytes`.
    fn take<H: Handler>(&mut self, at: usize, bytes: &[u8], handler: &mut H) -> Result<(), Violation> {
        let link = &mut self.links[at];
        // Take the bytes out of the connection, because the handler may start calls on this connection while
        // the bytes are processed.
        let mut joined = std::mem::take(&mut link.partial);
        let input = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined[..]
        };
        let mut done = 0;
        while let Some(event) = self.links[at].connection.next(input, &mut done)? {
            match event {
                Event::Message { tag, body } => handler.message(self, tag, &body),
                Event::Ended { tag, status } => handler.ended(self, tag, status),
            }
        }
        if joined.is_empty() {
            joined.extend_from_slice(&bytes[done..]);
        } else {
            joined.drain(..done);
        }
        self.links[at].partial = joined;
        Ok(())
    }

    fn flush_all<H: Handler>(&mut self, handler: &mut H) {
        while let Some(at) = self.dirty.pop() {
            // If this connection fails, the handler may send on other connections; these are then added to
            // `dirty` again.
            self.flush(at, handler);
        }
    }

    fn flush<H: Handler>(&mut self, at: usize, handler: &mut H) {
        let link = &mut self.links[at];
        link.dirty = false;
        let Some(socket) = &mut link.socket else { return };
        while link.writable {
            let output = link.connection.output();
            let is_last = output.is_empty();
            match socket.send(output) {
                Ok(()) if is_last => break,
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => link.writable = false,
                Err(error) => return self.lose(at, &error.to_string(), handler),
            }
        }
        if link.held_up && !link.connection.is_blocked() {
            self.read(at, handler);
        }
    }

    fn lose<H: Handler>(&mut self, at: usize, why: &str, handler: &mut H) {
        let fresh = Connection::new(self.options(self.links[at].endpoint), Instant::now());
        let link = &mut self.links[at];
        if link.socket.take().is_none() {
            return;
        }
        self.lost += 1;
        self.down += 1;
        link.retry = Some(Instant::now());
        link.partial.clear();
        (link.held_up, link.closed) = (false, false);
        let (over, start) = std::mem::replace(&mut link.connection, fresh).lose(why);
        start(&mut link.connection);
        for (tag, status) in over {
            handler.ended(self, tag, status);
        }
    }

    fn redial<H: Handler>(&mut self, handler: &mut H) {
        let now = Instant::now();
        for at in 0..self.links.len() {
            if self.links[at].retry.is_some_and(|time| time <= now) {
                // Use a short time limit, because connecting blocks all other connections of this thread.
                match self.dial(at, self.target.dial_timeout.min(REDIAL_MAX)) {
                    Ok(()) => {
                        self.links[at].retry = None;
                        self.down -= 1;
                    }
                    Err(_) => self.links[at].retry = Some(now + RETRY),
                }
            }
        }
        self.flush_all(handler);
    }
}
