//! Implements the command `range`: measures reads of a key or of a range.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{CONSISTENCY, RUN_FLAGS, consistency, rate, total};
use crate::loads::range::Range;
use crate::session::Session;

const COUNT_ONLY: Flag<bool> = Flag::bool("count-only", "Only returns the count of keys");
const KEYS_ONLY: Flag<bool> = Flag::bool("keys-only", "Only returns the keys");
const LIMIT: Flag<i64> =
    Flag::int("limit", "0", "Maximum number of results to return from range request (0 is no limit)");
const PAGINATE: Flag<bool> = Flag::bool("paginate", "Use paginated unary range with 10k-key pages");
const PREFIX: Flag<bool> = Flag::bool("prefix", "Range over all keys with the given key as prefix");
const RATE: Flag<i64> = rate("Maximum range requests per second (0 is no limit)");
const STREAM: Flag<bool> = Flag::bool("stream", "Use RangeStream instead of unary Range");
const TOTAL: Flag<i64> = total("Total number of range requests");

pub(super) const RANGE: Command<Run> = Command {
    name: "range",
    usage: "range key [end-range]",
    about: "Benchmark range",
    flags: &[
        CONSISTENCY.row(),
        COUNT_ONLY.row(),
        KEYS_ONLY.row(),
        LIMIT.row(),
        PAGINATE.row(),
        PREFIX.row(),
        RATE.row(),
        STREAM.row(),
        TOTAL.row(),
    ],
    shared_flags: RUN_FLAGS,
    example: "  bench --conns 100 --clients 1000 range foo --consistency s --total 500000",
    run: Some(Run::of(range).with_words()),
    ..Command::EMPTY
};

fn range(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let words = &matches.args;
    let prefix = matches.get(PREFIX);
    if words.len() > 2 || words.is_empty() && !prefix {
        return Err(Failure::usage("range takes a key, and optionally the end of a range"));
    }
    if matches.get(PAGINATE) && matches.get(LIMIT) > 0 {
        return Err(Failure::error("--paginate and --limit are mutually exclusive"));
    }
    if matches.get(COUNT_ONLY) && matches.get(KEYS_ONLY) {
        return Err(Failure::error("`--keys-only` and `--count-only` cannot be set at the same time"));
    }
    if matches.get(PAGINATE) && matches.get(STREAM) {
        return Err(Failure::error("--paginate and --stream are mutually exclusive"));
    }
    let (heading, serializable) = consistency(matches)?;
    let mut range = Range {
        key: words.first().cloned().unwrap_or_default(),
        end: words.get(1).cloned().unwrap_or_default(),
        limit: matches.get(LIMIT).max(0),
        count_only: matches.get(COUNT_ONLY),
        keys_only: matches.get(KEYS_ONLY),
        serializable,
        stream: matches.get(STREAM),
        paginate: matches.get(PAGINATE),
    };
    if prefix {
        let key = range.key.clone();
        range.prefix(&key);
    }
    session.unary(&["range"], &format!("{heading}%s"), TOTAL, |_| Ok(range.clone()))
}
