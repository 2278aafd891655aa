//! Implements the command `watch-latency`: measures the time from a put to its event.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{REPEAT, connections, natural, positive, size};
use crate::loads::watch::WatchLatency;
use crate::session::Session;

const KEY_SIZE: Flag<i64> = Flag::int("key-size", "32", "Key size of watch response");
const PREVKV: Flag<bool> = Flag::bool("prevkv", "PrevKV enabled on watch requests");
const PUT_RATE: Flag<i64> = Flag::int("put-rate", "100", "Number of keys to put per second");
const PUT_TOTAL: Flag<i64> = Flag::int("put-total", "1000", "Total number of put requests");
const STREAMS: Flag<i64> = Flag::int("streams", "10", "Total watch streams");
const VAL_SIZE: Flag<i64> = Flag::int("val-size", "32", "Value size of watch response");
const WATCHERS_PER_STREAM: Flag<i64> = Flag::int("watchers-per-stream", "10", "Total watchers per stream");

pub(super) const WATCH_LATENCY: Command<Run> = Command {
    name: "watch-latency",
    usage: "watch-latency",
    about: "Benchmark watch latency",
    long: "Benchmarks the latency for watches by measuring\n\tthe latency between writing to a key and receiving \
               the\n\tassociated watch response.",
    flags: &[
        KEY_SIZE.row(),
        PREVKV.row(),
        PUT_RATE.row(),
        PUT_TOTAL.row(),
        REPEAT.row(),
        STREAMS.row(),
        VAL_SIZE.row(),
        WATCHERS_PER_STREAM.row(),
    ],
    example: "  bench watch-latency --put-rate 100",
    run: Some(Run::of(watch_latency)),
    ..Command::EMPTY
};

fn watch_latency(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let load = WatchLatency {
        streams: positive(matches, STREAMS)? as usize,
        per_stream: positive(matches, WATCHERS_PER_STREAM)? as usize,
        prev_kv: matches.get(PREVKV),
        put_total: natural(matches, PUT_TOTAL)?,
        put_rate: natural(matches, PUT_RATE)?,
        key_bytes: size(matches, KEY_SIZE)?,
        value_bytes: size(matches, VAL_SIZE)?,
    };
    let (_, conns) = connections(matches)?;
    let target = session.target()?;
    session.in_parts(
        ["watch-latency-put", "watch-latency-watch"],
        "\nPut summary:\n%s\nWatch events summary:\n%s",
        &target,
        |_| load.run(target.clone(), conns),
    )
}
