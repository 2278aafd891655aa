//! Stores the trusted authorities, and verifies that one of them has signed a peer's certificate, directly or
//! through intermediate certificates (a chain).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use sha2::{Digest as _, Sha256};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter, RawPublicKeyEntity};

use crate::certificate::{ANY_PURPOSE, CLIENT_AUTH, Certificate, Purpose, SERVER_AUTH};
use crate::error::LoadError;
use crate::pem;
use crate::refusal::Refusal;
use crate::{MAX_CHAIN_BYTES, MAX_CHAIN_CERTIFICATES};

/// Maximum number of verified chains in the cache.
const MAX_REMEMBERED: usize = 1024;

/// SHA-256 hash of a certificate or another sequence of bytes.
pub(crate) type Fingerprint = [u8; 32];

/// Certificate of a trusted authority.
struct Authority {
    /// Hash of the subject and the public key. If an authority renews its certificate and keeps its key, the
    /// identity stays the same.
    identity: Fingerprint,
    /// Contents of the DER element of the subject name.
    subject: Vec<u8>,
    public_key: SubjectPublicKeyInfoDer<'static>,
    not_before: u64,
    not_after: u64,
    for_servers: bool,
    for_clients: bool,
    can_sign: bool,
    path_length: Option<u32>,
    has_name_constraints: bool,
}

impl Authority {
    fn check(&self, purpose: Purpose, intermediates: usize, now: u64) -> Result<(), Refusal> {
        check_time(self.not_before, self.not_after, now)?;
        let for_purpose = match purpose {
            Purpose::Server => self.for_servers,
            Purpose::Client => self.for_clients,
        };
        if !for_purpose {
            return Err(Refusal::WrongPurpose);
        }
        if self.path_length.is_some_and(|length| intermediates > length as usize) {
            return Err(Refusal::Invalid("too many intermediates for path length constraint".to_owned()));
        }
        Ok(())
    }
}

/// Facts about a chain that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    /// [`Authority::identity`] of the authority that has signed the chain.
    pub(crate) authority: Fingerprint,
    /// First second, counted since 1970, in which all certificates of the chain are valid; `not_after` is the
    /// last.
    pub(crate) not_before: u64,
    pub(crate) not_after: u64,
}

/// The trusted authorities of one file or of the system, with a cache of the chains that were verified.
///
/// `webpki` builds and verifies chains. Where Go, and so etcd, has other rules, those of Go apply. Go is
/// stricter about the authority itself: its validity, purposes and path length, and whether it may sign. Go
/// is more permissive in three cases: it accepts `anyExtendedKeyUsage`; a peer's certificate that is itself
/// in the file of authorities; and a peer's certificate of version 1 or with the CA flag, if a trusted
/// authority has signed it directly.
pub(crate) struct Trust {
    /// Authorities that may sign certificates, as `webpki` needs them.
    anchors: Vec<TrustAnchor<'static>>,
    /// Facts about each authority in [`Self::anchors`], in the same order.
    signers: Vec<Authority>,
    /// All trusted certificates, by the hash of their DER.
    pinned: HashMap<Fingerprint, Authority>,
    identities: HashSet<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
    /// Cache of verified chains, by a hash of their purpose and bytes. When a peer connects again, its
    /// signatures are not verified again.
    remembered: Mutex<HashMap<Fingerprint, Verified>>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("authorities", &self.pinned.len()).finish_non_exhaustive()
    }
}

impl Trust {
    /// Loads the authorities of a PEM file, which must contain at least one certificate.
    ///
    /// # Errors
    /// Returns an error if the file contains no certificate or a malformed one.
    pub(crate) fn from_pem(file: &Path, bytes: &[u8]) -> Result<Trust, LoadError> {
        let mut trust = Trust::nobody();
        for certificate in pem::authorities(file, bytes)? {
            if !trust.add(certificate) {
                return Err(LoadError::of_file(file, "x509: malformed certificate"));
            }
        }
        Ok(trust)
    }

    /// Loads the system's authorities. If there are none, no peer is trusted, as in Go.
    pub(crate) fn of_system() -> Trust {
        let mut trust = Trust::nobody();
        for certificate in rustls_native_certs::load_native_certs().certs {
            trust.add(certificate);
        }
        trust
    }

