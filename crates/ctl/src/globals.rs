use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use api::etcdserverpb as pb;
use cli::{Kind, Matches};
use client::discovery::Resolver;
use client::{Client, Settings, TlsFiles, shown};

use tokio::task::JoinSet;

use crate::command::STATUS;
use crate::commands::PROGRAM;
use crate::failure::Failure;
use crate::password;
use crate::printer::Format;
use crate::surroundings::Surroundings;

/// Largest request unless `--max-request-bytes` says otherwise, in bytes.
const REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The flags that every command has.
pub(crate) struct Globals {
    /// Where the cluster is: found by DNS, or given.
    pub(crate) endpoints: Vec<String>,
    /// `--endpoints` as it stands, which commands that ask each endpoint go by.
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
    /// Whose members are preferred; empty for none.
    zone: String,
}

/// Who the tool is to the cluster.
#[derive(Clone, Default)]
pub(crate) enum Login {
    /// Nobody.
    #[default]
    None,
    /// A user with a password.
    User(String, String),
    /// Whoever the token says.
    Token(String),
}

impl Login {
    /// Reads `--user` and `--password`: the password is behind the user's colon, in its own flag, or asked for.
    ///
    /// # Errors
    /// It cannot be asked for.
    pub(crate) fn of_user(
        user: &str,
        password: &str,
        prompt: &str,
        io: &Surroundings,
    ) -> Result<Login, Failure> {
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
    /// Reads them, finds endpoints by DNS if that is asked, and asks for a password that is missing.
    ///
    /// # Errors
    /// A flag's value is wrong, or DNS knows no endpoints.
    pub(crate) async fn read(matches: &Matches, io: &Surroundings) -> Result<Globals, Failure> {
        if matches.flag("debug") {
            // Nobody to tell that it cannot be told.
            let _ = io.err.write(shown_flags(matches).as_bytes());
        }
        let given_endpoints: Vec<String> = matches.list("endpoints").to_vec();
        let domain = matches.text("discovery-srv");
        let insecure_discovery = matches.flag("insecure-discovery");
        let mut endpoints = discovered(matches, io, insecure_discovery).await?;
        if endpoints.is_empty() {
            endpoints = given_endpoints.iter().map(|endpoint| endpoint.trim().to_owned()).collect();
        }
        let file = |name: &str| -> Result<Option<PathBuf>, Failure> {
            let path = matches.text(name);
            if path.is_empty() && matches.is_set(name) {
                return Err(Failure::bad_args(format!("empty string is passed to --{name} option")));
            }
            Ok((!path.is_empty()).then(|| PathBuf::from(path)))
        };
        let files = TlsFiles {
            cert: file("cert")?,
            key: file("key")?,
            cacert: file("cacert")?,
            server_name: (!insecure_discovery && !domain.is_empty()).then(|| domain.to_owned()),
            insecure_skip_verify: matches.flag("insecure-skip-tls-verify"),
        };
        let token = matches.text("auth-jwt-token");
        let login = if token.is_empty() {
            Login::of_user(matches.text("user"), matches.text("password"), "Password: ", io)?
        } else {
            Login::Token(token.to_owned())
        };
        let format = Format::named(matches.text("write-out"))
            .ok_or_else(|| Failure::bad_feature("unsupported output format"))?;
        Ok(Globals {
            endpoints,
            given_endpoints,
            format,
            hex: matches.flag("hex"),
            dial_timeout: matches.duration("dial-timeout"),
            keepalive_time: matches.duration("keepalive-time"),
            keepalive_timeout: matches.duration("keepalive-timeout"),
            request_bytes_max: bytes(matches, "max-request-bytes").unwrap_or(REQUEST_BYTES_MAX),
            answer_bytes_max: bytes(matches, "max-recv-bytes").unwrap_or(i32::MAX as usize),
            insecure_transport: matches.flag("insecure-transport"),
            files,
            login,
            zone: matches.text("zone").to_owned(),
        })
    }

    /// The settings of a client of these endpoints.
    ///
    /// # Errors
    /// A file for TLS is wrong.
    pub(crate) fn settings(&self, endpoints: Vec<String>) -> Result<Settings, Failure> {
        let zone = Some(self.zone.clone()).filter(|zone| !zone.is_empty());
        let settings = self.settings_of(endpoints, &self.files, self.insecure_transport, &self.login)?;
        Ok(Settings { zone, ..settings })
    }

    /// As [`Globals::settings`], for another cluster with other credentials.
    ///
    /// # Errors
    /// As [`Globals::settings`].
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

    /// A client of these endpoints, authenticated.
    ///
    /// # Errors
    /// As [`Globals::settings`], or the user is refused: exit code 2.
    pub(crate) async fn connect(&self, endpoints: Vec<String>) -> Result<Client, Failure> {
        let client = connected(self.settings(endpoints)?).await?;
        if !self.zone.is_empty() {
            client.set_zones(self.zones(&client).await);
        }
        Ok(client)
    }

    /// The zones that the endpoints' members state. Who does not answer soon, or states none, is in none.
    async fn zones(&self, client: &Client) -> HashMap<String, String> {
        let mut asked = JoinSet::new();
        for endpoint in client.endpoints() {
            let one = client.at(&endpoint).within(self.dial_timeout);
            asked.spawn(async move {
                let status = one.call::<_, pb::StatusResponse>(STATUS, &pb::StatusRequest {}).await;
                (endpoint, status.map(|status| status.zone).unwrap_or_default())
            });
        }
        let stated = asked.join_all().await;
        stated.into_iter().filter(|(_, zone)| !zone.is_empty()).collect()
    }
}

/// A client with these settings, authenticated.
///
/// # Errors
/// The settings do not fit each other, or the user is refused: exit code 2.
pub(crate) async fn connected(settings: Settings) -> Result<Client, Failure> {
    let client =
        Client::new(settings).map_err(|error| Failure::new(Failure::BAD_CONNECTION, error.to_string()))?;
    let authenticated = client.authenticate().await;
    authenticated.map_err(|status| Failure::new(Failure::BAD_CONNECTION, shown(&status)))?;
    Ok(client)
}

/// Every global flag with its value, as the environment variable that would set it. Secrets are not shown.
fn shown_flags(matches: &Matches) -> String {
    let mut lines: Vec<String> = PROGRAM
        .globals
        .iter()
        .map(|flag| {
            let value = match flag.kind {
                Kind::Bool => matches.flag(flag.name).to_string(),
                Kind::Int => matches.int(flag.name).to_string(),
                Kind::Uint => matches.uint(flag.name).to_string(),
                Kind::Float => matches.float(flag.name).to_string(),
                Kind::List => format!("[{}]", matches.list(flag.name).join(",")),
                Kind::Duration => cli::go::duration(matches.duration(flag.name)),
                Kind::Text if is_secret(flag.name) && !matches.text(flag.name).is_empty() => "***".to_owned(),
                Kind::Text => matches.text(flag.name).to_owned(),
            };
            format!("ETCDCTL_{}={value}\n", flag.name.to_uppercase().replace('-', "_"))
        })
        .collect();
    lines.sort();
    lines.concat()
}

fn is_secret(flag: &str) -> bool {
    matches!(flag, "password" | "auth-jwt-token" | "user")
}

fn bytes(matches: &Matches, name: &str) -> Option<usize> {
    usize::try_from(matches.int(name)).ok().filter(|bytes| *bytes > 0)
}

/// The endpoints that DNS knows of the domain of `--discovery-srv`; without one there are none.
async fn discovered(matches: &Matches, io: &Surroundings, insecure: bool) -> Result<Vec<String>, Failure> {
    let domain = matches.text("discovery-srv");
    if domain.is_empty() {
        return Ok(Vec::new());
    }
    let name = matches.text("discovery-srv-name");
    let found = Resolver::system().client_endpoints(domain, name).await;
    let mut endpoints = found.map_err(|error| Failure::error(error.to_string()))?;
    if !insecure {
        endpoints.retain(|endpoint| {
            let is_plain = endpoint.starts_with("http://");
            if is_plain {
                let shown = cli::go::quote(endpoint);
                // Nobody to tell that it cannot be told.
                let _ = io.err.line(format!("ignoring discovered insecure endpoint {shown}"));
            }
            !is_plain
        });
    }
    Ok(endpoints)
}
