//! Finds members whose state differs from that of the leader, soon after the first entry that has a different
//! effect on them. Every two seconds, the leader requests from the other members the hashes of their states
//! after each of their last entries, and compares them with its own.
//!
//! A difference raises the CORRUPT alarm, which has the same effect as in etcd: no member accepts writes
//! until the alarm is disarmed, not only the member that the alarm names. This is stricter than necessary if
//! a majority agrees, but clients and operators know the alarm in this form. Unlike in etcd, the named member
//! also stops answering reads (COMPAT-20), and cannot be the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use machine::{StateTrail, TrailComparison};
use numbers::Index;

use crate::comparison::{trail_of, trails_of_others};
use crate::corruption::minority;
use replica::core::{ControlRequest, PeerRequest, ReplyBody};
use replica::shared::Shared;
use telemetry::logging::{Logger, Value};

/// Interval between two comparisons.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// Time limit for the responses of the other members.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Number of rounds after which the alarm is raised even if a lagging member, which would decide which member
/// is wrong, has not reached the first entry that differs yet.
const PATIENCE_ROUNDS: u32 = 5;

/// Result of one round of comparisons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Ids of the members that could be compared, each with the result of its comparison.
    pub compared: Vec<(u64, TrailComparison)>,
    /// Ids of the members that the alarm should name; 0 if it cannot be determined which member differs.
    pub named: Vec<u64>,
    /// True if some members have not reached the first entry that differs yet. Once they have, it may be
    /// known which member is wrong.
    pub awaited: bool,
}

/// Compares the state hashes of this member (`own`) with those of the others. `members` is the number of
/// members in the cluster.
pub fn judge(own: u64, ours: &StateTrail, others: &[(u64, StateTrail)], members: usize) -> Verdict {
    let mut verdict = Verdict::default();
    let mut first: Option<Index> = None;
    for (id, theirs) in others {
        let comparison = ours.compare(theirs);
        if let TrailComparison::Different { index, .. } = comparison {
            first = Some(first.map_or(index, |first| first.min(index)));
        }
        if comparison != TrailComparison::Unknown {
            verdict.compared.push((*id, comparison));
        }
    }
    let Some(first) = first else { return verdict };
    // Group the members by their states. Members that differ from this member may agree with each other, and
    // even be the majority.
    let mut groups: Vec<(Option<&StateTrail>, Vec<u64>)> = vec![(None, vec![own])];
    for ((id, comparison), theirs) in verdict.compared.iter().filter_map(|(id, comparison)| {
        let (_, theirs) = others.iter().find(|(other, _)| other == id)?;
        Some(((*id, *comparison), theirs))
    }) {
        match comparison {
            // Wait for this member: it has not reached the first entry that differs, so it cannot be assigned
            // to a group yet.
            TrailComparison::Same { through } if through < first => verdict.awaited = true,
            TrailComparison::Same { .. } => groups[0].1.push(id),
            TrailComparison::Different { .. } => {
                let alike =
                    |trail: &StateTrail| matches!(trail.compare(theirs), TrailComparison::Same { .. });
                match groups.iter_mut().find(|(trail, _)| trail.is_some_and(alike)) {
                    Some((_, group)) => group.push(id),
                    None => groups.push((Some(theirs), vec![id])),
                }
            }
            TrailComparison::Unknown => {}
        }
    }
    let groups: Vec<Vec<u64>> = groups.into_iter().map(|(_, group)| group).collect();
    verdict.named = minority(&groups, members);
    verdict.awaited &= verdict.named == [0];
    verdict
}

/// Makes the comparisons, and keeps what is needed from one round to the next.
pub struct Divergence {
    shared: Arc<Shared>,
    logger: Arc<Logger>,
    /// Log index up to which each member's states were equal to those of this member in the last comparison,
    /// by member id.
    through: BTreeMap<u64, Index>,
    /// First entry that differs, for each member whose state differs, by member id. Members in the map were
    /// already logged.
    differing: BTreeMap<u64, Index>,
    /// Ids of the members whose states were equal to those of this member in the last comparison.
    agreeing: Vec<u64>,
    rounds_awaited: u32,
}

