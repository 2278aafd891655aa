//! Checks a peer's certificates: in handshakes, as verifiers for `rustls`, and later for open connections.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use webpki::{EndEntityCert, RawPublicKeyEntity};

use crate::certificate::{Certificate, Purpose};
use crate::host_name;
use crate::refusal::Refusal;
use crate::revocation::{Revocations, Serial};
use crate::trust::{Trust, Verified, check_size};

/// Maximum length of a common name in bytes. A peer with a longer one is refused, because the name is stored
/// for every connection. RFC 5280 allows 64 characters.
const MAX_COMMON_NAME_BYTES: usize = 1024;

/// Maximum size in bytes of the list of authorities that a listener sends to its clients as a hint. A longer
/// list is omitted.
const MAX_HINT_BYTES: usize = 16 * 1024;

/// Authorities that may sign a peer's certificate.
#[derive(Clone, Debug)]
pub(crate) enum Authorities {
    /// The authorities of a file.
    Of(Arc<Trust>),
    /// The authorities of the operating system. They are read when they are first needed, and only once per
    /// process.
    System,
    /// Certificates are not verified: any certificate is accepted.
    Anybody,
}

impl Authorities {
    /// Returns the trusted authorities; `None` if any certificate is accepted.
    pub(crate) fn trust(&self) -> Option<&Arc<Trust>> {
        static SYSTEM: OnceLock<Arc<Trust>> = OnceLock::new();
        match self {
            Authorities::Of(trust) => Some(trust),
            Authorities::System => Some(SYSTEM.get_or_init(|| Arc::new(Trust::of_system()))),
            Authorities::Anybody => None,
        }
    }
}

/// Names that are allowed. A peer's certificate must have one of them.
#[derive(Clone, Debug)]
pub(crate) enum Allowed {
    Any,
    CommonNames(Vec<String>),
    HostNames(Vec<String>),
}

impl Allowed {
    fn contain(&self, certificate: &Certificate<'_>) -> bool {
        match self {
            Allowed::Any => true,
            Allowed::CommonNames(names) => {
                let name = certificate.common_name.as_deref().unwrap_or_default();
                names.iter().any(|allowed| allowed == name)
            }
            Allowed::HostNames(names) => {
                names.iter().any(|name| host_name::verify(certificate, name).is_ok())
            }
        }
    }
}

/// The checks that a peer's certificates must pass.
#[derive(Clone, Debug)]
pub(crate) struct PeerChecks {
    pub(crate) authorities: Authorities,
    pub(crate) allowed: Allowed,
    pub(crate) revocations: Option<Arc<Revocations>>,
}

/// Result of the checks of a peer.
#[derive(Debug)]
pub(crate) struct Checked {
    /// Facts about the verified chain; `None` if certificates are not verified.
    pub(crate) verified: Option<Verified>,
    pub(crate) serials: Box<[Serial]>,
    pub(crate) common_name: Option<String>,
}

impl PeerChecks {
    /// Checks `leaf`, the peer's certificate, and `intermediates`, the other certificates that the peer has
    /// sent. As in etcd, none of these certificates may be on the revocation list, not even one that is not
    /// needed for the chain.
    pub(crate) fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<Checked, Refusal> {
        check_size(leaf, intermediates)?;
        let verified = match self.authorities.trust() {
            Some(trust) => Some(trust.verify(leaf, intermediates, purpose, now)?),
            None => None,
        };
        let certificate = Certificate::parse(leaf).ok_or(Refusal::Malformed)?;
        let common_name = certificate.common_name.clone();
        if common_name.as_ref().is_some_and(|name| name.len() > MAX_COMMON_NAME_BYTES) {
            return Err(Refusal::Invalid("common name is too long".to_owned()));
        }
        // As in etcd, only the names in a verified certificate count. So if a name is required, a peer whose
        // certificate is not verified is refused.
        let may_be_allowed = verified.is_some() || matches!(self.allowed, Allowed::Any);
        if !may_be_allowed || !self.allowed.contain(&certificate) {
            return Err(Refusal::NotAllowed);
        }
        let mut serials = vec![Serial::new(certificate.serial)];
        for intermediate in intermediates {
            let intermediate = Certificate::parse(intermediate).ok_or(Refusal::Malformed)?;
            serials.push(Serial::new(intermediate.serial));
        }
        self.check_revoked(&serials)?;
        Ok(Checked { verified, serials: serials.into(), common_name })
    }

