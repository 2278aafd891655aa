//! Starts, runs and ends the processes of members, and checks a member after each step.

use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use clock::Clock;
use config::{self, Config, Invocation};
use disk::Disk;
use planted::Measure;
use server::stepped::{Going, Setup, Stepped, Switches, Thresholds};
use telemetry::logging::{Format, Level, Logger};

use crate::checks::Standing;
use crate::links::{Links, url};
use crate::member::{Heard, Place, Process};
use crate::network::Host;
use crate::profile::Fault;
use crate::rng::Rng;
use crate::schedule::{MICRO, MILLI, Nanos, SECOND};
use crate::witness;
use crate::world::{Event, World};

/// Largest number of nodes on a path from the root to a leaf in a tree of watched ranges: many times the
/// logarithm of the number of ranges.
const WATCH_DEPTH_MAX: usize = 120;
/// Largest number of leases that a leader may visit in one turn (one pass of its core's loop).
const LEASES_MAX: usize = 4096;
/// Largest number of keys that a shard may visit without a pause to evaluate the comparisons of a read-only
/// transaction, including a few keys of the last comparison.
const COMPARED_MAX: usize = 600;

/// Returns the configuration that a command line describes.
fn configured(args: &[String]) -> Result<Config, String> {
    match config::parse(args, &[]) {
        Ok(Invocation::Serve(parsed)) => Ok(parsed.config),
        Ok(_) => Err("no configuration".to_owned()),
        Err(refusal) => Err(format!("{refusal:?}")),
    }
}

impl World {
    /// Schedules a process start after a delay, unless a process runs or an earlier start is planned.
    pub(crate) fn start_after(&mut self, at: Host, delay: Nanos) {
        let when = self.now() + delay;
        let place = &mut self.places[at];
        if place.process.is_some() || place.retired || place.starts_at.is_some_and(|at| at <= when) {
            return;
        }
        place.starts_at = Some(when);
        self.schedule.at(when, Event::Start(at));
    }

    pub(crate) fn config(&self, at: Host) -> Result<Config, String> {
        let ms = |nanos: Nanos| (nanos / MILLI).to_string();
        let cluster: Vec<String> =
            (0..self.profile.members).map(|number| format!("m{number}={}", url(number))).collect();
        let client = url(at).replace("2380", "2379");
        let flags = self.profile.flags_of(at, self.places[at].lives + 1);
        let mut args = vec![
            format!("--name=m{at}"),
            "--data-dir=/data".to_owned(),
            format!("--listen-peer-urls={}", url(at)),
            format!("--initial-advertise-peer-urls={}", url(at)),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--heartbeat-interval={}", ms(flags.heartbeat)),
            format!("--election-timeout={}", ms(flags.election)),
            format!("--snapshot-count={}", flags.snapshot_count),
            format!("--snapshot-catchup-entries={}", flags.catchup_entries),
            format!("--max-learners={}", flags.learners_max),
            format!("--quota-backend-bytes={}", flags.quota_bytes),
            format!("--max-txn-ops={}", flags.txn_ops_max),
            format!("--max-request-bytes={}", flags.request_bytes_max),
            format!("--compaction-batch-limit={}", flags.compaction_batch),
            "--watch-progress-notify-interval=2s".to_owned(),
        ];
        // Whether values are compressed may change with each start.
        let life = self.places[at].lives + 1;
        if Rng::stream(self.profile.seed, &format!("compression {at} {life}")).one_in(2) {
            args.push("--value-compression=zstd".to_owned());
        }
        // Whether the index has a budget may change, too; with so small ones it reads most keys from blocks.
        let mut memory = Rng::stream(self.profile.seed, &format!("memory {at} {life}"));
        if memory.one_in(2) {
            args.push(format!("--memory-budget={}", memory.pick(&[1, 20_000])));
        }
        if self.profile.signed_tokens {
            args.push("--auth-token=jwt,sign-method=HS256,priv-key=/secret,ttl=100h".to_owned());
        }
        if self.places[at].observes {
            let feeds: Vec<String> = self.places[at].feeds.iter().map(|feed| url(*feed)).collect();
            args.push(format!("--feed={}", feeds.join(",")));
            return configured(&args);
        }
        if let Some(witness) = self.profile.witness() {
            args.push(format!("--initial-cluster-witness=m{witness}"));
        }
        args.push(format!("--pre-vote={}", flags.pre_vote));
        args.push(format!("--strict-reconfig-check={}", flags.strict));
        args.push(format!("--initial-election-tick-advance={}", flags.advance));
        args.push("--compact-hash-check-time=5s".to_owned());
        args.extend(self.autopilot_flags(at, flags.election));
        if at < self.profile.members {
            args.push(format!("--initial-cluster={}", cluster.join(",")));
        } else {
            args.push(format!("--initial-cluster=m{at}={}", url(at)));
            args.push("--initial-cluster-state=existing".to_owned());
        }
        let config = configured(&args)?;
        Ok(Config { is_witness: Some(at) == self.profile.witness(), ..config })
    }

