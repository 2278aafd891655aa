//! `etcd grpc-proxy`: starts the gRPC proxy, that is, its sockets, TLS and threads. The module `service`
//! answers the calls.

use std::fmt;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use accounting::Budget;
use api::etcdserverpb::RangeRequest;
use api::{Rpc, Status, error};
use bytes::Bytes;
use cli::Matches;
use client::{CallOptions, Client, Settings, Tls, TlsFiles, Transport};
use front::{Front, Listener, Protocols};
use prost::Message as _;
use stdx::{FirstRun, Periodic};
use telemetry::logging::{Format, Level, Logger, Value};
use tls::{Event, Reloader, SelfSigned, SystemClock};

use crate::background::Background;
use crate::hub::Hub;
use crate::leasing::Leasing;
use crate::members::{Members, Order};
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::pages::Pages;
use crate::probes::{self, Probes, Standings};
use crate::resolver::Resolver;
use crate::service::{Proxy, Shared};
use crate::{ProxyOptions, Ready, upstream};

/// Interval at which the TLS files are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of a client's message in bytes, unless `--max-send-bytes` allows larger requests to members.
/// Source: grpc-go's default.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum memory in bytes that the gRPC server may use for the connections of all clients together.
const BUDGET_BYTES: usize = 1 << 30;
/// Number of file descriptors that are reserved for purposes other than connections of clients.
const OTHER_FILES: usize = 64;

/// Time that the start of a proxy with `--zone` waits for the first answers of its endpoints.
const FIRST_ROUND_LIMIT: Duration = probes::LIMIT.saturating_mul(2);

/// Pause before the read in [`wait_for_order`] is tried again. Source: etcd's proxy.
const ORDER_PAUSE: Duration = Duration::from_secs(1);

/// Reason why the gRPC proxy cannot start.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

fn fault(text: impl fmt::Display) -> StartError {
    StartError(text.to_string())
}

/// A running gRPC proxy. Dropping it closes all connections.
pub struct GrpcProxy {
    /// The thread that reloads changed TLS files; `None` without TLS. Dropped first, since it uses the fronts.
    _reloading: Option<Periodic>,
    fronts: Vec<Front>,
    /// Thread that runs the background tasks; `None` if there are no such tasks.
    _background: Option<Background>,
    /// Address on which the proxy listens.
    pub address: SocketAddr,
    /// Additional address at which only HTTP pages are served (`--metrics-addr`); `None` without this flag.
    pub pages_address: Option<SocketAddr>,
}