    pub(crate) fn check_revoked(&self, serials: &[Serial]) -> Result<(), Refusal> {
        let Some(revocations) = &self.revocations else { return Ok(()) };
        match serials.iter().find(|serial| revocations.contains(serial)) {
            Some(serial) => Err(Refusal::Revoked { serial: serial.text() }),
            None => Ok(()),
        }
    }
}

/// Verifies clients in handshakes. A client without a certificate is refused.
pub(crate) struct Clients {
    checks: PeerChecks,
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Clients {
    pub(crate) fn new(checks: PeerChecks) -> Clients {
        let mut hints = Vec::new();
        if let Authorities::Of(trust) = &checks.authorities {
            hints.extend(trust.subjects().map(DistinguishedName::in_sequence));
        }
        // Omit a list that is too long. Without the hint, which is optional, clients choose their certificate
        // themselves.
        if hints.iter().map(|name| name.as_ref().len()).sum::<usize>() > MAX_HINT_BYTES {
            hints.clear();
        }
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        Clients { checks, hints, algorithms }
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("checks", &self.checks).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.checks
            .check(leaf, intermediates, Purpose::Client, now)
            .map(|_| ClientCertVerified::assertion())
            .map_err(|refusal| refusal.to_rustls())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, certificate, signed, &self.algorithms, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, certificate, signed, &self.algorithms, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies servers in handshakes.
pub(crate) struct Servers {
    checks: PeerChecks,
    /// If set, only this certificate is accepted, and its authority and its names are not checked.
    only: Option<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Servers {
    pub(crate) fn new(checks: PeerChecks) -> Servers {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        Servers { checks, only: None, algorithms }
    }

    /// Creates a verifier that accepts only `certificate`.
    pub(crate) fn only(certificate: CertificateDer<'static>, checks: PeerChecks) -> Servers {
        Servers { only: Some(certificate), ..Servers::new(checks) }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("checks", &self.checks).finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(only) = &self.only {
            return match only == leaf {
                true => Ok(ServerCertVerified::assertion()),
                false => {
                    Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
                }
            };
        }
        let checked = self.checks.check(leaf, intermediates, Purpose::Server, now);
        let result = checked.and_then(|checked| match checked.verified {
            None => Ok(()),
            Some(_) => {
                let certificate = Certificate::parse(leaf).ok_or(Refusal::Malformed)?;
                host_name::verify(&certificate, &host.to_str()).map_err(Refusal::WrongHost)
            }
        });
        result.map(|()| ServerCertVerified::assertion()).map_err(|refusal| refusal.to_rustls())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, certificate, signed, &self.algorithms, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, certificate, signed, &self.algorithms, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies a signature of the handshake, by which the peer proves that it has the private key of its
/// certificate. `webpki` does not accept a certificate of version 1, so only its public key is passed to
/// `webpki`.
fn verify_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
    is_tls13: bool,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let is_old = matches!(EndEntityCert::try_from(certificate), Err(webpki::Error::UnsupportedCertVersion));
    if !is_old {
        return if is_tls13 {
            verify_tls13_signature(message, certificate, signed, algorithms)
        } else {
            verify_tls12_signature(message, certificate, signed, algorithms)
        };
    }
    let bad = || rustls::Error::InvalidCertificate(CertificateError::BadSignature);
    let certificate = Certificate::parse(certificate).ok_or_else(bad)?;
    let key = SubjectPublicKeyInfoDer::from(certificate.public_key);
    if is_tls13 {
        return verify_tls13_signature_with_raw_key(message, &key, signed, algorithms);
    }
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| bad())?;
    let mut candidates =
        algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme).flat_map(|(_, list)| *list);
    if candidates.any(|algorithm| key.verify_signature(*algorithm, message, signed.signature()).is_ok()) {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(bad())
    }
}
