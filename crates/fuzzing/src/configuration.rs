//! Parses arbitrary command-line flags, environment variables and values, and checks the accepted
//! configurations.

use cli::go::{nanoseconds, parse_duration};
use config::flag::Kind;
use config::table::FLAGS;
use config::{Invocation, Url, parse};

use crate::script::Script;

/// Fuzz target: parses arguments and environment variables. The lines of the input before the first empty
/// line are arguments, and the lines after it are variables. If a line begins with a byte from 1 to 31, this
/// byte selects a flag, and the rest of the line is the value of the flag.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let args: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).map(expand).collect();
    let env: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let read = parse(&args, &env);
    let Ok(Invocation::Serve(parsed)) = read else { return };
    let config = &parsed.config;
    // Check the properties that the documentation of `Config` promises for every accepted configuration.
    assert!(!config.listen.peer_urls.is_empty() && !config.listen.client_urls.is_empty());
    assert!(
        !config.cluster.initial_advertise_peer_urls.is_empty()
            && !config.cluster.advertise_client_urls.is_empty()
    );
    assert!(config.raft.snapshot_count > 0 && config.raft.snapshot_catchup_entries > 0);
    assert!(!config.raft.heartbeat_interval.is_zero());
    assert!(config.raft.election_timeout >= config.raft.heartbeat_interval * 5);
    assert!(config.raft.election_timeout.as_secs() <= 50);
    assert!(config.compaction.batch_limit > 0 && !config.compaction.sleep_interval.is_zero());
    assert!(!config.observability.warning_unary_request_duration.is_zero());
    assert!(!config.clients.watch_progress_notify_interval.is_zero());
    let _ = config.bootstrap();
}

fn expand(line: &str) -> String {
    match line.as_bytes() {
        [number @ 1..32, ..] => {
            let flag = &FLAGS[usize::from(*number) * 3 % FLAGS.len()];
            format!("--{}={}", flag.name, &line[1..])
        }
        _ => line.to_owned(),
    }
}

/// Returns every flag with its default, and some complete command lines.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = FLAGS
        .iter()
        .map(|flag| format!("--{}={}\n\nETCD_NAME=m", flag.name, flag.default).into_bytes())
        .collect();
    for whole in [
        "--name\na\n--data-dir=/d\n--listen-client-urls=http://127.0.0.1:2379,unix://s\n\
         --advertise-client-urls=http://a:1\n--initial-cluster=a=http://h:2380,b=http://i:2380\n\
         --initial-advertise-peer-urls=http://h:2380\n--initial-cluster-state=existing\n\
         --auto-compaction-mode=periodic\n--auto-compaction-retention=5m\n\nETCD_QUOTA_BACKEND_BYTES=1GiB",
        "-name=a\n--feature-gates=InitialCorruptCheck=true,LeaseCheckpoint=false\n--log-outputs=stderr,/l\n--debug",
        "--election-timeout=1000\n--heartbeat-interval=100\n--log-level=warn\n-version=f\n\nETCD_LOG_LEVEL=debug",
        "gateway",
        "--help",
        "--\nx",
    ] {
        seeds.push(whole.as_bytes().to_vec());
    }
    seeds
}

/// Fuzz target for values without flags: parses the input as a duration, a URL, a list, and a value of one
/// kind of flag.
pub fn run_values(data: &[u8]) {
    let mut script = Script::new(data);
    let kind = script.u8();
    let text = String::from_utf8_lossy(script.rest());
    if let Ok(nanos) = parse_duration(&text) {
        let written = nanoseconds(nanos);
        assert_eq!(parse_duration(&written), Ok(nanos), "{text} is written as {written}");
    }
    if let Ok(url) = Url::parse(&text) {
        let again = Url::parse(url.as_str()).expect("what was read can be read again");
        assert_eq!(url.as_str(), again.as_str());
        assert_eq!((url.host(), url.port()), (again.host(), again.port()));
        let _ = url.is_bindable();
    }
    let _ = Url::parse_list(&text);
    let _ = peer::check_url(&text);
    let kinds: Vec<Kind> = FLAGS.iter().map(|flag| flag.kind).collect();
    let _ = kinds[usize::from(kind) % kinds.len()].parse(&text);
}

/// Returns values of all kinds.
pub fn seeds_values() -> Vec<Vec<u8>> {
    [
        "1h2m3.5s",
        "-1.5h",
        "0",
        "1us2ns",
        "2562047h47m16.854775807s",
        "http://[::1]:2379",
        "https://a.b:80",
        "unix://x:1",
        "unixs:///run/s",
        "http://1.2.3.4:0,http://h:65535",
        "a=true,b=false",
        "18446744073709551615",
        "0x1f",
        "t",
    ]
    .iter()
    .enumerate()
    .map(|(kind, text)| [&[kind as u8], text.as_bytes()].concat())
    .collect()
}
