//! Limits the memory for messages that other members have sent and that the core has not taken yet.
//!
//! The core takes all waiting messages at the beginning of each turn of its loop. During a long turn the
//! other members continue to send. Messages beyond the limit are dropped, as in etcd. Raft treats a dropped
//! message like a message that the network has lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::raftpb::Message;
use peer::message_bytes;

/// Maximum bytes of waiting messages from one member. This is four times the bytes that a leader has in
/// flight to a follower, so replication alone does not reach it.
const MEMBER_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of waiting messages from all senders that are not in this member's list of members,
/// together.
const STRANGERS_BYTES_MAX: usize = 16 << 20;

/// A budget of bytes, with the number of bytes taken from it.
struct Room {
    bytes_max: usize,
    taken: AtomicUsize,
}

impl Room {
    fn new(bytes_max: usize) -> Arc<Room> {
        Arc::new(Room { bytes_max, taken: AtomicUsize::new(0) })
    }

    /// Takes bytes from the budget. Returns false, and takes nothing, if the bytes do not fit. A message
    /// larger than the whole budget is accepted if nothing else is taken, because otherwise it could never be
    /// accepted.
    fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| {
            let sum = taken.saturating_add(bytes);
            (taken == 0 || sum <= self.bytes_max).then_some(sum)
        };
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// Bytes taken from a budget. Dropping this value returns them to the budget.
pub struct Charge {
    room: Arc<Room>,
    bytes: usize,
}

impl Charge {
    /// Splits off the bytes of one of the messages that this charge covers, so that they can be returned to
    /// the budget later than the others.
    pub fn part(&mut self, message: &Message) -> Charge {
        let bytes = message_bytes(message).min(self.bytes);
        self.bytes -= bytes;
        Charge { room: Arc::clone(&self.room), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !planted::is(planted::Bug::ArrivalsKept) {
            self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Budgets of waiting bytes: one for each member, and one that all other senders share.
pub struct Arrivals {
    members: Mutex<BTreeMap<u64, Arc<Room>>>,
    strangers: Arc<Room>,
}

impl Default for Arrivals {
    fn default() -> Self {
        Arrivals { members: Mutex::default(), strangers: Room::new(STRANGERS_BYTES_MAX) }
    }
}

impl Arrivals {
    fn members(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Room>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the ids of the other members. A member that was already in the list keeps its budget, with the
    /// bytes already taken.
    pub fn set_members(&self, ids: impl Iterator<Item = u64>) {
        let mut members = self.members();
        let mut before = std::mem::take(&mut *members);
        let room = |id| (id, before.remove(&id).unwrap_or_else(|| Room::new(MEMBER_BYTES_MAX)));
        *members = ids.map(room).collect();
    }

    /// Returns the bytes taken from all budgets together.
    pub fn taken(&self) -> usize {
        let members = self.members();
        let rooms = members.values().chain([&self.strangers]);
        rooms.map(|room| room.taken.load(Ordering::Relaxed)).sum()
    }

    /// Admits the messages that fit into the sender's budget, and returns them with the charge for their
    /// bytes; `None` if no message fits. All of `messages` must come from one sender. Messages that do not
    /// fit remain in `messages`, and the caller must drop them.
    pub fn admit(&self, messages: &mut Vec<Message>) -> Option<(Vec<Message>, Charge)> {
        let from = messages.first()?.from.unwrap_or(0);
        let room = self.members().get(&from).map_or_else(|| Arc::clone(&self.strangers), Arc::clone);
        let bytes: usize = messages.iter().map(message_bytes).sum();
        if bytes <= room.bytes_max && room.take(bytes) {
            return Some((std::mem::take(messages), Charge { room, bytes }));
        }
        let mut charge = Charge { room, bytes: 0 };
        let mut admitted = Vec::new();
        let mut left = Vec::new();
        for message in messages.drain(..) {
            let bytes = message_bytes(&message);
            if charge.room.take(bytes) {
                charge.bytes += bytes;
                admitted.push(message);
            } else {
                left.push(message);
            }
        }
        *messages = left;
        (!admitted.is_empty()).then_some((admitted, charge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::raftpb::Entry;
    use bytes::Bytes;

    fn message(from: u64, bytes: usize) -> Message {
        let entry = Entry { data: Some(Bytes::from(vec![0; bytes])), ..Entry::default() };
        Message { from: Some(from), entries: vec![entry], ..Message::default() }
    }

    #[test]
    fn what_finds_no_room_is_left_and_strangers_take_no_members_room() {
        let arrivals = Arrivals::default();
        arrivals.set_members([1, 2].into_iter());
        let mut charges = Vec::new();
        for from in 3..103 {
            charges.extend(arrivals.admit(&mut vec![message(from, 1 << 20)]));
        }
        assert_eq!(charges.len(), 15, "strangers share one room");
        let mut many: Vec<Message> = (0..100).map(|_| message(1, 1 << 20)).collect();
        let (admitted, charge) = arrivals.admit(&mut many).expect("some fit");
        assert_eq!((admitted.len(), many.len()), (63, 37));
        assert!(arrivals.admit(&mut vec![message(1, 1 << 20)]).is_none());
        assert!(arrivals.admit(&mut vec![message(2, 1 << 20)]).is_some(), "it has a room of its own");
        // A change of the membership keeps the bytes already taken.
        arrivals.set_members([1].into_iter());
        assert!(arrivals.admit(&mut vec![message(1, 1 << 20)]).is_none());
        drop(charge);
        assert!(arrivals.admit(&mut vec![message(1, 1 << 20)]).is_some());
        drop(charges);
        assert!(arrivals.admit(&mut vec![message(3, 17 << 20)]).is_some(), "one passes alone, however large");
    }

    #[test]
    fn a_part_is_held_longer_than_the_rest() {
        let arrivals = Arrivals::default();
        let large = STRANGERS_BYTES_MAX / 2 - 1000;
        let (admitted, mut charge) =
            arrivals.admit(&mut vec![message(3, large), message(3, large)]).expect("both fit");
        let part = charge.part(&admitted[0]);
        assert!(arrivals.admit(&mut vec![message(3, large)]).is_none());
        drop(charge);
        let (_, another) = arrivals.admit(&mut vec![message(3, large)]).expect("there is room again");
        assert!(arrivals.admit(&mut vec![message(3, large)]).is_none());
        drop(part);
        assert!(arrivals.admit(&mut vec![message(3, large)]).is_some());
        drop(another);
    }
}
