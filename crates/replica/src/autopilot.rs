//! What the autopilot of the leader is told and what it tells: its options, the reports that members make about
//! themselves ([`MemberReport`]), the steps that it takes, and its state as clients see it ([`AutopilotState`]).
//! The decisions are in `core/autopilot.rs`.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// Path at which a member reports about itself to the leader's autopilot (GET on its peer URLs).
pub const AUTOPILOT: &str = "/mainstay/autopilot";
/// Interval at which the leader asks the members for their reports.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of steps that the state keeps, newest last.
pub const STEPS_MAX: usize = 32;
/// Maximum bytes of a zone's name, and maximum number of buckets of a histogram, in a report.
const ZONE_BYTES_MAX: usize = 64;
const BUCKETS_MAX: usize = 64;

/// Degree to which the autopilot of a leader acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It does nothing, and decides nothing.
    #[default]
    Off,
    /// It decides, and logs what it would do.
    DryRun,
    /// It acts.
    On,
}

impl Mode {
    /// Returns the value of the flag `--autopilot`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::DryRun => "dry-run",
            Mode::On => "on",
        }
    }
}

/// Options of the autopilot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutopilotOptions {
    /// Mode of the autopilot while this member leads.
    pub mode: Mode,
    /// Time without an answer after which a member counts as gone for good.
    pub replace_after: Duration,
    /// Minimum time between two steps.
    pub interval: Duration,
    /// True if this member, as a learner, waits until it is needed.
    pub is_standby: bool,
}

impl AutopilotOptions {
    /// Returns the default options, with which the autopilot is off.
    pub fn off() -> AutopilotOptions {
        AutopilotOptions {
            mode: Mode::Off,
            replace_after: Duration::from_secs(600),
            interval: Duration::from_secs(30),
            is_standby: false,
        }
    }
}

/// What a member says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// True if the member, as a learner, is not promoted before it is needed.
    pub is_standby: bool,
    /// True while the member sends all its clients elsewhere.
    pub drains: bool,
    /// Name of the member's zone; empty if it has none.
    pub zone: String,
    /// Number of open connections of clients.
    pub clients: u64,
    /// Number of syncs of the log since the start, by duration: the buckets of [`log::DURATION_BOUNDS_S`], not
    /// cumulative. Empty if the member does not measure them.
    pub syncs: Vec<u64>,
}

impl MemberReport {
    /// Returns the report as JSON.
    pub fn to_json(&self) -> String {
        json!({
            "standby": self.is_standby,
            "drains": self.drains,
            "zone": self.zone,
            "clients": self.clients,
            "syncs": self.syncs,
        })
        .to_string()
    }

    /// Reads a report. Returns `None` if the text is not one.
    pub fn from_json(body: &[u8]) -> Option<MemberReport> {
        let value: Value = serde_json::from_slice(body).ok()?;
        let zone = value["zone"].as_str().filter(|zone| zone.len() <= ZONE_BYTES_MAX)?;
        let syncs = value["syncs"].as_array().filter(|buckets| buckets.len() <= BUCKETS_MAX)?;
        Some(MemberReport {
            is_standby: value["standby"].as_bool()?,
            drains: value["drains"].as_bool()?,
            zone: zone.to_owned(),
            clients: value["clients"].as_u64()?,
            syncs: syncs.iter().map(Value::as_u64).collect::<Option<_>>()?,
        })
    }
}

/// A change that the autopilot makes. Members are named by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes this learner a voter.
    Promote(u64),
    /// Removes this member.
    Remove(u64),
    /// Moves leadership to this member.
    MoveLeader(u64),
    /// Disarms the CORRUPT alarm of this member, which is no longer in the cluster.
    Disarm(u64),
}

impl Step {
    /// Returns the name of the kind of step, which metrics and pages use.
    pub fn kind(self) -> &'static str {
        match self {
            Step::Promote(_) => "promote",
            Step::Remove(_) => "remove",
            Step::MoveLeader(_) => "move-leader",
            Step::Disarm(_) => "disarm",
        }
    }

    /// Returns the member that the step is about.
    pub fn member(self) -> u64 {
        match self {
            Step::Promote(id) | Step::Remove(id) | Step::MoveLeader(id) | Step::Disarm(id) => id,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:x}", self.kind(), self.member())
    }
}

/// How a step has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The step was only logged, because the mode is [`Mode::DryRun`].
    DryRun,
    /// The step is under way.
    Open,
    /// The step is done.
    Done,
    /// The step had no effect.
    Failed,
}

impl StepOutcome {
    /// Returns the name that metrics and pages use.
    pub fn name(self) -> &'static str {
        match self {
            StepOutcome::DryRun => "dry-run",
            StepOutcome::Open => "open",
            StepOutcome::Done => "done",
            StepOutcome::Failed => "failed",
        }
    }
}

/// A step in the list of the last ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Time of the step, in milliseconds since 1970.
    pub at_ms: u64,
    /// The step.
    pub step: Step,
    /// One sentence that says why.
    pub why: String,
    /// Outcome of the step.
    pub outcome: StepOutcome,
    /// Reason of a failure; empty otherwise.
    pub error: String,
}

/// A member as the autopilot sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Id of the member.
    pub id: u64,
    /// Name of the member; empty if it was never started.
    pub name: String,
    /// True if the member is a learner.
    pub is_learner: bool,
    /// True if the member says that it is a standby; `None` if it has not reported.
    pub is_standby: Option<bool>,
    /// Milliseconds since the member has last answered the leader; 0 for the leader itself.
    pub silent_ms: u64,
    /// True if the member has all that was committed an election timeout ago.
    pub is_caught_up: bool,
    /// Duration in milliseconds that 99 of 100 syncs of its log do not exceed; `None` if it is not known.
    pub sync_p99_ms: Option<u64>,
    /// Open connections of clients; `None` if the member has not reported.
    pub clients: Option<u64>,
}

/// State of the autopilot. Only that of the leader has members, advice and new steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutopilotState {
    /// True if this member's autopilot decides: it leads, and the mode is not [`Mode::Off`].
    pub decides: bool,
    /// Number of steps that this member's autopilot has recorded since the start.
    pub taken: u64,
    /// The last of these steps, oldest first; at most [`STEPS_MAX`].
    pub steps: Vec<StepRecord>,
    /// Sentences that say what the autopilot does not do, why, and what a person should do.
    pub advice: Vec<String>,
    /// The members.
    pub members: Vec<MemberState>,
    /// Number of members that count as gone for good.
    pub gone: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_json_and_others_are_refused() {
        let report = MemberReport {
            is_standby: true,
            drains: false,
            zone: "a".to_owned(),
            clients: 7,
            syncs: vec![1, 0, 3],
        };
        assert_eq!(MemberReport::from_json(report.to_json().as_bytes()), Some(report.clone()));
        let long = MemberReport { zone: "z".repeat(ZONE_BYTES_MAX + 1), ..report.clone() };
        let many = MemberReport { syncs: vec![1; BUCKETS_MAX + 1], ..report };
        for bad in [
            "404 page not found",
            "{}",
            r#"{"standby":1,"drains":false,"zone":"","clients":0,"syncs":[]}"#,
            r#"{"standby":true,"drains":false,"zone":"","clients":-1,"syncs":[]}"#,
            r#"{"standby":true,"drains":false,"zone":"","clients":0,"syncs":["x"]}"#,
            &long.to_json(),
            &many.to_json(),
        ] {
            assert_eq!(MemberReport::from_json(bad.as_bytes()), None, "{bad}");
        }
    }
}
