//! `role`: shows and changes roles and their permissions.

use api::Rpc;
use api::authpb::{Permission, permission::Type};
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag};

use super::{AUTHENTICATION, Run};
use crate::call::{Call, utf8};
use crate::printer::Answer;
use crate::ranges::{OPEN_END, prefix_end};

const GRANT_PREFIX: Flag<bool> = Flag::bool("prefix", "grant a prefix permission");
const GRANT_FROM_KEY: Flag<bool> = Flag::bool(
    "from-key",
    "grant a permission of keys that are greater than or equal to the given key using byte compare",
);
const REVOKE_PREFIX: Flag<bool> = Flag::bool("prefix", "revoke a prefix permission");
const REVOKE_FROM_KEY: Flag<bool> = Flag::bool(
    "from-key",
    "revoke a permission of keys that are greater than or equal to the given key using byte compare",
);

pub(super) const ROLE: Command<Run> = Command {
    name: "role",
    usage: "role <subcommand>",
    about: "Role related commands. Use `etcdctl role --help` to see subcommands",
    long: "Role related commands",
    example: "  etcdctl role add readers && etcdctl role grant-permission --prefix readers read /public/",
    subcommands: &[
        Command {
            name: "add",
            usage: "add <role name>",
            about: "Adds a new role",
            example: "  etcdctl role add readers",
            run: Some(Run::asking(|call| Box::pin(add(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "delete",
            usage: "delete <role name>",
            about: "Deletes a role",
            example: "  etcdctl role delete readers",
            run: Some(Run::asking(|call| Box::pin(delete(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "get",
            usage: "get <role name>",
            about: "Gets detailed information of a role",
            example: "  etcdctl role get readers",
            run: Some(Run::asking(|call| Box::pin(get(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "grant-permission",
            usage: "grant-permission [options] <role name> <permission type> <key> [endkey]",
            about: "Grants a key to a role",
            example: "  etcdctl role grant-permission --prefix readers read /public/",
            flags: &[GRANT_PREFIX.row(), GRANT_FROM_KEY.row()],
            run: Some(Run::asking(|call| Box::pin(grant_permission(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "Lists all roles",
            example: "  etcdctl role list",
            run: Some(Run::asking(|call| Box::pin(list(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "revoke-permission",
            usage: "revoke-permission <role name> <key> [endkey]",
            about: "Revokes a key from a role",
            example: "  etcdctl role revoke-permission --prefix readers /public/",
            flags: &[REVOKE_PREFIX.row(), REVOKE_FROM_KEY.row()],
            run: Some(Run::asking(|call| Box::pin(revoke_permission(call)))),
            ..Command::EMPTY
        },
    ],
    group: AUTHENTICATION,
    ..Command::EMPTY
};

fn name(call: &Call, command: &str) -> Result<String, Failure> {
    let [name] = call.args() else {
        return Err(Failure::bad_args(format!("role {command} command requires role name as its argument")));
    };
    utf8(name)
}

pub(super) async fn add(call: &Call) -> Result<(), Failure> {
    let name = name(call, "add")?;
    let connection = call.connect().await?;
    let request = pb::AuthRoleAddRequest { name };
    let answer = connection.call(Rpc::AuthRoleAdd, &request).await?;
    call.show(&Answer::RoleAdd(&request.name, &answer))
}

pub(super) async fn delete(call: &Call) -> Result<(), Failure> {
    let role = name(call, "delete")?;
    let connection = call.connect().await?;
    let request = pb::AuthRoleDeleteRequest { role };
    let answer = connection.call(Rpc::AuthRoleDelete, &request).await?;
    call.show(&Answer::RoleDelete(&request.role, &answer))
}

pub(super) async fn get(call: &Call) -> Result<(), Failure> {
    let role = name(call, "get")?;
    let connection = call.connect().await?;
    let request = pb::AuthRoleGetRequest { role };
    let answer = connection.call(Rpc::AuthRoleGet, &request).await?;
    call.show(&Answer::RoleGet(&request.role, &answer))
}

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("role list command requires no arguments"));
    }
    let connection = call.connect().await?;
    let answer = connection.call(Rpc::AuthRoleList, &pb::AuthRoleListRequest {}).await?;
    call.show(&Answer::RoleList(&answer))
}

pub(super) async fn grant_permission(call: &Call) -> Result<(), Failure> {
    let [name, kind, range @ ..] = call.args() else { return Err(too_few_to_grant()) };
    if range.is_empty() {
        return Err(too_few_to_grant());
    }
    let perm_type = match &kind.to_ascii_uppercase()[..] {
        b"READ" => Type::Read,
        b"WRITE" => Type::Write,
        b"READWRITE" => Type::Readwrite,
        _ => {
            let kind = String::from_utf8_lossy(kind);
            return Err(Failure::bad_args(format!("invalid permission type: {kind}")));
        }
    };
    let (key, range_end) = permitted(call, range, GRANT_PREFIX, GRANT_FROM_KEY)?;
    let name = utf8(name)?;
    let connection = call.connect().await?;
    let perm = Permission { perm_type: perm_type as i32, key: key.into(), range_end: range_end.into() };
    let request = pb::AuthRoleGrantPermissionRequest { name, perm: Some(perm) };
    let answer = connection.call(Rpc::AuthRoleGrantPermission, &request).await?;
    call.show(&Answer::RoleGrantPermission(&request.name, &answer))
}

fn too_few_to_grant() -> Failure {
    Failure::bad_args(
        "role grant command requires role name, permission type, and key [endkey] as its argument",
    )
}

pub(super) async fn revoke_permission(call: &Call) -> Result<(), Failure> {
    let [name, range @ ..] = call.args() else { return Err(too_few_to_revoke()) };
    let Some(shown) = range.first() else { return Err(too_few_to_revoke()) };
    let (key, range_end) = permitted(call, range, REVOKE_PREFIX, REVOKE_FROM_KEY)?;
    let role = utf8(name)?;
    let connection = call.connect().await?;
    let request =
        pb::AuthRoleRevokePermissionRequest { role, key: key.into(), range_end: range_end.clone().into() };
    let answer = connection.call(Rpc::AuthRoleRevokePermission, &request).await?;
    call.show(&Answer::RoleRevokePermission {
        role: &request.role,
        key: shown,
        end: &range_end,
        answer: &answer,
    })
}

fn too_few_to_revoke() -> Failure {
    Failure::bad_args("role revoke-permission command requires role name and key [endkey] as its argument")
}

/// Returns the key and the range end of a permission.
fn permitted(
    call: &Call,
    range: &[Vec<u8>],
    prefix: Flag<bool>,
    from_key: Flag<bool>,
) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let (prefix, from_key) = (call.matches.get(prefix), call.matches.get(from_key));
    let both = || Failure::bad_args("--from-key and --prefix flags are mutually exclusive");
    match range {
        [] => unreachable!("the caller counted"),
        // The server does not accept an empty key, so use the smallest key, the zero byte, in its place.
        [key, ..] if key.is_empty() => match (prefix, from_key) {
            (true, true) => Err(both()),
            (false, false) => Ok((OPEN_END.to_vec(), Vec::new())),
            _ => Ok((OPEN_END.to_vec(), OPEN_END.to_vec())),
        },
        [key] => match (prefix, from_key) {
            (true, true) => Err(both()),
            (true, false) => Ok((key.clone(), prefix_end(key))),
            (false, true) => Ok((key.clone(), OPEN_END.to_vec())),
            (false, false) => Ok((key.clone(), Vec::new())),
        },
        [_, _, ..] if prefix => Err(Failure::bad_args("unexpected endkey argument with --prefix flag")),
        [_, _, ..] if from_key => Err(Failure::bad_args("unexpected endkey argument with --from-key flag")),
        [key, end, ..] => Ok((key.clone(), end.clone())),
    }
}
