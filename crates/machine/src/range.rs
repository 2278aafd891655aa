//! What a range request selects, by etcd's rules.

use api::Status;
use api::error;
use api::etcdserverpb::RangeRequest;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use bytes::BytesMut;
use mvcc::{KeyRange, RevisionError, Snapshot, Version};

use crate::found::{Projection, ReadError, Values, read_version};

/// Why a request against the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The client asked for something it cannot have.
    Refused(Status),
    /// A value could not be read from the disk.
    Unreadable(String),
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
        Failure::Unreadable(error.to_string())
    }
}

/// etcd's status for a revision that cannot be read.
pub fn refused(error: RevisionError) -> Status {
    match error {
        RevisionError::Compacted => error::COMPACTED,
        RevisionError::FutureRevision => error::FUTURE_REV,
    }
}

/// The answer of a range, values still in the log.
#[derive(Debug)]
pub struct Selection<'a> {
    /// The versions, in the order asked for.
    pub versions: Vec<Version<'a>>,
    /// Whether the limit cut something off.
    pub more: bool,
    /// Keys in the range at the revision, whatever limit and filters say.
    pub count: i64,
}

/// How the fields of a request shape each key of the answer.
pub fn projection(request: &RangeRequest) -> Projection {
    // etcd 3.7 serves keys_only from its index, which knows no leases, unless it has to sort by value.
    let keys_only = request.keys_only;
    Projection { keys_only, without_lease: keys_only && request.sort_target != SortTarget::Value as i32 }
}

fn is_filtered(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// Whether the answer comes in key order without looking at all of the range first.
pub fn is_natural(request: &RangeRequest) -> bool {
    let by_key =
        request.sort_target == SortTarget::Key as i32 && request.sort_order != SortOrder::Descend as i32;
    by_key && !is_filtered(request)
}

/// Evaluates a range request that [`crate::check::range`] let through.
///
/// # Errors
///
/// A revision that is compacted or lies ahead, or a value that cannot be read (only sorting by value reads any).
pub fn select<'a>(
    snapshot: &Snapshot<'a>,
    request: &RangeRequest,
    values: &dyn Values,
) -> Result<Selection<'a>, Failure> {
    let range = KeyRange::of_request(&request.key, &request.range_end);
    if let Some(key) = range.as_single()
        && is_natural(request)
        && !request.count_only
    {
        let version = snapshot.get(key, request.revision)?;
        let count = i64::from(version.is_some());
        return Ok(Selection { versions: version.into_iter().collect(), more: false, count });
    }
    if request.count_only {
        let count = snapshot.count(range, request.revision)?;
        return Ok(Selection { versions: Vec::new(), more: false, count: count as i64 });
    }
    let limit = usize::try_from(request.limit.max(0)).unwrap_or(usize::MAX);
    if is_natural(request) {
        let walk = snapshot.range(range, request.revision)?;
        if limit == 0 {
            let versions: Vec<Version<'a>> = walk.collect();
            let count = versions.len() as i64;
            return Ok(Selection { versions, more: false, count });
        }
        let versions: Vec<Version<'a>> = walk.take(limit).collect();
        let count = if versions.len() < limit {
            versions.len() as i64
        } else {
            snapshot.count(range, request.revision)? as i64
        };
        let more = count > versions.len() as i64;
        return Ok(Selection { versions, more, count });
    }

    let mut versions: Vec<Version<'a>> = snapshot.range(range, request.revision)?.collect();
    let count = versions.len() as i64;
    let above = |n: i64, min: i64| min == 0 || n >= min;
    let below = |n: i64, max: i64| max == 0 || n <= max;
    versions.retain(|v| {
        above(v.main(), request.min_mod_revision)
            && below(v.main(), request.max_mod_revision)
            && above(v.create_revision(), request.min_create_revision)
            && below(v.create_revision(), request.max_create_revision)
    });
    sort(&mut versions, request, values)?;
    let more = limit != 0 && versions.len() > limit;
    if more {
        versions.truncate(limit);
    }
    Ok(Selection { versions, more, count })
}

/// A target without an order means ascending; keys come ascending already. Ties keep the order of keys.
fn sort(versions: &mut Vec<Version<'_>>, request: &RangeRequest, values: &dyn Values) -> Result<(), Failure> {
    let target = SortTarget::try_from(request.sort_target).map_err(|_| error::INVALID_SORT_OPTION)?;
    let descend = request.sort_order == SortOrder::Descend as i32;
    match target {
        SortTarget::Key => {}
        SortTarget::Version => versions.sort_by_key(|v| v.version()),
        SortTarget::Create => versions.sort_by_key(|v| v.create_revision()),
        SortTarget::Mod => versions.sort_by_key(|v| v.main()),
        SortTarget::Value => {
            let mut keyed = Vec::with_capacity(versions.len());
            for &version in versions.iter() {
                let mut value = BytesMut::new();
                read_version(version, values, &mut value)?;
                keyed.push((value.freeze(), version));
            }
            keyed.sort_by(|a, b| a.0.cmp(&b.0));
            *versions = keyed.into_iter().map(|(_, version)| version).collect();
        }
    }
    if descend {
        versions.reverse();
    }
    Ok(())
}
