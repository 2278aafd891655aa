//! Runs a member without threads, sockets and real time: its owner decides what happens next, and what time
//! it is.
//!
//! The member is the same that `boot` starts, with the same core, log, checkpointer and services. In `boot`,
//! each part has a thread; here, each part has a function that does the next step of its work. Nothing
//! happens between two of these calls, so every order in which threads could run can be produced, and every
//! run can be repeated.
//!
//! All parts of a member live on one thread. Dropping the member simulates a crash: nothing more is written.
//! No runtime is needed. If the code runs inside a tokio runtime, futures that are not tasks of the member
//! share the cooperative budget of the current tokio task.
//!
//! The behavior is a function of the calls, the clock readings, and the answers of the disk and the links.
//! Metrics that measure real durations are the exception.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use accounting::{Budget, ShardCounters};
use api::{Rpc, Status, raftpb};
use bytes::Bytes;
use consensus::Fetch;
use disk::Disk;
use front::{Answer, Close, Closing, Drains, Head, LocalBoxFuture, Shard, ShardId, Unary};
use http::HeaderValue;
use identity::TokenKind;
use machine::StateTrail;
use numbers::{Index, LeaseId, Seconds, Term};
use tokio::task::LocalSet;

use crate::assembly::{Assembled, Setting, assemble};
use crate::joining;
use crate::observing::Registration;
use crate::options::{check_options, storage_options};
use clock::{Clock, HandClock};
use config::Config;
use consistency::monitor::{self, LeaderChecks};
use replica::autopilot::AutopilotState;
use replica::core::{ControlRequest, Core, CoreRequest, Fatal, StorageRequest};
use replica::credentials::{CredentialOptions, Credentials};
use replica::observing::REGISTRATION_INTERVAL;
use replica::peer_links::PeerLinks;
use replica::shared::{LogEventQueue, Shared};
use replica::transfer::ReceiveError;
use rpc::http::FrontCounters;
use rpc::services::Services;
use storage::catch_up;
use storage::checkpointer::{Checkpointer, Order, Step};
use storage::clean_shutdown::CleanShutdown;
use storage::compaction_hash::{Computing, Job};
use storage::observer_mark;
use storage::opening::{self, LogEvents, Opening};
use telemetry::logging::Logger;

pub use crate::peering::Peering;
pub use log::LogEnd;
pub use replica::core::{Probe, Thresholds};
pub use replica::shared::Published;
pub use rpc::watch::{Requests, Responses};
pub use storage::beginning::Beginning;
pub use storage::opening::Switches;
pub use storage::{DataDirError, Identity};

/// The parts from which a stepped member is built.
pub struct Setup {
    /// Options of the member. The member advertises its addresses, but nothing listens on them.
    pub config: Config,
    /// Disk that holds the data directory.
    pub disk: Arc<dyn Disk>,
    /// Receiver of the member's log lines; see [`Logger::by`].
    pub logger: Arc<Logger>,
    /// Links to the other members. Messages from them are passed to [`Stepped::peering`]. The links must not
    /// hold a reference to the member, or it would never be dropped.
    pub links: Arc<dyn PeerLinks>,
    /// Clock of the member. Request ids and lease ids follow from the time of day and from `seed`.
    pub clock: Arc<HandClock>,
    /// Seed of the election timeouts; members of one cluster need different seeds.
    pub seed: u64,
    /// Size of the log's segments in bytes, from 16 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// Thresholds at which checkpoints are taken and space is reclaimed.
    pub thresholds: Thresholds,
    /// Identity and first entries for a member without data; must be given at every start. If `None`, the member
    /// forms a cluster with the members of its configuration. An observer without data takes the cluster from it,
    /// and its own id from the mark of its directory or from `seed`.
    pub beginning: Option<Beginning>,
    /// Switches for tests; a real process uses the defaults.
    pub switches: Switches,
}

/// State of the core after [`Stepped::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// The core continues.
    On,
    /// The core has ended: it was stopped, or the member was removed from its cluster.
    Ended,
}

