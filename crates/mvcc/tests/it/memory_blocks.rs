//! A base in memory: written in slices from a moment, as a file would be, with faults that tests inject.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstay_mvcc::{
    BLOCK_VERSIONS_MAX, BlockId, Blocks, ChangeBlock, KeyBlock, LoadedVersion, Moment, NO_BLOCK, Value, View,
};
use numbers::{ChangeId, LeaseId, Revision};

/// A version as a file would contain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Vec<u8>,
    pub main: Revision,
    pub sub: u32,
    pub create_revision: Revision,
    pub version: i64,
    pub lease: LeaseId,
    pub value: Value,
}

impl Entry {
    pub fn of(loaded: &LoadedVersion<'_>) -> Entry {
        let LoadedVersion { key, main, sub, create_revision, version, lease, value } = *loaded;
        Entry { key: key.to_vec(), main, sub, create_revision, version, lease, value }
    }

    pub fn loaded(&self) -> LoadedVersion<'_> {
        LoadedVersion {
            key: &self.key,
            main: self.main,
            sub: self.sub,
            create_revision: self.create_revision,
            version: self.version,
            lease: self.lease,
            value: self.value,
        }
    }

    pub fn id(&self) -> ChangeId {
        ChangeId { main: self.main, sub: self.sub }
    }
}

/// Something that is wrong with the content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Unreadable,
    OneMissing,
    OneTwice,
    OtherKey,
    Tombstone,
    Leased,
    TooNew,
    OtherKeyBlock,
    Overlong,
    VersionOutOfBounds,
}

impl Damage {
    pub const ALL: [Damage; 10] = [
        Damage::Unreadable,
        Damage::OneMissing,
        Damage::OneTwice,
        Damage::OtherKey,
        Damage::Tombstone,
        Damage::Leased,
        Damage::TooNew,
        Damage::OtherKeyBlock,
        Damage::Overlong,
        Damage::VersionOutOfBounds,
    ];

    fn apply(self, entries: &mut Vec<(Entry, u32)>) {
        let last = entries.last().expect("a block is not empty").clone();
        match self {
            Damage::Unreadable => {}
            Damage::OneMissing => drop(entries.pop()),
            Damage::OneTwice => entries.push(last),
            Damage::OtherKey => {
                entries[0].0.key.push(b'!');
                entries[0].0.sub += 1;
            }
            Damage::Tombstone => (entries[0].0.version, entries[0].0.create_revision) = (0, Revision(0)),
            Damage::Leased => {
                entries[0].0.lease = LeaseId(7);
                // A lease is wrong only in a block of keys.
                entries[0].0.version = -1;
            }
            Damage::VersionOutOfBounds => entries[0].0.version = i64::MAX,
            Damage::TooNew => entries[0].0.main = Revision(i64::MAX / 4),
            Damage::OtherKeyBlock => {
                entries[0].1 = NO_BLOCK - 1;
                // The number is ignored in a block of keys.
                entries[0].0.main = Revision(0);
            }
            Damage::Overlong => {
                let more = (0..BLOCK_VERSIONS_MAX as u32).map(|n| {
                    let mut entry = last.clone();
                    entry.0.key.extend(n.to_be_bytes());
                    entry.0.sub += n + 1;
                    entry
                });
                entries.extend(more.collect::<Vec<_>>());
            }
        }
    }
}

/// The blocks of a base, in memory.
pub struct MemoryBlocks {
    pub moment: Moment,
    settled: Revision,
    /// Entries of each block of keys, and true if the block is settled.
    pub keys: Vec<(Vec<Entry>, bool)>,
    changes: Vec<Vec<(Entry, u32)>>,
    pub reads: AtomicU64,
    /// Number of the read, from 1, that finds the damage; 0 for none.
    damaged_read: AtomicU64,
    damage: Damage,
}

impl MemoryBlocks {
    /// Returns the same blocks, of which the nth read from now on finds the damage.
    pub fn damaged(&self, read: u64, damage: Damage) -> MemoryBlocks {
        MemoryBlocks {
            moment: self.moment,
            settled: self.settled,
            keys: self.keys.clone(),
            changes: self.changes.clone(),
            reads: AtomicU64::new(0),
            damaged_read: AtomicU64::new(read),
            damage,
        }
    }

    pub fn settled_blocks(&self) -> usize {
        self.keys.iter().filter(|(_, is_settled)| *is_settled).count()
    }
}

impl Blocks for MemoryBlocks {
    fn settled(&self) -> Revision {
        self.settled
    }

    fn key_blocks(&self) -> u32 {
        self.keys.len() as u32
    }

    fn change_blocks(&self) -> u32 {
        self.changes.len() as u32
    }

