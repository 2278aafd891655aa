//! Checks the steps of the members' autopilots, and that they replace members that are lost for good.
//!
//! In worlds with autopilots the operator only adds learners, most of them standbys; it promotes and removes
//! nobody. Disks are lost, and one more member may end for good when all other faults do.

use std::collections::BTreeMap;

use api::raftpb::{Message, MessageType};
use numbers::{Index, Term};
use replica::autopilot::Step;

use crate::network::Host;
use crate::profile::Fault;
use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::world::World;

/// Value of `--autopilot-interval`.
const INTERVAL: Nanos = SECOND;
/// Value of `--autopilot-replace-after`, in election timeouts.
const REPLACE_AFTER_ELECTIONS: u64 = 5;
/// Time for which a learner may lag when it is promoted. The leader's own bound is below four election timeouts.
const LAG_MAX: Nanos = 10 * SECOND;

/// What the checks know about memberships and about the answers of members.
#[derive(Default)]
pub(crate) struct AutopilotChecks {
    /// Index of the newest entry whose membership was checked.
    checked_through: Index,
    /// Number of steps seen of each process, by place and number of the process start.
    steps: BTreeMap<(Host, u64), u64>,
    /// Time of the last answer to a leader, by the place of the leader and the id of the member.
    answered: BTreeMap<(Host, u64), Nanos>,
    /// Committed indexes, by time.
    commits: BTreeMap<Nanos, Index>,
}

impl World {
    /// Returns the autopilot flags of the member at this place; `election` is its election timeout.
    pub(crate) fn autopilot_flags(&self, at: Host, election: Nanos) -> Vec<String> {
        if !self.profile.fails(Fault::Autopilot) {
            return Vec::new();
        }
        let mut flags = vec![
            "--autopilot=on".to_owned(),
            format!("--autopilot-interval={}ms", INTERVAL / MILLI),
            format!("--autopilot-replace-after={}ms", REPLACE_AFTER_ELECTIONS * election / MILLI),
        ];
        if at >= self.profile.members && !Rng::stream(self.seed, &format!("standby {at}")).one_in(4) {
            flags.push("--standby".to_owned());
        }
        flags
    }

