use crate::evidence::{Evidence, Member};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "unbalanced-clients",
    about: "one member that serves nearly all clients",
    needs: &[&[Need::Metric(STARTED)]],
    judge,
};

const STARTED: &str = "grpc_server_started_total";
/// Upper limit for the acceptable share of the requests at one member, whatever `--limit-imbalance` allows.
/// With two members, the busier one normally has more than half; but nearly all requests at one member are
/// too many for any number of members.
const SHARE_MAX: f64 = 0.9;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let rates: Vec<(&Member, f64)> = evidence
        .metrics()
        .filter(|(member, _)| !member.status.as_ref().is_ok_and(|status| status.is_learner))
        .filter_map(|(member, metrics)| Some((member, metrics.rate(STARTED, &[("grpc_type", "unary")])?)))
        .collect();
    let all: f64 = rates.iter().map(|(_, rate)| rate).sum();
    let busiest = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let allowed = (limits.imbalance / rates.len().max(1) as f64).min(SHARE_MAX);
    if rates.len() < 2 || all < limits.imbalance_rate || busiest / all < allowed {
        return None;
    }
    let mut facts = Facts::default();
    for (member, rate) in rates {
        let connections = member.page.as_ref().ok().and_then(|page| page.clients.as_ref()).map(|clients| {
            let connections = clients.iter().map(|client| client.connections).sum();
            format!(" on {} connections", show::count(connections))
        });
        let (share, connections) = (show::percent(rate / all), connections.unwrap_or_default());
        let text = format!("{} of {} requests ({share}){connections}", show::rate(rate), show::rate(all));
        facts.add(Severity::Warning, Fact::of(member, text));
    }
    facts.found(
        RULE.name,
        "clients are not spread across the members",
        "One member does all the work while others are idle, and its failure affects all clients at once.",
        &[
            "give clients the endpoints of all members: --endpoints, --etcd-servers of the Kubernetes API server",
            "clients that connected while other members were down stay where they are: restart them one by one",
            "if there is a load balancer: balance by connections, and limit their age",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Metrics;
    use crate::fixture::{facts, healthy, judged};

    fn with_requests(counts: [u64; 3]) -> Evidence {
        let mut evidence = healthy();
        for (member, count) in evidence.members.iter_mut().zip(counts) {
            let text = format!("{STARTED}{{grpc_type=\"unary\"}} {count}\n");
            member.metrics = Ok(Metrics::of("", &text, 10.0));
        }
        evidence
    }

    #[test]
    fn two_thirds_at_one_of_three() {
        assert_eq!(
            facts(&RULE, &with_requests([2000, 500, 500])).1,
            [
                "m1 (10.0.0.1:2379): 200/s of 300/s requests (67 %)",
                "m2 (10.0.0.2:2379): 50/s of 300/s requests (17 %)",
                "m3 (10.0.0.3:2379): 50/s of 300/s requests (17 %)"
            ]
        );
        assert_eq!(judged(&RULE, &with_requests([1990, 505, 505])), None);
        assert_eq!(judged(&RULE, &with_requests([499, 0, 0])), None, "hardly any requests");
        let mut one = with_requests([2000, 0, 0]);
        one.members.truncate(1);
        assert_eq!(judged(&RULE, &one), None);
        let mut two = with_requests([899, 101, 0]);
        two.members.truncate(2);
        assert_eq!(judged(&RULE, &two), None);
    }
}
