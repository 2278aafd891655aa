use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Failure, Flag, FlagRow, Io, Matches};
use client::discovery::Resolver;
use client::{Client, Preference, Settings, TlsFiles, shown};
use tokio::task::JoinSet;

use crate::password;
use crate::printer::Format;

const ENDPOINTS: Flag<Vec<String>> = Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints");
const DEBUG: Flag<bool> = Flag::bool("debug", "enable client-side debug logging");
const WRITE_OUT: Flag<String> =
    Flag::text("write-out", "simple", "set the output format (fields, json, protobuf, simple, table)")
        .short('w');
const HEX: Flag<bool> = Flag::bool("hex", "print byte strings as hex encoded strings");
pub(crate) const DIAL_TIMEOUT: Flag<Duration> =
    Flag::duration("dial-timeout", "2s", "dial timeout for client connections");
pub(crate) const COMMAND_TIMEOUT: Flag<Duration> =
    Flag::duration("command-timeout", "5s", "timeout for short running command (excluding dial timeout)");
const KEEPALIVE_TIME: Flag<Duration> =
    Flag::duration("keepalive-time", "2s", "keepalive time for client connections");
const KEEPALIVE_TIMEOUT: Flag<Duration> =
    Flag::duration("keepalive-timeout", "6s", "keepalive timeout for client connections");
const MAX_REQUEST_BYTES: Flag<i64> = Flag::int(
    "max-request-bytes",
    "0",
    "client-side request send limit in bytes (if 0, it defaults to 2.0 MiB (2 * 1024 * 1024).)",
);
const MAX_RECV_BYTES: Flag<i64> = Flag::int(
    "max-recv-bytes",
    "0",
    "client-side response receive limit in bytes (if 0, it defaults to \"math.MaxInt32\")",
);
const INSECURE_TRANSPORT: Flag<bool> =
    Flag::on("insecure-transport", "disable transport security for client connections");
const INSECURE_DISCOVERY: Flag<bool> =
    Flag::on("insecure-discovery", "accept insecure SRV records describing cluster endpoints");
const INSECURE_SKIP_TLS_VERIFY: Flag<bool> = Flag::bool(
    "insecure-skip-tls-verify",
    "skip server certificate verification (CAUTION: this option should be enabled only for testing purposes)",
);
const CERT: Flag<String> = Flag::text("cert", "", "identify secure client using this TLS certificate file");
const KEY: Flag<String> = Flag::text("key", "", "identify secure client using this TLS key file");
const CACERT: Flag<String> =
    Flag::text("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle");
const AUTH_JWT_TOKEN: Flag<String> = Flag::text(
    "auth-jwt-token",
    "",
    "JWT token used for authentication (if this option is used, --user and --password should not be set)",
);
const USER: Flag<String> =
    Flag::text("user", "", "username[:password] for authentication (prompt if password is not supplied)");
const PASSWORD: Flag<String> = Flag::text(
    "password",
    "",
    "password for authentication (if this option is used, --user option shouldn't include password)",
);
const DISCOVERY_SRV: Flag<String> =
    Flag::text("discovery-srv", "", "domain name to query for SRV records describing cluster endpoints")
        .short('d');
const DISCOVERY_SRV_NAME: Flag<String> =
    Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery");
// Hidden, because etcdctl does not have this flag, and the list of options must be the same as in etcdctl.
const ZONE: Flag<String> =
    Flag::text("zone", "", "use endpoints of members in this zone as long as one of them answers").hidden();

/// The global flags, which every command has.
pub(crate) static FLAGS: &[FlagRow] = &[
    ENDPOINTS.row(),
    DEBUG.row(),
    WRITE_OUT.row(),
    HEX.row(),
    DIAL_TIMEOUT.row(),
    COMMAND_TIMEOUT.row(),
    KEEPALIVE_TIME.row(),
    KEEPALIVE_TIMEOUT.row(),
    MAX_REQUEST_BYTES.row(),
    MAX_RECV_BYTES.row(),
    INSECURE_TRANSPORT.row(),
    INSECURE_DISCOVERY.row(),
    INSECURE_SKIP_TLS_VERIFY.row(),
    CERT.row(),
    KEY.row(),
    CACERT.row(),
    AUTH_JWT_TOKEN.row(),
    USER.row(),
    PASSWORD.row(),
    DISCOVERY_SRV.row(),
    DISCOVERY_SRV_NAME.row(),
    ZONE.row(),
];

