//! `auth`: authentication on, off, and its state.

use api::etcdserverpb as pb;

use crate::call::Call;
use crate::failure::Failure;
use crate::printer::Answer;
use client::Client;

fn no_arguments(call: &Call, name: &str) -> Result<(), Failure> {
    if call.args().is_empty() {
        return Ok(());
    }
    Err(Failure::bad_args(format!("auth {name} command does not accept any arguments")))
}

/// Where the role `root` is missing it is made and given to the user `root`, and then it is tried again.
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
    let _: pb::AuthRoleAddResponse = connection.call("/etcdserverpb.Auth/RoleAdd", &role).await?;
    let grant = pb::AuthUserGrantRoleRequest { user: root(), role: root() };
    let _: pb::AuthUserGrantRoleResponse =
        connection.call("/etcdserverpb.Auth/UserGrantRole", &grant).await?;
    // A server that still misses the role will go on missing it.
    try_enable(connection).await.map_err(|status| if status == missing { missing } else { status })
}

async fn try_enable(connection: &Client) -> Result<(), api::Status> {
    let request = pb::AuthEnableRequest {};
    let _: pb::AuthEnableResponse = connection.call("/etcdserverpb.Auth/AuthEnable", &request).await?;
    Ok(())
}

pub(super) async fn disable(call: &Call) -> Result<(), Failure> {
    no_arguments(call, "disable")?;
    let connection = call.connect().await?;
    let request = pb::AuthDisableRequest {};
    let _: pb::AuthDisableResponse =
        call.limited(connection.call("/etcdserverpb.Auth/AuthDisable", &request)).await?;
    call.line("Authentication Disabled")
}

pub(super) async fn status(call: &Call) -> Result<(), Failure> {
    no_arguments(call, "status")?;
    let connection = call.connect().await?;
    let request = pb::AuthStatusRequest {};
    let answer = call.limited(connection.call("/etcdserverpb.Auth/AuthStatus", &request)).await?;
    call.show(&Answer::AuthStatus(&answer))
}
