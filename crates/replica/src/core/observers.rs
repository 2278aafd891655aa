//! Keeps the observers that this node feeds, and the feeder of a node that observes. Which entries they get is
//! decided by the raft node (`consensus`, `node/feeding.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use api::{Code, Status, raftpb};
use consensus::{ObserverRead, Progress};
use machine::Fatal;
use numbers::{Index, MemberId};

use crate::cluster_version::Minor;
use crate::observing::{
    OBSERVERS_MAX, ObserverCard, ObserverStanding, REGISTRATION_INTERVAL, REGISTRATION_TIMEOUT,
};

/// Maximum number of reads of observers that wait for a round.
const READS_MAX: usize = 4096;

/// An observer that is fed.
struct Fed {
    card: ObserverCard,
    /// Time at which its registration ends unless it is renewed.
    until: Instant,
}

/// A node and the URLs at which it is reached.
type Link = (u64, Vec<String>);

/// Result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    /// The observer was not fed before.
    Begins,
    /// The observer is fed already, and its process has started again.
    Restarts,
    /// The observer is fed already, and its URLs have changed.
    Moves,
    /// Nothing has changed.
    Renews,
}

/// The observers that this node feeds, their reads that wait for a round, and this node's own feeder if it
/// observes.
pub(super) struct Observers {
    observes: bool,
    feeder: Option<Link>,
    /// Interval of the feeder's heartbeats.
    feeder_interval: Duration,
    fed: BTreeMap<u64, Fed>,
    reads: BTreeMap<u64, ObserverRead>,
    next_read: u64,
    /// True while a round of this observer itself is under way.
    has_own_round: bool,
    /// Time at which the last round of this observer itself began.
    own_round_at: Option<Instant>,
    /// True if a read of an observer was answered since [`Observers::take_answered`].
    has_answered: bool,
    /// True once a round of this observer itself was finished, so that it may serve.
    serves: bool,
    /// Entries for observers that wait until this node has published them.
    unpublished: Vec<raftpb::Message>,
    /// Ids of the feeders whose state differs from that of this observer.
    differing: BTreeSet<u64>,
    /// Reason for which this observer has to leave service.
    verdict: Option<Fatal>,
}

impl Observers {
    /// Returns the value for a node that starts. `observes` is true if the node itself is an observer.
    pub fn new(observes: bool) -> Observers {
        Observers {
            observes,
            feeder: None,
            feeder_interval: Duration::ZERO,
            fed: BTreeMap::new(),
            reads: BTreeMap::new(),
            next_read: 0,
            has_own_round: false,
            own_round_at: None,
            has_answered: false,
            serves: false,
            unpublished: Vec::new(),
            differing: BTreeSet::new(),
            verdict: None,
        }
    }

    /// Returns true if this node is an observer.
    pub fn observes(&self) -> bool {
        self.observes
    }

    /// Returns the id of this observer's feeder; [`MemberId::NONE`] if there is none.
    pub fn feeder(&self) -> MemberId {
        self.feeder.as_ref().map_or(MemberId::NONE, |feeder| MemberId(feeder.0))
    }

    /// Sets the feeder of this observer. Returns true if the feeder or its URLs have changed.
    pub fn follow(&mut self, id: MemberId, urls: Vec<String>, interval: Duration) -> bool {
        let feeder = Some((id.0, urls));
        let changed = self.observes && (self.feeder != feeder || self.feeder_interval != interval);
        if changed {
            (self.feeder, self.feeder_interval) = (feeder, interval);
        }
        changed
    }

    /// Ends the connection with the feeder.
    pub fn unfollow(&mut self) {
        self.feeder = None;
    }

    /// Records that the state of a feeder differs from that of this observer, which has `feeds` feeders to choose
    /// from. Returns true if this observer is the one that is wrong, as far as it can tell: two feeders differ,
    /// or there is no other.
    pub fn differs_from(&mut self, feeder: u64, feeds: usize) -> bool {
        self.differing.insert(feeder);
        feeds < 2 || self.differing.len() > 1
    }

    /// Makes this observer leave service at the end of the requests of this turn.
    pub fn condemn(&mut self, fatal: Fatal) {
        self.verdict = Some(fatal);
    }

    /// Removes and returns the reason for which this observer has to leave service.
    pub fn take_verdict(&mut self) -> Option<Fatal> {
        self.verdict.take()
    }

    /// Keeps entries for an observer until this node has published them: a client of the observer may read what
    /// it has written at this node, without a round. Returns other messages.
    pub fn hold(&mut self, message: raftpb::Message) -> Option<raftpb::Message> {
        let is_append = message.r#type == Some(raftpb::MessageType::MsgApp as i32);
        if is_append && self.feeds(message.to.unwrap_or(0)) {
            self.unpublished.push(message);
            return None;
        }
        Some(message)
    }

    /// Removes and returns the entries that waited for the publication.
    pub fn take_unpublished(&mut self) -> Vec<raftpb::Message> {
        std::mem::take(&mut self.unpublished)
    }

    /// Returns true if this observer may serve: it has applied what was committed when it started.
    pub fn serves(&self) -> bool {
        self.serves
    }

