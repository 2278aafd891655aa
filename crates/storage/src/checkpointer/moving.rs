//! Moving live values out of segments. This module finds them, portion by portion, and the core writes them
//! again.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use bytes::BytesMut;
use machine::key_value::read_version;
use numbers::{ChangeId, Revision};

use super::{Event, Relocation, Surface};
use crate::values::LogValues;

/// Maximum number of versions that are visited in one view in search of values to move.
const LOOKED_AT_MAX: usize = 16 << 10;
/// Bytes that are counted for a moved value in addition to its size, because the core looks up each value and
/// remembers it until it is on disk.
pub(super) const MOVED_BYTES: usize = 128;

/// Values that are being moved out of some segments.
pub(super) struct Moving {
    /// Main revision up to which versions are visited. Values of later revisions are in later segments.
    pub(super) through: Revision,
    pub(super) segments: Vec<u32>,
    /// Bytes of values per portion.
    pub(super) portion_bytes: usize,
    pub(super) values: LogValues,
    /// Id of the last version that was visited.
    pub(super) behind: ChangeId,
    /// Receives the signal that the current portion is on disk at its new location.
    pub(super) moved: Option<Receiver<()>>,
}

impl Moving {
    /// Blocks until the core has moved the current portion.
    pub(super) fn wait(&mut self) {
        if let Some(moved) = &self.moved
            && moved.recv().is_ok()
        {
            self.moved = None;
        }
    }

    /// Sends the next portion of live values to the core, which writes them again. Returns false if no values
    /// are left, or if the core has stopped.
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
            // Each portion may use the newest view, because versions that were removed in the meantime need
            // not be moved.
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
                if version.value_len() == 0 || !self.segments.contains(&from.segment) {
                    continue;
                }
                let mut data = BytesMut::new();
                if read_version(version, &self.values, &mut data).is_err() {
                    // The value cannot be read, so a client's request for it fails, too. Its segment does not
                    // become empty, so it is not deleted.
                    continue;
                }
                bytes += data.len() + MOVED_BYTES;
                portion.push(Relocation { id: version.id(), from, data: data.freeze() });
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
