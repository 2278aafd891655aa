//! `auth`: enables and disables authentication, and shows its state.

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure};
use client::Client;

use super::{AUTHENTICATION, Run};
use crate::call::Call;
use crate::printer::Answer;

pub(super) const AUTH: Command<Run> = Command {
    name: "auth",
    usage: "auth <enable or disable>",
    about: "Enable or disable authentication. Use `etcdctl auth --help` to see subcommands",
    long: "Enable or disable authentication",
    example: "  etcdctl user add root && etcdctl auth enable",
    subcommands: &[
        Command {
            name: "disable",
            usage: "disable",
            about: "Disables authentication",
            example: "  etcdctl --user=root auth disable",
            run: Some(Run::asking(|call| Box::pin(disable(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "enable",
            usage: "enable",
            about: "Enables authentication",
            example: "  etcdctl user add root && etcdctl auth enable",
            run: Some(Run::asking(|call| Box::pin(enable(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "status",
            usage: "status",
            about: "Returns authentication status",
            example: "  etcdctl auth status",
            run: Some(Run::asking(|call| Box::pin(status(call)))),
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

fn no_arguments(call: &Call, name: &str) -> Result<(), Failure> {
    if call.args().is_empty() {
        return Ok(());
    }
    Err(Failure::bad_args(format!("auth {name} command does not accept any arguments")))
}

/// Enables authentication. If the server refuses because the user `root` does not have the role `root`,
/// creates the role, grants it to the user `root`, and tries once more.
pub(super) async fn enable(call: &Call) -> Result<(), Failure> {
    no_arguments(call, "enable")?;
    let connection = call.connect().await?;
    call.limited(enabled(&connection)).await?;
    call.line("Authentication Enabled")
}

async fn enabled(connection: &Client) -> Result<(), api::Status> {
    let missing = match try_enable(connection).await {
        Err(status) if status.message == api::error::ROOT_ROLE_NOT_EXIST.message => status,
        outcome => return outcome,
    };
    let root = || "root".to_owned();
    let role = pb::AuthRoleAddRequest { name: root() };
    let _: pb::AuthRoleAddResponse = connection.call(Rpc::AuthRoleAdd, &role).await?;
    let grant = pb::AuthUserGrantRoleRequest { user: root(), role: root() };
    let _: pb::AuthUserGrantRoleResponse = connection.call(Rpc::AuthUserGrantRole, &grant).await?;
    // Do not repeat this a second time: the role and its grant exist now, so creating them again would not
    // help if the server still reports the role as missing.
    try_enable(connection).await.map_err(|status| if status == missing { missing } else { status })
}

async fn try_enable(connection: &Client) -> Result<(), api::Status> {
    let request = pb::AuthEnableRequest {};
    let _: pb::AuthEnableResponse = connection.call(Rpc::AuthEnable, &request).await?;
    Ok(())
}

pub(super) async fn disable(call: &Call) -> Result<(), Failure> {
    no_arguments(call, "disable")?;
    let connection = call.connect().await?;
    let request = pb::AuthDisableRequest {};
    let _: pb::AuthDisableResponse = call.limited(connection.call(Rpc::AuthDisable, &request)).await?;
    call.line("Authentication Disabled")
}

pub(super) async fn status(call: &Call) -> Result<(), Failure> {
    no_arguments(call, "status")?;
    let connection = call.connect().await?;
    let request = pb::AuthStatusRequest {};
    let answer = call.limited(connection.call(Rpc::AuthStatus, &request)).await?;
    call.show(&Answer::AuthStatus(&answer))
}
