//! `--write-out=simple`: prints responses for people to read; the default.

use api::authpb::Permission;
use api::authpb::permission::Type;
use api::etcdserverpb::{self as pb, response_op::Response};
use api::mvccpb::KeyValue;

use super::{Answer, AutopilotNode, Page, Printer, alarm_type, event_type, hex_escaped, put, rows};
use crate::ranges::prefix_end;

pub(super) fn print(page: &mut Page, printer: &Printer, answer: &Answer<'_>) {
    let out = &mut page.out;
    match *answer {
        Answer::Get(r) => get(out, printer, r),
        Answer::Put(r) => put_answer(out, printer, r),
        Answer::Del(r) => del(out, printer, r),
        Answer::Txn(r) => txn(out, printer, r),
        Answer::Watch(batch) => {
            for event in &batch.events {
                put!(out, "{}\n", event_type(event.r#type));
                if let Some(kv) = &event.prev_kv {
                    pair(out, printer, kv);
                }
                pair(out, printer, event.kv.as_ref().unwrap_or(&KeyValue::default()));
            }
        }
        Answer::Grant(r) => put!(out, "lease {:016x} granted with TTL({}s)\n", r.id, r.ttl),
        Answer::Revoke(id, _) => put!(out, "lease {id:016x} revoked\n"),
        Answer::KeepAlive(r) => put!(out, "lease {:016x} keepalived with TTL({})\n", r.id, r.ttl),
        Answer::TimeToLive(r, keys) => time_to_live(out, r, keys),
        Answer::Leases(r) => {
            put!(out, "found {} leases\n", r.leases.len());
            for lease in &r.leases {
                put!(out, "{:016x}\n", lease.id);
            }
        }
        Answer::Alarm(r) => {
            for alarm in &r.alarms {
                alarm_line(out, alarm);
            }
        }
        Answer::MemberAdd(r) => {
            let member = r.member.clone().unwrap_or_default();
            let learner = match member {
                _ if member.is_witness => " as witness ",
                _ if member.is_learner => " as learner ",
                _ => " ",
            };
            let cluster = r.header.as_ref().map_or(0, |h| h.cluster_id);
            put!(out, "Member {:16x} added{learner}to cluster {cluster:16x}\n", member.id);
        }
        Answer::MemberRemove(id, r) => member(out, id, "removed from", r.header.as_ref()),
        Answer::MemberUpdate(id, r) => member(out, id, "updated in", r.header.as_ref()),
        Answer::MemberPromote(id, r) => member(out, id, "promoted in", r.header.as_ref()),
        Answer::MemberList(r) => lines(out, &rows::members(r)),
        Answer::EndpointHealth(list) => {
            for h in list {
                if h.error.is_empty() {
                    let took = &h.took;
                    put!(out, "{} is healthy: successfully committed proposal: took = {took}\n", h.endpoint);
                } else {
                    let error = &h.error;
                    put!(page.err, "{} is unhealthy: failed to commit proposal: {error}\n", h.endpoint);
                }
            }
        }
        Answer::EndpointStatus(list) => lines(out, &rows::status(list)),
        Answer::EndpointHashKv(list) => lines(out, &rows::hashes(list)),
        Answer::Autopilot(nodes) => autopilot(out, nodes),
        Answer::Observers(list) => lines(out, &rows::observers(list)),
        Answer::MoveLeader(from, to, _) => put!(out, "Leadership transferred from {from:x} to {to:x}\n"),
        Answer::DowngradeValidate(r) => downgrade(out, "validate", r),
        Answer::DowngradeEnable(r) => downgrade(out, "enable", r),
        Answer::DowngradeCancel(r) => downgrade(out, "cancel", r),
        Answer::RoleAdd(role, _) => put!(out, "Role {role} created\n"),
        Answer::RoleGet(role, r) => role_get(out, role, r),
        Answer::RoleDelete(role, _) => put!(out, "Role {role} deleted\n"),
        Answer::RoleList(r) => names(out, &r.roles),
        Answer::RoleGrantPermission(role, _) => put!(out, "Role {role} updated\n"),
        Answer::RoleRevokePermission { role, key, end, .. } => permission_revoked(out, role, key, end),
        Answer::UserAdd(user, _) => put!(out, "User {user} created\n"),
        Answer::UserGet(user, r) => {
            put!(out, "User: {user}\nRoles:");
            for role in &r.roles {
                put!(out, " {role}");
            }
            out.push(b'\n');
        }
        Answer::UserList(r) => names(out, &r.users),
        Answer::UserChangePassword(_) => put!(out, "Password updated\n"),
        Answer::UserGrantRole(user, role, _) => put!(out, "Role {role} is granted to user {user}\n"),
        Answer::UserRevokeRole(user, role, _) => put!(out, "Role {role} is revoked from user {user}\n"),
        Answer::UserDelete(user, _) => put!(out, "User {user} deleted\n"),
        Answer::AuthStatus(r) => {
            put!(out, "Authentication Status: {}\nAuthRevision: {}\n", r.enabled, r.auth_revision);
        }
    }
}

/// Prints one alarm, with one space between the fields. etcdctl prints one or two spaces, depending on its
/// build, because Go's text encoding of protobuf is deliberately unstable.
fn alarm_line(out: &mut Vec<u8>, alarm: &pb::AlarmMember) {
    let mut parts = Vec::new();
    if alarm.member_id != 0 {
        parts.push(format!("memberID:{}", alarm.member_id));
    }
    if alarm.alarm != 0 {
        parts.push(format!("alarm:{}", alarm_type(alarm.alarm)));
    }
    put!(out, "{}\n", parts.join(" "));
}

fn pair(out: &mut Vec<u8>, printer: &Printer, kv: &KeyValue) {
    let mut line = |bytes: &[u8]| {
        if printer.hex {
            out.extend_from_slice(&hex_escaped(bytes));
        } else {
            out.extend_from_slice(bytes);
        }
        out.push(b'\n');
    };
    if !printer.value_only {
        line(&kv.key);
    }
    line(&kv.value);
}

fn get(out: &mut Vec<u8>, printer: &Printer, r: &pb::RangeResponse) {
    for kv in &r.kvs {
        pair(out, printer, kv);
    }
}

fn put_answer(out: &mut Vec<u8>, printer: &Printer, r: &pb::PutResponse) {
    put!(out, "OK\n");
    if let Some(kv) = &r.prev_kv {
        pair(out, printer, kv);
    }
}

fn del(out: &mut Vec<u8>, printer: &Printer, r: &pb::DeleteRangeResponse) {
    put!(out, "{}\n", r.deleted);
    for kv in &r.prev_kvs {
        pair(out, printer, kv);
    }
}

fn txn(out: &mut Vec<u8>, printer: &Printer, r: &pb::TxnResponse) {
    put!(out, "{}\n", if r.succeeded { "SUCCESS" } else { "FAILURE" });
    for op in &r.responses {
        out.push(b'\n');
        match &op.response {
            Some(Response::ResponseDeleteRange(r)) => del(out, printer, r),
            Some(Response::ResponsePut(r)) => put_answer(out, printer, r),
            Some(Response::ResponseRange(r)) => get(out, printer, r),
            // Not reached: the syntax of `txn` has no nested transactions, so no response contains one.
            Some(Response::ResponseTxn(r)) => txn(out, printer, r),
            None => put!(out, "unexpected response \n"),
        }
    }
}

fn time_to_live(out: &mut Vec<u8>, r: &pb::LeaseTimeToLiveResponse, keys: bool) {
    if r.granted_ttl == 0 && r.ttl == -1 {
        put!(out, "lease {:016x} already expired\n", r.id);
        return;
    }
    put!(out, "lease {:016x} granted with TTL({}s), remaining({}s)", r.id, r.granted_ttl, r.ttl);
    if keys {
        put!(out, ", attached keys([");
        out.extend_from_slice(&r.keys.join(&b' '));
        put!(out, "])");
    }
    out.push(b'\n');
}

fn member(out: &mut Vec<u8>, id: u64, done: &str, header: Option<&pb::ResponseHeader>) {
    let cluster = header.map_or(0, |h| h.cluster_id);
    put!(out, "Member {id:16x} {done} cluster {cluster:16x}\n");
}

fn lines(out: &mut Vec<u8>, rows: &[Vec<String>]) {
    for row in rows {
        put!(out, "{}\n", row.join(", "));
    }
}

fn autopilot(out: &mut Vec<u8>, nodes: &[AutopilotNode]) {
    let sections = [
        ("node", rows::autopilots(nodes)),
        ("member", rows::autopilot_members(nodes)),
        ("step", rows::autopilot_steps(nodes)),
        ("advice", rows::advice(nodes)),
    ];
    for (kind, rows) in sections {
        for row in rows {
            put!(out, "{kind}, {}\n", row.join(", "));
        }
    }
}

fn names(out: &mut Vec<u8>, names: &[String]) {
    for name in names {
        put!(out, "{name}\n");
    }
}

fn downgrade(out: &mut Vec<u8>, action: &str, r: &pb::DowngradeResponse) {
    put!(out, "Downgrade {action} success, cluster version {}\n", r.version);
}

fn role_get(out: &mut Vec<u8>, role: &str, r: &pb::AuthRoleGetResponse) {
    put!(out, "Role {role}\n");
    if role == "root" && r.perm.is_empty() {
        put!(out, "KV Read:\n\t[, <open ended>\nKV Write:\n\t[, <open ended>\n");
        return;
    }
    for (title, alone) in [("KV Read:\n", Type::Read), ("KV Write:\n", Type::Write)] {
        put!(out, "{title}");
        for perm in &r.perm {
            if perm.perm_type == alone as i32 || perm.perm_type == Type::Readwrite as i32 {
                permission(out, perm);
            }
        }
    }
}

fn permission(out: &mut Vec<u8>, perm: &Permission) {
    out.push(b'\t');
    if perm.range_end.is_empty() {
        out.extend_from_slice(&perm.key);
    } else {
        range(out, &perm.key, &perm.range_end);
        if !perm.key.is_empty() && prefix_end(&perm.key) == perm.range_end {
            put!(out, " (prefix ");
            out.extend_from_slice(&perm.key);
            out.push(b')');
        }
    }
    out.push(b'\n');
}

fn range(out: &mut Vec<u8>, key: &[u8], end: &[u8]) {
    out.push(b'[');
    out.extend_from_slice(key);
    if end == b"\0" {
        put!(out, ", <open ended>");
    } else {
        put!(out, ", ");
        out.extend_from_slice(end);
        out.push(b')');
    }
}

fn permission_revoked(out: &mut Vec<u8>, role: &str, key: &[u8], end: &[u8]) {
    if end.is_empty() {
        put!(out, "Permission of key ");
        out.extend_from_slice(key);
    } else {
        put!(out, "Permission of range ");
        range(out, key, end);
    }
    put!(out, " is revoked from role {role}\n");
}
