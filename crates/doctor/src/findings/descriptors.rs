use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "file-descriptors",
    about: "members close to the limit of open files and connections",
    needs: &[&[Need::Metric("process_open_fds"), Need::Metric("os_fd_used")]],
    judge,
};

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let metrics = member.metrics.as_ref().ok()?;
        let pair = |used: &str, limit: &str| metrics.now(used).zip(metrics.now(limit));
        let (used, limit) =
            pair("process_open_fds", "process_max_fds").or_else(|| pair("os_fd_used", "os_fd_limit"))?;
        (limit > 0.0 && used / limit >= limits.descriptors).then(|| {
            let (used, limit, share) = (show::count(used), show::count(limit), show::percent(used / limit));
            (Severity::Error, format!("{used} of {limit} descriptors in use ({share})"))
        })
    })
    .found(
        RULE.name,
        "file descriptors are running out",
        "Without descriptors, no connection is accepted; etcd cannot even start a new log file, and stops.",
        &[
            "raise the limit: LimitNOFILE= in the unit, ulimit -n",
            "find clients that open too many connections: ss -tn state established '( sport = :2379 )'",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, judged, with_metrics};

    #[test]
    fn the_share_in_use() {
        let open = |count: u64| format!("process_open_fds {count}\nprocess_max_fds 1000\n");
        assert_eq!(
            facts(&RULE, &with_metrics("", &open(800))).1,
            ["m1 (10.0.0.1:2379): 800 of 1,000 descriptors in use (80 %)"]
        );
        assert_eq!(judged(&RULE, &with_metrics("", &open(799))), None);
        assert_eq!(judged(&RULE, &with_metrics("", "process_open_fds 5\nprocess_max_fds 0\n")), None);
    }
}
