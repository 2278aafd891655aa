//! `make-mirror --keep-revisions`: replays the history of the source at a destination, revision by revision.
//! With `--cut-over`, the destination finally replaces the source.
//!
//! Every revision of the source becomes one transaction at the destination, so that modification revisions,
//! creation revisions and versions of all keys are equal. Up to [`WINDOW`] transactions are in flight at the
//! same time. Conditions make each transaction succeed only at a destination that has the previous revision
//! and does not have the revision of the transaction yet. So a transaction is applied neither too early nor
//! twice, even if it is sent again:
//!
//! ```text
//! revision 8: put a        if  a's modification < 8
//! revision 9: delete b     if  a's modification = 8  and  b exists
//! revision 10: put b       if  a's modification = 8  and  b does not exist  and  b's modification < 10
//! ```
//!
//! The conditions do not protect against one rare case: if a connection breaks, a transaction that was sent
//! over it may be applied much later, when its conditions happen to hold again. In that case the destination
//! has an additional revision, which the command detects and reports.

mod comparison;
mod cut_over;
mod leases;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::etcdserverpb as pb;
use api::etcdserverpb::request_op::Request;
use api::mvccpb::Event;
use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use cli::Failure;
use client::replay::{Chain, Mark, operation};
use client::{Client, WatchUpdate, Watcher, lease};
use stdx::{First, race};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use self::comparison::{Changed, Pages, differences, told};
use self::leases::Leases;
use crate::call::Call;
use crate::ranges::OPEN_END;

/// Maximum encoded size of the operations of a transaction in bytes. It is below 1.5 MiB, the default maximum
/// of a request.
pub(super) const TXN_BYTES_MAX: usize = 1024 * 1024;

/// Interval at which the progress of the mirror is printed.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of transactions in flight. The number is reduced if the destination applies transactions
/// out of order, as etcd does, because the conditions of most of them do not hold in that case.
const WINDOW: usize = 64;
/// Pause before a retry: before transactions that arrived too early or whose outcome is unknown are sent
/// again, and before a watch is opened again after a member without a leader has ended it.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of consecutive rounds of sending without progress after which the command assumes that another
/// client writes to the destination. Rounds with a failed connection do not count.
const ROUNDS_MAX: u32 = 10;
/// Maximum number of calls in flight when [`each`] makes one call for each of many items.
const CALLS_MAX: usize = 64;

/// Replays the source without end. With `stop_limit` (`--stop-timeout`), replays until the destination has
/// replaced the source (cut-over), for which writes at the source are stopped for at most this time.
///
/// # Errors
/// Returns an error if source and destination are the same cluster, if the destination is not a copy of the
/// source at the destination's revision, if another client writes to the destination, if the source has
/// compacted the missing revisions or hides some from this user, or if a server refuses a request. With
/// `stop_limit`, also returns an error after an interruption, or if the cut-over does not complete within
/// that time after it began to stop writes.
pub(super) async fn replay(
    call: &Call,
    source: Client,
    target: Client,
    operations_max: usize,
    stop_limit: Option<Duration>,
) -> Result<(), Failure> {
    if let Some(limit) = stop_limit {
        return cut_over::cut_over(call, source, target, operations_max, limit).await;
    }
    let mut replay = Replay::begin(call, source, target, operations_max).await?;
    match replay.follow().await {
        Err(failure) => Err(failure),
        Ok(never) => match never {},
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call for each item, up to [`CALLS_MAX`] at the same time, and returns the responses in the order
/// in which they arrive. Makes no further calls after the first failure, which it returns.
async fn each<I, T: Send + 'static, E: From<Status> + Send + 'static, F>(
    items: impl IntoIterator<Item = I>,
    call: impl Fn(I) -> F,
) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let mut answers = Vec::new();
    let mut items = items.into_iter();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < CALLS_MAX {
            let Some(item) = items.next() else { break };
            under_way.spawn(call(item));
        }
        match under_way.join_next().await {
            None => return Ok(answers),
            Some(answer) => {
                answers.push(answer.map_err(|error| Status::with(Code::Internal, error.to_string()))??)
            }
        }
    }
}

/// Id and newest revision of a cluster at one point in time.
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

/// A revision of the source that has to be replayed, converted to a transaction.
#[derive(Clone, Debug)]
struct Step {
    revision: i64,
    transaction: pb::TxnRequest,
    /// Ids of the leases to which the revision attaches keys. They must exist at the destination before the
    /// transaction is sent.
    leases: BTreeSet<i64>,
}

/// Outcome of a transaction that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// The transaction was applied. The destination has reached this revision.
    Applied(i64),
    /// A condition did not hold: the transaction arrived too early, or was applied before.
    Guarded,
    /// It is not known whether the transaction was applied.
    Unknown,
    /// A lease to which the transaction attaches keys does not exist at the destination.
    NoLease,
}

