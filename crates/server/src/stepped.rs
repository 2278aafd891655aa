//! A member without threads, sockets and real time: its owner says what happens next, and what time it is.
//!
//! It is the same member that `boot` starts: the same core, log, checkpointer, services. There each has a thread, here each
//! has a function that does the next piece of its work. Whatever another thread would have done between two of these
//! calls has not happened, so every order in which threads could run can be brought about, and every run repeated.
//!
//! All of a member lives on one thread. A crash is a drop: nothing is written on the way out. No runtime is needed; in
//! one, futures that are not among the member's own tasks share the budget of whatever tokio runs at the time.
//!
//! What repeats: everything that follows from the calls made, the clock, and what the disk and the links answer. Metrics
//! that count real durations do not.

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
use front::{Answer, Close, Closing, Head, LocalBoxFuture, Shard, ShardId, Unary};
use http::HeaderValue;
use identity::TokenKind;
use machine::StateTrail;
use numbers::{Index, LeaseId, Seconds, Term};
use tokio::task::LocalSet;

use crate::assembly::{Assembled, Setting, assemble};
use clock::{Clock, HandClock};
use config::Config;
use consistency::monitor::{self, LeaderChecks};
use replica::core::{ControlRequest, Core, CoreRequest, Fatal, StorageRequest};
use replica::credentials::{CredentialOptions, Credentials};
use replica::inbox::Inbox;
use replica::joining;
use replica::peer_links::PeerLinks;
use replica::shared::Shared;
use replica::transfer::ReceiveError;
use rpc::http::FrontCounters;
use rpc::services::Services;
use storage::catch_up;
use storage::checkpointer::{Checkpointer, Order, Step};
use storage::clean_shutdown::CleanShutdown;
use storage::compaction_hash::{Computing, Job};
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

/// The parts from which a stepped member is made.
pub struct Setup {
    /// Options of the member. It advertises its addresses, but nothing listens on them.
    pub config: Config,
    /// Disk that holds the data directory.
    pub disk: Arc<dyn Disk>,
    /// Receiver of its log lines; see [`Logger::by`].
    pub logger: Arc<Logger>,
    /// Links to the other members. What those send comes in through [`Stepped::peering`]. The links must not hold the
    /// member, or it would never be dropped.
    pub links: Arc<dyn PeerLinks>,
    /// Clock of the member. The ids of requests and leases follow from the time of day and from `seed`.
    pub clock: Arc<HandClock>,
    /// Decides when it campaigns; members of one cluster need different ones.
    pub seed: u64,
    /// Bytes of the log's segments, from 16 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// Limits from which checkpoints are due and space is reclaimed.
    pub thresholds: Thresholds,
    /// Identity and first entries for a member without data; to be given with every start. `None`: it forms a cluster
    /// with the members of its configuration.
    pub beginning: Option<Beginning>,
    /// Settings of a test; a process has the defaults.
    pub switches: Switches,
}

/// The state of a core after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// The core goes on.
    On,
    /// The core has ended: it was told to stop, or removed from its cluster.
    Ended,
}

