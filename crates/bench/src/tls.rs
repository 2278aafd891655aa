//! Builds TLS settings from files, and generates certificates for the servers of a comparison.

use std::path::Path;
use std::sync::Arc;

use client::TlsFiles;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use crate::{Error, TlsError};

/// Values of the TLS flags; an empty path means that the flag is not given.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Path of the file with the trusted certificate authorities.
    pub cacert: String,
    /// Path of the client's certificate.
    pub cert: String,
    /// Path of the client's key.
    pub key: String,
    /// True if the server's certificate is not to be verified.
    pub skip_verify: bool,
}

impl Files {
    /// Returns TLS settings for a client; `None` if no TLS file is given and `wanted` is false. `wanted` says
    /// whether the scheme of an endpoint requires TLS. An error names the file that cannot be used.
    pub fn client(&self, wanted: bool) -> Result<Option<Arc<ClientConfig>>, TlsError> {
        if !wanted && self.cacert.is_empty() && self.cert.is_empty() && self.key.is_empty() {
            return Ok(None);
        }
        if self.cert.is_empty() != self.key.is_empty() {
            return Err(TlsError::HalfPair);
        }
        let path = |file: &str| (!file.is_empty()).then(|| file.into());
        let files = TlsFiles {
            cacert: path(&self.cacert),
            cert: path(&self.cert),
            key: path(&self.key),
            server_name: None,
            insecure_skip_verify: self.skip_verify,
        };
        let tls = files.load().map_err(TlsError::Client)?;
        Ok(Some(Arc::clone(tls.config())))
    }
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |error| TlsError::Pem { file: file.to_owned(), error };
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).map_err(wrong)?.collect();
    let all = all.map_err(wrong)?;
    if all.is_empty() { Err(TlsError::NoCertificate(file.to_owned())) } else { Ok(all) }
}

fn key(file: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| TlsError::Pem { file: file.to_owned(), error })
}

/// Returns TLS settings for a server with the certificate and the key in these files.
pub fn server(cert_file: &str, key_file: &str) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Server)?
        .with_no_client_auth()
        .with_single_cert(certificates(cert_file)?, key(key_file)?)
        .map_err(|error| TlsError::Pair { cert: cert_file.to_owned(), key: key_file.to_owned(), error })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Generates a key and a self-signed certificate for `localhost` and `127.0.0.1`. Writes both to files in the
/// directory, and returns their paths.
pub fn make(directory: &Path) -> Result<(String, String), Error> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).map_err(TlsError::Made)?;
    let (cert, key) = (directory.join("server.crt"), directory.join("server.key"));
    std::fs::write(&cert, made.cert.pem()).map_err(Error::at(cert.display()))?;
    std::fs::write(&key, made.signing_key.serialize_pem()).map_err(Error::at(key.display()))?;
    Ok((cert.display().to_string(), key.display().to_string()))
}
