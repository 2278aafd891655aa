//! `make-mirror --keep-revisions`: a destination goes through the history of the source revision by revision, and takes its
//! place in the end with `--cut-over`.
//!
//! Every revision of the source becomes one transaction at the destination, so that revisions, creations and versions come
//! out the same. The transactions of a [`WINDOW`] are under way at once. Each succeeds only where the revision before it is
//! there and its own is not, so that none comes too early, and none twice by being sent again:
//!
//! ```text
//! revision 8: put a        if  a's modification < 8
//! revision 9: delete b     if  a's modification = 8  and  b exists
//! revision 10: put b       if  a's modification = 8  and  b does not exist  and  b's modification < 10
//! ```
//!
//! What was sent over a connection that broke may still be applied when all of this holds again. Then the destination is a
//! revision ahead, which is noticed and told.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::etcdserverpb as pb;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::mvccpb::event::EventType;
use api::mvccpb::{Event, KeyValue};
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use cli::Failure;
use client::{Client, Stream, WatchUpdate, Watcher, lease};
use stdx::{First, race};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::mirror::{PAGE_KEYS, REPORT_INTERVAL};
use crate::call::Call;
use crate::ranges::OPEN_END;

/// Transactions that are under way at once, at most. There are fewer at a destination that takes them in another order than they
/// were sent in, as etcd does: there most of them come too early.
const WINDOW: usize = 64;
/// Pause before transactions are sent again whose outcome is unknown, or which came too early.
const PAUSE: Duration = Duration::from_millis(100);
/// Rounds without a step forward, and without a failure of the connection, after which the destination is taken for one that
/// somebody else writes to.
const ROUNDS_MAX: u32 = 10;
/// Interval at which it is looked which leases of the destination are due to be renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);
/// Seconds that a lease gets at the destination if the source has ended it already; the end of its keys is on its way.
const GONE_TTL_SECONDS: i64 = 600;

/// Follows the source until something goes wrong, or, with `cuts_over`, until the destination has taken its place.
///
/// # Errors
/// The destination is no copy of the source at the revision it is at; the source has compacted what is missing; a server
/// refuses; with `cuts_over`, an interruption.
pub(super) async fn replay(
    call: &Call,
    source: Client,
    target: Client,
    operations_max: usize,
    cuts_over: bool,
) -> Result<(), Failure> {
    if !cuts_over {
        let mut replay = Replay::begin(call, source, target, operations_max).await?;
        return match replay.follow().await {
            Err(failure) => Err(failure),
            Ok(never) => match never {},
        };
    }
    // Writes that were stopped have to go on if this is ended, so that the signals must not end the process.
    let mut interruption = call.interruption();
    let stopped = Mutex::new(None);
    let work =
        async { Replay::begin(call, source.clone(), target, operations_max).await?.cut_over(&stopped).await };
    let outcome = match race(work, interruption.came()).await {
        First::Left(outcome) => outcome,
        First::Right(()) => Err(Failure::error("interrupted")),
    };
    let stopped = *locked(&stopped);
    let (Err(failure), Some(cluster)) = (&outcome, stopped) else { return outcome };
    let again = match alarm(&source, AlarmAction::Deactivate, cluster).await {
        Ok(()) => "the source takes writes again".to_owned(),
        Err(status) => format!(
            "the source takes no writes, and its CORRUPT alarm could not be ended ({}): run `alarm disarm`",
            status.shown()
        ),
    };
    Err(Failure::new(failure.code, format!("{failure}; {again}")))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster at a moment.
#[derive(Clone, Copy, Debug)]
struct Now {
    cluster_id: u64,
    revision: i64,
}

impl Now {
    async fn of(client: &Client) -> Result<Now, Status> {
        let request = pb::RangeRequest { key: OPEN_END.into(), count_only: true, ..Default::default() };
        let answer: pb::RangeResponse = client.call(Rpc::KvRange, &request).await?;
        let header = answer.header.unwrap_or_default();
        Ok(Now { cluster_id: header.cluster_id, revision: header.revision })
    }
}

/// Raises or ends the alarm with which a cluster changes no key and no lease, while it is read and watched on. It is raised for
/// the cluster's own id, which is no member's: a member for which it is raised may refuse reads, too.
async fn alarm(client: &Client, action: AlarmAction, cluster_id: u64) -> Result<(), Status> {
    let (alarm, member_id) = (pb::AlarmType::Corrupt as i32, cluster_id);
    let request = pb::AlarmRequest { action: action as i32, member_id, alarm };
    let _: pb::AlarmResponse = client.call(Rpc::MaintenanceAlarm, &request).await?;
    Ok(())
}

/// A key as a revision has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    key: Bytes,
    revision: i64,
    is_deleted: bool,
}

