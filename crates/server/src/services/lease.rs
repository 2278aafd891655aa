//! Leases.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use api::Status;
use api::error;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use bytes::Bytes;
use front::{First, Inbound, Outbound, Unary, race};
use machine::{Outcome, check};
use prost::Message as _;

use super::{Services, decode, decode_streamed, whole};
use crate::callers::Caller;
use crate::core::{Ask, ReplyBody};
use crate::forwarding;

/// Fields of `InternalRaftRequest`.
mod field {
    pub const LEASE_GRANT: u32 = 8;
    pub const LEASE_REVOKE: u32 = 9;
}

/// Leases of one stream that are told apart; with more it is plain enough what the client does.
const RENEWED_MAX: usize = 10_000;

/// The leases that a stream has renewed, as its client's figures count them while it is open.
struct Renewed {
    caller: Arc<Caller>,
    ids: HashSet<i64>,
}

impl Renewed {
    fn note(&mut self, id: i64) {
        if self.ids.len() < RENEWED_MAX && self.ids.insert(id) {
            self.caller.leases.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Renewed {
    fn drop(&mut self) {
        self.caller.leases.fetch_sub(self.ids.len() as i64, Relaxed);
    }
}

impl Services {
    pub(super) fn lease_grant(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let mut request: LeaseGrantRequest = decode(message)?;
        self.check_quota(check::LEASE_COST)?;
        if request.id == 0 {
            request.id = self.shared.lease_id();
        }
        // COMPAT-64: here and not when it is applied, where the options of members may differ.
        request.ttl = request.ttl.max(self.shared.limits.lease_ttl_min);
        let message = request.encode_to_vec().into();
        self.propose(field::LEASE_GRANT, &message, false, "LeaseGrant", |_, outcome, header| {
            let Outcome::LeaseGranted { id, ttl } = outcome else { return Err(error::STOPPED) };
            Ok(whole(&LeaseGrantResponse { header: Some(header), id, ttl, error: String::new() }))
        })
    }

    pub(super) fn lease_revoke(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let _: LeaseRevokeRequest = decode(message.clone())?;
        self.propose(field::LEASE_REVOKE, &message, false, "LeaseRevoke", |_, _, header| {
            Ok(whole(&LeaseRevokeResponse { header: Some(header) }))
        })
    }

    /// Only the leader's clocks say how long a lease has.
    pub(super) fn lease_time_to_live(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let LeaseTimeToLiveRequest { id, keys } = decode(message)?;
        let services = Rc::clone(self);
        Ok(Unary::Later(Box::pin(async move {
            let began = services.shared.clock.now();
            let answered = services.whoever_leads(async || services.time_to_live(id, keys).await).await;
            let took = services.shared.clock.now().saturating_duration_since(began);
            services.took("LeaseTimeToLive", answered.is_ok(), took);
            let mut response = answered?;
            let state = services.state();
            response.header = Some(services.header(state.view.snapshot().current_revision(), &state));
            Ok(whole(&response))
        })))
    }

    /// Asks here or the leader.
    async fn time_to_live(&self, id: i64, keys: bool) -> Result<LeaseTimeToLiveResponse, Status> {
        if !self.leads() {
            return forwarding::time_to_live(&self.shared, id, keys).await;
        }
        match self.pending.ask(|ticket| Ask::TimeToLive(ticket, id, keys))?.await?.body {
            ReplyBody::TimeToLive { ttl, granted, keys } => {
                Ok(LeaseTimeToLiveResponse { header: None, id, ttl, granted_ttl: granted, keys })
            }
            ReplyBody::Outcome(Err(status), _) => Err(status),
            _ => Err(error::STOPPED),
        }
    }

    fn leads(&self) -> bool {
        self.shared.state.load().leader == self.shared.identity.member_id
    }

    pub(super) fn lease_leases(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let LeaseLeasesRequest {} = decode(message)?;
        self.ask(Ask::Leases, "LeaseLeases", |_, body, header| {
            let ReplyBody::Leases(ids) = body else { return Err(error::STOPPED) };
            let leases = ids.into_iter().map(|id| LeaseStatus { id }).collect();
            Ok(whole(&LeaseLeasesResponse { header: Some(header), leases }))
        })
    }

    /// Answers each request of the stream; a lease that is gone is answered with TTL 0.
    pub(super) async fn lease_keep_alive(
        self: Rc<Self>,
        caller: Arc<Caller>,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> Result<(), Status> {
        let mut closing = self.closing.clone();
        let mut renewed = Renewed { caller, ids: HashSet::new() };
        loop {
            let First::Left(next) = race(inbound.next(), closing.begun()).await else {
                return Err(error::STOPPED);
            };
            let Some(message) = next? else { return Ok(()) };
            let LeaseKeepAliveRequest { id } = decode_streamed(message)?;
            let ttl = self.renew(id).await?;
            renewed.note(id);
            let state = self.state();
            let header = Some(self.header(state.view.snapshot().current_revision(), &state));
            outbound.send(LeaseKeepAliveResponse { header, id, ttl }.encode_to_vec().into()).await?;
        }
    }

    /// Renews a lease, here or at the leader: the TTL, 0 if the lease is gone.
    pub(super) async fn renew(&self, id: i64) -> Result<i64, Status> {
        let renew = async || {
            if !self.leads() {
                return forwarding::renew(&self.shared, id).await;
            }
            match self.pending.ask(|ticket| Ask::KeepAlive(ticket, id))?.await?.body {
                ReplyBody::KeptAlive(ttl) => Ok(ttl),
                ReplyBody::Outcome(Err(status), _) => Err(status),
                _ => Err(error::STOPPED),
            }
        };
        self.whoever_leads(renew).await
    }

    /// Repeats what only a leader answers, for as long as leadership moves while it is asked.
    async fn whoever_leads<T>(&self, ask: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
        let clock = &self.shared.clock;
        let deadline = clock.now() + self.shared.limits.request_timeout;
        loop {
            match ask().await {
                Err(status) if status == error::NOT_PRIMARY_LESSOR && clock.now() < deadline => {
                    clock.sleep(Duration::from_millis(50)).await;
                }
                Err(status) if status == error::NOT_PRIMARY_LESSOR => return Err(error::TIMEOUT),
                answered => return answered,
            }
        }
    }
}
