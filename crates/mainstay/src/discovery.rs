//! Finds the other members for a member without data: by the SRV records of a domain, or by a discovery
//! service, which is another cluster in which all members register.
//!
//! A member registers by putting the key `/_etcd/registry/TOKEN/members/ID` with the value `NAME=URL`. Then
//! it waits until as many members have registered as the key `/_etcd/registry/TOKEN/_config/size` says. If
//! more members register, those with the lowest creation revisions form the cluster. etcd's members do the
//! same, so members of etcd and Mainstay can find each other, and a cluster of either can be the service.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use api::etcdserverpb::{PutRequest, PutResponse, RangeRequest, RangeResponse, WatchCreateRequest};
use api::mvccpb::KeyValue;
use api::{Rpc, Status};
use client::discovery::{DiscoveryError, Resolver};
use client::{Client, Settings, TlsFiles, WatchUpdate, Watcher};
use config::{Config, Discovery, DiscoveryService, InitialClusterState, Url};
use telemetry::logging::{Logger, Value};

/// Number of retries after which the pause between retries no longer grows; the same as in etcd.
const RETRIES_LONGER_MAX: u32 = 8;
/// Maximum size of a cluster that can be formed; a larger size is an error. It bounds the memory for the
/// registered members.
const SIZE_MAX: usize = 1000;
/// Maximum size of a response of the discovery service, in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Interval at which `stop_wanted` is called during the discovery.
const STOP_LOOK: Duration = Duration::from_millis(100);

/// Reason why the members of the cluster could not be found. Where etcd has the same error, the message is
/// that of etcd.
#[derive(Debug)]
pub enum Error {
    /// The domain has no usable SRV record.
    Srv(String),
    /// The target of an SRV record has no address. It is an error, because without this member the cluster
    /// would be smaller than intended.
    Unresolved {
        /// Service name of the records.
        service: String,
        /// Target name that has no address.
        target: String,
    },
    /// No SRV record has the address of this member.
    NotInRecords {
        /// Name of this member.
        name: String,
    },
    /// The client for the discovery service cannot be created, the options do not describe a cluster, or the
    /// service has ended the watch of the registrations.
    Client(String),
    /// The service has no cluster size for this token.
    SizeNotFound,
    /// The cluster size is not a number from 1 to 1,000.
    BadSize,
    /// The cluster is complete without this member, because enough other members have registered before it.
    Full,
    /// A member has registered a value that is not a peer URL.
    InvalidUrl,
    /// The service has returned an error that a retry cannot fix.
    Refused(Status),
    /// The member was asked to stop.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Error::Srv(why) => return f.write_str(why),
            Error::Unresolved { service, target } => {
                return write!(
                    f,
                    "error querying DNS SRV records for _{service} lookup {target}: no such host: the cluster would lack this \
                     member; add the address of {target} to DNS, or remove it from the SRV records"
                );
            }
            Error::NotInRecords { name } => {
                return write!(f, "cannot find local etcd member {name:?} in SRV records");
            }
            Error::Stopped => return f.write_str("stopped during discovery of the other members"),
            Error::Client(why) => why.as_str(),
            Error::SizeNotFound => "discovery: size key not found",
            Error::BadSize => "discovery: size key is bad",
            Error::Full => "discovery: cluster is full",
            Error::InvalidUrl => "discovery: invalid peer URL",
            Error::Refused(status) => &status.message,
        };
        write!(f, "failed to join discovery cluster ({what})")
    }
}

impl std::error::Error for Error {}

