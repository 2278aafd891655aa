//! Evaluates transactions: the comparisons, the choice of branches, and the checks of all operations, which
//! precede every change. [`read_only`] evaluates a transaction that only reads; `sliced` applies transactions
//! that write, with functions of this module. The callers decide when values are fetched into memory.

use api::Status;
use api::error;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::BytesMut;
use mvcc::{KeyRange, RevisionError, Snapshot, Version};
use numbers::{ChangeId, LeaseId, Revision};
use std::cmp::Ordering;

use crate::key_value::{Projection, StoredKeyValue, Values, read_version};
use crate::lease::Leases;
use crate::range::{self, Failure, Selection};

/// The result of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// Result of a range.
    Range(Ranged),
    /// Result of a put.
    Put {
        /// Revision of the put.
        revision: Revision,
        /// Previous key-value pair, if the request asked for it.
        previous: Option<Box<StoredKeyValue>>,
    },
    /// Result of a delete.
    DeleteRange(Deleted),
    /// Result of a nested transaction.
    Txn(TxnOutcome),
}

/// Result of a range inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranged {
    /// Revision of the store when the range ran.
    pub revision: Revision,
    /// Parts of each key-value pair that are returned.
    pub projection: Projection,
    /// Keys and values of the range.
    pub read: Read,
}

/// Keys and values that an operation found inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Keys and values that were read when the entry was applied.
    Known {
        /// Keys that were found, in the requested order.
        found: Vec<StoredKeyValue>,
        /// True if the limit left out keys.
        more: bool,
        /// Number of keys in the range, regardless of the limit.
        count: i64,
    },
    /// Description of a range that is read after apply. Apply does not visit the range, because that costs
    /// time in proportion to the keys found, and only the member that answers needs the result.
    Past(Box<Past>),
}

impl Read {
    /// The empty result.
    pub const NOTHING: Read = Read::Known { found: Vec::new(), more: false, count: 0 };

    /// Returns true if the response contains keys and values. For [`Read::Past`], whose result is not known
    /// yet, returns true.
    pub(crate) fn names_values(&self) -> bool {
        !matches!(self, Read::Known { found, .. } if found.is_empty())
    }
}

/// A range that is to be read as of one point of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The range request with its limit, filters and sort order. The revision of the request is ignored.
    pub request: RangeRequest,
    /// The change before which the range is read.
    pub before: ChangeId,
}

impl Past {
    /// Returns the live versions of the range before the change [`Self::before`], in key order; if `behind`
    /// is given, only those after that key. The snapshot must be the snapshot right after the transaction, or
    /// a later one whose compact revision is not beyond the transaction.
    ///
    /// # Errors
    ///
    /// Returns an error if the compact revision of the snapshot is beyond the transaction.
    pub fn walk<'a>(
        &self,
        snapshot: &Snapshot<'a>,
        behind: Option<&[u8]>,
    ) -> Result<mvcc::Range<'a>, RevisionError> {
        let range = KeyRange::of_request(&self.request.key, &self.request.range_end);
        let range = match behind {
            Some(key) => range.after(key),
            None => range,
        };
        snapshot.range_before(range, self.before)
    }

    /// Evaluates the whole range in one step, whatever its size.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Past::walk`], or an error if a value cannot be read.
    pub fn select<'a>(&self, snapshot: &Snapshot<'a>, values: &dyn Values) -> Result<Selection<'a>, Failure> {
        let request = &self.request;
        let mut versions: Vec<Version<'a>> = self.walk(snapshot, None)?.collect();
        let count = versions.len() as i64;
        if request.count_only {
            return Ok(Selection { versions: Vec::new(), more: false, count });
        }
        versions.truncate(range::keys_before_sort(request).unwrap_or(usize::MAX));
        versions.retain(|version| range::passes(*version, request));
        range::sort(&mut versions, request, values)?;
        let limit = usize::try_from(request.limit.max(0)).unwrap_or(usize::MAX);
        let more = limit != 0 && versions.len() > limit;
        if more {
            versions.truncate(limit);
        }
        Ok(Selection { versions, more, count })
    }
}

/// The result of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Revision of the deletions, or the current revision if no key was deleted.
    pub revision: Revision,
    /// Number of deleted keys.
    pub deleted: i64,
    /// Previous key-value pairs, if the request asked for them.
    pub previous: Read,
}

/// The result of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnOutcome {
    /// Revision of the store after the transaction; 0 in nested transactions.
    pub revision: Revision,
    /// True if all comparisons held, so that the `success` branch ran.
    pub succeeded: bool,
    /// One result for each operation of the branch that ran.
    pub responses: Vec<OpOutcome>,
}

