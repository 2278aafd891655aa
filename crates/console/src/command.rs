//! Implements `mainstay console`, which runs the console as a separate process, for any cluster of Mainstay
//! or etcd.

use std::ffi::OsString;
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use api::url::Url;
use cli::{Command, Failure, Flag, FlagRow, Invocation, Io, Matches, Program};
use telemetry::logging::Logger;
use tls::{SystemClock, Tls};

use crate::{Console, Limits, Listener, ListenerSocket, Options, Source};

const ENDPOINTS: Flag<Vec<String>> =
    Flag::list("endpoints", "127.0.0.1:2379", "client URLs of members; the others are found through them");
const LISTEN: Flag<String> =
    Flag::text("listen", "http://127.0.0.1:2382", "`URL` at which to serve the console");
const HOSTS: Flag<Vec<String>> = Flag::list(
    "host-whitelist",
    "",
    "host names under which the console is served without TLS, besides IP addresses and localhost",
);
const REQUESTS_PER_ADDRESS: Flag<u64> = Flag::uint(
    "requests-per-address",
    "24",
    "number of concurrent requests from one address that the console passes on to members (at most 48 from all addresses together); raise it behind a reverse proxy",
);
const CERT_FILE: Flag<String> = Flag::text("cert-file", "", "certificate `file` (PEM) of an https --listen");
const KEY_FILE: Flag<String> = Flag::text("key-file", "", "key `file` (PEM) of --cert-file");
const TRUSTED_CA_FILE: Flag<String> =
    Flag::text("trusted-ca-file", "", "CA `file`: browsers must show a certificate signed by it");
const CACERT: Flag<String> =
    Flag::text("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle");
const CERT: Flag<String> = Flag::text("cert", "", "identify secure client using this TLS certificate file");
const KEY: Flag<String> = Flag::text("key", "", "identify secure client using this TLS key file");
const INSECURE_SKIP_TLS_VERIFY: Flag<bool> =
    Flag::bool("insecure-skip-tls-verify", "skip server certificate verification (for testing only)");

const OWN_FLAGS: &[FlagRow] = &[
    LISTEN.row(),
    HOSTS.row(),
    REQUESTS_PER_ADDRESS.row(),
    CERT_FILE.row(),
    KEY_FILE.row(),
    TRUSTED_CA_FILE.row(),
];
/// Flags with the same names as etcdctl's. They can also be set by etcdctl's environment variables.
const SHARED_FLAGS: &[FlagRow] =
    &[ENDPOINTS.row(), CACERT.row(), CERT.row(), KEY.row(), INSECURE_SKIP_TLS_VERIFY.row()];

const LONG: &str = "\
Serves a web page that shows a cluster of Mainstay or etcd and lets authorized users change it. If the cluster has users,
visitors log in as one of them.

Anyone who can reach --listen acts with the certificate of --cert. Keep it on the loopback interface, or serve it over https.";

const EXAMPLE: &str = "  mainstay console --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  mainstay console --cacert=ca.crt --cert=client.crt --key=client.key --endpoints=https://etcd.example:2379
  ETCDCTL_ENDPOINTS=10.0.0.1:2379 mainstay console --listen=http://127.0.0.1:8080";

/// The command line of `mainstay console`.
pub const PROGRAM: Program<()> = Program {
    root: Command {
        name: "console",
        usage: "console [flags]",
        about: "Serves a web console for a cluster",
        long: LONG,
        example: EXAMPLE,
        flags: OWN_FLAGS,
        run: Some(()),
        ..Command::EMPTY
    },
    globals: SHARED_FLAGS,
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_API"],
    globals_hint: "",
};

/// Runs the console in this process until `wait` returns. `args` are the arguments that follow `console`.
pub fn run(args: &[OsString], wait: &dyn Fn(&Logger)) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process(), wait))
}

