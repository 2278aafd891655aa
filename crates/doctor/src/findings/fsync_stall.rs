use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "fsync-stall",
    about: "single syncs of the log that stalled",
    needs: &[&[Need::Metric(FSYNC), Need::Page("fsync_stalls")]],
    judge,
};

const FSYNC: &str = "etcd_disk_wal_fsync_duration_seconds";
/// Age of a stall, in seconds, up to which it is reported from the page.
const RECENT_SECONDS: f64 = 600.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, metrics) in evidence.metrics() {
        let stalls = metrics.recent(FSYNC, &[]).map_or(0.0, |recent| recent.above(limits.stall));
        if stalls > 0.0 {
            let (limit, seconds) = (show::seconds(limits.stall), metrics.seconds);
            let stalls = show::counted(stalls, "sync", "syncs");
            let text = format!("{stalls} of the log took more than {limit} within {seconds:.0} s");
            facts.add(Severity::Error, Fact::of(member, text));
        }
    }
    for (member, page) in evidence.pages() {
        let now = member.clock.as_ref().map_or(evidence.taken_unix, |clock| evidence.taken_unix + clock.low);
        let stalls = page.fsync_stalls.iter().flatten();
        let recent = stalls
            .filter(|stall| stall.seconds >= limits.stall && now - stall.unix_ms / 1e3 < RECENT_SECONDS);
        let (mut number, mut longest, mut last) = (0.0, 0.0f64, 0.0f64);
        for stall in recent {
            number += 1.0;
            longest = longest.max(stall.seconds);
            last = last.max(stall.unix_ms / 1e3);
        }
        if number > 0.0 {
            let ago = show::seconds((now - last).max(0.0));
            let longest = show::seconds(longest);
            let stalls = show::counted(number, "sync", "syncs");
            let text = format!("{stalls} of the log stalled, the longest for {longest}, the last {ago} ago");
            facts.add(Severity::Error, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "the disk of the log stalled",
        "The member acknowledges no write during a stall; a leader that stalls for longer than the \
         election timeout is replaced.",
        &[
            "look for device errors and resets: dmesg -T, smartctl -a",
            "on burstable or network disks: mainstay check disk --path DATA-DIR --for 300s shows when the credit runs out",
            "keep backups, snapshots and log rotation away from that disk: ionice -c3, or another disk",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, facts, histogram, judged, with_metrics, with_page};

    #[test]
    fn one_sync_in_the_time_looked_at() {
        let before = histogram(FSYNC, "", &[(0.001, 90), (1.024, 91), (2.048, 95)]);
        let stalled = histogram(FSYNC, "", &[(0.001, 95), (1.024, 96), (2.048, 101)]);
        assert_eq!(
            facts(&RULE, &with_metrics(&before, &stalled)).1,
            ["m1 (10.0.0.1:2379): 1 sync of the log took more than 1.00 s within 10 s"]
        );
        // An fsync between 512 ms and 1.024 s possibly took less than a second, so it must not count.
        let near = histogram(FSYNC, "", &[(0.001, 95), (1.024, 97), (2.048, 101)]);
        assert_eq!(judged(&RULE, &with_metrics(&before, &near)), None);
    }

    #[test]
    fn stalls_that_the_page_remembers() {
        let page = |seconds: f64, ago: f64| {
            with_page(&format!(
                r#"{{"fsync_stalls":[{{"unix_ms":{},"seconds":{seconds}}}]}}"#,
                (NOW - ago) * 1e3
            ))
        };
        let (severity, lines) = facts(&RULE, &page(1.5, 30.0));
        assert_eq!(severity, Severity::Error);
        assert!(
            lines[0].contains("1 sync of the log stalled, the longest for 1.50 s, the last 30.00 s ago"),
            "{lines:?}"
        );
        assert_eq!(judged(&RULE, &page(0.99, 30.0)), None);
        assert_eq!(judged(&RULE, &page(1.5, 601.0)), None);
    }
}
