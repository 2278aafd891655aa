//! Ownership of keys through a proxy, in front of a member that allows few operations, and ends watches early.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleAddResponse, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantResponse,
    LeaseKeepAliveResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader,
    ResponseOp, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use api::mvccpb::KeyValue;
use api::{Rpc, Status, error};
use bytes::Bytes;
use client::{Client, Settings};
use front::{Answer, Head, Inbound, LocalBoxFuture, Method, Outbound, Service, Unary};
use prost::Message;
use proxy::{GrpcProxy, ProxyOptions};
use telemetry::logging::{Format, Level, Logger};
use testkit::{TIMEOUT, eventually};

const LEASE: i64 = 7;

/// State of the member, and requests that it has seen.
#[derive(Default)]
struct State {
    /// Largest number of operations that the member allows.
    ops_max: usize,
    revision: i64,
    /// Leasing keys of the proxy.
    claimed: BTreeSet<Bytes>,
    /// Number of range responses that still show a leasing key of another proxy.
    shown: usize,
    /// True if the last range response showed that leasing key.
    is_there: bool,
    /// True if a range was deleted while that leasing key existed.
    deleted_early: bool,
    /// Number of deleted ranges.
    deleted: usize,
    /// True if watches for that leasing key stay open without events.
    holds: bool,
    /// Number of revoked leases.
    revoked: usize,
    /// For each watch, true if the watch requires a leader.
    watches: Vec<bool>,
    /// Keys of range requests outside transactions.
    read: Vec<Bytes>,
    /// Number of transactions with a condition that put a key that is no leasing key.
    guarded_puts: usize,
    /// True if the user may not write leasing keys.
    forbids: bool,
    /// Number of claims refused for that reason.
    forbidden: usize,
}

impl State {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision, ..ResponseHeader::default() })
    }

    fn range(&mut self, request: &RangeRequest) -> RangeResponse {
        let mut answer = RangeResponse { header: self.header(), ..RangeResponse::default() };
        if !request.range_end.is_empty() {
            self.is_there = self.shown > 0;
            self.shown = self.shown.saturating_sub(1);
            if self.is_there {
                answer.kvs.push(KeyValue { key: "l/k".into(), create_revision: 3, ..KeyValue::default() });
            }
        }
        answer
    }

    /// Carries out a transaction whose conditions hold.
    fn txn(&mut self, request: &TxnRequest, room: usize) -> Result<TxnResponse, Status> {
        let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
        let room = room.checked_sub(ops).ok_or(error::TOO_MANY_OPS)?;
        if self.forbids && request.success.iter().any(is_claim) {
            self.forbidden += 1;
            return Err(error::PERMISSION_DENIED);
        }
        self.revision += 1;
        let mut responses = Vec::new();
        for op in &request.success {
            let response = match op.request.as_ref().unwrap() {
                Request::RequestRange(request) => Response::ResponseRange(self.range(request)),
                Request::RequestPut(put) => {
                    if put.lease == LEASE {
                        self.claimed.insert(put.key.clone());
                    } else {
                        self.guarded_puts += usize::from(!request.compare.is_empty());
                    }
                    Response::ResponsePut(Default::default())
                }
                Request::RequestDeleteRange(request) if request.range_end.is_empty() => {
                    self.claimed.remove(&request.key);
                    Response::ResponseDeleteRange(DeleteRangeResponse::default())
                }
                Request::RequestDeleteRange(_) => {
                    self.deleted_early |= self.is_there;
                    self.deleted += 1;
                    Response::ResponseDeleteRange(DeleteRangeResponse::default())
                }
                Request::RequestTxn(inner) => Response::ResponseTxn(self.txn(inner, room)?),
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        Ok(TxnResponse { header: self.header(), succeeded: true, responses })
    }
}

/// Returns true if the operation puts a leasing key.
fn is_claim(op: &RequestOp) -> bool {
    matches!(&op.request, Some(Request::RequestPut(put)) if put.lease == LEASE)
}

#[derive(Clone, Default)]
struct Member(Arc<Mutex<State>>);

impl Member {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Starts the member, and a proxy in front of it.
    fn start(&self) -> (front::Front, GrpcProxy, Client) {
        self.state().revision = 10;
        let (socket, address) = testkit::ports::listen();
        socket.set_nonblocking(true).unwrap();
        let options = front::Options { shards: 1, ..front::Options::default() };
        let member = self.clone();
        let make = Arc::new(move |_| -> Rc<dyn Service> { Rc::new(member.clone()) });
        let member = front::start(options, vec![socket.into()], make).unwrap();
        let logger = Logger::to(Level::Error, Format::Json, Vec::new());
        let options =
            ProxyOptions { leasing_prefix: b"l/".to_vec(), ..ProxyOptions::of(vec![address.to_string()]) };
        let proxy = GrpcProxy::start(&options, &logger).unwrap();
        let client = Client::new(Settings::of([proxy.address.to_string()])).unwrap();
        (member, proxy, client)
    }
}

impl Service for Member {
    fn method(&self, path: &str) -> Option<Method> {
        Rpc::ALL.into_iter().find(|rpc| rpc.path() == path).map(Method::from)
    }

    fn has_service(&self, _: &str) -> bool {
        true
    }

    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary {
        let mut state = self.state();
        let room = state.ops_max;
        let answer = match Rpc::ALL[usize::from(head.method)] {
            Rpc::LeaseGrant => {
                let granted = LeaseGrantResponse { id: LEASE, ttl: 60, ..LeaseGrantResponse::default() };
                Ok(granted.encode_to_vec())
            }
            Rpc::LeaseRevoke => {
                state.claimed.clear();
                state.revoked += 1;
                Ok(Vec::new())
            }
            Rpc::KvRange => {
                let request = RangeRequest::decode(message).unwrap();
                state.read.push(request.key.clone());
                Ok(state.range(&request).encode_to_vec())
            }
            Rpc::KvTxn => {
                state.txn(&TxnRequest::decode(message).unwrap(), room).map(|answer| answer.encode_to_vec())
            }
            _ => Ok(Vec::new()),
        };
        Unary::Done(answer.map(|answer| Answer::Whole(answer.into())))
    }

    fn stream(
        self: Rc<Self>,
        head: Head,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(async move {
            while let Some(message) = inbound.next().await? {
                if Rpc::ALL[usize::from(head.method)] == Rpc::LeaseKeepAlive {
                    let renewed = LeaseKeepAliveResponse { id: LEASE, ttl: 60, ..Default::default() };
                    outbound.send(renewed.encode_to_vec().into()).await?;
                    continue;
                }
                let request = WatchRequest::decode(message).unwrap();
                let Some(RequestUnion::CreateRequest(create)) = request.request_union else { continue };
                self.state().watches.push(head.requires_leader);
                if create.start_revision > 0 {
                    if self.state().holds {
                        continue;
                    }
                    return Ok(());
                }
                let header = self.state().header();
                let created = WatchResponse { header, created: true, ..WatchResponse::default() };
                outbound.send(created.encode_to_vec().into()).await?;
            }
            Ok(())
        })
    }

    fn http(self: Rc<Self>, _: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async { http::Response::default() })
    }
}

