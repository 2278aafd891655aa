use crate::evidence::Evidence;
use crate::finding::{Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule = Rule {
    name: "fragmentation",
    about: "databases that hold more free pages than data (etcd)",
    needs: &[&[Need::Status]],
    judge,
};

/// Minimum size of the database in bytes. Defragmenting a smaller file is not worth the pause in service.
const BYTES_MIN: f64 = 64.0 * 1024.0 * 1024.0;

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    Facts::of_each(evidence, |member| {
        // Mainstay frees space without defragmentation, and its unused space includes a reserve that it needs
        // for this. So with Mainstay, a large unused share is no problem.
        if member.is_mainstay() {
            return None;
        }
        let status = member.status.as_ref().ok()?;
        let free = status.db_bytes - status.db_bytes_in_use;
        let share = free / status.db_bytes.max(1.0);
        (status.db_bytes >= BYTES_MIN && share >= limits.fragmentation).then(|| {
            let (free, all) = (show::bytes(free), show::bytes(status.db_bytes));
            (Severity::Warning, format!("{free} of {all} are free pages ({})", show::percent(share)))
        })
    })
    .found(
        RULE.name,
        "the database is fragmented",
        "The quota counts the whole file, including free pages; snapshots and transfers to members are as large.",
        &["mainstay ctl defrag --endpoints=MEMBER, one member after the other, the leader last: each stops serving while it runs"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged, status};

    #[test]
    fn more_free_than_in_use() {
        let mut evidence = healthy();
        evidence.members[0].page = Err("404".into());
        status(&mut evidence, 0).db_bytes = 1e8;
        status(&mut evidence, 0).db_bytes_in_use = 5e7;
        assert_eq!(facts(&RULE, &evidence).1, ["m1 (10.0.0.1:2379): 50 MB of 100 MB are free pages (50 %)"]);
        status(&mut evidence, 0).db_bytes_in_use = 5.01e7;
        assert_eq!(judged(&RULE, &evidence), None);
        status(&mut evidence, 0).db_bytes = 6.7e7;
        status(&mut evidence, 0).db_bytes_in_use = 0.0;
        assert_eq!(judged(&RULE, &evidence), None, "small");
    }
}
