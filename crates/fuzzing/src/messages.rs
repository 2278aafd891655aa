//! Checks that no arbitrary bytes break the decoding of the API's messages, or the checks that a member makes
//! of a request before it proposes the request.

use bytes::Bytes;
use machine::check;
use prost::Message;

use crate::commands;

/// Decodes a message. If this succeeds, encodes the message and decodes it again, which must give the same
/// message.
fn round<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = message.encode_to_vec();
    assert_eq!(again.len(), message.encoded_len());
    assert!(M::decode(&*again).as_ref() == Ok(&message), "{message:?}");
    Some(message)
}

macro_rules! rounds {
    ($number:expr, $bytes:expr, [$($message:path),* $(,)?]) => {{
        let all: &[fn(&[u8])] = &[$(|bytes| { round::<$message>(bytes); }),*];
        all[usize::from($number) % all.len()]($bytes);
    }};
}

fn any(number: u8, bytes: &[u8]) {
    use api::{
        authpb, etcdserverpb as e, health, leasepb, membershippb, mvccpb, raftpb, v3electionpb, v3lockpb,
    };
    rounds!(
        number,
        bytes,
        [
            e::RangeRequest,
            e::PutRequest,
            e::DeleteRangeRequest,
            e::TxnRequest,
            e::CompactionRequest,
            e::WatchRequest,
            e::WatchResponse,
            e::LeaseGrantRequest,
            e::LeaseRevokeRequest,
            e::LeaseKeepAliveRequest,
            e::LeaseTimeToLiveRequest,
            e::LeaseLeasesRequest,
            e::LeaseCheckpointRequest,
            e::MemberAddRequest,
            e::MemberRemoveRequest,
            e::MemberUpdateRequest,
            e::MemberListRequest,
            e::MemberPromoteRequest,
            e::DefragmentRequest,
            e::MoveLeaderRequest,
            e::AlarmRequest,
            e::DowngradeRequest,
            e::StatusRequest,
            e::SnapshotRequest,
            e::HashRequest,
            e::HashKvRequest,
            e::InternalRaftRequest,
            e::AuthEnableRequest,
            e::AuthenticateRequest,
            e::AuthUserAddRequest,
            e::AuthUserGetRequest,
            e::AuthUserDeleteRequest,
            e::AuthUserChangePasswordRequest,
            e::AuthUserGrantRoleRequest,
            e::AuthUserRevokeRoleRequest,
            e::AuthRoleAddRequest,
            e::AuthRoleGetRequest,
            e::AuthRoleDeleteRequest,
            e::AuthRoleGrantPermissionRequest,
            e::AuthRoleRevokePermissionRequest,
            v3lockpb::LockRequest,
            v3lockpb::UnlockRequest,
            v3electionpb::CampaignRequest,
            v3electionpb::ProclaimRequest,
            v3electionpb::LeaderRequest,
            v3electionpb::ResignRequest,
            health::HealthCheckRequest,
            raftpb::Message,
            raftpb::ConfChange,
            raftpb::Snapshot,
            leasepb::LeaseInternalRequest,
            membershippb::ClusterMemberAttrSetRequest,
            authpb::User,
            authpb::Role,
            mvccpb::KeyValue,
            mvccpb::Event,
        ]
    );
}

/// Fuzz target: decodes the input, except the first byte, as a message whose type the first byte selects. A
/// valid message must be the same after it was encoded and decoded again.
pub fn run(data: &[u8]) {
    let Some((number, bytes)) = data.split_first() else { return };
    any(*number, bytes);
    // Decode the same bytes as each type of request that a member checks before a proposal.
    if let Ok(range) = api::etcdserverpb::RangeRequest::decode(bytes) {
        let _ = check::range(&range);
    }
    if let Ok(put) = api::etcdserverpb::PutRequest::decode(bytes) {
        let _ = check::put(&put);
        assert!(check::put_cost(&put) >= put.key.len() as u64 + put.value.len() as u64);
    }
    if let Ok(delete) = api::etcdserverpb::DeleteRangeRequest::decode(bytes) {
        let _ = check::delete_range(&delete);
    }
    if let Ok(txn) = api::etcdserverpb::TxnRequest::decode(bytes)
        && check::txn(&txn, 128).is_ok()
    {
        let _ = (check::txn_cost(&txn), check::txn_is_read_only(&txn), check::txn_is_serializable(&txn));
    }
    // Decode membership changes as a member reads them from its log, and the JSON of a member, which such a
    // change contains.
    if let Ok(change) = api::raftpb::ConfChange::decode(bytes) {
        let _ = machine::validate(&machine::Members::default(), &change, 1);
    }
    if let Ok(member) = machine::Member::from_json(bytes) {
        assert_eq!(machine::Member::from_json(member.to_json().as_bytes()).ok(), Some(member));
    }
    let _ = Bytes::copy_from_slice(bytes);
}

/// Returns requests of all kinds.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for request in commands::examples() {
        seeds.push([&[26], request.encode_to_vec().as_slice()].concat());
        if let Some(txn) = request.txn {
            seeds.push([&[3], txn.encode_to_vec().as_slice()].concat());
        }
        if let Some(range) = request.range {
            seeds.push([&[0], range.encode_to_vec().as_slice()].concat());
        }
        if let Some(put) = request.put {
            seeds.push([&[1], put.encode_to_vec().as_slice()].concat());
        }
    }
    for change in commands::conf_changes() {
        seeds.push([&[48], change.encode_to_vec().as_slice()].concat());
        seeds.push([&[0], change.context.as_deref().unwrap_or_default()].concat());
    }
    seeds
}