impl TxnOutcome {
    /// Returns true if the response contains keys and values.
    pub(crate) fn names_values(&self) -> bool {
        self.responses.iter().any(|response| match response {
            OpOutcome::Range(ranged) => ranged.read.names_values(),
            OpOutcome::Put { previous, .. } => previous.is_some(),
            OpOutcome::DeleteRange(deleted) => deleted.previous.names_values(),
            OpOutcome::Txn(nested) => nested.names_values(),
        })
    }

    /// Returns true if a part of the response is read after apply.
    pub fn reads_later(&self) -> bool {
        self.responses.iter().any(|response| match response {
            OpOutcome::Range(ranged) => matches!(ranged.read, Read::Past(_)),
            OpOutcome::DeleteRange(deleted) => matches!(deleted.previous, Read::Past(_)),
            OpOutcome::Put { .. } => false,
            OpOutcome::Txn(nested) => nested.reads_later(),
        })
    }
}

/// The branch of a transaction that runs, and the paths of its nested transactions in the order of the
/// operations. All branches are chosen before the transaction changes anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub succeeded: bool,
    pub nested: Vec<Path>,
}

/// Chooses the branch of a transaction, and of each nested transaction in a chosen branch, by evaluating
/// comparisons until one fails.
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

/// The comparisons by value of a transaction and of all nested ones, whichever branches run. Their values are
/// read in slices before the transaction is proposed, so that they are in memory when it is applied.
pub struct Compared(Vec<Compare>);

/// Number of keys in the index that a slice may visit for each key that it may find. Keys that do not exist
/// at the revision of the slice are visited, but not found. Without this limit, a slice could visit any
/// number of them.
const LOOKS_FOR_A_KEY: u64 = 4;

/// Reads and discards the values that comparisons depend on, so that they are fetched into memory. Stops
/// after `keys_max` keys, or at the first value that brings the total to `bytes_max` bytes or more.
pub(crate) fn look(
    compares: &[Compare],
    from: &LookedAt,
    snapshot: &Snapshot<'_>,
    values: &dyn Values,
    keys_max: usize,
    bytes_max: usize,
) -> LookedAt {
    let (mut keys, mut bytes) = (0, 0);
    let mut compared = from.bytes;
    let mut behind = from.key.as_deref();
    for (at, compare) in compares.iter().enumerate().skip(from.compares) {
        let range = KeyRange::of_request(&compare.key, &compare.range_end);
        let range = match behind.take() {
            Some(key) => range.after(key),
            None => range,
        };
        if !compares_value(compare) {
            continue;
        }
        let Ok(mut walk) = snapshot.range(range, Revision::CURRENT) else { continue };
        walk.set_looks(LOOKS_FOR_A_KEY * keys_max as u64);
        for version in walk.by_ref() {
            // An error is ignored here, because applying the entry reads the value again and reports it.
            let _ = holds_for(Some(version), compare, values);
            keys += 1;
            bytes += version.value_len() as usize;
            compared += compared_bytes(version, compare);
            if keys >= keys_max || bytes >= bytes_max {
                return LookedAt { compares: at, key: Some(version.key().to_vec()), bytes: compared };
            }
        }
        if let Some(key) = walk.stopped_at() {
            return LookedAt { compares: at, key: Some(key.to_vec()), bytes: compared };
        }
    }
    LookedAt { compares: compares.len(), key: None, bytes: compared }
}

/// Progress of reading the compared values: the number of finished comparisons, and the last visited key of
/// the current one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookedAt {
    pub(crate) compares: usize,
    pub(crate) key: Option<Vec<u8>>,
    /// Bytes of values that the visited comparisons may read.
    pub bytes: u64,
}

impl Compared {
    /// Returns the comparisons by value of this transaction and its nested ones.
    pub fn of(txn: &TxnRequest) -> Compared {
        let (mut compares, mut open) = (Vec::new(), vec![txn]);
        while let Some(txn) = open.pop() {
            let by_value = txn.compare.iter().filter(|compare| compares_value(compare));
            compares.extend(by_value.cloned());
            open.extend(txn.success.iter().chain(&txn.failure).filter_map(|op| match &op.request {
                Some(Request::RequestTxn(inner)) => Some(inner),
                _ => None,
            }));
        }
        Compared(compares)
    }

    /// Returns true if all values have been read.
    pub fn is_done(&self, looked_at: &LookedAt) -> bool {
        looked_at.compares >= self.0.len()
    }

