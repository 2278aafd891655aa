//! Converts settings to a [`Config`], after checks that involve more than the syntax of one option. Errors
//! have etcd's messages.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::config::{
    AuditLogOptions, AuthOptions, AutoCompaction, AutopilotMode, AutopilotSettings, CheckOptions,
    ClientOptions, ClusterOptions, CompactionOptions, Config, InitialClusterState, LimitOptions,
    ListenOptions, ObservabilityOptions, ObserverOptions, RaftOptions, StorageOptions, TracingOptions,
    ValueCompression,
};
use super::discovery::{self, Discovery};
use super::feature_gate::FeatureGates;
use super::flag::Flag;
use super::refusal::Refusal;
use super::settings::{Settings, duration};
use super::{table, tls_options};
use api::limits::QUOTA_BYTES_DEFAULT;
use api::url::Url;
use cli::Nanoseconds;
use cli::go::{ValueError, nanoseconds, parse_duration, quote};
use stdx::zones::{self, ZoneMemberList, ZoneNetworks};
use telemetry::logging::{Entry, Level, LogRotation, LogSettings};
use telemetry::metrics::MetricsDetail;

const DEFAULT_NAME: &str = "default";
const ELECTION_TIMEOUT_MS_MAX: u64 = 50_000;
const QUOTA_BYTES_SUGGESTED_MAX: u64 = 8 << 30;
const REQUEST_BYTES_SUGGESTED_MAX: u64 = 10 << 20;
const SNAPSHOT_COUNT_DEFAULT: u64 = 10_000;
const SNAPSHOT_CATCHUP_ENTRIES_DEFAULT: u64 = 5_000;
const COMPACTION_BATCH_LIMIT_DEFAULT: u64 = 1_000;
/// Default of `--compaction-sleep-interval`. It is shorter than etcd's default of 10 ms, which etcd needs
/// because its compaction steps hold a lock that readers need.
const COMPACTION_SLEEP_INTERVAL_DEFAULT: Duration = Duration::from_millis(1);
const WATCH_PROGRESS_NOTIFY_INTERVAL_DEFAULT: Duration = Duration::from_secs(600);
const WARNING_UNARY_REQUEST_DURATION_DEFAULT: Duration = Duration::from_millis(300);
/// Minimum of the timeouts for raft connections. As in etcd, a shorter timeout is raised to this minimum.
const RAFT_TIMEOUT_MIN: Duration = Duration::from_secs(5);
const NANOS_PER_HOUR: u64 = 3_600_000_000_000;

/// Minimum of `--autopilot-replace-after`, in election timeouts.
const REPLACE_AFTER_TIMEOUTS: u32 = 5;
/// Range of `--autopilot-interval`.
const AUTOPILOT_INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

const ADVERTISE_CLIENT_URLS_UNSET: &str =
    "--advertise-client-urls is required when --listen-client-urls is set explicitly";

