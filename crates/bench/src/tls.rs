//! TLS settings from files, and certificates made for a comparison.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

/// What was given about TLS.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Whom to trust.
    pub cacert: String,
    /// Our certificate.
    pub cert: String,
    /// And its key.
    pub key: String,
    /// Trust anybody.
    pub skip_verify: bool,
}

impl Files {
    /// TLS settings, if anything that asks for TLS was given, or an endpoint's scheme does (`wanted`). Files name what is
    /// wrong with them.
    pub fn client(&self, wanted: bool) -> Result<Option<Arc<ClientConfig>>, String> {
        if !wanted && self.cacert.is_empty() && self.cert.is_empty() && self.key.is_empty() {
            return Ok(None);
        }
        if self.cert.is_empty() != self.key.is_empty() {
            return Err("--cert and --key have to be given together".to_owned());
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = if self.skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(ring::default_provider())))
        } else {
            builder.with_root_certificates(self.roots()?)
        };
        let mut config = if self.cert.is_empty() {
            builder.with_no_client_auth()
        } else {
            builder
                .with_client_auth_cert(certificates(&self.cert)?, key(&self.key)?)
                .map_err(|error| format!("{} and {}: {error}", self.cert, self.key))?
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Some(Arc::new(config)))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let file = if self.cacert.is_empty() {
            // Where the common systems have theirs.
            ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"]
                .into_iter()
                .find(|file| Path::new(file).exists())
                .ok_or("this system has no certificates to trust: give --cacert")?
        } else {
            &self.cacert
        };
        for certificate in certificates(file)? {
            let added = roots.add(certificate);
            // Systems hold some that are odd; a file that was named has to be right.
            if !self.cacert.is_empty() {
                added.map_err(|error| format!("{file}: {error}"))?;
            }
        }
        Ok(roots)
    }
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).map_err(|error| format!("{file}: {error}"))?.collect();
    let all = all.map_err(|error| format!("{file}: {error}"))?;
    if all.is_empty() { Err(format!("{file}: no certificate in it")) } else { Ok(all) }
}

fn key(file: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| format!("{file}: {error}"))
}

/// A server's TLS settings from its certificate and key.
pub fn server(cert_file: &str, key_file: &str) -> Result<Arc<ServerConfig>, String> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates(cert_file)?, key(key_file)?)
        .map_err(|error| format!("{cert_file} and {key_file}: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Makes a certificate of loopback's names that signs itself, and its key, in files of a directory: `(cert, key)`.
pub fn make(directory: &Path) -> Result<(String, String), String> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| error.to_string())?;
    let (cert, key) = (directory.join("server.crt"), directory.join("server.key"));
    std::fs::write(&cert, made.cert.pem()).map_err(|error| format!("{}: {error}", cert.display()))?;
    std::fs::write(&key, made.signing_key.serialize_pem())
        .map_err(|error| format!("{}: {error}", key.display()))?;
    Ok((cert.display().to_string(), key.display().to_string()))
}

/// Verifies signatures, but not who signs (`--insecure-skip-tls-verify`).
#[derive(Debug)]
struct Anybody(CryptoProvider);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
