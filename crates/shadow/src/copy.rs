//! The copy: a member of Mainstay inside of this process that is alone in its cluster and has no listener, so that
//! only the shadow changes it. Every revision of the source becomes one transaction of the copy.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::etcdserverpb as pb;
use api::mvccpb::{Event, KeyValue};
use api::{Status, error};
use bytes::{Bytes, BytesMut};
use client::replay::{Chain, Mark, operation};
use config::{Config, Invocation};
use consistency::comparison::{self, HashError, Hashed};
use machine::key_value::{Projection, put_kv};
use machine::txn::OpOutcome;
use machine::{Outcome, Overtaken};
use mvcc::KeyRange;
use numbers::Revision;
use prost::Message as _;
use replica::core::{ClientRequest, CoreRequest, Reply, ReplyBody, Writer};
use replica::long_reads::Reader;
use replica::shared::Shared;
use server::boot::{self, Running};
use storage::values::LogValues;
use telemetry::logging::Logger;
use telemetry::metrics::ShadowMetrics;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::trouble::Trouble;

/// Name of the member that holds the copy.
pub(crate) const NAME: &str = "shadow";
/// Number of transactions in flight, and their bytes above which no further one is sent before the answers.
const WINDOW: usize = 512;
const WINDOW_BYTES: usize = 32 << 20;
/// Time limit for the answer to a transaction. The core answers sooner, also when it gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of rounds of sending, one after the other, in which no transaction could be applied, after which the copy
/// is known to be different.
const ROUNDS_MAX: u32 = 5;
/// TTL in seconds of a lease that has ended at the source before the shadow could ask for its TTL. It serves only
/// to attach keys whose deletion follows.
const ENDED_TTL_SECONDS: i64 = 600;

/// A revision of the source, as a transaction of the copy.
pub(crate) struct Step {
    revision: i64,
    /// The encoded transaction.
    transaction: Bytes,
    /// Leases to which the revision attaches keys.
    leases: BTreeSet<i64>,
    changes: usize,
    /// True if the conditions say nothing about the revision before, so that it must be applied first.
    waits: bool,
}

/// The copy.
pub(crate) struct Copy {
    running: Running,
    shared: Arc<Shared>,
    chain: Chain,
    /// Revision of the last step that was made; the next one must follow it.
    planned: i64,
    /// True if a revision was missing after it.
    has_gap: bool,
    /// Leases that the copy has.
    leases: HashSet<i64>,
}

/// Starts the member that holds the copy, with a listener for metrics and health at these URLs, and no other one. Before
/// it is changed, [`Copy::begin`] must be called.
///
/// # Errors
///
/// Returns the reason why the member does not start.
pub(crate) async fn open(
    data_dir: &Path,
    metrics_urls: &[String],
    logger: &Arc<Logger>,
    stop: &Arc<AtomicBool>,
) -> Result<Copy, Trouble> {
    let config = config(data_dir, metrics_urls)?;
    let (logger, stop) = (Arc::clone(logger), Arc::clone(stop));
    let started = tokio::task::spawn_blocking(move || {
        let never = |_: &Config| Err("a copy belongs to no cluster that could be found".into());
        boot::start(config, logger, &never, &|| stop.load(Ordering::Relaxed))
    });
    let (running, _) = started
        .await
        .map_err(|error| Trouble::Final(error.to_string()))?
        .map_err(|error| Trouble::Final(format!("cannot start the copy: {error}")))?;
    let shared = Arc::clone(running.shared());
    shared.diagnostics.metrics.export_shadow();
    let planned = revision_of(&shared);
    Ok(Copy { running, shared, chain: Chain::default(), planned, has_gap: false, leases: HashSet::new() })
}

/// Returns the options of the member that holds the copy.
fn config(data_dir: &Path, metrics_urls: &[String]) -> Result<Config, Trouble> {
    let mut words = vec![format!("--name={NAME}"), format!("--data-dir={}", data_dir.display())];
    if !metrics_urls.is_empty() {
        words.push(format!("--listen-metrics-urls={}", metrics_urls.join(",")));
    }
    let mut config = match config::parse(&words, &[]) {
        Ok(Invocation::Serve(parsed)) => parsed.config,
        Ok(_) => return Err(Trouble::Final("the options of the copy are not those of a member".to_owned())),
        Err(refusal) => {
            let mut text = Vec::new();
            refusal.report(&mut text, |_| {});
            return Err(Trouble::Final(String::from_utf8_lossy(&text).trim().to_owned()));
        }
    };
    // Nobody is served: without listeners, no client and no member reaches the copy.
    config.listen.client_urls.clear();
    config.listen.client_http_urls.clear();
    config.listen.peer_urls.clear();
    config.listen.console_urls.clear();
    config.cluster.advertise_client_urls.clear();
    // Only the source decides what is refused, and when leases end.
    config.limits.quota_backend_bytes = None;
    config.leases_expire = false;
    Ok(config)
}

