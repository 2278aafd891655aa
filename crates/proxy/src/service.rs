//! Answers each call of a client to the gRPC proxy: by a call to a member, from the cache, or by the hub.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use accounting::Account;
use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, Member, MemberListResponse, PutRequest, RangeRequest,
};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use front::{Answer, Head, Inbound, LocalBoxFuture, Method, Origin, Outbound, Service, Unary};
use prost::Message as _;
use telemetry::logging::{Logger, Value};

use crate::cache::Cache;
use crate::hub::Hub;
use crate::leasing::Leasing;
use crate::members::Members;
use crate::metrics::Metrics;
use crate::namespace::{decode_request, decode_txn, writes_of};
use crate::pages::Pages;
use crate::resolver::Proxies;
use crate::{streams, upstream};

/// Error of the call `RangeStream` if reads are ordered (`--experimental-serializable-ordering`). Source:
/// etcd's ordering of reads.
const UNORDERED: Status = Status::new(Code::Unimplemented, "GetStream is not supported by kvOrdering");

/// State shared by all shards of the proxy.
pub(crate) struct Shared {
    pub(crate) logger: Logger,
    pub(crate) metrics: Arc<Metrics>,
    /// Handle of the hub, the thread that makes watches and lease renewals for all clients together.
    pub(crate) hub: Hub,
    /// Number of the next client stream.
    pub(crate) streams: AtomicU64,
    /// Cached responses to reads. The lock is held only for short times, never during a call to a member.
    pub(crate) cache: Mutex<Cache>,
    /// Ownership of keys; `None` without `--experimental-leasing-prefix`.
    pub(crate) leasing: Option<Arc<Leasing>>,
    /// URL that the member list for clients contains in place of the members' URLs; empty to return the
    /// member list of the cluster.
    pub(crate) advertise: String,
    /// The proxies registered below `--resolver-prefix`; empty without this flag.
    pub(crate) proxies: Arc<Proxies>,
    /// Host name of this machine.
    pub(crate) host: String,
    /// If true, each call is logged.
    pub(crate) logs_calls: bool,
}

/// The service of one shard. It has its own connections to the members.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    members: Members,
    pages: Pages,
    rpcs: HashMap<&'static str, Rpc>,
}

/// Guard of a call. When the call has ended or was abandoned, dropping the guard empties the cache if the
/// call may have changed any key or permission, and gives up all owned keys if it may have changed
/// permissions.
struct Forgotten<'p> {
    proxy: &'p Proxy,
    rpc: Rpc,
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        if changes_anything(self.rpc) {
            self.proxy.cache().clear();
        }
        if let Some(leasing) = self.proxy.shared.leasing.as_ref().filter(|_| changes_rights(self.rpc)) {
            leasing.leave_all();
        }
    }
}

impl Proxy {
    pub(crate) fn new(shared: Arc<Shared>, members: Members, pages: Pages) -> Proxy {
        let rpcs = Rpc::ALL.into_iter().map(|rpc| (rpc.path(), rpc)).collect();
        Proxy { shared, members, pages, rpcs }
    }

    async fn answer(&self, rpc: Rpc, head: &Head, message: Bytes) -> Result<Bytes, Status> {
        match rpc {
            Rpc::ClusterMemberList if !self.shared.advertise.is_empty() => Ok(self.own_members()),
            Rpc::KvRange if is_nobody(head) => self.range(head, message).await,
            Rpc::KvPut | Rpc::KvDeleteRange | Rpc::KvTxn => self.write(rpc, head, message).await,
            Rpc::KvCompact => {
                let revision = decode_request::<CompactionRequest>(&message)?.revision;
                let answer = self.pass_on(rpc, head, message).await?;
                self.cache().compacted(revision, Instant::now());
                Ok(answer)
            }
            _ => {
                // The guard also empties the cache if the client goes away and this future is dropped,
                // because the member may carry out the call nevertheless.
                let _forgotten = Forgotten { proxy: self, rpc };
                self.pass_on(rpc, head, message).await
            }
        }
    }

    /// Forwards a call to a member.
    async fn pass_on(&self, rpc: Rpc, head: &Head, message: Bytes) -> Result<Bytes, Status> {
        let options = upstream::call_options(rpc, head);
        match &self.shared.leasing {
            Some(leasing) => leasing.call(&self.members, rpc, &options, message, is_nobody(head)).await,
            None => self.members.call(rpc, &options, message).await,
        }
    }

    /// Answers a read of a client without credentials. A serializable read may be answered from the cache.
    async fn range(&self, head: &Head, message: Bytes) -> Result<Bytes, Status> {
        let request: RangeRequest = decode_request(&message)?;
        let metrics = &self.shared.metrics;
        // If reads are ordered, do not use the cache: another read may have returned a higher revision since
        // a response was cached.
        if self.members.order.is_some() {
            return self.pass_on(Rpc::KvRange, head, message).await;
        }
        if request.serializable {
            let kept = self.cache().get(&request, Instant::now());
            if let Some(answer) = kept.transpose() {
                metrics.cache_hits.fetch_add(1, Relaxed);
                return answer;
            }
            metrics.cache_misses.fetch_add(1, Relaxed);
        }
        let asked = self.cache().now();
        let answer = self.pass_on(Rpc::KvRange, head, message).await?;
        let mut cache = self.cache();
        cache.add(&request, &answer, asked, Instant::now());
        metrics.cache_keys.store(cache.len() as u64, Relaxed);
        Ok(answer)
    }

