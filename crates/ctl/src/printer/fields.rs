//! `--write-out=fields`: one `"Name" : value` per line.

use api::etcdserverpb::{self as pb, response_op::Response};
use api::mvccpb::KeyValue;
use cli::go::quote;

use super::{Answer, EndpointHealth, WatchBatch, alarm_type, event_type, permission_type, put};

/// Prints the response. Returns false if this format cannot show it.
pub(super) fn print(out: &mut Vec<u8>, hex: bool, answer: &Answer<'_>) -> bool {
    let lines = &mut Lines { out, hex };
    match *answer {
        Answer::Get(r) => lines.get(r),
        Answer::Put(r) => lines.put_answer(r),
        Answer::Del(r) => lines.del(r),
        Answer::Txn(r) => lines.txn(r),
        Answer::Watch(r) => lines.watch(r),
        Answer::Grant(r) => lines.lease_and_ttl(r.header.as_ref(), r.id, r.ttl),
        Answer::Revoke(_, r) => lines.header(r.header.as_ref()),
        Answer::KeepAlive(r) => lines.lease_and_ttl(r.header.as_ref(), r.id, r.ttl),
        Answer::TimeToLive(r, _) => lines.time_to_live(r),
        Answer::Leases(r) => lines.leases(r),
        Answer::MemberList(r) => lines.members(r),
        Answer::EndpointHealth(list) => list.iter().for_each(|health| lines.health(health)),
        Answer::EndpointStatus(list) => {
            list.iter().for_each(|(endpoint, status)| lines.status(endpoint, status));
        }
        Answer::EndpointHashKv(list) => list.iter().for_each(|(endpoint, hash)| lines.hash(endpoint, hash)),
        Answer::Alarm(r) => lines.alarms(r),
        Answer::RoleAdd(_, r) => lines.header(r.header.as_ref()),
        Answer::RoleGet(_, r) => lines.role(r),
        Answer::RoleDelete(_, r) => lines.header(r.header.as_ref()),
        Answer::RoleList(r) => lines.roles(r),
        Answer::RoleGrantPermission(_, r) => lines.header(r.header.as_ref()),
        Answer::RoleRevokePermission { answer, .. } => lines.header(answer.header.as_ref()),
        Answer::UserAdd(_, r) => lines.header(r.header.as_ref()),
        Answer::UserChangePassword(r) => lines.header(r.header.as_ref()),
        Answer::UserGrantRole(_, _, r) => lines.header(r.header.as_ref()),
        Answer::UserRevokeRole(_, _, r) => lines.header(r.header.as_ref()),
        Answer::UserDelete(_, r) => lines.header(r.header.as_ref()),
        Answer::MemberAdd(_)
        | Answer::MemberRemove(..)
        | Answer::MemberUpdate(..)
        | Answer::MemberPromote(..)
        | Answer::MoveLeader(..)
        | Answer::Observers(_)
        | Answer::Autopilot(_)
        | Answer::DowngradeValidate(_)
        | Answer::DowngradeEnable(_)
        | Answer::DowngradeCancel(_)
        | Answer::UserGet(..)
        | Answer::UserList(_)
        | Answer::AuthStatus(_) => return false,
    }
    true
}

struct Lines<'a> {
    out: &'a mut Vec<u8>,
    hex: bool,
}

