//! Requests to another member before this one is in a cluster with it: who its members are, and which
//! versions they run. The requests block, and use connections of their own.

use std::collections::BTreeSet;
use std::fmt;
use std::net::ToSocketAddrs as _;
use std::time::Duration;

use api::url::Url;
use bytes::Bytes;
use machine::{Member, MemberError};
use peer::RequestError;
use tls::ClientTls;

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
            AnswerError::NoCluster { from } => write!(f, "{from} does not name its cluster"),
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
            BodyError::NoVersion => f.write_str("it does not report its version"),
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

/// Returns true if a member reports that a downgrade of its cluster is in progress; false if it does not
/// answer.
pub fn is_being_downgraded(url: &str, timeout: Duration, tls: Option<&ClientTls>) -> bool {
    get(url, "/downgrade/enabled", timeout, tls).is_ok_and(|response| response.body() == "true")
}
