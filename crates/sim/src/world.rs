//! The world of one seed: members, network, disks, clocks, clients, and what happens to them in which order.
//!
//! One event is taken from the schedule at a time; everything that follows from it at the same place happens at once,
//! everything that goes elsewhere becomes an event of its own. Nothing here waits for real time.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::raftpb::{Message, MessageType};
use bytes::Bytes;
use disk::Disk;
use oracle::{History, Outcome};
use peer::{Handler as _, Target};
use prost::Message as _;
use server::clock::Clock;
use server::config::{self, Config, Invocation};
use server::logging::{Format, Level, Logger};
use server::stepped::{Going, Setup, Stepped, Thresholds};

use crate::checks::{Checks, Standing};
use crate::links::{self, Links, Outgoing, url};
use crate::member::{Caller, Done, Heard, Piece, Pieces, Place, Process, Reply, Sending};
use crate::network::{CLIENTS, Host, Network, Passage, SILENCE_MAX};
use crate::operator::Operator;
use crate::profile::{Fault, Profile, Work};
use crate::rng::Rng;
use crate::schedule::{MICRO, MILLI, Nanos, SECOND, Schedule};
use crate::trace::Trace;
use crate::watchers::{Incoming, Returning, Watcher};
use crate::workload::Client;

/// How long a client waits for an answer.
const PATIENCE: Nanos = 8 * SECOND;
/// How often connections between members are looked at.
const CONNECTIONS_EVERY: Nanos = 100 * MILLI;
/// How often all logs are compared.
const COMPARE_EVERY: Nanos = 500 * MILLI;
/// Bytes of a snapshot's piece that a link carries in its mean delay.
const PIECE_BYTES: u64 = 64 << 10;

/// Everything that can happen.
pub(crate) enum Event {
    Turn(Host, u64),
    Log(Host, u64),
    Background(Host, u64),
    Timer(Host, u64),
    Messages {
        from: Host,
        to: Host,
        id: u64,
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
        answer: Result<http::Response<Bytes>, String>,
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
    Removed(Host, u64),
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
    Undo(crate::faults::Undo),
    Operator,
}

/// A client's call as it goes over the network.
#[derive(Clone)]
pub(crate) enum Calling {
    Unary(&'static str, Bytes),
    Renew(i64),
}

/// An operation of a client that is under way.
pub(crate) struct Underway {
    operation: oracle::Operation,
}

/// A client and what it is doing.
pub(crate) struct Desk {
    pub client: Client,
    pub open: Option<Underway>,
    pub place: Host,
    /// Whether its last operation was answered.
    pub answered: bool,
}

/// Where log lines of members go.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What the seeds of a run decide, each for itself.
pub(crate) struct Dice {
    pub schedule: Rng,
    pub network: Rng,
    pub faults: Rng,
    pub operator: Rng,
}

/// What happened how often: what never happens is not tested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Starts of processes.
    pub starts: u64,
    /// Crashes of all sorts.
    pub crashes: u64,
    /// Faults of all sorts.
    pub faults: u64,
    /// Snapshots delivered.
    pub snapshots: u64,
    /// Snapshots that broke off.
    pub snapshots_broken: u64,
    /// Members lost and replaced.
    pub replaced: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Of these answered.
    pub answered: u64,
    /// Events of watches.
    pub watches: u64,
    /// Entries committed.
    pub entries: u64,
    /// Terms with a leader.
    pub terms: u64,
}

/// The world of one seed.
pub struct World {
    pub(crate) seed: u64,
    pub(crate) profile: Profile,
    pub(crate) schedule: Schedule<Event>,
    pub(crate) network: Network,
    pub(crate) places: Vec<Place>,
    pub(crate) desks: Vec<Desk>,
    pub(crate) watchers: Vec<Watcher>,
    pub(crate) operator: Operator,
    pub(crate) checks: Checks,
    pub(crate) trace: Trace,
    pub(crate) dice: Dice,
    pub(crate) counts: Counts,
    pub(crate) history: History,
    pub(crate) failure: Option<String>,
    /// Faults happen.
    pub(crate) chaos: bool,
    /// Clients begin new operations.
    pub(crate) working: bool,
    pub(crate) next_operation: u64,
    next_watch: u64,
    lines: Lines,
    epoch: Instant,
}

impl World {
    /// The world of a seed, before anything has happened.
    pub fn new(seed: u64, profile: Profile, prints: bool) -> World {
        let epoch = Instant::now();
        let stream = |name| Rng::stream(seed, name);
        let mut world = World {
            seed,
            schedule: Schedule::default(),
            network: Network::new(profile.delay),
            places: (0..profile.members).map(|number| Place::new(seed, number, epoch)).collect(),
            desks: (0..profile.clients)
                .map(|number| Desk {
                    client: Client::new(seed, number as u64 + 1),
                    open: None,
                    place: number % profile.members,
                    answered: false,
                })
                .collect(),
            watchers: Vec::new(),
            operator: Operator::default(),
            checks: Checks::new(profile.members),
            trace: Trace::new(prints),
            dice: Dice {
                schedule: stream("schedule"),
                network: stream("network"),
                faults: stream("faults"),
                operator: stream("operator"),
            },
            counts: Counts::default(),
            history: History::default(),
            failure: None,
            chaos: true,
            working: true,
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
        self.begin_faults();
    }

    /// The time.
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

    /// Takes the next event. `false` when something does not hold, or nothing can happen any more.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.schedule.take() else { return false };
        self.dispatch(event);
        self.failure.is_none()
    }

