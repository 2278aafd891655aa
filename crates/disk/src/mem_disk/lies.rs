//! Simulates a disk that lies: it reports a write as done and synced, although it has not written the data,
//! or has written it to another place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::contents::{Node, Sector};
use super::{MemDisk, SECTOR_BYTES, State};

/// Way in which the disk fails to do a write that it reports as done, and later as synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The disk does not write the data.
    Lost,
    /// The disk writes the sectors to another place in this file or in another file.
    Misdirected,
}

impl MemDisk {
    /// Makes the disk lie about `count` successive writes. The first is the `nth` write, counted from 1
    /// beginning now. Until [`MemDisk::drop_cache`], reads return the written data from the page cache. If a
    /// sector is written again, the lie about it ends. The place of a misdirected write is random and follows
    /// from the seed.
    pub fn lie_about_writes(&self, lie: Lie, nth: u64, count: u64) {
        self.state().lie = Some((lie, nth.saturating_sub(1), count));
    }

    /// Returns the sectors about which the disk has lied, so that its contents may differ from the data that
    /// reads return. Each sector is given by the path of the file and its offset in bytes. The list is sorted
    /// by path.
    pub fn lies(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state();
        let sectors = |(path, id): (&PathBuf, &u64)| {
            let numbers = state.nodes.get(id).map(|node| node.on_disk.keys().copied().collect::<Vec<_>>());
            let at = |number| (path.clone(), number * SECTOR_BYTES as u64);
            numbers.unwrap_or_default().into_iter().map(at).collect::<Vec<_>>()
        };
        state.names.iter().flat_map(sectors).collect()
    }

    /// Drops the page cache. For each sector about which the disk has lied, `shows` receives the path and the
    /// offset of the sector. If `shows` returns true, reads return the contents on the disk from now on;
    /// otherwise the lie is undone, as if the sector had been written. Lies about files that have no name any
    /// more are undone, too, because a power cut may undo the removal. Returns the number of sectors whose
    /// contents have changed for readers.
    pub fn drop_cache(&self, shows: impl Fn(&Path, u64) -> bool) -> usize {
        let mut state = self.state();
        let files: Vec<(PathBuf, u64)> = state.names.iter().map(|(path, id)| (path.clone(), *id)).collect();
        let named: BTreeSet<u64> = state.names.values().copied().collect();
        for (_, node) in state.nodes.iter_mut().filter(|(id, _)| !named.contains(id)) {
            node.on_disk.clear();
        }
        let mut changed = 0;
        for (path, id) in files {
            let Some(node) = state.nodes.get_mut(&id) else { continue };
            for (number, sector) in std::mem::take(&mut node.on_disk) {
                let start = number as usize * SECTOR_BYTES;
                let end = (start + SECTOR_BYTES).min(node.data.len());
                if start < end && shows(&path, start as u64) && node.data[start..end] != sector[..end - start]
                {
                    node.data[start..end].copy_from_slice(&sector[..end - start]);
                    changed += 1;
                }
            }
        }
        changed
    }
}

impl State {
    /// Counts one successful write. Returns the kind of the lie if the disk lies about this write.
    pub(super) fn next_lie(&mut self) -> Option<Lie> {
        let (lie, before, left) = self.lie?;
        self.lie = match before {
            0 => (left > 1).then_some((lie, 0, left - 1)),
            _ => Some((lie, before - 1, left)),
        };
        (before == 0).then_some(lie)
    }

    /// Returns the place to which the disk misdirects a write: a file, and the distance in sectors from the
    /// intended offset. The file is the intended one or another file that has a name.
    fn wrong_place(&mut self, id: u64, first: u64) -> Option<(u64, i64)> {
        let named: Vec<u64> = self.names.values().copied().collect();
        let mut random = self.random.clone();
        let other = if random.number().is_multiple_of(2) {
            id
        } else {
            named[random.number() as usize % named.len()]
        };
        let sectors = (self.nodes.get(&other)?.data.len() / SECTOR_BYTES) as u64;
        // In about half of the cases the write goes to an offset near the intended one.
        let near = (first + random.number() % 17).saturating_sub(8);
        let to = if random.number().is_multiple_of(2) { near } else { random.number() % sectors.max(1) };
        self.random = random;
        (sectors > 0).then(|| (other, to.min(sectors - 1) as i64 - first as i64))
    }

    /// Records that the disk has lied about a write. On the disk, the sectors keep their old contents
    /// `before`. If the write was misdirected, the disk has the written sectors at another place.
    pub(super) fn lied(&mut self, lie: Lie, id: u64, before: BTreeMap<u64, Sector>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let written: Vec<(u64, Sector)> =
            before.keys().map(|number| (*number, node.sector(*number))).collect();
        node.on_disk.extend(before);
        let Some((first, _)) = written.first().copied().filter(|_| lie == Lie::Misdirected) else { return };
        let Some((other, by)) = self.wrong_place(id, first) else { return };
        let Some(node) = self.nodes.get_mut(&other) else { return };
        let len = node.data.len() as u64;
        for (number, sector) in written {
            let to = number.saturating_add_signed(by);
            if (other, to) != (id, number) && (to + 1) * SECTOR_BYTES as u64 <= len {
                node.on_disk.insert(to, sector);
            }
        }
    }
}

