//! Implements [`Disk`] and [`File`] for [`MemDisk`]: its names, open files and locks.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use super::contents::Node;
use super::faults::Operation;
use super::{MemDisk, NameChange, SECTOR_BYTES, State, errno};
use crate::{Disk, DiskSpace, File, Lock, Reservation};

impl Disk for MemDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Create)?;
        let mut at = Some(dir);
        while let Some(path) = at {
            state.dirs.insert(path.to_path_buf());
            at = path.parent();
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        state.step(Operation::Create)?;
        if state.names.contains_key(path) {
            return Err(errno(libc::EEXIST));
        }
        if !path.parent().is_some_and(|dir| state.dirs.contains(dir)) {
            return Err(errno(libc::ENOENT));
        }
        let id = state.node_next;
        state.node_next += 1;
        state.nodes.insert(id, Node::default());
        state.rename_names(NameChange::Set(path.to_path_buf(), id));
        Ok(self.file(&mut state, id))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        state.look(Operation::Open)?;
        let id = state.lookup(path)?;
        Ok(self.file(&mut state, id))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Remove)?;
        state.lookup(path)?;
        state.rename_names(NameChange::Remove(path.to_path_buf()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::Rename)?;
        state.lookup(from)?;
        state.rename_names(NameChange::Rename(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.look(Operation::List)?;
        if !state.dirs.contains(dir) {
            return Err(errno(libc::ENOENT));
        }
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step(Operation::SyncDir)?;
        let pending = std::mem::take(&mut state.names_pending);
        for change in pending {
            if change.touches(dir) {
                change.apply(&mut state.names_durable);
            } else {
                state.names_pending.push(change);
            }
        }
        state.forget_unnamed();
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.state();
        state.alive()?;
        Ok(state.names.contains_key(path) || state.dirs.contains(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let mut state = self.state();
        state.look(Operation::Lock)?;
        if state.locks.contains_key(path) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "locked by another process"));
        }
        state.locks.insert(path.to_path_buf(), 0);
        Ok(Lock::new(MemLock { disk: self.clone(), path: path.to_path_buf(), epoch: state.epoch }))
    }

    fn lock_read(&self, path: &Path) -> io::Result<Lock> {
        self.state().lookup(path)?;
        self.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Lock> {
        let mut state = self.state();
        state.look(Operation::Lock)?;
        state.lookup(path)?;
        if state.locks.get(path) == Some(&0) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "locked by another process"));
        }
        *state.locks.entry(path.to_path_buf()).or_default() += 1;
        Ok(Lock::new(MemLock { disk: self.clone(), path: path.to_path_buf(), epoch: state.epoch }))
    }

    fn share_file_system(&self, one: &Path, other: &Path) -> io::Result<bool> {
        let mut state = self.state();
        state.look(Operation::Read)?;
        Ok(state.is_mounted(one) == state.is_mounted(other))
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        let mut state = self.state();
        state.look(Operation::Space)?;
        let is_mounted = state.is_mounted(path);
        Ok(state.space(is_mounted))
    }
}

struct MemLock {
    disk: MemDisk,
    path: PathBuf,
    epoch: u64,
}

impl Drop for MemLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.epoch != self.epoch {
            return;
        }
        match state.locks.get_mut(&self.path) {
            Some(sharing) if *sharing > 1 => *sharing -= 1,
            _ => {
                state.locks.remove(&self.path);
            }
        }
    }
}

pub(super) struct MemFile {
    pub(super) disk: MemDisk,
    pub(super) id: u64,
    pub(super) epoch: u64,
}

impl Drop for MemFile {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        let last = state.nodes.get_mut(&self.id).is_some_and(|node| {
            node.handles -= 1;
            node.handles == 0
        });
        if last && !state.names.values().any(|id| *id == self.id) {
            state.forget_unnamed();
        }
    }
}

