//! `move-leader`: hands leadership to another member.

use api::etcdserverpb as pb;

use super::endpoint::STATUS;
use crate::call::Call;
use crate::failure::Failure;
use crate::numbers;
use crate::printer::Answer;

/// Only the leader takes the request, so it is looked for among the endpoints first.
pub(super) async fn move_leader(call: &Call) -> Result<(), Failure> {
    let [target] = call.args() else {
        return Err(Failure::bad_args("move-leader command needs 1 argument"));
    };
    let target_id = numbers::unsigned(target, 16).map_err(Failure::bad_args)?;
    call.connect().await?;
    let deadline = call.deadline();
    for endpoint in &call.globals().await?.endpoints {
        let connection = call.connect_to(endpoint).await?;
        let status: pb::StatusResponse =
            call.limit_at(deadline, connection.call(STATUS, &pb::StatusRequest {})).await?;
        let leader = status.leader;
        if status.header.as_ref().map_or(0, |h| h.member_id) == leader {
            let request = pb::MoveLeaderRequest { target_id };
            let moved = connection.call("/etcdserverpb.Maintenance/MoveLeader", &request);
            let answer = call.limit_at(deadline, moved).await?;
            return call.show(&Answer::MoveLeader(leader, target_id, &answer));
        }
    }
    Err(Failure::bad_args(format!(
        "no leader endpoint given at [{}]",
        call.globals().await?.endpoints.join(" ")
    )))
}
