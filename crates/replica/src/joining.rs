//! How a member without data finds out who it is: it forms a cluster with others, or joins one that knows of it.
//!
//! Checks and texts are etcd's (`bootstrapNewClusterNoWAL`, `bootstrapExistingClusterNoWAL`).

use std::collections::BTreeSet;
use std::net::ToSocketAddrs as _;
use std::time::Duration;

use api::raftpb;
use bytes::Bytes;
use consensus::{Entry, EntryKind};
use machine::Member;
use prost::Message as _;

use config::{Bootstrap, Config, InitialClusterState, Url};
use storage::Identity;
use storage::beginning::{Beginning, texts};
use telemetry::logging::{Logger, Value};

/// Time to wait for the answer of each member.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A member that is not started yet should not hold up others that form a cluster with it.
const BOOTSTRAPPED_TIMEOUT: Duration = Duration::from_secs(1);

/// Finds out who this member is.
///
/// # Errors
///
/// When the options do not fit together, or the cluster does not know this member.
pub fn begin(config: &Config, logger: &Logger) -> Result<Beginning, String> {
    let bootstrap = config.bootstrap().map_err(|e| e.to_string())?;
    match config.initial_cluster_state {
        InitialClusterState::New => form(&bootstrap),
        InitialClusterState::Existing => join(config, &bootstrap, logger),
    }
}

/// The peer URLs of all members but this one.
fn others(bootstrap: &Bootstrap) -> Vec<String> {
    let others = bootstrap.members.iter().filter(|member| member.id != bootstrap.local_id);
    others.flat_map(|member| texts(&member.peer_urls)).collect()
}

fn form(bootstrap: &Bootstrap) -> Result<Beginning, String> {
    // A member that was there before must not come back with an empty directory: it would vote twice.
    for url in others(bootstrap) {
        let Ok((_, members)) = members_of(&url, BOOTSTRAPPED_TIMEOUT) else { continue };
        let own = members.iter().find(|member| member.id == bootstrap.local_id);
        if own.is_some_and(|member| !member.client_urls.is_empty()) {
            return Err(format!("member {:x} has already been bootstrapped", bootstrap.local_id));
        }
        break;
    }
    Ok(first_of(bootstrap))
}

/// Returns the beginning of a member that forms a cluster with the members of its configuration, without asking any of
/// them.
///
/// # Errors
///
/// The options contradict each other.
pub fn form_alone(config: &Config) -> Result<Beginning, String> {
    Ok(first_of(&config.bootstrap().map_err(|e| e.to_string())?))
}

/// The beginning of a cluster of these members.
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
            Entry { term: 1, index, kind: EntryKind::ConfChange, data: change.encode_to_vec().into() }
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

fn join(config: &Config, bootstrap: &Bootstrap, logger: &Logger) -> Result<Beginning, String> {
    let urls = others(bootstrap);
    let mut found = None;
    for url in &urls {
        match members_of(url, FETCH_TIMEOUT) {
            Ok(cluster) => {
                found = Some(cluster);
                break;
            }
            Err(why) => {
                logger.warn(
                    "failed to get cluster response",
                    &[("address", Value::Str(url)), ("error", Value::Str(&why))],
                );
            }
        }
    }
    let Some((cluster_id, existing)) = found else {
        return Err(
            "cannot fetch cluster info from peer urls: could not retrieve cluster information from the \
                    given URLs"
                .to_owned(),
        );
    };
    if existing.len() != bootstrap.members.len() {
        let urls: Vec<&str> = existing.iter().flat_map(|m| m.peer_urls.iter().map(String::as_str)).collect();
        return Err(format!("error validating peerURLs {urls:?}: member count is unequal"));
    }
    let mut own = None;
    for member in &bootstrap.members {
        let wanted = texts(&member.peer_urls);
        let matching = existing.iter().find(|known| same_places(&known.peer_urls, &wanted));
        let Some(known) = matching else {
            return Err(format!(
                "error validating peerURLs {wanted:?}: unmatched member while checking PeerURLs ({:?})",
                existing.iter().flat_map(|m| &m.peer_urls).collect::<Vec<_>>()
            ));
        };
        if member.id == bootstrap.local_id {
            own = Some(known.id);
        }
    }
    let Some(member_id) = own else {
        return Err(format!("the cluster does not know a member called {:?}", config.name));
    };
    for url in &urls {
        check_version(url)?;
    }
    let remotes = existing
        .iter()
        .filter(|member| member.id != member_id)
        .map(|member| (member.id, member.peer_urls.clone()))
        .collect();
    Ok(Beginning { identity: Identity { member_id, cluster_id }, entries: Vec::new(), remotes })
}

