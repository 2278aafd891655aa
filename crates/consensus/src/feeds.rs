//! Tracks the observers that a node feeds: how far each one is, and which appends are in flight to it.
//!
//! A feed is simpler than a leader's progress of a follower. Its entries are applied here, so they are
//! committed, and a feeder never replaces what it has sent. So the only questions are where the observer's log
//! ends, and how much may be in flight.

use std::collections::{BTreeMap, VecDeque};

use numbers::{Index, MemberId};
use raft::eraftpb;

use crate::effects::{Progress, ProgressState};
use crate::event::Fetch;
use crate::tail::payload_bytes;

/// Maximum number of appends in flight to one observer.
const APPENDS_IN_FLIGHT_MAX: usize = 512;
/// Maximum payload bytes in flight to all observers together.
const BYTES_IN_FLIGHT_MAX: usize = 128 << 20;
/// Payload bytes that may be in flight after a loss. Each acknowledgement of something new doubles them.
const BYTES_AFTER_LOSS: usize = 1 << 20;
/// Maximum number of observers to which snapshots are sent at the same time, so that members that need one do
/// not wait for observers.
const SNAPSHOTS_MAX: usize = 4;
/// Number of election timeouts without any acknowledgement after which the appends in flight count as lost. It
/// is large, because what is slow must not be sent a second time.
const LOST_AFTER_TIMEOUTS: u64 = 10;

/// Maximum number of times that the pause after a snapshot in vain doubles. It begins with one election timeout.
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// The mode in which an observer is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The end of the observer's log is not known. One append without entries is sent at a time; `asked` is the
    /// index of the entry before it, once it is sent.
    Probe { asked: Option<u64> },
    /// As in `Probe`, but the next append is sent only after the observer has answered a heartbeat: it was not
    /// reached, or could not take a snapshot.
    Wait,
    /// One append after the other is sent.
    Replicate,
    /// A snapshot with this index or a later one is under way.
    Snapshot { index: u64 },
}

/// One observer that this node feeds.
#[derive(Debug)]
pub(crate) struct Feed {
    mode: Mode,
    /// Index of the newest entry that is known to be on the observer's disk.
    matched: u64,
    /// Index of the next entry to send.
    next: u64,
    /// Number of snapshots that were delivered since the observer last acknowledged something new.
    snapshots_in_vain: u32,
    /// Tick from which on the next snapshot may be sent.
    snapshot_from: u64,
    /// Index of the last entry of each append in flight, and its payload bytes.
    in_flight: VecDeque<(u64, usize)>,
    bytes_in_flight: usize,
    /// Payload bytes that may be in flight.
    window: usize,
    /// Tick in which the observer last acknowledged something new, or was sent its first append in flight.
    advanced_at: u64,
    /// Tick in which an append without entries last asked whether what is in flight has arrived.
    checked_at: u64,
    /// True if such an append should be sent.
    wants_check: bool,
    /// Tick in which the last message of the observer arrived; the tick of its registration at first.
    heard_at: u64,
    /// The fetch of old entries that is not answered yet.
    fetching: Option<Fetch>,
    /// True if the last fetch brought nothing. The next one waits until the observer answers a heartbeat.
    fetch_failed: bool,
    /// Entries that were read back from the log and are not sent yet, in order.
    fetched: VecDeque<eraftpb::Entry>,
}

impl Feed {
    fn new(next: u64, tick: u64) -> Feed {
        Feed {
            mode: Mode::Probe { asked: None },
            matched: 0,
            next,
            snapshots_in_vain: 0,
            snapshot_from: 0,
            in_flight: VecDeque::new(),
            bytes_in_flight: 0,
            window: BYTES_AFTER_LOSS,
            advanced_at: tick,
            checked_at: tick,
            wants_check: false,
            heard_at: tick,
            fetching: None,
            fetch_failed: false,
            fetched: VecDeque::new(),
        }
    }

    /// Returns the index of the next entry to send.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns true if an append without entries should be sent, to learn where the observer's log ends.
    pub fn wants_probe(&self) -> bool {
        self.mode == Mode::Probe { asked: None }
    }

