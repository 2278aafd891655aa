//! Defines the flags for connections to the members, which have etcdctl's names, and turns them into settings
//! for the client.

use std::path::PathBuf;
use std::time::Duration;

use cli::{Failure, Flag, FlagRow, Matches};
use client::discovery::{Resolver, part_insecure};
use client::{Settings, TlsFiles, Transport};

pub(crate) const ENDPOINTS: Flag<Vec<String>> = Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints");
const CACERT: Flag<String> =
    Flag::text("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle");
const CERT: Flag<String> = Flag::text("cert", "", "identify secure client using this TLS certificate file");
const KEY: Flag<String> = Flag::text("key", "", "identify secure client using this TLS key file");
const INSECURE_TRANSPORT: Flag<bool> =
    Flag::on("insecure-transport", "disable transport security for client connections");
const INSECURE_SKIP_TLS_VERIFY: Flag<bool> =
    Flag::bool("insecure-skip-tls-verify", "skip server certificate verification (for testing only)");
const USER: Flag<String> = Flag::text("user", "", "username[:password] for authentication");
const PASSWORD: Flag<String> = Flag::text("password", "", "password for authentication");
const AUTH_JWT_TOKEN: Flag<String> = Flag::text("auth-jwt-token", "", "JWT token used for authentication");
const DIAL_TIMEOUT: Flag<Duration> =
    Flag::duration("dial-timeout", "2s", "dial timeout for client connections");
const COMMAND_TIMEOUT: Flag<Duration> = Flag::duration("command-timeout", "5s", "timeout for each request");
const DISCOVERY_SRV: Flag<String> =
    Flag::text("discovery-srv", "", "domain name to query for SRV records describing cluster endpoints");
const DISCOVERY_SRV_NAME: Flag<String> =
    Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery");
const INSECURE_DISCOVERY: Flag<bool> =
    Flag::on("insecure-discovery", "accept insecure SRV records describing cluster endpoints");
const WRITE_OUT: Flag<String> =
    Flag::text("write-out", "simple", "set the output format (simple, json)").short('w');
const JSON: Flag<bool> = Flag::bool("json", "short for --write-out=json");

/// Errors with which a member rejects a request if authentication is enabled and the request comes without a
/// valid user, or from a user who lacks the permission.
pub(crate) const REFUSALS: &[api::Status] = &[
    api::error::USER_EMPTY,
    api::error::AUTH_FAILED,
    api::error::PERMISSION_DENIED,
    api::error::INVALID_AUTH_TOKEN,
];

/// Advice that is printed if a member returns one of [`REFUSALS`].
pub(crate) const WITH_USERS: &str = "authentication is on (auth enable): give a user, preferably root: \
    --user=root:PASSWORD (or --user=root --password=PASSWORD), --auth-jwt-token=TOKEN, or --cert and --key \
    of a certificate whose common name is a user";

/// Maximum size of a response in bytes. It is large enough for a list of several million leases; a larger
/// response is an error.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The flags for connections, with etcdctl's names.
pub(crate) const FLAGS: &[FlagRow] = &[
    ENDPOINTS.row(),
    CACERT.row(),
    CERT.row(),
    KEY.row(),
    INSECURE_TRANSPORT.row(),
    INSECURE_SKIP_TLS_VERIFY.row(),
    USER.row(),
    PASSWORD.row(),
    AUTH_JWT_TOKEN.row(),
    DIAL_TIMEOUT.row(),
    COMMAND_TIMEOUT.row(),
    DISCOVERY_SRV.row(),
    DISCOVERY_SRV_NAME.row(),
    INSECURE_DISCOVERY.row(),
    WRITE_OUT.row(),
    JSON.row(),
];

