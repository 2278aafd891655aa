//! Creates certificate authorities, certificates and revocation lists for tests with TLS.
//!
//! An [`Authority`] creates certificates and lists in memory, and a [`Folder`] writes them as files to a
//! directory. Certificates are for servers and clients, and are valid from 2025 to 2055, unless their
//! parameters say otherwise. A [`Clock`] provides the time at which they are verified.

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

/// Time at which all certificates and lists with default parameters are valid: 2026-06-01T00:00:00Z, in
/// seconds since 1970.
pub const NOW: u64 = 1_780_272_000;
/// Time at which certificates with default parameters expire: 2055-01-01T00:00:00Z, in seconds since 1970.
pub const END: u64 = 2_682_374_400;
/// Time at which the next revocation list is due, according to each list: 2050-01-01T00:00:00Z, in seconds
/// since 1970.
pub const NEXT_LIST: u64 = 2_524_608_000;

/// Clock that shows [`NOW`] until a test changes it.
#[derive(Debug)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Creates a clock for one test.
    pub fn new() -> Arc<Clock> {
        Arc::new(Clock(AtomicU64::new(NOW)))
    }

    /// Sets the clock to a Unix time in seconds.
    pub fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

/// Returns the parameters of a certificate for servers and clients with this common name.
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

/// Returns the parameters of a certificate for servers and clients with this common name and these host names
/// or IP addresses.
///
/// # Panics
///
/// Panics if an element of `hosts` is not valid.
pub fn params_for(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = params(name);
    params.subject_alt_names = CertificateParams::new(hosts).expect("names of hosts").subject_alt_names;
    params
}

/// Returns the parameters of an authority's own certificate.
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

/// Certificate with its key, in PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// PEM of the certificate. The certificates of its authorities may follow.
    pub cert: String,
    /// PEM of the key, in PKCS#8.
    pub key: String,
    /// Certificate in DER.
    pub der: CertificateDer<'static>,
}

impl Pair {
    /// Creates a self-signed certificate.
    ///
    /// # Panics
    ///
    /// Panics if the parameters are not valid. This also applies to all other functions that create a
    /// certificate.
    pub fn self_signed(params: &CertificateParams) -> Pair {
        let key = new_key();
        Pair::of(&params.self_signed(&key).expect("the parameters are sound"), &key)
    }

    fn of(certificate: &rcgen::Certificate, key: &KeyPair) -> Pair {
        Pair { cert: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }

    /// Returns the pair with the certificates of these authorities appended to its own.
    #[must_use]
    pub fn with_chain(&self, chain: &[&Authority]) -> Pair {
        let chain: String = chain.iter().map(|authority| authority.pem.as_str()).collect();
        Pair { cert: format!("{}{chain}", self.cert), ..self.clone() }
    }
}

/// Authority that signs certificates.
pub struct Authority {
    /// Signing key and name of the authority.
    pub issuer: Issuer<'static, KeyPair>,
    /// PEM of the authority's own certificate.
    pub pem: String,
    /// Authority's own certificate in DER.
    pub der: CertificateDer<'static>,
}

impl Authority {
    /// Creates a self-signed authority.
    pub fn new(name: &str) -> Authority {
        Authority::with(authority_params(name))
    }

    /// Creates a self-signed authority with these parameters.
    pub fn with(params: CertificateParams) -> Authority {
        Authority::with_key(params, new_key())
    }

    /// Creates a self-signed authority with these parameters and this key.
    pub fn with_key(params: CertificateParams, key: KeyPair) -> Authority {
        let certificate = params.self_signed(&key).expect("the parameters are sound");
        Authority::of(&certificate, params, key)
    }

    /// Creates an intermediate authority, whose certificate is signed by this authority.
    #[must_use]
    pub fn below(&self, params: CertificateParams) -> Authority {
        let key = new_key();
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are sound");
        Authority::of(&certificate, params, key)
    }

    fn of(certificate: &rcgen::Certificate, params: CertificateParams, key: KeyPair) -> Authority {
        Authority { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for a new key.
    pub fn issue(&self, params: CertificateParams) -> Pair {
        self.issue_for(params, &new_key())
    }

    /// Issues a certificate for an existing key.
    pub fn issue_for(&self, params: CertificateParams, key: &KeyPair) -> Pair {
        Pair::of(&params.signed_by(key, &self.issuer).expect("the parameters are sound"), key)
    }

    /// Returns a revocation list with these serial numbers, in DER.
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

/// Paths of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Files {
    /// Path of the certificate.
    pub cert: PathBuf,
    /// Path of the key.
    pub key: PathBuf,
}

/// Authority with a directory, to which it writes its own certificate and all files that it creates.
pub struct Folder {
    /// Authority that signs.
    pub authority: Authority,
    dir: PathBuf,
    /// Path of the authority's certificate.
    pub ca: PathBuf,
}

impl Folder {
    /// Creates an authority, and writes its certificate to `NAME.ca.pem`.
    ///
    /// # Panics
    ///
    /// Panics if the directory is not writable. This also applies to all other functions that write to the
    /// directory.
    pub fn new(dir: &Path, name: &str) -> Folder {
        let authority = Authority::new(name);
        let mut folder = Folder { authority, dir: dir.to_owned(), ca: PathBuf::new() };
        folder.ca = folder.write(&format!("{name}.ca.pem"), &folder.authority.pem);
        folder
    }

    /// Writes a file in the directory, and returns its path.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, contents).expect("the directory can be written to");
        path
    }

    /// Writes `NAME.crt` and `NAME.key`: a certificate for servers and clients with this common name, serial
    /// number and hosts. A later call with the same name replaces the files.
    pub fn issue(&self, name: &str, serial: &[u8], hosts: &[&str]) -> Files {
        let mut params = params_for(name, hosts);
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let pair = self.authority.issue(params);
        Files {
            cert: self.write(&format!("{name}.crt"), pair.cert),
            key: self.write(&format!("{name}.key"), pair.key),
        }
    }

    /// Writes the revocation list with these serial numbers to `revoked.crl`.
    pub fn revoke(&self, serials: &[&[u8]]) -> PathBuf {
        self.write("revoked.crl", self.authority.revoke(serials))
    }
}
