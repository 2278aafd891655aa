//! Tests of help, usage, version, completion, and global flags.

use api::etcdserverpb as pb;

use crate::fake_server::Script;
use crate::messages::range;
use crate::transcript::{Case, check};

const EXAMPLES: &str = "real etcdctl has hardly any examples";

#[test]
fn help() {
    let script = Script::default();
    let mut cases = vec![
        Case::of([], &script),
        Case::new("--help", &script),
        Case::new("help", &script),
        Case::new("options", &script),
        Case::new("gett", &script),
        Case::new("get --foo a", &script).ours_alone(EXAMPLES),
        Case::new("get --limit=x a", &script).ours_alone(EXAMPLES),
        Case::new("get --limit", &script).ours_alone(EXAMPLES),
        Case::new("get -x a", &script).ours_alone(EXAMPLES),
        Case::new("version", &script).ours_alone("the version of the API that is spoken here"),
        Case::new("help nothing", &script),
        Case::new("completion", &script).ours_alone(EXAMPLES),
        Case::new("completion tcsh", &script).ours_alone(EXAMPLES),
    ];
    for path in [
        "get",
        "put",
        "del",
        "txn",
        "compaction",
        "watch",
        "lease",
        "lease grant",
        "lease revoke",
        "lease timetolive",
        "lease list",
        "lease keep-alive",
        "member",
        "member add",
        "member remove",
        "member update",
        "member promote",
        "member list",
        "endpoint",
        "endpoint health",
        "endpoint status",
        "endpoint hashkv",
        "alarm",
        "alarm list",
        "alarm disarm",
        "defrag",
        "move-leader",
        "downgrade",
        "downgrade validate",
        "downgrade enable",
        "downgrade cancel",
        "lock",
        "elect",
        "auth",
        "auth enable",
        "auth disable",
        "auth status",
        "user",
        "user add",
        "user delete",
        "user get",
        "user list",
        "user passwd",
        "user grant-role",
        "user revoke-role",
        "role",
        "role add",
        "role delete",
        "role get",
        "role list",
        "role grant-permission",
        "role revoke-permission",
        "make-mirror",
        "check",
        "check perf",
        "check datascale",
        "completion",
        "options",
        "version",
        "help",
    ] {
        cases.push(Case::new(&format!("{path} --help"), &script).ours_alone(EXAMPLES));
    }
    cases.push(Case::new("snapshot save --help", &script));
    cases.push(Case::new("snapshot", &script));
    check("help", cases);
}

#[test]
fn completion_scripts_name_every_command() {
    for shell in cli::completion::SHELLS {
        let script = cli::completion::Tree::of(&ctl::commands::PROGRAM).script(shell.as_bytes(), "etcdctl");
        let script = script.expect("there is one for each shell");
        for word in ["get", "keep-alive", "grant-permission", "make-mirror", "datascale", "print-value-only"]
        {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn globals() {
    let script = Script::default().says("/etcdserverpb.KV/Range", &range(Vec::new()));
    let zoned = Script::default()
        .says(
            "/etcdserverpb.Maintenance/Status",
            &pb::StatusResponse { zone: "north".to_owned(), ..Default::default() },
        )
        .and(script.clone());
    check(
        "globals",
        vec![
            Case::new("get a", &script).with("ETCDCTL_WRITE_OUT", "json"),
            Case::new("get a", &script).with("ETCDCTL_API", "3"),
            Case::new("get a", &script)
                .with("ETCDCTL_FOO", "1")
                .ours_alone("real etcdctl says it in its log"),
            Case::new("get a", &script)
                .with("ETCDCTL_DIAL_TIMEOUT", "bogus")
                .with("ETCDCTL_HEX", "")
                .ours_alone("real etcdctl says it of the empty one only, and in its log"),
            Case::new("get a --write-out=json", &script)
                .with("ETCDCTL_WRITE_OUT", "fields")
                .ours_alone("real etcdctl says it in its log"),
            Case::new("get a --endpoints=", &script).without_requests(),
            Case::new("get a --endpoints=127.0.0.1:1 --command-timeout=200ms", &script)
                .ours_alone("real etcdctl says the reason in its log"),
            Case::new("get a --auth-jwt-token=x --max-request-bytes=10 --max-recv-bytes=5", &script),
            Case::new("put a 12345678901234567890 --max-request-bytes=10", &script),
            Case::new("get a --cacert=/no/such/file", &script),
            Case::new("get a --cert=/no/such/file", &script),
            Case::new("get a --key=", &script),
            Case::new("get a --discovery-srv=", &script),
            Case::new("le list -w table", &script),
            Case::new(
                "get a --debug --user=root:pw --auth-jwt-token=x --endpoints=127.0.0.1:1,b:2 -w yaml",
                &script,
            )
            .ours_alone("secrets are not shown, and there is a flag more"),
            Case::new("get a --zone=north", &zoned).ours_alone("etcdctl knows no zones"),
            Case::new("get a --zone=south", &zoned).ours_alone("etcdctl knows no zones"),
        ],
    );
}
