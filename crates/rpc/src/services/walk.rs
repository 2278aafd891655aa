//! Provides limits, errors and helper functions for walks. A walk visits the keys of a range, one after the
//! other. It runs in slices, between which other calls run. Ranges, transactions and maintenance calls make
//! walks.
//!
//! The thread that serves the connections gives each of them a turn, in which it does a limited amount of
//! work for that connection ([`accounting::work_left`]). The slices of walks count as such work.

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

/// Minimum number of keys that a slice visits, even if less work is left before the thread serves other
/// connections.
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

/// Returns the number of keys that the next slice of a walk may visit. It follows from the work that the
/// thread may still do for the connection before it serves others ([`accounting::work_left`]), but is not
/// below [`KEYS_PER_SLICE_MIN`] or above [`KEYS_PER_SLICE`]. Without the maximum, many connections could each
/// start a long slice at the same time, before they have to queue for a long turn.
pub(super) fn keys_per_slice() -> usize {
    (accounting::work_left() / accounting::KEY_BYTES).clamp(KEYS_PER_SLICE_MIN, KEYS_PER_SLICE)
}

/// Counts what a slice of a walk has done as work for the connection that this thread serves
/// ([`accounting::note_work`]): the keys that it has visited, and `bytes` bytes that it has read or encoded.
/// `looks` is the maximum number of keys that was set for the slice ([`mvcc::Range::set_looks`]), so the
/// number of visited keys is `looks` minus the number that `walk` may still visit.
pub(super) fn note_walk(walk: &mvcc::Range<'_>, looks: u64, bytes: usize) {
    accounting::note_work(looks - walk.looks_left(), bytes as u64);
}

/// Returns the next slice of a long range; an error if the state no longer exists.
pub(super) fn slice(state: &AsOf) -> Result<Slice, Status> {
    state.slice().map_err(|Overtaken| overtaken(state))
}

/// Returns an error if a slice of a long range may be incomplete, because a part of the index could not be read.
pub(super) fn intact(state: &AsOf) -> Result<(), Status> {
    state.intact().map_err(|Overtaken| overtaken(state))
}

/// Returns the error of every call after a part of the index could not be read. The member stops.
pub(crate) fn index_unreadable(fault: &str) -> Status {
    Status::with(
        Code::Unavailable,
        format!("mainstay: a part of the index cannot be read, so this member stops: {fault}"),
    )
}

/// Returns the error for a reader whose state no longer exists.
pub(super) fn overtaken(state: &AsOf) -> Status {
    if let Some(fault) = state.fault() {
        return index_unreadable(&fault);
    }
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
