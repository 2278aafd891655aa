//! `user`: who may do what.

use api::authpb::UserAddOptions;
use api::etcdserverpb as pb;

use super::role::ROLE_GET;
use crate::call::{Call, utf8};
use crate::failure::Failure;
use crate::password;
use crate::printer::Answer;

fn name(call: &Call, command: &str) -> Result<String, Failure> {
    let [name] = call.args() else {
        return Err(Failure::bad_args(format!("user {command} command requires user name as its argument")));
    };
    utf8(name)
}

pub(super) async fn add(call: &Call) -> Result<(), Failure> {
    let argument = name(call, "add")?;
    let no_password = call.matches.flag("no-password");
    let from_flag = call.matches.text("new-user-password");
    let (name, password) = if no_password {
        (argument, String::new())
    } else if !from_flag.is_empty() {
        (argument, from_flag.to_owned())
    } else if let Some((name, password)) = argument.split_once(':') {
        if name.is_empty() {
            return Err(Failure::bad_args("empty user name is not allowed"));
        }
        (name.to_owned(), password.to_owned())
    } else {
        let password = new_password(call, &argument)?;
        (argument, password)
    };
    let connection = call.connect().await?;
    let options = Some(UserAddOptions { no_password });
    let request = pb::AuthUserAddRequest { name, password, options, hashed_password: String::new() };
    let answer = connection.call("/etcdserverpb.Auth/UserAdd", &request).await?;
    call.show(&Answer::UserAdd(&request.name, &answer))
}

/// A new password: asked for twice, or with `--interactive=false` the first word on standard input.
fn new_password(call: &Call, user: &str) -> Result<String, Failure> {
    if !call.matches.flag("interactive") {
        let line = call.io.input.rest_of_line().unwrap_or_default();
        let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        return utf8(word);
    }
    let asked = |prompt: String| {
        password::ask(&call.io, &prompt)
            .map_err(|error| Failure::bad_args(format!("failed to ask password: {error}")))
    };
    let password = asked(format!("Password of {user}: "))?;
    if password.is_empty() {
        return Err(Failure::bad_args("empty password"));
    }
    if asked(format!("Type password of {user} again for confirmation: "))? != password {
        return Err(Failure::bad_args("given passwords are different"));
    }
    Ok(password)
}

pub(super) async fn delete(call: &Call) -> Result<(), Failure> {
    let name = name(call, "delete")?;
    let connection = call.connect().await?;
    let request = pb::AuthUserDeleteRequest { name };
    let answer = connection.call("/etcdserverpb.Auth/UserDelete", &request).await?;
    call.show(&Answer::UserDelete(&request.name, &answer))
}

pub(super) async fn get(call: &Call) -> Result<(), Failure> {
    let name = name(call, "get")?;
    let connection = call.connect().await?;
    let request = pb::AuthUserGetRequest { name };
    let answer: pb::AuthUserGetResponse = connection.call("/etcdserverpb.Auth/UserGet", &request).await?;
    if !call.matches.flag("detail") {
        return call.show(&Answer::UserGet(&request.name, &answer));
    }
    call.line(format!("User: {}", request.name))?;
    for role in answer.roles {
        call.line("")?;
        let request = pb::AuthRoleGetRequest { role };
        let answer = connection.call(ROLE_GET, &request).await?;
        call.show(&Answer::RoleGet(&request.role, &answer))?;
    }
    Ok(())
}

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("user list command requires no arguments"));
    }
    let connection = call.connect().await?;
    let answer = connection.call("/etcdserverpb.Auth/UserList", &pb::AuthUserListRequest {}).await?;
    call.show(&Answer::UserList(&answer))
}

pub(super) async fn passwd(call: &Call) -> Result<(), Failure> {
    let name = name(call, "passwd")?;
    let password = new_password(call, &name)?;
    let connection = call.connect().await?;
    let request = pb::AuthUserChangePasswordRequest { name, password, hashed_password: String::new() };
    let answer = connection.call("/etcdserverpb.Auth/UserChangePassword", &request).await?;
    call.show(&Answer::UserChangePassword(&answer))
}

pub(super) async fn grant_role(call: &Call) -> Result<(), Failure> {
    let [user, role] = call.args() else {
        return Err(Failure::bad_args("user grant command requires user name and role name as its argument"));
    };
    let (user, role) = (utf8(user)?, utf8(role)?);
    let connection = call.connect().await?;
    let request = pb::AuthUserGrantRoleRequest { user, role };
    let answer = connection.call("/etcdserverpb.Auth/UserGrantRole", &request).await?;
    call.show(&Answer::UserGrantRole(&request.user, &request.role, &answer))
}

pub(super) async fn revoke_role(call: &Call) -> Result<(), Failure> {
    let [user, role] = call.args() else {
        return Err(Failure::bad_args("user revoke-role requires user name and role name as its argument"));
    };
    let (name, role) = (utf8(user)?, utf8(role)?);
    let connection = call.connect().await?;
    let request = pb::AuthUserRevokeRoleRequest { name, role };
    let answer = connection.call("/etcdserverpb.Auth/UserRevokeRole", &request).await?;
    call.show(&Answer::UserRevokeRole(&request.name, &request.role, &answer))
}
