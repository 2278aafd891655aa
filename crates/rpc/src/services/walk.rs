//! Provides limits, errors and helper functions for walks over the keys of a range. A walk runs in slices,
//! between which other calls run. Ranges, transactions and maintenance calls make such walks.

use numbers::LeaseId;
use storage::values::unreadable;

use api::error;
use api::wire::{field_len, put_field_head};
use api::{Code, Status};
use bytes::{Bytes, BytesMut};
use machine::Values;
use machine::key_value::{Projection, StoredKeyValue, kv_len, put_kv};
use machine::range::Failure;
use machine::{AsOf, Overtaken, Slice};
use mvcc::{KeyRange, Version};

/// Maximum size in bytes of a response that is made in one step. A larger response is made piece by piece.
pub(crate) const BYTES_AT_ONCE: usize = 128 << 10;

/// Maximum number of keys that a walk visits before it yields to other calls.
pub(super) const KEYS_PER_SLICE: usize = 512;

/// Minimum number of keys that a slice visits, even if the connection has nearly used up the work of its
/// turn.
pub(super) const KEYS_PER_SLICE_MIN: usize = 32;

/// Number of the field `kvs` of `RangeResponse`.
pub(super) const KVS: u8 = 2;

/// Error of a read whose state no longer exists because this member has installed another member's state.
pub(super) const REPLACED: Status =
    Status::new(Code::Unavailable, "mainstay: this member has installed a snapshot; repeat the request");

pub(super) fn failed(failure: Failure) -> Status {
    match failure {
        Failure::Refused(status) => status,
        other => {
            Status::with(Code::Internal, format!("mainstay: a value could not be read: {}", other.text()))
        }
    }
}

pub(super) fn put_kv_field(
    out: &mut BytesMut,
    version: Version<'_>,
    projection: Projection,
    values: &dyn Values,
) -> Result<(), Status> {
    put_field_head(out, KVS, kv_len(version, projection));
    put_kv(version, projection, values, out).map_err(|e| unreadable(&e))
}

pub(super) fn kv_field_len(version: Version<'_>, projection: Projection) -> usize {
    field_len(kv_len(version, projection))
}

/// Returns the number of keys that the next slice of a walk visits: as many as the work that is left in the
/// connection's turn allows, between a minimum and a maximum. Without the maximum, many connections could
/// each start a long slice at the same time, before they have to queue for a long turn.
pub(super) fn keys_per_slice() -> usize {
    (accounting::work_left() / accounting::KEY_BYTES).clamp(KEYS_PER_SLICE_MIN, KEYS_PER_SLICE)
}

/// Counts a walk as work of the connection's turn: the keys that it has visited, and `bytes` bytes of values.
/// `looks` is the limit on visited keys with which the walk began.
pub(super) fn note_walk(walk: &mvcc::Range<'_>, looks: u64, bytes: usize) {
    accounting::note_work(looks - walk.looks_left(), bytes as u64);
}

/// Returns the next slice of a long range; an error if the state no longer exists.
pub(super) fn slice(state: &AsOf) -> Result<Slice, Status> {
    state.slice().map_err(|Overtaken| overtaken(state))
}

/// Returns the error for a reader whose state no longer exists.
pub(super) fn overtaken(state: &AsOf) -> Status {
    if state.is_replaced() { REPLACED } else { error::COMPACTED }
}

pub(super) fn key_range<'a>(start: &'a Bytes, end: &'a Bytes, behind: Option<&'a [u8]>) -> KeyRange<'a> {
    let range = KeyRange::of_request(start, end);
    match behind {
        Some(key) => range.after(key),
        None => range,
    }
}

pub(super) fn projected(mut found: StoredKeyValue, projection: Projection) -> StoredKeyValue {
    if projection.keys_only {
        found.value = None;
    }
    if projection.without_lease {
        found.lease = LeaseId::NONE;
    }
    found
}
