//! Defines the evidence that is collected from a cluster. It is plain data, so that the rules can judge it
//! without further requests.

use std::fmt;

use crate::exposition::Exposition;
use crate::histogram::Histogram;
use crate::page::Page;

/// Reason why some evidence is missing, as text for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    why: String,
    /// True if the attempt to get the evidence failed or was refused; false if the server has no such data,
    /// or the user does not want it.
    is_failure: bool,
}

impl Unseen {
    /// Creates the reason for an attempt that failed or was refused. A cluster with such a failure is never
    /// called healthy.
    pub fn because(why: impl fmt::Display) -> Unseen {
        Unseen { why: why.to_string(), is_failure: true }
    }

    /// Creates the reason for evidence that was not requested, or that the server does not have. It does not
    /// prevent the cluster from being called healthy.
    pub fn left_out(why: impl fmt::Display) -> Unseen {
        Unseen { why: why.to_string(), is_failure: false }
    }

    /// Returns true if the attempt failed or was refused.
    pub fn is_failure(&self) -> bool {
        self.is_failure
    }
}

impl From<&str> for Unseen {
    fn from(why: &str) -> Unseen {
        Unseen::because(why)
    }
}

impl From<String> for Unseen {
    fn from(why: String) -> Unseen {
        Unseen::because(why)
    }
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Unseen {}

/// All evidence about a cluster. A field whose evidence is missing contains the reason why.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Time of the collection, in seconds since 1970 by this machine's clock.
    pub taken_unix: f64,
    /// Evidence about each member.
    pub members: Vec<Member>,
    /// `Ok` if `members` contains all members to be examined; otherwise the reason why some may be missing.
    pub complete: Result<(), Unseen>,
    /// Raised alarms.
    pub alarms: Result<Vec<Alarm>, Unseen>,
    /// A sample of keys with their sizes.
    pub sample: Result<Sample, Unseen>,
}

/// Evidence about one member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Endpoint at which the member was examined.
    pub endpoint: String,
    /// Name in the member list; empty if unknown.
    pub name: String,
    /// Id of the member; 0 if unknown.
    pub id: u64,
    /// `Ok` if the member answered a status request or served its metrics; otherwise the reason why not.
    pub reached: Result<(), Unseen>,
    /// Response to the RPC `Maintenance.Status`.
    pub status: Result<Status, Unseen>,
    /// Metrics, read at the beginning and at the end of the time window.
    pub metrics: Result<Metrics, Unseen>,
    /// The page `/debug/mainstay`, which only Mainstay serves.
    pub page: Result<Page, Unseen>,
    /// Response to `/version`: the versions of the server and of the cluster.
    pub versions: Result<Versions, Unseen>,
    /// Wall clock of the member, relative to this machine's clock.
    pub clock: Result<Clock, Unseen>,
    /// Round-trip times from this machine.
    pub round_trips: Result<RoundTrips, Unseen>,
    /// Certificate of the member; `Ok(None)` without TLS.
    pub certificate: Result<Option<Certificate>, Unseen>,
}

/// A member's response to the RPC `Maintenance.Status`, as far as the rules use it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Id of the cluster that the member belongs to.
    pub cluster_id: u64,
    /// Version of the member.
    pub version: String,
    /// Size of the database in bytes.
    pub db_bytes: f64,
    /// Bytes of the database that are in use.
    pub db_bytes_in_use: f64,
    /// Quota in bytes; 0 if the server does not report it.
    pub quota_bytes: f64,
    /// Id of the leader; 0 without a leader.
    pub leader: u64,
    /// Raft term of the member.
    pub term: u64,
    /// Commit index of the member.
    pub index: u64,
    /// Applied index of the member.
    pub applied: u64,
    /// Time of the response, in seconds since 1970 by this machine's clock.
    pub at_unix: f64,
    /// Commit index at the first successful reading of the status, and the time of that reading in seconds
    /// since 1970; `None` if the status was not read repeatedly.
    pub earlier: Option<(u64, f64)>,
    /// True if the member is a learner.
    pub is_learner: bool,
    /// True if the member leads and counts the witness of the cluster.
    pub witness_counts: bool,
    /// Errors that the member reports.
    pub errors: Vec<String>,
    /// Target version of the downgrade in progress; `None` if there is none.
    pub downgrade_target: Option<String>,
}

/// A member's response to `/version`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Versions {
    /// Version of the server.
    pub server: String,
    /// Version of the cluster.
    pub cluster: String,
}