/// Checks the options and returns the configuration. The checks are in etcd's order, so that Mainstay reports
/// the same error as etcd if several options are wrong.
pub(super) fn build(settings: &mut Settings, feature_gates: FeatureGates) -> Result<Config, Refusal> {
    let log = log_settings(settings)?;
    let urls = Urls::read(settings)?;
    let discovery = discovery::read(settings)?;
    let heartbeat_ms = settings.get(table::HEARTBEAT_INTERVAL);
    let election_ms = settings.get(table::ELECTION_TIMEOUT);
    check_election(heartbeat_ms, election_ms)?;
    // Refuse client listeners without client URLs to advertise, since their default may not match the
    // listeners. As in etcd, a configuration file may leave the advertised URLs at their default.
    if settings.is_set(table::LISTEN_CLIENT_URLS)
        && !settings.is_set(table::ADVERTISE_CLIENT_URLS)
        && !settings.is_from_file
    {
        let error = |text: &str| Entry::new(Level::Warn, text).with("error", ADVERTISE_CLIENT_URLS_UNSET);
        return Err(Refusal::Invalid(vec![
            error("failed to verify flags"),
            error("advertise client URLs are not set"),
        ]));
    }
    let auto_compaction = auto_compaction(settings)?;
    check_engine_options(settings)?;

    // As in etcd, the debug level enables profiles too.
    let pprof = settings.get(table::ENABLE_PPROF) || log.level == Level::Debug;
    let tracing = tracing(settings)?;
    let name = settings.get(table::NAME).to_owned();
    warn_of_risks(settings, &name, &urls);
    let (client_tls, mut peer_tls) = tls_options::read(settings)?;
    if let Some(Discovery::Srv { domain, .. }) = &discovery
        && peer_tls.settings.trusted_ca_file.is_none()
    {
        // As in etcd, expect certificates that are issued for the domain through which the members are found.
        peer_tls.settings.server_name = Some(domain.clone());
    }
    let storage = StorageOptions {
        data_dir: data_dir(settings, &name),
        wal_dir: settings.non_empty(table::WAL_DIR).map(PathBuf::from),
        import_etcd_data: settings.get(table::IMPORT_ETCD_DATA),
        unsafe_no_fsync: settings.get(table::UNSAFE_NO_FSYNC),
        value_compression: match settings.get(table::VALUE_COMPRESSION) {
            "zstd" => ValueCompression::Zstd,
            _ => ValueCompression::None,
        },
        memory_budget_bytes: Some(settings.get(table::MEMORY_BUDGET)).filter(|bytes| *bytes > 0),
    };
    // The order in which these groups are read is etcd's order, so that the same error is reported if several
    // options are invalid.
    let observability = observability(settings, tracing, pprof)?;
    let clients = clients(settings)?;
    let cluster = ClusterOptions {
        initial_cluster: initial_cluster(settings, &name, &urls.initial_advertise_peer),
        initial_cluster_state: match settings.get(table::INITIAL_CLUSTER_STATE) {
            "existing" => InitialClusterState::Existing,
            _ => InitialClusterState::New,
        },
        initial_cluster_witness: settings.get(table::INITIAL_CLUSTER_WITNESS).to_owned(),
        initial_cluster_token: settings.get(table::INITIAL_CLUSTER_TOKEN).to_owned(),
        discovery,
        initial_advertise_peer_urls: urls.initial_advertise_peer,
        advertise_client_urls: urls.advertise_client,
        force_new_cluster: settings.get(table::FORCE_NEW_CLUSTER),
        strict_reconfig_check: settings.get(table::STRICT_RECONFIG_CHECK),
        max_learners: not_negative(settings, table::MAX_LEARNERS)?,
    };
    let observer = observer(settings)?;
    let downgrade_check_time = duration(settings, table::DOWNGRADE_CHECK_TIME)?;
    let read_timeout = raft_timeout(settings, table::RAFT_READ_TIMEOUT)?;
    let write_timeout = raft_timeout(settings, table::RAFT_WRITE_TIMEOUT)?;
    let checks = CheckOptions {
        corrupt_check_time: duration(settings, table::CORRUPT_CHECK_TIME)?,
        compact_hash_check_time: compact_hash_check_time(settings)?,
        downgrade_check_time,
    };
    let compaction = CompactionOptions {
        auto: auto_compaction,
        batch_limit: or_default(
            not_negative(settings, table::COMPACTION_BATCH_LIMIT)?,
            COMPACTION_BATCH_LIMIT_DEFAULT,
        ),
        sleep_interval: duration_or_default(
            duration(settings, table::COMPACTION_SLEEP_INTERVAL)?,
            COMPACTION_SLEEP_INTERVAL_DEFAULT,
        ),
    };
    let raft = RaftOptions {
        heartbeat_interval: Duration::from_millis(heartbeat_ms),
        election_timeout: Duration::from_millis(election_ms),
        initial_election_tick_advance: settings.get(table::INITIAL_ELECTION_TICK_ADVANCE),
        pre_vote: settings.get(table::PRE_VOTE),
        read_timeout,
        write_timeout,
        pipeline: settings.get(table::RAFT_PIPELINE),
        batch_fsync_window: batch_fsync_window(settings)?,
        snapshot_count: or_default(settings.get(table::SNAPSHOT_COUNT), SNAPSHOT_COUNT_DEFAULT),
        snapshot_catchup_entries: or_default(
            settings.get(table::SNAPSHOT_CATCHUP_ENTRIES),
            SNAPSHOT_CATCHUP_ENTRIES_DEFAULT,
        ),
    };
    Ok(Config {
        name,
        zone: zone(settings)?,
        zone_networks: zone_networks(settings)?,
        observer,
        autopilot: autopilot(settings, Duration::from_millis(election_ms))?,
        is_witness: false,
        leases_expire: true,
        api_version: release(settings.get(table::API_VERSION)),
        feature_gates,
        memory_mlock: settings.get(table::MEMORY_MLOCK),
        storage,
        cluster,
        client_tls,
        share_tls_tickets: share_tls_tickets(settings, &urls.listen, &peer_tls)?,
        listen: urls.listen,
        peer_tls,
        raft,
        limits: limits(settings),
        clients,
        auth: auth(settings),
        compaction,
        checks,
        log,
        audit_log: audit_log(settings),
        observability,
    })
}