/// Default of the maximum size of a request in bytes, which `--max-request-bytes` overrides.
const REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Values of the global flags.
pub(crate) struct Globals {
    /// Endpoints of the cluster, either given or discovered by DNS.
    pub(crate) endpoints: Vec<String>,
    /// Value of `--endpoints`, without discovered endpoints, for commands that query each given endpoint.
    pub(crate) given_endpoints: Vec<String>,
    pub(crate) format: Format,
    pub(crate) hex: bool,
    pub(crate) dial_timeout: Duration,
    pub(crate) keepalive_time: Duration,
    pub(crate) keepalive_timeout: Duration,
    request_bytes_max: usize,
    answer_bytes_max: usize,
    insecure_transport: bool,
    files: TlsFiles,
    login: Login,
    /// Zone whose members are preferred; empty if no zone is given.
    zone: String,
    /// All clients that were created. Their connection errors are printed when a command waits or fails.
    clients: Mutex<Vec<Client>>,
}

/// Credentials with which the tool logs in.
#[derive(Clone, Default)]
pub(crate) enum Login {
    /// No credentials.
    #[default]
    None,
    /// User name and password.
    User(String, String),
    /// A token.
    Token(String),
}

impl Login {
    /// Returns the credentials in the values of `--user` and `--password`. If no password is given, neither
    /// in its own flag nor after a colon in `--user`, the user is asked for it.
    ///
    /// # Errors
    /// Returns an error if the password cannot be read.
    pub(crate) fn of_user(user: &str, password: &str, prompt: &str, io: &Io) -> Result<Login, Failure> {
        if user.is_empty() {
            return Ok(Login::None);
        }
        if !password.is_empty() {
            return Ok(Login::User(user.to_owned(), password.to_owned()));
        }
        if let Some((name, password)) = user.split_once(':') {
            return Ok(Login::User(name.to_owned(), password.to_owned()));
        }
        let password = password::ask(io, prompt).map_err(|error| Failure::error(error.to_string()))?;
        Ok(Login::User(user.to_owned(), password))
    }
}

impl Globals {
    /// Reads the global flags, discovers endpoints by DNS if this is requested, and asks the user for a
    /// missing password.
    ///
    /// # Errors
    /// Returns an error if a flag has an invalid value, if the password cannot be read, or if DNS discovery
    /// finds no endpoints.
    pub(crate) async fn read(matches: &Matches, io: &Io) -> Result<Globals, Failure> {
        if matches.get(DEBUG) {
            io.err.notice(shown_flags(matches));
        }
        let given_endpoints: Vec<String> = matches.get(ENDPOINTS).to_vec();
        let domain = matches.get(DISCOVERY_SRV);
        let insecure_discovery = matches.get(INSECURE_DISCOVERY);
        let mut endpoints = discovered(matches, io, insecure_discovery).await?;
        if endpoints.is_empty() {
            endpoints = given_endpoints.iter().map(|endpoint| endpoint.trim().to_owned()).collect();
        }
        let file = |flag: Flag<String>| -> Result<Option<PathBuf>, Failure> {
            let path = matches.get(flag);
            if path.is_empty() && matches.is_given(flag) {
                let name = flag.name();
                return Err(Failure::bad_args(format!("empty string is passed to --{name} option")));
            }
            Ok((!path.is_empty()).then(|| PathBuf::from(path)))
        };
        let files = TlsFiles {
            cert: file(CERT)?,
            key: file(KEY)?,
            cacert: file(CACERT)?,
            server_name: (!insecure_discovery && !domain.is_empty()).then(|| domain.to_owned()),
            insecure_skip_verify: matches.get(INSECURE_SKIP_TLS_VERIFY),
        };
        let token = matches.get(AUTH_JWT_TOKEN);
        let login = if token.is_empty() {
            Login::of_user(matches.get(USER), matches.get(PASSWORD), "Password: ", io)?
        } else {
            Login::Token(token.to_owned())
        };
        let format = Format::named(matches.get(WRITE_OUT))
            .ok_or_else(|| Failure::bad_feature("unsupported output format"))?;
        Ok(Globals {
            endpoints,
            given_endpoints,
            format,
            hex: matches.get(HEX),
            dial_timeout: matches.get(DIAL_TIMEOUT),
            keepalive_time: matches.get(KEEPALIVE_TIME),
            keepalive_timeout: matches.get(KEEPALIVE_TIMEOUT),
            request_bytes_max: bytes(matches, MAX_REQUEST_BYTES).unwrap_or(REQUEST_BYTES_MAX),
            answer_bytes_max: bytes(matches, MAX_RECV_BYTES).unwrap_or(i32::MAX as usize),
            insecure_transport: matches.get(INSECURE_TRANSPORT),
            files,
            login,
            zone: matches.get(ZONE).to_owned(),
            clients: Mutex::default(),
        })
    }

    /// Returns the settings for a client of these endpoints.
    ///
    /// # Errors
    /// Returns an error if a TLS file is not valid.
    pub(crate) fn settings(&self, endpoints: Vec<String>) -> Result<Settings, Failure> {
        self.settings_of(endpoints, &self.files, self.insecure_transport, &self.login)
    }