struct Replay<'a> {
    call: &'a Call,
    source: Client,
    target: Client,
    operations_max: usize,
    leases: Leases,
    /// Task that renews the leases at the destination, so that a lease does not expire at the destination
    /// before it ends at the source.
    renewals: JoinHandle<()>,
    watcher: Watcher,
    /// Keys that were replayed since source and destination were last compared.
    changed: Changed,
    /// Revision that the destination has reached.
    replayed: i64,
    chain: Chain,
    /// Number of transactions that one round sends before it waits for their outcomes.
    window: usize,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

impl<'a> Replay<'a> {
    /// Begins a replay at the revision that the destination has reached.
    async fn begin(
        call: &'a Call,
        source: Client,
        target: Client,
        operations_max: usize,
    ) -> Result<Replay<'a>, Failure> {
        // Begin to renew the leases first, because the leases of a destination that was just restored could
        // expire during the comparison that follows.
        let leases = Leases::learn(source.clone(), target.clone()).await?;
        let renewals = tokio::spawn(leases.clone().keep());
        let (there, here) = (Now::of(&target).await?, Now::of(&source).await?);
        let watcher = watch(&source, there.revision + 1);
        let replayed = there.revision;
        let replay = Replay {
            call,
            source,
            target,
            operations_max,
            leases,
            renewals,
            watcher,
            changed: Changed::unknown(),
            replayed,
            chain: Chain::default(),
            window: WINDOW,
        };
        if here.cluster_id == there.cluster_id {
            return Err(Failure::error("source and destination are the same cluster"));
        }
        if there.revision > here.revision {
            return Err(Failure::error(format!(
                "the destination is at revision {}, but the source only at {}: the destination is not a copy of the source, or has been written to",
                there.revision, here.revision
            )));
        }
        let compared = differences(replay.source.clone(), replay.target.clone(), there.revision).await;
        told(compared, there.revision)?;
        Ok(replay)
    }

    /// Returns the next update of the watch at the source. No update is lost if the future is dropped before
    /// it is ready.
    async fn next(&mut self) -> Result<Option<WatchUpdate>, Failure> {
        loop {
            match self.watcher.next().await {
                // Open the watch again, which may reach another member: this member has no leader, but
                // another one may have.
                Err(status) if status.message == error::NO_LEADER.message => {
                    self.watcher = watch(&self.source, self.watcher.next_revision());
                    sleep(PAUSE).await;
                }
                update => return Ok(update?),
            }
        }
    }

    /// Replays the source until an error occurs.
    async fn follow(&mut self) -> Result<std::convert::Infallible, Failure> {
        let mut report_at = Instant::now() + REPORT_INTERVAL;
        loop {
            match race(self.next(), sleep_until(report_at)).await {
                First::Left(update) => self.take(update?).await?,
                First::Right(()) => {
                    self.leases.match_source().await?;
                    let source = Now::of(&self.source).await?.revision;
                    self.call.line(format!("revision {} of {source}", self.replayed))?;
                    report_at = Instant::now() + REPORT_INTERVAL;
                }
            }
        }
    }

    /// Replays the source up to this revision.
    async fn reach(&mut self, revision: i64) -> Result<(), Failure> {
        while self.replayed < revision {
            let update = self.next().await?;
            self.take(update).await?;
        }
        Ok(())
    }

    /// Replays an update of the watch, together with other updates that have already arrived, so that their
    /// transactions are in flight at the same time.
    async fn take(&mut self, update: Option<WatchUpdate>) -> Result<(), Failure> {
        let mut steps = VecDeque::new();
        self.add(update, &mut steps).await?;
        // Take at most `WINDOW` updates. Without a limit this loop might never end, because updates could
        // arrive as fast as they are taken.
        for _ in 1..WINDOW {
            match race(self.next(), std::future::ready(())).await {
                First::Left(update) => self.add(update?, &mut steps).await?,
                First::Right(()) => break,
            }
        }
        self.send(&mut steps).await
    }

    /// Converts an update to steps, and appends them to `steps`.
    async fn add(&mut self, update: Option<WatchUpdate>, steps: &mut VecDeque<Step>) -> Result<(), Failure> {
        match update {
            Some(WatchUpdate::Events(response)) => self.add_revisions(response.events, steps).await,
            Some(WatchUpdate::Created(_) | WatchUpdate::Progress(_)) => Ok(()),
            Some(WatchUpdate::Canceled(response)) if response.compact_revision != 0 => {
                Err(Failure::error(format!(
                    "{} (the destination is at revision {}, but the source has history only from {} on; \
                     restore the destination from a newer snapshot)",
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

    /// Converts the events of each revision to a step, and appends the step. If a conversion requires that
    /// earlier steps are applied, sends those first.
    async fn add_revisions(&mut self, events: Vec<Event>, steps: &mut VecDeque<Step>) -> Result<(), Failure> {
        for events in events.chunk_by(|a, b| Mark::of(a).revision == Mark::of(b).revision) {
            // A condition about one key of the revision is enough. Choose the shortest key, so that the
            // condition adds little to the size of the request.
            let Some(mark) = events.iter().map(Mark::of).min_by_key(|mark| mark.key.len()) else { continue };
            let expected = self.replayed + steps.len() as i64 + 1;
            if mark.revision != expected {
                return Err(Failure::error(format!(
                    "revision {} of the source came after {}: the revisions between are hidden from this \
                     user, who must be able to read all keys",
                    mark.revision,
                    expected - 1
                )));
            }
            for event in events {
                self.changed.add(event.kv.as_ref().map_or(&[], |kv| &kv.key));
            }
            let before = self.chain.next(events);
            if before.is_none() {
                self.send(steps).await?;
            }
            let mut operations: Vec<Request> = events.iter().map(operation).collect();
            if self.are_too_many(&operations) {
                // Send all earlier steps first, because `in_ranges` reads the keys of the destination, which
                // must be those directly before this revision.
                self.send(steps).await?;
                operations = self.in_ranges(operations).await?;
                if self.are_too_many(&operations) && self.by_lease(&mark, &operations).await? {
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

    /// Sends the steps in rounds until all of them are applied, and removes them from `steps`.
    async fn send(&mut self, steps: &mut VecDeque<Step>) -> Result<(), Failure> {
        let mut idle_rounds = 0;
        while !steps.is_empty() {
            let window = self.window.min(steps.len());
            for id in steps.iter().take(window).flat_map(|step| &step.leases) {
                self.leases.ensure(*id).await?;
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
            // If not all outcomes are "applied", ask the destination for its revision, which shows how many
            // of the transactions were applied.
            let there = if applied == window { end } else { Now::of(&self.target).await?.revision };
            while steps.front().is_some_and(|step| step.revision <= there) {
                steps.pop_front();
            }
            if applied < window && !is_unknown {
                self.window = applied.max(1);
            } else {
                self.window = (self.window * 2).min(WINDOW);
            }
            // The destination must be exactly at the revision before the first unapplied step, and not beyond
            // the last one that was sent. Otherwise another client has written to it.
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

    /// Returns true if a transaction with these operations exceeds the maximum number of operations or
    /// [`TXN_BYTES_MAX`].
    fn are_too_many(&self, operations: &[Request]) -> bool {
        let bytes: usize = operations.iter().map(Request::encoded_len).sum();
        operations.len() > self.operations_max || bytes > TXN_BYTES_MAX
    }

    /// Reduces the number of operations: replaces deletions of keys that are neighbors at the destination by
    /// deletions of ranges. The changes and their order stay the same. This is needed because the deletion of
    /// a range is a single operation at the source, but may cause any number of events.
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

    /// Returns deletions of ranges that together delete exactly these keys. The keys must be in ascending
    /// order and exist at the destination.
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
                "key {} is deleted at the source, but does not exist at the destination: another client writes to the destination",
                cli::go::quote(&key)
            )));
        }
        let delete = |(from, to): (Bytes, Bytes)| {
            let range_end = if from == to { Bytes::new() } else { after(&to) };
            Request::RequestDeleteRange(pb::DeleteRangeRequest { key: from, range_end, prev_kv: false })
        };
        Ok(ranges.into_iter().map(delete).collect())
    }

    /// Replays a revision that deletes all keys of a lease, and changes nothing else, by revoking the lease
    /// at the destination. Returns false, and changes nothing, for any other revision. Used for revisions
    /// with too many operations for a transaction.
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
                // The deletion of a range, which `in_ranges` has made from several deletions. Check every key
                // in the range.
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
}

/// Opens a watch of all keys from this revision on. With the option to require a leader, a member that is cut
/// off from the others ends the watch; without it, such a member would report no events and no error.
fn watch(source: &Client, start_revision: i64) -> Watcher {
    let request = pb::WatchCreateRequest {
        key: OPEN_END.into(),
        range_end: OPEN_END.into(),
        start_revision,
        fragment: true,
        ..Default::default()
    };
    Watcher::new(&source.with_require_leader(), request)
}

fn foreign(revision: i64, there: i64) -> Failure {
    Failure::error(format!(
        "revision {revision} of the source does not follow the destination's revision {there}: another \
         client writes to the destination, or a lease ended there; restore the destination again"
    ))
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
        Err(status) => {
            Err(Failure::error(format!("the destination refused revision {revision}: {}", status.shown())))
        }
    }
}

/// Returns the key that follows directly after `key`.
fn after(key: &Bytes) -> Bytes {
    [&key[..], b"\0"].concat().into()
}
