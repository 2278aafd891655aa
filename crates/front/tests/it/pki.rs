//! Authorities, certificates and files for the tests of TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::tls::{Reloader, ServerTls, Settings, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::ClientConfig;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;
use testkit::TempDir;

/// 2026-06-01T00:00:00Z. Certificates are valid from 2025 to 2035.
const NOW: u64 = 1_780_272_000;

/// A clock that stands until a test moves it.
#[derive(Debug)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Moves it to a time at which no certificate is valid any more.
    pub fn let_certificates_end(&self) {
        self.0.store(2 * NOW, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

/// An authority, a member's files with a certificate by it, and the clock that they are judged with.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    dir: TempDir,
    pub clock: Arc<Clock>,
}

impl Pki {
    pub fn new() -> Pki {
        let mut params = params("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let pki = Pki {
            issuer: Issuer::new(params, key),
            dir: TempDir::in_memory("front-tls"),
            clock: Arc::new(Clock(AtomicU64::new(NOW))),
        };
        pki.write("ca.crt", pem);
        pki.issue("server", &["127.0.0.1"]);
        pki
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a certificate with this common name, for these hosts, and its key. Its serial number is the name.
    pub fn issue(&self, name: &str, hosts: &[&str]) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = params(name);
        params.subject_alt_names = CertificateParams::new(hosts).unwrap().subject_alt_names;
        params.serial_number = Some(SerialNumber::from_slice(name.as_bytes()));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(&format!("{name}.crt"), certificate.pem());
        self.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// Writes a list that revokes the certificates with these names.
    pub fn revoke(&self, names: &[&str]) {
        let revoked = |name: &&str| RevokedCertParams {
            serial_number: SerialNumber::from_slice(name.as_bytes()),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2027, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: names.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.write("revoked.crl", list.signed_by(&self.issuer).unwrap().der());
    }

    /// Settings of a server that knows no clients.
    pub fn settings(&self) -> Settings {
        Settings {
            cert_file: Some(self.path("server.crt")),
            key_file: Some(self.path("server.key")),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            ..Settings::default()
        }
    }

    /// Settings of a server whose clients are users by their certificates, and may be revoked.
    pub fn mutual(&self) -> Settings {
        self.revoke(&[]);
        Settings {
            trusted_ca_file: Some(self.path("ca.crt")),
            client_cert_auth: true,
            crl_file: Some(self.path("revoked.crl")),
            ..self.settings()
        }
    }

    pub fn load(&self, settings: Settings) -> (ServerTls, Reloader) {
        let (tls, reloader) = Tls::load(settings, self.clock.clone()).unwrap();
        (tls.server().unwrap(), reloader)
    }

    /// What a client connects with: `name` is its certificate.
    pub fn client(&self, name: Option<&str>) -> Arc<ClientConfig> {
        self.client_with(Settings {
            client_cert_file: name.map(|name| self.path(&format!("{name}.crt"))),
            client_key_file: name.map(|name| self.path(&format!("{name}.key"))),
            ..Settings::default()
        })
    }

    pub fn client_with(&self, settings: Settings) -> Arc<ClientConfig> {
        let settings = Settings {
            trusted_ca_file: Some(self.path("ca.crt")),
            client_alpn: vec![b"h2".to_vec()],
            ..settings
        };
        Tls::load(settings, self.clock.clone()).unwrap().0.client().config()
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2035, 1, 1);
    params
}

/// Has changed files loaded.
pub fn reload(reloader: &mut Reloader) {
    let later = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let mut loads = |at: SystemTime| reloader.poll(at).is_some();
    assert!((0..3).any(|poll| loads(later(NOW + poll))), "the files have changed");
}
