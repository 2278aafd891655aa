//! Certificates of members, and members that use them.

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mainstay_peer::Listener;
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConnection, StreamOwned};
use testkit::TempDir;
pub use testkit::certificates::Authority;
use testkit::certificates::params_for;
use testkit::certificates::rcgen::CertificateParams;
use tls::{Reloader, Settings, Tls};

use crate::kit::{self, Member};

pub type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Returns certificate parameters for a common name and hosts or addresses, without key usages.
pub fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let mut params = params_for(name, hosts);
    params.extended_key_usages.clear();
    params
}

/// Directory of certificates.
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

    /// Returns settings with a certificate issued by `authority`, which is also the trusted authority.
    pub fn settings(&self, file: &str, authority: &Authority, params: CertificateParams) -> Settings {
        let own = authority.issue(params);
        Settings {
            cert_file: Some(self.write(&format!("{file}.crt"), own.cert)),
            key_file: Some(self.write(&format!("{file}.key"), own.key)),
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

/// Starts a member that listens and dials with TLS.
pub fn member(id: u64, tls: &Tls) -> Member {
    let (listener, url) = kit::listen();
    let url = url.replace("http://", "https://");
    let listener = Listener { socket: listener.into(), tls: tls.server() };
    kit::member_with(id, kit::CLUSTER, listener, Some(tls.client()), &url, kit::TIMEOUTS)
}

/// Performs a handshake with a member as a client that trusts every server. Errors occur at the first use.
pub fn connect(member: &Member, tls: &Tls) -> Stream {
    let address = member.url.strip_prefix("https://").unwrap();
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(kit::DEADLINE)).unwrap();
    let client = tls.client();
    let connection =
        ClientConnection::new(client.config(), client.server_name("127.0.0.1").unwrap()).unwrap();
    StreamOwned::new(connection, socket)
}

/// Waits for the log line about a rejected connection.
#[track_caller]
pub fn wait_rejected(member: &Member, error: &str) {
    member.recorder.wait(error, |heard| {
        let told =
            |line: &String| line.contains("rejected connection on peer endpoint") && line.contains(error);
        heard.lines.iter().any(told).then_some(())
    });
}
