//! Defines the future that fetches one caller's list of values from the reader threads, portion by portion.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use accounting::Charge;

use super::{Portion, ReadValue, Readers, Run, Stage};

/// Maximum bytes of a portion; a single value may be larger.
const PORTION_BYTES: usize = 1 << 20;
/// Number of times that a portion may be revoked. After that it stays until its call takes it.
pub(super) const TAKEN_BACK_MAX: u32 = 1;

/// A future that reads values. It resolves to the bytes or the error of each value. When it is dropped, none
/// of its remaining runs is read.
pub struct Reading {
    pub(super) readers: Arc<Readers>,
    /// True if the values are for the core: they are then read before those of all clients, and without
    /// admission.
    pub(super) is_first: bool,
    pub(super) runs: Arc<[Run]>,
    /// Number of runs whose values have arrived.
    pub(super) through: usize,
    /// Id of the portion that is queued or being read, and the number of runs that will have arrived when it
    /// is complete.
    pub(super) portion: Option<(u64, usize)>,
    /// Number of times that the current portion was revoked after it was read, so that it had to be queued
    /// again.
    pub(super) taken_back: u32,
    pub(super) arrived: Vec<ReadValue>,
    /// Memory reservations (charges) for the bytes of the values that have arrived.
    pub(super) charges: Vec<Charge>,
}

impl Reading {
    /// Returns the memory reservations (charges) for the values that have arrived since the last call. The
    /// caller must keep them until it drops the values.
    pub fn take_charges(&mut self) -> Vec<Charge> {
        std::mem::take(&mut self.charges)
    }

    /// Returns the number of the run at which the next portion ends (exclusive), and the size of the portion
    /// in bytes.
    fn next_portion(&self) -> (usize, usize) {
        let (mut end, mut bytes) = (self.through, 0);
        for run in &self.runs[self.through..] {
            let len: usize = run.iter().map(|wanted| wanted.len as usize).sum();
            if end > self.through && bytes + len > PORTION_BYTES {
                break;
            }
            (end, bytes) = (end + 1, bytes + len);
        }
        (end, bytes)
    }

    /// Queues the next portion to be read.
    fn ask(&mut self, context: &Context<'_>) {
        let (end, bytes) = self.next_portion();
        let inner = &self.readers.inner;
        let mut state = inner.state();
        state.serial += 1;
        let id = state.serial;
        let left = self.through..end;
        let runs = left.len();
        let portion = Portion {
            stage: if self.is_first { Stage::OfCore } else { Stage::Waiting },
            bytes,
            runs: Arc::clone(&self.runs),
            left,
            reading: 0,
            arrived: Vec::new(),
            waker: Some(context.waker().clone()),
            abandoned: false,
            stays: self.taken_back >= TAKEN_BACK_MAX,
            charge: if self.is_first { inner.budget.get().map(|budget| budget.charge(bytes)) } else { None },
        };
        state.portions.insert(id, portion);
        if self.is_first {
            state.core.turns.push_back(id);
            inner.rouse(&mut state, runs);
        } else {
            state.waiting.insert(id);
            inner.admit(&mut state);
        }
        drop(inner.read_without_threads(state, id));
        self.portion = Some((id, end));
    }

    /// Takes the values of the current portion if it is complete. Returns ready if it was complete or
    /// revoked.
    fn take(&mut self, id: u64, end: usize, context: &Context<'_>) -> Poll<()> {
        let inner = &self.readers.inner;
        let mut state = inner.read_without_threads(inner.state(), id);
        match state.portions.get_mut(&id) {
            Some(portion) if !portion.is_done() => {
                portion.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Some(_) => {
                let portion = state.release(id);
                inner.admit(&mut state);
                drop(state);
                if let Some(portion) = portion {
                    self.arrived.extend(portion.arrived);
                    self.charges.extend(portion.charge);
                }
                (self.through, self.taken_back) = (end, 0);
            }
            // The portion was revoked, so it has to be queued again.
            None => self.taken_back += 1,
        }
        self.portion = None;
        Poll::Ready(())
    }
}

impl Future for Reading {
    type Output = Vec<ReadValue>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<ReadValue>> {
        loop {
            if let Some((id, end)) = self.portion
                && self.take(id, end, context).is_pending()
            {
                return Poll::Pending;
            }
            if self.through == self.runs.len() {
                return Poll::Ready(std::mem::take(&mut self.arrived));
            }
            self.ask(context);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Some((id, _)) = self.portion else { return };
        let inner = &self.readers.inner;
        let mut state = inner.state();
        let Some(portion) = state.portions.get_mut(&id) else { return };
        let had_turns = !portion.left.is_empty() && !matches!(portion.stage, Stage::Waiting);
        portion.left = 0..0;
        portion.abandoned = true;
        if portion.is_done() || matches!(portion.stage, Stage::Waiting) {
            state.release(id);
        }
        if had_turns {
            state.core.turns.retain(|turn| *turn != id);
            state.clients.turns.retain(|turn| *turn != id);
        }
        inner.admit(&mut state);
    }
}