impl fmt::Debug for GrpcProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcProxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl GrpcProxy {
    /// Starts a proxy.
    ///
    /// # Errors
    /// Returns an error if the settings contradict each other, a file cannot be used, or an address is not
    /// available.
    pub fn start(options: &ProxyOptions, logger: &Logger) -> Result<GrpcProxy, StartError> {
        let listen_tls = listen_tls(options, logger)?;
        let socket = listen(&options.listen.address)?;
        let address = socket.local_addr().map_err(fault)?;
        logger.info(
            "listening for gRPC proxy client requests",
            &[("address", Value::Str(&options.listen.address))],
        );
        let endpoints = endpoints(options, logger)?;
        let member_tls = member_tls(options, logger)?;
        let standings = (!options.members.zone.zone.is_empty()).then(Arc::<Standings>::default);
        let preference = standings.as_ref().map(|standings| standings.preference.clone());
        let upstream = upstream::settings(options, endpoints.clone(), member_tls.clone(), preference);
        // This client is only created to report faulty settings now, and is dropped. Each shard creates its
        // own client from the same settings.
        Client::new(upstream.clone()).map_err(fault)?;
        let own = own_settings(options, listen_tls.as_ref().map(|(tls, _)| tls.settings()))?;

        let metrics = Arc::new(Metrics { standings: standings.clone(), ..Metrics::default() });
        let namespace = Namespace::new(&options.namespace);
        let hub = {
            let upstream = upstream.clone();
            let (auto_sync, logger) = (options.members.auto_sync_interval, logger.clone());
            let client = move || {
                let client = checked_client(upstream);
                if !auto_sync.is_zero() {
                    tokio::spawn(keep_in_sync(client.clone(), auto_sync, logger));
                }
                client
            };
            let limit = options.members.renewal_limit;
            Hub::start(client, namespace.clone(), metrics.clone(), limit).map_err(fault)?
        };
        let shared = Arc::new(Shared {
            logger: logger.clone(),
            metrics,
            hub,
            streams: AtomicU64::new(0),
            cache: Mutex::default(),
            leasing: (!options.leasing_prefix.is_empty())
                .then(|| Arc::new(Leasing::new(options.leasing_prefix.clone().into()))),
            advertise: options.advertise.clone(),
            proxies: Arc::default(),
            host: host_name(),
            logs_calls: options.logs_calls,
        });
        let members = {
            let order = options.orders_reads.then(Arc::<Order>::default);
            move || {
                let client = checked_client(upstream.clone());
                Members { client, namespace: namespace.clone(), order: order.clone() }
            }
        };
        if options.orders_reads {
            wait_for_order(&members, logger)?;
        }
        let (first_round, is_ranked) = mpsc::channel();
        let probes = standings.map(|standings| Probes {
            options: options.members.zone.clone(),
            standings,
            logger: logger.clone(),
            auto_sync_interval: options.members.auto_sync_interval,
            first_round,
        });
        let background = background(options, &shared, probes, members.clone(), logger)?;
        // Ends when the sender is dropped: after the first round, or at once without probes. So the first calls go
        // to the zone, too. If the round takes longer, calls go to all endpoints in turn until it ends.
        let _ = is_ranked.recv_timeout(FIRST_ROUND_LIMIT);
        let transport = Transport { tls: member_tls, ..Transport::default() };
        let metrics_of = endpoints.first().cloned().unwrap_or_default();
        let auto_sync = options.members.auto_sync_interval;
        let make = {
            let (shared, logger) = (shared.clone(), logger.clone());
            move |has_profiles: bool| -> Rc<dyn front::Service> {
                let members = members();
                let client = members.client.clone();
                if !auto_sync.is_zero() {
                    tokio::spawn(keep_in_sync(client.clone(), auto_sync, logger.clone()));
                }
                let own = own.clone().and_then(|own| Client::new(own).ok());
                let (transport, metrics_of) = (transport.clone(), metrics_of.clone());
                let pages = Pages { client, own, transport, metrics_of, has_profiles };
                Rc::new(Proxy::new(shared.clone(), members, pages))
            }
        };
        let has_profiles = options.pprof;
        if has_profiles {
            logger.info("gRPC proxy enabled pprof", &[("path", Value::Str("/debug/pprof"))]);
        }
        // Profiles are served at the address for calls and not at the one for metrics, as in etcd.
        let make_main = {
            let make = make.clone();
            Arc::new(move |_| make(has_profiles))
        };

        let server = listen_tls.as_ref().and_then(|(tls, _)| tls.server());
        let front_options = front_options(options, logger);
        let listener = Listener { tls: server.clone(), ..Listener::from(socket) };
        let front = front::start(front_options.clone(), vec![listener], make_main).map_err(fault)?;
        let _ = shared.metrics.front.set(front.counters().to_vec());
        let mut fronts = vec![front];
        let mut pages_address = None;
        if let Some(url) = &options.listen.metrics {
            let (secure, at) = page_address(url)?;
            let socket = listen(at)?;
            pages_address = Some(socket.local_addr().map_err(fault)?);
            logger.info("gRPC proxy listening for metrics", &[("address", Value::Str(url))]);
            if secure && server.is_none() {
                return Err(fault(format!(
                    "cannot listen on TLS for {at}: KeyFile and CertFile are not presented"
                )));
            }
            let listener = Listener {
                tls: server.filter(|_| secure),
                serves: Protocols::Pages,
                ..Listener::from(socket)
            };
            let options = front::Options { shards: 1, ..front_options };
            fronts
                .push(front::start(options, vec![listener], Arc::new(move |_| make(false))).map_err(fault)?);
            logger.info("gRPC proxy server metrics URL serving", &[]);
        }
        let mut proxy =
            GrpcProxy { fronts, _reloading: None, _background: background, address, pages_address };
        proxy._reloading = listen_tls.map(|(_, reloader)| proxy.reload(reloader, logger)).transpose()?;
        logger.info("started gRPC proxy", &[("address", Value::Display(&address))]);
        Ok(proxy)
    }