/// Returns true if two lists of URLs mean the same, in whatever order, by text or, where they name hosts, by address.
pub fn same_places(a: &[String], b: &[String]) -> bool {
    let sorted = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    if sorted(a) == sorted(b) {
        return true;
    }
    let resolved = |urls: &[String]| -> Option<BTreeSet<String>> {
        urls.iter()
            .map(|text| {
                let url = Url::parse(text).ok()?;
                let mut addresses = (url.host(), url.port()).to_socket_addrs().ok()?;
                addresses.next().map(|address| address.to_string())
            })
            .collect()
    };
    a.len() == b.len() && resolved(a).is_some_and(|a| resolved(b) == Some(a))
}

fn get(url: &str, path: &str, timeout: Duration) -> Result<http::Response<Bytes>, String> {
    let request = http::Request::get(path).body(Bytes::new()).map_err(|e| e.to_string())?;
    let response = peer::fetch(url, request, timeout)?;
    if response.status() != http::StatusCode::OK {
        return Err(format!("{url}{path} answers {}", response.status()));
    }
    Ok(response)
}

/// The cluster that a member belongs to, and its members.
///
/// # Errors
///
/// When it does not answer, or with something else.
pub fn members_of(url: &str, timeout: Duration) -> Result<(u64, Vec<Member>), String> {
    let response = get(url, "/members", timeout)?;
    let cluster_id = response
        .headers()
        .get("x-etcd-cluster-id")
        .and_then(|id| id.to_str().ok())
        .and_then(|id| u64::from_str_radix(id, 16).ok())
        .ok_or_else(|| format!("{url}/members names no cluster"))?;
    let members = read_members(response.body()).map_err(|e| format!("{url}/members: {e}"))?;
    Ok((cluster_id, members))
}

/// Reads the list of members that a member answers with.
///
/// # Errors
///
/// When it is none.
pub fn read_members(body: &[u8]) -> Result<Vec<Member>, String> {
    let members: Vec<serde_json::Value> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    members.iter().map(|member| Member::from_json(member.to_string().as_bytes())).collect()
}

/// The versions that a member states: its own and its cluster's.
///
/// # Errors
///
/// When it does not answer, or with something else.
pub fn version_of(url: &str, timeout: Duration) -> Result<(String, String), String> {
    let response = get(url, "/version", timeout)?;
    read_versions(response.body()).map_err(|e| format!("{url}/version: {e}"))
}

/// Reads the versions that a member answers with.
///
/// # Errors
///
/// When it states none.
pub fn read_versions(body: &[u8]) -> Result<(String, String), String> {
    let value: serde_json::Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    text("etcdserver")
        .zip(text("etcdcluster"))
        .ok_or_else(|| "it does not say which version it is".to_owned())
}

/// Major and minor number of a version.
pub fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Refuses to join a cluster that runs at a version newer than this member's.
fn check_version(url: &str) -> Result<(), String> {
    // One that does not answer says nothing about the cluster.
    let Ok((_, cluster)) = version_of(url, FETCH_TIMEOUT) else { return Ok(()) };
    if cluster == "not_decided" {
        return Ok(());
    }
    match (minor(&cluster), minor(api::API_VERSION)) {
        (Some(theirs), Some(own)) if (3, 0) <= theirs && theirs <= own => Ok(()),
        _ => Err(format!(
            "incompatible with current running cluster: it is at version {cluster}, this member at {}",
            api::API_VERSION
        )),
    }
}
