//! What was seen of a cluster: plain data, which the findings judge without looking at anything else.

use std::fmt;

use crate::exposition::Exposition;
use crate::histogram::Histogram;
use crate::page::Page;

/// Why something of a cluster was not seen, in words for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    why: String,
    /// True if a look failed or was refused; false if there is nothing to look at, or it was not to be looked at.
    is_failure: bool,
}

impl Unseen {
    /// A look that failed for this reason. A cluster with such a look is not called healthy.
    pub fn because(why: impl fmt::Display) -> Unseen {
        Unseen { why: why.to_string(), is_failure: true }
    }

    /// A look that was left out for this reason: a server has no such page, or the user does not want it.
    pub fn left_out(why: impl fmt::Display) -> Unseen {
        Unseen { why: why.to_string(), is_failure: false }
    }

    /// Returns true if a look failed or was refused.
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

/// All of it. Where something could not be seen, the reason stands in its place.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Time of the collection, in seconds since 1970 by the clock here.
    pub taken_unix: f64,
    /// Facts about each member.
    pub members: Vec<Member>,
    /// `Ok` if all members that were to be looked at are in `members`; otherwise why some may be missing.
    pub complete: Result<(), Unseen>,
    /// Alarms raised.
    pub alarms: Result<Vec<Alarm>, Unseen>,
    /// Some keys with their sizes.
    pub sample: Result<Sample, Unseen>,
}

/// One member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Endpoint at which it was looked at.
    pub endpoint: String,
    /// Name in the member list; empty when unknown.
    pub name: String,
    /// Id of the member; 0 when unknown.
    pub id: u64,
    /// `Ok` if it was reached at all; otherwise the reason.
    pub reached: Result<(), Unseen>,
    /// Answer to Status.
    pub status: Result<Status, Unseen>,
    /// Metrics, read twice.
    pub metrics: Result<Metrics, Unseen>,
    /// The page `/debug/mainstay`; only Mainstay has one.
    pub page: Result<Page, Unseen>,
    /// Answer at `/version`.
    pub versions: Result<Versions, Unseen>,
    /// Wall clock of the member, relative to the clock here.
    pub clock: Result<Clock, Unseen>,
    /// Round-trip times from here.
    pub round_trips: Result<RoundTrips, Unseen>,
    /// Certificate of the member; `Ok(None)` without TLS.
    pub certificate: Result<Option<Certificate>, Unseen>,
}

/// A member's answer to Maintenance.Status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The cluster it says it belongs to.
    pub cluster_id: u64,
    /// Version of the member.
    pub version: String,
    /// Size of the database.
    pub db_bytes: f64,
    /// Bytes of it in use.
    pub db_bytes_in_use: f64,
    /// The quota; 0 when the server does not say.
    pub quota_bytes: f64,
    /// The leader's id; 0 without one.
    pub leader: u64,
    /// Raft's term.
    pub term: u64,
    /// Committed index.
    pub index: u64,
    /// Applied index.
    pub applied: u64,
    /// Time of the answer, in seconds since 1970 by the clock here.
    pub at_unix: f64,
    /// The committed index at the first look, and when that was.
    pub earlier: Option<(u64, f64)>,
    /// True if it is a learner.
    pub is_learner: bool,
    /// Errors that the member reports.
    pub errors: Vec<String>,
    /// The version a downgrade under way leads to.
    pub downgrade_target: Option<String>,
}

/// `/version`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Versions {
    /// The server's.
    pub server: String,
    /// The cluster's.
    pub cluster: String,
}

/// A member's clock less the clock here lies between these, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// At least.
    pub low: f64,
    /// At most.
    pub high: f64,
}

/// Times from here, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundTrips {
    /// To connect by TCP; one packet each way.
    pub connect: Vec<f64>,
    /// For a call that a member answers from memory.
    pub call: Vec<f64>,
}

/// A served certificate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// Time of its expiry, in seconds since 1970.
    pub not_after_unix: f64,
}

/// A raised alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member_id: u64,
    /// Which.
    pub kind: AlarmKind,
}

/// Etcd's alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmKind {
    /// The quota is used up.
    NoSpace,
    /// Members hold different data.
    Corrupt,
    /// One that is not known here.
    Other(i32),
}

/// Some keys: not all of them, and not at random.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Number of keys that were sampled.
    pub keys: usize,
    /// The largest values, falling: quoted key and bytes.
    pub largest: Vec<(String, f64)>,
}

/// A member's metrics at two times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// First.
    pub before: Exposition,
    /// Then.
    pub after: Exposition,
    /// Seconds between.
    pub seconds: f64,
}

/// Observations, and when they were made.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The observations.
    pub histogram: Histogram,
    /// True if these are of all the member's life, because too few were made while it was looked at.
    pub of_life: bool,
}

