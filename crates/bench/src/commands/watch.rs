//! Implements the command `watch`: measures the creation of watches and the delivery of their events.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{KEY_SPACE_SIZE, REPEAT, SEQUENTIAL_KEYS, connections, natural, positive, size};
use crate::loads::random_from_clock;
use crate::loads::watch::Watch;
use crate::loads::write::Keys;
use crate::session::Session;

const KEY_SIZE: Flag<i64> = Flag::int("key-size", "32", "Key size of watch request");
const PUT_RATE: Flag<i64> = Flag::int("put-rate", "0", "Number of keys to put per second");
const PUT_TOTAL: Flag<i64> = Flag::int("put-total", "1000", "Number of put requests");
const STREAMS: Flag<i64> = Flag::int("streams", "10", "Total watch streams");
const WATCH_PER_STREAM: Flag<i64> = Flag::int("watch-per-stream", "100", "Total watchers per stream");
const WATCHED_KEY_TOTAL: Flag<i64> =
    Flag::int("watched-key-total", "1", "Total number of keys to be watched");

pub(super) const WATCH: Command<Run> = Command {
    name: "watch",
    usage: "watch",
    about: "Benchmark watch",
    long: "Benchmark watch tests the performance of processing watch requests and\nsending events to watchers. It \
               tests the sending performance by\nchanging the value of the watched keys with concurrent \
               put\nrequests.\n\nDuring the test, each watcher watches (--total/--watchers) keys\n\n(a watcher might watch \
               on the same key multiple times if\n--watched-key-total is small).\n\nEach key is watched by \
               (--total/--watched-key-total) watchers.\n",
    flags: &[
        KEY_SIZE.row(),
        KEY_SPACE_SIZE.row(),
        PUT_RATE.row(),
        PUT_TOTAL.row(),
        REPEAT.row(),
        SEQUENTIAL_KEYS.row(),
        STREAMS.row(),
        WATCH_PER_STREAM.row(),
        WATCHED_KEY_TOTAL.row(),
    ],
    example: "  bench watch --streams 10 --watch-per-stream 100 --put-total 10000",
    run: Some(Run::of(watch)),
    ..Command::EMPTY
};

fn watch(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let space = positive(matches, KEY_SPACE_SIZE)?;
    let streams = positive(matches, STREAMS)? as usize;
    let total = positive(matches, WATCHED_KEY_TOTAL)?;
    let mut random = random_from_clock(4);
    let mut keys = Keys::new(size(matches, KEY_SIZE)?, space).map_err(Failure::error)?;
    let keys = (0..total)
        .map(|number| {
            let number = if matches.get(SEQUENTIAL_KEYS) { number % space } else { random.below(space) };
            keys.key(number).to_vec()
        })
        .collect();
    let (clients, conns) = connections(matches)?;
    let wanted = 1 + streams / 100;
    if conns.min(clients) < wanted {
        let have = conns.min(clients);
        session
            .warn(&format!("grpc limits 100 streams per client connection, have {have} but need {wanted}"));
    }
    let watch = Watch {
        streams,
        per_stream: positive(matches, WATCH_PER_STREAM)? as usize,
        keys,
        put_rate: natural(matches, PUT_RATE)?,
        put_total: natural(matches, PUT_TOTAL)?,
        clients,
    };
    let target = session.target()?;
    session.in_parts(
        ["watch-make", "watch-put"],
        "Watch creation summary:\n%sWatch events received summary:\n%s",
        &target,
        |between| watch.run(target.clone(), conns, between),
    )
}
