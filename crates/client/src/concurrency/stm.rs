//! Software transactional memory as in etcd's `clientv3/concurrency`: [`run`] calls a closure with an [`Stm`] and commits
//! its writes if its reads still hold, or calls it again.

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

/// The isolation between transactions. Source: etcd's `clientv3/concurrency/stm.go`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// As `Serializable`, and no other client has written the keys that are written since the first read.
    #[default]
    SerializableSnapshot,
    /// All reads of an attempt are of the revision of its first read, and still hold at the commit.
    Serializable,
    /// Reads of one key are equal throughout an attempt, and still hold at the commit.
    RepeatableReads,
    /// Reads are of any committed revision; nothing is checked at the commit.
    ReadCommitted,
}

/// One transaction of reads that are remembered and writes that are kept back until the commit.
pub struct Stm {
    client: Client,
    isolation: Isolation,
    reads: BTreeMap<Bytes, Read>,
    writes: BTreeMap<Bytes, Write>,
    /// Values that the failed commit before this attempt read, newer than those it had.
    prefetched: BTreeMap<Bytes, Read>,
    /// The revision of the attempt's first read, where it binds the later ones.
    base: Option<i64>,
}

struct Read {
    kv: Option<KeyValue>,
    /// The store's when it was read.
    revision: i64,
}

struct Write {
    value: Option<Bytes>,
    op: RequestOp,
}

impl Stm {
    /// A transaction that has done nothing yet. Most callers want [`run`]; with this one they repeat by themselves
    /// what stands before a [`Stm::commit`] that says `None`.
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

    /// Returns the value of a key: the one written by this transaction, or the one in the store; `None` if there is no
    /// such key.
    ///
    /// # Errors
    ///
    /// The server's status.
    pub async fn get(&mut self, key: impl Into<Bytes>) -> Result<Option<Bytes>, Status> {
        let key = key.into();
        if let Some(write) = self.writes.get(&key) {
            return Ok(write.value.clone());
        }
        Ok(self.read(key).await?.kv.as_ref().map(|kv| kv.value.clone()))
    }

    /// The revision at which a key was last written, by what this transaction read; 0 without the key.
    ///
    /// # Errors
    /// The server's status.
    pub async fn revision(&mut self, key: impl Into<Bytes>) -> Result<i64, Status> {
        Ok(self.read(key.into()).await?.kv.as_ref().map_or(0, |kv| kv.mod_revision))
    }

    /// Reads several keys in one call, for later [`Stm::get`]s.
    ///
    /// # Errors
    /// The server's status.
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

    /// Writes a key at the commit.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.put_with(PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() });
    }

    /// Writes as [`Stm::put`] does, with a lease or other options.
    pub fn put_with(&mut self, put: PutRequest) {
        let (key, value) = (put.key.clone(), Some(put.value.clone()));
        self.writes.insert(key, Write { value, op: op(request_op::Request::RequestPut(put)) });
    }

    /// Removes a key at the commit.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        let key = key.into();
        let op = delete_op(&key);
        self.writes.insert(key, Write { value: None, op });
    }

    /// Writes, if nothing that the isolation forbids happened since; `None` if it did, and then the transaction is
    /// empty again and has to be repeated.
    ///
    /// # Errors
    /// The server's status.
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
        // In case of a conflict the answer has the keys again, which saves the next attempt a round trip.
        let again = keys.iter().map(|key| op(request_op::Request::RequestRange(get(key)))).collect();
        let writes = writes.into_values().map(|write| write.op).collect();
        let answer = txn(&self.client, conditions, writes, again).await?;
        if answer.succeeded {
            return Ok(Some(answer));
        }
        self.prefetched.extend(reads_of(keys, answer)?);
        Ok(None)
    }

    /// Returns true if the first read's revision binds the later ones.
    fn binds(&self) -> bool {
        matches!(self.isolation, Isolation::SerializableSnapshot | Isolation::Serializable)
    }

    fn range(&self, key: &Bytes) -> RangeRequest {
        match self.base.filter(|_| self.binds()) {
            Some(revision) => RangeRequest { revision, serializable: true, ..get(key) },
            None => RangeRequest { serializable: !self.binds(), ..get(key) },
        }
    }

    /// Returns true if the key was read, now or by the commit that failed.
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
            // A read at an older revision answers with the store's own.
            let revision = self.base.filter(|_| self.binds()).unwrap_or(revision);
            self.base = self.base.or(Some(revision));
            self.reads.insert(key.clone(), Read { kv: answer.kvs.into_iter().next(), revision });
        }
        Ok(&self.reads[&key])
    }
}

/// Pairs keys with what a transaction read of them.
fn reads_of(keys: Vec<Bytes>, answer: TxnResponse) -> Result<Vec<(Bytes, Read)>, Status> {
    let revision = revision(&answer);
    let mut read = Vec::with_capacity(keys.len());
    let mut responses = answer.responses.into_iter();
    for key in keys {
        let Some(response_op::Response::ResponseRange(range)) = responses.next().and_then(|op| op.response)
        else {
            return Err(Status::new(api::Code::Internal, "an answer without what was read"));
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

/// Why a transaction did not happen.
#[derive(Debug)]
pub enum StmError<E> {
    /// The transaction's own code gave up.
    Aborted(E),
    /// The server's status.
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

/// Runs a transaction until it commits. The closure may run several times; what it does beside the transaction happens
/// each time.
///
/// # Errors
/// The closure's own error, which ends it, or the server's status at the commit.
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