impl MemFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.state();
        state.alive()?;
        if state.epoch != self.epoch {
            return Err(errno(libc::EIO));
        }
        Ok(state)
    }

    fn with<T>(&self, state: &mut State, change: impl FnOnce(&mut Node) -> T) -> io::Result<T> {
        state.nodes.get_mut(&self.id).map(change).ok_or_else(|| errno(libc::EIO))
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        state.step_read()?;
        self.with(&mut state, |node| {
            let start = (offset as usize).min(node.data.len());
            let end = start.saturating_add(buf.len()).min(node.data.len());
            buf[..end - start].copy_from_slice(&node.data[start..end]);
            end - start
        })
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (missed, len) = {
            let mut state = self.state()?;
            let (tells_cached, len) = (state.tells_cached, buf.len().min(state.cached_bytes_max));
            let (per_mille, random) = &mut state.misses;
            // If all reads find cached data, no random number is drawn, because that would change the runs of
            // old seeds.
            (!tells_cached || (*per_mille > 0 && random.number() % 1000 < *per_mille), len)
        };
        if missed { Ok(0) } else { self.read_at(&mut buf[..len], offset) }
    }

    fn tells_cached(&self) -> bool {
        self.state().is_ok_and(|state| state.tells_cached)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state()?;
        let end = offset + buf.len() as u64;
        let outcome = state.step(Operation::Write).and_then(|()| state.room_to_write(self.id, offset, end));
        let taken = match outcome {
            Ok(()) => buf.len(),
            Err(_) => {
                let room = state.room_to_write(self.id, offset, end).is_ok();
                let part = state.random.number() % (buf.len() as u64 + 1);
                // If the failed write has written only a part of the data, that part ends at the end of a
                // sector.
                let sectors_end = (offset + part) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
                let whole = part == buf.len() as u64;
                let part = if whole { part } else { sectors_end.saturating_sub(offset) };
                if room { part as usize } else { 0 }
            }
        };
        let lie = if outcome.is_ok() && !buf.is_empty() { state.next_lie() } else { None };
        let before = match lie {
            Some(_) => self.with(&mut state, |node| node.on_disk_now(offset, end))?,
            None => BTreeMap::new(),
        };
        self.with(&mut state, |node| node.write(&buf[..taken], offset))?;
        if let Some(lie) = lie {
            state.lied(lie, self.id, before);
        }
        outcome
    }

    fn write_vectored_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut whole = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
        for piece in pieces.iter() {
            whole.extend_from_slice(piece);
        }
        self.write_at(&whole, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state()?;
        match state.step(Operation::Sync) {
            Ok(()) => self.with(&mut state, Node::sync),
            Err(error) => {
                // After a power cut it is not decided here whether the sectors are lost: `crash` decides that
                // for each sector.
                if !state.dark {
                    self.with(&mut state, Node::sync_failed)?;
                }
                Err(error)
            }
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.step(Operation::Allocate)?;
        // Refuse a length of 4 GiB or more, as a disk would, instead of allocating the memory. Such a length
        // is a mistake of the test, or comes from a damaged file.
        if len > u64::from(u32::MAX) {
            return Err(errno(libc::EFBIG));
        }
        state.room_for(self.id, len)?;
        self.with(&mut state, |node| node.set_len(len))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<Reservation> {
        let mut state = self.state()?;
        state.step(Operation::Allocate)?;
        let end = offset.saturating_add(len);
        if end > u64::from(u32::MAX) {
            return Err(errno(libc::EFBIG));
        }
        state.room_for(self.id, end)?;
        let reserves = state.reserves;
        self.with(&mut state, |node| {
            if (node.data.len() as u64) < end {
                node.set_len(end);
            }
            if reserves || node.hole_bytes() == 0 { Reservation::Made } else { Reservation::NeedsZeros }
        })
    }

    fn hole_bytes(&self) -> io::Result<u64> {
        let mut state = self.state()?;
        let reserves = state.reserves;
        self.with(&mut state, |node| if reserves { 0 } else { node.hole_bytes() })
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.state()?;
        self.with(&mut state, |node| node.data.len() as u64)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(if offset < self.len()? { Some(offset) } else { None })
    }
}
