//! Answers `/debug/vars`, with those variables of etcd's page that this process can provide.

use ::http::header::CONTENT_TYPE;
use ::http::{Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

use super::reply;
use replica::shared::{Published, Shared};
use telemetry::metrics::file_descriptor_limit;

/// Answers with a JSON object of the variables, by name.
pub(super) fn answer(shared: &Shared) -> Response<Bytes> {
    // COMPAT-442: secrets in the command line are masked.
    let command_line: Vec<Value> = profiling::command_line().into_iter().map(Value::from).collect();
    let rows = [
        ("cmdline", Some(Value::from(command_line))),
        ("file_descriptor_limit", file_descriptor_limit().map(Value::from)),
        ("raft.status", Some(raft_status(shared.member.identity.member_id, &shared.state.load()))),
    ];
    let known =
        rows.into_iter().filter_map(|(name, value)| Some(format!("{}: {}", Value::from(name), value?)));
    let body = format!("{{\n{}\n}}\n", known.collect::<Vec<_>>().join(",\n"));
    reply(StatusCode::OK, &[(CONTENT_TYPE, "application/json; charset=utf-8")], body.into())
}

/// Returns etcd's fields of the raft status, as far as the published state contains them. `term` is the raft
/// term of the last applied entry.
fn raft_status(member_id: u64, state: &Published) -> Value {
    json!({
        "id": format!("{member_id:x}"),
        "term": state.applied_term.0,
        "commit": state.commit_index.0,
        "lead": format!("{:x}", state.leader),
        "raftState": if state.leader == member_id { "StateLeader" } else { "StateFollower" },
        "applied": state.applied_index.0,
    })
}
