//! Schedules lease renewals: decides which renewal is sent to a member next, and which clients get the
//! response. This is a state machine without IO, which `hub` drives.
//!
//! All renewals of one caller share one stream to a member. A bounded number of them is in flight at a time,
//! and the clients' streams take turns. If a renewal of the same lease is already in flight, its response
//! also answers the later request. If the stream to the member breaks, the renewals in flight are sent again
//! on another stream, up to a maximum number of times.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use api::{Code, Status};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use crate::outbox::Outbox;
use crate::watches::StreamId;

/// Maximum number of renewals of one caller that are in flight to a member. Further ones wait in the proxy,
/// because a member closes a connection on which thousands of small messages wait.
const ASKED_MAX: usize = 100;
/// Number of times that the stream to the member may break while a renewal is in flight. After the last of
/// them, the renewal is not sent again, and the streams of the clients that wait for it are ended.
const TRIES_MAX: u32 = 3;

/// A client's request to renew a lease.
pub(crate) struct Renewal {
    pub(crate) lease: i64,
    pub(crate) stream: StreamId,
    pub(crate) outbox: Arc<Outbox>,
    /// Permit of the client's stream, which limits its renewals in flight. The permit is returned once the
    /// response has been sent to the client.
    pub(crate) place: OwnedSemaphorePermit,
}

/// A renewal that is in flight, or has to be sent again.
struct Asked {
    lease: i64,
    /// Number of times that the stream to the member has broken since the renewal was first sent.
    breaks: u32,
    /// Requests of clients that the member's response to this renewal will answer.
    sharers: Vec<Renewal>,
    /// Permit that counts the renewal against the limit for all callers together; `None` while the renewal
    /// waits to be sent again.
    place: Option<OwnedSemaphorePermit>,
}

/// The renewals of one caller.
#[derive(Default)]
pub(crate) struct Renewals {
    /// Renewals that have not been sent yet, by client stream. No queue in this map is empty.
    queues: HashMap<StreamId, VecDeque<Renewal>>,
    /// Client streams that have a queue, in the order of their turns.
    turns: VecDeque<StreamId>,
    /// Renewals that were sent and have not been answered, the oldest first.
    asked: VecDeque<Asked>,
    /// Renewals that were in flight on a broken stream. They are sent again before all others.
    again: VecDeque<Asked>,
}

impl Renewals {
    /// Adds a renewal.
    pub(crate) fn add(&mut self, renewal: Renewal) {
        let mut under_way = self.asked.iter_mut().chain(&mut self.again);
        if let Some(same) = under_way.find(|asked| asked.lease == renewal.lease) {
            return same.sharers.push(renewal);
        }
        let queue = self.queues.entry(renewal.stream).or_default();
        if queue.is_empty() {
            self.turns.push_back(renewal.stream);
        }
        queue.push_back(renewal);
    }

    /// Removes the renewals of a client stream that has ended.
    pub(crate) fn leave(&mut self, stream: StreamId) {
        if self.queues.remove(&stream).is_some() {
            self.turns.retain(|other| *other != stream);
        }
        for asked in self.asked.iter_mut().chain(&mut self.again) {
            asked.sharers.retain(|renewal| renewal.stream != stream);
        }
        self.again.retain(|asked| !asked.sharers.is_empty());
    }

