//! Reads the base of a member with a memory budget: its list of blocks at once, its blocks on demand.

use std::sync::Arc;

use bytes::Bytes;
use log::OpenError;
use log::checkpoint::{CheckpointStore, RunBlocks};
use machine::image::{BaseBlocks, BaseFile, BaseTop, BlockSource, RestoreError};
use mvcc::{Base, Cache};
use numbers::BlockPlace;

use crate::checkpointer::level::{Companions, Level};

/// The two files of a base whose blocks are read on demand. They stay open for as long as the index needs the base,
/// also after a newer checkpoint has removed their names.
pub(crate) struct BaseFiles {
    run: RunBlocks,
    changes: RunBlocks,
}

impl BaseFiles {
    /// Opens the files and checks that their blocks are those that `top` lists. Of the blocks themselves, only those
    /// are read that the top does not list: the first ones, and the last one of each file.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is missing or damaged, or not the one of the list.
    pub fn open(
        store: &CheckpointStore,
        level: &Level,
        companions: &Companions,
        top: &BaseTop,
    ) -> Result<BaseFiles, OpenError> {
        let files = BaseFiles {
            run: store.read_blocks(&level.run)?,
            changes: store.read_blocks(&companions.changes)?,
        };
        check(&files.run, top.first_key_place(), top.key_places(), |block| top.is_end_of_keys(block))?;
        check(&files.changes, top.first_change_place(), top.change_places(), |block| {
            top.is_end_of_changes(block)
        })?;
        Ok(files)
    }

    /// Returns the base that reads from these files.
    pub fn into_base(self: Arc<Self>, top: &Arc<BaseTop>, cache: &Arc<Cache>) -> Arc<Base> {
        let blocks = BaseBlocks::new(Arc::clone(top), Box::new(Source(self)));
        Base::new(Arc::new(blocks), Arc::clone(cache))
    }

    /// Reads a block of keys.
    pub fn read_keys(&self, place: BlockPlace) -> Result<Bytes, OpenError> {
        let mut payload = Vec::new();
        self.run.read(place, &mut payload)?;
        Ok(payload.into())
    }

    /// Returns the metadata of both files.
    pub fn metadata(&self) -> [&[u8]; 2] {
        [&self.run.metadata, &self.changes.metadata]
    }

    fn of(&self, file: BaseFile) -> &RunBlocks {
        match file {
            BaseFile::Run => &self.run,
            BaseFile::Changes => &self.changes,
            BaseFile::Top => unreachable!("the list of the blocks lists only those of the other files"),
        }
    }
}

/// The source of the blocks of a base.
struct Source(Arc<BaseFiles>);

impl BlockSource for Source {
    fn read(&self, file: BaseFile, place: BlockPlace, payload: &mut Vec<u8>) -> Result<(), String> {
        self.0.of(file).read(place, payload).map_err(|error| error.to_string())
    }

    fn path(&self, file: BaseFile) -> String {
        self.0.of(file).path().display().to_string()
    }
}

/// Checks that a file consists of some blocks before `first`, of those at `places`, and of a last one.
fn check(
    file: &RunBlocks,
    first: BlockPlace,
    places: impl Iterator<Item = BlockPlace> + Clone,
    is_end: impl Fn(&[u8]) -> bool,
) -> Result<(), OpenError> {
    let mut payload = Vec::new();
    let mut read = |number, offset| -> Result<BlockPlace, OpenError> {
        let place = file.locate(number, offset)?;
        file.read(place, &mut payload)?;
        Ok(place)
    };
    let (mut before, mut next) = (Vec::new(), file.first());
    while next.number < first.number {
        let place = read(next.number, next.offset)?;
        next = place.next();
        before.push(place);
    }
    let end = places.clone().last().map_or(first, BlockPlace::next);
    let end = read(end.number, end.offset)?;
    if !is_end(&payload) {
        return Err(file.damaged(end.offset, "the last block is not the one that was recorded"));
    }
    file.check_places(before.into_iter().chain(places).chain([end]))
}

/// Reads the list of the blocks of a base.
///
/// # Errors
///
/// Returns an error if the file is missing or damaged, or contains no such list.
pub(crate) fn read_top(
    store: &CheckpointStore,
    companions: &Companions,
) -> Result<(BaseTop, Vec<u8>), RestoreError<OpenError>> {
    let mut reader = store.read(&companions.top).map_err(RestoreError::Read)?;
    let top = BaseTop::decode(std::iter::from_fn(|| reader.next_block().transpose()))?;
    Ok((top, reader.metadata))
}

#[cfg(test)]
mod tests;
