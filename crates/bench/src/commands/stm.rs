//! Implements the command `stm`: measures transactions of the software transactional memory in etcd's client.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{RUN_FLAGS, positive, rate, size, total};
use crate::loads::stm::{Isolation, Locker, Stm};
use crate::session::Session;

const ISOLATION: Flag<String> = Flag::text(
    "isolation",
    "r",
    "Read Committed (c), Repeatable Reads (r), Serializable (s), or Snapshot (ss)",
);
const KEYS: Flag<i64> = Flag::int("keys", "1", "Total unique keys accessible by the benchmark");
const KEYS_PER_TXN: Flag<i64> = Flag::int("keys-per-txn", "1", "Number of keys to access per transaction");
const RATE: Flag<i64> = rate("Maximum STM transactions per second (0 is no limit)");
const STM_LOCKER: Flag<String> = Flag::text(
    "stm-locker",
    "stm",
    "Wrap STM transaction with a custom locking mechanism (stm, lock-client, lock-rpc)",
);
const TOTAL: Flag<i64> = total("Total number of completed STM transactions");
const TXN_WR_PERCENT: Flag<i64> =
    Flag::int("txn-wr-percent", "50", "Percentage of keys to overwrite per transaction");
const VAL_SIZE: Flag<i64> = Flag::int("val-size", "8", "Value size of each STM put request");

pub(super) const STM: Command<Run> = Command {
    name: "stm",
    usage: "stm",
    about: "Benchmark STM",
    flags: &[
        ISOLATION.row(),
        KEYS.row(),
        KEYS_PER_TXN.row(),
        RATE.row(),
        STM_LOCKER.row(),
        TOTAL.row(),
        TXN_WR_PERCENT.row(),
        VAL_SIZE.row(),
    ],
    shared_flags: RUN_FLAGS,
    example: "  bench --clients 10 stm --isolation s --keys 100 --keys-per-txn 4",
    run: Some(Run::of(stm)),
    ..Command::EMPTY
};

fn stm(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let keys = positive(matches, KEYS)?;
    let percent = matches.get(TXN_WR_PERCENT);
    if !(0..=100).contains(&percent) {
        return Err(Failure::error(format!("expected [0, 100] --txn-wr-percent, got ({percent})")));
    }
    let per_txn = matches.get(KEYS_PER_TXN);
    if per_txn < 0 || per_txn as u64 > keys {
        return Err(Failure::error(format!("expected --keys-per-txn between 0 and {keys}, got ({per_txn})")));
    }
    let isolation = match matches.get(ISOLATION) {
        "c" => Isolation::ReadCommitted,
        "r" => Isolation::RepeatableReads,
        "s" => Isolation::Serializable,
        "ss" => Isolation::SerializableSnapshot,
        other => return Err(Failure::usage(format!("--isolation must be c, r, s or ss, not {other:?}"))),
    };
    let locker = match matches.get(STM_LOCKER) {
        "stm" => Locker::None,
        "lock-client" => Locker::Client,
        "lock-rpc" => Locker::Rpc,
        other => return Err(Failure::error(format!("unexpected stm locker {}", cli::go::quote(other)))),
    };
    let value = size(matches, VAL_SIZE)?;
    session.unary(&["stm"], "%s", TOTAL, |seed| {
        let mut stm = Stm::new(isolation, locker, keys, seed);
        stm.keys_per_txn = per_txn as usize;
        stm.write_percent = percent as u64;
        stm.value_bytes = value;
        Ok(stm)
    })
}
