//! Implements the gRPC service of a shard: selects the handler of each method, and decides which plain HTTP
//! requests are calls.
//!
//! Calls arrive from the front, from the JSON gateway and from gRPC-Web. A unary call becomes a [`Call`], and
//! [`dispatch`] selects its handler. Most handlers are `async` functions, which the front polls immediately,
//! in the same turn of the connection.

use std::any::Any;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use api::{Code, Rpc, Status, error};
use bytes::Bytes;
use front::{Exchange, Head, Inbound, LocalBoxFuture, Method, Outbound, ResponseBody, Unary};
use telemetry::callers::Connected;
use telemetry::tracing::Within;

use super::call::Call;
use super::freshness::Freshness;
use super::principal::{Asker, Principal, Unidentified, UserPermit};
use super::range::Attempted;
use super::stages::Begun;
use super::traced::{Trace, traced_stream};
use super::{
    Services, auth, cluster, connections, downgrade, election, kv, lease, lock, maintenance, numbered, range,
};
use crate::http::CallForm;

/// Answers a call with the handler of its method.
fn dispatch(call: Call, head: &Head, message: Bytes) -> Unary {
    match call.rpc {
        Rpc::KvRange => answer_range(call, head, message),
        Rpc::KvPut => call.run(kv::put, message),
        Rpc::KvDeleteRange => call.run(kv::delete_range, message),
        Rpc::KvTxn => call.run(kv::txn, message),
        Rpc::KvCompact => call.run(kv::compact, message),
        Rpc::LeaseGrant => call.run(lease::grant, message),
        Rpc::LeaseRevoke => call.run(lease::revoke, message),
        Rpc::LeaseTimeToLive => call.run(lease::time_to_live, message),
        Rpc::LeaseLeases => call.run(lease::leases, message),
        Rpc::ClusterMemberList => call.run(cluster::member_list, message),
        Rpc::ClusterMemberAdd => call.run(cluster::member_add, message),
        Rpc::ClusterMemberRemove => call.run(cluster::member_remove, message),
        Rpc::ClusterMemberUpdate => call.run(cluster::member_update, message),
        Rpc::ClusterMemberPromote => {
            let token = cluster::token_of(head);
            call.run(async |call, message| cluster::member_promote(call, token, message).await, message)
        }
        Rpc::MaintenanceAlarm => call.run(maintenance::alarm, message),
        Rpc::MaintenanceStatus => call.run(maintenance::status, message),
        Rpc::MaintenanceDefragment => call.run(maintenance::defragment, message),
        Rpc::MaintenanceHash => call.run(maintenance::hash, message),
        Rpc::MaintenanceHashKv => call.run(maintenance::hash_kv, message),
        Rpc::MaintenanceMoveLeader => call.run(maintenance::move_leader, message),
        Rpc::MaintenanceDowngrade => call.run(downgrade::downgrade, message),
        Rpc::ConnectionsDrain => call.run(connections::drain, message),
        Rpc::ConnectionsCount => call.run(connections::count, message),
        Rpc::HealthCheck => call.run(maintenance::health_check, message),
        Rpc::HealthList => call.run(maintenance::health_list, message),
        Rpc::AuthStatus => call.run(auth::status, message),
        Rpc::Authenticate => call.run(auth::authenticate, message),
        Rpc::AuthEnable
        | Rpc::AuthDisable
        | Rpc::AuthUserDelete
        | Rpc::AuthUserGrantRole
        | Rpc::AuthUserRevokeRole
        | Rpc::AuthRoleAdd
        | Rpc::AuthRoleDelete
        | Rpc::AuthRoleGrantPermission
        | Rpc::AuthRoleRevokePermission => call.run(auth::change, message),
        Rpc::AuthUserAdd => call.run(auth::user_add, message),
        Rpc::AuthUserGet => call.run(auth::user_get, message),
        Rpc::AuthUserList => call.run(auth::user_list, message),
        Rpc::AuthUserChangePassword => call.run(auth::user_change_password, message),
        Rpc::AuthRoleGet => call.run(auth::role_get, message),
        Rpc::AuthRoleList => call.run(auth::role_list, message),
        Rpc::Lock => call.run_steps(lock::lock, head, message),
        Rpc::LockUnlock => call.run_steps(lock::unlock, head, message),
        Rpc::ElectionCampaign => call.run_steps(election::campaign, head, message),
        Rpc::ElectionProclaim => call.run_steps(election::proclaim, head, message),
        Rpc::ElectionLeader => call.run_steps(election::leader, head, message),
        Rpc::ElectionResign => call.run_steps(election::resign, head, message),
        // The front passes streams to `front::Service::stream`, so these methods never get here.
        Rpc::KvRangeStream
        | Rpc::Watch
        | Rpc::LeaseKeepAlive
        | Rpc::MaintenanceSnapshot
        | Rpc::ElectionObserve
        | Rpc::HealthWatch => call.run(async |_, _| Err(error::UNKNOWN_METHOD), message),
    }
}