    /// Reads and discards the next values. Stops after `keys_max` keys, or at the first value that brings the
    /// total to `bytes_max` bytes or more. Returns the new progress.
    pub fn look(
        &self,
        from: &LookedAt,
        snapshot: &Snapshot<'_>,
        values: &dyn Values,
        keys_max: usize,
        bytes_max: usize,
    ) -> LookedAt {
        look(&self.0, from, snapshot, values, keys_max, bytes_max)
    }
}

/// Returns true if a transaction or a transaction nested in it compares values, so that [`Compared`] has
/// values to read.
pub fn compares_values(txn: &TxnRequest) -> bool {
    let mut open = vec![txn];
    while let Some(txn) = open.pop() {
        if txn.compare.iter().any(|compare| compare.target == CompareTarget::Value as i32) {
            return true;
        }
        open.extend(txn.success.iter().chain(&txn.failure).filter_map(|op| match &op.request {
            Some(Request::RequestTxn(inner)) => Some(inner),
            _ => None,
        }));
    }
    false
}

/// Returns the operations of the branch that runs.
pub(crate) fn branch(txn: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &txn.success } else { &txn.failure }
}

fn holds(snapshot: &Snapshot<'_>, compare: &Compare, values: &dyn Values) -> Result<bool, Failure> {
    let range = KeyRange::of_request(&compare.key, &compare.range_end);
    let mut found = false;
    for version in snapshot.range(range, compared_revision(snapshot))? {
        found = true;
        if !holds_for(Some(version), compare, values)? {
            return Ok(false);
        }
    }
    if found {
        return Ok(true);
    }
    holds_for_none(compare, values)
}

/// Returns the revision at which comparisons read: the current revision, unless a test has planted a bug.
fn compared_revision(snapshot: &Snapshot<'_>) -> Revision {
    let before = snapshot.current_revision() - 1;
    let old = planted::is(planted::Bug::CompareOnOldState)
        && before > snapshot.compact_revision().max(Revision::FIRST);
    if old { before } else { Revision::CURRENT }
}

/// Returns true if a comparison holds for a range without keys. For a missing key all numbers are 0, and a
/// comparison of its value never holds.
pub(crate) fn holds_for_none(compare: &Compare, values: &dyn Values) -> Result<bool, Failure> {
    if compares_value(compare) {
        return Ok(false);
    }
    holds_for(None, compare, values)
}

pub(crate) fn holds_for(
    version: Option<Version<'_>>,
    compare: &Compare,
    values: &dyn Values,
) -> Result<bool, Failure> {
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
            version.map_or(0, |version| version.create_revision().0),
            match union {
                Some(TargetUnion::CreateRevision(n)) => Some(*n),
                _ => None,
            },
        ),
        Ok(CompareTarget::Mod) => number(
            version.map_or(0, |version| version.main().0),
            match union {
                Some(TargetUnion::ModRevision(n)) => Some(*n),
                _ => None,
            },
        ),
        Ok(CompareTarget::Lease) => number(
            version.map_or(0, |version| version.lease().0),
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
        // For an unknown target, etcd behaves as if both sides were equal.
        Err(_) => Ordering::Equal,
    };
    Ok(match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        // For an unknown relation, etcd behaves as if the comparison held.
        Err(_) => true,
    })
}

/// Returns true if the comparison is about values.
pub(crate) fn compares_value(compare: &Compare) -> bool {
    compare.target == CompareTarget::Value as i32
}

/// Returns true if the comparison depends on which value is greater, so that it is not enough to compare
/// checksums.
pub(crate) fn compares_by_order(compare: &Compare) -> bool {
    matches!(CompareResult::try_from(compare.result), Ok(CompareResult::Greater | CompareResult::Less))
}

/// Returns the number of bytes that comparing this version's value may read or hash.
pub(crate) fn compared_bytes(version: Version<'_>, compare: &Compare) -> u64 {
    let len = version.value_len();
    let theirs = match &compare.target_union {
        Some(TargetUnion::Value(theirs)) => theirs.len(),
        _ => 0,
    };
    if compares_by_order(compare) || len as usize == theirs { u64::from(len) } else { 0 }
}

/// Compares a version's value with `theirs`, as precisely as the relation needs. Values with different
/// lengths or checksums are not equal, so the value is read only if both match or if the order matters. A
/// value that is not read costs no time, and damage to it causes no error.
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
        // Either the values differ and the relation is `Equal` or `NotEqual`, for which `Less` and `Greater`
        // have the same result; or the relation is unknown, and the caller ignores the ordering.
        return Ok(Ordering::Less);
    }
    let mut ours = BytesMut::new();
    read_version(version, values, &mut ours)?;
    Ok(ours.as_ref().cmp(theirs))
}

