//! Sets up the TLS of a member: turns the options into the settings of its listeners and of its connections
//! to other members, and runs the thread that reloads changed files.
//!
//! The rules about files and certificates are in the crate `tls`. This module decides which option applies
//! where and which listener gets TLS, and writes the log and the metrics.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clock::Clock;
use config::{Config, TlsOptions, Url};
use stdx::calendar::format_rfc3339;
use stdx::{FirstRun, Periodic};
use telemetry::logging::{Format, Level, Logger, Value};
use telemetry::metrics::{Metrics, TlsMetrics};
use tls::{Event, LoadError, Owner, Reloader, SelfSigned, ServerTls, SystemClock, Tickets, Tls, Warning};

/// Interval at which the files are read. A change takes effect after two reads that see the same contents.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the log repeats that a certificate expires soon.
const REMINDER_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Number of days before the expiry of a certificate from which on the log warns of it.
const WARNING_DAYS: i64 = 30;

/// Reason why a member cannot use TLS as its options require.
#[derive(Debug)]
pub enum TlsError {
    /// A URL is `https`, but no certificate is configured for it. Contains etcd's message.
    NoCertificate(String),
    /// The options contradict each other, or a file cannot be used.
    Load {
        /// Side of the member that the options belong to.
        side: Side,
        /// Reason why the options or a file cannot be used; names the file.
        error: LoadError,
    },
    /// The member cannot make a self-signed certificate.
    SelfSigned {
        /// Side of the member that the certificate is for.
        side: Side,
        /// Reason why the certificate cannot be made or written.
        error: LoadError,
    },
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::NoCertificate(text) => f.write_str(text),
            TlsError::Load { side, error } => write!(f, "cannot set up {side} TLS: {error}"),
            TlsError::SelfSigned { side, error } => {
                write!(f, "failed to get {side} self-signed certs: {error}")
            }
        }
    }
}

impl Error for TlsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            TlsError::NoCertificate(_) => None,
            TlsError::Load { error, .. } | TlsError::SelfSigned { error, .. } => Some(error),
        }
    }
}

/// The side of a member that options and metrics refer to. Displays as its name in the log and in the
/// metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Listeners for clients and for metrics.
    Client,
    /// Listeners for members, and connections to members.
    Peer,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Peer => "peer",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// TLS settings of both sides of a member.
pub(crate) struct MemberTls {
    /// `None` if no listener for clients or metrics has an `https` URL and no console is configured. In that
    /// case, the files are not read, as in etcd.
    clients: Option<Tls>,
    peers: Tls,
    /// Settings of the client side if it has a certificate; logged when the member serves clients.
    client_settings: Option<tls::Settings>,
    watched: Vec<Watched>,
}

/// The TLS files of one side.
struct Watched {
    side: Side,
    tls: Tls,
    reloader: Reloader,
}

impl MemberTls {
    /// Reads the options and files of both sides. The peer side comes first, as in etcd.
    pub(crate) fn load(config: &Config, logger: &Logger, clock: &Clock) -> Result<MemberTls, TlsError> {
        let mut watched = Vec::new();
        let fixtures = config.storage.data_dir.join("fixtures");

        let options = &config.peer_tls;
        let now = clock.wall();
        let mut settings =
            settings_of(options, Side::Peer, (&fixtures, now), &config.listen.peer_urls, logger)?;
        settings.dials = true;
        settings.alpn = vec![b"http/1.1".to_vec()];
        if !settings.is_empty() {
            log_settings(logger, "starting with peer TLS", &settings);
        }
        warn_of_plain(Side::Peer, &config.listen.peer_urls, &settings, logger);
        let peers = load(settings, Side::Peer, &mut watched, logger)?;

        let options = &config.client_tls;
        let urls: Vec<Url> =
            config.listen.client_urls.iter().chain(&config.listen.client_http_urls).cloned().collect();
        let hosts: Vec<Url> = urls.iter().chain(&config.listen.console_urls).cloned().collect();
        let mut settings = settings_of(options, Side::Client, (&fixtures, now), &hosts, logger)?;
        settings.alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let client_settings = Some(settings.clone()).filter(|settings| !settings.is_empty());
        warn_of_plain(Side::Client, &urls, &settings, logger);
        let listens = hosts.iter().chain(&config.listen.metrics_urls).any(is_secure);
        // The console needs settings even if no listener of this member uses TLS, because it connects to
        // other members.
        let dials = !config.listen.console_urls.is_empty();
        let clients = match listens && !settings.is_empty() || dials {
            true => Some(load(settings, Side::Client, &mut watched, logger)?),
            false => None,
        };
        Ok(MemberTls { clients, peers, client_settings, watched })
    }