fn observability(
    settings: &mut Settings,
    tracing: Option<TracingOptions>,
    pprof: bool,
) -> Result<ObservabilityOptions, Refusal> {
    Ok(ObservabilityOptions {
        metrics: metrics_detail(settings),
        heavy_hitters_in_metrics: settings.get(table::METRICS_HEAVY_HITTERS),
        tracing,
        pprof,
        warning_apply_duration: duration(settings, table::WARNING_APPLY_DURATION)?,
        warning_unary_request_duration: duration_or_default(
            duration(settings, table::WARNING_UNARY_REQUEST_DURATION)?,
            WARNING_UNARY_REQUEST_DURATION_DEFAULT,
        ),
    })
}

fn clients(settings: &Settings) -> Result<ClientOptions, Refusal> {
    Ok(ClientOptions {
        watch_progress_notify_interval: duration_or_default(
            duration(settings, table::WATCH_PROGRESS_NOTIFY_INTERVAL)?,
            WATCH_PROGRESS_NOTIFY_INTERVAL_DEFAULT,
        ),
        keepalive_min_time: duration(settings, table::GRPC_KEEPALIVE_MIN_TIME)?,
        keepalive_interval: duration(settings, table::GRPC_KEEPALIVE_INTERVAL)?,
        keepalive_timeout: duration(settings, table::GRPC_KEEPALIVE_TIMEOUT)?,
        enable_grpc_gateway: settings.get(table::ENABLE_GRPC_GATEWAY),
        host_whitelist: allowed(settings, table::HOST_WHITELIST),
        cors: allowed(settings, table::CORS),
    })
}

fn limits(settings: &Settings) -> LimitOptions {
    let if_set = |flag| Some(settings.get(flag)).filter(|max| *max > 0);
    LimitOptions {
        quota_backend_bytes: quota(settings),
        max_request_bytes: settings.get(table::MAX_REQUEST_BYTES),
        max_txn_ops: settings.get(table::MAX_TXN_OPS),
        max_concurrent_streams: settings.get(table::MAX_CONCURRENT_STREAMS),
        max_connections_per_address: if_set(table::MAX_CONNECTIONS_PER_ADDRESS),
        max_expensive_calls: settings.get(table::MAX_EXPENSIVE_CALLS),
        client_memory_bytes: if_set(table::CLIENT_MEMORY_BYTES),
    }
}

fn auth(settings: &Settings) -> AuthOptions {
    AuthOptions {
        token: settings.get(table::AUTH_TOKEN).to_owned(),
        token_ttl: Duration::from_secs(settings.get(table::AUTH_TOKEN_TTL)),
        bcrypt_cost: settings.get(table::BCRYPT_COST),
    }
}

/// Reads the tracing options. As in etcd, the rate is checked only if tracing is enabled.
fn tracing(settings: &Settings) -> Result<Option<TracingOptions>, Refusal> {
    if !settings.get(table::ENABLE_DISTRIBUTED_TRACING) {
        return Ok(None);
    }
    let refused = |why: &str| {
        Refusal::invalid(format!(
            "distributed tracing configurition is not valid: (tracing sampling rate must be {why})"
        ))
    };
    let rate = settings.get(table::DISTRIBUTED_TRACING_SAMPLING_RATE);
    let rate = u64::try_from(rate).map_err(|_| refused("positive"))?;
    if rate > 1_000_000 {
        return Err(refused("less than 1000000"));
    }
    Ok(Some(TracingOptions {
        address: settings.get(table::DISTRIBUTED_TRACING_ADDRESS).to_owned(),
        service_name: settings.get(table::DISTRIBUTED_TRACING_SERVICE_NAME).to_owned(),
        instance_id: settings.get(table::DISTRIBUTED_TRACING_INSTANCE_ID).to_owned(),
        rate,
    }))
}

/// Returns the values that a list allows; `None`, which allows all, if the list contains `*`. As in etcd, an
/// empty list is read as a list with one empty value.
fn allowed(settings: &Settings, flag: Flag<Vec<String>>) -> Option<Vec<String>> {
    let mut listed = settings.get(flag).to_vec();
    if listed.is_empty() {
        listed.push(String::new());
    }
    (!listed.iter().any(|word| word == "*")).then_some(listed)
}

/// Returns a timeout for raft connections. It is at least [`RAFT_TIMEOUT_MIN`], the default of etcd's package
/// `rafthttp`.
fn raft_timeout(settings: &Settings, flag: Flag<Nanoseconds>) -> Result<Duration, Refusal> {
    Ok(duration(settings, flag)?.max(RAFT_TIMEOUT_MIN))
}

/// Returns the patch release of etcd that a member reports for this minor version. It is a late one, because
/// some tools require a minimum patch release.
fn release(version: &str) -> &'static str {
    match version {
        "3.5" => "3.5.24",
        "3.6" => "3.6.9",
        _ => api::API_VERSION,
    }
}

/// Maximum of `--batch-fsync-window`; larger values are refused, because every write may be delayed by this
/// time.
const BATCH_FSYNC_WINDOW_MAX: Duration = Duration::from_millis(5);

