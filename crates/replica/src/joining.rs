//! Determines the identity of a member without data: it forms a new cluster with others, or joins a cluster
//! that has it as a member.
//!
//! Checks and texts are etcd's (`bootstrapNewClusterNoWAL`, `bootstrapExistingClusterNoWAL`).

use std::collections::BTreeSet;
use std::fmt;
use std::net::ToSocketAddrs as _;
use std::time::Duration;

use api::raftpb;
use bytes::Bytes;
use consensus::{Entry, EntryKind};
use machine::{Member, MemberError};
use numbers::{Index, Term};
use peer::RequestError;
use prost::Message as _;

use config::{Bootstrap, Config, InitialClusterState, Refusal, Url};
use storage::Identity;
use storage::beginning::{Beginning, texts};
use telemetry::logging::{Logger, Value};
use tls::ClientTls;

/// Time to wait for the answer of each member when joining.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for the answer of each member when forming a cluster. It is short, because the other members
/// may not be started yet.
const BOOTSTRAPPED_TIMEOUT: Duration = Duration::from_secs(1);

/// Error for which a member without data cannot begin. The texts are etcd's where etcd has one.
#[derive(Debug)]
pub enum JoinError {
    /// The options contradict each other.
    Options(Refusal),
    /// The cluster reports that this member has run before: with an empty directory it would vote twice.
    Bootstrapped {
        /// Id of this member.
        member_id: u64,
    },
    /// None of the other members answers.
    NoAnswer,
    /// The cluster has another number of members than the options name.
    MemberCount {
        /// All peer URLs that the cluster knows.
        existing: Vec<String>,
    },
    /// The cluster has no member with these peer URLs.
    Unmatched {
        /// The peer URLs of the member that the options name.
        wanted: Vec<String>,
        /// All peer URLs that the cluster knows.
        existing: Vec<String>,
    },
    /// The options do not name this member itself.
    UnknownName {
        /// The name of this member.
        name: String,
    },
    /// The cluster runs at a version that this member does not support.
    Incompatible {
        /// The version of the cluster.
        cluster_version: String,
        /// The release that this member presents.
        own: &'static str,
    },
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Options(refusal) => refusal.fmt(f),
            JoinError::Bootstrapped { member_id } => {
                write!(f, "member {member_id:x} has already been bootstrapped")
            }
            JoinError::NoAnswer => f.write_str(
                "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs",
            ),
            JoinError::MemberCount { existing } => {
                write!(f, "error validating peerURLs {existing:?}: member count is unequal")
            }
            JoinError::Unmatched { wanted, existing } => write!(
                f,
                "error validating peerURLs {wanted:?}: unmatched member while checking PeerURLs ({existing:?})"
            ),
            JoinError::UnknownName { name } => {
                write!(f, "the cluster does not know a member called {name:?}")
            }
            JoinError::Incompatible { cluster_version, own } => write!(
                f,
                "incompatible with current running cluster: it is at version {cluster_version}, this member at {own}"
            ),
        }
    }
}

impl std::error::Error for JoinError {}

/// Error for which another member's list of members or its version is not known.
#[derive(Debug)]
pub enum AnswerError {
    /// The member does not answer.
    Request(RequestError),
    /// The member answers with another status than 200.
    Status {
        /// The URL that was requested.
        from: String,
        /// The status of the answer.
        status: http::StatusCode,
    },
    /// The answer does not name a cluster.
    NoCluster {
        /// The URL that was requested.
        from: String,
    },
    /// The answer cannot be decoded.
    Body {
        /// The URL that was requested.
        from: String,
        /// Reason for which the answer cannot be used.
        error: BodyError,
    },
}

impl From<RequestError> for AnswerError {
    fn from(error: RequestError) -> AnswerError {
        AnswerError::Request(error)
    }
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::Request(error) => error.fmt(f),
            AnswerError::Status { from, status } => write!(f, "{from} answers {status}"),
            AnswerError::NoCluster { from } => write!(f, "{from} names no cluster"),
            AnswerError::Body { from, error } => write!(f, "{from}: {error}"),
        }
    }
}

