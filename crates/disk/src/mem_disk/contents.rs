//! Keeps the contents of one simulated file: the bytes that reads return, and those that may remain after a
//! power cut.

use std::collections::{BTreeMap, BTreeSet};

use stdx::Random;

use super::SECTOR_BYTES;

/// Size in bytes of a page. On a disk that cannot reserve space, a file takes space for whole pages that were
/// written.
pub(super) const PAGE_BYTES: u64 = 4096;

pub(super) type Sector = [u8; SECTOR_BYTES];

#[derive(Default)]
pub(super) struct Node {
    pub(super) data: Vec<u8>,
    pub(super) len_durable: u64,
    /// Durable contents of every sector that was written since the last sync, by the number of the sector.
    pub(super) undo: BTreeMap<u64, Undo>,
    /// Durable contents of the sectors whose sync failed. A later sync does not make the new contents
    /// durable, unless the sector is written again.
    pub(super) doomed: BTreeMap<u64, Undo>,
    /// Number of open handles of the file.
    pub(super) handles: usize,
    /// Numbers of the pages that were written, on a disk that cannot reserve space.
    pub(super) written: BTreeSet<u64>,
    /// Contents that the disk really has in the sectors about which it has lied (`Lie`). Reads return `data`
    /// instead until the page cache is dropped.
    pub(super) on_disk: BTreeMap<u64, Sector>,
}

/// Facts about a sector that was written and not synced since.
pub(super) struct Undo {
    pub(super) durable: Sector,
    /// True if the first change since the last sync overwrote the whole sector, so that a crash may leave
    /// zeros in it. Always false if the sync of an earlier change failed.
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

    /// Saves the durable contents of the sectors that contain the bytes `start..end`. To be called before
    /// these bytes change.
    pub(super) fn touch(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let size = SECTOR_BYTES as u64;
        for number in start / size..end.div_ceil(size) {
            // An earlier lie about the sector ends: the page cache has the complete sector, and will write
            // all of it to the disk.
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
                // The sector keeps the new contents. The other cases give it the old contents, or zeros,
                // which a file system may return in place of lost data.
                0 | 1 => {}
                2 | 3 => restore(&mut self.data, *number, durable),
                // The sector was overwritten with the contents that it already had, so it does not become
                // zeros.
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
