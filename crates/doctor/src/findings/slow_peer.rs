use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "slow-peer-link",
    about: "links between members that are slow or lose messages",
    needs: &[&[Need::Probes(RTT)]],
    judge,
};

const RTT: &str = "etcd_network_peer_round_trip_time_seconds";
const FAILURES: &str = "etcd_network_peer_sent_failures_total";

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, metrics) in evidence.metrics() {
        let name_of = |peer: &str| {
            u64::from_str_radix(peer, 16).map_or_else(|_| peer.to_owned(), |id| evidence.name_of(id))
        };
        for peer in metrics.values_of(&format!("{RTT}_count"), "To") {
            let Some(probes) = metrics.probed(RTT, &[("To", &peer)]) else { continue };
            // If the probes are all since the member's start, judge their median, so that a single slow hour
            // in the past is not reported.
            let (quantile, share, span) = match probes.of_life {
                true => ("p50", 0.5, " since the start"),
                false => ("p99", 0.99, ""),
            };
            let Some(takes) = probes.histogram.quantile(share) else { continue };
            if takes > limits.peer_rtt {
                let (takes, limit) = (show::seconds(takes), show::seconds(limits.peer_rtt));
                let (to, count) = (name_of(&peer), show::count(probes.histogram.count));
                let text = format!(
                    "round trip to {to} takes {takes} ({quantile} of {count} probes{span}), limit {limit}"
                );
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
        for peer in metrics.values_of(FAILURES, "To") {
            let failures = metrics.grown(FAILURES, &[("To", &peer)]).unwrap_or(0.0);
            if failures > 0.0 {
                let (to, failures) = (name_of(&peer), show::counted(failures, "message", "messages"));
                let text = format!("{failures} to {to} not sent within {:.0} s", metrics.seconds);
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    facts.found(
        RULE.name,
        "slow or failing links between members",
        "Each write waits for a round trip to a majority of members, and each linearizable read at a \
         follower for one to the leader; lost heartbeats cause elections.",
        &[
            "measure the path: mainstay check network --endpoints ... from each member's machine",
            "keep members within one region; set --heartbeat-interval near the round trip time, and \
             --election-timeout to ten times that",
            "if the link is shared, prioritize the peer port (tc, QoS)",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, histogram, judged, with_metrics};

    #[test]
    fn the_round_trip_to_one_peer() {
        let both = |to_three: &[(f64, u64)]| {
            histogram(RTT, "To=\"2\"", &[(0.0002, 4)]) + &histogram(RTT, "To=\"3\"", to_three)
        };
        assert_eq!(
            facts(&RULE, &with_metrics("", &both(&[(0.1024, 0), (0.2048, 4)]))).1,
            ["m1 (10.0.0.1:2379): round trip to m3 takes 203.8 ms (p99 of 4 probes), limit 100.0 ms"]
        );
        assert_eq!(judged(&RULE, &with_metrics("", &both(&[(0.0512, 0), (0.0999, 4)]))), None);
        assert_eq!(judged(&RULE, &with_metrics("", &both(&[(0.1024, 0), (0.2048, 1)]))), None, "one probe");
    }

    #[test]
    fn probes_that_are_rarer_than_looks() {
        let page = |slow: u64, all: u64| {
            histogram(RTT, "To=\"2\"", &[(0.0512, all - slow), (0.1024, all - slow), (0.2048, all)])
        };
        let unchanged = |slow, all| with_metrics(&page(slow, all), &page(slow, all));
        assert_eq!(
            facts(&RULE, &unchanged(20, 20)).1,
            [
                "m1 (10.0.0.1:2379): round trip to m2 takes 153.6 ms (p50 of 20 probes since the start), limit 100.0 ms"
            ]
        );
        assert_eq!(judged(&RULE, &unchanged(9, 20)), None, "most were fast");
        assert_eq!(judged(&RULE, &unchanged(9, 9)), None, "too few");
        let too_few = |evidence| {
            let blind = RULE.blind(&evidence).into_iter().map(|blind| blind.because);
            blind.filter(|because| because.starts_with("too few")).collect::<Vec<_>>()
        };
        let said = format!(
            "too few observations in {RTT}: 9 since the start, 10 needed; repeat later, or with a longer --for"
        );
        assert_eq!(too_few(unchanged(9, 9)), [said]);
        assert_eq!(too_few(unchanged(10, 10)), [""; 0]);
        assert_eq!(too_few(with_metrics(&page(0, 3), &page(2, 5))), [""; 0], "two of them just now");
        // In the first case, the member has a link to only one of its two peers. In the second, it has only a
        // link to a former member.
        let other =
            |to: u64| format!("{}{}", page(0, 10), histogram(RTT, &format!("To=\"{to}\""), &[(0.0512, 1)]));
        assert_eq!(too_few(with_metrics(&other(3), &other(3))).len(), 1);
        assert_eq!(too_few(with_metrics(&other(7), &other(7))), [""; 0]);
    }

    #[test]
    fn messages_that_were_not_sent() {
        let lost = |count: u64| format!("{FAILURES}{{To=\"2\"}} {count}\n");
        assert_eq!(
            facts(&RULE, &with_metrics(&lost(5), &lost(6))).1,
            ["m1 (10.0.0.1:2379): 1 message to m2 not sent within 10 s"]
        );
        assert_eq!(judged(&RULE, &with_metrics(&lost(5), &lost(5))), None);
    }
}
