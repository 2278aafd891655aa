//! Runs one seed from beginning to end.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use api::etcdserverpb as pb;
use api::{Rpc, error};
use bytes::Bytes;
use oracle::{Final, Holding, Response};
use prost::Message as _;

use crate::clients::TOO_DEEP;
use crate::faults::DRIFT_MAX_PPM;
use crate::member::Process;
use crate::network::Host;
use crate::profile::{Fault, Profile, Work};
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::witness;
use crate::workload::Client;
use crate::world::{Counts, World};

/// Time within which the cluster must have a leader once all faults are over.
const ELECTION_TIMEOUT: Nanos = 40 * SECOND;
/// Time within which a member must respond to an operation of each client, once there is a leader.
const PROGRESS_TIMEOUT: Nanos = 60 * SECOND;
/// Time within which all members must have equal state once clients have stopped.
const CONVERGENCE_TIMEOUT: Nanos = 90 * SECOND;
/// Time within which members must release all that they keep for readers and for partly received snapshots.
/// It is longer than the time for which members keep a partly received snapshot.
const REST_TIMEOUT: Nanos = 75 * SECOND;
/// Time without a new event after which a watcher is assumed to have received all events.
const DRAIN_TIMEOUT: Nanos = 6 * SECOND;
/// Longest time during which watch events may still arrive after the workload has ended.
const DRAIN_MAX: Nanos = 120 * SECOND;
/// Interval at which conditions are checked.
const LOOK_EVERY: Nanos = 50 * MILLI;

/// Options for the run of a seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// True to print the trace.
    pub prints: bool,
    /// Faults that are disabled although the seed enables them.
    pub without_faults: Vec<Fault>,
    /// Faults that are enabled although the seed does not enable them.
    pub with_faults: Vec<Fault>,
    /// Work that is enabled although the seed does not enable it.
    pub with_work: Vec<Work>,
    /// Number of founding members; overrides the number that the seed selects.
    pub members: Option<usize>,
    /// Number of observers; overrides the number that the seed selects.
    pub observers: Option<usize>,
    /// Work that is disabled although the seed enables it.
    pub without_work: Vec<Work>,
    /// Time at which the faults end; overrides the time that the seed selects.
    pub chaos: Option<Nanos>,
    /// Largest number of clients.
    pub clients_max: Option<usize>,
    /// Number of events after which the run stops.
    pub until: Option<u64>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Digest of all events. Two runs of the same seed must have the same digest.
    pub digest: u64,
    /// Text of the violation; `None` if there was none.
    pub violation: Option<String>,
    /// Duration of the run in virtual time.
    pub lasted: Nanos,
    /// Number of events.
    pub events: u64,
    /// Number of events of each kind.
    pub kinds: Vec<u64>,
    /// Counts of starts, faults, operations and other things that happened.
    pub counts: Counts,
    /// Last lines of the trace, if there was a violation.
    pub last: Vec<String>,
    /// Number of possible violations that the oracle could neither confirm nor rule out, because the order of
    /// writes with unknown outcomes is not certain.
    pub undecided: usize,
}

/// Returns the profile of a seed, changed by these options.
pub fn profile(seed: u64, options: &Options) -> Profile {
    let mut profile = Profile::of(seed);
    for fault in &options.with_faults {
        profile.faults = profile.faults.with(*fault as u8);
    }
    for work in &options.with_work {
        profile.work = profile.work.with(*work as u8);
    }
    for fault in &options.without_faults {
        profile.faults = profile.faults.without(*fault as u8);
    }
    if options.members.is_some_and(|members| members < 3) {
        profile.faults = profile.faults.without(Fault::Witness as u8);
    }
    profile.arrange();
    profile.members = options.members.unwrap_or(profile.members);
    profile.observers = options.observers.unwrap_or(profile.observers);
    for fault in &options.without_faults {
        profile.faults = profile.faults.without(*fault as u8);
    }
    for work in &options.without_work {
        profile.work = profile.work.without(*work as u8);
    }
    profile.chaos = options.chaos.unwrap_or(profile.chaos);
    profile.clients = options.clients_max.unwrap_or(profile.clients).min(profile.clients).max(1);
    profile
}

