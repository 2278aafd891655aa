use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey, release_of};

pub const RULE: MigrationRule = MigrationRule {
    name: "passwords-while-mixed",
    about: "users in a cluster of etcd 3.4, whose passwords cannot be changed while it is mixed",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    let of_34 = |version: &str| release_of(version).is_some_and(|release| release < (3, 5));
    let old = survey.running_this(Product::Etcd).filter(|(_, status)| of_34(&status.version));
    if survey.to == Product::Etcd || survey.has_users == Ok(false) {
        return None;
    }
    for (member, status) in old {
        let text = match &survey.has_users {
            Ok(_) => format!("version {}, and the cluster has users", status.version),
            Err(why) => {
                format!("version {}, and it is unknown whether there are users: {why}", status.version)
            }
        };
        facts.add(Severity::Warning, Fact::of(member, text));
    }
    facts.found(
        RULE.name,
        "passwords cannot be changed while members of etcd 3.4 and of Mainstay run together",
        "Mainstay refuses such changes (etcdserver: not capable). A password changed at a member of 3.4 \
         reaches Mainstay in plain text and is refused there (COMPAT-88), so members would have different \
         passwords.",
        &[
            "change no passwords and add no users from the first step to the last",
            "stop each member of 3.4 cleanly (SIGTERM), so that passwords in its log are in its database",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged};

    #[test]
    fn users_with_members_of_34() {
        let mut survey = etcds("3.4.30");
        assert_eq!(judged(&RULE, &survey), None);
        survey.has_users = Ok(true);
        let (severity, found) = facts(&RULE, &survey);
        assert_eq!((severity, found.len()), (Severity::Warning, 3));
        assert_eq!(found[0], "m1 (10.0.0.1:2379): version 3.4.30, and the cluster has users");
        survey.has_users = Err("late".into());
        assert!(facts(&RULE, &survey).1[0].ends_with("whether there are users: late"));
        let mut newer = etcds("3.5.21");
        newer.has_users = Ok(true);
        assert_eq!(judged(&RULE, &newer), None);
    }
}
