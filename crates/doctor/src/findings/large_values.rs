use crate::evidence::Evidence;
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "large-values",
    about: "large values, and the clients that put them",
    needs: &[&[Need::Page("large_values"), Need::Sample]],
    judge,
};

const PUT_BYTES: &str = "etcd_debugging_mvcc_total_put_size_in_bytes";
const PUTS: &str = "etcd_mvcc_put_total";
const TOLD_MAX: usize = 5;
const RECENT_SECONDS: f64 = 600.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for (member, page) in evidence.pages() {
        let now = member.clock.as_ref().map_or(evidence.taken_unix, |clock| evidence.taken_unix + clock.low);
        let mut large: Vec<_> = page
            .large_values
            .iter()
            .flatten()
            .filter(|value| {
                value.bytes >= limits.value_bytes && now - value.last_unix_ms / 1e3 < RECENT_SECONDS
            })
            .collect();
        large.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
        for value in large.iter().take(TOLD_MAX) {
            let text = format!("{} put {} with {}", value.client, value.key, show::bytes(value.bytes));
            facts.add(Severity::Warning, Fact::of(member, text));
        }
        if large.len() > TOLD_MAX {
            let text = format!("and {} more", large.len() - TOLD_MAX);
            facts.add(Severity::Warning, Fact::of(member, text));
        }
    }
    if let Ok(sample) = &evidence.sample {
        let large = sample.largest.iter().filter(|(_, bytes)| *bytes >= limits.value_bytes);
        for (key, bytes) in large.take(TOLD_MAX) {
            let text = format!("{key} holds {} (of {} keys sampled)", show::bytes(*bytes), sample.keys);
            facts.add(Severity::Warning, Fact::all(text));
        }
    }
    for (member, metrics) in evidence.metrics() {
        let puts = metrics.grown(PUT_BYTES, &[]).zip(metrics.grown(PUTS, &[]));
        if let Some((bytes, puts)) = puts.filter(|(_, puts)| *puts >= 1.0)
            && bytes / puts >= limits.value_bytes
        {
            let (puts, mean) = (show::count(puts), show::bytes(bytes / puts));
            let text = format!("{puts} puts of {mean} each on average within {:.0} s", metrics.seconds);
            facts.add(Severity::Warning, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "large values",
        "Each value passes through the log of every member, and is sent whole in every answer and watch \
         event; a read of 1 MB costs as much as hundreds of small ones.",
        &[
            "store large data elsewhere (object storage) and only its name here",
            "split values that are read in parts into separate keys",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Sample;
    use crate::fixture::{NOW, facts, healthy, judged, with_metrics, with_page};

    #[test]
    fn who_puts_them() {
        let page = |bytes: u64| {
            let at = NOW * 1e3;
            with_page(&format!(
                r#"{{"large_values":[{{"client":"10.1.1.1","key":"\"k\"","bytes":{bytes},"last_unix_ms":{at}}}]}}"#
            ))
        };
        assert_eq!(facts(&RULE, &page(102_400)).1, ["m1 (10.0.0.1:2379): 10.1.1.1 put \"k\" with 102 kB"]);
        assert_eq!(judged(&RULE, &page(102_399)), None);
    }

    #[test]
    fn what_lies_there_and_what_comes() {
        let mut evidence = healthy();
        let lies = |bytes: f64| Ok(Sample { keys: 40, largest: vec![("\"k\"".to_owned(), bytes)] });
        evidence.sample = lies(1e6);
        assert_eq!(facts(&RULE, &evidence).1, ["\"k\" holds 1.0 MB (of 40 keys sampled)"]);
        evidence.sample = lies(102_399.0);
        assert_eq!(judged(&RULE, &evidence), None);
        let puts = |bytes: u64| with_metrics("", &format!("{PUT_BYTES} {bytes}\n{PUTS} 10\n"));
        assert_eq!(facts(&RULE, &puts(1_024_000)).1.len(), 1);
        assert_eq!(judged(&RULE, &puts(1_023_999)), None);
    }
}
