//! Transactions: comparing, choosing branches, checking, and only then changing anything.

use api::Status;
use api::error;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::range_request::SortTarget;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::BytesMut;
use mvcc::{KeyRange, Snapshot, Version};
use std::cmp::Ordering;

use crate::found::{Found, Projection, Values, read_version};
use crate::lease::Leases;
use crate::range::{self, Failure};

/// What one operation of a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// A range, with its result.
    Range(Ranged),
    /// A put, with what was there before if that was asked for.
    Put {
        /// The revision written.
        revision: i64,
        /// The previous key and value.
        previous: Option<Found>,
    },
    /// A delete.
    DeleteRange(Deleted),
    /// A nested transaction.
    Txn(TxnOutcome),
}

/// The result of a range inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranged {
    /// The revision current when it ran.
    pub revision: i64,
    /// The keys, in the order asked for.
    pub kvs: Vec<Found>,
    /// Whether the limit cut something off.
    pub more: bool,
    /// Keys in the range.
    pub count: i64,
}

/// The result of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// The revision that the deletions bear, or the current one if there were none.
    pub revision: i64,
    /// How many keys went.
    pub deleted: i64,
    /// What they held, if that was asked for.
    pub previous: Vec<Found>,
}

/// What a transaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnOutcome {
    /// The store's revision after it; 0 in nested ones.
    pub revision: i64,
    /// Which branch ran.
    pub succeeded: bool,
    /// One for each operation of that branch.
    pub responses: Vec<OpOutcome>,
}

/// Which branches run, fixed before anything changes. Nested ones stand in the order of their operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub succeeded: bool,
    pub nested: Vec<Path>,
}

/// Evaluates all comparisons of a transaction, those of the chosen nested ones included.
pub(crate) fn choose(
    snapshot: &Snapshot<'_>,
    txn: &TxnRequest,
    values: &dyn Values,
) -> Result<Path, Failure> {
    let mut succeeded = true;
    for compare in &txn.compare {
        if !holds(snapshot, compare, values)? {
            succeeded = false;
            break;
        }
    }
    let mut nested = Vec::new();
    for op in branch(txn, succeeded) {
        if let Some(Request::RequestTxn(inner)) = &op.request {
            nested.push(choose(snapshot, inner, values)?);
        }
    }
    Ok(Path { succeeded, nested })
}

/// The operations that run.
pub(crate) fn branch(txn: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &txn.success } else { &txn.failure }
}

fn holds(snapshot: &Snapshot<'_>, compare: &Compare, values: &dyn Values) -> Result<bool, Failure> {
    let range = KeyRange::of_request(&compare.key, &compare.range_end);
    let mut found = false;
    let before = snapshot.current_revision() - 1;
    let old = planted::is(planted::Bug::CompareOnOldState) && before > snapshot.compact_revision().max(1);
    for version in snapshot.range(range, if old { before } else { 0 })? {
        found = true;
        if !holds_for(Some(version), compare, values)? {
            return Ok(false);
        }
    }
    if found {
        return Ok(true);
    }
    // A missing key has no value to compare; all its numbers are 0.
    if compare.target == CompareTarget::Value as i32 {
        return Ok(false);
    }
    holds_for(None, compare, values)
}

fn holds_for(version: Option<Version<'_>>, compare: &Compare, values: &dyn Values) -> Result<bool, Failure> {
    let number = |ours: i64, theirs: Option<i64>| ours.cmp(&theirs.unwrap_or(0));
    let union = &compare.target_union;
    let ordering = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => number(
            version.map_or(0, Version::version),
            match union {
                Some(TargetUnion::Version(n)) => Some(*n),
                _ => None,
            },
        ),
        Ok(CompareTarget::Create) => number(
            version.map_or(0, Version::create_revision),
            match union {
                Some(TargetUnion::CreateRevision(n)) => Some(*n),
                _ => None,
            },
        ),
        Ok(CompareTarget::Mod) => number(
            version.map_or(0, Version::main),
            match union {
                Some(TargetUnion::ModRevision(n)) => Some(*n),
                _ => None,
            },
        ),
        Ok(CompareTarget::Lease) => number(
            version.map_or(0, Version::lease),
            match union {
                Some(TargetUnion::Lease(n)) => Some(*n),
                _ => None,
            },
        ),
        Ok(CompareTarget::Value) => {
            let theirs = match union {
                Some(TargetUnion::Value(theirs)) => theirs.as_ref(),
                _ => b"",
            };
            match version {
                Some(version) => value_ordering(version, compare.result, theirs, values)?,
                None => [].as_slice().cmp(theirs),
            }
        }
        // etcd compares an unknown target as equal.
        Err(_) => Ordering::Equal,
    };
    Ok(match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        // And takes an unknown result for true.
        Err(_) => true,
    })
}