fn run_in(args: &[OsString], io: &Io, wait: &dyn Fn(&Logger)) -> u8 {
    let matches = match PROGRAM.parse(args, io.text_environment()) {
        Ok(Invocation::Run(matches, ())) => matches,
        Ok(Invocation::Help(text)) => {
            io.out.notice(text);
            return 0;
        }
        Ok(Invocation::Group(matches)) => {
            io.out.notice(PROGRAM.help(&matches.path));
            return 0;
        }
        Err(error) => {
            io.err.notice(format!("Error: {error}\n{}", PROGRAM.usage(&error.path)));
            return Failure::ERROR;
        }
    };
    for reason in &matches.unusable_env {
        io.err.notice(format!("Warning: {reason}; the variable has no effect\n"));
    }
    match serve(&matches, io, wait) {
        Ok(()) => 0,
        Err(failure) => {
            io.err.notice(format!("Error: {failure}\n"));
            failure.code
        }
    }
}

fn serve(matches: &Matches, io: &Io, wait: &dyn Fn(&Logger)) -> Result<(), Failure> {
    if let Some(extra) = matches.arg_text(0) {
        let extra = cli::go::quote(extra);
        return Err(Failure::error(format!("unknown argument {extra}: give endpoints with --endpoints")));
    }
    let path =
        |flag: Flag<String>| Some(matches.get(flag)).filter(|text| !text.is_empty()).map(PathBuf::from);
    let load = |settings: tls::Settings| Tls::load(settings, Arc::new(SystemClock)).map_err(Failure::error);
    let dialing = tls::Settings {
        trusted_ca_file: path(CACERT),
        client_cert_file: path(CERT),
        client_key_file: path(KEY),
        insecure_skip_verify: matches.get(INSECURE_SKIP_TLS_VERIFY),
        ..tls::Settings::default()
    };
    let is_secure = dialing != tls::Settings::default();
    let source = Source::Endpoints(endpoints(matches.get(ENDPOINTS), is_secure)?);
    let (dialing, dialing_files) = load(dialing)?;
    let (serving, serving_files) = load(tls::Settings {
        cert_file: path(CERT_FILE),
        key_file: path(KEY_FILE),
        trusted_ca_file: path(TRUSTED_CA_FILE),
        ..tls::Settings::default()
    })?;
    let limits = limits(matches.get(REQUESTS_PER_ADDRESS))?;
    let url =
        Url::parse(matches.get(LISTEN)).map_err(|error| Failure::error(format!("--listen: {error}")))?;
    let (listener, shown) = listen(&url, &serving)?;
    let logger = Logger::stderr();
    let options = Options {
        listeners: vec![listener],
        hosts: matches.get(HOSTS).to_vec(),
        source,
        dialing: dialing.client(),
        reloaders: vec![dialing_files, serving_files],
        limits,
    };
    let console = Console::start(options, logger.clone()).map_err(Failure::error)?;
    if is_exposed(&url) {
        io.err.notice(format!("{EXPOSED}\n"));
    }
    io.out.notice(format!("The console is at {shown}\n"));
    wait(&logger);
    drop(console);
    Ok(())
}

/// Warning if other machines can reach a listener that does not use TLS.
const EXPOSED: &str = "passwords and data are sent in clear text to the console's listener: serve it over https, or on the loopback interface";

/// Returns true if the listener does not use TLS and other machines can reach it.
fn is_exposed(url: &Url) -> bool {
    !url.scheme().is_secure() && !url.is_local()
}

/// Returns the default limits, but with this number of concurrent requests for each client address.
fn limits(requests_per_address: u64) -> Result<Limits, Failure> {
    let limits = Limits::default();
    let max = limits.forwarded_max;
    match usize::try_from(requests_per_address) {
        Ok(forwarded_per_address) if (1..=max).contains(&forwarded_per_address) => {
            Ok(Limits { forwarded_per_address, ..limits })
        }
        _ => Err(Failure::error(format!("--requests-per-address={requests_per_address}: 1 to {max}"))),
    }
}

