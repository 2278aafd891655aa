//! Reads certificates and private keys from PEM data. Errors have the messages of Go's `tls.X509KeyPair`.

use std::path::Path;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::pem::{self, PemObject as _, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificate::Certificate;
use crate::error::LoadError;

/// Returns the labels of the sections, such as `CERTIFICATE` in the line `-----BEGIN CERTIFICATE-----`. Only
/// labels of capital letters, digits and spaces count, because errors show the labels and must not show a
/// key: if a key has lost its line breaks, the whole key is a line that begins and ends like a section line.
fn labels(pem: &[u8]) -> Vec<String> {
    let lines = pem.split(|byte| *byte == b'\n');
    let label = |line: &[u8]| {
        let text = std::str::from_utf8(line).ok()?.trim_end();
        let label = text.strip_prefix("-----BEGIN ")?.strip_suffix("-----")?;
        let is_label = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' ';
        label.bytes().all(is_label).then(|| label.to_owned())
    };
    lines.filter_map(label).collect()
}

/// Describes an error in PEM data without showing any of its bytes, which may belong to a key.
pub(crate) fn malformed(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "malformed PEM: a section has no end; the file may be truncated"
        }
        _ => "malformed PEM: a section cannot be decoded",
    }
}

/// Returns all certificates of a file in order.
///
/// # Errors
/// Returns an error if any section is truncated or damaged, because the file may be half written. Go skips
/// such a section.
fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| LoadError::of_file(file, malformed(&error)))
}

/// Returns the certificates of a file of trusted authorities.
///
/// # Errors
/// Returns an error if the file has no certificate, if the PEM data is malformed, or if there are sections
/// other than certificates, which Go treats as malformed certificates.
pub(crate) fn authorities(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    if labels(pem).iter().any(|label| label != "CERTIFICATE") {
        return Err(LoadError::of_file(file, "x509: malformed certificate"));
    }
    let certificates = certificates(file, pem)?;
    if certificates.is_empty() {
        return Err(LoadError::of_file(file, "no certificates of trusted authorities found"));
    }
    Ok(certificates)
}

/// Returns the certificate chain of a file with its key.
///
/// # Errors
/// Returns an error with Go's message if a file has no certificate or key, for example because the two files
/// were exchanged, or if the key cannot be used or belongs to another certificate.
pub(crate) fn key_pair(
    cert_file: &Path,
    cert_pem: &[u8],
    key_file: &Path,
    key_pem: &[u8],
) -> Result<Arc<CertifiedKey>, LoadError> {
    let chain = certificates(cert_file, cert_pem)?;
    let Some(leaf) = chain.first() else {
        return Err(LoadError::of_file(cert_file, nothing_for_certificate(&labels(cert_pem))));
    };
    let Some(leaf) = Certificate::parse(leaf) else {
        return Err(LoadError::of_file(cert_file, "x509: malformed certificate"));
    };
    let key = private_key(key_file, key_pem)?;
    let matching = key.public_key().is_some_and(|public| public.as_ref() == leaf.public_key);
    if !matching {
        let public = key.public_key().unwrap_or_else(|| Vec::new().into());
        let same_type = algorithm(&public) == algorithm(leaf.public_key);
        let problem = if same_type {
            "tls: private key does not match public key"
        } else {
            "tls: private key type does not match public key type"
        };
        let files = format!("{problem} (certificate {}, key {})", cert_file.display(), key_file.display());
        return Err(LoadError::of_file(key_file, files));
    }
    for der in chain.iter().skip(1) {
        if Certificate::parse(der).is_none() {
            return Err(LoadError::of_file(cert_file, "x509: malformed certificate"));
        }
    }
    Ok(Arc::new(CertifiedKey::new(chain, key)))
}

/// Returns the object identifier of a public key's algorithm.
fn algorithm(public_key: &[u8]) -> Option<&[u8]> {
    use crate::der::{OBJECT_IDENTIFIER, Reader, SEQUENCE};
    let mut outer = Reader::new(public_key);
    Some(outer.enter(SEQUENCE)?.enter(SEQUENCE)?.element(OBJECT_IDENTIFIER)?.contents)
}

fn nothing_for_certificate(labels: &[String]) -> String {
    match labels {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if one.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but \
                                                  did find a private key; PEM inputs may have been switched"
                .to_owned()
        }
        labels => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
             following types: [{}]",
            labels.join(" ")
        ),
    }
}

fn private_key(file: &Path, pem: &[u8]) -> Result<Arc<dyn SigningKey>, LoadError> {
    let labels = labels(pem);
    let Some(label) = labels.iter().find(|label| *label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY"))
    else {
        let problem = match labels.as_slice() {
            [] => "tls: failed to find any PEM data in key input".to_owned(),
            [one] if one == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
            }
            labels => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM \
                 blocks of the following types: [{}]",
                labels.join(" ")
            ),
        };
        return Err(LoadError::of_file(file, problem));
    };
    const ENCRYPTED: &str = "tls: failed to parse private key: it is encrypted, which is not supported";
    let is_encrypted = label.contains("ENCRYPTED") || pem.windows(10).any(|bytes| bytes == b"ENCRYPTED\n");
    if is_encrypted {
        return Err(LoadError::of_file(file, ENCRYPTED));
    }
    let is_key = |kind: &SectionKind| {
        matches!(kind, SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey)
    };
    let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(pem);
    for section in sections {
        let (kind, der) = section.map_err(|error| LoadError::of_file(file, malformed(&error)))?;
        if !is_key(&kind) {
            continue;
        }
        // Try every key format, even if the label names another one, as Go does.
        let forms: [PrivateKeyDer<'_>; 3] = [
            PrivateKeyDer::Pkcs1(der.clone().into()),
            PrivateKeyDer::Pkcs8(der.clone().into()),
            PrivateKeyDer::Sec1(der.into()),
        ];
        if let Some(key) = forms.iter().find_map(|form| any_supported_type(form).ok().filter(works)) {
            return Ok(key);
        }
        break;
    }
    Err(LoadError::of_file(
        file,
        "tls: failed to parse private key: supported are RSA of 2048 to 4096 bits, ECDSA on P-256 and P-384, and \
         Ed25519, in PKCS#1, SEC 1 or PKCS#8",
    ))
}

/// Returns true if the key can sign, which is tested with a message. The test is needed because rustls
/// accepts RSA keys with inconsistent numbers, with which every handshake would fail.
fn works(key: &Arc<dyn SigningKey>) -> bool {
    const SCHEMES: [SignatureScheme; 4] = [
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::ECDSA_NISTP256_SHA256,
        SignatureScheme::ECDSA_NISTP384_SHA384,
        SignatureScheme::ED25519,
    ];
    key.choose_scheme(&SCHEMES).is_some_and(|signer| signer.sign(b"a message that is no handshake").is_ok())
}