    /// Registers an observer, or renews its registration. `is_member` is true if the cluster has a member of
    /// this id, and `cluster_version` is the version of the cluster, if one is set.
    ///
    /// # Errors
    ///
    /// Returns an error if the id is that of a member, of this node or of its own feeder, if the observer does
    /// not support the version of the cluster, or if too many observers are fed.
    pub fn register(
        &mut self,
        card: ObserverCard,
        is_member: bool,
        cluster_version: Option<Minor>,
        own: u64,
        now: Instant,
    ) -> Result<Registration, Status> {
        let refused = |code, text: &'static str| Err(Status::new(code, text));
        if is_member || card.id == own {
            return refused(Code::FailedPrecondition, "mainstay: the observer has the id of a member");
        }
        if card.api_version < cluster_version {
            let text = "mainstay: the observer does not support the cluster's version";
            return refused(Code::FailedPrecondition, text);
        }
        if card.id == self.feeder().0 {
            let text = "mainstay: this observer is fed by the one that asks: give it another feeder";
            return refused(Code::FailedPrecondition, text);
        }
        let until = now + REGISTRATION_TIMEOUT;
        if let Some(fed) = self.fed.get_mut(&card.id) {
            if fed.card.start != card.start && fed.card.peer_urls != card.peer_urls {
                let text = "mainstay: an observer with this id is fed at another URL: its data directory may be a copy";
                return refused(Code::FailedPrecondition, text);
            }
            let registration = match () {
                () if fed.card.start != card.start => Registration::Restarts,
                () if fed.card.peer_urls != card.peer_urls => Registration::Moves,
                () => Registration::Renews,
            };
            *fed = Fed { card, until };
            return Ok(registration);
        }
        if self.fed.len() >= OBSERVERS_MAX {
            let text = "mainstay: too many observers: give this one an observer as its feeder";
            return refused(Code::ResourceExhausted, text);
        }
        self.fed.insert(card.id, Fed { card, until });
        Ok(Registration::Begins)
    }

    /// Removes and returns the observers whose registration has ended.
    pub fn take_expired(&mut self, now: Instant) -> Vec<u64> {
        let expired: Vec<u64> =
            self.fed.iter().filter(|(_, fed)| now >= fed.until).map(|(id, _)| *id).collect();
        for id in &expired {
            self.fed.remove(id);
        }
        expired
    }

    /// Returns the nodes to which this node needs connections: `members` and the observers that it feeds; an
    /// observer needs its feeder instead of the members.
    pub fn links(&self, members: Vec<Link>) -> Vec<Link> {
        let mut links = if self.observes { self.feeder.iter().cloned().collect() } else { members };
        links.extend(self.fed.iter().map(|(id, fed)| (*id, fed.card.peer_urls.clone())));
        links
    }

    /// Returns what is known about the observers. `progress` is that of the raft node, and `applied` the index
    /// of the last entry that this node has applied.
    pub fn standings(&self, progress: &[Progress], applied: Index) -> Vec<ObserverStanding> {
        let of = |progress: &Progress| {
            Some(ObserverStanding {
                card: self.fed.get(&progress.id.0)?.card.clone(),
                matched: progress.matched,
                lag_entries: applied.0.saturating_sub(progress.matched.0),
                is_active: progress.recently_active,
                state: progress.state,
            })
        };
        progress.iter().filter_map(of).collect()
    }

    /// Keeps a read of an observer until its round is confirmed, and returns its number. Returns `None` if too
    /// many wait; the observer then asks again.
    pub fn keep_read(&mut self, read: ObserverRead) -> Option<u64> {
        if self.reads.len() >= READS_MAX {
            return None;
        }
        self.next_read += 1;
        self.reads.insert(self.next_read, read);
        Some(self.next_read)
    }

    /// Removes and returns the read of an observer.
    pub fn take_read(&mut self, number: u64) -> Option<ObserverRead> {
        let read = self.reads.remove(&number);
        self.has_answered |= read.is_some();
        read
    }

    /// Returns true if this observer should begin a round of its own: one after the other, at most one in each
    /// [`REGISTRATION_INTERVAL`]. The first one shows that it has applied what was committed when it started,
    /// so that it may serve. Later ones show that its feeder is useful, and how fresh its state is.
    pub fn begins_own_round(&mut self, has_leader: bool, now: Instant) -> bool {
        let is_due = self.own_round_at.is_none_or(|at| now >= at + REGISTRATION_INTERVAL);
        let begins = self.observes && has_leader && !self.has_own_round && is_due;
        if begins {
            (self.has_own_round, self.own_round_at) = (true, Some(now));
        }
        begins
    }

    /// Records that the round of this observer itself is finished or given up.
    pub fn own_round_ended(&mut self, is_confirmed: bool) {
        self.has_own_round = false;
        self.serves |= is_confirmed;
    }

    /// Returns true if this node feeds the observer with this id.
    pub fn feeds(&self, id: u64) -> bool {
        self.fed.contains_key(&id)
    }

    /// Ends the registration of an observer. Returns true if there was one.
    pub fn remove(&mut self, id: u64) -> bool {
        self.fed.remove(&id).is_some()
    }

