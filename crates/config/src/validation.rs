//! Converts settings to a configuration: checks that involve more than one option, with etcd's error texts.

use std::path::PathBuf;
use std::time::Duration;

use super::discovery::{self, Discovery};
use super::feature_gate::FeatureGates;
use super::refusal::Refusal;
use super::settings::{Settings, duration};
use super::table::find_flag;
use super::tls_options;
use super::{
    AuditLogOptions, AutoCompaction, Config, InitialClusterState, MetricsDetail, TracingOptions, Url,
};
use cli::go::{ValueError, nanoseconds, parse_duration, quote};
use telemetry::logging::{Entry, Level, LogRotation, LogSettings};

const DEFAULT_NAME: &str = "default";
const ELECTION_TIMEOUT_MS_MAX: u64 = 50_000;
/// Default of `--quota-backend-bytes`.
pub const QUOTA_BYTES_DEFAULT: u64 = 2 << 30;
const QUOTA_BYTES_SUGGESTED_MAX: u64 = 8 << 30;
const REQUEST_BYTES_SUGGESTED_MAX: u64 = 10 << 20;
const SNAPSHOT_COUNT_DEFAULT: u64 = 10_000;
const SNAPSHOT_CATCHUP_ENTRIES_DEFAULT: u64 = 5_000;
const COMPACTION_BATCH_LIMIT_DEFAULT: u64 = 1_000;
/// etcd's default is 10 ms, because its compaction steps hold a lock that readers need.
const COMPACTION_SLEEP_INTERVAL_DEFAULT: Duration = Duration::from_millis(1);
const WATCH_PROGRESS_NOTIFY_INTERVAL_DEFAULT: Duration = Duration::from_secs(600);
const WARNING_UNARY_REQUEST_DURATION_DEFAULT: Duration = Duration::from_millis(300);
/// Lower bound: as in etcd, a shorter timeout is raised to this one.
const RAFT_TIMEOUT_MIN: Duration = Duration::from_secs(5);
const NANOS_PER_HOUR: u64 = 3_600_000_000_000;

const ADVERTISE_CLIENT_URLS_UNSET: &str =
    "--advertise-client-urls is required when --listen-client-urls is set explicitly";

