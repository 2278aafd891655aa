//! Converts requests and responses between the oracle's types and the bytes of the API.

use api::etcdserverpb as pb;
use api::etcdserverpb::compare::TargetUnion;
use api::etcdserverpb::request_op::Request as Wanted;
use api::etcdserverpb::response_op::Response as Given;
use api::{Code, Rpc, Status, error, mvccpb};
use bytes::Bytes;
use oracle::{
    Action, ActionResult, Compare, Delete, DeleteResult, Event, Header, KeyValue, Order, Outcome, Put, Range,
    RangeResult, Refusal, Relation, Request, Response, SortTarget, Target, Txn, TxnResult,
};
use prost::Message;

fn bytes(from: &[u8]) -> Bytes {
    Bytes::copy_from_slice(from)
}

fn range(r: &Range) -> pb::RangeRequest {
    pb::RangeRequest {
        key: bytes(&r.key),
        range_end: bytes(&r.range_end),
        limit: r.limit,
        revision: r.revision,
        sort_order: match r.order {
            Order::None => 0,
            Order::Ascend => 1,
            Order::Descend => 2,
        },
        sort_target: match r.target {
            SortTarget::Key => 0,
            SortTarget::Version => 1,
            SortTarget::Create => 2,
            SortTarget::Mod => 3,
            SortTarget::Value => 4,
        },
        serializable: r.serializable,
        keys_only: r.keys_only,
        count_only: r.count_only,
        min_mod_revision: r.min_mod_revision,
        max_mod_revision: r.max_mod_revision,
        min_create_revision: r.min_create_revision,
        max_create_revision: r.max_create_revision,
    }
}

fn put(p: &Put) -> pb::PutRequest {
    pb::PutRequest {
        key: bytes(&p.key),
        value: bytes(&p.value),
        lease: p.lease,
        prev_kv: p.prev_kv,
        ignore_value: p.ignore_value,
        ignore_lease: p.ignore_lease,
    }
}

fn delete(d: &Delete) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: bytes(&d.key), range_end: bytes(&d.range_end), prev_kv: d.prev_kv }
}

fn compare(c: &Compare) -> pb::Compare {
    let (target, union) = match &c.target {
        Target::Version(v) => (0, TargetUnion::Version(*v)),
        Target::Create(v) => (1, TargetUnion::CreateRevision(*v)),
        Target::Mod(v) => (2, TargetUnion::ModRevision(*v)),
        Target::Value(v) => (3, TargetUnion::Value(bytes(v))),
        Target::Lease(v) => (4, TargetUnion::Lease(*v)),
    };
    let result = match c.relation {
        Relation::Equal => 0,
        Relation::Greater => 1,
        Relation::Less => 2,
        Relation::NotEqual => 3,
    };
    pb::Compare {
        result,
        target,
        key: bytes(&c.key),
        range_end: bytes(&c.range_end),
        target_union: Some(union),
    }
}

fn action(a: &Action) -> pb::RequestOp {
    let request = match a {
        Action::Range(r) => Wanted::RequestRange(range(r)),
        Action::Put(p) => Wanted::RequestPut(put(p)),
        Action::Delete(d) => Wanted::RequestDeleteRange(delete(d)),
        Action::Txn(t) => Wanted::RequestTxn(txn(t)),
    };
    pb::RequestOp { request: Some(request) }
}

fn txn(t: &Txn) -> pb::TxnRequest {
    pb::TxnRequest {
        compare: t.compare.iter().map(compare).collect(),
        success: t.success.iter().map(action).collect(),
        failure: t.failure.iter().map(action).collect(),
    }
}

/// Encodes a request: returns its RPC and the message bytes.
pub fn encode(request: &Request) -> (Rpc, Bytes) {
    let (rpc, message) = match request {
        Request::Range(r) => (Rpc::KvRange, range(r).encode_to_vec()),
        Request::Put(p) => (Rpc::KvPut, put(p).encode_to_vec()),
        Request::Delete(d) => (Rpc::KvDeleteRange, delete(d).encode_to_vec()),
        Request::Txn(t) => (Rpc::KvTxn, txn(t).encode_to_vec()),
        Request::Compact { revision, physical } => (
            Rpc::KvCompact,
            pb::CompactionRequest { revision: *revision, physical: *physical }.encode_to_vec(),
        ),
        Request::Grant { id, ttl } => {
            (Rpc::LeaseGrant, pb::LeaseGrantRequest { id: *id, ttl: *ttl }.encode_to_vec())
        }
        Request::Revoke { id } => (Rpc::LeaseRevoke, pb::LeaseRevokeRequest { id: *id }.encode_to_vec()),
        Request::KeepAlive { id } => {
            (Rpc::LeaseKeepAlive, pb::LeaseKeepAliveRequest { id: *id }.encode_to_vec())
        }
        Request::TimeToLive { id, keys } => {
            (Rpc::LeaseTimeToLive, pb::LeaseTimeToLiveRequest { id: *id, keys: *keys }.encode_to_vec())
        }
        Request::Leases => (Rpc::LeaseLeases, Vec::new()),
    };
    (rpc, message.into())
}