    /// Forwards a write to a member. Both before and after the write, removes the cached responses that
    /// contain keys of the write.
    async fn write(&self, rpc: Rpc, head: &Head, message: Bytes) -> Result<Bytes, Status> {
        let mut written = Vec::new();
        match rpc {
            Rpc::KvPut => written.push((decode_request::<PutRequest>(&message)?.key, Bytes::new())),
            Rpc::KvDeleteRange => {
                let request: DeleteRangeRequest = decode_request(&message)?;
                written.push((request.key, request.range_end));
            }
            _ => writes_of(&decode_txn(&message)?.0, &mut written),
        }
        let _held = Account::of_turn().map(|account| account.hold(size_of_val(&written[..])));
        let forget = || {
            let mut cache = self.cache();
            cache.written(&written);
            self.shared.metrics.cache_keys.store(cache.len() as u64, Relaxed);
        };
        forget();
        let answer = self.pass_on(rpc, head, message).await;
        forget();
        answer
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // No code panics while it holds this lock, so poisoning is ignored.
        self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a member list with the registered proxies, or with only this proxy if none is registered. So
    /// clients that use the member list as their endpoints keep using proxies.
    fn own_members(&self) -> Bytes {
        let mut members = self.shared.proxies.members();
        if members.is_empty() {
            members.push(Member {
                name: self.shared.host.clone(),
                client_urls: vec![self.shared.advertise.clone()],
                ..Member::default()
            });
        }
        MemberListResponse { header: None, members }.encode_to_vec().into()
    }

    /// Forwards a call that has one request and a stream of responses.
    async fn pass_on_answers(
        &self,
        rpc: Rpc,
        head: &Head,
        inbound: &mut Inbound,
        outbound: &mut Outbound,
    ) -> Result<(), Status> {
        if rpc == Rpc::KvRangeStream && self.members.order.is_some() {
            return Err(UNORDERED);
        }
        let missing = || Status::new(Code::Internal, "no request in a call with one");
        let request = inbound.next().await?.ok_or_else(missing)?;
        let options = upstream::call_options(rpc, head);
        let (mut sender, mut receiver) = self.members.client.forward_stream(rpc, &options).await?;
        sender.send_last(self.members.asked(rpc, request)?).await?;
        while let Some(message) = receiver.next().await? {
            outbound.send(self.members.told(rpc, message)?).await?;
        }
        Ok(())
    }

    fn log(&self, rpc: Rpc, head: &Head, began: Instant, failure: Option<&Status>) {
        let (code, error) = failure.map_or((Code::Ok, ""), |status| (status.code, status.message.as_ref()));
        let method = rpc.method();
        let peer = front::shown_peer(head.peer);
        self.shared.logger.info(
            "finished call",
            &[
                ("grpc.service", Value::Str(method.service)),
                ("grpc.method", Value::Str(method.name)),
                ("grpc.code", Value::Str(code.name())),
                ("grpc.error", Value::Str(error)),
                ("peer.address", Value::Display(&peer)),
                ("grpc.duration", Value::Duration(began.elapsed())),
            ],
        );
    }
}

/// Returns true if a call has no credentials.
fn is_nobody(head: &Head) -> bool {
    upstream::CREDENTIALS.iter().all(|name| head.get(name).is_none())
}

/// Returns true for a method that may change permissions.
fn changes_rights(rpc: Rpc) -> bool {
    let reads_rights = matches!(
        rpc,
        Rpc::Authenticate
            | Rpc::AuthStatus
            | Rpc::AuthUserGet
            | Rpc::AuthUserList
            | Rpc::AuthRoleGet
            | Rpc::AuthRoleList
    );
    rpc.method().service == "etcdserverpb.Auth" && !reads_rights
}

/// Returns true for a method that may change permissions, or keys that its request does not name. After such
/// a call, any cached response may be outdated.
fn changes_anything(rpc: Rpc) -> bool {
    match rpc {
        Rpc::LeaseRevoke | Rpc::Lock | Rpc::LockUnlock => true,
        Rpc::ElectionCampaign | Rpc::ElectionProclaim | Rpc::ElectionResign => true,
        _ => changes_rights(rpc),
    }
}

fn numbered(method: u16) -> Rpc {
    Rpc::ALL[usize::from(method)]
}

impl Service for Proxy {
    fn method(&self, path: &str) -> Option<Method> {
        self.rpcs.get(path).map(|rpc| Method::from(*rpc))
    }

    fn has_service(&self, name: &str) -> bool {
        api::METHODS.iter().any(|method| method.service == name)
    }

    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary {
        let rpc = numbered(head.method);
        Unary::Later(Box::pin(async move {
            let began = Instant::now();
            let answer = self.answer(rpc, &head, message).await;
            if self.shared.logs_calls {
                self.log(rpc, &head, began, answer.as_ref().err());
            }
            answer.map(Answer::Whole)
        }))
    }

    fn stream(
        self: Rc<Self>,
        head: Head,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let rpc = numbered(head.method);
        Box::pin(async move {
            let began = Instant::now();
            let hub = &self.shared.hub;
            let stream = self.shared.streams.fetch_add(1, Relaxed);
            let outcome = match rpc.method().kind {
                api::Kind::ServerStream => {
                    self.pass_on_answers(rpc, &head, &mut inbound, &mut outbound).await
                }
                _ if rpc == Rpc::LeaseKeepAlive => {
                    streams::renew(hub, stream, &head, &mut inbound, &mut outbound).await
                }
                _ => streams::watch(hub, stream, &head, &mut inbound, &mut outbound).await,
            };
            if self.shared.logs_calls {
                self.log(rpc, &head, began, outcome.as_ref().err());
            }
            outcome
        })
    }

    fn http(self: Rc<Self>, request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async move {
            let is_tls = request.extensions().get::<Origin>().is_some_and(|origin| origin.is_tls);
            self.pages.answer(&self.shared.metrics, &request, is_tls).await
        })
    }
}
