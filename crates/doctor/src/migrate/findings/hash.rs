use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::Survey;

pub const RULE: MigrationRule = MigrationRule {
    name: "hash-kv",
    about: "histories that differ between members, or could not be compared",
    judge,
};

fn judge(survey: &Survey) -> Option<Finding> {
    let mut facts = Facts::default();
    let hashes = match &survey.hashes {
        Ok(hashes) => hashes,
        Err(why) => {
            facts.add(Severity::Error, Fact::all(format!("HashKV was not requested: {why}")));
            return found(facts, "members' histories could not be compared");
        }
    };
    for (at, hashed) in &hashes.of {
        if let Err(why) = hashed {
            let text = format!("no HashKV at revision {}: {why}", hashes.revision);
            facts.add(Severity::Error, Fact::of(&survey.evidence.members[*at], text));
        }
    }
    let first = hashes.answers().next();
    let is_equal = hashes.answers().all(|(_, hashed)| first.is_some_and(|(_, first)| first == hashed));
    if !is_equal {
        for (at, hashed) in hashes.answers() {
            let (revision, compacted) = (hashes.revision, hashed.compacted);
            let text = format!("HashKV {} at revision {revision}, compacted up to {compacted}", hashed.hash);
            facts.add(Severity::Error, Fact::of(&survey.evidence.members[at], text));
        }
    }
    let title = match hashes.is_comparable() {
        true => "members hold different data",
        false => "members' histories could not be compared",
    };
    found(facts, title)
}

fn found(facts: Facts, title: &str) -> Option<Finding> {
    facts.found(
        RULE.name,
        title,
        "A takeover keeps a member's data: equal hashes before and after prove that nothing was lost. \
         Members that differ would stay different.",
        &[
            "if histories begin at different revisions, a compaction is in progress: check again",
            "if the database is large, allow more time: --command-timeout=1m",
            "with authentication: --user=root:PASSWORD",
            "members of etcd with different versions may differ at the revision of a compaction: write, \
             compact once more, check again",
            "if a member differs: rebuild it from the others first (etcd: member remove, empty its data \
             directory, member add)",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{etcds, facts, judged};
    use crate::migrate::survey::Hashed;

    #[test]
    fn different_data() {
        let mut survey = etcds("3.6.16");
        assert_eq!(judged(&RULE, &survey), None);
        survey.hashes.as_mut().unwrap().of[2].1 = Ok(Hashed { hash: 78, compacted: 5 });
        let (severity, found) = facts(&RULE, &survey);
        assert_eq!((severity, found.len()), (Severity::Error, 3));
        assert_eq!(found[2], "m3 (10.0.0.3:2379): HashKV 78 at revision 900, compacted up to 5");
        assert_eq!(judged(&RULE, &survey).unwrap().title, "members hold different data");
    }

    #[test]
    fn what_could_not_be_compared() {
        let mut survey = etcds("3.6.16");
        survey.hashes.as_mut().unwrap().of[2].1 = Ok(Hashed { hash: 78, compacted: 6 });
        assert_eq!(judged(&RULE, &survey).unwrap().title, "members' histories could not be compared");
        survey.hashes.as_mut().unwrap().of[2].1 = Err("permission denied".into());
        assert_eq!(
            facts(&RULE, &survey).1,
            ["m3 (10.0.0.3:2379): no HashKV at revision 900: permission denied"]
        );
        survey.hashes = Err("no member answers".into());
        assert_eq!(facts(&RULE, &survey).0, Severity::Error);
    }
}