    /// Starts the thread that reloads changed TLS files.
    fn reload(&self, mut reloader: Reloader, logger: &Logger) -> Result<Periodic, StartError> {
        let reloads: Vec<_> = self.fronts.iter().map(Front::tls_reloads).collect();
        let logger = logger.clone();
        let poll = move || match reloader.poll(SystemTime::now()) {
            Some(event @ Event::Reloaded { .. }) => {
                logger.info("changed TLS files are in use", &[("event", Value::Display(&event))]);
                reloads.iter().for_each(|reloaded| reloaded());
            }
            Some(event) => logger.warn("TLS files changed", &[("event", Value::Display(&event))]),
            None => {}
        };
        Periodic::start("tls", RELOAD_INTERVAL, FirstRun::AfterInterval, poll).map_err(fault)
    }

    /// Stops the proxy. Calls in flight may continue for up to `patience`.
    pub fn stop(mut self, patience: Duration) {
        for front in self.fronts.drain(..) {
            front.shutdown_blocking(patience);
        }
    }
}

/// Runs `grpc-proxy start`.
pub(crate) fn command(matches: &Matches, ready: Ready<'_>) -> Result<(), String> {
    let options = ProxyOptions::read(matches)?;
    let level = if options.is_debug { Level::Debug } else { Level::Info };
    let logger = Logger::to(level, Format::Json, vec![Box::new(std::io::stderr())]);
    let _proxy = GrpcProxy::start(&options, &logger).map_err(|error| error.to_string())?;
    ready(&logger);
    // The proxy runs on other threads. Only a signal ends the process, as in etcd.
    loop {
        std::thread::park();
    }
}

/// Starts a thread for the background tasks; returns `None` if the options need no such tasks.
fn background(
    options: &ProxyOptions,
    shared: &Shared,
    probes: Option<Probes>,
    members: impl FnOnce() -> Members + Send + 'static,
    logger: &Logger,
) -> Result<Option<Background>, StartError> {
    let mut tasks = Vec::new();
    if !options.resolver_prefix.is_empty() {
        let resolver = Resolver {
            prefix: options.resolver_prefix.clone(),
            ttl: options.resolver_ttl,
            advertise: options.advertise.clone(),
            host: shared.host.clone(),
            proxies: shared.proxies.clone(),
            leasing: shared.leasing.clone(),
            logger: logger.clone(),
        };
        tasks.push(resolver.task());
    }
    if let Some(leasing) = &shared.leasing {
        tasks.push(leasing.clone().task(logger.clone()));
    }
    tasks.extend(probes.map(Probes::task));
    if tasks.is_empty() {
        return Ok(None);
    }
    Background::start(members, tasks).map(Some).map_err(fault)
}

