//! Starts the observers of a world with their feeds, replaces their data if it is lost, and checks that they
//! stay outside of the cluster's membership.
//!
//! An observer's place comes after those of the founding members. All faults happen at it, too. Its data is a
//! copy, so any of it may be damaged at any time.

use api::raftpb::{Message, MessageType};
use consensus::Role;
use server::stepped::{Beginning, Identity, Probe};

use crate::member::Place;
use crate::network::Host;
use crate::schedule::{MILLI, SECOND};
use crate::world::World;

/// Largest number of members among an observer's feeds.
const MEMBERS_FED_BY_MAX: usize = 3;

impl World {
    /// Returns the ids of the observers that have started.
    fn observer_ids(&self) -> impl Iterator<Item = u64> {
        self.places.iter().filter(|place| place.observes && place.id != 0).map(|place| place.id)
    }

    /// Returns the places of the members, without those of observers.
    pub(crate) fn places_of_members(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(|place| !place.observes)
    }

    /// Prepares the start of an observer: chooses its feeds, now and then others than before, and its cluster
    /// at the first start. Returns false if it cannot start, because no feeder can tell it the cluster.
    pub(crate) fn prepare_observer(&mut self, at: Host) -> bool {
        if self.places[at].feeds.is_empty() || !self.has_feeder(at) || self.dice.observers.one_in(3) {
            self.places[at].feeds = self.draw_feeds(at);
        }
        if self.places[at].beginning.is_none() {
            let answers = |feed: &&Host| self.network.connects(at, **feed);
            let feeds = self.places[at].feeds.iter().filter(answers);
            let clusters = feeds.filter_map(|feed| self.places[*feed].process.as_ref());
            let cluster_id = clusters.map(|process| process.stepped.identity().cluster_id).next();
            if let Some(cluster_id) = cluster_id {
                // The process chooses its id when it makes its directory.
                let identity = Identity { member_id: 0, cluster_id };
                self.places[at].beginning =
                    Some(Beginning { identity, entries: Vec::new(), remotes: Vec::new() });
            }
        }
        let is_prepared = self.places[at].beginning.is_some() && !self.places[at].feeds.is_empty();
        if !is_prepared {
            let delay = self.dice.observers.between(200 * MILLI, SECOND);
            self.start_after(at, delay);
        }
        is_prepared
    }

    /// Returns true if a member at this place can feed observers. After the faults have ended, it must run.
    fn can_feed(&self, at: Host) -> bool {
        let place = &self.places[at];
        let is_there = place.process.is_some() || place.starts_at.is_some();
        let has_started = place.lives > 0 || at < self.profile.members;
        has_started
            && !(place.observes || place.retired || place.lost || self.operator.is_removed(place.id))
            && !self.profile.is_etcd(at)
            && Some(at) != self.profile.witness()
            && (self.chaos || is_there)
    }

    /// Returns true if one of an observer's feeds is a member that can feed it.
    fn has_feeder(&self, at: Host) -> bool {
        self.places[at].feeds.iter().any(|feed| self.can_feed(*feed))
    }

    /// Draws the feeds of an observer: one to three members and perhaps other observers, in any order. Returns
    /// none if no member can feed it.
    fn draw_feeds(&mut self, at: Host) -> Vec<Host> {
        let mut members: Vec<Host> = (0..self.places.len()).filter(|feed| self.can_feed(*feed)).collect();
        if members.is_empty() {
            return Vec::new();
        }
        let mut feeds = Vec::new();
        for _ in 0..1 + self.dice.observers.place(members.len().min(MEMBERS_FED_BY_MAX)) {
            let choice = self.dice.observers.place(members.len());
            feeds.push(members.swap_remove(choice));
        }
        let is_other = |place: &&Place| place.observes && !place.retired && place.number != at;
        let others: Vec<Host> = self.places.iter().filter(is_other).map(|place| place.number).collect();
        for other in others {
            if !self.dice.observers.one_in(3) {
                let position = self.dice.observers.place(feeds.len() + 1);
                feeds.insert(position, other);
            }
        }
        feeds
    }

