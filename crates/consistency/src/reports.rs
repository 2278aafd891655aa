//! Makes the report of this member for the autopilot of the leader, and asks all members for theirs.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use replica::autopilot::{AUTOPILOT, MemberReport};
use replica::shared::Shared;

use crate::comparison::{CLUSTER_ID, ask_others, cluster_id};

/// Time limit for the responses of the other members.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the report of this member.
pub fn own_report(shared: &Shared) -> MemberReport {
    let member = &shared.member;
    MemberReport {
        is_standby: member.autopilot.is_standby,
        drains: shared.clients.draining.is_on(member.clock.now()),
        zone: member.zone.clone(),
        clients: shared.clients.connections(),
        // Durations of syncs are those of the real clock, so a member whose time is virtual has none.
        syncs: match member.threads {
            true => shared.data.values.figures().fsyncs.buckets().to_vec(),
            false => Vec::new(),
        },
    }
}

/// Requests the reports of all other members, in parallel, and adds that of this member. A member without a valid
/// report has `None`, for example one that runs etcd. May take 1 s.
pub async fn reports_of_all(shared: &Shared) -> Vec<(u64, Option<MemberReport>)> {
    let cluster = cluster_id(shared);
    let question = |_| Request::get(AUTOPILOT).header(CLUSTER_ID, cluster.as_str()).body(Bytes::new());
    let answers = ask_others(shared, TIMEOUT, question).await;
    let mut reports: Vec<(u64, Option<MemberReport>)> = answers
        .into_iter()
        .map(|(id, answer)| {
            let response = answer.ok().filter(|response| response.status() == StatusCode::OK);
            (id, response.and_then(|response| MemberReport::from_json(response.body())))
        })
        .collect();
    reports.push((shared.member.identity.member_id, Some(own_report(shared))));
    reports
}
