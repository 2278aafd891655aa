//! Encodes key-value pairs for clients: turns metadata from the index, and a value from the log, into the
//! bytes of an `mvccpb.KeyValue`.
//!
//! HashKV hashes this encoding, so it must be the same on every member: ascending field numbers, zero fields
//! omitted, shortest varints.

use api::wire::{bytes_len, number_len, put_bytes, put_field_head, put_number};
use bytes::{Bytes, BytesMut};
use mvcc::{Value, Version};
use numbers::{ChangeId, LeaseId, Revision};

use crate::as_of::Overtaken;

/// Reason why a value could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The value was relocated to another segment. The caller must look up its new location in the index and
    /// read again.
    Moved,
    /// The value is not in memory, and the caller must not wait for the disk. Only readers that are passed to
    /// [`crate::Machine::begin`] and [`crate::Machine::go_on`] return this error.
    NotAtHand,
    /// The revision that was being read has been compacted.
    Overtaken,
    /// The disk failed, or returned bytes that differ from those written. The text names the file and the
    /// offset.
    Failed(String),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadError::Moved => f.write_str("the value was moved"),
            ReadError::NotAtHand => f.write_str("the value is not in memory"),
            ReadError::Overtaken => Overtaken.fmt(f),
            ReadError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<Overtaken> for ReadError {
    fn from(Overtaken: Overtaken) -> ReadError {
        ReadError::Overtaken
    }
}

/// Reader of values, implemented by the log and by tests.
pub trait Values {
    /// Appends the bytes of a value to `out`. Leaves `out` unchanged on error.
    ///
    /// # Errors
    ///
    /// Returns an error for the reasons that [`ReadError`] lists.
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError>;
}

/// A key-value pair at one revision, copied out of the index, for responses that outlive the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKeyValue {
    /// The key.
    pub key: Bytes,
    /// The revision that created the key.
    pub create_revision: Revision,
    /// The revision that wrote this value.
    pub mod_revision: Revision,
    /// Sub-revision: the number of the write within its transaction.
    pub sub: u32,
    /// Number of writes of the key since its creation.
    pub version: i64,
    /// Id of the lease, or 0.
    pub lease: LeaseId,
    /// Location, length and checksum of the value; `None` if the request does not need the value.
    pub value: Option<Value>,
}

impl StoredKeyValue {
    /// Copies the metadata of a live version from the index.
    pub fn of(version: Version<'_>) -> StoredKeyValue {
        StoredKeyValue {
            key: Bytes::copy_from_slice(version.key()),
            create_revision: version.create_revision(),
            mod_revision: version.main(),
            sub: version.sub(),
            version: version.version(),
            lease: version.lease(),
            value: Some(version.value()),
        }
    }

    /// Returns the id of the change that wrote this value.
    pub fn id(&self) -> ChangeId {
        ChangeId { main: self.mod_revision, sub: self.sub }
    }

    /// Copies the parts of a version that a client has requested.
    pub fn projected(version: Version<'_>, projection: Projection) -> StoredKeyValue {
        let mut found = StoredKeyValue::of(version);
        if projection.keys_only {
            found.value = None;
        }
        if projection.without_lease {
            found.lease = LeaseId::NONE;
        }
        found
    }

    /// Returns the length of the encoded `KeyValue` in bytes, without tag and length prefix.
    pub fn encoded_len(&self) -> usize {
        Fields::of_stored(self).encoded_len()
    }

    /// Appends the encoded `KeyValue`, without tag and length prefix.
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be read; `out` then has a part of the encoding.
    pub fn encode(&self, values: &dyn Values, out: &mut BytesMut) -> Result<(), ReadError> {
        let fields = Fields::of_stored(self);
        fields.put_before_value(out);
        if let Some(value) = self.value
            && value.len > 0
        {
            values.read_into(value, out)?;
        }
        fields.put_after_value(out);
        Ok(())
    }
}

/// Selection of the parts of a version that a client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    /// True if the value is left out.
    pub keys_only: bool,
    /// True if the lease is returned as 0, as etcd does when it answers from its index alone.
    pub without_lease: bool,
}

struct Fields<'a> {
    key: &'a [u8],
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: i64,
    value_len: usize,
}

