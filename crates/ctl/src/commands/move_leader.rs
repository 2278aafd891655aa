//! `move-leader`: transfers leadership to another member.

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure};

use super::{MAINTENANCE, Run};
use crate::call::Call;
use crate::numbers;
use crate::printer::Answer;

pub(super) const MOVE_LEADER: Command<Run> = Command {
    name: "move-leader",
    usage: "move-leader <transferee-member-id>",
    about: "Transfers leadership to another etcd cluster member.",
    example: "  etcdctl --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 move-leader c89feb932daef420",
    group: MAINTENANCE,
    run: Some(Run::asking(|call| Box::pin(move_leader(call)))),
    ..Command::EMPTY
};

/// Transfers leadership. First finds the leader among the endpoints, since only the leader accepts the
/// request.
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
            call.limit_at(deadline, connection.call(Rpc::MaintenanceStatus, &pb::StatusRequest {})).await?;
        let leader = status.leader;
        if status.header.as_ref().map_or(0, |h| h.member_id) == leader {
            let request = pb::MoveLeaderRequest { target_id };
            let moved = connection.call(Rpc::MaintenanceMoveLeader, &request);
            let answer = call.limit_at(deadline, moved).await?;
            return call.show(&Answer::MoveLeader(leader, target_id, &answer));
        }
    }
    Err(Failure::bad_args(format!(
        "no leader endpoint given at [{}]",
        call.globals().await?.endpoints.join(" ")
    )))
}
