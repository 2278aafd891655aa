//! Reads the settings of the gRPC proxy from its flags, and checks them, with etcd's error messages.

use std::path::PathBuf;
use std::time::Duration;

use cli::Matches;
use client::TlsFiles;
use tls::Version;

use crate::commands::grpc_proxy as flags;
use crate::discovery::Discovery;
use crate::probes::ZoneOptions;

/// Settings of a gRPC proxy.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// Settings for the proxy's listeners and the connections of clients.
    pub listen: ListenOptions,
    /// Settings for the connections to the members.
    pub members: MemberOptions,
    /// URL that the member list for clients contains in place of the members' URLs; empty to return the
    /// member list of the cluster.
    pub advertise: String,
    /// Prefix of the keys by which proxies register themselves. Clients get the registered proxies as the
    /// member list. Empty for no registration.
    pub resolver_prefix: String,
    /// TTL of the registration in seconds. Above 0 if `resolver_prefix` is not empty.
    pub resolver_ttl: i64,
    /// Prefix of all clients' keys in the cluster; empty for none.
    pub namespace: Vec<u8>,
    /// Prefix, within the namespace, of the leasing keys. By creating a leasing key, the proxy becomes the
    /// owner of a key, and answers reads of this key itself. Empty if the proxy is not to own keys.
    pub leasing_prefix: Vec<u8>,
    /// If true, reads never go back in time: if a response has a lower revision than an earlier response of
    /// this proxy to any client, it is discarded, and the read is repeated at another member.
    pub orders_reads: bool,
    /// If true, profiles of the proxy process are served at `/debug/pprof/`.
    pub pprof: bool,
    /// If true, each call is logged.
    pub logs_calls: bool,
    /// If true, log lines of level `debug` are written.
    pub is_debug: bool,
}

/// Settings for the proxy's listeners and the connections of clients.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Address on which the proxy listens, `host:port`.
    pub address: String,
    /// Additional URL at which only the HTTP pages, such as `/metrics`, are served; `None` for none.
    pub metrics: Option<String>,
    /// TLS settings of connections to the proxy.
    pub tls: tls::Settings,
    /// If true and no certificate is given, a certificate for connections to the proxy is generated.
    pub auto_tls: bool,
    /// Validity in years of a certificate that is generated for [`ListenOptions::auto_tls`].
    pub self_signed_years: u64,
    /// Directory of the certificates that are generated for [`ListenOptions::auto_tls`].
    pub data_dir: PathBuf,
    /// Minimum interval between pings of a client; zero for 5 minutes. A client that pings more often is
    /// disconnected.
    pub keepalive_min_time: Duration,
    /// Interval of pings to idle clients; zero for no pings.
    pub keepalive_interval: Duration,
    /// Time within which a client has to respond to a ping before its connection is closed; zero for the gRPC
    /// server's default.
    pub keepalive_timeout: Duration,
    /// Largest number of open calls per client connection.
    pub max_concurrent_streams: u32,
}

/// Settings for the connections to the members.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// Endpoints of the members.
    pub endpoints: Vec<String>,
    /// Discovery of endpoints by DNS. If it finds any, they replace [`MemberOptions::endpoints`].
    pub discovery: Discovery,
    /// Interval at which the endpoints are updated from the member list; zero for no updates.
    pub auto_sync_interval: Duration,
    /// Idle time after which a connection to a member is pinged; zero for no pings.
    pub keepalive_time: Duration,
    /// Time within which a member has to respond to a ping before the connection is closed.
    pub keepalive_timeout: Duration,
    /// If true, connections to members are pinged even if no call is open.
    pub permit_without_stream: bool,
    /// Largest request to a member, in bytes.
    pub send_bytes_max: usize,
    /// Largest response of a member, in bytes.
    pub receive_bytes_max: usize,
    /// Zone of the proxy, whose endpoints it prefers.
    pub zone: ZoneOptions,
    /// TLS files for connections to members. If `None`, only endpoints with the scheme `https` use TLS, and
    /// the system's authorities are trusted.
    pub tls: Option<TlsFiles>,
    /// Time within which a member has to answer lease renewals. After it, another member is used.
    pub renewal_limit: Duration,
}