impl Mark {
    fn of(event: &Event) -> Mark {
        let kv = event.kv.as_ref();
        Mark {
            key: kv.map(|kv| kv.key.clone()).unwrap_or_default(),
            revision: kv.map_or(0, |kv| kv.mod_revision),
            is_deleted: event.r#type == EventType::Delete as i32,
        }
    }

    /// Holds as this revision has left the key.
    fn is_there(&self) -> pb::Compare {
        if self.is_deleted {
            return compare(&self.key, CompareResult::Equal, TargetUnion::Version(0));
        }
        compare(&self.key, CompareResult::Equal, TargetUnion::ModRevision(self.revision))
    }

    /// Holds right before this revision.
    fn is_missing(&self) -> pb::Compare {
        if self.is_deleted {
            return compare(&self.key, CompareResult::Greater, TargetUnion::Version(0));
        }
        compare(&self.key, CompareResult::Less, TargetUnion::ModRevision(self.revision))
    }
}

/// What the transaction of the next revision has to ask for, to come behind all that were before.
#[derive(Debug, Default)]
struct Chain {
    /// The newest put, unless its key was deleted since.
    put: Option<Mark>,
    /// A deletion by the newest revision, if that has no put.
    deletion: Option<Mark>,
}

impl Chain {
    /// Takes the next revision. Returns what holds once the revision before it is there, and never sooner; `None` if nothing
    /// says that. A key that is not there says it only beside a put that comes before its deletion: before the key was made, it
    /// was not there either.
    fn next(&mut self, events: &[Event]) -> Option<Vec<pb::Compare>> {
        let before: Vec<pb::Compare> = self.put.iter().chain(&self.deletion).map(Mark::is_there).collect();
        let is_told = self.put.is_some();
        let marks = || events.iter().map(Mark::of);
        match marks().find(|mark| !mark.is_deleted) {
            Some(put) => *self = Chain { put: Some(put), deletion: None },
            None => {
                self.deletion = marks().next();
                self.put.take_if(|put| marks().any(|deleted| deleted.key == put.key));
            }
        }
        is_told.then_some(before)
    }
}

fn compare(key: &Bytes, result: CompareResult, union: TargetUnion) -> pb::Compare {
    let target =
        if matches!(union, TargetUnion::Version(_)) { CompareTarget::Version } else { CompareTarget::Mod };
    pb::Compare {
        result: result as i32,
        target: target as i32,
        key: key.clone(),
        target_union: Some(union),
        ..Default::default()
    }
}

/// One revision on its way.
#[derive(Clone, Debug)]
struct Step {
    revision: i64,
    transaction: pb::TxnRequest,
    /// Leases that its keys are attached to.
    leases: BTreeSet<i64>,
}

/// What became of a transaction that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// The destination was at this revision then.
    Applied(i64),
    /// A guard did not hold: it came too early, or was applied before.
    Guarded,
    /// Nobody knows.
    Unknown,
    /// A lease of its keys is not there.
    NoLease,
}

struct Replay<'a> {
    call: &'a Call,
    source: Client,
    target: Client,
    operations_max: usize,
    leases: Arc<Leases>,
    /// Renews the leases of the destination, so that none of them ends before the source ends it.
    renewals: JoinHandle<()>,
    watcher: Watcher,
    /// Revision that the destination is at.
    replayed: i64,
    chain: Chain,
    /// Transactions to send at once.
    window: usize,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

