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
use crate::material::{Expiry, Material, Warning, system_time};
use crate::peer_checks::{PeerChecks, Servers};
use crate::refusal::Refusal;
use crate::reloader::Reloader;
use crate::revocation::Serial;
use crate::settings::Settings;
use crate::tickets::Tickets;
use crate::trust::{Fingerprint, check_time};

/// TLS for one kind of listener (for clients or for other members), and for the connections that a member
/// opens with the same settings. Clones share the state.
///
/// Everything that was loaded from the files is called the material. The [`Reloader`] replaces it when the
/// files change. Reading the current material takes no lock.
#[derive(Clone)]
pub struct Tls {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) time: Arc<dyn TimeProvider>,
    pub(crate) current: ArcSwap<Material>,
    pub(crate) tickets: Tickets,
    /// Reason why the current contents of the files cannot be used; `None` if they are in use.
    pub(crate) failure: Mutex<Option<LoadError>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Tls {
    /// Loads the files that `settings` name, and checks that they belong together. `time` is the clock that
    /// decides whether certificates are valid.
    ///
    /// # Errors
    /// Returns an error if the settings contradict each other or a file cannot be used.
    pub fn load(settings: Settings, time: Arc<dyn TimeProvider>) -> Result<(Tls, Reloader), LoadError> {
        settings.check()?;
        let files = files::named(&settings);
        let stamps = Reloader::stamps(&files);
        let contents = Contents::read(&files);
        let now = time.current_time().map_or(0, |now| now.as_secs());
        let tickets = Tickets::new(system_time(now));
        let material = Material::build(&settings, &contents, &time, &tickets, None)?;
        let (current, failure) = (ArcSwap::from_pointee(material), Mutex::default());
        let tls = Tls { shared: Arc::new(Shared { settings, time, current, tickets, failure }) };
        let reloader = Reloader::new(tls.clone(), files, stamps, &contents);
        Ok((tls, reloader))
    }

    /// Returns the TLS for the listeners; `None` if the settings name no certificate for them.
    pub fn server(&self) -> Option<ServerTls> {
        self.shared.current.load().server.is_some().then(|| ServerTls { shared: self.shared.clone() })
    }

    /// Returns the TLS for connections that this member opens.
    pub fn client(&self) -> ClientTls {
        ClientTls { shared: self.shared.clone() }
    }

    /// Returns the secrets for the session tickets of the listeners.
    pub fn tickets(&self) -> &Tickets {
        &self.shared.tickets
    }

    /// Returns the settings that were used for loading.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Returns the generation number of the loaded material: 1 at first, and 1 more after each replacement.
    pub fn generation(&self) -> u64 {
        self.shared.current.load().generation
    }

    /// Returns the expiry times of the certificates in use, for metrics and reports.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.shared.current.load().expiries.clone()
    }

    /// Returns the warnings for the operator about files that are used in spite of a problem.
    pub fn warnings(&self) -> Vec<Warning> {
        self.shared.current.load().warnings.clone()
    }

    /// Returns the reason why the current contents of the files cannot be used; `None` if they are in use.
    pub fn failure(&self) -> Option<LoadError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Describes the material in use for logs, without secrets: one line about each certificate of this
    /// member and each revocation list.
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

/// TLS for listeners. Clones share the state.
#[derive(Clone)]
pub struct ServerTls {
    shared: Arc<Shared>,
}

impl ServerTls {
    /// Returns the configuration for the next connection. Call this for each connection, so that reloaded
    /// files are used.
    ///
    /// The memory of a handshake is limited: a message has at most 64 KiB, and the certificates at most
    /// [`crate::MAX_CHAIN_BYTES`]. The time of a handshake is not limited here: the caller must end the
    /// handshake after [`crate::HANDSHAKE_TIMEOUT`].
    pub fn config(&self) -> Arc<ServerConfig> {
        let material = self.shared.current.load();
        // Does not panic. A `ServerTls` exists only if there is a configuration for listeners. Whether there
        // is one depends on the settings, which never change.
        material.server.clone().expect("material for listeners is only replaced by material for listeners")
    }

