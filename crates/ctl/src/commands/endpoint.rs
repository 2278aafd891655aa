//! `endpoint`: queries the health, status and hashes of members.

use std::time::Instant;

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag};
use client::Client;
use client::shown;

use super::alarm::alarms;
use super::member::members;
use super::{MAINTENANCE, Run};
use crate::call::Call;
use crate::printer::{Answer, EndpointHealth, alarm_type};

const REV: Flag<i64> = Flag::int("rev", "0", "maximum revision to hash (default: latest revision)");

pub(super) const CLUSTER: Flag<bool> =
    Flag::bool("cluster", "use all endpoints from the cluster member list");

pub(super) const ENDPOINT: Command<Run> = Command {
    name: "endpoint",
    usage: "endpoint <subcommand>",
    about: "Endpoint related commands. Use `etcdctl endpoint --help` to see subcommands",
    long: "Endpoint related commands",
    example: "  etcdctl endpoint status --cluster -w table",
    flags: &[CLUSTER.row()],
    subcommands: &[
        Command {
            name: "hashkv",
            usage: "hashkv",
            about: "Prints the KV history hash for each endpoint in --endpoints",
            example: "  # Equal hashes: the members hold the same history\n  etcdctl endpoint hashkv --cluster",
            flags: &[REV.row()],
            inherited_flags: &[CLUSTER.row()],
            run: Some(Run::asking(|call| Box::pin(hashkv(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "health",
            usage: "health",
            about: "Checks the healthiness of endpoints specified in `--endpoints` flag",
            example: "  etcdctl endpoint health --cluster",
            inherited_flags: &[CLUSTER.row()],
            run: Some(Run::asking(|call| Box::pin(health(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "status",
            usage: "status",
            about: "Prints out the status of endpoints specified in `--endpoints` flag",
            long: "When --write-out is set to simple, this command prints out comma-separated status lists for each \
                   endpoint.\nThe items in the lists are endpoint, ID, version, db size, is leader, is learner, raft \
                   term, raft index, raft applied index, errors.\n",
            example: "  etcdctl endpoint status --cluster -w table",
            inherited_flags: &[CLUSTER.row()],
            run: Some(Run::asking(|call| Box::pin(status(call)))),
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

/// Returns the endpoints to query: the value of `--endpoints` or, with `--cluster`, the client URLs of all
/// members.
pub(super) async fn endpoints(call: &Call) -> Result<Vec<String>, Failure> {
    if !call.matches.get(CLUSTER) {
        return Ok(call.globals().await?.given_endpoints.clone());
    }
    let connection = call.connect().await.map_err(|failure| Failure { code: Failure::ERROR, ..failure })?;
    let list = call.limit(members(&connection, true)).await.map_err(|status| {
        let error = shown(&status);
        Failure::error(format!("failed to fetch endpoints from etcd cluster member list: {error}"))
    })?;
    Ok(list.members.into_iter().flat_map(|member| member.client_urls).collect())
}

pub(super) async fn health(call: &Call) -> Result<(), Failure> {
    let endpoints = endpoints(call).await?;
    let mut asked = tokio::task::JoinSet::new();
    for endpoint in endpoints {
        // Check the TLS files here, because an error in them concerns all endpoints and ends the command. In
        // contrast, an unreachable member is a result that the command prints.
        call.globals().await?.settings(vec![endpoint.clone()])?;
        let call = call.clone();
        asked.spawn(async move { health_of(&call, endpoint).await });
    }
    let mut list = Vec::new();
    while let Some(health) = asked.join_next().await {
        list.push(health.map_err(|error| Failure::error(error.to_string()))?);
    }
    call.show(&Answer::EndpointHealth(&list))?;
    if list.iter().any(|health| !health.error.is_empty()) {
        return Err(Failure::error("unhealthy cluster"));
    }
    Ok(())
}

async fn health_of(call: &Call, endpoint: String) -> EndpointHealth {
    let connection = match call.connect_to(&endpoint).await {
        Ok(connection) => connection,
        Err(failure) => {
            let error = failure.text.unwrap_or_default();
            return EndpointHealth { endpoint, health: false, took: String::new(), error };
        }
    };
    let start = Instant::now();
    let deadline = call.deadline();
    let read = call.limit_at(deadline, read_health(&connection)).await;
    let took = cli::go::duration(start.elapsed());
    let error = match read {
        Ok(()) => alarmed(call.limit_at(deadline, alarms(&connection)).await),
        Err(status) => shown(&status),
    };
    EndpointHealth { endpoint, health: error.is_empty(), took, error }
}

/// Checks a member by reading a key, for which the member needs a leader. A refusal for lack of permission
/// counts as success, since it also comes after the read has reached a leader.
async fn read_health(connection: &Client) -> Result<(), api::Status> {
    let request = pb::RangeRequest { key: "health".into(), ..Default::default() };
    match connection.call::<_, pb::RangeResponse>(Rpc::KvRange, &request).await {
        Err(status) if status.message == api::error::PERMISSION_DENIED.message => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}

fn alarmed(answer: Result<pb::AlarmResponse, api::Status>) -> String {
    match answer {
        Err(_) => "Unable to fetch the alarm list".to_owned(),
        Ok(answer) if answer.alarms.is_empty() => String::new(),
        Ok(answer) => {
            let mut text = "Active Alarm(s): ".to_owned();
            for alarm in answer.alarms {
                let name = match alarm.alarm {
                    1 | 2 => alarm_type(alarm.alarm),
                    _ => "UNKNOWN".to_owned(),
                };
                text.push_str(&name);
                text.push(' ');
            }
            text
        }
    }
}

pub(super) async fn status(call: &Call) -> Result<(), Failure> {
    let mut list = Vec::new();
    let mut failed = false;
    for endpoint in endpoints(call).await? {
        let connection = call.connect_to(&endpoint).await?;
        match call.limit(connection.call(Rpc::MaintenanceStatus, &pb::StatusRequest {})).await {
            Ok(answer) => list.push((endpoint, answer)),
            Err(status) => {
                let error = shown(&status);
                call.warn(format!("Failed to get the status of endpoint {endpoint} ({error})"));
                failed = true;
            }
        }
    }
    call.show(&Answer::EndpointStatus(&list))?;
    if failed { Err(Failure::said(Failure::ERROR)) } else { Ok(()) }
}

pub(super) async fn hashkv(call: &Call) -> Result<(), Failure> {
    let request = pb::HashKvRequest { revision: call.matches.get(REV) };
    let mut list = Vec::new();
    let mut last = None;
    for endpoint in endpoints(call).await? {
        let connection = call.connect_to(&endpoint).await?;
        match call.limit(connection.call(Rpc::MaintenanceHashKv, &request)).await {
            Ok(answer) => list.push((endpoint, answer)),
            Err(status) => {
                let error = shown(&status);
                call.warn(format!("Failed to get the hash of endpoint {endpoint} ({error})"));
                last = Some(status);
            }
        }
    }
    call.show(&Answer::EndpointHashKv(&list))?;
    match last {
        Some(status) => Err(status.into()),
        None => Ok(()),
    }
}