/// A member that is moved by hand.
pub struct Stepped {
    // First, so that it is dropped first: what its tasks hold points to everything else.
    local: LocalSet,
    woken: Arc<Woken>,
    services: Rc<Services>,
    /// What calls present.
    token: RefCell<Option<HeaderValue>>,
    close: Close,
    core: Core,
    asks: Vec<CoreRequest>,
    /// Time of the core's next turn if no request comes before.
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

/// Tokens that are signed, by a secret that all members have; hashes are made by whoever asks for one.
fn signed_credentials(
    config: &config::Config,
    clock: Clock,
    random: impl FnMut(&mut [u8]) + Send + 'static,
) -> Credentials {
    let tokens = TokenKind::parse(&config.auth_token).expect("the simulator's own option");
    let options =
        CredentialOptions { tokens, cost: identity::passwords::Cost::LOWEST, ..CredentialOptions::default() };
    let secret = b"a secret of all members";
    let made = Credentials::new(&options, (None, Some(secret)), clock, Box::new(random), 0);
    made.expect("a secret is a key")
}

/// Notes that a task has something to do.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Stepped {
    /// Opens the data directory, as a start of the process does, and puts the member together. Everything the log and
    /// the checkpoints have to say is read, and written where it has to be, before this returns.
    ///
    /// # Errors
    ///
    /// As [`opening::open`]. The disk is as the attempt has left it.
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
        let inbox = Arc::new(Inbox::default());
        let events: Arc<dyn LogEvents> = Arc::clone(&inbox) as _;
        let began = clock.now();
        let opened = opening::open(&Opening {
            config: &config,
            disk: &disk,
            events: &events,
            logger: &logger,
            threads: false,
            segment_bytes: Some(segment_bytes),
            seed: Some(seed),
            switches,
            begin: &|| {
                let formed = || joining::form_alone(&config).map_err(Into::into);
                beginning.clone().map_or_else(formed, Ok)
            },
        })?;
        opened.report(&logger, clock.now() - began);
        let mut random = stdx::Random::new(seed);
        let random =
            move |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        let credentials = if config.auth_token.starts_with("jwt") {
            signed_credentials(&config, Clock::by_hand(&clock), random)
        } else {
            Credentials::simple(Clock::by_hand(&clock), Box::new(random))
        };
        let setting = Setting {
            config,
            disk,
            logger: Arc::clone(&logger),
            inbox,
            clock: Clock::by_hand(&clock),
            shards: 1,
            threads: false,
            thresholds,
            credentials,
            random: stdx::Random::new(!seed).number(),
        };
        let Assembled {
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
        shared.set_peers(links);
        let mut leader_checks = LeaderChecks::new(&shared, &logger, &parts.config);

        let local = LocalSet::new();
        let (close, closing) = Closing::by_hand();
        let services = {
            let _inside = local.enter();
            let shard = Shard { id: ShardId(0), closing, counters: Arc::new(ShardCounters::new(0)) };
            Services::start(Arc::clone(&shared), FrontCounters::default(), logger, shard)
        };
        let looking = Arc::clone(&shared);
        local.spawn_local(async move {
            loop {
                looking.clock.sleep(monitor::TURN).await;
                leader_checks.turn(looking.clock.now()).await;
            }
        });
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
        self.shared.core.fall_asleep(wanted);
    }

    /// One turn of the core: it takes all that waits for it. One that nothing asks for does no harm.
    ///
    /// # Errors
    ///
    /// Why the member cannot go on; the process would end here.
    pub fn turn(&mut self) -> Result<Going, Fatal> {
        self.shared.core.take(&mut self.asks);
        let outcome = self.core.turn(&mut self.asks, self.clock.now());
        if !matches!(outcome, Ok(false)) {
            // Requests that wait for an answer learn of the end.
            self.shared.core.close();
        }
        let ended = outcome?;
        self.fall_asleep();
        self.is_ready = self.is_ready || self.ready.try_recv().is_ok();
        Ok(if ended { Going::Ended } else { Going::On })
    }

    /// The end of a process whose core has come to its own: what is queued goes to the log, and where that ends is noted
    /// beside it.
    ///
    /// # Errors
    ///
    /// When the note cannot be written.
    pub fn close(mut self) -> Result<(), log::OpenError> {
        self.log_turn();
        let end = self.shared.values.log_end();
        self.clean_shutdown.close(&self.shared.identity, end)
    }

    /// Returns true if something waits for the core that would wake its thread.
    pub fn wants_turn(&self) -> bool {
        !self.shared.core.is_asleep()
    }

    /// Returns the time, by this member's clock, until the core needs a turn even without requests.
    pub fn next_turn(&self) -> Duration {
        self.due.saturating_duration_since(self.clock.now())
    }

    /// Returns true if the log has something to write or to release.
    pub fn log_wants_turn(&self) -> bool {
        self.core.log_wants_turn()
    }

    /// Returns true if the log has found less space than it keeps, or could not use it.
    pub fn log_lacks_space(&self) -> bool {
        self.core.log_lacks_space()
    }

    /// The log writes and syncs what is queued, and makes new segments. One that [lacks space](Stepped::log_lacks_space) should get a
    /// turn every second, to find out whether there is some again.
    pub fn log_turn(&mut self) {
        self.core.log_turn(usize::MAX);
    }

