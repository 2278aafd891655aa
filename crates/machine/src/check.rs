//! What can be said of a request before it is proposed: whether it is well-formed, and what it would cost.
//!
//! The order of the checks is etcd's, since a request with two faults gets the error of the first.

use std::collections::BTreeSet;

use api::Status;
use api::error;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::Bytes;

/// How deep transactions may nest. etcd is bounded only by max-txn-ops and the message size; ours is bounded for the
/// sake of the stack (COMPAT-1).
const TXN_DEPTH_MAX: usize = 64;

/// Checks a range request.
pub fn range(request: &RangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(error::EMPTY_KEY);
    }
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(error::INVALID_SORT_OPTION);
    }
    Ok(())
}

/// Checks a put.
pub fn put(request: &PutRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(error::EMPTY_KEY);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(error::VALUE_PROVIDED);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(error::LEASE_PROVIDED);
    }
    Ok(())
}

/// Checks a delete.
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() { Err(error::EMPTY_KEY) } else { Ok(()) }
}

/// Checks a transaction: its size, its operations, and that no key is written twice along one path.
pub fn txn(request: &TxnRequest, ops_max: usize) -> Result<(), Status> {
    txn_ops(request, ops_max, TXN_DEPTH_MAX)?;
    Written::collect(&request.success)?;
    Written::collect(&request.failure)?;
    Ok(())
}

fn txn_ops(request: &TxnRequest, ops_max: usize, depth: usize) -> Result<(), Status> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    if ops > ops_max || depth == 0 {
        return Err(error::TOO_MANY_OPS);
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(error::EMPTY_KEY);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(r)) => range(r)?,
            Some(Request::RequestPut(r)) => put(r)?,
            Some(Request::RequestDeleteRange(r)) => delete_range(r)?,
            Some(Request::RequestTxn(r)) => txn_ops(r, ops_max - ops, depth - 1)?,
            None => return Err(error::KEY_NOT_FOUND),
        }
    }
    Ok(())
}

/// The keys that one branch puts and the ranges that it deletes, nested transactions included.
#[derive(Default)]
struct Written<'a> {
    puts: BTreeSet<&'a Bytes>,
    /// Start and end; an end of `None` makes it one key.
    deletes: Vec<(&'a Bytes, Option<&'a Bytes>)>,
}

impl<'a> Written<'a> {
    /// etcd's rule: this level's deletes stand first, then the nested transactions in order, then this level's puts.
    /// The branches of one nested transaction exclude each other, so both may put the same key.
    fn collect(ops: &'a [RequestOp]) -> Result<Written<'a>, Status> {
        let mut written = Written::default();
        for op in ops {
            if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                let end = Some(&delete.range_end).filter(|end| !end.is_empty());
                written.deletes.push((&delete.key, end));
            }
        }
        for op in ops {
            let Some(Request::RequestTxn(nested)) = &op.request else { continue };
            let then = Written::collect(&nested.success)?;
            let otherwise = Written::collect(&nested.failure)?;
            for key in &then.puts {
                written.put(key)?;
            }
            for key in &otherwise.puts {
                if !then.puts.contains(key) {
                    written.put(key)?;
                } else if written.deleted(key) {
                    return Err(error::DUPLICATE_KEY);
                }
            }
            written.deletes.extend(then.deletes);
            written.deletes.extend(otherwise.deletes);
        }
        for op in ops {
            if let Some(Request::RequestPut(put)) = &op.request {
                written.put(&put.key)?;
            }
        }
        Ok(written)
    }

    fn put(&mut self, key: &'a Bytes) -> Result<(), Status> {
        if self.deleted(key) || !self.puts.insert(key) {
            return Err(error::DUPLICATE_KEY);
        }
        Ok(())
    }

    /// The end is compared as it stands: etcd does not read "\0" as "everything after" here.
    fn deleted(&self, key: &Bytes) -> bool {
        self.deletes.iter().any(|(start, end)| match end {
            None => *start == key,
            Some(end) => *start <= key && key < *end,
        })
    }
}