/// Finds the other members if the options request a discovery. Returns the options with the initial cluster
/// and the cluster token that were found; without a discovery, returns them unchanged.
///
/// # Errors
///
/// Returns an error if the other members cannot be found, or the member is asked to stop.
pub fn discover(config: &Config, logger: &Logger, stop_wanted: &dyn Fn() -> bool) -> Result<Config, Error> {
    let Some(discovery) = &config.cluster.discovery else { return Ok(config.clone()) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Client(error.to_string()))?;
    let found = async {
        match discovery {
            Discovery::Srv { domain, name } => {
                let records = Records { resolver: &Resolver::system(), resolve: &first_address };
                let cluster = records.cluster(config, domain, name, logger).await?;
                let mut found = config.clone();
                found.cluster.initial_cluster = cluster;
                Ok(found)
            }
            Discovery::Service(service) => {
                let own = own_entry(config);
                let mut found = config.clone();
                found.cluster.initial_cluster = own.clone();
                found.cluster.initial_cluster_token = service.token.clone();
                // Register only to form a new cluster. As in etcd, a member that joins an existing cluster
                // must name the members by itself.
                if config.cluster.initial_cluster_state == InitialClusterState::New {
                    let bootstrap = found.bootstrap().map_err(|error| Error::Client(error.to_string()))?;
                    let mut registry = Registry::open(service, bootstrap.local_id, logger)?;
                    found.cluster.initial_cluster = registry.join(&own).await?;
                }
                Ok(found)
            }
        }
    };
    runtime.block_on(async {
        tokio::pin!(found);
        loop {
            match tokio::time::timeout(STOP_LOOK, &mut found).await {
                Ok(found) => return found,
                Err(_) if stop_wanted() => return Err(Error::Stopped),
                Err(_) => {}
            }
        }
    })
}

/// Returns `NAME=URL` for each of this member's peer URLs, separated by commas.
fn own_entry(config: &Config) -> String {
    let mut urls: Vec<&str> = config.cluster.initial_advertise_peer_urls.iter().map(Url::as_str).collect();
    urls.sort_unstable();
    urls.iter().map(|url| format!("{}={url}", config.name)).collect::<Vec<_>>().join(",")
}

/// Resolves a host and port with the system's resolver. Returns the first IPv4 address, or the first address
/// if there is no IPv4 address.
fn first_address(host: &str, port: u16) -> Option<SocketAddr> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().ok()?.collect();
    addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
}

/// Looks up SRV records and the addresses of their targets. The two look-ups can be replaced by tests.
struct Records<'a> {
    resolver: &'a Resolver,
    resolve: &'a dyn Fn(&str, u16) -> Option<SocketAddr>,
}

impl Records<'_> {
    /// Returns the members that the SRV records of a domain name, in the syntax of `--initial-cluster`. The
    /// record whose target resolves to an address of this member's peer URLs is this member's own, and gets
    /// its name. The other members get numbers as names.
    async fn cluster(
        &self,
        config: &Config,
        domain: &str,
        name: &str,
        logger: &Logger,
    ) -> Result<String, Error> {
        let suffix = if name.is_empty() { String::new() } else { format!("-{name}") };
        let (mut all, mut faults) = (Vec::new(), Vec::new());
        for (scheme, service) in [("https", "etcd-server-ssl"), ("http", "etcd-server")] {
            let service = format!("{service}{suffix}");
            match self.members(config, scheme, &service, domain).await? {
                Ok(members) => all.extend(members),
                Err(why) => {
                    let text = "no members in SRV records of a service";
                    logger.warn(text, &[("service", Value::Str(&service)), ("error", Value::Str(&why))]);
                    faults.push(why);
                }
            }
        }
        if all.is_empty() {
            return Err(Error::Srv(faults.join("\n")));
        }
        for member in &all {
            logger.info("got bootstrap from DNS for etcd-server", &[("node", Value::Str(member))]);
        }
        if !all.iter().any(|member| member.split_once('=').is_some_and(|(name, _)| name == config.name)) {
            return Err(Error::NotInRecords { name: config.name.clone() });
        }
        Ok(all.join(","))
    }

    /// Returns the members that the SRV records of one service name list, or the reason why there are none.
    async fn members(
        &self,
        config: &Config,
        scheme: &str,
        service: &str,
        domain: &str,
    ) -> Result<Result<Vec<String>, String>, Error> {
        let mut own = BTreeMap::new();
        for url in &config.cluster.initial_advertise_peer_urls {
            match (self.resolve)(url.host(), url.port()) {
                Some(address) => own.insert(address, url),
                None => return Ok(Err(format!("lookup {}: no such host", url.host()))),
            };
        }
        let failed = |why: String| format!("error querying DNS SRV records for _{service} {why}");
        let asked = format!("_{service}._tcp.{domain}");
        let records: Result<_, DiscoveryError> = self.resolver.servers_of(&asked).await;
        let records = match records {
            Ok(records) => records,
            Err(error) => return Ok(Err(failed(error.to_string()))),
        };
        let (mut members, mut number, mut fault) = (Vec::new(), 0, String::new());
        for (target, port) in records {
            let host = target.strip_suffix('.').unwrap_or(&target);
            let Some(address) = (self.resolve)(host, port) else {
                return Err(Error::Unresolved { service: service.to_owned(), target: host.to_owned() });
            };
            let is_v6 = host.contains(':');
            let place = if is_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            let name = match own.get(&address) {
                Some(url) if url.scheme().is_secure() != (scheme == "https") => {
                    fault = format!(
                        "bootstrap at {scheme}://{place} from DNS for {service} has scheme mismatch with expected peer {url}"
                    );
                    continue;
                }
                Some(_) => config.name.clone(),
                None => {
                    number += 1;
                    (number - 1).to_string()
                }
            };
            members.push(format!("{name}={scheme}://{place}"));
        }
        Ok(if members.is_empty() { Err(failed(fault)) } else { Ok(members) })
    }
}

