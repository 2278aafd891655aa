//! `--config-file`: compares results with those of etcd 3.7 for the same files.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use mainstay_config::feature_gate::INITIAL_CORRUPT_CHECK;
use mainstay_config::{Config, InitialClusterState, Invocation, Parsed, Refusal, parse};
use testkit::TempDir;

const MEMBER: &str = "name: m
listen-peer-urls: http://127.0.0.1:1380
listen-client-urls: http://127.0.0.1:1379
initial-advertise-peer-urls: http://127.0.0.1:1380
advertise-client-urls: http://127.0.0.1:1379
initial-cluster: m=http://127.0.0.1:1380
";

fn parse_with(file: &Path, more: &[&str], env: &[(&str, &str)]) -> Result<Invocation, Refusal> {
    let mut args = vec![format!("--config-file={}", file.display())];
    args.extend(more.iter().map(|word| (*word).to_owned()));
    let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    parse(&args, &env)
}

fn read(text: &str) -> Result<Parsed, Refusal> {
    let dir = TempDir::in_memory("config-file");
    let file = dir.path().join("etcd.conf.yml");
    std::fs::write(&file, text).expect("a file can be written");
    match parse_with(&file, &[], &[])? {
        Invocation::Serve(parsed) => Ok(*parsed),
        other => panic!("{other:?}"),
    }
}

/// The configuration of a member whose file has these additional lines.
fn with(lines: &str) -> Config {
    read(&format!("{MEMBER}{lines}\n")).unwrap_or_else(|refusal| panic!("{lines}: {refusal}")).config
}

/// The error for a file with these additional lines.
fn refused(lines: &str) -> String {
    match read(&format!("{MEMBER}{lines}\n")) {
        Ok(parsed) => panic!("{lines}: {:?}", parsed.config),
        Err(Refusal::Syntax(text)) => text,
        Err(Refusal::Invalid(entries)) => {
            let error = entries.iter().flat_map(|entry| &entry.fields).find(|(key, _)| *key == "error");
            error.map(|(_, text)| text.clone()).expect("a refusal says why")
        }
    }
}

#[test]
fn values_have_the_forms_that_etcd_takes() {
    for number in ["200", "200.0", "2e2", "0xc8", "0310", "2_00", "\t200", "!!int \"200\"", "!!float '200'"] {
        let config = with(&format!("heartbeat-interval: {number}"));
        assert_eq!(config.raft.heartbeat_interval, Duration::from_millis(200), "{number}");
    }
    // Null means not set, and keys may be in upper case; of equal keys the last one counts.
    assert_eq!(with("heartbeat-interval:").raft.heartbeat_interval, Duration::from_millis(100));
    assert_eq!(with("Heartbeat-INTERVAL: 50").raft.heartbeat_interval, Duration::from_millis(50));
    assert_eq!(
        with("heartbeat-interval: 60\nheartbeat-interval: 70").raft.heartbeat_interval,
        Duration::from_millis(70)
    );
    for nanoseconds in ["10000000000", "1e10"] {
        let config = with(&format!("corrupt-check-time: {nanoseconds}"));
        assert_eq!(config.checks.corrupt_check_time, Duration::from_secs(10));
    }
    for no in ["false", "no", "Off", "n"] {
        assert!(!with(&format!("strict-reconfig-check: {no}")).cluster.strict_reconfig_check, "{no}");
    }
    assert_eq!(with("initial-cluster-token: '123'").cluster.initial_cluster_token, "123");
    assert_eq!(
        with("initial-cluster-state: existing").cluster.initial_cluster_state,
        InitialClusterState::Existing
    );
    assert_eq!(with("initial-cluster-state: ''").cluster.initial_cluster_state, InitialClusterState::New);
    assert_eq!(with("log-outputs: [stderr, stdout]").log.outputs.len(), 2);
    assert_eq!(
        with("quota-backend-bytes: 9223372036854775807").limits.quota_backend_bytes,
        Some(i64::MAX as u64)
    );
    assert_eq!(with("cors: http://a:1").clients.cors.unwrap(), ["http://a:1"]);
    assert!(with("feature-gates: InitialCorruptCheck=true").feature_gates.is_enabled(&INITIAL_CORRUPT_CHECK));
    assert!(with("socket-options: {reuse-port: true}").listen.reuse_port);
    // Mainstay's own flags are keys, and so are flags of etcd that its configuration file lacks.
    let config =
        with("zone: a\nmax-expensive-calls: 7\nraft-read-timeout: 7000000000\nclient-crl-file: /crl");
    assert_eq!((config.zone.as_str(), config.limits.max_expensive_calls), ("a", 7));
    assert_eq!(config.raft.read_timeout, Duration::from_secs(7));
    assert_eq!(config.client_tls.settings.crl_file.unwrap(), Path::new("/crl"));
}

