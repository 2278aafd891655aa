//! Asks all members what they report about themselves, for the autopilot of the leader.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use replica::autopilot::{AUTOPILOT, MemberReport};
use replica::shared::Shared;

use crate::comparison::{CLUSTER_ID, ask_others, cluster_id};

/// Time limit for the responses of the other members.
const TIMEOUT: Duration = Duration::from_secs(1);

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
    reports.push((shared.member.identity.member_id, Some(MemberReport::own(shared))));
    reports
}