impl<'a> Replay<'a> {
    /// Begins where the destination is.
    async fn begin(
        call: &'a Call,
        source: Client,
        target: Client,
        operations_max: usize,
    ) -> Result<Replay<'a>, Failure> {
        // Leases first: those of a destination that was just restored run out while it is compared.
        let leases = Arc::new(Leases::default());
        leases.learn(&target).await?;
        let renewals = tokio::spawn(Arc::clone(&leases).keep(target.clone()));
        let (there, here) = (Now::of(&target).await?, Now::of(&source).await?);
        let request = pb::WatchCreateRequest {
            key: OPEN_END.into(),
            range_end: OPEN_END.into(),
            start_revision: there.revision + 1,
            fragment: true,
            ..Default::default()
        };
        let watcher = Watcher::new(&source, request);
        let replayed = there.revision;
        let replay = Replay {
            call,
            source,
            target,
            operations_max,
            leases,
            renewals,
            watcher,
            replayed,
            chain: Chain::default(),
            window: WINDOW,
        };
        if here.cluster_id == there.cluster_id {
            return Err(Failure::error("source and destination are the same cluster"));
        }
        if there.revision > here.revision {
            return Err(Failure::error(format!(
                "the destination is at revision {}, and the source at {} only: it is no copy of the source, or was written to",
                there.revision, here.revision
            )));
        }
        replay.compared(there.revision, 0).await?;
        Ok(replay)
    }

    /// Compares both sides at a revision; only keys modified after `from`, and the number of keys.
    async fn compared(&self, revision: i64, from: i64) -> Result<Difference, Failure> {
        told(differences(self.source.clone(), self.target.clone(), revision, from).await, revision)
    }

    /// Follows until something goes wrong.
    async fn follow(&mut self) -> Result<std::convert::Infallible, Failure> {
        let mut report_at = Instant::now() + REPORT_INTERVAL;
        loop {
            match race(self.watcher.next(), sleep_until(report_at)).await {
                First::Left(update) => self.take(update?).await?,
                First::Right(()) => {
                    self.end_leases().await?;
                    let source = Now::of(&self.source).await?.revision;
                    self.call.line(format!("revision {} of {source}", self.replayed))?;
                    report_at = Instant::now() + REPORT_INTERVAL;
                }
            }
        }
    }

    /// Follows up to this revision of the source.
    async fn reach(&mut self, revision: i64) -> Result<(), Failure> {
        while self.replayed < revision {
            let update = self.watcher.next().await?;
            self.take(update).await?;
        }
        Ok(())
    }

    /// Has the destination take the place of the source. `stopped` holds the id of the source while its alarm would have
    /// to be ended, were this to fail.
    async fn cut_over(mut self, stopped: &Mutex<Option<u64>>) -> Result<(), Failure> {
        let now = Now::of(&self.source).await?;
        self.reach(now.revision).await?;
        // What takes long is compared while everybody writes.
        let at = self.replayed;
        let mut comparison = tokio::spawn(differences(self.source.clone(), self.target.clone(), at, 0));
        let before = loop {
            match race(&mut comparison, self.watcher.next()).await {
                First::Left(done) => break told(done.map_err(Failure::error)?, at)?,
                First::Right(update) => self.take(update?).await?,
            }
        };
        self.call.line(format!("revision {at}: compared {} keys, no difference", before.keys))?;
        self.match_leases().await?;
        // As long as writes are stopped, the destination only has to take what it is behind by then. A source that is written
        // to faster than the destination takes it gets away from it, though.
        let mut least = i64::MAX;
        loop {
            let now = Now::of(&self.source).await?;
            let behind = now.revision - self.replayed;
            if behind <= WINDOW as i64 || behind >= least {
                break;
            }
            least = behind;
            self.reach(now.revision).await?;
        }

        self.call.line("stopping writes at the source by its CORRUPT alarm, which `alarm disarm` ends")?;
        let began = Instant::now();
        let source = Now::of(&self.source).await?.cluster_id;
        *locked(stopped) = Some(source);
        alarm(&self.source, AlarmAction::Activate, source).await?;
        let end = Now::of(&self.source).await?.revision;
        self.reach(end).await?;
        let after = self.compared(end, at).await?;
        let leases = self.match_leases().await?;
        let there = Now::of(&self.target).await?.revision;
        if there != end {
            return Err(Failure::error(format!(
                "the destination is at revision {there}, and the source at {end}: somebody else writes to the destination"
            )));
        }
        // What stopped the writes stays.
        *locked(stopped) = None;
        self.call.line(format!(
            "revision {end}: compared {} more keys, no difference; {leases} leases; writes stopped {} ms ago",
            after.keys,
            began.elapsed().as_millis()
        ))?;
        self.call.line("the destination has taken the source's place")
    }

    /// Applies this update, and with it those that are there already, so that they share their way.
    async fn take(&mut self, update: Option<WatchUpdate>) -> Result<(), Failure> {
        let mut steps = VecDeque::new();
        self.add(update, &mut steps).await?;
        // What is there may never end, while others wait for a turn.
        for _ in 1..WINDOW {
            match race(self.watcher.next(), std::future::ready(())).await {
                First::Left(update) => self.add(update?, &mut steps).await?,
                First::Right(()) => break,
            }
        }
        self.send(&mut steps).await
    }

    /// Makes steps of an update.
    async fn add(&mut self, update: Option<WatchUpdate>, steps: &mut VecDeque<Step>) -> Result<(), Failure> {
        match update {
            Some(WatchUpdate::Events(response)) => self.add_revisions(response.events, steps).await,
            Some(WatchUpdate::Created(_) | WatchUpdate::Progress(_)) => Ok(()),
            Some(WatchUpdate::Canceled(response)) if response.compact_revision != 0 => {
                Err(Failure::error(format!(
                    "{} (the destination is at revision {}, and the source remembers no further back than {}; restore the \
                     destination from a newer snapshot)",
                    error::COMPACTED.message,
                    self.replayed,
                    response.compact_revision
                )))
            }
            Some(WatchUpdate::Canceled(response)) => {
                Err(Failure::error(format!("watch was canceled ({})", response.cancel_reason)))
            }
            None => Err(Failure::error("watch is canceled by the server")),
        }
    }

    /// Makes a step of each revision, and sends steps where that has to come first.
    async fn add_revisions(&mut self, events: Vec<Event>, steps: &mut VecDeque<Step>) -> Result<(), Failure> {
        for events in events.chunk_by(|a, b| Mark::of(a).revision == Mark::of(b).revision) {
            let Some(mark) = events.first().map(Mark::of) else { continue };
            let expected = self.replayed + steps.len() as i64 + 1;
            if mark.revision != expected {
                return Err(Failure::error(format!(
                    "revision {} of the source came behind {}: what is between is not shown to this user, who must be able to \
                     read all keys",
                    mark.revision,
                    expected - 1
                )));
            }
            let before = self.chain.next(events);
            if before.is_none() {
                self.send(steps).await?;
            }
            let mut operations: Vec<Request> = events.iter().map(operation).collect();
            if operations.len() > self.operations_max {
                // The ranges are made of the keys that the destination has just before.
                self.send(steps).await?;
                operations = self.in_ranges(operations).await?;
                if operations.len() > self.operations_max && self.by_lease(&mark, &operations).await? {
                    continue;
                }
            }
            let compare = before.into_iter().flatten().chain([mark.is_missing()]).collect();
            let success = operations.into_iter().map(|o| pb::RequestOp { request: Some(o) }).collect();
            let leases = events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.lease);
            steps.push_back(Step {
                revision: mark.revision,
                transaction: pb::TxnRequest { compare, success, ..Default::default() },
                leases: leases.filter(|id| *id != 0).collect(),
            });
            if steps.len() >= WINDOW {
                self.send(steps).await?;
            }
        }
        Ok(())
    }

    /// Sends these steps until all of them are applied.
    async fn send(&mut self, steps: &mut VecDeque<Step>) -> Result<(), Failure> {
        let mut idle_rounds = 0;
        while !steps.is_empty() {
            let window = self.window.min(steps.len());
            for id in steps.iter().take(window).flat_map(|step| &step.leases) {
                self.leases.ensure(*id, &self.source, &self.target).await?;
            }
            let sent: Vec<_> = steps
                .iter()
                .take(window)
                .map(|step| {
                    let (target, transaction) = (self.target.clone(), step.transaction.clone());
                    tokio::spawn(
                        async move { target.call::<_, pb::TxnResponse>(Rpc::KvTxn, &transaction).await },
                    )
                })
                .collect();
            let before = steps.len();
            let end = steps.get(window - 1).map_or(self.replayed, |step| step.revision);
            let (mut applied, mut is_unknown) = (0, false);
            for (step, answer) in steps.iter().zip(sent) {
                match outcome(answer.await.map_err(Failure::error)?, step.revision)? {
                    Outcome::Applied(revision) if revision != step.revision => {
                        return Err(foreign(step.revision, revision));
                    }
                    Outcome::Applied(_) => applied += 1,
                    Outcome::Guarded => {}
                    Outcome::Unknown => is_unknown = true,
                    Outcome::NoLease => step.leases.iter().for_each(|id| self.leases.forget(*id)),
                }
            }
            // Where one was not, the destination knows best which of them are.
            let there = if applied == window { end } else { Now::of(&self.target).await?.revision };
            while steps.front().is_some_and(|step| step.revision <= there) {
                steps.pop_front();
            }
            if applied < window && !is_unknown {
                self.window = applied.max(1);
            } else {
                self.window = (self.window * 2).min(WINDOW);
            }
            // Nothing beyond what was sent can be there.
            let next = steps.front().map_or(end, |step| step.revision - 1).min(end);
            if there != next {
                return Err(foreign(next, there));
            }
            self.replayed = there;
            if steps.len() < before {
                idle_rounds = 0;
                continue;
            }
            idle_rounds += u32::from(!is_unknown);
            if idle_rounds > ROUNDS_MAX {
                return Err(foreign(next + 1, there));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// The same changes in the same order, in fewer operations: deletions of keys that follow one another at the destination
    /// become deletions of ranges. A transaction of the source that deletes a range has one operation and any number of events.
    async fn in_ranges(&self, operations: Vec<Request>) -> Result<Vec<Request>, Failure> {
        let mut made = Vec::new();
        let mut run: Vec<Bytes> = Vec::new();
        for operation in operations {
            match operation {
                Request::RequestDeleteRange(delete) => {
                    if run.last().is_some_and(|last| *last >= delete.key) {
                        made.append(&mut self.ranges_of(std::mem::take(&mut run)).await?);
                    }
                    run.push(delete.key);
                }
                other => {
                    made.append(&mut self.ranges_of(std::mem::take(&mut run)).await?);
                    made.push(other);
                }
            }
        }
        made.append(&mut self.ranges_of(run).await?);
        Ok(made)
    }

    /// Deletions of exactly these keys, which are in order and exist.
    async fn ranges_of(&self, keys: Vec<Bytes>) -> Result<Vec<Request>, Failure> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(Vec::new()) };
        let mut there = Pages::of_keys(&self.target, first.clone(), after(last));
        let mut ranges: Vec<(Bytes, Bytes)> = Vec::new();
        let mut keys = keys.into_iter().peekable();
        let mut goes_on = false;
        while let Some(kv) = there.next().await? {
            if keys.peek() != Some(&kv.key) {
                goes_on = false;
                continue;
            }
            keys.next();
            match ranges.last_mut() {
                Some((_, to)) if goes_on => *to = kv.key,
                _ => ranges.push((kv.key.clone(), kv.key)),
            }
            goes_on = true;
        }
        if let Some(key) = keys.next() {
            return Err(Failure::error(format!(
                "key {} is deleted at the source, and is not at the destination: somebody else writes to the destination",
                cli::go::quote(&key)
            )));
        }
        let delete = |(from, to): (Bytes, Bytes)| {
            let range_end = if from == to { Bytes::new() } else { after(&to) };
            Request::RequestDeleteRange(pb::DeleteRangeRequest { key: from, range_end, prev_kv: false })
        };
        Ok(ranges.into_iter().map(delete).collect())
    }

    /// Makes a revision that ends a lease with many keys by ending that lease, where these deletions are of all its keys and of
    /// nothing else. Returns true if so.
    async fn by_lease(&mut self, mark: &Mark, operations: &[Request]) -> Result<bool, Failure> {
        let request = pb::RangeRequest { key: mark.key.clone(), ..Default::default() };
        let answer: pb::RangeResponse = self.target.call(Rpc::KvRange, &request).await?;
        let Some(id) = answer.kvs.first().map(|kv| kv.lease).filter(|id| *id != 0) else { return Ok(false) };
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let answer: pb::LeaseTimeToLiveResponse = self.target.call(Rpc::LeaseTimeToLive, &request).await?;
        let attached: BTreeSet<&Bytes> = answer.keys.iter().collect();
        let mut deleted = 0;
        for operation in operations {
            match operation {
                Request::RequestDeleteRange(delete) if delete.range_end.is_empty() => {
                    if !attached.contains(&delete.key) {
                        return Ok(false);
                    }
                    deleted += 1;
                }
                // Keys that stand side by side there.
                Request::RequestDeleteRange(delete) => {
                    let mut keys = Pages::of_keys(&self.target, delete.key.clone(), delete.range_end.clone());
                    while let Some(kv) = keys.next().await? {
                        if !attached.contains(&kv.key) {
                            return Ok(false);
                        }
                        deleted += 1;
                    }
                }
                _ => return Ok(false),
            }
        }
        if deleted != attached.len() {
            return Ok(false);
        }
        self.leases.forget(id);
        lease::revoke(&self.target, id).await?;
        let there = Now::of(&self.target).await?.revision;
        if there != mark.revision {
            return Err(foreign(mark.revision, there));
        }
        self.replayed = there;
        Ok(true)
    }

    /// Gives the destination all leases that the source has, and ends those that the source has ended. All of them have all
    /// of their time then. Returns their number.
    async fn match_leases(&mut self) -> Result<usize, Failure> {
        for id in lease_ids(&self.source).await? {
            self.leases.ensure(id, &self.source, &self.target).await?;
        }
        self.end_leases().await?;
        let ids = self.leases.ids();
        self.leases.renew(&self.target, &ids).await?;
        Ok(ids.len())
    }

    /// Ends leases that the source has ended, once their keys are gone.
    async fn end_leases(&mut self) -> Result<(), Failure> {
        let kept: BTreeSet<i64> = lease_ids(&self.source).await?.into_iter().collect();
        for id in self.leases.ids() {
            if kept.contains(&id) {
                continue;
            }
            let request = pb::LeaseTimeToLiveRequest { id, keys: true };
            let answer: pb::LeaseTimeToLiveResponse =
                self.target.call(Rpc::LeaseTimeToLive, &request).await?;
            if !answer.keys.is_empty() {
                continue;
            }
            self.leases.forget(id);
            match lease::revoke(&self.target, id).await {
                Ok(_) => {}
                Err(status) if status.message == error::LEASE_NOT_FOUND.message => {}
                Err(status) => return Err(status.into()),
            }
        }
        Ok(())
    }
}