impl Divergence {
    /// Returns the state before the first comparison.
    pub fn new(shared: &Arc<Shared>, logger: &Arc<Logger>) -> Divergence {
        Divergence {
            shared: Arc::clone(shared),
            logger: Arc::clone(logger),
            through: BTreeMap::new(),
            differing: BTreeMap::new(),
            agreeing: Vec::new(),
            rounds_awaited: 0,
        }
    }

    /// Returns the ids of the other members whose states were equal to those of this member in the last
    /// comparison, at all entries at which another member's state is known to differ.
    pub fn agreeing(&self) -> Vec<u64> {
        let differs_at = self.differing.values().max().copied().unwrap_or_default();
        let has_reached = |id: &u64| self.through.get(id).is_some_and(|through| *through >= differs_at);
        self.agreeing.iter().copied().filter(has_reached).collect()
    }

    /// Returns the ids of the members whose states are known to differ from those of this member.
    pub fn differing(&self) -> Vec<u64> {
        self.differing.keys().copied().collect()
    }

    /// Makes one round of comparisons. May take 2 s, because the hashes may be requested twice, each time
    /// with a limit of 1 s.
    pub async fn compare(&mut self) {
        let members = Arc::clone(&self.shared.state.load().members);
        self.through.retain(|id, _| members.by_id.contains_key(id));
        self.differing.retain(|id, _| members.by_id.contains_key(id));
        self.agreeing.clear();
        if members.with_data() < 2 {
            return;
        }
        let Some(mut verdict) = self.ask(members.with_data()).await else { return };
        // If a member was equal before and now differs from the first hash on, the first entry that differs
        // is possibly earlier, for example because the member has restarted with other data. Request all
        // hashes of such a member to find it.
        let lost = |(id, comparison): &(u64, TrailComparison)| {
            let known = self.through.get(id).is_some_and(|through| *through > Index(0));
            (known && matches!(comparison, TrailComparison::Different { at_first: true, .. })).then_some(*id)
        };
        let lost: Vec<u64> = verdict.compared.iter().filter_map(lost).collect();
        if !lost.is_empty() {
            self.through.retain(|id, _| !lost.contains(id));
            if let Some(again) = self.ask(members.with_data()).await {
                verdict = again;
            }
        }
        self.follow(&verdict);
    }

    async fn ask(&self, members: usize) -> Option<Verdict> {
        let known = |id: u64| self.through.get(&id).copied().unwrap_or_default();
        // Request the hashes of the others before reading those of this member, the leader. By then it has
        // hashes for all entries for which the others have returned some.
        let others = trails_of_others(&self.shared, TIMEOUT, known).await;
        let from = others.iter().map(|(id, _)| known(*id)).min()?;
        let reply = self.shared.core.ask(move |request_id| PeerRequest::StateTrail(request_id, from)).await;
        let Ok(ReplyBody::StateTrail(ours)) = reply.map(|reply| reply.body) else { return None };
        Some(judge(self.shared.member.identity.member_id, &ours, &others, members))
    }

    fn follow(&mut self, verdict: &Verdict) {
        let metrics = Arc::clone(&self.shared.diagnostics.metrics);
        metrics.state_hash.compared.add(verdict.compared.len() as u64);
        for (id, comparison) in &verdict.compared {
            match comparison {
                TrailComparison::Same { through } => {
                    self.agreeing.push(*id);
                    self.through.insert(*id, *through);
                    self.differing.remove(id);
                }
                TrailComparison::Different { index, revision, at_first } => {
                    // Log only the first difference of a member. Later rounds find it again, perhaps at a
                    // later entry.
                    if self.differing.contains_key(id) {
                        continue;
                    }
                    self.differing.insert(*id, *index);
                    metrics.state_hash.differences.inc();
                    self.logger.error(
                        "a member's state differs from the leader's",
                        &[
                            ("member-id", Value::Id(*id)),
                            ("leader-id", Value::Id(self.shared.member.identity.member_id)),
                            ("entry-index", Value::Uint(index.0)),
                            ("revision", Value::Int(revision.0)),
                            ("may-have-begun-earlier", Value::Bool(*at_first)),
                        ],
                    );
                }
                TrailComparison::Unknown => {}
            }
        }
        let compared = |id: &u64| verdict.compared.iter().any(|(other, _)| other == id);
        if let Some(through) = self.through.iter().filter(|(id, _)| compared(id)).map(|(_, at)| *at).min() {
            metrics.state_hash.index.set_u64(through.0);
        }
        self.rounds_awaited = if verdict.awaited { self.rounds_awaited + 1 } else { 0 };
        if verdict.awaited && self.rounds_awaited < PATIENCE_ROUNDS {
            return;
        }
        for id in &verdict.named {
            self.shared.core.inbox.send(ControlRequest::Corrupt(*id));
        }
    }
}

