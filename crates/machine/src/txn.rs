//! Transactions: comparing, choosing branches, checking, and only then changing anything. [`read_only`] evaluates one that
//! only reads; those that write are applied by `sliced` with the parts that are here. It does not know when values are fetched.

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
    /// A range, with its result.
    Range(Ranged),
    /// A put, with what was there before if that was asked for.
    Put {
        /// The revision written.
        revision: Revision,
        /// The previous key and value.
        previous: Option<Box<StoredKeyValue>>,
    },
    /// A delete.
    DeleteRange(Deleted),
    /// A nested transaction.
    Txn(TxnOutcome),
}

/// A range inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranged {
    /// The revision current when it ran.
    pub revision: Revision,
    /// Fields of each key that are returned.
    pub projection: Projection,
    /// Keys and values that were found.
    pub read: Read,
}

/// Keys and values that an operation found inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The keys and values, known when the entry was applied.
    Known {
        /// The keys, in the order asked for.
        found: Vec<StoredKeyValue>,
        /// True if there are more keys than the limit allowed.
        more: bool,
        /// Keys in the range.
        count: i64,
    },
    /// The contents of the range at that point, which the answering side reads later. A range costs what it finds and not
    /// what its request costs, so apply, which every member waits for, does not walk it.
    Past(Box<Past>),
}

impl Read {
    /// The empty result.
    pub const NOTHING: Read = Read::Known { found: Vec::new(), more: false, count: 0 };

    /// Returns true if an answer holds keys and values for it, as far as that is known.
    pub(crate) fn names_values(&self) -> bool {
        !matches!(self, Read::Known { found, .. } if found.is_empty())
    }
}

/// A range at one point of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The range, with everything that shapes its answer. Its revision is to be passed over.
    pub request: RangeRequest,
    /// The range is read as it was before a change of this main revision.
    pub before: ChangeId,
}

impl Past {
    /// The live versions of the range at that point, in key order, behind a key if one is given. The snapshot has to be
    /// that of the transaction, or of a later moment that is not compacted so far.
    ///
    /// # Errors
    ///
    /// When it is.
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

    /// Evaluates the whole at once, however much it is.
    ///
    /// # Errors
    ///
    /// As [`Past::walk`], or a value that cannot be read.
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
    /// The revision that the deletions bear, or the current one if there were none.
    pub revision: Revision,
    /// Number of deleted keys.
    pub deleted: i64,
    /// Previous key-value pairs, if they were asked for.
    pub previous: Read,
}

/// The result of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnOutcome {
    /// The store's revision after it; 0 in nested ones.
    pub revision: Revision,
    /// True if all comparisons held, so that the `success` branch ran.
    pub succeeded: bool,
    /// One for each operation of that branch.
    pub responses: Vec<OpOutcome>,
}

impl TxnOutcome {
    /// Returns true if its answer holds keys and values.
    pub(crate) fn names_values(&self) -> bool {
        self.responses.iter().any(|response| match response {
            OpOutcome::Range(ranged) => ranged.read.names_values(),
            OpOutcome::Put { previous, .. } => previous.is_some(),
            OpOutcome::DeleteRange(deleted) => deleted.previous.names_values(),
            OpOutcome::Txn(nested) => nested.names_values(),
        })
    }

    /// Returns true if something is left to be read by the answering side.
    pub fn reads_later(&self) -> bool {
        self.responses.iter().any(|response| match response {
            OpOutcome::Range(ranged) => matches!(ranged.read, Read::Past(_)),
            OpOutcome::DeleteRange(deleted) => matches!(deleted.previous, Read::Past(_)),
            OpOutcome::Put { .. } => false,
            OpOutcome::Txn(nested) => nested.reads_later(),
        })
    }
}

/// The branches that run, chosen before anything changes. Nested ones stand in the order of their operations.
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

/// Values that the comparisons of a transaction depend on, whichever branches are chosen: to be looked at, slice by slice,
/// so that they are in memory when it is applied.
pub struct Compared(Vec<Compare>);

/// Keys that a look at values passes over for each that it may find: as of an older moment, those that it finds may lie behind
/// any number of keys that are not there.
const LOOKS_FOR_A_KEY: u64 = 4;

/// Reads the values that comparisons depend on, without using them, so that they are fetched: those of this many keys,
/// and somewhat more than this many bytes.
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
            // An unreadable value is reported when the entry is applied.
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

/// Progress in looking at values: the comparisons that are done, and the last key of the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookedAt {
    pub(crate) compares: usize,
    pub(crate) key: Option<Vec<u8>>,
    /// Bytes of values that the comparisons looked at so far may read.
    pub bytes: u64,
}

