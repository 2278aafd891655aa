//! Produces histories of a correct store: an independent small store in which every operation happens at one
//! moment between its call and its return, and whose whole history is kept.

use std::collections::BTreeMap;

use mainstay_oracle::{
    Action, ActionResult, Compare, Delete, DeleteResult, End, Event, Fence, Final, Header, History, Holding,
    KeyValue, Operation, Outcome, Put, Range, RangeResult, Refusal, Relation, Request, Response, Target, Txn,
    TxnResult, Watch, WatchAnswer, WatchResponse,
};
use testkit::Random;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

type State = BTreeMap<Vec<u8>, KeyValue>;

struct Lease {
    ttl: i64,
    ends: u64,
}

/// A watch that was opened; it gets its events at the end.
struct Opened {
    watch: Watch,
    created: i64,
    drained: bool,
}

/// Options of the script.
#[derive(Clone, Copy)]
pub struct Style {
    pub keys: u64,
    /// One in this many operations has an unknown outcome.
    pub unknown: u64,
    /// True if a watch of all keys sees every change.
    pub observed: bool,
    pub compactions: bool,
    pub leases: bool,
}

impl Default for Style {
    fn default() -> Style {
        Style { keys: 8, unknown: 8, observed: true, compactions: true, leases: true }
    }
}

pub struct Script {
    pub history: History,
    pub dice: Random,
    pub style: Style,
    pub now: u64,
    /// State after each revision, from revision 0 on.
    pub states: Vec<State>,
    /// Events of each revision, with previous values, and the time at which the revision came into being.
    pub log: Vec<(u64, Vec<Event>)>,
    /// Answered and unknown compactions: compact revision, store revision, time.
    compactions: Vec<(i64, i64, u64)>,
    leases: BTreeMap<i64, Lease>,
    applied: [i64; 3],
    /// Times at which each member was seen, with the revision that it had applied.
    progress: [Vec<(u64, i64)>; 3],
    /// Writes whose clients gave up and that will still happen.
    delayed: Vec<(u64, Request)>,
    watches: Vec<Opened>,
    next_lease: i64,
    values: u64,
    /// True if the current operation must be answered.
    is_sure: bool,
}

pub fn within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        b"" => key == start,
        b"\0" => key >= start,
        _ => key >= start && key < end,
    }
}

impl Script {
    pub fn new(seed: u64, style: Style) -> Script {
        let mut script = Script {
            history: History::default(),
            dice: Random::new(seed),
            style,
            now: SECOND,
            states: vec![State::new(), State::new()],
            log: vec![(0, Vec::new()), (0, Vec::new())],
            compactions: Vec::new(),
            leases: BTreeMap::new(),
            applied: [1; 3],
            progress: Default::default(),
            delayed: Vec::new(),
            watches: Vec::new(),
            next_lease: 100,
            values: 0,
            is_sure: false,
        };
        if style.observed {
            script.watch(
                Watch { range_end: b"\0".to_vec(), prev_kv: true, start_revision: 1, ..no_watch() },
                true,
            );
        }
        script
    }

    pub fn revision(&self) -> i64 {
        self.states.len() as i64 - 1
    }

    pub fn state(&self) -> &State {
        self.states.last().expect("one")
    }

    pub fn compacted(&self) -> i64 {
        self.compactions.iter().map(|(revision, ..)| *revision).max().unwrap_or(0)
    }

    pub fn value(&mut self) -> Vec<u8> {
        self.values += 1;
        format!("v{}", self.values).into_bytes()
    }

    pub fn key(&mut self) -> Vec<u8> {
        format!("k{}", self.dice.below(self.style.keys)).into_bytes()
    }

