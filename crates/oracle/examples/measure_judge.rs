//! Measures how long the judge takes.
//!
//! `cargo run --release -p mainstay-oracle --example measure_judge` judges generated correct histories of ten
//! clients, of several kinds. `-- OPERATIONS` sets their length. `-- FILE…` judges histories from files, one
//! entry per line, and fails if one is not clean.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use mainstay_oracle::{
    Action, ActionResult, Compare, Delete, DeleteResult, End, Event, Final, Header, History, KeyValue,
    Operation, Outcome, Put, Range, RangeResult, Relation, Request, Response, Target, Txn, TxnResult, Watch,
    WatchAnswer, WatchResponse, check,
};

/// Parameters of a generated history.
struct Recipe {
    name: &'static str,
    keys: u64,
    /// One operation out of this many has an unknown outcome.
    unknown: u64,
    /// True if the history contains a watch of all keys that saw every event.
    observed: bool,
    /// One operation out of this many is about a lease with three keys, which it removes.
    leases: u64,
    /// One operation out of this many opens a watch of a tenth of the keys, which reports the next thousand
    /// revisions.
    watches: u64,
}

const RECIPES: [Recipe; 5] = [
    Recipe { name: "plain", keys: 1000, unknown: 1000, observed: true, leases: 1000, watches: 1000 },
    Recipe { name: "many unknown", keys: 1000, unknown: 10, observed: true, leases: 1000, watches: 1000 },
    Recipe { name: "many leases", keys: 1000, unknown: 100, observed: true, leases: 20, watches: 1000 },
    Recipe { name: "many watches", keys: 1000, unknown: 100, observed: true, leases: 1000, watches: 50 },
    Recipe { name: "unobserved", keys: 1000, unknown: 100_000, observed: false, leases: 0, watches: 1000 },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let operations = match arguments.first().map(|first| first.parse()) {
        None => 200_000,
        Some(Ok(operations)) => operations,
        Some(Err(_)) => return judge_files(&arguments),
    };
    for recipe in &RECIPES {
        let history = Generator::new(recipe).run(operations);
        if !judge(recipe.name, &history) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn judge_files(paths: &[String]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string());
        let history = text.and_then(|text| History::from_lines(&text).map_err(|e| e.to_string()));
        let clean = match &history {
            Ok(history) => judge(path, history),
            Err(error) => {
                println!("{path}: {error}");
                false
            }
        };
        if !clean {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn judge(name: &str, history: &History) -> bool {
    let (start, on_processor) = (Instant::now(), processor_ms());
    let verdict = check(history);
    let took = start.elapsed().as_millis();
    let worked = processor_ms() - on_processor;
    println!("{name}: judged in {took} ms, {worked} ms on the processor: {:?}", verdict.figures);
    verdict.violations.iter().take(5).for_each(|violation| println!("  {violation}"));
    verdict.undecided.iter().take(5).for_each(|open| println!("  undecided: {}", open.text));
    verdict.is_clean()
}

/// Returns the CPU time of this thread in milliseconds, if the system provides it.
fn processor_ms() -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0) / 1_000_000
}

/// Time between two operations.
const STEP: u64 = 100_000;
/// Maximum time from the call of an operation until it happens, and from then until its response.
const WAIT: u64 = 10 * STEP;

/// Generates histories of a store in which each operation happens at one moment.
struct Generator<'a> {
    recipe: &'a Recipe,
    random: testkit::Random,
    history: History,
    live: BTreeMap<Vec<u8>, KeyValue>,
    /// Time and events of each revision from 2 on.
    log: Vec<(u64, Vec<Event>)>,
    now: u64,
    leases: u64,
    /// Watches with their start revisions; written to the history at the end.
    watches: Vec<(Watch, i64)>,
}

