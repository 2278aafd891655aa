//! Defines the limits beyond which the rules report a problem, and the flags of `doctor` that set them.

use std::time::Duration;

use cli::{Flag, FlagRow, Matches};

/// The limits beyond which the rules report a problem. Each has a flag `--limit-...`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Limit for the 99th percentile of the fsyncs of the write-ahead log, in seconds.
    pub fsync: f64,
    /// Limit for the 99th percentile of the backend's commits, in seconds.
    pub commit: f64,
    /// Limit for a single fsync of the write-ahead log, in seconds.
    pub stall: f64,
    /// Limit for the 99th percentile of the round-trip time between members, in seconds.
    pub peer_rtt: f64,
    /// Limit for the number of leader changes within a quarter of an hour.
    pub leader_changes: f64,
    /// Limit for the number of keys that one range request returns.
    pub range_keys: f64,
    /// Limit for the size of one response, in bytes.
    pub range_bytes: f64,
    /// Limit for the time that a range request takes, in seconds.
    pub range_time: f64,
    /// Limit for the size of a value, in bytes.
    pub value_bytes: f64,
    /// Limit for the number of revisions that have not been compacted.
    pub revisions: f64,
    /// Limit for the share of the database file that is not in use, from 0 to 1.
    pub fragmentation: f64,
    /// Limit for the used share of the quota, from 0 to 1.
    pub quota: f64,
    /// Limit for the number of `Authenticate` calls per second.
    pub authentications: f64,
    /// Limit for the number of watches on one connection.
    pub watches: f64,
    /// Limit for the number of leases that one client keeps alive.
    pub leases: f64,
    /// Limit for the share of the requests that the busiest member serves, as a multiple of the share that it
    /// would have if all members served equally many.
    pub imbalance: f64,
    /// Number of requests per second of the whole cluster below which their distribution over the members is
    /// not judged.
    pub imbalance_rate: f64,
    /// Limit for the difference between two clocks, in seconds.
    pub clock: f64,
    /// Remaining validity of a certificate, in seconds, below which the certificate is reported.
    pub certificate: f64,
    /// Limit for three backlogs of a member: committed entries that it has not applied yet, pending
    /// proposals, and requests without a response.
    pub backlog: f64,
    /// Limit for the used share of the processors, from 0 to 1.
    pub cpu: f64,
    /// Limit for the used share of the file descriptors, from 0 to 1.
    pub descriptors: f64,
    /// Limit for the number of entries by which a member may lag behind the leader.
    pub behind: f64,
    /// Limit for the median time of a call that needs no work, without the network's round-trip time, in
    /// seconds.
    pub answer: f64,
}

const LIMIT_FSYNC: Flag<Duration> = Flag::duration("limit-fsync", "10ms", "p99 of syncing the log");
const LIMIT_COMMIT: Flag<Duration> = Flag::duration("limit-commit", "25ms", "p99 of a backend commit");
const LIMIT_STALL: Flag<Duration> = Flag::duration("limit-stall", "1s", "a single sync of the log");
const LIMIT_PEER_RTT: Flag<Duration> =
    Flag::duration("limit-peer-rtt", "100ms", "p99 of the round trip between members");
const LIMIT_LEADER_CHANGES: Flag<f64> =
    Flag::float("limit-leader-changes", "3", "leader changes within a quarter of an hour");
const LIMIT_RANGE_KEYS: Flag<f64> = Flag::float("limit-range-keys", "5000", "keys in one answer");
const LIMIT_RANGE_BYTES: Flag<f64> = Flag::float("limit-range-bytes", "1048576", "bytes in one answer");
const LIMIT_RANGE_TIME: Flag<Duration> = Flag::duration("limit-range-time", "100ms", "p99 of a range");
const LIMIT_VALUE_BYTES: Flag<f64> = Flag::float("limit-value-bytes", "102400", "bytes of a value");
const LIMIT_REVISIONS: Flag<f64> =
    Flag::float("limit-revisions", "100000", "revisions kept and not compacted");
const LIMIT_FRAGMENTATION: Flag<f64> =
    Flag::float("limit-fragmentation", "0.5", "share of the database that is not in use");
const LIMIT_QUOTA: Flag<f64> = Flag::float("limit-quota", "0.8", "share of the quota in use");
const LIMIT_AUTHENTICATIONS: Flag<f64> =
    Flag::float("limit-authentications", "1", "authentications per second");
const LIMIT_WATCHES: Flag<f64> = Flag::float("limit-watches", "5000", "watches on one connection");
const LIMIT_LEASES: Flag<f64> = Flag::float("limit-leases", "5000", "leases of one client");
const LIMIT_IMBALANCE: Flag<f64> =
    Flag::float("limit-imbalance", "2", "requests at one member, in multiples of an equal share");
