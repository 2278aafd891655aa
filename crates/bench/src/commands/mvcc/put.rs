//! Implements the command `mvcc put`: measures writes to the key index.

use cli::{Command, Failure, Flag};

use super::super::Run;
use crate::given;
use crate::given::{SAMPLE, natural, positive, size, style};
use crate::loads::index::{self, Puts};
use crate::report;
use crate::session::Session;

const BATCH_INTERVAL: Flag<i64> = Flag::int(
    "batch-interval",
    "100",
    "Interval of batching (milliseconds); only 100, because our index has no interval",
);
const BATCH_LIMIT: Flag<i64> = Flag::int("batch-limit", "10000", "A limit of batched transaction");
const KEY_SIZE: Flag<i64> = Flag::int("key-size", "64", "a size of key (Byte)");
const TOTAL: Flag<i64> = Flag::int("total", "100", "a total number of keys to put");
const TXN: Flag<bool> = Flag::bool("txn", "put a key in transaction or not");
const TXN_OPS: Flag<i64> = Flag::int("txn-ops", "1", "a number of keys to put per transaction");
const VALUE_SIZE: Flag<i64> = Flag::int("value-size", "64", "a size of value (Byte)");

pub(super) const PUT: Command<Run> = Command {
    name: "put",
    usage: "put",
    about: "Benchmark put performance of storage",
    flags: &[
        BATCH_INTERVAL.row(),
        BATCH_LIMIT.row(),
        KEY_SIZE.row(),
        TOTAL.row(),
        TXN.row(),
        TXN_OPS.row(),
        VALUE_SIZE.row(),
    ],
    example: "  bench mvcc put --total 100000",
    run: Some(Run::of(put).without(&[given::PID.row()])),
    ..Command::EMPTY
};

fn put(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    if matches.get(BATCH_INTERVAL) != 100 {
        return Err(Failure::error("--batch-interval: our index publishes by count, see --batch-limit"));
    }
    let per_txn = if matches.get(TXN) { positive(matches, TXN_OPS)? as usize } else { 1 };
    let puts = Puts {
        total: natural(matches, TOTAL)?,
        key_bytes: size(matches, KEY_SIZE)?,
        value_bytes: size(matches, VALUE_SIZE)?,
        per_txn,
        batch: positive(matches, BATCH_LIMIT)?,
    };
    let measured = index::put(&puts);
    // Without `--sample`, report a latency per put instead of per transaction, as etcd's tool does.
    let text = if matches.get(SAMPLE) {
        report::report(style(matches), &measured.0, measured.1)
    } else {
        report::weighted(style(matches), &measured.0, measured.1, per_txn as f64)
    };
    session.write_offline(&text, "mvcc put", measured)
}
