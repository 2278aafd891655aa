//! Computes the hash, counts and sizes that `etcdutl snapshot status` prints.

use std::collections::HashSet;

use numbers::Revision;

use crate::backend::{Backend, Change, name};
use crate::error::Error;
use crate::hash_kv::Fingerprint;
use crate::source::Source;

/// The properties of a snapshot that `etcdutl snapshot status` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// CRC-32C over all buckets: their names, keys and values, in order.
    pub hash: u32,
    /// Newest stored revision.
    pub revision: Revision,
    /// Number of keys that exist at that revision.
    pub total_keys: u64,
    /// Number of bytes of the database that are in use.
    pub total_size_bytes: u64,
    /// Storage version; empty for databases from before 3.6.
    pub version: String,
}

impl Status {
    /// Checks a database and computes its status. Reads the whole database twice, and takes about 32 bytes of
    /// memory per key.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be read or is damaged anywhere.
    pub fn of<S: Source>(backend: &Backend<S>) -> Result<Status, Error> {
        let bolt = backend.bolt();
        bolt.check()?;
        let mut status = Status {
            total_size_bytes: bolt.size_bytes(),
            version: backend.meta()?.storage_version.unwrap_or_default(),
            ..Status::default()
        };
        let mut live = HashSet::new();
        let mut buckets = bolt.root();
        while let Some(item) = buckets.step()? {
            let Some(bucket) = item.bucket else {
                return Err(Error::page(item.page, item.offset, "a key outside of all buckets"));
            };
            let is_history = item.key == name::KEY;
            status.hash = crc32c::crc32c_append(status.hash, item.key);
            let mut pairs = bolt.walk(&bucket);
            while let Some(pair) = pairs.step()? {
                if pair.bucket.is_some() {
                    return Err(Error::page(pair.page, pair.offset, "a bucket inside of a bucket"));
                }
                status.hash = crc32c::crc32c_append(status.hash, pair.key);
                status.hash = crc32c::crc32c_append(status.hash, pair.value);
                if is_history {
                    let change = Change::decode(pair.key, pair.value)
                        .map_err(|what| Error::page(pair.page, pair.offset, what))?;
                    status.revision = change.head.revision.main;
                    let key = Fingerprint::of(change.head.key);
                    match change.head.is_tombstone {
                        true => live.remove(&key),
                        false => live.insert(key),
                    };
                }
            }
        }
        status.total_keys = live.len() as u64;
        Ok(status)
    }
}
