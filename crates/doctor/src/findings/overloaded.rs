use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "overloaded",
    about: "members that cannot keep up with the writes",
    needs: &[
        &[Need::Metric(PENDING)],
        &[Need::Metric(COMMITTED)],
        &[Need::Metric(SLOW_APPLIES)],
        &[Need::Metric(HANDLED)],
    ],
    judge,
};

const HANDLED: &str = "grpc_server_handled_total";
const PENDING: &str = "etcd_server_proposals_pending";
const COMMITTED: &str = "etcd_server_proposals_committed_total";
const APPLIED: &str = "etcd_server_proposals_applied_total";
const FAILED: &str = "etcd_server_proposals_failed_total";
const SLOW_APPLIES: &str = "etcd_server_slow_apply_total";
/// Minimum number of slow applies per second that counts as overload.
const SLOW_APPLIES_PER_SECOND: f64 = 1.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, metrics) in evidence.metrics() {
        let mut add = |severity, text| facts.add(severity, Fact::of(member, text));
        let lag =
            metrics.now(COMMITTED).zip(metrics.now(APPLIED)).map(|(committed, applied)| committed - applied);
        if let Some(lag) = lag.filter(|lag| *lag >= limits.backlog) {
            add(Severity::Error, format!("{} entries are committed but not applied", show::count(lag)));
        }
        if let Some(pending) = metrics.now(PENDING).filter(|pending| *pending >= limits.backlog) {
            add(Severity::Warning, format!("{} proposals are waiting to be committed", show::count(pending)));
        }
        let open = [&metrics.before, &metrics.after].map(|page| {
            let sum = |name: &str| page.sum(name, &[("grpc_type", "unary")]);
            sum("grpc_server_started_total")
                .zip(sum(HANDLED))
                .map_or(0.0, |(started, handled)| started - handled)
        });
        // Take the lower of the two readings, so that a short burst is not reported.
        let open = open[0].min(open[1]);
        if open >= limits.backlog {
            add(Severity::Warning, format!("{} requests are waiting for an answer", show::count(open)));
        }
        if let Some(failed) = metrics.grown(FAILED, &[]).filter(|failed| *failed >= 1.0) {
            let text = format!("{} proposals failed within {:.0} s", show::count(failed), metrics.seconds);
            add(Severity::Warning, text);
        }
        if let Some(slow) = metrics.rate(SLOW_APPLIES, &[]).filter(|slow| *slow >= SLOW_APPLIES_PER_SECOND) {
            add(Severity::Warning, format!("{} requests are slow to apply", show::rate(slow)));
        }
        let refused = metrics.grown(HANDLED, &[("grpc_code", "ResourceExhausted")]);
        // While the NOSPACE alarm is raised, the server refuses puts with the same code, which does not mean
        // overload. So ignore the refusals while any alarm is raised.
        let is_full = evidence.alarms.as_ref().is_ok_and(|alarms| !alarms.is_empty());
        if let Some(refused) = refused.filter(|refused| *refused >= 1.0 && !is_full) {
            let text = format!(
                "{} requests were refused for lack of resources (ResourceExhausted) within {:.0} s",
                show::count(refused),
                metrics.seconds
            );
            add(Severity::Error, text);
        }
    }
    facts.found(
        RULE.name,
        "members cannot keep up",
        "Writes queue and their latency grows; at 5000 unapplied entries, all further writes are refused \
         with \"too many requests\".",
        &[
            "find the clients that write: clients in /debug/mainstay, or the metric grpc_server_handled_total by method",
            "check whether disk or processor is the limit: findings slow-disk, slow-commit, cpu, expensive-ranges",
            "reduce the load: fewer, larger transactions; leases shared by many keys; watches instead of polling",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Alarm, AlarmKind};
    use crate::fixture::{facts, judged, with_metrics};

    #[test]
    fn a_backlog() {
        let lag = |applied: u64| format!("{COMMITTED} 10000\n{APPLIED} {applied}\n");
        assert_eq!(
            facts(&RULE, &with_metrics("", &lag(9500))),
            (
                Severity::Error,
                vec!["m1 (10.0.0.1:2379): 500 entries are committed but not applied".to_owned()]
            )
        );
        assert_eq!(judged(&RULE, &with_metrics("", &lag(9501))), None);
        assert_eq!(facts(&RULE, &with_metrics("", &format!("{PENDING} 500\n"))).0, Severity::Warning);
        assert_eq!(judged(&RULE, &with_metrics("", &format!("{PENDING} 499\n"))), None);
    }

    #[test]
    fn requests_that_wait() {
        let open = |handled: u64| {
            let unary = "grpc_type=\"unary\"";
            format!(
                "grpc_server_started_total{{{unary}}} 1000\n{HANDLED}{{{unary},grpc_code=\"OK\"}} {handled}\n\
                 grpc_server_started_total{{grpc_type=\"bidi_stream\"}} 9000\n"
            )
        };
        assert_eq!(
            facts(&RULE, &with_metrics(&open(500), &open(400))).1,
            ["m1 (10.0.0.1:2379): 500 requests are waiting for an answer"]
        );
        assert_eq!(judged(&RULE, &with_metrics(&open(501), &open(400))), None);
    }

    #[test]
    fn slow_applies_and_refusals() {
        let slow = |count: u64| format!("{SLOW_APPLIES} {count}\n");
        assert_eq!(
            facts(&RULE, &with_metrics(&slow(5), &slow(25))).1,
            ["m1 (10.0.0.1:2379): 2.0/s requests are slow to apply"]
        );
        assert_eq!(judged(&RULE, &with_metrics(&slow(5), &slow(14))), None);
        let failed = |count: u64| format!("{FAILED} {count}\n");
        assert_eq!(facts(&RULE, &with_metrics(&failed(1), &failed(2))).0, Severity::Warning);
        assert_eq!(judged(&RULE, &with_metrics(&failed(2), &failed(2))), None);
        let refused = "grpc_server_handled_total{grpc_code=\"ResourceExhausted\"} 1\n";
        assert_eq!(facts(&RULE, &with_metrics("", refused)).0, Severity::Error);
        assert_eq!(judged(&RULE, &with_metrics(refused, refused)), None);
        let mut full = with_metrics("", refused);
        full.alarms = Ok(vec![Alarm { member_id: 1, kind: AlarmKind::NoSpace }]);
        assert_eq!(judged(&RULE, &full), None, "the alarm says it all");
    }
}
