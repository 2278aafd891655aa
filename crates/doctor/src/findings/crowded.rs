use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "crowded-connections",
    about: "too many watches or leases on one connection",
    needs: &[&[Need::Page("clients"), Need::Metric(WATCHERS)]],
    judge,
};

const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";
const STREAMS: &str = "etcd_debugging_mvcc_watch_stream_total";
const GRANTED: &str = "etcd_debugging_lease_granted_total";
const REVOKED: &str = "etcd_debugging_lease_revoked_total";

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, page) in evidence.pages() {
        for client in page.clients.iter().flatten() {
            let each = client.watches / client.connections.max(1.0);
            if each >= limits.watches {
                let (watches, connections) = (show::count(client.watches), show::count(client.connections));
                let text = format!("{}: {watches} watches on {connections} connections", client.address);
                facts.add(Severity::Warning, Fact::of(member, text));
            }
            if client.leases >= limits.leases {
                let text = format!("{}: {} leases kept alive", client.address, show::count(client.leases));
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    for (member, metrics) in evidence.metrics() {
        if member.page.as_ref().is_ok_and(|page| page.clients.is_some()) {
            continue;
        }
        if let Some((watchers, streams)) = metrics.now(WATCHERS).zip(metrics.now(STREAMS))
            && watchers / streams.max(1.0) >= limits.watches
        {
            let (watchers, streams) = (show::count(watchers), show::count(streams));
            facts
                .add(Severity::Warning, Fact::of(member, format!("{watchers} watches on {streams} streams")));
        }
        // Estimate the number of open leases. The counter of revoked leases includes expired ones. Leases
        // that were granted before the member's counters started are missing, so the estimate may be too low.
        let open = |event: &str| metrics.now(event);
        let keep_alives = |name: &str| metrics.after.sum(name, &[("grpc_method", "LeaseKeepAlive")]);
        let streams = keep_alives("grpc_server_started_total")
            .zip(keep_alives("grpc_server_handled_total"))
            .map(|(started, handled)| (started - handled).max(1.0));
        if let Some(((granted, revoked), streams)) = open(GRANTED).zip(open(REVOKED)).zip(streams) {
            let leases = granted - revoked;
            if leases / streams >= limits.leases {
                let (leases, streams) = (show::count(leases), show::count(streams));
                let text = format!("{leases} leases on {streams} streams that keep them alive, at most");
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
    }
    facts.found(
        RULE.name,
        "too many watches or leases on one connection",
        "A connection is served one message at a time: events and renewals arrive late, and if it breaks, \
         everything on it starts again at the same time.",
        &[
            "watch a prefix instead of each key",
            "attach keys to one lease if they are to be deleted together",
            "use several connections and members",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics, with_page};

    #[test]
    fn by_the_page() {
        let page = |watches: u64, leases: u64| {
            with_page(&format!(
                r#"{{"clients":[{{"address":"10.1.1.1","connections":2,"watches":{watches},"leases":{leases}}}]}}"#
            ))
        };
        assert_eq!(
            facts(&RULE, &page(10_000, 5_000)).1,
            [
                "m1 (10.0.0.1:2379): 10.1.1.1: 10,000 watches on 2 connections",
                "m1 (10.0.0.1:2379): 10.1.1.1: 5,000 leases kept alive"
            ]
        );
        assert_eq!(judged(&RULE, &page(9_999, 4_999)), None);
    }

    #[test]
    fn by_the_metrics() {
        let of_etcd = |text: String| {
            let mut evidence = with_metrics("", &text);
            evidence.members[0].page = Err("404".into());
            evidence
        };
        let watches = |count: u64| of_etcd(format!("{WATCHERS} {count}\n{STREAMS} 2\n"));
        assert_eq!(facts(&RULE, &watches(10_000)).1, ["m1 (10.0.0.1:2379): 10,000 watches on 2 streams"]);
        assert_eq!(judged(&RULE, &watches(9_999)), None);
        let leases = |count: u64| {
            let streams = "{grpc_method=\"LeaseKeepAlive\"}";
            of_etcd(format!(
                "{GRANTED} {count}\n{REVOKED} 10\ngrpc_server_started_total{streams} 3\n\
                 grpc_server_handled_total{streams} 1\n"
            ))
        };
        assert_eq!(facts(&RULE, &leases(10_010)).1.len(), 1);
        assert_eq!(judged(&RULE, &leases(10_009)), None);
    }
}
