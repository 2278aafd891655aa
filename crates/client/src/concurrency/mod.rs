//! Implements sessions, locks, elections and software transactional memory by leases, transactions and
//! watches.
//!
//! The keys have the layout of etcd's `clientv3/concurrency`, so that etcd's clients and this crate can share
//! locks and elections.

mod election;
mod mutex;
mod session;
mod stm;

use api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
    WatchCreateRequest, compare, range_request, request_op, response_op,
};
use api::mvccpb::event::EventType;
use api::{Rpc, Status};
use bytes::Bytes;

pub use election::{Election, ElectionError, Leadership, Observer};
pub use mutex::{Mutex, MutexError};
pub use session::Session;
pub use stm::{Isolation, Stm, StmError, run};

use crate::client::{Client, status_of_text};
use crate::watcher::{WatchUpdate, Watcher};

/// Returns the end of the range of all keys with this prefix. Returns `\0` (no end) if the prefix is empty or
/// consists of bytes 0xff only, because all larger keys also begin with such a prefix.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

fn is_created_at(key: &Bytes, revision: i64) -> Compare {
    Compare {
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Create as i32,
        key: key.clone(),
        target_union: Some(compare::TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

fn get(key: &Bytes) -> RangeRequest {
    RangeRequest { key: key.clone(), ..RangeRequest::default() }
}

/// Returns a request for the oldest key with a prefix, which belongs to the holder of the lock or to the
/// leader.
fn oldest(prefix: &Bytes) -> RangeRequest {
    RangeRequest {
        key: prefix.clone(),
        range_end: prefix_end(prefix),
        limit: 1,
        sort_target: range_request::SortTarget::Create as i32,
        sort_order: range_request::SortOrder::Ascend as i32,
        ..RangeRequest::default()
    }
}

fn op(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn put_op(key: &Bytes, value: &Bytes, lease: i64) -> RequestOp {
    let put = PutRequest { key: key.clone(), value: value.clone(), lease, ..PutRequest::default() };
    op(request_op::Request::RequestPut(put))
}

fn delete_op(key: &Bytes) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
    op(request_op::Request::RequestDeleteRange(delete))
}

async fn txn(
    client: &Client,
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
    failure: Vec<RequestOp>,
) -> Result<TxnResponse, Status> {
    client.call(Rpc::KvTxn, &TxnRequest { compare, success, failure }).await
}

/// Returns the range response at index `at` of a transaction.
fn range_at(answer: &TxnResponse, at: usize) -> Option<&RangeResponse> {
    match answer.responses.get(at)?.response.as_ref()? {
        response_op::Response::ResponseRange(range) => Some(range),
        _ => None,
    }
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// Waits until all keys with this prefix that were created at or before the given revision are deleted.
/// Watches only the newest of these keys at a time. So each waiter watches the key directly before its own,
/// and a release wakes only one waiter.
async fn wait_for_deletes(client: &Client, prefix: &Bytes, create_revision_max: i64) -> Result<(), Status> {
    loop {
        let before = RangeRequest {
            sort_order: range_request::SortOrder::Descend as i32,
            max_create_revision: create_revision_max,
            ..oldest(prefix)
        };
        let found: RangeResponse = client.call(Rpc::KvRange, &before).await?;
        let Some(youngest) = found.kvs.into_iter().next() else { return Ok(()) };
        let seen = found.header.map_or(0, |header| header.revision);
        let request = WatchCreateRequest {
            key: youngest.key,
            start_revision: seen + 1,
            ..WatchCreateRequest::default()
        };
        let mut watcher = Watcher::new(client, request);
        loop {
            match watcher.next().await? {
                Some(WatchUpdate::Events(events)) => {
                    if events.events.iter().any(|event| event.r#type == EventType::Delete as i32) {
                        break;
                    }
                }
                // The revision at which the watch resumes is compacted. Read the keys again, which shows if
                // the watched key was deleted.
                Some(WatchUpdate::Canceled(response)) if response.compact_revision != 0 => break,
                Some(WatchUpdate::Canceled(response)) => return Err(status_of_text(&response.cancel_reason)),
                Some(WatchUpdate::Created(_) | WatchUpdate::Progress(_)) => {}
                None => return Err(Status::new(api::Code::Unavailable, "lost watcher waiting for delete")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(prefix_end(b"ab"), Bytes::from_static(b"ac"));
        assert_eq!(prefix_end(b"a\xff\xff"), Bytes::from_static(b"b"));
        assert_eq!(prefix_end(b"\xff"), Bytes::from_static(b"\0"));
        assert_eq!(prefix_end(b""), Bytes::from_static(b"\0"));
    }
}
