//! Draws the operations of the simulated clients. Each client has its own random stream, and no value is
//! written twice.

use std::collections::BTreeMap;

use oracle::{
    Action, ActionResult, Compare, Delete, Fence, KeyValue, Order, Outcome, Put, Range, Refusal, Relation,
    Request, Response, SortTarget, Target, Txn,
};

use crate::forgery::Known;
use crate::profile::{Fault, Profile, SLOW, Work};
use crate::rng::Rng;
use crate::schedule::{MILLI, Nanos, SECOND};

/// Range end of a range without an upper bound.
const NO_END: &[u8] = b"\0";
/// Number of locks that clients compete for.
const LOCKS: u64 = 2;
/// Number of nested transactions in the deepest request, which a client sends at the end of the run.
const DEPTH: usize = 62;
/// Largest number of leases that a client keeps at the same time.
const LEASES_MAX: usize = 3;

/// Progress of a client that acquires, holds and releases a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locking {
    /// The client has requested a lease for the lock.
    Granting,
    /// The client has requested the creation of its lock key.
    Queueing(Fence, i64),
    /// The client checks if its lock key is the oldest one, up to this many more times.
    Waiting(Fence, i64, u32),
    /// The client has held the lock since this time, and makes this many more writes.
    Holding(Fence, i64, Nanos, u32),
    /// The client deletes its lock key.
    Leaving(Fence, i64),
}

/// Lease that a client renews at the last moment, with the client's view of its time to live.
#[derive(Clone, Copy, Debug)]
struct Keeping {
    lease: i64,
    ttl: i64,
    /// Time at which the grant, or the last answered renewal, was requested.
    asked: Nanos,
    /// Time before the lease's end at which the next renewal is sent.
    margin: Nanos,
    /// True if the lease was granted again under the same id, and has not been renewed since.
    anew: bool,
}

impl Keeping {
    /// Returns true if the lease may be revoked and granted again: some of its time has passed, but so much
    /// is left that it cannot expire before its revocation is applied. The revocation of an expired lease
    /// would also end a lease that was granted again under its id, as in etcd.
    fn is_exchangeable(&self, now: Nanos) -> bool {
        let ttl = u64::try_from(self.ttl).unwrap_or(0) * SECOND;
        !self.anew && now > self.asked + 3 * SECOND && now + 5 * SECOND < self.asked + ttl
    }

    /// Returns true if the lease is about to expire, or has just expired. See `World::hold_up_regrant`.
    fn is_about_to_end(&self, now: Nanos) -> bool {
        let ttl = u64::try_from(self.ttl).unwrap_or(0) * SECOND;
        now + 400 * MILLI > self.asked + ttl
    }

    /// Returns true if the profile tests leases that are revoked and granted again, and has no fault that may
    /// delay a revocation for seconds.
    fn may_be_exchanged(profile: &Profile) -> bool {
        profile.fails(Fault::Ambush) && !SLOW.iter().any(|fault| profile.fails(*fault))
    }

    fn renewal(&self) -> Nanos {
        let ttl = u64::try_from(self.ttl).unwrap_or(0) * SECOND;
        self.asked + ttl.saturating_sub(self.margin)
    }
}

/// Client that makes one call at a time.
pub struct Client {
    /// Client number.
    pub number: u64,
    rng: Rng,
    /// Keys with the values that the client saw last.
    seen: BTreeMap<Vec<u8>, KeyValue>,
    leases: Vec<i64>,
    lock: Option<Locking>,
    /// True if the client only keeps a lease alive and sends no other operations.
    keeper: bool,
    keeping: Option<Keeping>,
    /// Lease that another client revokes right before this client's next operation.
    pub revokes_first: Option<i64>,
    /// Time at which the client's last operation was sent.
    asked: Nanos,
    /// True if the client was refused for lack of space, and now frees some space.
    cramped: bool,
    /// Facts that an attacker can learn about the member that the client calls next.
    pub known: Option<Known>,
    values: u64,
    /// Newest revision that the client has seen.
    revision: i64,
    compacted: i64,
    /// Locks that the client has held: the fence, the lease, the start and the end.
    pub held: Vec<(Fence, i64, Nanos, Nanos)>,
}

