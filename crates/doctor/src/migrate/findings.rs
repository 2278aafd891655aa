//! Defines the rules that find obstacles to a migration, each in its own file. Each file has a test with a
//! case that its rule must find, and with a similar case that it must not find.

mod apart;
mod caught_up;
mod cluster_version;
mod directory;
mod disk_space;
mod downgrade;
mod etcd_quota;
mod hash;
mod old_keys;
mod passwords;
mod patch_releases;
mod peer_links;
mod read;
mod releases;
mod seen_once;
mod settings;
mod unknown_product;
mod way_back;

use super::survey::Survey;
use crate::finding::Finding;

pub(super) use peer_links::unseen_links;

/// A rule that looks for one kind of obstacle to the next step of a migration.
pub struct MigrationRule {
    /// Name of the rule.
    pub name: &'static str,
    /// Description of the rule in one line.
    pub about: &'static str,
    /// Judges the survey. As long as a rule returns a finding with severity error, the next step must not be
    /// taken.
    pub judge: fn(&Survey) -> Option<Finding>,
}

/// All rules. The most dangerous problems come first: those that stop the cluster.
pub const MIGRATION_RULES: &[MigrationRule] = &[
    seen_once::RULE,
    unknown_product::RULE,
    releases::RULE,
    patch_releases::RULE,
    cluster_version::RULE,
    downgrade::RULE,
    caught_up::RULE,
    peer_links::RULE,
    read::RULE,
    hash::RULE,
    apart::RULE,
    old_keys::RULE,
    directory::RULE,
    disk_space::RULE,
    etcd_quota::RULE,
    settings::RULE,
    passwords::RULE,
    way_back::RULE,
];

#[cfg(test)]
mod tests {
    use super::super::fixture::{all_mainstay, etcds, judged, mixed};
    use super::super::survey::Product;
    use super::MIGRATION_RULES;

    #[test]
    fn a_healthy_cluster_has_nothing_at_any_step() {
        for to in [Product::Etcd, Product::Mainstay] {
            for mut survey in [etcds("3.6.16"), mixed(), all_mainstay()] {
                survey.to = to;
                for rule in MIGRATION_RULES {
                    assert_eq!(judged(rule, &survey), None, "{} to {to:?}", rule.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique_and_no_other_rules() {
        for (at, rule) in MIGRATION_RULES.iter().enumerate() {
            assert!(MIGRATION_RULES[..at].iter().all(|other| other.name != rule.name), "{}", rule.name);
            assert!(crate::RULES.iter().all(|other| other.name != rule.name), "{}", rule.name);
        }
    }
}
