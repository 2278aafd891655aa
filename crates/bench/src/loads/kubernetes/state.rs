//! Simulates the API servers without their connections: begins the requests that are due, handles the answers,
//! and counts the events that the watches receive.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Rpc;

use crate::Error;
use crate::loadgen::calls::{Calls, Handler};
use crate::loadgen::drive::{SLEEP_MIN, outcome};
use crate::loadgen::histogram::Histogram;
use crate::loadgen::samples::Series;
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message};

use super::known::{Batch, Known, Listing, Tally};
use super::measured::{Listed, Measured, Window};
use super::objects::Objects;
use super::schedule::{Agenda, Due, Order};
use super::wire::{self, Answer, Change, Compared};
use super::{Cluster, KINDS, Kind, PREFIXES, Resource, WRITTEN};

/// Bit in the tags of watch streams; the rest of the tag is the number of the API server.
pub(super) const WATCH: u64 = 1 << 63;
/// Bit in the tags of lists; the rest of the tag says which.
pub(super) const LIST: u64 = 1 << 62;

/// Key under which kube-apiserver agrees on who compacts.
const COMPACT_KEY: &[u8] = b"compact_rev_key";
/// Longest time for which events share a lease, and the number of events that share one, in kube-apiserver.
const LEASE_REUSE_MAX: Duration = Duration::from_secs(60);
const LEASE_EVENTS_MAX: u64 = 1000;

/// One write in the life of a pod, or an event about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates the new pod.
    Create,
    /// Updates the new pod.
    Update,
    /// Creates an event of this kind about the new pod.
    Event(usize),
    /// Updates the pod that the new one replaces.
    UpdateOld,
    /// Creates an event of this kind about the old pod.
    EventOld(usize),
    /// Deletes the old pod.
    DeleteOld,
}

/// What the replacement of a pod writes, and when, in milliseconds after it began: the new pod is bound, its
/// node reports twice; the old one is marked as deleted, its node reports, and it goes.
pub const LIFE: [(Step, u64); 13] = [
    (Step::Create, 0),
    (Step::UpdateOld, 0),
    (Step::Update, 100),
    (Step::Event(0), 110),
    (Step::EventOld(5), 200),
    (Step::Event(1), 300),
    (Step::Update, 400),
    (Step::Event(2), 1200),
    (Step::Event(3), 1300),
    (Step::Event(4), 1400),
    (Step::UpdateOld, 1500),
    (Step::Update, 1600),
    (Step::DeleteOld, 1800),
];

/// Operations of the agenda. The numbers in them are those of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Renewal,
    Status,
    Life(Step),
    Read(usize),
    Progress(usize),
    Compact(usize),
}

#[derive(Clone, Copy, Debug)]
enum EventLease {
    None,
    Granting,
    Granted { id: i64, until: Instant, events: u64 },
}

/// State of one API server.
pub(super) struct ApiServer {
    /// Connection that carries its watch stream; `None` while it has none.
    pub(super) stream: Option<usize>,
    /// Resource of each watch, by the watch's id.
    pub(super) watches: HashMap<i64, usize>,
    /// Number of watches that the server has confirmed.
    pub(super) created: usize,
    received: [Tally; WRITTEN],
    /// Highest revision that each watch has delivered.
    newest: [i64; WRITTEN],
    lease: EventLease,
    /// Events that wait for a lease: kind, pod and due time.
    leaseless: Vec<(usize, u64, Instant)>,
    /// Time at which a progress request was due that is not answered yet.
    pub(super) progress_since: Option<Instant>,
    compact_version: u64,
    compact_revision: i64,
    is_compacting: bool,
}

impl ApiServer {
    fn new() -> Self {
        Self {
            stream: None,
            watches: HashMap::new(),
            created: 0,
            received: [Tally::default(); WRITTEN],
            newest: [0; WRITTEN],
            lease: EventLease::None,
            leaseless: Vec::new(),
            progress_since: None,
            compact_version: 0,
            compact_revision: 0,
            is_compacting: false,
        }
    }
}

