//! Ends a run: starts members that are down, disarms alarms, waits until all members have the same revision,
//! and reads the data of each member.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb as pb;
use api::{Rpc, Status};
use oracle::Final;

use crate::chronicle::Chronicle;
use crate::cluster::{Cluster, RECOVERY_TIME_MAX};
use crate::load::REREADERS;
use crate::session::ClientContext;
use crate::{translation, watch_client};

/// Time limit for reading all keys, because the response may be large.
const DUMP_TIME_MAX: Duration = Duration::from_secs(30);

/// State of the cluster at the end of a run.
pub struct Settled {
    /// Revision that all members have reached, or should have.
    pub revision: i64,
    /// Final data of each member.
    pub finals: Vec<Final>,
}

/// Makes all members healthy, waits until they have the same revision, and reads their data and all events
/// again. Records a violation if a member does not become healthy, does not reach that revision, cannot be
/// read, or has other users than the first member.
pub fn settle(cluster: &mut Cluster, context: &Arc<ClientContext>, chronicle: &Arc<Chronicle>) -> Settled {
    if let Err(error) = cluster.recover() {
        chronicle.trouble("not recovered", format!("at the end: {error}"));
    }
    cluster.disarm();
    let revision = converge(cluster, chronicle);
    let mut finals = Vec::new();
    for at in 0..cluster.size() {
        match ask(cluster, at, revision) {
            Ok((last, compact_revision)) => {
                finals.push(last);
                let from = compact_revision + 1;
                if from <= revision {
                    let reading = watch_client::reread(context, REREADERS + at as u64, at, from, revision);
                    cluster.block_on(reading);
                }
            }
            Err(status) => chronicle.trouble("no final state", format!("m{at}: {status}")),
        }
    }
    compare_users(cluster, chronicle);
    Settled { revision, finals }
}

/// Checks that all members have the same users and roles.
fn compare_users(cluster: &Cluster, chronicle: &Chronicle) {
    if cluster.security().users.is_none() {
        return;
    }
    let told: Vec<_> = (0..cluster.size()).map(|at| users_of(cluster, at)).collect();
    let Some(Ok(first)) = told.first() else {
        return chronicle.trouble("users", "m0 does not tell its users");
    };
    for (at, told) in told.iter().enumerate() {
        match told {
            Ok(told) if told == first => {}
            Ok(told) => chronicle.trouble("users", format!("m0 has {first:?}, m{at} has {told:?}")),
            Err(status) => chronicle.trouble("users", format!("m{at}: {status}")),
        }
    }
}

/// Returns what a member knows about authentication: whether it is enabled, the auth revision, and the users
/// and roles with their permissions as text.
fn users_of(cluster: &Cluster, at: usize) -> Result<(bool, u64, Vec<String>), Status> {
    let status: pb::AuthStatusResponse = cluster.call(at, Rpc::AuthStatus, &pb::AuthStatusRequest {})?;
    let mut lines = Vec::new();
    let users: pb::AuthUserListResponse = cluster.call(at, Rpc::AuthUserList, &pb::AuthUserListRequest {})?;
    for name in users.users {
        let request = pb::AuthUserGetRequest { name: name.clone() };
        let user: pb::AuthUserGetResponse = cluster.call(at, Rpc::AuthUserGet, &request)?;
        lines.push(format!("{name}: {:?}", user.roles));
    }
    let roles: pb::AuthRoleListResponse = cluster.call(at, Rpc::AuthRoleList, &pb::AuthRoleListRequest {})?;
    for role in roles.roles {
        let request = pb::AuthRoleGetRequest { role: role.clone() };
        let told: pb::AuthRoleGetResponse = cluster.call(at, Rpc::AuthRoleGet, &request)?;
        lines.push(format!("{role}: {:?}", told.perm));
    }
    Ok((status.enabled, status.auth_revision, lines))
}

/// Waits until no lease is left, and all members have the same revision and the same compact revision.
/// Returns the newest revision. Records a violation if this takes too long.
fn converge(cluster: &mut Cluster, chronicle: &Chronicle) -> i64 {
    let deadline = Instant::now() + RECOVERY_TIME_MAX;
    loop {
        cluster.look();
        let found: Vec<_> = (0..cluster.size()).map(|at| state(cluster, at)).collect();
        let newest = found.iter().flatten().map(|(revision, ..)| *revision).max().unwrap_or_default();
        let first = found.first().and_then(|first| first.as_ref().ok());
        let same = first.is_some_and(|first| found.iter().all(|found| found.as_ref() == Ok(first)));
        if same && first.is_some_and(|(_, _, leases)| *leases == 0) {
            return newest;
        }
        if Instant::now() > deadline {
            let words: Vec<String> = found
                .iter()
                .enumerate()
                .map(|(at, found)| match found {
                    Ok((revision, compacted, leases)) => {
                        format!(
                            "m{at} at revision {revision}, compacted to {compacted}, with {leases} leases"
                        )
                    }
                    Err(status) => format!("m{at}: {status}"),
                })
                .collect();
            let seconds = RECOVERY_TIME_MAX.as_secs();
            chronicle.trouble("not converged", format!("after {seconds} s: {}", words.join("; ")));
            return newest;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns a member's revision, its compact revision, and its number of leases.
fn state(cluster: &Cluster, at: usize) -> Result<(i64, i64, usize), Status> {
    let hash: pb::HashKvResponse =
        cluster.call(at, Rpc::MaintenanceHashKv, &pb::HashKvRequest { revision: 0 })?;
    let leases: pb::LeaseLeasesResponse = cluster.call(at, Rpc::LeaseLeases, &pb::LeaseLeasesRequest {})?;
    let revision = hash.header.as_ref().map_or(0, |header| header.revision);
    Ok((revision, hash.compact_revision, leases.leases.len()))
}

/// Reads all data of a member. Returns it, together with the compact revision.
fn ask(cluster: &Cluster, at: usize, revision: i64) -> Result<(Final, i64), Status> {
    let all = pb::RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        serializable: true,
        ..pb::RangeRequest::default()
    };
    let dump: pb::RangeResponse = cluster.call_within(at, Rpc::KvRange, &all, DUMP_TIME_MAX)?;
    let request = pb::HashKvRequest { revision };
    let hash: pb::HashKvResponse =
        cluster.call_within(at, Rpc::MaintenanceHashKv, &request, DUMP_TIME_MAX)?;
    // A store that was never compacted reports -1. Use 0 instead, as the oracle does.
    let compact_revision = hash.compact_revision.max(0);
    let last = Final {
        member: at as u64,
        revision: dump.header.map_or(0, |header| header.revision),
        dump: Some(dump.kvs.into_iter().map(translation::key_value).collect()),
        hash: Some((hash.hash, revision, compact_revision)),
    };
    Ok((last, compact_revision))
}
