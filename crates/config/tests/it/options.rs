//! Tests of the command line and the environment through the public interface.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use mainstay_config::flag::{Group, Kind, Status};
use mainstay_config::table::{FLAGS, OLD_SPELLINGS, Successor, find_flag};
use mainstay_config::{
    AutoCompaction, AutopilotMode, AutopilotSettings, Config, Discovery, InitialClusterState, Invocation,
    MetricsDetail, Parsed, Refusal, flag_help, flags_page, parse, usage, version_text,
};
use mainstay_config::{Format, Level, LogOutput};

use testkit::expect;

fn run(line: &str) -> Result<Invocation, Refusal> {
    let mut env = Vec::new();
    let mut args = Vec::new();
    for word in split(line) {
        match word.split_once('=') {
            Some((name, value)) if args.is_empty() && word.starts_with("ETCD") => {
                env.push((name.to_string(), value.to_string()));
            }
            _ => args.push(word),
        }
    }
    parse(&args, &env)
}

/// Splits a line into words; quotes keep blanks, or make an empty word.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None;
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_with(String::new);
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_with(String::new).push(c),
        }
    }
    words.extend(word);
    words
}

fn parsed(line: &str) -> Parsed {
    match run(line) {
        Ok(Invocation::Serve(parsed)) => *parsed,
        other => panic!("{line}: {other:?}"),
    }
}

fn config(line: &str) -> Config {
    parsed(line).config
}

