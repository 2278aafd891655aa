//! Reads the file of `--config-file`, with the rules of etcd's `embed.Config`. Keys are names of flags, in
//! upper or lower case. If a key is repeated, its last value is used. A value must have the type of etcd's
//! field; a duration is a number of nanoseconds. Options for TLS, sockets and discovery are in nested blocks.
//!
//! etcd silently ignores unknown keys. Mainstay ignores each with a warning (COMPAT-133).

use std::fs::File;
use std::io::{self, Read as _};

use super::flag::{FlagRow, Kind};
use super::refusal::Refusal;
use super::settings::Settings;
use super::table::*;
use super::yaml::{self, Yaml};
use telemetry::logging::{Entry, Level};

/// Maximum size of a configuration file in bytes; larger files are refused. For comparison, etcd's sample
/// file with all its comments has 6 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Flags whose names are not keys of the file, because etcd's files do not have these options, or have them
/// under other names.
const NO_KEYS: &[&str] = &[CONFIG_FILE.row().name, VERSION.row().name, DISCOVERY_FALLBACK.row().name];

/// Flags that are set in a block: flag, block, and key in the block.
const IN_BLOCKS: &[(FlagRow, &str, &str)] = &[
    (CERT_FILE.row(), CLIENTS, "cert-file"),
    (KEY_FILE.row(), CLIENTS, "key-file"),
    (CLIENT_CERT_FILE.row(), CLIENTS, "client-cert-file"),
    (CLIENT_KEY_FILE.row(), CLIENTS, "client-key-file"),
    (CLIENT_CERT_AUTH.row(), CLIENTS, "client-cert-auth"),
    (TRUSTED_CA_FILE.row(), CLIENTS, "trusted-ca-file"),
    (AUTO_TLS.row(), CLIENTS, "auto-tls"),
    (CLIENT_CERT_ALLOWED_HOSTNAME.row(), CLIENTS, "allowed-hostname"),
    (PEER_CERT_FILE.row(), MEMBERS, "cert-file"),
    (PEER_KEY_FILE.row(), MEMBERS, "key-file"),
    (PEER_CLIENT_CERT_FILE.row(), MEMBERS, "client-cert-file"),
    (PEER_CLIENT_KEY_FILE.row(), MEMBERS, "client-key-file"),
    (PEER_CLIENT_CERT_AUTH.row(), MEMBERS, "client-cert-auth"),
    (PEER_TRUSTED_CA_FILE.row(), MEMBERS, "trusted-ca-file"),
    (PEER_AUTO_TLS.row(), MEMBERS, "auto-tls"),
    (PEER_CERT_ALLOWED_CN.row(), MEMBERS, "allowed-cn"),
    (PEER_CERT_ALLOWED_HOSTNAME.row(), MEMBERS, "allowed-hostname"),
    (PEER_SKIP_CLIENT_SAN_VERIFICATION.row(), MEMBERS, "skip-client-san-verification"),
    (SOCKET_REUSE_PORT.row(), SOCKETS, "reuse-port"),
    (SOCKET_REUSE_ADDRESS.row(), SOCKETS, "reuse-address"),
    (DISCOVERY_TOKEN.row(), DISCOVERY, "token"),
];
/// Keys of `discovery-config: client` and of its nested blocks, with their flags.
const IN_DISCOVERY_CLIENT: &[(&str, FlagRow)] = &[
    ("client.endpoints", DISCOVERY_ENDPOINTS.row()),
    ("client.request-timeout", DISCOVERY_REQUEST_TIMEOUT.row()),
    ("client.dial-timeout", DISCOVERY_DIAL_TIMEOUT.row()),
    ("client.keepalive-time", DISCOVERY_KEEPALIVE_TIME.row()),
    ("client.keepalive-timeout", DISCOVERY_KEEPALIVE_TIMEOUT.row()),
    ("client.secure.cert", DISCOVERY_CERT.row()),
    ("client.secure.key", DISCOVERY_KEY.row()),
    ("client.secure.cacert", DISCOVERY_CACERT.row()),
    ("client.secure.insecure-transport", DISCOVERY_INSECURE_TRANSPORT.row()),
    ("client.secure.insecure-skip-tls-verify", DISCOVERY_INSECURE_SKIP_TLS_VERIFY.row()),
    ("client.auth.username", DISCOVERY_USER.row()),
    ("client.auth.password", DISCOVERY_PASSWORD.row()),
];
const CLIENTS: &str = "client-transport-security";
const MEMBERS: &str = "peer-transport-security";
const SOCKETS: &str = "socket-options";
const DISCOVERY: &str = "discovery-config";
/// Names of the blocks. For error messages, each has the name of etcd's Go struct that contains the block,
/// and the name of the block's own struct.
const BLOCKS: &[(&str, &str, &str)] = &[
    (CLIENTS, "configJSON", "embed.securityConfig"),
    (MEMBERS, "configJSON", "embed.securityConfig"),
    (SOCKETS, "Config", "transport.SocketOpts"),
    (DISCOVERY, "Config", "v3discovery.DiscoveryConfig"),
];
/// Keys whose values are YAML lists. The values of all other list options are strings with commas.
const LISTS: &[&str] = &[LOG_OUTPUTS.row().name, CIPHER_SUITES.row().name];
/// Keys that etcd first reads as strings, into a separate Go struct. Error messages about these keys contain
/// the name of that struct.
const READ_AS_TEXT: &[&str] = &[
    LISTEN_PEER_URLS.row().name,
    LISTEN_CLIENT_URLS.row().name,
    LISTEN_CLIENT_HTTP_URLS.row().name,
    INITIAL_ADVERTISE_PEER_URLS.row().name,
    ADVERTISE_CLIENT_URLS.row().name,
    CORS.row().name,
    HOST_WHITELIST.row().name,
    FEATURE_GATES.row().name,
];
/// Keys of the block for clients that have no command-line flag.
const CLIENT_CNS: &str = "allowed-cn";
const CLIENT_SKIP: &str = "skip-client-san-verification";