/// A call in flight.
#[derive(Clone, Copy, Debug)]
struct Call {
    kind: Option<Kind>,
    /// Number of the node, pod or API server.
    object: u64,
    is_delete: bool,
    due: Instant,
    answer: Answer,
    batch: Option<Batch>,
}

/// Everything but the connections.
pub(super) struct State {
    pub(super) cluster: Cluster,
    pub(super) objects: Objects,
    pub(super) leases: Vec<Known>,
    pub(super) statuses: Vec<Known>,
    /// Pods, from the oldest that exists. Number `oldest` is the first.
    pub(super) pods: VecDeque<Known>,
    pub(super) oldest: u64,
    pub(super) servers: Vec<ApiServer>,
    calls: Vec<Call>,
    free: Vec<u32>,
    pub(super) in_flight: usize,
    /// Steps of pods that wait until the write before them is answered.
    deferred: HashMap<u64, VecDeque<(Step, Instant)>>,
    pub(super) agenda: Option<Agenda<Task>>,
    order: Order,
    /// First pods that the agenda creates and replaces.
    first_new: u64,
    first_old: u64,
    epoch: Instant,
    unix_epoch: f64,
    window: (Instant, Instant),
    late: Duration,
    written: [Tally; WRITTEN],
    /// Writes that failed. The server possibly carried them out.
    failed_writes: [u64; WRITTEN],
    next_event: u64,
    pub(super) lists: HashMap<u64, Listing>,
    pub(super) listed: Listed,
    pub(super) is_unimplemented: bool,
    pub(super) measured: Measured,
    pub(super) recent: Histogram,
    pub(super) failed: Option<Error>,
    pub(super) answered: u64,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) message: Vec<u8>,
}

impl State {
    /// Creates the state of a cluster without objects.
    pub(super) fn new(cluster: Cluster) -> Self {
        let now = Instant::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let objects = Objects::new(cluster.seed, cluster.contents, cluster.node_sizes, cluster.pod_sizes);
        Self {
            objects,
            leases: Vec::new(),
            statuses: Vec::new(),
            pods: VecDeque::new(),
            oldest: 0,
            servers: (0..cluster.api_servers).map(|_| ApiServer::new()).collect(),
            cluster,
            calls: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            deferred: HashMap::new(),
            agenda: None,
            order: Order::new(1),
            first_new: 0,
            first_old: 0,
            epoch: now,
            unix_epoch: unix.as_secs_f64(),
            window: (now, now),
            late: Duration::MAX,
            written: [Tally::default(); WRITTEN],
            failed_writes: [0; WRITTEN],
            next_event: 0,
            lists: HashMap::new(),
            listed: Listed::default(),
            is_unimplemented: false,
            measured: Measured::default(),
            recent: Histogram::new(Histogram::COARSE),
            failed: None,
            answered: 0,
            key: Vec::new(),
            value: Vec::new(),
            message: Vec::new(),
        }
    }

    /// Begins the load at `start`; `range` is the window in which it is measured.
    pub(super) fn prepare(&mut self, window: Window, start: Instant, range: (Instant, Instant)) {
        let nodes = window.nodes;
        let cluster = &self.cluster;
        let mut agenda = Agenda::new(start);
        let each = |interval: Duration| interval.as_secs_f64() / nodes as f64;
        agenda.add(Task::Renewal, Duration::ZERO, each(cluster.lease_interval));
        agenda.add(Task::Status, Duration::ZERO, each(cluster.status_interval));
        let period = cluster.replacement_period(nodes);
        for (step, ms) in LIFE {
            agenda.add(Task::Life(step), Duration::from_millis(ms), period);
        }
        for server in 0..self.servers.len() {
            let share = (server as f64 + 0.5) / self.servers.len() as f64;
            for (interval, task) in [
                (cluster.progress_interval, Task::Read(server)),
                (cluster.progress_interval, Task::Progress(server)),
                (cluster.compaction_interval, Task::Compact(server)),
            ] {
                agenda.add(task, interval.mul_f64(share), interval.as_secs_f64());
            }
        }
        self.order = Order::new(nodes);
        self.first_new = self.oldest + self.pods.len() as u64;
        self.first_old = self.oldest;
        self.agenda = Some(agenda);
        self.window = range;
        self.late = window.late;
        self.written = [Tally::default(); WRITTEN];
        self.failed_writes = [0; WRITTEN];
        for server in &mut self.servers {
            server.received = [Tally::default(); WRITTEN];
            server.newest = [0; WRITTEN];
        }
        self.measured = Measured {
            nodes,
            series: vec![Series::default(); KINDS.len()],
            duration: window.duration,
            ..Measured::default()
        };
    }

