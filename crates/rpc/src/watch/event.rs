//! Computes the length of one event of a watch response, and encodes the event as a response field.

use api::wire::{field_len, number_tag, put_field_head};
use bytes::{BufMut as _, BytesMut};
use machine::key_value::{Projection, kv_len, put_kv};
use machine::{ReadError, Values};
use mvcc::{Snapshot, Version};

use super::response;

/// Number of the event's field `kv`.
const KV: u8 = 2;
/// Number of the event's field `prev_kv`.
const PREVIOUS: u8 = 3;
/// Encoded field `type` of a deletion. The type of a put is 0, which protobuf leaves out.
const DELETE: [u8; 2] = [number_tag(1), 1];

/// Returns the version before a change; `None` if there is none or it is compacted.
pub(super) fn previous_of<'a>(snapshot: Snapshot<'a>, version: Version<'a>) -> Option<Version<'a>> {
    let creates = !version.is_tombstone() && version.create_revision() == version.main();
    if creates { None } else { snapshot.previous(version).unwrap_or(None) }
}

/// Returns the length in bytes of an event's whole field, with tag and length prefix.
pub(super) fn event_field_len(version: Version<'_>, previous: Option<Version<'_>>) -> usize {
    response::event_field_len(event_body_len(version, previous))
}

/// Returns the length in bytes of an event without the tag and length prefix of its field.
pub(super) fn event_body_len(version: Version<'_>, previous: Option<Version<'_>>) -> usize {
    let kind = if version.is_tombstone() { DELETE.len() } else { 0 };
    kind + kv_field_len(version) + previous.map_or(0, kv_field_len)
}

/// Appends an event's whole field. Values that are not in memory are recorded as missing in `values`.
pub(super) fn put_event(
    out: &mut BytesMut,
    version: Version<'_>,
    previous: Option<Version<'_>>,
    values: &dyn Values,
) -> Result<(), ReadError> {
    let body_len = event_body_len(version, previous);
    let (start, len) = (out.len(), response::event_field_len(body_len));
    out.reserve(len);
    response::put_event_head(out, body_len);
    if version.is_tombstone() {
        out.put_slice(&DELETE);
    }
    put_kv_field(out, KV, version, values)?;
    if let Some(previous) = previous {
        put_kv_field(out, PREVIOUS, previous, values)?;
    }
    assert_eq!(out.len() - start, len, "an event has its measured length");
    Ok(())
}

/// Returns the approximate number of bytes of an event in a response.
pub(super) fn event_len(version: Version<'_>) -> usize {
    response::event_field_len(kv_field_len(version))
}

fn kv_field_len(version: Version<'_>) -> usize {
    field_len(kv_len(version, Projection::default()))
}

fn put_kv_field(
    out: &mut BytesMut,
    field: u8,
    version: Version<'_>,
    values: &dyn Values,
) -> Result<(), ReadError> {
    put_field_head(out, field, kv_len(version, Projection::default()));
    put_kv(version, Projection::default(), values, out)
}
