//! Makes the operator's calls to members, and handles the responses.

use api::Rpc;
use api::etcdserverpb as pb;
use numbers::Index;
use prost::Message as _;
use server::stepped::{Beginning, Identity};

use super::{Doing, Listed};
use crate::links::{place_of, url};
use crate::member::{Caller, Heard, Place, Process};
use crate::network::Host;
use crate::profile::{Fault, Work};
use crate::schedule::{MILLI, SECOND};
use crate::world::{Calling, Event, World};

impl World {
    pub(crate) fn operate(&mut self) {
        let delay = self.dice.operator.around(self.profile.operator_every) + 100 * MILLI;
        self.schedule.after(delay, Event::Operator);
        self.operator.voters_wanted = self.profile.members;
        if self.profile.observers > 0 {
            self.look_after_observers();
        }
        if self.operator.pending.is_some() {
            return;
        }
        let running: Vec<Host> =
            self.places.iter().filter(|place| place.process.is_some()).map(|place| place.number).collect();
        if running.is_empty() {
            return;
        }
        let at = self.dice.operator.pick(&running);
        if !self.chaos {
            // The operator may have added a member without receiving the response. Without that member the
            // cluster may lack a majority and serve no client. So the operator reads the member list that a
            // running member uses for its peers, and starts the member.
            self.start_added_by_peers(at);
            self.end_removed(at);
        }
        if !self.chaos && self.dice.operator.one_in(2) {
            // Disk space is available again, but an alarm raised by the quota stays until the operator
            // disarms it. The same is true for an alarm of a removed member. So the operator disarms one of
            // these alarms.
            let nospace = pb::AlarmType::Nospace as i32;
            let state = self.places[at].process.as_ref().map(|process| process.stepped.published());
            let raised = |place: &&Place| {
                state.as_ref().is_some_and(|state| state.alarms.is_raised(nospace, place.id))
            };
            // A running member disarms by itself the alarm that it raised for a full disk. But after a crash,
            // the member may have forgotten that it raised the alarm, and the operator has to disarm it.
            let quota = self.profile.fails(Fault::Quota);
            let stays =
                |place: &&Place| raised(place) && (quota || place.process.is_none() || place.lives > 1);
            let raised: Vec<u64> = self.places.iter().filter(stays).map(|place| place.id).collect();
            if !raised.is_empty() {
                let alarm = pb::AlarmRequest {
                    action: pb::alarm_request::AlarmAction::Deactivate as i32,
                    member_id: self.dice.operator.pick(&raised),
                    alarm: nospace,
                };
                let rpc = Rpc::MaintenanceAlarm;
                return self.operator_call(at, rpc, alarm.encode_to_vec(), Doing::Other);
            }
        }
        if !self.operator.fresh || !self.chaos {
            // After the faults have ended, the list is always serializable, although it may be outdated: if a
            // newly added member has not been started yet, there may be no majority for a linearizable list.
            let linearizable = self.chaos && self.dice.operator.one_in(2);
            let list = pb::MemberListRequest { linearizable };
            let rpc = Rpc::ClusterMemberList;
            return self.operator_call(at, rpc, list.encode_to_vec(), Doing::List(linearizable));
        }
        self.look_after(at);
    }

    /// Ends removed members that know no other member, because they restarted before they received an entry.
    /// They cannot learn of their removal.
    fn end_removed(&mut self, at: Host) {
        let Some(process) = &self.places[at].process else { return };
        let state = process.stepped.published();
        let knows_nobody = |process: &Process| {
            state.members.removed.contains(&process.id)
                && process.stepped.probe().last_index == Index(0)
                && process.links.members().is_empty()
        };
        let ends = |place: &&Place| place.process.as_ref().is_some_and(knows_nobody);
        let ends: Vec<Host> = self.places.iter().filter(ends).map(|place| place.number).collect();
        for at in ends {
            self.end(at, false);
            self.places[at].retired = true;
        }
    }

