//! Builds the material of a [`crate::Tls`] from the contents of its files: everything that handshakes and
//! checks of peers need. When files change, the material is replaced as a whole.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, version};
use rustls_pki_types::CertificateDer;
use stdx::calendar::format_rfc3339;

use crate::certificate::{Certificate, Purpose};
use crate::error::LoadError;
use crate::files::{Contents, Part};
use crate::peer_checks::{Allowed, Authorities, Clients, PeerChecks, Servers};
use crate::pem;
use crate::revocation::Revocations;
use crate::settings::{Settings, Version, suites};
use crate::tickets::Tickets;
use crate::trust::{Fingerprint, Trust};

/// Expiry time of a certificate of this member or of a trusted authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Tells what this member uses the certificate for.
    pub of: Owner,
    /// File of the certificate. If it contains several certificates, `not_after` is that of the one that
    /// expires first.
    pub file: PathBuf,
    /// Last second in which the certificate is valid.
    pub not_after: SystemTime,
}

/// Tells what this member uses a certificate for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Certificate that the listeners present.
    Listener,
    /// Certificate that this member presents to servers.
    Client,
    /// Certificate of a trusted authority.
    Authority,
}

impl Owner {
    /// Returns the name of the role for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Owner::Listener => "listener",
            Owner::Client => "client",
            Owner::Authority => "authority",
        }
    }
}

impl Expiry {
    /// Returns the time from `now` until the certificate expires; `None` if it has expired.
    pub fn expires_in(&self, now: SystemTime) -> Option<Duration> {
        self.not_after.duration_since(now).ok()
    }

    /// Returns the number of whole days from `now` until the certificate expires, rounded down; negative if
    /// it has expired.
    pub fn days_left(&self, now: SystemTime) -> i64 {
        let seconds = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        };
        (seconds(self.not_after) - seconds(now)).div_euclid(86_400)
    }
}

/// Warning for the operator about a file that has a problem but is used nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// File that the warning is about.
    pub file: PathBuf,
    /// Description of the problem and of its consequence.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.text)
    }
}

pub(crate) struct Material {
    /// Generation number: 1 for the first load, incremented with each replacement.
    pub(crate) generation: u64,
    /// Configuration for listeners; `None` if the settings name no certificate for them.
    pub(crate) server: Option<Arc<ServerConfig>>,
    pub(crate) client: Arc<ClientConfig>,
    /// Certificate of the listeners, if they have one.
    pub(crate) listener: Option<CertificateDer<'static>>,
    /// Checks of clients' certificates; `None` if clients are not asked for certificates.
    pub(crate) clients: Option<PeerChecks>,
    /// Checks of the certificates of servers to which this member connects.
    pub(crate) servers: PeerChecks,
    pub(crate) expiries: Vec<Expiry>,
    pub(crate) warnings: Vec<Warning>,
    /// One line about each certificate of this member and each revocation list, without secrets.
    pub(crate) summary: Vec<String>,
    authorities_hash: Option<Fingerprint>,
    revocations_hash: Option<Fingerprint>,
}

impl Material {
    /// Returns the hash of the certificate of the listeners, if they have one.
    pub(crate) fn listener_hash(&self) -> Option<Fingerprint> {
        self.listener.as_ref().map(|der| hash(der))
    }