    /// Returns the settings that were used for loading.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Checks a client after its handshake; `chain` is the result of `ServerConnection::peer_certificates`.
    /// Must be called for every connection. The certificates of a resumed connection were verified in the
    /// original handshake, and the files may have changed since then.
    ///
    /// # Errors
    /// Returns a refusal if the connection must be closed.
    pub fn admit(&self, chain: Option<&[CertificateDer<'_>]>) -> Result<Session, Refusal> {
        self.shared.admit(chain, |material| material.clients.as_ref(), Purpose::Client)
    }

    /// Compares the names and addresses in a client's certificate with the address from which the client
    /// connects. etcd does this on listeners for other members and for metrics, but not on those for clients.
    /// The result may be a name look-up that the caller has to perform.
    pub fn check_address(&self, chain: Option<&[CertificateDer<'_>]>, remote: IpAddr) -> AddressCheck {
        let leaf = chain.and_then(<[_]>::first).filter(|_| !self.shared.settings.skip_client_san_verify);
        let Some(leaf) = leaf else { return AddressCheck::Passed };
        match Certificate::parse(leaf) {
            Some(certificate) => AddressCheck::begin(&certificate, remote),
            None => AddressCheck::Refused(Refusal::Malformed),
        }
    }

    /// Checks an admitted client again: its certificates must not have expired, its authority must still be
    /// trusted, and none of its certificates may have been revoked.
    ///
    /// # Errors
    /// Returns a refusal if the connection must be closed.
    pub fn still_valid(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_valid(session, |material| material.clients.as_ref())
    }

    /// Checks an admitted client again like [`Self::still_valid`], but accepts expired certificates.
    ///
    /// # Errors
    /// Returns a refusal if the connection must be closed.
    pub fn still_trusted(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_trusted(session, |material| material.clients.as_ref())
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

/// TLS for connections that this member opens. Clones share the state.
#[derive(Clone)]
pub struct ClientTls {
    shared: Arc<Shared>,
}

impl ClientTls {
    /// Returns the configuration for the next connection. Call this for each connection, so that reloaded
    /// files are used.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.shared.current.load().client.clone()
    }

    /// Returns the configuration for a connection to a listener of this process that has the same settings.
    /// Only the certificate of that listener is accepted, and its authority and its names are not checked.
    pub fn config_for_own_listener(&self) -> Arc<ClientConfig> {
        let material = self.shared.current.load();
        let Some(listener) = &material.listener else { return material.client.clone() };
        let mut config = ClientConfig::clone(&material.client);
        let servers = Servers::only(listener.clone(), material.servers.clone());
        config.dangerous().set_certificate_verifier(Arc::new(servers));
        // Disable resumption, so that the certificate is verified for each connection: it is not verified in
        // a resumed session.
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }

    /// Returns the name or address that a server's certificate must match. It is the one in the settings or,
    /// if there is none, `host`: the host that is dialed, without brackets and port.
    ///
    /// # Errors
    /// Returns a refusal if it is neither a valid name nor an address.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, Refusal> {
        let name =
            self.shared.settings.server_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        ServerName::try_from(name.to_owned())
            .map_err(|_| Refusal::WrongHost(format!("x509: {name:?} is not the name of a host")))
    }

    /// Checks a server after its handshake; `chain` is the result of `ClientConnection::peer_certificates`.
    ///
    /// # Errors
    /// Returns a refusal if the connection must be closed.
    pub fn admit(&self, chain: Option<&[CertificateDer<'_>]>) -> Result<Session, Refusal> {
        self.shared.admit(chain, |material| Some(&material.servers), Purpose::Server)
    }

    /// Checks an admitted server again: its certificates must not have expired, its authority must still be
    /// trusted, and none of its certificates may have been revoked.
    ///
    /// # Errors
    /// Returns a refusal if the connection must be closed.
    pub fn still_valid(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_valid(session, |material| Some(&material.servers))
    }

    /// Checks an admitted server again like [`Self::still_valid`], but accepts expired certificates.
    ///
    /// # Errors
    /// Returns a refusal if the connection must be closed.
    pub fn still_trusted(&self, session: &Session) -> Result<(), Refusal> {
        self.shared.still_trusted(session, |material| Some(&material.servers))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

/// Names in a peer's certificate, at most 100 of each kind, for the log line about a rejected peer. etcd has
/// the same fields in this line: `ip-addresses` and `dns-names`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerNames {
    /// IP addresses for which the certificate is valid.
    pub ip_addresses: Vec<IpAddr>,
    /// Host names for which the certificate is valid.
    pub dns_names: Vec<String>,
}

impl PeerNames {
    /// Returns the names in a peer's chain; `None` if there is no certificate or it is malformed.
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

/// Facts about the peer of an open connection, with which the peer can be checked again later. To save
/// memory, it contains the serial numbers of the peer's certificates and a hash of their authority, but not
/// the certificates: about 100 bytes, plus 21 bytes per certificate and at most 1 KiB for the common name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    generation: u64,
    /// Hash that identifies the authority that signed the peer's certificate; `None` if the certificate was
    /// not verified.
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

    /// Returns the [`Tls::generation`] at the time when the peer was admitted.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the common name in the peer's verified certificate. If users are authenticated by
    /// certificates, it is the user name. `None` if the peer presented no certificate, if it was not
    /// verified, or if the name is empty.
    pub fn common_name(&self) -> Option<&str> {
        self.authority?;
        self.common_name.as_deref()
    }

    /// Returns the last second, counted since 1970, in which all of the peer's certificates are valid; `None`
    /// if no certificate was verified.
    pub fn not_after(&self) -> Option<u64> {
        self.authority.map(|_| self.not_after)
    }
}
