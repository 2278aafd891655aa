//! Counts TLS records ([`Records`]), and enforces limits that rustls does not have: on received records
//! without data ([`BarrenRecords`]), and on the records that a key may encrypt ([`WriteAllowance`]).

use std::io;

use rustls::{Error, IoState, SupportedCipherSuite};

/// Processor time of one TLS record, expressed as the number of bytes of data that take the same time. A
/// record without data, or a key update, has only about 25 bytes, but takes microseconds.
pub const RECORD_COST: usize = 256;

/// Maximum number of consecutive records without data, as in Go. More end the connection.
const BARREN_MAX: usize = 16;

/// Counter of consecutive records without data. It is needed because rustls ends a connection after 32
/// consecutive key updates or 32 consecutive empty records, but not if both kinds alternate.
#[derive(Clone, Copy, Debug, Default)]
pub struct BarrenRecords(usize);

impl BarrenRecords {
    /// Counts `records` records that were processed. `state` is the state of the connection after them.
    ///
    /// # Errors
    /// Returns Go's error if too many consecutive records had no data.
    pub fn count(&mut self, records: usize, state: &IoState) -> Result<(), Error> {
        self.0 = if state.plaintext_bytes_to_read() > 0 { 0 } else { self.0 + records };
        if self.0 > BARREN_MAX {
            return Err(Error::General("tls: too many ignored records".to_owned()));
        }
        Ok(())
    }
}

/// Maximum number of bytes of data in one TLS record.
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// Number of records that are reserved for other purposes than data: the end of the handshake, and alerts.
const OTHER_RECORDS_MAX: u64 = 16;

/// Number of records that a connection may still write. The keys of TLS 1.2 may encrypt only a limited number
/// of records and cannot be replaced. At the limit, rustls would send `close_notify` and silently drop
/// further data, so the connection is ended with an error before. In TLS 1.3 there is no limit, because
/// rustls replaces the keys.
#[derive(Clone, Copy, Debug)]
pub struct WriteAllowance(u64);

impl WriteAllowance {
    /// Returns the allowance of a new connection with this negotiated cipher suite.
    pub fn of(suite: Option<SupportedCipherSuite>) -> WriteAllowance {
        WriteAllowance(match suite {
            Some(SupportedCipherSuite::Tls12(suite)) => {
                suite.common.confidentiality_limit.saturating_sub(OTHER_RECORDS_MAX)
            }
            Some(SupportedCipherSuite::Tls13(_)) | None => u64::MAX,
        })
    }

    /// Checks that `bytes` more bytes may be encrypted, in one call of rustls.
    ///
    /// # Errors
    /// Returns an error if the keys must not encrypt that many bytes. The caller must then end the
    /// connection.
    pub fn check(&self, bytes: usize) -> io::Result<()> {
        if records_of(bytes) > self.0 {
            return Err(io::Error::other("tls: the keys have encrypted as many records as they may"));
        }
        Ok(())
    }

    /// Counts `bytes` bytes that were encrypted in one call of rustls.
    pub fn count(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(records_of(bytes));
    }
}

fn records_of(bytes: usize) -> u64 {
    bytes.div_ceil(RECORD_BYTES_MAX) as u64
}

/// Finds the ends of received TLS records by their headers. Must receive all bytes of a connection from the
/// first one on.
#[derive(Debug, Default)]
pub struct Records {
    header: [u8; 5],
    header_len: usize,
    /// Number of bytes of the body of the current record that have not arrived yet.
    left: usize,
    /// Number of bytes of the current record that have arrived, including its header.
    begun: usize,
    /// Size in bytes of the longest record since [`Records::forget_longest`].
    longest: usize,
}

impl Records {
    /// Processes the next received bytes. Returns the number of records that end in them.
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

    /// Returns the number of bytes of an incomplete record that have arrived; 0 if there is none.
    pub fn unfinished(&self) -> usize {
        self.begun
    }
}