    /// Returns true if entries may be sent now.
    pub fn takes_entries(&self, bytes_max: usize) -> bool {
        self.mode == Mode::Replicate
            && self.in_flight.len() < APPENDS_IN_FLIGHT_MAX
            && self.bytes_in_flight < bytes_max.min(self.window)
    }

    /// Records that a probe after the entry `before` was sent.
    pub fn probed(&mut self, before: u64) {
        self.mode = Mode::Probe { asked: Some(before) };
    }

    /// Returns true, once, if an append without entries should be sent after all that is in flight: the observer may
    /// have dropped it without a word, because it was busy.
    pub fn take_check(&mut self) -> bool {
        std::mem::take(&mut self.wants_check) && self.mode == Mode::Replicate
    }

    /// Records that these entries were sent.
    pub fn sent(&mut self, entries: &[eraftpb::Entry], tick: u64) {
        let Some(last) = entries.last() else { return };
        if self.in_flight.is_empty() {
            self.advanced_at = tick;
        }
        let bytes = entries.iter().map(payload_bytes).sum();
        self.in_flight.push_back((last.index, bytes));
        self.bytes_in_flight += bytes;
        self.next = last.index + 1;
        while self.fetched.front().is_some_and(|entry| entry.index < self.next) {
            self.fetched.pop_front();
        }
    }

    /// Returns true if the observer may be sent a snapshot in this tick.
    pub fn takes_snapshot(&self, tick: u64) -> bool {
        tick >= self.snapshot_from
    }

    /// Records that a snapshot with at least this index is sent.
    pub fn snapshot(&mut self, index: u64) {
        self.clear_flight();
        self.fetched.clear();
        self.fetching = None;
        self.mode = Mode::Snapshot { index };
    }

    /// Records that the sending of a snapshot has ended. If it was delivered, the observer is asked where its
    /// log ends, otherwise once it has answered a heartbeat. If it needs a snapshot again, that waits for an
    /// election timeout, and for twice as long after each one that was delivered and not installed. After a
    /// transfer that broke off the pause stays short, because the observer drops what has arrived after a while.
    pub fn snapshot_ended(&mut self, delivered: bool, tick: u64, timeout_ticks: u64) {
        if let Mode::Snapshot { index } = self.mode {
            self.next = if delivered { index + 1 } else { self.matched + 1 };
            self.mode = if delivered { Mode::Probe { asked: None } } else { Mode::Wait };
            let doublings = if delivered { self.snapshots_in_vain.min(PAUSE_DOUBLINGS_MAX) } else { 0 };
            self.snapshot_from = tick + (timeout_ticks << doublings);
            self.snapshots_in_vain += u32::from(delivered);
        }
    }

    /// Handles the report that messages to the observer may be lost.
    pub fn unreachable(&mut self) {
        if !matches!(self.mode, Mode::Snapshot { .. }) {
            self.lose_flight();
            self.mode = Mode::Wait;
        }
    }

    fn lose_flight(&mut self) {
        self.clear_flight();
        self.next = self.matched + 1;
        self.window = BYTES_AFTER_LOSS;
    }

    fn clear_flight(&mut self) {
        self.in_flight.clear();
        self.bytes_in_flight = 0;
    }

    /// Handles an acknowledgement of everything up to `index`.
    pub fn acknowledged(&mut self, index: u64, tick: u64) {
        self.heard_at = tick;
        if index > self.matched {
            self.snapshots_in_vain = 0;
            self.snapshot_from = tick;
            // It may have installed a snapshot whose sending counts as failed. The next probe verifies that.
            if matches!(self.mode, Mode::Wait | Mode::Probe { asked: None }) {
                self.next = self.next.max(index + 1);
            }
        }
        match self.mode {
            Mode::Snapshot { index: awaited } if index < awaited => return,
            // A late acknowledgement, or the answer to a message of an older term.
            Mode::Probe { asked } if asked.is_none_or(|asked| index < asked) => return,
            Mode::Wait => return,
            _ => {}
        }
        if index > self.matched {
            self.matched = index;
            self.advanced_at = tick;
            self.window = self.window.saturating_mul(2);
        }
        while let Some((last, bytes)) = self.in_flight.front().copied()
            && last <= index
        {
            self.in_flight.pop_front();
            self.bytes_in_flight -= bytes;
        }
        if self.mode != Mode::Replicate {
            self.mode = Mode::Replicate;
            self.next = self.matched + 1;
            self.advanced_at = tick;
        }
        self.next = self.next.max(index + 1);
    }

