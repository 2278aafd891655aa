//! Implements the command `txn-mixed`: measures transactions, some of which read a range and some of which
//! put a key.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{CONSISTENCY, KEY_SPACE_SIZE, RUN_FLAGS, consistency, positive, rate, size, total};
use crate::loads::range::Range;
use crate::loads::write::{Keys, TxnMixed};
use crate::session::Session;

const END_KEY: Flag<String> = Flag::text(
    "end-key",
    "",
    "Read operation range end key. By default, we do full range query with the default limit of 1000.",
);
const KEY_SIZE: Flag<i64> = Flag::int("key-size", "8", "Key size of mixed txn");
const LIMIT: Flag<i64> = Flag::int("limit", "1000", "Read operation range result limit");
const RATE: Flag<i64> = rate("Maximum txns per second (0 is no limit)");
const RW_RATIO: Flag<f64> = Flag::float("rw-ratio", "1", "Read/write ops ratio");
const TOTAL: Flag<i64> = total("Total number of txn requests");
const VAL_SIZE: Flag<i64> = Flag::int("val-size", "8", "Value size of mixed txn");

pub(super) const TXN_MIXED: Command<Run> = Command {
    name: "txn-mixed",
    usage: "txn-mixed key [end-range]",
    about: "Benchmark a mixed load of txn-put & txn-range.",
    flags: &[
        CONSISTENCY.row(),
        END_KEY.row(),
        KEY_SIZE.row(),
        KEY_SPACE_SIZE.row(),
        LIMIT.row(),
        RATE.row(),
        RW_RATIO.row(),
        TOTAL.row(),
        VAL_SIZE.row(),
    ],
    shared_flags: RUN_FLAGS,
    example: "  bench --clients 100 txn-mixed --rw-ratio 4 --limit 10",
    run: Some(Run::of(txn_mixed).with_words()),
    ..Command::EMPTY
};

fn txn_mixed(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let space = positive(matches, KEY_SPACE_SIZE)?;
    let (heading, serializable) = consistency(matches)?;
    let ratio = matches.get(RW_RATIO);
    if !(0.0..=1e9).contains(&ratio) {
        return Err(Failure::error(format!("--rw-ratio must be a number of reads per write, not {ratio}")));
    }
    let end = matches.get(END_KEY);
    let reads = Range {
        key: vec![0],
        end: if end.is_empty() { vec![0] } else { end.as_bytes().to_vec() },
        limit: matches.get(LIMIT).max(0),
        serializable,
        ..Range::default()
    };
    let (key, value) = (size(matches, KEY_SIZE)?, size(matches, VAL_SIZE)?);
    let layout = format!("{heading}Total Read Ops: %d\nDetails:%s\nTotal Write Ops: %d\nDetails:%s\n");
    session.unary(&["txn-mixed-read", "txn-mixed-write"], &layout, TOTAL, |seed| {
        Ok(TxnMixed::new(Keys::new(key, space).map_err(Failure::error)?, value, ratio, &reads, seed))
    })
}