    /// Returns settings like [`Globals::settings`], for another cluster with other credentials.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Globals::settings`].
    pub(crate) fn settings_of(
        &self,
        endpoints: Vec<String>,
        files: &TlsFiles,
        insecure_transport: bool,
        login: &Login,
    ) -> Result<Settings, Failure> {
        let mut settings = Settings {
            endpoints,
            dial_timeout: Some(self.dial_timeout),
            keepalive_time: self.keepalive_time,
            keepalive_timeout: self.keepalive_timeout,
            send_bytes_max: self.request_bytes_max,
            receive_bytes_max: self.answer_bytes_max,
            ..Settings::default()
        };
        match login.clone() {
            Login::None => {}
            Login::User(name, password) => settings.user = Some((name, password)),
            Login::Token(token) => settings.token = Some(token),
        }
        let secured = settings.secure(files, insecure_transport);
        secured.map_err(|error| Failure::bad_args(error.to_string()))?;
        Ok(settings)
    }

    /// Returns an authenticated client of these endpoints.
    ///
    /// # Errors
    /// Returns the errors of [`Globals::settings`], or an error with exit code 2 if the user is refused.
    pub(crate) async fn connect(&self, endpoints: Vec<String>) -> Result<Client, Failure> {
        let mut settings = self.settings(endpoints)?;
        if self.zone.is_empty() {
            return self.connected(settings).await;
        }
        let preference = settings.preference.insert(Preference::default()).clone();
        let client = self.connected(settings).await?;
        preference.set(&self.near_endpoints(&client).await);
        Ok(client)
    }

    /// Returns an authenticated client with these settings.
    ///
    /// # Errors
    /// Returns an error if the settings contradict each other, or an error with exit code 2 if the user is
    /// refused.
    pub(crate) async fn connected(&self, settings: Settings) -> Result<Client, Failure> {
        let client = Client::new(settings)
            .map_err(|error| Failure::new(Failure::BAD_CONNECTION, error.to_string()))?;
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).push(client.clone());
        let authenticated = client.authenticate().await;
        authenticated.map_err(|status| Failure::new(Failure::BAD_CONNECTION, shown(&status)))?;
        Ok(client)
    }

    /// Returns the clients created so far.
    pub(crate) fn clients(&self) -> Vec<Client> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the endpoints whose members report the zone of this client, with the first rank. An endpoint is
    /// left out if its member does not answer within the dial timeout.
    async fn near_endpoints(&self, client: &Client) -> HashMap<String, u32> {
        let mut asked = JoinSet::new();
        for endpoint in client.endpoints() {
            let one = client.at(&endpoint).within(self.dial_timeout);
            asked.spawn(async move {
                let status =
                    one.call::<_, pb::StatusResponse>(Rpc::MaintenanceStatus, &pb::StatusRequest {}).await;
                (endpoint, status.map(|status| status.zone).unwrap_or_default())
            });
        }
        let stated = asked.join_all().await.into_iter();
        stated.filter(|(_, zone)| *zone == self.zone).map(|(endpoint, _)| (endpoint, 0)).collect()
    }
}

/// Returns one line per global flag with its value, written as the environment variable that would set the
/// flag. Secrets are hidden.
fn shown_flags(matches: &Matches) -> String {
    let mut lines: Vec<String> = FLAGS
        .iter()
        .map(|flag| {
            let mut value = matches.written(flag);
            if is_secret(flag.name) && !value.is_empty() {
                value = "***".to_owned();
            }
            format!("ETCDCTL_{}={value}\n", flag.name.to_uppercase().replace('-', "_"))
        })
        .collect();
    lines.sort();
    lines.concat()
}

fn is_secret(flag: &str) -> bool {
    matches!(flag, "password" | "auth-jwt-token" | "user")
}

fn bytes(matches: &Matches, flag: Flag<i64>) -> Option<usize> {
    usize::try_from(matches.get(flag)).ok().filter(|bytes| *bytes > 0)
}

/// Returns the endpoints that the SRV records of the domain in `--discovery-srv` name; an empty list if no
/// domain is given.
async fn discovered(matches: &Matches, io: &Io, insecure: bool) -> Result<Vec<String>, Failure> {
    let domain = matches.get(DISCOVERY_SRV);
    if domain.is_empty() {
        return Ok(Vec::new());
    }
    let name = matches.get(DISCOVERY_SRV_NAME);
    let found = Resolver::system().client_endpoints(domain, name).await;
    let mut endpoints = found.map_err(|error| Failure::error(error.to_string()))?;
    if !insecure {
        endpoints.retain(|endpoint| {
            let is_plain = endpoint.starts_with("http://");
            if is_plain {
                let shown = cli::go::quote(endpoint);
                io.err.notice(format!("ignoring discovered insecure endpoint {shown}\n"));
            }
            !is_plain
        });
    }
    Ok(endpoints)
}