    fn key_block(&self, number: u32) -> KeyBlock<'_> {
        let (entries, is_settled) = &self.keys[number as usize];
        KeyBlock { first_key: &entries[0].key, versions: entries.len() as u32, is_settled: *is_settled }
    }

    fn change_block(&self, number: u32) -> ChangeBlock {
        let entries = &self.changes[number as usize];
        ChangeBlock { first: entries[0].0.id(), versions: entries.len() as u32 }
    }

    fn read(&self, block: BlockId, visit: &mut dyn FnMut(&LoadedVersion<'_>, u32)) -> Result<(), String> {
        let mut entries: Vec<(Entry, u32)> = match block {
            BlockId::Keys(number) => {
                let (entries, is_settled) = &self.keys[number as usize];
                assert!(is_settled, "only settled blocks are read");
                entries.iter().map(|entry| (entry.clone(), NO_BLOCK)).collect()
            }
            BlockId::Changes(number) => self.changes[number as usize].clone(),
        };
        if self.reads.fetch_add(1, Ordering::Relaxed) + 1 == self.damaged_read.load(Ordering::Relaxed) {
            if self.damage == Damage::Unreadable {
                return Err("input/output error".to_owned());
            }
            self.damage.apply(&mut entries);
        }
        for (entry, number) in &entries {
            visit(&entry.loaded(), *number);
        }
        Ok(())
    }

    fn describe(&self, block: BlockId) -> String {
        format!("{block:?} in memory")
    }
}

/// Writes a base from a moment, in slices that read ever newer views.
pub struct BaseWriter {
    pub moment: Moment,
    /// Maximum number of versions of a block; smaller than a leaf if the blocks shall not equal leaves.
    versions_max: usize,
    after: Option<Vec<u8>>,
    block: Vec<Entry>,
    blocks: Vec<(Vec<Entry>, bool)>,
}

impl BaseWriter {
    pub fn new(moment: Moment, versions_max: usize) -> BaseWriter {
        BaseWriter { moment, versions_max, after: None, block: Vec::new(), blocks: Vec::new() }
    }

    fn settled(&self) -> Revision {
        self.moment.compact_revision() - 1
    }

    fn cut(&mut self) {
        let block = std::mem::take(&mut self.block);
        if block.is_empty() {
            return;
        }
        let is_settled = block.len() <= BLOCK_VERSIONS_MAX
            && block.windows(2).all(|pair| pair[0].key < pair[1].key)
            && block.iter().all(|entry| {
                entry.main <= self.settled() && entry.version > 0 && entry.lease == LeaseId::NONE
            });
        self.blocks.push((block, is_settled));
    }

    /// Writes about `budget` versions more. Returns false after the last.
    pub fn step(&mut self, newest: &View, budget: usize) -> bool {
        let snapshot = newest.snapshot_at(&self.moment).expect("all that it needs is kept");
        let mut histories = snapshot.histories_after(self.after.as_deref());
        let mut written = 0;
        loop {
            let Some(version) = histories.next() else {
                self.cut();
                return false;
            };
            if self.block.len() >= self.versions_max
                && self.block.last().is_some_and(|last| last.key != version.key())
            {
                self.cut();
            }
            self.after = Some(version.key().to_vec());
            self.block.push(Entry::of(&LoadedVersion::from(version)));
            written += 1;
            if histories.is_at_leaf_end() {
                self.cut();
                // A slice ends where a leaf ends, so that the next one does not begin inside a history.
                if written >= budget {
                    return true;
                }
            }
        }
    }

    /// Returns the blocks, after listing the changes.
    pub fn finish(self, newest: &View) -> Arc<MemoryBlocks> {
        let snapshot = newest.snapshot_at(&self.moment).expect("all that it needs is kept");
        let number = |entry: &Entry| {
            let after = self.blocks.partition_point(|(block, _)| block[0].key <= entry.key);
            let (_, is_settled) = &self.blocks[after - 1];
            if *is_settled { after as u32 - 1 } else { NO_BLOCK }
        };
        let listed: Vec<(Entry, u32)> = snapshot
            .written_after(ChangeId::default())
            .take_while(|version| version.main() <= self.settled())
            .filter(|version| !version.is_tombstone())
            .map(|version| Entry::of(&LoadedVersion::from(version)))
            .map(|entry| (entry.clone(), number(&entry)))
            .collect();
        let changes = listed.chunks(56.min(self.versions_max)).map(<[_]>::to_vec).collect();
        Arc::new(MemoryBlocks {
            moment: self.moment,
            settled: self.settled(),
            keys: self.blocks,
            changes,
            reads: AtomicU64::new(0),
            damaged_read: AtomicU64::new(0),
            damage: Damage::Unreadable,
        })
    }
}
