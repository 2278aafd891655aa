//! Contents of one file: the bytes that reads return, and the bytes that remain after a power cut.

use std::collections::{BTreeMap, BTreeSet};

use stdx::Random;

use super::SECTOR_BYTES;

/// Unit in bytes in which files take space on a disk that cannot reserve space.
pub(super) const PAGE_BYTES: u64 = 4096;

pub(super) type Sector = [u8; SECTOR_BYTES];

#[derive(Default)]
pub(super) struct Node {
    pub(super) data: Vec<u8>,
    pub(super) len_durable: u64,
    /// Durable contents of every sector written since the last sync.
    pub(super) undo: BTreeMap<u64, Undo>,
    /// Sectors whose sync failed: no later sync makes them durable unless they are written again.
    pub(super) doomed: BTreeMap<u64, Undo>,
    /// Number of open handles of the file.
    pub(super) handles: usize,
    /// Numbers of the pages that were written, on a disk that cannot reserve space.
    pub(super) written: BTreeSet<u64>,
    /// Sectors for which the disk told a `Lie`, with the contents that the disk really has. Reads return
    /// `data` until the page cache is dropped.
    pub(super) on_disk: BTreeMap<u64, Sector>,
}

/// The durable contents of a sector that was written after its last sync.
pub(super) struct Undo {
    pub(super) durable: Sector,
    /// True if the first change since the last sync covered the whole sector; a crash may then leave zeros in
    /// it. False if the sync of the sector's previous change failed.
    pub(super) whole: bool,
}

impl Node {
    pub(super) fn sector(&self, number: u64) -> Sector {
        let mut sector = [0; SECTOR_BYTES];
        let start = (number as usize * SECTOR_BYTES).min(self.data.len());
        let end = (start + SECTOR_BYTES).min(self.data.len());
        sector[..end - start].copy_from_slice(&self.data[start..end]);
        sector
    }

    /// Saves the durable contents of the sectors of `start..end`, which are about to change.
    pub(super) fn touch(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let size = SECTOR_BYTES as u64;
        for number in start / size..end.div_ceil(size) {
            // The page cache now has the complete sector and will write it to the disk, which ends an earlier
            // lie about the sector.
            self.on_disk.remove(&number);
            if self.undo.contains_key(&number) {
                continue;
            }
            let whole = start <= number * size && (number + 1) * size <= end;
            let undo = match self.doomed.remove(&number) {
                Some(doomed) => Undo { whole: false, ..doomed },
                None => Undo { durable: self.sector(number), whole },
            };
            self.undo.insert(number, undo);
        }
    }

    pub(super) fn write(&mut self, buf: &[u8], offset: u64) {
        let end = offset + buf.len() as u64;
        self.touch(offset, end);
        if (self.data.len() as u64) < end {
            self.data.resize(end as usize, 0);
        }
        self.data[offset as usize..end as usize].copy_from_slice(buf);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let old = self.data.len() as u64;
        if len < old {
            self.touch(len, old);
            self.written.split_off(&len.div_ceil(PAGE_BYTES));
        }
        self.data.resize(len as usize, 0);
    }

    pub(super) fn hole_bytes(&self) -> u64 {
        let pages = (self.data.len() as u64).div_ceil(PAGE_BYTES);
        pages.saturating_sub(self.written.len() as u64) * PAGE_BYTES
    }

    pub(super) fn sync(&mut self) {
        self.undo.clear();
        self.len_durable = self.data.len() as u64;
    }

    pub(super) fn sync_failed(&mut self) {
        let lost = std::mem::take(&mut self.undo);
        self.doomed.extend(lost);
    }

    pub(super) fn crash(&mut self, random: &mut Random) {
        let undo = std::mem::take(&mut self.undo);
        let doomed = std::mem::take(&mut self.doomed);
        let changed = self.data.len() as u64 != self.len_durable;
        let len = if changed && random.number().is_multiple_of(2) {
            self.len_durable
        } else {
            self.data.len() as u64
        };
        let full = self.data.len().max(self.len_durable as usize).div_ceil(SECTOR_BYTES) * SECTOR_BYTES;
        self.data.resize(full, 0);
        let restore = |data: &mut Vec<u8>, number: u64, sector: &Sector| {
            let start = number as usize * SECTOR_BYTES;
            if start + SECTOR_BYTES <= data.len() {
                data[start..start + SECTOR_BYTES].copy_from_slice(sector);
            }
        };
        for (number, Undo { durable, whole }) in &undo {
            match random.number() % if *whole { 5 } else { 4 } {
                // A real disk keeps or loses a sector. Zeros are also possible, because a file system may
                // show them in place of lost data.
                0 | 1 => {}
                2 | 3 => restore(&mut self.data, *number, durable),
                // The sector was rewritten with its old contents, so a loss makes no difference.
                _ if self.sector(*number) == *durable => {}
                _ => restore(&mut self.data, *number, &[0; SECTOR_BYTES]),
            }
        }
        for (number, Undo { durable, .. }) in &doomed {
            restore(&mut self.data, *number, durable);
        }
        for (number, sector) in &std::mem::take(&mut self.on_disk) {
            restore(&mut self.data, *number, sector);
        }
        self.data.resize(len as usize, 0);
        self.len_durable = len;
    }
}
