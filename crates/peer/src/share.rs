use std::cell::Cell;

/// Part of a shared memory limit that one body uses.
pub(crate) struct Share<'a> {
    taken: &'a Cell<usize>,
    bytes: usize,
}

impl<'a> Share<'a> {
    /// Creates an empty share; `taken` is the counter of the shared limit.
    pub(crate) fn new(taken: &'a Cell<usize>) -> Share<'a> {
        Share { taken, bytes: 0 }
    }

    /// Adds bytes to the share. Returns false if the total would exceed `bytes_max`.
    pub(crate) fn grow(&mut self, bytes: usize, bytes_max: usize) -> bool {
        if self.taken.get() + bytes > bytes_max {
            return false;
        }
        self.bytes += bytes;
        self.taken.set(self.taken.get() + bytes);
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - self.bytes);
    }
}
