//! Reads the options that tell a member without data where to find the other members if `--initial-cluster`
//! does not name them.

use std::path::PathBuf;
use std::time::Duration;

use super::flag::Flag;
use super::refusal::Refusal;
use super::settings::{Settings, duration};
use super::table;

/// Source of the list of members for a new cluster. Not used if the data directory already contains a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// The SRV records of a domain name the members (`--discovery-srv`).
    Srv {
        /// Domain whose SRV records are looked up.
        domain: String,
        /// Suffix of the SRV service name, which then is `etcd-server-NAME` (`--discovery-srv-name`); empty
        /// for `etcd-server`.
        name: String,
    },
    /// Another etcd cluster, the discovery service, in which all members register (`--discovery-endpoints`).
    Service(DiscoveryService),
}

/// A discovery service, and how this member reaches it.
#[derive(Clone, PartialEq, Eq)]
pub struct DiscoveryService {
    /// Token that names the cluster to be formed, the same for all of its members.
    pub token: String,
    /// gRPC endpoints of the discovery service; at least one.
    pub endpoints: Vec<String>,
    /// Time limit of connecting to an endpoint of the discovery service; zero for none.
    pub dial_timeout: Duration,
    /// Time limit of a request to the discovery service.
    pub request_timeout: Duration,
    /// Time without traffic after which a connection to the discovery service is pinged; zero for never.
    pub keepalive_time: Duration,
    /// Time to wait for the response to a ping before the connection is closed.
    pub keepalive_timeout: Duration,
    /// True if connections to the discovery service are not encrypted. If [`Self::cert`], [`Self::key`] or
    /// [`Self::cacert`] is set, connections are encrypted anyway.
    pub insecure_transport: bool,
    /// True if the certificate of the discovery service is not verified.
    pub insecure_skip_verify: bool,
    /// File with the certificate that this member shows to the discovery service; `None` if it shows none.
    pub cert: Option<PathBuf>,
    /// File with the private key of [`Self::cert`]; `None` if there is no certificate.
    pub key: Option<PathBuf>,
    /// File with the certificate authorities for verifying the discovery service; `None` for the system's
    /// authorities.
    pub cacert: Option<PathBuf>,
    /// Name and password for authenticating to the discovery service; `None` for no authentication.
    pub user: Option<(String, String)>,
}

impl std::fmt::Debug for DiscoveryService {
    /// Does not print the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiscoveryService")
            .field("token", &self.token)
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}

/// Reads the discovery options, with etcd's checks and error messages.
pub(super) fn read(settings: &Settings) -> Result<Option<Discovery>, Refusal> {
    if settings.get(table::DISCOVERY_FALLBACK) == "proxy" {
        return Err(Refusal::invalid(
            "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"",
        ));
    }
    let domain = settings.get(table::DISCOVERY_SRV);
    let (token, endpoints) = (settings.get(table::DISCOVERY_TOKEN), settings.get(table::DISCOVERY_ENDPOINTS));
    let initial =
        settings.is_set(table::INITIAL_CLUSTER) && settings.non_empty(table::INITIAL_CLUSTER).is_some();
    if [initial, !domain.is_empty(), !endpoints.is_empty()].into_iter().filter(|set| *set).count() > 1 {
        return Err(Refusal::invalid(
            "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \"discovery-endpoints\" or \
             \"discovery-srv\"",
        ));
    }
    if token.is_empty() != endpoints.is_empty() {
        return Err(Refusal::invalid("both --discovery-token and --discovery-endpoints must be set"));
    }
    if endpoints.iter().any(|endpoint| endpoint.trim().is_empty()) {
        return Err(Refusal::invalid("--discovery-endpoints must not contain empty endpoints"));
    }
    if !domain.is_empty() {
        return Ok(Some(Discovery::Srv {
            domain: domain.to_owned(),
            name: settings.get(table::DISCOVERY_SRV_NAME).to_owned(),
        }));
    }
    if endpoints.is_empty() {
        return Ok(None);
    }
    let file = |flag: Flag<String>| settings.non_empty(flag).map(PathBuf::from);
    let (name, password) = (settings.get(table::DISCOVERY_USER), settings.get(table::DISCOVERY_PASSWORD));
    let user = match name.split_once(':') {
        // The user flag may contain `name:password` if the password flag is empty, as the help text
        // documents. etcd uses no user in this case.
        Some((name, password_there)) if password.is_empty() => (name, password_there),
        _ => (name, password),
    };
    Ok(Some(Discovery::Service(DiscoveryService {
        token: token.to_owned(),
        endpoints: endpoints.to_vec(),
        dial_timeout: duration(settings, table::DISCOVERY_DIAL_TIMEOUT)?,
        request_timeout: duration(settings, table::DISCOVERY_REQUEST_TIMEOUT)?,
        keepalive_time: duration(settings, table::DISCOVERY_KEEPALIVE_TIME)?,
        keepalive_timeout: duration(settings, table::DISCOVERY_KEEPALIVE_TIMEOUT)?,
        insecure_transport: settings.get(table::DISCOVERY_INSECURE_TRANSPORT),
        insecure_skip_verify: settings.get(table::DISCOVERY_INSECURE_SKIP_TLS_VERIFY),
        cert: file(table::DISCOVERY_CERT),
        key: file(table::DISCOVERY_KEY),
        cacert: file(table::DISCOVERY_CACERT),
        user: Some(user)
            .filter(|(name, password)| !name.is_empty() && !password.is_empty())
            .map(|(name, password)| (name.to_owned(), password.to_owned())),
    })))
}
