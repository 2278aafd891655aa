//! Minimal in-memory store with the requests that locks, elections and transactions need.

use std::sync::{Arc, Mutex};

use api::error;
use api::etcdserverpb::*;
use api::mvccpb::event::EventType;
use api::mvccpb::{Event, KeyValue};
use tokio::sync::watch;

use crate::server::{Call, Server};

#[derive(Default)]
struct Data {
    keys: Vec<KeyValue>,
    history: Vec<Event>,
    revision: i64,
    leases: i64,
    revoked: Vec<i64>,
}

#[derive(Clone)]
pub struct Store {
    data: Arc<Mutex<Data>>,
    changed: watch::Sender<i64>,
}

impl Store {
    pub async fn serve() -> Server {
        let (changed, _) = watch::channel(0);
        let data = Data { revision: 1, ..Data::default() };
        let store = Store { data: Arc::new(Mutex::new(data)), changed };
        Server::start(move |call| store.clone().answer(call)).await
    }

    async fn answer(self, mut call: Call) {
        match call.path.rsplit('/').next().unwrap() {
            "Range" => {
                let request = call.requests.next().await.unwrap();
                let range = self.data.lock().unwrap().range(&request);
                call.reply(Ok(range));
            }
            "Txn" => {
                let request = call.requests.next().await.unwrap();
                let answer = self.change(|data| data.txn(request));
                call.reply(Ok(answer));
            }
            "Put" => {
                let put: PutRequest = call.requests.next().await.unwrap();
                let success = vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }];
                self.change(|data| data.txn(TxnRequest { success, ..TxnRequest::default() }));
                call.reply(Ok(PutResponse::default()));
            }
            "DeleteRange" => {
                let delete: DeleteRangeRequest = call.requests.next().await.unwrap();
                let success =
                    vec![RequestOp { request: Some(request_op::Request::RequestDeleteRange(delete)) }];
                self.change(|data| data.txn(TxnRequest { success, ..TxnRequest::default() }));
                call.reply(Ok(DeleteRangeResponse::default()));
            }
            "LeaseGrant" => {
                let request: LeaseGrantRequest = call.requests.next().await.unwrap();
                let id = self.change(|data| {
                    data.leases += 1;
                    data.leases + 0x1000
                });
                call.reply(Ok(LeaseGrantResponse { id, ttl: request.ttl, ..LeaseGrantResponse::default() }));
            }
            "LeaseRevoke" => {
                let request: LeaseRevokeRequest = call.requests.next().await.unwrap();
                self.change(|data| data.revoke(request.id));
                call.reply(Ok(LeaseRevokeResponse::default()));
            }
            "LeaseKeepAlive" => {
                while let Some(request) = call.requests.next::<LeaseKeepAliveRequest>().await {
                    let ttl = if self.data.lock().unwrap().revoked.contains(&request.id) { 0 } else { 1 };
                    call.send(&LeaseKeepAliveResponse { id: request.id, ttl, ..Default::default() });
                }
            }
            "Watch" => self.watch(call).await,
            other => panic!("{other} is not served"),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Data) -> T) -> T {
        let mut data = self.data.lock().unwrap();
        let result = change(&mut data);
        self.changed.send_replace(data.revision);
        result
    }

    async fn watch(self, mut call: Call) {
        let request: WatchRequest = call.requests.next().await.unwrap();
        let Some(watch_request::RequestUnion::CreateRequest(create)) = request.request_union else {
            return call.end(Err(error::INVALID_CLIENT_API_VERSION));
        };
        let mut changed = self.changed.subscribe();
        let header = Some(self.data.lock().unwrap().header());
        call.send(&WatchResponse { header, created: true, ..WatchResponse::default() });
        let mut next = create.start_revision;
        loop {
            let (header, events) = {
                let data = self.data.lock().unwrap();
                let wanted = data.history.iter().filter(|event| {
                    let kv = event.kv.as_ref().unwrap();
                    kv.mod_revision >= next && is_in(&kv.key, &create.key, &create.range_end)
                });
                (data.header(), wanted.cloned().collect::<Vec<_>>())
            };
            next = header.revision + 1;
            if !events.is_empty() {
                call.send(&WatchResponse { header: Some(header), events, ..WatchResponse::default() });
            }
            // Fails only after the whole store was dropped.
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

fn is_in(key: &[u8], from: &[u8], end: &[u8]) -> bool {
    if end.is_empty() { key == from } else { key >= from && key < end }
}

impl Data {
    fn header(&self) -> ResponseHeader {
        ResponseHeader { revision: self.revision, ..ResponseHeader::default() }
    }

    /// Supports single keys and ranges sorted by create revision, at the current and at older revisions.
    fn range(&self, request: &RangeRequest) -> RangeResponse {
        let then = if request.revision == 0 { self.revision } else { request.revision };
        let mut past: Vec<KeyValue> = Vec::new();
        for event in self.history.iter().filter(|event| event.kv.as_ref().unwrap().mod_revision <= then) {
            let kv = event.kv.as_ref().unwrap();
            past.retain(|old| old.key != kv.key);
            if event.r#type == EventType::Put as i32 {
                past.push(kv.clone());
            }
        }
        past.retain(|kv| is_in(&kv.key, &request.key, &request.range_end));
        past.retain(|kv| {
            request.max_create_revision == 0 || kv.create_revision <= request.max_create_revision
        });
        past.sort_by_key(|kv| kv.create_revision);
        if request.sort_order == range_request::SortOrder::Descend as i32 {
            past.reverse();
        }
        if request.limit > 0 {
            past.truncate(request.limit as usize);
        }
        RangeResponse { header: Some(self.header()), kvs: past, ..RangeResponse::default() }
    }

    fn txn(&mut self, request: TxnRequest) -> TxnResponse {
        let succeeded = request.compare.iter().all(|compare| {
            let kv = self.keys.iter().find(|kv| kv.key == compare.key);
            let (is, wanted) = match compare.target_union {
                Some(compare::TargetUnion::CreateRevision(wanted)) => {
                    (kv.map_or(0, |kv| kv.create_revision), wanted)
                }
                Some(compare::TargetUnion::ModRevision(wanted)) => {
                    (kv.map_or(0, |kv| kv.mod_revision), wanted)
                }
                _ => panic!("a condition that is not served"),
            };
            match compare.result() {
                compare::CompareResult::Equal => is == wanted,
                compare::CompareResult::Less => is < wanted,
                other => panic!("{other:?} is not served"),
            }
        });
        let ops = if succeeded { request.success } else { request.failure };
        let writes = |op: &RequestOp| !matches!(op.request, Some(request_op::Request::RequestRange(_)));
        let revision = self.revision + i64::from(ops.iter().any(writes));
        let mut responses = Vec::new();
        for op in ops {
            let response = match op.request.unwrap() {
                request_op::Request::RequestRange(range) => {
                    // Reads in a transaction see the writes before them in the same transaction.
                    let now = std::mem::replace(&mut self.revision, revision);
                    let answer = self.range(&range);
                    self.revision = now;
                    response_op::Response::ResponseRange(answer)
                }
                request_op::Request::RequestPut(put) => {
                    self.put(put, revision);
                    response_op::Response::ResponsePut(PutResponse::default())
                }
                request_op::Request::RequestDeleteRange(delete) => {
                    self.delete(revision, |kv| kv.key == delete.key);
                    response_op::Response::ResponseDeleteRange(DeleteRangeResponse::default())
                }
                request_op::Request::RequestTxn(_) => panic!("not served"),
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        self.revision = revision;
        TxnResponse { header: Some(self.header()), succeeded, responses }
    }

    fn put(&mut self, put: PutRequest, revision: i64) {
        let old = self.keys.iter().position(|kv| kv.key == put.key).map(|at| self.keys.remove(at));
        let create_revision = old.map_or(revision, |old| old.create_revision);
        let (key, value, lease) = (put.key, put.value, put.lease);
        let kv =
            KeyValue { key, value, lease, create_revision, mod_revision: revision, ..KeyValue::default() };
        self.keys.push(kv.clone());
        self.history.push(Event { kv: Some(kv), ..Event::default() });
    }

    fn delete(&mut self, revision: i64, which: impl Fn(&KeyValue) -> bool) {
        let (gone, kept) = std::mem::take(&mut self.keys).into_iter().partition(|kv| which(kv));
        self.keys = kept;
        self.history.extend(Vec::into_iter(gone).map(|kv: KeyValue| Event {
            r#type: EventType::Delete as i32,
            kv: Some(KeyValue { key: kv.key, mod_revision: revision, ..KeyValue::default() }),
            ..Event::default()
        }));
    }

    fn revoke(&mut self, lease: i64) {
        self.revoked.push(lease);
        self.revision += 1;
        let revision = self.revision;
        self.delete(revision, |kv| kv.lease == lease);
    }
}
