//! Defines the future that loads blocks of the index on the reader threads.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use mvcc::AbsentBlock;

use super::Readers;

/// A block that waits to be loaded, and the call that waits for it.
pub(super) struct BlockJob {
    block: AbsentBlock,
    call: Arc<WaitingCall>,
}

/// A call that waits for blocks.
struct WaitingCall {
    left: AtomicUsize,
    is_dropped: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl BlockJob {
    /// Loads the block, unless its call was dropped, and wakes the call if this was its last block.
    pub(super) fn run(self) {
        if !self.call.is_dropped.load(Ordering::Relaxed) {
            self.block.load();
        }
        if self.call.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(waker) = self.call.waker().take()
        {
            waker.wake();
        }
    }
}

impl WaitingCall {
    fn waker(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        // Nothing panics while it holds the lock.
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future that loads blocks of the index. A block that cannot be loaded is a fault of the index, which the
/// read that follows reports. When the future is dropped, blocks that no thread has begun to load are not
/// loaded.
pub struct Loading {
    readers: Arc<Readers>,
    /// Blocks that are not queued yet.
    blocks: Vec<AbsentBlock>,
    call: Arc<WaitingCall>,
}

impl Readers {
    /// Returns a future that loads blocks of the index on the reader threads, in the lane of clients.
    pub fn load(self: &Arc<Self>, blocks: Vec<AbsentBlock>) -> Loading {
        let call = WaitingCall {
            left: AtomicUsize::new(blocks.len()),
            is_dropped: AtomicBool::new(false),
            waker: Mutex::default(),
        };
        Loading { readers: Arc::clone(self), blocks, call: Arc::new(call) }
    }
}

impl Future for Loading {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        *self.call.waker() = Some(context.waker().clone());
        if !self.blocks.is_empty() {
            let call = Arc::clone(&self.call);
            let blocks = std::mem::take(&mut self.blocks);
            let jobs = blocks.into_iter().map(|block| BlockJob { block, call: Arc::clone(&call) });
            let inner = &self.readers.inner;
            let mut state = inner.state();
            let before = state.blocks.len();
            state.blocks.extend(jobs);
            let queued = state.blocks.len() - before;
            inner.rouse(&mut state, queued);
            let has_no_thread = inner.has_no_thread(&state);
            drop(state);
            if has_no_thread {
                // No thread can be started, so this one works, which is slow.
                while self.call.left.load(Ordering::Acquire) > 0 && inner.step() {}
            }
        }
        if self.call.left.load(Ordering::Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.call.is_dropped.store(true, Ordering::Relaxed);
    }
}
