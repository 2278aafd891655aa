//! Shows the cluster to the autopilot of this leader, and carries out its steps.

use std::time::{Instant, UNIX_EPOCH};

use api::Status;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use consensus::{ProgressState, Request};
use numbers::{Index, MemberId};
use telemetry::logging::Value;

use super::Core;
use crate::autopilot::{Mode, Step, StepOutcome};
use crate::core::MemberChange;
use crate::core::autopilot::{Decision, MemberFacts, Situation};
use crate::core::proposals::Waiter;
use crate::core::room::Purpose;

const CORRUPT: i32 = AlarmType::Corrupt as i32;

impl Core {
    /// Tells the autopilot which members have answered since the last tick. Called before raft's tick, which may
    /// forget the answers.
    pub(super) fn note_answers(&mut self) {
        if self.autopilot.watches() {
            let progress = self.node.progress();
            let answered = progress.iter().filter(|progress| progress.recently_active);
            self.autopilot.answered(answered.map(|progress| progress.id.0));
        }
    }

    /// Lets the autopilot decide, if this member leads, and carries out the step. Called at every tick.
    pub(super) fn look_at_autopilot(&mut self, now: Instant) {
        if self.autopilot.mode() == Mode::Off {
            return;
        }
        let raft_status = self.node.status();
        // A leader that was deposed in this turn must not decide: its proposal would be forwarded to the new
        // leader, which knows better.
        let leads = self.leads_now() && !self.lifecycle.is_stopping();
        if !leads && let Some(step) = self.autopilot.open_step() {
            // A move of leadership has succeeded then. Of a proposal this member does not know yet whether it
            // becomes part of the log; the next leader looks at the members themselves.
            let moves = matches!(step, Step::MoveLeader(_));
            if moves && raft_status.leader == MemberId::NONE {
                // The next tick knows more.
                return;
            }
            let moved = moves && raft_status.leader == MemberId(step.member());
            self.autopilot_ended(if moved { Ok(()) } else { Err(api::error::NOT_LEADER) });
        }
        if !self.autopilot.is_due(leads.then_some(raft_status.term), now) {
            return;
        }
        let said = self.shared.cluster.autopilot();
        if !leads {
            return self.shared.cluster.autopilot_is(self.autopilot.state(None));
        }
        let situation = self.situation();
        // A move of leadership that has failed leaves this member the leader.
        if let Some(Step::MoveLeader(_)) = self.autopilot.open_step()
            && self.node.transferring().is_none()
        {
            self.autopilot_ended(Err(api::error::LEADER_TRANSFER_TIMEOUT));
        }
        let Decision { step, advice } = self.autopilot.look(&situation);
        // Durations in a sentence change with each look, so a sentence is new if none before began like it.
        let head = |text: &str| text.split(" for ").next().unwrap_or_default().to_owned();
        let known: Vec<String> = said.advice.iter().map(|text| head(text)).collect();
        for text in advice.iter().filter(|text| !known.contains(&head(text))) {
            self.logger.warn("autopilot: a person is needed, or time", &[("advice", Value::Str(text))]);
        }
        if let Some((step, why)) = step {
            self.take_step(step, &why, now);
        }
        self.shared.cluster.autopilot_is(self.autopilot.state(Some(&situation)));
    }

    /// Returns the facts from which the autopilot decides.
    fn situation(&self) -> Situation {
        let progress = self.node.progress();
        let members = &self.machine.members;
        let facts = members.by_id.values().map(|member| {
            let of = progress.iter().find(|progress| progress.id == MemberId(member.id));
            MemberFacts {
                id: member.id,
                name: member.name.clone(),
                is_learner: member.is_learner,
                matched: of.map_or(Index(0), |of| of.matched),
                is_replicating: of.is_some_and(|of| of.state == ProgressState::Replicate),
                has_answered: of.is_some_and(|of| of.recently_active),
                is_corrupt: self.machine.alarms.is_raised(CORRUPT, member.id),
            }
        });
        let corrupt = self.machine.alarms.list(CORRUPT, 0);
        Situation {
            own: self.shared.member.identity.member_id,
            commit: self.node.status().commit,
            members: facts.collect(),
            removed_corrupt: corrupt
                .iter()
                .map(|alarm| alarm.member_id)
                .filter(|id| members.removed.contains(id))
                .collect(),
            is_changing: !self.membership.is_idle()
                || self.node.has_pending_change()
                || self.node.transferring().is_some(),
            has_witness: members.witness().is_some(),
        }
    }

    fn take_step(&mut self, step: Step, why: &str, now: Instant) {
        let wall = self.shared.member.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        if !self.autopilot.begin(step, why, at_ms) {
            return;
        }
        let is_dry = self.autopilot.mode() == Mode::DryRun;
        self.logger.warn(
            if is_dry { "autopilot: would take a step (dry run)" } else { "autopilot: takes a step" },
            &[
                ("step", Value::Str(step.kind())),
                ("member-id", Value::Id(step.member())),
                ("reason", Value::Str(why)),
            ],
        );
        if is_dry {
            return self.count_step(step, StepOutcome::DryRun);
        }
        match step {
            Step::Promote(id) => self.change_by_autopilot(&MemberChange::Promote(id), now),
            Step::Remove(id) => self.change_by_autopilot(&MemberChange::Remove(id), now),
            Step::MoveLeader(id) => self.transfer_to(MemberId(id)),
            Step::Disarm(member_id) => {
                let alarm =
                    AlarmRequest { action: AlarmAction::Deactivate as i32, member_id, alarm: CORRUPT };
                let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
                self.propose_own(request, Waiter::Autopilot);
            }
        }
    }

    fn change_by_autopilot(&mut self, change: &MemberChange, now: Instant) {
        let id = self.shared.ids.command_id();
        let encoded =
            self.ask_membership(|membership, present| membership.encode_own(change, id, present, now));
        let (raft, data) = match encoded {
            Ok(encoded) => encoded,
            Err(status) => return self.autopilot_ended(Err(status)),
        };
        if !self.space.room.has(&self.log, data.len(), Purpose::Mends) {
            return self.autopilot_ended(Err(api::error::NO_SPACE));
        }
        match self.node.request(Request::ProposeConfChange(raft, data)) {
            Ok(()) => {
                self.membership.opened(id);
                let given = self.given();
                self.proposals.await_entry(id, Waiter::Autopilot, now, given);
            }
            Err(refusal) => {
                let status = Status::with(api::Code::Unavailable, refusal.to_string());
                self.autopilot_ended(Err(status));
            }
        }
    }

    /// Records how the step of the autopilot has ended, if one is under way.
    pub(super) fn autopilot_ended(&mut self, outcome: Result<(), Status>) {
        let Some(step) = self.autopilot.open_step() else { return };
        let fields = [("step", Value::Str(step.kind())), ("member-id", Value::Id(step.member()))];
        match outcome {
            Ok(()) => {
                self.logger.info("autopilot: the step is done", &fields);
                self.count_step(step, StepOutcome::Done);
                self.autopilot.ended(None);
            }
            Err(status) => {
                let [kind, member] = fields;
                let error = ("error", Value::Str(&status.message));
                self.logger.warn("autopilot: the step had no effect", &[kind, member, error]);
                self.count_step(step, StepOutcome::Failed);
                self.autopilot.ended(Some(&status.message));
            }
        }
    }

    fn count_step(&self, step: Step, outcome: StepOutcome) {
        let steps = &self.shared.diagnostics.metrics.server.autopilot_steps;
        steps.with(&[step.kind(), outcome.name()]).inc();
    }
}