    fn look_after(&mut self, at: Host) {
        let listed = self.operator.listed.clone();
        if self.profile.fails(Fault::Autopilot) {
            return self.look_after_spares(at, &listed);
        }
        let lost = listed.iter().find(|member| self.places[member.place].lost);
        if let Some(lost) = lost {
            return self.remove(at, lost.id);
        }
        let voters = listed.iter().filter(|member| !member.learner).count();
        let learner = listed.iter().find(|member| member.learner);
        if let Some(learner) = learner
            && self.dice.operator.one_in(if self.has_many_learners() { 6 } else { 2 })
        {
            let promote = pb::MemberPromoteRequest { id: learner.id };
            let rpc = Rpc::ClusterMemberPromote;
            return self.operator_call(at, rpc, promote.encode_to_vec(), Doing::Change);
        }
        if voters < self.profile.members && learner.is_none() {
            return self.add(at);
        }
        // Profiles that test the removal of leaders need many removals.
        let stages = self.profile.fails(Fault::NoHeir) || self.profile.fails(Fault::Farewell);
        let choice = self.dice.operator.below(if stages { 3 } else { 8 });
        if self.profile.works(Work::Members) && choice < 3 {
            let least = if self.profile.fails(Fault::Shrink) { 1 } else { 3 };
            // A member with a damaged disk may be lost permanently. If the operator then removed a second
            // member, the rest might not be a majority.
            let sound = |place: &Place| place.retired || !(place.lost || place.decayed);
            if voters > least && choice < 2 && self.places_of_members().all(sound) {
                let leader = self.leader();
                let leads = |member: &&Listed| Some(member.place) == leader;
                let id = match listed.iter().find(leads) {
                    Some(leader) if stages || self.dice.operator.one_in(2) => leader.id,
                    _ => listed[self.dice.operator.place(listed.len())].id,
                };
                return self.remove(at, id);
            }
            if listed.len() < self.profile.members + 2 && self.places_of_members().count() < 12 {
                return self.add(at);
            }
        }
        if self.profile.works(Work::MoveLeader) && choice < 5 {
            let target_id = listed[self.dice.operator.place(listed.len())].id;
            let leader = self.leader();
            let message = pb::MoveLeaderRequest { target_id }.encode_to_vec();
            let rpc = Rpc::MaintenanceMoveLeader;
            return self.operator_call(leader.unwrap_or(at), rpc, message, Doing::Other);
        }
        if self.profile.works(Work::Maintenance) {
            let (rpc, message) = match choice % 4 {
                0 => (Rpc::MaintenanceDefragment, Vec::new()),
                1 => (Rpc::MaintenanceStatus, Vec::new()),
                2 => (Rpc::MaintenanceHashKv, pb::HashKvRequest { revision: 0 }.encode_to_vec()),
                _ => (Rpc::MaintenanceAlarm, pb::AlarmRequest::default().encode_to_vec()),
            };
            self.operator_call(at, rpc, message, Doing::Other);
        }
    }

    /// Leaves the membership to the autopilots, and adds a learner for them when there is none.
    fn look_after_spares(&mut self, at: Host, listed: &[Listed]) {
        let has_spare = listed.iter().any(|member| member.learner);
        if !has_spare && listed.len() <= self.profile.members && self.places_of_members().count() < 12 {
            return self.add_learner(at);
        }
        // An addition may have been lost, or another member may be there now.
        self.operator.fresh = !self.dice.operator.one_in(3);
    }

    fn has_many_learners(&self) -> bool {
        self.profile.works(Work::Members) && self.profile.fails(Fault::Flags)
    }

    /// Returns the place of a member that is the leader, or believes it is.
    pub(crate) fn leader(&self) -> Option<Host> {
        let leads = |place: &&Place| {
            place.process.is_some() && self.checks.standing(place.number).is_some_and(|s| s.leads)
        };
        self.places.iter().filter(leads).map(|place| place.number).next_back()
    }

    fn operator_call(&mut self, at: Host, rpc: Rpc, message: Vec<u8>, doing: Doing) {
        let now = self.now();
        self.next_operation += 1;
        let operation = self.next_operation;
        self.trace.note(now, format_args!("operator calls {} at m{at}", rpc.path()));
        self.operator.pending = Some((operation, doing));
        self.place_call(Caller::Operator, operation, at, Calling::Unary(rpc, message.into()), 10 * SECOND);
    }

    fn remove(&mut self, at: Host, id: u64) {
        self.operator.removing.insert(id);
        self.operator.fresh = false;
        self.stage_removal(id);
        let message = pb::MemberRemoveRequest { id }.encode_to_vec();
        self.operator_call(at, Rpc::ClusterMemberRemove, message, Doing::Change);
    }

    fn add(&mut self, at: Host) {
        // If members have different learner limits, more of the added members are learners, so that the
        // cluster reaches the limits.
        let is_learner = self.dice.operator.one_in(2) || self.has_many_learners();
        self.add_member(at, is_learner);
    }

    fn add_learner(&mut self, at: Host) {
        self.add_member(at, true);
    }

