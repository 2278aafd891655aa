//! Authorities and certificates for members and clients, in files.

use std::path::{Path, PathBuf};

use client::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// An authority, and the directory for its certificate and all that it issues.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
    /// File of the authority's certificate.
    pub ca: PathBuf,
}

/// Files of a certificate and its key.
pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(dir: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let ca = dir.join(format!("{name}.ca.pem"));
        std::fs::write(&ca, pem).expect("the directory is there");
        Authority { issuer: Issuer::new(params, key), dir: dir.to_owned(), ca }
    }

    /// A certificate for servers and clients, with this common name and serial number, for these hosts. A later one of the
    /// same common name replaces the files.
    pub fn issue(&self, name: &str, serial: u8, hosts: &[&str]) -> Pair {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names of hosts");
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from_slice(&[serial]));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let file = |ending: &str, text: String| {
            let path = self.dir.join(format!("{name}.{ending}"));
            std::fs::write(&path, text).expect("the directory is there");
            path
        };
        Pair { cert: file("crt", certificate.pem()), key: file("key", key.serialize_pem()) }
    }

    /// Writes the list of revoked serial numbers.
    pub fn revoke(&self, serials: &[u8]) -> PathBuf {
        let revoked = |serial: &u8| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&[*serial]),
            revocation_time: date_time_ymd(2025, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.dir.join("revoked.crl");
        let list = list.signed_by(&self.issuer).expect("a list");
        std::fs::write(&path, list.der()).expect("the directory is there");
        path
    }

    /// What a client needs that trusts this authority, and shows this certificate.
    pub fn files(&self, own: Option<&Pair>) -> TlsFiles {
        TlsFiles {
            cacert: Some(self.ca.clone()),
            cert: own.map(|own| own.cert.clone()),
            key: own.map(|own| own.key.clone()),
            ..TlsFiles::default()
        }
    }
}

/// A flag with a path.
pub fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}
