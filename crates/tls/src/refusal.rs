use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::{CertificateError, OtherError};
use rustls_pki_types::UnixTime;
use stdx::calendar::format_rfc3339;

/// Reason why a peer is refused because of its certificate. Displayed with the message that etcd logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A client presented no certificate where one is required.
    NoCertificate,
    /// The chain has too many certificates, or too many bytes.
    TooLarge {
        /// Number of certificates that the peer sent.
        certificates: usize,
        /// Total size of the certificates in bytes.
        bytes: usize,
    },
    /// The certificate cannot be parsed.
    Malformed,
    /// A certificate of the chain is not valid yet. Times in seconds since 1970.
    NotYetValid {
        /// Time of the check.
        now: u64,
        /// First second in which the certificate is valid.
        not_before: u64,
    },
    /// A certificate of the chain has expired. Times in seconds since 1970.
    Expired {
        /// Time of the check.
        now: u64,
        /// Last second in which the certificate was valid.
        not_after: u64,
    },
    /// No trusted authority has signed the certificate.
    UnknownAuthority,
    /// The certificate has the wrong purpose: for example, a client presented a certificate that is only for
    /// servers.
    WrongPurpose,
    /// The certificate violates another rule, which the string describes.
    Invalid(String),
    /// The common name or the host names in the certificate are not among the allowed ones.
    NotAllowed,
    /// The serial number of a certificate is on the revocation list.
    Revoked {
        /// Serial number in hexadecimal digits.
        serial: String,
    },
    /// A server's certificate does not match the host that was dialed.
    WrongHost(String),
    /// A client's certificate does not match the address from which the client connects.
    WrongAddress(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const VERIFY: &str = "tls: failed to verify certificate: ";
        const TIME: &str = "x509: certificate has expired or is not yet valid: current time";
        let time = |seconds: &u64| {
            format_rfc3339(UNIX_EPOCH.checked_add(Duration::from_secs(*seconds)).unwrap_or(UNIX_EPOCH))
        };
        match self {
            Refusal::NoCertificate => f.write_str("tls: client didn't provide a certificate"),
            Refusal::TooLarge { certificates, bytes } => write!(
                f,
                "tls: too large a certificate chain: {certificates} certificates, {bytes} bytes (at most {}, {})",
                crate::MAX_CHAIN_CERTIFICATES,
                crate::MAX_CHAIN_BYTES
            ),
            Refusal::Malformed => {
                f.write_str("tls: failed to parse client certificate: x509: malformed certificate")
            }
            Refusal::NotYetValid { now, not_before } => {
                write!(f, "{VERIFY}{TIME} {} is before {}", time(now), time(not_before))
            }
            Refusal::Expired { now, not_after } => {
                write!(f, "{VERIFY}{TIME} {} is after {}", time(now), time(not_after))
            }
            Refusal::UnknownAuthority => write!(f, "{VERIFY}x509: certificate signed by unknown authority"),
            Refusal::WrongPurpose => {
                write!(f, "{VERIFY}x509: certificate specifies an incompatible key usage")
            }
            Refusal::Invalid(problem) => write!(f, "{VERIFY}x509: {problem}"),
            Refusal::NotAllowed => f.write_str("client certificate authentication failed"),
            Refusal::Revoked { serial } => write!(f, "transport: certificate serial {serial} revoked"),
            Refusal::WrongHost(problem) => write!(f, "{VERIFY}{problem}"),
            Refusal::WrongAddress(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Converts the refusal into an error of `rustls`, as a verifier must return it. The error determines
    /// which TLS alert the peer receives. It is the alert that Go sends, if Go has a specific one for this
    /// refusal.
    pub(crate) fn to_rustls(&self) -> rustls::Error {
        let time = |seconds: u64| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let error = match *self {
            Refusal::Expired { now, not_after } => {
                CertificateError::ExpiredContext { time: time(now), not_after: time(not_after) }
            }
            Refusal::NotYetValid { now, not_before } => {
                CertificateError::NotValidYetContext { time: time(now), not_before: time(not_before) }
            }
            Refusal::UnknownAuthority => CertificateError::UnknownIssuer,
            Refusal::Malformed => CertificateError::BadEncoding,
            Refusal::WrongPurpose => CertificateError::InvalidPurpose,
            _ => CertificateError::Other(OtherError(Arc::new(self.clone()))),
        };
        rustls::Error::InvalidCertificate(error)
    }

    /// Returns the refusal because of which a handshake failed; `None` if it failed for another reason.
    pub fn behind(error: &rustls::Error) -> Option<Refusal> {
        let error = match error {
            rustls::Error::NoCertificatesPresented => return Some(Refusal::NoCertificate),
            rustls::Error::InvalidCertificate(error) => error,
            _ => return None,
        };
        Some(match error {
            CertificateError::ExpiredContext { time, not_after } => {
                Refusal::Expired { now: time.as_secs(), not_after: not_after.as_secs() }
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                Refusal::NotYetValid { now: time.as_secs(), not_before: not_before.as_secs() }
            }
            CertificateError::UnknownIssuer => Refusal::UnknownAuthority,
            CertificateError::BadEncoding => Refusal::Malformed,
            CertificateError::InvalidPurpose => Refusal::WrongPurpose,
            CertificateError::Other(OtherError(other)) => match other.downcast_ref::<Refusal>() {
                Some(refusal) => refusal.clone(),
                None => Refusal::Invalid(other.to_string()),
            },
            other => Refusal::Invalid(other.to_string()),
        })
    }
}

/// Describes why a handshake failed, with etcd's message if etcd has one. Like etcd, listeners log it as the
/// field `error` of the line `rejected connection on client endpoint`.
pub fn explain(error: &rustls::Error) -> String {
    if let Some(refusal) = Refusal::behind(error) {
        return refusal.to_string();
    }
    match error {
        rustls::Error::InvalidMessage(_) => "tls: first record does not look like a TLS handshake".to_owned(),
        rustls::Error::AlertReceived(alert) => format!("remote error: tls: {}", alert_text(*alert)),
        rustls::Error::PeerIncompatible(rustls::PeerIncompatible::NoCipherSuitesInCommon) => {
            "tls: no cipher suite supported by both client and server".to_owned()
        }
        rustls::Error::PeerIncompatible(
            rustls::PeerIncompatible::Tls12NotOffered
            | rustls::PeerIncompatible::Tls12NotOfferedOrEnabled
            | rustls::PeerIncompatible::Tls13RequiredForQuic
            | rustls::PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => "tls: client offered only unsupported versions".to_owned(),
        rustls::Error::NoApplicationProtocol => {
            "tls: client requested unsupported application protocols".to_owned()
        }
        error => format!("tls: {error}"),
    }
}

/// Returns Go's name for an alert.
fn alert_text(alert: rustls::AlertDescription) -> String {
    use rustls::AlertDescription as Alert;
    let text = match alert {
        Alert::CloseNotify => "close notify",
        Alert::UnexpectedMessage => "unexpected message",
        Alert::BadRecordMac => "bad record MAC",
        Alert::HandshakeFailure => "handshake failure",
        Alert::BadCertificate => "bad certificate",
        Alert::UnsupportedCertificate => "unsupported certificate",
        Alert::CertificateRevoked => "revoked certificate",
        Alert::CertificateExpired => "expired certificate",
        Alert::CertificateUnknown => "unknown certificate",
        Alert::IllegalParameter => "illegal parameter",
        Alert::UnknownCA => "unknown certificate authority",
        Alert::AccessDenied => "access denied",
        Alert::DecodeError => "error decoding message",
        Alert::DecryptError => "error decrypting message",
        Alert::ProtocolVersion => "protocol version not supported",
        Alert::InternalError => "internal error",
        Alert::CertificateRequired => "certificate required",
        Alert::NoApplicationProtocol => "no application protocol",
        other => return format!("alert({})", u8::from(other)),
    };
    text.to_owned()
}
