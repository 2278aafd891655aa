//! Simulates the world of one seed: members, network, disks, clocks and clients, and the order of events.
//!
//! The world takes one event at a time from the schedule. The consequences of an event at the same place
//! happen immediately; data that is sent to another place becomes a new event. Nothing here waits for real
//! time.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use api::Rpc;
use api::raftpb::Message;
use bytes::Bytes;
use oracle::History;
use peer::{Handler as _, RequestError, SnapshotOutcome};

use crate::autopilot::AutopilotChecks;
use crate::checks::Checks;
use crate::member::{Caller, Heard, Place, Process, Reply};
use crate::network::{Host, Network};
use crate::operator::Operator;
use crate::profile::{Profile, Work};
use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos, SECOND, Schedule};
use crate::staged::{Staged, Step};
use crate::trace::Trace;
use crate::users::Users;
use crate::watchers::Watcher;
use crate::workload::Client;

/// Interval at which connections between members are checked.
pub(crate) const CONNECTIONS_EVERY: Nanos = 100 * MILLI;
/// Interval at which all logs are compared.
const COMPARE_EVERY: Nanos = 500 * MILLI;

/// Events of the simulated world.
pub(crate) enum Event {
    Turn(Host, u64),
    Log(Host, u64),
    Background(Host, u64),
    Read(Host, u64),
    Timer(Host, u64),
    Messages {
        from: Host,
        to: Host,
        id: u64,
        /// Number of the connection that carries the messages.
        connection: u64,
        messages: Vec<Message>,
    },
    Unreachable(Host, u64, u64),
    Request {
        from: (Host, u64),
        to: Host,
        request: http::Request<Bytes>,
        reply: Reply,
    },
    Answered {
        from: (Host, u64),
        reply: Reply,
        answer: Result<http::Response<Bytes>, RequestError>,
    },
    Piece(Host, u64, u64),
    Snapshot {
        from: (Host, u64),
        number: u64,
        to: Host,
        message: Message,
        pieces: Vec<std::io::Result<Bytes>>,
    },
    SnapshotEnded {
        from: (Host, u64),
        to: u64,
        delivered: bool,
    },
    /// The process is told by the node with the last id that it was removed.
    Removed(Host, u64, u64),
    Connections,
    Compare,
    ClientNext(usize),
    Call {
        caller: Caller,
        operation: u64,
        to: Host,
        request: Calling,
    },
    Told {
        caller: Caller,
        operation: u64,
        heard: Heard,
    },
    GiveUp {
        caller: Caller,
        operation: u64,
    },
    WatchConnect(usize),
    WatchRead(usize, u64),
    Start(Host),
    Fault,
    Staged(Step),
    Undo(Undo),
    Operator,
    Administrator,
}

/// A fault whose end is scheduled, or a page cache whose drop is scheduled.
pub(crate) enum Undo {
    /// Network cuts and slow links.
    Network,
    /// Message loss, duplication and reordering.
    Weather,
    /// A full disk.
    Full(Host),
    /// A slow disk.
    SlowDisk(Host),
    /// Clock drift.
    Drift(Host),
    /// A member's page cache, which holds data that the disk has lost or misplaced.
    Cache(Host),
}

/// Call of a client as the network carries it.
#[derive(Clone)]
pub(crate) enum Calling {
    Unary(Rpc, Bytes),
    Renew(i64),
}

impl Calling {
    pub(crate) fn of(request: &oracle::Request) -> Calling {
        match request {
            oracle::Request::KeepAlive { id } => Calling::Renew(*id),
            other => {
                let (rpc, message) = crate::wire::encode(other);
                Calling::Unary(rpc, message)
            }
        }
    }
}

/// Operation of a client that was sent and has not returned.
pub(crate) struct Underway {
    pub(crate) operation: oracle::Operation,
    /// Bound on the staleness of a serializable read, in milliseconds; `None` if the client sets none.
    pub(crate) staleness_ms: Option<u64>,
    /// Lowest revision that satisfies the bound; 0 until the call arrives at a member.
    pub(crate) floor: i64,
}

/// Client, and the state of the operation that it has sent.
pub(crate) struct ActiveClient {
    pub client: Client,
    pub open: Option<Underway>,
    pub place: Host,
    /// True if the client's last operation was answered.
    pub answered: bool,
    /// Operation id and user of the client's `Authenticate` call in flight; `None` if no such call is in
    /// flight.
    pub login: Option<(u64, String)>,
    /// True if a member has answered that authentication is not enabled. The next operation is then sent
    /// without a token.
    pub needs_no_token: bool,
}

/// Buffer for the log lines of members.
#[derive(Clone, Default)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Random streams of the run, one for each concern.
pub(crate) struct Dice {
    pub schedule: Rng,
    pub network: Rng,
    pub faults: Rng,
    pub operator: Rng,
    pub observers: Rng,
}

