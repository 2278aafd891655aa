//! Asks a member of a cluster that this member has not joined yet for the cluster's members and for the
//! versions that they run. The requests block, and use their own connections.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use api::url::Url;
use bytes::Bytes;
use machine::{Member, MemberError};
use peer::RequestError;
use tls::ClientTls;

/// Reason why the list of members or the version of another member could not be read.
#[derive(Debug)]
pub enum AnswerError {
    /// The other member does not answer.
    Request(RequestError),
    /// The other member answers with a status other than 200.
    Status {
        /// The URL that was requested.
        from: String,
        /// The status of the response.
        status: http::StatusCode,
    },
    /// The response does not contain a cluster id.
    NoCluster {
        /// The URL that was requested.
        from: String,
    },
    /// The response cannot be decoded.
    Body {
        /// The URL that was requested.
        from: String,
        /// Reason why the response cannot be used.
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

/// Reason why a member's response about its cluster or version cannot be used.
#[derive(Debug)]
pub enum BodyError {
    /// The body is not JSON, or has an unexpected structure.
    Json(serde_json::Error),
    /// The body contains an invalid member.
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

/// Returns the member with these peer URLs, in any order. A member whose URLs are equal as strings is
/// preferred. If there is none, the member whose URLs lead to the same addresses is returned, unless several
/// members match. `peer_urls` returns the peer URLs of a member.
///
/// All addresses of a host name are compared, because the resolver may return them in a different order each
/// time. Two URLs are the same if the addresses of one of them include all addresses of the other:
///
/// ```text
/// http://two.example:2380   10.0.0.2:2380, 172.17.0.1:2380
/// http://10.0.0.2:2380      10.0.0.2:2380                    the same member
/// http://three.example:2380 10.0.0.3:2380, 172.17.0.1:2380   another member: each has an address of its own
/// ```
pub fn member_at<'m, M>(
    members: &'m [M],
    peer_urls: impl Fn(&M) -> &[String],
    urls: &[String],
) -> Option<&'m M> {
    member_resolved(members, peer_urls, urls, |host, port| {
        Some((host, port).to_socket_addrs().ok()?.collect())
    })
}

/// Finds a member like [`member_at`], with `resolve` as the resolver of a host and port.
fn member_resolved<'m, M>(
    members: &'m [M],
    peer_urls: impl Fn(&M) -> &[String],
    urls: &[String],
    resolve: impl Fn(&str, u16) -> Option<Vec<SocketAddr>>,
) -> Option<&'m M> {
    let texts = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    let by_text = texts(urls);
    if let Some(member) = members.iter().find(|member| texts(peer_urls(member)) == by_text) {
        return Some(member);
    }
    let destinations = |urls: &[String]| -> Option<Vec<Destination>> {
        urls.iter().map(|url| Destination::of(url, &resolve)).collect()
    };
    let wanted = destinations(urls)?;
    // Only members with the same number of URLs can match. The names of other members are not resolved,
    // because a look-up may take seconds.
    let mut found = members.iter().filter(|member| peer_urls(member).len() == urls.len()).filter(|member| {
        destinations(peer_urls(member)).is_some_and(|destinations| are_paired(destinations, &wanted))
    });
    found.next().filter(|_| found.next().is_none())
}

/// Text of a URL, and the addresses to which it leads. For a Unix socket the host in the URL is used as the
/// address.
struct Destination {
    text: String,
    addresses: BTreeSet<String>,
}

impl Destination {
    /// Returns the destination of a URL; `None` if the text is not a URL of a member, or if its host has no
    /// address.
    fn of(text: &str, resolve: impl Fn(&str, u16) -> Option<Vec<SocketAddr>>) -> Option<Destination> {
        let url = Url::parse(text).ok()?;
        let addresses: BTreeSet<String> = if url.scheme().is_unix() {
            BTreeSet::from([url.host().to_owned()])
        } else {
            resolve(url.host(), url.port())?.iter().map(ToString::to_string).collect()
        };
        (!addresses.is_empty()).then(|| Destination { text: text.to_owned(), addresses })
    }

    fn is_same(&self, other: &Destination) -> bool {
        self.addresses.is_subset(&other.addresses) || other.addresses.is_subset(&self.addresses)
    }
}