fn transcript(script: &str) -> String {
    let mut out = String::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let _ = writeln!(out, "$ {line}");
        match run(line) {
            Ok(Invocation::Help) => out.push_str("help\n"),
            Ok(Invocation::Version) => out.push_str("version\n"),
            Ok(Invocation::Serve(parsed)) => {
                for entry in parsed.warnings.iter().chain(&parsed.notices) {
                    let _ = writeln!(out, "{entry}");
                }
                match parsed.config.bootstrap() {
                    Ok(bootstrap) => {
                        for member in &bootstrap.members {
                            let urls: Vec<&str> = member.peer_urls.iter().map(|url| url.as_str()).collect();
                            let here = if member.id == bootstrap.local_id { " (this one)" } else { "" };
                            let _ = writeln!(
                                out,
                                "member {:x} {} {}{here}",
                                member.id,
                                member.name,
                                urls.join(",")
                            );
                        }
                        let _ = writeln!(out, "cluster {:x}", bootstrap.cluster_id);
                    }
                    Err(error) => {
                        let _ = writeln!(out, "{error}\nexit {}", error.exit_code());
                    }
                }
            }
            Err(refusal) => {
                let _ = writeln!(out, "{refusal}\nexit {}", refusal.exit_code());
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn help_is_as_expected() {
    for line in ["-h", "--help", "--name x -h", "-help --no-such-flag"] {
        assert!(matches!(run(line), Ok(Invocation::Help)), "{line}");
    }
    expect::check("help.txt", &format!("{}{}", usage(), flag_help()));
}

#[test]
fn version_is_as_expected() {
    for line in ["--version", "-version=true", "--cert-file x --version"] {
        assert!(matches!(run(line), Ok(Invocation::Version)), "{line}");
    }
    let line = |line: &str| match line.split_once(": ") {
        Some((name @ ("Git SHA" | "Go OS/Arch"), value)) if !value.is_empty() => {
            format!("{name}: (of the build)\n")
        }
        _ => format!("{line}\n"),
    };
    assert!(version_text(Some("0123abc")).contains("\nGit SHA: 0123abc\n"));
    expect::check("version.txt", &version_text(None).lines().map(line).collect::<String>());
}

#[test]
fn refusals_are_as_expected() {
    let script = "
        --no-such-flag
        -no-such-flag=1
        --data-drr=x
        ---name
        --=x
        -=x
        --name
        stray
        -- stray
        -
        --name=a stray
        --pre-vote=maybe
        --pre-vote false
        --heartbeat-interval=abc
        --heartbeat-interval=-1
        --heartbeat-interval=99999999999999999999
        --quota-backend-bytes=99999999999999999999
        --max-concurrent-streams=4294967296
        --max-concurrent-streams=x
        --grpc-keepalive-timeout=5
        --initial-cluster-state=old
        --v2-deprecation=not-yet
        --listen-client-urls=foo
        --listen-client-urls=127.0.0.1:2379
        --listen-client-urls=http://127.0.0.1
        --listen-peer-urls=http://127.0.0.1:2380/x
        --feature-gates=Nope=true
        --feature-gates=PriorityRequest
        ETCD_NAME=a --name=b
        ETCD_NAME= --name=b
        ETCD_NAME=a ETCD_PRE_VOTE=x --name=b
        ETCD_PRE_VOTE=x
        ETCD_HEARTBEAT_INTERVAL=x
        --heartbeat-interval=0
        --election-timeout=0
        --election-timeout=200
        --election-timeout=60000
        --listen-client-urls=http://example.com:2379
        --listen-peer-urls=http://example.com:2380
        --listen-metrics-urls=http://example.com:2381
        --listen-console-urls=http://example.com:2382
        --listen-client-urls=http://127.0.0.1:2379
        --listen-client-urls=
        --advertise-client-urls=http://:2379
        --initial-advertise-peer-urls=http://:2380
        --auto-compaction-mode=sometimes
        --auto-compaction-mode=
        --auto-compaction-retention=foo
        --auto-compaction-retention=-5
        --auto-compaction-retention=-5m
        --auto-compaction-retention=9999999
        --logger=capnslog
        --logger=slog
        --log-level=loud
        --log-format=xml
        --log-outputs=default,stderr
        --log-outputs=systemd/journal
        --compact-hash-check-time=0s
        --backend-bbolt-freelist-type=tree
        --backend-batch-limit=-1
        --max-learners=-1
        --compaction-batch-limit=-1
        --grpc-keepalive-interval=-1s
        --listen-peer-urls=unixs:///run/peer.sock
        --listen-client-urls=unixs:///run/client.sock --advertise-client-urls=https://a:2379
        --tls-min-version=TLS1.1
        --tls-max-version=1.3
        --tls-min-version=TLS1.3 --tls-max-version=TLS1.2
        --tls-min-version=TLS1.3 --cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        --tls-min-version=TLS1.3 --cipher-suites=
        --self-signed-cert-validity=-1
        --client-cert-auth=maybe
        ETCD_CLIENT_CERT_AUTH=maybe
        --ca-file=/x
        --tls-min-version=TLS1.1 --compact-hash-check-time=0s
        --config-file=/etc/etcd.yaml
        ETCD_CONFIG_FILE=/etc/etcd.yaml
        --force-new-cluster
        --discovery-fallback=proxy
        --discovery-srv=example.com --initial-cluster=default=http://a:1
        --discovery-srv=example.com --discovery-token=t --discovery-endpoints=a:1
        --discovery-token=t
        --discovery-endpoints=a:1
        --discovery-token=t --discovery-endpoints=a:1,
        --discovery-token=t --discovery-endpoints=a:1 --discovery-dial-timeout=-1s
        --corrupt-check-time=1h
        --feature-gates=LeaseCheckpointPersist=true
        --experimental-enable-lease-checkpoint-persist
        --batch-fsync-window=6ms
        --share-tls-tickets --listen-peer-urls=https://127.0.0.1:2380
        --share-tls-tickets --listen-peer-urls=https://127.0.0.1:2380,http://127.0.0.1:2390 --peer-cert-file=c --peer-key-file=k --peer-trusted-ca-file=a --peer-client-cert-auth --peer-cert-allowed-cn=m
        --share-tls-tickets --listen-peer-urls=https://127.0.0.1:2380 --peer-cert-file=c --peer-key-file=k --peer-client-cert-auth --peer-cert-allowed-cn=m
        --share-tls-tickets --listen-peer-urls=https://127.0.0.1:2380 --peer-cert-file=c --peer-key-file=k --peer-trusted-ca-file=a --peer-cert-allowed-cn=m
        --share-tls-tickets --listen-peer-urls=https://127.0.0.1:2380 --peer-cert-file=c --peer-key-file=k --peer-trusted-ca-file=a --peer-client-cert-auth
        --share-tls-tickets --listen-peer-urls=https://127.0.0.1:2380 --peer-cert-file=c --peer-key-file=k --peer-trusted-ca-file=a --peer-client-cert-auth --peer-cert-allowed-cn=
        --share-tls-tickets --listen-peer-urls=https://127.0.0.1:2380 --peer-cert-file=c --peer-key-file=k --peer-trusted-ca-file=a --peer-client-cert-auth --peer-cert-allowed-cn=m,
        --experimental-batch-fsync-window=-1ms
        --experimental-max-learners=2 --max-learners=3
        --experimental-initial-corrupt-check --feature-gates=InitialCorruptCheck=true
        --experimental-warning-apply-duration=x
        ETCD_ADVERTISE_CLIENT_URL=http://a:1 --listen-client-urls=http://127.0.0.1:1
        --autopilot=yes
        --autopilot=on --autopilot-replace-after=4s
        --autopilot=on --autopilot-replace-after=20s --election-timeout=5000
        --autopilot-replace-after=-1s
        --autopilot-interval=999ms
        --autopilot-interval=61m
        --standby
        --feed=http://a:1 --autopilot=on
        --feed=http://a:1 --standby
        --zone-member-list=only
        --zone-networks=a=10.0.0.0/33 --zone-member-list=only
        gateway start
        grpc-proxy start
    ";
    expect::check("refusals.txt", &transcript(script));
}

#[test]
fn warnings_and_bootstraps_are_as_expected() {
    let script = "
        --name=default
        --name=a --data-dir=/d
        ETCD_NAME=a ETCD_DATA_DIR=/d ETCD_NO_SUCH=1 ETCD_VERSION=1 ETCD_UNSUPPORTED_ARCH=arm ETCD_WAL_DIR=
        --name a --data-dir /d -v --snapshot=5 --max-snapshots 7 --v2-deprecation=gone
        --name=a --data-dir=/d --max-wals=3 --backend-batch-interval=1s --backend-bbolt-freelist-type=array
        --name=a --data-dir=/d --max-request-bytes=20971520 --quota-backend-bytes=17179869184 --unsafe-no-fsync
        --name=a --data-dir=/d --auto-compaction-mode=revision --auto-compaction-retention=5m --metrics=all
        --name=a --data-dir=/d --feature-gates=InitialCorruptCheck=true,FastLeaseKeepAlive=false
        --name=a --data-dir=/d --feature-gates=AllAlpha=true
        --name=a --data-dir=/d --zone-networks=a=10.0.0.0/8
        --name=a --data-dir=/d --zone-networks=a=10.0.0.0/8 --zone=a
        --name=a --data-dir=/d --experimental-enable-lease-checkpoint --experimental-raft-pipeline=false --experimental-batch-fsync-window=0
        --name=a --data-dir=/d --experimental-initial-corrupt-check=true --experimental-watch-progress-notify-interval=5s
        ETCD_EXPERIMENTAL_MAX_LEARNERS=2 --name=a --data-dir=/d --experimental-compact-hash-check-enabled
        --name=a --data-dir=/d --listen-peer-urls=http://0.0.0.0:2380
        --name=a --data-dir=/d --listen-client-urls=https://127.0.0.1:2379 --advertise-client-urls=https://a:2379 --initial-cluster=a=https://h:1 --initial-advertise-peer-urls=https://h:1 --cert-file= --enable-grpc-gateway=false --corrupt-check-time=0 --tls-min-version=TLS1.2
        --name=b --data-dir=/d --initial-advertise-peer-urls=http://10.0.0.2:2380 --initial-cluster=a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,c=http://10.0.0.3:2380
        --name=d --data-dir=/d --initial-cluster=a=http://10.0.0.1:2380
        --name=a --data-dir=/d --initial-cluster=a=http://10.0.0.1:2380
        --name=a --data-dir=/d --initial-advertise-peer-urls=http://h:1,http://h:2 --initial-cluster=a=http://h:1
        --name=a --data-dir=/d --initial-cluster=a=http://h:1,b=http://h:1 --initial-cluster-state=existing
        --name=a --data-dir=/d --initial-cluster=a
        --name=a --data-dir=/d --initial-cluster=
    ";
    expect::check("warnings.txt", &transcript(script));
}

#[test]
fn the_flags_of_tls_are_those_of_clients_and_those_of_members() {
    let config = config(
        "--cert-file=c.crt --key-file=c.key --client-cert-auth --client-cert-file=cc.crt --client-key-file=cc.key \
         --client-crl-file=c.crl --client-cert-allowed-hostname=b,a --trusted-ca-file=c.ca --auto-tls \
         --peer-cert-file=p.crt --peer-key-file=p.key --peer-client-cert-auth=true --peer-client-cert-file=pc.crt \
         --peer-client-key-file=pc.key --peer-trusted-ca-file=p.ca --peer-crl-file=p.crl \
         --peer-cert-allowed-cn=m1,m2 --peer-cert-allowed-hostname=h --peer-auto-tls \
         --experimental-peer-skip-client-san-verification --self-signed-cert-validity=3 \
         --cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 --tls-max-version=TLS1.3",
    );
    let (clients, members) = (&config.client_tls, &config.peer_tls);
    assert_eq!(
        clients.settings.to_string(),
        "cert = c.crt, key = c.key, client-cert=cc.crt, client-key=cc.key, trusted-ca = c.ca, client-cert-auth = true, \
         crl-file = c.crl"
    );
    assert_eq!(clients.settings.allowed_hostnames, ["b", "a"]);
    assert!(clients.settings.allowed_cns.is_empty() && !clients.settings.skip_client_san_verify);
    assert_eq!(
        members.settings.to_string(),
        "cert = p.crt, key = p.key, client-cert=pc.crt, client-key=pc.key, trusted-ca = p.ca, client-cert-auth = true, \
         crl-file = p.crl"
    );
    assert_eq!(members.settings.allowed_cns, ["m1", "m2"]);
    assert_eq!(members.settings.allowed_hostnames, ["h"]);
    assert!(members.settings.skip_client_san_verify);
    for options in [clients, members] {
        assert!(options.auto);
        assert_eq!(options.self_signed_years, 3);
        assert_eq!(options.settings.cipher_suites, ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        assert_eq!(options.settings.min_version, Some(tls::Version::Tls12));
        assert_eq!(options.settings.max_version, Some(tls::Version::Tls13));
    }
}

#[test]
fn an_observer_uses_its_feeders_in_the_order_in_which_they_are_named() {
    let feeds = |args: &str| {
        let observer = config(args).observer.expect("an observer");
        observer.feeds.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(feeds("--feed=http://near:1,http://a:1"), ["http://near:1", "http://a:1"]);
    assert!(config("--feed=").observer.is_none());
}

#[test]
fn the_autopilot_is_off_unless_asked_for() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let settings = config("").autopilot;
    assert_eq!((settings.mode, settings.is_standby), (AutopilotMode::Off, false));
    assert_eq!((settings.replace_after, settings.interval), (minutes(10), Duration::from_secs(30)));
    assert_eq!(config("--autopilot=dry-run").autopilot.mode, AutopilotMode::DryRun);
    let flags = "--autopilot=on --autopilot-replace-after=5s --autopilot-interval=1h --standby \
                 --initial-cluster-state=existing";
    let expected = AutopilotSettings {
        mode: AutopilotMode::On,
        replace_after: Duration::from_secs(5),
        interval: minutes(60),
        is_standby: true,
    };
    assert_eq!(config(flags).autopilot, expected);
}

#[test]
fn a_cluster_may_be_found_by_records_or_a_service() {
    let srv = config("--name=a --data-dir=/d --discovery-srv=example.com --discovery-srv-name=blue");
    let expected = Discovery::Srv { domain: "example.com".to_owned(), name: "blue".to_owned() };
    assert_eq!(srv.cluster.discovery, Some(expected));
    assert_eq!(srv.cluster.initial_cluster, "", "nobody is named");
    assert_eq!(srv.peer_tls.settings.server_name.as_deref(), Some("example.com"));
    let with_ca = config("--discovery-srv=example.com --peer-trusted-ca-file=/ca");
    assert_eq!(with_ca.peer_tls.settings.server_name, None, "as in etcd");
    let found = config("--discovery-token=t --discovery-endpoints=b:1,a:1 --discovery-user=u:p --wal-dir=/w");
    let Some(Discovery::Service(service)) = &found.cluster.discovery else {
        panic!("{:?}", found.cluster.discovery)
    };
    assert_eq!(
        (&service.token[..], &service.endpoints[..]),
        ("t", &["a:1".to_owned(), "b:1".to_owned()][..])
    );
    assert_eq!(service.user, Some(("u".to_owned(), "p".to_owned())));
    assert_eq!(found.storage.wal_dir.as_deref(), Some(Path::new("/w")));
    let plain = config("--initial-cluster=default=http://localhost:2380");
    assert!(plain.cluster.discovery.is_none() && plain.storage.wal_dir.is_none());
}

#[test]
fn connections_to_members_come_from_the_first_address_that_others_can_reach() {
    let urls = "--initial-advertise-peer-urls=http://127.0.0.1:1,http://a.example:2,http://0.0.0.0:3,http://10.1.2.3:4,\
                http://10.1.2.4:5";
    assert_eq!(config(urls).peer_local_address(), None);
    let on = format!("--feature-gates=SetMemberLocalAddr=true {urls}");
    assert_eq!(config(&on).peer_local_address(), Some([10, 1, 2, 3].into()));
    assert_eq!(config("--feature-gates=SetMemberLocalAddr=true").peer_local_address(), None);
}

#[test]
fn an_empty_list_of_allowed_names_allows_nobody_as_in_etcd() {
    assert_eq!(config("--peer-cert-allowed-cn=").peer_tls.settings.allowed_cns, [""]);
    assert!(config("").peer_tls.settings.allowed_cns.is_empty());
    assert!(parse(&["--cipher-suites=".to_owned()], &[]).is_ok());
}

#[test]
fn the_documentation_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flags.md");
    expect::check_file(&path, &flags_page());
}

#[test]
fn the_table_has_every_flag_of_etcd_with_its_group_and_default() {
    let reference = expect::read("etcd_flags.txt");
    let rows = reference.lines().filter(|line| !line.starts_with('#'));
    let mut names = Vec::new();
    for row in rows {
        let mut columns = row.split('|').map(str::trim);
        let (name, group, default) =
            (columns.next().unwrap(), columns.next().unwrap(), columns.next().unwrap_or(""));
        // etcd's help text lists these two, but its parser does not accept them.
        if matches!(name, "discovery" | "discovery-proxy") {
            assert!(find_flag(name).is_none());
            continue;
        }
        names.push(name);
        let flag = find_flag(name).unwrap_or_else(|| panic!("--{name} is missing"));
        let expected_group = if group.is_empty() { Group::General.title() } else { group };
        assert_eq!(flag.group.title(), expected_group, "group of --{name}");
        let default = default.split(" (").next().unwrap();
        let default = if name == "data-dir" { "" } else { default };
        let value =
            |text: &str| flag.kind.parse(text).unwrap_or_else(|error| panic!("--{name}={text}: {error}"));
        let default = if flag.kind == Kind::Duration && default.is_empty() { "0" } else { default };
        assert_eq!(value(flag.default), value(default), "default of --{name}");
    }
    for flag in FLAGS.iter().filter(|flag| flag.group != Group::Legacy) {
        let is_ours = flag.name.starts_with("audit-log")
            || matches!(
                flag.name,
                "zone"
                    | "feed"
                    | "autopilot"
                    | "autopilot-replace-after"
                    | "autopilot-interval"
                    | "standby"
                    | "initial-cluster-witness"
                    | "zone-networks"
                    | "zone-member-list"
                    | "value-compression"
                    | "memory-budget"
                    | "share-tls-tickets"
                    | "import-etcd-data"
                    | "listen-console-urls"
                    | "metrics-heavy-hitters"
                    | "api-version"
                    | "client-memory-bytes"
                    | "max-connections-per-address"
                    | "max-expensive-calls"
                    | "raft-pipeline"
                    | "batch-fsync-window"
            );
        assert!(is_ours != names.contains(&flag.name), "--{} is no flag of etcd's", flag.name);
    }
}

#[test]
fn the_table_is_consistent() {
    for (i, flag) in FLAGS.iter().enumerate() {
        let default = flag.kind.parse(flag.default);
        assert!(default.is_ok(), "default of --{}: {default:?}", flag.name);
        if let Status::NotYet(honoured) = flag.status {
            assert!(flag.kind.parse(honoured).is_ok(), "honoured value of --{}", flag.name);
        }
        assert!(FLAGS[i + 1..].iter().all(|other| other.name != flag.name), "--{} is there twice", flag.name);
    }
    for old in OLD_SPELLINGS {
        match old.successor {
            Successor::Flag(flag) => assert!(find_flag(flag.name).is_some(), "{}", flag.name),
            Successor::Gate(gate) => assert!(
                matches!(run(&format!("--feature-gates={}=false", gate.name)), Ok(Invocation::Serve(_))),
                "{}",
                gate.name
            ),
        }
        assert!(find_flag(old.name).is_none(), "{}", old.name);
    }
}

#[test]
fn every_flag_not_supported_is_refused_and_taken_at_its_default() {
    for flag in FLAGS {
        let Status::NotYet(honoured) = flag.status else { continue };
        let accepted = parse(&[format!("--{}={honoured}", flag.name)], &[]);
        assert!(matches!(accepted, Ok(Invocation::Serve(_))), "--{}={honoured}: {accepted:?}", flag.name);
        let other = match flag.kind {
            Kind::Bool => {
                if honoured == "true" {
                    "false"
                } else {
                    "true"
                }
            }
            Kind::Uint | Kind::Int => "7",
            Kind::Duration => "77s",
            Kind::OneOf(words) => words[words.len() - 1],
            Kind::Urls | Kind::UrlsInOrder | Kind::Origins => "http://127.0.0.1:7",
            _ => "other",
        };
        let refused = parse(&[format!("--{}={other}", flag.name)], &[]).unwrap_err();
        assert_eq!(refused.exit_code(), 1);
        assert!(refused.to_string().contains(flag.name), "{refused}");
    }
}

#[test]
fn defaults_are_those_of_etcd() {
    let config = config("");
    let texts =
        |urls: &[mainstay_config::Url]| urls.iter().map(|url| url.as_str().to_string()).collect::<Vec<_>>();
    assert_eq!(config.name, "default");
    assert_eq!(config.storage.data_dir, Path::new("default.etcd"));
    assert_eq!(texts(&config.listen.client_urls), ["http://localhost:2379"]);
    assert_eq!(texts(&config.listen.peer_urls), ["http://localhost:2380"]);
    assert_eq!(texts(&config.cluster.advertise_client_urls), ["http://localhost:2379"]);
    assert_eq!(texts(&config.cluster.initial_advertise_peer_urls), ["http://localhost:2380"]);
    assert!(config.listen.metrics_urls.is_empty());
    assert!(config.listen.console_urls.is_empty());
    assert_eq!(config.cluster.initial_cluster_state, InitialClusterState::New);
    assert_eq!(config.limits.quota_backend_bytes, Some(2 << 30));
    assert_eq!(config.compaction.auto, AutoCompaction::Off);
    assert_eq!((config.raft.snapshot_count, config.raft.snapshot_catchup_entries), (10_000, 5_000));
    assert_eq!((config.limits.max_request_bytes, config.limits.max_txn_ops), (1_572_864, 128));
    assert_eq!(config.limits.max_concurrent_streams, u32::MAX);
    assert_eq!(config.raft.heartbeat_interval, Duration::from_millis(100));
    assert_eq!(config.raft.election_timeout, Duration::from_millis(1000));
    assert_eq!(config.log.level, Level::Info);
    assert_eq!(config.log.format, Format::Json);
    assert_eq!(config.log.outputs, [LogOutput::Stderr]);
    assert_eq!(config.observability.metrics, MetricsDetail::Basic);
    assert_eq!(config.observability.warning_apply_duration, Duration::from_millis(100));
    assert_eq!(config.observability.warning_unary_request_duration, Duration::from_millis(300));
    assert_eq!(config.clients.watch_progress_notify_interval, Duration::from_secs(600));
    assert_eq!(config.clients.keepalive_min_time, Duration::from_secs(5));
    assert_eq!(config.clients.keepalive_interval, Duration::from_secs(7200));
    assert_eq!(config.clients.keepalive_timeout, Duration::from_secs(20));
    assert_eq!((config.compaction.batch_limit, config.cluster.max_learners), (1000, 1));
    // COMPAT-9: etcd's default is 10 ms.
    assert_eq!(config.compaction.sleep_interval, Duration::from_millis(1));
    assert!(
        config.raft.pre_vote
            && config.cluster.strict_reconfig_check
            && config.raft.initial_election_tick_advance
    );
    assert!(!config.storage.unsafe_no_fsync && !config.listen.reuse_port && !config.listen.reuse_address);
    let bootstrap = config.bootstrap().unwrap();
    assert_eq!(bootstrap.local_id, 0x8e9e_05c5_2164_694d);
    assert_eq!(bootstrap.cluster_id, 0xcdf8_1819_4e3a_8c32);
}

#[test]
fn every_form_of_a_flag_sets_it() {
    for line in
        ["--max-txn-ops=7", "--max-txn-ops 7", "-max-txn-ops=7", "-max-txn-ops 7", "ETCD_MAX_TXN_OPS=7"]
    {
        assert_eq!(config(line).limits.max_txn_ops, 7, "{line}");
    }
    for line in ["--unsafe-no-fsync", "-unsafe-no-fsync", "--unsafe-no-fsync=T", "ETCD_UNSAFE_NO_FSYNC=1"] {
        assert!(config(line).storage.unsafe_no_fsync, "{line}");
    }
    assert!(!config("--pre-vote=false").raft.pre_vote);
    assert_eq!(config("--max-txn-ops=7 --max-txn-ops=8").limits.max_txn_ops, 8, "the last one counts");
    assert_eq!(config("--name --pre-vote").name, "--pre-vote", "a value is taken as it is");
    assert_eq!(config("--max-txn-ops=7 --").limits.max_txn_ops, 7);
    assert_eq!(config("--max-txn-ops=0x10").limits.max_txn_ops, 16);
}

#[test]
fn values_mean_what_they_mean_to_etcd() {
    let hour = Duration::from_secs(3600);
    assert_eq!(config("--auto-compaction-retention=5").compaction.auto, AutoCompaction::Periodic(hour * 5));
    assert_eq!(config("--auto-compaction-retention=30m").compaction.auto, AutoCompaction::Periodic(hour / 2));
    assert_eq!(config("--auto-compaction-retention=0s").compaction.auto, AutoCompaction::Off);
    let line = "--auto-compaction-mode=revision --auto-compaction-retention=1000";
    assert_eq!(config(line).compaction.auto, AutoCompaction::Revision(1000));
    assert_eq!(config("--quota-backend-bytes=-1").limits.quota_backend_bytes, None);
    assert_eq!(config("--quota-backend-bytes=4096").limits.quota_backend_bytes, Some(4096));
    assert_eq!(config("--snapshot-count=0").raft.snapshot_count, 10_000);
    assert_eq!(config("--metrics=extensive").observability.metrics, MetricsDetail::Extensive);
    let log = config("--log-outputs=stdout,/tmp/x.log,stderr --log-level=DEBUG --log-format=console").log;
    assert_eq!(log.outputs, [LogOutput::File("/tmp/x.log".into()), LogOutput::Stderr, LogOutput::Stdout]);
    assert_eq!((log.level, log.format), (Level::Debug, Format::Console));
    assert!(config("--log-outputs=/dev/null,stderr").log.outputs.is_empty());
    let urls =
        config("--listen-client-urls=http://[::1]:5,http://127.0.0.1:4 --advertise-client-urls=http://x:1");
    let urls: Vec<&str> = urls.listen.client_urls.iter().map(|url| url.as_str()).collect();
    assert_eq!(urls, ["http://127.0.0.1:4", "http://[::1]:5"], "sorted, as in etcd");
    let line = "--listen-client-urls= --advertise-client-urls=http://x:1";
    assert_eq!(
        config(line).listen.client_urls[0].as_str(),
        "http://localhost:2379",
        "empty leaves the default"
    );
}

#[test]
fn a_name_alone_makes_a_cluster_of_that_name() {
    let config = config("--name=a --initial-advertise-peer-urls=http://h:1,http://h:2");
    assert_eq!(config.cluster.initial_cluster, "a=http://h:1,a=http://h:2");
    assert_eq!(config.bootstrap().unwrap().members.len(), 1);
}

#[test]
fn no_argument_makes_the_parser_panic() {
    // Every pair of unusual words, each also as an environment value, must give a result and never panic.
    let words = [
        "-",
        "--",
        "---",
        "",
        "=",
        "--=",
        "--name",
        "--name=",
        "-h=",
        "\u{e9}",
        "--\u{e9}=\u{e9}",
        "-v",
        "x",
    ];
    for first in words {
        for second in words {
            let args = [first.to_string(), second.to_string()];
            let _ =
                parse(&args, &[("ETCD_".to_string(), first.to_string()), (first.to_string(), String::new())]);
        }
    }
    for flag in FLAGS {
        for value in
            ["", "-", "=", ",", "\u{e9}", "http://", "http://[", "a=b=c,=,=", "-9223372036854775808", "0x"]
        {
            if let Ok(Invocation::Serve(parsed)) = parse(&[format!("--{}={value}", flag.name)], &[]) {
                let _ = parsed.config.bootstrap();
            }
        }
    }
}

/// With etcd's rules: a `*` anywhere allows every host, an empty list allows only requests without a name,
/// and origins are URLs.
#[test]
fn hosts_and_origins_are_those_of_etcd() {
    let hosts = |line: &str| config(line).clients.host_whitelist;
    let origins = |line: &str| config(line).clients.cors;
    let some = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    assert_eq!((hosts(""), origins("")), (None, None));
    assert_eq!(hosts("--host-whitelist=a.example,b,a.example"), some(&["a.example", "b"]));
    assert_eq!(hosts("--host-whitelist=a,*"), None);
    assert_eq!(hosts("--host-whitelist="), some(&[""]));
    assert_eq!(hosts("ETCD_HOST_WHITELIST=a"), some(&["a"]));
    assert_eq!(origins("--cors=*"), None);
    assert_eq!(
        origins("--cors=http://a:1,https://b.example:443,http://a:1"),
        some(&["http://a:1", "https://b.example:443"])
    );
    assert_eq!(origins("--cors=HTTP://A:1"), some(&["http://A:1"]));
    for (value, why) in [
        ("", "URL scheme must be http, https, unix, or unixs: "),
        ("http://a.example", "URL address does not have the form \"host:port\": http://a.example"),
        ("*,http://a:1", "URL scheme must be http, https, unix, or unixs: *"),
        ("http://a:1/x", "URL must not contain a path: http://a:1/x"),
    ] {
        let refused = run(&format!("--cors={value}")).expect_err(value);
        let said = format!("{refused:?}");
        assert!(said.contains(&format!("{why:?}")[1..format!("{why:?}").len() - 1]), "{value}: {said}");
    }
}

#[test]
fn log_rotation_has_the_keys_and_rules_of_etcd() {
    let with = |outputs: &str, json: &str| {
        run(&format!("--enable-log-rotation --log-outputs={outputs} '--log-rotation-config-json={json}'"))
    };
    let rotation = |json: &str| match with("stderr,/var/log/e.log", json) {
        Ok(Invocation::Serve(parsed)) => parsed.config.log.rotation.expect("it is asked for"),
        other => panic!("{json}: {other:?}"),
    };
    let defaults = rotation("{}");
    assert_eq!((defaults.file_bytes_max, defaults.files_max, defaults.age_days_max), (100 << 20, 0, 0));
    let all = rotation(
        r#"{"MaxSize": 5, "maxage": 7, "maxbackups": 3, "localtime": true, "compress": true, "x": 1}"#,
    );
    assert_eq!((all.file_bytes_max, all.files_max, all.age_days_max), (5 << 20, 3, 7));
    assert!(all.local_time && all.compress && !defaults.local_time && !defaults.compress);
    assert_eq!(config("--log-outputs=/var/log/e.log").log.rotation, None);
    let refused = |outputs: &str, json: &str| with(outputs, json).unwrap_err().to_string();
    for outputs in ["default", "stderr", "/a,/b"] {
        let error = "--log-outputs requires a single file path when --log-rotate-config-json is defined";
        assert!(refused(outputs, "{}").contains(error), "{outputs}");
    }
    for (json, error) in [
        ("{", "improperly formatted log rotation config: "),
        (
            r#"{"maxsize": "1"}"#,
            "invalid log rotation config: json: cannot unmarshal string into Go struct field logRotationConfig.Logger.maxsize of type int",
        ),
        (
            r#"{"compress": 1}"#,
            "invalid log rotation config: json: cannot unmarshal number into Go struct field logRotationConfig.Logger.compress of type bool",
        ),
        (r#"{"maxsize": -1}"#, "invalid log rotation config: maxsize is negative: -1"),
        (
            "[]",
            "invalid log rotation config: json: cannot unmarshal array into Go value of type embed.logRotationConfig",
        ),
    ] {
        assert!(refused("/a", json).contains(error), "{json}: {}", refused("/a", json));
    }
}