    /// Does the log's work as [`Stepped::log_turn`] does, for this many of the queued batches: the others arrived while
    /// it was writing.
    pub fn log_turn_of(&mut self, batches_max: usize) {
        self.core.log_turn(batches_max);
    }

    /// The checkpointer begins to carry out an order, or goes on with it: one block of a checkpoint's run, its end, the
    /// manifest, what is left over; or one portion of values that have to move. `false`: it has nothing to do, or waits
    /// for the core to have moved a portion.
    pub fn checkpointer_step(&mut self) -> bool {
        match self.checkpointer.step() {
            Step::Written | Step::Ended => true,
            Step::Waiting => false,
            Step::Idle => self.orders.try_recv().is_ok_and(|order| self.checkpointer.take(order)),
        }
    }

    /// Computes a part of a compaction's hash; `false`: there is none to compute.
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

    /// Reads entries for a follower that lags; `false`: there are none to read.
    pub fn catch_up_step(&mut self) -> bool {
        let Ok(fetch) = self.fetches.try_recv() else { return false };
        let fetched = catch_up::carry_out(&self.entries, &fetch);
        self.shared.core.send(StorageRequest::Fetched(fetch, fetched));
        true
    }

    /// Runs the member's tasks until each waits for something: the services', the monitor's, and those of
    /// [`Stepped::spawn`].
    ///
    /// Between them, and once all wait, values are read that were not at hand, unless [`Stepped::hold_reads`] says
    /// otherwise.
    pub fn poll_tasks(&mut self) {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut context = Context::from_waker(&waker);
        loop {
            self.woken.0.store(false, Ordering::Relaxed);
            // It is never done: some tasks have no end.
            let _ = Pin::new(&mut self.local).poll(&mut context);
            let read = !self.reads_held && self.shared.readers.step();
            if !read && !self.woken.0.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Returns true if a task was woken since [`Stepped::poll_tasks`], or has something read for it.
    pub fn wants_poll(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed) || (!self.reads_held && self.shared.readers.has_work())
    }

    /// Sets if values that are not at hand are read by [`Stepped::read_step`] only, as with a slow disk.
    pub fn hold_reads(&mut self, held: bool) {
        self.reads_held = held;
    }

    /// Charges values that are read to this budget, as a member with a front does.
    pub fn charge_reads_to(&self, budget: &Budget) {
        self.shared.readers.charge_to(budget);
    }

    /// Returns true if a value is to be read that was not at hand.
    pub fn wants_read(&self) -> bool {
        self.shared.readers.has_work()
    }

    /// Returns true if a value was read that its call has not taken.
    pub fn holds_untaken(&self) -> bool {
        self.shared.readers.holds_untaken()
    }

    /// Does one of the reads of values that a call waits for. Returns `false` if there are none.
    pub fn read_step(&mut self) -> bool {
        self.shared.readers.step()
    }

    /// Returns the time, by this member's clock, until its next timer is due. [`HandClock::advance`] fires timers.
    pub fn next_timer(&self) -> Option<Duration> {
        self.clock.next_timer()
    }

    /// Runs a task among the member's own: it ends with the member.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        drop(self.local.spawn_local(task));
        self.woken.0.store(true, Ordering::Relaxed);
    }

    /// Returns the head that a front end would make of a call to this path; `None` for a path that is no method.
    pub fn head(&self, rpc: Rpc) -> Head {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut head = Head::new(rpc as u16, peer, self.clock.now());
        if let Some(token) = &*self.token.borrow() {
            head.metadata.insert("token", token.clone());
        }
        head
    }

    /// Has the calls from now on present this token, or none.
    pub fn present(&self, token: Option<&str>) {
        *self.token.borrow_mut() = token.and_then(|token| HeaderValue::from_str(token).ok());
    }

    /// Makes a client's unary call, as a front would make it.
    pub fn unary(&self, rpc: Rpc, message: Bytes) -> Unary {
        self.services.call(self.head(rpc), message)
    }