    fn paused(&self, at: Host) -> Option<Nanos> {
        let place = self.places.get(at)?;
        (place.paused_until > self.now() && place.process.is_some()).then_some(place.paused_until)
    }

    /// The process of this life, with its clock put right; `None` if it is gone.
    fn wake(&mut self, at: Host, life: u64) -> Option<&mut Process> {
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
            Event::Turn(at, _) | Event::Log(at, _) | Event::Background(at, _) | Event::Timer(at, _) => {
                Some(*at)
            }
            Event::Messages { to, .. } | Event::Request { to, .. } | Event::Snapshot { to, .. } => Some(*to),
            Event::Answered { from: (at, _), .. } | Event::SnapshotEnded { from: (at, _), .. } => Some(*at),
            Event::Piece(at, ..) | Event::Unreachable(at, ..) | Event::Removed(at, _) => Some(*at),
            Event::Call { to, .. } => Some(*to),
            _ => None,
        };
        if let Some(until) = at.and_then(|at| self.paused(at)) {
            // Who stands still finds it when it goes on.
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
            Event::Timer(at, life) => {
                if let Some(process) = self.wake(at, life)
                    && process.timer_at <= now
                {
                    process.timer_at = Nanos::MAX;
                    self.trace.event(now, 1, &[at as u64]);
                    self.settle(at);
                }
            }
            Event::Messages { from, to, id, messages } => self.messages(from, to, id, messages),
            Event::Unreachable(at, life, id) => {
                if let Some(process) = self.wake(at, life) {
                    process.stepped.peering().unreachable(id);
                    self.settle(at);
                }
            }
            Event::Removed(at, life) => {
                if let Some(process) = self.wake(at, life) {
                    process.stepped.peering().removed();
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
                    process.stepped.peering().snapshot_sent(to, delivered);
                    if !delivered {
                        process.stepped.peering().unreachable(to);
                    }
                    self.settle(at);
                }
            }
            Event::Connections => self.connections(),
            Event::Compare => {
                self.schedule.after(COMPARE_EVERY, Event::Compare);
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
            Event::Undo(undo) => self.undo(undo),
            Event::Operator => self.operate(),
        }
    }

    // Processes.

    /// Has a process started after a while, unless one runs.
    pub(crate) fn start_after(&mut self, at: Host, delay: Nanos) {
        let when = self.now() + delay;
        let place = &mut self.places[at];
        if place.process.is_some() || place.retired || place.starts_at.is_some_and(|at| at <= when) {
            return;
        }
        place.starts_at = Some(when);
        self.schedule.at(when, Event::Start(at));
    }

    fn config(&self, at: Host) -> Result<Config, String> {
        let ms = |nanos: Nanos| (nanos / MILLI).to_string();
        let cluster: Vec<String> =
            (0..self.profile.members).map(|number| format!("m{number}={}", url(number))).collect();
        let client = url(at).replace("2380", "2379");
        let mut args = vec![
            format!("--name=m{at}"),
            "--data-dir=/data".to_owned(),
            format!("--listen-peer-urls={}", url(at)),
            format!("--initial-advertise-peer-urls={}", url(at)),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--heartbeat-interval={}", ms(self.profile.heartbeat)),
            format!("--election-timeout={}", ms(self.profile.election)),
            format!("--pre-vote={}", self.profile.pre_vote),
            format!("--snapshot-catchup-entries={}", self.profile.catchup_entries),
            "--watch-progress-notify-interval=2s".to_owned(),
            "--compact-hash-check-time=5s".to_owned(),
            "--max-learners=2".to_owned(),
        ];
        if at < self.profile.members {
            args.push(format!("--initial-cluster={}", cluster.join(",")));
        } else {
            args.push(format!("--initial-cluster=m{at}={}", url(at)));
            args.push("--initial-cluster-state=existing".to_owned());
        }
        match config::parse(&args, &[]) {
            Ok(Invocation::Serve(parsed)) => Ok(parsed.config),
            Ok(_) => Err("no configuration".to_owned()),
            Err(refusal) => Err(format!("{refusal:?}")),
        }
    }

    fn start(&mut self, at: Host) {
        let now = self.now();
        let config = match self.config(at) {
            Ok(config) => config,
            Err(why) => return self.fail(format!("the simulator's own configuration is refused: {why}")),
        };
        let prints = self.trace.prints();
        let level = if prints { Level::Info } else { Level::Fatal };
        let segment_bytes = self.profile.segment_bytes;
        let thresholds = Thresholds {
            checkpoint_log_bytes: u64::from(segment_bytes) * 2,
            checkpoint_entries: self.profile.checkpoint_entries,
            checkpoint_age: Duration::from_secs(20),
            reclaim_dead_bytes: u64::from(segment_bytes) * 2,
        };
        let links = Arc::new(Links::default());
        let (seed, lines) = (self.seed, self.lines.clone());
        let place = &mut self.places[at];
        place.tick(now);
        place.lives += 1;
        let life = place.lives;
        let clock = Clock::by_hand(&place.hand);
        let logger = Logger::by(clock, level, Format::Console, vec![Box::new(lines)]);
        let setup = Setup {
            config,
            disk: Arc::new(place.disk.clone()) as Arc<dyn Disk>,
            logger: Arc::new(logger),
            links: Arc::clone(&links) as Arc<dyn server::peer_links::PeerLinks>,
            clock: Arc::clone(&place.hand),
            seed: seed.rotate_left(7) ^ (at as u64) << 32 ^ life,
            segment_bytes,
            thresholds,
            beginning: place.beginning.clone(),
        };
        self.counts.starts += 1;
        match Stepped::open(setup) {
            Ok(stepped) => {
                let id = stepped.identity().member_id;
                place.id = id;
                place.process = Some(Process {
                    stepped,
                    id,
                    life,
                    links,
                    done: Rc::default(),
                    calls: Vec::new(),
                    streams: Vec::new(),
                    sending: Vec::new(),
                    snapshots: 0,
                    turn_at: Nanos::MAX,
                    timer_at: Nanos::MAX,
                    log_busy: false,
                    background_busy: false,
                    stopping: false,
                });
                self.trace.note(now, format_args!("m{at} starts, life {life}, id {id:x}"));
                self.look(at);
                self.settle(at);
            }
            Err(why) => {
                self.trace.note(now, format_args!("m{at} does not start: {why}"));
                self.print_lines(at);
                self.not_started(at, why);
            }
        }
    }

