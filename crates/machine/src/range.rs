//! Evaluates range requests by etcd's rules: [`select`] visits the keys, [`passes`] filters them, and
//! [`sort`] sorts them. Values are read only to sort by them. The responses are built elsewhere.

use std::cmp::Reverse;

use api::Status;
use api::error;
use api::etcdserverpb::RangeRequest;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use bytes::BytesMut;
use mvcc::{KeyRange, RevisionError, Snapshot, Version};
use numbers::Revision;

use crate::key_value::{Projection, ReadError, StoredKeyValue, Values, read_version};

/// Reason why a request to the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request is refused with this status.
    Refused(Status),
    /// A value could not be read from the disk.
    Unreadable(String),
    /// A value is not in memory, and the caller must not wait for it; see [`ReadError::NotAtHand`].
    NotAtHand,
    /// The request is of a kind that this release does not know.
    Unknown(String),
}

impl Failure {
    /// Returns the reason as a message for people.
    pub fn text(self) -> String {
        match self {
            Failure::Refused(status) => status.message.into_owned(),
            Failure::Unreadable(why) | Failure::Unknown(why) => why,
            Failure::NotAtHand => ReadError::NotAtHand.to_string(),
        }
    }
}

impl From<RevisionError> for Failure {
    fn from(error: RevisionError) -> Failure {
        Failure::Refused(refused(error))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Refused(status)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        match error {
            ReadError::NotAtHand => Failure::NotAtHand,
            error => Failure::Unreadable(error.to_string()),
        }
    }
}

/// Returns etcd's status for a revision that cannot be read.
pub fn refused(error: RevisionError) -> Status {
    match error {
        RevisionError::Compacted => error::COMPACTED,
        RevisionError::FutureRevision => error::FUTURE_REV,
    }
}

/// Result of a range request. The values are not read yet.
#[derive(Debug)]
pub struct Selection<'a> {
    /// Versions that were found, in the requested order.
    pub versions: Vec<Version<'a>>,
    /// True if the limit left out keys.
    pub more: bool,
    /// Number of keys in the range at the revision, regardless of limit and filters.
    pub count: i64,
}

/// Returns which parts of each key-value pair the request wants.
pub fn projection(request: &RangeRequest) -> Projection {
    // etcd 3.7 answers keys_only from its index, which has no lease ids, unless it has to sort by value.
    // Lease ids are left out here in the same cases.
    let keys_only = request.keys_only;
    Projection { keys_only, without_lease: keys_only && request.sort_target != SortTarget::Value as i32 }
}

/// Returns true if a request filters keys by their revisions.
pub fn is_filtered(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// Returns true if the response is in key order and unfiltered, so that its first part can be returned before
/// the whole range was visited.
pub fn is_natural(request: &RangeRequest) -> bool {
    let by_key =
        request.sort_target == SortTarget::Key as i32 && request.sort_order != SortOrder::Descend as i32;
    by_key && !is_filtered(request)
}

/// Evaluates a range request that [`crate::check::range`] has accepted.
///
/// # Errors
///
/// Returns an error if the revision is compacted or in the future, or a value cannot be read. Only sorting by
/// value reads values.
pub fn select<'a>(
    snapshot: &Snapshot<'a>,
    request: &RangeRequest,
    values: &dyn Values,
) -> Result<Selection<'a>, Failure> {
    select_counted(snapshot, request, None, values)
}

/// Evaluates a range request like [`select`]. `counted` is the number of keys of the range in this snapshot
/// at the revision of the request, if the caller knows it. This saves counting, which descends the index
/// twice and is a large part of the cost of a range with a limit.
///
/// # Errors
///
/// Returns the same errors as [`select`].
pub fn select_counted<'a>(
    snapshot: &Snapshot<'a>,
    request: &RangeRequest,
    counted: Option<u64>,
    values: &dyn Values,
) -> Result<Selection<'a>, Failure> {
    let range = KeyRange::of_request(&request.key, &request.range_end);
    let count_all = || counted.map_or_else(|| snapshot.count(range, Revision(request.revision)), Ok);
    if let Some(key) = range.as_single()
        && is_natural(request)
        && !request.count_only
    {
        let version = snapshot.get(key, Revision(request.revision))?;
        let count = i64::from(version.is_some());
        return Ok(Selection { versions: version.into_iter().collect(), more: false, count });
    }
    if request.count_only {
        return Ok(Selection { versions: Vec::new(), more: false, count: count_all()? as i64 });
    }
    let limit = usize::try_from(request.limit.max(0)).unwrap_or(usize::MAX);
    if is_natural(request) {
        let walk = snapshot.range(range, Revision(request.revision))?;
        if limit == 0 {
            let versions: Vec<Version<'a>> = walk.collect();
            let count = versions.len() as i64;
            return Ok(Selection { versions, more: false, count });
        }
        let versions: Vec<Version<'a>> = walk.take(limit).collect();
        let count = if versions.len() < limit { versions.len() as i64 } else { count_all()? as i64 };
        let more = count > versions.len() as i64;
        return Ok(Selection { versions, more, count });
    }

    let walk = snapshot.range(range, Revision(request.revision))?;
    let (mut versions, count): (Vec<Version<'a>>, i64) = match keys_before_sort(request) {
        Some(keys) => (walk.take(keys).collect(), count_all()? as i64),
        None => {
            let all: Vec<Version<'a>> = walk.collect();
            let count = all.len() as i64;
            (all, count)
        }
    };
    versions.retain(|version| passes(*version, request));
    sort(&mut versions, request, values)?;
    let more = limit != 0 && versions.len() > limit;
    if more {
        versions.truncate(limit);
    }
    Ok(Selection { versions, more, count })
}

