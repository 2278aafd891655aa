//! Authorities, certificates and lists of revocations for tests of TLS.
//!
//! [`Authority`] makes them in memory, [`Folder`] as files of a directory. Certificates are for servers and clients, and are
//! valid from 2025 to 2055, unless their parameters say otherwise. [`Clock`] is the time that they are judged by.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use rcgen;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, UnixTime};

/// 2026-06-01T00:00:00Z, in seconds of Unix time: a time at which certificates and lists are valid.
pub const NOW: u64 = 1_780_272_000;
/// 2055-01-01T00:00:00Z, in seconds of Unix time: the end of certificates.
pub const END: u64 = 2_682_374_400;
/// 2050-01-01T00:00:00Z, in seconds of Unix time: when a newer list of revocations is due.
pub const NEXT_LIST: u64 = 2_524_608_000;

/// A clock that stands, first at [`NOW`], until a test moves it.
#[derive(Debug)]
pub struct Clock(AtomicU64);

impl Clock {
    /// A clock of one test.
    pub fn new() -> Arc<Clock> {
        Arc::new(Clock(AtomicU64::new(NOW)))
    }

    /// Moves it to so many seconds of Unix time.
    pub fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

/// Parameters of a certificate for servers and clients with this common name.
pub fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2055, 1, 1);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// The same, for these hosts and addresses.
///
/// # Panics
///
/// If one of them is neither.
pub fn params_for(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = params(name);
    params.subject_alt_names = CertificateParams::new(hosts).expect("names of hosts").subject_alt_names;
    params
}

/// Parameters of an authority's own certificate.
pub fn authority_params(name: &str) -> CertificateParams {
    let mut params = params(name);
    params.extended_key_usages.clear();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("keys can be made")
}

/// A certificate with its key, in PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate, and perhaps those of authorities behind it.
    pub cert: String,
    /// The key, in PKCS#8.
    pub key: String,
    /// The certificate in DER.
    pub der: CertificateDer<'static>,
}

impl Pair {
    /// A certificate that vouches for itself.
    ///
    /// # Panics
    ///
    /// If it cannot be made of these parameters; so do all functions that make one.
    pub fn self_signed(params: &CertificateParams) -> Pair {
        let key = new_key();
        Pair::of(&params.self_signed(&key).expect("the parameters are sound"), &key)
    }

    fn of(certificate: &rcgen::Certificate, key: &KeyPair) -> Pair {
        Pair { cert: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }

    /// Followed by the certificates of authorities.
    #[must_use]
    pub fn with_chain(&self, chain: &[&Authority]) -> Pair {
        let chain: String = chain.iter().map(|authority| authority.pem.as_str()).collect();
        Pair { cert: format!("{}{chain}", self.cert), ..self.clone() }
    }
}

/// Somebody who signs certificates.
pub struct Authority {
    /// Its key, and what certificates say of it.
    pub issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: String,
    /// The same in DER.
    pub der: CertificateDer<'static>,
}

impl Authority {
    /// An authority that vouches for itself.
    pub fn new(name: &str) -> Authority {
        Authority::with(authority_params(name))
    }

    /// The same, with these parameters.
    pub fn with(params: CertificateParams) -> Authority {
        Authority::with_key(params, new_key())
    }

    /// The same, with this key.
    pub fn with_key(params: CertificateParams, key: KeyPair) -> Authority {
        let certificate = params.self_signed(&key).expect("the parameters are sound");
        Authority::of(&certificate, params, key)
    }

    /// An authority below this one.
    #[must_use]
    pub fn below(&self, params: CertificateParams) -> Authority {
        let key = new_key();
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are sound");
        Authority::of(&certificate, params, key)
    }

    fn of(certificate: &rcgen::Certificate, params: CertificateParams, key: KeyPair) -> Authority {
        Authority { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// A certificate of this authority.
    pub fn issue(&self, params: CertificateParams) -> Pair {
        self.issue_for(params, &new_key())
    }

    /// The same, for a key that is there already.
    pub fn issue_for(&self, params: CertificateParams, key: &KeyPair) -> Pair {
        Pair::of(&params.signed_by(key, &self.issuer).expect("the parameters are sound"), key)
    }

    /// A list of revoked serial numbers, in DER.
    pub fn revoke(&self, serials: &[&[u8]]) -> Vec<u8> {
        let revoked = |serial: &&[u8]| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2050, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).expect("the list is sound").der().to_vec()
    }
}

/// Files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// An authority, and the directory for its certificate and for all that it issues.
pub struct Folder {
    /// Who signs.
    pub authority: Authority,
    dir: PathBuf,
    /// File of the authority's certificate.
    pub ca: PathBuf,
}

impl Folder {
    /// A new authority, whose certificate is written to `NAME.ca.pem`.
    ///
    /// # Panics
    ///
    /// If the directory cannot be written to; so do all functions that write to it.
    pub fn new(dir: &Path, name: &str) -> Folder {
        let authority = Authority::new(name);
        let mut folder = Folder { authority, dir: dir.to_owned(), ca: PathBuf::new() };
        folder.ca = folder.write(&format!("{name}.ca.pem"), &folder.authority.pem);
        folder
    }

    /// Writes a file of the directory, and returns its path.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, contents).expect("the directory can be written to");
        path
    }

    /// Writes `NAME.crt` and `NAME.key`: a certificate for servers and clients with this common name and serial number, for
    /// these hosts. A later one of the same common name replaces the files.
    pub fn issue(&self, name: &str, serial: &[u8], hosts: &[&str]) -> Files {
        let mut params = params_for(name, hosts);
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let pair = self.authority.issue(params);
        Files {
            cert: self.write(&format!("{name}.crt"), pair.cert),
            key: self.write(&format!("{name}.key"), pair.key),
        }
    }

    /// Writes the list of revoked serial numbers, `revoked.crl`.
    pub fn revoke(&self, serials: &[&[u8]]) -> PathBuf {
        self.write("revoked.crl", self.authority.revoke(serials))
    }
}