    /// Ends a process: without power the page cache goes too.
    pub(crate) fn end(&mut self, at: Host, power: bool) {
        let now = self.now();
        let place = &mut self.places[at];
        place.disk.kill();
        let process = place.process.take();
        place.paused_until = 0;
        let Some(process) = process else {
            if power {
                self.places[at].disk.crash();
            } else {
                self.places[at].disk.heal();
            }
            return;
        };
        let Process { stepped, calls, streams, done, id, .. } = process;
        drop(stepped);
        drop(done);
        let place = &mut self.places[at];
        if power {
            place.disk.crash();
        } else {
            place.disk.heal();
        }
        self.counts.crashes += 1;
        self.trace.note(now, format_args!("m{at} ends{}", if power { ", power is lost" } else { "" }));
        for (caller, operation) in calls {
            self.tell(at, caller, operation, Heard::Broken);
        }
        for (watcher, streams) in streams {
            if self.watchers[watcher].streams == streams {
                self.watchers[watcher].broken(now);
                let delay = self.watchers[watcher].rng().below(SECOND);
                self.schedule.after(delay, Event::WatchConnect(watcher));
            }
        }
        for other in &mut self.places {
            let Some(process) = &other.process else { continue };
            process.links.disconnected(id);
            // A snapshot that it was receiving breaks off.
            if process.sending.iter().any(|sending| sending.to == id) {
                let from = (other.number, process.life);
                self.schedule.after(MILLI, Event::SnapshotEnded { from, to: id, delivered: false });
            }
        }
    }

    /// The process has ended by itself.
    fn ended(&mut self, at: Host, outcome: Result<(), String>) {
        let now = self.now();
        self.print_lines(at);
        let place = &mut self.places[at];
        let stopping = place.process.as_ref().is_some_and(|process| process.stopping);
        let dark = place.disk.is_dark();
        let excused = place.excused;
        let removed = self.operator.is_removed(place.id);
        match &outcome {
            Ok(()) => self.trace.note(now, format_args!("m{at} has come to its end")),
            Err(why) => self.trace.note(now, format_args!("m{at} cannot go on: {why}")),
        }
        self.end(at, dark);
        match outcome {
            Ok(()) if stopping => {
                let delay = self.dice.faults.between(10 * MILLI, 2 * SECOND);
                self.start_after(at, delay);
            }
            Ok(()) if removed => {
                self.places[at].retired = true;
            }
            Ok(()) => self.fail(format!("member {at} ended, though nobody told it to nor removed it")),
            Err(_) if dark || excused => {
                let delay = self.dice.faults.between(100 * MILLI, 5 * SECOND);
                self.start_after(at, delay);
            }
            Err(_) if removed => self.places[at].retired = true,
            Err(why) => self.fail(format!("member {at} ended for no reason that the simulator gave: {why}")),
        }
    }

    fn turn(&mut self, at: Host) {
        let now = self.now();
        let Some(process) = &mut self.places[at].process else { return };
        let outcome = process.stepped.turn();
        self.trace.event(now, 2, &[at as u64]);
        match outcome {
            Ok(Going::On) => {
                self.look(at);
                self.settle(at);
            }
            Ok(Going::Ended) => {
                self.look(at);
                self.settle(at);
                self.ended(at, Ok(()));
            }
            Err(why) => self.ended(at, Err(why)),
        }
    }

    fn log_turn(&mut self, at: Host, life: u64) {
        let now = self.now();
        let stalled = self.places[at].stalled_until;
        if stalled > now {
            self.schedule.at(stalled, Event::Log(at, life));
            return;
        }
        let Some(process) = self.wake(at, life) else { return };
        process.log_busy = false;
        process.stepped.log_turn();
        let ops = self.places[at].disk.ops();
        self.trace.event(now, 3, &[at as u64, ops]);
        self.settle(at);
    }

    fn background(&mut self, at: Host, life: u64) {
        let now = self.now();
        let stalled = self.places[at].stalled_until;
        if stalled > now {
            self.schedule.at(stalled, Event::Background(at, life));
            return;
        }
        let Some(process) = self.wake(at, life) else { return };
        let kept = process.stepped.keeper_step();
        let hashed = process.stepped.hasher_step();
        let caught = process.stepped.catch_up_step();
        process.background_busy = kept || hashed || caught;
        if process.background_busy {
            self.trace.event(now, 4, &[at as u64, u64::from(kept), u64::from(hashed), u64::from(caught)]);
            let delay = self.disk_delay(at);
            self.schedule.after(delay, Event::Background(at, life));
            self.settle(at);
        }
    }

