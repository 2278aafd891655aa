//! Tests of the commands auth, user and role.

use api::Code;
use api::authpb::Permission;
use api::etcdserverpb as pb;

use crate::fake_server::Script;
use crate::messages::{header, range};
use crate::transcript::{Case, check};

fn path(method: &str) -> String {
    format!("/etcdserverpb.Auth/{method}")
}

#[test]
fn auth() {
    let enabled = pb::AuthEnableResponse { header: header() };
    let script = Script::default()
        .says(&path("AuthEnable"), &enabled)
        .says(&path("AuthDisable"), &pb::AuthDisableResponse { header: header() })
        .says(
            &path("AuthStatus"),
            &pb::AuthStatusResponse { header: header(), enabled: true, auth_revision: 4 },
        );
    let no_role = "etcdserver: root user does not have root role";
    let first = Script::default()
        .fails(&path("AuthEnable"), Code::FailedPrecondition, no_role)
        .says(&path("AuthEnable"), &enabled)
        .says(&path("RoleAdd"), &pb::AuthRoleAddResponse { header: header() })
        .says(&path("UserGrantRole"), &pb::AuthUserGrantRoleResponse { header: header() });
    let no_user = Script::default().fails(
        &path("AuthEnable"),
        Code::FailedPrecondition,
        "etcdserver: root user does not exist",
    );
    let mut cases = Case::new("auth status", &script).in_all_formats();
    cases.extend(
        Case::new(
            "auth status",
            &Script::default().says(&path("AuthStatus"), &pb::AuthStatusResponse::default()),
        )
        .in_formats(&["simple", "json"]),
    );
    cases.push(Case::new("auth enable", &script));
    cases.push(Case::new("auth enable", &first));
    cases.push(Case::new("auth enable", &no_user));
    cases.push(Case::new("auth disable", &script));
    for line in ["auth enable x", "auth disable x", "auth status x"] {
        cases.push(Case::new(line, &script));
    }
    check("auth", cases);
}

#[test]
fn login() {
    let token = pb::AuthenticateResponse { header: header(), token: "t0ken".to_owned() };
    let script = Script::default()
        .says(&path("Authenticate"), &token)
        .says("/etcdserverpb.KV/Range", &range(Vec::new()));
    let refused = Script::default().fails(
        &path("Authenticate"),
        Code::InvalidArgument,
        "etcdserver: authentication failed, invalid user ID or password",
    );
    let off = Script::default()
        .fails(&path("Authenticate"), Code::FailedPrecondition, "etcdserver: authentication is not enabled")
        .says("/etcdserverpb.KV/Range", &range(Vec::new()));
    let line = "get a -w json";
    let noise = "a pipe makes stty complain";
    check(
        "login",
        vec![
            Case::new(line, &script).with("ETCDCTL_USER", "root:a:b"),
            Case::new("get a --user root --password pw -w json", &script),
            Case::new("get a --user root -w json", &script).reading("typed\n").ours_alone(noise),
            Case::new("get a --user root:no -w json", &refused),
            Case::new("get a --user root:pw -w json", &off),
            Case::new("get a --auth-jwt-token abc -w json", &script),
            Case::new("get a --user root: -w json", &script),
        ],
    );
}