impl std::error::Error for AnswerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AnswerError::Request(error) => std::error::Error::source(error),
            AnswerError::Body { error, .. } => Some(error),
            AnswerError::Status { .. } | AnswerError::NoCluster { .. } => None,
        }
    }
}

/// Error for which a member's answer about its cluster or version cannot be used.
#[derive(Debug)]
pub enum BodyError {
    /// The body is not JSON, or has an unexpected structure.
    Json(serde_json::Error),
    /// The body contains an entry that is not a member.
    Member(MemberError),
    /// The body contains no version.
    NoVersion,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Json(error) => error.fmt(f),
            BodyError::Member(error) => error.fmt(f),
            BodyError::NoVersion => f.write_str("it does not say which version it is"),
        }
    }
}

impl std::error::Error for BodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BodyError::Json(error) => std::error::Error::source(error),
            BodyError::Member(error) => std::error::Error::source(error),
            BodyError::NoVersion => None,
        }
    }
}

/// Determines the identity of this member. `tls` is used for other members at `https` URLs.
///
/// # Errors
///
/// The options contradict each other, or the cluster does not have this member.
pub fn begin(config: &Config, tls: Option<&ClientTls>, logger: &Logger) -> Result<Beginning, JoinError> {
    let bootstrap = config.bootstrap().map_err(JoinError::Options)?;
    match config.initial_cluster_state {
        InitialClusterState::New => form(&bootstrap, tls, logger),
        InitialClusterState::Existing => join(config, &bootstrap, tls, logger),
    }
}

/// Returns the peer URLs of all members but this one.
fn others(bootstrap: &Bootstrap) -> Vec<String> {
    let others = bootstrap.members.iter().filter(|member| member.id != bootstrap.local_id);
    others.flat_map(|member| texts(&member.peer_urls)).collect()
}

fn form(bootstrap: &Bootstrap, tls: Option<&ClientTls>, logger: &Logger) -> Result<Beginning, JoinError> {
    // A member that ran before must not come back with an empty directory: it would vote twice.
    for url in others(bootstrap) {
        let members = match members_of(&url, BOOTSTRAPPED_TIMEOUT, tls) {
            Ok((_, members)) => members,
            // As in etcd: if no member can be asked, this member counts as new.
            Err(error) => {
                let text = "cannot ask another member whether this one was there before";
                logger.warn(text, &[("address", Value::Str(&url)), ("error", Value::Display(&error))]);
                continue;
            }
        };
        let own = members.iter().find(|member| member.id == bootstrap.local_id);
        if own.is_some_and(|member| !member.client_urls.is_empty()) {
            return Err(JoinError::Bootstrapped { member_id: bootstrap.local_id });
        }
        break;
    }
    Ok(first_of(bootstrap))
}

/// Returns the identity and first entries of a member that forms a cluster with the members of its
/// configuration, without asking any of them.
///
/// # Errors
///
/// The options contradict each other.
pub fn form_alone(config: &Config) -> Result<Beginning, JoinError> {
    Ok(first_of(&config.bootstrap().map_err(JoinError::Options)?))
}

/// Returns the identity and first entries of a cluster of these members.
fn first_of(bootstrap: &Bootstrap) -> Beginning {
    let entries = bootstrap
        .members
        .iter()
        .zip(1..)
        .map(|(member, index)| {
            let context = Member {
                id: member.id,
                peer_urls: texts(&member.peer_urls),
                name: member.name.clone(),
                ..Member::default()
            };
            let change = raftpb::ConfChange {
                id: None,
                r#type: Some(raftpb::ConfChangeType::ConfChangeAddNode as i32),
                node_id: Some(member.id),
                context: Some(context.to_json().into()),
            };
            Entry {
                term: Term(1),
                index: Index(index),
                kind: EntryKind::ConfChange,
                data: change.encode_to_vec().into(),
            }
        })
        .collect();
    let remotes = bootstrap
        .members
        .iter()
        .filter(|member| member.id != bootstrap.local_id)
        .map(|member| (member.id, texts(&member.peer_urls)))
        .collect();
    let identity = Identity { member_id: bootstrap.local_id, cluster_id: bootstrap.cluster_id };
    Beginning { identity, entries, remotes }
}