/// Compares the state of an observer with that of its feeder. If they differ, the observer leaves that feeder; if it
/// has no other, or differs from a second one, it goes out of service. It decides nothing for the cluster.
pub struct FeederComparison {
    shared: Arc<Shared>,
    /// Feeder of the last comparison, and the log index up to which the states were equal.
    through: (u64, Index),
}

impl FeederComparison {
    /// Returns the state before the first comparison.
    pub fn new(shared: &Arc<Shared>) -> FeederComparison {
        FeederComparison { shared: Arc::clone(shared), through: (0, Index(0)) }
    }

    /// Makes one comparison, if this observer has a feeder. May take 1 s.
    pub async fn compare(&mut self) {
        // One that sends nothing that this observer takes has no say in it.
        let Some(feeder) = self.shared.cluster.feeder().filter(|_| self.shared.cluster.is_fed()) else {
            return;
        };
        let from = if self.through.0 == feeder { self.through.1 } else { Index(0) };
        // The feeder is asked first: by the time of the reply, this observer may have reached its entries.
        let Some(theirs) = trail_of(&self.shared, feeder, TIMEOUT, from).await else { return };
        let reply = self.shared.core.ask(move |request_id| PeerRequest::StateTrail(request_id, from)).await;
        let Ok(ReplyBody::StateTrail(ours)) = reply.map(|reply| reply.body) else { return };
        match ours.compare(&theirs) {
            TrailComparison::Same { through } => {
                self.shared.diagnostics.metrics.state_hash.compared.inc();
                self.through = (feeder, through);
            }
            TrailComparison::Different { index, .. } => {
                self.shared.diagnostics.metrics.state_hash.differences.inc();
                self.shared.core.inbox.send(ControlRequest::DiffersFromFeeder(feeder, index));
            }
            TrailComparison::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use numbers::{Revision, Term};

    use super::*;
    use api::etcdserverpb::{InternalRaftRequest, PutRequest, RequestHeader};
    use bytes::{Bytes, BytesMut};
    use machine::{Command, Machine, ReadError, Rules, StatePoint, Values};
    use mvcc::Value as Stored;
    use prost::Message as _;

    fn trail(applied_index: u64, points: &[(u64, u64)]) -> StateTrail {
        let point = |&(index, hash): &(u64, u64)| StatePoint {
            index: Index(index),
            revision: Revision(index as i64 * 10),
            hash,
        };
        StateTrail { applied_index: Index(applied_index), points: points.iter().map(point).collect() }
    }

    /// Returns the trail of a correct member, up to this entry.
    fn sound(applied_index: u64) -> StateTrail {
        let all = [(3, 30), (5, 50), (8, 80)];
        let points: Vec<_> = all.into_iter().filter(|(index, _)| *index <= applied_index).collect();
        trail(applied_index, &points)
    }

    fn wrong(applied_index: u64) -> StateTrail {
        trail(applied_index, &[(3, 30), (5, 51), (8, 81)])
    }

    fn named(others: &[(u64, StateTrail)], members: usize) -> (Vec<u64>, bool) {
        let verdict = judge(1, &sound(9), others, members);
        (verdict.named, verdict.awaited)
    }

    #[test]
    fn the_minority_is_named_once_the_others_have_come_so_far() {
        assert_eq!(named(&[(2, sound(9)), (3, sound(7))], 3), (vec![], false));
        assert_eq!(named(&[(2, wrong(9)), (3, sound(9))], 3), (vec![2], false));
        assert_eq!(named(&[(2, wrong(9)), (3, wrong(9))], 3), (vec![1], false), "the leader itself");
        // The third member lags behind, and may agree with either.
        assert_eq!(named(&[(2, wrong(9)), (3, sound(4))], 3), (vec![0], true));
        assert_eq!(named(&[(2, wrong(9))], 3), (vec![0], false), "the third does not answer");
        assert_eq!(named(&[(2, wrong(9))], 2), (vec![0], false));
        let lost = trail(30, &[(20, 1)]);
        assert_eq!(named(&[(2, wrong(9)), (3, lost)], 3), (vec![0], false), "cannot be compared");
        let third_way = trail(9, &[(3, 30), (5, 52)]);
        assert_eq!(named(&[(2, wrong(9)), (3, third_way.clone())], 3), (vec![0], false));
        let five = [(2, wrong(9)), (3, third_way), (4, sound(9)), (5, sound(5))];
        assert_eq!(named(&five, 5), (vec![2, 3], false));
    }

    #[test]
    fn what_differs_is_told_with_its_place() {
        let verdict = judge(1, &sound(9), &[(2, wrong(9)), (3, sound(9))], 3);
        let different =
            TrailComparison::Different { index: Index(5), revision: Revision(50), at_first: false };
        assert_eq!(verdict.compared, [(2, different), (3, TrailComparison::Same { through: Index(9) })]);
    }

    /// Values that must not be read.
    struct NoValues;

    impl Values for NoValues {
        fn read_into(&self, _: Stored, _: &mut BytesMut) -> Result<(), ReadError> {
            unreachable!("nothing is read")
        }
    }

    fn apply(machine: &mut Machine, index: u64, value: &'static str) {
        let put = PutRequest { key: "k".into(), value: value.into(), ..PutRequest::default() };
        let header = Some(RequestHeader { id: index, ..RequestHeader::default() });
        let request = InternalRaftRequest { header, put: Some(put), ..InternalRaftRequest::default() };
        let data = Bytes::from(request.encode_to_vec());
        let location = mvcc::Location::new(1, 64);
        let command = Command { index: Index(index), term: Term(1), data: &data, location };
        machine.apply(command, &NoValues, false).expect("applies").outcome.expect("is put");
    }

    #[test]
    fn a_planted_divergence_is_named_with_its_revision() {
        let mut machines: Vec<Machine> = (0..3).map(|_| Machine::new(Rules { learners_max: 1 })).collect();
        for index in 1..=20 {
            for (machine, member) in machines.iter_mut().zip(1..) {
                // One member's disk returns another value than was written.
                apply(machine, index, if (member, index) == (2, 12) { "x" } else { "v" });
            }
        }
        let ours = machines[0].state_trail(Index(0));
        let told = |machine: &Machine, from| {
            let text = crate::comparison::write_trail(&machine.state_trail(from));
            crate::comparison::read_trail(text.as_bytes()).expect("is a trail")
        };
        let others = [(2, told(&machines[1], Index(0))), (3, told(&machines[2], Index(7)))];
        let verdict = judge(1, &ours, &others, 3);
        assert_eq!(verdict.named, [2]);
        let different =
            TrailComparison::Different { index: Index(12), revision: Revision(13), at_first: false };
        assert_eq!(verdict.compared, [(2, different), (3, TrailComparison::Same { through: Index(20) })]);
        // Only the end of the trail is sent: the difference is still found, but not its first entry.
        let verdict =
            judge(1, &ours, &[(2, told(&machines[1], Index(18))), (3, told(&machines[2], Index(18)))], 3);
        let different =
            TrailComparison::Different { index: Index(18), revision: Revision(19), at_first: true };
        assert_eq!((verdict.compared[0].1, verdict.named), (different, vec![2]));
    }
}