#[test]
fn user() {
    let get = pb::AuthUserGetResponse { header: header(), roles: vec!["r1".to_owned(), "root".to_owned()] };
    let script = Script::default()
        .says(&path("UserAdd"), &pb::AuthUserAddResponse { header: header() })
        .says(&path("UserDelete"), &pb::AuthUserDeleteResponse { header: header() })
        .says(&path("UserGet"), &get)
        .says(
            &path("UserList"),
            &pb::AuthUserListResponse {
                header: header(),
                users: vec!["alice".to_owned(), "root".to_owned()],
            },
        )
        .says(&path("UserChangePassword"), &pb::AuthUserChangePasswordResponse { header: header() })
        .says(&path("UserGrantRole"), &pb::AuthUserGrantRoleResponse { header: header() })
        .says(&path("UserRevokeRole"), &pb::AuthUserRevokeRoleResponse { header: header() })
        .says(&path("RoleGet"), &role());
    let none = Script::default()
        .says(&path("UserGet"), &pb::AuthUserGetResponse { header: header(), roles: Vec::new() })
        .says(&path("UserList"), &pb::AuthUserListResponse { header: header(), users: Vec::new() });
    let mut cases = Vec::new();
    for line in [
        "user add alice:pw",
        "user delete alice",
        "user get alice",
        "user get alice --detail",
        "user list",
        "user grant-role alice r1",
        "user revoke-role alice r1",
    ] {
        cases.extend(Case::new(line, &script).in_all_formats());
    }
    let typed = Case::new("user passwd alice --interactive=false", &script).reading("secret word\n");
    cases.extend(typed.in_all_formats());
    cases.extend(Case::new("user get alice", &none).in_all_formats());
    cases.extend(Case::new("user list", &none).in_all_formats());
    cases.push(Case::new("user add alice --interactive=false", &script).reading("secret\n"));
    cases.push(Case::new("user add alice --interactive=false", &script));
    cases.push(Case::new("user add a:b:c", &script));
    cases.push(Case::new("user add a:b --new-user-password=pw", &script));
    cases.push(Case::new("user add alice --no-password", &script));
    let noise = "a pipe makes stty complain";
    for (line, typed) in [
        ("user add alice", "pw\npw\n"),
        ("user add alice", "pw\nother\n"),
        ("user add alice", "\n"),
        ("user passwd alice", "pw\npw\n"),
    ] {
        cases.push(Case::new(line, &script).reading(typed).ours_alone(noise));
    }
    for line in [
        "user add",
        "user add :pw",
        "user add a b",
        "user delete",
        "user get",
        "user list x",
        "user passwd",
        "user grant-role a",
        "user revoke-role a",
    ] {
        cases.push(Case::new(line, &script));
    }
    let exists = Script::default().fails(
        &path("UserAdd"),
        Code::FailedPrecondition,
        "etcdserver: user name already exists",
    );
    cases.push(Case::new("user add alice:pw", &exists));
    check("user", cases);
}

fn role() -> pb::AuthRoleGetResponse {
    let perm = |perm_type, key: &'static str, end: &'static str| Permission {
        perm_type,
        key: key.into(),
        range_end: end.into(),
    };
    pb::AuthRoleGetResponse {
        header: header(),
        perm: vec![
            perm(0, "a", ""),
            perm(1, "b", "d"),
            perm(2, "c/", "c0"),
            perm(0, "e", "\0"),
            perm(2, "\0", "\0"),
        ],
    }
}

#[test]
fn role_() {
    let script = Script::default()
        .says(&path("RoleAdd"), &pb::AuthRoleAddResponse { header: header() })
        .says(&path("RoleDelete"), &pb::AuthRoleDeleteResponse { header: header() })
        .says(&path("RoleGet"), &role())
        .says(
            &path("RoleList"),
            &pb::AuthRoleListResponse { header: header(), roles: vec!["r1".to_owned(), "root".to_owned()] },
        )
        .says(&path("RoleGrantPermission"), &pb::AuthRoleGrantPermissionResponse { header: header() })
        .says(&path("RoleRevokePermission"), &pb::AuthRoleRevokePermissionResponse { header: header() });
    let none = Script::default()
        .says(&path("RoleGet"), &pb::AuthRoleGetResponse { header: header(), perm: Vec::new() })
        .says(&path("RoleList"), &pb::AuthRoleListResponse { header: header(), roles: Vec::new() });
    let mut cases = Vec::new();
    for line in [
        "role add r1",
        "role delete r1",
        "role get r1",
        "role list",
        "role grant-permission r1 read a",
        "role revoke-permission r1 a",
    ] {
        cases.extend(Case::new(line, &script).in_all_formats());
    }
    for line in ["role get root", "role get r1", "role list"] {
        cases.extend(Case::new(line, &none).in_all_formats());
    }
    for line in [
        "role grant-permission r1 WRITE a c",
        "role grant-permission r1 readwrite a --prefix",
        "role grant-permission r1 readwrite a --from-key",
        "role grant-permission r1 read a b c",
        "role revoke-permission r1 a c",
        "role revoke-permission r1 a --prefix",
        "role revoke-permission r1 a --from-key",
        "role add",
        "role delete",
        "role get",
        "role list x",
        "role grant-permission r1 read",
        "role grant-permission r1 rw a",
        "role grant-permission r1 read a --prefix --from-key",
        "role grant-permission r1 read a b --prefix",
        "role grant-permission r1 read a b --from-key",
        "role revoke-permission r1",
        "role revoke-permission",
    ] {
        cases.push(Case::new(line, &script));
    }
    for words in [
        &["role", "grant-permission", "r1", "read", ""][..],
        &["role", "grant-permission", "r1", "read", "", "--prefix"],
        &["role", "grant-permission", "r1", "read", "", "--from-key"],
        &["role", "grant-permission", "r1", "read", "", "--from-key", "--prefix"],
        &["role", "revoke-permission", "r1", "", "--prefix"],
    ] {
        cases.push(Case::of(words.iter().copied(), &script));
    }
    check("role", cases);
}