fn foreign(revision: i64, there: i64) -> Failure {
    Failure::error(format!(
        "revision {revision} of the source does not fit at the destination, which is at revision {there}: somebody else \
         writes to it, or a lease ended there; restore the destination again"
    ))
}

fn operation(event: &Event) -> Request {
    let kv = event.kv.clone().unwrap_or_default();
    if event.r#type == EventType::Delete as i32 {
        return Request::RequestDeleteRange(pb::DeleteRangeRequest { key: kv.key, ..Default::default() });
    }
    Request::RequestPut(pb::PutRequest {
        key: kv.key,
        value: kv.value,
        lease: kv.lease,
        ..Default::default()
    })
}

fn outcome(answer: Result<pb::TxnResponse, Status>, revision: i64) -> Result<Outcome, Failure> {
    match answer {
        Ok(answer) if answer.succeeded => {
            Ok(Outcome::Applied(answer.header.map_or(0, |header| header.revision)))
        }
        Ok(_) => Ok(Outcome::Guarded),
        Err(status) if status.message == error::LEASE_NOT_FOUND.message => Ok(Outcome::NoLease),
        Err(status) if matches!(status.code, Code::Unavailable | Code::DeadlineExceeded | Code::Unknown) => {
            Ok(Outcome::Unknown)
        }
        Err(status) => Err(Failure::error(format!(
            "revision {revision} is refused by the destination: {}",
            status.shown()
        ))),
    }
}

