//! Answers [`Question`]s (requests that need the core's own state but no log entry). One turn answers as many
//! as its budget allows.

use std::sync::Arc;
use std::time::Instant;

use api::error;
use bytes::Bytes;
use machine::image::Head;
use machine::{Leases, SharedMap};
use numbers::{LeaseId, Seconds};

use super::Core;
use crate::core::questions::{Question, Questions};
use crate::core::reads::RoundRequest;
use crate::core::{LeaseDetail, ReplyBody, RequestId};
use crate::inbox::OPEN_REQUESTS_PER_SHARD_MAX;
use crate::long_reads::Reader;

/// A copy of a shared table copies one pointer for each chunk of the table. A chunk has at least this many
/// entries, so this many entries cost at most one copied pointer.
const ENTRIES_PER_POINTER: usize = 128;

/// Number of puts of an unfinished transaction whose search counts as one unit of the budget.
const PUTS_PER_UNIT: u64 = 64;

/// Data that several answers of one turn use. It is valid only during the turn, in which no entry is applied
/// between two answers.
#[derive(Default)]
struct Common {
    list: Option<List>,
    keys: Option<(LeaseId, Keys)>,
    keys_to_renew: Option<(LeaseId, Keys)>,
    head: Option<Arc<Head>>,
}

type Keys = Arc<SharedMap<Bytes, ()>>;

/// A list of all leases.
#[derive(Clone)]
enum List {
    /// Ids of the leases, ordered by remaining time, shortest first.
    Few(Arc<[LeaseId]>),
    Many(Arc<Leases>),
}

/// Returns the cost, in units of the budget, of copying a shared table with this many entries.
fn copied(entries: usize) -> u64 {
    (entries / ENTRIES_PER_POINTER) as u64
}

impl Core {
    /// Queues a question until a turn answers it.
    pub(super) fn ask(&mut self, question: Question, since: Instant) {
        // The queue of each kind has space for all open requests of all shards, and for as many questions of
        // other members as one shard may have open.
        let max = (self.shared.core.outboxes.len() + 1) * OPEN_REQUESTS_PER_SHARD_MAX;
        if let Some(refused) = self.questions.push(question, since, max) {
            self.refuse(refused.request_id(), error::TOO_MANY_REQUESTS);
        }
    }

    /// Answers the next questions. Must be called right after a publication, so that the newest view shows
    /// the same state as the machine.
    pub(super) fn answer_questions(&mut self, now: Instant) {
        if self.questions.is_empty() {
            return;
        }
        self.questions.begin_turn(self.space.checkpoints.thresholds().questions_per_turn);
        let is_whole = self.machine.is_whole();
        let timeout = self.shared.member.limits.request_timeout;
        let mut common = Common::default();
        while let Some((question, since)) = self.questions.next(is_whole) {
            let cost = if Questions::is_late(since, now, timeout) {
                self.refuse(question.request_id(), error::TIMEOUT);
                0
            } else if let Question::TimeToLive(request_id, id, detail) = question
                && !(self.leadership.leads() && self.leadership.has_settled())
            {
                // While the question waited, this member stopped leading, or began to lead again but has not
                // settled yet. Its lease clocks are not running, so it cannot answer now: a leader makes the
                // question wait for the next read round, any other member refuses it.
                if self.leadership.leads() {
                    self.reads.push(RoundRequest::TimeToLive(request_id, id, detail), since);
                } else {
                    self.refuse(request_id, error::NOT_PRIMARY_LESSOR);
                }
                0
            } else {
                self.answer_question(question, &mut common, now)
            };
            self.questions.spent(1 + cost);
        }
    }

    /// Answers a question. Returns the cost of the answer in units of the budget.
    fn answer_question(&mut self, question: Question, common: &mut Common, now: Instant) -> u64 {
        let (body, cost) = match question {
            Question::KeysToRenew(_, id) => {
                let known = common.keys_to_renew.take_if(|(of, _)| *of == id);
                let (keys, cost) = match known {
                    Some((_, keys)) => (keys, 0),
                    None => {
                        let (keys, puts) = self.machine.keys_to_renew(id);
                        let cost = copied(keys.len()) + puts / PUTS_PER_UNIT;
                        (Arc::new(keys), cost)
                    }
                };
                common.keys_to_renew = Some((id, Arc::clone(&keys)));
                (ReplyBody::LeaseKeys(keys), cost)
            }
            Question::LeaseKeys(_, id) => {
                let (keys, cost) = self.keys_of(id, common);
                (ReplyBody::LeaseKeys(keys), cost)
            }
            Question::TimeToLive(_, id, detail) => {
                let (ttl, granted) = self.leases.time_to_live(id, self.machine.leases.get(id), now);
                let (keys, cost) = if detail == LeaseDetail::TimeAndKeys && ttl >= Seconds::ZERO {
                    self.keys_of(id, common)
                } else {
                    Default::default()
                };
                (ReplyBody::TimeToLive { ttl, granted, keys }, cost)
            }
            Question::Leases(_) => {
                let (list, cost) = self.list_of_leases(common, now);
                let body = match list {
                    List::Few(ids) => ReplyBody::Leases(ids),
                    List::Many(leases) => ReplyBody::ManyLeases(leases),
                };
                (body, cost)
            }
            Question::LeaseTimes(_, ref ids) => {
                (self.leases.times(ids, &self.machine.leases, now), ids.len() as u64)
            }
            Question::Image(request_id) => return self.image(request_id, &mut common.head),
        };
        self.reply(question.request_id(), body);
        cost
    }

    /// Returns the keys of a lease, and the cost of copying them, which is 0 if an earlier answer of this
    /// turn has copied them.
    fn keys_of(&self, id: LeaseId, common: &mut Common) -> (Keys, u64) {
        if let Some((_, keys)) = common.keys.as_ref().filter(|(of, _)| *of == id) {
            return (Arc::clone(keys), 0);
        }
        let keys = self.machine.leases.get(id).map(|lease| lease.keys.clone()).unwrap_or_default();
        let (cost, keys) = (copied(keys.len()), Arc::new(keys));
        common.keys = Some((id, Arc::clone(&keys)));
        (keys, cost)
    }

    /// Returns all leases, and the cost of listing them, which is 0 if an earlier answer of this turn has
    /// listed them.
    fn list_of_leases(&self, common: &mut Common, now: Instant) -> (List, u64) {
        if let Some(list) = &common.list {
            return (list.clone(), 0);
        }
        let all = &self.machine.leases;
        let (list, cost) = match self.leases.list(all, now) {
            Some(ids) => (List::Few(ids.into()), all.len() as u64),
            None => (List::Many(Arc::new(all.clone())), copied(all.len())),
        };
        common.list = Some(list.clone());
        (list, cost)
    }

    /// Replies with the whole current state. Must be called right after the state was published, while no
    /// entry is partly applied. Returns the cost in units of the budget. `known` is the head (the state
    /// except keys and values), if it was already built in this turn.
    pub(super) fn image(&mut self, request_id: RequestId, known: &mut Option<Arc<Head>>) -> u64 {
        let (head, cost) = match known {
            Some(head) => (Arc::clone(head), 0),
            None => {
                let head = Arc::new(self.machine.head());
                let cost = copied(head.leases.len());
                (Arc::clone(known.insert(head)), cost)
            }
        };
        let moment = self.shared.state.load().view.moment();
        let state = self.shared.read_long_at(Reader::Snapshot, moment);
        self.reply(request_id, ReplyBody::Image(head, Box::new(state)));
        cost
    }
}