fn revision_of(shared: &Shared) -> i64 {
    shared.state.load().view.snapshot().current_revision().0
}

impl Copy {
    /// Returns the member that holds the copy.
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// Returns the revision of the copy.
    pub(crate) fn revision(&self) -> i64 {
        revision_of(&self.shared)
    }

    /// Returns the compact revision of the copy; -1 if it was never compacted.
    pub(crate) fn compact_revision(&self) -> i64 {
        self.shared.state.load().view.snapshot().compact_revision().0
    }

    /// Returns the metrics of the shadow.
    pub(crate) fn metrics(&self) -> &ShadowMetrics {
        &self.shared.diagnostics.metrics.shadow
    }

    /// Returns what reads the copy, for another task.
    pub(crate) fn reader(&self) -> CopyReader {
        CopyReader(Arc::clone(&self.shared))
    }

    /// Returns true if the member that holds the copy has ended by itself, because of its disk for example.
    pub(crate) fn has_ended(&self) -> bool {
        self.running.ended(Duration::ZERO)
    }

    /// Stops the member that holds the copy.
    ///
    /// # Errors
    ///
    /// Returns the reason for which it had ended by itself.
    pub(crate) async fn stop(self) -> Result<(), Trouble> {
        let Copy { running, .. } = self;
        tokio::task::spawn_blocking(move || running.stop())
            .await
            .map_err(|error| Trouble::Final(error.to_string()))?
            .map_err(|error| Trouble::Final(format!("the copy has failed: {error}")))
    }

    /// Begins at the revision of the copy: forgets what was planned and not applied, and lists the leases again,
    /// because the outcome of a change that was not answered is unknown.
    ///
    /// # Errors
    ///
    /// Returns an error if the copy does not answer.
    pub(crate) async fn begin(&mut self) -> Result<(), Trouble> {
        // Transactions whose answers were not awaited may still be under way. They come before this one, which changes
        // nothing; once it is answered, the revision of the copy is final.
        let nothing = pb::TxnRequest::default();
        let barrier = pb::InternalRaftRequest { txn: Some(nothing), ..Default::default() };
        if let Err(status) = self.outcome(barrier).await? {
            return Err(own("be read", &status));
        }
        self.leases = self.listed().await?;
        (self.chain, self.planned, self.has_gap) = (Chain::default(), self.revision(), false);
        Ok(())
    }

    /// Returns the revision of the last step that was made.
    pub(crate) fn planned(&self) -> i64 {
        self.planned
    }

    /// Returns true if revisions were missing between the steps that were made and the events of the last
    /// [`Copy::plan`].
    pub(crate) fn has_gap(&self) -> bool {
        self.has_gap
    }