/// Runs a seed and returns the result.
pub fn run(seed: u64, options: &Options) -> Report {
    let profile = profile(seed, options);
    // After a panic the world may be inconsistent, and dropping it could panic again, so it is not dropped
    // then.
    let mut world = ManuallyDrop::new(World::new(seed, profile, options.prints));
    if options.prints {
        println!("seed {seed}: {}", world.profile.describe());
    }
    let outcome = witness::panics(|| Life { world: &mut world, until: options.until }.live());
    let undecided = match outcome {
        Ok(Ok(undecided)) => undecided,
        Ok(Err(why)) => {
            world.fail(why);
            0
        }
        Err(panic) => {
            world.fail(format!("a panic: {panic}"));
            0
        }
    };
    world.counts.entries = world.checks.commit().0;
    let report = Report {
        seed,
        digest: world.trace.digest(),
        lasted: world.now(),
        events: world.trace.events(),
        kinds: world.trace.kinds().to_vec(),
        counts: world.counts.clone(),
        last: if world.failure.is_some() {
            world.trace.last().map(str::to_owned).collect()
        } else {
            Vec::new()
        },
        violation: world.failure.take(),
        undecided,
    };
    if report.violation.is_none() {
        drop(ManuallyDrop::into_inner(world));
    }
    report
}

struct Life<'w> {
    world: &'w mut World,
    until: Option<u64>,
}

/// Error text of a run that ended early because the world has already recorded a violation.
const FAILED: &str = "";

