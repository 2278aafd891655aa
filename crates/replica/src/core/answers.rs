//! Collects the replies to shards. Outcomes of entries wait here until the state that contains the entries is
//! published. After that, each shard gets all its replies in one list. [`Answers`] is the entry point.

use api::Status;
use machine::{AsOf, Outcome};
use mvcc::Moment;
use numbers::{Revision, Term};
use slab::Slab;
use tokio::sync::oneshot;

use super::proposals::Waiter;
use super::{OUTSIDE, Reply, ReplyBody, RequestId};

/// Maximum capacity that the list of outcomes keeps from one turn to the next.
const OUTCOMES_KEPT_MAX: usize = 4096;

/// The outcome of an entry for which a request waits. The request is answered once the state with the entry
/// is published.
pub(super) struct Answerable {
    /// The request that waits for the outcome.
    pub waiter: Waiter,
    /// Outcome of the entry.
    pub outcome: Result<Outcome, Status>,
    /// Reader of the state right after the entry, for answers that contain keys and values; otherwise `None`.
    pub state: Option<Box<AsOf>>,
    /// Revision of the store right after the entry.
    pub revision: Revision,
    /// Raft term of the entry.
    pub raft_term: Term,
}

const _: () = assert!(size_of::<Answerable>() <= 128);

/// The replies of a turn. The outcome of an entry waits until the state with the entry is published
/// (invariant I3). After that, all replies for a shard are sent as one list, with one wake-up.
pub(super) struct Answers {
    /// Replies, one list per shard. The last list is for requests from threads that are not shards.
    replies: Vec<Vec<Reply>>,
    /// Reply channels of requests from threads that are not shards.
    outside: Slab<oneshot::Sender<Reply>>,
    outcomes: Vec<Answerable>,
    /// Reader that keeps old versions of keys from being removed, so that the answers of this turn can be
    /// read from the states right after their entries; `None` if no answer of this turn needs one.
    reads: Option<AsOf>,
    /// Requests for the whole state. They get the state once it is published.
    images: Vec<RequestId>,
}

impl Answers {
    /// Returns an empty table for this number of shards.
    pub fn new(shards: usize) -> Answers {
        Answers {
            replies: (0..=shards).map(|_| Vec::new()).collect(),
            outside: Slab::new(),
            outcomes: Vec::new(),
            reads: None,
            images: Vec::new(),
        }
    }

    /// Registers the reply channel of a thread that is not a shard, and returns the request id for a request
    /// of that thread.
    pub fn id_for(&mut self, sender: oneshot::Sender<Reply>) -> RequestId {
        let slot = u32::try_from(self.outside.insert(sender)).unwrap_or(u32::MAX);
        RequestId { shard: OUTSIDE, slot, generation: 0 }
    }

    /// Adds a reply that is sent at the end of the turn.
    pub fn push(&mut self, reply: Reply) {
        let queue = usize::from(reply.request_id.shard).min(self.replies.len() - 1);
        self.replies[queue].push(reply);
    }

    /// Adds an outcome for which a request waits. The request is answered once the state with the entry is
    /// published.
    pub fn once_published(&mut self, answerable: Answerable) {
        self.outcomes.push(answerable);
    }

    /// Returns a reader of the state at `moment`. A compaction later in the turn cannot remove versions of
    /// keys that this reader needs before the outcomes are answered. `open` creates the reader if this turn
    /// has none yet.
    pub fn state(&mut self, moment: Moment, open: impl FnOnce(Moment) -> AsOf) -> AsOf {
        match &self.reads {
            Some(first) => first.at(moment),
            None => self.reads.insert(open(moment)).clone(),
        }
    }

    /// Drops the reader of the earlier state, because a snapshot has replaced that state.
    pub fn replaced(&mut self) {
        self.reads = None;
    }

    /// Adds a request for the whole state. It gets the state once the state is published.
    pub fn want_image(&mut self, request_id: RequestId) {
        self.images.push(request_id);
    }

