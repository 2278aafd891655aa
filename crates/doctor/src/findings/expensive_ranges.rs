use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "expensive-ranges",
    about: "ranges that return many keys or bytes or take long, and their clients",
    needs: &[&[Need::Page("expensive_ranges"), Need::Metric(SENT_BYTES)]],
    judge,
};

const SENT_BYTES: &str = "etcd_network_client_grpc_sent_bytes_total";
const SENT: &str = "grpc_server_msg_sent_total";
const TIMES: &str = "etcd_server_range_duration_seconds";
/// Age of the last request, in seconds, up to which an expensive range is reported.
const RECENT_SECONDS: f64 = 600.0;
/// Largest number of expensive ranges that are reported for each member.
const TOLD_MAX: usize = 5;
/// Minimum number of responses for a judgment. Fewer may be single unusual requests, such as a snapshot.
const ANSWERS_MIN: f64 = 5.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, page) in evidence.pages() {
        let now = member.clock.as_ref().map_or(evidence.taken_unix, |clock| evidence.taken_unix + clock.low);
        let mut costly: Vec<_> = page
            .expensive_ranges
            .iter()
            .flatten()
            .filter(|range| now - range.last_unix_ms / 1e3 < RECENT_SECONDS)
            .filter(|range| {
                range.keys_max >= limits.range_keys
                    || range.bytes_total / range.count.max(1.0) >= limits.range_bytes
                    || range.seconds_max >= limits.range_time
            })
            .collect();
        costly.sort_by(|a, b| b.bytes_total.total_cmp(&a.bytes_total));
        for range in costly.iter().take(TOLD_MAX) {
            let text = format!(
                "{} made {} for {} to {}: up to {} keys, {} in all, up to {}",
                range.client,
                show::counted(range.count, "request", "requests"),
                range.key,
                range.range_end,
                show::count(range.keys_max),
                show::bytes(range.bytes_total),
                show::seconds(range.seconds_max)
            );
            facts.add(Severity::Warning, Fact::of(member, text));
        }
        if costly.len() > TOLD_MAX {
            let text = format!("and {} more like these", costly.len() - TOLD_MAX);
            facts.add(Severity::Warning, Fact::of(member, text));
        }
    }
    for (member, metrics) in evidence.metrics() {
        // Skip a member whose page lists expensive ranges: they were reported above, with their clients.
        let is_told = member.page.as_ref().is_ok_and(|page| page.expensive_ranges.is_some());
        let nobody = "; the server does not report the client";
        let sent = metrics.grown(SENT_BYTES, &[]).zip(metrics.grown(SENT, &[]));
        if let Some((bytes, answers)) = sent.filter(|(_, answers)| !is_told && *answers >= ANSWERS_MIN) {
            let mean = bytes / answers;
            if mean >= limits.range_bytes / 4.0 {
                let (answers, mean) = (show::count(answers), show::bytes(mean));
                let text = format!("{answers} answers of {mean} each on average{nobody}");
                facts.add(Severity::Warning, Fact::of(member, text));
            }
        }
        let times = metrics.recent(TIMES, &[]).filter(|times| !is_told && times.count >= ANSWERS_MIN);
        if let Some(p99) = times.as_ref().and_then(|times| times.quantile(0.99))
            && p99 >= limits.range_time
        {
            let (p99, count) = (show::seconds(p99), times.map_or(0.0, |times| times.count));
            let count = show::count(count);
            let text = format!("ranges take {p99} (p99 of {count}){nobody}");
            facts.add(Severity::Warning, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "expensive ranges",
        "They take processor time, memory and bandwidth from all other requests; in older etcd, they also delay writes.",
        &[
            "read page by page: limit 500, then continue after the last key (Kubernetes: limit and continue)",
            "watch from a revision on instead of listing repeatedly",
            "request only keys or a count if that is enough: --keys-only, --count-only",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, facts, histogram, judged, with_metrics, with_page};
    use crate::page::Page;

    #[test]
    fn who_asks_for_what() {
        let page = |keys: u64, ago: f64| {
            with_page(&format!(
                r#"{{"expensive_ranges":[{{"client":"10.1.1.1","key":"\"/a/\"","range_end":"\"/a0\"","count":12,
                    "keys_max":{keys},"bytes_total":2400000,"seconds_max":0.05,"last_unix_ms":{}}}]}}"#,
                (NOW - ago) * 1e3
            ))
        };
        assert_eq!(
            facts(&RULE, &page(5000, 10.0)).1,
            [
                "m1 (10.0.0.1:2379): 10.1.1.1 made 12 requests for \"/a/\" to \"/a0\": up to 5,000 keys, 2.4 MB in all, up to 50.0 ms"
            ]
        );
        assert_eq!(judged(&RULE, &page(4999, 10.0)), None);
        assert_eq!(judged(&RULE, &page(5000, 700.0)), None);
    }

    #[test]
    fn large_answers_of_a_server_without_a_page() {
        let sent = |bytes: u64| {
            let mut evidence = with_metrics("", &format!("{SENT_BYTES} {bytes}\n{SENT}{{a=\"b\"}} 10\n"));
            evidence.members[0].page = Err("404".into());
            evidence
        };
        assert_eq!(
            facts(&RULE, &sent(2_621_440)).1,
            [
                "m1 (10.0.0.1:2379): 10 answers of 262 kB each on average; the server does not report the client"
            ]
        );
        assert_eq!(judged(&RULE, &sent(2_621_439)), None);
        let mut told = sent(2_621_440);
        told.members[0].page = Ok(Page { expensive_ranges: Some(Vec::new()), ..Page::default() });
        assert_eq!(judged(&RULE, &told), None);
    }

    #[test]
    fn long_ranges_of_a_server_without_a_page() {
        let took = |seconds: f64| {
            with_metrics("", &histogram(TIMES, "success=\"true\"", &[(0.001, 0), (seconds, 10)]))
        };
        assert_eq!(
            facts(&RULE, &took(0.2)).1,
            ["m1 (10.0.0.1:2379): ranges take 198.0 ms (p99 of 10); the server does not report the client"]
        );
        assert_eq!(judged(&RULE, &took(0.1)), None);
    }
}