impl Life<'_> {
    fn live(&mut self) -> Result<usize, String> {
        let chaos = self.world.profile.chaos;
        self.pass(chaos)?;
        self.world.heal();
        self.wait("a leader", ELECTION_TIMEOUT, |world| {
            world.members().iter().any(|at| world.leads_settled(*at))
        })?;
        let before: Vec<u64> = self.world.desks.iter().map(|desk| desk.client.number).collect();
        let since = self.world.now();
        self.wait("an answer for every client", PROGRESS_TIMEOUT, |world| {
            before.iter().all(|client| world.was_answered(*client, since))
        })?;
        self.wait("the replacement of the members that are lost for good", CONVERGENCE_TIMEOUT, |world| {
            world.are_lost_replaced()
        })?;
        if self.world.is_short_of_space() {
            // The clients that were refused for lack of space have deleted keys and compacted, and the
            // operator disarms the alarm. Then a write must succeed again.
            let since = self.world.now();
            self.wait("room for a write", PROGRESS_TIMEOUT, |world| {
                world.history.operations.iter().rev().take_while(|op| op.returned >= since).any(|op| {
                    let writes = matches!(op.request, oracle::Request::Put(_) | oracle::Request::Txn(_));
                    writes && matches!(op.outcome, oracle::Outcome::Done(..))
                })
            })?;
        }
        self.world.working = false;
        self.wait("the end of all operations", PROGRESS_TIMEOUT, |world| {
            world.desks.iter().all(|desk| desk.open.is_none()) && world.extras.is_empty()
        })?;
        self.world.close_users();
        self.wait("the end of authentication", PROGRESS_TIMEOUT, World::is_open_to_all)?;
        if self.world.profile.works(Work::Hostile) {
            self.reach_limits()?;
        }
        self.wait("all members being alike", CONVERGENCE_TIMEOUT, World::is_alike)?;
        self.wait("a feeder for every observer", CONVERGENCE_TIMEOUT, World::are_observers_fed)?;
        // Wait until the messages on their way to watchers have arrived.
        let revision = self.world.checks.revision();
        self.world.hurry_watchers();
        self.pass(DRAIN_TIMEOUT)?;
        // A slow watcher that is far behind may still be receiving events, so the wait may last long.
        self.wait("the last event for every watcher", DRAIN_MAX, |world| {
            world.watchers.iter().all(|watcher| watcher.told_at + DRAIN_TIMEOUT / 2 < world.now())
        })?;
        self.wait("all members being alike again", CONVERGENCE_TIMEOUT, World::is_alike)?;
        self.wait("the core taking what has arrived", PROGRESS_TIMEOUT, |world| {
            world.processes().all(|process| process.stepped.arrivals_bytes() == 0)
        })?;
        if self.world.profile.crowd > 0 {
            self.wait("the end of all leases", PROGRESS_TIMEOUT, |world| {
                world.processes().all(|process| process.stepped.probe().leases == 0)
            })?;
        }
        self.wait("nothing being held or unsaved", REST_TIMEOUT, World::is_at_rest)?;
        self.finish(revision)
    }

    /// Checks that the largest allowed requests succeed. Must be called when no fault is active.
    fn reach_limits(&mut self) -> Result<(), String> {
        let world = &mut *self.world;
        let Some(leader) = world.leader() else { return Ok(()) };
        // If the replication window allows only one entry per round trip, granting thousands of leases takes
        // longer than a request's timeout, so this check is skipped.
        let slow = world.profile.window_bytes.is_some();
        world.extra(Client::deepest(), leader);
        let id = world.next_operation;
        self.wait("the end of what is deepest", PROGRESS_TIMEOUT, |world| world.extras.is_empty())?;
        let asked = self.world.history.operations.iter().rev().find(|operation| operation.id == id);
        match asked.map(|operation| &operation.outcome) {
            Some(oracle::Outcome::Unknown(why))
                if why != TOO_DEEP && !(slow && why.contains("timed out")) =>
            {
                Err(format!("a transaction that nests as deep as is allowed is not carried out: {why}"))
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        if !self.world.step() {
            return Err(FAILED.to_owned());
        }
        if self.until.is_some_and(|until| self.world.trace.events() >= until) {
            return Err(format!("stopped after {} events, as asked", self.world.trace.events()));
        }
        Ok(())
    }

    fn pass(&mut self, time: Nanos) -> Result<(), String> {
        let until = self.world.now() + time;
        while self.world.now() < until {
            self.step()?;
        }
        Ok(())
    }

    fn wait(&mut self, what: &str, patience: Nanos, done: impl Fn(&World) -> bool) -> Result<(), String> {
        let deadline = self.world.now() + patience;
        while !done(self.world) {
            if self.world.now() > deadline {
                return Err(format!(
                    "no progress: {what} did not come within {} s after all faults had ended\n{}",
                    patience / SECOND,
                    self.world.describe()
                ));
            }
            self.pass(LOOK_EVERY)?;
        }
        Ok(())
    }

    fn finish(&mut self, revision: i64) -> Result<usize, String> {
        let world = &mut *self.world;
        let now = world.now();
        for watcher in &mut world.watchers {
            watcher.read(now, true);
            watcher.finish(Some(revision));
            world.counts.watches +=
                watcher.done.iter().map(|watch| watch.responses.len() as u64).sum::<u64>();
            world.history.watches.append(&mut watcher.done);
        }
        for desk in &mut world.desks {
            desk.client.finish(now);
            for (fence, lease, from, until) in desk.client.held.drain(..) {
                let client = desk.client.number;
                world.history.holdings.push(Holding { client, fence, lease, from, until });
            }
        }
        for at in
            world.members().into_iter().filter(|at| Some(*at) != world.profile.witness()).collect::<Vec<_>>()
        {
            let said = world.final_of(at)?;
            world.history.finals.push(said);
        }
        let ppm = u64::try_from(2 * DRIFT_MAX_PPM).unwrap_or(0);
        world.history.settings.clock_drift_ppm = if world.profile.fails(Fault::Drift) { ppm } else { 0 };
        if world.profile.works(Work::Hostile) || planted::is_any() {
            // Each step of the oracle's search may execute transactions of a hundred operations. Searching an
            // incorrect history completely takes a minute; running another seed finds the same bug in less
            // time. So the number of steps is limited.
            world.history.settings.search_steps_max = 5_000;
        }
        let verdict = oracle::check(&world.history);
        if let Some(violation) = verdict.violations.first() {
            return Err(format!(
                "{} of the history's promises are broken; the first: {violation}\n  operations {:?}, watches {:?}",
                verdict.violations.len(),
                violation.operations,
                violation.watches
            ));
        }
        Ok(verdict.undecided.len())
    }
}

impl World {
    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.places.iter().filter_map(|place| place.process.as_ref())
    }

    /// Returns the places whose processes run.
    pub(crate) fn members(&self) -> Vec<Host> {
        self.places.iter().filter(|place| place.process.is_some()).map(|place| place.number).collect()
    }

    pub(crate) fn leads_settled(&self, at: Host) -> bool {
        self.places[at].process.as_ref().is_some_and(|process| process.stepped.probe().settled)
    }

    fn was_answered(&self, client: u64, since: Nanos) -> bool {
        self.history.operations.iter().rev().take_while(|operation| operation.returned >= since).any(
            |operation| {
                operation.client == client
                    && operation.call >= since
                    && match &operation.outcome {
                        oracle::Outcome::Done(..) => true,
                        oracle::Outcome::Refused(oracle::Refusal::Other(why)) => {
                            why.contains(&*error::PERMISSION_DENIED.message)
                        }
                        oracle::Outcome::Refused(_) => true,
                        oracle::Outcome::Unknown(_) => false,
                    }
            },
        )
    }

    /// Returns true if any member knows of a raised alarm for lack of space.
    fn is_short_of_space(&self) -> bool {
        let nospace = api::etcdserverpb::AlarmType::Nospace as i32;
        let processes = self.places.iter().filter_map(|place| place.process.as_ref());
        processes.map(|process| process.stepped.published()).any(|state| state.alarms.any(nospace))
    }

    fn is_alike(&self) -> bool {
        let commit = self.checks.commit();
        let hashes: Vec<Option<u64>> = self
            .places
            .iter()
            .filter(|place| Some(place.number) != self.profile.witness())
            .filter_map(|place| place.process.as_ref())
            .map(|process| {
                let probe = process.stepped.probe();
                (probe.applied == commit && process.stepped.is_ready()).then_some(probe.state_hash).flatten()
            })
            .collect();
        // A witness has no state to compare. It follows the log.
        let witness = self.profile.witness().and_then(|at| self.places[at].process.as_ref());
        if witness.is_some_and(|process| process.stepped.probe().applied != commit) {
            return false;
        }
        let waits = self.places.iter().any(|place| place.starts_at.is_some());
        !waits
            && hashes.first().is_some_and(|first| first.is_some() && hashes.iter().all(|hash| hash == first))
    }

    /// Returns true if all members are at rest: none installs a snapshot, keeps versions for a long read,
    /// waits to delete a segment, or has as many unsaved bytes as make it take a checkpoint.
    fn is_at_rest(&self) -> bool {
        let processes = self.places.iter().filter_map(|place| place.process.as_ref());
        processes.map(|process| process.stepped.probe()).all(|probe| {
            let (unsaved, enough) = probe.unsaved_bytes;
            !probe.installing && probe.long_readers == 0 && probe.pending_delete == 0 && unsaved < enough
        })
    }

    /// Describes the state of each member, for the report of a failed run.
    pub(crate) fn describe(&self) -> String {
        let line = |place: &crate::member::Place| match &place.process {
            Some(process) => format!("  m{}: {:?}", place.number, process.stepped.probe()),
            None => {
                format!("  m{}: does not run, retired {}, lost {}", place.number, place.retired, place.lost)
            }
        };
        self.places.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Calls one member and returns its response. The virtual time and all other members stand still.
    pub(crate) fn ask_now(&mut self, at: Host, rpc: Rpc, message: Vec<u8>) -> Result<Bytes, String> {
        let Some(process) = &mut self.places[at].process else { return Err("it does not run".to_owned()) };
        process.stepped.hold_reads(false);
        let answer = Rc::new(RefCell::new(None));
        let place = Rc::clone(&answer);
        let future = process.stepped.call(rpc, message.into());
        process.stepped.spawn(async move {
            *place.borrow_mut() = Some(future.await);
        });
        for _ in 0..100 {
            process.stepped.poll_tasks();
            if let Some(answer) = answer.borrow_mut().take() {
                return answer.map_err(|status| format!("{} at member {at}: {status}", rpc.path()));
            }
            process.stepped.turn().map_err(|fatal| fatal.to_string())?;
            process.stepped.log_turn();
        }
        Err(format!("{} at member {at} is not answered", rpc.path()))
    }

    fn final_of(&mut self, at: Host) -> Result<Final, String> {
        let all = oracle::Request::Range(oracle::Range {
            key: vec![0],
            range_end: vec![0],
            serializable: true,
            ..oracle::Range::default()
        });
        let (rpc, message) = crate::wire::encode(&all);
        let answer = self.ask_now(at, rpc, message.to_vec())?;
        let Some((header, Response::Range(range))) = crate::wire::decode(&all, answer) else {
            return Err("a dump cannot be read".to_owned());
        };
        let own = self.places[at].id;
        let learns =
            self.places[at].process.as_ref().is_some_and(|p| p.stepped.probe().learners.contains(&own));
        if learns {
            // A learner answers no other calls, so its other data is left out.
            return Ok(Final {
                member: at as u64 + 1,
                revision: header.revision,
                dump: Some(range.kvs),
                hash: None,
            });
        }
        let wanted = pb::HashKvRequest { revision: header.revision }.encode_to_vec();
        let hash = self.ask_now(at, Rpc::MaintenanceHashKv, wanted)?;
        let hash = pb::HashKvResponse::decode(hash).map_err(|e| e.to_string())?;
        Ok(Final {
            member: at as u64 + 1,
            revision: header.revision,
            dump: Some(range.kvs),
            hash: Some((hash.hash, hash.hash_revision, hash.compact_revision.max(0))),
        })
    }
}
