use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::Rule;

pub const RULE: Rule =
    Rule { name: "unreachable", about: "members that cannot be reached from here", needs: &[], judge };

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let why = member.reached.as_ref().err()?;
        Some((Severity::Error, why.to_string()))
    })
    .found(
        RULE.name,
        "members cannot be reached",
        "Clients with these endpoints lose time with each connection attempt; if half of the members are \
         down, the cluster stops.",
        &[
            "check that the process runs and listens: systemctl status, ss -ltnp on its machine",
            "check the client URL it advertises: mainstay ctl member list; change it with --advertise-client-urls",
            "if its certificate is not trusted: give its authority with --cacert; inspect it with openssl s_client",
            "if it is lost for good: first remove it, then replace it: mainstay ctl member remove ID",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Member;
    use crate::fixture::{facts, healthy, judged};

    #[test]
    fn a_member_that_does_not_answer() {
        let mut evidence = healthy();
        evidence.members[2] = Member::unseen("10.0.0.3:2379", "m3", 3, "connection refused");
        assert_eq!(
            facts(&RULE, &evidence),
            (Severity::Error, vec!["m3 (10.0.0.3:2379): connection refused".to_owned()])
        );
        // A member that returns its status is reachable, even if its metrics cannot be read.
        let mut evidence = healthy();
        evidence.members[2].metrics = Err("404".into());
        assert_eq!(judged(&RULE, &evidence), None);
    }
}
