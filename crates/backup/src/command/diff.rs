//! `backup diff`, also `utl snapshot diff`: who changed what between two moments.

use std::collections::BTreeMap;
use std::path::PathBuf;

use api::etcdserverpb::InternalRaftRequest;
use bytes::BytesMut;
use cli::{Command, Failure, Flag, Progress};
use machine::key_value::read_version;
use numbers::{ChangeId, Revision};
use prost::Message as _;
use serde_json::json;

use super::{CLUSTER_ID, Call, Run, WRITE_OUT, chain, cluster_of, moment_of};
use crate::fetch::{cache_of, remove_cache, with_objects};
use crate::moment::{self, Applying};
use crate::place;
use crate::plan::{Moment, shown};
use crate::trouble::{Fault, Trouble};

const PREFIX: Flag<String> = Flag::text("prefix", "", "only changes of keys that start with this text");
const VALUES: Flag<bool> = Flag::bool("values", "print the values, too");
const WORK_DIR: Flag<String> = Flag::text(
    "work-dir",
    "",
    "directory for the restored state, which is removed afterwards; must not exist",
);

pub(super) const DIFF: Command<Run> = Command {
    name: "diff",
    usage: "diff <URL@moment> <moment> [flags]",
    about: "Lists who changed what between two moments",
    long: "\
Lists every change after the first moment, up to the second one: revision, time, user (if users are used), what was done,
and the key. A moment is a revision, or a time such as 2026-11-21T10:50:53Z. Changes that were compacted since are listed,
too. The second moment may be given with the URL, too.",
    example: "  mainstay backup diff s3://bucket/prefix@12000 12345 --prefix /registry/secrets/
  mainstay utl snapshot diff file:///mnt/backup@2026-11-21T10:00:00Z file:///mnt/backup@2026-11-21T11:00:00Z",
    flags: &[CLUSTER_ID.row(), PREFIX.row(), VALUES.row(), WORK_DIR.row(), WRITE_OUT.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

/// Who made a revision, and when.
struct Author {
    time_ms: u64,
    user: String,
}

fn run(call: &mut Call<'_>) -> Result<(), Failure> {
    let (Some(first), Some(second), None) =
        (call.matches.arg_text(0), call.matches.arg_text(1), call.matches.arg_text(2))
    else {
        return Err(Failure::usage("two moments are needed: URL@moment and moment"));
    };
    let (url, from) = first
        .rsplit_once('@')
        .filter(|(url, _)| place::is_url(url))
        .ok_or_else(|| Failure::usage(format!("{first:?} is no URL@moment")))?;
    let to = match second.rsplit_once('@') {
        Some((other, to)) if other == url => to,
        Some((other, _)) if place::is_url(other) => {
            return Err(Failure::usage(format!(
                "{url} and {other} are two places: both moments must be in one backup"
            )));
        }
        _ => &second,
    };
    let (from, to) = (moment(from)?, moment(to)?);
    let writes_json = call.writes_json()?;
    let store = place::open(url)?;
    let (cluster, cluster_id) = cluster_of(&*store, call.matches.get(CLUSTER_ID))?;
    let chain = chain(&*store, &cluster);
    let plan = chain.plan_between(from, to)?;
    let work = match call.matches.get(WORK_DIR) {
        "" => PathBuf::from(format!("mainstay-diff-{}", std::process::id())),
        dir => PathBuf::from(dir),
    };
    if work.exists() {
        return Err(Failure::error(format!("{} exists: give another --work-dir", work.display())));
    }
    let mut authors: BTreeMap<i64, Author> = BTreeMap::new();
    // Revision of the first moment, if that is a time.
    let mut begins = match from {
        Moment::Revision(revision) => revision,
        _ => plan.base.at.revision,
    };
    let judge = |applying: &Applying<'_>| {
        if matches!(from, Moment::TimeMs(time_ms) if applying.time_ms <= time_ms) {
            begins = applying.revision;
        }
        if applying.entry.entry_type != 0 {
            return true;
        }
        let Ok(request) = InternalRaftRequest::decode(applying.entry.data.clone()) else { return true };
        let user = request.header.unwrap_or_default().username;
        authors.insert(applying.revision + 1, Author { time_ms: applying.time_ms, user });
        // What a compaction would remove is to be listed.
        request.compaction.is_none()
    };
    let cache = cache_of(&work);
    let mut progress = Progress::of_bytes("reading", Some(plan.bytes()));
    let restored = with_objects(&*store, &cluster, &plan, &cache, |fetch| {
        moment::restore(&plan, cluster_id, &work, fetch, Some(Box::new(judge)), &mut |done| {
            progress.at(done, "");
        })
    });
    progress.finish();
    let outcome = restored.map_err(Failure::from).and_then(|mut restored| {
        if let Moment::TimeMs(time_ms) = from {
            // The entry after the moment raised the revision to one above the last that was there.
            let is_later = |author: &Author| author.time_ms > time_ms;
            let first = authors.iter().find(|(_, author)| is_later(author)).map(|(revision, _)| revision - 1);
            begins = first.unwrap_or(restored.machine.store.current_revision().0);
        }
        let view = restored.machine.store.publish();
        let prefix = call.matches.get(PREFIX).as_bytes();
        let mut value = BytesMut::new();
        let snapshot = view.snapshot();
        let mut changes = snapshot.written_after(ChangeId::end_of(Revision(begins)));
        while let Some(looked) = changes.look() {
            let Some(version) = looked.version.filter(|version| version.key().starts_with(prefix)) else {
                continue;
            };
            value.clear();
            if version.value_len() > 0 {
                read_version(version, &restored.values, &mut value)
                    .map_err(|error| Trouble::new(Fault::Refused, error))?;
            }
            let revision = version.main().0;
            let (time, user) = authors
                .get(&revision)
                .map_or_else(Default::default, |author| (shown(author.time_ms), author.user.clone()));
            let done = if version.is_tombstone() { "delete" } else { "put" };
            let line = if writes_json {
                json!({
                    "revision": revision,
                    "time": time,
                    "user": user,
                    "change": done,
                    "key": cli::json::base64(version.key()),
                    "value": (done == "put").then(|| cli::json::base64(&value)),
                    "lease": version.lease().0,
                })
                .to_string()
            } else {
                let user = if user.is_empty() { "-" } else { &user };
                let shown_value = match (done, call.matches.get(VALUES)) {
                    ("delete", _) => String::new(),
                    (_, true) => format!(" {}", cli::go::quote(&value)),
                    (_, false) => format!(" ({} bytes)", value.len()),
                };
                format!("{revision} {time} {user} {done} {}{shown_value}", cli::go::quote(version.key()))
            };
            call.print(&format!("{line}\n"))?;
        }
        Ok(())
    });
    let removed = std::fs::remove_dir_all(&work);
    remove_cache(&cache)?;
    outcome?;
    removed.map_err(|error| Failure::error(format!("cannot remove {}: {error}", work.display())))
}

fn moment(text: &str) -> Result<Moment, Failure> {
    match text.parse::<i64>() {
        Ok(revision) if revision > 0 => Ok(Moment::Revision(revision)),
        _ => moment_of(0, text).and_then(|moment| match moment {
            Moment::Newest => Err(Failure::usage("a moment is a revision or a time")),
            moment => Ok(moment),
        }),
    }
}