/// Registers this member at a discovery service, and waits for the others.
struct Registry<'a> {
    client: Client,
    service: &'a DiscoveryService,
    /// Key prefix of the cluster: `/_etcd/registry/TOKEN`.
    prefix: String,
    /// Key under which this member registers.
    own: String,
    retries: u32,
    logger: &'a Logger,
}

/// The registered members of the cluster. If more than `size` members have registered, only those whose keys
/// have the lowest creation revisions are kept.
#[derive(Debug, Default)]
struct Registered {
    members: BTreeMap<(i64, String), String>,
    size: usize,
}

impl Registered {
    /// Adds a registration. Returns the reason why it is invalid as an error.
    fn add(&mut self, key: &[u8], value: &[u8], created: i64) -> Result<(), &'static str> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let (key, value) = (text(key), text(value));
        if !value.contains('=') {
            return Err("invalid peer info returned from discovery service");
        }
        if self.members.keys().any(|(_, known)| *known == key) {
            return Err("found duplicate peer from discovery service");
        }
        self.members.insert((created, key), value);
        if self.members.len() > self.size {
            self.members.pop_last();
        }
        Ok(())
    }

    /// Returns the registered members in the syntax of `--initial-cluster`.
    fn cluster(&self) -> Result<String, Error> {
        let cluster = self.members.values().map(String::as_str).collect::<Vec<_>>().join(",");
        let is_url = |pair: &str| pair.split_once('=').is_some_and(|(_, url)| Url::parse(url).is_ok());
        if cluster.split(',').all(is_url) { Ok(cluster) } else { Err(Error::InvalidUrl) }
    }
}

