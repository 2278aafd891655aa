//! `--write-out=json`: prints the same JSON as Go's encoding/json for the structs of the Go client, one line
//! per response.
//!
//! Fields are in the order of the structs. Zero values are omitted where the struct's tags say so. Numbers
//! are JSON numbers even if they have 64 bits, enumerations are numbers, and bytes are base64.

use api::authpb::Permission;
use api::etcdserverpb::{self as pb, response_op::Response};
use api::mvccpb::{Event, KeyValue};
use cli::json;

use super::{Answer, AutopilotNode, ObserverRow};

pub(super) fn print(out: &mut Vec<u8>, hex: bool, answer: &Answer<'_>) {
    out.extend_from_slice(value(hex, answer).as_bytes());
    out.push(b'\n');
}

fn autopilot(AutopilotNode { id, name, status }: &AutopilotNode) -> String {
    let step = |step: &pb::AutopilotStep| {
        Object::new()
            .raw("atMs", step.at_ms.to_string())
            .raw("step", json::string(&step.step))
            .raw("memberID", step.member_id.to_string())
            .raw("outcome", json::string(&step.outcome))
            .text("error", &step.error)
            .raw("reason", json::string(&step.reason))
            .end()
    };
    let member = |member: &pb::AutopilotMember| {
        Object::new()
            .raw("ID", member.id.to_string())
            .raw("name", json::string(&member.name))
            .raw("isLearner", member.is_learner.to_string())
            .raw("reports", member.reports.to_string())
            .raw("standby", member.standby.to_string())
            .raw("silentMs", member.silent_ms.to_string())
            .raw("caughtUp", member.caught_up.to_string())
            .raw("syncP99Ms", member.sync_p99_ms.to_string())
            .raw("clients", member.clients.to_string())
            .end()
    };
    Object::new()
        .raw("ID", id.to_string())
        .raw("name", json::string(name))
        .raw("mode", json::string(&status.mode))
        .raw("deciding", status.deciding.to_string())
        .raw("standby", status.standby.to_string())
        .raw("replaceAfterMs", status.replace_after_ms.to_string())
        .raw("intervalMs", status.interval_ms.to_string())
        .raw("members", list(&status.members, member))
        .raw("steps", list(&status.steps, step))
        .raw("advice", list(&status.advice, |text| json::string(text)))
        .end()
}