    fn disk_delay(&mut self, at: Host) -> Nanos {
        let slowness = self.places[at].slowness;
        (self.dice.schedule.around(self.profile.sync) + MICRO) * slowness
    }

    /// Does all that can be done at a place without anything happening elsewhere, and sees to what comes next.
    pub(crate) fn settle(&mut self, at: Host) {
        for _ in 0..1000 {
            let Some(process) = &mut self.places[at].process else { return };
            process.stepped.poll_tasks();
            let done = std::mem::take(&mut *process.done.borrow_mut());
            let outgoing = process.links.take();
            if done.is_empty() && outgoing.is_empty() {
                break;
            }
            for done in done {
                self.done(at, done);
            }
            for outgoing in outgoing {
                self.send(at, outgoing);
            }
        }
        self.print_lines(at);
        if self.places[at].disk.is_dark() {
            self.ended(at, Err("power went at a disk operation".to_owned()));
            return;
        }
        self.plan(at);
    }

    /// Puts what a process will do next into the schedule.
    fn plan(&mut self, at: Host) {
        let now = self.now();
        let turn = self.profile.turn;
        let Place { process, time, .. } = &mut self.places[at];
        let Some(process) = process else { return };
        let life = process.life;
        let wanted = if process.stepped.wants_turn() {
            now + 1 + self.dice.schedule.around(turn)
        } else {
            now + time.in_world(process.stepped.next_turn()).max(MICRO)
        };
        if wanted < process.turn_at {
            process.turn_at = wanted;
            self.schedule.at(wanted, Event::Turn(at, life));
        }
        if let Some(timer) = process.stepped.next_timer() {
            let due = now + time.in_world(timer).max(1);
            if due < process.timer_at {
                process.timer_at = due;
                self.schedule.at(due, Event::Timer(at, life));
            }
        }
        let (log, background) =
            (!process.log_busy && process.stepped.log_wants_turn(), !process.background_busy);
        process.log_busy |= log;
        process.background_busy = true;
        if log {
            let delay = self.disk_delay(at);
            self.schedule.after(delay, Event::Log(at, life));
        }
        if background {
            let delay = 100 * MICRO + self.dice.schedule.around(4 * turn);
            self.schedule.after(delay, Event::Background(at, life));
        }
    }

    /// Looks at a member after a step, with all checkers.
    fn look(&mut self, at: Host) {
        let Some(process) = &self.places[at].process else { return };
        let probe = process.stepped.probe();
        let standing = Standing {
            id: probe.id,
            life: process.life,
            leads: probe.role == consensus::Role::Leader,
            term: probe.term,
            commit: probe.commit,
            applied: probe.applied,
            applied_term: probe.applied_term,
            first: probe.first_index,
            last: probe.last_index,
            synced: probe.synced_index,
            voters: probe.voters,
            revision: probe.revision,
        };
        let now = self.schedule.now();
        let stepped = &process.stepped;
        let before = self.checks.standing(at);
        if before.is_none_or(|before| before.leads != standing.leads || before.term != standing.term) {
            let leads = if standing.leads { ", leads" } else { "" };
            self.trace.note(now, format_args!("m{at} is in term {}{leads}", standing.term));
            self.counts.terms += u64::from(standing.leads);
        }
        self.trace.event(now, 5, &[standing.commit, standing.applied, standing.last, standing.synced]);
        let looked = self
            .checks
            .look(at, standing, &|index| stepped.entry_term(index), &|from| stepped.state_trail(from));
        if let Err(why) = looked {
            self.fail(why);
        }
    }

    fn print_lines(&mut self, at: Host) {
        if !self.trace.prints() {
            return;
        }
        let lines = std::mem::take(&mut *self.lines.0.lock().unwrap_or_else(PoisonError::into_inner));
        let now = self.now();
        for line in String::from_utf8_lossy(&lines).lines() {
            // Its own time of day says nothing here.
            let text = line.split_once('\t').map_or(line, |(_, rest)| rest);
            println!("{:4}.{:06}   m{at}: {text}", now / SECOND, now / MICRO % 1_000_000);
        }
    }

    // Between members.

    fn done(&mut self, at: Host, done: Done) {
        match done {
            Done::Call(caller, operation, heard) => {
                if let Some(process) = &mut self.places[at].process {
                    process.calls.retain(|call| *call != (caller, operation));
                }
                self.tell(at, caller, operation, heard);
            }
            Done::Served(from, reply, response) => self.respond(at, from, reply, Ok(response)),
            Done::Stream(watcher, streams) => {
                if let Some(process) = &mut self.places[at].process {
                    process.streams.retain(|stream| *stream != (watcher, streams));
                }
                if self.watchers[watcher].streams == streams {
                    let now = self.now();
                    // What was sent before the end arrives before it.
                    self.watchers[watcher].read(now, true);
                    self.watchers[watcher].broken(now);
                    let delay = self.watchers[watcher].rng().below(SECOND);
                    self.schedule.after(delay, Event::WatchConnect(watcher));
                }
            }
            Done::Received(from, outcome) => {
                let to = self.places[at].id;
                let delivered = outcome.is_ok();
                let now = self.now();
                self.trace
                    .note(now, format_args!("m{at} has received a snapshot of m{}: {outcome:?}", from.0));
                self.counts.snapshots += u64::from(delivered);
                // Without an answer the sender gives up in the end.
                let delay = match self.network.pass(at, from.0, 2, now, &mut self.dice.network) {
                    Passage::At(when) | Passage::Twice(when, _) => when,
                    Passage::Lost => now + 4 * SILENCE_MAX,
                };
                let delivered = delivered && delay < now + 4 * SILENCE_MAX;
                self.schedule.at(delay, Event::SnapshotEnded { from, to, delivered });
            }
        }
    }

