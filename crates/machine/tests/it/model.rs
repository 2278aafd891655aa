//! A simple model of puts, deletes, ranges and transactions: it stores every version of every key in a map,
//! and evaluates every request by scanning the whole map.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use api::etcdserverpb::compare::TargetUnion;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, TxnRequest,
};
use api::{Status, error};
use bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kv {
    pub key: Bytes,
    pub create: i64,
    pub modified: i64,
    pub version: i64,
    pub lease: i64,
    pub value: Bytes,
}

/// A response including values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Put { revision: i64, previous: Option<Kv> },
    Delete { revision: i64, previous: Vec<Kv>, deleted: i64 },
    Range { revision: i64, kvs: Vec<Kv>, more: bool, count: i64 },
    Txn { revision: i64, succeeded: bool, responses: Vec<Answer> },
    Granted(i64),
    Done,
}

#[derive(Clone, Default)]
pub struct Model {
    /// The versions of each key from old to new; `None` for a deletion.
    history: BTreeMap<Bytes, Vec<(i64, Option<Kv>)>>,
    pub revision: i64,
    pub compacted: i64,
    leases: BTreeSet<i64>,
}

impl Model {
    pub fn new() -> Model {
        Model { revision: 1, compacted: -1, ..Model::default() }
    }

    fn within(key: &Bytes, start: &Bytes, end: &Bytes) -> bool {
        match end.as_ref() {
            b"" => key == start,
            b"\0" => key >= start,
            _ => key >= start && key < end,
        }
    }

    fn at(&self, start: &Bytes, end: &Bytes, revision: i64) -> Vec<Kv> {
        let newest = |versions: &Vec<(i64, Option<Kv>)>| {
            versions.iter().rev().find(|(main, _)| *main <= revision).and_then(|(_, kv)| kv.clone())
        };
        let keys = self.history.iter().filter(|(key, _)| Self::within(key, start, end));
        keys.filter_map(|(_, versions)| newest(versions)).collect()
    }

    fn live(&self, key: &Bytes) -> Option<Kv> {
        self.at(key, &Bytes::new(), i64::MAX).pop()
    }

    pub fn apply(&mut self, request: &InternalRaftRequest) -> Result<Answer, Status> {
        if let Some(put) = &request.put {
            if put.lease != 0 && !self.leases.contains(&put.lease) {
                return Err(error::LEASE_NOT_FOUND);
            }
            self.check_put(put)?;
            let main = self.revision + 1;
            let answer = self.put(put, main);
            self.revision = main;
            return Ok(answer);
        }
        if let Some(delete) = &request.delete_range {
            let main = self.revision + 1;
            let (deleted, previous) = self.delete(delete, main);
            self.revision += i64::from(deleted > 0);
            return Ok(Answer::Delete { revision: self.revision, previous, deleted });
        }
        if let Some(txn) = &request.txn {
            // Atomic: the transaction runs on a copy, which replaces the original only at the end.
            let before = self.clone();
            self.check_txn(&before, txn)?;
            let (mut next, main) = (self.clone(), self.revision + 1);
            let mut answer = next.txn(&before, txn, main);
            if next.history.values().flatten().any(|(revision, _)| *revision == main) {
                next.revision = main;
            }
            if let Answer::Txn { revision, .. } = &mut answer {
                *revision = next.revision;
            }
            *self = next;
            return Ok(answer);
        }
        if let Some(compaction) = &request.compaction {
            if compaction.revision <= self.compacted {
                return Err(error::COMPACTED);
            }
            if compaction.revision > self.revision {
                return Err(error::FUTURE_REV);
            }
            self.compacted = compaction.revision;
            return Ok(Answer::Done);
        }
        if let Some(grant) = &request.lease_grant {
            if grant.id == 0 {
                return Err(error::LEASE_NOT_FOUND);
            }
            if !self.leases.insert(grant.id) {
                return Err(error::LEASE_EXIST);
            }
            return Ok(Answer::Granted(grant.ttl.max(0)));
        }
        if let Some(revoke) = &request.lease_revoke {
            if !self.leases.remove(&revoke.id) {
                return Err(error::LEASE_NOT_FOUND);
            }
            let main = self.revision + 1;
            for kv in self.at(&Bytes::new(), &Bytes::from_static(b"\0"), i64::MAX) {
                if kv.lease == revoke.id {
                    self.history.entry(kv.key).or_default().push((main, None));
                    self.revision = main;
                }
            }
        }
        Ok(Answer::Done)
    }