    /// Makes the transactions for the events of whole revisions, which must follow those before without a gap.
    ///
    /// # Errors
    ///
    /// Returns an error if revisions are missing.
    pub(crate) fn plan(&mut self, events: &[Event]) -> Result<Vec<Step>, Trouble> {
        let mut steps = Vec::new();
        for events in events.chunk_by(|a, b| Mark::of(a).revision == Mark::of(b).revision) {
            // A condition about one key of the revision is enough; the shortest key costs least.
            let Some(mark) = events.iter().map(Mark::of).min_by_key(|mark| mark.key.len()) else { continue };
            if mark.revision != self.planned + 1 {
                self.has_gap = true;
                return Err(Trouble::Passing(format!(
                    "the watch at the source brought revision {} after {}, without the revisions between",
                    mark.revision, self.planned
                )));
            }
            let before = self.chain.next(events);
            let waits = before.is_none();
            let compare = before.into_iter().flatten().chain([mark.is_missing()]).collect();
            let success =
                events.iter().map(|event| pb::RequestOp { request: Some(operation(event)) }).collect();
            let leases = events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.lease);
            steps.push(Step {
                revision: mark.revision,
                leases: leases.filter(|id| *id != 0).collect(),
                transaction: pb::TxnRequest { compare, success, ..Default::default() }.encode_to_vec().into(),
                changes: events.len(),
                waits,
            });
            self.planned = mark.revision;
        }
        Ok(steps)
    }

    /// Returns the leases of the steps that the copy does not have.
    pub(crate) fn missing_leases(&self, steps: &[Step]) -> Vec<i64> {
        let wanted: BTreeSet<i64> = steps.iter().flat_map(|step| &step.leases).copied().collect();
        wanted.into_iter().filter(|id| !self.leases.contains(id)).collect()
    }

    /// Grants leases, given by id with the TTLs that they have at the source, in seconds; 0 if one has ended there.
    ///
    /// # Errors
    ///
    /// Returns an error if the copy refuses.
    pub(crate) async fn grant(&mut self, ttls: &[(i64, i64)]) -> Result<(), Trouble> {
        for window in ttls.chunks(WINDOW) {
            let mut sent = Vec::with_capacity(window.len());
            for (id, ttl_seconds) in window {
                let ttl = if *ttl_seconds > 0 { *ttl_seconds } else { ENDED_TTL_SECONDS };
                let request = pb::LeaseGrantRequest { ttl, id: *id };
                let request = pb::InternalRaftRequest { lease_grant: Some(request), ..Default::default() };
                sent.push((*id, self.propose(request)?));
            }
            for (id, reply) in sent {
                match outcome_of(reply).await? {
                    Ok(_) => {}
                    Err(status) if status.message == error::LEASE_EXIST.message => {}
                    Err(status) => return Err(own(&format!("grant lease {id:x}"), &status)),
                }
                self.leases.insert(id);
            }
        }
        Ok(())
    }

    /// Applies the steps, in order.
    ///
    /// # Errors
    ///
    /// Returns an error if the disk is full or the copy does not answer, after which the caller has to begin again
    /// at the revision of the copy; and if the copy turns out to be different.
    pub(crate) async fn apply(&mut self, steps: Vec<Step>) -> Result<(), Trouble> {
        let mut steps = VecDeque::from(steps);
        let mut idle_rounds = 0;
        while !steps.is_empty() {
            let mut bytes = 0;
            let fits = |(at, step): &(usize, &Step)| {
                let fits = *at == 0 || (!step.waits && bytes + step.transaction.len() <= WINDOW_BYTES);
                bytes += step.transaction.len();
                fits
            };
            let window = steps.iter().take(WINDOW).enumerate().take_while(fits).count();
            let mut sent = Vec::with_capacity(window);
            for step in steps.iter().take(window) {
                sent.push(self.send_transaction(&step.transaction)?);
            }
            let (mut refusal, began) = (None, Instant::now());
            for (step, reply) in steps.iter().zip(sent) {
                match self.applied(step, reply).await {
                    Ok(()) => {}
                    Err(trouble @ (Trouble::Final(_) | Trouble::Different(..))) => return Err(trouble),
                    Err(trouble) => {
                        refusal = refusal.or(Some(trouble));
                        // The others would be waited for in vain, too, one after the other.
                        if began.elapsed() >= PATIENCE {
                            break;
                        }
                    }
                }
            }
            let reached = self.revision();
            let before = steps.len();
            while steps.front().is_some_and(|step| step.revision <= reached) {
                let changes = steps.pop_front().map_or(0, |step| step.changes);
                self.metrics().events.add(changes as u64);
            }
            if let Some(trouble) = refusal {
                return Err(trouble);
            }
            idle_rounds = if steps.len() < before { 0 } else { idle_rounds + 1 };
            if let Some(step) = steps.front().filter(|_| idle_rounds > ROUNDS_MAX) {
                return Err(Trouble::Different(
                    step.revision,
                    format!(
                        "revision {} of the source cannot be applied to the copy at revision {reached}",
                        step.revision
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Checks the answer to the transaction of a step. A transaction whose conditions did not hold is no error: it
    /// was applied before, or came too early.
    async fn applied(&self, step: &Step, reply: oneshot::Receiver<Reply>) -> Result<(), Trouble> {
        let what = format!("apply revision {}", step.revision);
        let (revision, txn) = match answered(reply).await.map_err(|status| own(&what, &status))? {
            Reply { revision, body: ReplyBody::Outcome(Ok(Outcome::Txn(txn)), _), .. } => (revision, txn),
            Reply { body: ReplyBody::Outcome(Err(status), _), .. } => return Err(own(&what, &status)),
            _ => {
                return Err(Trouble::Final(format!(
                    "cannot {what}: the copy gave another answer than asked for"
                )));
            }
        };
        if !txn.succeeded {
            return Ok(());
        }
        // Every change must have been made, because later changes of the revision are numbered after it.
        let made = txn.responses.iter().all(|response| match response {
            OpOutcome::DeleteRange(deleted) => deleted.deleted == 1,
            _ => true,
        });
        if revision.0 != step.revision || !made {
            return Err(Trouble::Different(
                step.revision,
                format!(
                    "revision {} of the source became revision {revision} of the copy{}",
                    step.revision,
                    if made { "" } else { ", which lacked a key that it deletes" }
                ),
            ));
        }
        Ok(())
    }

    /// Compacts the copy at a revision that it has reached.
    ///
    /// # Errors
    ///
    /// Returns an error if the copy refuses.
    pub(crate) async fn compact(&self, revision: i64) -> Result<(), Trouble> {
        let request = pb::CompactionRequest { revision, physical: false };
        let request = pb::InternalRaftRequest { compaction: Some(request), ..Default::default() };
        match self.outcome(request).await? {
            Ok(_) => Ok(()),
            Err(status) if status.message == error::COMPACTED.message => Ok(()),
            Err(status) => Err(own(&format!("compact at revision {revision}"), &status)),
        }
    }

    /// Gives the copy the leases of the source without keys, and ends those that have no keys and no longer exist
    /// at the source. `listed` are the ids at the source, `ttls` the TTLs of those that the copy lacked. Must be
    /// called while no step is being applied.
    ///
    /// # Errors
    ///
    /// Returns an error if the copy refuses.
    pub(crate) async fn match_leases(
        &mut self,
        listed: &HashSet<i64>,
        ttls: &[(i64, i64)],
    ) -> Result<(), Trouble> {
        let lacking = ttls.iter().filter(|(id, ttl)| *ttl > 0 && !self.leases.contains(id));
        let lacking: Vec<(i64, i64)> = lacking.copied().collect();
        self.grant(&lacking).await?;
        let gone: Vec<i64> = self.leases.iter().filter(|id| !listed.contains(id)).copied().collect();
        let mut without_keys = Vec::new();
        for id in gone {
            let asked =
                self.shared.core.ask(move |request| ClientRequest::LeaseKeys(request, numbers::LeaseId(id)));
            let Ok(Ok(Reply { body: ReplyBody::LeaseKeys(keys), .. })) = timeout(PATIENCE, asked).await
            else {
                return Err(Trouble::Passing("the copy does not list the keys of a lease".to_owned()));
            };
            // The keys of a lease are deleted by the revision that ends it at the source. If they are still there,
            // that revision is still to come.
            if keys.is_empty() {
                without_keys.push(id);
            }
        }
        for window in without_keys.chunks(WINDOW) {
            let mut sent = Vec::with_capacity(window.len());
            for id in window {
                let request = pb::LeaseRevokeRequest { id: *id };
                let request = pb::InternalRaftRequest { lease_revoke: Some(request), ..Default::default() };
                sent.push((*id, self.propose(request)?));
            }
            for (id, reply) in sent {
                match outcome_of(reply).await? {
                    Ok(_) => {}
                    Err(status) if status.message == error::LEASE_NOT_FOUND.message => {}
                    Err(status) => return Err(own(&format!("end lease {id:x}"), &status)),
                }
                self.leases.remove(&id);
            }
        }
        Ok(())
    }

    /// Returns the leases that the copy has.
    pub(crate) fn leases(&self) -> &HashSet<i64> {
        &self.leases
    }

    /// Asks the copy for its leases.
    async fn listed(&self) -> Result<HashSet<i64>, Trouble> {
        match timeout(PATIENCE, self.shared.core.ask(ClientRequest::Leases)).await {
            Ok(Ok(Reply { body: ReplyBody::Leases(ids), .. })) => Ok(ids.iter().map(|id| id.0).collect()),
            Ok(Ok(Reply { body: ReplyBody::ManyLeases(leases), .. })) => {
                Ok(leases.iter().map(|(id, _)| id.0).collect())
            }
            _ => Err(Trouble::Passing("the copy does not list its leases".to_owned())),
        }
    }

    fn send_transaction(&self, transaction: &Bytes) -> Result<oneshot::Receiver<Reply>, Trouble> {
        let id = self.shared.ids.command_id();
        let data = replica::core::command(id, TXN, transaction, machine::auth::Caller::default());
        self.send(id, data)
    }

    async fn outcome(&self, request: pb::InternalRaftRequest) -> Result<Result<Outcome, Status>, Trouble> {
        outcome_of(self.propose(request)?).await
    }

    fn propose(&self, mut request: pb::InternalRaftRequest) -> Result<oneshot::Receiver<Reply>, Trouble> {
        let id = self.shared.ids.command_id();
        request.header = Some(pb::RequestHeader { id, ..Default::default() });
        self.send(id, request.encode_to_vec().into())
    }

    fn send(&self, id: u64, data: Bytes) -> Result<oneshot::Receiver<Reply>, Trouble> {
        let core = &self.shared.core;
        core.admit_proposal(data.len()).map_err(|status| own("change the copy", &status))?;
        let (sender, receiver) = oneshot::channel();
        let propose = move |request_id| {
            let writer = Writer::Port(0);
            CoreRequest::Client(ClientRequest::Propose { request_id, id, data, writer, wait_removed: false })
        };
        core.inbox.send(CoreRequest::Outside(sender, Box::new(propose)));
        Ok(receiver)
    }
}

/// Number of the field of a transaction in `InternalRaftRequest`.
const TXN: u32 = 6;

async fn answered(reply: oneshot::Receiver<Reply>) -> Result<Reply, Status> {
    match timeout(PATIENCE, reply).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(_)) => Err(error::STOPPED),
        Err(_) => Err(error::TIMEOUT),
    }
}

async fn outcome_of(reply: oneshot::Receiver<Reply>) -> Result<Result<Outcome, Status>, Trouble> {
    match answered(reply).await {
        Ok(Reply { body: ReplyBody::Outcome(outcome, _), .. }) => Ok(outcome),
        Ok(_) => Err(Trouble::Final("the copy gave another answer than asked for".to_owned())),
        Err(status) => Err(own("change the copy", &status)),
    }
}

/// Returns the trouble of a change that the copy refuses.
fn own(what: &str, status: &Status) -> Trouble {
    if status.message == error::NO_SPACE.message {
        return Trouble::Passing(format!("cannot {what}: the disk of this shadow is full"));
    }
    Trouble::Passing(format!("cannot {what}: the copy answers: {}", status.shown()))
}

/// Reads the copy, from any task.
#[derive(Clone)]
pub(crate) struct CopyReader(Arc<Shared>);

/// Reason why the copy has no hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoOwnHash {
    /// The copy was compacted at another revision than the hash is wanted for.
    OtherCompaction(i64),
    /// The hash cannot be computed.
    Failed(String),
}

impl CopyReader {
    /// Returns the metrics of the shadow.
    pub(crate) fn metrics(&self) -> &ShadowMetrics {
        &self.0.diagnostics.metrics.shadow
    }

    /// Returns the revision of the copy.
    pub(crate) fn revision(&self) -> i64 {
        revision_of(&self.0)
    }

    /// Returns the HashKV of the copy at a revision, for this compact revision. For the revision of a compaction
    /// there are two hashes: that of the compaction itself, which etcd keeps and computes for the compact revision
    /// before it, and that of what the compaction has left.
    ///
    /// # Errors
    ///
    /// Returns an error if the copy is or was compacted at another revision, or if it cannot be read.
    pub(crate) async fn hash(&self, revision: i64, compact_revision: i64) -> Result<u32, NoOwnHash> {
        let failed = |error: HashError| NoOwnHash::Failed(error.to_string());
        let kept: Hashed = comparison::hash_at(&self.0, Revision(revision)).await.map_err(failed)?;
        if kept.compact_revision.0 == compact_revision {
            return Ok(kept.hash);
        }
        let shared = Arc::clone(&self.0);
        let hashing = tokio::task::spawn_blocking(move || {
            comparison::hash_of(&shared, Revision(revision), &AtomicBool::new(false))
        });
        let hashed = hashing.await.map_err(|error| NoOwnHash::Failed(error.to_string()))?.map_err(failed)?;
        match hashed.compact_revision.0 {
            own if own == compact_revision => Ok(hashed.hash),
            own => Err(NoOwnHash::OtherCompaction(own)),
        }
    }

    /// Returns up to `limit` keys from `from` on, as of a revision; no further ones after `bytes_max` bytes, but two in
    /// any case.
    ///
    /// # Errors
    ///
    /// Returns the reason why they cannot be read.
    pub(crate) fn page(
        &self,
        from: &[u8],
        revision: i64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<KeyValue>, String> {
        let (state, published) = self.0.read_long(Reader::Range);
        drop(published);
        let slice = state.slice().map_err(|error: Overtaken| error.to_string())?;
        let snapshot = slice.snapshot();
        let values = LogValues::new(self.0.data.values.clone());
        let versions = snapshot.range(KeyRange::from(from), Revision(revision));
        let (mut found, mut bytes) = (Vec::new(), 0);
        for version in versions.map_err(|error| machine::range::refused(error).shown())?.take(limit) {
            let mut encoded = BytesMut::new();
            put_kv(version, Projection::default(), &values, &mut encoded)
                .map_err(|error| error.to_string())?;
            bytes += encoded.len();
            found.push(KeyValue::decode(encoded.freeze()).map_err(|error| error.to_string())?);
            if bytes >= bytes_max && found.len() > 1 {
                break;
            }
        }
        Ok(found)
    }
}
