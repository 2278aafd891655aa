//! Defines the load of `stm`: transactions of the software transactional memory in etcd's client. A
//! transaction reads keys, and commits only if none of the keys it depends on has changed since.

use std::fmt;
use std::time::{Duration, Instant};
use stdx::Random;

use crate::loadgen::drive::{Request, Step, Workload, done, outcome};
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message, number_key};
use api::Rpc;

use super::random_from_clock;

/// Isolation level of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Each read returns committed data, but different reads may see different revisions.
    ReadCommitted,
    /// If a transaction reads a key twice, both reads return the same value.
    RepeatableReads,
    /// All reads of a transaction see the same revision.
    Serializable,
    /// All reads of a transaction see the same revision, and the keys that it writes have not changed since
    /// that revision.
    SerializableSnapshot,
}

/// Lock that a client holds during each transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locker {
    /// No lock: only the comparisons in the transaction detect conflicts.
    None,
    /// Mutex that the client implements with keys in the store.
    Client,
    /// Lock service of the server.
    Rpc,
}

/// A workload of transactions on random keys.
#[derive(Clone, Debug)]
pub struct Stm {
    /// Isolation level.
    pub isolation: Isolation,
    /// Lock that the client holds during each transaction.
    pub locker: Locker,
    /// Number of different keys.
    pub keys: u64,
    /// Number of keys that a transaction reads.
    pub keys_per_txn: usize,
    /// Percentage of the read keys that a transaction also writes, rounded down.
    pub write_percent: u64,
    /// Size of the values in bytes.
    pub value_bytes: usize,
    random: Random,
}

const LOCK: &[u8] = b"stmlock";
/// Time to live of the lease that belongs to a lock, in seconds, as in etcd's sessions. The client renews the
/// lease three times in this time.
const TTL_S: i64 = 60;
const KEEP_ALIVE: Duration = Duration::from_secs(20);

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
enum Phase {
    #[default]
    Idle,
    Granting,
    KeepingAlive,
    Locking,
    LookingAhead,
    Waiting,
    Confirming,
    Reading,
    Committing,
    Unlocking,
}

struct Read {
    mod_revision: i64,
    /// Revision of the store when the key was read.
    revision: i64,
}

/// Progress of a client in its current transaction.
#[derive(Default)]
pub struct Client {
    phase: Phase,
    lease: i64,
    alive: Option<Instant>,
    lock_key: Vec<u8>,
    lock_revision: i64,
    /// Key directly before the client's own key in the lock queue. The client waits until it is deleted.
    ahead: Vec<u8>,
    keys: Vec<[u8; 16]>,
    reads: Vec<Read>,
    /// Revision at which the client reads; 0 if it is not determined yet.
    base: i64,
    verdict: Verdict,
    error: Option<crate::loadgen::Error>,
}

/// Meaning of a response for the transaction.
#[derive(Default)]
enum Verdict {
    #[default]
    Nothing,
    Read(Read),
    Committed,
    Conflict(Vec<Read>),
    Locked,
    Queued,
    Free,
    Ahead(Vec<u8>, i64),
    Expired,
}

impl Stm {
    /// Creates a workload of transactions. `seed` makes the random keys of this instance different from those
    /// of others.
    pub fn new(isolation: Isolation, locker: Locker, keys: u64, seed: u64) -> Self {
        Self {
            isolation,
            locker,
            keys,
            keys_per_txn: 1,
            write_percent: 50,
            value_bytes: 8,
            random: random_from_clock(seed),
        }
    }

    fn is_serializable(&self) -> bool {
        matches!(self.isolation, Isolation::Serializable | Isolation::SerializableSnapshot)
    }

    fn choose(&mut self, client: &mut Client) {
        client.keys.clear();
        while client.keys.len() < self.keys_per_txn {
            let mut key = [0; 16];
            let number = self.random.below(self.keys) as i64;
            assert!(number_key(&mut key, number).is_ok(), "16 bytes hold any number");
            if !client.keys.contains(&key) {
                client.keys.push(key);
            }
        }
    }

    fn writes(&self) -> usize {
        (self.keys_per_txn as f32 * self.write_percent as f32 / 100.0) as usize
    }