impl Lines<'_> {
    fn field(&mut self, name: &str, value: impl std::fmt::Display) {
        put!(self.out, "\"{name}\" : {value}\n");
    }

    fn quoted(&mut self, name: &str, value: &[u8]) {
        self.field(name, quote(value));
    }

    fn blank(&mut self) {
        self.out.push(b'\n');
    }

    /// Prints the id of a member or cluster.
    fn id(&mut self, name: &str, id: u64) {
        if self.hex {
            self.field(name, format_args!("{id:x}"));
        } else {
            self.field(name, id);
        }
    }

    fn lease(&mut self, name: &str, id: i64) {
        if self.hex {
            self.field(name, format_args!("{id:016x}"));
        } else {
            self.field(name, id);
        }
    }

    fn header(&mut self, header: Option<&pb::ResponseHeader>) {
        let none = pb::ResponseHeader::default();
        let header = header.unwrap_or(&none);
        self.id("ClusterID", header.cluster_id);
        self.id("MemberID", header.member_id);
        if header.revision > 0 {
            self.field("Revision", header.revision);
        }
        self.field("RaftTerm", header.raft_term);
    }

    fn pair(&mut self, prefix: &str, kv: &KeyValue) {
        self.quoted(&format!("{prefix}Key"), &kv.key);
        self.field(&format!("{prefix}CreateRevision"), kv.create_revision);
        self.field(&format!("{prefix}ModRevision"), kv.mod_revision);
        self.field(&format!("{prefix}Version"), kv.version);
        self.quoted(&format!("{prefix}Value"), &kv.value);
        self.lease(&format!("{prefix}Lease"), kv.lease);
    }

    fn get(&mut self, r: &pb::RangeResponse) {
        self.header(r.header.as_ref());
        for kv in &r.kvs {
            self.pair("", kv);
        }
        self.field("More", r.more);
        self.field("Count", r.count);
    }

    fn put_answer(&mut self, r: &pb::PutResponse) {
        self.header(r.header.as_ref());
        if let Some(kv) = &r.prev_kv {
            self.pair("Prev", kv);
        }
    }

    fn del(&mut self, r: &pb::DeleteRangeResponse) {
        self.header(r.header.as_ref());
        self.field("Deleted", r.deleted);
        for kv in &r.prev_kvs {
            self.pair("Prev", kv);
        }
    }

    fn txn(&mut self, r: &pb::TxnResponse) {
        self.header(r.header.as_ref());
        self.field("Succeeded", r.succeeded);
        for op in &r.responses {
            match &op.response {
                Some(Response::ResponseDeleteRange(r)) => self.del(r),
                Some(Response::ResponsePut(r)) => self.put_answer(r),
                Some(Response::ResponseRange(r)) => self.get(r),
                // Not reached: the syntax of `txn` has no nested transactions, so no response contains one.
                Some(Response::ResponseTxn(r)) => self.txn(r),
                None => self.quoted("Unknown", b"<nil>"),
            }
        }
    }

    fn watch(&mut self, r: &WatchBatch) {
        self.header(r.header.as_ref());
        for event in &r.events {
            self.field("Type", event_type(event.r#type));
            if let Some(kv) = &event.prev_kv {
                self.pair("Prev", kv);
            }
            self.pair("", event.kv.as_ref().unwrap_or(&KeyValue::default()));
        }
    }

    fn lease_and_ttl(&mut self, header: Option<&pb::ResponseHeader>, id: i64, ttl: i64) {
        self.header(header);
        self.lease("ID", id);
        self.field("TTL", ttl);
    }

    fn time_to_live(&mut self, r: &pb::LeaseTimeToLiveResponse) {
        self.lease_and_ttl(r.header.as_ref(), r.id, r.ttl);
        self.field("GrantedTTL", r.granted_ttl);
        for key in &r.keys {
            self.quoted("Key", key);
        }
    }

    fn leases(&mut self, r: &pb::LeaseLeasesResponse) {
        self.header(r.header.as_ref());
        for lease in &r.leases {
            self.lease("ID", lease.id);
        }
    }

    fn members(&mut self, r: &pb::MemberListResponse) {
        self.header(r.header.as_ref());
        for member in &r.members {
            self.member(member);
        }
    }

    fn member(&mut self, member: &pb::Member) {
        self.id("ID", member.id);
        self.quoted("Name", member.name.as_bytes());
        for url in &member.peer_urls {
            self.quoted("PeerURL", url.as_bytes());
        }
        for url in &member.client_urls {
            self.quoted("ClientURL", url.as_bytes());
        }
        self.field("IsLearner", member.is_learner);
        // Not a field of etcd, which has no witnesses.
        if member.is_witness {
            self.field("IsWitness", true);
        }
        self.blank();
    }

    fn health(&mut self, health: &EndpointHealth) {
        self.quoted("Endpoint", health.endpoint.as_bytes());
        self.field("Health", health.health);
        self.field("Took", &health.took);
        self.field("Error", &health.error);
        self.blank();
    }

    fn hash(&mut self, endpoint: &str, hash: &pb::HashKvResponse) {
        self.header(hash.header.as_ref());
        self.quoted("Endpoint", endpoint.as_bytes());
        self.field("Hash", hash.hash);
        self.field("HashRevision", hash.hash_revision);
        self.blank();
    }

    fn alarms(&mut self, r: &pb::AlarmResponse) {
        self.header(r.header.as_ref());
        for alarm in &r.alarms {
            self.id("MemberID", alarm.member_id);
            self.field("AlarmType", alarm_type(alarm.alarm));
            self.blank();
        }
    }

    fn role(&mut self, r: &pb::AuthRoleGetResponse) {
        self.header(r.header.as_ref());
        for perm in &r.perm {
            // There are two spaces after the colon, as in etcdctl.
            put!(self.out, "\"PermType\" :  {}\n", permission_type(perm.perm_type));
            self.quoted("Key", &perm.key);
            self.quoted("RangeEnd", &perm.range_end);
        }
    }

    fn roles(&mut self, r: &pb::AuthRoleListResponse) {
        self.header(r.header.as_ref());
        put!(self.out, "\"Roles\" :");
        for role in &r.roles {
            put!(self.out, " {}", quote(role.as_bytes()));
        }
        self.blank();
    }

    fn status(&mut self, endpoint: &str, status: &pb::StatusResponse) {
        let downgrade = status.downgrade_info.clone().unwrap_or_default();
        self.header(status.header.as_ref());
        self.quoted("Version", status.version.as_bytes());
        self.quoted("StorageVersion", status.storage_version.as_bytes());
        self.field("DBSize", status.db_size);
        self.field("DBSizeInUse", status.db_size_in_use);
        self.field("DBSizeQuota", status.db_size_quota);
        self.field("Leader", status.leader);
        self.field("IsLearner", status.is_learner);
        self.field("RaftIndex", status.raft_index);
        self.field("RaftAppliedIndex", status.raft_applied_index);
        self.field("Errors", format_args!("[{}]", status.errors.join(" ")));
        self.quoted("Endpoint", endpoint.as_bytes());
        self.quoted("DowngradeTargetVersion", downgrade.target_version.as_bytes());
        self.field("DowngradeEnabled", downgrade.enabled);
        self.blank();
    }
}
