//! Authorities, certificates, files and handshakes for the tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstay_tls::{ClientTls, LoadError, Reloader, ServerTls, Settings, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConnection, ServerConnection};
use rustls_pki_types::{CertificateDer, UnixTime};
use testkit::TempDir;

/// 2026-06-01T00:00:00Z. Certificates are valid from 2025 to 2035 unless a test says otherwise.
pub const NOW: u64 = 1_780_272_000;

pub fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A clock that stands until a test moves it.
#[derive(Debug)]
pub struct Clock(AtomicU64);

impl Clock {
    pub fn new() -> Arc<Clock> {
        Arc::new(Clock(AtomicU64::new(NOW)))
    }

    pub fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

/// A certificate with its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    pub cert: String,
    pub key: String,
    pub der: CertificateDer<'static>,
}

impl Pair {
    /// Followed by the certificates of authorities.
    pub fn with_chain(&self, chain: &[&Authority]) -> Pair {
        let chain: String = chain.iter().map(|authority| authority.pem.as_str()).collect();
        Pair { cert: format!("{}{chain}", self.cert), ..self.clone() }
    }
}

/// Parameters of a certificate for servers and clients with this common name.
pub fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2035, 1, 1);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// The same, for these hosts and addresses.
pub fn params_for(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let names = CertificateParams::new(hosts).unwrap().subject_alt_names;
    let mut params = params(name);
    params.subject_alt_names = names;
    params
}

pub fn authority_params(name: &str) -> CertificateParams {
    let mut params = params(name);
    params.extended_key_usages.clear();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

pub struct Authority {
    pub issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        Authority::with(authority_params(name))
    }

    pub fn with(params: CertificateParams) -> Authority {
        Authority::with_key(params, KeyPair::generate().unwrap())
    }

    pub fn with_key(params: CertificateParams, key: KeyPair) -> Authority {
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// An authority below this one.
    pub fn below(&self, params: CertificateParams) -> Authority {
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, params: CertificateParams) -> Pair {
        self.issue_for(params, &KeyPair::generate().unwrap())
    }

    pub fn issue_for(&self, params: CertificateParams, key: &KeyPair) -> Pair {
        let certificate = params.signed_by(key, &self.issuer).unwrap();
        Pair { cert: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }

    /// A list of revocations in DER.
    pub fn revoke(&self, serials: &[&[u8]]) -> Vec<u8> {
        let revoked = |serial: &&[u8]| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2027, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().der().to_vec()
    }
}

/// A directory with the files of one member.
pub struct Files {
    pub dir: TempDir,
}

impl Files {
    pub fn new() -> Files {
        Files { dir: TempDir::in_memory("tls") }
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// Settings with a certificate and perhaps an authority.
    pub fn settings(&self, name: &str, own: &Pair, authority: Option<&Authority>) -> Settings {
        Settings {
            cert_file: Some(self.write(&format!("{name}.crt"), &own.cert)),
            key_file: Some(self.write(&format!("{name}.key"), &own.key)),
            trusted_ca_file: authority.map(|authority| self.write(&format!("{name}.ca.crt"), &authority.pem)),
            ..Settings::default()
        }
    }
}

pub fn load(settings: Settings) -> Result<(Tls, Reloader), LoadError> {
    Tls::load(settings, Clock::new())
}

pub fn server_of(settings: Settings, clock: &Arc<Clock>) -> (ServerTls, Tls, Reloader) {
    let (tls, reloader) = Tls::load(settings, clock.clone()).unwrap();
    (tls.server().unwrap(), tls, reloader)
}

pub fn client_of(settings: Settings, clock: &Arc<Clock>) -> ClientTls {
    Tls::load(settings, clock.clone()).unwrap().0.client()
}

/// Two ends after a handshake, and how it ended for each.
pub struct Met {
    pub server: ServerConnection,
    pub client: ClientConnection,
    pub server_result: Result<(), rustls::Error>,
    pub client_result: Result<(), rustls::Error>,
}

impl Met {
    pub fn succeeded(&self) -> bool {
        self.server_result.is_ok() && self.client_result.is_ok()
    }
}

/// A handshake between the two, as if `host` was dialed.
pub fn meet(server: &ServerTls, client: &ClientTls, host: &str) -> Met {
    meet_with(server, client.config(), client, host)
}

pub fn meet_with(
    server: &ServerTls,
    config: Arc<rustls::ClientConfig>,
    client: &ClientTls,
    host: &str,
) -> Met {
    let server = ServerConnection::new(server.config()).unwrap();
    let client = ClientConnection::new(config, client.server_name(host).unwrap()).unwrap();
    let mut met = Met { server, client, server_result: Ok(()), client_result: Ok(()) };
    loop {
        let mut bytes = Vec::new();
        while met.client.wants_write() {
            met.client.write_tls(&mut bytes).unwrap();
        }
        let mut moved = !bytes.is_empty();
        feed_server(&mut met, &bytes);
        let mut bytes = Vec::new();
        while met.server.wants_write() {
            met.server.write_tls(&mut bytes).unwrap();
        }
        moved |= !bytes.is_empty();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && met.client_result.is_ok() {
            met.client.read_tls(&mut rest).unwrap();
            met.client_result = met.client.process_new_packets().map(drop);
        }
        if !moved {
            return met;
        }
    }
}

fn feed_server(met: &mut Met, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() && met.server_result.is_ok() {
        met.server.read_tls(&mut rest).unwrap();
        met.server_result = met.server.process_new_packets().map(drop);
    }
}