fn join(
    config: &Config,
    bootstrap: &Bootstrap,
    tls: Option<&ClientTls>,
    logger: &Logger,
) -> Result<Beginning, JoinError> {
    let urls = others(bootstrap);
    let mut found = None;
    for url in &urls {
        match members_of(url, FETCH_TIMEOUT, tls) {
            Ok(cluster) => {
                found = Some(cluster);
                break;
            }
            Err(error) => {
                logger.warn(
                    "failed to get cluster response",
                    &[("address", Value::Str(url)), ("error", Value::Str(&error.to_string()))],
                );
            }
        }
    }
    let Some((cluster_id, existing)) = found else {
        return Err(JoinError::NoAnswer);
    };
    if existing.len() != bootstrap.members.len() {
        let existing = existing.into_iter().flat_map(|member| member.peer_urls).collect();
        return Err(JoinError::MemberCount { existing });
    }
    let mut own = None;
    for member in &bootstrap.members {
        let wanted = texts(&member.peer_urls);
        let matching = existing.iter().find(|known| same_places(&known.peer_urls, &wanted));
        let Some(known) = matching else {
            let existing = existing.iter().flat_map(|member| member.peer_urls.iter().cloned()).collect();
            return Err(JoinError::Unmatched { wanted, existing });
        };
        if member.id == bootstrap.local_id {
            own = Some(known.id);
        }
    }
    let Some(member_id) = own else {
        return Err(JoinError::UnknownName { name: config.name.clone() });
    };
    for url in &urls {
        check_version(url, config.api_version, tls, logger)?;
    }
    let remotes = existing
        .iter()
        .filter(|member| member.id != member_id)
        .map(|member| (member.id, member.peer_urls.clone()))
        .collect();
    Ok(Beginning { identity: Identity { member_id, cluster_id }, entries: Vec::new(), remotes })
}

/// Returns true if two lists of URLs are equal in any order, by text or, if they contain host names, by
/// resolved address.
pub fn same_places(a: &[String], b: &[String]) -> bool {
    let sorted = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    if sorted(a) == sorted(b) {
        return true;
    }
    let resolved = |urls: &[String]| -> Option<BTreeSet<String>> {
        urls.iter()
            .map(|text| {
                let url = Url::parse(text).ok()?;
                if url.scheme().is_unix() {
                    return Some(url.host().to_owned());
                }
                let mut addresses = (url.host(), url.port()).to_socket_addrs().ok()?;
                addresses.next().map(|address| address.to_string())
            })
            .collect()
    };
    a.len() == b.len() && resolved(a).is_some_and(|a| resolved(b) == Some(a))
}

fn get(
    url: &str,
    path: &str,
    timeout: Duration,
    tls: Option<&ClientTls>,
) -> Result<http::Response<Bytes>, AnswerError> {
    let request = http::Request::get(path).body(Bytes::new()).map_err(RequestError::from)?;
    let response = peer::fetch(url, request, timeout, tls)?;
    if response.status() != http::StatusCode::OK {
        return Err(AnswerError::Status { from: format!("{url}{path}"), status: response.status() });
    }
    Ok(response)
}

/// Returns the id of the cluster that a member belongs to, and the cluster's members.
///
/// # Errors
///
/// The member does not answer, or the answer cannot be used.
pub fn members_of(
    url: &str,
    timeout: Duration,
    tls: Option<&ClientTls>,
) -> Result<(u64, Vec<Member>), AnswerError> {
    let response = get(url, "/members", timeout, tls)?;
    let cluster_id = response
        .headers()
        .get("x-etcd-cluster-id")
        .and_then(|id| id.to_str().ok())
        .and_then(|id| u64::from_str_radix(id, 16).ok())
        .ok_or_else(|| AnswerError::NoCluster { from: format!("{url}/members") })?;
    let members = read_members(response.body())
        .map_err(|error| AnswerError::Body { from: format!("{url}/members"), error })?;
    Ok((cluster_id, members))
}

