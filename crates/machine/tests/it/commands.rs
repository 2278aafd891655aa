//! Random commands of every kind.

use api::authpb::Permission;
use api::etcdserverpb::compare::TargetUnion;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest, AuthUserAddRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest, CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest,
    LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestHeader, RequestOp, TxnRequest,
};
use api::{membershippb, raftpb};
use bytes::Bytes;
use mainstay_machine::{Machine, Member, check};
use prost::Message as _;

use testkit::Random;

use crate::journal::{Journal, Placed};

/// Changes of users and roles.
struct Users;

impl Users {
    fn change(&self, random: &mut Random, request: &mut InternalRaftRequest) {
        let name = ["root", "bob", "eve"][random.below(3) as usize].to_owned();
        let role = ["root", "r", "s"][random.below(3) as usize].to_owned();
        let key = Bytes::from([b"/", &b"k"[..], b"\0"][random.below(3) as usize]);
        let range_end = Bytes::from([&b""[..], b"\0", b"z"][random.below(3) as usize]);
        match random.below(20) {
            0..3 => {
                let hashed_password = "aGFzaA==".to_owned();
                let user = AuthUserAddRequest { name, hashed_password, ..AuthUserAddRequest::default() };
                request.auth_user_add = Some(user);
            }
            3 => request.auth_user_delete = Some(AuthUserDeleteRequest { name }),
            4..7 => request.auth_user_grant_role = Some(AuthUserGrantRoleRequest { user: name, role }),
            7 => request.auth_user_revoke_role = Some(AuthUserRevokeRoleRequest { name, role }),
            8..10 => request.auth_role_add = Some(AuthRoleAddRequest { name: role }),
            10..13 => {
                let perm_type = random.below(3) as i32;
                let perm = Some(Permission { perm_type, key, range_end });
                request.auth_role_grant_permission =
                    Some(AuthRoleGrantPermissionRequest { name: role, perm });
            }
            13 => {
                let revoked = AuthRoleRevokePermissionRequest { role, key, range_end };
                request.auth_role_revoke_permission = Some(revoked);
            }
            14 => request.auth_enable = Some(AuthEnableRequest {}),
            _ => request.auth_disable = Some(AuthDisableRequest {}),
        }
    }
}

pub struct Commands {
    pub random: Random,
    /// Number of different keys.
    pub keys: u64,
    /// True to generate only commands that change or read keys.
    pub only_keys: bool,
    users: Users,
    count: u64,
}

impl Commands {
    pub fn new(seed: u64, keys: u64) -> Commands {
        Commands { random: Random::new(seed), keys, only_keys: false, users: Users, count: 0 }
    }

    pub fn next(&mut self, machine: &Machine, journal: &Journal) -> Placed {
        self.count += 1;
        if !self.only_keys && self.random.percent(2) {
            let data = Bytes::from(self.conf_change().encode_to_vec());
            let location = journal.append(&data);
            return Placed { data, location, conf: true };
        }
        let data = if self.random.percent(1) {
            Bytes::new()
        } else {
            Bytes::from(self.request(machine).encode_to_vec())
        };
        let location = journal.append(&data);
        Placed { data, location, conf: false }
    }

    pub fn request(&mut self, machine: &Machine) -> InternalRaftRequest {
        let header = RequestHeader {
            id: self.count,
            username: ["", "root", "root", "bob"][self.random.below(4) as usize].to_owned(),
            auth_revision: machine.auth.revision() - u64::from(self.random.percent(10)),
        };
        let mut request = InternalRaftRequest { header: Some(header), ..InternalRaftRequest::default() };
        if !self.only_keys && self.random.percent(8) {
            self.users.change(&mut self.random, &mut request);
            return request;
        }
        let revision = machine.store.current_revision();
        match self.random.below(if self.only_keys { 88 } else { 100 }) {
            0..40 => request.put = Some(self.put()),
            40..50 => request.delete_range = Some(self.delete()),
            50..76 => request.txn = Some(self.txn(revision.0)),
            76..81 => {
                request.lease_grant = Some(LeaseGrantRequest { id: self.lease(), ttl: self.small(100) })
            }
            81..85 => request.lease_revoke = Some(LeaseRevokeRequest { id: self.lease() }),
            85..88 => {
                let revision = revision - self.small(40);
                request.compaction = Some(CompactionRequest { revision: revision.0, physical: false });
            }
            88..92 => {
                let checkpoint = LeaseCheckpoint { id: self.lease(), remaining_ttl: self.small(50) };
                request.lease_checkpoint = Some(LeaseCheckpointRequest { checkpoints: vec![checkpoint] });
            }
            // NOSPACE is cleared more often than it is raised.
            92..95 => {
                let (action, alarm) =
                    if self.random.percent(8) { (1, 1) } else { (self.random.below(2) as i32 * 2, 1) };
                let member_id = self.random.below(2);
                request.alarm = Some(AlarmRequest { action, member_id, alarm });
            }
            95..97 => {
                let attributes = membershippb::Attributes {
                    name: format!("name-{}", self.random.below(9)),
                    client_urls: vec![format!("http://host:{}", self.random.below(9))],
                };
                request.cluster_member_attr_set = Some(membershippb::ClusterMemberAttrSetRequest {
                    member_id: 1 + self.random.below(5),
                    member_attributes: Some(attributes),
                });
            }
            97..98 => {
                let ver = format!("3.{}.0", self.random.below(8));
                request.cluster_version_set = Some(membershippb::ClusterVersionSetRequest { ver });
            }
            _ => {
                let (enabled, ver) = (self.random.percent(50), "3.5.0".to_owned());
                request.downgrade_info_set = Some(membershippb::DowngradeInfoSetRequest { enabled, ver });
            }
        }
        request
    }

