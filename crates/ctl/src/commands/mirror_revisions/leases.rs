//! Gives the destination of a mirror the leases of the source, with the same ids and TTLs, and renews them
//! until they end at the source.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::etcdserverpb as pb;
use api::{Code, Rpc, Status, error};
use cli::Failure;
use client::{Client, Stream, lease};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Now, each, locked};

/// Interval at which the mirror renews the leases of the destination that are due.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit for opening a stream of renewals, and for the response to a renewal. After it, the stream is
/// given up, and the next round opens another one, possibly to another member.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(2);
/// Number of renewals that are sent on a stream before their responses are awaited.
const RENEWALS_AHEAD: usize = 64;
/// Maximum number of concurrent renewal streams. Several are needed because a follower of etcd forwards the
/// renewals of one stream to its leader one at a time.
const STREAMS_MAX: usize = 16;
/// Time limit for each request by which an endpoint lists its leases.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// TTL in seconds of a lease that is granted at the destination although it has already ended at the source:
/// a replayed revision attaches keys to it, and the deletion of these keys will be replayed later.
const GONE_TTL_SECONDS: i64 = 600;

/// A lease at the destination.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// TTL in seconds that this mirror has requested; `None` if the mirror has found the lease at the
    /// destination. The destination may have granted a longer TTL, because its minimum TTL depends on its
    /// election timeout.
    asked_seconds: Option<i64>,
    /// TTL in seconds that the destination has granted; `None` until the response to a renewal contains it.
    granted_seconds: Option<i64>,
    due: Instant,
}

/// Result of comparing the leases of source and destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Matched {
    /// Number of leases of the source.
    pub(super) leases: usize,
    /// Id of a lease that has keys and a different TTL at the destination; `None` if there is no such lease.
    /// The source has ended the lease and granted its id again; possibly the deletion of the old keys has not
    /// been replayed yet.
    pub(super) reused: Option<i64>,
}

/// The leases that the destination is known to have. Clones share them.
#[derive(Clone)]
pub(super) struct Leases {
    held: Arc<Mutex<HashMap<i64, Held>>>,
    source: Client,
    target: Client,
}