/// Checks all operations of the chosen branches against the state before the transaction, so that none fails
/// later.
pub(crate) fn check_path(
    snapshot: &Snapshot<'_>,
    leases: &Leases,
    txn: &TxnRequest,
    path: &Path,
) -> Result<(), Status> {
    let mut nested = path.nested.iter();
    for op in branch(txn, path.succeeded) {
        check_op(snapshot, leases, op)?;
        if let Some(Request::RequestTxn(inner)) = &op.request {
            let path = nested.next().ok_or(error::KEY_NOT_FOUND)?;
            check_path(snapshot, leases, inner, path)?;
        }
    }
    Ok(())
}

/// Checks one operation, but not the operations of a nested transaction.
pub(crate) fn check_op(snapshot: &Snapshot<'_>, leases: &Leases, op: &RequestOp) -> Result<(), Status> {
    match &op.request {
        Some(Request::RequestRange(request)) => check_range(snapshot, request),
        Some(Request::RequestPut(request)) => check_put(snapshot, leases, request),
        Some(Request::RequestTxn(_) | Request::RequestDeleteRange(_)) => Ok(()),
        None => Err(error::KEY_NOT_FOUND),
    }
}

/// Refuses a range whose revision is compacted or in the future: such a range would fail in the middle of the
/// transaction, and only on members that build the response. The sort order is not checked, because etcd 3.5
/// ignores unknown orders, and a member that runs etcd 3.5 may propose such a range.
fn check_range(snapshot: &Snapshot<'_>, request: &RangeRequest) -> Result<(), Status> {
    if request.revision == 0 {
        Ok(())
    } else if Revision(request.revision) > snapshot.current_revision() {
        Err(error::FUTURE_REV)
    } else if Revision(request.revision) < snapshot.compact_revision() {
        Err(error::COMPACTED)
    } else {
        Ok(())
    }
}

/// Checks the preconditions of a put: the key must exist if the put keeps the key's value or lease, and the
/// lease must exist.
pub(crate) fn check_put(snapshot: &Snapshot<'_>, leases: &Leases, put: &PutRequest) -> Result<(), Status> {
    if (put.ignore_value || put.ignore_lease)
        && snapshot.get(&put.key, Revision::CURRENT).is_ok_and(|found| found.is_none())
    {
        return Err(error::KEY_NOT_FOUND);
    }
    if put.lease != 0 && leases.get(LeaseId(put.lease)).is_none() {
        return Err(error::LEASE_NOT_FOUND);
    }
    Ok(())
}

/// Maximum number of single-key ranges of one transaction that are evaluated when it is applied. All other
/// ranges become [`Read::Past`] and are read after apply.
pub(crate) const KNOWN_MAX: usize = 1024;

/// Returns the result of a range inside a transaction, after `changes` changes of this transaction. If
/// `known` is above 0, a range of a single key is read immediately, and 1 is subtracted from `known`.
pub(crate) fn read_range(
    snapshot: &Snapshot<'_>,
    changes: u32,
    request: &RangeRequest,
    known: &mut usize,
) -> Result<Ranged, Status> {
    let (revision, projection) = (snapshot.current_revision(), range::projection(request));
    let range = KeyRange::of_request(&request.key, &request.range_end);
    let is_plain = range::is_natural(request) && !request.count_only;
    if let Some(key) = range.as_single()
        && is_plain
        && *known > 0
    {
        *known -= 1;
        let version = snapshot.get(key, Revision(request.revision)).map_err(range::refused)?;
        let found: Vec<StoredKeyValue> =
            version.into_iter().map(|version| StoredKeyValue::projected(version, projection)).collect();
        let count = found.len() as i64;
        return Ok(Ranged { revision, projection, read: Read::Known { found, more: false, count } });
    }
    let before = match request.revision {
        1.. => ChangeId::first_of(Revision(request.revision).next()),
        _ if changes == 0 => ChangeId::first_of(revision.next()),
        _ => ChangeId { main: revision, sub: changes },
    };
    let past = Box::new(Past { request: request.clone(), before });
    Ok(Ranged { revision, projection, read: Read::Past(past) })
}

/// Progress of the comparisons of a read-only transaction. The comparisons run in slices, all against one
/// snapshot.
#[derive(Clone, Debug, Default)]
pub struct Comparing {
    /// Number of comparisons that were found to hold, and the last visited key of the current comparison.
    at: LookedAt,
    /// True if the current comparison has found a key.
    found: bool,
    /// Number of keys that the last slice visited.
    pub keys: u64,
    /// Bytes of values that all comparisons so far may have read.
    pub bytes: u64,
}