/// Bounds of a clock offset: the member's clock minus this machine's clock, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Lower bound of the offset, in seconds.
    pub low: f64,
    /// Upper bound of the offset, in seconds.
    pub high: f64,
}

/// Round-trip times from this machine, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundTrips {
    /// Times to open a TCP connection, which is one round trip of the network.
    pub connect: Vec<f64>,
    /// Times of a status request, which the member answers from memory, without disk or consensus.
    pub call: Vec<f64>,
}

/// Certificate that a server presents in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// Expiry time, in seconds since 1970.
    pub not_after_unix: f64,
}

/// A raised alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Id of the member that raised the alarm.
    pub member_id: u64,
    /// Kind of the alarm.
    pub kind: AlarmKind,
}

/// Kinds of etcd's alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmKind {
    /// The member's database has reached its quota.
    NoSpace,
    /// The data of members differs, or a member's data is damaged.
    Corrupt,
    /// An alarm that the doctor does not know; contains its number.
    Other(i32),
}

/// A sample of the keys. The keys are not chosen at random, so statistics about all keys must not be derived
/// from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Number of sampled keys.
    pub keys: usize,
    /// The largest values in descending order: the quoted key, and the size in bytes.
    pub largest: Vec<(String, f64)>,
}

/// Metrics of a member, read at the beginning and at the end of the time window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Metrics at the first reading.
    pub before: Exposition,
    /// Metrics at the second reading.
    pub after: Exposition,
    /// Time between the readings, in seconds.
    pub seconds: f64,
}

/// Observations of a histogram, and whether they were made between the two readings or since the member's
/// start.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The observations.
    pub histogram: Histogram,
    /// True if the histogram contains all observations since the member started, because there were too few
    /// between the two readings. False if it contains only those between the readings.
    pub of_life: bool,
}

/// Minimum number of observations between the two readings from which conclusions are drawn.
const OBSERVATIONS_MIN: f64 = 20.0;
/// Minimum number of observations since the member's start from which conclusions are drawn. It is higher
/// than [`OBSERVATIONS_MIN`], because observations shortly after the start are not typical and must not
/// dominate.
pub(crate) const OBSERVATIONS_OF_LIFE_MIN: f64 = 200.0;
/// Minimum number of probes between the two readings from which conclusions are drawn. It is low, because a
/// member makes a probe only every few seconds.
const PROBES_MIN: f64 = 2.0;
/// Minimum number of probes since the member's start from which conclusions are drawn. It is low, because
/// etcd makes only two probes in half a minute. It is not lower, because the smoothed round-trip time of etcd
/// before version 3.6 starts at 0, so the first values are too low.
pub(crate) const PROBES_OF_LIFE_MIN: f64 = 10.0;

impl Metrics {
    /// Parses the texts of both readings.
    pub fn of(before: &str, after: &str, seconds: f64) -> Metrics {
        Metrics { before: Exposition::read(before), after: Exposition::read(after), seconds }
    }

    /// Returns the value of a metric at the second reading, summed over all series.
    pub fn now(&self, name: &str) -> Option<f64> {
        self.after.sum(name, &[])
    }

    /// Returns the increase of a counter between the readings. If the counter is lower at the second reading,
    /// because the server restarted in between, returns its value at the second reading.
    pub fn grown(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let after = self.after.sum(name, labels)?;
        // A series that the first reading lacks appeared between the readings, so its count started from 0.
        let before = self.before.sum(name, labels).unwrap_or(0.0);
        Some(if after < before { after } else { after - before })
    }

