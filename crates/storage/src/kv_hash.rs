//! Computes the checksum that the call HashKV returns, with etcd's formula, so that the hashes of Mainstay
//! and etcd can be compared. The caller adds the versions to a [`KvHash`] one by one, so that it can spread
//! the work over several steps.

use std::cell::Cell;

use api::Status;
use api::wire::put_field;
use bytes::{BufMut, BytesMut};
use machine::key_value::{Projection, put_kv};
use machine::{ReadError, Values};
use mvcc::{Value, Version};
use numbers::Revision;

use crate::crc_combine::combine;
use crate::values::unreadable;

/// CRC-32C as computed by etcd's HashKV: over the name of the bucket `key` and then, for each version, over
/// the bytes of its revision and of its `KeyValue`.
#[derive(Clone)]
pub struct KvHash {
    crc: u32,
    bytes: BytesMut,
}

impl Default for KvHash {
    fn default() -> KvHash {
        KvHash { crc: crc32c::crc32c(b"key"), bytes: BytesMut::new() }
    }
}

impl KvHash {
    /// Adds a version to the checksum. Reads the value of the version from `values`.
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be read.
    pub fn feed(&mut self, version: Version<'_>, values: &dyn Values) -> Result<(), Status> {
        self.bytes.clear();
        put_stored(version, values, &mut self.bytes).map_err(|e| unreadable(&e))?;
        self.crc = crc32c::crc32c_append(self.crc, &self.bytes);
        Ok(())
    }

    /// Adds a version to the checksum without reading its value: the result is computed from the checksum of
    /// the value in the index.
    pub fn feed_checksum(&mut self, version: Version<'_>) {
        self.bytes.clear();
        let checksum = Checksum(Cell::new(None));
        let put = put_stored(version, &checksum, &mut self.bytes);
        assert!(put.is_ok(), "nothing is read, so nothing fails");
        let Some((at, value)) = checksum.0.get() else {
            self.crc = crc32c::crc32c_append(self.crc, &self.bytes);
            return;
        };
        let (before, after) = self.bytes.split_at(at);
        let before = crc32c::crc32c_append(self.crc, before);
        let with_value = combine(before, value.crc, value.len);
        self.crc = crc32c::crc32c_append(with_value, after);
    }

    /// Returns the checksum of the versions added so far.
    pub fn finish(&self) -> u32 {
        self.crc
    }
}

/// Result of the call HashKV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedKv {
    /// CRC-32C of the versions that HashKV covers.
    pub hash: u32,
    /// Compact revision of the state; -1 if it was never compacted.
    pub compact_revision: Revision,
    /// Revision up to which the state was hashed.
    pub revision: Revision,
}

/// A source of values that appends nothing to the output. It records the value's checksum and length, and the
/// position in the output at which the value belongs.
struct Checksum(Cell<Option<(usize, Value)>>);

impl Values for Checksum {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        self.0.set(Some((out.len(), value)));
        Ok(())
    }
}

/// Appends the key and the value that etcd's bucket `key` would contain for a version.
fn put_stored(version: Version<'_>, values: &dyn Values, out: &mut BytesMut) -> Result<(), ReadError> {
    out.put_i64(version.main().0);
    out.put_u8(b'_');
    out.put_i64(i64::from(version.sub()));
    if version.is_tombstone() {
        out.put_u8(b't');
        put_field(out, 1, version.key());
        return Ok(());
    }
    if version.key().is_empty() {
        // The version only raises the revision (see `SnapshotVersion::bump`). In etcd's bucket `key` the
        // value of such a pair is empty.
        return Ok(());
    }
    put_kv(version, Projection::default(), values, out)
}

#[cfg(test)]
mod tests {
    use numbers::LeaseId;

    use super::*;
    use mvcc::{HashWalk, KeyRange, Location, Store};

    struct Repeated;

    impl Values for Repeated {
        fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
            out.put_bytes(value.location.segment() as u8, value.len as usize);
            Ok(())
        }
    }

    #[test]
    fn checksums_stand_for_values() {
        let mut store = Store::new();
        for len in [0usize, 1, 7, 8, 100, 4096, 1 << 20] {
            let mut writer = store.begin();
            let crc = crc32c::crc32c(&vec![9; len]);
            let value = Value { location: Location::new(9, 0), len: len as u32, crc };
            writer.put(format!("key {len}").as_bytes(), value, LeaseId(i64::from(len == 8) * 77));
            writer.finish();
        }
        let mut writer = store.begin();
        writer.delete_range(KeyRange::single(b"key 100"), |_| {});
        writer.finish();
        let view = store.publish();
        let (mut read, mut combined) = (KvHash::default(), KvHash::default());
        let mut count = 0;
        mvcc::hash_versions(&view, Revision::CURRENT, |version| {
            read.feed(version, &Repeated).expect("reads");
            combined.feed_checksum(version);
            assert_eq!(read.finish(), combined.finish(), "after {version:?}");
            count += 1;
        })
        .expect("is there");
        assert_eq!(count, 8);
    }

    /// Hashes that etcd 3.7.3 returned: put a 1, put b 22, delete a, put c 3, compact 3, delete all keys,
    /// compact 6.
    #[test]
    fn equals_what_etcd_computes() {
        fn put(store: &mut Store, key: &str, value: &str) {
            let mut writer = store.begin();
            let crc = crc32c::crc32c(value.as_bytes());
            writer.put(
                key.as_bytes(),
                Value { len: value.len() as u32, crc, ..Value::default() },
                LeaseId::NONE,
            );
            writer.finish();
        }
        fn delete(store: &mut Store, keys: KeyRange<'_>) {
            let mut writer = store.begin();
            writer.delete_range(keys, |_| {});
            writer.finish();
        }
        fn hash(store: &Store, mut walk: HashWalk) -> (i64, u32) {
            let mut hash = KvHash::default();
            while !walk.step(&store.snapshot(), 1, |version| hash.feed_checksum(version)) {}
            (walk.compact_revision().0, hash.finish())
        }
        let at = |store: &Store, rev: i64| {
            hash(store, HashWalk::new(&store.snapshot(), Revision(rev)).expect("can be read"))
        };
        let mut store = Store::new();
        assert_eq!(at(&store, -1), (-1, 1_084_519_789));
        put(&mut store, "a", "1");
        put(&mut store, "b", "22");
        delete(&mut store, KeyRange::single(b"a"));
        assert_eq!(at(&store, 0), (-1, 2_304_249_277));
        assert_eq!(at(&store, 3), (-1, 2_627_027_711));
        put(&mut store, "c", "3");
        store.compact(Revision(3)).expect("compacts");
        assert_eq!(
            hash(&store, HashWalk::of_compaction(&store.snapshot(), Revision(-1), Revision(3))),
            (-1, 2_627_027_711)
        );
        delete(&mut store, KeyRange::ALL);
        assert_eq!(at(&store, 6), (3, 4_080_008_450));
        store.compact(Revision(6)).expect("compacts");
        assert_eq!(
            hash(&store, HashWalk::of_compaction(&store.snapshot(), Revision(3), Revision(6))),
            (3, 1_729_700_885)
        );
    }
}
