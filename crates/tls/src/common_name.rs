//! Reads the common name from a certificate file, for callers that must reject a certificate because it has a
//! common name.

use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::certificate::Certificate;
use crate::error::LoadError;
use crate::pem;

/// Returns the common name in the first certificate of a PEM file; `None` if the certificate has none or an
/// empty one.
///
/// # Errors
/// Returns an error if the file cannot be read or does not begin with a certificate.
pub fn common_name_of(file: &Path) -> Result<Option<String>, LoadError> {
    let contents = std::fs::read(file).map_err(|error| LoadError::of_file(file, error.to_string()))?;
    common_name_in(&contents).map_err(|why| LoadError::of_file(file, why))
}

/// Returns the common name in the first certificate of PEM data; `None` if the certificate has none or an
/// empty one.
///
/// # Errors
/// Returns a message that describes the problem if the data does not begin with a certificate.
pub fn common_name_in(contents: &[u8]) -> Result<Option<String>, String> {
    let first = CertificateDer::from_pem_slice(contents).map_err(|error| pem::malformed(&error))?;
    let certificate = Certificate::parse(&first).ok_or("not a certificate")?;
    Ok(certificate.common_name.filter(|name| !name.is_empty()))
}