/// Checks the options in etcd's order, so that of several errors the same one is reported.
pub(super) fn build(settings: &mut Settings, feature_gates: FeatureGates) -> Result<Config, Refusal> {
    let log = log_settings(settings)?;
    let urls = Urls::read(settings)?;
    let discovery = discovery::read(settings)?;
    let heartbeat_ms = settings.uint("heartbeat-interval");
    let election_ms = settings.uint("election-timeout");
    check_election(heartbeat_ms, election_ms)?;
    // As in etcd, a configuration file may leave the advertised URLs at their default.
    if settings.is_set("listen-client-urls")
        && !settings.is_set("advertise-client-urls")
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
    let pprof = settings.bool("enable-pprof") || log.level == Level::Debug;
    let tracing = tracing(settings)?;
    let name = settings.text("name");
    warn_of_risks(settings, &name, &urls);
    let (client_tls, mut peer_tls) = tls_options::read(settings)?;
    if let Some(Discovery::Srv { domain, .. }) = &discovery
        && peer_tls.settings.trusted_ca_file.is_none()
    {
        // As in etcd: certificates of members found through a domain are issued for that domain.
        peer_tls.settings.server_name = Some(domain.clone());
    }
    let data_dir = data_dir(settings, &name);
    let initial_cluster = initial_cluster(settings, &name, &urls.initial_advertise_peer);
    let initial_cluster_state = match settings.text("initial-cluster-state").as_str() {
        "existing" => InitialClusterState::Existing,
        _ => InitialClusterState::New,
    };
    Ok(Config {
        name,
        data_dir,
        wal_dir: Some(settings.text("wal-dir")).filter(|dir| !dir.is_empty()).map(PathBuf::from),
        import_etcd_data: settings.bool("import-etcd-data"),
        listen_peer_urls: urls.listen_peer,
        listen_client_urls: urls.listen_client,
        listen_client_http_urls: urls.listen_client_http,
        listen_metrics_urls: urls.listen_metrics,
        listen_console_urls: urls.listen_console,
        initial_advertise_peer_urls: urls.initial_advertise_peer,
        advertise_client_urls: urls.advertise_client,
        initial_cluster,
        discovery,
        initial_cluster_state,
        initial_cluster_token: settings.text("initial-cluster-token"),
        client_tls,
        peer_tls,
        quota_backend_bytes: quota(settings),
        auto_compaction,
        snapshot_count: or_default(settings.uint("snapshot-count"), SNAPSHOT_COUNT_DEFAULT),
        snapshot_catchup_entries: or_default(
            settings.uint("snapshot-catchup-entries"),
            SNAPSHOT_CATCHUP_ENTRIES_DEFAULT,
        ),
        max_request_bytes: settings.uint("max-request-bytes"),
        max_txn_ops: settings.uint("max-txn-ops"),
        auth_token: settings.text("auth-token"),
        auth_token_ttl: Duration::from_secs(settings.uint("auth-token-ttl")),
        bcrypt_cost: settings.uint("bcrypt-cost"),
        max_concurrent_streams: u32::try_from(settings.uint("max-concurrent-streams")).unwrap_or(u32::MAX),
        heartbeat_interval: Duration::from_millis(heartbeat_ms),
        election_timeout: Duration::from_millis(election_ms),
        initial_election_tick_advance: settings.bool("initial-election-tick-advance"),
        log,
        metrics: metrics_detail(settings),
        heavy_hitters_in_metrics: settings.bool("metrics-heavy-hitters"),
        tracing,
        pprof,
        warning_apply_duration: duration(settings, "warning-apply-duration")?,
        warning_unary_request_duration: duration_or_default(
            duration(settings, "warning-unary-request-duration")?,
            WARNING_UNARY_REQUEST_DURATION_DEFAULT,
        ),
        watch_progress_notify_interval: duration_or_default(
            duration(settings, "watch-progress-notify-interval")?,
            WATCH_PROGRESS_NOTIFY_INTERVAL_DEFAULT,
        ),
        grpc_keepalive_min_time: duration(settings, "grpc-keepalive-min-time")?,
        grpc_keepalive_interval: duration(settings, "grpc-keepalive-interval")?,
        grpc_keepalive_timeout: duration(settings, "grpc-keepalive-timeout")?,
        pre_vote: settings.bool("pre-vote"),
        strict_reconfig_check: settings.bool("strict-reconfig-check"),
        max_learners: not_negative(settings, "max-learners")?,
        host_whitelist: allowed(settings, "host-whitelist"),
        enable_grpc_gateway: settings.bool("enable-grpc-gateway"),
        cors: allowed(settings, "cors"),
        max_connections_per_address: Some(settings.uint("max-connections-per-address"))
            .filter(|max| *max > 0),
        max_expensive_calls: settings.uint("max-expensive-calls"),
        api_version: release(&settings.text("api-version")),
        downgrade_check_time: duration(settings, "downgrade-check-time")?,
        zone: settings.text("zone"),
        audit_log: audit_log(settings),
        client_memory_bytes: Some(settings.uint("client-memory-bytes")).filter(|bytes| *bytes > 0),
        raft_read_timeout: raft_timeout(settings, "raft-read-timeout")?,
        raft_write_timeout: raft_timeout(settings, "raft-write-timeout")?,
        force_new_cluster: settings.bool("force-new-cluster"),
        corrupt_check_time: duration(settings, "corrupt-check-time")?,
        compact_hash_check_time: compact_hash_check_time(settings)?,
        unsafe_no_fsync: settings.bool("unsafe-no-fsync"),
        compaction_batch_limit: or_default(
            not_negative(settings, "compaction-batch-limit")?,
            COMPACTION_BATCH_LIMIT_DEFAULT,
        ),
        compaction_sleep_interval: duration_or_default(
            duration(settings, "compaction-sleep-interval")?,
            COMPACTION_SLEEP_INTERVAL_DEFAULT,
        ),
        socket_reuse_port: settings.bool("socket-reuse-port"),
        socket_reuse_address: settings.bool("socket-reuse-address"),
        raft_pipeline: settings.bool("raft-pipeline"),
        batch_fsync_window: batch_fsync_window(settings)?,
        memory_mlock: settings.bool("memory-mlock"),
        feature_gates,
    })
}