    /// Builds the material from the contents of the files. Parts of `previous` whose files have not changed
    /// are reused.
    pub(crate) fn build(
        settings: &Settings,
        contents: &Contents,
        time: &Arc<dyn TimeProvider>,
        tickets: &Tickets,
        previous: Option<&Material>,
    ) -> Result<Material, LoadError> {
        settings.check()?;
        let now = time.current_time().map_or(0, |now| now.as_secs());
        let mut notes = Notes { now, expiries: Vec::new(), warnings: Vec::new(), summary: Vec::new() };

        let own = pair(contents, Part::Certificate, Part::Key)?;
        if let Some((file, own)) = &own {
            notes.own(file, &own.cert, Owner::Listener, Purpose::Server);
        }
        let client = match pair(contents, Part::ClientCertificate, Part::ClientKey)? {
            Some((file, client)) => {
                notes.own(file, &client.cert, Owner::Client, Purpose::Client);
                Some(client)
            }
            None => {
                if let Some((file, own)) = own.as_ref().filter(|_| settings.dials) {
                    notes.purpose(file, &own.cert, Purpose::Client);
                }
                own.as_ref().map(|(_, own)| own.clone())
            }
        };

        let authorities = contents.get(Part::Authorities)?;
        let authorities_hash = authorities.map(|(_, bytes)| hash(bytes));
        let authorities = match authorities {
            None => Authorities::System,
            Some((file, bytes)) => {
                notes.authorities(file, &pem::authorities(file, bytes)?);
                let unchanged = previous.filter(|previous| previous.authorities_hash == authorities_hash);
                match unchanged.map(|previous| &previous.servers.authorities) {
                    Some(Authorities::Of(trust)) => Authorities::Of(trust.clone()),
                    _ => Authorities::Of(Arc::new(Trust::from_pem(file, bytes)?)),
                }
            }
        };
        let list = contents.get(Part::Revocations)?;
        let revocations_hash = list.map(|(_, bytes)| hash(bytes));
        let revocations = match list {
            None => None,
            Some((file, bytes)) => {
                let unchanged = previous.filter(|previous| previous.revocations_hash == revocations_hash);
                let revocations = match unchanged.and_then(|previous| previous.servers.revocations.clone()) {
                    Some(revocations) => revocations,
                    None => Arc::new(
                        Revocations::parse(bytes).map_err(|problem| LoadError::of_file(file, problem))?,
                    ),
                };
                notes.revocations(file, &revocations);
                Some(revocations)
            }
        };
        let allowed = if !settings.allowed_cns.is_empty() {
            Allowed::CommonNames(settings.allowed_cns.clone())
        } else if !settings.allowed_hostnames.is_empty() {
            Allowed::HostNames(settings.allowed_hostnames.clone())
        } else {
            Allowed::Any
        };
        let checks = PeerChecks { authorities, allowed, revocations };
        let clients = settings.wants_client_certificates().then(|| checks.clone());
        let servers = if settings.insecure_skip_verify {
            PeerChecks { authorities: Authorities::Anybody, ..checks }
        } else {
            checks
        };

        let listener = own.as_ref().and_then(|(_, own)| own.cert.first().cloned());
        let builder = Builder { settings, provider: provider(settings)?, versions: versions(settings), time };
        let server = match own {
            None => None,
            Some((_, own)) => {
                let policy = policy(settings, authorities_hash, revocations_hash);
                let certificate = listener.as_ref().map(|der| hash(der)).unwrap_or_default();
                Some(builder.server(own, clients.clone(), tickets.ticketer(policy, certificate))?)
            }
        };
        let client = builder.client(client, servers.clone())?;
        Ok(Material {
            generation: previous.map_or(1, |previous| previous.generation + 1),
            server,
            client,
            listener,
            clients,
            servers,
            expiries: notes.expiries,
            warnings: notes.warnings,
            summary: notes.summary,
            authorities_hash,
            revocations_hash,
        })
    }
}

fn pair(
    contents: &Contents,
    certificate: Part,
    key: Part,
) -> Result<Option<(&Path, Arc<CertifiedKey>)>, LoadError> {
    let (Some((cert_file, cert)), Some((key_file, key))) = (contents.get(certificate)?, contents.get(key)?)
    else {
        return Ok(None);
    };
    Ok(Some((cert_file, pem::key_pair(cert_file, cert, key_file, key)?)))
}

fn hash(bytes: &[u8]) -> Fingerprint {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(bytes).into()
}

/// Returns a hash of everything that decides which clients are admitted. Tickets of another policy are not
/// accepted. The certificate of the listener is no part of it: each member of a cluster has its own.
fn policy(
    settings: &Settings,
    authorities: Option<Fingerprint>,
    revocations: Option<Fingerprint>,
) -> Fingerprint {
    use sha2::{Digest as _, Sha256};
    let mut hash = Sha256::new();
    // Each part begins with its length or with a byte that says whether it is there, so that different
    // policies never have the same input.
    hash.update([u8::from(settings.client_cert_auth), u8::from(settings.wants_client_certificates())]);
    for file in [authorities, revocations] {
        hash.update([u8::from(file.is_some())]);
        hash.update(file.unwrap_or_default());
    }
    for names in [&settings.allowed_cns, &settings.allowed_hostnames] {
        hash.update((names.len() as u64).to_be_bytes());
        for name in names {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
        }
    }
    hash.finalize().into()
}

fn provider(settings: &Settings) -> Result<Arc<CryptoProvider>, LoadError> {
    let cipher_suites = suites(&settings.cipher_suites, &settings.alpn)?;
    Ok(Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() }))
}

fn versions(settings: &Settings) -> Vec<&'static SupportedProtocolVersion> {
    let min = settings.min_version.unwrap_or(Version::Tls12);
    let max = settings.max_version.unwrap_or(Version::Tls13);
    let all = [(Version::Tls13, &version::TLS13), (Version::Tls12, &version::TLS12)];
    all.into_iter().filter(|(version, _)| (min..=max).contains(version)).map(|(_, version)| version).collect()
}

struct Builder<'a> {
    settings: &'a Settings,
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    time: &'a Arc<dyn TimeProvider>,
}

