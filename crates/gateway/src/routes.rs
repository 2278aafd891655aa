//! Finds the RPC for a path of the JSON API: [`route`].

use api::Rpc;

/// All paths under `/v3/`, each with its RPC. There are no paths for the streamed range and for the health
/// service, as in etcd.
pub static PATHS: &[(&str, Rpc)] = &[
    ("kv/range", Rpc::KvRange),
    ("kv/put", Rpc::KvPut),
    ("kv/deleterange", Rpc::KvDeleteRange),
    ("kv/txn", Rpc::KvTxn),
    ("kv/compaction", Rpc::KvCompact),
    ("watch", Rpc::Watch),
    ("lease/grant", Rpc::LeaseGrant),
    ("lease/revoke", Rpc::LeaseRevoke),
    ("kv/lease/revoke", Rpc::LeaseRevoke),
    ("lease/keepalive", Rpc::LeaseKeepAlive),
    ("lease/timetolive", Rpc::LeaseTimeToLive),
    ("kv/lease/timetolive", Rpc::LeaseTimeToLive),
    ("lease/leases", Rpc::LeaseLeases),
    ("kv/lease/leases", Rpc::LeaseLeases),
    ("cluster/member/add", Rpc::ClusterMemberAdd),
    ("cluster/member/remove", Rpc::ClusterMemberRemove),
    ("cluster/member/update", Rpc::ClusterMemberUpdate),
    ("cluster/member/list", Rpc::ClusterMemberList),
    ("cluster/member/promote", Rpc::ClusterMemberPromote),
    ("maintenance/alarm", Rpc::MaintenanceAlarm),
    ("maintenance/status", Rpc::MaintenanceStatus),
    ("maintenance/defragment", Rpc::MaintenanceDefragment),
    ("maintenance/hash", Rpc::MaintenanceHash),
    ("maintenance/hashkv", Rpc::MaintenanceHashKv),
    ("maintenance/snapshot", Rpc::MaintenanceSnapshot),
    ("maintenance/transfer-leadership", Rpc::MaintenanceMoveLeader),
    ("maintenance/downgrade", Rpc::MaintenanceDowngrade),
    ("auth/enable", Rpc::AuthEnable),
    ("auth/disable", Rpc::AuthDisable),
    ("auth/status", Rpc::AuthStatus),
    ("auth/authenticate", Rpc::Authenticate),
    ("auth/user/add", Rpc::AuthUserAdd),
    ("auth/user/get", Rpc::AuthUserGet),
    ("auth/user/list", Rpc::AuthUserList),
    ("auth/user/delete", Rpc::AuthUserDelete),
    ("auth/user/changepw", Rpc::AuthUserChangePassword),
    ("auth/user/grant", Rpc::AuthUserGrantRole),
    ("auth/user/revoke", Rpc::AuthUserRevokeRole),
    ("auth/role/add", Rpc::AuthRoleAdd),
    ("auth/role/get", Rpc::AuthRoleGet),
    ("auth/role/list", Rpc::AuthRoleList),
    ("auth/role/delete", Rpc::AuthRoleDelete),
    ("auth/role/grant", Rpc::AuthRoleGrantPermission),
    ("auth/role/revoke", Rpc::AuthRoleRevokePermission),
    ("lock/lock", Rpc::Lock),
    ("lock/unlock", Rpc::LockUnlock),
    ("election/campaign", Rpc::ElectionCampaign),
    ("election/proclaim", Rpc::ElectionProclaim),
    ("election/leader", Rpc::ElectionLeader),
    ("election/observe", Rpc::ElectionObserve),
    ("election/resign", Rpc::ElectionResign),
];

/// Returns the RPC for a path such as `/v3/kv/put`; `None` if there is none. The prefix `/v3beta/` means the
/// same as `/v3/`.
pub fn route(path: &str) -> Option<Rpc> {
    let rest = path.strip_prefix("/v3/").or_else(|| path.strip_prefix("/v3beta/"))?;
    PATHS.iter().find(|(known, _)| *known == rest).map(|(_, rpc)| *rpc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_of_etcd_has_a_path_but_one() {
        let without: Vec<Rpc> = Rpc::ALL
            .into_iter()
            .filter(|rpc| api::descriptor::of(*rpc).is_some())
            // Calls that etcd does not have are gRPC only.
            .filter(|rpc| !rpc.path().starts_with("/mainstaypb."))
            .filter(|rpc| !PATHS.iter().any(|(_, routed)| routed == rpc))
            .collect();
        assert_eq!(without, [Rpc::KvRangeStream]);
        assert_eq!(route("/v3/kv/put"), Some(Rpc::KvPut));
        assert_eq!(route("/v3beta/kv/put"), Some(Rpc::KvPut));
        for none in ["/v3/kv/put/", "/v3", "/v3/", "/v3alpha/kv/put", "/kv/put", "/v3/v3/kv/put"] {
            assert_eq!(route(none), None, "{none}");
        }
    }
}