/// Reads the tracing options. As in etcd, the rate is checked only if tracing is enabled.
fn tracing(settings: &Settings) -> Result<Option<TracingOptions>, Refusal> {
    if !settings.bool("enable-distributed-tracing") {
        return Ok(None);
    }
    let refused = |why: &str| {
        Refusal::invalid(format!(
            "distributed tracing configurition is not valid: (tracing sampling rate must be {why})"
        ))
    };
    let rate = settings.int("distributed-tracing-sampling-rate");
    let rate = u64::try_from(rate).map_err(|_| refused("positive"))?;
    if rate > 1_000_000 {
        return Err(refused("less than 1000000"));
    }
    Ok(Some(TracingOptions {
        address: settings.text("distributed-tracing-address"),
        service_name: settings.text("distributed-tracing-service-name"),
        instance_id: settings.text("distributed-tracing-instance-id"),
        rate,
    }))
}

/// Returns the entries of a list; `None` if it contains `*`. As in etcd, an empty list has one empty entry.
fn allowed(settings: &Settings, flag: &'static str) -> Option<Vec<String>> {
    let mut listed = settings.list(flag);
    if listed.is_empty() {
        listed.push(String::new());
    }
    (!listed.iter().any(|word| word == "*")).then_some(listed)
}

/// Returns a timeout for raft connections; at least rafthttp's own default.
fn raft_timeout(settings: &Settings, flag: &'static str) -> Result<Duration, Refusal> {
    Ok(duration(settings, flag)?.max(RAFT_TIMEOUT_MIN))
}

/// Returns the release that a member reports for this version: a late one, because tools require a minimum
/// release.
fn release(version: &str) -> &'static str {
    match version {
        "3.5" => "3.5.24",
        "3.6" => "3.6.9",
        _ => crate::API_VERSION,
    }
}

/// Upper bound of the time for which a write may wait.
const BATCH_FSYNC_WINDOW_MAX: Duration = Duration::from_millis(5);

fn batch_fsync_window(settings: &Settings) -> Result<Duration, Refusal> {
    let window = duration(settings, "batch-fsync-window")?;
    if window > BATCH_FSYNC_WINDOW_MAX {
        return Err(Refusal::invalid(format!(
            "--batch-fsync-window must be at most 5ms (set to {window:?})"
        )));
    }
    Ok(window)
}

fn compact_hash_check_time(settings: &Settings) -> Result<Duration, Refusal> {
    let time = duration(settings, "compact-hash-check-time")?;
    if time.is_zero() {
        return Err(Refusal::invalid("--compact-hash-check-time must be >0 (set to 0s)"));
    }
    Ok(time)
}

struct Urls {
    listen_peer: Vec<Url>,
    listen_client: Vec<Url>,
    listen_client_http: Vec<Url>,
    listen_metrics: Vec<Url>,
    listen_console: Vec<Url>,
    initial_advertise_peer: Vec<Url>,
    advertise_client: Vec<Url>,
}