fn key_value(kv: mvccpb::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key.into(),
        value: kv.value.into(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    }
}

/// Converts an event of a watch.
pub fn event(event: mvccpb::Event) -> Event {
    Event {
        deleted: event.r#type == 1,
        kv: event.kv.map(key_value).unwrap_or_default(),
        prev_kv: event.prev_kv.map(key_value),
    }
}

fn range_result(r: pb::RangeResponse) -> RangeResult {
    RangeResult { kvs: r.kvs.into_iter().map(key_value).collect(), more: r.more, count: r.count }
}

fn delete_result(d: pb::DeleteRangeResponse) -> DeleteResult {
    DeleteResult { deleted: d.deleted, prev_kvs: d.prev_kvs.into_iter().map(key_value).collect() }
}

fn txn_result(t: pb::TxnResponse) -> Option<TxnResult> {
    let results = t.responses.into_iter().map(|op| {
        Some(match op.response? {
            Given::ResponseRange(r) => ActionResult::Range(range_result(r)),
            Given::ResponsePut(p) => ActionResult::Put(p.prev_kv.map(key_value)),
            Given::ResponseDeleteRange(d) => ActionResult::Delete(delete_result(d)),
            Given::ResponseTxn(t) => ActionResult::Txn(txn_result(t)?),
        })
    });
    Some(TxnResult { succeeded: t.succeeded, results: results.collect::<Option<_>>()? })
}

/// Decodes a response; `None` if the message does not match this request.
pub fn decode(request: &Request, message: Bytes) -> Option<(Header, Response)> {
    macro_rules! read {
        ($answer:ident, $given:ident => $response:expr) => {{
            let $given = pb::$answer::decode(message).ok()?;
            let header = $given.header.clone();
            (header, $response)
        }};
    }
    let (header, response) = match request {
        Request::Range(_) => read!(RangeResponse, r => Response::Range(range_result(r))),
        Request::Put(_) => read!(PutResponse, p => Response::Put(p.prev_kv.map(key_value))),
        Request::Delete(_) => read!(DeleteRangeResponse, d => Response::Delete(delete_result(d))),
        Request::Txn(_) => read!(TxnResponse, t => Response::Txn(txn_result(t)?)),
        Request::Compact { .. } => read!(CompactionResponse, _c => Response::Compacted),
        Request::Grant { .. } => read!(LeaseGrantResponse, g => Response::Granted { id: g.id, ttl: g.ttl }),
        Request::Revoke { .. } => read!(LeaseRevokeResponse, _r => Response::Revoked),
        Request::KeepAlive { .. } => read!(LeaseKeepAliveResponse, k => Response::Renewed { ttl: k.ttl }),
        Request::TimeToLive { .. } => read!(LeaseTimeToLiveResponse, t => Response::TimeToLive {
            ttl: t.ttl,
            granted_ttl: t.granted_ttl,
            keys: t.keys.into_iter().map(Into::into).collect(),
        }),
        Request::Leases => {
            read!(LeaseLeasesResponse, l => Response::Leases(l.leases.iter().map(|lease| lease.id).collect()))
        }
    };
    let header = header.map(|h| Header { revision: h.revision, term: h.raft_term }).unwrap_or_default();
    Some((header, response))
}

/// Returns the outcome of an operation that failed with this error, as far as the client can know it: refused
/// if the error guarantees that the operation never takes effect, unknown otherwise.
pub fn failed(status: &Status) -> Outcome {
    let certain = [
        (error::COMPACTED, Refusal::Compacted),
        (error::FUTURE_REV, Refusal::FutureRevision),
        (error::KEY_NOT_FOUND, Refusal::KeyNotFound),
        (error::LEASE_NOT_FOUND, Refusal::LeaseNotFound),
        (error::LEASE_EXIST, Refusal::LeaseExists),
    ];
    if let Some((_, refusal)) = certain.into_iter().find(|(known, _)| known == status) {
        return Outcome::Refused(refusal);
    }
    let other = [
        error::NO_SPACE,
        error::TOO_MANY_REQUESTS,
        error::CORRUPT,
        error::NO_LEADER,
        error::NOT_SUPPORTED_FOR_LEARNER,
        error::LEASE_TTL_TOO_LARGE,
        error::PERMISSION_DENIED,
        error::INVALID_AUTH_TOKEN,
        error::AUTH_OLD_REVISION,
        error::AUTH_NOT_ENABLED,
        error::USER_NOT_FOUND,
        error::USER_ALREADY_EXIST,
        error::ROLE_NOT_FOUND,
        error::ROLE_ALREADY_EXIST,
        error::ROLE_NOT_GRANTED,
        error::PERMISSION_NOT_GRANTED,
    ];
    if status.code == Code::InvalidArgument || other.contains(status) {
        return Outcome::Refused(Refusal::Other(status.message.to_string()));
    }
    Outcome::Unknown(status.to_string())
}