fn batch_fsync_window(settings: &Settings) -> Result<Duration, Refusal> {
    let window = duration(settings, table::BATCH_FSYNC_WINDOW)?;
    if window > BATCH_FSYNC_WINDOW_MAX {
        return Err(Refusal::invalid(format!(
            "--batch-fsync-window must be at most 5ms (set to {window:?})"
        )));
    }
    Ok(window)
}

fn compact_hash_check_time(settings: &Settings) -> Result<Duration, Refusal> {
    let time = duration(settings, table::COMPACT_HASH_CHECK_TIME)?;
    if time.is_zero() {
        return Err(Refusal::invalid("--compact-hash-check-time must be >0 (set to 0s)"));
    }
    Ok(time)
}

fn zone(settings: &Settings) -> Result<String, Refusal> {
    let zone = settings.get(table::ZONE);
    zones::check_name(zone).map_err(|error| Refusal::invalid(format!("--zone: {error}")))?;
    Ok(zone.to_owned())
}

/// Returns the networks of clients by zone, and what their clients get from MemberList.
fn zone_networks(settings: &mut Settings) -> Result<(ZoneNetworks, ZoneMemberList), Refusal> {
    let networks = ZoneNetworks::parse(settings.get(table::ZONE_NETWORKS))
        .map_err(|error| Refusal::invalid(format!("--zone-networks: {error}")))?;
    let list = match settings.get(table::ZONE_MEMBER_LIST) {
        "first" => ZoneMemberList::First,
        "only" => ZoneMemberList::Only,
        _ => ZoneMemberList::Off,
    };
    if list != ZoneMemberList::Off && networks.is_empty() {
        return Err(Refusal::invalid("--zone-member-list needs --zone-networks"));
    }
    if list == ZoneMemberList::Off && !networks.is_empty() && settings.get(table::ZONE).is_empty() {
        // No refusal: the zone may come from the environment of the node, which need not know it.
        settings.warnings.push(Entry::new(
            Level::Warn,
            "zone-networks has no effect without a zone or zone-member-list; bytes between zones are not counted",
        ));
    }
    Ok((networks, list))
}

/// Returns true if the members share the secrets of TLS session tickets. Who has the secrets can decrypt recorded
/// sessions of TLS 1.2 and pose as a client, so only certificates of members may get them: often the same
/// authority has issued those of clients, so the names are checked too.
fn share_tls_tickets(
    settings: &Settings,
    listen: &ListenOptions,
    peers: &tls_options::TlsOptions,
) -> Result<bool, Refusal> {
    if !settings.get(table::SHARE_TLS_TICKETS) {
        return Ok(false);
    }
    let tls = &peers.settings;
    let names = || tls.allowed_cns.iter().chain(&tls.allowed_hostnames);
    let missing = [
        (!listen.peer_urls.iter().all(|url| url.scheme().is_secure()))
            .then_some("https in --listen-peer-urls"),
        tls.cert_file.is_none().then_some("--peer-cert-file"),
        tls.trusted_ca_file.is_none().then_some("--peer-trusted-ca-file"),
        (!tls.client_cert_auth).then_some("--peer-client-cert-auth"),
        // An empty name would admit each certificate without a common name.
        (names().next().is_none() || names().any(String::is_empty))
            .then_some("--peer-cert-allowed-cn or --peer-cert-allowed-hostname"),
    ];
    match missing.into_iter().flatten().next() {
        Some(missing) => Err(Refusal::invalid(format!("--share-tls-tickets needs {missing}"))),
        None => Ok(true),
    }
}