    /// Makes a unary call as [`Stepped::unary`] does, and resolves to the answer's bytes. To be polled between
    /// [`Stepped::poll_tasks`], or as one of the member's tasks.
    pub fn call(&self, rpc: Rpc, message: Bytes) -> LocalBoxFuture<Result<Bytes, Status>> {
        self.call_as(self.head(rpc), message)
    }

    /// Makes a unary call as [`Stepped::call`] does, and resolves to the pieces of the answer; there is one for an answer
    /// made as a whole.
    pub fn call_in_pieces(&self, rpc: Rpc, message: Bytes) -> LocalBoxFuture<Result<Vec<Bytes>, Status>> {
        self.pieces_by(self.head(rpc), message)
    }

    /// Makes a unary call as [`Stepped::call`] does, with a head of the caller's own, for example with a token.
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

    /// A client's watch stream, until the future resolves or is dropped. `closed` resolves when the server stops.
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

    /// The same with a head of the caller's own.
    pub fn watch_by<R: Requests, W: Responses>(
        &self,
        head: &Head,
        requests: R,
        responses: W,
        closed: impl Future<Output = ()> + 'static,
    ) -> LocalBoxFuture<Result<(), Status>> {
        self.services.watch(head, requests, responses, closed)
    }

    /// A client's renewal of a lease, here or at the leader: the TTL it has from then on, 0 if it is gone.
    pub fn renew(&self, lease_id: LeaseId) -> LocalBoxFuture<Result<Seconds, Status>> {
        self.renew_by(&self.head(Rpc::LeaseKeepAlive), lease_id)
    }

    /// The same with a head of the caller's own.
    pub fn renew_by(&self, head: &Head, lease_id: LeaseId) -> LocalBoxFuture<Result<Seconds, Status>> {
        self.services.keep_alive(head, lease_id)
    }

    /// Returns the receiver of other members' messages and requests, see [`peer::Handler`]. Snapshots go to
    /// [`Stepped::receive_snapshot`].
    pub fn peering(&self) -> &Arc<Peering> {
        &self.peering
    }

    /// Takes another member's state: the MsgSnap, and the bytes behind it, the last of which may be an error, when the
    /// stream broke off. [`peer::Handler::receive_snapshot`] would block.
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

    /// Takes the database of a member that runs etcd, as [`Stepped::receive_snapshot`] takes a state of this program's.
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

    /// Tells the member to stop cleanly: endless calls are ended, remaining times of leases are noted, leadership is
    /// handed over. [`Stepped::turn`] tells when it has ended; the log should have a last turn then, as it has when a
    /// process ends.
    pub fn stop(&self) {
        self.close.begin();
        self.shared.core.send(ControlRequest::Stop);
    }

    /// Returns true if the cluster has heard of this member since it was opened: a running one serves clients from then
    /// on, and none before.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Returns the state of the member's core.
    pub fn probe(&self) -> Probe {
        self.core.probe()
    }

    /// The term of an entry that is in the log, or right before its first one; `None` for any other.
    pub fn entry_term(&self, index: Index) -> Option<Term> {
        self.core.entry_term(index)
    }

    /// The hashes of the state after the entries from this one on, as far as they are kept.
    pub fn state_trail(&self, from: Index) -> StateTrail {
        self.core.state_trail(from)
    }

    /// The state that reads are answered from.
    pub fn published(&self) -> Arc<Published> {
        self.shared.state.load_full()
    }

    /// Returns the number of watches, and that of ranges so far, as the metrics have them.
    pub fn watches_and_ranges(&self) -> (i64, u64) {
        let mvcc = &self.shared.metrics.mvcc;
        (mvcc.watchers.value(), mvcc.ranges.value())
    }

    /// Returns true if the metrics say that a snapshot is being taken.
    pub fn says_that_it_takes_a_snapshot(&self) -> bool {
        self.shared.metrics.server.snapshot_apply_in_progress.value() != 0
    }

    /// Bytes of other members' messages that wait for the core, as they are accounted for.
    pub fn arrivals_bytes(&self) -> usize {
        self.shared.arrivals.taken()
    }

    /// Returns the end of the log, up to which it is durable; `None` before the first write.
    pub fn log_end(&self) -> Option<LogEnd> {
        self.shared.values.log_end()
    }

    /// Returns the ids of the member and its cluster.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }
}