/// Reads keys until the proxy owns them.
async fn own(client: &Client, member: &Member, keys: usize) {
    eventually("all keys are owned", TIMEOUT, async || {
        for key in 0..keys {
            let request = RangeRequest { key: key.to_string().into(), ..RangeRequest::default() };
            client.call::<_, RangeResponse>(Rpc::KvRange, &request).await.unwrap();
        }
        (member.state().claimed.len() == keys).then_some(())
    })
    .await;
}

async fn change_rights(client: &Client) {
    let request = AuthRoleAddRequest { name: "r".to_owned() };
    client.call::<_, AuthRoleAddResponse>(Rpc::AuthRoleAdd, &request).await.unwrap();
}

#[test]
fn owned_keys_are_given_back_when_rights_change_even_to_a_member_that_takes_few_operations() {
    const KEYS: usize = 20;
    let member = Member::default();
    // A claim needs two operations; a delete in a nested transaction needs two besides its own.
    member.state().ops_max = 6;
    let (_member, proxy, client) = member.start();
    testkit::block_on(2 * TIMEOUT, async {
        own(&client, &member, KEYS).await;
        change_rights(&client).await;
        eventually("all keys are given back", TIMEOUT, async || {
            member.state().claimed.is_empty().then_some(())
        })
        .await;
        assert_eq!(member.state().revoked, 0, "the session goes on");
    });
    proxy.stop(Duration::ZERO);
}

#[test]
fn a_session_that_cannot_give_keys_back_ends_with_its_lease() {
    let member = Member::default();
    member.state().ops_max = 6;
    let (_member, proxy, client) = member.start();
    testkit::block_on(2 * TIMEOUT, async {
        own(&client, &member, 3).await;
        member.state().ops_max = 1;
        change_rights(&client).await;
        eventually("the lease is revoked", TIMEOUT, async || (member.state().revoked > 0).then_some(()))
            .await;
    });
    proxy.stop(Duration::ZERO);
}

#[test]
fn a_wait_for_an_owner_that_hears_nothing_looks_again() {
    let member = Member::default();
    (member.state().ops_max, member.state().shown, member.state().holds) = (128, 1, true);
    let (_member, proxy, client) = member.start();
    testkit::block_on(2 * TIMEOUT, async {
        let request =
            DeleteRangeRequest { key: "a".into(), range_end: "z".into(), ..DeleteRangeRequest::default() };
        client.call::<_, DeleteRangeResponse>(Rpc::KvDeleteRange, &request).await.unwrap();
    });
    let state = member.state();
    assert_eq!((state.deleted_early, state.deleted), (false, 1));
    drop(state);
    proxy.stop(Duration::ZERO);
}