    /// Advances the time and executes what is due.
    pub fn pass(&mut self, time: u64) {
        self.now += time;
        let due: Vec<i64> =
            self.leases.iter().filter(|(_, lease)| lease.ends <= self.now).map(|(id, _)| *id).collect();
        for id in due {
            self.end_lease(id);
        }
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.delayed).into_iter().partition(|(at, _)| *at <= now);
        self.delayed = later;
        for (_, request) in due {
            let _ = self.perform(&request, self.revision());
        }
    }

    fn end_lease(&mut self, id: i64) {
        self.leases.remove(&id);
        let mut next = self.state().clone();
        let keys: Vec<Vec<u8>> = next.values().filter(|kv| kv.lease == id).map(|kv| kv.key.clone()).collect();
        let mut events = Vec::new();
        for key in keys {
            delete(&mut next, &key, self.revision() + 1, &mut events);
        }
        self.commit(next, events);
    }

    fn commit(&mut self, next: State, events: Vec<Event>) {
        if !events.is_empty() {
            self.states.push(next);
            self.log.push((self.now, events));
        }
    }

    /// Executes a request now; reads see the state of revision `at`.
    pub fn perform(&mut self, request: &Request, at: i64) -> Result<Response, Refusal> {
        let current = self.revision();
        let main = current + 1;
        match request {
            Request::Range(range) => {
                self.check_range(range, at)?;
                Ok(Response::Range(self.range(range, &self.states[at as usize])))
            }
            Request::Put(put) => {
                self.check_put(put)?;
                let (mut next, mut events) = (self.state().clone(), Vec::new());
                let previous = apply_put(&mut next, put, main, &mut events);
                self.commit(next, events);
                Ok(Response::Put(previous))
            }
            Request::Delete(request) => {
                let (mut next, mut events) = (self.state().clone(), Vec::new());
                let result = apply_delete(&mut next, request, main, &mut events);
                self.commit(next, events);
                Ok(Response::Delete(result))
            }
            Request::Txn(txn) => {
                self.check_txn(txn)?;
                let (mut next, mut events) = (self.state().clone(), Vec::new());
                let result = self.txn(txn, &mut next, main, &mut events);
                self.commit(next, events);
                Ok(Response::Txn(result))
            }
            Request::Compact { revision, .. } => {
                if *revision <= self.compacted() {
                    return Err(Refusal::Compacted);
                }
                if *revision > current {
                    return Err(Refusal::FutureRevision);
                }
                self.compactions.push((*revision, current, self.now));
                Ok(Response::Compacted)
            }
            Request::Grant { id, ttl } => {
                let mut id = *id;
                if id == 0 {
                    self.next_lease += 1;
                    id = self.next_lease;
                }
                if self.leases.contains_key(&id) {
                    return Err(Refusal::LeaseExists);
                }
                let ttl = (*ttl).max(2);
                let ends = self.lease_end(ttl);
                self.leases.insert(id, Lease { ttl, ends });
                Ok(Response::Granted { id, ttl })
            }
            Request::Revoke { id } => {
                if !self.leases.contains_key(id) {
                    return Err(Refusal::LeaseNotFound);
                }
                self.end_lease(*id);
                Ok(Response::Revoked)
            }
            Request::KeepAlive { id } => {
                let Some(ttl) = self.leases.get(id).map(|lease| lease.ttl) else {
                    return Ok(Response::Renewed { ttl: 0 });
                };
                let ends = self.lease_end(ttl);
                if let Some(lease) = self.leases.get_mut(id) {
                    lease.ends = ends;
                }
                Ok(Response::Renewed { ttl })
            }
            Request::TimeToLive { id, .. } => Ok(match self.leases.get(id) {
                Some(lease) => {
                    Response::TimeToLive { ttl: lease.ttl - 1, granted_ttl: lease.ttl, keys: Vec::new() }
                }
                None => Response::TimeToLive { ttl: -1, granted_ttl: 0, keys: Vec::new() },
            }),
            Request::Leases => Ok(Response::Leases(self.leases.keys().copied().collect())),
        }
    }

    fn lease_end(&mut self, ttl: i64) -> u64 {
        self.now + ttl as u64 * SECOND + self.dice.below(SECOND)
    }

    fn check_range(&self, range: &Range, at: i64) -> Result<(), Refusal> {
        if range.revision > at {
            return Err(Refusal::FutureRevision);
        }
        let current = at == self.revision();
        let applied = self.compactions.iter().filter(|(_, when, _)| current || *when < at);
        let compacted = applied.map(|(revision, ..)| *revision).max().unwrap_or(0);
        if range.revision > 0 && range.revision < compacted { Err(Refusal::Compacted) } else { Ok(()) }
    }

    fn check_put(&self, put: &Put) -> Result<(), Refusal> {
        if (put.ignore_value || put.ignore_lease) && !self.state().contains_key(&put.key) {
            return Err(Refusal::KeyNotFound);
        }
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return Err(Refusal::LeaseNotFound);
        }
        Ok(())
    }

    fn check_txn(&self, txn: &Txn) -> Result<(), Refusal> {
        let chosen = if holds(self.state(), txn) { &txn.success } else { &txn.failure };
        chosen.iter().try_for_each(|action| match action {
            Action::Range(range) => self.check_range(range, self.revision()),
            Action::Put(put) => self.check_put(put),
            Action::Delete(_) => Ok(()),
            Action::Txn(inner) => self.check_txn(inner),
        })
    }

    fn txn(&self, txn: &Txn, next: &mut State, main: i64, events: &mut Vec<Event>) -> TxnResult {
        let succeeded = holds(self.state(), txn);
        let mut results = Vec::new();
        for action in if succeeded { &txn.success } else { &txn.failure } {
            results.push(match action {
                Action::Range(range) => ActionResult::Range(self.range(range, next)),
                Action::Put(put) => ActionResult::Put(apply_put(next, put, main, events)),
                Action::Delete(delete) => ActionResult::Delete(apply_delete(next, delete, main, events)),
                Action::Txn(inner) => ActionResult::Txn(self.txn(inner, next, main, events)),
            });
        }
        TxnResult { succeeded, results }
    }

    fn range(&self, range: &Range, now: &State) -> RangeResult {
        let state = if range.revision > 0 { &self.states[range.revision as usize] } else { now };
        let mut kvs: Vec<KeyValue> =
            state.values().filter(|kv| within(&kv.key, &range.key, &range.range_end)).cloned().collect();
        let count = kvs.len() as i64;
        if range.count_only {
            return RangeResult { kvs: Vec::new(), more: false, count };
        }
        kvs.retain(|kv| range.min_mod_revision == 0 || kv.mod_revision >= range.min_mod_revision);
        let more = range.limit > 0 && kvs.len() as i64 > range.limit;
        if more {
            kvs.truncate(range.limit as usize);
        }
        if range.keys_only {
            kvs.iter_mut().for_each(|kv| (kv.value, kv.lease) = (Vec::new(), 0));
        }
        RangeResult { kvs, more, count }
    }

    /// Makes one operation of a client, which happens at one moment between its call and its return.
    pub fn op(&mut self, request: Request) -> u64 {
        let passing = self.dice.below(20 * MS) + 1;
        self.pass(passing);
        let id = self.history.operations.len() as u64;
        let member = self.dice.below(3);
        let local = match &request {
            Request::Range(range) => range.serializable,
            Request::KeepAlive { .. } | Request::TimeToLive { .. } | Request::Leases => true,
            _ => false,
        };
        let slot = member as usize;
        let current = self.revision();
        let at = if local {
            self.applied[slot] + self.dice.below((current - self.applied[slot]) as u64 + 1) as i64
        } else {
            current
        };
        self.apply(slot, at);
        let mut op = Operation {
            id,
            client: self.dice.below(5),
            member: member + 1,
            life: 1,
            call: self.now - self.dice.below(60 * MS),
            returned: self.now + self.dice.below(60 * MS),
            request,
            outcome: Outcome::Unknown("timeout".to_owned()),
            fence: None,
        };
        if !self.is_sure && self.dice.one_in(40) {
            op.outcome = Outcome::Refused(Refusal::Other("too many requests".to_owned()));
        } else if !self.is_sure && self.dice.one_in(self.style.unknown) {
            op.returned = op.call + self.dice.below(60 * MS);
            match self.dice.below(3) {
                0 => {}
                1 => drop(self.perform(&op.request, at)),
                _ => {
                    let due = self.now + self.dice.below(2 * SECOND);
                    self.delayed.push((due, op.request.clone()));
                }
            }
        } else {
            let performed = self.perform(&op.request, at);
            op.outcome = match performed {
                Ok(response) => {
                    let revision = if local { at } else { self.revision() };
                    self.apply(slot, revision);
                    Outcome::Done(Header { revision, term: 2 }, response)
                }
                Err(refusal) => Outcome::Refused(refusal),
            };
        }
        self.history.operations.push(op);
        id
    }

    fn apply(&mut self, slot: usize, revision: i64) {
        if revision > self.applied[slot] {
            self.applied[slot] = revision;
            self.progress[slot].push((self.now, revision));
        }
    }

    /// Makes an operation that is always answered, and returns its number.
    pub fn sure(&mut self, request: Request) -> u64 {
        self.is_sure = true;
        let id = self.op(request);
        self.is_sure = false;
        id
    }

    pub fn last(&mut self) -> &mut Operation {
        self.history.operations.last_mut().expect("one")
    }

    /// Opens a watch now.
    pub fn watch(&mut self, mut watch: Watch, drained: bool) {
        watch.id = self.watches.len() as u64;
        watch.opened = self.now - 1;
        watch.member = 1 + watch.id % 3;
        let created = self.applied[(watch.member - 1) as usize];
        self.watches.push(Opened { watch, created, drained });
    }

    /// Makes `n` random operations of all kinds.
    pub fn some(&mut self, n: u64) {
        for _ in 0..n {
            self.any();
        }
    }

    fn any(&mut self) {
        let (key, value) = (self.key(), self.value());
        let lease = if self.style.leases && self.dice.one_in(4) {
            let alive: Vec<i64> = self.leases.keys().copied().collect();
            match alive.len() as u64 {
                0 => 0,
                n => alive[self.dice.below(n) as usize],
            }
        } else {
            0
        };
        match self.dice.below(24) {
            0..=5 => {
                let prev_kv = self.dice.one_in(2);
                self.op(Request::Put(Put { key, value, lease, prev_kv, ..Put::default() }));
            }
            6 => {
                self.op(Request::Put(Put { key, lease, ignore_value: true, ..Put::default() }));
            }
            7 => {
                self.op(Request::Put(Put { key, value, ignore_lease: true, ..Put::default() }));
            }
            8 | 9 => {
                self.op(Request::Delete(Delete { key, range_end: Vec::new(), prev_kv: true }));
            }
            10 => {
                let (range_end, prev_kv) = (b"k4".to_vec(), self.dice.one_in(2));
                self.op(Request::Delete(Delete { key, range_end, prev_kv }));
            }
            11..=13 => {
                self.op(Request::Range(Range { key, ..Range::default() }));
            }
            14 => {
                let limit = self.dice.below(4) as i64;
                let (keys_only, count_only) = (self.dice.one_in(3), self.dice.one_in(4));
                let range_end = b"l".to_vec();
                let key = b"k".to_vec();
                self.op(Request::Range(Range {
                    key,
                    range_end,
                    limit,
                    keys_only,
                    count_only,
                    ..Range::default()
                }));
            }
            15 => {
                let revision = 1 + self.dice.below(self.revision() as u64 + 2) as i64;
                let serializable = self.dice.one_in(2);
                let (key, range_end) = (b"k".to_vec(), b"\0".to_vec());
                self.op(Request::Range(Range { key, range_end, revision, serializable, ..Range::default() }));
            }
            16 => {
                let (key, range_end) = (b"\0".to_vec(), b"\0".to_vec());
                self.op(Request::Range(Range { key, range_end, serializable: true, ..Range::default() }));
            }
            17 | 18 => self.guarded(key, value),
            19 => self.pair(value),
            20 if self.style.leases => {
                self.op(Request::Grant { id: 0, ttl: 1 + (self.dice.clone().number() % 3) as i64 });
            }
            21 if self.style.leases => self.about_leases(),
            22 if self.style.compactions && self.dice.one_in(6) => {
                let revision = 1 + self.dice.below(self.revision() as u64) as i64;
                self.op(Request::Compact { revision, physical: false });
            }
            23 => self.some_watch(key),
            _ => {
                self.op(Request::Range(Range { key, serializable: true, ..Range::default() }));
            }
        }
    }

    fn guarded(&mut self, key: Vec<u8>, value: Vec<u8>) {
        let mut modified = self.state().get(&key).map_or(0, |kv| kv.mod_revision);
        modified += i64::from(self.dice.one_in(3));
        let compare = vec![Compare {
            key: key.clone(),
            range_end: Vec::new(),
            relation: Relation::Equal,
            target: Target::Mod(modified),
        }];
        let success = vec![Action::Put(Put { key: key.clone(), value, ..Put::default() })];
        let failure = vec![Action::Range(Range { key, ..Range::default() })];
        self.op(Request::Txn(Txn { compare, success, failure }));
    }

    fn pair(&mut self, value: Vec<u8>) {
        let put = |key: &[u8]| Put { key: key.to_vec(), value: value.clone(), ..Put::default() };
        let success = vec![
            Action::Put(put(b"k1")),
            Action::Range(Range { key: b"k".to_vec(), range_end: b"l".to_vec(), ..Range::default() }),
            Action::Put(put(b"k0")),
            Action::Delete(Delete { key: b"k2".to_vec(), ..Delete::default() }),
        ];
        self.op(Request::Txn(Txn { compare: Vec::new(), success, failure: Vec::new() }));
    }

    fn about_leases(&mut self) {
        let first = self.next_lease.saturating_sub(6).max(101);
        let id = first + self.dice.below(6) as i64;
        match self.dice.below(5) {
            0 => self.op(Request::Revoke { id }),
            1 => self.op(Request::TimeToLive { id, keys: false }),
            _ => self.op(Request::KeepAlive { id }),
        };
    }

    fn some_watch(&mut self, key: Vec<u8>) {
        let mut watch = Watch { key, ..no_watch() };
        match self.dice.below(3) {
            0 => {}
            1 => watch.range_end = b"k5".to_vec(),
            _ => (watch.key, watch.range_end) = (Vec::new(), b"\0".to_vec()),
        }
        watch.start_revision = match self.dice.below(3) {
            0 => 0,
            1 => self.revision() + self.dice.below(4) as i64,
            _ => 1 + self.dice.below(self.revision() as u64) as i64,
        };
        watch.prev_kv = self.dice.one_in(2);
        watch.no_put = self.dice.one_in(6);
        watch.no_delete = self.dice.one_in(6);
        watch.fragment = self.dice.one_in(3);
        let drained = self.dice.one_in(2);
        self.watch(watch, drained);
    }

    /// Lets one contender after the other hold a lock and write as its holder.
    pub fn locks(&mut self, contenders: u64) {
        let mut keys = Vec::new();
        for contender in 0..contenders {
            let grant = self.sure(Request::Grant { id: 0, ttl: 60 });
            let Outcome::Done(_, Response::Granted { id, .. }) =
                self.history.operations[grant as usize].outcome
            else {
                panic!("a grant was answered with something else");
            };
            let key = format!("lock/{contender}").into_bytes();
            let put = self.sure(Request::Put(Put {
                key: key.clone(),
                lease: id,
                value: self.values.to_string().into_bytes(),
                ..Put::default()
            }));
            let create_revision = self.state()[&key].create_revision;
            keys.push((contender, put, id, Fence { prefix: b"lock/".to_vec(), key, create_revision }));
        }
        self.pass(SECOND / 10);
        for (client, _, lease, fence) in keys {
            let read = self.sure(Request::Range(Range {
                key: b"lock/".to_vec(),
                range_end: b"lock0".to_vec(),
                ..Range::default()
            }));
            let from = self.history.operations[read as usize].returned;
            for _ in 0..3 {
                self.pass(SECOND / 10);
                let value = self.value();
                self.sure(Request::Put(Put { key: b"fenced".to_vec(), value, ..Put::default() }));
                self.last().fence = Some(fence.clone());
                self.sure(Request::KeepAlive { id: lease });
            }
            self.pass(SECOND / 10);
            let until = self.now;
            self.pass(SECOND / 10);
            self.sure(Request::Delete(Delete { key: fence.key.clone(), ..Delete::default() }));
            self.pass(SECOND / 10);
            self.history.holdings.push(Holding { client, fence, lease, from, until });
        }
    }

    /// Waits for everything in progress, gives watches their events, and records the members' final states.
    pub fn finish(mut self) -> History {
        self.pass(20 * SECOND);
        (0..3).for_each(|slot| self.apply(slot, self.revision()));
        for opened in std::mem::take(&mut self.watches) {
            let watch = self.tell(opened);
            self.history.watches.push(watch);
        }
        for member in 1..=3 {
            self.history.finals.push(Final {
                member,
                revision: self.revision(),
                dump: Some(self.state().values().cloned().collect()),
                hash: Some((4711, self.revision(), self.compacted().max(-1))),
            });
        }
        self.history
    }

    fn tell(&mut self, opened: Opened) -> Watch {
        let Opened { mut watch, created, drained } = opened;
        let mut at = watch.opened + 1 + self.dice.below(MS);
        watch.responses.push(WatchResponse { at, revision: created, answer: WatchAnswer::Created });
        let start = if watch.start_revision > 0 { watch.start_revision } else { created + 1 };
        let gone =
            self.compactions.iter().filter(|(_, _, when)| *when <= watch.opened).map(|(to, ..)| *to).max();
        if let Some(compact_revision) = gone.filter(|gone| start < *gone) {
            let reason = String::new();
            let answer = WatchAnswer::Canceled { compact_revision, reason };
            watch.responses.push(WatchResponse { at, revision: 0, answer });
            watch.end = End::Canceled;
            return watch;
        }
        let last = self.revision();
        let stop = if drained { last } else { start + self.dice.below(40) as i64 };
        watch.end = if drained { End::Drained(last) } else { End::Broken };
        let mut batch: Vec<Event> = Vec::new();
        for revision in start..=stop.min(last) {
            let (_, events) = &self.log[revision as usize];
            let progress = &self.progress[(watch.member - 1) as usize];
            let applied = progress.iter().find(|(_, applied)| *applied >= revision);
            at = at.max(applied.map_or(0, |(time, _)| *time));
            let first = if watch.key.is_empty() { vec![0] } else { watch.key.clone() };
            let asked = |event: &Event| {
                within(&event.kv.key, &first, &watch.range_end)
                    && !(if event.deleted { watch.no_delete } else { watch.no_put })
            };
            let told = |event: &Event| Event {
                prev_kv: event.prev_kv.clone().filter(|_| watch.prev_kv),
                ..event.clone()
            };
            batch.extend(events.iter().filter(|event| asked(event)).map(told));
            if batch.is_empty() || self.dice.one_in(3) && revision != last {
                if self.dice.one_in(20) && batch.is_empty() {
                    watch.responses.push(WatchResponse { at, revision, answer: WatchAnswer::Progress });
                }
                continue;
            }
            at += self.dice.below(MS);
            let mut events = std::mem::take(&mut batch);
            if watch.fragment && events.len() > 1 {
                let rest = events.split_off(1);
                let answer = WatchAnswer::Events { events, fragment: true };
                watch.responses.push(WatchResponse { at, revision, answer });
                events = rest;
            }
            watch.responses.push(WatchResponse {
                at,
                revision,
                answer: WatchAnswer::Events { events, fragment: false },
            });
            if self.dice.one_in(5) {
                watch.responses.push(WatchResponse { at, revision, answer: WatchAnswer::Progress });
            }
        }
        if drained && !batch.is_empty() {
            let answer = WatchAnswer::Events { events: batch, fragment: false };
            watch.responses.push(WatchResponse { at: at + 1, revision: last, answer });
        }
        watch
    }
}