/// The key right behind this one.
fn after(key: &Bytes) -> Bytes {
    [&key[..], b"\0"].concat().into()
}

async fn lease_ids(client: &Client) -> Result<Vec<i64>, Status> {
    let answer: pb::LeaseLeasesResponse = client.call(Rpc::LeaseLeases, &pb::LeaseLeasesRequest {}).await?;
    Ok(answer.leases.into_iter().map(|lease| lease.id).collect())
}

async fn granted_ttl(client: &Client, id: i64) -> Result<i64, Status> {
    let request = pb::LeaseTimeToLiveRequest { id, keys: false };
    let answer: pb::LeaseTimeToLiveResponse = client.call(Rpc::LeaseTimeToLive, &request).await?;
    Ok(answer.granted_ttl)
}

/// The leases of the destination, with how long each lives without renewal, and when it is due.
#[derive(Default)]
struct Leases(Mutex<HashMap<i64, (Duration, Instant)>>);

impl Leases {
    /// Takes those that the destination has.
    async fn learn(&self, target: &Client) -> Result<(), Status> {
        for id in lease_ids(target).await? {
            self.note(id, granted_ttl(target, id).await?, Instant::now());
        }
        Ok(())
    }

    fn note(&self, id: i64, ttl_seconds: i64, due: Instant) {
        let ttl = Duration::from_secs(ttl_seconds.max(1).unsigned_abs());
        locked(&self.0).insert(id, (ttl, due));
    }

