//! Response messages for scripts.

use api::etcdserverpb as pb;
use api::mvccpb::{Event, KeyValue};

pub fn header() -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader {
        cluster_id: 0xcdf8_1819_4e3a_8c32,
        member_id: 0x8e9e_05c5_2164_694d,
        revision: 42,
        raft_term: 3,
    })
}

/// Returns the header of a response inside a transaction.
pub fn inner_header() -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision: 42, ..Default::default() })
}

/// Returns the header of commands about members, which has no revision.
pub fn member_header() -> Option<pb::ResponseHeader> {
    header().map(|header| pb::ResponseHeader { revision: 0, ..header })
}

pub fn pair(key: &[u8], value: &[u8]) -> KeyValue {
    KeyValue {
        key: key.to_vec().into(),
        value: value.to_vec().into(),
        create_revision: 7,
        mod_revision: 41,
        version: 3,
        lease: 0,
    }
}

pub fn range(kvs: Vec<KeyValue>) -> pb::RangeResponse {
    pb::RangeResponse { header: header(), count: kvs.len() as i64, kvs, more: false }
}

pub fn put(prev_kv: Option<KeyValue>) -> pb::PutResponse {
    pb::PutResponse { header: header(), prev_kv }
}

pub fn event_put(key: &[u8], value: &[u8], revision: i64) -> Event {
    let kv = KeyValue { mod_revision: revision, ..pair(key, value) };
    Event { kv: Some(kv), ..Default::default() }
}

pub fn event_delete(key: &[u8], revision: i64) -> Event {
    let kv = KeyValue { key: key.to_vec().into(), mod_revision: revision, ..Default::default() };
    Event { r#type: 1, kv: Some(kv), prev_kv: Some(pair(key, b"before")) }
}

pub fn created() -> pb::WatchResponse {
    pb::WatchResponse { header: header(), created: true, ..Default::default() }
}

pub fn events(events: Vec<Event>) -> pb::WatchResponse {
    pb::WatchResponse { header: header(), events, ..Default::default() }
}

pub fn canceled(reason: &str, compact_revision: i64) -> pb::WatchResponse {
    pb::WatchResponse {
        header: header(),
        canceled: true,
        cancel_reason: reason.to_owned(),
        compact_revision,
        ..Default::default()
    }
}