    fn conf_change(&mut self) -> raftpb::ConfChange {
        let id = 1 + self.random.below(5);
        let member = Member {
            id,
            peer_urls: vec![format!("http://peer:{}", self.random.below(100))],
            ..Member::default()
        };
        raftpb::ConfChange {
            id: Some(self.count),
            r#type: Some(self.random.below(4) as i32),
            node_id: Some(id),
            context: Some(member.to_json().into()),
        }
    }

    fn small(&mut self, bound: u64) -> i64 {
        self.random.below(bound) as i64
    }

    fn lease(&mut self) -> i64 {
        // Some ids are negative, as real random ids may be.
        self.random.below(7) as i64 - 2
    }

    pub fn key(&mut self) -> Bytes {
        let number = self.random.below(self.keys);
        match number % 4 {
            0 => format!("/registry/pods/namespace-{}/pod-{number:04}", number % 3).into(),
            1 => format!("k{number}").into(),
            2 => vec![(number % 3) as u8; 1 + number as usize % 20].into(),
            _ => number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec().into(),
        }
    }

    fn range(&mut self) -> (Bytes, Bytes) {
        let key = self.key();
        match self.random.below(10) {
            0..5 => (key, Bytes::new()),
            5..8 => (key, self.key()),
            8 => (key, Bytes::from_static(b"\0")),
            _ => (Bytes::from_static(b"/registry/"), Bytes::from_static(b"/registry0")),
        }
    }

    pub fn put(&mut self) -> PutRequest {
        let mut put = PutRequest {
            key: self.key(),
            prev_kv: self.random.percent(30),
            ignore_value: self.random.percent(10),
            ignore_lease: self.random.percent(10),
            ..PutRequest::default()
        };
        if !put.ignore_value {
            let (len, byte) = (self.random.below(40) as usize, b'a' + self.random.below(3) as u8);
            put.value = vec![byte; len].into();
        }
        if !put.ignore_lease && self.random.percent(40) {
            put.lease = self.lease();
        }
        put
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        let (key, mut range_end) = self.range();
        if self.random.percent(60) {
            range_end = Bytes::new();
        }
        DeleteRangeRequest { key, range_end, prev_kv: self.random.percent(50) }
    }

    /// Returns a range request with random options, at a revision near the readable ones.
    pub fn read(&mut self, revision: i64) -> RangeRequest {
        let (key, range_end) = self.range();
        let mut request = RangeRequest { key, range_end, ..RangeRequest::default() };
        if self.random.percent(30) {
            request.revision = revision + 1 - self.small(60);
        }
        if self.random.percent(40) {
            request.limit = self.small(6);
        }
        if self.random.percent(40) {
            request.sort_order = self.random.below(3) as i32;
            request.sort_target = self.random.below(5) as i32;
        }
        request.keys_only = self.random.percent(20);
        request.count_only = self.random.percent(20);
        if self.random.percent(20) {
            request.min_mod_revision = revision - self.small(100);
        }
        if self.random.percent(10) {
            request.max_mod_revision = revision - self.small(50);
        }
        if self.random.percent(10) {
            request.min_create_revision = revision - self.small(100);
        }
        if self.random.percent(10) {
            request.max_create_revision = revision - self.small(50);
        }
        request
    }

    fn compare(&mut self, revision: i64) -> Compare {
        let (key, range_end) = self.range();
        let near = revision - self.small(30);
        let (target, union) = match self.random.below(5) {
            0 => (0, TargetUnion::Version(self.small(4))),
            1 => (1, TargetUnion::CreateRevision(if self.random.percent(50) { 0 } else { near })),
            2 => (2, TargetUnion::ModRevision(if self.random.percent(50) { 0 } else { near })),
            3 => (3, TargetUnion::Value(vec![b'b'; self.random.below(30) as usize].into())),
            _ => (4, TargetUnion::Lease(self.lease())),
        };
        let target_union = self.random.percent(95).then_some(union);
        Compare { result: self.random.below(4) as i32, target, key, range_end, target_union }
    }

    /// Returns a transaction that passes the checks before proposing.
    pub fn txn(&mut self, revision: i64) -> TxnRequest {
        loop {
            let txn = self.txn_of(revision, 3);
            if check::txn(&txn, 128).is_ok() {
                return txn;
            }
        }
    }

    fn txn_of(&mut self, revision: i64, depth: u64) -> TxnRequest {
        let compare = (0..self.random.below(3)).map(|_| self.compare(revision)).collect();
        let mut branch = || -> Vec<RequestOp> {
            (0..self.random.below(5))
                .map(|_| {
                    let request = match self.random.below(10) {
                        0..4 => Request::RequestPut(self.put()),
                        4..6 => Request::RequestDeleteRange(self.delete()),
                        6..8 if depth > 0 => Request::RequestTxn(self.txn_of(revision, depth - 1)),
                        _ => Request::RequestRange(self.read(revision)),
                    };
                    RequestOp { request: Some(request) }
                })
                .collect()
        };
        let (success, failure) = (branch(), branch());
        TxnRequest { compare, success, failure }
    }
}
