//! Encodes responses, and reads values from the log directly into them.

use api::etcdserverpb::ResponseHeader;
use api::wire::{NumberFields, field_len, number_len, put_field, put_field_head, put_number};
use bytes::{Bytes, BytesMut};
use machine::txn::{Deleted, OpOutcome, Ranged, Read, TxnOutcome};
use machine::{ReadError, StoredKeyValue, Values};
use numbers::Revision;
use prost::Message as _;

/// Maximum length in bytes of an encoded header: four fields, each a tag and a varint of up to ten bytes.
const HEADER_BYTES_MAX: usize = 4 * 11;

/// Appends the header as field 1.
pub fn put_header(out: &mut BytesMut, header: &ResponseHeader) {
    // Every response has a header with two ids of up to ten bytes each. The header's fields are encoded into
    // an array first, so that `out` is extended only once.
    let ResponseHeader { cluster_id, member_id, revision, raft_term } = *header;
    let mut fields = NumberFields::<HEADER_BYTES_MAX>::default();
    fields.push(1, cluster_id);
    fields.push(2, member_id);
    fields.push(3, revision as u64);
    fields.push(4, raft_term);
    put_field(out, 1, fields.as_slice());
}

/// Returns the number of bytes that [`put_header`] appends.
pub fn header_len(header: &ResponseHeader) -> usize {
    field_len(header.encoded_len())
}

fn put_key_value(
    out: &mut BytesMut,
    field: u8,
    found: &StoredKeyValue,
    values: &dyn Values,
) -> Result<(), ReadError> {
    put_field_head(out, field, found.encoded_len());
    found.encode(values, out)
}

/// Returns an encoded `PutResponse`.
///
/// # Errors
///
/// Returns an error if the previous value cannot be read.
pub fn put(
    header: &ResponseHeader,
    previous: Option<&StoredKeyValue>,
    values: &dyn Values,
) -> Result<Bytes, ReadError> {
    let previous_len = previous.map_or(0, |found| field_len(found.encoded_len()));
    let mut out = BytesMut::with_capacity(header_len(header) + previous_len);
    put_header(&mut out, header);
    if let Some(found) = previous {
        put_key_value(&mut out, 2, found, values)?;
    }
    Ok(out.freeze())
}

/// Returns the keys that a read found during apply.
///
/// # Errors
///
/// Returns an error if apply left the read to be done later. In that case `services::answers` makes the
/// response.
fn known(read: &Read) -> Result<(&[StoredKeyValue], bool, i64), ReadError> {
    match read {
        Read::Known { found, more, count } => Ok((found, *more, *count)),
        Read::Past(_) => Err(ReadError::Failed("a range is still to be read".to_owned())),
    }
}

/// Returns an encoded `DeleteRangeResponse`.
///
/// # Errors
///
/// Returns an error if a previous value cannot be read, or if apply left the previous keys to be read later.
pub fn delete_range(
    header: &ResponseHeader,
    deleted: &Deleted,
    values: &dyn Values,
) -> Result<Bytes, ReadError> {
    let (previous, ..) = known(&deleted.previous)?;
    let kvs: usize = previous.iter().map(|found| field_len(found.encoded_len())).sum();
    let mut out = BytesMut::with_capacity(header_len(header) + number_len(deleted.deleted) + kvs);
    put_header(&mut out, header);
    put_number(&mut out, 2, deleted.deleted);
    for found in previous {
        put_key_value(&mut out, 3, found, values)?;
    }
    Ok(out.freeze())
}

fn range(header: &ResponseHeader, ranged: &Ranged, values: &dyn Values) -> Result<Bytes, ReadError> {
    let (found, more, count) = known(&ranged.read)?;
    let kvs: usize = found.iter().map(|found| field_len(found.encoded_len())).sum();
    let mut out = BytesMut::with_capacity(header_len(header) + kvs + 16);
    put_header(&mut out, header);
    for found in found {
        put_key_value(&mut out, 2, found, values)?;
    }
    put_number(&mut out, 3, i64::from(more));
    put_number(&mut out, 4, count);
    Ok(out.freeze())
}

/// Returns the number of bytes of the keys and values that a read found during apply.
pub fn found_len(read: &Read) -> usize {
    match read {
        Read::Known { found, .. } => found.iter().map(StoredKeyValue::encoded_len).sum(),
        Read::Past(_) => 0,
    }
}

/// Returns the number of bytes of the keys and values that were found during apply for the response of a
/// transaction.
pub fn named_len(outcome: &TxnOutcome) -> usize {
    let named = |response: &OpOutcome| match response {
        OpOutcome::Range(ranged) => found_len(&ranged.read),
        OpOutcome::Put { previous, .. } => previous.as_ref().map_or(0, |found| found.encoded_len()),
        OpOutcome::DeleteRange(deleted) => found_len(&deleted.previous),
        OpOutcome::Txn(nested) => named_len(nested),
    };
    outcome.responses.iter().map(named).sum()
}

/// Returns an encoded `TxnResponse`. The headers of the operations contain only a revision.
///
/// # Errors
///
/// Returns an error if a value cannot be read, or if apply left a range to be read later.
pub fn txn(header: &ResponseHeader, outcome: &TxnOutcome, values: &dyn Values) -> Result<Bytes, ReadError> {
    let only = |revision: Revision| ResponseHeader { revision: revision.0, ..ResponseHeader::default() };
    let mut out = BytesMut::new();
    put_header(&mut out, header);
    put_number(&mut out, 2, i64::from(outcome.succeeded));
    for response in &outcome.responses {
        let (field, bytes) = match response {
            OpOutcome::Range(ranged) => (1, range(&only(ranged.revision), ranged, values)?),
            OpOutcome::Put { revision, previous } => (2, put(&only(*revision), previous.as_deref(), values)?),
            OpOutcome::DeleteRange(deleted) => (3, delete_range(&only(deleted.revision), deleted, values)?),
            OpOutcome::Txn(nested) => (4, txn(&only(nested.revision), nested, values)?),
        };
        out.reserve(field_len(field_len(bytes.len())));
        put_field_head(&mut out, 3, field_len(bytes.len()));
        put_field(&mut out, field, &bytes);
    }
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_prost_makes_of_it() {
        for n in [0, 1, 127, 128, 1 << 42, i64::MAX as u64, u64::MAX] {
            for header in [
                ResponseHeader { cluster_id: n, member_id: n, revision: n as i64, raft_term: n },
                ResponseHeader { cluster_id: 7, member_id: 0, revision: n as i64, raft_term: 3 },
            ] {
                let mut out = BytesMut::new();
                put_header(&mut out, &header);
                assert_eq!(out.len(), header_len(&header));
                let mut expected = Vec::new();
                put_field(&mut expected, 1, &header.encode_to_vec());
                assert_eq!(out, expected, "{header:?}");
            }
        }
    }
}