    pub(crate) fn start(&mut self, at: Host) {
        let now = self.now();
        if self.places[at].observes && !self.prepare_observer(at) {
            return;
        }
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
            checkpoint_quiet: Duration::from_secs(2),
            reclaim_dead_bytes: u64::from(segment_bytes) * 2,
            applied_per_turn: applied_per_turn(at),
            applied_per_turn_unled: applied_per_turn(at),
            questions_per_turn: questions_per_turn(at),
            note_interval: Duration::from_secs(if self.profile.fails(Fault::Ambush) { 2 } else { 60 }),
        };
        let (capacity, slowly) = (self.profile.capacity(), self.profile.reads_slowly());
        let switches = Switches {
            bytes_in_flight_max: self.profile.window_bytes,
            speaks_as_etcd: self.profile.is_etcd(at),
        };
        let links = Arc::new(Links::default());
        let (seed, lines) = (self.seed, self.lines.clone());
        let place = &mut self.places[at];
        place.tick(now);
        place.lives += 1;
        if let Some(wall) = place.started_wall.filter(|_| place.clock_resets) {
            place.hand.set_wall(wall);
        }
        place.started_wall = Some(place.hand.wall());
        if std::mem::take(&mut place.disk_is_new) {
            place.disk.set_capacity(capacity);
            if slowly {
                place.disk.set_misses_per_mille(500);
            }
        }
        let life = place.lives;
        let clock = Clock::by_hand(&place.hand);
        let logger = Logger::by(clock, level, Format::Console, vec![Box::new(lines)]);
        let setup = Setup {
            config,
            disk: Arc::new(place.disk.clone()) as Arc<dyn Disk>,
            logger: Arc::new(logger),
            links: Arc::clone(&links) as Arc<dyn replica::peer_links::PeerLinks>,
            clock: Arc::clone(&place.hand),
            seed: seed.rotate_left(7) ^ (at as u64) << 32 ^ life,
            segment_bytes,
            thresholds,
            beginning: place.beginning.clone(),
            switches,
        };
        self.counts.starts += 1;
        match Stepped::open(setup) {
            Ok(mut stepped) => {
                stepped.hold_reads(self.profile.reads.is_some());
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
                    read_busy: false,
                    stopping: false,
                });
                self.log_opened(at);
                self.trace.note(now, format_args!("m{at} starts, life {life}, id {id:x}"));
                self.look(at);
                self.settle(at);
                // In some runs, data is damaged directly after the start. At this time, the member has
                // already read its data and has not written anything yet.
                if self.profile.fails(Fault::Decay) && life > 1 && self.chaos && self.dice.faults.one_in(6) {
                    self.decay(at);
                }
            }
            Err(error) => {
                self.trace.note(now, format_args!("m{at} does not start: {error}"));
                self.print_lines(at);
                self.not_started(at, &error);
            }
        }
    }

    /// Ends a process abruptly. If the power fails, the page cache is lost too.
    pub(crate) fn end(&mut self, at: Host, power: bool) {
        let now = self.now();
        if power {
            self.drop_cache(at);
        } else if !self.places[at].disk.lies().is_empty() {
            // The process did not lose its page cache, but the cache may be dropped before the next start,
            // which reveals the misreported writes. So record now how far the log is durable.
            self.settle_log(at);
        }
        let place = &mut self.places[at];
        place.disk.kill();
        let process = place.process.take();
        place.paused_until = 0;
        place.time.resume(now);
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
            // Snapshot transfers to the ended member fail.
            if process.sending.iter().any(|sending| sending.to == id) {
                let from = (other.number, process.life);
                self.schedule.after(MILLI, Event::SnapshotEnded { from, to: id, delivered: false });
            }
        }
    }

    /// Handles a process that ended by itself.
    pub(crate) fn ended(&mut self, at: Host, outcome: Result<(), String>) {
        let now = self.now();
        self.print_lines(at);
        let place = &mut self.places[at];
        // A process that learns of its removal while it shuts down counts as removed and is not restarted,
        // because the members that know of the removal may be gone by then.
        let is_removed = |process: &Process| process.stepped.probe().is_removed;
        let stopping = place.process.as_ref().is_some_and(|process| process.stopping && !is_removed(process));
        let dark = place.disk.is_dark();
        let lost_index =
            outcome.as_ref().is_err_and(|why| why.starts_with("a part of the index cannot be read"));
        let excused = place.may_end || (place.may_not_read && lost_index);
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

    pub(crate) fn turn(&mut self, at: Host) {
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
            Err(fatal) => self.ended(at, Err(fatal.to_string())),
        }
    }

    pub(crate) fn log_turn(&mut self, at: Host, life: u64) {
        let now = self.now();
        let stalled = self.places[at].stalled_until;
        if stalled > now {
            self.schedule.at(stalled, Event::Log(at, life));
            return;
        }
        let batches = self.profile.log_batches.unwrap_or(usize::MAX);
        let Some(process) = self.wake(at, life) else { return };
        process.log_busy = false;
        process.stepped.log_turn_of(batches);
        let ops = self.places[at].disk.ops();
        self.trace.event(now, 3, &[at as u64, ops]);
        self.settle(at);
    }

    pub(crate) fn background(&mut self, at: Host, life: u64) {
        let now = self.now();
        let stalled = self.places[at].stalled_until;
        if stalled > now {
            self.schedule.at(stalled, Event::Background(at, life));
            return;
        }
        let Some(process) = self.wake(at, life) else { return };
        let kept = process.stepped.checkpointer_step();
        let hashed = process.stepped.hasher_step();
        let caught = process.stepped.catch_up_step();
        process.background_busy = kept || hashed || caught;
        if process.background_busy {
            self.trace.event(now, 4, &[at as u64, u64::from(kept), u64::from(hashed), u64::from(caught)]);
            let pause = match self.profile.background {
                0 => 0,
                mean => self.dice.schedule.around(mean),
            };
            let delay = self.disk_delay(at) + pause;
            self.schedule.after(delay, Event::Background(at, life));
            self.settle(at);
        }
    }

    /// Performs one read of values that a member's calls are waiting for.
    pub(crate) fn read(&mut self, at: Host, life: u64) {
        let now = self.now();
        let stalled = self.places[at].stalled_until;
        if stalled > now {
            self.schedule.at(stalled, Event::Read(at, life));
            return;
        }
        let Some(process) = self.wake(at, life) else { return };
        process.read_busy = false;
        if process.stepped.read_step() {
            self.trace.event(now, 14, &[at as u64]);
        }
        self.settle(at);
    }

    pub(crate) fn disk_delay(&mut self, at: Host) -> Nanos {
        let slowness = self.places[at].slowness.factor();
        (self.dice.schedule.around(self.profile.sync) + MICRO) * slowness
    }

    /// Runs the tasks of the process at this place until each of them waits for a scheduled event, then
    /// schedules the next events.
    pub(crate) fn settle(&mut self, at: Host) {
        for _ in 0..1000 {
            let Some(process) = &mut self.places[at].process else { return };
            process.stepped.poll_tasks();
            if witness::heard_one() {
                return self.fail(format!("a task of member {at} panicked"));
            }
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
        self.look_at_work(at);
        self.print_lines(at);
        if self.places[at].disk.is_dark() {
            self.ended(at, Err("power went at a disk operation".to_owned()));
            return;
        }
        self.plan(at);
    }

    /// Schedules the next turn of a process's core, its next timer, and its disk work.
    pub(crate) fn plan(&mut self, at: Host) {
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
        let read = !process.read_busy && process.stepped.wants_read();
        process.log_busy |= log;
        process.read_busy |= read;
        process.background_busy = true;
        if read {
            let pause = match self.profile.reads {
                Some(mean) if mean > 0 && self.chaos => {
                    // The pause is cut short at the end of the phase with faults, because reads must not be
                    // slow after it.
                    self.dice.schedule.around(mean).min(self.profile.chaos.saturating_sub(now))
                }
                _ => 0,
            };
            let delay = self.disk_delay(at) + pause;
            self.schedule.after(delay, Event::Read(at, life));
        }
        if log {
            let delay = self.disk_delay(at);
            self.schedule.after(delay, Event::Log(at, life));
        }
        if background {
            let delay = 100 * MICRO + self.dice.schedule.around(4 * turn);
            self.schedule.after(delay, Event::Background(at, life));
        }
    }

    /// Runs all checkers on a member after a step.
    pub(crate) fn look(&mut self, at: Host) {
        let Some(process) = &self.places[at].process else { return };
        let probe = process.stepped.probe();
        if self.profile.observers > 0 {
            self.look_at_observers(at, &probe);
        }
        self.look_at_freshness(at);
        if self.profile.fails(Fault::Autopilot) {
            self.look_at_autopilot(at);
        }
        let Some(process) = &self.places[at].process else { return };
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
            stored: probe.stored_index,
            checkpoint: probe.checkpoint,
            voters: probe.voters,
            voting_members: process.stepped.published().members.voters(),
            revision: probe.revision.0,
        };
        let clocks_max = if probe.settled { probe.leases } else { 0 };
        if probe.lease_clocks > clocks_max {
            let (clocks, leases) = (probe.lease_clocks, probe.leases);
            return self
                .fail(format!("member {at} keeps the clocks of {clocks} leases, and there are {leases}"));
        }
        let now = self.schedule.now();
        let stepped = &process.stepped;
        let before = self.checks.standing(at);
        if before.is_none_or(|before| before.leads != standing.leads || before.term != standing.term) {
            let leads = if standing.leads { ", leads" } else { "" };
            self.trace.note(now, format_args!("m{at} is in term {}{leads}", standing.term));
            self.counts.terms += u64::from(standing.leads);
        }
        self.trace.event(
            now,
            5,
            &[standing.commit.0, standing.applied.0, standing.last.0, standing.synced.0],
        );
        let waits = self.staged.waits_for(at);
        let before = before.filter(|_| waits).cloned();
        let looked = self
            .checks
            .look(at, standing, &|index| stepped.entry_term(index), &|from| stepped.state_trail(from));
        if let Err(why) = looked {
            self.fail(why);
        }
        if waits {
            self.look_at_stage(at, before.as_ref());
        }
    }

    /// Checks that a member did not do too much work in one go. Only builds with planted bugs count this
    /// work; in others the check always passes.
    pub(crate) fn look_at_work(&mut self, at: Host) {
        let applied = usize::try_from(applied_per_turn(at)).unwrap_or(usize::MAX);
        // `Measure::Questions` is the work that a turn had already done when it began to answer a further
        // question. At that time it must be below the limit. The last answer of a turn may exceed the limit.
        let questions = usize::try_from(questions_per_turn(at) - 1).unwrap_or(usize::MAX);
        let bounds = [
            (Measure::WatchDepth, WATCH_DEPTH_MAX),
            (Measure::Leases, LEASES_MAX),
            (Measure::Applied, applied),
            (Measure::Queued, 99),
            (Measure::Questions, questions),
            (Measure::Compared, COMPARED_MAX),
            // The number of leases that were granted again before their revocation was applied. Clients
            // cannot detect this bug, because for them the revocation may have come after the grant.
            (Measure::GrantedAhead, 0),
        ];
        for (measure, max) in bounds {
            let most = planted::most(measure);
            if most > max {
                self.fail(format!(
                    "member {at} looks at {most} things in one go: {measure:?}, {max} at the most"
                ));
            }
        }
    }

    pub(crate) fn print_lines(&mut self, at: Host) {
        if !self.trace.prints() {
            return;
        }
        let lines = std::mem::take(&mut *self.lines.0.lock().unwrap_or_else(PoisonError::into_inner));
        let now = self.now();
        for line in String::from_utf8_lossy(&lines).lines() {
            // The member's own timestamp is dropped, because it means nothing in simulated time.
            let text = line.split_once('\t').map_or(line, |(_, rest)| rest);
            println!("{:4}.{:06}   m{at}: {text}", now / SECOND, now / MICRO % 1_000_000);
        }
    }
}

/// Returns the maximum amount of work for questions, which are client requests that the core answers without
/// a log entry, in one turn (one pass of the core's loop), see [`Thresholds::questions_per_turn`]. Half of
/// the members have a small limit, so that both small and large limits are tested.
fn questions_per_turn(at: Host) -> u64 {
    if at.is_multiple_of(2) { 1 } else { 2048 }
}

/// Returns the maximum amount of work for applying entries in one turn (one pass of the core's loop), see
/// [`Thresholds::applied_per_turn`]. Half of the members have a small limit, to test that the result does not
/// depend on how the work is sliced.
fn applied_per_turn(at: Host) -> u64 {
    if at.is_multiple_of(2) { 5 } else { 2048 }
}
