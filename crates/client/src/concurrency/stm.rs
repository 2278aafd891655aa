//! Implements software transactional memory as in etcd's `clientv3/concurrency`. [`run`] calls a closure with
//! an [`Stm`], and then commits the writes of the closure if the values that the closure has read are
//! unchanged. Otherwise, [`run`] calls the closure again.

use std::collections::BTreeMap;
use std::fmt;

use api::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnResponse, compare, request_op,
    response_op,
};
use api::mvccpb::KeyValue;
use api::{Rpc, Status};
use bytes::Bytes;

use super::{delete_op, get, op, revision, txn};
use crate::client::Client;

/// Isolation level of a transaction. Source: `clientv3/concurrency/stm.go` of etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Like `Serializable`. In addition, the commit fails if another client has changed one of the written
    /// keys since the first read of the transaction.
    #[default]
    SerializableSnapshot,
    /// All reads of an attempt are at the revision of its first read. The commit fails if one of the read
    /// keys was changed since.
    Serializable,
    /// Repeated reads of a key return the same value within an attempt. The commit fails if one of the read
    /// keys was changed since.
    RepeatableReads,
    /// A read may return any committed revision. The commit checks nothing.
    ReadCommitted,
}

/// One transaction. Reads are recorded and writes are buffered until the commit.
pub struct Stm {
    client: Client,
    isolation: Isolation,
    reads: BTreeMap<Bytes, Read>,
    writes: BTreeMap<Bytes, Write>,
    /// Current values of the keys that the previous attempt had read. They came with the response to its
    /// failed commit, and save this attempt the reads.
    prefetched: BTreeMap<Bytes, Read>,
    /// Revision of the first read of the attempt; `None` before this read. If the isolation level requires
    /// it, later reads use this revision too.
    base: Option<i64>,
}

struct Read {
    kv: Option<KeyValue>,
    /// Revision of the store at which the value was read.
    revision: i64,
}

struct Write {
    value: Option<Bytes>,
    op: RequestOp,
}

impl Stm {
    /// Creates an empty transaction. Most callers should use [`run`]. With this function, the caller must
    /// repeat all reads and writes when [`Stm::commit`] returns `None`.
    pub fn new(client: &Client, isolation: Isolation) -> Stm {
        Stm {
            client: client.clone(),
            isolation,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            prefetched: BTreeMap::new(),
            base: None,
        }
    }

    /// Returns the value of a key: the value that this transaction has written, otherwise the value in the
    /// store. Returns `None` if the key does not exist.
    ///
    /// # Errors
    ///
    /// Returns the server's status.
    pub async fn get(&mut self, key: impl Into<Bytes>) -> Result<Option<Bytes>, Status> {
        let key = key.into();
        if let Some(write) = self.writes.get(&key) {
            return Ok(write.value.clone());
        }
        Ok(self.read(key).await?.kv.as_ref().map(|kv| kv.value.clone()))
    }

    /// Returns the revision at which the key was last written, as read by this transaction; 0 if the key does
    /// not exist.
    ///
    /// # Errors
    /// Returns the server's status.
    pub async fn revision(&mut self, key: impl Into<Bytes>) -> Result<i64, Status> {
        Ok(self.read(key.into()).await?.kv.as_ref().map_or(0, |kv| kv.mod_revision))
    }