#[test]
fn tls_stands_in_blocks() {
    let config = with(
        "client-transport-security:
  cert-file: /c.crt
  key-file: /c.key
  client-cert-auth: true
  trusted-ca-file: /ca
  allowed-cn: [root, admin]
  allowed-hostname: [h.example]
  auto-tls: false
peer-transport-security: {cert-file: /p.crt, key-file: /p.key, allowed-cn: ['m1,m2'], auto-tls: true,
  skip-client-san-verification: true}
cipher-suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
self-signed-cert-validity: 3",
    );
    let (clients, members) = (&config.client_tls, &config.peer_tls);
    assert_eq!(clients.settings.cert_file.as_deref(), Some(Path::new("/c.crt")));
    assert!(clients.settings.client_cert_auth && !clients.auto && members.auto);
    assert_eq!(clients.settings.allowed_cns, ["root", "admin"]);
    assert_eq!(clients.settings.allowed_hostnames, ["h.example"]);
    assert_eq!(members.settings.key_file.as_deref(), Some(Path::new("/p.key")));
    assert!(members.settings.skip_client_san_verify && !clients.settings.skip_client_san_verify);
    assert_eq!(clients.settings.cipher_suites, ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    assert_eq!(members.self_signed_years, 3);
}

/// If the parser ignored a merge key, the member would serve clients without the certificates that the file
/// requires of them.
#[test]
fn merge_keys_count_in_blocks() {
    let config = with(
        "base: &tls {client-cert-auth: true, cert-file: a.crt}
client-transport-security: {<<: *tls, Cert-File: b.crt, key-file: b.key, trusted-ca-file: ca.crt}",
    );
    assert!(config.client_tls.settings.client_cert_auth);
    assert_eq!(config.client_tls.settings.cert_file.as_deref(), Some(Path::new("b.crt")));
    assert!(refused("<<: 5").contains("map merge requires map or sequence of maps as the value"));
}

#[test]
fn what_etcd_refuses_is_refused_in_its_words() {
    let json = "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal ";
    for (lines, error) in [
        (
            "heartbeat-interval: '200'",
            "string into Go struct field configYAML.Config.heartbeat-interval of type uint",
        ),
        (
            "heartbeat-interval: -1",
            "number -1 into Go struct field configYAML.Config.heartbeat-interval of type uint",
        ),
        (
            "corrupt-check-time: 10s",
            "string into Go struct field configYAML.Config.corrupt-check-time of type time.Duration",
        ),
        (
            "strict-reconfig-check: 'true'",
            "string into Go struct field configYAML.Config.strict-reconfig-check of type bool",
        ),
        (
            "strict-reconfig-check: 1",
            "number into Go struct field configYAML.Config.strict-reconfig-check of type bool",
        ),
        (
            "initial-cluster-token: 123",
            "number into Go struct field configYAML.Config.initial-cluster-token of type string",
        ),
        (
            "initial-cluster-token: true",
            "bool into Go struct field configYAML.Config.initial-cluster-token of type string",
        ),
        (
            "initial-cluster-token: [a]",
            "array into Go struct field configYAML.Config.initial-cluster-token of type string",
        ),
        ("log-outputs: stderr", "string into Go struct field configYAML.Config.log-outputs of type []string"),
        (
            "log-outputs: [stderr, 5]",
            "number into Go struct field configYAML.Config.log-outputs of type string",
        ),
        (
            "client-transport-security: 5",
            "number into Go struct field configYAML.configJSON.client-transport-security of type embed.securityConfig",
        ),
        (
            "feature-gates: {A: true}",
            "object into Go struct field configYAML.configJSON.feature-gates of type string",
        ),
        (
            "auto-compaction-retention: 1",
            "number into Go struct field configYAML.Config.auto-compaction-retention of type string",
        ),
        (
            "quota-backend-bytes: 9223372036854775808",
            "number 9223372036854775808 into Go struct field configYAML.Config.quota-backend-bytes of type int64",
        ),
    ] {
        assert_eq!(refused(lines), format!("{json}{error}"), "{lines}");
    }
    for (lines, error) in [
        ("peer-transport-security:", "invalid peer-transport-security"),
        ("initial-cluster-state: bogus", "unexpected clusterState \"bogus\""),
        ("feature-gates: Bogus=true", "unrecognized feature gate: Bogus"),
        (
            "listen-metrics-urls: foo",
            "unexpected error setting up listen-metrics-urls: URL scheme must be http, https, unix, or unixs: foo",
        ),
        // etcd panics here.
        (
            "cors: foo",
            "unexpected error setting up cors: URL scheme must be http, https, unix, or unixs: foo",
        ),
        ("log-level: bogus", "unrecognized level: \"bogus\""),
        (
            "heartbeat-interval: !!int x",
            "error converting YAML to JSON: yaml: line 7: cannot decode !!str `x` as a !!int",
        ),
    ] {
        assert_eq!(refused(lines), error, "{lines}");
    }
    for (text, error) in [("5", "number"), ("[]", "array")] {
        let error = format!("{json}{error} into Go value of type embed.configYAML");
        assert!(read(text).unwrap_err().to_string().contains(&error), "{text}");
    }
    for broken in ["bogus: [1", "\tname: x", "- a"] {
        let error = refused(broken);
        assert!(error.starts_with("error converting YAML to JSON: yaml: line "), "{error}");
    }
    let error = refused("discovery-config: {token: a}");
    assert_eq!(error, "both --discovery-token and --discovery-endpoints must be set");
    let error = refused("discovery-config: {client: 1}");
    assert!(error.ends_with("discovery-config.client of type clientv3.ConfigSpec"), "{error}");
}

#[test]
fn a_discovery_service_has_a_block_of_its_own() {
    let text = "name: m\ndiscovery-config:\n  token: t\n  client:\n    endpoints: [a:1, b:2]\n    request-timeout: 7000000000\n    \
                secure: {cacert: /ca, insecure-transport: false}\n    auth: {username: u, password: p}\n";
    let config = read(text).expect("is good").config;
    let Some(mainstay_config::Discovery::Service(service)) = &config.cluster.discovery else {
        panic!("{:?}", config.cluster.discovery)
    };
    assert_eq!(
        (service.token.as_str(), &service.endpoints[..]),
        ("t", &["a:1".to_owned(), "b:2".to_owned()][..])
    );
    assert_eq!(service.request_timeout, Duration::from_secs(7));
    assert_eq!(service.dial_timeout, Duration::from_secs(2), "the default");
    assert_eq!(service.cacert.as_deref(), Some(Path::new("/ca")));
    assert_eq!(service.user, Some(("u".to_owned(), "p".to_owned())));
    assert!(!service.insecure_transport && config.cluster.initial_cluster.is_empty());
    assert!(!format!("{service:?}").contains("\"p\""));
}

#[test]
fn keys_without_effect_are_named() {
    let parsed = read(&format!(
        "{MEMBER}bogus: 1\nclient-transport-security:\n  bogus: 2\ncert-file: /c\nenable-v2: true\nproxy: 'off'\n"
    ))
    .expect("etcd takes it");
    let mut told = String::new();
    for entry in parsed.warnings.iter().filter(|entry| entry.message.starts_with("unrecognized key")) {
        let fields: Vec<String> = entry.fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
        writeln!(told, "{}", fields.join(" ")).unwrap();
    }
    assert_eq!(
        told,
        "key=bogus line=7\n\
         key=client-transport-security: bogus line=9\n\
         key=cert-file line=10 belongs-to=client-transport-security: cert-file\n\
         key=enable-v2 line=11\n\
         key=proxy line=12\n"
    );
    assert_eq!(parsed.config.client_tls.settings.cert_file, None, "it has no effect in etcd");
    // Old spellings are accepted.
    let parsed =
        read(&format!("{MEMBER}experimental-corrupt-check-time: 10000000000\nmax-snapshots: 5\n")).unwrap();
    assert_eq!(parsed.config.checks.corrupt_check_time, Duration::from_secs(10));
    let warned = |words: &str| parsed.warnings.iter().any(|entry| entry.to_string().contains(words));
    assert!(warned("experimental-corrupt-check-time") && warned("--max-snapshots is deprecated in 3.6"));
}

#[test]
fn a_file_leaves_flags_and_environment_without_effect() {
    let dir = TempDir::in_memory("config-file-alone");
    let file = dir.path().join("c.yml");
    std::fs::write(&file, MEMBER).unwrap();
    let flags = ["--name=other", "--log-level=bogus", "--listen-client-urls=http://127.0.0.1:5"];
    let Ok(Invocation::Serve(parsed)) = parse_with(&file, &flags, &[("ETCD_NAME", "e"), ("ETCD_BOGUS", "1")])
    else {
        panic!("it is taken");
    };
    assert_eq!((parsed.config.name.as_str(), parsed.config.listen.client_urls.len()), ("m", 1));
    let ignored = parsed.warnings.iter().flat_map(|entry| &entry.fields).find(|(key, _)| *key == "ignored");
    assert_eq!(ignored.unwrap().1, "--listen-client-urls, --log-level, --name, ETCD_NAME");
    assert!(
        parsed.notices[0]
            .message
            .starts_with("loaded server configuration, other configuration command line")
    );
    // Flags are parsed first even if a file is given.
    assert!(matches!(parse_with(&file, &["--bogus"], &[]), Err(Refusal::Syntax(_))));
    assert!(matches!(parse_with(&file, &["--version"], &[]), Ok(Invocation::Version)));
    // The environment can name the file, and the flag takes precedence.
    let path = file.display().to_string();
    let env = [("ETCD_CONFIG_FILE".to_owned(), path.clone()), ("ETCD_NAME".to_owned(), "e".to_owned())];
    let Ok(Invocation::Serve(parsed)) = parse(&[], &env) else { panic!("it is taken") };
    assert_eq!(parsed.config.name, "m");
    let missing = parse(&["--config-file=/nonexistent".to_owned()], &env).unwrap_err().to_string();
    assert!(missing.contains("error: open /nonexistent: no such file or directory"), "{missing}");
    let directory = parse(&["--config-file=/tmp".to_owned()], &[]).unwrap_err().to_string();
    assert!(directory.contains("error: read /tmp: is a directory"), "{directory}");
    std::fs::write(&file, "#".repeat((1 << 20) + 1)).unwrap();
    let large = parse_with(&file, &[], &[]).unwrap_err().to_string();
    assert!(large.contains("a configuration file may have at most 1048576 bytes"), "{large}");
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    assert!(parse_with(&file, &[], &[]).unwrap_err().to_string().contains("invalid UTF-8"));
}

#[test]
fn defaults_are_those_of_the_flags() {
    for empty in ["", "# nothing\n", "null", "{}", "---\n"] {
        let config = read(empty).unwrap_or_else(|refusal| panic!("{empty:?}: {refusal}")).config;
        assert_eq!(
            (config.name.as_str(), config.listen.client_urls[0].as_str()),
            ("default", "http://localhost:2379")
        );
    }
    // As in etcd, a file that names listeners may leave the advertised URLs at the default.
    let config = read("listen-client-urls: http://127.0.0.1:5\n").unwrap().config;
    assert_eq!(config.cluster.advertise_client_urls[0].as_str(), "http://localhost:2379");
    let json = r#"{"name": "j", "initial-cluster": "j=http://localhost:2380", "max-txn-ops": 7}"#;
    let config = read(json).unwrap().config;
    assert_eq!((config.name.as_str(), config.limits.max_txn_ops), ("j", 7));
}