    /// Returns the TLS settings of a listener for clients; `None` if its URL uses no TLS.
    pub(crate) fn for_clients(&self, url: &Url) -> Result<Option<ServerTls>, TlsError> {
        let missing = || {
            format!(
                "TLS key/cert (--cert-file, --key-file) must be provided for client url {url} with HTTPS scheme"
            )
        };
        server(url, self.clients.as_ref(), missing)
    }

    /// Returns the TLS settings of a listener for metrics; `None` if its URL uses no TLS.
    pub(crate) fn for_metrics(&self, url: &Url) -> Result<Option<ServerTls>, TlsError> {
        let missing = || {
            "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url".to_owned()
        };
        server(url, self.clients.as_ref(), missing)
    }

    /// Returns the TLS settings of a listener of the console; `None` if its URL uses no TLS.
    pub(crate) fn for_console(&self, url: &Url) -> Result<Option<ServerTls>, TlsError> {
        let missing = || {
            format!(
                "client TLS key/cert (--cert-file, --key-file) must be provided for console url {url} with HTTPS scheme"
            )
        };
        server(url, self.clients.as_ref(), missing)
    }

    /// Returns the secrets for the session tickets of clients, if listeners for clients use TLS.
    pub(crate) fn client_tickets(&self) -> Option<Tickets> {
        self.clients.as_ref().filter(|tls| tls.server().is_some()).map(|tls| tls.tickets().clone())
    }

    /// Returns the TLS settings of the console's connections to members, if there is a console.
    pub(crate) fn console_dialing(&self) -> Option<tls::ClientTls> {
        self.clients.as_ref().map(Tls::client)
    }

    /// Returns the TLS settings of a listener for members; `None` if its URL uses no TLS.
    pub(crate) fn for_peers(&self, url: &Url) -> Result<Option<ServerTls>, TlsError> {
        let missing = || {
            format!(
                "cannot listen on TLS for {}:{}: KeyFile and CertFile are not presented (--peer-cert-file, --peer-key-file)",
                url.host(),
                url.port()
            )
        };
        server(url, Some(&self.peers), missing)
    }

    /// Returns the TLS settings of connections to other members.
    pub(crate) fn dialing(&self) -> tls::ClientTls {
        self.peers.client()
    }

    /// Logs the TLS settings with which clients are served.
    pub(crate) fn log_clients(&self, logger: &Logger) {
        if let Some(settings) = &self.client_settings {
            log_settings(logger, "starting with client TLS", settings);
        }
    }
}

fn is_secure(url: &Url) -> bool {
    url.scheme().is_secure()
}

fn server(
    url: &Url,
    tls: Option<&Tls>,
    missing: impl FnOnce() -> String,
) -> Result<Option<ServerTls>, TlsError> {
    if !is_secure(url) {
        return Ok(None);
    }
    match tls.and_then(Tls::server) {
        Some(tls) => Ok(Some(tls)),
        None => Err(TlsError::NoCertificate(missing())),
    }
}

/// Returns the settings of one side: either the settings of the flags, or the settings for the certificate
/// that the member makes for itself.
fn settings_of(
    options: &TlsOptions,
    side: Side,
    (fixtures, now): (&Path, SystemTime),
    listen_urls: &[Url],
    logger: &Logger,
) -> Result<tls::Settings, TlsError> {
    if !options.auto {
        return Ok(options.settings.clone());
    }
    if !options.settings.is_empty() {
        logger.warn(&format!("ignoring {side} auto TLS since certs given"), &[]);
        return Ok(options.settings.clone());
    }
    let hosts: Vec<String> = listen_urls.iter().map(host_and_port).collect();
    let dir = fixtures.join(side.name());
    let made = SelfSigned::prepare(&dir, &hosts, options.self_signed_years, now)
        .map_err(|error| TlsError::SelfSigned { side, error })?;
    if let Some(why) = &made.made {
        let (cert, key) = (made.cert_file.display(), made.key_file.display());
        let why = ("reason", Value::Str(why));
        logger.info("created cert file", &[("path", Value::Display(&cert)), why]);
        logger.info("created key file", &[("path", Value::Display(&key))]);
    }
    let ignored = ignored(&options.settings, side);
    if !ignored.is_empty() {
        logger.warn(
            "these flags have no effect: without a certificate of its own, the member generates one and verifies no certificate of the other side",
            &[("side", Value::Str(side.name())), ("flags", Value::List(&ignored))],
        );
    }
    Ok(tls::Settings {
        cipher_suites: options.settings.cipher_suites.clone(),
        min_version: options.settings.min_version,
        max_version: options.settings.max_version,
        ..made.settings()
    })
}

