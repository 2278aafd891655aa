//! Lets tests inject faults into a [`MemDisk`]: errors at chosen operations, power cuts, and the sudden end
//! of the process.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::{MemDisk, State, errno};

/// A fault that is injected at a chosen operation ([`MemDisk::fail_at`], [`MemDisk::fail_next`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This operation fails with this `errno`, and later ones succeed. A failed write may have written a part
    /// of its data. After a failed sync the data can still be read, but no later sync makes it durable, as on
    /// Linux.
    Once(i32),
    /// This operation and all later operations of any kind fail with this `errno`.
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
    /// Returns true if operations of this kind do not change the disk.
    fn only_looks(self) -> bool {
        matches!(
            self,
            Operation::Read | Operation::Open | Operation::List | Operation::Lock | Operation::Space
        )
    }

    /// Returns true if an operation of the kind `done` counts as one of the kind `self`.
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
    /// Simulates a power cut and a restart of the machine. Sectors that were not synced are kept, lost or
    /// zeroed, and changes of names that were not synced are kept or lost. Every operation on a file that was
    /// opened before fails. Locks, planned faults, planned lies and the count of operations are reset.
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
        // Iterate in the order of file numbers. In the order of the hash map, which is random, two runs with
        // the same seed would differ.
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

    /// Simulates that the process that uses the disk is killed while the machine keeps running. Written data
    /// can still be read, even if it was not synced. Open files and locks become invalid. Planned faults and
    /// lies are cancelled, because they were meant for the killed process. Every call fails until
    /// [`MemDisk::heal`], so that destructors of the killed process cannot change the disk.
    pub fn kill(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.locks.clear();
        state.disarm();
        state.down = Some(libc::EIO);
    }

    /// Returns true if a [`Fault::PowerCut`] has happened and [`MemDisk::crash`] was not called yet.
    pub fn is_dark(&self) -> bool {
        self.state().dark
    }

    /// Returns true if every call fails now, after a power cut, [`Fault::Always`] or [`MemDisk::kill`].
    pub fn is_down(&self) -> bool {
        self.state().down.is_some()
    }

    /// Plans a fault at the `nth` operation of this kind, counted from 1 beginning now. Several faults can be
    /// planned.
    pub fn fail_next(&self, operation: Operation, nth: u64, fault: Fault) {
        self.state().planned.push(Planned { operation, left: nth.max(1), fault });
    }

    /// Plans a fault at the `nth` operation that changes the disk, counted from 1 since the disk was created
    /// or last crashed ([`MemDisk::ops`]). Replaces the fault of an earlier call.
    pub fn fail_at(&self, nth: u64, fault: Fault) {
        self.state().fault = Some((nth, fault));
    }

    /// Cancels the effects of [`MemDisk::fail_at`], [`MemDisk::fail_next`], [`MemDisk::lie_about_writes`] and
    /// [`MemDisk::kill`], and ends a fault of kind [`Fault::Always`].
    pub fn heal(&self) {
        let mut state = self.state();
        state.disarm();
        // After a power cut all calls fail until [`MemDisk::crash`] is called.
        state.down = state.dark.then_some(libc::EIO);
    }

    /// Flips one bit of a file, as a decaying disk may do. From now on reads return the flipped bit, and a
    /// sync does not restore it.
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
    /// Cancels all planned faults and the planned lie.
    pub(super) fn disarm(&mut self) {
        self.fault = None;
        self.planned.clear();
        self.lie = None;
    }

    pub(super) fn alive(&self) -> io::Result<()> {
        self.down.map_or(Ok(()), |code| Err(errno(code)))
    }

    /// Counts one operation that changes the disk. Returns an error if a fault is planned for it.
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

    /// Counts one read. Returns an error if a fault is planned for it.
    pub(super) fn step_read(&mut self) -> io::Result<()> {
        self.reads += 1;
        self.look(Operation::Read)
    }

    /// Counts one operation that does not change the disk. Returns an error if a fault is planned for it.
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
