use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "slow-peer-link",
    about: "links between members that are slow or lose messages",
    needs: &[&[Need::PeerMetric(RTT)]],
    judge,
};

const RTT: &str = "etcd_network_peer_round_trip_time_seconds";
const FAILURES: &str = "etcd_network_peer_sent_failures_total";
/// Probes go out every few seconds, so that few observations have to do.
const PROBES_MIN: f64 = 2.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, metrics) in evidence.metrics() {
        let peers = |name: &str| {
            let mut peers: Vec<String> = Vec::new();
            for peer in metrics.after.samples(name).iter().filter_map(|sample| sample.label("To")) {
                if !peers.iter().any(|known| known == peer) {
                    peers.push(peer.to_owned());
                }
            }
            peers
        };
        let name_of = |peer: &str| {
            u64::from_str_radix(peer, 16).map_or_else(|_| peer.to_owned(), |id| evidence.name_of(id))
        };
        for peer in peers(&format!("{RTT}_count")) {
            let labels = [("To", peer.as_str())];
            let recent = metrics.recent(RTT, &labels).filter(|recent| recent.count >= PROBES_MIN);
            let Some(p99) = recent.as_ref().and_then(|recent| recent.quantile(0.99)) else { continue };
            if p99 > limits.peer_rtt {
                let (p99, limit) = (show::seconds(p99), show::seconds(limits.peer_rtt));
                let probes = show::count(recent.map_or(0.0, |recent| recent.count));
                let to = name_of(&peer);
                let text = format!("to {to} and back takes {p99} (p99 of {probes} probes), limit {limit}");
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
        for peer in peers(FAILURES) {
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
        "Each write waits for a round trip to a majority of members, each linearizable read of a follower for one to the \
         leader; lost heartbeats end in elections.",
        &[
            "measure the path: mainstay check network --endpoints ... from each member's machine",
            "keep members within one region, and --heartbeat-interval near the round trip time, --election-timeout ten times \
             that",
            "if the link is shared, give the peers' port precedence (tc, QoS)",
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
            ["m1 (10.0.0.1:2379): to m3 and back takes 203.8 ms (p99 of 4 probes), limit 100.0 ms"]
        );
        assert_eq!(judged(&RULE, &with_metrics("", &both(&[(0.0512, 0), (0.0999, 4)]))), None);
        assert_eq!(judged(&RULE, &with_metrics("", &both(&[(0.1024, 0), (0.2048, 1)]))), None, "one probe");
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