/// Counts of what happened. They show which faults a run has tested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Process starts.
    pub starts: u64,
    /// Number of crashes of processes, of all kinds.
    pub crashes: u64,
    /// Number of injected faults, of all kinds.
    pub faults: u64,
    /// Snapshots delivered.
    pub snapshots: u64,
    /// Snapshots that broke off.
    pub snapshots_broken: u64,
    /// Members that lost their data and were replaced, and observers that got an empty disk.
    pub replaced: u64,
    /// Machines that were lost for good beside a witness.
    pub machines_lost: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Operations of clients that were answered.
    pub answered: u64,
    /// Operations of clients that observers answered.
    pub observed: u64,
    /// Responses that watches received.
    pub watches: u64,
    /// Entries committed.
    pub entries: u64,
    /// Terms with a leader.
    pub terms: u64,
    /// Steps of autopilots.
    pub autopilot_steps: u64,
}

/// The world of one seed.
pub struct World {
    pub(crate) seed: u64,
    pub(crate) profile: Profile,
    pub(crate) schedule: Schedule<Event>,
    pub(crate) network: Network,
    pub(crate) places: Vec<Place>,
    pub(crate) desks: Vec<ActiveClient>,
    pub(crate) watchers: Vec<Watcher>,
    /// In-flight operations of the clients that make only one call.
    pub(crate) extras: Vec<oracle::Operation>,
    pub(crate) staged: Staged,
    pub(crate) operator: Operator,
    pub(crate) autopilot: AutopilotChecks,
    pub(crate) users: Option<Users>,
    pub(crate) checks: Checks,
    pub(crate) trace: Trace,
    pub(crate) dice: Dice,
    pub(crate) counts: Counts,
    pub(crate) history: History,
    pub(crate) failure: Option<String>,
    /// True once a machine was lost for good, in a world with a witness.
    pub(crate) machine_lost: bool,
    /// True while faults happen.
    pub(crate) chaos: bool,
    /// True while clients begin new operations.
    pub(crate) working: bool,
    /// Highest revision that clients had been told at a time, by time.
    pub(crate) told_revisions: BTreeMap<Nanos, i64>,
    pub(crate) next_operation: u64,
    pub(crate) next_watch: u64,
    pub(crate) lines: Lines,
    epoch: Instant,
}

impl World {
    /// Creates the world of a seed, before anything has happened.
    pub fn new(seed: u64, profile: Profile, prints: bool) -> World {
        let epoch = Instant::now();
        let stream = |name| Rng::stream(seed, name);
        let mut world = World {
            seed,
            schedule: Schedule::default(),
            network: Network::new(profile.delay),
            places: (0..profile.members + profile.observers)
                .map(|number| Place::new(seed, number, epoch))
                .collect(),
            desks: (0..profile.clients)
                .map(|number| ActiveClient {
                    client: Client::new(seed, number as u64 + 1),
                    open: None,
                    place: number % profile.members,
                    answered: false,
                    login: None,
                    needs_no_token: false,
                })
                .collect(),
            watchers: Vec::new(),
            extras: Vec::new(),
            staged: Staged::default(),
            operator: Operator::default(),
            autopilot: AutopilotChecks::default(),
            users: profile.works(Work::Users).then(|| Users::new(seed)),
            checks: Checks::new(profile.members),
            trace: Trace::new(prints),
            dice: Dice {
                schedule: stream("schedule"),
                network: stream("network"),
                faults: stream("faults"),
                operator: stream("operator"),
                observers: stream("observers"),
            },
            counts: Counts::default(),
            history: History::default(),
            failure: None,
            machine_lost: false,
            chaos: true,
            working: true,
            told_revisions: BTreeMap::new(),
            next_operation: 0,
            next_watch: 0,
            lines: Lines::default(),
            epoch,
            profile,
        };
        if world.profile.works(Work::Watch) {
            let first = world.desks.len() as u64 + 1;
            world.watchers =
                (0..world.profile.watchers as u64).map(|n| Watcher::new(seed, first + n)).collect();
        }
        for place in &mut world.places[world.profile.members..] {
            place.observes = true;
            world.checks.observers.insert(place.number);
        }
        world.checks.witness = world.profile.witness();
        world.checks.reads_fail = world.profile.reads_fail();
        world.begin();
        world
    }

    fn begin(&mut self) {
        for at in 0..self.places.len() {
            let delay = self.dice.schedule.below(200 * MILLI);
            self.start_after(at, delay);
        }
        for number in 0..self.desks.len() {
            let delay = self.dice.schedule.below(500 * MILLI);
            self.schedule.after(delay, Event::ClientNext(number));
        }
        for number in 0..self.watchers.len() {
            self.schedule.after(SECOND, Event::WatchConnect(number));
        }
        self.schedule.after(CONNECTIONS_EVERY, Event::Connections);
        self.schedule.after(COMPARE_EVERY, Event::Compare);
        self.schedule.after(SECOND, Event::Fault);
        self.schedule.after(2 * SECOND, Event::Operator);
        if self.users.is_some() {
            self.schedule.after(300 * MILLI, Event::Administrator);
        }
        self.begin_faults();
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Nanos {
        self.schedule.now()
    }

    pub(crate) fn fail(&mut self, why: String) {
        if self.failure.is_none() {
            let now = self.now();
            self.trace.note(now, format_args!("VIOLATION {why}"));
            self.failure = Some(why);
        }
    }

    /// Handles the next event. Returns `false` after a violation, or if there is no next event.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.schedule.take() else { return false };
        self.dispatch(event);
        self.failure.is_none()
    }