/// Returns the given flags that have no effect because the member makes its own certificate, as in etcd.
fn ignored(settings: &tls::Settings, side: Side) -> Vec<&'static str> {
    let given = [
        (settings.client_cert_auth, "--client-cert-auth", "--peer-client-cert-auth"),
        (settings.trusted_ca_file.is_some(), "--trusted-ca-file", "--peer-trusted-ca-file"),
        (settings.crl_file.is_some(), "--client-crl-file", "--peer-crl-file"),
        (!settings.allowed_cns.is_empty(), "", "--peer-cert-allowed-cn"),
        (
            !settings.allowed_hostnames.is_empty(),
            "--client-cert-allowed-hostname",
            "--peer-cert-allowed-hostname",
        ),
    ];
    let name = |(_, client, peer)| match side {
        Side::Client => client,
        Side::Peer => peer,
    };
    given.into_iter().filter(|(is_given, ..)| *is_given).map(name).collect()
}

fn host_and_port(url: &Url) -> String {
    if url.scheme().is_unix() {
        // For a Unix socket, the self-signed certificate contains the last component of the path, because
        // clients compare the certificate with that name.
        let name = url.host().rsplit('/').next().unwrap_or_default();
        return if name.contains(':') { name.to_owned() } else { format!("{name}:0") };
    }
    if url.host().contains(':') {
        format!("[{}]:{}", url.host(), url.port())
    } else {
        format!("{}:{}", url.host(), url.port())
    }
}

fn load(
    settings: tls::Settings,
    side: Side,
    watched: &mut Vec<Watched>,
    logger: &Logger,
) -> Result<Tls, TlsError> {
    if settings.client_cert_auth && settings.trusted_ca_file.is_none() {
        logger.warn(
            "client certificates issued by any authority that the operating system trusts are accepted; name your own \
             authority with --trusted-ca-file or --peer-trusted-ca-file",
            &[("side", Value::Str(side.name()))],
        );
    }
    let (tls, reloader) =
        Tls::load(settings, Arc::new(SystemClock)).map_err(|error| TlsError::Load { side, error })?;
    for line in tls.describe() {
        logger.info("loaded TLS file", &[("side", Value::Str(side.name())), ("file", Value::Str(&line))]);
    }
    log_warnings(logger, side, &tls.warnings());
    watched.push(Watched { side, tls: tls.clone(), reloader });
    Ok(tls)
}

/// Warns, in etcd's words, of options that have no effect because a URL uses no TLS.
fn warn_of_plain(side: Side, urls: &[Url], settings: &tls::Settings, logger: &Logger) {
    let (key, files, auth) = match side {
        Side::Peer => (
            "peer-url",
            "scheme is HTTP while key and cert files are present; ignoring key and cert files",
            "scheme is HTTP while --peer-client-cert-auth is enabled; ignoring client cert auth for this URL",
        ),
        Side::Client => (
            "client-url",
            "scheme is http or unix while key and cert files are present; ignoring key and cert files",
            "scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL",
        ),
    };
    for url in urls.iter().filter(|url| !is_secure(url)) {
        let field = [(key, Value::Str(url.as_str()))];
        if !settings.is_empty() {
            logger.warn(files, &field);
        }
        if settings.client_cert_auth {
            logger.warn(auth, &field);
        }
    }
}