impl<'a> Registry<'a> {
    fn open(service: &'a DiscoveryService, id: u64, logger: &'a Logger) -> Result<Registry<'a>, Error> {
        let failed = |error: &dyn fmt::Display| Error::Client(error.to_string());
        let mut settings = Settings {
            dial_timeout: Some(service.dial_timeout),
            keepalive_time: service.keepalive_time,
            keepalive_timeout: service.keepalive_timeout,
            receive_bytes_max: ANSWER_BYTES_MAX,
            user: service.user.clone(),
            ..Settings::of(service.endpoints.iter().cloned())
        };
        let files = TlsFiles {
            cacert: service.cacert.clone(),
            cert: service.cert.clone(),
            key: service.key.clone(),
            server_name: None,
            insecure_skip_verify: service.insecure_skip_verify,
        };
        settings.secure(&files, service.insecure_transport).map_err(|error| failed(&error))?;
        let client = Client::new(settings).map_err(|error| failed(&error))?;
        let prefix = joined(&service.token);
        let own = format!("{prefix}/members/{id:x}");
        Ok(Registry { client, service, prefix, own, retries: 0, logger })
    }

    /// Registers this member with the value `entry`, and waits for the others. Returns the cluster in the
    /// syntax of `--initial-cluster`.
    async fn join(&mut self, entry: &str) -> Result<String, Error> {
        self.look().await?;
        let request = PutRequest {
            key: self.own.clone().into(),
            value: entry.to_owned().into(),
            ..PutRequest::default()
        };
        while let Err(status) = self.call::<_, PutResponse>(Rpc::KvPut, &request).await {
            self.retry("register member itself", &status).await;
        }
        self.logger.info(
            "register member itself successfully",
            &[("memberKey", Value::Str(&self.own)), ("memberInfo", Value::Str(entry))],
        );
        self.retries = 0;
        let (mut registered, revision) = self.look().await?;
        if registered.members.len() < registered.size {
            self.wait(&mut registered, revision).await?;
        }
        registered.cluster()
    }

    /// Returns the registered members, and the revision at which they were read. Returns an error if the
    /// cluster is complete without this member.
    async fn look(&mut self) -> Result<(Registered, i64), Error> {
        loop {
            let found = match self.size().await {
                Ok(size) => self.members(size?).await,
                Err(status) => Err(status),
            };
            match found {
                Err(status) => self.retry("cluster status check", &status).await,
                Ok((registered, revision)) => {
                    self.retries = 0;
                    let is_in = registered.members.keys().any(|(_, key)| *key == self.own);
                    if !is_in && registered.members.len() >= registered.size {
                        return Err(Error::Full);
                    }
                    return Ok((registered, revision));
                }
            }
        }
    }

    /// Returns the size of the cluster to form. The outer error means that the request has failed and can be
    /// retried. The inner error means that the service has no valid size, which a retry does not change.
    async fn size(&self) -> Result<Result<usize, Error>, Status> {
        let request =
            RangeRequest { key: format!("{}/_config/size", self.prefix).into(), ..RangeRequest::default() };
        let answer: RangeResponse = self.call(Rpc::KvRange, &request).await?;
        let Some(kv) = answer.kvs.first() else { return Ok(Err(Error::SizeNotFound)) };
        let size = std::str::from_utf8(&kv.value).ok().and_then(|text| text.parse().ok());
        Ok(size.filter(|size| (1..=SIZE_MAX).contains(size)).ok_or(Error::BadSize))
    }

    async fn members(&self, size: usize) -> Result<(Registered, i64), Status> {
        let request = RangeRequest {
            key: self.members_key().into(),
            range_end: end_of(&self.members_key()).into(),
            ..RangeRequest::default()
        };
        let answer: RangeResponse = self.call(Rpc::KvRange, &request).await?;
        let mut registered = Registered { size, ..Registered::default() };
        for kv in &answer.kvs {
            self.take(&mut registered, kv);
        }
        Ok((registered, answer.header.map_or(0, |header| header.revision)))
    }

    /// Waits until as many members have registered as the cluster needs. `revision` is the revision at which
    /// `registered` was read.
    async fn wait(&self, registered: &mut Registered, revision: i64) -> Result<(), Error> {
        let found = registered.members.len() as u64;
        let fields =
            [("clusterSize", Value::Uint(registered.size as u64)), ("found-peers", Value::Uint(found))];
        self.logger.info("waiting for peers from discovery service", &fields);
        let mut watcher = Watcher::new(
            &self.client,
            WatchCreateRequest {
                key: self.members_key().into(),
                range_end: end_of(&self.members_key()).into(),
                start_revision: revision + 1,
                ..WatchCreateRequest::default()
            },
        );
        while registered.members.len() < registered.size {
            match watcher.next().await.map_err(Error::Refused)? {
                Some(WatchUpdate::Events(response)) => {
                    for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
                        self.take(registered, kv);
                    }
                }
                Some(WatchUpdate::Canceled(response)) => {
                    return Err(Error::Client(format!("the watch was canceled: {}", response.cancel_reason)));
                }
                Some(_) => {}
                None => return Err(Error::Client("the watch has ended".to_owned())),
            }
        }
        self.logger.info("found all needed peers from discovery service", &fields[..1]);
        Ok(())
    }

    fn take(&self, registered: &mut Registered, kv: &KeyValue) {
        let (key, value) = (String::from_utf8_lossy(&kv.key), String::from_utf8_lossy(&kv.value));
        let fields = [("memberKey", Value::Str(&key)), ("memberInfo", Value::Str(&value))];
        match registered.add(&kv.key, &kv.value, kv.create_revision) {
            Ok(()) => self.logger.info("found peer from discovery service", &fields),
            Err(why) => self.logger.warn(why, &fields),
        }
    }

    fn members_key(&self) -> String {
        format!("{}/members", self.prefix)
    }

    async fn call<Req: prost::Message, Resp: prost::Message + Default>(
        &self,
        rpc: Rpc,
        request: &Req,
    ) -> Result<Resp, Status> {
        self.client.within(self.service.request_timeout).call(rpc, request).await
    }

    /// Logs the error and waits before a retry. Each pause is twice as long as the previous one, up to a
    /// limit.
    async fn retry(&mut self, what: &str, status: &Status) {
        self.retries = (self.retries + 1).min(RETRIES_LONGER_MAX);
        let pause = Duration::from_secs(1 << self.retries);
        self.logger.warn(
            "retry connecting to discovery service",
            &[
                ("reason", Value::Str(what)),
                ("error", Value::Str(&status.message)),
                ("backoff", Value::Duration(pause)),
            ],
        );
        tokio::time::sleep(pause).await;
    }
}

