//! `endpoint`: how the members are.

use std::time::Instant;

use api::etcdserverpb as pb;

use super::alarm::alarms;
use super::get::RANGE;
use super::member::members;
use crate::call::Call;
use crate::failure::Failure;
use crate::printer::{Answer, EndpointHealth, alarm_type};
use client::Client;
use client::shown;

pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// The endpoints to ask: those given, or with `--cluster` the client URLs of all members.
pub(super) async fn endpoints(call: &Call) -> Result<Vec<String>, Failure> {
    if !call.matches.flag("cluster") {
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
        // What is wrong with the files for TLS is wrong for all of them; a member that cannot be reached is the news
        // that the command is for.
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

/// Reads some key: whoever answers that has a leader. A permission that is missing was refused by consensus, too.
async fn read_health(connection: &Client) -> Result<(), api::Status> {
    let request = pb::RangeRequest { key: "health".into(), ..Default::default() };
    match connection.call::<_, pb::RangeResponse>(RANGE, &request).await {
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
        match call.limit(connection.call(STATUS, &pb::StatusRequest {})).await {
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
    let request = pb::HashKvRequest { revision: call.matches.int("rev") };
    let mut list = Vec::new();
    let mut last = None;
    for endpoint in endpoints(call).await? {
        let connection = call.connect_to(&endpoint).await?;
        match call.limit(connection.call("/etcdserverpb.Maintenance/HashKV", &request)).await {
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
