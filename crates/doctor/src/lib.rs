//! Examines clusters of etcd or Mainstay and their machines. Implements `mainstay doctor`, `mainstay check
//! disk`, `mainstay check network`, `mainstay doctor migrate`, which checks each step of a migration from
//! etcd to Mainstay or back, and `mainstay doctor upgrade`, which does so for an upgrade of Mainstay itself.
//!
//! Structure: [`Plan::collect`] examines a cluster and returns its [`Evidence`], which is plain data. Each
//! [`Rule`] judges this evidence without further requests, and returns a [`Finding`] if it sees a problem. A
//! [`Report`] prints the findings.
//!
//! The doctor does not depend on how the members work inside. It uses only the API and the pages that any
//! client can read. Mainstay's own page `/debug/mainstay` adds details, but the doctor also works without it.
//!
//! Invariants:
//! * The cluster is only read. The only expensive request is HashKV, which `doctor migrate` and `doctor
//!   upgrade` send.
//! * Everything that could not be examined is reported with the reason, and never counts as healthy.
//! * No response of a server can crash the doctor or make its memory grow without bound.
//!
//! Start reading with [`Plan::collect`], [`RULES`] and `migrate/survey.rs`. Tests: each rule's file has a
//! case that the rule must find and a similar one that it must not; `tests/it` compares whole outputs and
//! uses a scripted member.

mod arguments;
mod check;
mod check_disk;
mod check_network;
mod collect;
mod connection;
mod disk_trial;
mod doctor;
mod evidence;
mod exposition;
mod finding;
mod findings;
#[cfg(test)]
mod fixture;
mod histogram;
mod http1;
mod launch;
mod limits;
mod migrate;
mod network_trial;
mod page;
mod quantiles;
mod report;
mod rule;
mod sampling;
mod show;
mod socket;
mod upgrade;

pub use check::{check, check_in, completion};
pub use check_network::{NetworkLimits, NetworkReport, PeerLink};
pub use collect::Plan;
pub use connection::Connection;
pub use disk_trial::{DiskAdvice, DiskResult, DiskTrial, DiskWindow, Pace, ReservedRoom};
pub use doctor::{run, run_in};
pub use evidence::{
    Alarm, AlarmKind, Certificate, Clock, Evidence, Member, Metrics, Observed, RoundTrips, Sample, Status,
    Unseen, Versions,
};
pub use exposition::{Exposition, Sample as MetricSample};
pub use finding::{Fact, Finding, Severity};
pub use findings::RULES;
pub use histogram::Histogram;
pub use limits::Limits;
pub use migrate::{
    Directory, Hashed, Hashes, Leases, Listed, MIGRATION_RULES, MigrationPlan, MigrationRule, NextStep,
    OldKeys, Product, Row, Settings, Survey, Verdict, View, next_step,
};
pub use network_trial::{NetworkResult, NetworkTrial};
pub use page::{ClientUse, ExpensiveRange, FsyncStall, LargeValue, Page};
pub use quantiles::Quantiles;
pub use report::{Health, Report};
pub use rule::{Blind, Need, Rule};
pub use socket::TcpFigures;
pub use upgrade::{OwnRelease, Upgrade, UpgradeRow};
