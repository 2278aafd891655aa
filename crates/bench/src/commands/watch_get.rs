//! Implements the command `watch-get`: measures reads while many watches catch up on old events.

use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{REPEAT, connections, positive};
use crate::loads::watch::WatchGet;
use crate::session::Session;

const EVENTS: Flag<i64> = Flag::int("events", "8", "Number of events per watcher");
const STREAMS: Flag<i64> = Flag::int("streams", "1", "Total number of watcher streams");
const WATCHERS: Flag<i64> = Flag::int("watchers", "10000", "Total number of watchers");

pub(super) const WATCH_GET: Command<Run> = Command {
    name: "watch-get",
    usage: "watch-get",
    about: "Benchmark watch with get",
    long: "Benchmark for serialized key gets with many unsynced watchers",
    flags: &[EVENTS.row(), REPEAT.row(), STREAMS.row(), WATCHERS.row()],
    example: "  bench watch-get --watchers 1000",
    run: Some(Run::of(watch_get)),
    ..Command::EMPTY
};

fn watch_get(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let load = WatchGet {
        watchers: positive(matches, WATCHERS)? as usize,
        streams: positive(matches, STREAMS)? as usize,
        events: positive(matches, EVENTS)? as usize,
    };
    let (_, conns) = connections(matches)?;
    let target = session.target()?;
    session.in_parts(["watch-get"], "Get during watch summary:\n%s", &target, |_| {
        load.run(target.clone(), conns).map(|gets| [gets])
    })
}
