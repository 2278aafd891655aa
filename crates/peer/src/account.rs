//! Keeps the state of a peer that several threads use: [`Account`] bounds the number and the bytes of the
//! messages queued for the peer, and records whether the peer is active. The account does not contain the
//! queues.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use api::raftpb::{Message, MessageType};

use crate::figures::{Counters, PeerFigures};
use crate::identity;
use crate::options::{QUEUED_APP_BYTES_MAX, QUEUED_MESSAGES_MAX, QUEUED_OTHER_BYTES_MAX};

/// Memory in bytes that a message takes in addition to its content.
const MESSAGE_OVERHEAD_BYTES: usize = size_of::<Message>();
const ENTRY_OVERHEAD_BYTES: usize = size_of::<api::raftpb::Entry>();

/// Limits for the queued messages of one kind, and how much of the limits is used.
#[derive(Debug)]
pub(crate) struct Allowance {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl Allowance {
    fn new(bytes_max: usize) -> Allowance {
        Allowance { messages: AtomicUsize::new(0), bytes: AtomicUsize::new(0), bytes_max }
    }

    /// Counts a message with this many bytes against the limits. Returns false if it exceeds them. All
    /// callers hold the lock of the inbox, so the limits are exact although check and update are separate.
    fn take(&self, bytes: usize) -> bool {
        // If no other message is queued, a message larger than the limit is accepted, because it could never
        // be sent otherwise.
        let waiting = self.messages.load(Ordering::Acquire);
        if waiting >= QUEUED_MESSAGES_MAX
            || (waiting > 0 && self.bytes.load(Ordering::Relaxed) + bytes > self.bytes_max)
        {
            return false;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    fn give_back(&self, messages: usize, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.messages.fetch_sub(messages, Ordering::Release);
    }
}

/// State of one peer that several threads share: whether the peer is a member, is active and may be sent
/// messages, its version, its counters, and the number and bytes of the messages that are queued for it.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) id: u64,
    pub(crate) counters: Counters,
    /// True if messages to the peer are accepted, because it is a member, or a sender that is not known as a
    /// member but whose URLs are known.
    pub(crate) reachable: AtomicBool,
    /// True if the peer is a member.
    pub(crate) is_member: AtomicBool,
    active_since: Mutex<Option<Instant>>,
    /// Version that the peer announced last: the major number in the upper 32 bits, the minor number in the
    /// lower; 0 if it has announced none.
    release: AtomicU64,
    /// True if the peer has said that it knows witnesses.
    knows_witnesses: AtomicBool,
    /// Zone that the peer announced last; empty if it has announced none.
    zone: Mutex<Arc<str>>,
    apps: Allowance,
    others: Allowance,
}

impl Account {
    pub(crate) fn new(id: u64) -> Account {
        Account {
            id,
            counters: Counters::new(),
            reachable: AtomicBool::new(false),
            is_member: AtomicBool::new(false),
            active_since: Mutex::new(None),
            release: AtomicU64::new(0),
            knows_witnesses: AtomicBool::new(false),
            zone: Mutex::new("".into()),
            apps: Allowance::new(QUEUED_APP_BYTES_MAX),
            others: Allowance::new(QUEUED_OTHER_BYTES_MAX),
        }
    }

    /// Returns the major and minor number of the version that the peer announced last; `None` if it has
    /// announced none.
    pub(crate) fn release(&self) -> Option<(u32, u32)> {
        let release = self.release.load(Ordering::Relaxed);
        (release != 0).then_some(((release >> 32) as u32, release as u32))
    }

    /// Returns true if the peer has last said that it knows witnesses.
    pub(crate) fn knows_witnesses(&self) -> bool {
        self.knows_witnesses.load(Ordering::Relaxed)
    }