    /// Removes and returns the requests for the whole state, which has just been published.
    pub fn take_images(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.images)
    }

    /// Turns the outcomes of applied entries into replies, because the state with the entries is published
    /// now. `is_removing` says whether a compaction is still removing versions; `wait` receives the replies
    /// that have to wait for the end of the removal.
    pub fn published(&mut self, is_removing: bool, mut wait: impl FnMut(Reply)) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        self.reads = None;
        for Answerable { waiter, outcome, state, revision, raft_term } in outcomes.drain(..) {
            let (request_id, body, wait_removed) = match waiter {
                Waiter::Client(request_id, wait_removed) => {
                    let wait_removed = wait_removed && outcome.is_ok();
                    (request_id, ReplyBody::Outcome(outcome, state), wait_removed)
                }
                Waiter::KeepAlive(request_id, ttl) => (request_id, ReplyBody::KeptAlive(ttl), false),
                Waiter::Members(..)
                | Waiter::Expiry(_)
                | Waiter::Attributes
                | Waiter::Autopilot
                | Waiter::Nobody => continue,
            };
            let reply = Reply { request_id, revision, raft_term, body };
            if wait_removed && is_removing {
                wait(reply);
            } else {
                self.push(reply);
            }
        }
        // The buffer is kept for the next turn, but shrunk if it was unusually large in this one.
        outcomes.shrink_to(OUTCOMES_KEPT_MAX);
        self.outcomes = outcomes;
    }

    /// Sends all replies. Requests from threads that are not shards get their replies through their channels.
    /// `give` is called once for each shard, with the list of the shard's replies, even if that list is
    /// empty.
    pub fn deliver(&mut self, mut give: impl FnMut(usize, &mut Vec<Reply>)) {
        let outside = self.replies.last_mut().map(std::mem::take).unwrap_or_default();
        for reply in outside {
            if let Some(sender) = self.outside.try_remove(reply.request_id.slot as usize) {
                // An error is ignored: it means that the requesting thread has dropped its receiver and needs
                // no reply.
                let _ = sender.send(reply);
            }
        }
        let shards = self.replies.len() - 1;
        for (shard, replies) in self.replies.iter_mut().take(shards).enumerate() {
            give(shard, replies);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(request_id: RequestId, wait_removed: bool) -> Answerable {
        let outcome = Ok(Outcome::Compacted);
        let waiter = Waiter::Client(request_id, wait_removed);
        Answerable { waiter, outcome, state: None, revision: Revision(5), raft_term: Term(2) }
    }

    fn delivered(answers: &mut Answers) -> Vec<(usize, u32)> {
        let mut delivered = Vec::new();
        answers.deliver(|shard, replies| {
            delivered.extend(replies.drain(..).map(|reply| (shard, reply.request_id.slot)));
        });
        delivered
    }

    #[test]
    fn outcomes_wait_until_they_are_published_and_some_for_a_removal() {
        let mut answers = Answers::new(2);
        let request_id = |shard, slot| RequestId { shard, slot, generation: 0 };
        answers.once_published(outcome(request_id(1, 7), false));
        answers.once_published(outcome(request_id(0, 8), true));
        assert!(delivered(&mut answers).is_empty());
        let mut waits = Vec::new();
        answers.published(true, |reply| waits.push(reply));
        assert_eq!(delivered(&mut answers), [(1, 7)]);
        answers.push(waits.remove(0));
        answers.once_published(outcome(request_id(1, 9), true));
        answers.published(false, |_| panic!("nothing is removed"));
        assert_eq!(delivered(&mut answers), [(0, 8), (1, 9)]);
        answers.want_image(request_id(0, 1));
        assert_eq!(answers.take_images().len(), 1);
        assert!(answers.take_images().is_empty());
    }

    #[test]
    fn whoever_asks_from_outside_is_answered_once() {
        let mut answers = Answers::new(1);
        let (sender, mut receiver) = oneshot::channel();
        let request_id = answers.id_for(sender);
        for _ in 0..2 {
            answers.push(Reply {
                request_id,
                revision: Revision(1),
                raft_term: Term(1),
                body: ReplyBody::Readable(None),
            });
        }
        assert!(delivered(&mut answers).is_empty());
        assert!(receiver.try_recv().is_ok());
    }
}
