//! Provides reusable buffers for reading large values in parts. Each thread keeps freed buffers for its next
//! read, because the first write to fresh memory costs a page fault per 4 KiB, which on a virtual machine
//! takes longer than copying a value through a used buffer.

use std::cell::RefCell;

use bytes::Bytes;

/// Sizes of buffers in bytes.
const SIZES: [usize; 3] = [16 << 10, 32 << 10, 64 << 10];
/// Size of the largest buffer in bytes.
pub const BUFFER_BYTES_MAX: usize = SIZES[SIZES.len() - 1];
/// Size of the smallest buffer in bytes.
pub const BUFFER_BYTES_MIN: usize = SIZES[0];
/// Maximum total size, in bytes, of the free buffers of one size that a thread keeps. A buffer that is
/// dropped beyond this limit is deallocated.
const FREE_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static FREE: [RefCell<Vec<Box<[u8]>>>; SIZES.len()] = const { [const { RefCell::new(Vec::new()) }; SIZES.len()] };
}

/// A buffer with undefined content. When it is dropped, the thread that drops it keeps its memory for reuse.
pub struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
}

impl Buffer {
    /// Returns a buffer of at least `wanted` bytes, or of [`BUFFER_BYTES_MAX`] bytes if that is less.
    pub fn take(wanted: usize) -> Buffer {
        let class = SIZES.iter().position(|size| *size >= wanted).unwrap_or(SIZES.len() - 1);
        let free = FREE.try_with(|free| free[class].borrow_mut().pop()).ok().flatten();
        let bytes = free.unwrap_or_else(|| vec![0; SIZES[class]].into_boxed_slice());
        Buffer { len: bytes.len(), bytes }
    }

    /// Returns the whole buffer for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the first `len` bytes. The buffer is freed when the last reference to them is dropped. If the
    /// bytes fill at most half of the buffer, they are copied and the buffer is freed immediately, so that
    /// the returned bytes never occupy twice their size or more.
    pub fn freeze(mut self, len: usize) -> Bytes {
        self.len = len.min(self.bytes.len());
        if self.len <= self.bytes.len() / 2 {
            return Bytes::copy_from_slice(self.as_ref());
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let Some(class) = SIZES.iter().position(|size| *size == bytes.len()) else { return };
        // The error is ignored: it means that the thread is ending and its list of free buffers is already
        // destroyed. The buffer is then deallocated.
        let _ = FREE.try_with(|free| {
            let mut free = free[class].borrow_mut();
            if free.len() < FREE_BYTES_MAX / SIZES[class] {
                free.push(bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free() -> [usize; SIZES.len()] {
        FREE.with(|free| std::array::from_fn(|class| free[class].borrow().len()))
    }

    #[test]
    fn a_buffer_is_used_again_once_nobody_refers_to_it() {
        let mut buffer = Buffer::take(BUFFER_BYTES_MIN + 1);
        let place = buffer.bytes_mut().as_ptr();
        buffer.bytes_mut()[..3].copy_from_slice(b"abc");
        let mut bytes = buffer.freeze(BUFFER_BYTES_MIN + 1);
        assert_eq!((&bytes[..3], bytes.len()), (b"abc".as_slice(), BUFFER_BYTES_MIN + 1));
        let part = bytes.split_to(1);
        drop(bytes);
        assert_eq!(free(), [0; 3], "a part of it is in use");
        drop(part);
        assert_eq!(free(), [0, 1, 0]);
        assert_eq!(Buffer::take(2 * BUFFER_BYTES_MIN).bytes_mut().as_ptr(), place);
    }

    #[test]
    fn few_bytes_do_not_keep_a_large_buffer() {
        for size in SIZES {
            let mut buffer = Buffer::take(size);
            buffer.bytes_mut()[..3].copy_from_slice(b"abc");
            let bytes = buffer.freeze(size / 2);
            assert_eq!((&bytes[..3], bytes.len()), (b"abc".as_slice(), size / 2));
            let class = SIZES.iter().position(|of_class| *of_class == size).expect("it is one of them");
            assert_eq!(free()[class], 1, "{size}");
        }
    }

    #[test]
    fn a_thread_keeps_only_so_many() {
        let many: Vec<Buffer> = (0..200).flat_map(|_| SIZES.map(Buffer::take)).collect();
        assert!(many.iter().all(|buffer| SIZES.contains(&buffer.as_ref().len())));
        drop(many);
        assert_eq!(free(), SIZES.map(|size| FREE_BYTES_MAX / size));
        assert_eq!(Buffer::take(usize::MAX).as_ref().len(), BUFFER_BYTES_MAX);
    }
}