/// Decodes the list of members in a member's answer.
///
/// # Errors
///
/// The body is not a list of members.
pub fn read_members(body: &[u8]) -> Result<Vec<Member>, BodyError> {
    let members: Vec<serde_json::Value> = serde_json::from_slice(body).map_err(BodyError::Json)?;
    let read = |member: &serde_json::Value| Member::from_json(member.to_string().as_bytes());
    members.iter().map(|member| read(member).map_err(BodyError::Member)).collect()
}

/// Returns the version of a member and the version of its cluster, as the member reports them.
///
/// # Errors
///
/// The member does not answer, or the answer cannot be used.
pub fn version_of(
    url: &str,
    timeout: Duration,
    tls: Option<&ClientTls>,
) -> Result<(String, String), AnswerError> {
    let response = get(url, "/version", timeout, tls)?;
    read_versions(response.body())
        .map_err(|error| AnswerError::Body { from: format!("{url}/version"), error })
}

/// Decodes the versions in a member's answer: its own and its cluster's.
///
/// # Errors
///
/// The body is not JSON, or contains no versions.
pub fn read_versions(body: &[u8]) -> Result<(String, String), BodyError> {
    let value: serde_json::Value = serde_json::from_slice(body).map_err(BodyError::Json)?;
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    text("etcdserver").zip(text("etcdcluster")).ok_or(BodyError::NoVersion)
}

/// A version without its patch number; it prints as etcd writes a cluster version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(pub u32, pub u32);

impl Minor {
    /// Returns the version to which a cluster at this version may be downgraded.
    pub fn before(self) -> Option<Minor> {
        Some(Minor(self.0, self.1.checked_sub(1)?))
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.0", self.0, self.1)
    }
}

/// Returns the first two numbers of a version.
pub fn minor(version: &str) -> Option<Minor> {
    let mut parts = version.split('.');
    Some(Minor(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns true if a member reports that a downgrade of the cluster is in progress.
fn is_downgraded(url: &str, tls: Option<&ClientTls>) -> bool {
    get(url, "/downgrade/enabled", FETCH_TIMEOUT, tls).is_ok_and(|response| response.body() == "true")
}

/// Returns an error if the cluster runs at a version newer than this member's.
fn check_version(
    url: &str,
    own: &'static str,
    tls: Option<&ClientTls>,
    logger: &Logger,
) -> Result<(), JoinError> {
    // A member that does not answer gives no information about the cluster.
    let cluster = match version_of(url, FETCH_TIMEOUT, tls) {
        Ok((_, cluster)) => cluster,
        Err(error) => {
            let fields = [("address", Value::Str(url)), ("error", Value::Display(&error))];
            logger.warn("failed to get version", &fields);
            return Ok(());
        }
    };
    if cluster == "not_decided" {
        return Ok(());
    }
    match (minor(&cluster), minor(own)) {
        (Some(theirs), Some(this)) if Minor(3, 0) <= theirs && theirs <= this => Ok(()),
        // A cluster that is being downgraded accepts members of the release before.
        (Some(theirs), Some(this)) if theirs.before() == Some(this) && is_downgraded(url, tls) => Ok(()),
        _ => Err(JoinError::Incompatible { cluster_version: cluster, own }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<u8>>>);

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("is whole").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Another member that might know of this member's earlier run is logged if it cannot be asked.
    #[test]
    fn a_member_that_cannot_be_asked_is_named_in_the_log() {
        use telemetry::logging::{Format, Level};
        let told = Told::default();
        let logger = Logger::to(Level::Info, Format::Json, vec![Box::new(told.clone())]);
        // This member has no TLS settings, so it cannot ask a member at an `https` URL.
        let cluster = "a=http://127.0.0.1:2380,b=https://127.0.0.1:2381";
        let own = [Url::parse("http://127.0.0.1:2380").expect("is a URL")];
        let bootstrap = Bootstrap::form("a", cluster, "token", &own).expect("it fits together");
        let beginning = form(&bootstrap, None, &logger).expect("as in etcd, it begins");
        assert_eq!(beginning.entries.len(), 2);
        let told = String::from_utf8(told.0.lock().expect("is whole").clone()).expect("is text");
        assert!(told.contains("https://127.0.0.1:2381") && told.contains("no TLS settings"), "{told}");
    }
}