impl ProxyOptions {
    /// Returns default settings with these endpoints, for a listening address that the system chooses.
    pub fn of(endpoints: Vec<String>) -> ProxyOptions {
        ProxyOptions {
            listen: ListenOptions {
                address: "127.0.0.1:0".to_owned(),
                metrics: None,
                tls: tls::Settings::default(),
                auto_tls: false,
                self_signed_years: 1,
                data_dir: PathBuf::from("default.proxy"),
                keepalive_min_time: Duration::from_secs(5),
                keepalive_interval: Duration::from_secs(2 * 3600),
                keepalive_timeout: Duration::from_secs(20),
                max_concurrent_streams: u32::MAX,
            },
            members: MemberOptions {
                endpoints,
                discovery: Discovery::default(),
                auto_sync_interval: Duration::ZERO,
                keepalive_time: Duration::ZERO,
                keepalive_timeout: Duration::from_secs(20),
                permit_without_stream: false,
                send_bytes_max: 1_572_864,
                receive_bytes_max: i32::MAX as usize,
                zone: ZoneOptions::default(),
                tls: None,
                renewal_limit: Duration::from_secs(10),
            },
            advertise: String::new(),
            resolver_prefix: String::new(),
            resolver_ttl: 0,
            namespace: Vec::new(),
            leasing_prefix: Vec::new(),
            orders_reads: false,
            pprof: false,
            logs_calls: false,
            is_debug: false,
        }
    }

