//! Finds the live values in old segments of the log, batch by batch, so that the core can write them again at
//! the end of the log and the old segments can be deleted.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use bytes::BytesMut;
use machine::key_value::read_version;
use numbers::{ChangeId, Revision};

use super::compressing::ValueCompressor;
use super::{Event, Haste, Relocation, Surface};
use crate::values::LogValues;

/// Maximum number of versions that are visited before a newer view is used. A view that is held longer keeps
/// more memory from being freed.
pub(super) const LOOKED_AT_MAX: usize = 16 << 10;
/// Bytes by which each value counts against the size of a batch, in addition to its data: the core looks up
/// each value and keeps a record of it until it is on disk, so a batch must not contain too many small
/// values.
pub(super) const MOVED_BYTES: usize = 128;

/// Progress of moving the live values out of some segments.
pub(super) struct Moving {
    /// Main revision up to which versions are visited. Values of later revisions are in later segments.
    pub(super) through: Revision,
    pub(super) segments: BTreeSet<u32>,
    /// Size of a batch of values in bytes.
    pub(super) portion_bytes: usize,
    pub(super) haste: Haste,
    pub(super) values: LogValues,
    /// Id of the last version that was visited.
    pub(super) behind: ChangeId,
    /// Compresses the values; `None` if they are moved as they are.
    pub(super) compressor: Option<ValueCompressor>,
    /// Receives the core's signal that the values of the current batch are on disk at their new locations.
    pub(super) moved: Option<Receiver<()>>,
}

impl Moving {
    /// Begins to move the values out of these segments.
    pub(super) fn new(member: &Surface, segments: Vec<u32>, portion_bytes: usize, haste: Haste) -> Moving {
        Moving {
            through: (member.newest)().snapshot().current_revision(),
            segments: segments.into_iter().collect(),
            portion_bytes,
            haste,
            values: LogValues::new(member.values.clone()),
            behind: ChangeId::default(),
            compressor: ValueCompressor::of(member),
            moved: None,
        }
    }

    /// Blocks until the core has moved the current batch or has stopped.
    pub(super) fn wait(&mut self) {
        if let Some(moved) = &self.moved
            && moved.recv().is_ok()
        {
            self.moved = None;
        }
    }

    /// Sends the next batch of live values to the core, which writes them again, unless the core is still
    /// moving the previous batch. Returns false if no values are left, or if the core has stopped.
    pub(super) fn step(&mut self, member: &Surface) -> bool {
        if let Some(moved) = &self.moved {
            match moved.try_recv() {
                Ok(()) => self.moved = None,
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        let (mut portion, mut bytes) = (Vec::new(), 0);
        let mut ended = false;
        while bytes < self.portion_bytes && !ended {
            // Each iteration uses the newest view instead of that of the beginning, so that no view is held
            // for long. Versions that are missing in a newer view were removed, so they need not be moved.
            let view = (member.newest)();
            let mut looked_at = 0;
            let snapshot = view.snapshot();
            let mut versions = snapshot.written_after(self.behind);
            while bytes < self.portion_bytes && looked_at < LOOKED_AT_MAX {
                let Some(looked) = versions.look().filter(|looked| looked.id.main <= self.through) else {
                    ended = true;
                    break;
                };
                looked_at += 1;
                self.behind = looked.id;
                let Some(version) = looked.version else { continue };
                let from = version.location();
                if version.value_len() == 0 || !self.segments.contains(&from.segment()) {
                    continue;
                }
                if from.is_compressed() {
                    // Moved as it is, also if values are no longer compressed: as a raw value it could take ten
                    // times as much space as becomes free.
                    if let Ok((data, compressed)) = self.values.read_frame(version) {
                        bytes += data.len() + MOVED_BYTES;
                        let compressed = Some(compressed);
                        portion.push(Relocation { id: version.id(), from, data, compressed });
                    }
                    continue;
                }
                let mut data = BytesMut::new();
                if read_version(version, &self.values, &mut data).is_err() {
                    // The value is skipped: it cannot be read, so clients cannot read it either. Its segment
                    // still contains a live value, so it will not be deleted.
                    continue;
                }
                bytes += data.len() + MOVED_BYTES;
                let value = data.freeze();
                let (data, compressed) = match &mut self.compressor {
                    Some(compressor) => compressor.stored(member, version.key(), value),
                    None => (value, None),
                };
                portion.push(Relocation { id: version.id(), from, data, compressed });
            }
        }
        if portion.is_empty() {
            return false;
        }
        let (done, moved) = sync_channel(1);
        (member.tell)(Event::Relocate(portion, done));
        self.moved = Some(moved);
        true
    }
}
