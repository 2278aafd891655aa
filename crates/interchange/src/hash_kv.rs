//! Computes the HashKV (etcd's hash of all keys and values at a revision) of a database that no server is
//! using.
//!
//! Let C be the compact revision and R the requested revision. The hash covers all changes with C < revision
//! <= R. Of the changes at or below C it covers, for each key, the change that is the key's newest one at R,
//! unless it is a deletion. If no key exists at R, it covers instead, for each key, the newest change at C,
//! unless it is a deletion. The hashed bytes are the name of the bucket `key`, and then, in order, the stored
//! key and value of each of these changes.

use std::collections::HashMap;
use std::fmt;

use numbers::Revision;
use sha2::{Digest as _, Sha256};

use crate::backend::{Backend, StoredChangeId, name};
use crate::error::Error;
use crate::source::Source;

/// Result of HashKV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// The CRC-32C.
    pub hash: u32,
    /// Compact revision for which the hash was computed; -1 for none.
    pub compact_revision: Revision,
    /// Revision for which the hash was computed.
    pub hash_revision: Revision,
}

/// Error returned when the hash cannot be computed.
#[derive(Debug)]
pub enum HashKvError {
    /// The database cannot be read.
    Read(Error),
    /// The requested revision is below the compact revision, which the variant contains.
    Compacted(Revision),
    /// The requested revision is above the newest revision, which the variant contains.
    Future(Revision),
}

/// A 16-byte hash (a truncated SHA-256) that stands for a key, so that many keys fit into little memory. Two
/// keys with the same hash cannot be found in practice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; 16]);

impl Fingerprint {
    pub fn of(key: &[u8]) -> Fingerprint {
        let digest = Sha256::digest(key);
        Fingerprint(digest.first_chunk().copied().unwrap_or_default())
    }
}

/// The newest change of a key at or below the compact revision, and its newest change at or below the
/// requested revision.
struct Newest {
    at_compaction: Newer,
    at_hash: Newer,
}

#[derive(Clone, Copy)]
struct Newer {
    revision: StoredChangeId,
    is_tombstone: bool,
}

impl Newer {
    /// Returns true if this is the change at `revision` and it is not a deletion.
    fn is(self, revision: StoredChangeId) -> bool {
        self.revision == revision && !self.is_tombstone
    }
}

/// Computes the HashKV of the database at `revision`; 0 means the newest revision.
///
/// Reads the history twice. Takes about 80 bytes of memory for each key that has a change at or below the
/// compact revision.
///
/// # Errors
///
/// Returns an error if the revision does not exist, or the database cannot be read.
pub fn hash_kv<S: Source>(backend: &Backend<S>, revision: Revision) -> Result<HashKv, HashKvError> {
    let compacted = backend.meta()?.compact_revision().unwrap_or(Revision::NEVER_COMPACTED);
    // A store without any change is at revision 1.
    let mut current = compacted.max(Revision::FIRST);
    let mut newest: HashMap<Fingerprint, Newest> = HashMap::new();
    // Number of keys created minus number of keys deleted by the changes above the compact revision, up to
    // the requested revision.
    let mut gained = 0i64;
    let mut history = backend.history()?;
    while let Some(change) = history.step()? {
        let head = change.head;
        let main = head.revision.main;
        current = current.max(main);
        if revision > Revision::CURRENT && main > revision {
            continue;
        }
        let newer = Newer { revision: head.revision, is_tombstone: head.is_tombstone };
        if main <= compacted {
            newest.insert(Fingerprint::of(head.key), Newest { at_compaction: newer, at_hash: newer });
            continue;
        }
        gained += i64::from(!head.is_tombstone && head.version <= 1) - i64::from(head.is_tombstone);
        if !newest.is_empty()
            && let Some(found) = newest.get_mut(&Fingerprint::of(head.key))
        {
            found.at_hash = newer;
        }
    }
    let revision = if revision <= Revision::CURRENT { current } else { revision };
    if revision < compacted {
        return Err(HashKvError::Compacted(compacted));
    }
    if revision > current {
        return Err(HashKvError::Future(current));
    }
    let live_at_compaction = newest.values().filter(|n| !n.at_compaction.is_tombstone).count() as i64;
    let any_live = live_at_compaction.saturating_add(gained) > 0;
    let mut hash = crc32c::crc32c(name::KEY);
    let mut history = backend.history()?;
    while let Some(stored) = history.step_stored()? {
        let at = stored.change.head.revision;
        if at.main > revision {
            break;
        }
        let is_covered = at.main > compacted || {
            let found = newest.get(&Fingerprint::of(stored.change.head.key));
            found.is_some_and(|n| if any_live { n.at_hash.is(at) } else { n.at_compaction.is(at) })
        };
        if is_covered {
            hash = crc32c::crc32c_append(hash, stored.key);
            hash = crc32c::crc32c_append(hash, stored.value);
        }
    }
    Ok(HashKv { hash, compact_revision: compacted, hash_revision: revision })
}

impl From<Error> for HashKvError {
    fn from(error: Error) -> HashKvError {
        HashKvError::Read(error)
    }
}

impl fmt::Display for HashKvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashKvError::Read(error) => error.fmt(f),
            HashKvError::Compacted(at) => write!(f, "the revision has been compacted, up to {at}"),
            HashKvError::Future(at) => write!(f, "the revision is in the future: the newest is {at}"),
        }
    }
}

impl std::error::Error for HashKvError {}