    /// Returns the increase of a counter per second.
    pub fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        Some(self.grown(name, labels)? / self.seconds).filter(|rate| rate.is_finite())
    }

    /// Returns the observations of a histogram that were made between the readings.
    pub fn recent(&self, name: &str, labels: &[(&str, &str)]) -> Option<Histogram> {
        let after = self.after.histogram(name, labels)?;
        Some(match self.before.histogram(name, labels) {
            Some(before) => after.since(&before),
            None => after,
        })
    }

    /// Returns the observations that were made between the readings if there are at least 20. Otherwise
    /// returns all since the member's start if there are at least 200. Otherwise returns `None`.
    pub fn observed(&self, name: &str, labels: &[(&str, &str)]) -> Option<Observed> {
        self.enough(name, labels, OBSERVATIONS_MIN, OBSERVATIONS_OF_LIFE_MIN)
    }

    /// Does the same as [`Metrics::observed`], with lower minimums, for a histogram that is updated only
    /// every few seconds.
    pub fn probed(&self, name: &str, labels: &[(&str, &str)]) -> Option<Observed> {
        self.enough(name, labels, PROBES_MIN, PROBES_OF_LIFE_MIN)
    }

    fn enough(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        recent_min: f64,
        of_life_min: f64,
    ) -> Option<Observed> {
        let histogram = self.recent(name, labels)?;
        if histogram.count >= recent_min {
            return Some(Observed { histogram, of_life: false });
        }
        let histogram = self.after.histogram(name, labels)?;
        (histogram.count >= of_life_min).then_some(Observed { histogram, of_life: true })
    }

    /// Returns the distinct values of a label in a family of metrics.
    pub fn values_of(&self, name: &str, label: &str) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for value in self.after.samples(name).iter().filter_map(|sample| sample.label(label)) {
            if !values.iter().any(|known| known == value) {
                values.push(value.to_owned());
            }
        }
        values
    }

    /// Returns the time from the member's start to `taken_unix`, in seconds; `None` if the start is unknown
    /// or later.
    pub fn uptime(&self, taken_unix: f64) -> Option<f64> {
        let start = self.now("process_start_time_seconds")?;
        Some(taken_unix - start).filter(|uptime| *uptime >= 0.0)
    }
}

impl Observed {
    /// Returns the number of observations and their period as text, for example `(240 in 10 s)` or `(4,000
    /// since the start)`.
    pub fn span(&self, metrics: &Metrics) -> String {
        let count = crate::show::count(self.histogram.count);
        match self.of_life {
            true => format!("({count} since the start)"),
            false => format!("({count} in {:.0} s)", metrics.seconds),
        }
    }
}

impl Status {
    /// Estimates the member's commit index at the time `unix`, by linear interpolation between the first
    /// reading of its status and the last one.
    pub fn index_at(&self, unix: f64) -> f64 {
        let last = self.index as f64;
        let Some((index, at)) = self.earlier.filter(|(_, at)| *at < self.at_unix) else { return last };
        let rate = (last - index as f64).max(0.0) / (self.at_unix - at);
        // After the last reading the rate of commits is unknown, so assume no further commits.
        last - rate * (self.at_unix - unix).max(0.0)
    }
}

impl Member {
    /// Returns a member that could not be examined.
    pub fn unseen(endpoint: &str, name: &str, id: u64, why: &str) -> Member {
        let why = Unseen::from(why);
        Member {
            endpoint: endpoint.to_owned(),
            name: name.to_owned(),
            id,
            reached: Err(why.clone()),
            status: Err(why.clone()),
            metrics: Err(why.clone()),
            page: Err(why.clone()),
            versions: Err(why.clone()),
            clock: Err(why.clone()),
            round_trips: Err(why.clone()),
            certificate: Err(why),
        }
    }

    /// Returns the name and the endpoint of the member, as far as they are known, for messages.
    pub fn label(&self) -> String {
        match (self.name.is_empty(), self.endpoint.is_empty()) {
            (true, _) => self.endpoint.clone(),
            (false, true) => self.name.clone(),
            (false, false) => format!("{} ({})", self.name, self.endpoint),
        }
    }

    /// Returns true if the member runs Mainstay rather than etcd.
    pub fn is_mainstay(&self) -> bool {
        let of_rust = |metrics: &Metrics| {
            let versions = metrics.after.samples("etcd_server_go_version");
            versions.iter().any(|sample| {
                sample.label("server_go_version").is_some_and(|version| version.starts_with("rust"))
            })
        };
        self.page.is_ok() || self.metrics.as_ref().is_ok_and(of_rust)
    }
}

impl Evidence {
    /// Returns the members whose status is known.
    pub fn statuses(&self) -> impl Iterator<Item = (&Member, &Status)> {
        self.members.iter().filter_map(|member| Some((member, member.status.as_ref().ok()?)))
    }

    /// Returns the members whose metrics are known.
    pub fn metrics(&self) -> impl Iterator<Item = (&Member, &Metrics)> {
        self.members.iter().filter_map(|member| Some((member, member.metrics.as_ref().ok()?)))
    }

    /// Returns the members that serve Mainstay's own page.
    pub fn pages(&self) -> impl Iterator<Item = (&Member, &Page)> {
        self.members.iter().filter_map(|member| Some((member, member.page.as_ref().ok()?)))
    }

    /// Returns the name of the member with this id, or the id in hexadecimal.
    pub fn name_of(&self, id: u64) -> String {
        let known = self.members.iter().find(|member| member.id == id && !member.name.is_empty());
        known.map_or_else(|| format!("member {id:x}"), |member| member.name.clone())
    }
}