    fn check_put(&self, put: &PutRequest) -> Result<(), Status> {
        if (put.ignore_value || put.ignore_lease) && self.live(&put.key).is_none() {
            return Err(error::KEY_NOT_FOUND);
        }
        if put.lease != 0 && !self.leases.contains(&put.lease) {
            return Err(error::LEASE_NOT_FOUND);
        }
        Ok(())
    }

    fn put(&mut self, put: &PutRequest, main: i64) -> Answer {
        let before = self.live(&put.key);
        let mut kv = Kv {
            key: put.key.clone(),
            create: main,
            modified: main,
            version: 1,
            lease: put.lease,
            value: put.value.clone(),
        };
        if let Some(before) = &before {
            kv.create = before.create;
            kv.version = before.version + 1;
            if put.ignore_value {
                kv.value = before.value.clone();
            }
            if put.ignore_lease {
                kv.lease = before.lease;
            }
        }
        self.history.entry(put.key.clone()).or_default().push((main, Some(kv)));
        Answer::Put { revision: main, previous: before.filter(|_| put.prev_kv) }
    }

    fn delete(&mut self, delete: &DeleteRangeRequest, main: i64) -> (i64, Vec<Kv>) {
        let gone = self.at(&delete.key, &delete.range_end, i64::MAX);
        for kv in &gone {
            self.history.entry(kv.key.clone()).or_default().push((main, None));
        }
        (gone.len() as i64, if delete.prev_kv { gone } else { Vec::new() })
    }

    fn succeeds(&self, txn: &TxnRequest) -> bool {
        txn.compare.iter().all(|compare| self.holds(compare))
    }

    fn holds(&self, compare: &Compare) -> bool {
        let kvs = self.at(&compare.key, &compare.range_end, i64::MAX);
        if kvs.is_empty() {
            let nothing =
                Kv { key: Bytes::new(), create: 0, modified: 0, version: 0, lease: 0, value: Bytes::new() };
            return compare.target != 3 && Self::holds_for(&nothing, compare);
        }
        kvs.iter().all(|kv| Self::holds_for(kv, compare))
    }

    fn holds_for(kv: &Kv, compare: &Compare) -> bool {
        let ordering = match (compare.target, &compare.target_union) {
            (0, Some(TargetUnion::Version(n))) => kv.version.cmp(n),
            (1, Some(TargetUnion::CreateRevision(n))) => kv.create.cmp(n),
            (2, Some(TargetUnion::ModRevision(n))) => kv.modified.cmp(n),
            (3, Some(TargetUnion::Value(v))) => kv.value.cmp(v),
            (4, Some(TargetUnion::Lease(n))) => kv.lease.cmp(n),
            (0, None) => kv.version.cmp(&0),
            (1, None) => kv.create.cmp(&0),
            (2, None) => kv.modified.cmp(&0),
            (3, None) => kv.value.cmp(&Bytes::new()),
            (4, None) => kv.lease.cmp(&0),
            other => panic!("the generator makes no {other:?}"),
        };
        match compare.result {
            0 => ordering == Ordering::Equal,
            1 => ordering == Ordering::Greater,
            2 => ordering == Ordering::Less,
            _ => ordering != Ordering::Equal,
        }
    }