    /// Returns the settings that the flags give.
    ///
    /// # Errors
    /// Returns etcd's error text if the value of a flag is invalid, or if flags contradict each other.
    pub(crate) fn read(matches: &Matches) -> Result<ProxyOptions, String> {
        check_resolver(matches)?;
        let auto_tls = matches.get(flags::AUTO_TLS);
        let self_signed_years = matches.get(flags::SELF_SIGNED_CERT_VALIDITY);
        if auto_tls && self_signed_years == 0 {
            return Err("selfSignedCertValidity is invalid,it should be greater than 0".to_owned());
        }
        let (min_version, max_version) = versions(matches)?;
        let path = |flag| Some(PathBuf::from(matches.get(flag))).filter(|path| !path.as_os_str().is_empty());
        let bytes = |flag, default| match usize::try_from(matches.get(flag)) {
            Ok(0) | Err(_) => default,
            Ok(bytes) => bytes,
        };
        let member_tls = TlsFiles {
            cacert: path(flags::CACERT),
            cert: path(flags::CERT),
            key: path(flags::KEY),
            server_name: None,
            insecure_skip_verify: matches.get(flags::INSECURE_SKIP_TLS_VERIFY),
        };
        let listen_tls = tls::Settings {
            cert_file: path(flags::CERT_FILE),
            key_file: path(flags::KEY_FILE),
            trusted_ca_file: path(flags::TRUSTED_CA_FILE),
            crl_file: path(flags::CLIENT_CRL_FILE),
            min_version,
            max_version,
            cipher_suites: matches.get(flags::LISTEN_CIPHER_SUITES).to_vec(),
            ..tls::Settings::default()
        };
        let endpoints = matches.get(flags::ENDPOINTS).to_vec();
        let defaults = ProxyOptions::of(endpoints).members;
        Ok(ProxyOptions {
            listen: ListenOptions {
                address: matches.get(flags::LISTEN_ADDR).to_owned(),
                metrics: Some(matches.get(flags::METRICS_ADDR).to_owned()).filter(|url| !url.is_empty()),
                tls: listen_tls,
                auto_tls,
                self_signed_years,
                data_dir: PathBuf::from(matches.get(flags::DATA_DIR)),
                keepalive_min_time: matches.get(flags::GRPC_KEEPALIVE_MIN_TIME),
                keepalive_interval: matches.get(flags::GRPC_KEEPALIVE_INTERVAL),
                keepalive_timeout: matches.get(flags::GRPC_KEEPALIVE_TIMEOUT),
                max_concurrent_streams: matches.get(flags::MAX_CONCURRENT_STREAMS),
            },
            members: MemberOptions {
                endpoints: defaults.endpoints,
                discovery: Discovery {
                    domain: matches.get(flags::DISCOVERY_SRV).to_owned(),
                    name: matches.get(flags::DISCOVERY_SRV_NAME).to_owned(),
                    is_insecure_allowed: matches.get(flags::INSECURE_DISCOVERY),
                    trusted_ca: member_tls.cacert.clone(),
                },
                auto_sync_interval: matches.get(flags::AUTO_SYNC_INTERVAL),
                keepalive_time: matches.get(flags::DIAL_KEEPALIVE_TIME),
                keepalive_timeout: matches.get(flags::DIAL_KEEPALIVE_TIMEOUT),
                permit_without_stream: matches.get(flags::PERMIT_WITHOUT_STREAM),
                send_bytes_max: bytes(flags::MAX_SEND_BYTES, defaults.send_bytes_max),
                receive_bytes_max: bytes(flags::MAX_RECV_BYTES, defaults.receive_bytes_max),
                zone: ZoneOptions::read(matches.get(flags::ZONE), matches.get(flags::ZONE_NETWORKS))?,
                tls: Some(member_tls).filter(TlsFiles::is_given),
                renewal_limit: defaults.renewal_limit,
            },
            advertise: matches.get(flags::ADVERTISE_CLIENT_URL).to_owned(),
            resolver_prefix: matches.get(flags::RESOLVER_PREFIX).to_owned(),
            resolver_ttl: matches.get(flags::RESOLVER_TTL),
            namespace: matches.get(flags::NAMESPACE).as_bytes().to_vec(),
            leasing_prefix: matches.get(flags::LEASING_PREFIX).as_bytes().to_vec(),
            orders_reads: matches.get(flags::SERIALIZABLE_ORDERING),
            pprof: matches.get(flags::ENABLE_PPROF),
            logs_calls: matches.get(flags::GRPC_LOGGING),
            is_debug: matches.get(flags::DEBUG),
        })
    }
}

fn check_resolver(matches: &Matches) -> Result<(), String> {
    let (prefix, ttl) = (matches.get(flags::RESOLVER_PREFIX), matches.get(flags::RESOLVER_TTL));
    match (prefix.is_empty(), ttl) {
        (false, ..1) => Err(format!("invalid resolver-ttl {ttl}")),
        (true, 1..) => Err(format!("invalid resolver-prefix {prefix:?}")),
        (false, _) if matches.get(flags::ADVERTISE_CLIENT_URL).is_empty() => {
            Err("invalid advertise-client-url \"\"".to_owned())
        }
        _ => Ok(()),
    }
}

fn versions(matches: &Matches) -> Result<(Option<Version>, Option<Version>), String> {
    let (min, max) = (matches.get(flags::TLS_MIN_VERSION), matches.get(flags::TLS_MAX_VERSION));
    let min_version = Version::parse(min).map_err(|error| format!("tls-min-version is invalid: {error}"))?;
    let max_version = Version::parse(max).map_err(|error| format!("tls-max-version is invalid: {error}"))?;
    if max_version.is_some() && min_version > max_version {
        return Err(format!("min version ({min}) is greater than max version ({max})"));
    }
    if min_version == Some(Version::Tls13) && !matches.get(flags::LISTEN_CIPHER_SUITES).is_empty() {
        return Err("cipher suites cannot be configured when only TLS1.3 is enabled".to_owned());
    }
    Ok((min_version, max_version))
}