    /// Reads several keys with one request, so that later calls of [`Stm::get`] need no request.
    ///
    /// # Errors
    /// Returns the server's status.
    pub async fn prefetch<K: Into<Bytes>>(
        &mut self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<(), Status> {
        let mut missing = Vec::new();
        for key in keys.into_iter().map(Into::into) {
            if !self.recall(&key) && !missing.contains(&key) {
                missing.push(key);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let gets = missing.iter().map(|key| op(request_op::Request::RequestRange(self.range(key)))).collect();
        let answer = txn(&self.client, Vec::new(), gets, Vec::new()).await?;
        let read = reads_of(missing, answer)?;
        self.base = self.base.or(read.first().map(|(_, read)| read.revision));
        self.reads.extend(read);
        Ok(())
    }

    /// Writes a value to a key at the commit.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.put_with(PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() });
    }

    /// Writes to a key at the commit, as [`Stm::put`] does, with a lease or other options.
    pub fn put_with(&mut self, put: PutRequest) {
        let (key, value) = (put.key.clone(), Some(put.value.clone()));
        self.writes.insert(key, Write { value, op: op(request_op::Request::RequestPut(put)) });
    }

    /// Deletes a key at the commit.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        let key = key.into();
        let op = delete_op(&key);
        self.writes.insert(key, Write { value: None, op });
    }

    /// Commits the writes. Returns `None` if the isolation level does not allow the commit because of
    /// concurrent writes. In that case, the transaction is empty again, and the caller must repeat all its
    /// reads and writes.
    ///
    /// # Errors
    /// Returns the server's status.
    pub async fn commit(&mut self) -> Result<Option<TxnResponse>, Status> {
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        self.prefetched.clear();
        self.base = None;
        let mut conditions = Vec::new();
        if self.isolation != Isolation::ReadCommitted {
            conditions.extend(reads.iter().map(|(key, read)| {
                let seen = read.kv.as_ref().map_or(0, |kv| kv.mod_revision);
                modified(key, compare::CompareResult::Equal, seen)
            }));
        }
        if self.isolation == Isolation::SerializableSnapshot
            && let Some(first) = reads.values().map(|read| read.revision).min()
        {
            let less = compare::CompareResult::Less;
            conditions.extend(writes.keys().map(|key| modified(key, less, first + 1)));
        }
        let keys: Vec<Bytes> = if self.binds() { reads.into_keys().collect() } else { Vec::new() };
        // If the commit fails, read the keys in the same request, which saves the next attempt a round trip.
        let again = keys.iter().map(|key| op(request_op::Request::RequestRange(get(key)))).collect();
        let writes = writes.into_values().map(|write| write.op).collect();
        let answer = txn(&self.client, conditions, writes, again).await?;
        if answer.succeeded {
            return Ok(Some(answer));
        }
        self.prefetched.extend(reads_of(keys, answer)?);
        Ok(None)
    }

    /// Returns true if later reads must use the revision of the first read.
    fn binds(&self) -> bool {
        matches!(self.isolation, Isolation::SerializableSnapshot | Isolation::Serializable)
    }

    fn range(&self, key: &Bytes) -> RangeRequest {
        match self.base.filter(|_| self.binds()) {
            Some(revision) => RangeRequest { revision, serializable: true, ..get(key) },
            None => RangeRequest { serializable: !self.binds(), ..get(key) },
        }
    }

    /// Returns true if the value of the key is known: it was read in this attempt, or came with the failed
    /// commit of the previous attempt. In the second case, the value now counts as read in this attempt.
    fn recall(&mut self, key: &Bytes) -> bool {
        if self.reads.contains_key(key) {
            return true;
        }
        let Some(read) = self.prefetched.remove(key) else { return false };
        self.base = self.base.or(Some(read.revision));
        self.reads.insert(key.clone(), read);
        true
    }

    async fn read(&mut self, key: Bytes) -> Result<&Read, Status> {
        if !self.recall(&key) {
            let answer: RangeResponse = self.client.call(Rpc::KvRange, &self.range(&key)).await?;
            let revision = answer.header.map_or(0, |header| header.revision);
            // Use the revision of the read, if it was given. The header has the current revision of the
            // store, even if the read was at an older revision.
            let revision = self.base.filter(|_| self.binds()).unwrap_or(revision);
            self.base = self.base.or(Some(revision));
            self.reads.insert(key.clone(), Read { kv: answer.kvs.into_iter().next(), revision });
        }
        Ok(&self.reads[&key])
    }
}

/// Pairs each key with the value that a transaction read for it.
fn reads_of(keys: Vec<Bytes>, answer: TxnResponse) -> Result<Vec<(Bytes, Read)>, Status> {
    let revision = revision(&answer);
    let mut read = Vec::with_capacity(keys.len());
    let mut responses = answer.responses.into_iter();
    for key in keys {
        let Some(response_op::Response::ResponseRange(range)) = responses.next().and_then(|op| op.response)
        else {
            return Err(Status::new(api::Code::Internal, "an answer without the requested values"));
        };
        read.push((key, Read { kv: range.kvs.into_iter().next(), revision }));
    }
    Ok(read)
}

fn modified(key: &Bytes, result: compare::CompareResult, revision: i64) -> Compare {
    Compare {
        result: result as i32,
        target: compare::CompareTarget::Mod as i32,
        key: key.clone(),
        target_union: Some(compare::TargetUnion::ModRevision(revision)),
        ..Compare::default()
    }
}

/// Error of a transaction that was not committed.
#[derive(Debug)]
pub enum StmError<E> {
    /// The closure returned this error.
    Aborted(E),
    /// Status that the server returned.
    Status(Status),
}

impl<E: fmt::Display> fmt::Display for StmError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StmError::Aborted(error) => error.fmt(f),
            StmError::Status(status) => f.write_str(&crate::client::shown(status)),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for StmError<E> {}

/// Runs a transaction until it is committed. The closure may run several times, so its side effects outside
/// the transaction may also happen several times.
///
/// # Errors
/// Returns the error of the closure, which ends the transaction, or the server's status if the commit fails.
pub async fn run<T, E>(
    client: &Client,
    isolation: Isolation,
    mut apply: impl AsyncFnMut(&mut Stm) -> Result<T, E>,
) -> Result<(T, TxnResponse), StmError<E>> {
    let mut stm = Stm::new(client, isolation);
    loop {
        let value = apply(&mut stm).await.map_err(StmError::Aborted)?;
        if let Some(answer) = stm.commit().await.map_err(StmError::Status)? {
            return Ok((value, answer));
        }
    }
}