fn log_settings(logger: &Logger, line: &str, settings: &tls::Settings) {
    let suites: Vec<&str> = settings.cipher_suites.iter().map(String::as_str).collect();
    logger.info(line, &[("tls-info", Value::Display(settings)), ("cipher-suites", Value::List(&suites))]);
}

fn log_warnings(logger: &Logger, side: Side, warnings: &[Warning]) {
    for warning in warnings {
        let file = warning.file.display();
        logger.warn(
            "TLS file may not work as intended",
            &[
                ("side", Value::Str(side.name())),
                ("file", Value::Display(&file)),
                ("problem", Value::Str(&warning.text)),
            ],
        );
    }
}

/// Returns the TLS settings with which a member of this configuration dials others, for use before the member
/// runs. Warnings about the TLS files are logged when the member starts, and not by this function.
///
/// # Errors
///
/// Returns an error if the options contradict each other, or if a file cannot be used.
pub fn dialing(config: &Config) -> Result<tls::ClientTls, TlsError> {
    let silent = Logger::to(Level::Error, Format::Json, Vec::new());
    Ok(MemberTls::load(config, &silent, &Clock::real())?.dialing())
}

/// Returns the callback that logs and counts clients whose TLS handshake is refused, as etcd does.
pub(crate) fn rejections(
    metrics: &Metrics,
    logger: &Arc<Logger>,
) -> Arc<dyn Fn(&front::Rejection) + Send + Sync> {
    let (counter, logger) = (metrics.tls.rejected.clone(), Arc::clone(logger));
    Arc::new(move |rejected: &front::Rejection| {
        counter.with(&[Side::Client.name()]).add(1 + rejected.not_reported);
        let remote = front::shown_peer(rejected.remote);
        let mut fields = vec![
            ("remote-addr", Value::Display(&remote)),
            ("server-name", Value::Str(&rejected.server_name)),
        ];
        let (addresses, names): (Vec<String>, Vec<&str>);
        let addresses_shown: Vec<&str>;
        if let Some(shown) = &rejected.names {
            addresses = shown.ip_addresses.iter().map(ToString::to_string).collect();
            addresses_shown = addresses.iter().map(String::as_str).collect();
            names = shown.dns_names.iter().map(String::as_str).collect();
            fields.push(("ip-addresses", Value::List(&addresses_shown)));
            fields.push(("dns-names", Value::List(&names)));
        }
        fields.push(("error", Value::Str(&rejected.error)));
        if rejected.not_reported > 0 {
            fields.push(("not-reported", Value::Uint(rejected.not_reported)));
        }
        let line = if rejected.was_admitted {
            "closed connection on client endpoint: its certificate is no longer accepted"
        } else {
            "rejected connection on client endpoint"
        };
        if rejected.is_end_of_file { logger.debug(line, &fields) } else { logger.warn(line, &fields) }
    })
}

/// Returns the callback that counts the TLS handshakes of clients.
pub(crate) fn handshakes(metrics: &Metrics) -> Arc<dyn Fn(bool) + Send + Sync> {
    let [full, resumed] = ["full", "resumed"].map(|kind| metrics.tls.handshakes.with(&[kind]));
    Arc::new(move |is_resumed| if is_resumed { resumed.inc() } else { full.inc() })
}

/// Callback that gets the side whose files were replaced, and has its existing connections checked again.
pub(crate) type Reloaded = Box<dyn Fn(Side) + Send>;

/// Starts the thread that polls the certificate files for changes. Dropping the returned value ends the thread.
///
/// # Errors
///
/// Returns an error if the thread cannot be started.
pub(crate) fn start_reloading(
    tls: MemberTls,
    reloaded: Reloaded,
    clock: Clock,
    metrics: Arc<Metrics>,
    logger: Arc<Logger>,
) -> std::io::Result<Periodic> {
    let mut watch = Watch { sides: tls.watched, reloaded, clock, metrics, logger, reminded: UNIX_EPOCH };
    watch.sides.iter().for_each(|watched| show(&watch.metrics.tls, watched));
    let poll = move || watch.turn(watch.clock.wall());
    Periodic::start("tls-reload", RELOAD_INTERVAL, FirstRun::AtOnce, poll)
}

struct Watch {
    sides: Vec<Watched>,
    reloaded: Reloaded,
    clock: Clock,
    metrics: Arc<Metrics>,
    logger: Arc<Logger>,
    /// Time of the last log lines about certificates that expire soon.
    reminded: SystemTime,
}

