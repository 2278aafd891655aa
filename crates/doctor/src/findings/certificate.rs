use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "certificate-expiry",
    about: "certificates that end soon",
    needs: &[&[Need::Certificate]],
    judge,
};

/// Too short to put it off.
const URGENT_SECONDS: f64 = 7.0 * 86400.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let certificate = member.certificate.as_ref().ok()?.as_ref()?;
        let left = certificate.not_after_unix - evidence.taken_unix;
        if left <= 0.0 {
            return Some((Severity::Error, format!("ended {} ago", show::seconds(-left))));
        }
        let severity =
            if left <= URGENT_SECONDS.min(limits.certificate) { Severity::Error } else { Severity::Warning };
        (left <= limits.certificate).then(|| (severity, format!("ends in {}", show::seconds(left))))
    })
    .found(
        RULE.name,
        "certificates of members end soon",
        "From then on no client that verifies certificates connects.",
        &[
            "issue new ones and replace the files of --cert-file and --key-file; they are read again with each handshake, \
             no restart is needed",
            "look at the peers' certificates too: --peer-cert-file, which cannot be seen from here",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Certificate;
    use crate::fixture::{NOW, facts, healthy, judged};

    #[test]
    fn a_month_a_week_and_too_late() {
        let ending_in = |seconds: f64| {
            let mut evidence = healthy();
            evidence.members[0].certificate = Ok(Some(Certificate { not_after_unix: NOW + seconds }));
            evidence
        };
        assert_eq!(judged(&RULE, &ending_in(30.0 * 86400.0 + 1.0)), None);
        assert_eq!(
            facts(&RULE, &ending_in(30.0 * 86400.0)),
            (Severity::Warning, vec!["m1 (10.0.0.1:2379): ends in 30 days".to_owned()])
        );
        assert_eq!(facts(&RULE, &ending_in(6.0 * 86400.0)).0, Severity::Error);
        assert_eq!(facts(&RULE, &ending_in(-3600.0)).1, ["m1 (10.0.0.1:2379): ended 60 min ago"]);
    }
}
