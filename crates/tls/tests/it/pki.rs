//! Files and handshakes for the tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstay_tls::{ClientTls, LoadError, Reloader, ServerTls, Settings, Tls};
use rustls::{ClientConnection, ServerConnection};
use testkit::TempDir;
pub use testkit::certificates::{
    Authority, Clock, END, NEXT_LIST, NOW, Pair, authority_params, params, params_for,
};

pub fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Directory with the files of one member.
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

    /// Returns settings with a certificate and optionally an authority.
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

/// Both ends after a handshake, with the result at each end.
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

/// Performs a handshake between the two, as if `host` was dialed.
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
