//! Writes a base in blocks: its three files, one after the other.

use std::sync::Arc;
use std::time::Instant;

use log::checkpoint::{CheckpointStore, Run};
use machine::image::{BaseFile, BaseTop, BaseWriter};
use mvcc::{Base, Cache};
use numbers::{Index, Term};
use telemetry::metrics::Metrics;

use super::level::{Companions, Level};
use super::orders::CheckpointError;
use crate::base::BaseFiles;

/// Bytes between two syncs of a run that is being written. The number is small because a sync of the log on
/// the same disk may have to wait until this many bytes are written.
pub(super) const SYNC_BYTES: u64 = 4 << 20;

/// A base in blocks that is being written. Each file is complete and durable before the next one begins.
pub(super) struct WritingBase {
    blocks: BaseWriter,
    /// The file that is being written; `None` after the last one.
    file: Option<log::checkpoint::RunWriter>,
    of: BaseFile,
    /// Number of bytes of the file that are synced.
    synced: u64,
    name: String,
    applied_index: Index,
    term: Term,
    identity: Vec<u8>,
    finished: Vec<Run>,
    /// Bytes of the reserve file that the base run has left, and that the other files may take; `None` unless the run was
    /// written into the reserve file.
    spare_bytes: Option<u64>,
}

/// The finished files of a base in blocks.
pub(super) struct WrittenBase {
    pub run: Run,
    pub companions: Companions,
    pub top: BaseTop,
}

impl WritingBase {
    /// Begins with the base run, whose file was begun with this name, position and identity.
    pub fn new(
        blocks: BaseWriter,
        file: log::checkpoint::RunWriter,
        name: String,
        (applied_index, term): (Index, Term),
        identity: Vec<u8>,
    ) -> WritingBase {
        WritingBase {
            blocks,
            file: Some(file),
            of: BaseFile::Run,
            synced: 0,
            name,
            applied_index,
            term,
            identity,
            finished: Vec::new(),
            spare_bytes: None,
        }
    }

    /// Writes the next blocks, or ends a file. Returns itself until the last file is finished. `before_end` is called
    /// before a file is finished, with true if the base run was written into the reserve file, and the bytes of that
    /// file that are left.
    pub fn step(
        mut self,
        store: &CheckpointStore,
        metrics: &Metrics,
        before_end: impl Fn(bool, u64),
    ) -> Result<Result<Box<WritingBase>, WrittenBase>, CheckpointError> {
        let next = self.blocks.next_blocks()?;
        let goes_on = next.as_ref().is_some_and(|(file, _)| *file == self.of);
        if !goes_on && let Some(file) = self.file.take() {
            let finishing = Instant::now();
            if file.is_in_reserve() {
                self.spare_bytes = Some(file.spare_bytes());
            } else if let Some(left) = &mut self.spare_bytes {
                *left = left.saturating_sub(file.file_bytes());
            }
            before_end(self.spare_bytes.is_some(), self.spare_bytes.unwrap_or(0));
            self.finished.push(file.finish()?);
            metrics.disk.backend_commit_duration.observe_seconds(finishing.elapsed());
        }
        let Some((file, blocks)) = next else {
            let top = self.blocks.into_top();
            let [run, changes, list] = <[Run; 3]>::try_from(self.finished)
                .unwrap_or_else(|files| panic!("a base has three files, not {}", files.len()));
            return Ok(Err(WrittenBase { run, companions: Companions { changes, top: list }, top }));
        };
        if !goes_on {
            let name = match file {
                BaseFile::Run => unreachable!("the base run is the first file"),
                BaseFile::Changes => Companions::changes_name(&self.name),
                BaseFile::Top => Companions::top_name(&self.name),
            };
            self.file = Some(store.begin(&name, self.applied_index, self.term, &self.identity)?);
            (self.of, self.synced) = (file, 0);
        }
        let Some(file) = &mut self.file else { unreachable!("blocks are of a file") };
        for block in blocks {
            let place = file.write_block(&block)?;
            self.blocks.written(place);
            if file.file_bytes() - self.synced >= SYNC_BYTES {
                let syncing = Instant::now();
                file.sync()?;
                metrics.disk.backend_commit_duration.observe_seconds(syncing.elapsed());
                self.synced = file.file_bytes();
            }
        }
        Ok(Ok(Box::new(self)))
    }
}

impl WrittenBase {
    /// Opens the base, after comparing its files with the list of its blocks. Returns also its level.
    pub fn open(
        self,
        store: &CheckpointStore,
        level: Level,
        cache: &Arc<Cache>,
    ) -> Result<(Level, Arc<Base>), CheckpointError> {
        let top = Arc::new(self.top);
        let files = Arc::new(BaseFiles::open(store, &level, &self.companions, &top)?);
        let base = files.into_base(&top, cache);
        Ok((Level { companions: Some(self.companions), ..level }, base))
    }
}
