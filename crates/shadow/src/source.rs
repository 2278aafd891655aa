//! The source: a cluster of etcd or Mainstay, over etcd's API. The shadow only reads it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use api::etcdserverpb as pb;
use api::{Rpc, Status, error};
use client::{Client, Watcher};
use disk::{Disk as _, RealDisk};
use prost::Message;
use tokio::time::timeout;

use crate::trouble::Trouble;

/// Time limit of a call that reads little.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of HashKV, for which a member reads its whole database.
const HASH_PATIENCE: Duration = Duration::from_secs(600);
/// Time limit for the next piece of a snapshot, before the first of which a member may have to prepare it.
const PIECE_PATIENCE: Duration = Duration::from_secs(300);
/// Maximum bytes of the changes of one revision that the shadow takes.
pub(crate) const REVISION_BYTES_MAX: usize = 256 << 20;
/// Space in bytes that the log and the checkpoints need besides the data.
const OTHER_BYTES: u64 = 512 << 20;
/// The key, and the end of a range, that stand for "from the first key to the last".
pub(crate) const OPEN_END: &[u8] = b"\0";
/// Maximum number of calls that ask for the TTLs of leases at the same time.
const LEASE_CALLS_MAX: usize = 32;

/// A hash that a member of the source has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceHash {
    pub(crate) hash: u32,
    /// Id of the member that has answered: an endpoint may be an address of several.
    pub(crate) member_id: u64,
    /// Compact revision for which the hash was computed; -1 if there is none.
    pub(crate) compact_revision: i64,
    /// True if the member has said that the hash is of the revision asked for. etcd before 3.6 does not say it, and
    /// its first releases with hashes of compactions may return that of a later compaction.
    pub(crate) is_of_revision: bool,
}

/// Reason why a member of the source has returned no hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoHash {
    /// The revision is compacted.
    Compacted,
    /// The member has not reached the revision.
    Future,
    Trouble(Trouble),
}

/// A cluster whose id is known. Every answer is checked to come from that cluster.
#[derive(Clone)]
pub(crate) struct Source {
    client: Client,
    cluster_id: u64,
}

impl Source {
    /// Asks all endpoints for the id of their cluster. `known` is the id of the cluster that the data directory
    /// is a copy of; `None` if there is no copy yet.
    ///
    /// # Errors
    ///
    /// Returns an error if no endpoint answers, if the endpoints belong to several clusters, or if they belong to
    /// another cluster than `known`.
    pub(crate) async fn identify(client: &Client, known: Option<u64>) -> Result<Source, Trouble> {
        let mut asked = tokio::task::JoinSet::new();
        for endpoint in client.endpoints() {
            let one = client.at(&endpoint).within(PATIENCE);
            asked.spawn(
                async move { (endpoint, one.call(Rpc::MaintenanceStatus, &pb::StatusRequest {}).await) },
            );
        }
        let mut found: Option<(String, u64)> = None;
        let mut trouble = Trouble::Passing("no endpoint".to_owned());
        while let Some(answer) = asked.join_next().await {
            let (endpoint, answer): (String, Result<pb::StatusResponse, Status>) =
                answer.map_err(|error| Trouble::Passing(error.to_string()))?;
            let cluster_id = match answer {
                Ok(answer) => answer.header.unwrap_or_default().cluster_id,
                Err(status) => {
                    trouble = of_call(&client.at(&endpoint), &format!("reach {endpoint}"), &status);
                    continue;
                }
            };
            if let Some(known) = known.filter(|known| *known != cluster_id) {
                return Err(other_cluster(known, cluster_id, &endpoint));
            }
            match &found {
                Some((other, id)) if *id != cluster_id => {
                    return Err(Trouble::Final(format!(
                        "--feed names members of two clusters: {other} belongs to cluster {id:x}, {endpoint} to {cluster_id:x}"
                    )));
                }
                _ => found = Some((endpoint, cluster_id)),
            }
        }
        let (_, cluster_id) = found.ok_or(trouble)?;
        Ok(Source { client: client.clone(), cluster_id })
    }

    /// Checks again that all endpoints that answer belong to this cluster.
    ///
    /// # Errors
    ///
    /// Returns an error if one does not, or if none answers.
    pub(crate) async fn confirm(&self) -> Result<(), Trouble> {
        Source::identify(&self.client, Some(self.cluster_id)).await.map(|_| ())
    }