pub fn no_watch() -> Watch {
    Watch {
        id: 0,
        client: 1,
        member: 1,
        life: 1,
        opened: 0,
        key: Vec::new(),
        range_end: Vec::new(),
        start_revision: 0,
        prev_kv: false,
        no_put: false,
        no_delete: false,
        fragment: false,
        responses: Vec::new(),
        end: End::Broken,
    }
}

fn holds(state: &State, txn: &Txn) -> bool {
    txn.compare.iter().all(|compare| {
        let modified = state.get(&compare.key).map_or(0, |kv| kv.mod_revision);
        match (&compare.target, compare.relation) {
            (Target::Mod(n), Relation::Equal) => modified == *n,
            other => panic!("the script makes no {other:?}"),
        }
    })
}

fn apply_put(next: &mut State, put: &Put, main: i64, events: &mut Vec<Event>) -> Option<KeyValue> {
    let before = next.get(&put.key).cloned();
    let mut kv = KeyValue {
        key: put.key.clone(),
        value: put.value.clone(),
        create_revision: before.as_ref().map_or(main, |kv| kv.create_revision),
        mod_revision: main,
        version: before.as_ref().map_or(1, |kv| kv.version + 1),
        lease: put.lease,
    };
    if let Some(before) = &before {
        if put.ignore_value {
            kv.value = before.value.clone();
        }
        if put.ignore_lease {
            kv.lease = before.lease;
        }
    }
    // The previous value of an event is that of the revision before.
    events.push(Event { deleted: false, kv: kv.clone(), prev_kv: before.clone() });
    next.insert(put.key.clone(), kv);
    before.filter(|_| put.prev_kv)
}

fn delete(next: &mut State, key: &[u8], main: i64, events: &mut Vec<Event>) -> Option<KeyValue> {
    let before = next.remove(key)?;
    let kv = KeyValue { key: key.to_vec(), mod_revision: main, ..KeyValue::default() };
    events.push(Event { deleted: true, kv, prev_kv: Some(before.clone()) });
    Some(before)
}

fn apply_delete(next: &mut State, request: &Delete, main: i64, events: &mut Vec<Event>) -> DeleteResult {
    let keys: Vec<Vec<u8>> =
        next.keys().filter(|key| within(key, &request.key, &request.range_end)).cloned().collect();
    let gone: Vec<KeyValue> = keys.iter().filter_map(|key| delete(next, key, main, events)).collect();
    DeleteResult { deleted: gone.len() as i64, prev_kvs: if request.prev_kv { gone } else { Vec::new() } }
}
