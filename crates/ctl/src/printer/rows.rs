//! Converts responses to rows of cells, for the simple and the table format.

use api::etcdserverpb as pb;

use super::{EndpointHealth, ObserverRow};

pub(super) const MEMBER_HEAD: [&str; 6] =
    ["ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner"];
pub(super) const HEALTH_HEAD: [&str; 4] = ["endpoint", "health", "took", "error"];
pub(super) const STATUS_HEAD: [&str; 16] = [
    "endpoint",
    "ID",
    "version",
    "storage version",
    "db size",
    "in use",
    "percentage not in use",
    "quota",
    "is leader",
    "is learner",
    "raft term",
    "raft index",
    "raft applied index",
    "errors",
    "downgrade target version",
    "downgrade enabled",
];
pub(super) const OBSERVER_HEAD: [&str; 9] =
    ["ID", "Name", "Peer Addrs", "Client Addrs", "Zone", "Fed By", "State", "Lag Entries", "Is Active"];
pub(super) const HASH_HEAD: [&str; 3] = ["endpoint", "hash", "hash_revision"];

pub(super) fn members(answer: &pb::MemberListResponse) -> Vec<Vec<String>> {
    let row = |member: &pb::Member| {
        let status = if member.name.is_empty() { "unstarted" } else { "started" };
        vec![
            format!("{:x}", member.id),
            status.to_owned(),
            member.name.clone(),
            member.peer_urls.join(","),
            member.client_urls.join(","),
            member.is_learner.to_string(),
        ]
    };
    answer.members.iter().map(row).collect()
}

pub(super) fn observers(list: &[ObserverRow]) -> Vec<Vec<String>> {
    list.iter()
        .map(|ObserverRow { fed_by, observer: o }| {
            vec![
                format!("{:x}", o.id),
                o.name.clone(),
                o.peer_urls.join(","),
                o.client_urls.join(","),
                o.zone.clone(),
                format!("{fed_by:x}"),
                o.state.clone(),
                o.lag_entries.to_string(),
                o.active.to_string(),
            ]
        })
        .collect()
}

pub(super) fn health(list: &[EndpointHealth]) -> Vec<Vec<String>> {
    list.iter()
        .map(|h| vec![h.endpoint.clone(), h.health.to_string(), h.took.clone(), h.error.clone()])
        .collect()
}

pub(super) fn status(list: &[(String, pb::StatusResponse)]) -> Vec<Vec<String>> {
    list.iter().map(|(endpoint, status)| status_row(endpoint, status)).collect()
}

fn status_row(endpoint: &str, status: &pb::StatusResponse) -> Vec<String> {
    let member_id = status.header.as_ref().map_or(0, |h| h.member_id);
    let size = |bytes: i64| cli::go::bytes(bytes.cast_unsigned());
    let downgrade = status.downgrade_info.clone().unwrap_or_default();
    vec![
        endpoint.to_owned(),
        format!("{member_id:x}"),
        status.version.clone(),
        status.storage_version.clone(),
        size(status.db_size),
        size(status.db_size_in_use),
        format!("{}%", not_in_use_percent(status)),
        size(status.db_size_quota),
        (status.leader == member_id).to_string(),
        status.is_learner.to_string(),
        status.raft_term.to_string(),
        status.raft_index.to_string(),
        status.raft_applied_index.to_string(),
        status.errors.join(", "),
        downgrade.target_version,
        downgrade.enabled.to_string(),
    ]
}

/// Returns the percentage of the database that is not in use. COMPAT-59: if a server reports a database of 0
/// bytes, etcdctl divides by zero and crashes; this function returns 0.
fn not_in_use_percent(status: &pb::StatusResponse) -> i64 {
    let used = status.db_size_in_use.wrapping_mul(100).checked_div(status.db_size);
    used.map_or(0, |used| 100 - used)
}

pub(super) fn hashes(list: &[(String, pb::HashKvResponse)]) -> Vec<Vec<String>> {
    let row = |(endpoint, hash): &(String, pb::HashKvResponse)| {
        vec![endpoint.clone(), hash.hash.to_string(), hash.hash_revision.to_string()]
    };
    list.iter().map(row).collect()
}