    /// Handles the refusal of an append after the entry `before`: the observer's log ends at or before
    /// `hint`.
    pub fn refused(&mut self, before: u64, hint: u64, tick: u64) {
        self.heard_at = tick;
        match self.mode {
            Mode::Snapshot { .. } | Mode::Wait => return,
            // A late refusal of a probe that was answered since.
            Mode::Probe { asked } if asked != Some(before) => return,
            Mode::Replicate if before <= self.matched => return,
            Mode::Probe { .. } | Mode::Replicate => {}
        }
        self.clear_flight();
        // Each refusal moves the probe back, whatever the hint says, so that a series of refusals ends.
        self.next = (hint + 1).min(before).max(1);
        self.matched = self.matched.min(self.next - 1);
        self.mode = Mode::Probe { asked: None };
    }

    /// Handles the answer to a heartbeat. If nothing was acknowledged for ten times `timeout_ticks` although
    /// appends are in flight, they count as lost; an unanswered probe is repeated.
    pub fn answered_heartbeat(&mut self, tick: u64, timeout_ticks: u64) {
        self.heard_at = tick;
        self.fetch_failed = false;
        match self.mode {
            Mode::Probe { asked: Some(_) } | Mode::Wait => self.mode = Mode::Probe { asked: None },
            Mode::Replicate
                if !self.in_flight.is_empty()
                    && tick - self.advanced_at >= LOST_AFTER_TIMEOUTS * timeout_ticks =>
            {
                self.lose_flight();
                self.mode = Mode::Probe { asked: None };
            }
            Mode::Replicate
                if !self.in_flight.is_empty()
                    && tick - self.advanced_at.max(self.checked_at) >= timeout_ticks =>
            {
                self.checked_at = tick;
                self.wants_check = true;
            }
            _ => {}
        }
    }

    /// Returns true if the next entry to send was read back from the log.
    pub fn has_fetched(&self) -> bool {
        self.fetched.front().is_some_and(|first| first.index == self.next)
    }

    /// Returns the entries that were read back and are next to be sent, within `bytes_max` but at least one.
    pub fn next_fetched(&self, bytes_max: u64) -> Vec<eraftpb::Entry> {
        if !self.has_fetched() {
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = |entry: &&eraftpb::Entry| {
            let is_first = bytes == 0;
            bytes += payload_bytes(entry) as u64 + 16;
            is_first || bytes <= bytes_max
        };
        self.fetched.iter().take_while(fits).cloned().collect()
    }
}

/// The observers that this node feeds, by id.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    by_id: BTreeMap<u64, Feed>,
    /// Fetches that were not given to the caller yet.
    fetches: Vec<Fetch>,
}

impl Feeds {
    /// Begins to feed an observer; `next` is the first index to ask it about. If it is fed already, everything
    /// that is known about it is forgotten.
    pub fn add(&mut self, id: u64, next: u64, tick: u64) {
        self.remove(id);
        self.by_id.insert(id, Feed::new(next, tick));
    }