/// Reads the file and sets the options in it.
pub(super) fn read(settings: &mut Settings, path: &str) -> Result<(), Refusal> {
    let bytes = read_file(path).map_err(Refusal::invalid)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Refusal::invalid("error converting YAML to JSON: yaml: invalid UTF-8"))?;
    set_all(settings, text)?;
    let line = "loaded server configuration, other configuration command line flags and environment variables will be \
                ignored if provided";
    settings.notices.push(Entry::new(Level::Info, line).with("path", path));
    Ok(())
}

/// Returns the bytes of the file. The error has Go's message.
fn read_file(path: &str) -> Result<Vec<u8>, String> {
    let why = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        _ => error.to_string(),
    };
    let file = File::open(path).map_err(|error| format!("open {path}: {}", why(error)))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("read {path}: {}", why(error)))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("read {path}: a configuration file may have at most {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

fn set_all(settings: &mut Settings, text: &str) -> Result<(), Refusal> {
    let document = yaml::read(text)
        .map_err(|error| Refusal::invalid(format!("error converting YAML to JSON: {error}")))?;
    let entries = match document {
        Yaml::Map(entries) => entries,
        Yaml::Null => return Ok(()),
        other => {
            let text = format!("cannot unmarshal {} into Go value of type embed.configYAML", other.kind());
            return Err(mistyped(text));
        }
    };
    for (key, line, value) in entries {
        let key = key.to_ascii_lowercase();
        if let Some((block, outer, own)) = BLOCKS.iter().find(|(block, ..)| *block == key) {
            set_block(settings, block, (outer, own), value)?;
            continue;
        }
        let in_block = IN_BLOCKS.iter().find(|(flag, ..)| flag.name == key);
        let is_key = in_block.is_none()
            && !NO_KEYS.contains(&&*key)
            && !IN_DISCOVERY_CLIENT.iter().any(|(_, flag)| flag.name == key);
        match settings.kind_of_key(&key).filter(|_| is_key) {
            Some((flag, kind)) => {
                let outer = if READ_AS_TEXT.contains(&&*key) { "configJSON" } else { "Config" };
                let is_list = LISTS.contains(&&*key);
                let place = format!("configYAML.{outer}.{key}");
                set(settings, &key, (flag, kind, is_list), &place, value)?;
            }
            None => {
                let belongs = in_block.map(|(_, block, key)| format!("{block}: {key}"));
                ignore(settings, key, line, belongs);
            }
        }
    }
    Ok(())
}

fn ignore(settings: &mut Settings, key: String, line: usize, belongs: Option<String>) {
    let mut entry = Entry::new(Level::Warn, "unrecognized key in the configuration file; it has no effect")
        .with("key", key)
        .with("line", line.to_string());
    if let Some(belongs) = belongs {
        entry = entry.with("belongs-to", belongs);
    }
    settings.warnings.push(entry);
}

fn set_block(
    settings: &mut Settings,
    block: &'static str,
    (outer, own): (&str, &str),
    value: Yaml,
) -> Result<(), Refusal> {
    let entries = match value {
        Yaml::Map(entries) => entries,
        Yaml::Null if block == MEMBERS => return Err(Refusal::invalid("invalid peer-transport-security")),
        Yaml::Null => return Ok(()),
        other => {
            let kind = other.kind();
            return Err(mistyped(format!(
                "cannot unmarshal {kind} into Go struct field configYAML.{outer}.{block} of type {own}"
            )));
        }
    };
    for (key, line, value) in entries {
        let key = key.to_ascii_lowercase();
        let place = format!("configYAML.{outer}.{block}.{key}");
        let found = IN_BLOCKS.iter().find(|(_, its, in_block)| *its == block && *in_block == key);
        match found {
            Some((flag, ..)) => {
                let is_list = flag.kind == Kind::Words;
                set(settings, flag.name, (Some(flag), flag.kind, is_list), &place, value)?;
            }
            None if block == CLIENTS && key == CLIENT_CNS => {
                let words = texts(value, &place)?;
                settings.client_allowed_cns = words.unwrap_or_default();
            }
            None if block == CLIENTS && key == CLIENT_SKIP => {
                if let Some(text) = converted(value, Kind::Bool, "bool", &place)? {
                    settings.client_skips_san = text == "true";
                }
            }
            None if block == DISCOVERY && key == "client" => {
                set_discovery_client(settings, "client", &place, value)?;
            }
            None => ignore(settings, format!("{block}: {key}"), line, None),
        }
    }
    Ok(())
}

/// Sets the options in `discovery-config: client` and in its blocks `secure` and `auth`.
fn set_discovery_client(
    settings: &mut Settings,
    path: &str,
    place: &str,
    value: Yaml,
) -> Result<(), Refusal> {
    let entries = match value {
        Yaml::Map(entries) => entries,
        Yaml::Null => return Ok(()),
        other => {
            let own = match path {
                "client" => "clientv3.ConfigSpec",
                "client.secure" => "clientv3.SecureConfig",
                _ => "clientv3.AuthConfig",
            };
            let kind = other.kind();
            return Err(mistyped(format!(
                "cannot unmarshal {kind} into Go struct field {place} of type {own}"
            )));
        }
    };
    for (key, line, value) in entries {
        let key = format!("{path}.{}", key.to_ascii_lowercase());
        let place = format!("configYAML.Config.{DISCOVERY}.{key}");
        if path == "client" && ["client.secure", "client.auth"].contains(&&*key) {
            set_discovery_client(settings, &key, &place, value)?;
            continue;
        }
        let found = IN_DISCOVERY_CLIENT.iter().find(|(known, _)| *known == key);
        match found {
            Some((_, flag)) => {
                let is_list = flag.kind == Kind::List;
                set(settings, flag.name, (Some(flag), flag.kind, is_list), &place, value)?;
            }
            None => ignore(settings, format!("{DISCOVERY}: {key}"), line, None),
        }
    }
    Ok(())
}

/// Sets one flag to a value of the file; null leaves the flag unchanged.
fn set(
    settings: &mut Settings,
    name: &str,
    (flag, kind, is_list): (Option<&'static FlagRow>, Kind, bool),
    place: &str,
    value: Yaml,
) -> Result<(), Refusal> {
    let text = if is_list {
        texts(value, place)?.filter(|words| !words.is_empty()).map(|words| words.join(","))
    } else {
        converted(value, kind, go_type(flag, kind), place)?
    };
    let Some(text) = text else { return Ok(()) };
    let is_url = matches!(kind, Kind::Urls | Kind::UrlsInOrder | Kind::Origins);
    if text.is_empty() && (is_url || matches!(kind, Kind::List | Kind::OneOf(_) | Kind::Gates)) {
        // As in etcd, an empty string leaves the option unset.
        return Ok(());
    }
    settings.set_key(name, &text).map_err(|reason| match kind {
        _ if is_url => Refusal::invalid(format!("unexpected error setting up {name}: {reason}")),
        Kind::OneOf(_) => Refusal::invalid(if name == INITIAL_CLUSTER_STATE.row().name {
            format!("unexpected clusterState {}", cli::go::quote(&text))
        } else {
            format!("unexpected {name} {}", cli::go::quote(&text))
        }),
        _ => Refusal::invalid(reason.to_string()),
    })?
}

/// Converts a YAML value to the syntax that the parser of the flag accepts; `None` for null.
fn converted(value: Yaml, kind: Kind, go_type: &str, place: &str) -> Result<Option<String>, Refusal> {
    let wrong = |what: &str| {
        mistyped(format!("cannot unmarshal {what} into Go struct field {place} of type {go_type}"))
    };
    let is_number = matches!(kind, Kind::Uint | Kind::Uint32 | Kind::Int | Kind::Duration);
    let number = match value {
        Yaml::Null => return Ok(None),
        Yaml::Bool(value) if kind == Kind::Bool => return Ok(Some(value.to_string())),
        Yaml::Text(text) if !is_number && kind != Kind::Bool => return Ok(Some(text)),
        Yaml::Int(number) if is_number => number,
        // Go's reader accepts a float with an integral value as an integer.
        Yaml::Float(number) if is_number && number.fract() == 0.0 && number.abs() < 1e19 => number as i128,
        Yaml::Float(number) if is_number => return Err(wrong(&format!("number {number}"))),
        other => return Err(wrong(other.kind())),
    };
    let fits = match kind {
        Kind::Uint => u64::try_from(number).is_ok(),
        Kind::Uint32 => u32::try_from(number).is_ok(),
        _ => i64::try_from(number).is_ok(),
    };
    match fits {
        false => Err(wrong(&format!("number {number}"))),
        true if kind == Kind::Duration => Ok(Some(format!("{number}ns"))),
        true => Ok(Some(number.to_string())),
    }
}

/// Converts a YAML list to a list of strings; `None` for null.
fn texts(value: Yaml, place: &str) -> Result<Option<Vec<String>>, Refusal> {
    let wrong = |kind: &str, of: &str| {
        mistyped(format!("cannot unmarshal {kind} into Go struct field {place} of type {of}"))
    };
    let items = match value {
        Yaml::Null => return Ok(None),
        Yaml::List(items) => items,
        other => return Err(wrong(other.kind(), "[]string")),
    };
    let text = |item: Yaml| match item {
        Yaml::Text(text) => Ok(text),
        Yaml::Null => Ok(String::new()),
        other => Err(wrong(other.kind(), "string")),
    };
    items.into_iter().map(text).collect::<Result<_, _>>().map(Some)
}

fn mistyped(text: String) -> Refusal {
    Refusal::invalid(format!("error unmarshaling JSON: while decoding JSON: json: {text}"))
}

/// Returns the Go type of etcd's field, for error messages.
fn go_type(flag: Option<&FlagRow>, kind: Kind) -> &'static str {
    let is = |names: &[&str]| flag.is_some_and(|flag| names.contains(&flag.name));
    match kind {
        Kind::Bool => "bool",
        Kind::Uint if is(&[SNAPSHOT_COUNT.row().name, SNAPSHOT_CATCHUP_ENTRIES.row().name]) => "uint64",
        Kind::Uint => "uint",
        Kind::Uint32 => "uint32",
        Kind::Int if is(&[QUOTA_BACKEND_BYTES.row().name]) => "int64",
        Kind::Int => "int",
        Kind::Duration => "time.Duration",
        _ => "string",
    }
}