    /// Returns the number of resources that each API server must have received completely.
    fn watched(&self) -> usize {
        if self.cluster.watches_events { WRITTEN } else { Resource::Events as usize }
    }

    /// Returns true if all calls are answered, and there are no events to wait for. Whether the events were
    /// those of the writes is another question.
    pub(super) fn has_caught_up(&self) -> bool {
        let watched = self.watched();
        self.in_flight == 0
            && self.servers.iter().all(|server| {
                let mut tallies = server.received.iter().zip(&self.written).take(watched);
                server.progress_since.is_none() && tallies.all(|(got, wanted)| got.count >= wanted.count)
            })
    }

    /// Returns a sentence for each difference between what was written and what a watch received.
    pub(super) fn differences(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (number, server) in self.servers.iter().enumerate() {
            let tallies = server.received.iter().zip(&self.written).zip(&self.failed_writes).zip(PREFIXES);
            for (((got, wanted), failed), prefix) in tallies.take(self.watched()) {
                // Events of writes that failed are no difference: a request that timed out possibly had an effect.
                let more = got.count.checked_sub(wanted.count);
                let may_differ = *failed > 0 && more.is_some_and(|more| more > 0 && more <= *failed);
                if got != wanted && !may_differ {
                    all.push(format!(
                        "API server {number} received {} events of {} for {} writes{}",
                        got.count,
                        prefix,
                        wanted.count,
                        if got.count == wanted.count { ", with other revisions" } else { "" }
                    ));
                }
            }
        }
        all
    }

    fn second(&self, due: Instant) -> i64 {
        (self.unix_epoch + due.saturating_duration_since(self.epoch).as_secs_f64()) as i64
    }

    fn is_measured(&self, due: Instant) -> bool {
        self.window.0 <= due && due < self.window.1
    }