    fn add_member(&mut self, at: Host, is_learner: bool) {
        let number = self.places.len();
        let (seed, epoch) = (self.seed, self.epoch());
        self.places.push(Place::new(seed, number, epoch));
        self.operator.adding.insert(number);
        self.operator.fresh = false;
        let message = pb::MemberAddRequest { peer_urls: vec![url(number)], is_learner, is_witness: false }
            .encode_to_vec();
        self.operator_call(at, Rpc::ClusterMemberAdd, message, Doing::Add);
    }

    pub(crate) fn operator_told(&mut self, operation: u64, heard: Heard) {
        let now = self.now();
        if self.operator.pending.as_ref().is_none_or(|(open, _)| *open != operation) {
            return;
        }
        let Some((_, doing)) = self.operator.pending.take() else { return };
        self.staged.removal_ended();
        let answer = match heard {
            Heard::Answer(Ok(message)) => Some(message),
            other => {
                self.trace.note(now, format_args!("operator is told {other:?}"));
                None
            }
        };
        match (doing, answer) {
            (Doing::List(newest), Some(message)) => {
                if let Ok(list) = pb::MemberListResponse::decode(message) {
                    let cluster = list.header.map_or(0, |header| header.cluster_id);
                    self.start_added(cluster, &list.members);
                    if newest {
                        self.listed(list.members);
                    }
                }
            }
            (Doing::Add, Some(message)) => {
                // The operator starts an added member as soon as it gets the response, without waiting for
                // the next list.
                if let Ok(added) = pb::MemberAddResponse::decode(message) {
                    let cluster = added.header.map_or(0, |header| header.cluster_id);
                    self.start_added(cluster, &added.members);
                }
                self.operator.fresh = false;
            }
            (Doing::Other, _) => {}
            // The operator lists the members next, whether the change succeeded or not.
            _ => self.operator.fresh = false,
        }
    }

    fn places_of(members: &[pb::Member]) -> Vec<Listed> {
        let listed = members.iter().filter_map(|member| {
            let place = member.peer_urls.iter().find_map(|url| place_of(url))?;
            let urls = member.peer_urls.clone();
            Some(Listed { id: member.id, place, learner: member.is_learner, urls })
        });
        listed.collect()
    }

    /// Starts the members that were added but never started, according to the member list of a running
    /// member.
    fn start_added_by_peers(&mut self, at: Host) {
        let Some(process) = self.places[at].process.as_ref() else { return };
        let cluster_id = process.stepped.identity().cluster_id;
        let member = |member: &machine::Member| pb::Member {
            id: member.id,
            peer_urls: member.peer_urls.clone(),
            is_learner: member.is_learner,
            ..pb::Member::default()
        };
        let members: Vec<pb::Member> =
            process.stepped.published().members.by_id.values().map(member).collect();
        self.start_added(cluster_id, &members);
    }

    /// Starts the members of a list that were added but never started.
    fn start_added(&mut self, cluster_id: u64, members: &[pb::Member]) {
        let listed = World::places_of(members);
        for member in &listed {
            let Some(place) = self.places.get_mut(member.place) else { continue };
            if place.lives == 0 && place.beginning.is_none() && member.place >= self.profile.members {
                let remotes = listed.iter().filter(|other| other.id != member.id);
                let remotes = remotes.map(|other| (other.id, other.urls.clone())).collect();
                let identity = Identity { member_id: member.id, cluster_id };
                place.beginning = Some(Beginning { identity, entries: Vec::new(), remotes });
                let delay = self.dice.operator.below(SECOND);
                self.start_after(member.place, delay);
            }
        }
    }

    /// Records a new member list, and retires the members whose removal the list confirms.
    fn listed(&mut self, members: Vec<pb::Member>) {
        let now = self.now();
        let listed = World::places_of(&members);
        self.trace.note(
            now,
            format_args!(
                "operator lists {:?}",
                listed.iter().map(|m| (m.place, m.learner)).collect::<Vec<_>>()
            ),
        );
        for at in 0..self.places.len() {
            let is_member = listed.iter().any(|member| member.place == at);
            let place = &mut self.places[at];
            if is_member || place.retired {
                continue;
            }
            if place.lives == 0 && at >= self.profile.members {
                // The addition may still be in flight, so keep the place; a later list may show the member.
                continue;
            }
            if place.lives > 0 && self.operator.removing.contains(&place.id) && place.process.is_none() {
                place.retired = true;
                self.counts.replaced += u64::from(place.lost);
            }
        }
        self.operator
            .adding
            .retain(|at| self.places[*at].lives == 0 && listed.iter().any(|member| member.place == *at));
        self.operator.listed = listed;
        self.operator.fresh = true;
    }
}
