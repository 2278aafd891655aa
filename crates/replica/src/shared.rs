//! State that all threads of a member share ([`Shared`]), divided by subject: identity and options of the
//! member ([`Member`]), the newest published state ([`Published`]), the queues to and from the core
//! ([`CoreQueues`]), and the other parts that are fields of [`Shared`].

mod clients;
mod cluster;
mod core_queues;
mod data;
mod diagnostics;
mod ids;
mod member;
mod published;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::{Code, Status, error};
use arc_swap::ArcSwap;

use crate::renewals::Renewals;

pub use clients::{Clients, Draining};
pub use cluster::Cluster;
use cluster::Leadership;
pub use core_queues::{CoreQueues, LogEventQueue};
pub use data::Data;
pub use diagnostics::{CoreMemory, Diagnostics};
pub use ids::Ids;
pub use member::{Limits, Member};
pub use published::Published;

/// Error for a proposal that timed out and was never proposed, because no leader was known from its arrival
/// to its timeout.
const NEVER_PROPOSED: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// The state that all threads of a member share. Every field is completely built before the member runs;
/// later only atomics, locks and cells inside the fields change. The fields are stored by value, so that a
/// thread reaches each of them through the single pointer that it holds.
pub struct Shared {
    /// Identity and options of this member.
    pub member: Member,
    /// Rules for the requests of clients, and the memory that clients may use.
    pub clients: Clients,
    /// The newest published state. Only the core replaces it.
    pub state: ArcSwap<Published>,
    /// Queues to and from the core.
    pub core: CoreQueues,
    /// Connections with the other members, and which of them leads.
    pub cluster: Cluster,
    /// Access to the member's data on disk.
    pub data: Data,
    /// Metrics and records of the member's work.
    pub diagnostics: Diagnostics,
    /// Renewals of leases by shards, without the core.
    pub renewals: Arc<Renewals>,
    /// Source of new ids.
    pub ids: Ids,
    /// Time at which the newest ReadIndex round began that the published state satisfies, in nanoseconds
    /// since the start of the member; 0 for none.
    confirmed_as_of: AtomicU64,
}

impl Shared {
    /// Builds the shared state from its parts. `seed` makes request and lease ids differ between two runs of
    /// the member.
    pub fn new(
        member: Member,
        clients: Clients,
        state: Published,
        core: CoreQueues,
        data: Data,
        diagnostics: Diagnostics,
        seed: u64,
    ) -> Shared {
        Shared {
            state: ArcSwap::from_pointee(state),
            core,
            cluster: Cluster::default(),
            renewals: Arc::new(Renewals::new(member.clock.now())),
            ids: Ids::new(member.identity.member_id, seed),
            member,
            clients,
            data,
            diagnostics,
            confirmed_as_of: AtomicU64::new(0),
        }
    }

    /// Records that the published state satisfies a ReadIndex round that began at this time: it contains every
    /// write that was acknowledged before. The core calls this after the publication.
    pub(crate) fn confirm_as_of(&self, began: Instant) {
        let nanos = began.saturating_duration_since(self.member.began).as_nanos();
        self.confirmed_as_of.fetch_max(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Returns a time such that the published state contains every write that was acknowledged before it, by
    /// any member; `None` if no such time is known.
    pub fn confirmed_as_of(&self) -> Option<Instant> {
        let nanos = self.confirmed_as_of.load(Ordering::Acquire);
        (nanos > 0).then(|| self.member.began + Duration::from_nanos(nanos))
    }

    /// Returns etcd's error for a proposal made at `since` that was not answered in time. The message of the
    /// error depends on whether the leader, or the connection to the leader, was lost since then.
    pub fn timed_out(&self, since: Instant) -> Status {
        let Leadership { leader, elected, lost } = self.cluster.leadership();
        if leader == 0 && lost.is_none_or(|lost| lost <= since) {
            return NEVER_PROPOSED;
        }
        if let Some(elected) = elected
            && since < elected
            && since + 2 * self.member.limits.election_timeout > elected
        {
            return error::TIMEOUT_DUE_TO_LEADER_FAIL;
        }
        let connected = |id: u64| {
            id == self.member.identity.member_id
                || self.cluster.peers().is_some_and(|p| p.active_since(id).is_some_and(|at| at <= since))
        };
        let reached = match leader {
            0 => true,
            leader if leader == self.member.identity.member_id => {
                let voters = self.state.load().members.voters();
                voters.iter().filter(|id| connected(**id)).count() > voters.len() / 2
            }
            leader => connected(self.cluster.way_to(leader)),
        };
        if reached { error::TIMEOUT } else { error::TIMEOUT_DUE_TO_CONNECTION_LOST }
    }
}