    fn check_txn(&self, before: &Model, txn: &TxnRequest) -> Result<(), Status> {
        let ops = if before.succeeds(txn) { &txn.success } else { &txn.failure };
        for op in ops {
            match op.request.as_ref().unwrap() {
                Request::RequestRange(range) if range.revision == 0 => {}
                Request::RequestRange(range) if range.revision > self.revision => {
                    return Err(error::FUTURE_REV);
                }
                Request::RequestRange(range) if range.revision < self.compacted => {
                    return Err(error::COMPACTED);
                }
                Request::RequestPut(put) => self.check_put(put)?,
                Request::RequestTxn(inner) => self.check_txn(before, inner)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn txn(&mut self, before: &Model, txn: &TxnRequest, main: i64) -> Answer {
        let succeeded = before.succeeds(txn);
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let mut responses = Vec::new();
        for op in ops {
            responses.push(match op.request.as_ref().unwrap() {
                Request::RequestRange(range) => self.range(range, self.now(main)).unwrap(),
                Request::RequestPut(put) => self.put(put, main),
                Request::RequestDeleteRange(delete) => {
                    let (deleted, previous) = self.delete(delete, main);
                    Answer::Delete { revision: self.now(main), previous, deleted }
                }
                Request::RequestTxn(inner) => self.txn(before, inner, main),
            });
        }
        Answer::Txn { revision: 0, succeeded, responses }
    }

    /// Returns the current revision inside a transaction that writes revision `main`.
    fn now(&self, main: i64) -> i64 {
        let changed = self.history.values().flatten().any(|(revision, _)| *revision == main);
        if changed { main } else { main - 1 }
    }

    pub fn range(&self, request: &RangeRequest, current: i64) -> Result<Answer, Status> {
        let revision = match request.revision {
            ..=0 => current,
            n if n > current => return Err(error::FUTURE_REV),
            n if n < self.compacted => return Err(error::COMPACTED),
            n => n,
        };
        let mut kvs = self.at(&request.key, &request.range_end, revision);
        let count = kvs.len() as i64;
        if request.count_only {
            return Ok(Answer::Range { revision: current, kvs: Vec::new(), more: false, count });
        }
        kvs.retain(|kv| {
            (request.min_mod_revision == 0 || kv.modified >= request.min_mod_revision)
                && (request.max_mod_revision == 0 || kv.modified <= request.max_mod_revision)
                && (request.min_create_revision == 0 || kv.create >= request.min_create_revision)
                && (request.max_create_revision == 0 || kv.create <= request.max_create_revision)
        });
        let filtered = request.min_mod_revision != 0
            || request.max_mod_revision != 0
            || request.min_create_revision != 0
            || request.max_create_revision != 0;
        if request.sort_order == 0 && !filtered && request.limit > 0 {
            // Without an order etcd first cuts to one key more than the limit, and then sorts.
            kvs.truncate(request.limit as usize + 1);
        }
        let by = |a: &Kv, b: &Kv| match request.sort_target {
            0 => a.key.cmp(&b.key),
            1 => a.version.cmp(&b.version),
            2 => a.create.cmp(&b.create),
            3 => a.modified.cmp(&b.modified),
            _ => a.value.cmp(&b.value),
        };
        kvs.sort_by(|a, b| if request.sort_order == 2 { by(b, a) } else { by(a, b) });
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let more = limit > 0 && kvs.len() > limit;
        if more {
            kvs.truncate(limit);
        }
        if request.keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
                if request.sort_target != 4 {
                    kv.lease = 0;
                }
            }
        }
        Ok(Answer::Range { revision: current, kvs, more, count })
    }

    pub fn leased(&self) -> BTreeMap<i64, Vec<Bytes>> {
        let mut leased: BTreeMap<i64, Vec<Bytes>> = self.leases.iter().map(|id| (*id, Vec::new())).collect();
        for kv in self.at(&Bytes::new(), &Bytes::from_static(b"\0"), i64::MAX) {
            if kv.lease != 0 {
                leased.get_mut(&kv.lease).expect("keys go with their lease").push(kv.key);
            }
        }
        leased
    }
}
