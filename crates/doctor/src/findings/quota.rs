use crate::evidence::{Evidence, Member};
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "quota-near",
    about: "a database close to its quota",
    needs: &[&[Need::Metric("etcd_server_quota_backend_bytes"), Need::Status]],
    judge,
};

/// Share of the quota from which on the finding is an error, because a few more writes may raise the NOSPACE
/// alarm. etcd's own alert rules also use this share for their critical alert.
const CRITICAL: f64 = 0.95;

/// Returns the size that counts against the quota, and the quota, both in bytes. For etcd, this is the size
/// of the file including free pages; for Mainstay, the size of the data in use.
fn fill(member: &Member) -> Option<(f64, f64)> {
    let is_mainstay = member.is_mainstay();
    let by_metrics = || {
        let metrics = member.metrics.as_ref().ok()?;
        let size = metrics.now(match is_mainstay {
            true => "etcd_mvcc_db_total_size_in_use_in_bytes",
            false => "etcd_mvcc_db_total_size_in_bytes",
        })?;
        Some((size, metrics.now("etcd_server_quota_backend_bytes")?))
    };
    let by_status = || {
        let status = member.status.as_ref().ok()?;
        Some((if is_mainstay { status.db_bytes_in_use } else { status.db_bytes }, status.quota_bytes))
    };
    by_metrics().or_else(by_status).filter(|(_, quota)| *quota > 0.0)
}

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        let (size, quota) = fill(member)?;
        let share = size / quota;
        let severity = if share >= CRITICAL { Severity::Error } else { Severity::Warning };
        let (size, quota) = (show::bytes(size), show::bytes(quota));
        (share >= limits.quota).then(|| (severity, format!("{size} of {quota} ({})", show::percent(share))))
    })
    .found(
        RULE.name,
        "the database is close to its quota",
        "At the quota, the NOSPACE alarm is raised and all writes are refused.",
        &[
            "remove history: mainstay ctl compact REVISION, and automatically: --auto-compaction-retention=1h",
            "etcd: release the space: mainstay ctl defrag --cluster",
            "if the live data needs the space: raise --quota-backend-bytes of each member (etcd recommends at most 8 GiB)",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged, status, with_metrics};

    #[test]
    fn four_fifths_and_nearly_all_of_the_quota() {
        let at = |bytes: u64| {
            let sizes = format!(
                "etcd_mvcc_db_total_size_in_bytes {bytes}\netcd_mvcc_db_total_size_in_use_in_bytes 1\n"
            );
            let mut evidence = with_metrics("", &(sizes + "etcd_server_quota_backend_bytes 1000000\n"));
            evidence.members[0].page = Err("404".into());
            evidence
        };
        assert_eq!(judged(&RULE, &at(799_999)), None);
        assert_eq!(
            facts(&RULE, &at(800_000)),
            (Severity::Warning, vec!["m1 (10.0.0.1:2379): 800 kB of 1.0 MB (80 %)".to_owned()])
        );
        assert_eq!(facts(&RULE, &at(950_000)).0, Severity::Error);
    }

    #[test]
    fn by_the_status_where_there_are_no_metrics() {
        let mut evidence = healthy();
        evidence.members[0].metrics = Err("404".into());
        evidence.members[0].page = Err("404".into());
        assert_eq!(judged(&RULE, &evidence), None);
        status(&mut evidence, 0).db_bytes = 2.1e9;
        assert_eq!(facts(&RULE, &evidence).0, Severity::Error);
    }

    #[test]
    fn mainstay_counts_what_is_in_use() {
        let at = |bytes: u64| {
            let sizes = format!(
                "etcd_mvcc_db_total_size_in_bytes 999999\netcd_mvcc_db_total_size_in_use_in_bytes {bytes}\n"
            );
            with_metrics("", &(sizes + "etcd_server_quota_backend_bytes 1000000\n"))
        };
        assert_eq!(judged(&RULE, &at(799_999)), None);
        assert_eq!(facts(&RULE, &at(800_000)).0, Severity::Warning);
    }
}
