//! Loads the TLS configuration of clients, with the rules and error messages of etcd's tools. [`TlsFiles`]
//! contains the paths of the PEM files, and [`Tls`] the loaded configuration, with which `transport` makes
//! handshakes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, ProtocolVersion, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::certificate;

/// Paths of the PEM files for TLS, and options. By default, the system's root certificates are trusted and no
/// client certificate is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with the certificates of the authorities that are trusted; `None` for the system's root
    /// certificates.
    pub cacert: Option<PathBuf>,
    /// File with the client certificate, followed by the intermediate certificates up to its authority;
    /// `None` if the client sends no certificate.
    pub cert: Option<PathBuf>,
    /// File with the private key of the client certificate, in PKCS#8, PKCS#1 or SEC 1; `None` without a
    /// client certificate.
    pub key: Option<PathBuf>,
    /// Name that the server's certificate must contain; `None` for the endpoint's host.
    pub server_name: Option<String>,
    /// If true, any server certificate is accepted.
    pub insecure_skip_verify: bool,
}

/// Error in the files for TLS. The message is that of etcd's tools if they have one for the case.
#[derive(Debug)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// TLS configuration that is ready for handshakes. Clones share the configuration.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) server_name: Option<String>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl TlsFiles {
    /// Returns true if any field is set, which makes etcd's tools use TLS for an endpoint without a scheme.
    pub fn is_given(&self) -> bool {
        *self != TlsFiles::default()
    }

    /// Reads the files. Certificate and key are read only once, which is enough for command-line tools that
    /// run for a short time.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or contains nothing usable, if only one of certificate and
    /// key is given, or if they do not match.
    pub fn load(&self) -> Result<Tls, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(error.to_string()))?;
        let builder = if self.insecure_skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate { provider }))
        } else {
            builder.with_root_certificates(self.roots()?)
        };
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let chain = certificates_in(&read(cert)?, cert)?;
                let private = key_in(key)?;
                builder
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| TlsError(format!("tls: {error}")))?
            }
            (cert, key) => {
                let shown = |path: &Option<PathBuf>| {
                    path.as_ref().map_or(String::new(), |path| path.display().to_string())
                };
                return Err(TlsError(format!(
                    "KeyFile and CertFile must both be present[key: {}, cert: {}]",
                    shown(key),
                    shown(cert)
                )));
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Tls { config: Arc::new(config), server_name: self.server_name.clone() })
    }

    /// Reads the files as [`TlsFiles::load`] does, and reads certificate and key again for each connection.
    /// `accepts` is called with the contents of the certificate file. If `accepts` returns false or the files
    /// are not usable, the connection uses the last pair that was usable.
    ///
    /// # Errors
    /// Returns the errors of [`TlsFiles::load`], and an error if certificate and key are not usable now.
    pub fn load_for_each_connection(&self, accepts: fn(&[u8]) -> bool) -> Result<Tls, TlsError> {
        let mut tls = self.load()?;
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let mut config = ClientConfig::clone(&tls.config);
            let provider = config.crypto_provider().clone();
            let own =
                OwnCertificate { cert: cert.clone(), key: key.clone(), accepts, provider, last: None.into() };
            own.current().ok_or_else(|| TlsError(format!("{}: it cannot be used", cert.display())))?;
            config.client_auth_cert_resolver = Arc::new(own);
            // Disable the resumption of TLS sessions: a resumed session would keep the certificate of its
            // first handshake, even if the file has changed.
            config.resumption = Resumption::disabled();
            tls.config = Arc::new(config);
        }
        Ok(tls)
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.cacert {
            Some(path) => {
                for certificate in all_certificates_in(&read(path)?, path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| TlsError(format!("{}: {error}", path.display())))?;
                }
            }
            // Ignore missing or unusable root certificates of the system here. If there is none, no server is
            // trusted, and the handshake fails.
            None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        }
        Ok(roots)
    }
}

impl Tls {
    /// Returns the configuration, for callers that open connections by other means.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Returns the name that the server's certificate must contain.
    pub(crate) fn name_of(&self, host: &str) -> ServerName<'static> {
        let name = self.server_name.as_deref().unwrap_or(host);
        // Remove the final dot of the root domain. A host name in an SRV record has this dot, but a name in a
        // certificate does not.
        let name = name.strip_suffix('.').unwrap_or(name).to_owned();
        // A name that cannot be a host name, for example because it is empty, is replaced by one that no
        // certificate has. So the verification fails unless it is switched off.
        ServerName::try_from(name)
            .unwrap_or_else(|_| ServerName::try_from("invalid.invalid").expect("a constant that is a name"))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
            std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        TlsError(format!("open {}: {why}", path.display()))
    })
}

fn all_certificates_in(contents: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(contents)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError(format!("{}: {error}", path.display())))
}

/// Returns the certificates in a file. Fails if the file contains none.
fn certificates_in(contents: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = all_certificates_in(contents, path)?;
    match chain.is_empty() {
        true => Err(TlsError("tls: failed to find any PEM data in certificate input".to_owned())),
        false => Ok(chain),
    }
}

fn key_in(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError("tls: failed to find any PEM data in key input".to_owned()),
        error => TlsError(format!("{}: {error}", path.display())),
    })
}

/// Client certificate that is read again for each connection.
struct OwnCertificate {
    cert: PathBuf,
    key: PathBuf,
    accepts: fn(&[u8]) -> bool,
    provider: Arc<CryptoProvider>,
    /// The last usable certificate and key that were read.
    last: Mutex<Option<Arc<CertifiedKey>>>,
}

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCertificate").field("cert", &self.cert).finish_non_exhaustive()
    }
}

impl OwnCertificate {
    fn read(&self) -> Option<CertifiedKey> {
        let contents = read(&self.cert).ok().filter(|contents| (self.accepts)(contents))?;
        let chain = certificates_in(&contents, &self.cert).ok()?;
        CertifiedKey::from_der(chain, key_in(&self.key).ok()?, &self.provider).ok()
    }

    fn current(&self) -> Option<Arc<CertifiedKey>> {
        // Ignore poisoning, because the value is always replaced as a whole.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = self.read() {
            *last = Some(Arc::new(read));
        }
        last.clone()
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Certificates that a server sent in the TLS handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificates {
    /// Certificates in DER form; the server's own certificate is the first.
    pub chain: Vec<Vec<u8>>,
    /// Protocol version: `TLS 1.2`, `TLS 1.3` or `unknown`.
    pub version: &'static str,
}

impl PeerCertificates {
    /// Returns the time at which the server's certificate expires. `None` if the chain is empty or the time
    /// cannot be parsed.
    pub fn not_after(&self) -> Option<std::time::SystemTime> {
        self.chain.first().and_then(|der| certificate::not_after(der))
    }

    pub(crate) fn of(connection: &rustls::Connection) -> PeerCertificates {
        let chain = connection.peer_certificates().unwrap_or_default();
        PeerCertificates {
            chain: chain.iter().map(|certificate| certificate.to_vec()).collect(),
            version: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
                Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
                _ => "unknown",
            },
        }
    }
}

/// Accepts any server certificate, but still verifies that the server has the private key of the certificate.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
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
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