/// Reads a key until a member answers, and records the revision of the response as the lowest one that reads
/// of clients may return. As in etcd, the proxy serves no client until then.
fn wait_for_order(members: &impl Fn() -> Members, logger: &Logger) -> Result<(), StartError> {
    logger.info("waiting for linearized read from cluster to recover ordering", &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fault)?;
    runtime.block_on(async {
        let members = members();
        let request =
            RangeRequest { key: Bytes::from_static(b"_"), keys_only: true, ..RangeRequest::default() };
        let message: Bytes = request.encode_to_vec().into();
        loop {
            let options = CallOptions::default();
            match members.call(Rpc::KvRange, &options, message.clone()).await {
                Ok(_) => return,
                Err(status) if is_about_rights(&status) => {
                    // The proxy has no credentials for this read, so do not wait any longer. The first read
                    // of a client will set the lowest revision.
                    logger.warn(
                        "the proxy has no permission to read, so it cannot get the cluster's revision; reads are \
                         ordered from the first read of a client on",
                        &[],
                    );
                    return;
                }
                Err(status) => logger.warn(
                    "ordering recovery failed, retrying in 1s",
                    &[("error", Value::Str(&client::shown(&status)))],
                ),
            }
            tokio::time::sleep(ORDER_PAUSE).await;
        }
    });
    Ok(())
}

/// Returns true if a status says that the call had no credentials, or that its user has no permission.
fn is_about_rights(status: &Status) -> bool {
    let refusals = [error::USER_EMPTY, error::PERMISSION_DENIED];
    refusals.iter().any(|known| status.message == known.message)
}

/// Creates a client from settings with which a client was created before, so the creation does not fail.
fn checked_client(settings: Settings) -> Client {
    Client::new(settings).unwrap_or_else(|error| unreachable!("the settings were checked: {error}"))
}

/// Returns the endpoints that DNS discovery has found; those of `--endpoints` if it has found none or is not
/// used.
fn endpoints(options: &ProxyOptions, logger: &Logger) -> Result<Vec<String>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fault)?;
    let found = runtime.block_on(options.members.discovery.find(logger)).map_err(fault)?;
    let found: Vec<String> = found.into_iter().map(|(url, _)| url).collect();
    Ok(if found.is_empty() { options.members.endpoints.clone() } else { found })
}

/// Returns the TLS settings of connections to members.
fn member_tls(options: &ProxyOptions, logger: &Logger) -> Result<Option<Tls>, StartError> {
    let Some(files) = &options.members.tls else { return Ok(None) };
    if let Some(cert) = &files.cert {
        // If the proxy's certificate had a common name, members that authenticate by certificates would treat
        // every client as the user with that name.
        let name = tls::common_name_of(cert).map_err(fault)?;
        if let Some(name) = name {
            return Err(fault(format!("cert has non empty Common Name ({name}): {}", cert.display())));
        }
    }
    if files.insecure_skip_verify {
        logger.warn(
            "--insecure-skip-tls-verify was given, this grpc proxy process skips authentication of etcd server TLS certificates. This option should be enabled only for testing purposes.",
            &[],
        );
    }
    // If the files change later, a new certificate that has a common name is not used, for the same reason.
    let is_nameless = |contents: &[u8]| tls::common_name_in(contents).is_ok_and(|name| name.is_none());
    files.load_for_each_connection(is_nameless).map(Some).map_err(fault)
}

/// Returns the TLS settings of connections to the proxy.
fn listen_tls(options: &ProxyOptions, logger: &Logger) -> Result<Option<(tls::Tls, Reloader)>, StartError> {
    let given = &options.listen.tls;
    let mut settings = given.clone();
    if given.is_empty() && given.trusted_ca_file.is_none() {
        if !options.listen.auto_tls {
            return Ok(None);
        }
        let dir = options.listen.data_dir.join("fixtures").join("proxy");
        let hosts = [options.listen.address.clone()];
        let made = SelfSigned::prepare(&dir, &hosts, options.listen.self_signed_years, SystemTime::now())
            .map_err(fault)?;
        settings = tls::Settings {
            cipher_suites: given.cipher_suites.clone(),
            min_version: given.min_version,
            max_version: given.max_version,
            crl_file: given.crl_file.clone(),
            ..made.settings()
        };
    }
    if settings.is_empty() {
        return Err(fault("KeyFile and CertFile are not presented (--cert-file, --key-file)"));
    }
    settings.alpn = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    logger.info("gRPC proxy server TLS", &[("tls-info", Value::Display(&settings))]);
    tls::Tls::load(settings, Arc::new(SystemClock)).map(Some).map_err(fault)
}