    fn read(&self, client: &mut Client, request: &mut Request) -> Step {
        let Some(key) = client.keys.get(client.reads.len()) else { return self.commit(client, request) };
        client.phase = Phase::Reading;
        request.method = Rpc::KvTxn;
        request.keep = true;
        // In a serializable transaction, the first read is linearizable and determines the revision. All
        // further reads are at this revision.
        let first = client.reads.is_empty() && self.is_serializable();
        let revision = if self.is_serializable() { client.base } else { 0 };
        Message(&mut request.message).message(2, |op| {
            op.message(1, |range| {
                range.bytes(1, key).int(4, if first { 0 } else { revision }).flag(7, !first);
            });
        });
        Step::Call
    }

    fn commit(&self, client: &mut Client, request: &mut Request) -> Step {
        client.phase = Phase::Committing;
        request.method = Rpc::KvTxn;
        request.keep = true;
        let mut random = self.random.clone();
        let written = &client.keys[..self.writes().min(client.keys.len())];
        let mut txn = Message(&mut request.message);
        if self.isolation != Isolation::ReadCommitted {
            for (key, read) in client.keys.iter().zip(&client.reads) {
                // Compare the key's modification revision (target 2) for equality (result 0).
                txn.message(1, |compare| {
                    compare.uint(2, 2).bytes(3, key);
                    revision_always(compare, read.mod_revision);
                });
            }
        }
        if self.isolation == Isolation::SerializableSnapshot {
            let first = client.reads.iter().map(|read| read.revision).min().unwrap_or(i64::MAX - 1);
            for key in written {
                txn.message(1, |compare| {
                    compare.uint(1, 2).uint(2, 2).bytes(3, key);
                    revision_always(compare, first + 1);
                });
            }
        }
        for key in written {
            let value = random.bytes(self.value_bytes);
            txn.message(2, |op| {
                op.message(2, |put| {
                    put.bytes(1, key).bytes(2, &value);
                });
            });
        }
        if self.is_serializable() {
            // If a comparison fails, let the same request read the keys again, for the next attempt.
            for key in &client.keys {
                txn.message(3, |op| {
                    op.message(1, |range| {
                        range.bytes(1, key);
                    });
                });
            }
        }
        Step::Call
    }

    fn lock(&self, client: &mut Client, request: &mut Request) -> Step {
        client.phase = Phase::Locking;
        request.keep = true;
        match self.locker {
            Locker::None => return self.read(client, request),
            Locker::Rpc => {
                request.method = Rpc::Lock;
                Message(&mut request.message).bytes(1, LOCK).int(2, client.lease);
            }
            Locker::Client => {
                client.lock_key = [LOCK, b"/", format!("{:x}", client.lease).as_bytes()].concat();
                request.method = Rpc::KvTxn;
                let key = &client.lock_key;
                let mut txn = Message(&mut request.message);
                // Create the client's lock key if it does not exist, that is, if its create revision (target
                // 1) is 0. In any case, also read the first key in the lock queue.
                txn.message(1, |compare| {
                    compare.uint(2, 1).bytes(3, key);
                    create_revision_always(compare, 0);
                });
                txn.message(2, |op| {
                    op.message(2, |put| {
                        put.bytes(1, key).int(3, client.lease);
                    });
                });
                txn.message(2, owner);
                txn.message(3, |op| {
                    op.message(1, |range| {
                        range.bytes(1, key);
                    });
                });
                txn.message(3, owner);
            }
        }
        Step::Call
    }

    /// Requests the key directly before the client's own key in the lock queue.
    fn look_ahead(&self, client: &mut Client, request: &mut Request) -> Step {
        client.phase = Phase::LookingAhead;
        request.method = Rpc::KvRange;
        request.keep = true;
        Message(&mut request.message)
            .bytes(1, b"stmlock/")
            .bytes(2, b"stmlock0")
            .int(3, 1)
            .uint(5, 2)
            .uint(6, 2)
            .int(13, client.lock_revision - 1);
        Step::Call
    }

    fn unlock(&self, client: &mut Client, request: &mut Request) -> Step {
        client.phase = Phase::Unlocking;
        match self.locker {
            Locker::None => return self.finish(client),
            Locker::Rpc => request.method = Rpc::LockUnlock,
            Locker::Client => request.method = Rpc::KvDeleteRange,
        }
        Message(&mut request.message).bytes(1, &client.lock_key);
        Step::Call
    }