    fn forget(&self, id: i64) {
        locked(&self.0).remove(&id);
    }

    fn ids(&self) -> Vec<i64> {
        locked(&self.0).keys().copied().collect()
    }

    /// Has the destination grant a lease of the source, unless it has it.
    async fn ensure(&self, id: i64, source: &Client, target: &Client) -> Result<(), Status> {
        if locked(&self.0).contains_key(&id) {
            return Ok(());
        }
        let ttl = match granted_ttl(source, id).await? {
            ttl if ttl > 0 => ttl,
            _ => GONE_TTL_SECONDS,
        };
        match lease::grant(target, ttl, id).await {
            Ok(_) => {}
            Err(status) if status.message == error::LEASE_EXIST.message => {}
            Err(status) => return Err(status),
        }
        self.note(id, ttl, Instant::now());
        Ok(())
    }

    /// Renews leases for ever, each after a third of its time. What fails is tried again: if a lease ends all the same, the
    /// destination is at a revision that the source does not have, which is noticed there.
    async fn keep(self: Arc<Leases>, target: Client) {
        loop {
            sleep(RENEWAL_INTERVAL).await;
            let now = Instant::now();
            let due: Vec<i64> =
                locked(&self.0).iter().filter(|(_, (_, due))| *due <= now).map(|(id, _)| *id).collect();
            if !due.is_empty() {
                let _ = self.renew(&target, &due).await;
            }
        }
    }

