//! Decodes single blocks of a base, for the index that reads them on demand.

use std::sync::Arc;

use mvcc::{BlockId, Blocks, ChangeBlock, KeyBlock, LoadedVersion, NO_BLOCK};
use numbers::{BlockPlace, Revision};

use crate::codec::{Input, Malformed};
use crate::image::top::BaseFile;
use crate::image::{BaseTop, CHANGES, Entry, EntryReader, KEYS, Payload, SETTLED};

/// Source of the blocks of a base: its files, which the caller has opened and compared with the top.
pub trait BlockSource: Send + Sync {
    /// Reads the payload of the block at this place into `payload`, whose previous contents are dropped. Several
    /// threads may call this function at the same time.
    ///
    /// # Errors
    ///
    /// Returns a message that names the remedy if the block cannot be read, or is not the one that was written there.
    fn read(&self, file: BaseFile, place: BlockPlace, payload: &mut Vec<u8>) -> Result<(), String>;

    /// Returns the path of a file, for messages.
    fn path(&self, file: BaseFile) -> String;
}

/// The blocks of a base as the index reads them. The list of blocks is in memory, their contents are in files.
pub struct BaseBlocks {
    top: Arc<BaseTop>,
    source: Box<dyn BlockSource>,
}

impl BaseBlocks {
    /// Creates the blocks that `top` lists, and that `source` reads.
    pub fn new(top: Arc<BaseTop>, source: Box<dyn BlockSource>) -> BaseBlocks {
        BaseBlocks { top, source }
    }
}

impl Blocks for BaseBlocks {
    fn settled(&self) -> Revision {
        self.top.settled()
    }

    fn key_blocks(&self) -> u32 {
        self.top.key_blocks()
    }

    fn change_blocks(&self) -> u32 {
        self.top.change_blocks()
    }

    fn key_block(&self, number: u32) -> KeyBlock<'_> {
        self.top.key_block(number).expect("the number is one of a block")
    }

    fn change_block(&self, number: u32) -> ChangeBlock {
        self.top.change_block(number).expect("the number is one of a block")
    }

    fn read(&self, block: BlockId, visit: &mut dyn FnMut(&LoadedVersion<'_>, u32)) -> Result<(), String> {
        let text = |error: Malformed| error.to_string();
        let missing = || "the base has no such block".to_owned();
        let mut payload = Vec::new();
        match block {
            BlockId::Keys(number) => {
                let place = self.top.key_place(number).ok_or_else(missing)?;
                let described = self.top.key_block(number).ok_or_else(missing)?;
                self.source.read(BaseFile::Run, place, &mut payload)?;
                decode_keys(&payload, described, self.top.settled(), |key, entry| {
                    visit(&entry.loaded(key), NO_BLOCK);
                    Ok::<(), Malformed>(())
                })
                .map_err(text)
            }
            BlockId::Changes(number) => {
                let place = self.top.change_place(number).ok_or_else(missing)?;
                let described = self.top.change_block(number).ok_or_else(missing)?;
                self.source.read(BaseFile::Changes, place, &mut payload)?;
                decode_changes(&payload, described, &self.top, |key, entry, of| visit(&entry.loaded(key), of))
                    .map_err(text)
            }
        }
    }

    fn describe(&self, block: BlockId) -> String {
        let (file, place, what) = match block {
            BlockId::Keys(number) => (BaseFile::Run, self.top.key_place(number), "keys"),
            BlockId::Changes(number) => (
                BaseFile::Changes,
                self.top.change_place(number),
                "changes: a start without --memory-budget does not need this file, and loses nothing",
            ),
        };
        let BlockPlace { number, offset, .. } = place.unwrap_or_default();
        format!("{}: block {number} ({what}) at offset {offset}", self.source.path(file))
    }
}

/// Decodes a block of keys. Checks that it is as its description says.
pub(crate) fn decode_keys<E: From<Malformed>>(
    block: &[u8],
    described: KeyBlock<'_>,
    settled: Revision,
    mut visit: impl FnMut(&[u8], &Entry<'static>) -> Result<(), E>,
) -> Result<(), E> {
    let KeyBlock { first_key, versions, is_settled } = described;
    let kind = if is_settled { SETTLED } else { KEYS };
    let mut input = match block {
        [found, rest @ ..] if *found == kind => Input(rest),
        _ => return Err(Malformed("a block of another kind than was recorded").into()),
    };
    let mut reader = EntryReader::default();
    let mut count = 0;
    while !input.is_empty() {
        let entry = owned(&reader.next(&mut input, false)?);
        if count == 0 && reader.key() != first_key {
            return Err(Malformed("a block that begins with another key than was recorded").into());
        }
        if is_settled {
            check_settled(&entry, settled)?;
            if reader.same_key() || entry.lease.is_some() {
                return Err(Malformed("a version in a block of settled ones that is not settled").into());
            }
        }
        count += 1;
        visit(reader.key(), &entry)?;
    }
    if count != versions {
        return Err(Malformed("a block with another number of versions than was recorded").into());
    }
    Ok(())
}

/// Decodes a block of changes. Checks that it is as its description says.
fn decode_changes(
    block: &[u8],
    described: ChangeBlock,
    top: &BaseTop,
    mut visit: impl FnMut(&[u8], &Entry<'static>, u32),
) -> Result<(), Malformed> {
    let [CHANGES, rest @ ..] = block else {
        return Err(Malformed("a block of another kind than was recorded"));
    };
    let mut input = Input(rest);
    let mut reader = EntryReader::default();
    let mut before = None;
    let mut count = 0;
    while !input.is_empty() {
        let entry = owned(&reader.next(&mut input, false)?);
        if count == 0 && entry.id() != described.first {
            return Err(Malformed("a block that begins with another change than was recorded"));
        }
        if before.replace(entry.id()).is_some_and(|before| before >= entry.id()) {
            return Err(Malformed("changes that are not in order"));
        }
        check_settled(&entry, top.settled())?;
        count += 1;
        visit(reader.key(), &entry, top.settled_block_of(reader.key()).unwrap_or(NO_BLOCK));
    }
    if count != described.versions {
        return Err(Malformed("a block with another number of versions than was recorded"));
    }
    Ok(())
}

fn check_settled(entry: &Entry<'_>, settled: Revision) -> Result<(), Malformed> {
    if entry.is_tombstone() || entry.main > settled {
        return Err(Malformed("a version in a block of settled ones that is not settled"));
    }
    Ok(())
}

/// Returns the entry with an owned payload, the location of the value, so that it does not borrow from the block.
fn owned(entry: &Entry<'_>) -> Entry<'static> {
    Entry { payload: Payload::Place(entry.value()), ..*entry }
}