impl Node {
    /// Returns the contents that the disk really has in the sectors that contain the bytes `start..end`.
    pub(super) fn on_disk_now(&self, start: u64, end: u64) -> BTreeMap<u64, Sector> {
        let size = SECTOR_BYTES as u64;
        let durable = |number: u64| {
            let undo = self.undo.get(&number).or_else(|| self.doomed.get(&number));
            let told = undo.map(|undo| undo.durable);
            let lied = self.on_disk.get(&number).copied();
            (number, lied.or(told).unwrap_or_else(|| self.sector(number)))
        };
        (start / size..end.div_ceil(size)).map(durable).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Disk;

    const SECTOR: u64 = SECTOR_BYTES as u64;

    /// Returns a disk with two files of eight sectors: `a` is full of ones, `b` of twos. All sectors are
    /// synced.
    fn disk() -> MemDisk {
        let disk = MemDisk::new(7);
        disk.create_dir_all(Path::new("/d")).expect("is made");
        for (name, byte) in [("/d/a", 1), ("/d/b", 2)] {
            disk.plant(Path::new(name), vec![byte; 8 * SECTOR_BYTES]);
        }
        disk
    }

    fn write(disk: &MemDisk, byte: u8, offset: u64, sectors: usize) {
        let file = disk.open(Path::new("/d/a")).expect("opens");
        file.write_at(&vec![byte; sectors * SECTOR_BYTES], offset).expect("it says so");
        file.sync_data().expect("it says so");
    }

    fn contents(disk: &MemDisk) -> [Vec<u8>; 2] {
        ["/d/a", "/d/b"].map(|name| {
            let data = disk.contents(Path::new(name)).expect("is read");
            data.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()
        })
    }

    #[test]
    fn a_lost_write_is_read_until_the_cache_is_dropped() {
        let disk = disk();
        disk.lie_about_writes(Lie::Lost, 2, 1);
        write(&disk, 5, 0, 1);
        write(&disk, 6, SECTOR, 2);
        write(&disk, 7, 4 * SECTOR, 1);
        assert_eq!(contents(&disk)[0], [5, 6, 6, 1, 7, 1, 1, 1]);
        assert_eq!(disk.lies(), [1, 2].map(|number| (PathBuf::from("/d/a"), number * SECTOR)));
        // A sector that is written again is complete in the cache and reaches the disk.
        write(&disk, 8, 2 * SECTOR, 1);
        disk.crash();
        assert_eq!(contents(&disk), [vec![5, 1, 8, 1, 7, 1, 1, 1], vec![2; 8]]);
        assert!(disk.lies().is_empty());
    }

    #[test]
    fn a_misdirected_write_is_missing_in_its_place_and_shows_in_another() {
        let mut elsewhere = 0;
        for nth in 0..20 {
            let disk = disk();
            // Advances the random numbers of the disk, with which the place of a misdirected write is chosen.
            for _ in 0..nth {
                let _ = disk.state().wrong_place(0, 0);
            }
            disk.lie_about_writes(Lie::Misdirected, 1, 1);
            write(&disk, 9, 2 * SECTOR, 2);
            assert_eq!(contents(&disk), [vec![1, 1, 9, 9, 1, 1, 1, 1], vec![2; 8]]);
            let changed = disk.drop_cache(|_, _| true);
            let [a, b] = contents(&disk);
            let count = |sectors: &[u8]| sectors.iter().filter(|byte| **byte == 9).count();
            assert!(count(&a) + count(&b) <= 2 && changed <= 4, "{a:?} {b:?}");
            elsewhere += usize::from(count(&b) > 0);
            if count(&b) == 2 {
                assert_eq!(a, [1; 8]);
            }
        }
        assert!(elsewhere > 0);
    }

    #[test]
    fn a_file_whose_removal_is_undone_by_a_power_cut_has_no_lie_left() {
        for seed in 0..8 {
            let disk = MemDisk::new(seed);
            disk.create_dir_all(Path::new("/d")).expect("is made");
            disk.plant(Path::new("/d/a"), vec![1; 8 * SECTOR_BYTES]);
            disk.lie_about_writes(Lie::Lost, 1, 1);
            write(&disk, 3, 0, 1);
            disk.remove(Path::new("/d/a")).expect("is removed");
            disk.drop_cache(|_, _| true);
            disk.crash();
            let Ok(file) = disk.open(Path::new("/d/a")) else { continue };
            let mut bytes = [0; SECTOR_BYTES];
            file.read_at(&mut bytes, 0).expect("is read");
            assert_eq!(bytes, [3; SECTOR_BYTES], "seed {seed}");
        }
    }

    #[test]
    fn a_lie_that_waits_ends_with_the_process() {
        let disk = disk();
        let ends: [fn(&MemDisk); 3] = [MemDisk::kill, MemDisk::heal, MemDisk::crash];
        for end in ends {
            disk.lie_about_writes(Lie::Lost, 1, 1);
            end(&disk);
            assert!(disk.state().lie.is_none());
        }
    }

    #[test]
    fn what_is_not_chosen_was_written_after_all() {
        let disk = disk();
        disk.lie_about_writes(Lie::Lost, 1, 2);
        write(&disk, 9, 2 * SECTOR, 1);
        write(&disk, 9, 3 * SECTOR, 1);
        write(&disk, 9, 4 * SECTOR, 1);
        assert_eq!(disk.drop_cache(|_, offset| offset == 3 * SECTOR), 1);
        disk.crash();
        assert_eq!(contents(&disk)[0], [1, 1, 9, 1, 9, 1, 1, 1]);
    }
}
