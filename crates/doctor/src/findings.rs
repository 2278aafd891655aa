//! Defines the rules that find problems in a cluster, each in its own file. Each file has a test with
//! evidence of the problem that its rule must find, and with evidence that is just good enough.

mod alarm_corrupt;
mod alarm_no_space;
mod authentication;
mod behind;
pub(crate) mod certificate;
mod clock_drift;
mod cpu;
mod crowded;
mod descriptors;
mod different_clusters;
mod expensive_ranges;
mod fragmentation;
mod fsync_stall;
mod large_values;
mod leader_changes;
mod learner_behind;
mod missing_compaction;
mod no_leader;
mod overloaded;
mod quota;
mod slow_answers;
mod slow_commit;
mod slow_disk;
mod slow_peer;
mod slow_reads;
mod slow_watchers;
mod tls_files;
mod unbalanced;
mod unreachable;
mod version_skew;
mod witness_counts;

use crate::rule::Rule;

/// All rules. The most dangerous problems come first: those that stop the cluster.
pub const RULES: &[Rule] = &[
    unreachable::RULE,
    no_leader::RULE,
    witness_counts::RULE,
    different_clusters::RULE,
    alarm_corrupt::RULE,
    alarm_no_space::RULE,
    quota::RULE,
    certificate::RULE,
    tls_files::RULE,
    slow_disk::RULE,
    fsync_stall::RULE,
    slow_commit::RULE,
    slow_peer::RULE,
    leader_changes::RULE,
    overloaded::RULE,
    cpu::RULE,
    descriptors::RULE,
    slow_reads::RULE,
    slow_answers::RULE,
    behind::RULE,
    learner_behind::RULE,
    expensive_ranges::RULE,
    large_values::RULE,
    missing_compaction::RULE,
    fragmentation::RULE,
    authentication::RULE,
    crowded::RULE,
    slow_watchers::RULE,
    unbalanced::RULE,
    clock_drift::RULE,
    version_skew::RULE,
];

#[cfg(test)]
mod tests {
    use super::RULES;
    use crate::fixture::{healthy, judged};

    #[test]
    fn a_healthy_cluster_has_nothing() {
        for rule in RULES {
            assert_eq!(judged(rule, &healthy()), None, "{}", rule.name);
        }
    }

    #[test]
    fn names_are_unique() {
        for (at, rule) in RULES.iter().enumerate() {
            assert!(RULES[..at].iter().all(|other| other.name != rule.name), "{}", rule.name);
        }
    }
}