impl<'a> Fields<'a> {
    fn of_stored(found: &'a StoredKeyValue) -> Fields<'a> {
        Fields {
            key: &found.key,
            create_revision: found.create_revision.0,
            mod_revision: found.mod_revision.0,
            version: found.version,
            lease: found.lease.0,
            value_len: found.value.map_or(0, |v| v.len as usize),
        }
    }

    #[inline]
    fn of_version(version: Version<'a>, projection: Projection) -> Fields<'a> {
        if version.is_tombstone() {
            // The event of a deletion contains only the key and the revision.
            return Fields {
                key: version.key(),
                create_revision: 0,
                mod_revision: version.main().0,
                version: 0,
                lease: 0,
                value_len: 0,
            };
        }
        Fields {
            key: version.key(),
            create_revision: version.create_revision().0,
            mod_revision: version.main().0,
            version: version.version(),
            lease: if projection.without_lease { 0 } else { version.lease().0 },
            value_len: if projection.keys_only { 0 } else { version.value_len() as usize },
        }
    }

    #[inline]
    fn encoded_len(&self) -> usize {
        bytes_len(self.key.len())
            + number_len(self.create_revision)
            + number_len(self.mod_revision)
            + number_len(self.version)
            + bytes_len(self.value_len)
            + number_len(self.lease)
    }

    #[inline]
    fn put_before_value(&self, out: &mut BytesMut) {
        put_bytes(out, 1, self.key);
        put_number(out, 2, self.create_revision);
        put_number(out, 3, self.mod_revision);
        put_number(out, 4, self.version);
        if self.value_len > 0 {
            put_field_head(out, 5, self.value_len);
        }
    }

    #[inline]
    fn put_after_value(&self, out: &mut BytesMut) {
        put_number(out, 6, self.lease);
    }
}

/// Returns the length of the encoded `KeyValue` of a version in bytes, without tag and length prefix.
#[inline]
pub fn kv_len(version: Version<'_>, projection: Projection) -> usize {
    Fields::of_version(version, projection).encoded_len()
}

/// Appends the encoded `KeyValue` of a version, without tag and length prefix.
///
/// # Errors
///
/// Returns an error if the value cannot be read; `out` then holds a part of the encoding.
#[inline]
pub fn put_kv(
    version: Version<'_>,
    projection: Projection,
    values: &dyn Values,
    out: &mut BytesMut,
) -> Result<(), ReadError> {
    let fields = Fields::of_version(version, projection);
    fields.put_before_value(out);
    if fields.value_len > 0 {
        read_version(version, values, out)?;
    }
    fields.put_after_value(out);
    Ok(())
}

/// Appends the part of a version's encoded `KeyValue` before the bytes of the value.
pub fn put_kv_before_value(version: Version<'_>, projection: Projection, out: &mut BytesMut) {
    Fields::of_version(version, projection).put_before_value(out);
}

/// Appends the part of a version's encoded `KeyValue` after the bytes of the value: at most
/// [`AFTER_VALUE_BYTES_MAX`] bytes.
pub fn put_kv_after_value(version: Version<'_>, projection: Projection, out: &mut BytesMut) {
    Fields::of_version(version, projection).put_after_value(out);
}

/// Maximum length in bytes of the part of a `KeyValue` after its value, which is a tag and a varint.
pub const AFTER_VALUE_BYTES_MAX: usize = 11;

/// Appends the value of a version. The read succeeds even if the value is relocated at the same time.
///
/// # Errors
///
/// Returns the same errors as [`read_where_it_is`].
pub fn read_version(version: Version<'_>, values: &dyn Values, out: &mut BytesMut) -> Result<(), ReadError> {
    read_where_it_is(version, |value| values.read_into(value, out))
}

/// Calls `read` with the location of a version's value. If the value was relocated, calls `read` again with
/// the new location.
///
/// # Errors
///
/// Returns the errors of `read`, except [`ReadError::Moved`]: if the value is relocated during each of eight
/// reads, returns [`ReadError::Failed`].
pub fn read_where_it_is<T>(
    version: Version<'_>,
    mut read: impl FnMut(Value) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    // Relocations are rare, and the new location is published before the old copy is deleted. So the second
    // read normally succeeds; more reads are needed only if the value was relocated again.
    for _ in 0..8 {
        match read(version.value()) {
            Err(ReadError::Moved) => {}
            other => return other,
        }
    }
    Err(ReadError::Failed(format!("the value of revision {} is nowhere to be found", version.main())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut as _;
    use prost::Message as _;

    struct Fixed(&'static [u8]);

    impl Values for Fixed {
        fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
            assert_eq!(value.len as usize, self.0.len());
            out.put_slice(self.0);
            Ok(())
        }
    }

    #[test]
    fn a_stored_key_value_encodes_as_prost_does() {
        for (lease, value) in [(0i64, b"".as_slice()), (5, b"value"), (-1, b"v")] {
            let value: &'static [u8] = value;
            let found = StoredKeyValue {
                key: Bytes::from_static(b"key"),
                create_revision: Revision(3),
                mod_revision: Revision(300),
                sub: 0,
                version: 2,
                lease: LeaseId(lease),
                value: Some(Value { len: value.len() as u32, ..Value::default() }),
            };
            let mut out = BytesMut::new();
            found.encode(&Fixed(value), &mut out).expect("reads");
            let kv = api::mvccpb::KeyValue {
                key: "key".into(),
                create_revision: 3,
                mod_revision: 300,
                version: 2,
                value: value.into(),
                lease,
            };
            assert_eq!(out, kv.encode_to_vec());
            assert_eq!(out.len(), found.encoded_len());
        }
    }
}