impl Client {
    /// Creates client `number` for the world of this seed, with its own random stream.
    pub fn new(seed: u64, number: u64) -> Client {
        Client {
            number,
            rng: Rng::stream(seed, &format!("client {number}")),
            seen: BTreeMap::new(),
            leases: Vec::new(),
            lock: None,
            keeper: false,
            keeping: None,
            revokes_first: None,
            asked: 0,
            cramped: false,
            known: None,
            values: 0,
            revision: 1,
            compacted: 0,
            held: Vec::new(),
        }
    }

    /// Returns the client's random stream.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Returns the newest revision that the client has seen.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    fn key(&mut self, profile: &Profile) -> Vec<u8> {
        format!("k{:03}", self.rng.below(profile.keys)).into_bytes()
    }

    fn value(&mut self, profile: &Profile) -> Vec<u8> {
        self.values += 1;
        let mut value = format!("{}.{}", self.number, self.values).into_bytes();
        if profile.works(Work::BigValues) && self.rng.one_in(6) {
            let bytes = self.rng.between(1000, profile.value_bytes());
            value.resize(usize::try_from(bytes).unwrap_or(1000), b'.');
        }
        if let Some(known) = self.known
            && self.rng.one_in(3)
        {
            known.forge(&mut self.rng, profile.segment_bytes, &mut value);
        }
        value
    }

    fn span(&mut self, profile: &Profile) -> (Vec<u8>, Vec<u8>) {
        match self.rng.below(6) {
            0 => (b"k".to_vec(), b"l".to_vec()),
            1 => (vec![0], NO_END.to_vec()),
            2 | 3 => {
                let from = self.rng.below(profile.keys);
                let to = from + 1 + self.rng.below(4);
                (format!("k{from:03}").into_bytes(), format!("k{to:03}").into_bytes())
            }
            _ => (self.key(profile), Vec::new()),
        }
    }

    fn range(&mut self, profile: &Profile) -> Range {
        let (key, range_end) = self.span(profile);
        let mut range = Range { key, range_end, ..Range::default() };
        if self.rng.one_in(3) {
            range.limit = i64::try_from(self.rng.between(1, 4)).unwrap_or(1);
        }
        match self.rng.below(8) {
            0 => range.keys_only = true,
            1 => range.count_only = true,
            2 => {
                range.order = self.rng.pick(&[Order::Ascend, Order::Descend]);
                range.target = self.rng.pick(&[
                    SortTarget::Key,
                    SortTarget::Version,
                    SortTarget::Create,
                    SortTarget::Mod,
                    SortTarget::Value,
                ]);
            }
            3 => range.min_mod_revision = self.past(),
            4 => range.max_create_revision = self.past(),
            _ => {}
        }
        range
    }

    /// Returns an old revision that is probably not compacted.
    fn past(&mut self) -> i64 {
        let low = self.compacted.max(1);
        let high = self.revision.max(low);
        let span = u64::try_from(high - low).unwrap_or(0);
        low + i64::try_from(self.rng.below(span + 1)).unwrap_or(0)
    }

    fn put(&mut self, profile: &Profile) -> Put {
        let key = self.key(profile);
        let value = self.value(profile);
        let mut put = Put { key, value, prev_kv: self.rng.one_in(4), ..Put::default() };
        if let Some(lease) = self.some_lease()
            && self.rng.one_in(3)
        {
            put.lease = lease;
        }
        match self.rng.below(24) {
            0 => {
                put.ignore_value = true;
                put.value = Vec::new();
            }
            1 => {
                put.ignore_lease = true;
                put.lease = 0;
            }
            _ => {}
        }
        put
    }

    fn some_lease(&mut self) -> Option<i64> {
        if self.leases.is_empty() { None } else { Some(self.rng.pick(&self.leases)) }
    }

    fn compare(&mut self, key: Vec<u8>) -> Compare {
        let known = self.seen.get(&key).cloned().unwrap_or_default();
        let target = match self.rng.below(6) {
            0 => Target::Version(known.version),
            1 => Target::Create(known.create_revision),
            2 if known.version > 0 => Target::Value(known.value),
            3 => Target::Lease(known.lease),
            _ => Target::Mod(known.mod_revision),
        };
        let relation = match self.rng.below(8) {
            0 => Relation::Greater,
            1 => Relation::Less,
            2 => Relation::NotEqual,
            _ => Relation::Equal,
        };
        Compare { key, range_end: Vec::new(), relation, target }
    }

    fn actions(&mut self, profile: &Profile, depth: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut used: Vec<Vec<u8>> = Vec::new();
        for _ in 0..self.rng.below(4) {
            match self.rng.below(8) {
                0 | 1 => actions.push(Action::Range(self.range(profile))),
                2 if profile.works(Work::Delete) => {
                    let key = self.key(profile);
                    // A server refuses a transaction that changes one key twice.
                    if !used.contains(&key) {
                        used.push(key.clone());
                        let prev_kv = self.rng.one_in(2);
                        actions.push(Action::Delete(Delete { key, range_end: Vec::new(), prev_kv }));
                    }
                }
                3 if depth == 0 && used.is_empty() => {
                    let inner = self.txn(profile, 1);
                    actions.push(Action::Txn(inner));
                    return actions;
                }
                _ => {
                    let put = self.put(profile);
                    if !used.contains(&put.key) && !put.ignore_value {
                        used.push(put.key.clone());
                        actions.push(Action::Put(put));
                    }
                }
            }
        }
        actions
    }

    fn txn(&mut self, profile: &Profile, depth: u32) -> Txn {
        let mut txn = Txn::default();
        for _ in 0..self.rng.below(3) {
            let key = self.key(profile);
            let compare = self.compare(key);
            txn.compare.push(compare);
        }
        txn.success = self.actions(profile, depth);
        txn.failure = self.actions(profile, depth);
        if let (0, Some(first)) = (depth, txn.compare.first()) {
            // Compare-and-set: the transaction writes the key that it compares.
            let key = first.key.clone();
            let value = self.value(profile);
            let touched = |action: &Action| match action {
                Action::Put(put) => put.key == key,
                Action::Delete(delete) => delete.key == key,
                Action::Txn(_) => true,
                Action::Range(_) => false,
            };
            if !txn.success.iter().any(touched) {
                txn.success.push(Action::Put(Put { key, value, ..Put::default() }));
            }
        }
        txn
    }

    fn lease(&mut self, profile: &Profile) -> Request {
        let lease = self.some_lease();
        match (self.rng.below(8), lease) {
            (0, Some(id)) => Request::Revoke { id },
            (1 | 2, Some(id)) => Request::KeepAlive { id },
            (3, Some(id)) => Request::TimeToLive { id, keys: self.rng.one_in(2) },
            (4, _) => Request::Leases,
            _ if self.leases.len() < LEASES_MAX => {
                let id = if self.rng.one_in(4) {
                    i64::try_from(self.rng.between(1, 1000)).unwrap_or(1)
                } else {
                    0
                };
                let ttl = i64::try_from(self.rng.between(1, 12)).unwrap_or(1);
                Request::Grant { id, ttl }
            }
            (_, Some(id)) => {
                let put = self.put(profile);
                Request::Put(Put {
                    lease: id,
                    ignore_lease: false,
                    ignore_value: false,
                    value: self.value(profile),
                    ..put
                })
            }
            (_, None) => Request::Leases,
        }
    }

    /// Returns the next request of a client with a lock, and the fence that the request depends on.
    fn lock_step(&mut self, profile: &Profile, now: Nanos) -> Option<(Request, Option<Fence>)> {
        let locking = self.lock.clone()?;
        Some(match locking {
            Locking::Granting => (Request::Grant { id: 0, ttl: 10 }, None),
            Locking::Queueing(fence, lease) => {
                let absent = Compare {
                    key: fence.key.clone(),
                    range_end: Vec::new(),
                    relation: Relation::Equal,
                    target: Target::Create(0),
                };
                let put = Put { key: fence.key.clone(), value: self.value(profile), lease, ..Put::default() };
                let own = Range { key: fence.key.clone(), ..Range::default() };
                let txn = Txn {
                    compare: vec![absent],
                    success: vec![Action::Put(put)],
                    failure: vec![Action::Range(own)],
                };
                (Request::Txn(txn), None)
            }
            Locking::Waiting(fence, _, _) => {
                let mut end = fence.prefix.clone();
                if let Some(last) = end.last_mut() {
                    *last += 1;
                }
                let range = Range {
                    key: fence.prefix.clone(),
                    range_end: end,
                    order: Order::Ascend,
                    target: SortTarget::Create,
                    limit: 1,
                    ..Range::default()
                };
                (Request::Range(range), None)
            }
            Locking::Holding(fence, lease, since, left) => {
                if left == 0 {
                    self.held.push((fence.clone(), lease, since, now));
                    self.lock = Some(Locking::Leaving(fence.clone(), lease));
                    return self.lock_step(profile, now);
                }
                if left % 2 == 0 {
                    return Some((Request::KeepAlive { id: lease }, None));
                }
                // Like a careful client, the client guards each write by a comparison with its own lock key.
                let guard = Compare {
                    key: fence.key.clone(),
                    range_end: Vec::new(),
                    relation: Relation::Equal,
                    target: Target::Create(fence.create_revision),
                };
                let (key, value) = (self.key(profile), self.value(profile));
                let put = Put { key, value, ..Put::default() };
                let txn = Txn { compare: vec![guard], success: vec![Action::Put(put)], failure: Vec::new() };
                (Request::Txn(txn), Some(fence))
            }
            Locking::Leaving(fence, _) => {
                (Request::Delete(Delete { key: fence.key, range_end: Vec::new(), prev_kv: false }), None)
            }
        })
    }

    /// Returns the next request of a client that keeps a lease.
    fn keep(&mut self, profile: &Profile, now: Nanos) -> Request {
        let Some(keeping) = self.keeping else {
            let long = profile.fails(Fault::Ambush) && self.rng.one_in(2);
            // If leases are to be granted again, they need a short time to live, so that they often are about
            // to expire.
            let most = if profile.works(Work::Regrant) { 4 } else { 12 };
            let ttl = if long { 12 } else { i64::try_from(self.rng.between(1, most)).unwrap_or(1) };
            return Request::Grant { id: 0, ttl };
        };
        let id = keeping.lease;
        if keeping.is_exchangeable(now) && Keeping::may_be_exchanged(profile) && self.rng.one_in(4) {
            self.revokes_first = Some(id);
            return Request::Grant { id, ttl: keeping.ttl };
        }
        if profile.works(Work::Regrant) && keeping.is_about_to_end(now) && self.rng.one_in(2) {
            self.revokes_first = Some(id);
            let ttl = i64::try_from(self.rng.between(2, 5)).unwrap_or(2);
            return Request::Grant { id, ttl };
        }
        if now >= keeping.renewal() {
            return Request::KeepAlive { id };
        }
        match self.rng.below(40) {
            0 => Request::Revoke { id },
            1 => {
                // The client no longer renews the lease, so the lease expires.
                self.keeping = None;
                Request::TimeToLive { id, keys: true }
            }
            2..8 => {
                let (key, value) = (self.key(profile), self.value(profile));
                Request::Put(Put { key, value, lease: id, ..Put::default() })
            }
            _ => Request::TimeToLive { id, keys: false },
        }
    }

    fn kept(&mut self, request: &Request, outcome: &Outcome) {
        match outcome {
            // After a grant under the same id failed, the client does not know whether the old lease still
            // exists, so it forgets the lease.
            Outcome::Unknown(_) | Outcome::Refused(_)
                if matches!(request, Request::Grant { id: 1.., .. }) =>
            {
                self.keeping = None;
            }
            Outcome::Done(_, Response::Granted { id, ttl }) => {
                let margin = self.rng.pick(&[2, 20, 100, 300]) * MILLI;
                let anew = self.keeping.is_some();
                self.keeping = Some(Keeping { lease: *id, ttl: *ttl, asked: self.asked, margin, anew });
            }
            Outcome::Done(_, Response::Renewed { ttl: 1.. }) => {
                let margin = self.rng.pick(&[2, 20, 100, 300]) * MILLI;
                if let Some(keeping) = &mut self.keeping {
                    (keeping.asked, keeping.margin, keeping.anew) = (self.asked, margin, false);
                }
            }
            Outcome::Done(_, Response::Renewed { .. } | Response::TimeToLive { ttl: -1, .. })
            | Outcome::Done(_, Response::Revoked)
            | Outcome::Refused(Refusal::LeaseNotFound | Refusal::LeaseExists) => self.keeping = None,
            _ => {}
        }
    }

    /// Returns the time of the client's next operation; `None` if the client waits for the usual think time.
    pub fn next_at(&mut self, now: Nanos) -> Option<Nanos> {
        if !self.keeper {
            return None;
        }
        let renewal = self.keeping.map_or(now, |keeping| keeping.renewal());
        let look = now + 50 * MILLI + self.rng.below(700 * MILLI);
        Some(renewal.max(now + MILLI).min(look))
    }

    /// Returns a transaction that is as deep or as large as a server accepts, or slightly larger.
    fn hostile(&mut self, profile: &Profile) -> Request {
        if self.rng.one_in(4) {
            let depth = self.rng.pick(&[8, 31, 47, 48, 49, 50, 62, 63, 64, 65]);
            let put = Put { key: self.key(profile), value: self.value(profile), ..Put::default() };
            let mut txn = Txn { success: vec![Action::Put(put)], ..Txn::default() };
            for _ in 0..depth {
                txn = Txn { success: vec![Action::Txn(txn)], ..Txn::default() };
            }
            return Request::Txn(txn);
        }
        if self.rng.one_in(3) {
            return self.two_branches(profile);
        }
        if self.rng.one_in(4) {
            return self.compares_much(profile);
        }
        let count = self.rng.pick(&[10, 100, 127, 128, 129]);
        let value = self.value(profile);
        let action = |number| {
            let key = format!("k{number:03}").into_bytes();
            match number % 3 {
                0 => Action::Delete(Delete { key, range_end: Vec::new(), prev_kv: true }),
                1 => {
                    Action::Range(Range { key: b"k".to_vec(), range_end: b"l".to_vec(), ..Range::default() })
                }
                _ => Action::Put(Put { key, value: value.clone(), ..Put::default() }),
            }
        };
        let keys = self.rng.pick(&[3, 30, 1000]).min(profile.keys * 2);
        let actions = (0..count).map(|number| if number < keys { number } else { 3 * number + 1 });
        let mut success: Vec<Action> = actions.map(action).collect();
        if profile.works(Work::BigValues) || profile.works(Work::Forged) {
            // If all ranges returned all values, the responses would take most of the run's time and memory,
            // so all ranges but two return only keys.
            let ranges = success.iter_mut().filter_map(|action| match action {
                Action::Range(range) => Some(range),
                _ => None,
            });
            ranges.skip(2).for_each(|range| range.keys_only = true);
        }
        Request::Txn(Txn { success, ..Txn::default() })
    }

    /// Returns a transaction with two large branches, only one of which is executed.
    fn two_branches(&mut self, profile: &Profile) -> Request {
        let count = self.rng.pick(&[10, 60, 64, 120, 128]);
        let values: [Vec<u8>; 2] = [self.value(profile), self.value(profile)];
        let mut branches = values.into_iter().map(|value| {
            let action = |number: u64| {
                let key = format!("k{number:03}").into_bytes();
                if self.rng.one_in(2) {
                    return Action::Put(Put { key, value: value.clone(), ..Put::default() });
                }
                Action::Delete(Delete { key, range_end: Vec::new(), prev_kv: false })
            };
            (0..count).map(action).collect()
        });
        let (success, failure) = (branches.next().unwrap_or_default(), branches.next().unwrap_or_default());
        drop(branches);
        let key = self.key(profile);
        let compare = vec![self.compare(key)];
        Request::Txn(Txn { compare, success, failure })
    }

    /// Returns a read-only transaction in which each comparison visits all keys.
    fn compares_much(&mut self, profile: &Profile) -> Request {
        let all = Compare {
            key: b"k".to_vec(),
            range_end: b"l".to_vec(),
            relation: Relation::Greater,
            target: Target::Version(0),
        };
        let compare = vec![all; self.rng.pick(&[16, 127, 128])];
        Request::Txn(Txn { compare, success: vec![Action::Range(self.range(profile))], ..Txn::default() })
    }

    /// Returns a transaction that nests almost as deep as a server accepts.
    pub fn deepest() -> Request {
        let put = Put { key: b"k000".to_vec(), value: b"deep".to_vec(), ..Put::default() };
        let mut txn = Txn { success: vec![Action::Put(put)], ..Txn::default() };
        for _ in 0..DEPTH {
            txn = Txn { success: vec![Action::Txn(txn)], ..Txn::default() };
        }
        Request::Txn(txn)
    }

    /// Returns the client's next request, and the fence that the request depends on.
    pub fn next(&mut self, profile: &Profile, now: Nanos) -> (Request, Option<Fence>) {
        self.asked = now;
        self.keeper = profile.works(Work::Keep) && self.number % 2 == 1;
        if self.cramped && self.lock.is_none() && self.rng.one_in(2) {
            let all = Delete { key: b"k".to_vec(), range_end: b"l".to_vec(), prev_kv: false };
            let compact = Request::Compact { revision: self.revision, physical: false };
            let makes = if self.rng.one_in(2) { Request::Delete(all) } else { compact };
            return (makes, None);
        }
        if self.keeper {
            return (self.keep(profile, now), None);
        }
        if let Some(step) = self.lock_step(profile, now) {
            return step;
        }
        let weights: Vec<u64> = Work::ALL
            .iter()
            .zip(&profile.weights)
            .map(|(work, weight)| {
                let own = !matches!(
                    work,
                    Work::Watch
                        | Work::Members
                        | Work::MoveLeader
                        | Work::Maintenance
                        | Work::BigValues
                        | Work::Keep
                        | Work::Forged
                        | Work::Users
                );
                if own && profile.works(*work) { *weight } else { 0 }
            })
            .collect();
        let request = match Work::ALL[self.rng.weighted(&weights)] {
            Work::Delete => {
                let span =
                    if self.rng.one_in(3) { self.span(profile) } else { (self.key(profile), Vec::new()) };
                // Only the owner of a lock may delete its lock key, so a range without an end is replaced by
                // the range of all keys that are not lock keys.
                let (key, range_end) = if span.1 == NO_END { (b"k".to_vec(), b"l".to_vec()) } else { span };
                Request::Delete(Delete { key, range_end, prev_kv: self.rng.one_in(2) })
            }
            Work::Range => Request::Range(self.range(profile)),
            Work::Stale => Request::Range(Range { serializable: true, ..self.range(profile) }),
            Work::History => {
                let revision = if self.rng.one_in(16) { self.revision + 5 } else { self.past() };
                let serializable = self.rng.one_in(2);
                Request::Range(Range { revision, serializable, ..self.range(profile) })
            }
            Work::Txn => Request::Txn(self.txn(profile, 0)),
            Work::Compact if self.rng.one_in(4) => {
                let back = i64::try_from(self.rng.below(30)).unwrap_or(0);
                Request::Compact { revision: (self.revision - back).max(1), physical: self.rng.one_in(2) }
            }
            Work::Lease => self.lease(profile),
            Work::Hostile if self.rng.one_in(3) => self.hostile(profile),
            Work::Lock => {
                self.lock = Some(Locking::Granting);
                return self.lock_step(profile, now).unwrap_or((Request::Leases, None));
            }
            _ => Request::Put(self.put(profile)),
        };
        (request, None)
    }

    fn saw(&mut self, kv: &KeyValue) {
        self.seen.insert(kv.key.clone(), kv.clone());
    }

    /// Handles the outcome of the client's operation.
    pub fn told(&mut self, request: &Request, outcome: &Outcome, now: Nanos) {
        match (request, outcome) {
            (_, Outcome::Refused(Refusal::Other(why))) if why.contains("space exceeded") => {
                self.cramped = true;
            }
            (Request::Put(_), Outcome::Done(..)) => self.cramped = false,
            _ => {}
        }
        if self.keeper {
            self.kept(request, outcome);
        }
        if let Outcome::Done(header, response) = outcome {
            self.revision = self.revision.max(header.revision);
            match response {
                Response::Range(result) => result.kvs.iter().for_each(|kv| self.saw(kv)),
                Response::Granted { id, .. } if self.lock.is_none() && !self.keeper => self.leases.push(*id),
                Response::Renewed { ttl: 0 } | Response::TimeToLive { ttl: -1, .. } | Response::Revoked => {
                    self.leases.retain(|lease| !about(request, *lease));
                }
                Response::Compacted => {
                    if let Request::Compact { revision, .. } = request {
                        self.compacted = self.compacted.max(*revision);
                    }
                }
                _ => {}
            }
        } else if let Request::Revoke { .. } | Request::KeepAlive { .. } | Request::Put(_) = request {
            self.leases.retain(|lease| !about(request, *lease));
        }
        self.lock = self.lock.take().and_then(|locking| self.locked(locking, outcome, now));
    }

    fn locked(&mut self, locking: Locking, outcome: &Outcome, now: Nanos) -> Option<Locking> {
        let answered = match outcome {
            Outcome::Done(header, response) => Some((header, response)),
            _ => None,
        };
        match (locking, answered) {
            (Locking::Granting, Some((_, Response::Granted { id, .. }))) => {
                let prefix = format!("lock{}/", self.rng.below(LOCKS)).into_bytes();
                let mut key = prefix.clone();
                key.extend_from_slice(format!("{id:x}").as_bytes());
                Some(Locking::Queueing(Fence { prefix, key, create_revision: 0 }, *id))
            }
            (Locking::Queueing(mut fence, lease), Some((header, Response::Txn(txn)))) => {
                if txn.succeeded {
                    fence.create_revision = header.revision;
                } else if let Some(ActionResult::Range(own)) = txn.results.first()
                    && let Some(kv) = own.kvs.first()
                {
                    fence.create_revision = kv.create_revision;
                }
                (fence.create_revision > 0).then_some(Locking::Waiting(fence, lease, 5))
            }
            (Locking::Waiting(fence, lease, left), Some((_, Response::Range(range)))) => {
                let first = range.kvs.first();
                if first.is_some_and(|kv| kv.key == fence.key && kv.create_revision == fence.create_revision)
                {
                    let writes = u32::try_from(self.rng.below(6)).unwrap_or(0);
                    Some(Locking::Holding(fence, lease, now, writes))
                } else if left == 0 {
                    Some(Locking::Leaving(fence, lease))
                } else {
                    Some(Locking::Waiting(fence, lease, left - 1))
                }
            }
            (Locking::Holding(fence, lease, since, left), Some((_, response))) => {
                let lost = match response {
                    Response::Txn(txn) => !txn.succeeded,
                    Response::Renewed { ttl } => *ttl == 0,
                    _ => false,
                };
                if lost {
                    // From this response on the client knows that it has lost the lock, so the period of
                    // holding ends now. The oracle judges by the lease whether the lock was lost earlier.
                    self.held.push((fence, lease, since, now));
                    return None;
                }
                Some(Locking::Holding(fence, lease, since, left - 1))
            }
            (Locking::Holding(fence, lease, since, _), None) => {
                self.held.push((fence.clone(), lease, since, now));
                Some(Locking::Leaving(fence, lease))
            }
            _ => None,
        }
    }

    /// Records that the lock which the client still holds at the end of the run, if any, was held until now.
    pub fn finish(&mut self, now: Nanos) {
        if let Some(Locking::Holding(fence, lease, since, _)) = self.lock.take() {
            self.held.push((fence, lease, since, now));
        }
    }
}

/// Returns true if transactions nest so deep that not every client can decode the response.
pub fn is_deep(request: &Request) -> bool {
    let Request::Txn(mut txn) = request.clone() else { return false };
    for _ in 0..20 {
        let inner = txn.success.into_iter().find_map(|action| match action {
            Action::Txn(inner) => Some(inner),
            _ => None,
        });
        let Some(inner) = inner else { return false };
        txn = inner;
    }
    true
}

fn about(request: &Request, lease: i64) -> bool {
    match request {
        Request::Revoke { id } | Request::KeepAlive { id } | Request::TimeToLive { id, .. } => *id == lease,
        Request::Put(put) => put.lease == lease,
        _ => false,
    }
}
