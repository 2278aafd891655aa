//! `downgrade`: a step back to the release before.

use api::etcdserverpb as pb;
use api::etcdserverpb::downgrade_request::DowngradeAction;

use crate::call::{Call, utf8};
use crate::failure::Failure;
use crate::printer::Answer;

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
    call.limited(connection.call("/etcdserverpb.Maintenance/Downgrade", &request)).await
}