/// A member that its owner drives step by step.
pub struct Stepped {
    // The first field, so that it is dropped first: its tasks hold references to everything else.
    local: LocalSet,
    woken: Arc<Woken>,
    services: Rc<Services>,
    /// Auth token that all calls present, if any.
    token: RefCell<Option<HeaderValue>>,
    close: Close,
    core: Core,
    asks: Vec<CoreRequest>,
    /// Time of the core's next turn if no request arrives before.
    due: Instant,
    checkpointer: Checkpointer,
    orders: Receiver<Order>,
    computing: Option<Computing>,
    hash_jobs: Receiver<Job>,
    entries: log::Entries,
    fetches: Receiver<Fetch>,
    peering: Arc<Peering>,
    ready: Receiver<()>,
    is_ready: bool,
    reads_held: bool,
    shared: Arc<Shared>,
    clock: Arc<HandClock>,
    clean_shutdown: CleanShutdown,
    _lock: disk::Lock,
}

/// Starts the tasks of a member: the tasks of its services, and the leader's checks. An observer also gets the
/// task that keeps it registered with a feeder.
fn serve(
    local: &LocalSet,
    shared: &Arc<Shared>,
    logger: Arc<Logger>,
    mut leader_checks: LeaderChecks,
    registration: Option<Registration>,
) -> (Rc<Services>, Close) {
    let (close, closing) = Closing::by_hand();
    let services = {
        let _inside = local.enter();
        let shard = Shard {
            id: ShardId(0),
            closing,
            drains: Drains::by_hand(),
            counters: Arc::new(ShardCounters::new(0)),
        };
        Services::start(Arc::clone(shared), FrontCounters::default(), logger, shard)
    };
    let clock = shared.member.clock.clone();
    local.spawn_local(async move {
        loop {
            clock.sleep(monitor::TURN).await;
            leader_checks.turn(clock.now()).await;
        }
    });
    if let Some(mut registration) = registration {
        let clock = shared.member.clock.clone();
        local.spawn_local(async move {
            loop {
                registration.turn().await;
                clock.sleep(REGISTRATION_INTERVAL).await;
            }
        });
    }
    (services, close)
}

/// Returns the credentials that the options ask for; tokens and passwords follow from the seed.
fn credentials(config: &Config, clock: Clock, seed: u64) -> Credentials {
    let mut random = stdx::Random::new(seed);
    let random = move |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    if config.auth.token.starts_with("jwt") {
        signed_credentials(config, clock, random)
    } else {
        Credentials::simple(clock, Box::new(random))
    }
}

/// Returns credentials with signed tokens, whose secret is the same for all members. No thread hashes
/// passwords or signs tokens: each call does this work itself.
fn signed_credentials(
    config: &config::Config,
    clock: Clock,
    random: impl FnMut(&mut [u8]) + Send + 'static,
) -> Credentials {
    let tokens = TokenKind::parse(&config.auth.token).expect("the simulator's own option");
    let options =
        CredentialOptions { tokens, cost: identity::passwords::Cost::LOWEST, ..CredentialOptions::default() };
    let secret = b"a secret of all members";
    let made = Credentials::new(&options, (None, Some(secret)), clock, Box::new(random), 0);
    made.expect("a secret is a key")
}

