//! From where on something is worth a word.

use std::time::Duration;

use cli::{Flag, Matches};

/// The limits; each is a flag.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// p99 of a sync of the log, in seconds.
    pub fsync: f64,
    /// p99 of a backend commit, in seconds.
    pub commit: f64,
    /// A single sync of the log, in seconds.
    pub stall: f64,
    /// p99 of the round trip between members, in seconds.
    pub peer_rtt: f64,
    /// Changes of leader within a quarter of an hour.
    pub leader_changes: f64,
    /// Keys of a single range.
    pub range_keys: f64,
    /// Bytes of a single answer.
    pub range_bytes: f64,
    /// p99 of a range, in seconds.
    pub range_time: f64,
    /// Bytes of a value.
    pub value_bytes: f64,
    /// Revisions kept.
    pub revisions: f64,
    /// Share of the database that is not in use.
    pub fragmentation: f64,
    /// Share of the quota.
    pub quota: f64,
    /// Authentications per second.
    pub authentications: f64,
    /// Watches on one connection.
    pub watches: f64,
    /// Leases of one client.
    pub leases: f64,
    /// Share of the busiest member, in multiples of an even share.
    pub imbalance: f64,
    /// Requests per second from which on their balance is judged.
    pub imbalance_rate: f64,
    /// Difference between clocks, in seconds.
    pub clock: f64,
    /// Time left to a certificate, in seconds.
    pub certificate: f64,
    /// Committed entries not applied, or proposals waiting.
    pub backlog: f64,
    /// Share of the processors in use.
    pub cpu: f64,
    /// Share of the file descriptors in use.
    pub descriptors: f64,
    /// Entries a member may be behind the leader.
    pub behind: f64,
    /// Median of a call that needs no work, beyond the network's own time, in seconds.
    pub answer: f64,
}

/// The flags, with the limits that are the default.
pub(crate) const FLAGS: &[Flag] = &[
    Flag::duration("limit-fsync", "10ms", "p99 of syncing the log"),
    Flag::duration("limit-commit", "25ms", "p99 of a backend commit"),
    Flag::duration("limit-stall", "1s", "a single sync of the log"),
    Flag::duration("limit-peer-rtt", "100ms", "p99 of the round trip between members"),
    Flag::float("limit-leader-changes", "3", "changes of leader within a quarter of an hour"),
    Flag::float("limit-range-keys", "5000", "keys in one answer"),
    Flag::float("limit-range-bytes", "1048576", "bytes in one answer"),
    Flag::duration("limit-range-time", "100ms", "p99 of a range"),
    Flag::float("limit-value-bytes", "102400", "bytes of a value"),
    Flag::float("limit-revisions", "100000", "revisions kept and not compacted"),
    Flag::float("limit-fragmentation", "0.5", "share of the database that is not in use"),
    Flag::float("limit-quota", "0.8", "share of the quota in use"),
    Flag::float("limit-authentications", "1", "authentications per second"),
    Flag::float("limit-watches", "5000", "watches on one connection"),
    Flag::float("limit-leases", "5000", "leases of one client"),
    Flag::float("limit-imbalance", "2", "requests at one member, in multiples of an even share"),
    Flag::float("limit-imbalance-rate", "50", "requests per second from which on their balance is judged"),
    Flag::duration("limit-clock", "500ms", "difference between the clocks of members"),
    Flag::duration("limit-certificate", "720h0m0s", "time left to a certificate"),
    Flag::float("limit-backlog", "500", "entries committed and not applied, or proposals waiting"),
    Flag::float("limit-cpu", "0.85", "share of the processors in use"),
    Flag::float("limit-descriptors", "0.8", "share of the file descriptors in use"),
    Flag::float("limit-behind", "5000", "entries a member is behind the leader"),
    Flag::duration(
        "limit-answer",
        "50ms",
        "median of a call that needs no work, beyond the network's own time",
    ),
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
        let seconds = |name: &str| Duration::as_secs_f64(&matches.duration(name));
        Limits {
            fsync: seconds("limit-fsync"),
            commit: seconds("limit-commit"),
            stall: seconds("limit-stall"),
            peer_rtt: seconds("limit-peer-rtt"),
            leader_changes: matches.float("limit-leader-changes"),
            range_keys: matches.float("limit-range-keys"),
            range_bytes: matches.float("limit-range-bytes"),
            range_time: seconds("limit-range-time"),
            value_bytes: matches.float("limit-value-bytes"),
            revisions: matches.float("limit-revisions"),
            fragmentation: matches.float("limit-fragmentation"),
            quota: matches.float("limit-quota"),
            authentications: matches.float("limit-authentications"),
            watches: matches.float("limit-watches"),
            leases: matches.float("limit-leases"),
            imbalance: matches.float("limit-imbalance"),
            imbalance_rate: matches.float("limit-imbalance-rate"),
            clock: seconds("limit-clock"),
            certificate: seconds("limit-certificate"),
            backlog: matches.float("limit-backlog"),
            cpu: matches.float("limit-cpu"),
            descriptors: matches.float("limit-descriptors"),
            behind: matches.float("limit-behind"),
            answer: seconds("limit-answer"),
        }
    }
}