/// Returns the settings of an observer; `None` if none of its flags is set.
fn observer(settings: &Settings) -> Result<Option<ObserverOptions>, Refusal> {
    let feeds = settings.get(table::FEED).to_vec();
    if feeds.is_empty() {
        return Ok(None);
    }
    check_hosts(&feeds, "--feed", "must be \"host:port\"")?;
    let given = [
        settings.is_set(table::INITIAL_CLUSTER).then_some("initial-cluster"),
        settings.is_set(table::INITIAL_CLUSTER_STATE).then_some("initial-cluster-state"),
        settings.is_set(table::INITIAL_CLUSTER_TOKEN).then_some("initial-cluster-token"),
        settings.is_set(table::INITIAL_CLUSTER_WITNESS).then_some("initial-cluster-witness"),
        settings.is_set(table::DISCOVERY_ENDPOINTS).then_some("discovery-endpoints"),
        settings.is_set(table::DISCOVERY_TOKEN).then_some("discovery-token"),
        settings.is_set(table::DISCOVERY_SRV).then_some("discovery-srv"),
        settings.is_set(table::FORCE_NEW_CLUSTER).then_some("force-new-cluster"),
        settings.is_set(table::AUTO_COMPACTION_RETENTION).then_some("auto-compaction-retention"),
        settings.is_set(table::AUTO_COMPACTION_MODE).then_some("auto-compaction-mode"),
        settings.is_set(table::PRE_VOTE).then_some("pre-vote"),
        settings.is_set(table::STRICT_RECONFIG_CHECK).then_some("strict-reconfig-check"),
        settings.is_set(table::INITIAL_ELECTION_TICK_ADVANCE).then_some("initial-election-tick-advance"),
        settings.is_set(table::CORRUPT_CHECK_TIME).then_some("corrupt-check-time"),
        settings.is_set(table::COMPACT_HASH_CHECK_TIME).then_some("compact-hash-check-time"),
        settings.is_set(table::SHARE_TLS_TICKETS).then_some("share-tls-tickets"),
        settings.is_set(table::DOWNGRADE_CHECK_TIME).then_some("downgrade-check-time"),
        settings.is_set(table::AUTOPILOT).then_some("autopilot"),
        settings.is_set(table::AUTOPILOT_REPLACE_AFTER).then_some("autopilot-replace-after"),
        settings.is_set(table::AUTOPILOT_INTERVAL).then_some("autopilot-interval"),
        settings.is_set(table::STANDBY).then_some("standby"),
    ];
    if let Some(flag) = given.into_iter().flatten().next() {
        return Err(Refusal::invalid(format!(
            "--{flag} is for members: an observer (--feed) neither forms nor leads a cluster"
        )));
    }
    Ok(Some(ObserverOptions { feeds }))
}

/// Returns the settings of the autopilot.
fn autopilot(settings: &Settings, election_timeout: Duration) -> Result<AutopilotSettings, Refusal> {
    let replace_after = duration(settings, table::AUTOPILOT_REPLACE_AFTER)?;
    let least = election_timeout * REPLACE_AFTER_TIMEOUTS;
    if replace_after < least {
        return Err(Refusal::invalid(format!(
            "--autopilot-replace-after must be at least {} election timeouts ({} ms): a member that restarts is not gone",
            REPLACE_AFTER_TIMEOUTS,
            least.as_millis()
        )));
    }
    let interval = duration(settings, table::AUTOPILOT_INTERVAL)?;
    if !AUTOPILOT_INTERVALS.contains(&interval) {
        return Err(Refusal::invalid("--autopilot-interval must be between 1s and 1h".to_owned()));
    }
    let is_standby = settings.get(table::STANDBY);
    if is_standby && settings.get(table::INITIAL_CLUSTER_STATE) != "existing" {
        return Err(Refusal::invalid(
            "--standby needs --initial-cluster-state=existing: only a learner that joins a cluster can wait until it is \
             needed"
                .to_owned(),
        ));
    }
    Ok(AutopilotSettings {
        mode: match settings.get(table::AUTOPILOT) {
            "dry-run" => AutopilotMode::DryRun,
            "on" => AutopilotMode::On,
            _ => AutopilotMode::Off,
        },
        replace_after,
        interval,
        is_standby,
    })
}

struct Urls {
    listen: ListenOptions,
    initial_advertise_peer: Vec<Url>,
    advertise_client: Vec<Url>,
}

impl Urls {
    fn read(settings: &Settings) -> Result<Urls, Refusal> {
        let listen = ListenOptions {
            peer_urls: settings.get(table::LISTEN_PEER_URLS),
            client_urls: settings.get(table::LISTEN_CLIENT_URLS),
            client_http_urls: settings.get(table::LISTEN_CLIENT_HTTP_URLS),
            metrics_urls: settings.get(table::LISTEN_METRICS_URLS),
            console_urls: settings.get(table::LISTEN_CONSOLE_URLS),
            reuse_port: settings.get(table::SOCKET_REUSE_PORT),
            reuse_address: settings.get(table::SOCKET_REUSE_ADDRESS),
        };
        let urls = Urls {
            listen,
            initial_advertise_peer: settings.get(table::INITIAL_ADVERTISE_PEER_URLS),
            advertise_client: settings.get(table::ADVERTISE_CLIENT_URLS),
        };
        let listen = &urls.listen;
        let listening = [
            &listen.peer_urls,
            &listen.client_urls,
            &listen.client_http_urls,
            &listen.metrics_urls,
            &listen.console_urls,
        ];
        for url in listening.into_iter().flatten() {
            if !url.is_bindable() {
                return Err(Refusal::invalid(format!("expected IP in URL for binding ({url})")));
            }
        }
        check_hosts(&urls.initial_advertise_peer, "--initial-advertise-peer-urls", "must be \"host:port\"")?;
        let forms =
            "must be in the format \"host:port\", \"unix:/path/to/socket\" or \"unixs:/path/to/socket\"";
        check_hosts(&urls.advertise_client, "--advertise-client-urls", forms)?;
        let is_both = |url: &&Url| {
            let address = |url: &Url| (url.host().to_owned(), url.port());
            url.port() != 0 && listen.client_urls.iter().any(|other| address(other) == address(url))
        };
        if let Some(url) = listen.client_http_urls.iter().find(is_both) {
            return Err(Refusal::start_failed(format!(
                "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {url}"
            )));
        }
        // COMPAT-131: refuse peer URLs with the scheme `unixs`, because members use TLS only with `https`.
        // Members of etcd 3.7 cannot connect to each other through `unixs` URLs either.
        let of_members = [
            (table::LISTEN_PEER_URLS, &listen.peer_urls),
            (table::INITIAL_ADVERTISE_PEER_URLS, &urls.initial_advertise_peer),
        ];
        for (flag, urls) in of_members {
            let is_unixs = |url: &&Url| url.scheme().is_unix() && url.scheme().is_secure();
            if let Some(url) = urls.iter().find(is_unixs) {
                let text = format!(
                    "--{} has {url}: peer URLs must be http, https or unix URLs; TLS is used with https only",
                    flag.row().name
                );
                return Err(Refusal::invalid(text));
            }
        }
        Ok(urls)
    }
}

