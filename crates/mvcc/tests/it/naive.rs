//! The naive model: the same semantics, written as simply as possible.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_mvcc::{RevisionError, Version};
use numbers::{ChangeId, LeaseId, Revision};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Vec<u8>,
    pub main: Revision,
    pub sub: u32,
    pub create_revision: Revision,
    pub version: i64,
    pub lease: LeaseId,
    pub value: u32,
}

impl Record {
    pub fn of(version: Version<'_>) -> Record {
        assert_eq!(version.is_tombstone(), version.version() == 0);
        Record {
            key: version.key().to_vec(),
            main: version.main(),
            sub: version.sub(),
            create_revision: version.create_revision(),
            version: version.version(),
            lease: version.lease(),
            value: version.value_crc(),
        }
    }

    pub fn id(&self) -> ChangeId {
        ChangeId { main: self.main, sub: self.sub }
    }

    pub fn is_tombstone(&self) -> bool {
        self.version == 0
    }
}

/// Everything that was ever written. Compaction only raises the compact revision.
#[derive(Clone)]
pub struct Naive {
    pub keys: BTreeMap<Vec<u8>, Vec<Record>>,
    pub current: Revision,
    pub compacted: Revision,
}

pub fn within(key: &[u8], start: &[u8], end: Option<&[u8]>) -> bool {
    key >= start && end.is_none_or(|end| key < end)
}

impl Naive {
    pub fn new() -> Naive {
        Naive { keys: BTreeMap::new(), current: Revision::FIRST, compacted: Revision::NEVER_COMPACTED }
    }

    pub fn resolve(&self, rev: Revision) -> Result<Revision, RevisionError> {
        match rev {
            _ if rev <= Revision::CURRENT => Ok(self.current),
            _ if rev > self.current => Err(RevisionError::FutureRevision),
            _ if rev < self.compacted => Err(RevisionError::Compacted),
            _ => Ok(rev),
        }
    }

    pub fn newest(&self, key: &[u8], rev: Revision) -> Option<&Record> {
        self.keys.get(key)?.iter().rev().find(|record| record.main <= rev)
    }

    pub fn get(&self, key: &[u8], rev: Revision) -> Option<&Record> {
        self.newest(key, rev).filter(|record| !record.is_tombstone())
    }

    pub fn range(&self, start: &[u8], end: Option<&[u8]>, rev: Revision) -> Vec<Record> {
        let keys = self.keys.keys().filter(|key| within(key, start, end));
        keys.filter_map(|key| self.get(key, rev)).cloned().collect()
    }

    pub fn write(&mut self, key: &[u8], main: Revision, sub: u32, put: Option<(u32, LeaseId)>) -> Record {
        let live = self.get(key, Revision::MAX).cloned();
        let record = match put {
            Some((value, lease)) => Record {
                key: key.to_vec(),
                main,
                sub,
                create_revision: live.as_ref().map_or(main, |live| live.create_revision),
                version: live.as_ref().map_or(1, |live| live.version + 1),
                lease,
                value,
            },
            None => Record {
                key: key.to_vec(),
                main,
                sub,
                create_revision: Revision(0),
                version: 0,
                lease: LeaseId::NONE,
                value: 0,
            },
        };
        self.keys.entry(key.to_vec()).or_default().push(record.clone());
        record
    }

    /// Returns the versions that remain after a finished compaction at the compact revision, in the order of
    /// revisions.
    pub fn stored(&self) -> Vec<Record> {
        let mut kept: Vec<Record> = self.keys.values().flat_map(|history| self.history(history)).collect();
        kept.sort_by_key(|record| record.id());
        kept
    }

    fn history(&self, history: &[Record]) -> Vec<Record> {
        let c = self.compacted;
        let newest = history.iter().rposition(|record| record.main <= c);
        let kept = |(at, record): (usize, &Record)| {
            let keep = record.main > c
                || (Some(at) == newest && !record.is_tombstone())
                || (record.main == c && record.is_tombstone());
            keep.then(|| record.clone())
        };
        history.iter().enumerate().filter_map(kept).collect()
    }

    /// Returns the versions that HashKV covers, by etcd's rules for a database after a finished compaction.
    pub fn hash_versions(&self, rev: Revision) -> Vec<Record> {
        self.hashed(rev, |record| !record.is_tombstone())
    }

    /// Returns the versions covered by the hash of a compaction at `rev`, before it happens.
    pub fn compaction_hash_versions(&self, rev: Revision) -> Vec<Record> {
        self.hashed(rev, |record| !record.is_tombstone() || record.main == rev)
    }

    fn hashed(&self, rev: Revision, kept: impl Fn(&Record) -> bool) -> Vec<Record> {
        let c = self.compacted;
        let keep: BTreeSet<ChangeId> = self
            .keys
            .values()
            .filter_map(|history| history.iter().rev().find(|record| record.main <= rev))
            .filter(|record| kept(record))
            .map(|record| record.id())
            .collect();
        let covered = |record: &Record| {
            if record.main > rev {
                return false;
            }
            if record.main <= c && !keep.is_empty() && !keep.contains(&record.id()) {
                return false;
            }
            !(record.is_tombstone() && record.main == c)
        };
        self.stored().into_iter().filter(covered).collect()
    }
}