    /// Returns the id of the cluster.
    pub(crate) fn cluster_id(&self) -> u64 {
        self.cluster_id
    }

    /// Returns the endpoints.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.client.endpoints()
    }

    /// Checks that an answer comes from this cluster. Answers without a header pass: etcd sends none when it
    /// cancels a watch.
    pub(crate) fn check(&self, header: Option<&pb::ResponseHeader>) -> Result<(), Trouble> {
        match header {
            Some(header) if header.cluster_id != 0 && header.cluster_id != self.cluster_id => {
                Err(other_cluster(self.cluster_id, header.cluster_id, "an endpoint"))
            }
            _ => Ok(()),
        }
    }

    async fn call<Req: Message, Resp: Message + Default>(
        &self,
        rpc: Rpc,
        request: &Req,
        header: impl Fn(&Resp) -> Option<&pb::ResponseHeader>,
        what: &str,
    ) -> Result<Resp, Trouble> {
        let answer: Resp = self
            .client
            .within(PATIENCE)
            .call(rpc, request)
            .await
            .map_err(|status| of_call(&self.client, what, &status))?;
        self.check(header(&answer))?;
        Ok(answer)
    }

    /// Returns the newest revision of the cluster: the answer is linearizable.
    pub(crate) async fn revision(&self) -> Result<i64, Trouble> {
        let request = pb::RangeRequest { key: OPEN_END.into(), count_only: true, ..Default::default() };
        let answer: pb::RangeResponse = self
            .call(
                Rpc::KvRange,
                &request,
                |answer: &pb::RangeResponse| answer.header.as_ref(),
                "read the revision",
            )
            .await?;
        Ok(answer.header.unwrap_or_default().revision)
    }

    /// Returns true if the cluster has compacted this revision, that is, if its compact revision is above it.
    pub(crate) async fn is_compacted(&self, revision: i64) -> Result<bool, Trouble> {
        let request =
            pb::RangeRequest { key: OPEN_END.into(), count_only: true, revision, ..Default::default() };
        let answer = self.client.within(PATIENCE).call(Rpc::KvRange, &request).await;
        match answer {
            Ok(pb::RangeResponse { header, .. }) => self.check(header.as_ref()).map(|()| false),
            Err(status) if status.message == error::COMPACTED.message => Ok(true),
            Err(status) => Err(of_call(&self.client, "look for a compaction", &status)),
        }
    }

    /// Returns the compact revision of the cluster, which is at least `known` (-1 for none), at most `newest`.
    /// etcd tells the compact revision only with a hash of all its data, so the boundary is searched with reads of
    /// one key that does not exist: one read if nothing was compacted since, otherwise about twenty.
    pub(crate) async fn compact_revision(&self, known: i64, newest: i64) -> Result<i64, Trouble> {
        // Revision 0 stands for the newest one, so the first revision that can be asked for is 1.
        let (mut low, mut high) = (known.max(1), newest);
        if low >= high || !self.is_compacted(low).await? {
            return Ok(known);
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if self.is_compacted(middle).await? { low = middle } else { high = middle }
        }
        // If the cluster was compacted again during the search, the boundary that was found may be no compact
        // revision. Then the next search finds the new one.
        Ok(if self.is_compacted(high).await? { known } else { high })
    }

    /// Opens a watch of all changes from this revision on. A member that has no leader ends the watch, because it
    /// may lag without knowing.
    pub(crate) fn watch(&self, start_revision: i64) -> Watcher {
        let request = pb::WatchCreateRequest {
            key: OPEN_END.into(),
            range_end: OPEN_END.into(),
            start_revision,
            fragment: true,
            ..Default::default()
        };
        Watcher::new(&self.client.with_require_leader(), request).by_revision(REVISION_BYTES_MAX)
    }

    /// Asks the member at one endpoint for its HashKV.
    pub(crate) async fn hash(&self, endpoint: &str, revision: i64) -> Result<SourceHash, NoHash> {
        let request = pb::HashKvRequest { revision };
        let answer =
            self.client.at(endpoint).within(HASH_PATIENCE).call(Rpc::MaintenanceHashKv, &request).await;
        let answer: pb::HashKvResponse = answer.map_err(|status| match status {
            status if status.message.contains(revision_error(&error::COMPACTED)) => NoHash::Compacted,
            status if status.message.contains(revision_error(&error::FUTURE_REV)) => NoHash::Future,
            status => NoHash::Trouble(Trouble::of_source(&format!("get HashKV from {endpoint}"), &status)),
        })?;
        self.check(answer.header.as_ref()).map_err(NoHash::Trouble)?;
        if answer.hash_revision != 0 && answer.hash_revision != revision {
            let text =
                format!("{endpoint} returned HashKV of revision {} for {revision}", answer.hash_revision);
            return Err(NoHash::Trouble(Trouble::Passing(text)));
        }
        Ok(SourceHash {
            hash: answer.hash,
            member_id: answer.header.unwrap_or_default().member_id,
            compact_revision: answer.compact_revision,
            is_of_revision: answer.hash_revision == revision,
        })
    }

    /// Returns the errors that the members report about themselves, such as raised alarms, without duplicates. Members
    /// that do not answer are left out. The call that lists alarms is not used, because in etcd it is an entry of the
    /// raft log.
    ///
    /// # Errors
    ///
    /// Returns an error if a member belongs to another cluster.
    pub(crate) async fn alarms(&self) -> Result<BTreeSet<String>, Trouble> {
        let mut alarms = BTreeSet::new();
        for endpoint in self.endpoints() {
            let one = self.client.at(&endpoint).within(PATIENCE);
            let answer = one.call(Rpc::MaintenanceStatus, &pb::StatusRequest {}).await;
            let Ok(pb::StatusResponse { header, errors, .. }) = answer else { continue };
            self.check(header.as_ref())?;
            alarms.extend(errors);
        }
        Ok(alarms)
    }

    /// Returns the endpoints that answer and are not the leader; all endpoints if there are none.
    ///
    /// # Errors
    ///
    /// Returns an error if a member belongs to another cluster.
    pub(crate) async fn followers(&self) -> Result<Vec<String>, Trouble> {
        let endpoints = self.endpoints();
        if endpoints.len() < 2 {
            return Ok(endpoints);
        }
        let mut followers = Vec::new();
        for endpoint in &endpoints {
            let one = self.client.at(endpoint).within(PATIENCE);
            let answer = one.call(Rpc::MaintenanceStatus, &pb::StatusRequest {}).await;
            let Ok(pb::StatusResponse { header, leader, .. }) = answer else { continue };
            self.check(header.as_ref())?;
            if leader != 0 && header.unwrap_or_default().member_id != leader {
                followers.push(endpoint.clone());
            }
        }
        Ok(if followers.is_empty() { endpoints } else { followers })
    }

    /// Returns the ids of all leases.
    pub(crate) async fn leases(&self) -> Result<Vec<i64>, Trouble> {
        let request = pb::LeaseLeasesRequest {};
        let answer: pb::LeaseLeasesResponse = self
            .call(
                Rpc::LeaseLeases,
                &request,
                |answer: &pb::LeaseLeasesResponse| answer.header.as_ref(),
                "list the leases",
            )
            .await?;
        Ok(answer.leases.into_iter().map(|lease| lease.id).collect())
    }

    /// Returns the TTLs with which these leases were granted, in seconds; 0 for a lease that has ended.
    pub(crate) async fn ttls(&self, ids: Vec<i64>) -> Result<Vec<(i64, i64)>, Trouble> {
        let mut ttls = Vec::with_capacity(ids.len());
        let mut asked = tokio::task::JoinSet::new();
        let mut ids = ids.into_iter();
        loop {
            while asked.len() < LEASE_CALLS_MAX {
                let Some(id) = ids.next() else { break };
                let source = self.clone();
                asked.spawn(async move { source.ttl(id).await.map(|ttl| (id, ttl)) });
            }
            match asked.join_next().await {
                None => return Ok(ttls),
                Some(answer) => ttls.push(answer.map_err(|error| Trouble::Passing(error.to_string()))??),
            }
        }
    }

    async fn ttl(&self, id: i64) -> Result<i64, Trouble> {
        let request = pb::LeaseTimeToLiveRequest { id, keys: false };
        let answer: pb::LeaseTimeToLiveResponse = self
            .call(
                Rpc::LeaseTimeToLive,
                &request,
                |answer: &pb::LeaseTimeToLiveResponse| answer.header.as_ref(),
                "look up a lease",
            )
            .await?;
        Ok(answer.granted_ttl.max(0))
    }

    /// Reads a page of keys from `from` on, as of a revision.
    pub(crate) async fn page(
        &self,
        from: &[u8],
        revision: i64,
        limit: i64,
    ) -> Result<pb::RangeResponse, Trouble> {
        let request = pb::RangeRequest {
            key: from.to_vec().into(),
            range_end: OPEN_END.into(),
            revision,
            limit,
            ..Default::default()
        };
        self.call(Rpc::KvRange, &request, |answer: &pb::RangeResponse| answer.header.as_ref(), "read keys")
            .await
    }

    /// Saves a snapshot of one member to a file, which this function creates or replaces. Tries the endpoints in
    /// order until one sends a whole snapshot.
    ///
    /// # Errors
    ///
    /// Returns an error if no endpoint sends a snapshot, or if the disk lacks the space for it and for the copy.
    pub(crate) async fn save_snapshot(&self, path: &Path) -> Result<(), Trouble> {
        let mut trouble = Trouble::Passing("no endpoint".to_owned());
        for endpoint in self.endpoints() {
            match self.save_snapshot_of(&endpoint, path).await {
                Ok(()) => return Ok(()),
                Err(end @ Trouble::Final(_)) => return Err(end),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }

    async fn save_snapshot_of(&self, endpoint: &str, path: &Path) -> Result<(), Trouble> {
        let member = self.client.at(endpoint);
        let answer = member.within(PATIENCE).call(Rpc::MaintenanceStatus, &pb::StatusRequest {}).await;
        let status: pb::StatusResponse =
            answer.map_err(|status| Trouble::of_source(&format!("reach {endpoint}"), &status))?;
        self.check(status.header.as_ref())?;
        check_space(path, u64::try_from(status.db_size).unwrap_or(0))?;
        let failed = |error: io::Error| match disk::is_full(&error) {
            true => {
                Trouble::Final(format!("the disk has no space for the snapshot {}: {error}", path.display()))
            }
            false => Trouble::Final(format!("cannot write {}: {error}", path.display())),
        };
        let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        let mut file: File = opened.map_err(failed)?;
        let refused =
            |status: &Status| Trouble::of_source(&format!("take a snapshot from {endpoint}"), status);
        let mut stream = member
            .open_with::<_, pb::SnapshotResponse>(Rpc::MaintenanceSnapshot, &pb::SnapshotRequest {})
            .await
            .map_err(|status| refused(&status))?;
        loop {
            let piece = timeout(PIECE_PATIENCE, stream.next())
                .await
                .map_err(|_| Trouble::Passing(format!("{endpoint} has stopped sending its snapshot")))?;
            let Some(piece) = piece.map_err(|status| refused(&status))? else { break };
            self.check(piece.header.as_ref())?;
            file.write_all(&piece.blob).map_err(failed)?;
        }
        Ok(())
    }
}

/// Returns the trouble of a call. If it ran out of time, the message says why endpoints cannot be reached.
fn of_call(client: &Client, what: &str, status: &Status) -> Trouble {
    let trouble = Trouble::of_source(what, status);
    let reasons: Vec<String> =
        client.dial_errors().iter().map(|(endpoint, error)| format!("{endpoint}: {error}")).collect();
    match trouble {
        Trouble::Passing(text) if !reasons.is_empty() => {
            Trouble::Passing(format!("{text} ({})", reasons.join("; ")))
        }
        trouble => trouble,
    }
}

/// Checks that the disk has space for a snapshot of this size, and for the copy that is made from it.
fn check_space(path: &Path, bytes: u64) -> Result<(), Trouble> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let Ok(space) = RealDisk.space(dir) else { return Ok(()) };
    // A previous snapshot at the same path is replaced.
    let replaced = fs::metadata(path).map_or(0, |found| found.len());
    let needed = bytes.saturating_mul(2).saturating_add(OTHER_BYTES);
    if space.free_bytes.saturating_add(replaced) >= needed {
        return Ok(());
    }
    Err(Trouble::Final(format!(
        "{} has {} MiB free, but a snapshot of {} MiB and its copy need {} MiB",
        dir.display(),
        space.free_bytes >> 20,
        bytes >> 20,
        needed >> 20
    )))
}

fn other_cluster(known: u64, found: u64, endpoint: &str) -> Trouble {
    Trouble::Final(format!(
        "{endpoint} belongs to cluster {found:x}, but this shadow is a copy of cluster {known:x}: --feed names another cluster, or \
         the source was restored from a backup; to begin with it anew, remove the data directory"
    ))
}

/// Returns the part of an error about a revision that etcd's HashKV also uses, whose message has no prefix.
fn revision_error(status: &Status) -> &str {
    status.message.trim_start_matches("etcdserver: ")
}
