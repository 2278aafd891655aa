//! Lends read buffers to connections, so that idle connections hold none: [`BufferPool`] is for the
//! connections of one event loop, [`ThreadBuffers`] for streams that move between threads.

use std::cell::RefCell;
use std::rc::Rc;

/// Size of one buffer of a [`BufferPool`], in bytes.
pub const BUFFER_BYTES: usize = 64 * 1024;

/// Maximum number of free buffers that a [`BufferPool`] keeps; further ones are dropped.
const POOLED_MAX: usize = 64;

/// Maximum number of free buffers that [`ThreadBuffers`] keep per thread; further ones are dropped.
const THREAD_BUFFERS_MAX: usize = 4;

/// Source of read buffers.
pub trait Buffers {
    /// Lends a buffer, whose contents are arbitrary.
    fn take(&self) -> Box<[u8]>;

    /// Takes a buffer back that the caller no longer needs.
    fn give(&self, buffer: Box<[u8]>);
}

/// Pool of read buffers for the connections of one event loop. A connection borrows a buffer only while there
/// are bytes in it, so an idle connection holds none.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: RefCell<Vec<Box<[u8]>>>,
}

impl Buffers for Rc<BufferPool> {
    fn take(&self) -> Box<[u8]> {
        self.free.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
    }

    fn give(&self, buffer: Box<[u8]>) {
        let mut free = self.free.borrow_mut();
        if free.len() < POOLED_MAX {
            free.push(buffer);
        }
    }
}

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Lends buffers of this size in bytes from a list of free buffers that each thread has. For a stream that
/// several threads may poll, or whose thread has few connections.
#[derive(Clone, Copy, Debug)]
pub struct ThreadBuffers(pub usize);

impl Buffers for ThreadBuffers {
    fn take(&self) -> Box<[u8]> {
        let kept = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            let at = free.iter().position(|buffer| buffer.len() == self.0)?;
            Some(free.swap_remove(at))
        });
        kept.ok().flatten().unwrap_or_else(|| vec![0; self.0].into_boxed_slice())
    }

    fn give(&self, buffer: Box<[u8]>) {
        // An error means that the thread is ending and its list has already been dropped; this buffer is
        // dropped, too.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < THREAD_BUFFERS_MAX {
                free.push(buffer);
            }
        });
    }
}

/// Borrowed buffer with received bytes, of which the bytes `at..end` are still to be processed.
#[derive(Debug)]
pub struct Filled {
    /// The borrowed buffer.
    pub buffer: Box<[u8]>,
    /// Offset of the first byte that is still to be processed.
    pub at: usize,
    /// Offset after the last received byte.
    pub end: usize,
}

impl Filled {
    /// Wraps a buffer whose first `end` bytes were received.
    pub fn new(buffer: Box<[u8]>, end: usize) -> Filled {
        Filled { buffer, at: 0, end }
    }

    /// Returns the bytes that are still to be processed.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Marks the next `n` bytes as processed. Returns the number of bytes that are left.
    pub fn advance(&mut self, n: usize) -> usize {
        self.at += n;
        self.end - self.at
    }

    /// Returns the size of the whole buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_a_few_buffers() {
        let buffers: Vec<_> = (0..2 * THREAD_BUFFERS_MAX).map(|n| ThreadBuffers(10 + n).take()).collect();
        buffers.into_iter().for_each(|buffer| ThreadBuffers(10).give(buffer));
        assert_eq!(FREE.with_borrow(Vec::len), THREAD_BUFFERS_MAX);
        assert_eq!((ThreadBuffers(12).take().len(), ThreadBuffers(99).take().len()), (12, 99));
        assert_eq!(FREE.with_borrow(Vec::len), THREAD_BUFFERS_MAX - 1);
    }
}