    fn nobody() -> Trust {
        Trust {
            anchors: Vec::new(),
            signers: Vec::new(),
            pinned: HashMap::new(),
            identities: HashSet::new(),
            algorithms: rustls::crypto::ring::default_provider().signature_verification_algorithms,
            remembered: Mutex::default(),
        }
    }

    /// Adds a trusted certificate. Returns false if it is malformed.
    fn add(&mut self, der: CertificateDer<'static>) -> bool {
        let Some(certificate) = Certificate::parse(&der) else { return false };
        let authority = || Authority {
            identity: hash(&[certificate.subject, certificate.public_key]),
            subject: certificate.subject.to_vec(),
            public_key: certificate.public_key.to_vec().into(),
            not_before: certificate.not_before,
            not_after: certificate.not_after,
            for_servers: certificate.allows(Purpose::Server),
            for_clients: certificate.allows(Purpose::Client),
            can_sign: certificate.can_sign(),
            path_length: certificate.path_length,
            has_name_constraints: certificate.has_name_constraints,
        };
        let pinned = authority();
        self.identities.insert(pinned.identity);
        let is_new = self.pinned.insert(hash(&[&der]), pinned).is_none();
        if is_new && certificate.can_sign() {
            let Ok(anchor) = webpki::anchor_from_trusted_cert(&der) else { return false };
            self.anchors.push(anchor.to_owned());
            self.signers.push(authority());
        }
        true
    }

