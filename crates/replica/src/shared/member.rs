//! The member itself ([`Member`]): its identity, its clock, and its limits for requests.

use std::time::{Duration, Instant};

use api::etcdserverpb::ResponseHeader;
use clock::Clock;
use numbers::{Revision, Seconds, Term};
use storage::Identity;

use crate::autopilot::AutopilotOptions;

/// Identity and options of a member, which do not change while it runs.
pub struct Member {
    /// Ids of this member and its cluster.
    pub identity: Identity,
    /// Version of the etcd release whose API this member offers.
    pub api_version: &'static str,
    /// Commit from which the program was built, in hexadecimal; `None` if it is unknown.
    pub commit: Option<&'static str>,
    /// Zone of this member, as set by its flag; empty if none is set.
    pub zone: String,
    /// True if this is an observer and no member of the cluster.
    pub observes: bool,
    /// Options of the autopilot.
    pub autopilot: AutopilotOptions,
    /// True if this member is a witness: it votes, keeps no keys and never leads.
    pub is_witness: bool,
    /// Limits and intervals for requests.
    pub limits: Limits,
    /// The member's clock.
    pub clock: Clock,
    /// Time when the member was started.
    pub began: Instant,
    /// True if the member may start threads. If false, the calling thread does long work itself.
    pub threads: bool,
}

impl Member {
    /// Returns a member that offers the API of the newest release, has no zone, and starts now by the
    /// system's clock.
    pub fn new(identity: Identity, limits: Limits) -> Member {
        let clock = Clock::real();
        Member {
            identity,
            api_version: api::API_VERSION,
            commit: None,
            zone: String::new(),
            observes: false,
            autopilot: AutopilotOptions::off(),
            is_witness: false,
            limits,
            began: clock.now(),
            clock,
            threads: true,
        }
    }

    /// Returns the header of a response of this member.
    pub fn header(&self, revision: Revision, raft_term: Term) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision: revision.0,
            raft_term: raft_term.0,
        }
    }
}

/// Limits and intervals for requests.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum size of a proposal in bytes.
    pub request_bytes_max: usize,
    /// Maximum number of operations in a transaction.
    pub txn_ops_max: usize,
    /// Maximum bytes of keys and values in the store; `None` for no limit.
    pub quota_bytes: Option<u64>,
    /// Time after which a request that was not answered fails with etcd's timeout error.
    pub request_timeout: Duration,
    /// Minimum time that a follower waits for a leader before it starts an election.
    pub election_timeout: Duration,
    /// Minimum TTL of a lease when this member leads, in seconds.
    pub lease_ttl_min: Seconds,
    /// Interval between two progress notifications of a watch.
    pub progress_interval: Duration,
    /// Minimum duration of a request that is logged as slow.
    pub slow_request: Duration,
    /// Minimum duration of a range that is logged as slow.
    pub slow_apply: Duration,
    /// True if the duration of every call is measured (`--metrics extensive`); false if that of a sample is.
    pub times_calls: bool,
}