    pub(crate) fn paused(&self, at: Host) -> Option<Nanos> {
        let place = self.places.get(at)?;
        (place.paused_until > self.now() && place.process.is_some()).then_some(place.paused_until)
    }

    /// Returns the process with this start number (any process if 0), with its clock advanced to now; `None`
    /// if that process has ended.
    pub(crate) fn wake(&mut self, at: Host, life: u64) -> Option<&mut Process> {
        let now = self.now();
        let place = self.places.get_mut(at)?;
        if place.process.as_ref().is_none_or(|process| life != 0 && process.life != life) {
            return None;
        }
        place.tick(now);
        place.process.as_mut()
    }

    fn dispatch(&mut self, event: Event) {
        let now = self.now();
        let at = match &event {
            Event::Turn(at, _) | Event::Log(at, _) | Event::Background(at, _) => Some(*at),
            Event::Read(at, _) | Event::Timer(at, _) => Some(*at),
            Event::Messages { to, .. } | Event::Request { to, .. } | Event::Snapshot { to, .. } => Some(*to),
            Event::Answered { from: (at, _), .. } | Event::SnapshotEnded { from: (at, _), .. } => Some(*at),
            Event::Piece(at, ..) | Event::Unreachable(at, ..) | Event::Removed(at, ..) => Some(*at),
            Event::Call { to, .. } => Some(*to),
            _ => None,
        };
        if let Some(until) = at.and_then(|at| self.paused(at)) {
            // A paused process handles the event only when it continues.
            self.schedule.at(until, event);
            return;
        }
        match event {
            Event::Turn(at, life) => {
                if let Some(process) = self.wake(at, life)
                    && process.turn_at <= now
                {
                    process.turn_at = Nanos::MAX;
                    self.turn(at);
                }
            }
            Event::Log(at, life) => self.log_turn(at, life),
            Event::Background(at, life) => self.background(at, life),
            Event::Read(at, life) => self.read(at, life),
            Event::Timer(at, life) => {
                if let Some(process) = self.wake(at, life)
                    && process.timer_at <= now
                {
                    process.timer_at = Nanos::MAX;
                    self.trace.event(now, 1, &[at as u64]);
                    self.settle(at);
                }
            }
            Event::Messages { from, to, id, connection, messages } => {
                self.messages(from, to, id, connection, messages);
            }
            Event::Unreachable(at, life, id) => {
                if let Some(process) = self.wake(at, life) {
                    process.stepped.peering().unreachable(id);
                    self.settle(at);
                }
            }
            Event::Removed(at, life, by) => {
                if let Some(process) = self.wake(at, life) {
                    process.stepped.peering().removed(by);
                    self.settle(at);
                }
            }
            Event::Request { from, to, request, reply } => self.request(from, to, request, reply),
            Event::Answered { from, reply, answer } => self.answered(from, reply, answer),
            Event::Piece(at, life, number) => self.piece(at, life, number),
            Event::Snapshot { from, number, to, message, pieces } => {
                self.snapshot(from, number, to, message, pieces);
            }
            Event::SnapshotEnded { from: (at, life), to, delivered } => {
                if let Some(process) = self.wake(at, life) {
                    process.sending.retain(|sending| sending.to != to);
                    let outcome =
                        if delivered { SnapshotOutcome::Delivered } else { SnapshotOutcome::Failed };
                    process.stepped.peering().snapshot_sent(to, outcome);
                    if !delivered {
                        process.stepped.peering().unreachable(to);
                    }
                    self.settle(at);
                }
            }
            Event::Connections => self.connections(),
            Event::Compare => {
                self.schedule.after(COMPARE_EVERY, Event::Compare);
                self.settle_logs();
                if let Err(why) = self.checks.compare_logs() {
                    self.fail(why);
                }
            }
            Event::ClientNext(number) => self.client_next(number),
            Event::Call { caller, operation, to, request } => self.call(caller, operation, to, request),
            Event::Told { caller, operation, heard } => self.told(caller, operation, heard),
            Event::GiveUp { caller, operation } => self.told(caller, operation, Heard::Broken),
            Event::WatchConnect(number) => self.watch_connect(number),
            Event::WatchRead(number, streams) => self.watch_read(number, streams),
            Event::Start(at) => {
                if self.places[at].starts_at == Some(now) {
                    self.places[at].starts_at = None;
                    self.start(at);
                }
            }
            Event::Fault => self.fault(),
            Event::Staged(step) => self.staged(step),
            Event::Undo(undo) => self.undo(undo),
            Event::Operator => self.operate(),
            Event::Administrator => self.administrate(),
        }
    }

    pub(crate) fn epoch(&self) -> Instant {
        self.epoch
    }
}