/// Observations in the time looked at that suffice to say something by.
const OBSERVATIONS_MIN: f64 = 20.0;
/// Observations since the start that suffice: their first are not like the others.
pub(crate) const OBSERVATIONS_OF_LIFE_MIN: f64 = 200.0;
/// Observations in the time looked at that suffice where only one is made every few seconds: probes of other members.
const PROBES_MIN: f64 = 2.0;
/// etcd observes two in half a minute, and up to 3.6 its smoothed round trip begins at nothing.
pub(crate) const PROBES_OF_LIFE_MIN: f64 = 10.0;

impl Metrics {
    /// From the two pages' texts.
    pub fn of(before: &str, after: &str, seconds: f64) -> Metrics {
        Metrics { before: Exposition::read(before), after: Exposition::read(after), seconds }
    }

    /// The latest value, summed over all series.
    pub fn now(&self, name: &str) -> Option<f64> {
        self.after.sum(name, &[])
    }

    /// Returns the increase of a counter. A server that was restarted in between counts from zero.
    pub fn grown(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let after = self.after.sum(name, labels)?;
        // A series may have come in between.
        let before = self.before.sum(name, labels).unwrap_or(0.0);
        Some(if after < before { after } else { after - before })
    }

    /// Returns the increase of a counter per second.
    pub fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        Some(self.grown(name, labels)? / self.seconds).filter(|rate| rate.is_finite())
    }

    /// A histogram's observations while it was looked at.
    pub fn recent(&self, name: &str, labels: &[(&str, &str)]) -> Option<Histogram> {
        let after = self.after.histogram(name, labels)?;
        Some(match self.before.histogram(name, labels) {
            Some(before) => after.since(&before),
            None => after,
        })
    }

    /// Returns what [`Metrics::recent`] does if those suffice, otherwise those since the start if they do.
    pub fn observed(&self, name: &str, labels: &[(&str, &str)]) -> Option<Observed> {
        self.enough(name, labels, OBSERVATIONS_MIN, OBSERVATIONS_OF_LIFE_MIN)
    }

    /// Like [`Metrics::observed`], of what is observed every few seconds only.
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

    /// Returns the values that a label has in a family, each once.
    pub fn values_of(&self, name: &str, label: &str) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for value in self.after.samples(name).iter().filter_map(|sample| sample.label(label)) {
            if !values.iter().any(|known| known == value) {
                values.push(value.to_owned());
            }
        }
        values
    }

    /// Returns the uptime of the member at the second look, in seconds.
    pub fn uptime(&self, taken_unix: f64) -> Option<f64> {
        let start = self.now("process_start_time_seconds")?;
        Some(taken_unix - start).filter(|uptime| *uptime >= 0.0)
    }
}

impl Observed {
    /// Which observations these are: `(240 in 10 s)`, `(4,000 since the start)`.
    pub fn span(&self, metrics: &Metrics) -> String {
        let count = crate::show::count(self.histogram.count);
        match self.of_life {
            true => format!("({count} since the start)"),
            false => format!("({count} in {:.0} s)", metrics.seconds),
        }
    }
}

impl Status {
    /// The index it had committed at this time, going by its two looks.
    pub fn index_at(&self, unix: f64) -> f64 {
        let last = self.index as f64;
        let Some((index, at)) = self.earlier.filter(|(_, at)| *at < self.at_unix) else { return last };
        let rate = (last - index as f64).max(0.0) / (self.at_unix - at);
        // Nobody knows what it committed since.
        last - rate * (self.at_unix - unix).max(0.0)
    }
}

impl Member {
    /// A member that could not be looked at.
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

    /// Returns the name of the member in texts.
    pub fn label(&self) -> String {
        match (self.name.is_empty(), self.endpoint.is_empty()) {
            (true, _) => self.endpoint.clone(),
            (false, true) => self.name.clone(),
            (false, false) => format!("{} ({})", self.name, self.endpoint),
        }
    }

    /// Returns true if it is Mainstay rather than etcd.
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
    /// The members that say something of themselves.
    pub fn statuses(&self) -> impl Iterator<Item = (&Member, &Status)> {
        self.members.iter().filter_map(|member| Some((member, member.status.as_ref().ok()?)))
    }

    /// The members whose metrics were seen.
    pub fn metrics(&self) -> impl Iterator<Item = (&Member, &Metrics)> {
        self.members.iter().filter_map(|member| Some((member, member.metrics.as_ref().ok()?)))
    }

    /// The members that have a page of their own.
    pub fn pages(&self) -> impl Iterator<Item = (&Member, &Page)> {
        self.members.iter().filter_map(|member| Some((member, member.page.as_ref().ok()?)))
    }

    /// The name of the member with this id, or the id in hex.
    pub fn name_of(&self, id: u64) -> String {
        let known = self.members.iter().find(|member| member.id == id && !member.name.is_empty());
        known.map_or_else(|| format!("member {id:x}"), |member| member.name.clone())
    }
}