    /// Returns a time in microseconds since the load generator connected, as values contain it.
    fn micros(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.epoch).as_micros() as u64
    }

    fn note(&mut self, kind: Kind, due: Instant, now: Instant, result: Result<(), String>) {
        if !self.is_measured(due) {
            return;
        }
        let latency = now.saturating_duration_since(due);
        let (second, nanos) = (self.second(due), latency.as_nanos() as u64);
        if latency > self.late {
            self.measured.late[kind as usize] += 1;
        }
        let Some(series) = self.measured.series.get_mut(kind as usize) else { return };
        match result {
            Ok(()) => series.record(second, nanos),
            Err(text) => series.fail(text),
        }
        if kind != Kind::Delivery {
            self.recent.record(nanos);
        }
    }

    fn skip(&mut self, kind: Kind, due: Instant) {
        if self.is_measured(due) {
            self.measured.skipped[kind as usize] += 1;
        }
    }

    /// Begins everything that is due, and sets the timer for what is due next.
    pub(super) fn dispatch(&mut self, calls: &mut Calls) {
        let Some(mut agenda) = self.agenda.take() else { return };
        while let Some(due) = agenda.take(Instant::now(), self.window.1) {
            self.begin(calls, due);
        }
        let now = Instant::now();
        if let Some(next) = agenda.next().filter(|next| *next < self.window.1) {
            // Ignore an error: without the timer, what is due begins at the end of the turn.
            let _ = calls.wake_at(now, next.max(now + SLEEP_MIN));
        }
        self.agenda = Some(agenda);
    }

    fn begin(&mut self, calls: &mut Calls, due: Due<Task>) {
        match due.what {
            Task::Renewal => self.write_node(calls, Kind::Renewal, self.order.at(due.number), due.at),
            Task::Status => self.write_node(calls, Kind::Status, self.order.at(due.number), due.at),
            Task::Life(step) => {
                let first = match step {
                    Step::Create | Step::Update | Step::Event(_) => self.first_new,
                    Step::UpdateOld | Step::EventOld(_) | Step::DeleteOld => self.first_old,
                };
                self.life(calls, step, first + due.number, due.at);
            }
            Task::Read(server) => {
                self.message.clear();
                Message(&mut self.message).bytes(1, COMPACT_KEY);
                self.call(calls, server, Rpc::KvRange, Some(Kind::Read), server as u64, due.at);
            }
            Task::Progress(server) => self.ask_progress(calls, server, due.at),
            Task::Compact(server) => self.compact(calls, server, due.at),
        }
    }

    /// Sends the request in `message`. Returns the call, to be completed by the caller.
    pub(super) fn call(
        &mut self,
        calls: &mut Calls,
        server: usize,
        method: Rpc,
        kind: Option<Kind>,
        object: u64,
        due: Instant,
    ) -> u32 {
        let call = Call { kind, object, is_delete: false, due, answer: Answer::default(), batch: None };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.calls[slot as usize] = call;
                slot
            }
            None => {
                self.calls.push(call);
                (self.calls.len() - 1) as u32
            }
        };
        self.in_flight += 1;
        calls.call(server, method, &self.message, u64::from(slot), true);
        slot
    }

    /// Sends the transaction in `message` that writes a batch of objects.
    pub(super) fn call_batch(&mut self, calls: &mut Calls, server: usize, batch: Batch) {
        let slot = self.call(calls, server, Rpc::KvTxn, None, 0, Instant::now());
        self.calls[slot as usize].batch = Some(batch);
    }

    fn server_of(&self, object: u64) -> usize {
        (object % self.servers.len() as u64) as usize
    }

    fn write_node(&mut self, calls: &mut Calls, kind: Kind, node: u64, due: Instant) {
        let list = if kind == Kind::Renewal { &mut self.leases } else { &mut self.statuses };
        let Some(revision) = list.get_mut(node as usize).and_then(Known::begin) else {
            // The last renewal is not answered, and a second one would only add to the load.
            self.skip(kind, due);
            return;
        };
        let stamp = self.micros(due);
        if kind == Kind::Renewal {
            self.objects.lease_key(node, &mut self.key);
            self.objects.lease(node, stamp, &mut self.value);
        } else {
            self.objects.node_key(node, &mut self.key);
            self.objects.node(node, stamp, &mut self.value);
        }
        self.message.clear();
        let compared = Compared::ModRevision(revision);
        wire::txn(&mut self.message, &self.key, compared, Change::Put(&self.value, 0));
        self.call(calls, self.server_of(node), Rpc::KvTxn, Some(kind), node, due);
    }

    fn pod(&mut self, pod: u64) -> Option<&mut Known> {
        self.pods.get_mut(usize::try_from(pod.checked_sub(self.oldest)?).ok()?)
    }

    fn life(&mut self, calls: &mut Calls, step: Step, pod: u64, due: Instant) {
        let kind = match step {
            Step::Event(kind) | Step::EventOld(kind) => return self.event(calls, kind, pod, due),
            Step::Create => Kind::PodCreate,
            Step::Update | Step::UpdateOld => Kind::PodUpdate,
            Step::DeleteOld => Kind::PodDelete,
        };
        if step == Step::Create {
            self.pods.push_back(Known::default());
        }
        let Some(known) = self.pod(pod) else { return self.skip(kind, due) };
        // A pod must still be deleted after a server was slow, so its writes wait for each other.
        if known.is_busy() {
            self.deferred.entry(pod).or_default().push_back((step, due));
            return;
        }
        // Its creation failed. Nothing is known to update, and a deletion of nothing would cause no event.
        if step != Step::Create && known.revision() == 0 {
            if step == Step::DeleteOld {
                *known = Known::default();
                self.forget_deleted();
            }
            return self.skip(kind, due);
        }
        let Some(revision) = known.begin() else { return };
        let node = pod % self.order_len();
        self.objects.pod_key(pod, &mut self.key);
        self.message.clear();
        let change = if step == Step::DeleteOld {
            Change::Delete
        } else {
            self.objects.pod(pod, node, self.micros(due), &mut self.value);
            Change::Put(&self.value, 0)
        };
        wire::txn(&mut self.message, &self.key, Compared::ModRevision(revision), change);
        let slot = self.call(calls, self.server_of(pod), Rpc::KvTxn, Some(kind), pod, due);
        self.calls[slot as usize].is_delete = step == Step::DeleteOld;
    }

    fn order_len(&self) -> u64 {
        self.measured.nodes.max(1)
    }

    fn event(&mut self, calls: &mut Calls, kind: usize, pod: u64, due: Instant) {
        let number = self.server_of(pod);
        let now = Instant::now();
        let server = &mut self.servers[number];
        match &mut server.lease {
            EventLease::Granted { id, until, events } if now < *until && *events < LEASE_EVENTS_MAX => {
                *events += 1;
                let lease = *id;
                self.write_event(calls, kind, pod, lease, due);
            }
            EventLease::Granting => server.leaseless.push((kind, pod, due)),
            _ => {
                server.lease = EventLease::Granting;
                server.leaseless.push((kind, pod, due));
                let ttl = self.cluster.event_ttl + self.lease_reuse();
                self.message.clear();
                Message(&mut self.message).uint(1, ttl.as_secs());
                self.call(calls, number, Rpc::LeaseGrant, Some(Kind::Grant), number as u64, now);
            }
        }
    }

    /// Returns the time for which events share a lease: as in kube-apiserver, at most a minute and at most a
    /// twentieth of the lease's time.
    fn lease_reuse(&self) -> Duration {
        LEASE_REUSE_MAX.min(self.cluster.event_ttl / 20)
    }

    fn write_event(&mut self, calls: &mut Calls, kind: usize, pod: u64, lease: i64, due: Instant) {
        self.next_event += 1;
        let node = pod % self.order_len();
        // The number of the run keeps events of several runs at one server apart.
        let number = (self.unix_epoch * 1e6) as u64 + self.next_event;
        self.objects.event_key(pod, number, &mut self.key);
        self.objects.event(kind, pod, node, self.micros(due), &mut self.value);
        self.message.clear();
        let change = Change::Put(&self.value, lease);
        wire::txn(&mut self.message, &self.key, Compared::ModRevision(0), change);
        self.call(calls, self.server_of(pod), Rpc::KvTxn, Some(Kind::Event), pod, due);
    }

    fn ask_progress(&mut self, calls: &mut Calls, number: usize, due: Instant) {
        let server = &mut self.servers[number];
        let Some(link) = server.stream else { return };
        if server.progress_since.is_some() {
            return self.skip(Kind::Progress, due);
        }
        server.progress_since = Some(due);
        self.message.clear();
        wire::progress(&mut self.message);
        calls.send(link, WATCH | number as u64, &self.message);
    }

    /// Tries to become the API server that compacts, as kube-apiserver does: whoever raises the version of a
    /// key first compacts at the revision that it saw one interval ago.
    fn compact(&mut self, calls: &mut Calls, number: usize, due: Instant) {
        let server = &mut self.servers[number];
        if std::mem::replace(&mut server.is_compacting, true) {
            return self.skip(Kind::CompactTxn, due);
        }
        let value = server.compact_revision.to_string();
        let compared = Compared::Version(server.compact_version);
        self.message.clear();
        wire::txn(&mut self.message, COMPACT_KEY, compared, Change::Put(value.as_bytes(), 0));
        self.call(calls, number, Rpc::KvTxn, Some(Kind::CompactTxn), number as u64, due);
    }

    fn answered(&mut self, calls: &mut Calls, call: Call, status: &Status) {
        let now = Instant::now();
        if let Some(batch) = call.batch {
            match outcome(status) {
                Ok(()) => self.batch_written(batch, call.answer.revision),
                Err(error) => self.failed = Some(Error::Put(error)),
            }
            return;
        }
        let Some(kind) = call.kind else { return };
        let mut result = outcome(status).map_err(|error| error.to_string());
        match kind {
            Kind::Renewal
            | Kind::Status
            | Kind::PodCreate
            | Kind::PodUpdate
            | Kind::PodDelete
            | Kind::Event => {
                if let Err(text) = self.written(&call, kind, result.is_ok()) {
                    result = Err(text);
                }
            }
            Kind::Grant => self.granted(calls, &call, result.is_ok()),
            Kind::CompactTxn => self.compact_agreed(calls, &call, result.is_ok()),
            Kind::Compact => self.servers[call.object as usize].is_compacting = false,
            Kind::Read | Kind::Progress | Kind::Delivery => {}
        }
        self.note(kind, call.due, now, result);
        if matches!(kind, Kind::PodCreate | Kind::PodUpdate | Kind::PodDelete) {
            self.go_on(calls, call.object);
        }
    }

    /// Takes the result of the write of an object. Returns an error if the comparison failed.
    fn written(&mut self, call: &Call, kind: Kind, is_ok: bool) -> Result<(), String> {
        let resource = match kind {
            Kind::Renewal => Resource::Leases,
            Kind::Status => Resource::Nodes,
            Kind::Event => Resource::Events,
            _ => Resource::Pods,
        };
        let succeeded = is_ok && call.answer.succeeded;
        if !is_ok {
            self.failed_writes[resource as usize] += 1;
        }
        if succeeded {
            self.written[resource as usize].add(call.answer.revision);
        }
        let known = match kind {
            Kind::Renewal => self.leases.get_mut(call.object as usize),
            Kind::Status => self.statuses.get_mut(call.object as usize),
            Kind::Event => None,
            _ => self.pod(call.object),
        };
        let was_unsure = known.as_ref().is_some_and(|known| known.is_unsure());
        if let Some(known) = known {
            match (is_ok, succeeded) {
                (false, _) => known.fail(),
                (true, true) => known.end(if call.is_delete { 0 } else { call.answer.revision }),
                (true, false) => known.end(call.answer.found),
            }
        }
        if is_ok && !succeeded && !was_unsure {
            self.measured.conflicts += 1;
            return Err("the comparison of the revision failed".to_owned());
        }
        Ok(())
    }

    /// Begins the next step of a pod that waited for an answer, and forgets deleted pods.
    fn go_on(&mut self, calls: &mut Calls, pod: u64) {
        if let Some(steps) = self.deferred.get_mut(&pod) {
            let next = steps.pop_front();
            if steps.is_empty() {
                self.deferred.remove(&pod);
            }
            if let Some((step, due)) = next {
                self.life(calls, step, pod, due);
            }
        }
        self.forget_deleted();
    }

    fn forget_deleted(&mut self) {
        while self.pods.front().is_some_and(|known| *known == Known::default()) {
            self.pods.pop_front();
            self.oldest += 1;
        }
    }

    fn granted(&mut self, calls: &mut Calls, call: &Call, is_ok: bool) {
        let reuse = self.lease_reuse();
        let server = &mut self.servers[call.object as usize];
        let waiting = std::mem::take(&mut server.leaseless);
        if is_ok {
            let until = Instant::now() + reuse;
            server.lease = EventLease::Granted { id: call.answer.lease, until, events: 0 };
            for (kind, pod, due) in waiting {
                self.event(calls, kind, pod, due);
            }
        } else {
            server.lease = EventLease::None;
            for (_, _, due) in waiting {
                self.note(Kind::Event, due, due, Err("no lease was granted for it".to_owned()));
            }
        }
    }

    fn compact_agreed(&mut self, calls: &mut Calls, call: &Call, is_ok: bool) {
        let number = call.object as usize;
        let server = &mut self.servers[number];
        server.is_compacting = false;
        if !is_ok {
            return;
        }
        let old = std::mem::replace(&mut server.compact_revision, call.answer.revision);
        if !call.answer.succeeded {
            server.compact_version = call.answer.version;
            return;
        }
        server.compact_version += 1;
        if old > 0 {
            server.is_compacting = true;
            self.message.clear();
            Message(&mut self.message).int(1, old);
            self.call(calls, number, Rpc::KvCompact, Some(Kind::Compact), number as u64, Instant::now());
        }
    }

    fn watch_message(&mut self, number: usize, body: &[u8]) {
        let now = Instant::now();
        let fields = Fields(body);
        let mut is_created = false;
        let mut watch = 0;
        let mut events = 0_u64;
        let mut resource = None;
        for (field, content) in fields {
            match field {
                2 => {
                    watch = content.number() as i64;
                    resource = self.servers[number].watches.get(&watch).copied();
                }
                3 => is_created = content.number() != 0,
                4 if content.number() != 0 => {
                    let reason = String::from_utf8_lossy(fields.bytes(6)).into_owned();
                    self.failed = Some(Error::WatchCanceled(reason));
                    return;
                }
                11 => {
                    events += 1;
                    // The first watch has the id 0, which is not encoded.
                    let resource = resource.or_else(|| self.servers[number].watches.get(&0).copied());
                    self.watch_event(number, resource, content.bytes(), now);
                }
                _ => {}
            }
        }
        let server = &mut self.servers[number];
        if is_created {
            // Watches of a stream are created in the order in which they were requested.
            let skipped =
                usize::from(!self.cluster.watches_events && server.created >= Resource::Events as usize);
            server.watches.insert(watch, server.created + skipped);
            server.created += 1;
        } else if events == 0
            && watch == -1
            && let Some(due) = server.progress_since.take()
        {
            self.note(Kind::Progress, due, now, Ok(()));
        }
    }

    fn watch_event(&mut self, number: usize, resource: Option<usize>, body: &[u8], now: Instant) {
        let event = wire::event(body);
        let Some(resource) = resource.filter(|resource| *resource < WRITTEN) else { return };
        if event.is_delete && resource == Resource::Events as usize {
            // The event's lease has expired. No client wrote that.
            return;
        }
        let server = &mut self.servers[number];
        server.received[resource].add(event.revision);
        if event.revision < std::mem::replace(&mut server.newest[resource], event.revision) {
            self.measured.disordered += 1;
        }
        if let Some(due_us) = event.due_us {
            let due = self.epoch + Duration::from_micros(due_us);
            self.note(Kind::Delivery, due, now, Ok(()));
        }
    }
}

impl Handler for State {
    fn message(&mut self, _: &mut Calls, tag: u64, body: &[u8]) {
        self.answered += 1;
        if tag & WATCH != 0 {
            self.watch_message((tag & !WATCH) as usize, body);
        } else if tag & LIST != 0 {
            self.list_message(tag & !LIST, body);
        } else if let Some(call) = self.calls.get_mut(tag as usize) {
            call.answer = match (call.kind, call.batch) {
                (Some(Kind::Grant), _) => wire::grant_answer(body),
                (Some(Kind::Read | Kind::Compact), _) => Answer::default(),
                _ => wire::txn_answer(body),
            };
        }
    }

    fn ended(&mut self, calls: &mut Calls, tag: u64, status: Status) {
        if tag & WATCH != 0 {
            self.failed = Some(Error::WatchEnded(status));
        } else if tag & LIST != 0 {
            self.list_ended(calls, tag & !LIST, &status);
        } else if let Some(call) = self.calls.get(tag as usize).copied() {
            self.free.push(tag as u32);
            self.in_flight -= 1;
            self.answered(calls, call, &status);
        }
    }

    fn turned(&mut self, calls: &mut Calls) {
        self.dispatch(calls);
    }
}
