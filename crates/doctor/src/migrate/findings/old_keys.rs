use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey};
use crate::show;

pub const RULE: MigrationRule =
    MigrationRule { name: "old-keys", about: "keys of API version 2, which are not taken over", judge };

fn judge(survey: &Survey) -> Option<Finding> {
    if survey.to == Product::Etcd {
        return None;
    }
    let mut facts = Facts::default();
    for (member, view) in survey.evidence.members.iter().zip(&survey.views) {
        if let Some(keys) = view.old_keys.filter(|keys| *keys > 0) {
            let keys = show::counted(keys as f64, "key or directory", "keys or directories");
            facts.add(
                Severity::Error,
                Fact::of(member, format!("{keys} directly below the root of API version 2")),
            );
        }
    }
    if let Some(Ok(directory)) = &survey.directory {
        let path = directory.path.display();
        match &directory.old_keys {
            Ok(Some(old)) => {
                facts.add(Severity::Error, Fact::all(format!("{path}: of the old store, {}", old.what)));
            }
            Err(why) if directory.refusal.is_none() => {
                facts.add(
                    Severity::Error,
                    Fact::all(format!("{path}: the old store could not be read: {why}")),
                );
            }
            Ok(None) | Err(_) => {}
        }
    }
    facts.found(
        RULE.name,
        "there are keys of API version 2",
        "Mainstay does not support API version 2. The takeover of a member with such keys is refused, as \
         by etcd 3.6, so that they are not lost by mistake.",
        &[
            "if the keys are not needed: remove them with etcdctl of API version 2 (ETCDCTL_API=2), and \
             wait for etcd's next snapshot",
            "if the keys are needed: mainstay utl import --migrate-v2 converts them to keys of version 3 \
             (docs/files.md); this requires a member that is the only voter",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::directory::OldKeys;
    use crate::migrate::fixture::{directory, etcds, facts, judged};

    #[test]
    fn keys_at_a_member_and_in_a_directory() {
        let mut survey = etcds("3.4.30");
        survey.views[0].old_keys = Some(0);
        survey.directory = Some(Ok(directory(1, 1 << 40)));
        assert_eq!(judged(&RULE, &survey), None);
        survey.views[0].old_keys = Some(2);
        let mut seen = directory(1, 1 << 40);
        seen.old_keys = Ok(Some(OldKeys { what: "it has 2 keys".to_owned() }));
        survey.directory = Some(Ok(seen));
        assert_eq!(
            facts(&RULE, &survey),
            (
                Severity::Error,
                vec![
                    "m1 (10.0.0.1:2379): 2 keys or directories directly below the root of API version 2"
                        .to_owned(),
                    "/var/lib/etcd: of the old store, it has 2 keys".to_owned()
                ]
            )
        );
        survey.to = Product::Etcd;
        assert_eq!(judged(&RULE, &survey), None);
    }
}