fn value(hex: bool, answer: &Answer<'_>) -> String {
    match *answer {
        Answer::Get(r) => range(r),
        Answer::Put(r) => put(r),
        Answer::Del(r) => delete(r),
        Answer::Txn(r) => txn(r),
        Answer::Watch(batch) => Object::new()
            .raw("Header", batch.header.as_ref().map_or_else(null, header))
            .raw("Events", slice(&batch.events, event))
            .raw("CompactRevision", batch.compact_revision.to_string())
            .raw("Canceled", batch.canceled.to_string())
            .raw("Created", batch.created.to_string())
            .raw("CancelReason", json::string(&batch.cancel_reason))
            .end(),
        Answer::Grant(r) => flat_header(r.header.as_ref())
            .raw("ID", r.id.to_string())
            .raw("TTL", r.ttl.to_string())
            .raw("Error", json::string(&r.error))
            .end(),
        Answer::Revoke(_, r) => only_header(r.header.as_ref()),
        Answer::KeepAlive(r) => {
            flat_header(r.header.as_ref()).raw("ID", r.id.to_string()).raw("TTL", r.ttl.to_string()).end()
        }
        Answer::TimeToLive(r, _) => {
            let keys = if r.keys.is_empty() { null() } else { list(&r.keys, |key| base64(key)) };
            flat_header(r.header.as_ref())
                .raw("id", r.id.to_string())
                .raw("ttl", r.ttl.to_string())
                .raw("granted-ttl", r.granted_ttl.to_string())
                .raw("keys", keys)
                .end()
        }
        Answer::Leases(r) => {
            let lease = |lease: &pb::LeaseStatus| Object::new().raw("id", lease.id.to_string()).end();
            flat_header(r.header.as_ref()).raw("leases", list(&r.leases, lease)).end()
        }
        Answer::MemberAdd(r) => member_add(hex, r),
        Answer::MemberRemove(_, r) => members(hex, r.header.as_ref(), &r.members),
        Answer::MemberUpdate(_, r) => members(hex, r.header.as_ref(), &r.members),
        Answer::MemberPromote(_, r) => members(hex, r.header.as_ref(), &r.members),
        Answer::MemberList(r) => members(hex, r.header.as_ref(), &r.members),
        Answer::EndpointHealth(all) => slice(all, |h| {
            Object::new()
                .raw("endpoint", json::string(&h.endpoint))
                .raw("health", h.health.to_string())
                .raw("took", json::string(&h.took))
                .text("error", &h.error)
                .end()
        }),
        Answer::EndpointStatus(all) => slice(all, |(endpoint, r)| {
            Object::new().raw("Endpoint", json::string(endpoint)).raw("Status", status(r)).end()
        }),
        Answer::EndpointHashKv(all) => slice(all, |(endpoint, r)| {
            let hash = with_header(r.header.as_ref())
                .number("hash", r.hash)
                .number("compact_revision", r.compact_revision)
                .number("hash_revision", r.hash_revision)
                .end();
            Object::new().raw("Endpoint", json::string(endpoint)).raw("HashKV", hash).end()
        }),
        Answer::Observers(all) => slice(all, |ObserverRow { fed_by, observer: o }| {
            let urls = |urls: &[String]| list(urls, |url| json::string(url));
            Object::new()
                .raw("ID", o.id.to_string())
                .raw("name", json::string(&o.name))
                .raw("peerURLs", urls(&o.peer_urls))
                .raw("clientURLs", urls(&o.client_urls))
                .text("zone", &o.zone)
                .text("release", &o.release)
                .raw("fedBy", fed_by.to_string())
                .raw("state", json::string(&o.state))
                .raw("matchedIndex", o.matched_index.to_string())
                .raw("lagEntries", o.lag_entries.to_string())
                .raw("active", o.active.to_string())
                .end()
        }),
        Answer::Autopilot(nodes) => slice(nodes, autopilot),
        Answer::MoveLeader(_, _, r) => only_header(r.header.as_ref()),
        Answer::DowngradeValidate(r) | Answer::DowngradeEnable(r) | Answer::DowngradeCancel(r) => {
            with_header(r.header.as_ref()).text("version", &r.version).end()
        }
        Answer::Alarm(r) => {
            let alarm = |a: &pb::AlarmMember| {
                Object::new().number("memberID", a.member_id).number("alarm", a.alarm).end()
            };
            with_header(r.header.as_ref()).list("alarms", &r.alarms, alarm).end()
        }
        Answer::RoleAdd(_, r) => only_header(r.header.as_ref()),
        Answer::RoleGet(_, r) => with_header(r.header.as_ref()).list("perm", &r.perm, permission).end(),
        Answer::RoleDelete(_, r) => only_header(r.header.as_ref()),
        Answer::RoleList(r) => with_header(r.header.as_ref()).texts("roles", &r.roles).end(),
        Answer::RoleGrantPermission(_, r) => only_header(r.header.as_ref()),
        Answer::RoleRevokePermission { answer, .. } => only_header(answer.header.as_ref()),
        Answer::UserAdd(_, r) => only_header(r.header.as_ref()),
        Answer::UserGet(_, r) => with_header(r.header.as_ref()).texts("roles", &r.roles).end(),
        Answer::UserList(r) => with_header(r.header.as_ref()).texts("users", &r.users).end(),
        Answer::UserChangePassword(r) => only_header(r.header.as_ref()),
        Answer::UserGrantRole(_, _, r) => only_header(r.header.as_ref()),
        Answer::UserRevokeRole(_, _, r) => only_header(r.header.as_ref()),
        Answer::UserDelete(_, r) => only_header(r.header.as_ref()),
        Answer::AuthStatus(r) => with_header(r.header.as_ref())
            .flag("enabled", r.enabled)
            .number("authRevision", r.auth_revision)
            .end(),
    }
}

