//! Converts the oracle's requests to messages of etcd's API, and messages to the oracle's responses and
//! events.

use api::Rpc;
use api::etcdserverpb as pb;
use api::etcdserverpb::compare::TargetUnion;
use api::etcdserverpb::request_op::Request as RequestUnion;
use api::etcdserverpb::response_op::Response as ResponseUnion;
use api::mvccpb;
use bytes::Bytes;
use oracle::{
    Action, ActionResult, Compare, Delete, DeleteResult, Event, Header, KeyValue, Order, Put, Range,
    RangeResult, Relation, Request, Response, SortTarget, Target, Txn, TxnResult,
};
use prost::Message;

/// Returns the RPC for a request, and its encoded message.
pub fn call(request: &Request) -> (Rpc, Bytes) {
    let encoded = |message: &dyn Encode| message.bytes();
    match request {
        Request::Range(range) => (Rpc::KvRange, encoded(&range_request(range))),
        Request::Put(put) => (Rpc::KvPut, encoded(&put_request(put))),
        Request::Delete(delete) => (Rpc::KvDeleteRange, encoded(&delete_request(delete))),
        Request::Txn(txn) => (Rpc::KvTxn, encoded(&txn_request(txn))),
        Request::Compact { revision, physical } => {
            (Rpc::KvCompact, encoded(&pb::CompactionRequest { revision: *revision, physical: *physical }))
        }
        Request::Grant { id, ttl } => {
            (Rpc::LeaseGrant, encoded(&pb::LeaseGrantRequest { id: *id, ttl: *ttl }))
        }
        Request::Revoke { id } => (Rpc::LeaseRevoke, encoded(&pb::LeaseRevokeRequest { id: *id })),
        Request::KeepAlive { id } => (Rpc::LeaseKeepAlive, encoded(&pb::LeaseKeepAliveRequest { id: *id })),
        Request::TimeToLive { id, keys } => {
            (Rpc::LeaseTimeToLive, encoded(&pb::LeaseTimeToLiveRequest { id: *id, keys: *keys }))
        }
        Request::Leases => (Rpc::LeaseLeases, encoded(&pb::LeaseLeasesRequest {})),
    }
}

trait Encode {
    fn bytes(&self) -> Bytes;
}

impl<M: Message> Encode for M {
    fn bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}

/// Decodes the message that is the response to a request.
///
/// # Errors
/// Returns an error if the message is not a valid response to this request.
pub fn answer(request: &Request, message: Bytes) -> Result<(Header, Response), String> {
    fn read<M: Message + Default>(message: Bytes) -> Result<M, String> {
        M::decode(message).map_err(|error| format!("invalid answer: {error}"))
    }
    let (header, response) = match request {
        Request::Range(_) => {
            let answer: pb::RangeResponse = read(message)?;
            (answer.header, Response::Range(range_result(answer)))
        }
        Request::Put(_) => {
            let answer: pb::PutResponse = read(message)?;
            (answer.header, Response::Put(answer.prev_kv.map(key_value)))
        }
        Request::Delete(_) => {
            let answer: pb::DeleteRangeResponse = read(message)?;
            (answer.header, Response::Delete(delete_result(answer)))
        }
        Request::Txn(_) => {
            let answer: pb::TxnResponse = read(message)?;
            (answer.header, Response::Txn(txn_result(answer)?))
        }
        Request::Compact { .. } => (read::<pb::CompactionResponse>(message)?.header, Response::Compacted),
        Request::Grant { .. } => {
            let answer: pb::LeaseGrantResponse = read(message)?;
            if !answer.error.is_empty() {
                return Err(format!("a grant is answered with the error {:?}", answer.error));
            }
            (answer.header, Response::Granted { id: answer.id, ttl: answer.ttl })
        }
        Request::Revoke { .. } => (read::<pb::LeaseRevokeResponse>(message)?.header, Response::Revoked),
        Request::KeepAlive { .. } => {
            let answer: pb::LeaseKeepAliveResponse = read(message)?;
            (answer.header, Response::Renewed { ttl: answer.ttl })
        }
        Request::TimeToLive { .. } => {
            let answer: pb::LeaseTimeToLiveResponse = read(message)?;
            let keys = answer.keys.iter().map(|key| key.to_vec()).collect();
            (answer.header, Response::TimeToLive { ttl: answer.ttl, granted_ttl: answer.granted_ttl, keys })
        }
        Request::Leases => {
            let answer: pb::LeaseLeasesResponse = read(message)?;
            (answer.header, Response::Leases(answer.leases.iter().map(|lease| lease.id).collect()))
        }
    };
    let header = header.ok_or("an answer without a header")?;
    let response_header = Header { revision: header.revision, term: header.raft_term };
    Ok((response_header, response))
}

fn range_request(range: &Range) -> pb::RangeRequest {
    use pb::range_request as words;
    let order = match range.order {
        Order::None => words::SortOrder::None,
        Order::Ascend => words::SortOrder::Ascend,
        Order::Descend => words::SortOrder::Descend,
    };
    let target = match range.target {
        SortTarget::Key => words::SortTarget::Key,
        SortTarget::Version => words::SortTarget::Version,
        SortTarget::Create => words::SortTarget::Create,
        SortTarget::Mod => words::SortTarget::Mod,
        SortTarget::Value => words::SortTarget::Value,
    };
    pb::RangeRequest {
        key: range.key.clone().into(),
        range_end: range.range_end.clone().into(),
        limit: range.limit,
        revision: range.revision,
        sort_order: order as i32,
        sort_target: target as i32,
        serializable: range.serializable,
        keys_only: range.keys_only,
        count_only: range.count_only,
        min_mod_revision: range.min_mod_revision,
        max_mod_revision: range.max_mod_revision,
        min_create_revision: range.min_create_revision,
        max_create_revision: range.max_create_revision,
    }
}