    /// Renews these leases, one behind the other.
    async fn renew(&self, target: &Client, ids: &[i64]) -> Result<(), Status> {
        let mut stream: Stream<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse> =
            target.open(Rpc::LeaseKeepAlive).await?;
        for id in ids {
            stream.send(&pb::LeaseKeepAliveRequest { id: *id }).await?;
            let Some(answer) = stream.next().await? else { break };
            if answer.ttl <= 0 {
                self.forget(*id);
            } else if let Some((ttl, due)) = locked(&self.0).get_mut(id) {
                *due = Instant::now() + *ttl / 3;
            }
        }
        Ok(())
    }
}

/// The keys of a range at a revision, a page at a time.
struct Pages {
    client: Client,
    request: pb::RangeRequest,
    page: VecDeque<KeyValue>,
    is_over: bool,
}

impl Pages {
    /// Keys from `key` to before `range_end`, at `revision` (0: now), modified at `from` or later.
    fn new(client: Client, key: Bytes, range_end: Bytes, revision: i64, from: i64) -> Pages {
        let request = pb::RangeRequest {
            key,
            range_end,
            revision,
            min_mod_revision: from,
            limit: PAGE_KEYS,
            ..Default::default()
        };
        Pages { client, request, page: VecDeque::new(), is_over: false }
    }

    /// What there is now, without values.
    fn of_keys(client: &Client, key: Bytes, range_end: Bytes) -> Pages {
        let mut pages = Pages::new(client.clone(), key, range_end, 0, 0);
        pages.request.keys_only = true;
        pages
    }

    async fn next(&mut self) -> Result<Option<KeyValue>, Status> {
        if self.page.is_empty() && !self.is_over {
            let answer: pb::RangeResponse = self.client.call(Rpc::KvRange, &self.request).await?;
            self.is_over = !answer.more;
            if let Some(last) = answer.kvs.last() {
                self.request.key = after(&last.key);
            }
            self.page = answer.kvs.into();
        }
        Ok(self.page.pop_front())
    }
}

/// What a comparison of two clusters has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Difference {
    /// Keys compared.
    keys: u64,
    /// Keys that differ in anything, or are on one side only.
    differing: u64,
    first: Option<Bytes>,
    /// Numbers of keys at the source and at the destination.
    counts: (i64, i64),
}

