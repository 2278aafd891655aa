use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::Rule;

pub const RULE: Rule = Rule {
    name: "tls-files-unusable",
    about: "certificates and keys on disk that a running member cannot use (Mainstay only)",
    needs: &[],
    judge,
};

const FAILING: &str = "mainstay_tls_reload_failing";

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let failing = metrics.after.samples(FAILING).iter().filter(|sample| sample.value > 0.0);
        let sides: Vec<&str> = failing.filter_map(|sample| sample.label("listener")).collect();
        let text = || format!("the new TLS files of the {} listeners are not in use", sides.join(" and "));
        (!sides.is_empty()).then(|| (Severity::Error, text()))
    })
    .found(
        RULE.name,
        "TLS files on disk cannot be used",
        "The member continues with the files loaded before, until that certificate expires; it would not start with the new files.",
        &[
            "the member's log names the file and what is wrong: \"cannot use changed TLS files\"",
            "replace certificate, key and CA files atomically (write a new file, then rename it); the member loads them within two seconds",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};

    #[test]
    fn while_files_cannot_be_used() {
        let page = |client: u8, peer: u8| {
            format!("{FAILING}{{listener=\"client\"}} {client}\n{FAILING}{{listener=\"peer\"}} {peer}\n")
        };
        assert_eq!(
            facts(&RULE, &with_metrics("", &page(0, 1))).1,
            ["m1 (10.0.0.1:2379): the new TLS files of the peer listeners are not in use"]
        );
        assert_eq!(judged(&RULE, &with_metrics("", &page(0, 0))), None);
    }
}