impl Urls {
    fn read(settings: &Settings) -> Result<Urls, Refusal> {
        let urls = Urls {
            listen_peer: settings.urls("listen-peer-urls"),
            listen_client: settings.urls("listen-client-urls"),
            listen_client_http: settings.urls("listen-client-http-urls"),
            listen_metrics: settings.urls("listen-metrics-urls"),
            listen_console: settings.urls("listen-console-urls"),
            initial_advertise_peer: settings.urls("initial-advertise-peer-urls"),
            advertise_client: settings.urls("advertise-client-urls"),
        };
        let listening = [
            &urls.listen_peer,
            &urls.listen_client,
            &urls.listen_client_http,
            &urls.listen_metrics,
            &urls.listen_console,
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
            url.port() != 0 && urls.listen_client.iter().any(|other| address(other) == address(url))
        };
        if let Some(url) = urls.listen_client_http.iter().find(is_both) {
            return Err(Refusal::start_failed(format!(
                "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {url}"
            )));
        }
        // COMPAT-131: with `unixs`, members of etcd 3.7 cannot connect to each other either.
        let of_members = [
            ("listen-peer-urls", &urls.listen_peer),
            ("initial-advertise-peer-urls", &urls.initial_advertise_peer),
        ];
        for (flag, urls) in of_members {
            let is_unixs = |url: &&Url| url.scheme().is_unix() && url.scheme().is_secure();
            if let Some(url) = urls.iter().find(is_unixs) {
                let text = format!(
                    "--{flag} has {url}: peer URLs must be http, https or unix URLs; TLS is used with https only"
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
    match settings.text("logger").as_str() {
        "zap" => {}
        "capnslog" => return Err(Refusal::invalid("--logger=capnslog is removed in v3.5")),
        other => return Err(Refusal::invalid(format!("unknown logger option {}", quote(other)))),
    }
    let level = settings.text("log-level");
    // etcd panics here, which ends it with the exit code of a syntax error.
    let level = Level::parse(&level)
        .ok_or_else(|| Refusal::Syntax(format!("unrecognized level: {}", quote(&level))))?;
    let outputs = settings.list("log-outputs");
    let refused = |error: ValueError| Refusal::invalid(error.to_string());
    let mut log = LogSettings::parse(level, &settings.text("log-format"), &outputs).map_err(refused)?;
    if settings.bool("enable-log-rotation") {
        let json = settings.text("log-rotation-config-json");
        log.rotation = Some(LogRotation::parse(&json, &outputs).map_err(refused)?);
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
    let mode = settings.text("auto-compaction-mode");
    let periodic = match mode.as_str() {
        "periodic" => true,
        "revision" => false,
        "" => return Err(Refusal::invalid("undefined auto-compaction-mode")),
        _ => return Err(Refusal::invalid(format!("unknown auto-compaction-mode {}", quote(&mode)))),
    };
    let retention = settings.text("auto-compaction-retention");
    let amount = retention_amount(&retention, periodic)
        .map_err(|reason| Refusal::start_failed(format!("error parsing CompactionRetention: {reason}")))?;
    if !periodic && amount > 0 && !is_plain_number(&retention) {
        // etcd interprets the duration's nanoseconds as a number of revisions; Mainstay does the same, with a
        // warning.
        settings.warnings.push(
            Entry::new(
                Level::Warn,
                "auto-compaction-retention is a duration, but must be a number of revisions",
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

/// Returns nanoseconds or a number of revisions. In the periodic mode a plain number means hours; anything
/// else is parsed as a duration.
fn retention_amount(retention: &str, periodic: bool) -> Result<u64, ValueError> {
    if is_plain_number(retention) {
        let too_large = || ValueError::new(format!("{} is too large", quote(retention)));
        let count: u64 = retention.trim_start_matches('+').parse().map_err(|_| too_large())?;
        // The maximum of Go's durations is 292 years.
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

/// Checks options that have no effect here with etcd's rules.
fn check_engine_options(settings: &Settings) -> Result<(), Refusal> {
    let check_time = settings.duration("compact-hash-check-time");
    if check_time <= 0 {
        let text = nanoseconds(check_time);
        return Err(Refusal::invalid(format!("--compact-hash-check-time must be >0 (set to {text})")));
    }
    let freelist = settings.text("backend-bbolt-freelist-type");
    if !matches!(freelist.as_str(), "" | "map" | "array") {
        return Err(Refusal::invalid(format!(
            "--backend-bbolt-freelist-type must be map or array (set to {})",
            quote(&freelist)
        )));
    }
    let limit = settings.int("backend-batch-limit");
    if limit < 0 {
        return Err(Refusal::invalid(format!("--backend-batch-limit must not be negative (set to {limit})")));
    }
    let interval = settings.duration("backend-batch-interval");
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
    let request_bytes = settings.uint("max-request-bytes");
    if request_bytes > REQUEST_BYTES_SUGGESTED_MAX {
        warnings.push(
            Entry::new(Level::Warn, "exceeded recommended request limit")
                .with("max-request-bytes", request_bytes.to_string())
                .with("recommended-request-bytes", REQUEST_BYTES_SUGGESTED_MAX.to_string()),
        );
    }
    let quota = settings.int("quota-backend-bytes");
    if u64::try_from(quota).is_ok_and(|quota| quota > QUOTA_BYTES_SUGGESTED_MAX) {
        warnings.push(
            Entry::new(Level::Warn, "quota exceeds the maximum value")
                .with("quota-size-bytes", quota.to_string())
                .with("quota-maximum-size-bytes", QUOTA_BYTES_SUGGESTED_MAX.to_string()),
        );
    }
    if settings.bool("unsafe-no-fsync") {
        warnings.push(Entry::new(
            Level::Warn,
            "--unsafe-no-fsync is set: acknowledged writes are lost when the machine stops",
        ));
    }
    let listens_everywhere = urls.listen_peer.iter().any(|url| matches!(url.host(), "0.0.0.0" | "::"));
    let default_peer = find_flag("initial-advertise-peer-urls").map(|flag| flag.default);
    if listens_everywhere && Some(join(&urls.initial_advertise_peer).as_str()) == default_peer {
        warnings.push(
            Entry::new(Level::Warn, "members on other machines cannot reach the advertised peer URL")
                .with("initial-advertise-peer-urls", join(&urls.initial_advertise_peer)),
        );
    }
    let wants_certificates =
        settings.bool("client-cert-auth") || !settings.text("trusted-ca-file").is_empty();
    for url in urls.listen_console.iter().filter(|url| !url.scheme().is_secure()) {
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
    let given = settings.text("data-dir");
    if !given.is_empty() {
        return PathBuf::from(given);
    }
    let default = format!("{name}.etcd");
    settings.warnings.push(
        Entry::new(Level::Warn, "'data-dir' was empty; using default").with("data-dir", default.as_str()),
    );
    PathBuf::from(default)
}

/// Returns the initial cluster. If only the member's name was set, the cluster consists of that name with the
/// advertised URLs.
fn initial_cluster(settings: &Settings, name: &str, advertised: &[Url]) -> String {
    let given = settings.text("initial-cluster");
    let discovers = !settings.text("discovery-srv").is_empty()
        || !settings.text("discovery-srv-name").is_empty()
        || !settings.list("discovery-endpoints").is_empty();
    if discovers && !settings.is_set("initial-cluster") {
        return String::new();
    }
    let is_default = find_flag("initial-cluster").is_some_and(|flag| flag.default == given);
    if !is_default || name == DEFAULT_NAME {
        return given;
    }
    let name = if name.is_empty() { DEFAULT_NAME } else { name };
    advertised.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",")
}

fn quota(settings: &Settings) -> Option<u64> {
    match u64::try_from(settings.int("quota-backend-bytes")) {
        Ok(0) => Some(QUOTA_BYTES_DEFAULT),
        Ok(bytes) => Some(bytes),
        Err(_) => None,
    }
}

/// Lower bound: with fewer bytes a new file would be begun every few seconds.
const AUDIT_LOG_MAX_BYTES_MIN: u64 = 1 << 20;
/// Upper bound, because each rotation renames all files.
const AUDIT_LOG_FILES_MAX: u64 = 1000;

fn audit_log(settings: &Settings) -> Option<AuditLogOptions> {
    let path = settings.text("audit-log");
    (!path.is_empty()).then(|| AuditLogOptions {
        path: path.into(),
        file_bytes_max: settings.uint("audit-log-max-bytes").max(AUDIT_LOG_MAX_BYTES_MIN),
        files_max: settings.uint("audit-log-files").clamp(1, AUDIT_LOG_FILES_MAX),
        reads: settings.bool("audit-log-reads"),
    })
}

fn metrics_detail(settings: &mut Settings) -> MetricsDetail {
    let given = settings.text("metrics");
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

fn not_negative(settings: &Settings, name: &'static str) -> Result<u64, Refusal> {
    let value = settings.int(name);
    u64::try_from(value)
        .map_err(|_| Refusal::invalid(format!("--{name} must not be negative (set to {value})")))
}

fn or_default(value: u64, default: u64) -> u64 {
    if value == 0 { default } else { value }
}

fn duration_or_default(value: Duration, default: Duration) -> Duration {
    if value.is_zero() { default } else { value }
}
