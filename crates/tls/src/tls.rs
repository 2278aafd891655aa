use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::client::Resumption;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::address::AddressCheck;
use crate::certificate::{Certificate, Purpose};
use crate::error::LoadError;
use crate::files::{self, Contents};
use crate::material::{Expiry, Material, Warning};
use crate::peer_checks::{PeerChecks, Servers};
use crate::refusal::Refusal;
use crate::reloader::Reloader;
use crate::revocation::Serial;
use crate::settings::Settings;
use crate::trust::{Fingerprint, check_time};

/// All that TLS means for one kind of listener and for the connections that a member opens with the same settings. Clones
/// share it.
///
/// It is loaded once and replaced by its [`Reloader`] when the files change. Readers take what is current without a lock.
#[derive(Clone)]
pub struct Tls {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) time: Arc<dyn TimeProvider>,
    pub(crate) current: ArcSwap<Material>,
    /// Why the files on disk are not in use; `None` if they are.
    pub(crate) failure: Mutex<Option<LoadError>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files and checks that they fit together. `time` decides about validity.
    ///
    /// # Errors
    /// The settings contradict each other, or a file cannot be used.
    pub fn load(settings: Settings, time: Arc<dyn TimeProvider>) -> Result<(Tls, Reloader), LoadError> {
        settings.check()?;
        let files = files::named(&settings);
        let stamps = Reloader::stamps(&files);
        let contents = Contents::read(&files);
        let material = Material::build(&settings, &contents, &time, None)?;
        let current = ArcSwap::from_pointee(material);
        let tls = Tls { shared: Arc::new(Shared { settings, time, current, failure: Mutex::default() }) };
        let reloader = Reloader::new(tls.clone(), files, stamps, &contents);
        Ok((tls, reloader))
    }

    /// The side of the listeners; `None` if the settings have no certificate for them.
    pub fn server(&self) -> Option<ServerTls> {
        self.shared.current.load().server.is_some().then(|| ServerTls { shared: self.shared.clone() })
    }

    /// The side of connections that this member opens.
    pub fn client(&self) -> ClientTls {
        ClientTls { shared: self.shared.clone() }
    }

    /// The settings that it was loaded with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Counts what was loaded: 1 at first, one more for each replacement.
    pub fn generation(&self) -> u64 {
        self.shared.current.load().generation
    }

    /// When the certificates in use end, for metrics and reports.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.shared.current.load().expiries.clone()
    }

    /// What an operator should know about the material in use.
    pub fn warnings(&self) -> Vec<Warning> {
        self.shared.current.load().warnings.clone()
    }

    /// Why the files that are on disk are not in use; `None` if they are.
    pub fn failure(&self) -> Option<LoadError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is in use, for logs, without secrets: one line about each certificate of this member and each list.
    pub fn describe(&self) -> Vec<String> {
        self.shared.current.load().summary.clone()
    }
}

impl Shared {
    fn now(&self) -> Result<UnixTime, Refusal> {
        self.time.current_time().ok_or_else(|| Refusal::Invalid("the current time is not known".to_owned()))
    }

    fn admit(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
        checks: impl Fn(&Material) -> Option<&PeerChecks>,
        purpose: Purpose,
    ) -> Result<Session, Refusal> {
        let material = self.current.load();
        let Some(checks) = checks(&material) else {
            return Ok(Session::anonymous(material.generation));
        };
        let Some((leaf, intermediates)) = chain.and_then(<[_]>::split_first) else {
            return Err(Refusal::NoCertificate);
        };
        let checked = checks.check(leaf, intermediates, purpose, self.now()?)?;
        Ok(Session {
            generation: material.generation,
            authority: checked.verified.map(|verified| verified.authority),
            not_after: checked.verified.map_or(u64::MAX, |verified| verified.not_after),
            serials: checked.serials,
            common_name: checked.common_name.map(Arc::from),
        })
    }

    fn still_valid(
        &self,
        session: &Session,
        checks: impl Fn(&Material) -> Option<&PeerChecks>,
    ) -> Result<(), Refusal> {
        check_time(0, session.not_after, self.now()?.as_secs())?;
        self.still_trusted(session, checks)
    }

    fn still_trusted(
        &self,
        session: &Session,
        checks: impl Fn(&Material) -> Option<&PeerChecks>,
    ) -> Result<(), Refusal> {
        let material = self.current.load();
        if session.generation == material.generation {
            return Ok(());
        }
        let Some(checks) = checks(&material) else { return Ok(()) };
        checks.check_revoked(&session.serials)?;
        match (&session.authority, checks.authorities.trust()) {
            (Some(authority), Some(trust)) if !trust.has(authority) => Err(Refusal::UnknownAuthority),
            _ => Ok(()),
        }
    }
}

/// TLS of listeners. Clones share it.
#[derive(Clone)]
pub struct ServerTls {
    shared: Arc<Shared>,
}

impl ServerTls {
    /// What the next connection is accepted with. Take it for each connection, so that reloaded files are used.
    ///
    /// A handshake is bounded in memory (a message has at most 64 KiB; certificates: [`crate::MAX_CHAIN_BYTES`]), but not in
    /// time: the caller ends it after [`crate::HANDSHAKE_TIMEOUT`].
    pub fn config(&self) -> Arc<ServerConfig> {
        let material = self.shared.current.load();
        // The settings decide whether there is one, and they do not change.
        material.server.clone().expect("material for listeners is only replaced by material for listeners")
    }

