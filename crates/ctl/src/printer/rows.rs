//! Converts responses to rows of cells, for the simple and the table format.

use std::time::{Duration, UNIX_EPOCH};

use api::etcdserverpb as pb;
use stdx::calendar::format_rfc3339;

use super::{AutopilotNode, EndpointHealth, ObserverRow};

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

pub(super) const AUTOPILOT_HEAD: [&str; 7] =
    ["ID", "Name", "Mode", "Is Deciding", "Is Standby", "Replace After", "Interval"];
pub(super) const AUTOPILOT_MEMBER_HEAD: [&str; 7] =
    ["ID", "Name", "Role", "Silence", "Is Caught Up", "Sync P99", "Clients"];
pub(super) const AUTOPILOT_STEP_HEAD: [&str; 5] = ["Time", "Step", "Member ID", "Outcome", "Reason"];
pub(super) const ADVICE_HEAD: [&str; 1] = ["Advice"];

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

fn ms(ms: u64) -> String {
    cli::go::duration(Duration::from_millis(ms))
}

pub(super) fn autopilots(nodes: &[AutopilotNode]) -> Vec<Vec<String>> {
    let row = |AutopilotNode { id, name, status }: &AutopilotNode| {
        vec![
            format!("{id:x}"),
            name.clone(),
            status.mode.clone(),
            status.deciding.to_string(),
            status.standby.to_string(),
            ms(status.replace_after_ms),
            ms(status.interval_ms),
        ]
    };
    nodes.iter().map(row).collect()
}

pub(super) fn autopilot_members(nodes: &[AutopilotNode]) -> Vec<Vec<String>> {
    let row = |member: &pb::AutopilotMember| {
        let role = match (member.is_learner, member.standby) {
            (false, _) => "voter",
            (true, false) => "learner",
            (true, true) => "standby",
        };
        let known = |known: bool, text: String| if known { text } else { String::new() };
        vec![
            format!("{:x}", member.id),
            member.name.clone(),
            role.to_owned(),
            ms(member.silent_ms),
            member.caught_up.to_string(),
            known(member.sync_p99_ms > 0, ms(member.sync_p99_ms)),
            known(member.reports, member.clients.to_string()),
        ]
    };
    nodes.iter().flat_map(|node| &node.status.members).map(row).collect()
}

/// Returns the steps of all nodes, oldest first.
pub(super) fn autopilot_steps(nodes: &[AutopilotNode]) -> Vec<Vec<String>> {
    let mut steps: Vec<&pb::AutopilotStep> = nodes.iter().flat_map(|node| &node.status.steps).collect();
    steps.sort_by_key(|step| step.at_ms);
    let row = |step: &pb::AutopilotStep| {
        let at = UNIX_EPOCH.checked_add(Duration::from_millis(step.at_ms));
        let outcome = match step.error.as_str() {
            "" => step.outcome.clone(),
            error => format!("{}: {error}", step.outcome),
        };
        vec![
            at.map(format_rfc3339).unwrap_or_default(),
            step.step.clone(),
            format!("{:x}", step.member_id),
            outcome,
            step.reason.clone(),
        ]
    };
    steps.into_iter().map(row).collect()
}

pub(super) fn advice(nodes: &[AutopilotNode]) -> Vec<Vec<String>> {
    nodes.iter().flat_map(|node| &node.status.advice).map(|text| vec![text.clone()]).collect()
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