impl Comparing {
    /// Evaluates the next comparisons. Visits at most `keys_max` keys, including those that did not exist at
    /// the revision, and stops at the first value that brings the bytes read to `bytes_max` or more. Returns
    /// `Some` once the result is known. After an error because a value is not in memory, this progress is
    /// unusable: the caller must repeat the step with a copy that it made before the step.
    ///
    /// # Errors
    ///
    /// Returns the errors of ranges, or an error if a value cannot be read.
    pub fn step(
        &mut self,
        snapshot: &Snapshot<'_>,
        txn: &TxnRequest,
        values: &dyn Values,
        keys_max: u64,
        bytes_max: u64,
    ) -> Result<Option<bool>, Failure> {
        let (mut left, bytes_before) = (keys_max.max(1), self.bytes);
        self.keys = 0;
        while let Some(compare) = txn.compare.get(self.at.compares) {
            let bytes = self.bytes - bytes_before;
            if left == 0 || bytes >= bytes_max {
                return Ok(None);
            }
            let (holds, looked) = self.holds(snapshot, compare, values, (left, bytes_max - bytes));
            // A comparison that visits no key counts as one visited key, so that a step with many of them
            // ends, too.
            let looked = looked.max(1);
            (self.keys, left) = (self.keys + looked, left - looked);
            match holds {
                Ok(Some(true)) => {
                    self.at = LookedAt { compares: self.at.compares + 1, ..LookedAt::default() };
                    self.found = false;
                }
                other => return other,
            }
        }
        Ok(Some(true))
    }

    /// Reads and discards the values of the next comparisons, so that they are fetched into memory. Stops
    /// after `keys_max` keys, or at the first value that brings the total to `bytes_max` bytes or more.
    pub fn look(
        &self,
        snapshot: &Snapshot<'_>,
        txn: &TxnRequest,
        values: &dyn Values,
        keys_max: usize,
        bytes_max: usize,
    ) {
        let _ = look(&txn.compare, &self.at, snapshot, values, keys_max, bytes_max);
    }

    /// Continues one comparison. Returns its result, if it is known now, and the number of visited keys.
    fn holds(
        &mut self,
        snapshot: &Snapshot<'_>,
        compare: &Compare,
        values: &dyn Values,
        (keys_max, bytes_max): (u64, u64),
    ) -> (Result<Option<bool>, Failure>, u64) {
        let range = KeyRange::of_request(&compare.key, &compare.range_end);
        let behind = self.at.key.take();
        let range = behind.as_deref().map_or(range, |key| range.after(key));
        let mut walk = match snapshot.range(range, compared_revision(snapshot)) {
            Ok(walk) => walk,
            Err(refused) => return (Err(refused.into()), 0),
        };
        walk.set_looks(keys_max);
        let (mut last, mut is_cut, mut bytes) = (None, false, 0);
        while let Some(version) = walk.next() {
            match holds_for(Some(version), compare, values) {
                Ok(true) => {}
                Ok(false) => return (Ok(Some(false)), keys_max - walk.looks_left()),
                Err(failure) => return (Err(failure), keys_max - walk.looks_left()),
            }
            self.found = true;
            last = Some(version.key());
            if compares_value(compare) {
                bytes += compared_bytes(version, compare);
            }
            is_cut = bytes >= bytes_max;
            if is_cut {
                break;
            }
        }
        self.bytes += bytes;
        let looked = keys_max - walk.looks_left();
        if let Some(key) = walk.stopped_at().or(last.filter(|_| is_cut)) {
            self.at.key = Some(key.to_vec());
            return (Ok(None), looked);
        }
        let holds = if self.found { Ok(true) } else { holds_for_none(compare, values) };
        (holds.map(Some), looked)
    }
}

/// Evaluates a transaction that contains only ranges. `holds` is the result of its comparisons in this
/// snapshot.
///
/// # Errors
///
/// Returns the errors of ranges.
pub fn read_only(snapshot: &Snapshot<'_>, txn: &TxnRequest, holds: bool) -> Result<TxnOutcome, Failure> {
    let path = Path { succeeded: holds, nested: Vec::new() };
    check_path(snapshot, &Leases::default(), txn, &path)?;
    let (mut responses, mut known) = (Vec::new(), KNOWN_MAX);
    for op in branch(txn, path.succeeded) {
        match &op.request {
            Some(Request::RequestRange(request)) => {
                responses.push(OpOutcome::Range(read_range(snapshot, 0, request, &mut known)?));
            }
            _ => return Err(error::KEY_NOT_FOUND.into()),
        }
    }
    Ok(TxnOutcome { revision: snapshot.current_revision(), succeeded: path.succeeded, responses })
}