fn check_hosts(urls: &[Url], flag: &str, forms: &str) -> Result<(), Refusal> {
    match urls.iter().find(|url| url.host().is_empty()) {
        None => Ok(()),
        Some(url) => {
            let given = quote(join(urls));
            Err(Refusal::invalid(format!("{flag} {given} {forms} (unexpected empty host ({url}))")))
        }
    }
}

fn join(urls: &[Url]) -> String {
    urls.iter().map(Url::as_str).collect::<Vec<_>>().join(",")
}

fn log_settings(settings: &Settings) -> Result<LogSettings, Refusal> {
    match settings.get(table::LOGGER) {
        "zap" => {}
        "capnslog" => return Err(Refusal::invalid("--logger=capnslog is removed in v3.5")),
        other => return Err(Refusal::invalid(format!("unknown logger option {}", quote(other)))),
    }
    let level = settings.get(table::LOG_LEVEL);
    // Return a syntax error, which has exit code 2: etcd panics on an unknown level, and a Go program that
    // panics exits with 2.
    let level = Level::parse(level)
        .ok_or_else(|| Refusal::Syntax(format!("unrecognized level: {}", quote(level))))?;
    let outputs = settings.get(table::LOG_OUTPUTS);
    let refused = |error: ValueError| Refusal::invalid(error.to_string());
    let mut log = LogSettings::parse(level, settings.get(table::LOG_FORMAT), outputs).map_err(refused)?;
    if settings.get(table::ENABLE_LOG_ROTATION) {
        let json = settings.get(table::LOG_ROTATION_CONFIG_JSON);
        log.rotation = Some(LogRotation::parse(json, outputs).map_err(refused)?);
    }
    Ok(log)
}

fn check_election(heartbeat_ms: u64, election_ms: u64) -> Result<(), Refusal> {
    if heartbeat_ms == 0 {
        return Err(Refusal::invalid("--heartbeat-interval must be >0 (set to 0ms)"));
    }
    if election_ms == 0 {
        return Err(Refusal::invalid("--election-timeout must be >0 (set to 0ms)"));
    }
    if heartbeat_ms.saturating_mul(5) > election_ms {
        return Err(Refusal::invalid(format!(
            "--election-timeout[{election_ms}ms] should be at least as 5 times as \
             --heartbeat-interval[{heartbeat_ms}ms]"
        )));
    }
    if election_ms > ELECTION_TIMEOUT_MS_MAX {
        return Err(Refusal::invalid(format!(
            "--election-timeout[{election_ms}ms] is too long, and should be set less than \
             {ELECTION_TIMEOUT_MS_MAX}ms"
        )));
    }
    Ok(())
}

