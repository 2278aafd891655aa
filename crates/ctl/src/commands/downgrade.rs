//! `downgrade`: downgrades the cluster to the previous release.

use api::Rpc;
use api::etcdserverpb as pb;
use api::etcdserverpb::downgrade_request::DowngradeAction;
use cli::{Command, Failure};

use super::{MAINTENANCE, Run};
use crate::call::{Call, utf8};
use crate::printer::Answer;

pub(super) const DOWNGRADE: Command<Run> = Command {
    name: "downgrade",
    usage: "downgrade <TARGET_VERSION>",
    about: "Downgrade related commands. Use `etcdctl downgrade --help` to see subcommands",
    long: "Downgrade related commands",
    example: "  etcdctl downgrade validate 3.6",
    subcommands: &[
        Command {
            name: "cancel",
            usage: "cancel",
            about: "Cancel the ongoing downgrade action to cluster",
            example: "  etcdctl downgrade cancel",
            run: Some(Run::asking(|call| Box::pin(cancel(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "enable",
            usage: "enable <TARGET_VERSION>",
            about: "Start a downgrade action to cluster",
            example: "  etcdctl downgrade enable 3.6",
            run: Some(Run::asking(|call| Box::pin(enable(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "validate",
            usage: "validate <TARGET_VERSION>",
            about: "Validate downgrade capability before starting downgrade",
            example: "  etcdctl downgrade validate 3.6",
            run: Some(Run::asking(|call| Box::pin(validate(call)))),
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    ..Command::EMPTY
};

pub(super) async fn validate(call: &Call) -> Result<(), Failure> {
    let version = target(call)?;
    let answer = ask(call, DowngradeAction::Validate, version).await?;
    call.show(&Answer::DowngradeValidate(&answer))
}

pub(super) async fn enable(call: &Call) -> Result<(), Failure> {
    let version = target(call)?;
    let answer = ask(call, DowngradeAction::Enable, version).await?;
    call.show(&Answer::DowngradeEnable(&answer))
}

pub(super) async fn cancel(call: &Call) -> Result<(), Failure> {
    let answer = ask(call, DowngradeAction::Cancel, String::new()).await?;
    call.show(&Answer::DowngradeCancel(&answer))
}

fn target(call: &Call) -> Result<String, Failure> {
    match call.args() {
        [] => Err(Failure::bad_args("TARGET_VERSION not provided")),
        [version] if version.is_empty() => Err(Failure::bad_args("target version not provided")),
        [version] => utf8(version),
        _ => Err(Failure::bad_args("too many arguments")),
    }
}

async fn ask(
    call: &Call,
    action: DowngradeAction,
    version: String,
) -> Result<pb::DowngradeResponse, Failure> {
    let request = pb::DowngradeRequest { action: action as i32, version };
    let connection = call.connect().await?;
    call.limited(connection.call(Rpc::MaintenanceDowngrade, &request)).await
}