    /// Returns true if a read of an observer was answered since the last call.
    pub fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.has_answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(id: u64) -> ObserverCard {
        ObserverCard { id, peer_urls: vec![format!("http://{id}")], ..ObserverCard::default() }
    }

    #[test]
    fn registrations_begin_move_renew_and_end() {
        let now = Instant::now();
        let mut observers = Observers::new(false);
        assert_eq!(observers.register(card(5), false, None, 1, now), Ok(Registration::Begins));
        assert_eq!(observers.register(card(5), false, None, 1, now), Ok(Registration::Renews));
        let moved = ObserverCard { id: 5, ..card(6) };
        assert_eq!(observers.register(moved, false, None, 1, now), Ok(Registration::Moves));
        let members = vec![(2, vec!["http://2".to_owned()])];
        assert_eq!(observers.links(members.clone()).iter().map(|link| link.0).collect::<Vec<_>>(), [2, 5]);
        assert!(observers.take_expired(now + REGISTRATION_TIMEOUT / 2).is_empty());
        assert_eq!(observers.take_expired(now + REGISTRATION_TIMEOUT), [5]);
        assert_eq!(observers.links(members.clone()), members);
    }

    #[test]
    fn members_the_feeder_and_too_many_are_refused() {
        let now = Instant::now();
        let mut observers = Observers::new(true);
        assert!(observers.follow(MemberId(9), vec!["http://9".to_owned()], Duration::ZERO));
        assert!(!observers.follow(MemberId(9), vec!["http://9".to_owned()], Duration::ZERO));
        assert!(observers.register(card(9), false, None, 1, now).is_err(), "the feeder");
        assert!(observers.register(card(1), false, None, 1, now).is_err(), "itself");
        assert!(observers.register(card(2), true, None, 1, now).is_err(), "a member");
        for id in 0..OBSERVERS_MAX as u64 {
            assert_eq!(observers.register(card(100 + id), false, None, 1, now), Ok(Registration::Begins));
        }
        let refused = observers.register(card(99), false, None, 1, now).map_err(|status| status.code);
        assert_eq!(refused, Err(Code::ResourceExhausted));
        assert_eq!(observers.register(card(100), false, None, 1, now), Ok(Registration::Renews));
        let links = observers.links(vec![(2, Vec::new())]);
        assert_eq!((links[0].0, links.len()), (9, OBSERVERS_MAX + 1), "an observer needs no member");
    }

    #[test]
    fn one_that_starts_again_or_is_too_old_is_told_apart() {
        let now = Instant::now();
        let mut observers = Observers::new(false);
        assert_eq!(observers.register(card(5), false, None, 1, now), Ok(Registration::Begins));
        let again = ObserverCard { start: 8, ..card(5) };
        assert_eq!(observers.register(again, false, None, 1, now), Ok(Registration::Restarts));
        let old = ObserverCard { api_version: Some(Minor(3, 6)), ..card(5) };
        assert!(observers.register(old.clone(), false, Some(Minor(3, 7)), 1, now).is_err());
        assert!(observers.register(old, false, Some(Minor(3, 6)), 1, now).is_ok());
        let copy = ObserverCard { start: 9, peer_urls: vec!["http://elsewhere".to_owned()], ..card(5) };
        assert!(observers.register(copy, false, None, 1, now).is_err(), "a copied directory");
        assert!(observers.feeds(5) && observers.remove(5) && !observers.remove(5));
    }

    #[test]
    fn entries_wait_for_the_publication_and_one_wrong_feeder_is_left() {
        let mut observers = Observers::new(false);
        observers.register(card(5), false, None, 1, Instant::now()).expect("there is room");
        let message = |to, kind: raftpb::MessageType| raftpb::Message {
            to: Some(to),
            r#type: Some(kind as i32),
            ..raftpb::Message::default()
        };
        assert!(observers.hold(message(2, raftpb::MessageType::MsgApp)).is_some(), "a member");
        assert!(observers.hold(message(5, raftpb::MessageType::MsgHeartbeat)).is_some());
        assert!(observers.hold(message(5, raftpb::MessageType::MsgApp)).is_none());
        assert_eq!((observers.take_unpublished().len(), observers.take_unpublished().len()), (1, 0));
        let mut observers = Observers::new(true);
        assert!(!observers.differs_from(7, 3) && !observers.differs_from(7, 3), "the same one again");
        assert!(observers.differs_from(8, 3), "two feeders differ");
        assert!(Observers::new(true).differs_from(7, 1), "there is no other");
    }

    #[test]
    fn an_observer_makes_one_round_of_its_own_at_a_time() {
        let now = Instant::now();
        let mut observers = Observers::new(true);
        assert!(!observers.begins_own_round(false, now) && observers.begins_own_round(true, now));
        let later = now + REGISTRATION_INTERVAL;
        assert!(!observers.begins_own_round(true, later), "the first one is under way");
        observers.own_round_ended(true);
        assert!(!observers.begins_own_round(true, now) && observers.begins_own_round(true, later));
        assert!(!Observers::new(false).begins_own_round(true, now), "a member needs none");
    }
}