/// Returns the key prefix of the cluster with this token: `/_etcd/registry/` and the token. The token is
/// normalized like a path by Go's `path.Join`, as etcd does: empty parts and `.` are dropped, and `..`
/// removes the part before it.
fn joined(token: &str) -> String {
    let mut parts = vec!["_etcd", "registry"];
    for part in token.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Returns the end of the range of all keys with this prefix. The prefix must not end with `0xff`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use config::{Invocation, parse};
    use telemetry::logging::{Format, Level};

    use super::*;

    fn config(args: &[&str]) -> Config {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        match parse(&args, &[]) {
            Ok(Invocation::Serve(parsed)) => parsed.config,
            other => panic!("{other:?}"),
        }
    }

    fn logger() -> Logger {
        Logger::to(Level::Error, Format::Json, Vec::new())
    }

    /// Starts a name server with SRV records: queried name, priority, weight, port and target of each.
    fn name_server(records: &'static [(&str, &[(u16, &str)])], spoil: fn(Vec<u8>) -> Vec<u8>) -> Resolver {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let server = socket.local_addr().expect("an address");
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let answer = spoil(answer(&buffer[..len], records));
                let _ = socket.send_to(&answer, from);
            }
        });
        Resolver {
            servers: vec![server],
            timeout: Duration::from_millis(300),
            attempts: 1,
            ..Resolver::default()
        }
    }

    fn labels(name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for label in name.split('.').filter(|label| !label.is_empty()) {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        bytes
    }

    fn answer(query: &[u8], records: &[(&str, &[(u16, &str)])]) -> Vec<u8> {
        let question = &query[12..];
        let known = records.iter().find(|(name, _)| question.starts_with(&labels(name)));
        let mut bytes = query.to_vec();
        bytes[2] = 0x81;
        let Some((_, found)) = known else {
            bytes[3] = 3;
            return bytes;
        };
        bytes[7] = found.len() as u8;
        for (port, target) in *found {
            bytes.extend_from_slice(&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 9]);
            let data = [&[0, 1, 0, 1][..], &port.to_be_bytes(), &labels(target)].concat();
            bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    const PLAIN: &[(&str, &[(u16, &str)])] = &[
        ("_etcd-server._tcp.d.example", &[(2380, "one.d.example"), (2380, "two.d.example")]),
        ("_etcd-server-ssl-blue._tcp.d.example", &[(2380, "one.d.example")]),
        ("_etcd-server-gap._tcp.d.example", &[(2380, "one.d.example"), (2380, "three.d.example")]),
    ];

    fn resolve(host: &str, port: u16) -> Option<SocketAddr> {
        let last = match host {
            "one.d.example" | "10.0.0.1" => 1,
            "two.d.example" => 2,
            _ => return None,
        };
        Some(SocketAddr::from(([10, 0, 0, last], port)))
    }

    async fn found(resolver: &Resolver, config: &Config, name: &str) -> Result<String, String> {
        let records = Records { resolver, resolve: &resolve };
        records.cluster(config, "d.example", name, &logger()).await.map_err(|error| error.to_string())
    }

    #[test]
    fn srv_records_name_the_cluster() {
        testkit::block_on(Duration::from_secs(60), async {
            let by_name = [
                "--name=m",
                "--initial-advertise-peer-urls=http://one.d.example:2380",
                "--discovery-srv=d.example",
            ];
            let resolver = name_server(PLAIN, |answer| answer);
            let mut members: Vec<String> = Vec::new();
            for args in
                [by_name, ["--name=m", "--initial-advertise-peer-urls=http://10.0.0.1:2380", by_name[2]]]
            {
                let cluster = found(&resolver, &config(&args), "").await.expect("is found");
                members = cluster.split(',').map(str::to_owned).collect();
                members.sort();
                assert_eq!(members, ["0=http://two.d.example:2380", "m=http://one.d.example:2380"]);
            }
            let mut all = config(&by_name);
            all.cluster.initial_cluster = members.join(",");
            assert_eq!(all.bootstrap().expect("fits together").members.len(), 2);

            let mismatch = found(&resolver, &config(&by_name), "blue").await.expect_err("is https there");
            assert!(
                mismatch.contains("scheme mismatch with expected peer http://one.d.example:2380"),
                "{mismatch}"
            );
            let other = ["--name=m", "--initial-advertise-peer-urls=http://two.d.example:1", by_name[2]];
            let missing = found(&resolver, &config(&other), "").await.expect_err("has another port");
            assert_eq!(missing, "cannot find local etcd member \"m\" in SRV records");
            // A record whose target has no address is an error, since without this member the cluster would
            // be smaller than the records say.
            let smaller = found(&resolver, &config(&by_name), "gap").await.expect_err("has no address");
            assert!(smaller.contains("lookup three.d.example: no such host"), "{smaller}");
        });
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        testkit::block_on(Duration::from_secs(60), async {
            let args = [
                "--name=m",
                "--initial-advertise-peer-urls=http://10.0.0.1:2380",
                "--discovery-srv=d.example",
            ];
            let spoils: [fn(Vec<u8>) -> Vec<u8>; 5] = [
                |_| Vec::new(),
                |answer| answer[..answer.len().min(40)].to_vec(),
                |mut answer| {
                    answer[7] = 255;
                    answer
                },
                // The last two bytes of the answer become a DNS compression pointer that points to itself,
                // which must not cause an endless loop.
                |mut answer| {
                    let len = answer.len();
                    answer[len - 2..].copy_from_slice(&[0xc0, (len - 2) as u8]);
                    answer
                },
                |mut answer| {
                    answer.resize(4000, 0xc0);
                    answer[7] = 200;
                    answer
                },
            ];
            for (nth, spoil) in spoils.into_iter().enumerate() {
                let resolver = name_server(PLAIN, spoil);
                let why = found(&resolver, &config(&args), "").await.expect_err("is refused");
                assert!(why.contains("error querying DNS SRV records for _etcd-server "), "{nth}: {why}");
            }
            const EMPTY: &[(&str, &[(u16, &str)])] = &[("_etcd-server._tcp.d.example", &[])];
            let why = found(&name_server(EMPTY, |answer| answer), &config(&args), "").await;
            assert!(why.expect_err("there are none").contains("no such host"));
        });
    }

    #[test]
    fn the_first_members_that_register_form_the_cluster() {
        let mut registered = Registered { size: 2, ..Registered::default() };
        for (key, value, created) in
            [("c", "c=http://3:1", 9), ("a", "a=http://1:1", 5), ("b", "b=http://2:1,b=http://2:2", 7)]
        {
            assert_eq!(registered.add(key.as_bytes(), value.as_bytes(), created), Ok(()));
        }
        assert!(registered.add(b"a", b"a=http://1:1", 5).is_err() && registered.add(b"x", b"x", 1).is_err());
        assert_eq!(registered.cluster().expect("are URLs"), "a=http://1:1,b=http://2:1,b=http://2:2");
        assert_eq!(registered.add(b"z", b"z=nonsense", 1), Ok(()));
        assert!(matches!(registered.cluster(), Err(Error::InvalidUrl)));
        assert_eq!(joined("t"), "/_etcd/registry/t");
        assert_eq!(joined("a//b/../c/./"), "/_etcd/registry/a/c");
    }
}
