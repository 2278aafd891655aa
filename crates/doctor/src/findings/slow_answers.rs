use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "slow-answers",
    about: "members that are slow to answer calls that need no work",
    needs: &[&[Need::RoundTrips]],
    judge,
};

pub(crate) fn median(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let times = member.round_trips.as_ref().ok()?;
        let call = median(&times.call)?;
        let connect = median(&times.connect).unwrap_or(0.0);
        (call - connect >= limits.answer).then(|| {
            let (call, connect) = (show::seconds(call), show::seconds(connect));
            let text = format!("a status call takes {call} (median), a TCP connection {connect}");
            (Severity::Warning, text)
        })
    })
    .found(
        RULE.name,
        "members are slow to answer calls that need no work",
        "The network is not the cause: the process gets no processor time, or its threads are blocked.",
        &[
            "look for the cause: findings cpu, overloaded, expensive-ranges",
            "check whether the machine swaps or its container is throttled: vmstat 1, cpu.stat of its cgroup",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::RoundTrips;
    use crate::fixture::{facts, healthy, judged};

    #[test]
    fn beyond_the_network_s_own_time() {
        let times = |call: f64| {
            let mut evidence = healthy();
            evidence.members[0].round_trips =
                Ok(RoundTrips { connect: vec![0.1; 3], call: vec![0.01, call, 9.0] });
            evidence
        };
        assert_eq!(
            facts(&RULE, &times(0.1501)).1,
            ["m1 (10.0.0.1:2379): a status call takes 150.1 ms (median), a TCP connection 100.0 ms"]
        );
        assert_eq!(judged(&RULE, &times(0.1499)), None);
    }
}