/// How a version's value compares with `theirs`, as far as the result asked for needs to know. A value that differs by
/// its length or checksum is not equal, so it is read only if it is equal as far as these tell, or its order matters:
/// what is not read costs no time, and its damage stops nobody.
fn value_ordering(
    version: Version<'_>,
    result: i32,
    theirs: &[u8],
    values: &dyn Values,
) -> Result<Ordering, Failure> {
    let by_order =
        matches!(CompareResult::try_from(result), Ok(CompareResult::Greater | CompareResult::Less));
    if version.value_len() == 0 {
        return Ok([].as_slice().cmp(theirs));
    }
    let is_other =
        version.value_len() as usize != theirs.len() || version.value_crc() != crc32c::crc32c(theirs);
    if !by_order && (is_other || CompareResult::try_from(result).is_err()) {
        // Not equal; which of the two orders it is was not asked.
        return Ok(Ordering::Less);
    }
    let mut ours = BytesMut::new();
    read_version(version, values, &mut ours)?;
    Ok(ours.as_ref().cmp(theirs))
}

/// Checks, on the state before the transaction, everything that could fail later.
pub(crate) fn check_path(
    snapshot: &Snapshot<'_>,
    leases: &Leases,
    txn: &TxnRequest,
    path: &Path,
) -> Result<(), Status> {
    let mut nested = path.nested.iter();
    for op in branch(txn, path.succeeded) {
        match &op.request {
            Some(Request::RequestRange(request)) => check_range(snapshot, request)?,
            Some(Request::RequestPut(request)) => check_put(snapshot, leases, request)?,
            Some(Request::RequestTxn(inner)) => {
                let path = nested.next().ok_or(error::KEY_NOT_FOUND)?;
                check_path(snapshot, leases, inner, path)?;
            }
            Some(Request::RequestDeleteRange(_)) => {}
            None => return Err(error::KEY_NOT_FOUND),
        }
    }
    Ok(())
}

/// Refuses what would fail amid the transaction, and only on members that gather the answer.
fn check_range(snapshot: &Snapshot<'_>, request: &RangeRequest) -> Result<(), Status> {
    if SortTarget::try_from(request.sort_target).is_err() {
        return Err(error::INVALID_SORT_OPTION);
    }
    if request.revision == 0 {
        Ok(())
    } else if request.revision > snapshot.current_revision() {
        Err(error::FUTURE_REV)
    } else if request.revision < snapshot.compact_revision() {
        Err(error::COMPACTED)
    } else {
        Ok(())
    }
}

/// What a put needs: the key, if something of it is to be kept, and then the lease.
pub(crate) fn check_put(snapshot: &Snapshot<'_>, leases: &Leases, put: &PutRequest) -> Result<(), Status> {
    if (put.ignore_value || put.ignore_lease) && snapshot.get(&put.key, 0).is_ok_and(|found| found.is_none())
    {
        return Err(error::KEY_NOT_FOUND);
    }
    if put.lease != 0 && leases.get(put.lease).is_none() {
        return Err(error::LEASE_NOT_FOUND);
    }
    Ok(())
}

/// Runs a range inside a transaction.
pub(crate) fn run_range(
    snapshot: &Snapshot<'_>,
    request: &RangeRequest,
    values: &dyn Values,
) -> Result<Ranged, Failure> {
    let selection = range::select(snapshot, request, values)?;
    let Projection { keys_only, without_lease } = range::projection(request);
    let kvs = selection
        .versions
        .into_iter()
        .map(|version| {
            let mut found = Found::of(version);
            if keys_only {
                found.value = None;
            }
            if without_lease {
                found.lease = 0;
            }
            found
        })
        .collect();
    Ok(Ranged { revision: snapshot.current_revision(), kvs, more: selection.more, count: selection.count })
}

/// Evaluates a transaction of nothing but ranges on a view.
///
/// # Errors
///
/// As for ranges.
pub fn read_only(
    snapshot: &Snapshot<'_>,
    txn: &TxnRequest,
    values: &dyn Values,
) -> Result<TxnOutcome, Failure> {
    let path = choose(snapshot, txn, values)?;
    check_path(snapshot, &Leases::default(), txn, &path)?;
    let mut responses = Vec::new();
    for op in branch(txn, path.succeeded) {
        match &op.request {
            Some(Request::RequestRange(request)) => {
                responses.push(OpOutcome::Range(run_range(snapshot, request, values)?));
            }
            _ => return Err(error::KEY_NOT_FOUND.into()),
        }
    }
    Ok(TxnOutcome { revision: snapshot.current_revision(), succeeded: path.succeeded, responses })
}
