use crate::evidence::{AlarmKind, Evidence};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};

pub const RULE: Rule = Rule {
    name: "alarm-corrupt",
    about: "members found to hold different data",
    needs: &[&[Need::Alarms]],
    judge,
};

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for alarm in evidence.alarms.iter().flatten().filter(|alarm| alarm.kind == AlarmKind::Corrupt) {
        let text = format!("CORRUPT, raised for {}", evidence.name_of(alarm.member_id));
        facts.add(Severity::Error, Fact::all(text));
    }
    for (member, metrics) in evidence.metrics() {
        if let Some(differences) =
            metrics.now("mainstay_state_hash_differences_total").filter(|found| *found > 0.0)
        {
            let text = format!("{differences:.0} differences between members' states since it started");
            facts.add(Severity::Error, Fact::of(member, text));
        }
    }
    facts.found(
        RULE.name,
        "members hold different data",
        "Different members give different answers to reads, and writes are refused.",
        &[
            "compare the members: mainstay ctl endpoint hashkv --cluster",
            "rebuild the member that differs from the others: mainstay rebuild FLAGS (etcd: member remove, \
             empty its data directory, member add)",
            "then: mainstay ctl alarm disarm",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Alarm;
    use crate::fixture::{facts, healthy, judged, with_metrics};

    #[test]
    fn the_alarm_and_the_metric() {
        let mut evidence = healthy();
        evidence.alarms = Ok(vec![Alarm { member_id: 2, kind: AlarmKind::Corrupt }]);
        assert_eq!(facts(&RULE, &evidence), (Severity::Error, vec!["CORRUPT, raised for m2".to_owned()]));
        evidence.alarms = Ok(vec![Alarm { member_id: 2, kind: AlarmKind::NoSpace }]);
        assert_eq!(judged(&RULE, &evidence), None);
        let differs = with_metrics("", "mainstay_state_hash_differences_total 1\n");
        assert_eq!(facts(&RULE, &differs).1.len(), 1);
        assert_eq!(judged(&RULE, &with_metrics("", "mainstay_state_hash_differences_total 0\n")), None);
    }
}
