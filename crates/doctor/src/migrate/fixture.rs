//! Builds surveys for the tests of the migration's rules: clusters that can be migrated, into which each test
//! plants a problem.

use std::collections::BTreeSet;
use std::path::PathBuf;

use disk::DiskSpace;

use super::directory::Directory;
use super::findings::MigrationRule;
use super::survey::{Hashed, Hashes, Leases, Listed, Product, Survey, View};
use crate::evidence::{Metrics, Versions};
use crate::finding::{Finding, Severity};
use crate::fixture::healthy;

/// Changes the member with index `at` to run etcd of this version.
pub fn run_etcd(survey: &mut Survey, at: usize, version: &str) {
    let member = &mut survey.evidence.members[at];
    member.page = Err("this server does not have it".into());
    let links = (1..=3)
        .filter(|other| *other != member.id)
        .map(|other| format!("etcd_network_active_peers{{Local=\"{}\",Remote=\"{other}\"}} 1\n", member.id));
    let page =
        format!("etcd_server_go_version{{server_go_version=\"go1.23\"}} 1\n{}", links.collect::<String>());
    member.metrics = Ok(Metrics::of("", &page, 1.0));
    member.status.as_mut().expect("healthy members have one").version = version.to_owned();
}

/// Changes the member with index `at` to run Mainstay with this `--api-version`.
pub fn run_mainstay(survey: &mut Survey, at: usize, version: &str) {
    let member = &mut survey.evidence.members[at];
    member.page = Ok(crate::page::Page::default());
    member.status.as_mut().expect("healthy members have one").version = version.to_owned();
}

/// Makes all members report this cluster version.
pub fn cluster_version(survey: &mut Survey, cluster: &str) {
    for member in &mut survey.evidence.members {
        let server = member.status.as_ref().map(|status| status.version.clone()).unwrap_or_default();
        member.versions = Ok(Versions { server, cluster: cluster.to_owned() });
    }
}

/// Returns the survey of a cluster of three members that run this version of etcd, to be migrated to
/// Mainstay.
pub fn etcds(version: &str) -> Survey {
    let mut evidence = healthy();
    for member in &mut evidence.members {
        let status = member.status.as_mut().expect("healthy members have one");
        status.earlier = Some((990, 0.0));
    }
    let listed = (1..=3).map(|number| Listed {
        id: number,
        name: format!("m{number}"),
        peer_urls: vec![format!("http://10.0.0.{number}:2380")],
        is_learner: false,
    });
    let view = View {
        members: Ok(listed.collect::<BTreeSet<Listed>>()),
        alarms: Ok(Vec::new()),
        read: Ok(()),
        old_keys: None,
    };
    let hashed = |at: usize| (at, Ok(Hashed { hash: 77, compacted: 5 }));
    let mut survey = Survey {
        to: Product::Mainstay,
        evidence,
        views: vec![view; 3],
        leases: Ok(Leases { count: 20, missing: Vec::new() }),
        hashes: Ok(Hashes { revision: 900, of: (0..3).map(hashed).collect() }),
        has_users: Ok(false),
        directory: None,
        settings: None,
    };
    for at in 0..3 {
        run_etcd(&mut survey, at, version);
    }
    let (major_minor, _) = version.rsplit_once('.').expect("a version of three numbers");
    cluster_version(&mut survey, &format!("{major_minor}.0"));
    survey
}

/// Returns the survey of a cluster in which one member runs Mainstay and two run etcd 3.6.
pub fn mixed() -> Survey {
    let mut survey = etcds("3.6.16");
    run_mainstay(&mut survey, 1, "3.6.0");
    cluster_version(&mut survey, "3.6.0");
    survey
}

/// Returns the survey of a cluster of three members that all run Mainstay, with the API version 3.6.
pub fn all_mainstay() -> Survey {
    let mut survey = etcds("3.6.16");
    for at in 0..3 {
        run_mainstay(&mut survey, at, "3.6.0");
    }
    cluster_version(&mut survey, "3.6.0");
    survey
}

/// Returns the directory of a stopped member of etcd, with these sizes of its database and of the free space.
pub fn directory(database_bytes: u64, free_bytes: u64) -> Directory {
    Directory {
        path: PathBuf::from("/var/lib/etcd"),
        wal_dir: None,
        of: Product::Etcd,
        database_bytes,
        old_keys: Ok(None),
        refusal: None,
        is_running: false,
        space: DiskSpace { free_bytes, total_bytes: 100 << 30 },
        wal_space: None,
    }
}

/// Applies a rule and returns its finding. Asserts that the finding has the rule's name and a remedy.
pub fn judged(rule: &MigrationRule, survey: &Survey) -> Option<Finding> {
    let finding = (rule.judge)(survey);
    assert!(finding.as_ref().is_none_or(|finding| finding.name == rule.name && !finding.remedies.is_empty()));
    finding
}

/// Returns the severity and the facts of a finding; panics if there is none.
pub fn facts(rule: &MigrationRule, survey: &Survey) -> (Severity, Vec<String>) {
    let finding = judged(rule, survey).expect("the planted problem is found");
    let line = |fact: crate::finding::Fact| match fact.member {
        Some(member) => format!("{member}: {}", fact.text),
        None => fact.text,
    };
    (finding.severity, finding.facts.into_iter().map(line).collect())
}