    /// Records which members answer a leader.
    pub(crate) fn note_answers(&mut self, to: Host, sender: u64, messages: &[Message]) {
        // An answer to an earlier leader may have been on its way for long, and raft ignores it.
        let term = self.checks.standing(to).map(|standing| standing.term.0);
        let is_answer = |message: &Message| {
            matches!(message.r#type(), MessageType::MsgAppResp | MessageType::MsgHeartbeatResp)
                && message.term == term
        };
        if self.profile.fails(Fault::Autopilot) && messages.iter().any(is_answer) {
            self.autopilot.answered.insert((to, sender), self.now());
        }
    }

    /// Checks the membership that a member has applied, and the steps of its autopilot.
    pub(crate) fn look_at_autopilot(&mut self, at: Host) {
        let now = self.now();
        self.autopilot.commits.insert(now, self.checks.commit());
        let Some(process) = &self.places[at].process else { return };
        let (state, life) = (process.stepped.published(), process.life);
        let (own, autopilot) = (process.id, process.stepped.autopilot());
        state.members.removed.iter().for_each(|id| self.operator.removed_by_autopilot(*id));
        let seen = self.autopilot.steps.entry((at, life)).or_default();
        let new = autopilot.taken.saturating_sub(std::mem::replace(seen, autopilot.taken));
        if let Some(last) = autopilot.steps.last().filter(|_| new > 0) {
            self.check_step(at, own, last.step);
        }
        // The first entries add the founding members, one after the other.
        let founding = Index(self.profile.members as u64);
        if state.applied_index <= self.autopilot.checked_through.max(founding) {
            return;
        }
        let voters = state.members.voters();
        let tolerated = |voters: usize| voters.saturating_sub(1) / 2;
        if tolerated(voters.len()) < tolerated(self.profile.members) {
            return self.fail(format!(
                "{} voters are left of {}, so that fewer members may fail than in the beginning: {voters:x?}",
                voters.len(),
                self.profile.members
            ));
        }
        self.autopilot.checked_through = state.applied_index;
    }

    /// Checks a step that the autopilot at this place has just taken.
    fn check_step(&mut self, at: Host, own: u64, step: Step) {
        let now = self.now();
        self.counts.autopilot_steps += 1;
        self.trace.note(now, format_args!("the autopilot of m{at} takes a step: {step}"));
        let terms =
            self.places.iter().filter_map(|place| Some((place.number, self.checks.standing(place.number)?)));
        let newest = terms.clone().map(|(_, standing)| standing.term).max().unwrap_or(Term(0));
        let is_newest = self.checks.standing(at).is_some_and(|standing| standing.term == newest);
        let election = self.profile.flags_of(at, self.places[at].lives).election;
        match step {
            Step::Remove(id) => {
                let answered = self.autopilot.answered.get(&(at, id)).copied();
                // Clocks drift and jump, so half of the time is enough.
                let least = REPLACE_AFTER_ELECTIONS * election / 2;
                if let Some(ago) = answered.map(|answered| now - answered).filter(|ago| *ago < least) {
                    self.fail(format!(
                        "the autopilot of member {at} ({own:x}) removes {id:x}, which has answered it {} ms ago",
                        ago / MILLI
                    ));
                }
            }
            Step::Promote(id) if is_newest => {
                let stored = terms
                    .filter(|(_, standing)| standing.id == id)
                    .map(|(_, standing)| standing.stored.max(standing.checkpoint))
                    .max()
                    .unwrap_or(Index(0));
                let then = self.autopilot.commits.range(..=now.saturating_sub(LAG_MAX)).next_back();
                let wanted = then.map_or(Index(1), |(_, commit)| (*commit).max(Index(1)));
                if stored < wanted {
                    self.fail(format!(
                        "the autopilot of member {at} promotes {id:x}, which has stored {stored}, and {wanted} was committed \
                         {} s ago",
                        LAG_MAX / SECOND
                    ));
                }
            }
            Step::Promote(_) | Step::MoveLeader(_) | Step::Disarm(_) => {}
        }
    }

    /// Ends one voter for good at the end of all other faults, if a learner could take its place and all other
    /// voters run.
    pub(crate) fn lose_one_for_good(&mut self) {
        let Some(members) = self.newest_members() else { return };
        let (voters, learners): (Vec<Host>, Vec<Host>) = (
            members.iter().filter(|(_, is_learner)| !is_learner).map(|(place, _)| *place).collect(),
            members.iter().filter(|(_, is_learner)| *is_learner).map(|(place, _)| *place).collect(),
        );
        let starts = |place: &Host| {
            let place = &self.places[*place];
            !place.retired && (place.process.is_some() || place.starts_at.is_some())
        };
        if voters.len() < 3 || learners.is_empty() || !voters.iter().chain(&learners).all(starts) {
            return;
        }
        let at = self.dice.faults.pick(&voters);
        let now = self.now();
        self.trace.note(now, format_args!("m{at} is lost for good"));
        self.end(at, true);
        self.places[at].retired = true;
        self.places[at].starts_at = None;
    }

    /// Returns the places of the members as of the newest membership that any place has seen, and which of them
    /// are learners; `None` if one of them has no place.
    fn newest_members(&self) -> Option<Vec<(Host, bool)>> {
        let running = self.places.iter().filter_map(|place| place.process.as_ref());
        let newest =
            running.map(|process| process.stepped.published()).max_by_key(|state| state.applied_index)?;
        newest
            .members
            .by_id
            .values()
            .map(|member| {
                let place = member.peer_urls.iter().find_map(|url| crate::links::place_of(url))?;
                Some((place, member.is_learner))
            })
            .collect()
    }

    /// Returns true if no voter that is lost for good is left which an autopilot should have replaced or removed.
    pub(crate) fn are_lost_replaced(&self) -> bool {
        if !self.profile.fails(Fault::Autopilot) {
            return true;
        }
        let Some(members) = self.newest_members() else { return false };
        let runs = |place: &Host| self.places[*place].process.is_some();
        let voters: Vec<Host> =
            members.iter().filter(|(_, is_learner)| !is_learner).map(|(place, _)| *place).collect();
        let has_spare = members.iter().any(|(place, is_learner)| *is_learner && runs(place));
        let is_even = voters.len().is_multiple_of(2) && voters.len() >= 4;
        voters.iter().all(runs) || !has_spare && !is_even
    }
}
