//! Faults of the disk: errors at chosen operations, power cuts, and the end of a process.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::{MemDisk, State, errno};

/// A fault to inject at a chosen operation. Operations are counted from 1. Only operations that change the
/// disk count: creating, removing, renaming, writing, syncing, setting a length, allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails once, with this `errno`. A failed write may have written a part of its data. After
    /// a failed sync the data can still be read, but no later sync makes it durable (as on Linux).
    Once(i32),
    /// The operation and every later operation of any kind fail with this `errno`.
    Always(i32),
    /// Power is lost during the operation, whose effect may be partial. Every later call fails until
    /// [`MemDisk::crash`] brings the disk back.
    PowerCut,
}

/// Kinds of operations that [`MemDisk::fail_next`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Any operation that changes the disk.
    Change,
    /// Reading a file.
    Read,
    /// Writing to a file.
    Write,
    /// Syncing a file or a directory.
    Sync,
    /// Syncing a directory.
    SyncDir,
    /// Creating a file or a directory.
    Create,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
    /// Reserving space for a file, or changing its length.
    Allocate,
    /// Opening a file.
    Open,
    /// Listing a directory.
    List,
    /// Locking a file.
    Lock,
    /// Reading the free space.
    Space,
}

impl Operation {
    /// Returns true if the operation changes nothing on the disk.
    fn only_looks(self) -> bool {
        matches!(
            self,
            Operation::Read | Operation::Open | Operation::List | Operation::Lock | Operation::Space
        )
    }

    /// Returns true if the operation `done` is of the kind `self`.
    fn covers(self, done: Operation) -> bool {
        match self {
            Operation::Change => !done.only_looks(),
            Operation::Sync => matches!(done, Operation::Sync | Operation::SyncDir),
            sort => sort == done,
        }
    }
}

/// A fault that will be injected later.
pub(super) struct Planned {
    operation: Operation,
    /// Number of operations of this kind until the fault, including the one that fails.
    left: u64,
    fault: Fault,
}

impl MemDisk {
    /// Simulates a power cut and a restart. Unsynced sectors are kept, lost or zeroed; unsynced names are
    /// kept or lost. Files opened before fail. Locks, planned faults, planned lies and the count of
    /// operations are reset.
    pub fn crash(&self) {
        let mut state = self.state();
        let mut random = state.random.clone();
        let pending = std::mem::take(&mut state.names_pending);
        if state.names_in_any_order {
            for change in pending {
                if random.number().is_multiple_of(2) {
                    change.apply(&mut state.names_durable);
                }
            }
        } else {
            let kept = (random.number() % (pending.len() as u64 + 1)) as usize;
            for change in pending.into_iter().take(kept) {
                change.apply(&mut state.names_durable);
            }
        }
        state.names = state.names_durable.clone();
        let alive: BTreeSet<u64> = state.names.values().copied().collect();
        state.nodes.retain(|id, _| alive.contains(id));
        // Iterate in the order of file numbers: the order of a hash map would make two runs with the same
        // seed differ.
        for id in alive {
            if let Some(node) = state.nodes.get_mut(&id) {
                node.crash(&mut random);
            }
        }
        state.random = random;
        state.epoch += 1;
        state.locks.clear();
        state.disarm();
        state.dark = false;
        state.down = None;
        state.ops = 0;
    }

    /// Simulates that the process using the disk is killed while the machine keeps running. Written data
    /// stays readable, synced or not. Open files and locks become invalid. Planned faults and lies, which
    /// were meant for the killed process, are canceled. Every call fails until [`MemDisk::heal`], so that
    /// destructors of the killed process cannot change the disk.
    pub fn kill(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.locks.clear();
        state.disarm();
        state.down = Some(libc::EIO);
    }

    /// Returns true if power was lost at an operation and [`MemDisk::crash`] has not brought the disk back.
    pub fn is_dark(&self) -> bool {
        self.state().dark
    }

    /// Returns true if every call fails.
    pub fn is_down(&self) -> bool {
        self.state().down.is_some()
    }

    /// Injects a fault at the `nth` operation of this kind from now on, counted from 1. Several faults can be
    /// planned.
    pub fn fail_next(&self, operation: Operation, nth: u64, fault: Fault) {
        self.state().planned.push(Planned { operation, left: nth.max(1), fault });
    }

    /// Injects a fault at the `nth` operation, counted from 1 since the disk was created or last crashed.
    pub fn fail_at(&self, nth: u64, fault: Fault) {
        self.state().fault = Some((nth, fault));
    }

    /// Cancels the effects of [`MemDisk::fail_at`], [`MemDisk::fail_next`], [`MemDisk::lie_about_writes`] and
    /// [`MemDisk::kill`], and ends a fault of kind [`Fault::Always`].
    pub fn heal(&self) {
        let mut state = self.state();
        state.disarm();
        // After a power cut only [`MemDisk::crash`] brings the disk back.
        state.down = state.dark.then_some(libc::EIO);
    }

    /// Flips one bit of a file, as a decaying disk does: reads return the flipped bit from now on, and no
    /// sync restores it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file or the byte does not exist.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.state();
        let id = state.lookup(path)?;
        let node = state.nodes.get_mut(&id).ok_or_else(|| errno(libc::ENOENT))?;
        let byte = node.data.get_mut(offset as usize).ok_or_else(|| errno(libc::EINVAL))?;
        *byte ^= 1 << (bit % 8);
        Ok(())
    }
}

impl State {
    /// Cancels the planned faults and the planned lie.
    pub(super) fn disarm(&mut self) {
        self.fault = None;
        self.planned.clear();
        self.lie = None;
    }

    pub(super) fn alive(&self) -> io::Result<()> {
        self.down.map_or(Ok(()), |code| Err(errno(code)))
    }

    /// Counts one changing operation; returns an error if a fault is due.
    pub(super) fn step(&mut self, operation: Operation) -> io::Result<()> {
        self.alive()?;
        self.ops += 1;
        if let Some((nth, fault)) = self.fault
            && nth == self.ops
        {
            return self.strike(fault);
        }
        self.count_down(operation)
    }

    /// Counts one read; returns an error if a fault is due.
    pub(super) fn step_read(&mut self) -> io::Result<()> {
        self.reads += 1;
        self.look(Operation::Read)
    }

    /// Counts one operation that changes nothing; returns an error if a fault is due.
    pub(super) fn look(&mut self, operation: Operation) -> io::Result<()> {
        self.alive()?;
        if self.planned.is_empty() { Ok(()) } else { self.count_down(operation) }
    }

    fn count_down(&mut self, operation: Operation) -> io::Result<()> {
        let mut due = None;
        self.planned.retain_mut(|planned| {
            if !planned.operation.covers(operation) {
                return true;
            }
            planned.left -= 1;
            if planned.left == 0 {
                due = Some(planned.fault);
            }
            planned.left > 0
        });
        due.map_or(Ok(()), |fault| self.strike(fault))
    }

    fn strike(&mut self, fault: Fault) -> io::Result<()> {
        let code = match fault {
            Fault::Once(code) => code,
            Fault::Always(code) => {
                self.down = Some(code);
                code
            }
            Fault::PowerCut => {
                self.dark = true;
                self.down = Some(libc::EIO);
                libc::EIO
            }
        };
        Err(errno(code))
    }
}
