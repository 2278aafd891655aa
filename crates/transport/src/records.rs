//! TLS records: their borders ([`Records`]), and limits that rustls does not have ([`BarrenRecords`],
//! [`WriteAllowance`]).

use std::io;

use rustls::{Error, IoState, SupportedCipherSuite};

/// Cost of processing one record, expressed as a number of bytes whose processing costs as much. A record
/// without data, or a key update, has only about 25 bytes but costs microseconds.
pub const RECORD_COST: usize = 256;

/// Number of consecutive records without data that are tolerated, as in Go.
const BARREN_MAX: usize = 16;

/// Counter of consecutive records without data. rustls ends a connection after 32 consecutive key updates or
/// 32 consecutive empty records, but not if both kinds alternate.
#[derive(Clone, Copy, Debug, Default)]
pub struct BarrenRecords(usize);

impl BarrenRecords {
    /// Counts `records` completed records; `state` is the state of the connection after them.
    ///
    /// # Errors
    /// Returns Go's error if too many consecutive records carried no data.
    pub fn count(&mut self, records: usize, state: &IoState) -> Result<(), Error> {
        self.0 = if state.plaintext_bytes_to_read() > 0 { 0 } else { self.0 + records };
        if self.0 > BARREN_MAX {
            return Err(Error::General("tls: too many ignored records".to_owned()));
        }
        Ok(())
    }
}

/// Maximum number of data bytes in one record.
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// Number of records without data that a connection may send: the end of the handshake, and alerts.
const OTHER_RECORDS_MAX: u64 = 16;

/// Number of records that a connection may still write. The keys of TLS 1.2 may encrypt a limited number of
/// records and cannot be replaced: at the limit, rustls sends `close_notify` and silently drops further data.
/// In TLS 1.3 rustls replaces the keys.
#[derive(Clone, Copy, Debug)]
pub struct WriteAllowance(u64);

impl WriteAllowance {
    /// Creates the allowance of a new connection with the negotiated cipher suite.
    pub fn of(suite: Option<SupportedCipherSuite>) -> WriteAllowance {
        WriteAllowance(match suite {
            Some(SupportedCipherSuite::Tls12(suite)) => {
                suite.common.confidentiality_limit.saturating_sub(OTHER_RECORDS_MAX)
            }
            Some(SupportedCipherSuite::Tls13(_)) | None => u64::MAX,
        })
    }

    /// Checks that `bytes` bytes may be encrypted at once.
    ///
    /// # Errors
    /// Returns an error if the keys may not encrypt that many bytes; the connection must then end.
    pub fn check(&self, bytes: usize) -> io::Result<()> {
        if records_of(bytes) > self.0 {
            return Err(io::Error::other("tls: the keys have encrypted as many records as they may"));
        }
        Ok(())
    }

    /// Counts `bytes` bytes that were encrypted at once.
    pub fn count(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(records_of(bytes));
    }
}

fn records_of(bytes: usize) -> u64 {
    bytes.div_ceil(RECORD_BYTES_MAX) as u64
}

/// Tracks records by their headers, from the first byte of a connection on.
#[derive(Debug, Default)]
pub struct Records {
    header: [u8; 5],
    header_len: usize,
    /// Bytes missing from the body of the current record.
    left: usize,
    /// Bytes received of the current record.
    begun: usize,
    /// Size of the longest record since [`Records::forget_longest`].
    longest: usize,
}

impl Records {
    /// Processes the next bytes. Returns the number of records that end in them.
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

    /// Returns the size in bytes of the longest record since [`Records::forget_longest`].
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Resets the size of the longest record.
    pub fn forget_longest(&mut self) {
        self.longest = 0;
    }

    /// Returns the bytes received of an incomplete record; 0 if there is none.
    pub fn unfinished(&self) -> usize {
        self.begun
    }
}