/// Whether a transaction goes without the log: every operation at the top of both branches is a range.
pub fn txn_is_read_only(request: &TxnRequest) -> bool {
    request
        .success
        .iter()
        .chain(&request.failure)
        .all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// Whether a read-only transaction may be answered without asking the cluster.
pub fn txn_is_serializable(request: &TxnRequest) -> bool {
    request
        .success
        .iter()
        .chain(&request.failure)
        .all(|op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable))
}

/// The bytes a put counts against the quota.
pub fn put_cost(request: &PutRequest) -> u64 {
    256 + request.key.len() as u64 + request.value.len() as u64
}

/// The bytes a transaction counts against the quota: the dearer of its branches.
pub fn txn_cost(request: &TxnRequest) -> u64 {
    let branch = |ops: &[RequestOp]| -> u64 {
        ops.iter()
            .map(|op| match &op.request {
                Some(Request::RequestPut(put)) => put_cost(put),
                Some(Request::RequestTxn(nested)) => txn_cost(nested),
                _ => 0,
            })
            .sum()
    };
    branch(&request.success).max(branch(&request.failure))
}

/// The bytes a lease counts against the quota.
pub const LEASE_COST: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn put_op(key: &'static str) -> RequestOp {
        let put = PutRequest { key: key.into(), ..PutRequest::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    fn delete_op(key: &'static str, end: &'static str) -> RequestOp {
        let delete = DeleteRangeRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn txn_op(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        RequestOp { request: Some(Request::RequestTxn(TxnRequest { compare: vec![], success, failure })) }
    }

    fn check(success: Vec<RequestOp>) -> Result<(), Status> {
        txn(&TxnRequest { compare: vec![], success, failure: vec![] }, 128)
    }

    #[test]
    fn a_key_may_be_written_once_along_a_path() {
        assert_eq!(check(vec![put_op("a"), put_op("b")]), Ok(()));
        assert_eq!(check(vec![put_op("a"), put_op("a")]), Err(error::DUPLICATE_KEY));
        assert_eq!(check(vec![delete_op("a", "c"), put_op("b")]), Err(error::DUPLICATE_KEY));
        assert_eq!(check(vec![delete_op("a", "c"), put_op("c")]), Ok(()));
        assert_eq!(check(vec![delete_op("a", ""), delete_op("a", "")]), Ok(()));
        assert_eq!(check(vec![txn_op(vec![put_op("a")], vec![put_op("a")])]), Ok(()));
        assert_eq!(
            check(vec![txn_op(vec![put_op("a")], vec![]), txn_op(vec![], vec![put_op("a")])]),
            Err(error::DUPLICATE_KEY)
        );
        assert_eq!(
            check(vec![txn_op(vec![delete_op("a", "")], vec![]), put_op("a")]),
            Err(error::DUPLICATE_KEY)
        );
        // Within one branch of the nested transaction the rule holds as well.
        assert_eq!(check(vec![txn_op(vec![put_op("a"), put_op("a")], vec![])]), Err(error::DUPLICATE_KEY));
    }

    #[test]
    fn the_budget_of_operations_shrinks_with_depth() {
        let three = || vec![put_op("a"), put_op("b"), put_op("c")];
        let request = |success| TxnRequest { compare: vec![], success, failure: vec![] };
        assert_eq!(txn(&request(three()), 3), Ok(()));
        assert_eq!(txn(&request(three()), 2), Err(error::TOO_MANY_OPS));
        assert_eq!(txn(&request(vec![txn_op(three(), vec![])]), 4), Ok(()));
        assert_eq!(txn(&request(vec![txn_op(three(), vec![])]), 3), Err(error::TOO_MANY_OPS));
        assert_eq!(txn(&request(vec![RequestOp { request: None }]), 3), Err(error::KEY_NOT_FOUND));
        let mut deep = vec![put_op("a")];
        for _ in 0..80 {
            deep = vec![txn_op(deep, vec![])];
        }
        assert_eq!(txn(&request(deep), 1000), Err(error::TOO_MANY_OPS));
    }

    #[test]
    fn costs_are_etcds() {
        let request = TxnRequest {
            compare: vec![],
            success: vec![put_op("abc"), txn_op(vec![put_op("d")], vec![])],
            failure: vec![put_op("e")],
        };
        assert_eq!(txn_cost(&request), 256 + 3 + 256 + 1);
    }
}
