//! Defines the trait by which this crate reads files at any offset, and implements it for files and memory.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that can be read at any offset, such as a file opened for reading only.
pub trait Source {
    /// Reads exactly `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// Returns `UnexpectedEof` if the source has fewer bytes.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Returns the length in bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system does not report the length.
    fn len_bytes(&self) -> io::Result<u64>;
}

impl Source for std::fs::File {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Source for Arc<dyn disk::File> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.len()
    }
}

impl Source for [u8] {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|from| self.get(from..from.checked_add(buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(found);
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl Source for Vec<u8> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.as_slice().read_exact_at(buf, offset)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.as_slice().len_bytes()
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        (**self).len_bytes()
    }
}