    /// Returns the zone that the peer announced last; empty if it has announced none.
    pub(crate) fn zone(&self) -> Arc<str> {
        Arc::clone(&self.zone.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the version and the zone in the headers of a request or an answer of the peer, if they contain
    /// them.
    pub(crate) fn note_sender(&self, headers: &http::HeaderMap) {
        let zone = identity::zone(headers);
        let mut known = self.zone.lock().unwrap_or_else(PoisonError::into_inner);
        if **known != *zone {
            *known = zone.into();
        }
        drop(known);
        self.knows_witnesses.store(identity::knows_witnesses(headers), Ordering::Relaxed);
        if let Some((major, minor)) = identity::release(headers) {
            self.release.store(u64::from(major) << 32 | u64::from(minor), Ordering::Relaxed);
        }
    }

    fn allowance(&self, is_app: bool) -> &Allowance {
        if is_app { &self.apps } else { &self.others }
    }

    /// Counts a message against the limits of its kind before it is queued. Returns false if it exceeds them;
    /// it must then be dropped.
    pub(crate) fn take(&self, message: &Message) -> bool {
        self.allowance(is_app(message)).take(weight(message))
    }

    /// No longer counts a message against the limits, because it has left its queue.
    pub(crate) fn give_back(&self, message: &Message) {
        self.allowance(is_app(message)).give_back(1, weight(message));
    }

    pub(crate) fn active_since(&self) -> Option<Instant> {
        *self.active_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the peer as active. Returns true if it was not active before.
    pub(crate) fn activate(&self) -> bool {
        let mut since = self.active_since.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = since.is_none();
        since.get_or_insert_with(Instant::now);
        begins
    }

    /// Marks the peer as inactive. Returns true if it was active before.
    pub(crate) fn deactivate(&self) -> bool {
        let ends = self.active_since.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        if ends {
            self.counters.disconnected.add(1);
        }
        ends
    }

    pub(crate) fn figures(&self) -> PeerFigures {
        let waiting = |of: fn(&Allowance) -> &AtomicUsize| {
            let sum = of(&self.apps).load(Ordering::Relaxed) + of(&self.others).load(Ordering::Relaxed);
            sum as u64
        };
        PeerFigures {
            known: self.is_member.load(Ordering::Relaxed),
            active: self.active_since().is_some(),
            queued_messages: waiting(|allowance| &allowance.messages),
            queued_bytes: waiting(|allowance| &allowance.bytes),
            zone: self.zone(),
            ..self.counters.figures()
        }
    }
}

/// Returns true if a message is a MsgApp, for which there is a separate stream.
pub(crate) fn is_app(message: &Message) -> bool {
    message.r#type == Some(MessageType::MsgApp as i32)
}

/// Returns the approximate memory that a message takes, in bytes.
pub fn weight(message: &Message) -> usize {
    let entry = |entry: &api::raftpb::Entry| entry.data.as_ref().map_or(0, |data| data.len());
    let context = message.context.as_ref().map_or(0, |context| context.len());
    let snapshot = message.snapshot.as_ref().map_or(0, snapshot_weight);
    MESSAGE_OVERHEAD_BYTES
        + context
        + snapshot
        + message.entries.iter().map(|e| ENTRY_OVERHEAD_BYTES + entry(e)).sum::<usize>()
        + message.responses.iter().map(weight).sum::<usize>()
}

fn snapshot_weight(snapshot: &api::raftpb::Snapshot) -> usize {
    let conf_state = snapshot.metadata.as_ref().and_then(|metadata| metadata.conf_state.as_ref());
    let ids = conf_state.map_or(0, |conf| {
        conf.voters.len() + conf.learners.len() + conf.voters_outgoing.len() + conf.learners_next.len()
    });
    snapshot.data.as_ref().map_or(0, |data| data.len()) + ids * size_of::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn app(bytes: usize) -> Message {
        let entry = api::raftpb::Entry { data: Some(Bytes::from(vec![0; bytes])), ..Default::default() };
        Message { r#type: Some(MessageType::MsgApp as i32), entries: vec![entry], ..Default::default() }
    }

    #[test]
    fn messages_are_taken_up_to_both_bounds_and_again_when_some_have_left() {
        let account = Account::new(1);
        let small = app(1);
        assert_eq!(
            (0..QUEUED_MESSAGES_MAX + 5).filter(|_| account.take(&small)).count(),
            QUEUED_MESSAGES_MAX
        );
        account.give_back(&small);
        assert!(account.take(&small) && !account.take(&small));

        let account = Account::new(1);
        let large = app(QUEUED_APP_BYTES_MAX / 4);
        assert_eq!((0..9).filter(|_| account.take(&large)).count(), 3);
        let heartbeat = Message { r#type: Some(MessageType::MsgHeartbeat as i32), ..Default::default() };
        assert!(account.take(&heartbeat), "the bounds of the kinds are apart");
    }

    #[test]
    fn a_message_above_the_bound_passes_alone() {
        let account = Account::new(1);
        let huge = app(QUEUED_APP_BYTES_MAX + 1);
        assert!(account.take(&huge) && !account.take(&huge));
    }
}