/// Settings for connections to the members.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Settings of the client.
    pub settings: Settings,
    /// Settings for connections that are opened directly, without the client.
    pub transport: Transport,
    /// TLS files that the flags name. They are kept to build another transport, which accepts any
    /// certificate, if the server's certificate is not trusted.
    pub files: TlsFiles,
    /// Timeout of a request.
    pub within: Duration,
    /// True if endpoints without a scheme use TLS.
    pub is_secure: bool,
}

impl Connection {
    /// Builds the settings from the flags. Queries DNS if the flags ask for discovery.
    ///
    /// # Errors
    /// Returns an error if no endpoint is given or found, or a TLS file is not valid.
    pub async fn of(matches: &Matches) -> Result<Connection, Failure> {
        let path =
            |flag: Flag<String>| Some(matches.get(flag)).filter(|text| !text.is_empty()).map(PathBuf::from);
        let domain = matches.get(DISCOVERY_SRV);
        let mut endpoints = matches.get(ENDPOINTS).to_vec();
        if !domain.is_empty() {
            let resolver = Resolver::system();
            let found = resolver.client_endpoints(domain, matches.get(DISCOVERY_SRV_NAME)).await;
            let found = found.map_err(Failure::error)?;
            let (kept, _) = part_insecure(found, matches.get(INSECURE_DISCOVERY));
            endpoints = kept;
        }
        endpoints.retain(|endpoint| !endpoint.trim().is_empty());
        if endpoints.is_empty() {
            return Err(Failure::error("no endpoints: give --endpoints=HOST:PORT,..."));
        }
        let files = TlsFiles {
            cacert: path(CACERT),
            cert: path(CERT),
            key: path(KEY),
            server_name: Some(domain).filter(|domain| !domain.is_empty()).map(str::to_owned),
            insecure_skip_verify: matches.get(INSECURE_SKIP_TLS_VERIFY),
        };
        let mut settings = Settings::of(endpoints);
        settings.dial_timeout = Some(matches.get(DIAL_TIMEOUT));
        settings.receive_bytes_max = ANSWER_BYTES_MAX;
        settings.secure(&files, matches.get(INSECURE_TRANSPORT)).map_err(Failure::error)?;
        let user = matches.get(USER);
        if !user.is_empty() {
            let password = matches.get(PASSWORD);
            settings.user = Some(match user.split_once(':') {
                _ if !password.is_empty() => (user.to_owned(), password.to_owned()),
                Some((name, password)) => (name.to_owned(), password.to_owned()),
                None => {
                    return Err(Failure::error("a password is missing: --user=NAME:PASSWORD or --password"));
                }
            });
        }
        let token = matches.get(AUTH_JWT_TOKEN);
        settings.token = Some(token).filter(|token| !token.is_empty()).map(str::to_owned);
        let transport = Transport {
            tls: settings.tls.clone(),
            dial_timeout: settings.dial_timeout,
            receive_bytes_max: settings.receive_bytes_max,
            ..Transport::default()
        };
        let within = matches.get(COMMAND_TIMEOUT).max(Duration::from_millis(1));
        let is_secure = settings.tls.is_some();
        Ok(Connection { settings, transport, files, within, is_secure })
    }

    /// Returns a copy of [`Connection::transport`] that accepts any certificate; `None` if the TLS files
    /// cannot be loaded. It only serves to read an untrusted certificate: no request is sent over such a
    /// connection.
    pub(crate) fn unverified(&self) -> Option<Transport> {
        let files = TlsFiles { cacert: None, insecure_skip_verify: true, ..self.files.clone() };
        Some(Transport { tls: Some(files.load().ok()?), ..self.transport.clone() })
    }
}

/// Returns true if the output is to be JSON.
///
/// # Errors
/// Returns an error if the flag names an unknown format.
pub(crate) fn wants_json(matches: &Matches) -> Result<bool, Failure> {
    match matches.get(WRITE_OUT) {
        "simple" => Ok(matches.get(JSON)),
        "json" => Ok(true),
        other => Err(Failure::error(format!(
            "unknown output format {}: use simple or json",
            cli::go::quote(other)
        ))),
    }
}
