//! Builds evidence for the tests of the rules: a healthy cluster, into which each test plants a problem.

use crate::evidence::{Certificate, Clock, Evidence, Member, Metrics, RoundTrips, Sample, Status, Versions};
use crate::finding::{Finding, Severity};
use crate::limits::Limits;
use crate::page::Page;
use crate::rule::Rule;

pub const NOW: f64 = 1_800_000_000.0;

/// Returns a cluster of three members without any findings.
pub fn healthy() -> Evidence {
    let member = |number: u64| Member {
        endpoint: format!("10.0.0.{number}:2379"),
        name: format!("m{number}"),
        id: number,
        reached: Ok(()),
        status: Ok(Status {
            cluster_id: 99,
            version: "3.7.1".to_owned(),
            db_bytes: 1e6,
            db_bytes_in_use: 9e5,
            quota_bytes: 2_147_483_648.0,
            leader: 1,
            term: 2,
            index: 1000,
            applied: 1000,
            ..Status::default()
        }),
        metrics: Ok(Metrics { seconds: 10.0, ..Metrics::default() }),
        page: Ok(Page::default()),
        versions: Ok(Versions { server: "3.7.1".to_owned(), cluster: "3.7.0".to_owned() }),
        clock: Ok(Clock { low: -0.001, high: 0.001 }),
        round_trips: Ok(RoundTrips { connect: vec![0.0002; 5], call: vec![0.0004; 20] }),
        certificate: Ok(Some(Certificate { not_after_unix: NOW + 300.0 * 86400.0 })),
    };
    Evidence {
        taken_unix: NOW,
        members: (1..=3).map(member).collect(),
        complete: Ok(()),
        alarms: Ok(Vec::new()),
        sample: Ok(Sample::default()),
    }
}

/// Returns a healthy cluster in which the metrics of the first member are `before` and, ten seconds later,
/// `after`.
pub fn with_metrics(before: &str, after: &str) -> Evidence {
    let mut evidence = healthy();
    evidence.members[0].metrics = Ok(Metrics::of(before, after, 10.0));
    evidence
}

/// Returns a healthy cluster whose first member serves `page` at `/debug/mainstay`.
pub fn with_page(page: &str) -> Evidence {
    let mut evidence = healthy();
    evidence.members[0].page = Page::read(page.as_bytes());
    evidence
}

/// Returns the status of the member with index `at`, for a test to change.
pub fn status(evidence: &mut Evidence, at: usize) -> &mut Status {
    evidence.members[at].status.as_mut().expect("healthy members have one")
}

/// Returns a histogram in Prometheus' text format. Each bucket is its upper bound and its cumulative count.
pub fn histogram(name: &str, labels: &str, buckets: &[(f64, u64)]) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut text = String::new();
    for (bound, below) in buckets {
        text += &format!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {below}\n");
    }
    let all = buckets.last().map_or(0, |last| last.1);
    text += &format!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {all}\n");
    text + &format!("{name}_sum{{{labels}}} 1\n{name}_count{{{labels}}} {all}\n")
}

/// Applies a rule with the default limits, and returns its finding. Asserts that the finding has the rule's
/// name and a remedy.
pub fn judged(rule: &Rule, evidence: &Evidence) -> Option<Finding> {
    let finding = (rule.judge)(evidence, &Limits::default());
    assert!(finding.as_ref().is_none_or(|finding| finding.name == rule.name && !finding.remedies.is_empty()));
    finding
}

/// Returns the severity and the facts of a finding; panics if there is none.
pub fn facts(rule: &Rule, evidence: &Evidence) -> (Severity, Vec<String>) {
    let finding = judged(rule, evidence).expect("the planted problem is found");
    let line = |fact: crate::finding::Fact| match fact.member {
        Some(member) => format!("{member}: {}", fact.text),
        None => fact.text,
    };
    (finding.severity, finding.facts.into_iter().map(line).collect())
}