    /// Returns the subject names of the authorities, for the list that a server sends to clients as a hint
    /// which certificates it accepts.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &[u8]> {
        self.signers.iter().map(|signer| signer.subject.as_slice())
    }

    /// Returns true if an authority with this [`Authority::identity`] is trusted.
    pub(crate) fn has(&self, authority: &Fingerprint) -> bool {
        self.identities.contains(authority)
    }

    /// Verifies that a trusted authority has signed the peer's certificate `leaf`, and that the chain is
    /// valid at the time `now` and for this purpose. `intermediates` are the other certificates that the peer
    /// has sent.
    pub(crate) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<Verified, Refusal> {
        check_size(leaf, intermediates)?;
        let key = {
            let mut hasher = Sha256::new_with_prefix([purpose as u8]);
            for certificate in std::iter::once(leaf).chain(intermediates) {
                hasher.update((certificate.len() as u64).to_le_bytes());
                hasher.update(certificate);
            }
            hasher.finalize().into()
        };
        let remembered = self.remembered().get(&key).copied();
        if let Some(verified) = remembered {
            check_time(verified.not_before, verified.not_after, now.as_secs())?;
            return Ok(verified);
        }
        let verified = self.verify_chain(leaf, intermediates, purpose, now)?;
        let mut remembered = self.remembered();
        if remembered.len() == MAX_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(key, verified);
        Ok(verified)
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, HashMap<Fingerprint, Verified>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verify_chain(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        purpose: Purpose,
        time: UnixTime,
    ) -> Result<Verified, Refusal> {
        let certificate = Certificate::parse(leaf).ok_or(Refusal::Malformed)?;
        let now = time.as_secs();
        check_time(certificate.not_before, certificate.not_after, now)?;
        if let Some(pinned) = self.pinned.get(&hash(&[leaf])) {
            if !certificate.allows(purpose) {
                return Err(Refusal::WrongPurpose);
            }
            return Ok(Verified {
                authority: pinned.identity,
                not_before: certificate.not_before,
                not_after: certificate.not_after,
            });
        }
        let result = EndEntityCert::try_from(leaf)
            .and_then(|end_entity| self.build_path(&end_entity, &certificate, intermediates, purpose, time));
        match result {
            Ok(verified) => Ok(verified),
            Err(webpki::Error::UnsupportedCertVersion | webpki::Error::CaUsedAsEndEntity) => {
                self.verify_directly(&certificate, purpose, now)
            }
            Err(error) => Err(refusal(error, now)),
        }
    }

    fn build_path(
        &self,
        end_entity: &EndEntityCert<'_>,
        certificate: &Certificate<'_>,
        intermediates: &[CertificateDer<'_>],
        purpose: Purpose,
        time: UnixTime,
    ) -> Result<Verified, webpki::Error> {
        let now = time.as_secs();
        let check_authority = |path: &webpki::VerifiedPath<'_>| {
            let signer = self.signer(path.anchor()).ok_or(webpki::Error::UnknownIssuer)?;
            let intermediates = path.intermediate_certificates().count();
            signer.check(purpose, intermediates, now).map_err(|refusal| match refusal {
                Refusal::Expired { not_after, .. } => {
                    webpki::Error::CertExpired { time, not_after: unix_time(not_after) }
                }
                Refusal::NotYetValid { not_before, .. } => {
                    webpki::Error::CertNotValidYet { time, not_before: unix_time(not_before) }
                }
                Refusal::Invalid(_) => webpki::Error::PathLenConstraintViolated,
                _ => wrong_purpose(),
            })
        };
        let path = end_entity.verify_for_usage(
            self.algorithms.all,
            &self.anchors,
            intermediates,
            time,
            For(purpose),
            None,
            Some(&check_authority),
        )?;
        let signer = self.signer(path.anchor()).ok_or(webpki::Error::UnknownIssuer)?;
        let mut verified = Verified {
            authority: signer.identity,
            not_before: certificate.not_before.max(signer.not_before),
            not_after: certificate.not_after.min(signer.not_after),
        };
        for intermediate in path.intermediate_certificates() {
            let der = intermediate.der();
            let intermediate = Certificate::parse(&der).ok_or(webpki::Error::BadDer)?;
            verified.not_before = verified.not_before.max(intermediate.not_before);
            verified.not_after = verified.not_after.min(intermediate.not_after);
        }
        Ok(verified)
    }

    fn signer(&self, anchor: &TrustAnchor<'_>) -> Option<&Authority> {
        let same = |candidate: &&TrustAnchor<'static>| std::ptr::addr_eq(*candidate, anchor);
        let at = self.anchors.iter().position(|candidate| same(&candidate))?;
        self.signers.get(at)
    }

    /// Verifies a peer's certificate that `webpki` cannot handle, because it is of version 1 or has the CA
    /// flag. A trusted authority must have signed it directly.
    fn verify_directly(
        &self,
        certificate: &Certificate<'_>,
        purpose: Purpose,
        now: u64,
    ) -> Result<Verified, Refusal> {
        if certificate.has_unknown_critical {
            return Err(Refusal::Invalid("unhandled critical extension".to_owned()));
        }
        let mut refusal = Refusal::UnknownAuthority;
        for signer in self.signers.iter().filter(|signer| signer.subject == certificate.issuer) {
            if !self.is_signed_by(certificate, signer) {
                continue;
            }
            // Refuse the certificate: the authority's name constraints limit the names for which it may sign,
            // and only `webpki`, which does not accept this certificate, can check them.
            if signer.has_name_constraints && certificate.has_alternative_names {
                refusal = Refusal::Invalid("an authority with name constraints has signed it".to_owned());
                continue;
            }
            match signer.check(purpose, 0, now) {
                Ok(()) if !certificate.allows(purpose) => refusal = Refusal::WrongPurpose,
                Ok(()) => {
                    return Ok(Verified {
                        authority: signer.identity,
                        not_before: certificate.not_before.max(signer.not_before),
                        not_after: certificate.not_after.min(signer.not_after),
                    });
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    fn is_signed_by(&self, certificate: &Certificate<'_>, signer: &Authority) -> bool {
        debug_assert!(signer.can_sign);
        let Ok(key) = RawPublicKeyEntity::try_from(&signer.public_key) else { return false };
        self.algorithms
            .all
            .iter()
            .filter(|algorithm| algorithm.signature_alg_id().as_ref() == certificate.signature_algorithm)
            .any(|algorithm| {
                key.verify_signature(*algorithm, certificate.signed, certificate.signature).is_ok()
            })
    }
}

fn refusal(error: webpki::Error, now: u64) -> Refusal {
    use webpki::Error;
    match error {
        Error::CertExpired { not_after, .. } => Refusal::Expired { now, not_after: not_after.as_secs() },
        Error::CertNotValidYet { not_before, .. } => {
            Refusal::NotYetValid { now, not_before: not_before.as_secs() }
        }
        Error::RequiredEkuNotFoundContext(_) => Refusal::WrongPurpose,
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => Refusal::UnknownAuthority,
        Error::PathLenConstraintViolated | Error::MaximumPathDepthExceeded => {
            Refusal::Invalid("too many intermediates for path length constraint".to_owned())
        }
        Error::UnsupportedCriticalExtension => Refusal::Invalid("unhandled critical extension".to_owned()),
        Error::NameConstraintViolation => Refusal::Invalid(
            "a root or intermediate certificate is not authorized to sign for this name".to_owned(),
        ),
        Error::EndEntityUsedAsCa => {
            Refusal::Invalid("certificate is not authorized to sign other certificates".to_owned())
        }
        other => Refusal::Invalid(other.to_string()),
    }
}

/// Checks the purpose of a certificate with Go's rule: a certificate without a list of purposes has all
/// purposes, and so has one whose list contains `anyExtendedKeyUsage`.
struct For(Purpose);

impl ExtendedKeyUsageValidator for For {
    fn validate(&self, listed: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let wanted = match self.0 {
            Purpose::Server => KeyPurposeId::new(SERVER_AUTH),
            Purpose::Client => KeyPurposeId::new(CLIENT_AUTH),
        };
        let any = KeyPurposeId::new(ANY_PURPOSE);
        let mut is_empty = true;
        for purpose in listed {
            let purpose = purpose?;
            is_empty = false;
            if purpose == wanted || purpose == any {
                return Ok(());
            }
        }
        if is_empty { Ok(()) } else { Err(wrong_purpose()) }
    }
}

fn wrong_purpose() -> webpki::Error {
    webpki::Error::RequiredEkuNotFoundContext(webpki::RequiredEkuNotFoundContext {
        required: webpki::KeyUsage::required_if_present(CLIENT_AUTH),
        present: Vec::new(),
    })
}

/// Returns an error if a chain has too many certificates or bytes. Called before the chain is parsed.
pub(crate) fn check_size(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), Refusal> {
    let certificates = 1 + intermediates.len();
    let bytes = leaf.len() + intermediates.iter().map(|der| der.len()).sum::<usize>();
    if certificates > MAX_CHAIN_CERTIFICATES || bytes > MAX_CHAIN_BYTES {
        return Err(Refusal::TooLarge { certificates, bytes });
    }
    Ok(())
}

/// Checks that `now` is in the validity period of a certificate. Both ends belong to the period.
pub(crate) fn check_time(not_before: u64, not_after: u64, now: u64) -> Result<(), Refusal> {
    if now < not_before {
        return Err(Refusal::NotYetValid { now, not_before });
    }
    if now > not_after {
        return Err(Refusal::Expired { now, not_after });
    }
    Ok(())
}

fn unix_time(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

fn hash(parts: &[&[u8]]) -> Fingerprint {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use testkit::certificates::{Authority, NOW, Pair, params};

    use super::*;

    #[test]
    fn chains_that_were_verified_are_remembered_within_bounds() {
        let authority = Authority::new("authority");
        let leaf = authority.issue(params("leaf"));
        let trust = Trust::from_pem(Path::new("ca"), authority.pem.as_bytes()).unwrap();
        let now = unix_time(NOW);
        let remembered = || trust.remembered().len();
        let verify = |extra: &[CertificateDer<'_>], purpose| trust.verify(&leaf.der, extra, purpose, now);

        let first = verify(&[], Purpose::Client).unwrap();
        assert_eq!((verify(&[], Purpose::Client), remembered()), (Ok(first), 1));
        // For another purpose the chain is verified again.
        assert_eq!((verify(&[], Purpose::Server), remembered()), (Ok(first), 2));
        // A refused chain is not cached.
        let stranger = Pair::self_signed(&params("stranger"));
        assert!(trust.verify(&stranger.der, &[], Purpose::Client, now).is_err());
        assert_eq!(remembered(), 2);
        for extra in 0..2 * MAX_REMEMBERED as u64 {
            verify(&[extra.to_le_bytes().to_vec().into()], Purpose::Client).unwrap();
            assert!(remembered() <= MAX_REMEMBERED);
        }
    }
}
