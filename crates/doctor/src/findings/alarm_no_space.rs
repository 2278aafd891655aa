use crate::evidence::{AlarmKind, Evidence};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};

pub const RULE: Rule = Rule {
    name: "alarm-nospace",
    about: "the NOSPACE alarm, which stops writes",
    needs: &[&[Need::Alarms]],
    judge,
};

fn judge(evidence: &Evidence, _: &Limits) -> Option<Finding> {
    let mut facts = Facts::default();
    for alarm in evidence.alarms.iter().flatten() {
        let name = evidence.name_of(alarm.member_id);
        match alarm.kind {
            AlarmKind::NoSpace => {
                facts.add(Severity::Error, Fact::all(format!("NOSPACE, raised for {name}")));
            }
            AlarmKind::Other(number) => {
                facts.add(Severity::Error, Fact::all(format!("unknown alarm {number}, raised for {name}")));
            }
            AlarmKind::Corrupt => {}
        }
    }
    facts.found(
        RULE.name,
        "the NOSPACE alarm is raised: writes are refused",
        "Puts and new leases are refused with \"mvcc: database space exceeded\" until the alarm is disarmed.",
        &[
            "remove history: mainstay ctl compact REVISION (see the revision in: mainstay ctl endpoint status -w json)",
            "etcd: release the space: mainstay ctl defrag --cluster",
            "then: mainstay ctl alarm disarm",
            "if the live data needs the space: raise --quota-backend-bytes of each member",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Alarm;
    use crate::fixture::{facts, healthy, judged};

    #[test]
    fn the_alarm() {
        let mut evidence = healthy();
        evidence.alarms = Ok(vec![Alarm { member_id: 7, kind: AlarmKind::NoSpace }]);
        assert_eq!(facts(&RULE, &evidence).1, ["NOSPACE, raised for member 7"]);
        evidence.alarms = Ok(vec![Alarm { member_id: 7, kind: AlarmKind::Corrupt }]);
        assert_eq!(judged(&RULE, &evidence), None);
    }
}
