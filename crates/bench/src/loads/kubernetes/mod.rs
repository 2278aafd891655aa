//! Defines the load of `kubernetes`: what the API servers of a Kubernetes cluster of many nodes ask of etcd.
//!
//! Contents: what the cluster is like ([`Cluster`]); when its operations are due ([`schedule`]); its keys and
//! values ([`objects`]); requests and responses ([`wire`]); the API servers ([`state`]) and their measurement
//! ([`fleet`]); what counts as carried ([`verdict`]); and the search for the largest such cluster ([`search`]).
//!
//! Invariants, and the tests that check them:
//! * The schedule is open: an operation is due whatever the server does, and its latency counts from then. An
//!   object has one write in flight at most: a renewal that finds the last one unanswered is counted as
//!   skipped, and any other write waits for it (`tests/it/kubernetes.rs`).
//! * Each write compares the revision that the last write of the object returned. At a correct server the
//!   comparison succeeds (`tests/it/kubernetes.rs`, `mainstay/tests/it/kubernetes.rs`).
//! * Each API server receives an event for each write, and for nothing else. Numbers of events and sums of
//!   their revisions must be equal to those of the writes ([`known::Tally`]).
//! * A node takes 16 bytes, and a pod 8: there is no task, connection or timer for each of them.

pub mod fleet;
pub mod known;
mod lists;
pub mod measured;
pub mod objects;
mod population;
pub mod schedule;
pub mod search;
pub mod state;
pub mod verdict;
pub mod wire;

use std::time::Duration;

use objects::{Contents, Sizes};

/// A resource that the load writes and the API servers watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Leases of nodes.
    Leases,
    /// Nodes.
    Nodes,
    /// Pods.
    Pods,
    /// Events of the cluster.
    Events,
}

/// Prefixes of the keys of all resources that an API server lists and watches. The first ones are those of
/// [`Resource`], in its order; the others exist in a cluster, but are hardly ever written.
pub const PREFIXES: [&str; 44] = [
    "/registry/leases/",
    "/registry/minions/",
    "/registry/pods/",
    "/registry/events/",
    "/registry/apiextensions.k8s.io/customresourcedefinitions/",
    "/registry/apiregistration.k8s.io/apiservices/",
    "/registry/certificatesigningrequests/",
    "/registry/clusterrolebindings/",
    "/registry/clusterroles/",
    "/registry/configmaps/",
    "/registry/controllerrevisions/",
    "/registry/controllers/",
    "/registry/cronjobs/",
    "/registry/csidrivers/",
    "/registry/csinodes/",
    "/registry/csistoragecapacities/",
    "/registry/daemonsets/",
    "/registry/deployments/",
    "/registry/endpointslices/",
    "/registry/flowschemas/",
    "/registry/horizontalpodautoscalers/",
    "/registry/ingress/",
    "/registry/ingressclasses/",
    "/registry/jobs/",
    "/registry/limitranges/",
    "/registry/mutatingwebhookconfigurations/",
    "/registry/namespaces/",
    "/registry/networkpolicies/",
    "/registry/persistentvolumeclaims/",
    "/registry/persistentvolumes/",
    "/registry/poddisruptionbudgets/",
    "/registry/podtemplates/",
    "/registry/priorityclasses/",
    "/registry/prioritylevelconfigurations/",
    "/registry/replicasets/",
    "/registry/resourcequotas/",
    "/registry/rolebindings/",
    "/registry/roles/",
    "/registry/secrets/",
    "/registry/serviceaccounts/",
    "/registry/services/endpoints/",
    "/registry/services/specs/",
    "/registry/statefulsets/",
    "/registry/storageclasses/",
];

/// Number of resources that the load writes.
pub const WRITTEN: usize = 4;

/// Kind of operation. Each has its own measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A node renews its lease.
    Renewal,
    /// A node reports its status.
    Status,
    /// A pod is created.
    PodCreate,
    /// A pod is bound, reports its status, or is marked as deleted.
    PodUpdate,
    /// A pod is deleted.
    PodDelete,
    /// An event is created, with a lease.
    Event,
    /// A lease for events is granted.
    Grant,
    /// An API server reads the current revision, for a list that must be up to date.
    Read,
    /// An API server asks its watches how far they are.
    Progress,
    /// An API server tries to become the one that compacts.
    CompactTxn,
    /// A compaction.
    Compact,
    /// A write reaches the watch of an API server.
    Delivery,
}

/// Names of all kinds, in their order.
pub const KINDS: [&str; 12] = [
    "lease renewal",
    "node status",
    "pod create",
    "pod update",
    "pod delete",
    "event",
    "lease grant",
    "revision read",
    "progress request",
    "compaction txn",
    "compaction",
    "event delivery",
];

/// What the cluster is like.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Number of API servers. Each has one connection, with one watch stream.
    pub api_servers: usize,
    /// Pods on each node.
    pub pods_per_node: f64,
    /// Interval at which a node renews its lease.
    pub lease_interval: Duration,
    /// Interval at which a node reports its status.
    pub status_interval: Duration,
    /// Mean time after which a pod is replaced by a new one; zero if no pods change.
    pub pod_lifetime: Duration,
    /// Time for which an event is kept.
    pub event_ttl: Duration,
    /// Interval at which the API servers compact; zero if they do not.
    pub compaction_interval: Duration,
    /// Interval at which each API server reads the revision and asks for progress; zero if none does.
    pub progress_interval: Duration,
    /// Number of keys in a page of a list, if the server has no RangeStream.
    pub page_keys: u64,
    /// True if the API servers watch events too.
    pub watches_events: bool,
    /// Seed of the objects.
    pub seed: u64,
    /// Contents of the values.
    pub contents: Contents,
    /// Sizes of nodes.
    pub node_sizes: Sizes,
    /// Sizes of pods.
    pub pod_sizes: Sizes,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            api_servers: 3,
            pods_per_node: 30.0,
            lease_interval: Duration::from_secs(10),
            status_interval: Duration::from_secs(300),
            pod_lifetime: Duration::from_secs(7200),
            event_ttl: Duration::from_secs(3600),
            compaction_interval: Duration::from_secs(300),
            progress_interval: Duration::from_millis(100),
            page_keys: 500,
            watches_events: true,
            seed: 1,
            contents: Contents::Realistic,
            node_sizes: Sizes { min: 10 << 10, max: 20 << 10 },
            pod_sizes: Sizes { min: 10 << 10, max: 70 << 10 },
        }
    }
}

impl Cluster {
    /// Returns the number of pods on this many nodes.
    pub fn pods(&self, nodes: u64) -> u64 {
        (nodes as f64 * self.pods_per_node).round() as u64
    }

    /// Returns the seconds from the replacement of one pod to that of the next; infinite if no pods change.
    pub fn replacement_period(&self, nodes: u64) -> f64 {
        let pods = self.pods(nodes);
        if pods == 0 || self.pod_lifetime.is_zero() {
            return f64::INFINITY;
        }
        self.pod_lifetime.as_secs_f64() / pods as f64
    }

    /// Returns the operations per second that this many nodes cause, without those of the API servers
    /// themselves.
    pub fn rate(&self, nodes: u64) -> f64 {
        let each = |interval: Duration| nodes as f64 / interval.as_secs_f64();
        let lives = 1.0 / self.replacement_period(nodes);
        each(self.lease_interval) + each(self.status_interval) + lives * state::LIFE.len() as f64
    }
}