    /// The settings that it was loaded with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Checks a client whose handshake is done, with what it showed (`ServerConnection::peer_certificates`). To be called for
    /// every connection: a resumed one shows what was verified when it was new, and files may have changed since.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn admit(&self, chain: Option<&[CertificateDer<'_>]>) -> Result<Session, Refusal> {
        self.shared.admit(chain, |material| material.clients.as_ref(), Purpose::Client)
    }

    /// Compares names and addresses in a client's certificate with where the connection comes from, as etcd does on
    /// listeners for peers and for metrics (not on those for clients). The answer may need a look-up of names.
    pub fn check_address(&self, chain: Option<&[CertificateDer<'_>]>, remote: IpAddr) -> AddressCheck {
        let leaf = chain.and_then(<[_]>::first).filter(|_| !self.shared.settings.skip_client_san_verify);
        let Some(leaf) = leaf else { return AddressCheck::Passed };
        match Certificate::parse(leaf) {
            Some(certificate) => AddressCheck::begin(&certificate, remote),
            None => AddressCheck::Refused(Refusal::Malformed),
        }
    }

    /// Whether a client that was admitted would be admitted again: its certificates are valid now, its authority is still
    /// trusted, and none of its serial numbers was revoked.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn still_valid(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_valid(session, |material| material.clients.as_ref())
    }

    /// Like [`Self::still_valid`], but without regard to the time: a certificate that ends is not one that was taken back.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn still_trusted(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_trusted(session, |material| material.clients.as_ref())
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

/// TLS of connections that this member opens. Clones share it.
#[derive(Clone)]
pub struct ClientTls {
    shared: Arc<Shared>,
}

impl ClientTls {
    /// What the next connection is opened with. Take it for each connection, so that reloaded files are used.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.shared.current.load().client.clone()
    }

    /// The same for a connection to a listener of this process that has these settings: its certificate is known, so it is taken
    /// whoever vouches for it and whatever hosts it is for, and no other is.
    pub fn config_for_own_listener(&self) -> Arc<ClientConfig> {
        let material = self.shared.current.load();
        let Some(listener) = &material.listener else { return material.client.clone() };
        let mut config = ClientConfig::clone(&material.client);
        let servers = Servers::only(listener.clone(), material.servers.clone());
        config.dangerous().set_certificate_verifier(Arc::new(servers));
        // A resumed session would not be verified again.
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }

    /// The name that the certificate of a server must be for, when it is dialed as `host`: a name or an address, without
    /// brackets and port.
    ///
    /// # Errors
    /// It is neither.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, Refusal> {
        let name =
            self.shared.settings.server_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        ServerName::try_from(name.to_owned())
            .map_err(|_| Refusal::WrongHost(format!("x509: {name:?} is not the name of a host")))
    }

    /// Checks a server whose handshake is done, with what it showed (`ClientConnection::peer_certificates`).
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn admit(&self, chain: Option<&[CertificateDer<'_>]>) -> Result<Session, Refusal> {
        self.shared.admit(chain, |material| Some(&material.servers), Purpose::Server)
    }

    /// Whether a server that was admitted would be admitted again, as [`ServerTls::still_valid`] says it of clients.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn still_valid(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_valid(session, |material| Some(&material.servers))
    }

    /// Like [`Self::still_valid`], but without regard to the time, as [`ServerTls::still_trusted`] says it of clients.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn still_trusted(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_trusted(session, |material| Some(&material.servers))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

/// The names in a peer's certificate, which etcd logs when it rejects the peer after its handshake (`ip-addresses`,
/// `dns-names`). At most 100 of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerNames {
    /// Addresses that the certificate is for.
    pub ip_addresses: Vec<IpAddr>,
    /// Names that it is for.
    pub dns_names: Vec<String>,
}

impl PeerNames {
    /// From what a peer showed; `None` if that is no certificate.
    pub fn of(chain: Option<&[CertificateDer<'_>]>) -> Option<PeerNames> {
        const MAX_SHOWN: usize = 100;
        let certificate = Certificate::parse(chain?.first()?)?;
        let dns_names = certificate.dns_names.iter().take(MAX_SHOWN).map(|name| (*name).to_owned()).collect();
        Some(PeerNames {
            ip_addresses: certificate.ip_addresses.iter().take(MAX_SHOWN).copied().collect(),
            dns_names,
        })
    }
}

/// What is remembered of a connection's peer, to say later whether it may stay: serial numbers and the hash of its
/// authority instead of its certificates. It takes some 100 bytes, and at most 21 for each certificate and 1 KiB for the
/// common name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    generation: u64,
    /// `None` if nobody had to vouch for the peer.
    authority: Option<Fingerprint>,
    not_after: u64,
    serials: Box<[Serial]>,
    common_name: Option<Arc<str>>,
}

impl Session {
    fn anonymous(generation: u64) -> Session {
        Session {
            generation,
            authority: None,
            not_after: u64::MAX,
            serials: Box::default(),
            common_name: None,
        }
    }

    /// The [`Tls::generation`] in which the peer was admitted.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Common name in the peer's verified certificate: the user, when etcd authenticates by certificates. `None` if the peer
    /// has shown no certificate, if nobody vouches for it, or if its name is empty.
    pub fn common_name(&self) -> Option<&str> {
        self.authority?;
        self.common_name.as_deref()
    }

    /// Last second in which the peer's certificates are all valid, since 1970; `None` if nothing was verified.
    pub fn not_after(&self) -> Option<u64> {
        self.authority.map(|_| self.not_after)
    }
}