impl<'a> Generator<'a> {
    fn new(recipe: &'a Recipe) -> Generator<'a> {
        Generator {
            recipe,
            random: testkit::Random::new(1),
            history: History::default(),
            live: BTreeMap::new(),
            log: Vec::new(),
            now: WAIT,
            leases: 0,
            watches: Vec::new(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    fn revision(&self) -> i64 {
        self.log.len() as i64 + 1
    }

    fn key(&mut self) -> Vec<u8> {
        format!("k{:04}", self.below(self.recipe.keys)).into_bytes()
    }

    fn run(mut self, operations: u64) -> History {
        if self.recipe.observed {
            self.open(Vec::new(), b"\0".to_vec());
        }
        while (self.history.operations.len() as u64) < operations {
            self.now += STEP;
            if self.one_in(self.recipe.leases) {
                self.lease();
            } else if self.one_in(self.recipe.watches) {
                let decade = self.below(self.recipe.keys) / 100;
                let (from, to) = (format!("k{decade:02}"), format!("k{:02}", decade + 1));
                self.open(from.into_bytes(), to.into_bytes());
            } else {
                self.any();
            }
        }
        let revision = self.revision();
        for (watch, from) in std::mem::take(&mut self.watches) {
            let watch = self.tell(watch, from);
            self.history.watches.push(watch);
        }
        let dump = Some(self.live.into_values().collect());
        self.history.finals.push(Final { member: 1, revision, dump, hash: None });
        self.history
    }

    fn any(&mut self) {
        let key = self.key();
        let value = self.history.operations.len().to_string().into_bytes();
        let put = Put { key: key.clone(), value, ..Put::default() };
        let request = match self.below(20) {
            0..=9 => Request::Put(put),
            10..=14 => Request::Range(Range { key, ..Range::default() }),
            15 => Request::Range(Range { key, range_end: vec![0], limit: 20, ..Range::default() }),
            16 => Request::Delete(Delete { key, ..Delete::default() }),
            17 => {
                let mut range_end = key.clone();
                range_end.push(b'!');
                Request::Delete(Delete { key, range_end, prev_kv: true })
            }
            _ => {
                let modified = self.live.get(&key).map_or(0, |kv| kv.mod_revision);
                let with = modified + i64::from(self.one_in(4));
                let (relation, target) = (Relation::Equal, Target::Mod(with));
                let compare = Compare { key: key.clone(), range_end: Vec::new(), relation, target };
                let failure = vec![Action::Range(Range { key, ..Range::default() })];
                Request::Txn(Txn { compare: vec![compare], success: vec![Action::Put(put)], failure })
            }
        };
        self.op(request);
    }

    fn op(&mut self, request: Request) {
        let (before, after) = (self.below(WAIT), self.below(WAIT));
        let unknown = self.one_in(self.recipe.unknown);
        let happens = !unknown || self.one_in(2);
        let response = if happens { Some(self.perform(&request)) } else { None };
        let outcome = match response.filter(|_| !unknown) {
            Some(response) => Outcome::Done(Header { revision: self.revision(), term: 2 }, response),
            None => Outcome::Unknown("timeout".to_owned()),
        };
        self.record(request, outcome, before, after);
    }

    fn record(&mut self, request: Request, outcome: Outcome, before: u64, after: u64) {
        let id = self.history.operations.len() as u64;
        self.history.operations.push(Operation {
            id,
            client: id % 10,
            member: 1 + id % 3,
            life: 0,
            call: self.now - before,
            returned: self.now + after,
            request,
            outcome,
            fence: None,
        });
    }

    fn list(&self, range: &Range) -> RangeResult {
        if range.range_end.is_empty() {
            let kvs: Vec<KeyValue> = self.live.get(&range.key).cloned().into_iter().collect();
            return RangeResult { count: kvs.len() as i64, kvs, more: false };
        }
        let all = self.live.range(range.key.clone()..);
        let count = all.clone().count() as i64;
        let kvs = all.map(|(_, kv)| kv.clone()).take(range.limit as usize).collect();
        RangeResult { kvs, more: count > range.limit, count }
    }

    fn perform(&mut self, request: &Request) -> Response {
        match request {
            Request::Range(range) => Response::Range(self.list(range)),
            Request::Put(put) => {
                self.put(put);
                Response::Put(None)
            }
            Request::Delete(delete) => {
                let gone: Vec<KeyValue> = self.live.get(&delete.key).cloned().into_iter().collect();
                self.remove(std::slice::from_ref(&delete.key));
                let deleted = gone.len() as i64;
                let prev_kvs = if delete.prev_kv { gone } else { Vec::new() };
                Response::Delete(DeleteResult { deleted, prev_kvs })
            }
            Request::Txn(txn) => {
                let compare = &txn.compare[0];
                let modified = self.live.get(&compare.key).map_or(0, |kv| kv.mod_revision);
                let succeeded = compare.target == Target::Mod(modified);
                let action = if succeeded { &txn.success[0] } else { &txn.failure[0] };
                let result = match action {
                    Action::Put(put) => {
                        self.put(put);
                        ActionResult::Put(None)
                    }
                    Action::Range(range) => ActionResult::Range(self.list(range)),
                    other => unreachable!("no transaction has {other:?}"),
                };
                Response::Txn(TxnResult { succeeded, results: vec![result] })
            }
            other => unreachable!("{other:?} is not of keys"),
        }
    }

    fn put(&mut self, put: &Put) {
        let main = self.revision() + 1;
        let before = self.live.get(&put.key).cloned();
        let kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create_revision: before.as_ref().map_or(main, |kv| kv.create_revision),
            mod_revision: main,
            version: before.as_ref().map_or(1, |kv| kv.version + 1),
            lease: put.lease,
        };
        self.live.insert(put.key.clone(), kv.clone());
        self.log.push((self.now, vec![Event { deleted: false, kv, prev_kv: before }]));
    }

    /// Removes keys in one revision.
    fn remove(&mut self, keys: &[Vec<u8>]) {
        let main = self.revision() + 1;
        let removed = |key: &Vec<u8>| {
            let prev_kv = Some(self.live.remove(key)?);
            let kv = KeyValue { key: key.clone(), mod_revision: main, ..KeyValue::default() };
            Some(Event { deleted: true, kv, prev_kv })
        };
        let events: Vec<Event> = keys.iter().filter_map(removed).collect();
        if !events.is_empty() {
            self.log.push((self.now, events));
        }
    }

    /// Adds a lease with three keys that ends before any other operation.
    fn lease(&mut self) {
        self.leases += 1;
        let (id, ttl) = (i64::try_from(self.leases).unwrap_or(0), 2);
        let granted =
            Outcome::Done(Header { revision: self.revision(), term: 2 }, Response::Granted { id, ttl });
        self.record(Request::Grant { id, ttl }, granted, 0, 0);
        let keys: Vec<Vec<u8>> = (0..3).map(|n| format!("lease/{id:08}/{n}").into_bytes()).collect();
        for key in &keys {
            let value = self.history.operations.len().to_string().into_bytes();
            let put = Put { key: key.clone(), value, lease: id, ..Put::default() };
            self.put(&put);
            let done = Outcome::Done(Header { revision: self.revision(), term: 2 }, Response::Put(None));
            self.record(Request::Put(put), done, 0, 0);
            self.now += STEP;
        }
        self.now += 3_000_000_000;
        self.remove(&keys);
        self.now += WAIT;
    }

    fn open(&mut self, key: Vec<u8>, range_end: Vec<u8>) {
        let watch = Watch {
            id: self.watches.len() as u64,
            client: 1,
            member: 1,
            life: 0,
            opened: self.now,
            key,
            range_end,
            start_revision: self.revision() + 1,
            prev_kv: true,
            no_put: false,
            no_delete: false,
            fragment: false,
            responses: vec![WatchResponse {
                at: self.now,
                revision: self.revision(),
                answer: WatchAnswer::Created,
            }],
            end: End::Broken,
        };
        self.watches.push((watch, self.revision() + 1));
    }

    fn tell(&self, mut watch: Watch, from: i64) -> Watch {
        let of_all = watch.key.is_empty();
        let to = if of_all { self.revision() } else { self.revision().min(from + 1000) };
        for revision in from..=to {
            let (at, events) = &self.log[(revision - 2) as usize];
            let asked = events
                .iter()
                .filter(|event| of_all || event.kv.key >= watch.key && event.kv.key < watch.range_end);
            let events: Vec<Event> = asked.cloned().collect();
            if !events.is_empty() {
                let answer = WatchAnswer::Events { events, fragment: false };
                watch.responses.push(WatchResponse { at: at + 1, revision, answer });
            }
        }
        if of_all {
            watch.end = End::Drained(to);
        }
        watch
    }
}