fn put_request(put: &Put) -> pb::PutRequest {
    pb::PutRequest {
        key: put.key.clone().into(),
        value: put.value.clone().into(),
        lease: put.lease,
        prev_kv: put.prev_kv,
        ignore_value: put.ignore_value,
        ignore_lease: put.ignore_lease,
    }
}

fn delete_request(delete: &Delete) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: delete.key.clone().into(),
        range_end: delete.range_end.clone().into(),
        prev_kv: delete.prev_kv,
    }
}

fn txn_request(txn: &Txn) -> pb::TxnRequest {
    let actions = |actions: &[Action]| {
        actions
            .iter()
            .map(|action| {
                let request = match action {
                    Action::Range(range) => RequestUnion::RequestRange(range_request(range)),
                    Action::Put(put) => RequestUnion::RequestPut(put_request(put)),
                    Action::Delete(delete) => RequestUnion::RequestDeleteRange(delete_request(delete)),
                    Action::Txn(txn) => RequestUnion::RequestTxn(txn_request(txn)),
                };
                pb::RequestOp { request: Some(request) }
            })
            .collect()
    };
    pb::TxnRequest {
        compare: txn.compare.iter().map(comparison).collect(),
        success: actions(&txn.success),
        failure: actions(&txn.failure),
    }
}

fn comparison(compare: &Compare) -> pb::Compare {
    use pb::compare::{CompareResult, CompareTarget};
    let result = match compare.relation {
        Relation::Equal => CompareResult::Equal,
        Relation::Greater => CompareResult::Greater,
        Relation::Less => CompareResult::Less,
        Relation::NotEqual => CompareResult::NotEqual,
    };
    let (target, union) = match &compare.target {
        Target::Version(version) => (CompareTarget::Version, TargetUnion::Version(*version)),
        Target::Create(revision) => (CompareTarget::Create, TargetUnion::CreateRevision(*revision)),
        Target::Mod(revision) => (CompareTarget::Mod, TargetUnion::ModRevision(*revision)),
        Target::Value(value) => (CompareTarget::Value, TargetUnion::Value(value.clone().into())),
        Target::Lease(lease) => (CompareTarget::Lease, TargetUnion::Lease(*lease)),
    };
    pb::Compare {
        result: result as i32,
        target: target as i32,
        key: compare.key.clone().into(),
        range_end: compare.range_end.clone().into(),
        target_union: Some(union),
    }
}

/// Length in bytes up to which a value is recorded completely.
const WHOLE_BYTES_MAX: usize = 8192;

/// Returns the form in which a value is recorded: the value itself if it is small, otherwise its beginning,
/// its length and its hash. This is enough for the oracle, which compares large values only for equality.
pub fn recorded(value: &[u8]) -> Vec<u8> {
    if value.len() <= WHOLE_BYTES_MAX {
        return value.to_vec();
    }
    // Like the FNV hash, but eight bytes at a time, so that large values take less time.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for bytes in value.chunks(8) {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
        hash ^= hash >> 32;
    }
    let begin: String =
        value.iter().take_while(|byte| byte.is_ascii_graphic()).take(20).map(|byte| *byte as char).collect();
    format!("{begin} {} bytes {hash:016x}", value.len()).into_bytes()
}

/// Converts a key-value pair of a response.
pub fn key_value(kv: mvccpb::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key.to_vec(),
        value: recorded(&kv.value),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    }
}

/// Converts an event of a watch response; `None` if it has no key.
pub fn event(event: mvccpb::Event) -> Option<Event> {
    Some(Event {
        deleted: event.r#type() == mvccpb::event::EventType::Delete,
        kv: key_value(event.kv?),
        prev_kv: event.prev_kv.map(key_value),
    })
}

fn range_result(answer: pb::RangeResponse) -> RangeResult {
    let kvs = answer.kvs.into_iter().map(key_value).collect();
    RangeResult { kvs, more: answer.more, count: answer.count }
}

fn delete_result(answer: pb::DeleteRangeResponse) -> DeleteResult {
    let prev_kvs = answer.prev_kvs.into_iter().map(key_value).collect();
    DeleteResult { deleted: answer.deleted, prev_kvs }
}

fn txn_result(answer: pb::TxnResponse) -> Result<TxnResult, String> {
    let results = answer.responses.into_iter().map(|part| match part.response {
        Some(ResponseUnion::ResponseRange(range)) => Ok(ActionResult::Range(range_result(range))),
        Some(ResponseUnion::ResponsePut(put)) => Ok(ActionResult::Put(put.prev_kv.map(key_value))),
        Some(ResponseUnion::ResponseDeleteRange(delete)) => Ok(ActionResult::Delete(delete_result(delete))),
        Some(ResponseUnion::ResponseTxn(txn)) => Ok(ActionResult::Txn(txn_result(txn)?)),
        None => Err("an empty answer within a transaction's".to_owned()),
    });
    Ok(TxnResult { succeeded: answer.succeeded, results: results.collect::<Result<_, String>>()? })
}