/// Flag that is set when a task is woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Stepped {
    /// Opens the data directory, as a start of the process does, and builds the member. This function reads
    /// the log and the checkpoints, and makes the writes that recovery needs.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`opening::open`]. The disk stays as the failed attempt left it.
    pub fn open(setup: Setup) -> Result<Stepped, DataDirError> {
        let Setup {
            config,
            disk,
            logger,
            links,
            clock,
            seed,
            segment_bytes,
            thresholds,
            beginning,
            switches,
        } = setup;
        let log_events = Arc::new(LogEventQueue::default());
        let events: Arc<dyn LogEvents> = Arc::clone(&log_events) as _;
        let began = clock.now();
        let opened = opening::open(&Opening {
            options: &storage_options(&config),
            disk: &disk,
            events: &events,
            logger: &logger,
            threads: false,
            segment_bytes: Some(segment_bytes),
            seed: Some(seed),
            switches,
            begin: &|| match beginning.clone() {
                Some(mut beginning) if config.observer.is_some() => {
                    let member_dir = config.storage.data_dir.join("member");
                    let random = stdx::Random::new(seed).number().max(1);
                    beginning.identity.member_id = observer_mark::id(&*disk, &member_dir, random)?;
                    Ok(beginning)
                }
                Some(beginning) => Ok(beginning),
                None => joining::form_alone(&config).map_err(Into::into),
            },
        })?;
        opened.report(&logger, clock.now() - began);
        let credentials = credentials(&config, Clock::by_hand(&clock), seed);
        let setting = Setting {
            config,
            disk,
            logger: Arc::clone(&logger),
            log_events,
            clock: Clock::by_hand(&clock),
            shards: 1,
            threads: false,
            thresholds,
            credentials,
            random: stdx::Random::new(!seed).number(),
        };
        let Assembled {
            config,
            shared,
            core: parts,
            checkpointer,
            orders,
            hash_jobs,
            entries,
            fetches,
            peering,
            ready,
            clean_shutdown,
            lock,
            ..
        } = assemble(setting, opened);
        shared.cluster.set_peers(links);
        let leader_checks = LeaderChecks::new(&shared, &logger, &check_options(&config));
        let observer = config.observer.as_ref();
        let registration = observer.map(|observer| Registration::new(&shared, &logger, &config, observer));
        let local = LocalSet::new();
        let (services, close) = serve(&local, &shared, logger, leader_checks, registration);
        let mut core = Core::new(parts);
        core.begin();
        let mut stepped = Stepped {
            local,
            woken: Arc::new(Woken(AtomicBool::new(true))),
            services,
            token: RefCell::default(),
            close,
            core,
            asks: Vec::new(),
            due: clock.now(),
            checkpointer,
            orders,
            computing: None,
            hash_jobs,
            entries,
            fetches,
            peering,
            ready,
            is_ready: false,
            reads_held: false,
            shared,
            clock,
            clean_shutdown,
            _lock: lock,
        };
        stepped.fall_asleep();
        Ok(stepped)
    }

    fn fall_asleep(&mut self) {
        let (patience, wanted) = self.core.before_sleep();
        self.due = self.clock.now() + patience;
        self.shared.core.inbox.fall_asleep(wanted);
    }

    /// Returns the state of this member's autopilot.
    pub fn autopilot(&self) -> Arc<AutopilotState> {
        self.shared.cluster.autopilot()
    }

    /// Runs one turn (one iteration of the main loop) of the core, which handles everything that is queued
    /// for it. A turn without work has no effect.
    ///
    /// # Errors
    ///
    /// Returns the reason why the member cannot continue; a real process would end here.
    pub fn turn(&mut self) -> Result<Going, Fatal> {
        self.shared.core.inbox.take(&mut self.asks);
        let outcome = self.core.turn(&mut self.asks, self.clock.now());
        if !matches!(outcome, Ok(false)) {
            // Closing the queue answers the waiting requests with an error, because the core has ended.
            self.shared.core.inbox.close();
        }
        let ended = outcome?;
        self.fall_asleep();
        self.is_ready = self.is_ready || self.ready.try_recv().is_ok();
        Ok(if ended { Going::Ended } else { Going::On })
    }

    /// Ends the member as a process does after its core has ended: writes the queued part of the log, and
    /// records the end of the log in the clean-shutdown file.
    ///
    /// # Errors
    ///
    /// Returns an error if the clean-shutdown file cannot be written.
    pub fn close(mut self) -> Result<(), log::OpenError> {
        self.log_turn();
        let end = self.shared.data.values.log_end();
        self.clean_shutdown.close(&self.shared.member.identity, end)
    }

    /// Returns true if a request is queued that would wake the core's thread.
    pub fn wants_turn(&self) -> bool {
        !self.shared.core.inbox.is_asleep()
    }

    /// Returns the time, by this member's clock, until the core needs a turn even without requests.
    pub fn next_turn(&self) -> Duration {
        self.due.saturating_duration_since(self.clock.now())
    }

    /// Returns true if the log has data to write or segments to release.
    pub fn log_wants_turn(&self) -> bool {
        self.core.log_wants_turn()
    }

    /// Returns true if the log has found less free space than it reserves, or could not use it.
    pub fn log_lacks_space(&self) -> bool {
        self.core.log_lacks_space()
    }

    /// Writes and syncs the queued part of the log, and creates new segments. A log that [lacks
    /// space](Stepped::log_lacks_space) should get a turn every second, to check for free space.
    pub fn log_turn(&mut self) {
        self.core.log_turn(usize::MAX);
    }

    /// Does the log's work like [`Stepped::log_turn`], but only for the first `batches_max` queued batches,
    /// as if the others had arrived during the write.
    pub fn log_turn_of(&mut self, batches_max: usize) {
        self.core.log_turn(batches_max);
    }

    /// Runs one step of the checkpointer, which starts an order or continues one. A step does one of these:
    /// it writes one block of a checkpoint's run, the end of the run, or the manifest; deletes obsolete
    /// files; or copies one batch of values to another segment. Returns false if the checkpointer has nothing
    /// to do, or waits until the core has stored the new locations of a batch.
    pub fn checkpointer_step(&mut self) -> bool {
        let step = self.checkpointer.step();
        // The result is not needed: a checkpointer that has been told to stop has nothing to do any more.
        let _ = self.checkpointer.give_way(&self.orders);
        match step {
            Step::Written | Step::Ended => true,
            Step::Waiting => false,
            Step::Idle => self.orders.try_recv().is_ok_and(|order| self.checkpointer.take(order)),
        }
    }

    /// Computes a part of a compaction hash. Returns false if none is queued.
    pub fn hasher_step(&mut self) -> bool {
        let Some(mut computing) =
            self.computing.take().or_else(|| self.hash_jobs.try_recv().ok().map(Computing::new))
        else {
            return false;
        };
        if !computing.step() {
            self.computing = Some(computing);
        }
        true
    }

    /// Reads entries for a follower that lags. Returns false if none are requested.
    pub fn catch_up_step(&mut self) -> bool {
        let Ok(fetch) = self.fetches.try_recv() else { return false };
        let fetched = catch_up::carry_out(&self.entries, &fetch);
        self.shared.core.inbox.send(StorageRequest::Fetched(fetch, fetched));
        true
    }

    /// Runs the member's tasks until each of them waits: the tasks of the services, of the monitor, and of
    /// [`Stepped::spawn`].
    ///
    /// Between the tasks, and when all of them wait, values that are not in memory are read from the disk,
    /// unless [`Stepped::hold_reads`] forbids it.
    pub fn poll_tasks(&mut self) {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut context = Context::from_waker(&waker);
        loop {
            self.woken.0.store(false, Ordering::Relaxed);
            // The result is ignored: some tasks never end, so the poll is never ready.
            let _ = Pin::new(&mut self.local).poll(&mut context);
            let read = !self.reads_held && self.shared.data.readers.step();
            if !read && !self.woken.0.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Returns true if a task was woken since [`Stepped::poll_tasks`], or if a read for a task is pending.
    pub fn wants_poll(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed) || (!self.reads_held && self.shared.data.readers.has_work())
    }

    /// If `held`, values that are not in memory are read by [`Stepped::read_step`] only, as with a slow disk.
    pub fn hold_reads(&mut self, held: bool) {
        self.reads_held = held;
    }

    /// Reserves memory in this budget for values that are read from the disk, as a member with a front does.
    pub fn charge_reads_to(&self, budget: &Budget) {
        self.shared.data.readers.charge_to(budget);
    }

    /// Returns true if a read of a value that is not in memory is pending.
    pub fn wants_read(&self) -> bool {
        self.shared.data.readers.has_work()
    }

    /// Returns true if a value was read from the disk and the call that needs it has not taken it yet.
    pub fn holds_untaken(&self) -> bool {
        self.shared.data.readers.holds_untaken()
    }

    /// Does one of the pending reads of values. Returns false if there are none.
    pub fn read_step(&mut self) -> bool {
        self.shared.data.readers.step()
    }

    /// Returns the time, by this member's clock, until the next timer is due. [`HandClock::advance`] fires
    /// timers.
    pub fn next_timer(&self) -> Option<Duration> {
        self.clock.next_timer()
    }

    /// Spawns a task among the member's own tasks; the task is dropped with the member.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        drop(self.local.spawn_local(task));
        self.woken.0.store(true, Ordering::Relaxed);
    }

    /// Returns the request head that a front would make for a call to this method.
    pub fn head(&self, rpc: Rpc) -> Head {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut head = Head::new(rpc as u16, peer, self.clock.now());
        if let Some(token) = &*self.token.borrow() {
            head.metadata.insert("token", token.clone());
        }
        head
    }

    /// Sets the token that all later calls present; `None` for no token.
    pub fn present(&self, token: Option<&str>) {
        *self.token.borrow_mut() = token.and_then(|token| HeaderValue::from_str(token).ok());
    }

    /// Makes a client's unary call, as a front would make it.
    pub fn unary(&self, rpc: Rpc, message: Bytes) -> Unary {
        self.services.call(self.head(rpc), message)
    }

    /// Makes a unary call like [`Stepped::unary`], and resolves to the bytes of the response. The future has
    /// to be polled between calls of [`Stepped::poll_tasks`], or as one of the member's tasks.
    pub fn call(&self, rpc: Rpc, message: Bytes) -> LocalBoxFuture<Result<Bytes, Status>> {
        self.call_as(self.head(rpc), message)
    }

    /// Makes a unary call like [`Stepped::call`], and resolves to the chunks in which the response is sent; a
    /// response that is sent whole is one chunk.
    pub fn call_in_pieces(&self, rpc: Rpc, message: Bytes) -> LocalBoxFuture<Result<Vec<Bytes>, Status>> {
        self.pieces_by(self.head(rpc), message)
    }

    /// Makes a unary call like [`Stepped::call`], with a caller-supplied head, for example with a token.
    pub fn call_as(&self, head: Head, message: Bytes) -> LocalBoxFuture<Result<Bytes, Status>> {
        let pieces = self.pieces_by(head, message);
        Box::pin(async move {
            let mut pieces = pieces.await?;
            Ok(if pieces.len() == 1 { pieces.remove(0) } else { pieces.concat().into() })
        })
    }

    fn pieces_by(&self, head: Head, message: Bytes) -> LocalBoxFuture<Result<Vec<Bytes>, Status>> {
        let answer = self.services.call(head, message);
        Box::pin(async move {
            let answer = match answer {
                Unary::Done(answer) => answer?,
                Unary::Later(answer) => answer.await?,
            };
            let (len, mut source) = match answer {
                Answer::Whole(bytes) => return Ok(vec![bytes]),
                Answer::Pieces { len, source, .. } => (len, source),
            };
            let mut pieces = Vec::new();
            while let Some(piece) = poll_fn(|context| source(len, context)).await? {
                pieces.push(piece);
            }
            Ok(pieces)
        })
    }

    /// Serves a client's watch stream until the future resolves or is dropped. `closed` resolves when the
    /// server stops.
    pub fn watch<R: Requests, W: Responses>(
        &self,
        needs_leader: bool,
        requests: R,
        responses: W,
        closed: impl Future<Output = ()> + 'static,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let mut head = self.head(Rpc::Watch);
        if needs_leader {
            head.requires_leader = true;
        }
        self.watch_by(&head, requests, responses, closed)
    }

    /// Serves a client's watch stream like [`Stepped::watch`], with a caller-supplied head.
    pub fn watch_by<R: Requests, W: Responses>(
        &self,
        head: &Head,
        requests: R,
        responses: W,
        closed: impl Future<Output = ()> + 'static,
    ) -> LocalBoxFuture<Result<(), Status>> {
        self.services.watch(head, requests, responses, closed)
    }

    /// Renews a lease for a client, at this member or through the leader. Resolves to the new TTL, or 0 if
    /// the lease no longer exists.
    pub fn renew(&self, lease_id: LeaseId) -> LocalBoxFuture<Result<Seconds, Status>> {
        self.renew_by(&self.head(Rpc::LeaseKeepAlive), lease_id)
    }

    /// Renews a lease like [`Stepped::renew`], with a caller-supplied head.
    pub fn renew_by(&self, head: &Head, lease_id: LeaseId) -> LocalBoxFuture<Result<Seconds, Status>> {
        self.services.keep_alive(head, lease_id)
    }

    /// Returns the handler of other members' messages and requests, see [`peer::Handler`]. Snapshots go to
    /// [`Stepped::receive_snapshot`] instead.
    pub fn peering(&self) -> &Arc<Peering> {
        &self.peering
    }

    /// Receives a snapshot of another member: the MsgSnap, and the bytes that follow it. The last chunk may
    /// be an error, as when the stream was interrupted. Does not block, unlike
    /// [`peer::Handler::receive_snapshot`].
    pub fn receive_snapshot(
        &self,
        message: raftpb::Message,
        pieces: Vec<io::Result<Bytes>>,
    ) -> LocalBoxFuture<Result<(), ReceiveError>> {
        let peering = Arc::clone(&self.peering);
        let mut pieces = VecDeque::from(pieces);
        Box::pin(async move {
            peering.take_snapshot(message, &mut std::iter::from_fn(|| pieces.pop_front())).await
        })
    }

    /// Receives the database of a member that runs etcd, like [`Stepped::receive_snapshot`] for a snapshot in
    /// Mainstay's format.
    pub fn receive_database(
        &self,
        message: raftpb::Message,
        pieces: Vec<io::Result<Bytes>>,
    ) -> LocalBoxFuture<Result<(), ReceiveError>> {
        let peering = Arc::clone(&self.peering);
        let mut pieces = VecDeque::from(pieces);
        Box::pin(async move {
            peering.take_database(message, &mut std::iter::from_fn(|| pieces.pop_front())).await
        })
    }

    /// Asks the member to shut down cleanly: calls without an end, such as watches, are ended, remaining
    /// times of leases are saved, leadership is transferred. [`Stepped::turn`] reports when the core has
    /// ended; then the log should get a last turn, as in a real process.
    pub fn stop(&self) {
        self.close.begin();
        self.shared.core.inbox.send(ControlRequest::Stop);
    }

    /// Returns true if the member may serve clients: since it was opened, its first proposal was applied, or
    /// it went out of service. A real process serves clients only from then on.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Returns the current state of the member's core, for the checks of the simulation.
    pub fn probe(&self) -> Probe {
        self.core.probe()
    }

    /// Returns the term of an entry that is in the log, or directly before its first entry; `None` for any
    /// other index.
    pub fn entry_term(&self, index: Index) -> Option<Term> {
        self.core.entry_term(index)
    }

    /// Returns the state hashes after the entries from this index on, as far as they are kept.
    pub fn state_trail(&self, from: Index) -> StateTrail {
        self.core.state_trail(from)
    }

    /// Returns the published state, from which reads are answered.
    pub fn published(&self) -> Arc<Published> {
        self.shared.state.load_full()
    }

    /// Returns the bytes of this member's records and checkpoints on disk, as the status call reports them.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.data.disk_bytes()
    }

    /// Returns the number of watches and the number of range requests so far, according to the metrics.
    pub fn watches_and_ranges(&self) -> (i64, u64) {
        let mvcc = &self.shared.diagnostics.metrics.mvcc;
        (mvcc.watchers.value(), mvcc.ranges.value())
    }

    /// Returns true if the metrics show that a snapshot is being received.
    pub fn says_that_it_takes_a_snapshot(&self) -> bool {
        self.shared.diagnostics.metrics.server.snapshot_apply_in_progress.value() != 0
    }

    /// Returns the number of bytes that are reserved for other members' messages that wait for the core.
    pub fn arrivals_bytes(&self) -> usize {
        self.shared.core.arrivals.taken()
    }

    /// Returns the durable end of the log; `None` before the first write.
    pub fn log_end(&self) -> Option<LogEnd> {
        self.shared.data.values.log_end()
    }

    /// Returns a time, by this member's clock, such that the published state contains every write that was
    /// acknowledged before it; `None` if no such time is known.
    pub fn confirmed_as_of(&self) -> Option<Instant> {
        self.shared.confirmed_as_of()
    }

    /// Returns the id of the feeder that this observer follows; `None` if there is none, or if this is a member.
    pub fn feeder(&self) -> Option<u64> {
        self.shared.cluster.feeder()
    }

    /// Returns the ids of the observers that this node feeds and that have answered lately, as of the last tick.
    pub fn active_observers(&self) -> Vec<u64> {
        let observers = self.shared.cluster.observers();
        observers.iter().filter(|standing| standing.is_active).map(|standing| standing.card.id).collect()
    }

    /// Returns the ids of the member and its cluster.
    pub fn identity(&self) -> &Identity {
        &self.shared.member.identity
    }
}
