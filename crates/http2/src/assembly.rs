//! Collects a header block whose frames have not all arrived: [`Assembly`].

/// Header block whose frames have not all arrived (RFC 9113, section 4.3).
pub(crate) struct Assembly {
    pub stream: u32,
    pub ends_stream: bool,
    /// True if the HEADERS frame declares that the stream depends on itself.
    pub depends_on_itself: bool,
    pub continuations: u32,
    pub block: Vec<u8>,
}

impl Assembly {
    /// Returns the heap memory of the collected block in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.block.capacity()
    }
}
