//! Implements the command `put`: measures writes of single keys.

use std::time::Duration;

use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::wire::Fields;
use api::Rpc;
use cli::{Command, Failure, Flag};

use super::Run;
use crate::compactor::Compactor;
use crate::given::{ENDPOINTS, KEY_SPACE_SIZE, RUN_FLAGS, SEQUENTIAL_KEYS, positive, rate, size, total};
use crate::loads::write::{Keys, Put};
use crate::session::Session;

const CHECK_HASHKV: Flag<bool> = Flag::bool("check-hashkv", "'true' to check hashkv");
const COMPACT_INDEX_DELTA: Flag<i64> = Flag::int(
    "compact-index-delta",
    "1000",
    "Delta between current revision and compact revision (e.g. current revision 10000, compact at 9000)",
);
const COMPACT_INTERVAL: Flag<Duration> = Flag::duration(
    "compact-interval",
    "0s",
    "Interval to compact database (do not duplicate this with etcd's 'auto-compaction-retention' flag) (e.g. \
         --compact-interval=5m compacts every 5-minute)",
);
const KEY_PREFIX: Flag<String> =
    Flag::text("key-prefix", "", "Prefix of the keys, in addition to --key-size");
const KEY_SIZE: Flag<i64> = Flag::int("key-size", "8", "Key size of put request");
const RATE: Flag<i64> = rate("Maximum puts per second (0 is no limit)");
const TOTAL: Flag<i64> = total("Total number of put requests");
const VAL_SIZE: Flag<i64> = Flag::int("val-size", "8", "Value size of put request");

pub(super) const PUT: Command<Run> = Command {
    name: "put",
    usage: "put",
    about: "Benchmark put",
    flags: &[
        CHECK_HASHKV.row(),
        COMPACT_INDEX_DELTA.row(),
        COMPACT_INTERVAL.row(),
        KEY_PREFIX.row(),
        KEY_SIZE.row(),
        KEY_SPACE_SIZE.row(),
        RATE.row(),
        SEQUENTIAL_KEYS.row(),
        TOTAL.row(),
        VAL_SIZE.row(),
    ],
    shared_flags: RUN_FLAGS,
    example: "  bench --conns 100 --clients 500 put --total 100000 --val-size 1024\n  \
                  bench --clients 500 put --rate 5000 --duration 60s --html put.html",
    run: Some(Run::of(put)),
    ..Command::EMPTY
};

fn put(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let space = positive(matches, KEY_SPACE_SIZE)?;
    let (key, value) = (size(matches, KEY_SIZE)?, size(matches, VAL_SIZE)?);
    let prefix = matches.get(KEY_PREFIX);
    let sequential = matches.get(SEQUENTIAL_KEYS);
    let delta = matches.get(COMPACT_INDEX_DELTA);
    let interval = matches.get(COMPACT_INTERVAL);
    let compactor =
        if interval.is_zero() { None } else { Some(Compactor::start(session.target()?, interval, delta)?) };
    session.unary(&["put"], "%s\n", TOTAL, |seed| {
        let keys = Keys::new(key, space).map_err(Failure::error)?.after(prefix.as_bytes());
        Ok(Put::new(keys, value, sequential, seed))
    })?;
    if let Some(compactor) = compactor {
        compactor.stop()?;
    }
    if matches.get(CHECK_HASHKV) {
        let text = hash_kv(&session.target()?, matches.get(ENDPOINTS))?;
        session.say(&text)?;
    }
    Ok(())
}

fn hash_kv(target: &Target, endpoints: &[String]) -> Result<String, Failure> {
    let host = endpoints.first().map(|text| text.trim()).unwrap_or_default();
    let mut first = target.clone();
    first.endpoints.truncate(1);
    let began = std::time::Instant::now();
    let mut asker = Asker::new(first).map_err(Failure::error)?;
    let failed = |what: &str, error: crate::loadgen::Error| {
        Failure::error(format!("Failed to get the {what} of endpoint {host} ({error})"))
    };
    let answer = asker.ask(Rpc::MaintenanceHashKv, |_| ()).map_err(|error| failed("hashkv", error))?;
    let (_, bytes) = asker.status().map_err(|error| failed("status", error))?;
    Ok(format!(
        "HashKV Summary:\n\tHashKV: {}\n\tEndpoint: {host}\n\tTime taken to get hashkv: {}\n\tDB size: {}\n",
        Fields(&answer).number(2),
        cli::go::duration(began.elapsed()),
        cli::go::bytes(bytes)
    ))
}