/// Builder for a JSON object. [`Object::raw`] always writes its field; the other methods omit fields with
/// zero values.
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn new() -> Object {
        Object("{".to_owned())
    }

    /// Adds a field whose value is already JSON.
    pub(crate) fn raw(mut self, name: &str, json: impl AsRef<str>) -> Object {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push('"');
        self.0.push_str(name);
        self.0.push_str("\":");
        self.0.push_str(json.as_ref());
        self
    }

    fn number<N: ToString + Default + PartialEq>(self, name: &str, number: N) -> Object {
        if number == N::default() { self } else { self.raw(name, number.to_string()) }
    }

    fn flag(self, name: &str, flag: bool) -> Object {
        if flag { self.raw(name, "true") } else { self }
    }

    fn text(self, name: &str, text: &str) -> Object {
        if text.is_empty() { self } else { self.raw(name, json::string(text)) }
    }

    fn bytes(self, name: &str, bytes: &[u8]) -> Object {
        if bytes.is_empty() { self } else { self.raw(name, base64(bytes)) }
    }

    fn texts(self, name: &str, texts: &[String]) -> Object {
        self.list(name, texts, |text| json::string(text))
    }

    fn list<T>(self, name: &str, items: &[T], item: impl Fn(&T) -> String) -> Object {
        if items.is_empty() { self } else { self.raw(name, list(items, item)) }
    }

    fn object<T>(self, name: &str, message: Option<&T>, object: impl Fn(&T) -> String) -> Object {
        match message {
            Some(message) => self.raw(name, object(message)),
            None => self,
        }
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

fn null() -> String {
    "null".to_owned()
}

fn base64(bytes: &[u8]) -> String {
    format!("\"{}\"", json::base64(bytes))
}

fn list<T>(items: &[T], item: impl Fn(&T) -> String) -> String {
    let items: Vec<String> = items.iter().map(item).collect();
    format!("[{}]", items.join(","))
}

/// Returns a JSON list; `null` for an empty one, because a Go slice to which nothing was appended is nil.
fn slice<T>(items: &[T], item: impl Fn(&T) -> String) -> String {
    if items.is_empty() { null() } else { list(items, item) }
}

/// Returns an object with the fields of the header, to which the caller adds the fields of the response. In
/// Go the header is an embedded struct, and Go writes the fields of an embedded struct directly into the
/// outer object.
fn flat_header(header: Option<&pb::ResponseHeader>) -> Object {
    match header {
        None => Object::new(),
        Some(h) => Object::new()
            .number("cluster_id", h.cluster_id)
            .number("member_id", h.member_id)
            .number("revision", h.revision)
            .number("raft_term", h.raft_term),
    }
}

fn header(h: &pb::ResponseHeader) -> String {
    flat_header(Some(h)).end()
}

fn with_header(h: Option<&pb::ResponseHeader>) -> Object {
    Object::new().object("header", h, header)
}

fn only_header(h: Option<&pb::ResponseHeader>) -> String {
    with_header(h).end()
}

fn pair(kv: &KeyValue) -> String {
    Object::new()
        .bytes("key", &kv.key)
        .number("create_revision", kv.create_revision)
        .number("mod_revision", kv.mod_revision)
        .number("version", kv.version)
        .bytes("value", &kv.value)
        .number("lease", kv.lease)
        .end()
}

fn event(event: &Event) -> String {
    Object::new()
        .number("type", event.r#type)
        .object("kv", event.kv.as_ref(), pair)
        .object("prev_kv", event.prev_kv.as_ref(), pair)
        .end()
}

fn range(r: &pb::RangeResponse) -> String {
    with_header(r.header.as_ref())
        .list("kvs", &r.kvs, pair)
        .flag("more", r.more)
        .number("count", r.count)
        .end()
}

fn put(r: &pb::PutResponse) -> String {
    with_header(r.header.as_ref()).object("prev_kv", r.prev_kv.as_ref(), pair).end()
}

fn delete(r: &pb::DeleteRangeResponse) -> String {
    with_header(r.header.as_ref()).number("deleted", r.deleted).list("prev_kvs", &r.prev_kvs, pair).end()
}

fn txn(r: &pb::TxnResponse) -> String {
    let op = |op: &pb::ResponseOp| {
        let inner = match &op.response {
            Some(Response::ResponseRange(r)) => Object::new().raw("response_range", range(r)),
            Some(Response::ResponsePut(r)) => Object::new().raw("response_put", put(r)),
            Some(Response::ResponseDeleteRange(r)) => Object::new().raw("response_delete_range", delete(r)),
            Some(Response::ResponseTxn(r)) => Object::new().raw("response_txn", txn(r)),
            None => Object::new(),
        };
        Object::new().raw("Response", inner.end()).end()
    };
    with_header(r.header.as_ref()).flag("succeeded", r.succeeded).list("responses", &r.responses, op).end()
}

fn member(m: &pb::Member) -> String {
    Object::new()
        .number("ID", m.id)
        .text("name", &m.name)
        .texts("peerURLs", &m.peer_urls)
        .texts("clientURLs", &m.client_urls)
        .flag("isLearner", m.is_learner)
        .flag("isWitness", m.is_witness)
        .end()
}

fn hex_header(h: &pb::ResponseHeader) -> String {
    Object::new()
        .raw("cluster_id", format!("\"{:x}\"", h.cluster_id))
        .raw("member_id", format!("\"{:x}\"", h.member_id))
        .number("revision", h.revision)
        .number("raft_term", h.raft_term)
        .end()
}

fn hex_member(m: &pb::Member) -> String {
    Object::new()
        .raw("ID", format!("\"{:x}\"", m.id))
        .text("name", &m.name)
        .texts("peerURLs", &m.peer_urls)
        .texts("clientURLs", &m.client_urls)
        .flag("isLearner", m.is_learner)
        .flag("isWitness", m.is_witness)
        .end()
}

fn members(hex: bool, h: Option<&pb::ResponseHeader>, all: &[pb::Member]) -> String {
    if hex {
        let header = h.map_or_else(null, hex_header);
        return Object::new().raw("header", header).raw("members", list(all, hex_member)).end();
    }
    with_header(h).list("members", all, member).end()
}

fn member_add(hex: bool, r: &pb::MemberAddResponse) -> String {
    if hex {
        return Object::new()
            .raw("header", r.header.as_ref().map_or_else(null, hex_header))
            .raw("member", r.member.as_ref().map_or_else(null, hex_member))
            .raw("members", list(&r.members, hex_member))
            .end();
    }
    with_header(r.header.as_ref())
        .object("member", r.member.as_ref(), member)
        .list("members", &r.members, member)
        .end()
}

fn status(r: &pb::StatusResponse) -> String {
    let downgrade = |d: &pb::DowngradeInfo| {
        Object::new().flag("enabled", d.enabled).text("targetVersion", &d.target_version).end()
    };
    with_header(r.header.as_ref())
        .text("version", &r.version)
        .number("dbSize", r.db_size)
        .number("leader", r.leader)
        .number("raftIndex", r.raft_index)
        .number("raftTerm", r.raft_term)
        .number("raftAppliedIndex", r.raft_applied_index)
        .texts("errors", &r.errors)
        .number("dbSizeInUse", r.db_size_in_use)
        .flag("isLearner", r.is_learner)
        .text("storageVersion", &r.storage_version)
        .number("dbSizeQuota", r.db_size_quota)
        .object("downgradeInfo", r.downgrade_info.as_ref(), downgrade)
        // Not a field of etcd. Only a Mainstay server with a zone sets it, so the output for etcd's responses
        // is that of etcdctl.
        .text("zone", &r.zone)
        // Neither are these: only a witness sets the first, and only a leader that counts it the second.
        .flag("isWitness", r.is_witness)
        .flag("witnessCounts", r.witness_counts)
        .end()
}

fn permission(perm: &Permission) -> String {
    Object::new()
        .number("permType", perm.perm_type)
        .bytes("key", &perm.key)
        .bytes("range_end", &perm.range_end)
        .end()
}
