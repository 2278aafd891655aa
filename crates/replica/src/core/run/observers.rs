//! Feeds observers, confirms their reads, and follows the feeder of a node that observes.

use std::time::{Duration, Instant};

use api::error;
use consensus::{Event, ObserverRead, Request};
use numbers::{Index, MemberId};
use planted::Bug;
use telemetry::logging::Value;

use super::Core;
use crate::cluster_version::minor;
use crate::core::observers::Registration;
use crate::core::reads::RoundRequest;
use crate::core::{Fatal, ReplyBody, RequestId};
use crate::observing::{ObserverCard, Registered};

/// The observers that this node feeds.
impl Core {
    /// Begins to feed an observer, or goes on.
    pub(super) fn register_observer(
        &mut self,
        request_id: RequestId,
        card: ObserverCard,
        now: Instant,
    ) -> Result<(), Fatal> {
        let (id, own) = (card.id, self.shared.member.identity.member_id);
        if self.shared.member.is_witness {
            self.refuse(request_id, error::NOT_SUPPORTED_FOR_WITNESS);
            return Ok(());
        }
        let members = &self.machine.members;
        let is_member = members.by_id.contains_key(&id) || members.removed.contains(&id);
        let (name, version) = (card.name.clone(), minor(&members.cluster_version));
        let registration = match self.observers.register(card, is_member, version, own, now) {
            Ok(registration) => registration,
            Err(status) => {
                self.refuse(request_id, status);
                return Ok(());
            }
        };
        if matches!(registration, Registration::Begins | Registration::Restarts) {
            self.step(Event::ObserverAdded(MemberId(id)))?;
            self.logger
                .info("feeding an observer", &[("observer", Value::Id(id)), ("name", Value::Str(&name))]);
        }
        if registration != Registration::Renews {
            self.tell_members();
        }
        let registered = Registered {
            feeder: MemberId(own),
            fed_by: self.observers.feeder(),
            heartbeat_interval: self.options.heartbeat_interval,
        };
        self.reply(request_id, ReplyBody::Registered(registered));
        Ok(())
    }

    /// Stops feeding an observer, because its registration has ended or a member has its id.
    pub(super) fn drop_observer(&mut self, id: u64) -> Result<(), Fatal> {
        self.observers.remove(id);
        self.step(Event::ObserverRemoved(MemberId(id)))
    }

    /// Lets a read of an observer share a round with the reads of this node's own clients.
    pub(super) fn read_for_observer(&mut self, read: ObserverRead, now: Instant) {
        if planted::is(Bug::ObserverReadWithoutRound) {
            let _ = self.node.request(Request::AnswerObserver(read, self.machine.applied_index));
            return;
        }
        if let Some(number) = self.observers.keep_read(read) {
            self.reads.push(RoundRequest::Observer(number), now);
        }
    }

    /// Answers the read of an observer, whose round is confirmed. The observer has to apply what this node has
    /// applied: that is at least what the round requires, and the observer gets no later entries before.
    pub(super) fn answer_observer(&mut self, number: u64) {
        if let Some(read) = self.observers.take_read(number) {
            // A leader that was removed takes no more requests; the observer asks again, another feeder if it
            // has to.
            let is_low = planted::is(Bug::ObserverReadWithoutIndex);
            let index = if is_low { Index(1) } else { self.machine.applied_index };
            let _ = self.node.request(Request::AnswerObserver(read, index));
        }
    }

    /// Ends the feeds of observers that have not renewed their registration. A node that observes begins a round
    /// of its own, if one is due.
    pub(super) fn look_at_observers(&mut self, now: Instant) -> Result<(), Fatal> {
        let expired = self.observers.take_expired(now);
        for id in &expired {
            self.logger.warn("an observer is gone, and is no longer fed", &[("observer", Value::Id(*id))]);
            self.drop_observer(*id)?;
        }
        if !expired.is_empty() {
            self.tell_members();
            if let Some(peers) = self.shared.cluster.peers() {
                peers.forget(expired);
            }
        }
        let standings = self.observers.standings(&self.node.observers(), self.machine.applied_index);
        self.shared.cluster.observers_are(standings, self.node.feed_depth(), self.install.is_busy());
        if self.observers.begins_own_round(self.leadership.leader().is_some(), now) {
            self.reads.push(RoundRequest::Own, now);
        }
        Ok(())
    }
}

/// The feeder of a node that observes.
impl Core {
    /// Takes entries from this feeder from now on.
    pub(super) fn follow_feeder(
        &mut self,
        id: MemberId,
        urls: Vec<String>,
        heartbeat_interval: Duration,
    ) -> Result<(), Fatal> {
        if self.shared.cluster.avoids(id.0) || !self.observers.follow(id, urls, heartbeat_interval) {
            return Ok(());
        }
        self.logger.info("following a feeder", &[("feeder", Value::Id(id.0))]);
        self.tell_members();
        // The feeder may have longer intervals than this observer.
        let tick = self.options.heartbeat_interval.as_millis().max(1);
        let silence_max = 4 * heartbeat_interval.as_millis() / tick;
        let silence_max = u64::try_from(silence_max).unwrap_or(u64::MAX);
        self.step(Event::FeederChosen { feeder: id, silence_max })?;
        self.shared.cluster.fed_by(id, self.node.source().is_some());
        Ok(())
    }

    /// Leaves a feeder whose state differs from that of this observer. If this observer is the one that is wrong,
    /// takes it out of service.
    pub(super) fn differs_from_feeder(&mut self, feeder: u64, index: Index) -> Result<(), Fatal> {
        if !self.observers.observes() {
            return Ok(());
        }
        let fields = [("feeder", Value::Id(feeder)), ("index", Value::Uint(index.0))];
        if self.observers.differs_from(feeder, self.options.feeds) {
            self.logger.error(
                "OUT OF SERVICE: the state of this observer differs from that of its feeders; find out with `mainstay ctl \
                 endpoint hashkv --cluster` whether the members agree; then delete this observer's data directory",
                &fields,
            );
            let why = format!("its state differs from that of the feeder {feeder:x}");
            self.observers.condemn(machine::Fatal { index, why, is_unreadable: false });
            return Ok(());
        }
        self.logger
            .error("the state of a feeder differs from that of this observer, which leaves it", &fields);
        self.shared.cluster.avoid(feeder);
        self.observers.unfollow();
        self.tell_members();
        self.step(Event::FeederChosen { feeder: MemberId::NONE, silence_max: 0 })
    }
}
