use stdx::calendar::Utc;

use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "certificate-expiry",
    about: "certificates that expire soon: those that members show, and with Mainstay all that they use",
    needs: &[&[Need::Certificate]],
    judge: |evidence, limits| judge(evidence, limits, URGENT_SECONDS),
};

/// The certificate rule for a step of a migration. A step does not change certificates, so only a certificate
/// that has expired or may expire during the step is an error; others are warnings.
pub const RULE_FOR_STEPS: Rule =
    Rule { judge: |evidence, limits| judge(evidence, limits, STEP_SECONDS), ..RULE };

/// Remaining validity in seconds below which a certificate must be renewed urgently, so that it is an error.
const URGENT_SECONDS: f64 = 7.0 * 86400.0;

/// Upper estimate for the time that one step of a migration takes, in seconds.
const STEP_SECONDS: f64 = 86400.0;

/// Metric with the expiry times of all certificates of a member of Mainstay. It includes peer certificates,
/// which the doctor cannot see by connecting.
const NOT_AFTER: &str = "mainstay_tls_certificate_not_after_seconds";

/// Judges the certificates. A certificate that has expired, or expires within `urgent_seconds`, is an error.
fn judge(evidence: &Evidence, limits: &Limits, urgent_seconds: f64) -> Option<Finding> {
    let judged = |not_after: f64| {
        let left = not_after - evidence.taken_unix;
        // The cast turns a negative number, an expiry before 1970, into 0, which is shown as the beginning of
        // 1970.
        let date = Utc::from_unix(not_after as u64);
        if left <= 0.0 {
            return Some((Severity::Error, format!("expired {} ago, at {date}Z", show::seconds(-left))));
        }
        let severity =
            if left <= urgent_seconds.min(limits.certificate) { Severity::Error } else { Severity::Warning };
        (left <= limits.certificate)
            .then(|| (severity, format!("expires in {}, at {date}Z", show::seconds(left))))
    };
    let mut facts = Facts::default();
    for member in &evidence.members {
        let shown = member.certificate.as_ref().ok().and_then(Option::as_ref);
        if let Some((severity, text)) = shown.and_then(|certificate| judged(certificate.not_after_unix)) {
            facts.add(severity, Fact::of(member, text));
        }
        let Ok(metrics) = &member.metrics else { continue };
        for sample in metrics.after.samples(NOT_AFTER) {
            let (Some(side), Some(whose)) = (sample.label("listener"), sample.label("certificate")) else {
                continue;
            };
            // Skip the certificate of the client listener if it was seen by connecting: it was judged above.
            if shown.is_some() && (side, whose) == ("client", "server") {
                continue;
            }
            if let Some((severity, text)) = judged(sample.value) {
                facts.add(severity, Fact::of(member, format!("{}: {text}", flag(side, whose))));
            }
        }
    }
    facts.found(
        RULE.name,
        "certificates of members expire soon",
        "After that, clients that verify certificates can no longer connect.",
        &[
            "issue new certificates and replace the files of --cert-file and --key-file; the member \
             reloads them without a restart",
            "with etcd, check the peer certificates too (--peer-cert-file); they cannot be read from here",
        ],
    )
}

/// Returns the flag of the member that names the certificate.
fn flag(side: &str, whose: &str) -> &'static str {
    match (side, whose) {
        ("client", "server") => "--cert-file",
        ("client", "client") => "--client-cert-file",
        ("client", _) => "--trusted-ca-file",
        (_, "server") => "--peer-cert-file",
        (_, "client") => "--peer-client-cert-file",
        _ => "--peer-trusted-ca-file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Certificate;
    use crate::fixture::{NOW, facts, healthy, judged, with_metrics};

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
            (
                Severity::Warning,
                vec!["m1 (10.0.0.1:2379): expires in 30 days, at 2027-02-14T08:00:00Z".to_owned()]
            )
        );
        assert_eq!(facts(&RULE, &ending_in(6.0 * 86400.0)).0, Severity::Error);
        assert_eq!(
            facts(&RULE, &ending_in(-3600.0)).1,
            ["m1 (10.0.0.1:2379): expired 60 min ago, at 2027-01-15T07:00:00Z"]
        );
        // During a step of a migration, only a certificate that may expire within a day is an error.
        let of_step = |seconds: f64| facts(&RULE_FOR_STEPS, &ending_in(seconds));
        assert_eq!(
            of_step(86401.0),
            (
                Severity::Warning,
                vec!["m1 (10.0.0.1:2379): expires in 24 h, at 2027-01-16T08:00:01Z".to_owned()]
            )
        );
        assert_eq!(of_step(86400.0).0, Severity::Error);
        assert_eq!(of_step(-3600.0), facts(&RULE, &ending_in(-3600.0)));
    }

    #[test]
    fn certificates_for_members_too() {
        let ending_in = |side: &str, whose: &str, seconds: f64| {
            let line =
                format!("{NOT_AFTER}{{listener=\"{side}\",certificate=\"{whose}\"}} {}\n", NOW + seconds);
            with_metrics("", &line)
        };
        assert_eq!(
            facts(&RULE, &ending_in("peer", "server", 86400.0)),
            (
                Severity::Error,
                vec![
                    "m1 (10.0.0.1:2379): --peer-cert-file: expires in 24 h, at 2027-01-16T08:00:00Z"
                        .to_owned()
                ]
            )
        );
        assert_eq!(judged(&RULE, &ending_in("peer", "authority", 31.0 * 86400.0)), None);
        assert_eq!(judged(&RULE, &ending_in("client", "server", 86400.0)), None, "it was seen itself");
    }
}