/// Returns true if each destination of `a` can be paired with a destination of `b` that is the same, and none
/// of `b` is left over.
fn are_paired(mut a: Vec<Destination>, b: &[Destination]) -> bool {
    let mut b: Vec<_> = b.iter().collect();
    let mut pair_off = |alike: fn(&Destination, &Destination) -> bool| {
        a.retain(|one| match b.iter().position(|other| alike(one, other)) {
            Some(at) => {
                b.swap_remove(at);
                false
            }
            None => true,
        });
    };
    // Equal strings are paired first, then equal addresses, then partial matches. Otherwise a partial match
    // could take the destination that is an exact match for another one.
    pair_off(|one, other| one.text == other.text);
    pair_off(|one, other| one.addresses == other.addresses);
    pair_off(Destination::is_same);
    a.is_empty() && b.is_empty()
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
/// Returns an error if the member does not answer, or the response cannot be used.
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

/// Decodes the list of members in a member's response.
///
/// # Errors
///
/// Returns an error if the body is not a list of members.
pub fn read_members(body: &[u8]) -> Result<Vec<Member>, BodyError> {
    let members: Vec<serde_json::Value> = serde_json::from_slice(body).map_err(BodyError::Json)?;
    let read = |member: &serde_json::Value| Member::from_json(member.to_string().as_bytes());
    members.iter().map(|member| read(member).map_err(BodyError::Member)).collect()
}

/// Returns the version of a member and the version of its cluster, as the member reports them.
///
/// # Errors
///
/// Returns an error if the member does not answer, or the response cannot be used.
pub fn version_of(
    url: &str,
    timeout: Duration,
    tls: Option<&ClientTls>,
) -> Result<(String, String), AnswerError> {
    let response = get(url, "/version", timeout, tls)?;
    read_versions(response.body())
        .map_err(|error| AnswerError::Body { from: format!("{url}/version"), error })
}

/// Decodes a member's response: the version of the member and the version of its cluster.
///
/// # Errors
///
/// Returns an error if the body is not JSON, or contains no versions.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns members with the ids 1, 2, …, each with these peer URLs.
    fn members<const N: usize>(urls: [&[&str]; N]) -> Vec<Member> {
        let member = |(id, urls): (u64, &[&str])| Member {
            id,
            peer_urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            ..Member::default()
        };
        (1..).zip(urls).map(member).collect()
    }

    /// Returns the id of the member at these URLs. A table defines the addresses of names; each lookup
    /// reverses their order.
    fn at(members: &[Member], urls: &[&str]) -> Option<u64> {
        let lookups = std::cell::Cell::new(0);
        let resolve = |host: &str, port: u16| {
            let hosts: &[&str] = match host {
                "two.example" | "alias.example" => &["10.0.0.2", "172.17.0.1"],
                "three.example" => &["10.0.0.3", "172.17.0.1"],
                "all.example" => &["10.0.0.1", "10.0.0.2", "10.0.0.3"],
                "unknown.example" => return None,
                address => &[address],
            };
            let mut found: Vec<SocketAddr> = hosts
                .iter()
                .map(|host| SocketAddr::new(host.parse().expect("is an address"), port))
                .collect();
            lookups.set(lookups.get() + 1);
            if lookups.get() % 2 == 0 {
                found.reverse();
            }
            Some(found)
        };
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        member_resolved(members, |member| &member.peer_urls, &urls, resolve).map(|member| member.id)
    }

    #[test]
    fn a_member_is_found_by_any_address_of_its_name() {
        let members = members([
            &["http://10.0.0.1:2380"],
            &["http://two.example:2380"],
            &["http://three.example:2380", "http://three.example:2381"],
        ]);
        assert_eq!(at(&members, &["http://10.0.0.1:2380"]), Some(1));
        assert_eq!(at(&members, &["http://10.0.0.2:2380"]), Some(2));
        assert_eq!(at(&members, &["http://alias.example:2380"]), Some(2));
        // One of these URLs is in the list of member 3. The other is not, but has an address of that member's
        // remaining URL.
        assert_eq!(at(&members, &["http://three.example:2381", "http://10.0.0.3:2380"]), Some(3));
        for none in [
            "http://10.0.0.2:2381",
            "http://10.0.0.4:2380",
            "http://three.example:2380",
            "http://three.example:2381",
            "http://unknown.example:2380",
        ] {
            assert_eq!(at(&members, &[none]), None, "{none}");
        }
    }

    #[test]
    fn urls_that_lead_to_several_members_find_none() {
        let members = members([&["http://10.0.0.1:2380"], &["http://10.0.0.2:2380"]]);
        assert_eq!(at(&members, &["http://all.example:2380"]), None);
        let members = self::members([&["http://two.example:2380"], &["http://three.example:2380"]]);
        assert_eq!(at(&members, &["http://172.17.0.1:2380"]), None);
        // A host name without an address does no harm if the URLs are equal as strings, or if it belongs to
        // another member.
        let members = self::members([&["http://unknown.example:2380"], &["http://two.example:2380"]]);
        assert_eq!(at(&members, &["http://unknown.example:2380"]), Some(1));
        assert_eq!(at(&members, &["http://10.0.0.2:2380"]), Some(2));
    }
}
