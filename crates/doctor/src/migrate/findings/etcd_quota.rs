use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey};
use crate::show;

pub const RULE: MigrationRule = MigrationRule {
    name: "etcd-quota",
    about: "data that fits Mainstay's quota but may not fit etcd's",
    judge,
};

/// Share of Mainstay's quota in use from which on etcd's database file may soon exceed etcd's quota: the
/// file's pages are partly empty, and it never shrinks.
const NEAR: f64 = 0.7;
/// Share of Mainstay's quota in use from which on etcd's database file exceeds etcd's quota right after the
/// migration.
const FULL: f64 = 0.9;

fn judge(survey: &Survey) -> Option<Finding> {
    if survey.to == Product::Mainstay {
        return None;
    }
    let mut facts = Facts::default();
    for (member, status) in survey.running_this(Product::Mainstay) {
        let share = status.db_bytes_in_use / status.quota_bytes;
        if status.quota_bytes > 0.0 && share >= NEAR {
            let severity = if share >= FULL { Severity::Error } else { Severity::Warning };
            let (size, quota) = (show::bytes(status.db_bytes_in_use), show::bytes(status.quota_bytes));
            let text = format!("{size} are in use, {} of the quota of {quota}", show::percent(share));
            facts.add(severity, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "etcd may have no space for the data",
        "etcd's quota counts its whole file, including free pages; Mainstay's counts only what is in use, history included. Above the \
         quota, etcd raises NOSPACE and refuses writes.",
        &[
            "remove history first: mainstay ctl compact REVISION",
            "start etcd with a larger --quota-backend-bytes (etcd recommends at most 8 GiB)",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{all_mainstay, facts, judged};

    #[test]
    fn shares_of_the_quota() {
        let at = |share: f64, to: Product| {
            let mut survey = all_mainstay();
            survey.to = to;
            let status = survey.evidence.members[1].status.as_mut().unwrap();
            (status.quota_bytes, status.db_bytes_in_use) = (1e9, share * 1e9);
            survey
        };
        assert_eq!(judged(&RULE, &at(0.69, Product::Etcd)), None);
        assert_eq!(judged(&RULE, &at(0.95, Product::Mainstay)), None);
        assert_eq!(
            facts(&RULE, &at(0.7, Product::Etcd)),
            (
                Severity::Warning,
                vec!["m2 (10.0.0.2:2379): 700 MB are in use, 70 % of the quota of 1.0 GB".to_owned()]
            )
        );
        assert_eq!(facts(&RULE, &at(0.9, Product::Etcd)).0, Severity::Error);
        let mut unlimited = at(0.9, Product::Etcd);
        unlimited.evidence.members[1].status.as_mut().unwrap().quota_bytes = 0.0;
        assert_eq!(judged(&RULE, &unlimited), None);
    }
}