    fn finish(&self, client: &mut Client) -> Step {
        client.phase = Phase::Idle;
        Step::Done(0, client.error.take().map_or(Ok(()), Err))
    }

    fn start(&mut self, client: &mut Client, request: &mut Request) -> Step {
        client.reads.clear();
        client.base = 0;
        if self.locker != Locker::None && client.alive.is_none_or(|time| time.elapsed() > KEEP_ALIVE) {
            client.phase = Phase::KeepingAlive;
            request.method = Rpc::LeaseKeepAlive;
            Message(&mut request.message).int(1, client.lease);
            return Step::Open;
        }
        self.lock(client, request)
    }
}

/// Appends the range request for the first key in the lock queue.
fn owner(op: &mut Message) {
    op.message(1, |range| {
        range.bytes(1, b"stmlock/").bytes(2, b"stmlock0").int(3, 1).uint(5, 1).uint(6, 2);
    });
}

/// Appends the revision of a comparison even if it is 0: it is in a `oneof`, where a missing field means that
/// no value is set.
fn revision_always(compare: &mut Message, revision: i64) {
    if revision == 0 {
        compare.0.extend_from_slice(&[6 << 3, 0]);
    } else {
        compare.int(6, revision);
    }
}

fn create_revision_always(compare: &mut Message, revision: i64) {
    assert_eq!(revision, 0, "only asked whether a key is there");
    compare.0.extend_from_slice(&[5 << 3, 0]);
}

/// Returns the result of a read from the `RangeResponse` inside the response to a transaction.
fn read_of(range: Fields, outer: i64) -> Read {
    let revision = Fields(range.bytes(1)).number(3) as i64;
    Read {
        mod_revision: Fields(range.bytes(2)).number(3) as i64,
        revision: if revision == 0 { outer } else { revision },
    }
}

