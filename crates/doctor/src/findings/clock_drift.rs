use crate::evidence::{Clock, Evidence};
use crate::finding::{Fact, Facts, Finding, Severity};
use crate::limits::Limits;
use crate::rule::{Need, Rule};
use crate::show;

pub const RULE: Rule =
    Rule { name: "clock-drift", about: "members whose clocks differ", needs: &[&[Need::Clock]], judge };

/// Returns the smallest possible difference between two clocks, in seconds, given the bounds of their
/// offsets.
fn apart(a: Clock, b: Clock) -> f64 {
    (a.low - b.high).max(b.low - a.high).max(0.0)
}

fn judge(evidence: &Evidence, limits: &Limits) -> Option<Finding> {
    let clocks: Vec<_> = evidence
        .members
        .iter()
        .filter_map(|member| Some((member, member.clock.as_ref().ok().copied()?)))
        .collect();
    // If only one clock is known, compare it with the clock of this machine.
    let here = (clocks.len() == 1).then_some(Clock { low: 0.0, high: 0.0 });
    let all: Vec<Clock> = clocks.iter().map(|(_, clock)| *clock).chain(here).collect();
    let drift = all.iter().flat_map(|a| all.iter().map(|b| apart(*a, *b))).fold(0.0, f64::max);
    if drift <= limits.clock {
        return None;
    }
    let mut facts = Facts::default();
    for (member, clock) in clocks {
        let middle = f64::midpoint(clock.low, clock.high);
        let within = show::seconds((clock.high - clock.low) / 2.0);
        let way = if middle < 0.0 { "behind" } else { "ahead of" };
        let text = format!("{} {way} the clock here, within {within}", show::seconds(middle.abs()));
        facts.add(Severity::Warning, Fact::of(member, text));
    }
    facts.found(
        RULE.name,
        "the clocks of members differ",
        "Certificates and tokens are checked against these clocks, and after a change of leader, leases \
         may last longer or shorter by the difference; the members' logs cannot be compared.",
        &[
            "synchronize all clocks with one source: systemctl status chronyd, chronyc tracking (or timedatectl timesync-status)",
            "in virtual machines, check that the host's time is correct, especially after a pause",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{facts, healthy, judged};

    #[test]
    fn only_what_is_certain_counts() {
        let third = |low: f64, high: f64| {
            let mut evidence = healthy();
            evidence.members[2].clock = Ok(Clock { low, high });
            evidence
        };
        // The bounds of the other two members' clocks are -1 and +1 ms.
        assert_eq!(
            facts(&RULE, &third(0.502, 0.504)).1[2],
            "m3 (10.0.0.3:2379): 503.0 ms ahead of the clock here, within 1.0 ms"
        );
        assert_eq!(judged(&RULE, &third(0.5009, 0.504)), None);
        assert_eq!(judged(&RULE, &third(-1.2, 1.3)), None, "too coarse to say");
        assert_eq!(
            facts(&RULE, &third(-3.0, -1.0)).1[2],
            "m3 (10.0.0.3:2379): 2.00 s behind the clock here, within 1.00 s"
        );
    }

    #[test]
    fn all_may_differ_from_the_clock_here_but_one_may_not() {
        let mut evidence = healthy();
        evidence.members.iter_mut().for_each(|member| member.clock = Ok(Clock { low: 9.0, high: 9.1 }));
        assert_eq!(judged(&RULE, &evidence), None);
        evidence.members.truncate(1);
        assert_eq!(facts(&RULE, &evidence).0, Severity::Warning);
    }
}
