use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "authentication-without-token-reuse",
    about: "clients that authenticate for each request",
    needs: &[&[Need::Metric(HANDLED)]],
    judge,
};

const HANDLED: &str = "grpc_server_handled_total";
/// Minimum number of other requests per `Authenticate` call. With fewer, clients hardly reuse their tokens.
const REQUESTS_PER_TOKEN: f64 = 10.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, metrics) in evidence.metrics() {
        let all = metrics.rate(HANDLED, &[("grpc_type", "unary")]).unwrap_or(0.0);
        let Some(tokens) = metrics.rate(HANDLED, &[("grpc_method", "Authenticate")]) else { continue };
        let others = (all - tokens).max(0.0);
        if tokens < limits.authentications || others >= REQUESTS_PER_TOKEN * tokens {
            continue;
        }
        let (tokens, others) = (show::rate(tokens), show::rate(others));
        let text = format!("{tokens} authentications for {others} other requests");
        facts.add(Severity::Warning, Fact::of(member, text));
        let clients = member.page.as_ref().ok().and_then(|page| page.clients.as_ref());
        let mut clients: Vec<_> = clients.into_iter().flatten().collect();
        clients.retain(|client| client.authentications >= 1.0);
        clients.sort_by(|a, b| b.authentications.total_cmp(&a.authentications));
        for client in clients.iter().take(3) {
            let (tokens, all) = (show::count(client.authentications), show::count(client.requests));
            let text = format!("{}: {tokens} authentications among {all} requests", client.address);
            facts.add(Severity::Warning, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "clients authenticate again for each request",
        "Checking a password is slow by design (bcrypt): each check takes tens of milliseconds of \
         processor time, more than hundreds of reads.",
        &[
            "use one client per process and reuse its token, instead of opening a client for each request",
            "use client certificates, which need no password: --client-cert-auth; the certificate's common name is the user",
            "use tokens that need no lookup (--auth-token=jwt,...), or a lower cost (--bcrypt-cost)",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};
    use crate::page::Page;

    fn handled(tokens: u64, others: u64) -> String {
        let line = |method: &str, count: u64| {
            format!("{HANDLED}{{grpc_type=\"unary\",grpc_code=\"OK\",grpc_method=\"{method}\"}} {count}\n")
        };
        line("Authenticate", tokens) + &line("Range", others)
    }

    #[test]
    fn a_token_for_each_request() {
        let mut evidence = with_metrics(&handled(5, 100), &handled(25, 120));
        evidence.members[0].page =
            Page::read(br#"{"clients":[{"address":"10.1.1.1","requests":40,"authentications":20}]}"#);
        assert_eq!(
            facts(&RULE, &evidence).1,
            [
                "m1 (10.0.0.1:2379): 2.0/s authentications for 2.0/s other requests",
                "m1 (10.0.0.1:2379): 10.1.1.1: 20 authentications among 40 requests"
            ]
        );
        assert_eq!(judged(&RULE, &with_metrics(&handled(5, 100), &handled(14, 100))), None, "seldom");
        assert_eq!(judged(&RULE, &with_metrics(&handled(5, 100), &handled(25, 300))), None, "well used");
    }
}
