//! `watch-get`: reads while many watches are behind.

use cli::{Command, Failure, Flag};
use loadgen::drive::{Observer as _, Plan};

use super::Run;
use crate::given::{connections, positive, style};
use crate::loads::watch::WatchGet;
use crate::machine;
use crate::session::Session;
use crate::watcher::Watcher;

const EVENTS: Flag<i64> = Flag::int("events", "8", "Number of events per watcher");
const STREAMS: Flag<i64> = Flag::int("streams", "1", "Total number of watcher streams");
const WATCHERS: Flag<i64> = Flag::int("watchers", "10000", "Total number of watchers");

pub(super) const WATCH_GET: Command<Run> = Command {
    name: "watch-get",
    usage: "watch-get",
    about: "Benchmark watch with get",
    long: "Benchmark for serialized key gets with many unsynced watchers",
    flags: &[EVENTS.row(), STREAMS.row(), WATCHERS.row()],
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
    let before = machine::checks();
    let mut watcher = Watcher::new(matches, &target, &Plan::default());
    watcher.begins(0);
    let gets = load.run(target.clone(), conns)?;
    watcher.ends(0);
    let text = format!("Get during watch summary:\n{}", session.reported("watch-get", &gets, style(matches)));
    session.write_parts(&text, &target, before, &[("watch-get", gets)], &watcher)
}