fn ranges(txn: Fields<'_>) -> impl Iterator<Item = Fields<'_>> {
    txn.filter(|(field, _)| *field == 3).map(|(_, op)| Fields(Fields(op.bytes()).bytes(1)))
}

impl Workload for Stm {
    type Client = Client;

    fn prepare(&mut self, client: &mut Client, answer: Option<&Status>, request: &mut Request) -> Step {
        match answer {
            Some(status) => done(status),
            None if self.locker == Locker::None => Step::Done(0, Ok(())),
            None => {
                client.phase = Phase::Granting;
                client.alive = Some(Instant::now());
                request.method = Rpc::LeaseGrant;
                request.keep = true;
                Message(&mut request.message).int(1, TTL_S);
                Step::Call
            }
        }
    }

    fn begin(&mut self, client: &mut Client, _: u64, request: &mut Request) -> Step {
        self.choose(client);
        self.start(client, request)
    }

    fn message(&mut self, client: &mut Client, body: &[u8]) -> bool {
        let answer = Fields(body);
        let revision = Fields(answer.bytes(1)).number(3) as i64;
        match client.phase {
            Phase::Granting => client.lease = answer.number(2) as i64,
            Phase::KeepingAlive => {
                client.alive = Some(Instant::now());
                if answer.number(3) == 0 {
                    client.verdict = Verdict::Expired;
                }
                return true;
            }
            Phase::Locking if self.locker == Locker::Rpc => {
                client.lock_key = answer.bytes(2).to_vec();
                client.verdict = Verdict::Locked;
            }
            Phase::Locking => {
                let created = answer.number(2) != 0;
                let mut found = ranges(answer);
                let mine = found.next();
                let owner = found.next().map_or(0, |range| Fields(range.bytes(2)).number(2) as i64);
                client.lock_revision = if created {
                    revision
                } else {
                    mine.map_or(0, |range| Fields(range.bytes(2)).number(2) as i64)
                };
                let is_first = owner == 0 || owner == client.lock_revision;
                client.verdict = if is_first { Verdict::Locked } else { Verdict::Queued };
            }
            Phase::LookingAhead => {
                client.verdict = match answer.last(2) {
                    Some(kv) => Verdict::Ahead(Fields(kv.bytes()).bytes(1).to_vec(), revision),
                    None => Verdict::Free,
                };
            }
            Phase::Waiting => {
                // Stop waiting when the key ahead is deleted (event type 1), or when the watch ends. In both
                // cases, the client reads the lock queue again.
                let gone =
                    answer.clone().any(|(field, event)| field == 11 && Fields(event.bytes()).number(1) == 1);
                return gone || answer.number(4) != 0;
            }
            Phase::Confirming if answer.last(2).is_none() => client.verdict = Verdict::Expired,
            Phase::Reading => {
                if let Some(range) = ranges(answer).next() {
                    client.verdict = Verdict::Read(read_of(range, revision));
                }
            }
            Phase::Committing => {
                client.verdict = if answer.number(2) != 0 {
                    Verdict::Committed
                } else {
                    Verdict::Conflict(ranges(answer).map(|range| read_of(range, revision)).collect())
                };
            }
            Phase::Idle | Phase::Unlocking | Phase::Confirming => {}
        }
        false
    }

    fn answered(&mut self, client: &mut Client, status: &Status, request: &mut Request) -> Step {
        let verdict = std::mem::take(&mut client.verdict);
        if let Err(error) = outcome(status) {
            let holds = matches!(client.phase, Phase::Reading | Phase::Committing);
            if holds {
                client.error = Some(error);
                return self.unlock(client, request);
            }
            client.phase = Phase::Idle;
            return Step::Done(0, Err(client.error.take().unwrap_or(error)));
        }
        if let Verdict::Expired = verdict {
            client.phase = Phase::Idle;
            return Step::Done(0, Err(StmError::SessionExpired.into()));
        }
        match (client.phase, verdict) {
            (Phase::KeepingAlive, _) => self.lock(client, request),
            (Phase::Locking, Verdict::Locked) | (Phase::Confirming, _) => self.read(client, request),
            (Phase::Locking, _) | (Phase::Waiting, _) => self.look_ahead(client, request),
            (Phase::LookingAhead, Verdict::Ahead(key, revision)) => {
                client.phase = Phase::Waiting;
                request.method = Rpc::Watch;
                Message(&mut request.message).message(1, |create| {
                    create.bytes(1, &key).int(3, revision);
                });
                client.ahead = key;
                Step::Open
            }
            (Phase::LookingAhead, _) => {
                client.phase = Phase::Confirming;
                request.method = Rpc::KvRange;
                request.keep = true;
                Message(&mut request.message).bytes(1, &client.lock_key);
                Step::Call
            }
            (Phase::Reading, Verdict::Read(read)) => {
                if client.reads.is_empty() {
                    client.base = read.revision;
                }
                client.reads.push(read);
                self.read(client, request)
            }
            (Phase::Committing, Verdict::Conflict(reads)) => {
                // Try again. In a serializable transaction, the response to the failed commit already
                // contains the reads for the next attempt.
                client.reads.clear();
                client.base = 0;
                if self.is_serializable() && reads.len() == client.keys.len() {
                    client.reads = reads;
                }
                self.read(client, request)
            }
            (Phase::Committing, Verdict::Committed) => {
                // Advance the random numbers, so that the next transaction writes a different value.
                self.random.number();
                self.unlock(client, request)
            }
            (Phase::Unlocking, _) => self.finish(client),
            (phase, _) => {
                client.phase = Phase::Idle;
                Step::Done(0, Err(StmError::Senseless(phase).into()))
            }
        }
    }
}

/// Error of an operation that the workload itself detects.
#[derive(Debug)]
enum StmError {
    /// The lease of the lock has expired.
    SessionExpired,
    /// The response does not fit the request that was sent in this phase.
    Senseless(Phase),
}

impl fmt::Display for StmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StmError::SessionExpired => f.write_str("mutex: session is expired"),
            StmError::Senseless(phase) => write!(f, "the server's answer makes no sense in {phase:?}"),
        }
    }
}

impl std::error::Error for StmError {}

impl From<StmError> for crate::loadgen::Error {
    fn from(error: StmError) -> crate::loadgen::Error {
        crate::loadgen::Error::Workload(Box::new(error))
    }
}
