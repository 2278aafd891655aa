//! How the members are reached: the flags that etcd's tools share, and what follows from them.

use std::path::PathBuf;
use std::time::Duration;

use cli::{Flag, Matches};
use client::discovery::{Resolver, part_insecure};
use client::{Settings, TlsFiles, Transport};

/// The flags, named as etcdctl's.
pub(crate) const FLAGS: &[Flag] = &[
    Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints"),
    Flag::text("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle"),
    Flag::text("cert", "", "identify secure client using this TLS certificate file"),
    Flag::text("key", "", "identify secure client using this TLS key file"),
    Flag::on("insecure-transport", "disable transport security for client connections"),
    Flag::bool("insecure-skip-tls-verify", "skip server certificate verification (for testing only)"),
    Flag::text("user", "", "username[:password] for authentication"),
    Flag::text("password", "", "password for authentication"),
    Flag::text("auth-jwt-token", "", "JWT token used for authentication"),
    Flag::duration("dial-timeout", "2s", "dial timeout for client connections"),
    Flag::duration("command-timeout", "5s", "timeout for each request"),
    Flag::text("discovery-srv", "", "domain name to query for SRV records describing cluster endpoints"),
    Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery"),
    Flag::on("insecure-discovery", "accept insecure SRV records describing cluster endpoints"),
    Flag::text("write-out", "simple", "set the output format (simple, json)").short('w'),
    Flag::bool("json", "short for --write-out=json"),
];

/// Ready to connect.
#[derive(Clone, Debug)]
pub struct Connection {
    /// For the client.
    pub settings: Settings,
    /// For single connections.
    pub transport: Transport,
    /// The TLS files, for a look at a certificate that is not trusted.
    pub files: TlsFiles,
    /// How long a request may take.
    pub within: Duration,
    /// Whether endpoints without a scheme speak TLS.
    pub is_secure: bool,
}

impl Connection {
    /// From the flags; asks DNS if that is wanted.
    ///
    /// # Errors
    /// A text for what makes no connection.
    pub async fn of(matches: &Matches) -> Result<Connection, String> {
        let path = |name: &str| Some(matches.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from);
        let domain = matches.text("discovery-srv");
        let mut endpoints = matches.list("endpoints").to_vec();
        if !domain.is_empty() {
            let resolver = Resolver::system();
            let found = resolver.client_endpoints(domain, matches.text("discovery-srv-name")).await;
            let found = found.map_err(|error| error.to_string())?;
            let (kept, _) = part_insecure(found, matches.flag("insecure-discovery"));
            endpoints = kept;
        }
        endpoints.retain(|endpoint| !endpoint.trim().is_empty());
        if endpoints.is_empty() {
            return Err("no endpoints: give --endpoints=HOST:PORT,...".to_owned());
        }
        let files = TlsFiles {
            cacert: path("cacert"),
            cert: path("cert"),
            key: path("key"),
            server_name: Some(domain).filter(|domain| !domain.is_empty()).map(str::to_owned),
            insecure_skip_verify: matches.flag("insecure-skip-tls-verify"),
        };
        let mut settings = Settings::of(endpoints);
        settings.dial_timeout = Some(matches.duration("dial-timeout"));
        settings.secure(&files, matches.flag("insecure-transport")).map_err(|error| error.to_string())?;
        let user = matches.text("user");
        if !user.is_empty() {
            let password = matches.text("password");
            settings.user = Some(match user.split_once(':') {
                _ if !password.is_empty() => (user.to_owned(), password.to_owned()),
                Some((name, password)) => (name.to_owned(), password.to_owned()),
                None => return Err("a password is missing: --user=NAME:PASSWORD or --password".to_owned()),
            });
        }
        let token = matches.text("auth-jwt-token");
        settings.token = Some(token).filter(|token| !token.is_empty()).map(str::to_owned);
        let transport = Transport {
            tls: settings.tls.clone(),
            dial_timeout: settings.dial_timeout,
            ..Transport::default()
        };
        let within = matches.duration("command-timeout").max(Duration::from_millis(1));
        let is_secure = settings.tls.is_some();
        Ok(Connection { settings, transport, files, within, is_secure })
    }

    /// As [`Connection::transport`], but takes any certificate: to look at one that is not trusted, and say nothing.
    pub(crate) fn unverified(&self) -> Option<Transport> {
        let files = TlsFiles { cacert: None, insecure_skip_verify: true, ..self.files.clone() };
        Some(Transport { tls: Some(files.load().ok()?), ..self.transport.clone() })
    }
}

/// Whether JSON is wanted.
///
/// # Errors
/// Another form is.
pub(crate) fn wants_json(matches: &Matches) -> Result<bool, String> {
    match matches.text("write-out") {
        "simple" => Ok(matches.flag("json")),
        "json" => Ok(true),
        other => Err(format!("unknown output format {}: simple and json are known", cli::go::quote(other))),
    }
}
