//! Writes a file sequentially, for everything in this crate that creates files.

use std::io::{self, Write};
use std::sync::Arc;

const BUFFER_BYTES: usize = 1 << 20;

/// Writes a new file sequentially, with a buffer, so that the disk gets few large writes.
pub struct FileSink {
    file: Arc<dyn disk::File>,
    written: u64,
    buffer: Vec<u8>,
}

impl FileSink {
    /// Starts writing at the beginning of `file`.
    pub fn new(file: Arc<dyn disk::File>) -> FileSink {
        FileSink { file, written: 0, buffer: Vec::new() }
    }

    /// Writes the remaining buffered bytes and makes the file durable.
    ///
    /// # Errors
    ///
    /// Returns an error if the disk fails.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_all()
    }
}

impl Write for FileSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            self.file.write_at(bytes, self.written)?;
            self.written += bytes.len() as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.file.write_at(&self.buffer, self.written)?;
            self.written += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}