/// Compares keys modified after `from` at a revision: value, revisions, version, lease; and the number of all keys.
async fn differences(source: Client, target: Client, revision: i64, from: i64) -> Result<Difference, Status> {
    let count = async |client: &Client| -> Result<i64, Status> {
        let all = Bytes::from(OPEN_END);
        let request = pb::RangeRequest {
            key: all.clone(),
            range_end: all,
            revision,
            count_only: true,
            ..Default::default()
        };
        let answer: pb::RangeResponse = client.call(Rpc::KvRange, &request).await?;
        Ok(answer.count)
    };
    let mut found =
        Difference { counts: (count(&source).await?, count(&target).await?), ..Default::default() };
    let from = if from == 0 { 0 } else { from + 1 };
    let pages = |client| Pages::new(client, OPEN_END.into(), OPEN_END.into(), revision, from);
    let (mut here, mut there) = (pages(source), pages(target));
    let (mut left, mut right) = (here.next().await?, there.next().await?);
    loop {
        let (step_left, step_right, key) = match (&left, &right) {
            (None, None) => return Ok(found),
            (Some(a), Some(b)) if a == b => (true, true, None),
            (Some(a), Some(b)) => (a.key <= b.key, b.key <= a.key, Some(a.key.clone().min(b.key.clone()))),
            (Some(a), None) => (true, false, Some(a.key.clone())),
            (None, Some(b)) => (false, true, Some(b.key.clone())),
        };
        found.keys += 1;
        if let Some(key) = key {
            found.differing += 1;
            found.first.get_or_insert(key);
        }
        if step_left {
            left = here.next().await?;
        }
        if step_right {
            right = there.next().await?;
        }
    }
}

/// A comparison that found none, or why the mirror cannot be made.
fn told(found: Result<Difference, Status>, revision: i64) -> Result<Difference, Failure> {
    let found = match found {
        Err(status) if status.message == error::COMPACTED.message => {
            return Err(Failure::error(format!(
                "{} (one of the two sides no longer has revision {revision}, at which they were to be compared; restore the \
                 destination from a newer snapshot of the source)",
                status.message
            )));
        }
        found => found?,
    };
    if let Some(first) = &found.first {
        return Err(Failure::error(format!(
            "the destination is no copy of the source: at revision {revision} {} of {} keys differ, the first is {}",
            found.differing,
            found.keys,
            cli::go::quote(first)
        )));
    }
    if found.counts.0 != found.counts.1 {
        return Err(Failure::error(format!(
            "the destination is no copy of the source: at revision {revision} it has {} keys, and the source {}",
            found.counts.1, found.counts.0
        )));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &'static str, mod_revision: i64, is_deleted: bool) -> Event {
        let kv = KeyValue { key: key.into(), mod_revision, ..KeyValue::default() };
        let r#type = if is_deleted { EventType::Delete } else { EventType::Put };
        Event { r#type: r#type as i32, kv: Some(kv), prev_kv: None }
    }

    #[test]
    fn a_revision_waits_for_what_only_the_one_before_it_can_have_left() {
        let (put, delete) = (|key, at| event(key, at, false), |key, at| event(key, at, true));
        let there = |marks: &[Event]| Some(marks.iter().map(|event| Mark::of(event).is_there()).collect());
        let mut chain = Chain::default();
        assert_eq!(chain.next(&[put("a", 2)]), None, "nothing is known of what was before");
        assert_eq!(chain.next(&[put("b", 3)]), there(&[put("a", 2)]));
        assert_eq!(chain.next(&[delete("a", 4)]), there(&[put("b", 3)]));
        assert_eq!(chain.next(&[delete("c", 5), delete("d", 5)]), there(&[put("b", 3), delete("a", 4)]));
        assert_eq!(chain.next(&[delete("e", 6), put("f", 6)]), there(&[put("b", 3), delete("c", 5)]));
        // That f is not there was true before revision 6, too.
        assert_eq!(chain.next(&[delete("f", 7)]), there(&[put("f", 6)]));
        assert_eq!(chain.next(&[put("g", 8)]), None);
        assert_eq!(chain.next(&[put("h", 9)]), there(&[put("g", 8)]));
    }
}
