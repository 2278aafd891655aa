//! Defines the loads of `put`, `txn-put` and `txn-mixed`, which write keys.

use stdx::Random;

use crate::loadgen::drive::{Request, Step, Workload, done, outcome};
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Message, number_key};
use api::Rpc;

use super::random_from_clock;

/// The keys of a load: a prefix, which may be empty, and a part of a fixed size that begins with the encoded
/// number of the key.
#[derive(Clone, Debug)]
pub struct Keys {
    key: Vec<u8>,
    prefix_bytes: usize,
    /// Number of different keys.
    pub space: u64,
}

impl Keys {
    /// Creates `space` keys with this size in bytes. Returns an error if the size is too small for the
    /// largest number.
    pub fn new(size: usize, space: u64) -> Result<Self, crate::loadgen::Error> {
        let mut key = vec![0; size];
        number_key(&mut key, i64::try_from(space.saturating_sub(1)).unwrap_or(i64::MAX))?;
        key.fill(0);
        Ok(Self { key, prefix_bytes: 0, space })
    }

    /// Returns the same keys with this prefix, which is added to their size.
    #[must_use]
    pub fn after(mut self, prefix: &[u8]) -> Self {
        self.key.splice(..self.prefix_bytes, prefix.iter().copied());
        self.prefix_bytes = prefix.len();
        self
    }

    /// Returns the key with this number, which must be less than [`Keys::space`].
    pub fn key(&mut self, number: u64) -> &[u8] {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        // Write the number over the previous one without clearing the key, as etcd's tool does.
        let numbered = &mut self.key[self.prefix_bytes..];
        assert!(number_key(numbered, number).is_ok(), "the size was checked for the whole space");
        &self.key
    }
}

/// A workload in which each operation puts one key.
#[derive(Clone, Debug)]
pub struct Put {
    keys: Keys,
    value: Vec<u8>,
    sequential: bool,
    random: Random,
}

impl Put {
    /// Creates a workload. All puts have the same value, `value_bytes` random bytes.
    pub fn new(keys: Keys, value_bytes: usize, sequential: bool, seed: u64) -> Self {
        let mut random = random_from_clock(seed);
        Self { keys, value: random.bytes(value_bytes), sequential, random }
    }
}

impl Workload for Put {
    type Client = ();

    fn begin(&mut self, _: &mut (), number: u64, request: &mut Request) -> Step {
        let space = self.keys.space;
        let number = if self.sequential { number % space } else { self.random.below(space) };
        request.method = Rpc::KvPut;
        Message(&mut request.message).bytes(1, self.keys.key(number)).bytes(2, &self.value);
        Step::Call
    }

    fn answered(&mut self, _: &mut (), status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}

/// A workload in which each operation is a transaction with several puts.
#[derive(Clone, Debug)]
pub struct TxnPut {
    keys: Keys,
    value: Vec<u8>,
    operations: u64,
}

impl TxnPut {
    /// Creates a workload. The number of operations per transaction must not exceed the number of keys,
    /// because a transaction may write a key only once. The caller must check this.
    pub fn new(keys: Keys, value_bytes: usize, operations: u64, seed: u64) -> Self {
        Self { keys, value: random_from_clock(seed).bytes(value_bytes), operations }
    }
}

impl Workload for TxnPut {
    type Client = ();

    fn begin(&mut self, _: &mut (), number: u64, request: &mut Request) -> Step {
        request.method = Rpc::KvTxn;
        let mut txn = Message(&mut request.message);
        for operation in 0..self.operations {
            let at = number.wrapping_mul(self.operations).wrapping_add(operation) % self.keys.space;
            txn.message(2, |op| {
                op.message(2, |put| {
                    put.bytes(1, self.keys.key(at)).bytes(2, &self.value);
                });
            });
        }
        Step::Call
    }

    fn answered(&mut self, _: &mut (), status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}

/// A workload in which each operation is a transaction that either reads a range or puts a key. Reads are
/// series 0, writes are series 1.
#[derive(Clone, Debug)]
pub struct TxnMixed {
    keys: Keys,
    value: Vec<u8>,
    /// Fraction of the transactions that read, from 0 to 1.
    reads: f64,
    read: Vec<u8>,
    random: Random,
}

impl TxnMixed {
    /// Creates a workload. `reads` is the range that is read; `ratio` is the number of reads per write.
    pub fn new(keys: Keys, value_bytes: usize, ratio: f64, reads: &super::range::Range, seed: u64) -> Self {
        let mut random = random_from_clock(seed);
        let mut read = Vec::new();
        Message(&mut read).message(2, |op| {
            op.message(1, |range| {
                range
                    .bytes(1, &reads.key)
                    .bytes(2, &reads.end)
                    .int(3, reads.limit)
                    .flag(7, reads.serializable);
            });
        });
        Self { keys, value: random.bytes(value_bytes), reads: ratio / (1.0 + ratio), read, random }
    }
}

impl Workload for TxnMixed {
    type Client = usize;

    fn series(&self) -> usize {
        2
    }

    fn begin(&mut self, series: &mut usize, number: u64, request: &mut Request) -> Step {
        request.method = Rpc::KvTxn;
        if self.random.fraction() < self.reads {
            *series = 0;
            request.message.extend_from_slice(&self.read);
        } else {
            *series = 1;
            let key = self.keys.key(number % self.keys.space);
            Message(&mut request.message).message(2, |op| {
                op.message(2, |put| {
                    put.bytes(1, key).bytes(2, &self.value);
                });
            });
        }
        Step::Call
    }

    fn answered(&mut self, series: &mut usize, status: &Status, _: &mut Request) -> Step {
        Step::Done(*series, outcome(status))
    }
}