#[test]
fn a_range_is_not_deleted_while_another_owns_a_key_of_it() {
    let member = Member::default();
    (member.state().ops_max, member.state().shown) = (128, 2);
    let (_member, proxy, client) = member.start();
    testkit::block_on(2 * TIMEOUT, async {
        let request =
            DeleteRangeRequest { key: "a".into(), range_end: "z".into(), ..DeleteRangeRequest::default() };
        client.call::<_, DeleteRangeResponse>(Rpc::KvDeleteRange, &request).await.unwrap();
        eventually("the session's watch stands", TIMEOUT, async || {
            (member.state().watches.len() >= 3).then_some(())
        })
        .await;
    });
    let state = member.state();
    assert_eq!((state.deleted_early, state.deleted), (false, 1));
    assert!(state.watches.iter().all(|insists| *insists), "a member without a leader tells nothing");
    drop(state);
    proxy.stop(Duration::ZERO);
}

async fn read(client: &Client, key: &'static str) {
    let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
    client.call::<_, RangeResponse>(Rpc::KvRange, &request).await.unwrap();
}

#[test]
fn a_client_with_a_token_owns_nothing_and_writes_by_the_protocol() {
    let member = Member::default();
    member.state().ops_max = 128;
    let (_member, proxy, client) = member.start();
    let settings = Settings { token: Some("t".into()), ..Settings::of([proxy.address.to_string()]) };
    let with_token = Client::new(settings).unwrap();
    let reads_of = |key: &str| member.state().read.iter().filter(|read| *read == key).count();
    testkit::block_on(2 * TIMEOUT, async {
        // The proxy has a session, and owns "0".
        own(&client, &member, 1).await;
        for _ in 0..3 {
            read(&with_token, "0").await;
            read(&with_token, "only with a token").await;
        }
        assert_eq!(member.state().claimed.len(), 1, "only the read without a token is a claim");
        assert_eq!(reads_of("only with a token"), 3, "each read is the member's to answer");
        let before = reads_of("0");
        assert!(before >= 3, "of a key that the proxy owns, too");
        read(&client, "0").await;
        assert_eq!(reads_of("0"), before, "the owner answers clients without a token");
        let put = PutRequest { key: "written".into(), ..PutRequest::default() };
        with_token.call::<_, PutResponse>(Rpc::KvPut, &put).await.unwrap();
        assert_eq!(member.state().guarded_puts, 1, "another proxy may own the key");
    });
    proxy.stop(Duration::ZERO);
}

#[test]
fn a_proxy_that_may_not_write_leasing_keys_owns_nothing() {
    let member = Member::default();
    (member.state().ops_max, member.state().forbids) = (128, true);
    let (_member, proxy, client) = member.start();
    testkit::block_on(2 * TIMEOUT, async {
        // Each read is answered by the member: without a claim while the proxy has no session, and after a
        // claim that the member has refused.
        let mut reads = 0;
        eventually("a claim is refused", TIMEOUT, async || {
            read(&client, "k").await;
            reads += 1;
            assert_eq!(member.state().read.iter().filter(|read| *read == "k").count(), reads);
            (member.state().forbidden > 0).then_some(())
        })
        .await;
        read(&client, "k").await;
        assert_eq!(member.state().read.iter().filter(|read| *read == "k").count(), reads + 1);
    });
    proxy.stop(Duration::ZERO);
}

#[test]
fn a_transaction_that_writes_is_bounded() {
    let member = Member::default();
    member.state().ops_max = usize::MAX;
    let (_member, proxy, client) = member.start();
    testkit::block_on(2 * TIMEOUT, async {
        let put = |key: usize| RequestOp {
            request: Some(Request::RequestPut(PutRequest {
                key: key.to_string().into(),
                ..PutRequest::default()
            })),
        };
        let puts =
            |count: usize| TxnRequest { success: (0..count).map(put).collect(), ..TxnRequest::default() };
        let ask = async |request: TxnRequest| client.call::<_, TxnResponse>(Rpc::KvTxn, &request).await;
        assert!(ask(puts(1_024)).await.unwrap().succeeded);
        assert_eq!(ask(puts(1_025)).await, Err(error::TOO_MANY_OPS));
        let nested = |count| RequestOp { request: Some(Request::RequestTxn(puts(count))) };
        let inner = TxnRequest { success: vec![nested(512), nested(513)], ..TxnRequest::default() };
        assert_eq!(ask(inner).await, Err(error::TOO_MANY_OPS));
    });
    proxy.stop(Duration::ZERO);
}