/// Returns the settings of the client with which the proxy checks its own health, by calls to the address
/// that it advertises. Returns `None` if the proxy advertises no address.
fn own_settings(
    options: &ProxyOptions,
    listen_tls: Option<&tls::Settings>,
) -> Result<Option<Settings>, StartError> {
    if options.advertise.is_empty() {
        return Ok(None);
    }
    let mut settings = Settings::of([options.advertise.clone()]);
    settings.dial_timeout = Some(Duration::from_secs(5));
    if let Some(tls) = listen_tls {
        let files = TlsFiles {
            cacert: tls.trusted_ca_file.clone(),
            cert: tls.cert_file.clone(),
            key: tls.key_file.clone(),
            server_name: None,
            insecure_skip_verify: tls.insecure_skip_verify,
        };
        settings.tls = Some(files.load().map_err(fault)?);
    }
    Ok(Some(settings))
}

fn front_options(options: &ProxyOptions, logger: &Logger) -> front::Options {
    let defaults = front::Options::default();
    let unless_zero = |time: Duration, otherwise| if time.is_zero() { otherwise } else { time };
    let never = Duration::from_secs(u32::MAX.into());
    let files = telemetry::metrics::open_files_max().unwrap_or(usize::MAX);
    let logger = logger.clone();
    front::Options {
        methods: api::METHODS.len(),
        connections_max: (files.saturating_sub(OTHER_FILES)).clamp(16, defaults.connections_max),
        message_bytes_max: MESSAGE_BYTES_MAX.max(options.members.send_bytes_max),
        budget: Budget::new(BUDGET_BYTES),
        max_concurrent_streams: options.listen.max_concurrent_streams,
        // As in etcd, the value 0 of a keepalive flag means grpc-go's default, which is 5 minutes for this
        // flag.
        keepalive_min_time: unless_zero(options.listen.keepalive_min_time, Duration::from_secs(300)),
        keepalive_interval: unless_zero(options.listen.keepalive_interval, never),
        keepalive_timeout: unless_zero(options.listen.keepalive_timeout, defaults.keepalive_timeout),
        rejected: Arc::new(move |rejected| {
            logger.warn(
                "rejected connection on client endpoint",
                &[
                    ("remote-addr", Value::Display(&rejected.remote)),
                    ("server-name", Value::Str(&rejected.server_name)),
                    ("error", Value::Str(&rejected.error)),
                ],
            );
        }),
        ..defaults
    }
}

fn listen(address: &str) -> Result<TcpListener, StartError> {
    // An empty host means all addresses of this machine, as in Go.
    let bound = match address.strip_prefix(':') {
        Some(port) => TcpListener::bind(format!("[::]:{port}"))
            .or_else(|_| TcpListener::bind(format!("0.0.0.0:{port}"))),
        None => TcpListener::bind(address),
    };
    let socket = bound.map_err(|error| fault(format!("listen tcp {address}: bind: {error}")))?;
    socket.set_nonblocking(true).map_err(fault)?;
    Ok(socket)
}

/// Parses the URL of `--metrics-addr`. Returns true for `https` and false for `http`, with the `host:port` of
/// the URL.
fn page_address(url: &str) -> Result<(bool, &str), StartError> {
    let (secure, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => return Err(fault(format!("cannot parse {url:?}"))),
    };
    Ok((secure, rest.split(['/', '?', '#']).next().unwrap_or(rest)))
}

async fn keep_in_sync(client: Client, interval: Duration, logger: Logger) {
    loop {
        tokio::time::sleep(interval).await;
        if let Err(status) = client.within(interval).sync().await {
            logger.info("Auto sync endpoints failed.", &[("error", Value::Str(&status.message))]);
        }
    }
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map_or(String::new(), |name| name.trim().to_owned())
}