/// Answers a Range. If that needs no other thread and little time, it is answered immediately, without a
/// future.
fn answer_range(mut call: Call, head: &Head, message: Bytes) -> Unary {
    let mut answer = match range::request(message, head) {
        Ok((request, freshness)) => match range::at_once(&mut call, &request, freshness) {
            Ok(Attempted::Answered(answer)) => Ok(answer),
            Ok(attempted) => {
                return Unary::Later(Box::pin(async move {
                    let mut answer = range::go_on(&mut call, request, freshness, attempted).await;
                    call.end(&mut answer);
                    answer
                }));
            }
            Err(status) => Err(status),
        },
        Err(status) => Err(status),
    };
    call.end(&mut answer);
    Unary::Done(answer)
}

/// Error for a call that was carried out and may have written, but whose client does not read responses
/// (COMPAT-62).
const CARRIED_OUT: Status = Status::new(
    Code::Unavailable,
    "mainstay: the request was carried out, but cannot be answered: its client does not read answers",
);

/// Returns the error that replaces a response for which there is no memory. Clients take `too many requests`
/// to mean that nothing was done, so only calls that change nothing get this error.
fn unanswered(rpc: Rpc) -> Status {
    match rpc {
        Rpc::KvRange
        | Rpc::LeaseTimeToLive
        | Rpc::LeaseLeases
        | Rpc::ClusterMemberList
        | Rpc::MaintenanceStatus
        | Rpc::MaintenanceHash
        | Rpc::MaintenanceHashKv => error::TOO_MANY_REQUESTS,
        _ => CARRIED_OUT,
    }
}

/// Serves an admitted stream.
fn stream_of(
    services: Rc<Services>,
    rpc: Rpc,
    head: Head,
    inbound: Inbound,
    outbound: Outbound,
    spans: Option<Within>,
) -> LocalBoxFuture<Result<(), Status>> {
    match rpc {
        Rpc::Watch => {
            let ended = services.ending.begun();
            let caller = services.caller_of(head.peer);
            #[expect(clippy::async_yields_async, reason = "it is awaited once this future is dropped")]
            let begins: LocalBoxFuture<_> = Box::pin(async move {
                let permit = Box::new(UserPermit::<false>::of(&services, Asker::of(&head)).await);
                services.hub.stream(&head, (caller, permit, spans), inbound, outbound, ended)
            });
            Box::pin(Watching::Begins(begins))
        }
        Rpc::LeaseKeepAlive => {
            let caller = services.caller_just_counted(head.peer);
            Box::pin(services.lease_keep_alive(caller, &head, inbound, outbound, spans))
        }
        Rpc::KvRangeStream => Box::pin(async move {
            let principal = services.identified(&head).await;
            let mut call = services.begin_stream_audit(rpc, &head, &principal);
            let asked_by = (head.peer.ip(), call.as_mut());
            let freshness = Freshness::of(&head);
            let result =
                services.range_stream(principal, asked_by, freshness, (inbound, outbound), spans).await;
            call.into_iter().for_each(|call| call.ended(&result));
            result
        }),
        Rpc::MaintenanceSnapshot => Box::pin(async move {
            let principal = services.identified(&head).await;
            let call = services.begin_stream_audit(rpc, &head, &principal);
            let result = match principal {
                Ok(principal) => services.snapshot(principal, head.peer.ip(), inbound, outbound).await,
                Err(status) => Err(status),
            };
            call.into_iter().for_each(|call| call.ended(&result));
            result
        }),
        Rpc::HealthWatch => Box::pin(services.health_watch(inbound, outbound)),
        Rpc::ElectionObserve => Box::pin(async move {
            let principal = services.identified(&head).await;
            let call = services.begin_stream_audit(rpc, &head, &principal);
            services.observe(&head, principal, call, inbound, outbound).await
        }),
        _ => Box::pin(async { Err(error::UNKNOWN_METHOD) }),
    }
}