impl Leases {
    /// Lists the leases of the destination, and renews each once.
    ///
    /// # Errors
    /// Returns an error if the destination does not list its leases.
    pub(super) async fn learn(source: Client, target: Client) -> Result<Leases, Status> {
        let leases = Leases { held: Arc::default(), source, target };
        let due = Instant::now();
        for id in listed(&leases.target).await? {
            leases.held().insert(id, Held { asked_seconds: None, granted_seconds: None, due });
        }
        leases.renew_all().await;
        Ok(leases)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<i64, Held>> {
        locked(&self.held)
    }

    /// Removes a lease from the known leases, because the destination does not have it or is about to revoke
    /// it.
    pub(super) fn forget(&self, id: i64) {
        self.held().remove(&id);
    }

    /// Grants a lease of the source at the destination, unless it already exists there.
    ///
    /// # Errors
    /// Returns an error if the source or the destination refuses, or cannot be reached.
    pub(super) async fn ensure(&self, id: i64) -> Result<(), Status> {
        if self.held().contains_key(&id) {
            return Ok(());
        }
        let ttl_seconds = match granted_seconds(&self.source, id).await? {
            seconds if seconds > 0 => seconds,
            _ => GONE_TTL_SECONDS,
        };
        self.grant(id, ttl_seconds).await
    }

    async fn grant(&self, id: i64, ttl_seconds: i64) -> Result<(), Status> {
        let now = Instant::now();
        let held = match lease::grant(&self.target, ttl_seconds, id).await {
            Ok(answer) => Held {
                asked_seconds: Some(ttl_seconds),
                granted_seconds: Some(answer.ttl),
                due: now + third(answer.ttl),
            },
            Err(status) if status.message == error::LEASE_EXIST.message => {
                Held { asked_seconds: None, granted_seconds: None, due: now }
            }
            Err(status) => return Err(status),
        };
        self.held().insert(id, held);
        Ok(())
    }

    /// Grants all leases of the source at the destination, with the same TTLs. Revokes the leases at the
    /// destination that have ended at the source and have no keys.
    ///
    /// # Errors
    /// Returns an error if the source or the destination refuses, or cannot be reached.
    pub(super) async fn match_source(&self) -> Result<Matched, Failure> {
        let ids: BTreeSet<i64> = listed(&self.source).await?.into_iter().collect();
        let leases = ids.len();
        let gone: Vec<i64> = self.held().keys().filter(|id| !ids.contains(id)).copied().collect();
        let alike = each(ids, |id| {
            let leases = self.clone();
            async move { Ok::<_, Failure>((id, leases.make_alike(id).await?)) }
        });
        let reused = alike.await?.into_iter().find(|(_, is_alike)| !is_alike).map(|(id, _)| id);
        each(gone, |id| {
            let leases = self.clone();
            async move { leases.end(id).await }
        })
        .await?;
        Ok(Matched { leases, reused })
    }

    /// Gives a lease the same TTL at the destination as at the source. Returns false if the lease has a
    /// different TTL at the destination and cannot be granted again because it has keys.
    async fn make_alike(&self, id: i64) -> Result<bool, Failure> {
        let Some(held) = self.held().get(&id).copied() else {
            self.ensure(id).await?;
            return Ok(true);
        };
        let wanted = granted_seconds(&self.source, id).await?;
        let has = match held.granted_seconds {
            Some(seconds) => seconds,
            None => granted_seconds(&self.target, id).await?,
        };
        // Nothing to do if the TTLs are equal, or if the lease has ended at the source since it was listed:
        // in that case the next call of `match_source` revokes it at the destination.
        if wanted <= 0 || has == wanted || held.asked_seconds == Some(wanted) {
            return Ok(true);
        }
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let answer: pb::LeaseTimeToLiveResponse = self.target.call(Rpc::LeaseTimeToLive, &request).await?;
        if answer.keys.is_empty() {
            self.revoke(id).await?;
            self.grant(id, wanted).await?;
            return Ok(true);
        }
        // The destination may have a minimum TTL that is longer than the wanted one. Grant another lease with
        // the shortest TTL to find out that minimum. If the lease `id` has the minimum, its TTL cannot be
        // made shorter, so the two TTLs count as equal.
        let probe = lease::grant(&self.target, 1, 0).await?;
        lease::revoke(&self.target, probe.id).await?;
        let is_shortest = wanted < has && has == probe.ttl;
        if is_shortest && let Some(held) = self.held().get_mut(&id) {
            held.asked_seconds = Some(wanted);
        }
        Ok(is_shortest)
    }

    /// Revokes a lease at the destination if it does not exist at the source and has no keys at the
    /// destination.
    async fn end(&self, id: i64) -> Result<(), Failure> {
        // Ask the source again before the lease is revoked: the list came from a single member and may be out
        // of date by now, while the leader answers this request.
        if granted_seconds(&self.source, id).await? > 0 {
            return Ok(());
        }
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let answer: pb::LeaseTimeToLiveResponse = self.target.call(Rpc::LeaseTimeToLive, &request).await?;
        if answer.keys.is_empty() {
            self.revoke(id).await?;
        }
        Ok(())
    }

    async fn revoke(&self, id: i64) -> Result<(), Status> {
        self.forget(id);
        match lease::revoke(&self.target, id).await {
            Ok(_) => Ok(()),
            Err(status) if status.message == error::LEASE_NOT_FOUND.message => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Never returns, and renews each lease after a third of its TTL. Failed renewals are retried. If a lease
    /// with keys expires nevertheless, the destination gets a revision that the source does not have, which
    /// the replay detects.
    pub(super) async fn keep(self) {
        loop {
            sleep(RENEWAL_INTERVAL).await;
            let now = Instant::now();
            let due = self.held().iter().filter(|(_, held)| held.due <= now).map(|(id, _)| *id).collect();
            self.renew(due).await;
        }
    }

    /// Renews all leases once. Failures are ignored, because [`Leases::keep`] retries.
    pub(super) async fn renew_all(&self) {
        let all = self.held().keys().copied().collect();
        self.renew(all).await;
    }

    /// Renews these leases over several streams, in the order in which they are due.
    async fn renew(&self, mut ids: Vec<i64>) {
        {
            let held = self.held();
            ids.sort_by_key(|id| held.get(id).map(|held| held.due));
        }
        let streams = ids.len().div_ceil(RENEWALS_AHEAD).clamp(1, STREAMS_MAX);
        let mut parts = vec![Vec::new(); streams];
        for (part, id) in (0..streams).cycle().zip(ids) {
            parts[part].push(id);
        }
        let mut renewals = JoinSet::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let leases = self.clone();
            renewals.spawn(async move { leases.renew_over_one_stream(&part).await });
        }
        while renewals.join_next().await.is_some() {}
    }

    /// Renews these leases over one stream, and stops at the first renewal that fails. The lease whose
    /// renewal failed becomes due later, so that it does not keep the other leases from being renewed first
    /// in the next round.
    async fn renew_over_one_stream(&self, ids: &[i64]) {
        let opened =
            timeout(RENEWAL_PATIENCE, self.target.open::<_, pb::LeaseKeepAliveResponse>(Rpc::LeaseKeepAlive));
        let Ok(Ok(mut stream)) = opened.await else { return };
        for part in ids.chunks(RENEWALS_AHEAD) {
            let began = Instant::now();
            for id in part {
                if stream.send(&pb::LeaseKeepAliveRequest { id: *id }).await.is_err() {
                    return;
                }
            }
            for id in part {
                if !self.take_renewal(&mut stream, began).await {
                    if let Some(held) = self.held().get_mut(id) {
                        held.due = held.due.max(began + RENEWAL_INTERVAL);
                    }
                    return;
                }
            }
        }
    }

    /// Waits for the response to a renewal that was sent at `began` or later, and handles it. Returns false
    /// if the stream has ended or no response came in time.
    async fn take_renewal(
        &self,
        stream: &mut Stream<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse>,
        began: Instant,
    ) -> bool {
        let Ok(Ok(Some(answer))) = timeout(RENEWAL_PATIENCE, stream.next()).await else { return false };
        let mut held = self.held();
        if answer.ttl > 0 {
            if let Some(held) = held.get_mut(&answer.id) {
                held.granted_seconds = Some(answer.ttl);
                held.due = Instant::now() + third(answer.ttl);
            }
        } else if held.get(&answer.id).is_some_and(|held| held.due <= began) {
            // The lease does not exist, so remove it. But keep a lease that is due later than `began`,
            // because it may have been granted again since this renewal was sent.
            held.remove(&answer.id);
        }
        true
    }
}

fn third(ttl_seconds: i64) -> Duration {
    Duration::from_secs(ttl_seconds.max(1).unsigned_abs()) / 3
}

/// Lists the leases that a cluster has now. A member lists the leases that it knows, and may lag behind.
/// Therefore each endpoint first makes a linearizable read, after which it has caught up, and then lists its
/// leases. Returns the first list that arrives.
async fn listed(client: &Client) -> Result<Vec<i64>, Status> {
    let mut asked = JoinSet::new();
    for endpoint in client.endpoints() {
        let one = client.at(&endpoint).within(LIST_PATIENCE);
        asked.spawn(async move {
            Now::of(&one).await?;
            let answer: pb::LeaseLeasesResponse =
                one.call(Rpc::LeaseLeases, &pb::LeaseLeasesRequest {}).await?;
            Ok(answer.leases.into_iter().map(|lease| lease.id).collect())
        });
    }
    let mut last = Status::new(Code::Unavailable, "no endpoint lists the leases");
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(ids)) => return Ok(ids),
            Ok(Err(status)) => last = status,
            Err(error) => last = Status::with(Code::Internal, error.to_string()),
        }
    }
    Err(last)
}

/// Returns the TTL with which a lease was granted, in seconds; 0 or less if the lease does not exist.
async fn granted_seconds(client: &Client, id: i64) -> Result<i64, Status> {
    let request = pb::LeaseTimeToLiveRequest { id, keys: false };
    let answer: pb::LeaseTimeToLiveResponse = client.call(Rpc::LeaseTimeToLive, &request).await?;
    Ok(answer.granted_ttl)
}
