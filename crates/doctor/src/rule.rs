//! Defines a rule of the doctor: a function that may return a finding, and a list of the evidence that this
//! function needs.

use crate::evidence::{Evidence, Member, Metrics, OBSERVATIONS_OF_LIFE_MIN, PROBES_OF_LIFE_MIN, Unseen};
use crate::finding::Finding;
use crate::limits::Limits;
use crate::show;

/// One rule of the doctor, which looks for one kind of problem.
pub struct Rule {
    /// Name of the rule, as in `--only` and in the report.
    pub name: &'static str,
    /// Description of the rule in one line.
    pub about: &'static str,
    /// Evidence that the rule needs from each member. Every entry is a list of alternatives: one of them is
    /// enough.
    pub needs: &'static [&'static [Need]],
    /// Judges the evidence; returns a finding if the rule sees a problem.
    pub judge: fn(&Evidence, &Limits) -> Option<Finding>,
}

/// A piece of evidence that a rule needs from a member.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Response to a status request.
    Status,
    /// A family of metrics, by name.
    Metric(&'static str),
    /// Enough probes of the round trip to each other member, in the histogram with this name. Nothing is
    /// needed if there are no other members.
    Probes(&'static str),
    /// Enough observations in the histogram with this name.
    Observations(&'static str),
    /// The list with this name on Mainstay's page.
    Page(&'static str),
    /// Enough observations in the histogram with this name, but only from etcd: the rule does not apply to
    /// Mainstay.
    OnlyEtcd(&'static str),
    /// Response to `/version`.
    Versions,
    /// Offset of the member's clock.
    Clock,
    /// Certificate that the member presents.
    Certificate,
    /// Round-trip times from this machine to the member.
    RoundTrips,
    /// List of the cluster's alarms.
    Alarms,
    /// Sample of the keys.
    Sample,
}

/// Evidence that is missing, so that a rule could not be applied completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blind {
    /// Name of the rule that needs the evidence; `everything` for all rules.
    pub name: &'static str,
    /// Labels of the members from which the evidence is missing; empty for all.
    pub members: Vec<String>,
    /// Reason why the evidence is missing.
    pub because: String,
    /// True if a request failed or was refused, so that the cluster must not be called healthy. False if the
    /// server does not have the data, or too little of it yet, or if the user does not want it.
    pub is_failure: bool,
}

impl Rule {
    /// Returns the evidence that this rule needs but does not have from members that were reached.
    pub fn blind(&self, evidence: &Evidence) -> Vec<Blind> {
        let mut found: Vec<Blind> = Vec::new();
        for member in evidence.members.iter().filter(|member| member.reached.is_ok()) {
            let mut reasons: Vec<Unseen> = Vec::new();
            for alternatives in self.needs {
                let missing: Vec<Unseen> =
                    alternatives.iter().map_while(|need| need.missing(member, evidence)).collect();
                if missing.len() == alternatives.len() {
                    reasons.extend(missing);
                }
            }
            let is_failure = reasons.iter().any(Unseen::is_failure);
            let mut because: Vec<String> = Vec::new();
            for reason in reasons {
                let reason = reason.to_string();
                if !because.contains(&reason) {
                    because.push(reason);
                }
            }
            if because.is_empty() {
                continue;
            }
            let because = because.join("; ");
            match found.iter_mut().find(|blind| blind.because == because && blind.is_failure == is_failure) {
                Some(blind) => blind.members.push(member.label()),
                None => {
                    let members = vec![member.label()];
                    found.push(Blind { name: self.name, members, because, is_failure });
                }
            }
        }
        for blind in &mut found {
            if blind.members.len() == evidence.members.len() {
                blind.members.clear();
            }
        }
        found
    }
}

/// Returns an entry for each member that was not reached, and another if the cluster may have members that
/// are not known. No rule could be applied to these members.
pub fn out_of_sight(evidence: &Evidence) -> Vec<Blind> {
    let at = |member: String, because: String| Blind {
        name: "everything",
        members: vec![member],
        because,
        is_failure: true,
    };
    let unreached = evidence.members.iter().filter(|member| member.reached.is_err());
    let unreached = unreached.map(|member| at(member.label(), "it could not be reached".to_owned()));
    let unknown = evidence.complete.as_ref().err();
    unreached.chain(unknown.map(|why| at("other members".to_owned(), why.to_string()))).collect()
}

fn too_few(family: &str, count: f64, least: f64, what_to_do: &str) -> Unseen {
    let (count, least) = (show::count(count), show::count(least));
    Unseen::left_out(format!(
        "too few observations in {family}: {count} since the start, {least} needed; {what_to_do}"
    ))
}

/// Returns the reason `why` with `words` before its text. The result counts as a failure if `why` does.
fn behind(words: &str, why: &Unseen) -> Unseen {
    let text = format!("{words}: {why}");
    if why.is_failure() { Unseen::because(text) } else { Unseen::left_out(text) }
}

impl Need {
    /// Returns the reason why the member's evidence does not contain what is needed; `None` if it does.
    fn missing(self, member: &Member, evidence: &Evidence) -> Option<Unseen> {
        let of_metrics = |seen: &dyn Fn(&Metrics) -> Option<Unseen>| match &member.metrics {
            Ok(metrics) => seen(metrics),
            Err(why) => Some(behind("no metrics", why)),
        };
        let has_peers = evidence.members.iter().filter(|member| member.id != 0).count() > 1;
        let absent = |family: &str| Unseen::left_out(format!("its metrics have no {family}"));
        match self {
            Need::Status => member.status.as_ref().err().map(|why| behind("no status", why)),
            Need::Metric(family) => {
                of_metrics(&|metrics| (!metrics.after.has(family)).then(|| absent(family)))
            }
            Need::Probes(family) => of_metrics(&|metrics| {
                // Ignore peers that are no longer members: their series stay in the metrics, but get no more
                // probes.
                let is_member = |peer: &String| {
                    u64::from_str_radix(peer, 16)
                        .is_ok_and(|id| evidence.members.iter().any(|member| member.id == id))
                };
                let mut peers = metrics.values_of(&format!("{family}_count"), "To");
                peers.retain(is_member);
                if has_peers && peers.is_empty() {
                    return Some(absent(family));
                }
                let unknown = peers.iter().filter(|peer| metrics.probed(family, &[("To", peer)]).is_none());
                let counts = unknown.filter_map(|peer| metrics.after.histogram(family, &[("To", peer)]));
                let least = counts.map(|all| all.count).reduce(f64::min)?;
                Some(too_few(family, least, PROBES_OF_LIFE_MIN, "repeat later, or with a longer --for"))
            }),
            Need::Observations(family) => of_metrics(&|metrics| {
                if metrics.observed(family, &[]).is_some() {
                    return None;
                }
                let Some(all) = metrics.after.histogram(family, &[]) else { return Some(absent(family)) };
                Some(too_few(
                    family,
                    all.count,
                    OBSERVATIONS_OF_LIFE_MIN,
                    "repeat under load or with a longer --for",
                ))
            }),
            Need::Page(list) => match &member.page {
                Ok(page) if page.has(list) => None,
                Ok(_) => Some(Unseen::left_out(format!("its page /debug/mainstay has no {list}"))),
                Err(why) => Some(behind("no page /debug/mainstay", why)),
            },
            Need::OnlyEtcd(family) => {
                if member.is_mainstay() {
                    return None;
                }
                Need::Observations(family).missing(member, evidence)
            }
            Need::Versions => member.versions.as_ref().err().map(|why| behind("no /version", why)),
            Need::Clock => member.clock.as_ref().err().map(|why| behind("its clock could not be read", why)),
            Need::Certificate => {
                member.certificate.as_ref().err().map(|why| behind("its certificate could not be read", why))
            }
            Need::RoundTrips => member.round_trips.as_ref().err().map(|why| behind("no round trips", why)),
            Need::Alarms => evidence.alarms.as_ref().err().map(|why| behind("no list of alarms", why)),
            Need::Sample => evidence.sample.as_ref().err().map(|why| behind("no keys sampled", why)),
        }
    }
}