    fn send(&mut self, at: Host, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Messages(messages) => self.send_messages(at, messages),
            Outgoing::Snapshot(message, source) => {
                let to = message.to();
                let Some(process) = &mut self.places[at].process else { return };
                let from = (at, process.life);
                let place = process.links.place_of(to);
                let busy = process.sending.iter().any(|sending| sending.to == to);
                let Some(place) = place.filter(|_| !busy) else {
                    self.schedule.after(MICRO, Event::SnapshotEnded { from, to, delivered: false });
                    return;
                };
                process.snapshots += 1;
                let number = process.snapshots;
                let source = Some(source);
                process.sending.push(Sending { number, to, message, source, pieces: None, sent: Vec::new() });
                let mut request = http::Request::new(Bytes::new());
                *request.uri_mut() = http::Uri::from_static("/mainstay/snapshot");
                self.ask(from, Some(place), request, Reply::Snapshot(number), Duration::from_secs(5));
            }
            Outgoing::Request { target, request, timeout, answer } => {
                let Some(process) = &self.places[at].process else { return };
                let from = (at, process.life);
                let to = match &target {
                    Target::Member(id) => process.links.place_of(*id),
                    Target::Url(url) => links::place_of(url),
                };
                self.ask(from, to, request, Reply::Task(Rc::new(RefCell::new(Some(answer)))), timeout);
            }
        }
    }