impl Compared {
    /// Returns the walk over the values that this transaction compares.
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

    /// Returns true if there is nothing more.
    pub fn is_done(&self, looked_at: &LookedAt) -> bool {
        looked_at.compares >= self.0.len()
    }

    /// Reads the next values, without using them: those of this many keys, and somewhat more than this many bytes.
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

/// Returns true if [`Compared`] has anything to look at.
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

/// The operations that run.
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

/// The revision at which comparisons are made.
fn compared_revision(snapshot: &Snapshot<'_>) -> Revision {
    let before = snapshot.current_revision() - 1;
    let old = planted::is(planted::Bug::CompareOnOldState)
        && before > snapshot.compact_revision().max(Revision::FIRST);
    if old { before } else { Revision::CURRENT }
}

/// Returns true if a comparison holds where no key is found. All numbers of a missing key are 0, but it has no value to
/// compare.
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

/// Returns true if a comparison is one of values.
pub(crate) fn compares_value(compare: &Compare) -> bool {
    compare.target == CompareTarget::Value as i32
}

/// Returns true if a comparison of a value asks which of the two is greater.
pub(crate) fn compares_by_order(compare: &Compare) -> bool {
    matches!(CompareResult::try_from(compare.result), Ok(CompareResult::Greater | CompareResult::Less))
}

/// The bytes that comparing this version's value may read or hash.
pub(crate) fn compared_bytes(version: Version<'_>, compare: &Compare) -> u64 {
    let len = version.value_len();
    let theirs = match &compare.target_union {
        Some(TargetUnion::Value(theirs)) => theirs.len(),
        _ => 0,
    };
    if compares_by_order(compare) || len as usize == theirs { u64::from(len) } else { 0 }
}

/// Compares a version's value with `theirs`, as far as the requested relation needs. A value whose length or checksum
/// differs is not equal, so the value is read only if both are equal or the order matters: what is not read costs no
/// time, and its damage stops nothing.
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
        check_op(snapshot, leases, op)?;
        if let Some(Request::RequestTxn(inner)) = &op.request {
            let path = nested.next().ok_or(error::KEY_NOT_FOUND)?;
            check_path(snapshot, leases, inner, path)?;
        }
    }
    Ok(())
}

/// Checks one operation, without those of a nested transaction.
pub(crate) fn check_op(snapshot: &Snapshot<'_>, leases: &Leases, op: &RequestOp) -> Result<(), Status> {
    match &op.request {
        Some(Request::RequestRange(request)) => check_range(snapshot, request),
        Some(Request::RequestPut(request)) => check_put(snapshot, leases, request),
        Some(Request::RequestTxn(_) | Request::RequestDeleteRange(_)) => Ok(()),
        None => Err(error::KEY_NOT_FOUND),
    }
}

/// Refuses what would fail amid the transaction, and only on members that gather the answer. How the answer is sorted is not
/// looked at: etcd 3.5 neither refuses nor obeys an order that it does not know, so that a member of it may propose one.
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

/// Checks the preconditions of a put: the key exists, if parts of it are kept, and then the lease exists.
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

/// Maximum number of keys that the outcome of one transaction names by itself; further ranges are read later.
pub(crate) const KNOWN_MAX: usize = 1024;

/// Returns the result of a range inside a transaction, after `changes` changes of the transaction that `snapshot` is
/// within. A single key is looked up at once, as long as `known` lasts.
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

/// How far the comparisons of a transaction of nothing but ranges have come. They are made in slices, all as of one moment.
#[derive(Clone, Debug, Default)]
pub struct Comparing {
    /// Comparisons that hold, and the last key of the next one.
    at: LookedAt,
    /// True if the next one has found a key.
    found: bool,
    /// Keys that the last slice has looked at.
    pub keys: u64,
    /// Bytes of values that all comparisons so far may have read.
    pub bytes: u64,
}

impl Comparing {
    /// Makes the next comparisons: looks at this many keys at most, those that are not there at the moment included, and at
    /// somewhat more than this many bytes of values. Returns whether all comparisons hold, once that is known. To be made again,
    /// from a copy, if values were not at hand.
    ///
    /// # Errors
    ///
    /// As for ranges, or a value that cannot be read.
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
            // One that finds nothing takes a look, too.
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

    /// Reads the values of the next comparisons without using them, so that they are fetched: those of this many keys, and somewhat
    /// more than this many bytes.
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

    /// Goes on with one comparison. Returns whether it holds, once that is known, and how many keys it looked at.
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

/// Evaluates a transaction of nothing but ranges, whose comparisons hold or do not hold in this state.
///
/// # Errors
///
/// As for ranges.
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