/// A watch stream. Streams stay open for days, so data that is needed only to begin the stream, such as the
/// request head, is dropped before the stream is served. This is a hand-written future, because an `async`
/// block would reserve memory for both phases at the same time.
enum Watching<F> {
    Begins(LocalBoxFuture<F>),
    Served(F),
}

impl<F: Future<Output = Result<(), Status>> + Unpin> Future for Watching<F> {
    type Output = Result<(), Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if let Watching::Begins(begins) = &mut *self {
            let served = ready!(begins.as_mut().poll(cx));
            *self = Watching::Served(served);
        }
        match &mut *self {
            Watching::Served(served) => Pin::new(served).poll(cx),
            Watching::Begins(_) => unreachable!("it is served by now"),
        }
    }
}

impl front::Service for Services {
    fn method(&self, path: &str) -> Option<Method> {
        self.rpcs.get(path).map(|rpc| Method::from(*rpc))
    }

    fn has_service(&self, name: &str) -> bool {
        api::METHODS.iter().any(|method| method.service == name)
    }

    fn may_wait(&self, method: u16) -> bool {
        method == Rpc::Authenticate as u16
    }

    fn is_endless(&self, method: u16) -> bool {
        matches!(numbered(method), Rpc::Watch | Rpc::LeaseKeepAlive | Rpc::ElectionObserve | Rpc::HealthWatch)
    }

    fn page_method(&self, path: &str) -> Option<u16> {
        if !self.shared.clients.gateway {
            return None;
        }
        let rpc = crate::http::gateway_rpc(path).or_else(|| self.rpcs.get(path).copied())?;
        Some(rpc as u16)
    }

    fn connected(&self, from: &front::Origin) -> Option<Box<dyn Any>> {
        // The client's statistics are looked up again and not taken from this shard's cache: they may have
        // been evicted from the shared table, and the table may contain new ones that start from zero.
        Some(Box::new((Connected::new(self.meet(from.peer)), self.known.borrow().connected(from.peer))))
    }

    fn unary(self: Rc<Self>, head: Head, message: Bytes) -> Unary {
        let rpc = numbered(head.method);
        let begin = |tracer| Trace::begin(&self, tracer, rpc, &head, Some(&message));
        let trace = self.tracer.as_ref().and_then(begin);
        let (is_sample, is_traced) = (self.sampler.takes(), trace.is_some());
        let mut begun = Begun { is_sample, is_traced, ..Begun::unmeasured(head.arrived) };
        let needs_user = match self.admit(rpc, &head, false) {
            Ok(needs_user) => needs_user,
            Err(status) => {
                self.audit_refused(rpc, &head, Some(&message), &status);
                if let Some(trace) = trace {
                    trace.end(Err(&status), None);
                }
                return Unary::Done(Err(status));
            }
        };
        let admitted = self.timed.then(|| self.now());
        let identified = match needs_user {
            false => Ok(Principal::default()),
            true if begun.is_measured() => {
                let asked = self.now();
                let identified = self.identify(&head);
                begun.auth = self.now().saturating_duration_since(asked);
                identified
            }
            true => self.identify(&head),
        };
        let principal = match identified {
            Ok(principal) => Ok(principal),
            // The call continues, with the error in place of its user: some calls need no user, and others
            // must first fail with a different error.
            Err(Unidentified::Refused(status)) => Err(status),
            // These calls need no user, so they are answered without waiting for an identification.
            Err(Unidentified::NotYet | Unidentified::Unverified)
                if matches!(rpc, Rpc::Authenticate | Rpc::HealthCheck | Rpc::HealthList) =>
            {
                Ok(Principal::default())
            }
            Err(Unidentified::NotYet | Unidentified::Unverified) => {
                // The call waits until this member has applied everything that was committed when the call
                // arrived, because another member may have issued the token, or until the token's signature
                // is verified.
                return Unary::Later(Box::pin(async move {
                    let asked = self.now();
                    let principal = self.identified(&head).await;
                    begun.auth = self.now().saturating_duration_since(asked);
                    let mut call = Call::new(self, (rpc, head.peer), begun, principal);
                    call.observe(&head, &message, trace, admitted);
                    match dispatch(call, &head, message) {
                        Unary::Done(answer) => answer,
                        Unary::Later(answer) => answer.await,
                    }
                }));
            }
        };
        let mut call = Call::new(self, (rpc, head.peer), begun, principal);
        call.observe(&head, &message, trace, admitted);
        dispatch(call, &head, message)
    }

