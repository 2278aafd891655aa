//! `user`: shows and changes users, their passwords and roles.

use api::Rpc;
use api::authpb::UserAddOptions;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag};

use super::{AUTHENTICATION, Run};
use crate::call::{Call, utf8};
use crate::password;
use crate::printer::Answer;

const ADD_INTERACTIVE: Flag<bool> =
    Flag::on("interactive", "Read password from stdin instead of interactive terminal");
const NEW_USER_PASSWORD: Flag<String> =
    Flag::text("new-user-password", "", "Supply password from the command line flag");
const NO_PASSWORD: Flag<bool> =
    Flag::bool("no-password", "Create a user without password (CN based auth only)");
const DETAIL: Flag<bool> = Flag::bool("detail", "Show permissions of roles granted to the user");
const PASSWD_INTERACTIVE: Flag<bool> =
    Flag::on("interactive", "If true, read password from stdin instead of interactive terminal");

pub(super) const USER: Command<Run> = Command {
    name: "user",
    usage: "user <subcommand>",
    about: "User related commands. Use `etcdctl user --help` to see subcommands",
    long: "User related commands",
    example: "  etcdctl user add alice",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <user name or user:password> [options]",
            about: "Adds a new user",
            example: "  # Ask for the password\n  etcdctl user add alice\n\n  # Read it from a file\n  \
                      etcdctl user add alice --interactive=false < password.txt",
            flags: &[ADD_INTERACTIVE.row(), NEW_USER_PASSWORD.row(), NO_PASSWORD.row()],
            run: Some(Run::asking(|call| Box::pin(add(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "delete",
            usage: "delete <user name>",
            about: "Deletes a user",
            example: "  etcdctl user delete alice",
            run: Some(Run::asking(|call| Box::pin(delete(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "get",
            usage: "get <user name> [options]",
            about: "Gets detailed information of a user",
            example: "  etcdctl user get alice --detail",
            flags: &[DETAIL.row()],
            run: Some(Run::asking(|call| Box::pin(get(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "grant-role",
            usage: "grant-role <user name> <role name>",
            about: "Grants a role to a user",
            example: "  etcdctl user grant-role alice readers",
            run: Some(Run::asking(|call| Box::pin(grant_role(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all users",
            example: "  etcdctl user list",
            run: Some(Run::asking(|call| Box::pin(list(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "passwd",
            usage: "passwd <user name> [options]",
            about: "Changes password of user",
            example: "  etcdctl user passwd alice",
            flags: &[PASSWD_INTERACTIVE.row()],
            run: Some(Run::asking(|call| Box::pin(passwd(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "revoke-role",
            usage: "revoke-role <user name> <role name>",
            about: "Revokes a role from a user",
            example: "  etcdctl user revoke-role alice readers",
            run: Some(Run::asking(|call| Box::pin(revoke_role(call)))),
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

fn name(call: &Call, command: &str) -> Result<String, Failure> {
    let [name] = call.args() else {
        return Err(Failure::bad_args(format!("user {command} command requires user name as its argument")));
    };
    utf8(name)
}

pub(super) async fn add(call: &Call) -> Result<(), Failure> {
    let argument = name(call, "add")?;
    let no_password = call.matches.get(NO_PASSWORD);
    let from_flag = call.matches.get(NEW_USER_PASSWORD);
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
        let password = new_password(call, &argument, ADD_INTERACTIVE)?;
        (argument, password)
    };
    let connection = call.connect().await?;
    let options = Some(UserAddOptions { no_password });
    let request = pb::AuthUserAddRequest { name, password, options, hashed_password: String::new() };
    let answer = connection.call(Rpc::AuthUserAdd, &request).await?;
    call.show(&Answer::UserAdd(&request.name, &answer))
}

/// Reads a new password: twice from the terminal, or, with `--interactive=false`, the first word on standard
/// input.
fn new_password(call: &Call, user: &str, interactive: Flag<bool>) -> Result<String, Failure> {
    if !call.matches.get(interactive) {
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
    let answer = connection.call(Rpc::AuthUserDelete, &request).await?;
    call.show(&Answer::UserDelete(&request.name, &answer))
}

pub(super) async fn get(call: &Call) -> Result<(), Failure> {
    let name = name(call, "get")?;
    let connection = call.connect().await?;
    let request = pb::AuthUserGetRequest { name };
    let answer: pb::AuthUserGetResponse = connection.call(Rpc::AuthUserGet, &request).await?;
    if !call.matches.get(DETAIL) {
        return call.show(&Answer::UserGet(&request.name, &answer));
    }
    call.line(format!("User: {}", request.name))?;
    for role in answer.roles {
        call.line("")?;
        let request = pb::AuthRoleGetRequest { role };
        let answer = connection.call(Rpc::AuthRoleGet, &request).await?;
        call.show(&Answer::RoleGet(&request.role, &answer))?;
    }
    Ok(())
}

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("user list command requires no arguments"));
    }
    let connection = call.connect().await?;
    let answer = connection.call(Rpc::AuthUserList, &pb::AuthUserListRequest {}).await?;
    call.show(&Answer::UserList(&answer))
}

pub(super) async fn passwd(call: &Call) -> Result<(), Failure> {
    let name = name(call, "passwd")?;
    let password = new_password(call, &name, PASSWD_INTERACTIVE)?;
    let connection = call.connect().await?;
    let request = pb::AuthUserChangePasswordRequest { name, password, hashed_password: String::new() };
    let answer = connection.call(Rpc::AuthUserChangePassword, &request).await?;
    call.show(&Answer::UserChangePassword(&answer))
}

pub(super) async fn grant_role(call: &Call) -> Result<(), Failure> {
    let [user, role] = call.args() else {
        return Err(Failure::bad_args("user grant command requires user name and role name as its argument"));
    };
    let (user, role) = (utf8(user)?, utf8(role)?);
    let connection = call.connect().await?;
    let request = pb::AuthUserGrantRoleRequest { user, role };
    let answer = connection.call(Rpc::AuthUserGrantRole, &request).await?;
    call.show(&Answer::UserGrantRole(&request.user, &request.role, &answer))
}

pub(super) async fn revoke_role(call: &Call) -> Result<(), Failure> {
    let [user, role] = call.args() else {
        return Err(Failure::bad_args("user revoke-role requires user name and role name as its argument"));
    };
    let (name, role) = (utf8(user)?, utf8(role)?);
    let connection = call.connect().await?;
    let request = pb::AuthUserRevokeRoleRequest { name, role };
    let answer = connection.call(Rpc::AuthUserRevokeRole, &request).await?;
    call.show(&Answer::UserRevokeRole(&request.name, &request.role, &answer))
}