fn auto_compaction(settings: &mut Settings) -> Result<AutoCompaction, Refusal> {
    let mode = settings.get(table::AUTO_COMPACTION_MODE);
    let periodic = match mode {
        "periodic" => true,
        "revision" => false,
        "" => return Err(Refusal::invalid("undefined auto-compaction-mode")),
        _ => return Err(Refusal::invalid(format!("unknown auto-compaction-mode {}", quote(mode)))),
    };
    let retention = settings.get(table::AUTO_COMPACTION_RETENTION).to_owned();
    let amount = retention_amount(&retention, periodic)
        .map_err(|reason| Refusal::start_failed(format!("error parsing CompactionRetention: {reason}")))?;
    if !periodic && amount > 0 && !is_plain_number(&retention) {
        // A duration has no meaning in the revision mode. As in etcd, its nanoseconds are used as the number
        // of revisions, but Mainstay warns about this.
        settings.warnings.push(
            Entry::new(
                Level::Warn,
                "auto-compaction-retention is a duration, although the mode counts revisions; its nanoseconds are taken as the number of revisions",
            )
            .with("auto-compaction-retention", retention)
            .with("revisions", amount.to_string()),
        );
    }
    Ok(match (amount, periodic) {
        (0, _) => AutoCompaction::Off,
        (nanos, true) => AutoCompaction::Periodic(Duration::from_nanos(nanos)),
        (revisions, false) => AutoCompaction::Revision(revisions),
    })
}

/// Returns the retention as nanoseconds in the periodic mode, or as a number of revisions. In the periodic
/// mode a plain number means hours. In both modes anything other than a plain number is parsed as a duration
/// in nanoseconds.
fn retention_amount(retention: &str, periodic: bool) -> Result<u64, ValueError> {
    if is_plain_number(retention) {
        let too_large = || ValueError::new(format!("{} is too large", quote(retention)));
        let count: u64 = retention.trim_start_matches('+').parse().map_err(|_| too_large())?;
        // Refuse more than 292 years, the maximum of Go's durations, which are 64-bit numbers of nanoseconds.
        let nanos = count.checked_mul(NANOS_PER_HOUR).filter(|nanos| i64::try_from(*nanos).is_ok());
        return if periodic { nanos.ok_or_else(too_large) } else { Ok(count) };
    }
    let nanos = parse_duration(retention)?;
    u64::try_from(nanos).map_err(|_| ValueError::new(format!("{} is negative", quote(retention))))
}

fn is_plain_number(text: &str) -> bool {
    let digits = text.strip_prefix('+').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Checks options that concern etcd's storage engine by etcd's rules, although most of them have no effect in
/// Mainstay.
fn check_engine_options(settings: &Settings) -> Result<(), Refusal> {
    let Nanoseconds(check_time) = settings.get(table::COMPACT_HASH_CHECK_TIME);
    if check_time <= 0 {
        let text = nanoseconds(check_time);
        return Err(Refusal::invalid(format!("--compact-hash-check-time must be >0 (set to {text})")));
    }
    let freelist = settings.get(table::BACKEND_BBOLT_FREELIST_TYPE);
    if !matches!(freelist, "" | "map" | "array") {
        return Err(Refusal::invalid(format!(
            "--backend-bbolt-freelist-type must be map or array (set to {})",
            quote(freelist)
        )));
    }
    let limit = settings.get(table::BACKEND_BATCH_LIMIT);
    if limit < 0 {
        return Err(Refusal::invalid(format!("--backend-batch-limit must not be negative (set to {limit})")));
    }
    let Nanoseconds(interval) = settings.get(table::BACKEND_BATCH_INTERVAL);
    if interval < 0 {
        let text = nanoseconds(interval);
        return Err(Refusal::invalid(format!(
            "--backend-batch-interval must not be negative (set to {text})"
        )));
    }
    Ok(())
}

fn warn_of_risks(settings: &mut Settings, name: &str, urls: &Urls) {
    let mut warnings = Vec::new();
    if name == DEFAULT_NAME {
        warnings.push(
            Entry::new(
                Level::Warn,
                "it isn't recommended to use default name, please set a value for --name. Note that etcd might run \
                 into issue when multiple members have the same default name",
            )
            .with("name", name),
        );
    }
    let request_bytes = settings.get(table::MAX_REQUEST_BYTES);
    if request_bytes > REQUEST_BYTES_SUGGESTED_MAX {
        warnings.push(
            Entry::new(Level::Warn, "exceeded recommended request limit")
                .with("max-request-bytes", request_bytes.to_string())
                .with("recommended-request-bytes", REQUEST_BYTES_SUGGESTED_MAX.to_string()),
        );
    }
    let quota = settings.get(table::QUOTA_BACKEND_BYTES);
    if u64::try_from(quota).is_ok_and(|quota| quota > QUOTA_BYTES_SUGGESTED_MAX) {
        warnings.push(
            Entry::new(Level::Warn, "quota exceeds the maximum value")
                .with("quota-size-bytes", quota.to_string())
                .with("quota-maximum-size-bytes", QUOTA_BYTES_SUGGESTED_MAX.to_string()),
        );
    }
    if settings.get(table::UNSAFE_NO_FSYNC) {
        warnings.push(Entry::new(
            Level::Warn,
            "--unsafe-no-fsync is set: acknowledged writes are lost when the machine stops",
        ));
    }
    let listens_everywhere = urls.listen.peer_urls.iter().any(|url| matches!(url.host(), "0.0.0.0" | "::"));
    let default_peer = table::INITIAL_ADVERTISE_PEER_URLS.row().default;
    if listens_everywhere && join(&urls.initial_advertise_peer) == default_peer {
        warnings.push(
            Entry::new(Level::Warn, "members on other machines cannot reach the advertised peer URL")
                .with("initial-advertise-peer-urls", join(&urls.initial_advertise_peer)),
        );
    }
    let wants_certificates =
        settings.get(table::CLIENT_CERT_AUTH) || !settings.get(table::TRUSTED_CA_FILE).is_empty();
    for url in urls.listen.console_urls.iter().filter(|url| !url.scheme().is_secure()) {
        let mut warn = |line: &str| {
            warnings.push(Entry::new(Level::Warn, line).with("listen-console-urls", url.as_str()));
        };
        if !url.is_local() {
            warn(
                "passwords and data are sent in clear text to the console's listener: use an https URL, or a loopback address",
            );
        }
        if wants_certificates {
            warn(
                "clients must show a certificate, but the console's listener asks for none: anyone who can \
                 reach it acts with this member's certificate",
            );
        }
    }
    settings.warnings.append(&mut warnings);
}

fn data_dir(settings: &mut Settings, name: &str) -> PathBuf {
    let given = settings.get(table::DATA_DIR);
    if !given.is_empty() {
        return PathBuf::from(given);
    }
    let default = format!("{name}.etcd");
    settings.warnings.push(
        Entry::new(Level::Warn, "'data-dir' was empty; using default").with("data-dir", default.as_str()),
    );
    PathBuf::from(default)
}

/// Returns the initial cluster: the value of the flag or, if only the name of the member was set, that name
/// with the advertised URLs. If discovery is used and the flag was not set, returns an empty text, because
/// discovery will find the members.
fn initial_cluster(settings: &Settings, name: &str, advertised: &[Url]) -> String {
    let given = settings.get(table::INITIAL_CLUSTER);
    let discovers = !settings.get(table::DISCOVERY_SRV).is_empty()
        || !settings.get(table::DISCOVERY_SRV_NAME).is_empty()
        || !settings.get(table::DISCOVERY_ENDPOINTS).is_empty();
    if discovers && !settings.is_set(table::INITIAL_CLUSTER) {
        return String::new();
    }
    let is_default = given == table::INITIAL_CLUSTER.row().default;
    if !is_default || name == DEFAULT_NAME {
        return given.to_owned();
    }
    let name = if name.is_empty() { DEFAULT_NAME } else { name };
    advertised.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",")
}

