//! `alarm`: lists and clears the alarms of the members.

use api::Rpc;
use api::etcdserverpb as pb;
use api::etcdserverpb::alarm_request::AlarmAction;
use cli::{Command, Failure};
use client::Client;

use super::{MAINTENANCE, Run};
use crate::call::Call;
use crate::printer::Answer;

pub(super) const ALARM: Command<Run> = Command {
    name: "alarm",
    usage: "alarm <subcommand>",
    about: "Alarm related commands. Use `etcdctl alarm --help` to see subcommands",
    long: "Alarm related commands",
    example: "  etcdctl alarm list",
    subcommands: &[
        Command {
            name: "disarm",
            usage: "disarm",
            about: "Disarms all alarms",
            example: "  # After freeing space\n  etcdctl alarm disarm",
            run: Some(Run::asking(|call| Box::pin(disarm(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all alarms",
            example: "  etcdctl alarm list",
            run: Some(Run::asking(|call| Box::pin(list(call)))),
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("alarm list command accepts no arguments"));
    }
    let connection = call.connect().await?;
    let answer = call.limited(alarms(&connection)).await?;
    call.show(&Answer::Alarm(&answer))
}

/// Requests the list of all active alarms of all members.
pub(super) async fn alarms(connection: &Client) -> Result<pb::AlarmResponse, api::Status> {
    connection.call(Rpc::MaintenanceAlarm, &pb::AlarmRequest::default()).await
}

/// Clears all alarms, one after the other, since a request clears only one alarm. Prints one response with
/// all cleared alarms and, as in etcdctl, without a header.
pub(super) async fn disarm(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("alarm disarm command accepts no arguments"));
    }
    let connection = call.connect().await?;
    let disarmed = async {
        let mut disarmed = pb::AlarmResponse::default();
        for alarm in alarms(&connection).await?.alarms {
            let request = pb::AlarmRequest {
                action: AlarmAction::Deactivate as i32,
                member_id: alarm.member_id,
                alarm: alarm.alarm,
            };
            let answer: pb::AlarmResponse = connection.call(Rpc::MaintenanceAlarm, &request).await?;
            disarmed.alarms.extend(answer.alarms);
        }
        Ok::<_, api::Status>(disarmed)
    };
    let answer = call.limited(disarmed).await?;
    call.show(&Answer::Alarm(&answer))
}
