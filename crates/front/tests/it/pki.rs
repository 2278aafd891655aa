//! Certificate authorities, certificates and files for the TLS tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::tls::{Reloader, ServerTls, Settings, Tls};
use rustls::ClientConfig;
use testkit::TempDir;
use testkit::certificates::{Clock, END, Folder, NOW};

/// Certificate authority, the certificate files of a member, and the clock for validity checks.
pub struct Pki {
    folder: Folder,
    dir: TempDir,
    pub clock: Arc<Clock>,
}

impl Pki {
    pub fn new() -> Pki {
        let dir = TempDir::in_memory("front-tls");
        let pki = Pki { folder: Folder::new(dir.path(), "authority"), dir, clock: Clock::new() };
        pki.issue("server", &["127.0.0.1"]);
        pki
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        self.folder.write(name, contents)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a certificate and its key for a common name and hosts. The serial number is the name.
    pub fn issue(&self, name: &str, hosts: &[&str]) {
        self.folder.issue(name, name.as_bytes(), hosts);
    }

    /// Writes a revocation list with the certificates of these names.
    pub fn revoke(&self, names: &[&str]) {
        let serials: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        self.folder.revoke(&serials);
    }

    /// Advances the clock beyond the validity of all certificates.
    pub fn let_certificates_end(&self) {
        self.clock.set(END + 1);
    }

    /// Returns settings of a server that requires no client certificates.
    pub fn settings(&self) -> Settings {
        Settings {
            cert_file: Some(self.path("server.crt")),
            key_file: Some(self.path("server.key")),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            ..Settings::default()
        }
    }

    /// Returns settings of a server that identifies users by their certificates and checks a revocation list.
    pub fn mutual(&self) -> Settings {
        self.revoke(&[]);
        Settings {
            trusted_ca_file: Some(self.folder.ca.clone()),
            client_cert_auth: true,
            crl_file: Some(self.path("revoked.crl")),
            ..self.settings()
        }
    }

    pub fn load(&self, settings: Settings) -> (ServerTls, Reloader) {
        let (tls, reloader) = Tls::load(settings, self.clock.clone()).unwrap();
        (tls.server().unwrap(), reloader)
    }

    /// Returns the configuration of a client; `name` selects its certificate.
    pub fn client(&self, name: Option<&str>) -> Arc<ClientConfig> {
        self.client_with(Settings {
            client_cert_file: name.map(|name| self.path(&format!("{name}.crt"))),
            client_key_file: name.map(|name| self.path(&format!("{name}.key"))),
            ..Settings::default()
        })
    }

    pub fn client_with(&self, settings: Settings) -> Arc<ClientConfig> {
        let settings = Settings {
            trusted_ca_file: Some(self.folder.ca.clone()),
            client_alpn: vec![b"h2".to_vec()],
            ..settings
        };
        Tls::load(settings, self.clock.clone()).unwrap().0.client().config()
    }
}

/// Reloads changed files.
pub fn reload(reloader: &mut Reloader) {
    let later = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let mut loads = |at: SystemTime| reloader.poll(at).is_some();
    assert!((0..3).any(|poll| loads(later(NOW + poll))), "the files have changed");
}