/// Parses the endpoints. As in etcd's tools, an endpoint without a scheme uses TLS if any TLS flag is given.
fn endpoints(given: &[String], is_secure: bool) -> Result<Vec<Url>, Failure> {
    let mut urls: Vec<Url> = Vec::new();
    for text in given.iter().map(|text| text.trim()).filter(|text| !text.is_empty()) {
        let is_whole = text.contains("://") || text.starts_with("unix:") || text.starts_with("unixs:");
        let scheme = if is_secure { "https" } else { "http" };
        let text = if is_whole { text.to_owned() } else { format!("{scheme}://{text}") };
        let text = text.trim_end_matches('/');
        let url = Url::parse(text).map_err(|error| Failure::error(format!("--endpoints: {error}")))?;
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    if urls.is_empty() {
        return Err(Failure::error("no endpoints: give --endpoints=HOST:PORT,..."));
    }
    Ok(urls)
}

/// Starts to listen at a URL. Returns the listener, and the URL that a user can open in a browser.
fn listen(url: &Url, serving: &Tls) -> Result<(Listener, String), Failure> {
    if url.scheme().is_unix() {
        return Err(Failure::error("--listen: `mainstay console` listens only at http and https URLs"));
    }
    let tls = match (url.scheme().is_secure(), serving.server()) {
        (true, None) => {
            return Err(Failure::error("--listen with https needs a certificate (--cert-file, --key-file)"));
        }
        (is_secure, tls) => tls.filter(|_| is_secure),
    };
    let failed = |error: std::io::Error| Failure::error(format!("--listen={url}: {error}"));
    let addresses: Vec<_> = (url.host(), url.port()).to_socket_addrs().map_err(failed)?.collect();
    let socket = std::net::TcpListener::bind(addresses.as_slice()).map_err(failed)?;
    let port = socket.local_addr().map_err(failed)?.port();
    let host = if url.host().contains(':') { format!("[{}]", url.host()) } else { url.host().to_owned() };
    let shown = format!("{}://{host}:{port}/", url.scheme());
    Ok((Listener { socket: ListenerSocket::Tcp(socket), tls, host: url.host().to_owned() }, shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sound() {
        PROGRAM.assert_sound();
    }

    #[test]
    fn an_address_may_have_all_places_and_no_more() {
        let of = |requests| {
            limits(requests).map(|limits| limits.forwarded_per_address).map_err(|failure| failure.to_string())
        };
        assert_eq!((of(1), of(48)), (Ok(1), Ok(48)));
        for wrong in [0, 49, u64::MAX] {
            assert_eq!(of(wrong), Err(format!("--requests-per-address={wrong}: 1 to 48")));
        }
        let Ok(Invocation::Run(matches, ())) = PROGRAM.parse(&[], Vec::new()) else {
            panic!("no flag is needed")
        };
        let default = usize::try_from(matches.get(REQUESTS_PER_ADDRESS));
        assert_eq!(default, Ok(Limits::default().forwarded_per_address));
    }

    #[test]
    fn endpoints_without_a_scheme_are_read_as_etcds_tools_read_them() {
        let read = |given: &[&str], is_secure| {
            let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
            let urls = endpoints(&given, is_secure).map_err(|failure| failure.to_string())?;
            Ok::<_, String>(urls.iter().map(|url| url.as_str().to_owned()).collect::<Vec<_>>().join(","))
        };
        assert_eq!(read(&["a:1", "http://b:2/", " a:1"], false).as_deref(), Ok("http://a:1,http://b:2"));
        assert_eq!(read(&["a:1", "http://b:2"], true).as_deref(), Ok("https://a:1,http://b:2"));
        assert_eq!(read(&["[::1]:1", "unix:///x"], false).as_deref(), Ok("http://[::1]:1,unix:///x"));
        for wrong in ["", "a", "ftp://a:1", "http://a:1/x"] {
            assert!(read(&[wrong], false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_others_can_reach_without_tls_is_exposed() {
        for (url, exposed) in [
            ("http://127.0.0.1:1", false),
            ("http://localhost:1", false),
            ("http://[::1]:1", false),
            ("unix:///x", false),
            ("https://10.0.0.1:1", false),
            ("http://0.0.0.0:1", true),
            ("http://10.0.0.1:1", true),
        ] {
            assert_eq!(is_exposed(&Url::parse(url).unwrap()), exposed, "{url}");
        }
    }
}
