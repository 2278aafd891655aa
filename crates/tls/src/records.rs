use std::io;

use rustls::{Error, IoState, SupportedCipherSuite};

/// What looking at one record costs at least, in bytes that could be moved meanwhile. A record that holds nothing, or an update
/// of the keys, has some 25 bytes and costs microseconds.
pub const RECORD_COST: usize = 256;

/// Records in a row that may bring nothing, as in Go.
const BARREN_MAX: usize = 16;

/// Counts records that bring nothing: the library ends a connection after 32 updates of the keys, or 32 empty records, in a
/// row, but not one that sends both by turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct BarrenRecords(usize);

impl BarrenRecords {
    /// So many records have ended, and this is the state of the connection since.
    ///
    /// # Errors
    /// There were too many that brought nothing; the text is Go's.
    pub fn count(&mut self, records: usize, state: &IoState) -> Result<(), Error> {
        self.0 = if state.plaintext_bytes_to_read() > 0 { 0 } else { self.0 + records };
        if self.0 > BARREN_MAX {
            return Err(Error::General("tls: too many ignored records".to_owned()));
        }
        Ok(())
    }
}

/// Bytes that one record holds at most.
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// Records of a connection that hold no data: the end of the handshake, and alerts.
const OTHER_RECORDS_MAX: u64 = 16;

/// Records that a connection may still write. In TLS 1.2 its keys may encrypt so many and cannot be replaced: the library then
/// says goodbye, and drops what it is given from there on without an error. In TLS 1.3 it replaces them by itself.
#[derive(Clone, Copy, Debug)]
pub struct WriteAllowance(u64);

impl WriteAllowance {
    /// Of a new connection; `suite` is what both ends have agreed on.
    pub fn of(suite: Option<SupportedCipherSuite>) -> WriteAllowance {
        WriteAllowance(match suite {
            Some(SupportedCipherSuite::Tls12(suite)) => {
                suite.common.confidentiality_limit.saturating_sub(OTHER_RECORDS_MAX)
            }
            Some(SupportedCipherSuite::Tls13(_)) | None => u64::MAX,
        })
    }

    /// So many bytes are to be encrypted at once.
    ///
    /// # Errors
    /// The keys may not encrypt that many: the connection has to end.
    pub fn check(&self, bytes: usize) -> io::Result<()> {
        if records_of(bytes) > self.0 {
            return Err(io::Error::other("tls: the keys have encrypted as many records as they may"));
        }
        Ok(())
    }

    /// So many bytes were encrypted at once.
    pub fn count(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(records_of(bytes));
    }
}

fn records_of(bytes: usize) -> u64 {
    bytes.div_ceil(RECORD_BYTES_MAX) as u64
}

/// Follows records by their headers, from the first byte of a connection on.
#[derive(Debug, Default)]
pub struct Records {
    header: [u8; 5],
    header_len: usize,
    /// Bytes that the current record's body still has.
    left: usize,
    /// Bytes of the current record so far.
    begun: usize,
    /// The longest record since it was last asked for.
    longest: usize,
}

impl Records {
    /// Looks at the next bytes; returns how many records end in them.
    pub fn scan(&mut self, mut bytes: &[u8]) -> usize {
        let mut ended = 0;
        while !bytes.is_empty() {
            let wanted = if self.left == 0 { self.header.len() - self.header_len } else { self.left };
            let (part, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            self.begun += part.len();
            if self.left == 0 {
                self.header[self.header_len..][..part.len()].copy_from_slice(part);
                self.header_len += part.len();
                if self.header_len < self.header.len() {
                    break;
                }
                self.header_len = 0;
                self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            } else {
                self.left -= part.len();
            }
            if self.left == 0 {
                self.longest = self.longest.max(self.begun);
                self.begun = 0;
                ended += 1;
            }
        }
        ended
    }

    /// Bytes of the longest record since [`Records::forget_longest`].
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Begins anew to look for the longest record.
    pub fn forget_longest(&mut self) {
        self.longest = 0;
    }

    /// Bytes of a record that has begun and not ended.
    pub fn unfinished(&self) -> usize {
        self.begun
    }
}
