//! Leases.

use std::rc::Rc;
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
use crate::core::{Ask, ReplyBody};
use crate::forwarding;

/// Fields of `InternalRaftRequest`.
mod field {
    pub const LEASE_GRANT: u32 = 8;
    pub const LEASE_REVOKE: u32 = 9;
}

impl Services {
    pub(super) fn lease_grant(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let mut request: LeaseGrantRequest = decode(message)?;
        self.check_quota(check::LEASE_COST)?;
        if request.id == 0 {
            request.id = self.shared.lease_id();
        }
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
        if !self.leads() {
            let services = Rc::clone(self);
            return Ok(Unary::Later(Box::pin(async move {
                let mut response = forwarding::time_to_live(&services.shared, id, keys).await?;
                let state = services.state();
                response.header = Some(services.header(state.view.snapshot().current_revision(), &state));
                Ok(whole(&response))
            })));
        }
        self.ask(
            |ticket| Ask::TimeToLive(ticket, id, keys),
            "LeaseTimeToLive",
            move |_, body, header| {
                let ReplyBody::TimeToLive { ttl, granted, keys } = body else { return Err(error::STOPPED) };
                let header = Some(header);
                Ok(whole(&LeaseTimeToLiveResponse { header, id, ttl, granted_ttl: granted, keys }))
            },
        )
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
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> Result<(), Status> {
        let mut closing = self.closing.clone();
        loop {
            let First::Left(next) = race(inbound.next(), closing.begun()).await else {
                return Err(error::STOPPED);
            };
            let Some(message) = next? else { return Ok(()) };
            let LeaseKeepAliveRequest { id } = decode_streamed(message)?;
            let ttl = self.renew(id).await?;
            let state = self.state();
            let header = Some(self.header(state.view.snapshot().current_revision(), &state));
            outbound.send(LeaseKeepAliveResponse { header, id, ttl }.encode_to_vec().into()).await?;
        }
    }

    /// Renews a lease, here or at the leader: the TTL, 0 if the lease is gone.
    pub(super) async fn renew(&self, id: i64) -> Result<i64, Status> {
        let deadline = self.shared.clock.now() + self.shared.limits.request_timeout;
        loop {
            let renewed = if self.leads() {
                let reply = self.pending.ask(|ticket| Ask::KeepAlive(ticket, id))?.await?;
                match reply.body {
                    ReplyBody::KeptAlive(ttl) => Ok(ttl),
                    ReplyBody::Outcome(Err(status), _) => Err(status),
                    _ => return Err(error::STOPPED),
                }
            } else {
                forwarding::renew(&self.shared, id).await
            };
            match renewed {
                // Leadership moved while it was asked.
                Err(status) if status == error::NOT_PRIMARY_LESSOR && self.shared.clock.now() < deadline => {
                    self.shared.clock.sleep(Duration::from_millis(50)).await;
                }
                renewed => return renewed,
            }
        }
    }
}
