//! `etcd gateway`: forwards clients' TCP connections to reachable endpoints, without interpreting the data.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cli::Matches;
use socket2::{SockRef, TcpKeepalive};
use telemetry::logging::{Logger, Value};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Ready;
use crate::commands::gateway as flags;
use crate::discovery::Discovery;
use crate::probes::ZoneOptions;
use crate::proximity::RoundTrips;

/// Bytes buffered per connection in each direction.
const BUFFER_BYTES: usize = 16 * 1024;
/// Timeout of connecting to an endpoint.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which the kernel sends a TCP keepalive probe to a peer, and interval of further probes.
/// Source: Go's default.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Pause after a failure to accept a connection, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which unreachable endpoints are tried again if `--retry-delay` is 0. Source: etcd.
const RETRY_DELAY: Duration = Duration::from_secs(5 * 60);
/// Interval at which a gateway with a zone measures how long connecting to each endpoint takes, by connections of its
/// own, which it closes at once. Those of clients would stay at a distant endpoint for as long as the clients run.
const MEASURE_INTERVAL: Duration = Duration::from_secs(20);
/// Time that the first measurement may take before clients are served.
const FIRST_MEASURE_LIMIT: Duration = Duration::from_secs(1);
/// Number of file descriptors that are reserved for purposes other than connections.
const OTHER_FILES: usize = 32;
/// Maximum number of open connections, even if the limit on open files allows more or is not known.
const CONNECTIONS_MAX: usize = 100_000;

/// An endpoint to which connections are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Host name or address, and port.
    pub address: String,
    /// Priority in the SRV record: lower is preferred; 0 without a record.
    pub priority: u16,
    /// Weight in the SRV record: among endpoints of the same priority, each gets connections in proportion to
    /// its weight. 0 without a record.
    pub weight: u16,
}

impl Remote {
    /// Creates an endpoint without an SRV record.
    pub fn new(address: impl Into<String>) -> Remote {
        Remote { address: address.into(), priority: 0, weight: 0 }
    }
}

/// Settings of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Endpoints to which connections are forwarded; not empty.
    pub remotes: Vec<Remote>,
    /// Zone of the gateway, whose endpoints it prefers, and the networks of the endpoints by zone.
    pub zone: ZoneOptions,
    /// Interval at which unreachable endpoints are tried again, and with a zone at which the addresses of all
    /// endpoints are looked up again; zero for 5 minutes.
    pub retry_delay: Duration,
    /// Maximum number of open connections. Further connections are accepted only when open ones end; until
    /// then they wait in the kernel's queue.
    pub connections_max: usize,
}

/// State of a running gateway, shared by its connections.
pub struct Gateway {
    remotes: Vec<Remote>,
    zone: ZoneOptions,
    standing: Mutex<Standing>,
    retry_delay: Duration,
    connections: Arc<Semaphore>,
    logger: Logger,
}

/// Observations of the endpoints, each at the same index as in [`Gateway::remotes`], and a counter for taking
/// turns.
struct Standing {
    active: Vec<bool>,
    /// True for endpoints in the zone of the gateway; false for all without a zone.
    near: Vec<bool>,
    /// Times that connecting took. Only with a zone.
    round_trips: Vec<RoundTrips>,
    turn: usize,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("remotes", &self.remotes).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Creates a gateway that has not accepted connections yet.
    pub fn new(options: GatewayOptions, logger: Logger) -> Arc<Gateway> {
        let count = options.remotes.len();
        let standing = Standing {
            active: vec![true; count],
            near: vec![false; count],
            round_trips: vec![RoundTrips::default(); count],
            turn: 0,
        };
        let retry_delay = if options.retry_delay.is_zero() { RETRY_DELAY } else { options.retry_delay };
        Arc::new(Gateway {
            remotes: options.remotes,
            zone: options.zone,
            standing: Mutex::new(standing),
            retry_delay,
            connections: Arc::new(Semaphore::new(options.connections_max.min(Semaphore::MAX_PERMITS))),
            logger,
        })
    }