    fn send_messages(&mut self, at: Host, messages: Vec<Message>) {
        let now = self.now();
        let mut batches: Vec<(u64, u8, Vec<Message>)> = Vec::new();
        for message in messages {
            if let Err(why) = self.promise(at, &message) {
                return self.fail(why);
            }
            let lane = u8::from(message.r#type() == MessageType::MsgApp);
            let to = message.to();
            match batches.iter_mut().find(|(id, kind, _)| (*id, *kind) == (to, lane)) {
                Some((_, _, batch)) => batch.push(message),
                None => batches.push((to, lane, vec![message])),
            }
        }
        for (id, lane, messages) in batches {
            let Some(process) = &self.places[at].process else { return };
            let life = process.life;
            let Some(to) = process.links.place_of(id) else { continue };
            if !process.links.is_active(id) {
                self.schedule.after(MILLI, Event::Unreachable(at, life, id));
                // A connection that can be made is made for it, sometimes.
                if !self.network.connects(at, to) || self.dice.network.one_in(2) {
                    continue;
                }
            }
            match self.network.pass(at, to, lane, now, &mut self.dice.network) {
                Passage::Lost => {}
                Passage::At(when) => {
                    self.schedule.at(when, Event::Messages { from: at, to, id, messages });
                }
                Passage::Twice(when, again) => {
                    // Connections carry a message at most once; what raft's own algorithm has to bear, it gets all the
                    // same. A proposal handed on it does not have to bear twice.
                    let mut copy = messages.clone();
                    copy.retain(|message| message.r#type() != MessageType::MsgProp);
                    self.schedule.at(when, Event::Messages { from: at, to, id, messages });
                    self.schedule.at(again, Event::Messages { from: at, to, id, messages: copy });
                }
            }
        }
    }

    /// What a message promises has to be durable before it leaves.
    fn promise(&mut self, at: Host, message: &Message) -> Result<(), String> {
        let stored = match message.r#type() {
            MessageType::MsgAppResp if !message.reject() => Some(message.index()),
            MessageType::MsgVoteResp if !message.reject() => None,
            MessageType::MsgVote => None,
            _ => return Ok(()),
        };
        self.checks.promises(at, message.term(), stored)
    }

    fn messages(&mut self, from: Host, to: Host, id: u64, mut messages: Vec<Message>) {
        let now = self.now();
        let (sender, life) =
            self.places[from].process.as_ref().map_or((0, 0), |process| (process.id, process.life));
        if self.network.is_cut(from, to) {
            return;
        }
        let Some(process) = self.wake(to, 0) else { return };
        if process.id != id {
            return;
        }
        if sender != 0 && process.stepped.peering().is_removed(sender) {
            self.schedule.after(MILLI, Event::Removed(from, life));
            return;
        }
        // As they are on the wire: what they share in memory is not shared between members.
        for message in &mut messages {
            if let Ok(copy) = Message::decode(message.encode_to_vec().as_slice()) {
                *message = copy;
            }
        }
        let kind = messages.first().map_or(0, |message| message.r#type() as u64);
        let count = messages.len() as u64;
        process.stepped.peering().received(&mut messages);
        self.trace.event(now, 6, &[from as u64, to as u64, kind, count]);
        self.settle(to);
    }

    fn ask(
        &mut self,
        from: (Host, u64),
        to: Option<Host>,
        request: http::Request<Bytes>,
        reply: Reply,
        timeout: Duration,
    ) {
        let now = self.now();
        let late = Err("timed out".to_owned());
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(SECOND);
        self.schedule.at(now + timeout, Event::Answered { from, reply: reply.clone(), answer: late });
        let passage = to.map(|to| (to, self.network.pass(from.0, to, 2, now, &mut self.dice.network)));
        match passage {
            None => {
                let answer = Err("unknown member".to_owned());
                self.schedule.after(MICRO, Event::Answered { from, reply, answer });
            }
            Some((to, Passage::At(when) | Passage::Twice(when, _))) => {
                self.schedule.at(when, Event::Request { from, to, request, reply });
            }
            Some((_, Passage::Lost)) => {}
        }
    }

    fn request(&mut self, from: (Host, u64), to: Host, request: http::Request<Bytes>, reply: Reply) {
        let now = self.now();
        self.trace.event(now, 7, &[from.0 as u64, to as u64]);
        let Some(process) = self.wake(to, 0) else {
            self.respond(to, from, reply, Err("connection refused".to_owned()));
            return;
        };
        let done = Rc::clone(&process.done);
        let future = process.stepped.peering().http(request);
        process.stepped.spawn(async move {
            let response = future.await;
            done.borrow_mut().push(Done::Served(from, reply, response));
        });
        self.settle(to);
    }

    fn respond(
        &mut self,
        at: Host,
        from: (Host, u64),
        reply: Reply,
        answer: Result<http::Response<Bytes>, String>,
    ) {
        let now = self.now();
        if let Passage::At(when) | Passage::Twice(when, _) =
            self.network.pass(at, from.0, 2, now, &mut self.dice.network)
        {
            self.schedule.at(when, Event::Answered { from, reply, answer });
        }
    }

    fn answered(
        &mut self,
        (at, life): (Host, u64),
        reply: Reply,
        answer: Result<http::Response<Bytes>, String>,
    ) {
        let now = self.now();
        match reply {
            Reply::Task(waiting) => {
                let Some(sender) = waiting.borrow_mut().take() else { return };
                if self.wake(at, life).is_some() {
                    // Whoever asked may have given up.
                    let _ = sender.send(answer);
                    self.trace.event(now, 8, &[at as u64]);
                    self.settle(at);
                }
            }
            Reply::Snapshot(number) => {
                let Some(process) = self.wake(at, life) else { return };
                let Some(sending) = process.sending.iter_mut().find(|sending| sending.number == number)
                else {
                    return;
                };
                let Some(source) = sending.source.take() else { return };
                let receiver = answer.ok().filter(|answer| answer.status() == http::StatusCode::OK);
                sending.pieces = Some(Pieces::open(source, receiver.map(http::Response::into_body)));
                self.schedule.after(MICRO, Event::Piece(at, life, number));
            }
        }
    }

    fn connections(&mut self) {
        self.schedule.after(CONNECTIONS_EVERY, Event::Connections);
        let now = self.now();
        for at in 0..self.places.len() {
            if self.paused(at).is_some() {
                continue;
            }
            let Some(process) = &self.places[at].process else { continue };
            let life = process.life;
            let mut refused = Vec::new();
            for (id, place) in process.links.members() {
                let there = self.places.get(place).and_then(|place| place.process.as_ref());
                let alive = there.is_some_and(|process| process.id == id);
                match self.network.cut_since(at, place) {
                    None if alive => process.links.connected(id, self.places[at].hand.now()),
                    None => {
                        process.links.disconnected(id);
                        if there.is_none() && self.dice.network.one_in(3) {
                            refused.push(id);
                        }
                    }
                    Some(since) if now > since + SILENCE_MAX => process.links.disconnected(id),
                    Some(_) => {}
                }
            }
            if refused.is_empty() && !self.profile.fails(Fault::Full) {
                continue;
            }
            let full = self.profile.fails(Fault::Full);
            let Some(process) = self.wake(at, life) else { continue };
            for id in refused {
                process.stepped.peering().refused(id);
            }
            if full && !process.log_busy {
                // A log without room looks for some now and then.
                process.log_busy = true;
                self.schedule.after(MICRO, Event::Log(at, life));
            }
            self.settle(at);
        }
    }

    // Snapshots.

    fn piece(&mut self, at: Host, life: u64, number: u64) {
        let now = self.now();
        let breaks = self.profile.fails(Fault::Break) && self.chaos && self.dice.network.one_in(8);
        let mean = self.profile.delay;
        if self.wake(at, life).is_none() {
            return;
        }
        let Some(process) = &mut self.places[at].process else { return };
        let Some(sending) = process.sending.iter_mut().find(|sending| sending.number == number) else {
            return;
        };
        let to = sending.to;
        let Some(place) = process.links.place_of(to) else {
            self.schedule.after(MICRO, Event::SnapshotEnded { from: (at, life), to, delivered: false });
            return;
        };
        let Some(pieces) = &mut sending.pieces else { return };
        let cut = self.network.is_cut(at, place);
        let piece = if breaks || cut {
            Piece::Next(Err(std::io::Error::other("the connection broke")))
        } else {
            pieces.read()
        };
        let whole = match piece {
            Piece::Next(Ok(bytes)) => {
                let delay = mean * (1 + bytes.len() as u64 / PIECE_BYTES);
                sending.sent.push(Ok(bytes));
                self.schedule.after(delay, Event::Piece(at, life, number));
                return;
            }
            Piece::Next(Err(error)) => {
                sending.sent.push(Err(error));
                false
            }
            Piece::End => true,
            Piece::Failed(why) => {
                self.trace.note(now, format_args!("m{at} cannot send a snapshot: {why}"));
                self.schedule.after(MICRO, Event::SnapshotEnded { from: (at, life), to, delivered: false });
                return;
            }
        };
        let pieces = std::mem::take(&mut sending.sent);
        let message = sending.message.clone();
        sending.pieces = None;
        self.trace.note(
            now,
            format_args!("m{at} has sent {} pieces of a snapshot to m{place}, whole: {whole}", pieces.len()),
        );
        self.counts.snapshots_broken += u64::from(!whole);
        let event = Event::Snapshot { from: (at, life), number, to: place, message, pieces };
        match self.network.pass(at, place, 3, now, &mut self.dice.network) {
            Passage::At(when) | Passage::Twice(when, _) => self.schedule.at(when, event),
            Passage::Lost => {
                let ended = Event::SnapshotEnded { from: (at, life), to, delivered: false };
                self.schedule.after(SILENCE_MAX, ended);
            }
        }
    }

    fn snapshot(
        &mut self,
        from: (Host, u64),
        number: u64,
        to: Host,
        message: Message,
        pieces: Vec<std::io::Result<Bytes>>,
    ) {
        let now = self.now();
        self.trace.event(now, 9, &[from.0 as u64, to as u64, number, pieces.len() as u64]);
        let wanted = message.to();
        let Some(process) = self.wake(to, 0).filter(|process| process.id == wanted) else {
            self.schedule.after(MILLI, Event::SnapshotEnded { from, to: wanted, delivered: false });
            return;
        };
        let done = Rc::clone(&process.done);
        let future = process.stepped.receive_snapshot(message, pieces);
        process.stepped.spawn(async move {
            let outcome = future.await;
            done.borrow_mut().push(Done::Received(from, outcome));
        });
        self.settle(to);
    }

    // Clients.

    fn running(&self) -> Vec<Host> {
        self.places.iter().filter(|place| place.process.is_some()).map(|place| place.number).collect()
    }

    fn client_next(&mut self, number: usize) {
        let now = self.now();
        let members: Vec<Host> = self
            .places
            .iter()
            .filter(|place| !place.retired && place.lives > 0)
            .map(|place| place.number)
            .collect();
        let running = self.running();
        let profile = &self.profile;
        let desk = &mut self.desks[number];
        if desk.open.is_some() || !self.working || members.is_empty() {
            if self.working {
                self.schedule.after(100 * MILLI, Event::ClientNext(number));
            }
            return;
        }
        let rng = desk.client.rng();
        if rng.one_in(4) || !desk.answered {
            // Mostly one that runs: who knows of several finds it soon.
            let from = if running.is_empty() || rng.one_in(8) { &members } else { &running };
            desk.place = rng.pick(from);
        }
        let (request, fence) = desk.client.next(profile, now);
        self.next_operation += 1;
        let id = self.next_operation;
        let calling = match &request {
            oracle::Request::KeepAlive { id } => Calling::Renew(*id),
            other => {
                let (path, message) = crate::wire::encode(other);
                Calling::Unary(path, message)
            }
        };
        let place = desk.place;
        desk.open = Some(Underway {
            operation: oracle::Operation {
                id,
                client: desk.client.number,
                member: place as u64 + 1,
                life: 0,
                call: now,
                returned: 0,
                request,
                outcome: Outcome::Unknown(String::new()),
                fence,
            },
        });
        self.counts.operations += 1;
        self.place_call(Caller::Client(number), id, place, calling, PATIENCE);
    }

    /// Sends a call on its way, and sees to its being given up in the end.
    pub(crate) fn place_call(
        &mut self,
        caller: Caller,
        operation: u64,
        to: Host,
        request: Calling,
        patience: Nanos,
    ) {
        let now = self.now();
        self.schedule.after(patience, Event::GiveUp { caller, operation });
        let lost = self.profile.fails(Fault::ClientLoss) && self.chaos && self.dice.network.one_in(50);
        match self.network.pass(CLIENTS, to, 0, now, &mut self.dice.network) {
            Passage::At(when) | Passage::Twice(when, _) if !lost => {
                self.schedule.at(when, Event::Call { caller, operation, to, request });
            }
            _ => {}
        }
    }

    fn call(&mut self, caller: Caller, operation: u64, to: Host, request: Calling) {
        let now = self.now();
        let Some(process) =
            self.wake(to, 0).filter(|process| process.stepped.is_ready() && !process.stopping)
        else {
            self.tell(to, caller, operation, Heard::Nobody);
            return;
        };
        process.calls.push((caller, operation));
        let done = Rc::clone(&process.done);
        let life = process.life;
        match request {
            Calling::Unary(path, message) => {
                let future = process.stepped.call(path, message);
                process.stepped.spawn(async move {
                    let answer = future.await;
                    done.borrow_mut().push(Done::Call(caller, operation, Heard::Answer(answer)));
                });
            }
            Calling::Renew(lease) => {
                let future = process.stepped.renew(lease);
                process.stepped.spawn(async move {
                    let answer = future.await;
                    done.borrow_mut().push(Done::Call(caller, operation, Heard::Renewal(answer)));
                });
            }
        }
        if let Caller::Client(number) = caller
            && let Some(underway) = &mut self.desks[number].open
            && underway.operation.id == operation
        {
            underway.operation.life = life;
        }
        self.trace.event(now, 10, &[operation, to as u64]);
        self.settle(to);
    }

    /// A member's answer goes back to whoever called, if it does.
    fn tell(&mut self, at: Host, caller: Caller, operation: u64, heard: Heard) {
        let now = self.now();
        let lost = self.profile.fails(Fault::ClientLoss) && self.chaos && self.dice.network.one_in(50);
        match self.network.pass(at, CLIENTS, 0, now, &mut self.dice.network) {
            Passage::At(when) | Passage::Twice(when, _) if !lost => {
                self.schedule.at(when, Event::Told { caller, operation, heard });
            }
            _ => {}
        }
    }

    fn told(&mut self, caller: Caller, operation: u64, heard: Heard) {
        let now = self.now();
        let number = match caller {
            Caller::Client(number) => number,
            Caller::Operator => return self.operator_told(operation, heard),
        };
        let desk = &mut self.desks[number];
        if desk.open.as_ref().is_none_or(|underway| underway.operation.id != operation) {
            return;
        }
        let Some(Underway { operation: mut record }) = desk.open.take() else { return };
        record.returned = now;
        record.outcome = match heard {
            Heard::Answer(Ok(message)) => match crate::wire::decode(&record.request, message) {
                Some((header, response)) => Outcome::Done(header, response),
                None => return self.fail(format!("the answer to operation {operation} cannot be read")),
            },
            Heard::Renewal(Ok(ttl)) => {
                Outcome::Done(oracle::Header::default(), oracle::Response::Renewed { ttl })
            }
            Heard::Answer(Err(status)) | Heard::Renewal(Err(status)) => crate::wire::failed(&status),
            Heard::Nobody => Outcome::Refused(oracle::Refusal::Other("connection refused".to_owned())),
            Heard::Broken => Outcome::Unknown("no answer".to_owned()),
        };
        let (kind, revision) = match &record.outcome {
            Outcome::Done(header, _) => (0, header.revision),
            Outcome::Refused(_) => (1, 0),
            Outcome::Unknown(_) => (2, 0),
        };
        desk.answered = kind == 0;
        self.counts.answered += u64::from(kind == 0);
        self.trace.event(now, 11, &[operation, kind, revision as u64]);
        if self.trace.prints() {
            println!(
                "{:4}.{:06}   client {} at m{}: {} -> {}",
                now / SECOND,
                now / MICRO % 1_000_000,
                record.client,
                record.member - 1,
                crate::text::request(&record.request),
                crate::text::outcome(&record.outcome)
            );
        }
        desk.client.told(&record.request, &record.outcome, now);
        let think = desk.client.rng().around(self.profile.think);
        let refused = if kind == 0 { 0 } else { 50 * MILLI };
        self.history.operations.push(record);
        self.schedule.after(think + refused, Event::ClientNext(number));
    }

    // Watches.

    fn newest(&self) -> i64 {
        self.desks.iter().map(|desk| desk.client.revision()).max().unwrap_or(1)
    }

    fn watch_connect(&mut self, number: usize) {
        let now = self.now();
        if self.watchers[number].is_open() {
            return;
        }
        let ready = |place: &&Place| {
            place.process.as_ref().is_some_and(|process| process.stepped.is_ready() && !process.stopping)
                && self.network.connects(CLIENTS, place.number)
        };
        let ready: Vec<Host> = self.places.iter().filter(ready).map(|place| place.number).collect();
        if ready.is_empty() {
            self.schedule.after(200 * MILLI, Event::WatchConnect(number));
            return;
        }
        let newest = self.newest();
        let watcher = &mut self.watchers[number];
        let at = watcher.rng().pick(&ready);
        let life = self.places[at].lives;
        let pipe = watcher.connect(at, life, &self.profile, newest, &mut self.next_watch, now);
        let streams = watcher.streams;
        let needs_leader = watcher.rng().one_in(4);
        let pace = watcher.pace;
        let Some(process) = self.wake(at, life) else { return };
        let done = Rc::clone(&process.done);
        let future = process.stepped.watch(
            needs_leader,
            Incoming(Rc::clone(&pipe)),
            Returning(pipe),
            std::future::pending(),
        );
        process.streams.push((number, streams));
        process.stepped.spawn(async move {
            // However it ends, the client sees a stream that is over.
            let _ = future.await;
            done.borrow_mut().push(Done::Stream(number, streams));
        });
        self.trace.event(now, 12, &[number as u64, at as u64]);
        self.settle(at);
        self.schedule.after(pace, Event::WatchRead(number, streams));
    }

    fn watch_read(&mut self, number: usize, streams: u64) {
        let now = self.now();
        if self.watchers[number].streams != streams || !self.watchers[number].is_open() {
            return;
        }
        let at = self.watchers[number].place;
        // Nothing comes through a cut, and in the end the client gives the stream up.
        let cut = self.network.cut_since(CLIENTS, at).is_some_and(|since| now > since + SILENCE_MAX);
        let breaks =
            self.profile.fails(Fault::ClientLoss) && self.chaos && self.watchers[number].rng().one_in(200);
        if cut || breaks {
            self.watchers[number].broken(now);
            self.schedule.after(100 * MILLI, Event::WatchConnect(number));
        } else if self.network.connects(CLIENTS, at) {
            let all = !self.working;
            let watcher = &mut self.watchers[number];
            watcher.read(now, all);
            if !watcher.is_open() {
                self.schedule.after(100 * MILLI, Event::WatchConnect(number));
            }
        }
        if self.watchers[number].is_open() {
            let watcher = &mut self.watchers[number];
            let pace = if self.working { watcher.pace } else { watcher.pace.min(20 * MILLI) };
            let delay = watcher.rng().around(pace) + MICRO;
            self.schedule.after(delay, Event::WatchRead(number, streams));
        }
        self.trace.event(now, 13, &[number as u64]);
        if self.wake(at, 0).is_some() && self.paused(at).is_none() {
            self.settle(at);
        }
    }

    pub(crate) fn epoch(&self) -> Instant {
        self.epoch
    }
}
