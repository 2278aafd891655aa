//! Authorities and certificates of members, and members that use them.

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mainstay_peer::Listener;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConnection, StreamOwned};
use testkit::TempDir;
use tls::{Reloader, Settings, Tls};

use crate::kit::{self, Member};

pub type Stream = StreamOwned<ClientConnection, TcpStream>;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Parameters of a certificate with this common name, for these hosts and addresses.
pub fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2055, 1, 1);
    params
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A list of revocations.
    pub fn revoke(&self, serials: &[&[u8]]) -> Vec<u8> {
        let revoked = |serial: &&[u8]| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2055, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().der().to_vec()
    }
}

/// A directory with certificates.
pub struct Files {
    dir: TempDir,
}

impl Files {
    pub fn new() -> Files {
        Files { dir: TempDir::in_memory("peer-tls") }
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// Settings with a certificate of this authority, which also says who is trusted.
    pub fn settings(&self, file: &str, authority: &Authority, params: CertificateParams) -> Settings {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        Settings {
            cert_file: Some(self.write(&format!("{file}.crt"), certificate.pem())),
            key_file: Some(self.write(&format!("{file}.key"), key.serialize_pem())),
            trusted_ca_file: Some(self.write(&format!("{file}.ca"), &authority.pem)),
            client_cert_auth: true,
            ..Settings::default()
        }
    }
}

pub fn load(settings: Settings) -> (Tls, Reloader) {
    Tls::load(settings, Arc::new(DefaultTimeProvider)).unwrap()
}

/// Polls until changed files are loaded.
pub fn reload(reloader: &mut Reloader) {
    kit::until("the files are loaded", || reloader.poll(SystemTime::now() + Duration::from_secs(60)));
}

/// A member that listens with TLS and dials with it.
pub fn member(id: u64, tls: &Tls) -> Member {
    let (listener, url) = kit::listen();
    let url = url.replace("http://", "https://");
    let listener = Listener { socket: listener, tls: tls.server() };
    kit::member_with(id, kit::CLUSTER, listener, Some(tls.client()), &url, kit::TIMEOUTS)
}

/// Shakes hands with a member as a program that trusts everybody. Errors come with the first use.
pub fn connect(member: &Member, tls: &Tls) -> Stream {
    let address = member.url.strip_prefix("https://").unwrap();
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(kit::DEADLINE)).unwrap();
    let client = tls.client();
    let connection =
        ClientConnection::new(client.config(), client.server_name("127.0.0.1").unwrap()).unwrap();
    StreamOwned::new(connection, socket)
}

/// Waits for the line about a rejected connection.
#[track_caller]
pub fn wait_rejected(member: &Member, error: &str) {
    member.recorder.wait(error, |heard| {
        let told =
            |line: &String| line.contains("rejected connection on peer endpoint") && line.contains(error);
        heard.lines.iter().any(told).then_some(())
    });
}