    /// Ends the feed of an observer.
    pub fn remove(&mut self, id: u64) {
        self.by_id.remove(&id);
        self.fetches.retain(|fetch| fetch.to.0 != id);
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the payload bytes that may be in flight to each observer, of which `each` is the maximum.
    pub fn bytes_max(&self, each: usize) -> usize {
        each.min(BYTES_IN_FLIGHT_MAX / self.by_id.len().max(1))
    }

    /// Returns true if one more snapshot may be sent.
    pub fn takes_snapshot(&self) -> bool {
        let sending = self.by_id.values().filter(|feed| matches!(feed.mode, Mode::Snapshot { .. }));
        sending.count() < SNAPSHOTS_MAX
    }

    pub fn contains(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Feed> {
        self.by_id.get_mut(&id)
    }

    /// Returns the ids of the observers.
    pub fn ids(&self) -> Vec<u64> {
        self.by_id.keys().copied().collect()
    }

    /// Returns the feeds by observer.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Feed)> {
        self.by_id.iter_mut().map(|(id, feed)| (*id, feed))
    }

    /// Orders the reading of old entries for an observer, unless an earlier fetch is not answered yet.
    pub fn fetch(&mut self, fetch: Fetch) {
        if let Some(feed) = self.by_id.get_mut(&fetch.to.0)
            && feed.fetching.is_none()
            && !feed.fetch_failed
        {
            feed.fetching = Some(fetch);
            self.fetches.push(fetch);
        }
    }

    /// Takes the answer to a fetch. The entries are dropped if the observer no longer needs them.
    pub fn fetched(&mut self, fetch: Fetch, entries: impl Iterator<Item = eraftpb::Entry>) {
        if let Some(feed) = self.by_id.get_mut(&fetch.to.0)
            && feed.fetching == Some(fetch)
        {
            feed.fetching = None;
            feed.fetched = entries.collect();
            feed.fetch_failed = feed.fetched.is_empty();
        }
    }

    /// Returns true if fetches wait for the caller.
    pub fn has_fetches(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// Removes and returns the fetches for the caller.
    pub fn take_fetches(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.fetches)
    }

    /// Returns what is known about each observer, by id. An observer counts as active if it was heard within
    /// `ticks_max` ticks.
    pub fn progress(&self, tick: u64, ticks_max: u64) -> Vec<Progress> {
        let of = |(id, feed): (&u64, &Feed)| Progress {
            id: MemberId(*id),
            matched: Index(feed.matched),
            next: Index(feed.next),
            is_learner: true,
            recently_active: tick - feed.heard_at <= ticks_max,
            state: match feed.mode {
                Mode::Probe { .. } | Mode::Wait => ProgressState::Probe,
                Mode::Replicate => ProgressState::Replicate,
                Mode::Snapshot { index } => ProgressState::Snapshot { index: Index(index) },
            },
        };
        self.by_id.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(range: std::ops::RangeInclusive<u64>) -> Vec<eraftpb::Entry> {
        range.map(|index| eraftpb::Entry { index, data: vec![0; 100].into(), ..Default::default() }).collect()
    }

    #[test]
    fn an_observer_is_asked_then_fed_and_asked_again_after_silence() {
        let mut feed = Feed::new(101, 0);
        assert!(feed.wants_probe() && !feed.takes_entries(1000));
        feed.probed(100);
        assert!(!feed.wants_probe());
        feed.acknowledged(0, 1);
        assert!(!feed.takes_entries(1000), "an answer to something else");
        feed.refused(100, 40, 1);
        assert!(feed.wants_probe() && feed.next() == 41);
        feed.refused(100, 7, 1);
        assert_eq!(feed.next(), 41, "a late refusal changes nothing");
        feed.probed(40);
        feed.acknowledged(40, 2);
        assert!(feed.takes_entries(1000));
        feed.sent(&entries(41..=50), 2);
        assert_eq!((feed.next(), feed.matched), (51, 40));
        assert!(!feed.takes_entries(1000), "1000 bytes are in flight");
        feed.acknowledged(50, 3);
        assert!(feed.takes_entries(1000));
        feed.sent(&entries(51..=52), 4);
        feed.answered_heartbeat(14, 10);
        assert!(feed.take_check() && !feed.take_check(), "it is asked whether they have arrived");
        feed.answered_heartbeat(103, 10);
        assert_eq!(feed.next(), 53, "the acknowledgement may still come");
        feed.answered_heartbeat(104, 10);
        assert!(feed.wants_probe() && feed.next() == 51);
        feed.unreachable();
        assert!(!feed.wants_probe(), "it waits until the observer is heard");
        feed.answered_heartbeat(105, 10);
        assert!(feed.wants_probe());
    }

    #[test]
    fn a_series_of_refusals_ends_whatever_the_hints_say() {
        let mut feed = Feed::new(1000, 0);
        for turn in 0..999 {
            assert_eq!(feed.next(), 1000 - turn);
            feed.probed(feed.next() - 1);
            feed.refused(feed.next() - 1, u64::MAX - 1, turn);
        }
        assert_eq!(feed.next(), 1);
        feed.probed(0);
        feed.refused(0, 5, 1);
        assert_eq!(feed.next(), 1);
    }

    #[test]
    fn acknowledgements_during_a_snapshot_count_only_from_its_index_on() {
        let mut feed = Feed::new(10, 0);
        feed.snapshot(50);
        feed.acknowledged(9, 1);
        feed.refused(9, 3, 1);
        feed.unreachable();
        assert!(!feed.wants_probe() && !feed.takes_entries(1));
        feed.snapshot_ended(false, 1, 10);
        assert!(!feed.wants_probe() && feed.next() == 1, "a failed transfer is not repeated at once");
        feed.answered_heartbeat(2, 10);
        assert!(feed.wants_probe());
        feed.snapshot(50);
        feed.acknowledged(60, 2);
        assert!(feed.takes_entries(1) && feed.next() == 61);
        feed.snapshot_ended(true, 2, 10);
        assert_eq!(feed.next(), 61, "the report comes late");
    }

    #[test]
    fn snapshots_in_vain_are_sent_ever_more_rarely() {
        let mut feed = Feed::new(10, 0);
        let mut tick = 0;
        let mut pause = |feed: &mut Feed, delivered| {
            assert!(feed.takes_snapshot(tick));
            feed.snapshot(50);
            feed.snapshot_ended(delivered, tick, 10);
            let ended = tick;
            while !feed.takes_snapshot(tick) {
                tick += 1;
            }
            tick - ended
        };
        let pauses: Vec<u64> = [true, false, true, true, true, true, true, true]
            .map(|delivered| pause(&mut feed, delivered))
            .to_vec();
        assert_eq!(pauses, [10, 10, 20, 40, 80, 160, 320, 640]);
        feed.probed(50);
        feed.acknowledged(50, 2000);
        feed.snapshot(60);
        feed.snapshot_ended(true, 3000, 10);
        assert!(!feed.takes_snapshot(3009) && feed.takes_snapshot(3010), "it took what it was sent");
        feed.snapshot(70);
        feed.snapshot_ended(false, 4000, 10);
        feed.acknowledged(70, 4001);
        feed.answered_heartbeat(4002, 10);
        assert!(feed.wants_probe() && feed.takes_snapshot(4002));
        assert_eq!(feed.next(), 71, "it has installed it after all, and is asked whether it has");
    }

    #[test]
    fn what_is_in_flight_is_bounded_for_all_together_and_grows_after_a_loss() {
        let mut feeds = Feeds::default();
        for id in 1..=64 {
            feeds.add(id, 1, 0);
        }
        assert_eq!(feeds.bytes_max(16 << 20), 2 << 20);
        for id in 1..=SNAPSHOTS_MAX as u64 {
            assert!(feeds.takes_snapshot());
            feeds.get_mut(id).expect("added").snapshot(9);
        }
        assert!(!feeds.takes_snapshot());
        let feed = feeds.get_mut(60).expect("added");
        feed.probed(0);
        feed.acknowledged(0, 1);
        let large = |index| eraftpb::Entry { index, data: vec![0; 1 << 20].into(), ..Default::default() };
        feed.sent(&[large(1)], 1);
        assert!(!feed.takes_entries(16 << 20), "one append after the beginning");
        feed.acknowledged(1, 2);
        feed.sent(&[large(2)], 2);
        assert!(feed.takes_entries(16 << 20), "twice as much after each acknowledgement");
    }

    #[test]
    fn entries_that_were_read_are_sent_in_order_and_within_the_limit() {
        let mut feeds = Feeds::default();
        feeds.add(9, 11, 0);
        let fetch = Fetch { to: MemberId(9), first: Index(11), last: Index(20), bytes_max: 1000 };
        feeds.fetch(fetch);
        feeds.fetch(Fetch { first: Index(12), ..fetch });
        assert_eq!(feeds.take_fetches(), [fetch]);
        feeds.fetched(Fetch { first: Index(12), ..fetch }, entries(12..=13).into_iter());
        feeds.fetched(fetch, entries(11..=19).into_iter());
        let feed = feeds.get_mut(9).expect("added");
        assert_eq!(feed.next_fetched(1).len(), 1);
        let some = feed.next_fetched(3 * 116);
        assert_eq!(some.len(), 3);
        feed.sent(&some, 1);
        assert_eq!(feed.next_fetched(u64::MAX).first().map(|entry| entry.index), Some(14));
        feeds.remove(9);
        assert!(feeds.is_empty() && !feeds.contains(9));
    }
}