    /// Returns true if no renewal waits to be sent and none is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.again.is_empty() && self.turns.is_empty()
    }

    /// Returns true if renewals are in flight.
    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns true if a renewal waits to be sent and may be sent now.
    pub(crate) fn has_more(&self) -> bool {
        self.asked.len() < ASKED_MAX && !(self.again.is_empty() && self.turns.is_empty())
    }

    /// Takes the next renewal to send, and returns its lease; `None` if no renewal needs to be sent now.
    /// `place` is the permit for the renewal, and is kept until the member answers.
    pub(crate) fn next(&mut self, place: OwnedSemaphorePermit) -> Option<i64> {
        if !self.has_more() {
            return None;
        }
        if let Some(again) = self.again.pop_front() {
            let lease = again.lease;
            self.asked.push_back(Asked { place: Some(place), ..again });
            return Some(lease);
        }
        while let Some(stream) = self.turns.pop_front() {
            let Some(queue) = self.queues.get_mut(&stream) else { continue };
            let renewal = queue.pop_front();
            match queue.is_empty() {
                true => drop(self.queues.remove(&stream)),
                false => self.turns.push_back(stream),
            }
            let Some(renewal) = renewal else { continue };
            let lease = renewal.lease;
            match self.asked.iter_mut().find(|asked| asked.lease == lease) {
                Some(same) => same.sharers.push(renewal),
                None => {
                    let sharers = vec![renewal];
                    self.asked.push_back(Asked { lease, breaks: 0, sharers, place: Some(place) });
                    return Some(lease);
                }
            }
        }
        None
    }

    /// Handles the member's response about a lease.
    pub(crate) fn answered(&mut self, lease: i64, answer: &Bytes) {
        let Some(at) = self.asked.iter().position(|asked| asked.lease == lease) else { return };
        for renewal in self.asked.remove(at).into_iter().flat_map(|asked| asked.sharers) {
            renewal.outbox.answer_in_place(answer.clone(), renewal.place);
        }
    }

    /// Handles the end of the stream to the member: the stream broke, or the member refused a renewal. The
    /// renewals in flight will be sent again on another stream, with two exceptions: a renewal that the
    /// member has refused, and renewals during which the stream has broken [`TRIES_MAX`] times. The client
    /// streams that wait for these are ended. If the member does not accept the credentials, all client
    /// streams that wait for a renewal of this caller are ended.
    pub(crate) fn broken(&mut self, status: &Status) {
        let breaks = matches!(
            status.code,
            Code::Unavailable | Code::Internal | Code::Unknown | Code::Canceled | Code::DeadlineExceeded
        );
        if status.code == Code::Unauthenticated {
            // End the streams of all clients that wait: all renewals of a caller have the same credentials,
            // so members would refuse all of them.
            return self.end(status);
        }
        for (number, mut asked) in std::mem::take(&mut self.asked).into_iter().enumerate() {
            asked.place = None;
            asked.breaks += u32::from(breaks);
            // A member answers requests in their order, so the refused renewal is the oldest one.
            let is_refused = !breaks && number == 0;
            if is_refused || asked.breaks >= TRIES_MAX {
                asked.sharers.iter().for_each(|renewal| renewal.outbox.end(status.clone()));
            } else if !asked.sharers.is_empty() {
                self.again.push_back(asked);
            }
        }
    }

    /// Handles the move of the stream to another member: the renewals in flight will be sent again there. This
    /// does not count as a break.
    pub(crate) fn moved(&mut self) {
        for mut asked in std::mem::take(&mut self.asked) {
            asked.place = None;
            if !asked.sharers.is_empty() {
                self.again.push_back(asked);
            }
        }
    }

    /// Ends the streams of all clients that wait for a response, with this status.
    pub(crate) fn end(&mut self, status: &Status) {
        let under_way = std::mem::take(&mut self.asked).into_iter().chain(std::mem::take(&mut self.again));
        let queued = std::mem::take(&mut self.queues).into_values().flatten();
        self.turns.clear();
        for renewal in under_way.flat_map(|asked| asked.sharers).chain(queued) {
            renewal.outbox.end(status.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::sync::Semaphore;

    use super::*;
    use crate::outbox::Next;

    #[derive(Default)]
    struct World {
        renewals: Renewals,
        outboxes: HashMap<StreamId, (Arc<Outbox>, Arc<Semaphore>)>,
        asked: Option<Arc<Semaphore>>,
    }

    impl World {
        fn renew(&mut self, stream: StreamId, lease: i64) {
            let fresh = || (Arc::default(), Arc::new(Semaphore::new(1_000)));
            let (outbox, places) = self.outboxes.entry(stream).or_insert_with(fresh);
            let place = places.clone().try_acquire_owned().expect("there is room");
            self.renewals.add(Renewal { lease, stream, outbox: outbox.clone(), place });
        }

        /// Returns the leases that are sent to a member now.
        fn asked(&mut self) -> Vec<i64> {
            let places = self.asked.get_or_insert_with(|| Arc::new(Semaphore::new(1_000))).clone();
            let next = || self.renewals.next(places.clone().try_acquire_owned().expect("there is room"));
            std::iter::from_fn(next).collect()
        }

        fn answer(&mut self, leases: impl IntoIterator<Item = i64>) {
            leases.into_iter().for_each(|lease| {
                self.renewals.answered(lease, &Bytes::copy_from_slice(&lease.to_be_bytes()));
            });
        }

        /// Returns what a client receives: responses, then the code with which its stream ended.
        fn told(&self, stream: StreamId) -> (Vec<i64>, Option<Code>) {
            let (outbox, _) = &self.outboxes[&stream];
            let mut leases = Vec::new();
            loop {
                match pin!(outbox.next()).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Next::Message(answer, _)) => {
                        leases.push(i64::from_be_bytes(answer.as_ref().try_into().expect("eight bytes")));
                    }
                    Poll::Ready(Next::End(status)) => return (leases, Some(status.code)),
                    Poll::Ready(Next::Drained) => {}
                    Poll::Pending => return (leases, None),
                }
            }
        }

        fn places(&self, stream: StreamId) -> usize {
            self.outboxes[&stream].1.available_permits()
        }
    }

    fn broken() -> Status {
        Status::new(Code::Unavailable, "the connection broke")
    }

    #[test]
    fn a_member_is_asked_for_a_bounded_number_and_streams_take_turns() {
        let mut world = World::default();
        (0..500).for_each(|lease| world.renew(1, lease));
        world.renew(2, 1_000);
        world.renew(2, 1_001);
        let first = world.asked();
        assert_eq!((first.len(), &first[..5]), (ASKED_MAX, &[0, 1_000, 1, 1_001, 2][..]));
        assert_eq!(world.asked(), Vec::<i64>::new());
        // A renewal of a lease that is in flight shares the response, and needs no turn.
        world.renew(3, 2);
        world.answer([0, 1_000, 1, 1_001, 2]);
        assert_eq!(world.asked(), [98, 99, 100, 101, 102]);
        assert_eq!(world.told(3), (vec![2], None));
        assert_eq!(world.told(2), (vec![1_000, 1_001], None));
        // A response that the client has not taken keeps its permit.
        assert_eq!((world.places(1), world.places(2)), (500, 1_000));
        world.answer([3]);
        assert_eq!(world.places(1), 500);
        assert_eq!(world.told(1), (vec![0, 1, 2, 3], None));
        assert_eq!(world.places(1), 504);
    }

    #[test]
    fn renewals_of_a_stream_that_is_over_are_dropped() {
        let mut world = World::default();
        (0..300).for_each(|lease| world.renew(1, lease));
        world.renew(2, 1_000);
        world.asked();
        world.renew(2, 7);
        world.renewals.leave(1);
        assert_eq!(world.places(1), 1_000);
        assert_eq!(world.asked(), Vec::<i64>::new());
        // After a break, only renewals for which a client waits are sent again.
        world.renewals.broken(&broken());
        assert_eq!(world.asked(), [1_000, 7]);
        world.answer([1_000, 7]);
        assert_eq!(world.told(2), (vec![1_000, 7], None));
        assert!(world.renewals.is_idle());
    }

    #[test]
    fn what_a_break_leaves_is_asked_for_again_a_bounded_number_of_times() {
        let mut world = World::default();
        (0..150).for_each(|lease| world.renew(1, lease));
        world.renew(2, 1_000);
        let first = world.asked();
        for _ in 0..TRIES_MAX - 1 {
            world.renewals.broken(&broken());
            assert_eq!(world.asked(), first);
        }
        assert_eq!((world.told(1), world.told(2)), ((vec![], None), (vec![], None)));
        world.answer([0, 1_000]);
        assert_eq!(world.asked(), [99, 100]);
        world.renewals.broken(&broken());
        assert_eq!(world.told(1), (vec![0], Some(Code::Unavailable)));
        assert_eq!(world.told(2), (vec![1_000], None));
        assert_eq!(world.asked()[..2], [99, 100]);
        world.renewals.end(&broken());
        assert!(world.renewals.is_idle() && world.places(1) == 1_000);
    }

    #[test]
    fn a_move_sends_again_and_counts_as_no_break() {
        let mut world = World::default();
        (0..3).for_each(|lease| world.renew(1, lease));
        world.renew(2, 9);
        assert_eq!(world.asked(), [0, 9, 1, 2]);
        world.renewals.leave(2);
        for _ in 0..=TRIES_MAX {
            world.renewals.moved();
            assert_eq!(world.asked(), [0, 1, 2], "what nobody waits for is not sent again");
        }
        for _ in 0..TRIES_MAX - 1 {
            world.renewals.broken(&broken());
            assert_eq!(world.asked(), [0, 1, 2]);
        }
        world.answer([0, 1, 2]);
        assert_eq!(world.told(1), (vec![0, 1, 2], None));
        assert!(world.renewals.is_idle());
    }

    #[test]
    fn a_refusal_ends_the_stream_of_the_oldest_renewal_only() {
        let mut world = World::default();
        (1..=4).for_each(|stream| world.renew(stream, stream.cast_signed()));
        world.asked();
        world.answer([1]);
        world.renewals.broken(&Status::new(Code::InvalidArgument, "refused"));
        assert_eq!(world.told(2), (vec![], Some(Code::InvalidArgument)));
        for _ in 0..TRIES_MAX {
            // Refusals of other renewals do not count as breaks.
            assert_eq!(world.asked(), [3, 4]);
            world.renew(2, 2);
            world.renewals.asked.push_front(Asked { lease: 9, breaks: 0, sharers: Vec::new(), place: None });
            world.renewals.broken(&Status::new(Code::InvalidArgument, "refused"));
            world.renewals.leave(2);
        }
        assert_eq!(world.asked(), [3, 4]);
        world.answer([3, 4]);
        assert_eq!((world.told(3), world.told(4)), ((vec![3], None), (vec![4], None)));
        // A token that is no longer valid affects all renewals.
        (5..=6).for_each(|stream| world.renew(stream, stream.cast_signed()));
        world.asked();
        world.renewals.broken(&Status::new(Code::Unauthenticated, "invalid auth token"));
        for stream in 5..=6 {
            assert_eq!(world.told(stream), (vec![], Some(Code::Unauthenticated)));
        }
    }
}
