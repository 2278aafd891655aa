//! Reads the serial numbers of revoked certificates from certificate revocation lists (RFC 5280 section 5),
//! with the rules of etcd.

use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use crate::der::{self, Reader};
use crate::pem;

/// Serial number of a certificate, or a hash of it if it has more than 20 bytes. The size is fixed, so that a
/// list of serial numbers is a single allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Serial {
    length: u8,
    bytes: [u8; 20],
}

impl Serial {
    /// Creates a serial number from its bytes, without sign and leading zeros.
    pub(crate) fn new(magnitude: &[u8]) -> Serial {
        let mut bytes = [0; 20];
        match bytes.get_mut(..magnitude.len()) {
            Some(place) => {
                place.copy_from_slice(magnitude);
                Serial { length: magnitude.len() as u8, bytes }
            }
            None => {
                let hash = Sha256::digest(magnitude);
                bytes.iter_mut().zip(hash).for_each(|(place, byte)| *place = byte);
                Serial { length: u8::MAX, bytes }
            }
        }
    }

    /// Formats the serial number in hexadecimal digits, as etcd does.
    pub(crate) fn text(&self) -> String {
        let shown = self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes);
        shown.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Contents of the revocation lists in one file. As in etcd only the serial numbers count. Issuer, signature
/// and time of the next update are not checked, because the operator provides the file.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    /// Revoked serial numbers, sorted for the binary search.
    serials: Vec<Serial>,
    /// Time at which a newer list should be available, in seconds since 1970; `None` if no list contains such
    /// a time.
    pub(crate) next_update: Option<u64>,
}

impl Revocations {
    /// Parses the contents of a file: one list in DER, or any number of lists in PEM.
    ///
    /// # Errors
    /// Returns Go's message if the data is not a revocation list, or a message about malformed PEM data.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Revocations, String> {
        let mut all = Revocations::default();
        if bytes.first() == Some(&der::SEQUENCE) {
            all.add(bytes)?;
        } else {
            let mut lists = 0;
            for list in CertificateRevocationListDer::pem_slice_iter(bytes) {
                all.add(list.map_err(|error| pem::malformed(&error).to_owned())?.as_ref())?;
                lists += 1;
            }
            if lists == 0 {
                return Err(MALFORMED.to_owned());
            }
        }
        all.serials.sort_unstable();
        all.serials.dedup();
        Ok(all)
    }

    fn add(&mut self, der: &[u8]) -> Result<(), String> {
        let (mut revoked, next_update) = head(der).ok_or(MALFORMED)?;
        while !revoked.is_empty() {
            self.serials.push(entry(&mut revoked).ok_or(MALFORMED)?);
        }
        self.next_update = match (self.next_update, next_update) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Ok(())
    }

    pub(crate) fn contains(&self, serial: &Serial) -> bool {
        self.serials.binary_search(serial).is_ok()
    }

    /// Returns the number of revoked serial numbers.
    pub(crate) fn len(&self) -> usize {
        self.serials.len()
    }
}

const MALFORMED: &str = "x509: malformed crl";

/// Returns a reader of the entries of a list, and the time of the next update; `None` if the list is
/// malformed.
fn head(der: &[u8]) -> Option<(Reader<'_>, Option<u64>)> {
    let mut outer = Reader::new(der);
    let mut list = outer.enter(der::SEQUENCE)?;
    let mut body = list.enter(der::SEQUENCE)?;
    let algorithm = list.element(der::SEQUENCE)?.contents;
    list.bit_string()?;
    if !list.is_empty() || !outer.is_empty() || body.unsigned()? != [1] {
        return None;
    }
    if body.element(der::SEQUENCE)?.contents != algorithm {
        return None;
    }
    body.element(der::SEQUENCE)?;
    body.time()?;
    let mut ahead = body;
    let next_update = ahead.time();
    if next_update.is_some() {
        body = ahead;
    }
    let revoked = body.optional(der::SEQUENCE).map_or(Reader::new(&[]), |list| Reader::new(list.contents));
    body.optional(der::context(0, true));
    body.is_empty().then_some((revoked, next_update))
}

fn entry(revoked: &mut Reader<'_>) -> Option<Serial> {
    let mut entry = revoked.enter(der::SEQUENCE)?;
    let serial = Serial::new(entry.unsigned()?);
    entry.time()?;
    entry.optional(der::SEQUENCE);
    entry.is_empty().then_some(serial)
}