impl Watch {
    fn turn(&mut self, now: SystemTime) {
        for watched in &mut self.sides {
            let Some(event) = watched.reloader.poll(now) else { continue };
            // The metric counts what the log reports: files that could not be used.
            if matches!(event, Event::Kept { .. }) {
                self.metrics.tls.reload_failures.with(&[watched.side.name()]).inc();
            }
            show(&self.metrics.tls, watched);
            log_event(&self.logger, watched.side, &event);
            if matches!(event, Event::Reloaded { .. }) && !planted::is(planted::Bug::RevokedConnectionsKept) {
                (self.reloaded)(watched.side);
            }
        }
        // A clock that was set back causes one more reminder, which does no harm.
        if now.duration_since(self.reminded).is_ok_and(|since| since < REMINDER_INTERVAL) {
            return;
        }
        self.reminded = now;
        for watched in &self.sides {
            warn_of_ends(&self.logger, watched, now);
        }
    }
}

fn log_event(logger: &Logger, side: Side, event: &Event) {
    let side_field = ("side", Value::Str(side.name()));
    match event {
        Event::Reloaded { generation, changed, warnings } => {
            let changed: Vec<String> = changed.iter().map(|file| file.display().to_string()).collect();
            let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
            let fields =
                [side_field, ("generation", Value::Uint(*generation)), ("changed", Value::List(&changed))];
            logger.info("reloaded TLS files", &fields);
            log_warnings(logger, side, warnings);
        }
        Event::Kept { error } => logger.error(
            "cannot use changed TLS files; those loaded before stay in use",
            &[side_field, ("error", Value::Display(error))],
        ),
        Event::Restored => logger.info("the TLS files match those in use again", &[side_field]),
    }
}

/// Returns the name of a certificate's use, for metrics and the log.
fn name_of(owner: Owner) -> &'static str {
    match owner {
        Owner::Listener => "server",
        Owner::Client => "client",
        Owner::Authority => "authority",
    }
}

fn warn_of_ends(logger: &Logger, watched: &Watched, now: SystemTime) {
    for expiry in watched.tls.expiries() {
        let days = expiry.days_left(now);
        if days >= WARNING_DAYS {
            continue;
        }
        let file = expiry.file.display();
        logger.warn(
            "a certificate expires soon or has expired; once it has expired, clients and members refuse connections",
            &[
                ("side", Value::Str(watched.side.name())),
                ("certificate", Value::Str(name_of(expiry.of))),
                ("file", Value::Display(&file)),
                ("not-after", Value::Str(&format_rfc3339(expiry.not_after))),
                ("days-left", Value::Int(days)),
            ],
        );
    }
}

/// Updates the metrics of one side.
fn show(metrics: &TlsMetrics, watched: &Watched) {
    let side = watched.side.name();
    for expiry in watched.tls.expiries() {
        let seconds = expiry.not_after.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        metrics.not_after.with(&[side, name_of(expiry.of)]).set_u64(seconds);
    }
    if watched.tls.expiries().is_empty() {
        return;
    }
    metrics.generation.with(&[side]).set_u64(watched.tls.generation());
    metrics.reload_failing.with(&[side]).set_bool(watched.tls.failure().is_some());
    // Creates the counter's series, so that the metrics show 0 before the first failure.
    let _ = metrics.reload_failures.with(&[side]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_a_generated_certificate_leaves_without_effect_are_named() {
        let settings = tls::Settings {
            client_cert_auth: true,
            trusted_ca_file: Some("ca".into()),
            crl_file: Some("crl".into()),
            allowed_hostnames: vec!["a".to_owned()],
            ..tls::Settings::default()
        };
        let client = [
            "--client-cert-auth",
            "--trusted-ca-file",
            "--client-crl-file",
            "--client-cert-allowed-hostname",
        ];
        assert_eq!(ignored(&settings, Side::Client), client);
        let named = tls::Settings { allowed_cns: vec!["m".to_owned()], ..tls::Settings::default() };
        assert_eq!(ignored(&named, Side::Peer), ["--peer-cert-allowed-cn"]);
        assert!(ignored(&tls::Settings::default(), Side::Peer).is_empty());
    }
}