/// Returns true if a version passes the revision filters of a request. Bounds are inclusive; 0 means no
/// bound.
pub fn passes(version: Version<'_>, request: &RangeRequest) -> bool {
    let above = |n: i64, min: i64| min == 0 || n >= min;
    let below = |n: i64, max: i64| max == 0 || n <= max;
    above(version.main().0, request.min_mod_revision)
        && below(version.main().0, request.max_mod_revision)
        && above(version.create_revision().0, request.min_create_revision)
        && below(version.create_revision().0, request.max_create_revision)
}

/// Returns how many keys of the range, from its start, a request reads before it filters and sorts; `None`
/// for all keys. If the request has a sort target without an order, and no filter, etcd applies the limit
/// before it sorts. One key more than the limit is read, to know whether the limit left out keys. Must be
/// called only for requests for which [`is_natural`] is false.
pub fn keys_before_sort(request: &RangeRequest) -> Option<usize> {
    let cut_first =
        request.sort_order == SortOrder::None as i32 && !is_filtered(request) && request.limit > 0;
    cut_first.then(|| usize::try_from(request.limit).unwrap_or(usize::MAX).saturating_add(1))
}

/// An item that a range request can sort.
pub trait Sortable {
    /// Returns the number that is compared for this sort target; 0 if the target is the key or the value.
    fn number(&self, target: SortTarget) -> i64;

    /// Returns the value of the item.
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be read.
    fn value(&self, values: &dyn Values) -> Result<BytesMut, ReadError>;
}

impl Sortable for Version<'_> {
    fn number(&self, target: SortTarget) -> i64 {
        match target {
            SortTarget::Version => self.version(),
            SortTarget::Create => self.create_revision().0,
            SortTarget::Mod => self.main().0,
            SortTarget::Key | SortTarget::Value => 0,
        }
    }

    fn value(&self, values: &dyn Values) -> Result<BytesMut, ReadError> {
        let mut value = BytesMut::new();
        read_version(*self, values, &mut value)?;
        Ok(value)
    }
}

impl Sortable for StoredKeyValue {
    fn number(&self, target: SortTarget) -> i64 {
        match target {
            SortTarget::Version => self.version,
            SortTarget::Create => self.create_revision.0,
            SortTarget::Mod => self.mod_revision.0,
            SortTarget::Key | SortTarget::Value => 0,
        }
    }

    fn value(&self, values: &dyn Values) -> Result<BytesMut, ReadError> {
        let mut value = BytesMut::new();
        if let Some(place) = self.value {
            values.read_into(place, &mut value)?;
        }
        Ok(value)
    }
}

/// Sorts items that are in key order. A target without an order sorts in ascending order. Items that compare
/// equal stay in ascending key order, even if the order is descending. (etcd's sort is not stable, but for up
/// to 12 keys it gives this order.)
///
/// # Errors
///
/// Returns an error if a value cannot be read.
pub fn sort<T: Sortable>(
    items: &mut Vec<T>,
    request: &RangeRequest,
    values: &dyn Values,
) -> Result<(), Failure> {
    let target = SortTarget::try_from(request.sort_target).map_err(|_| error::INVALID_SORT_OPTION)?;
    let descend = request.sort_order == SortOrder::Descend as i32;
    match (target, descend) {
        (SortTarget::Key, false) => {}
        (SortTarget::Key, true) => items.reverse(),
        (SortTarget::Value, _) => {
            let mut keyed = Vec::with_capacity(items.len());
            for item in items.drain(..) {
                keyed.push((item.value(values)?, item));
            }
            if descend {
                keyed.sort_by(|a, b| b.0.cmp(&a.0));
            } else {
                keyed.sort_by(|a, b| a.0.cmp(&b.0));
            }
            items.extend(keyed.into_iter().map(|(_, item)| item));
        }
        (_, false) => items.sort_by_key(|item| item.number(target)),
        (_, true) => items.sort_by_key(|item| Reverse(item.number(target))),
    }
    Ok(())
}