impl Builder<'_> {
    fn server(
        &self,
        own: Arc<CertifiedKey>,
        clients: Option<PeerChecks>,
        ticketer: Arc<dyn ProducesTickets>,
    ) -> Result<Arc<ServerConfig>, LoadError> {
        let builder = ServerConfig::builder_with_details(self.provider.clone(), self.time.clone())
            .with_protocol_versions(&self.versions)
            .map_err(unusable)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(checks) => builder.with_client_cert_verifier(Arc::new(Clients::new(checks))),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        config.alpn_protocols.clone_from(&self.settings.alpn);
        // Allow resumption only by tickets, which the clients keep. So the member stores nothing for
        // disconnected clients.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = ticketer;
        config.send_tls13_tickets = 1;
        Ok(Arc::new(config))
    }

    fn client(
        &self,
        own: Option<Arc<CertifiedKey>>,
        servers: PeerChecks,
    ) -> Result<Arc<ClientConfig>, LoadError> {
        let builder = ClientConfig::builder_with_details(self.provider.clone(), self.time.clone())
            .with_protocol_versions(&self.versions)
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Servers::new(servers)));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
        };
        config.alpn_protocols.clone_from(&self.settings.client_alpn);
        Ok(Arc::new(config))
    }
}

fn unusable(error: rustls::Error) -> LoadError {
    LoadError::new(format!("tls: {error}"))
}

/// Collects the expiry times, the warnings and the summary while the material is built.
struct Notes {
    now: u64,
    expiries: Vec<Expiry>,
    warnings: Vec<Warning>,
    summary: Vec<String>,
}

impl Notes {
    fn own(&mut self, file: &Path, chain: &[CertificateDer<'_>], of: Owner, purpose: Purpose) {
        self.expires(file, chain, of);
        self.purpose(file, chain, purpose);
        if let Some(certificate) = chain.first().and_then(|der| Certificate::parse(der)) {
            self.summary.push(format!(
                "{} certificate {}: common name {:?}, serial number {}, valid until {}",
                of.name(),
                file.display(),
                certificate.common_name.unwrap_or_default(),
                crate::revocation::Serial::new(certificate.serial).text(),
                date(certificate.not_after)
            ));
        }
    }

    fn purpose(&mut self, file: &Path, chain: &[CertificateDer<'_>], purpose: Purpose) {
        let allows = |der: &CertificateDer<'_>| {
            Certificate::parse(der).is_some_and(|certificate| certificate.allows(purpose))
        };
        if !chain.first().is_none_or(allows) {
            self.warn(
                file,
                match purpose {
                    Purpose::Server => {
                        "the certificate is not valid for servers (it lacks the purpose TLS Web Server \
                                        Authentication): clients will refuse it"
                    }
                    Purpose::Client => {
                        "the certificate is not valid for clients (it lacks the purpose TLS Web Client \
                                        Authentication): servers that request a certificate will refuse it"
                    }
                },
            );
        }
    }

    fn authorities(&mut self, file: &Path, certificates: &[CertificateDer<'_>]) {
        self.expires(file, certificates, Owner::Authority);
        let signs = |der: &CertificateDer<'_>| {
            Certificate::parse(der).is_some_and(|certificate| certificate.can_sign())
        };
        if !certificates.iter().any(signs) {
            self.warn(
                file,
                "none of the certificates may sign others: only these certificates themselves are trusted",
            );
        }
        let algorithms = ring::default_provider().signature_verification_algorithms;
        let is_supported = |certificate: &Certificate<'_>| {
            let kind = certificate.key_algorithm();
            algorithms.all.iter().any(|algorithm| Some(algorithm.public_key_alg_id().as_ref()) == kind)
        };
        let unsupported = |der: &CertificateDer<'_>| {
            Certificate::parse(der)
                .is_some_and(|certificate| certificate.can_sign() && !is_supported(&certificate))
        };
        if certificates.iter().any(unsupported) {
            let text = "an authority's key type is not supported (such as P-521): certificates signed with \
                        it will be refused";
            self.warn(file, text);
        }
    }

    fn revocations(&mut self, file: &Path, revocations: &Revocations) {
        self.summary.push(format!("{}: {} serial numbers revoked", file.display(), revocations.len()));
        if let Some(due) = revocations.next_update.filter(|due| *due < self.now) {
            self.warn(file, &format!("a newer list was due at {}; this one is still used", date(due)));
        }
    }

    fn expires(&mut self, file: &Path, chain: &[CertificateDer<'_>], of: Owner) {
        let parsed = || chain.iter().filter_map(|der| Certificate::parse(der));
        let Some(not_after) = parsed().map(|certificate| certificate.not_after).min() else { return };
        let not_before = parsed().map(|certificate| certificate.not_before).max().unwrap_or_default();
        self.expiries.push(Expiry { of, file: file.to_owned(), not_after: system_time(not_after) });
        if not_after < self.now {
            self.warn(file, &format!("a certificate has expired at {}", date(not_after)));
        }
        if not_before > self.now {
            self.warn(file, &format!("a certificate is not valid before {}", date(not_before)));
        }
    }

    fn warn(&mut self, file: &Path, text: &str) {
        self.warnings.push(Warning { file: file.to_owned(), text: text.to_owned() });
    }
}

pub(crate) fn system_time(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH)
}

fn date(seconds: u64) -> String {
    format_rfc3339(system_time(seconds))
}