    /// Accepts connections and forwards them. Never returns. Must run in a tokio runtime.
    pub async fn run(self: Arc<Gateway>, listener: TcpListener) {
        let addresses: Vec<&str> = self.remotes.iter().map(|remote| remote.address.as_str()).collect();
        self.logger.info("ready to proxy client requests", &[("endpoints", Value::List(&addresses))]);
        if !self.zone.zone.is_empty() {
            self.look_up_zones().await;
            let _ = timeout(FIRST_MEASURE_LIMIT, self.measure()).await;
            let gateway = self.clone();
            tokio::spawn(async move {
                loop {
                    sleep(MEASURE_INTERVAL).await;
                    gateway.measure().await;
                }
            });
        }
        tokio::spawn(self.clone().retry());
        loop {
            let Ok(place) = self.connections.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((client, _)) => {
                    let gateway = self.clone();
                    tokio::spawn(async move {
                        gateway.serve(client).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    self.logger.warn("failed to accept a connection", &[("error", Value::Display(&error))]);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Forwards one connection until both directions have ended. When a peer ends its direction, the gateway
    /// ends the same direction towards the other peer. If no endpoint is reachable, the connection is closed.
    async fn serve(&self, mut client: TcpStream) {
        while let Some(at) = self.pick(random()) {
            match dial(&self.remotes[at].address).await {
                Ok(mut server) => {
                    probe(&client);
                    probe(&server);
                    // An error can be ignored: it ends the forwarding, and the return closes both
                    // connections, which both peers notice.
                    let _ = tokio::io::copy_bidirectional_with_sizes(
                        &mut client,
                        &mut server,
                        BUFFER_BYTES,
                        BUFFER_BYTES,
                    )
                    .await;
                    return;
                }
                Err(error) => {
                    self.standing().active[at] = false;
                    self.logger.warn(
                        "deactivated endpoint",
                        &[
                            ("address", Value::Str(&self.remotes[at].address)),
                            ("interval", Value::Duration(self.retry_delay)),
                            ("error", Value::Display(&error)),
                        ],
                    );
                }
            }
        }
    }

    /// Returns the index of the endpoint for the next connection; `None` if all endpoints are unreachable.
    /// With a zone, endpoints in the zone are chosen while one of them is reachable. Of the reachable endpoints
    /// with the best priority, one is chosen at random by weight (RFC 2782). If none of them has a weight, they
    /// take turns; with a zone, those to which connecting takes long are left out.
    fn pick(&self, random: u64) -> Option<usize> {
        let mut standing = self.standing();
        let mut active: Vec<usize> = (0..self.remotes.len()).filter(|at| standing.active[*at]).collect();
        if active.iter().any(|at| standing.near[*at]) {
            active.retain(|at| standing.near[*at]);
        }
        let best = active.iter().map(|at| self.remotes[*at].priority).min()?;
        let candidates: Vec<usize> =
            active.into_iter().filter(|at| self.remotes[*at].priority == best).collect();
        let (weighted, mut plain): (Vec<usize>, Vec<usize>) =
            candidates.into_iter().partition(|at| self.remotes[*at].weight > 0);
        let turn = standing.turn;
        // Records without a weight take turns: for all connections if no record has a weight, else for one
        // connection in a hundred.
        if weighted.is_empty() || (!plain.is_empty() && random.is_multiple_of(100)) {
            standing.turn = turn.wrapping_add(1);
            if !self.zone.zone.is_empty() {
                standing.leave_out_distant(&mut plain);
            }
            return plain.get(turn.checked_rem(plain.len())?).copied();
        }
        let sum: u64 = weighted.iter().map(|at| u64::from(self.remotes[*at].weight)).sum();
        let mut drawn = (random / 100) % sum;
        weighted.into_iter().find(|at| {
            let weight = u64::from(self.remotes[*at].weight);
            let is_it = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            is_it
        })
    }

    /// Determines which endpoints are in the zone of the gateway, by their addresses. One whose name has no address
    /// now stays where it was.
    async fn look_up_zones(&self) {
        let mut found = JoinSet::new();
        for (at, remote) in self.remotes.iter().enumerate() {
            let address = remote.address.clone();
            found.spawn(async move {
                let found = timeout(DIAL_TIMEOUT, lookup_host(address)).await;
                (at, found.ok().and_then(Result::ok).map(Iterator::collect::<Vec<SocketAddr>>))
            });
        }
        while let Some(found) = found.join_next().await {
            let Ok((at, Some(addresses))) = found else { continue };
            let zone = addresses.iter().find_map(|address| self.zone.networks.zone_of(address.ip()));
            self.standing().near[at] = zone == Some(self.zone.zone.as_str());
        }
    }

    /// Measures how long connecting to each endpoint takes.
    async fn measure(&self) {
        let mut measured = JoinSet::new();
        for (at, remote) in self.remotes.iter().enumerate() {
            let address = remote.address.clone();
            measured.spawn(async move {
                // Looking up a name is no part of the distance.
                let found = timeout(DIAL_TIMEOUT, lookup_host(address)).await.ok()?.ok()?.next()?;
                let began = Instant::now();
                timeout(DIAL_TIMEOUT, TcpStream::connect(found)).await.ok()?.ok()?;
                Some((at, began.elapsed()))
            });
        }
        while let Some(found) = measured.join_next().await {
            if let Ok(Some((at, time))) = found {
                self.standing().round_trips[at].add(time);
            }
        }
    }

    /// Periodically checks whether unreachable endpoints can be reached again.
    async fn retry(self: Arc<Gateway>) {
        loop {
            sleep(self.retry_delay).await;
            if !self.zone.zone.is_empty() {
                self.look_up_zones().await;
            }
            let out: Vec<usize> = {
                let standing = self.standing();
                (0..self.remotes.len()).filter(|at| !standing.active[*at]).collect()
            };
            for at in out {
                let gateway = self.clone();
                tokio::spawn(async move {
                    let address = &gateway.remotes[at].address;
                    match dial(address).await {
                        Ok(_) => {
                            gateway.standing().active[at] = true;
                            gateway.logger.info("activated", &[("address", Value::Str(address))]);
                        }
                        Err(error) => gateway.logger.warn(
                            "failed to activate endpoint (stay inactive for another interval)",
                            &[
                                ("address", Value::Str(address)),
                                ("interval", Value::Duration(gateway.retry_delay)),
                                ("error", Value::Display(&error)),
                            ],
                        ),
                    }
                });
            }
        }
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        // No code panics while it holds this lock, so poisoning is ignored.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    /// Leaves only the endpoints to which connecting takes about as long as to the best of them.
    fn leave_out_distant(&mut self, endpoints: &mut Vec<usize>) {
        let shortest = |at: &usize| self.round_trips[*at].shortest();
        let Some(best) = endpoints.iter().filter_map(shortest).min() else { return };
        endpoints.retain(|at| self.round_trips[*at].is_close(best));
    }
}

async fn dial(address: &str) -> io::Result<TcpStream> {
    let stream = timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Enables TCP keepalive, so that the kernel detects a dead peer.
fn probe(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    // If keepalive cannot be enabled, a connection to a dead peer only stays open for longer.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    let _ = stream.set_nodelay(true);
}

/// Returns a random number for distributing connections. It is predictable, so it must not be used for
/// secrets.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Runs `gateway start`.
pub(crate) fn command(matches: &Matches, ready: Ready<'_>) -> Result<(), String> {
    let logger = Logger::stderr();
    let args: Vec<String> = profiling::command_line();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    logger.info("Running: ", &[("args", Value::List(&args))]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(start(matches, &logger, ready))
}

async fn start(matches: &Matches, logger: &Logger, ready: Ready<'_>) -> Result<(), String> {
    let zone = ZoneOptions::read(matches.get(flags::ZONE), matches.get(flags::ZONE_NETWORKS))?;
    if !zone.zone.is_empty() && zone.networks.is_empty() {
        return Err("zone needs zone-networks, by which the zones of endpoints are known".to_owned());
    }
    let trusted_ca = matches.get(flags::TRUSTED_CA_FILE);
    let discovery = Discovery {
        domain: matches.get(flags::DISCOVERY_SRV).to_owned(),
        name: matches.get(flags::DISCOVERY_SRV_NAME).to_owned(),
        is_insecure_allowed: matches.get(flags::INSECURE_DISCOVERY),
        trusted_ca: Some(PathBuf::from(trusted_ca)).filter(|path| !path.as_os_str().is_empty()),
    };
    let mut remotes: Vec<Remote> = Vec::new();
    for (_, found) in discovery.find(logger).await? {
        let host = found.target.trim_end_matches('.');
        let (priority, weight) = (found.priority, found.weight);
        remotes.push(Remote { address: joined(host, found.port), priority, weight });
    }
    if remotes.is_empty() {
        for endpoint in matches.get(flags::ENDPOINTS) {
            let address = without_scheme(endpoint);
            let Some((host, port)) = host_and_port(address) else {
                return Err(format!("error parsing endpoint {endpoint:?}"));
            };
            remotes.push(Remote::new(joined(host, port)));
        }
    }
    let listen = matches.get(flags::LISTEN_ADDR);
    let Some((listen_host, listen_port)) = host_and_port(listen) else {
        return Err(format!("failed to validate listen address: {listen}"));
    };
    let local = resolve(listen_host, listen_port)
        .await
        .ok_or_else(|| format!("failed to resolve listen host: {listen_host}"))?;
    for remote in &remotes {
        let (host, port) = host_and_port(&remote.address).unwrap_or((&remote.address, 0));
        let found =
            resolve(host, port).await.ok_or_else(|| format!("failed to resolve endpoint host: {host}"))?;
        if let Some(own) = found.iter().find(|address| local.contains(address)) {
            return Err(format!(
                "SRV or endpoint ({host}:{port}->{}:{port}) should not resolve to the gateway listen addr ({listen})",
                own.ip()
            ));
        }
    }
    if remotes.is_empty() {
        return Err("no endpoints found".to_owned());
    }
    let listener = TcpListener::bind(local.as_slice())
        .await
        .map_err(|error| format!("listen tcp {listen}: bind: {error}"))?;
    let files = telemetry::metrics::open_files_max().unwrap_or(usize::MAX);
    let options = GatewayOptions {
        remotes,
        zone,
        retry_delay: matches.get(flags::RETRY_DELAY),
        // Half of the file descriptors, because each forwarded connection uses two sockets.
        connections_max: (files.saturating_sub(OTHER_FILES) / 2).clamp(1, CONNECTIONS_MAX),
    };
    ready(logger);
    Gateway::new(options, logger.clone()).run(listener).await;
    Ok(())
}

async fn resolve(host: &str, port: u16) -> Option<Vec<SocketAddr>> {
    // An empty host means all addresses of this machine, as in Go.
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    let found: Vec<SocketAddr> = lookup_host((host, port)).await.ok()?.collect();
    (!found.is_empty()).then_some(found)
}

/// Returns `host:port` for `http://host:port/path`, with any scheme. Returns a string without a scheme
/// unchanged.
fn without_scheme(endpoint: &str) -> &str {
    match endpoint.split_once("://") {
        Some((_, rest)) => rest.split(['/', '?', '#']).next().unwrap_or(rest),
        None => endpoint,
    }
}

fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    Some((host, port.parse().ok()?))
}

fn joined(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(remotes: Vec<Remote>) -> Arc<Gateway> {
        let logger =
            Logger::to(telemetry::logging::Level::Error, telemetry::logging::Format::Json, Vec::new());
        Gateway::new(
            GatewayOptions {
                remotes,
                zone: ZoneOptions::default(),
                retry_delay: Duration::from_secs(60),
                connections_max: 1,
            },
            logger,
        )
    }

    fn in_zone(zone: &str, networks: &str, remotes: &[&str]) -> Arc<Gateway> {
        let networks: Vec<String> = networks.split(',').map(str::to_owned).collect();
        let logger =
            Logger::to(telemetry::logging::Level::Error, telemetry::logging::Format::Json, Vec::new());
        let zone = ZoneOptions::read(zone, &networks).unwrap();
        let remotes = remotes.iter().map(|remote| Remote::new(*remote)).collect();
        let retry_delay = Duration::from_secs(60);
        let gateway = Gateway::new(GatewayOptions { remotes, zone, retry_delay, connections_max: 1 }, logger);
        testkit::block_on(Duration::from_secs(30), gateway.look_up_zones());
        gateway
    }

    #[test]
    fn endpoints_of_the_zone_are_taken_while_one_is_reachable() {
        let gateway =
            in_zone("a", "a=127.1.0.0/16,b=127.2.0.0/16", &["127.2.0.1:1", "127.1.0.1:1", "127.1.0.2:1"]);
        let picks = |count: usize| {
            let mut picked: Vec<_> = (0..count).map(|_| gateway.pick(7)).collect();
            picked.sort_unstable();
            picked.dedup();
            picked
        };
        assert_eq!(picks(6), [Some(1), Some(2)]);
        gateway.standing().active[1] = false;
        assert_eq!(picks(4), [Some(2)]);
        gateway.standing().active[2] = false;
        assert_eq!(picks(4), [Some(0)]);
        gateway.standing().active[1] = true;
        assert_eq!(picks(4), [Some(1)]);
    }

    #[test]
    fn a_distant_endpoint_gets_no_connection_of_a_client() {
        let gateway = in_zone("a", "a=127.0.0.0/8", &["127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"]);
        let counts = || {
            let picks: Vec<_> = (0..60).map(|_| gateway.pick(7).unwrap()).collect();
            [0, 1, 2].map(|at| picks.iter().filter(|picked| **picked == at).count())
        };
        assert_eq!(counts(), [20, 20, 20], "nothing is measured yet");
        for (at, micros) in [(0, 300), (1, 9_000), (2, 350)] {
            gateway.standing().round_trips[at].add(Duration::from_micros(micros));
        }
        assert_eq!(counts(), [30, 0, 30]);
        gateway.standing().round_trips[1].add(Duration::from_micros(320));
        assert_eq!(counts(), [20, 20, 20]);
    }

    #[test]
    fn endpoints_without_weights_are_taken_in_turn_and_dead_ones_left_out() {
        let gateway = gateway(vec![Remote::new("a:1"), Remote::new("b:1"), Remote::new("c:1")]);
        let picks = |count| (0..count).map(|_| gateway.pick(7)).collect::<Vec<_>>();
        assert_eq!(picks(4), [Some(0), Some(1), Some(2), Some(0)]);
        gateway.standing().active[1] = false;
        assert!(picks(6).iter().all(|picked| *picked != Some(1)));
        gateway.standing().active = vec![false; 3];
        assert_eq!(picks(1), [None]);
    }

    #[test]
    fn records_are_taken_by_priority_then_by_weight() {
        let remote = |priority, weight| Remote { address: "h:1".to_owned(), priority, weight };
        let gateway = gateway(vec![remote(2, 50), remote(1, 1), remote(1, 3), remote(1, 0)]);
        let mut counts = [0; 4];
        for random in 0..40_000 {
            counts[gateway.pick(random).unwrap()] += 1;
        }
        // One connection in a hundred goes to the record without a weight; the others are split one to three.
        assert_eq!(counts, [0, 9_900, 29_700, 400]);
        gateway.standing().active = vec![true, false, false, false];
        assert_eq!(gateway.pick(0), Some(0));
    }

    #[test]
    fn endpoints_lose_their_scheme() {
        assert_eq!(without_scheme("https://host:2379/x"), "host:2379");
        assert_eq!(host_and_port("[::1]:80"), Some(("::1", 80)));
        assert_eq!(host_and_port("host"), None);
        assert_eq!(host_and_port("host:x"), None);
        assert_eq!(joined("::1", 80), "[::1]:80");
    }
}
