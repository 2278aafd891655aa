use std::cell::Cell;

/// Number of bytes that one body uses of a memory limit that several bodies share. Dropping it releases these
/// bytes.
pub(crate) struct Share<'a> {
    taken: &'a Cell<usize>,
    bytes: usize,
}

impl<'a> Share<'a> {
    /// Creates a share of 0 bytes. `taken` is the number of bytes that all bodies together use of the limit.
    pub(crate) fn new(taken: &'a Cell<usize>) -> Share<'a> {
        Share { taken, bytes: 0 }
    }

    /// Adds bytes to the share. Returns false and adds nothing if all bodies together would exceed
    /// `bytes_max`.
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