fn quota(settings: &Settings) -> Option<u64> {
    match u64::try_from(settings.get(table::QUOTA_BACKEND_BYTES)) {
        Ok(0) => Some(QUOTA_BYTES_DEFAULT),
        Ok(bytes) => Some(bytes),
        Err(_) => None,
    }
}

/// Lower bound of the size of an audit log file; smaller values are raised to it. With smaller files, a new
/// file would be begun every few seconds.
const AUDIT_LOG_MAX_BYTES_MIN: u64 = 1 << 20;
/// Upper bound of the number of audit log files; larger values are lowered to it, because each rotation
/// renames all files.
const AUDIT_LOG_FILES_MAX: u64 = 1000;

fn audit_log(settings: &Settings) -> Option<AuditLogOptions> {
    settings.non_empty(table::AUDIT_LOG).map(|path| AuditLogOptions {
        path: path.into(),
        file_bytes_max: settings.get(table::AUDIT_LOG_MAX_BYTES).max(AUDIT_LOG_MAX_BYTES_MIN),
        files_max: settings.get(table::AUDIT_LOG_FILES).clamp(1, AUDIT_LOG_FILES_MAX),
        reads: settings.get(table::AUDIT_LOG_READS),
    })
}

fn metrics_detail(settings: &mut Settings) -> MetricsDetail {
    let given = settings.get(table::METRICS).to_owned();
    if given == "extensive" {
        return MetricsDetail::Extensive;
    }
    if given != "basic" {
        settings.warnings.push(
            Entry::new(Level::Warn, "unknown level of detail of metrics; using basic")
                .with("metrics", given.as_str()),
        );
    }
    MetricsDetail::Basic
}

fn not_negative(settings: &Settings, flag: Flag<i64>) -> Result<u64, Refusal> {
    let (name, value) = (flag.row().name, settings.get(flag));
    u64::try_from(value)
        .map_err(|_| Refusal::invalid(format!("--{name} must not be negative (set to {value})")))
}

fn or_default(value: u64, default: u64) -> u64 {
    if value == 0 { default } else { value }
}

fn duration_or_default(value: Duration, default: Duration) -> Duration {
    if value.is_zero() { default } else { value }
}
