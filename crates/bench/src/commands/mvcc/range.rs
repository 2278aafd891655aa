//! Implements the command `mvcc range`: measures reads of the key index.

use cli::{Command, Failure, Flag};

use super::super::Run;
use crate::given;
use crate::given::{natural, positive, size, style};
use crate::loads::index::{self, Puts};
use crate::report;
use crate::session::Session;

const BATCH_LIMIT: Flag<i64> = Flag::int("batch-limit", "10000", "A limit of batched transaction");
const KEY_SIZE: Flag<i64> = Flag::int("key-size", "64", "a size of key (Byte)");
const KEYS: Flag<i64> = Flag::int("keys", "100000", "number of keys");
const LIMIT: Flag<i64> = Flag::int("limit", "1", "number of keys that a range reads");
const TOTAL: Flag<i64> = Flag::int("total", "10000", "a total number of ranges");

pub(super) const RANGE: Command<Run> = Command {
    name: "range",
    usage: "range",
    about: "Benchmark range performance of storage",
    flags: &[BATCH_LIMIT.row(), KEY_SIZE.row(), KEYS.row(), LIMIT.row(), TOTAL.row()],
    example: "  bench mvcc range --keys 1000000 --limit 1000",
    run: Some(Run::of(range).without(&[given::PID.row()])),
    ..Command::EMPTY
};

fn range(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let puts = Puts {
        total: positive(matches, KEYS)?,
        key_bytes: size(matches, KEY_SIZE)?,
        value_bytes: 64,
        per_txn: 1,
        batch: positive(matches, BATCH_LIMIT)?,
    };
    let limit = positive(matches, LIMIT)? as usize;
    let measured = index::range(&puts, natural(matches, TOTAL)?, limit)?;
    let text = report::report(style(matches), &measured.0, measured.1);
    session.write_offline(&text, "mvcc range", measured)
}