const LIMIT_IMBALANCE_RATE: Flag<f64> =
    Flag::float("limit-imbalance-rate", "50", "requests per second from which on their balance is checked");
const LIMIT_CLOCK: Flag<Duration> =
    Flag::duration("limit-clock", "500ms", "difference between the clocks of members");
const LIMIT_CERTIFICATE: Flag<Duration> =
    Flag::duration("limit-certificate", "720h0m0s", "remaining time of a certificate");
const LIMIT_BACKLOG: Flag<f64> =
    Flag::float("limit-backlog", "500", "entries committed and not applied, or proposals waiting");
const LIMIT_CPU: Flag<f64> = Flag::float("limit-cpu", "0.85", "share of the processors in use");
const LIMIT_DESCRIPTORS: Flag<f64> =
    Flag::float("limit-descriptors", "0.8", "share of the file descriptors in use");
const LIMIT_BEHIND: Flag<f64> = Flag::float("limit-behind", "5000", "entries a member is behind the leader");
const LIMIT_ANSWER: Flag<Duration> = Flag::duration(
    "limit-answer",
    "50ms",
    "median of a call that needs no work, beyond the time of the network",
);

/// The flags that set the limits, with their default values.
pub(crate) const FLAGS: &[FlagRow] = &[
    LIMIT_FSYNC.row(),
    LIMIT_COMMIT.row(),
    LIMIT_STALL.row(),
    LIMIT_PEER_RTT.row(),
    LIMIT_LEADER_CHANGES.row(),
    LIMIT_RANGE_KEYS.row(),
    LIMIT_RANGE_BYTES.row(),
    LIMIT_RANGE_TIME.row(),
    LIMIT_VALUE_BYTES.row(),
    LIMIT_REVISIONS.row(),
    LIMIT_FRAGMENTATION.row(),
    LIMIT_QUOTA.row(),
    LIMIT_AUTHENTICATIONS.row(),
    LIMIT_WATCHES.row(),
    LIMIT_LEASES.row(),
    LIMIT_IMBALANCE.row(),
    LIMIT_IMBALANCE_RATE.row(),
    LIMIT_CLOCK.row(),
    LIMIT_CERTIFICATE.row(),
    LIMIT_BACKLOG.row(),
    LIMIT_CPU.row(),
    LIMIT_DESCRIPTORS.row(),
    LIMIT_BEHIND.row(),
    LIMIT_ANSWER.row(),
];

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            fsync: 0.010,
            commit: 0.025,
            stall: 1.0,
            peer_rtt: 0.1,
            leader_changes: 3.0,
            range_keys: 5000.0,
            range_bytes: 1_048_576.0,
            range_time: 0.1,
            value_bytes: 102_400.0,
            revisions: 100_000.0,
            fragmentation: 0.5,
            quota: 0.8,
            authentications: 1.0,
            watches: 5000.0,
            leases: 5000.0,
            imbalance: 2.0,
            imbalance_rate: 50.0,
            clock: 0.5,
            certificate: 720.0 * 3600.0,
            backlog: 500.0,
            cpu: 0.85,
            descriptors: 0.8,
            behind: 5000.0,
            answer: 0.05,
        }
    }
}

impl Limits {
    pub(crate) fn of(matches: &Matches) -> Limits {
        let seconds = |flag| Duration::as_secs_f64(&matches.get(flag));
        Limits {
            fsync: seconds(LIMIT_FSYNC),
            commit: seconds(LIMIT_COMMIT),
            stall: seconds(LIMIT_STALL),
            peer_rtt: seconds(LIMIT_PEER_RTT),
            leader_changes: matches.get(LIMIT_LEADER_CHANGES),
            range_keys: matches.get(LIMIT_RANGE_KEYS),
            range_bytes: matches.get(LIMIT_RANGE_BYTES),
            range_time: seconds(LIMIT_RANGE_TIME),
            value_bytes: matches.get(LIMIT_VALUE_BYTES),
            revisions: matches.get(LIMIT_REVISIONS),
            fragmentation: matches.get(LIMIT_FRAGMENTATION),
            quota: matches.get(LIMIT_QUOTA),
            authentications: matches.get(LIMIT_AUTHENTICATIONS),
            watches: matches.get(LIMIT_WATCHES),
            leases: matches.get(LIMIT_LEASES),
            imbalance: matches.get(LIMIT_IMBALANCE),
            imbalance_rate: matches.get(LIMIT_IMBALANCE_RATE),
            clock: seconds(LIMIT_CLOCK),
            certificate: seconds(LIMIT_CERTIFICATE),
            backlog: matches.get(LIMIT_BACKLOG),
            cpu: matches.get(LIMIT_CPU),
            descriptors: matches.get(LIMIT_DESCRIPTORS),
            behind: matches.get(LIMIT_BEHIND),
            answer: seconds(LIMIT_ANSWER),
        }
    }
}