    fn unanswered(&self, method: u16) -> Status {
        unanswered(numbered(method))
    }

    fn stream(
        self: Rc<Self>,
        head: Head,
        inbound: Inbound,
        outbound: Outbound,
    ) -> LocalBoxFuture<Result<(), Status>> {
        let services = self;
        let rpc = numbered(head.method);
        let begin = |tracer| Trace::begin(&services, tracer, rpc, &head, None);
        let trace = services.tracer.as_ref().and_then(begin);
        if let Err(status) = services.admit(rpc, &head, true) {
            services.audit_refused(rpc, &head, None, &status);
            if let Some(trace) = trace {
                trace.end(Err(&status), None);
            }
            return Box::pin(async move { Err(status) });
        }
        let spans = trace.as_ref().map(|trace| trace.within(&services));
        let stream = stream_of(Rc::clone(&services), rpc, head, inbound, outbound, spans);
        match trace {
            None => stream,
            Some(trace) => traced_stream(trace, stream),
        }
    }

    fn exchange(self: Rc<Self>, mut exchange: Exchange) -> LocalBoxFuture<http::Response<ResponseBody>> {
        Box::pin(async move {
            let long_turn = crate::http::is_long(exchange.head.uri.path()).then(|| exchange.long_turn());
            let mut asked = http::Request::from_parts(exchange.head, Bytes::new());
            asked.extensions_mut().insert(exchange.origin.peer);
            asked.extensions_mut().insert(exchange.origin.clone());
            match crate::http::for_call(&self.shared, &asked) {
                Some(Err(refusal)) => refusal.map(ResponseBody::from),
                Some(Ok(form)) => {
                    let mut cross_origin = http::HeaderMap::new();
                    crate::http::allow_origin(&self.shared, &asked, &mut cross_origin);
                    exchange.head = asked.into_parts().0;
                    let mut answer = match form {
                        CallForm::Json(path) => crate::gateway::answer(self, &path, exchange).await,
                        CallForm::GrpcWeb => crate::grpc_web::answer(self, exchange).await,
                    };
                    answer.headers_mut().extend(cross_origin);
                    answer
                }
                None => {
                    *asked.body_mut() = match exchange.body.gather().await {
                        Ok(body) => body,
                        Err(status) => return crate::http::of_status(status).map(ResponseBody::from),
                    };
                    if let Some(long_turn) = long_turn {
                        long_turn.await;
                    }
                    self.http(asked).await.map(ResponseBody::from)
                }
            }
        })
    }

    fn http(self: Rc<Self>, mut request: http::Request<Bytes>) -> LocalBoxFuture<http::Response<Bytes>> {
        Box::pin(async move {
            crate::http::confirm(&self.shared, &mut request).await;
            if let Some(token) = crate::http::token_of_root(&request).cloned() {
                let peer = request.extensions().get::<SocketAddr>().copied();
                if self.is_roots(token, peer).await {
                    crate::http::by_root(&mut request);
                }
            }
            crate::http::collect(&self.shared, &mut request).await;
            crate::http::answer(&self.shared, &self.values, &self.counters, &self.logger, &request)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_write_is_said_to_have_been_refused_for_want_of_room_for_its_answer() {
        let writes = [
            Rpc::KvPut,
            Rpc::KvDeleteRange,
            Rpc::KvTxn,
            Rpc::KvCompact,
            Rpc::LeaseGrant,
            Rpc::ClusterMemberAdd,
        ];
        for rpc in writes {
            let said = unanswered(rpc);
            assert!(
                said.code == Code::Unavailable && said.message.contains("was carried out"),
                "{rpc:?}: {said:?}"
            );
        }
        assert_eq!(unanswered(Rpc::KvRange), error::TOO_MANY_REQUESTS);
    }
}
