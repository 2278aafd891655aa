use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey};

pub const RULE: MigrationRule = MigrationRule {
    name: "data-directory",
    about: "a data directory that cannot be read, or with which the member would refuse to start",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    match survey.directory.as_ref()? {
        Err(why) => facts.add(Severity::Error, Fact::all(why.to_string())),
        Ok(directory) => {
            let path = directory.path.display();
            if let (Some(why), Product::Mainstay) = (&directory.refusal, survey.to) {
                facts.add(Severity::Error, Fact::all(format!("{path}: {why}")));
            }
        }
    }
    facts.found(
        RULE.name,
        "the data directory cannot be used as it is",
        "A takeover reads etcd's database and log from there. If it cannot read them or finds damage, it \
         refuses, and changes nothing.",
        &[
            "check that the path is the member's --data-dir, and that this user may read it; if the log is elsewhere, give --wal-dir",
            "if files are damaged: rebuild the member from the others first (etcd: member remove, empty \
             its data directory, member add)",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{directory, etcds, facts, judged};

    #[test]
    fn what_cannot_be_used() {
        let mut survey = etcds("3.6.16");
        survey.directory = Some(Ok(directory(1, 1 << 40)));
        assert_eq!(judged(&RULE, &survey), None);
        let mut seen = directory(1, 1 << 40);
        seen.refusal = Some("a part of the log is missing".to_owned());
        survey.directory = Some(Ok(seen));
        assert_eq!(
            facts(&RULE, &survey),
            (Severity::Error, vec!["/var/lib/etcd: a part of the log is missing".to_owned()])
        );
        survey.to = Product::Etcd;
        assert_eq!(judged(&RULE, &survey), None);
        survey.directory = Some(Err("/x holds no member".into()));
        assert_eq!(facts(&RULE, &survey).1, ["/x holds no member"]);
    }
}