    /// Restarts the observers whose feeds are all gone for ever, with other feeds, as an operator would. If no
    /// member is left that can feed them, they end.
    pub(crate) fn look_after_observers(&mut self) {
        for at in 0..self.places.len() {
            let place = &self.places[at];
            if !place.observes || place.retired || self.has_feeder(at) {
                continue;
            }
            let feeds = self.draw_feeds(at);
            if feeds.is_empty() {
                if !self.chaos {
                    self.end(at, false);
                    self.places[at].retired = true;
                    self.places[at].starts_at = None;
                }
                continue;
            }
            self.places[at].feeds = feeds;
            if self.places[at].process.is_some() {
                self.end(at, false);
                let delay = self.dice.observers.below(SECOND);
                self.start_after(at, delay);
            }
        }
    }

    /// Gives an observer that has ended an empty disk, and starts it again after a while. It has the same URLs as
    /// before, and another id.
    pub(crate) fn renew_observer(&mut self, at: Host) {
        self.end(at, true);
        self.checks.forget(at);
        let seed = self.seed;
        self.places[at].replace_disk(seed);
        self.counts.replaced += 1;
        let now = self.now();
        self.trace.note(now, format_args!("m{at}, an observer, has an empty disk"));
        let delay = self.dice.observers.between(10 * MILLI, 3 * SECOND);
        self.start_after(at, delay);
    }

    /// Checks after a turn of any node that observers stay outside of the membership.
    pub(crate) fn look_at_observers(&mut self, at: Host, probe: &Probe) {
        let members = self.places[at].process.as_ref().map(|process| process.stepped.published());
        let is_named = |id: &u64| {
            let in_state = members.as_ref().is_some_and(|state| state.members.by_id.contains_key(id));
            probe.voters.contains(id) || probe.learners.contains(id) || in_state
        };
        let named = self.observer_ids().find(is_named);
        if let Some(id) = named {
            return self.fail(format!("member {at} has the observer {id:x} in its configuration: {probe:?}"));
        }
        let place = &self.places[at];
        if place.observes && (probe.role != Role::Follower || probe.vote != 0) {
            return self.fail(format!("the observer at {at} leads, stands for election or votes: {probe:?}"));
        }
        // An alarm for lack of space stops the writes of the cluster, which does not need an observer's space.
        let nospace = api::etcdserverpb::AlarmType::Nospace as i32;
        if place.observes
            && let Some(process) = &place.process
            && process.stepped.published().alarms.is_raised(nospace, probe.id)
        {
            self.fail(format!(
                "the observer at {at} has stopped the writes of the cluster for lack of its own space"
            ));
        }
    }

    /// Returns an error if an observer sends a message of an election.
    ///
    /// # Errors
    ///
    /// Returns the description of the message.
    pub(crate) fn check_message_of_observer(&self, at: Host, message: &Message) -> Result<(), String> {
        use MessageType as M;
        let elects = matches!(
            message.r#type(),
            M::MsgVote | M::MsgVoteResp | M::MsgPreVote | M::MsgPreVoteResp | M::MsgTimeoutNow
        );
        if self.places[at].observes && elects {
            return Err(format!("the observer at {at} takes part in an election: {:?}", message.r#type()));
        }
        Ok(())
    }

    /// Returns true if every observer that runs has a feeder that runs and that lists it as active.
    pub(crate) fn are_observers_fed(&self) -> bool {
        let is_fed = |place: &Place| {
            let Some(process) = &place.process else { return true };
            let Some(feeder) = process.stepped.feeder() else { return false };
            let mut feeders = self.places.iter().filter_map(|place| place.process.as_ref());
            feeders.any(|other| other.id == feeder && other.stepped.active_observers().contains(&process.id))
        };
        self.places.iter().filter(|place| place.observes).all(is_fed)
    }
}
