//! `mainstay recover`: says which of the directories that have survived a disaster has the newest state, what each
//! would lose, and what is certain; and forms the cluster again from one of them.
//!
//! `found` reads directories, `judgement` compares them and has the argument why the choice is sound, `report`
//! says what follows, and `forming` makes the new directory.
//!
//! A cluster that was formed again never has a second leader beside it, as far as this program can prevent it:
//! its only member has an id that no old member knows; the old directories can be marked (`--mark`), so that no
//! member starts on them; and the cluster keeps its id only if too few old members are left unmarked for a majority,
//! or the operator vouches for the rest.

mod forming;
mod found;
mod judgement;
mod report;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::hash::RandomState;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cli::{Command, Failure, Flag, Io, Program};
use config::Url;
use disk::{Disk as _, Lock, RealDisk};
use machine::Rules;
use numbers::Revision;

use self::forming::{Formed, Order, form, position};
use self::found::{Found, Kind, Unread, member_name};
use self::judgement::{Judgement, Relation, settle_copies};
use self::report::{Report, keys_at, losses};
use crate::max_learners;
use crate::notice::Notices;
use crate::session::{Run, Session};
use crate::target::{Target, refuse_taken};
use crate::wal_dir::WalDir;

const ACCEPT_LOSS: Flag<bool> = Flag::bool(
    "accept-loss",
    "form the cluster although acknowledged writes may be missing, because directories of too few voters are here",
);
const BUMP_REVISION: Flag<u64> = Flag::uint(
    "bump-revision",
    "1000000000",
    "by how much to raise the revision, so that none is given out twice; watches from before then end as compacted. 0 keeps it",
);
/// Number of revisions that members whose directories are missing may have given out after the newest one that is known:
/// a cluster with 100,000 writes per second takes four months for them, and revisions have 63 bits.
const UNKNOWN_REVISIONS: u64 = 1 << 40;
const COPY: Flag<Vec<String>> = Flag::list(
    "copy",
    "",
    "directories that are earlier copies (backups) of a member's directory: they do not count as that member",
);
const DATA_DIR: Flag<String> = Flag::text(
    "data-dir",
    "",
    "with --form: data directory of the new cluster's first member, which must not exist yet",
);
const FORM: Flag<bool> = Flag::bool("form", "form the cluster again: a new directory with the only member");
const FROM: Flag<String> =
    Flag::text("from", "", "form the cluster from this directory, not from the newest");
const KEEP_CLUSTER_ID: Flag<bool> =
    Flag::bool("keep-cluster-id", "keep the cluster's id; by default it gets a new one");
const MARK: Flag<bool> =
    Flag::bool("mark", "mark the given directories of members, so that no member starts on them again");
const NAME: Flag<String> = Flag::text("name", "", "with --form: name of the member");
const FORM_AGAIN: Flag<bool> = Flag::bool(
    "form-again",
    "with --form: a cluster was formed from these directories before, and you make sure that no member was ever started on it",
);
const OTHERS_ARE_GONE: Flag<bool> = Flag::bool(
    "others-are-gone",
    "with --keep-cluster-id: you make sure that members whose directories are not marked never run again",
);
const PEER_URLS: Flag<Vec<String>> =
    Flag::list("initial-advertise-peer-urls", "", "with --form: peer URLs of the member");
const WAL_DIR: Flag<String> = Flag::text(
    "wal-dir",
    "",
    "with --form: directory of the log, if the member will be started with --wal-dir",
);
const WRITE_OUT: Flag<String> =
    Flag::text("write-out", "table", "output format of the report (table, json)").short('w');

const LONG: &str = "\
For a cluster that has lost its quorum: reads data directories of members that are not running, of observers and of shadows,
and says which has the newest state, what the cluster would lose with each of the others, and what may be missing from all of
them. It changes nothing in these directories.

With --form it then forms the cluster again from the newest: a new data directory with one member that is alone in its cluster.
All others join it later, with empty directories. Nothing happens unless it is certain that no acknowledged write is lost, or
--accept-loss is given. Revisions are raised, and everything before is compacted, so that watches end with a compaction error
and never miss or repeat an event.

A cluster that keeps its id must not meet its old members. With --mark they refuse to start; without it, or if enough of them
for a majority are not among the given directories, --keep-cluster-id is refused unless you vouch for the rest with
--others-are-gone.";

const EXAMPLE: &str = "  mainstay recover /disks/m1 /disks/m3
  mainstay recover /disks/m1 /disks/m3 -w json
  mainstay recover /disks/m1 /disks/m3 --form --mark --data-dir /var/lib/mainstay --name m1 \\
      --initial-advertise-peer-urls http://10.0.0.1:2380";

/// The tool `mainstay recover`.
pub const PROGRAM: Program<Run> = Program {
    root: Command {
        name: "recover",
        usage: "recover DIR... [--form --data-dir NEW --name NAME --initial-advertise-peer-urls URL]",
        usage_is_whole: true,
        about: "Says which surviving data directory has the newest state, and forms the cluster again from it",
        long: LONG,
        example: EXAMPLE,
        flags: &[
            ACCEPT_LOSS.row(),
            BUMP_REVISION.row(),
            COPY.row(),
            DATA_DIR.row(),
            FORM.row(),
            FROM.row(),
            PEER_URLS.row(),
            KEEP_CLUSTER_ID.row(),
            MARK.row(),
            max_learners::FLAG.row(),
            NAME.row(),
            FORM_AGAIN.row(),
            OTHERS_ARE_GONE.row(),
            WAL_DIR.row(),
            WRITE_OUT.row(),
        ],
        run: Some(Run(run_command)),
        ..Command::EMPTY
    },
    globals: &[],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

/// Runs the command. `args` are the words after `recover`. The report goes to standard output, everything else to
/// standard error.
pub fn run(args: &[OsString]) -> ExitCode {
    ExitCode::from(run_in(args, &Io::of_process()))
}

/// Runs the command with the given streams. Returns the exit code.
pub fn run_in(args: &[OsString], io: &Io) -> u8 {
    PROGRAM.run_in(args, io, |matches, run| {
        run.0(&mut Session {
            program: &PROGRAM,
            matches,
            out: io.out.clone(),
            notices: Notices::new(io),
            clock: io.clock,
        })
    })
}

/// The values of `--form` and of the flags that belong to it.
struct Forming {
    order: Order,
    from: Option<PathBuf>,
    accepts_loss: bool,
    marks: bool,
    others_are_gone: bool,
    /// True if the operator makes sure that no member was started on what an earlier recovery has formed.
    forms_again: bool,
}

fn run_command(session: &mut Session<'_>) -> Result<(), Failure> {
    let given = session.matches;
    let is_json = match given.get(WRITE_OUT) {
        "table" => false,
        "json" => true,
        other => {
            let other = cli::go::quote(other);
            return Err(Failure::bad_args(format!("--write-out is table or json, not {other}")));
        }
    };
    let rules = max_learners::rules(given);
    let dirs: Vec<(PathBuf, bool)> = given
        .args
        .iter()
        .map(|arg| (PathBuf::from(OsStr::from_bytes(arg)), false))
        .chain(given.get(COPY).iter().map(|dir| (PathBuf::from(dir), true)))
        .collect();
    if dirs.is_empty() {
        return Err(Failure::bad_args(
            "recover needs the data directories that are left: mainstay recover DIR...",
        ));
    }
    refuse_twice(&dirs)?;
    let forming = forming(session, rules)?;
    // The locks keep members from starting until the end of this command, and a second cluster from being formed at the
    // same time.
    let mut locks = Vec::new();
    if forming.is_some() {
        for (dir, _) in &dirs {
            locks.extend(hold_alone(dir)?);
        }
    }
    let (mut found, mut unusable) = (Vec::new(), Vec::new());
    for (dir, is_copy) in &dirs {
        locks.extend(hold(dir)?);
        match Found::read(dir, *is_copy, rules) {
            Ok(source) => {
                max_learners::check(given, source.stopped.refused_learner)?;
                found.push(source.found);
            }
            Err(Unread::InUse) => return Err(in_use(dir)),
            Err(Unread::Unusable(why)) => unusable.push((dir.clone(), why)),
        }
    }
    settle_copies(&mut found);
    let report = report(found, unusable, rules)?;
    session.print(&if is_json { report.json() } else { report.text() })?;
    match forming {
        None => {
            let next = report.next_step();
            session.notices.plain(&next);
            Ok(())
        }
        Some(forming) => form_again(session, &report, forming, is_json),
    }
}

/// Returns an error if a directory is named twice: it would count as two.
fn refuse_twice(dirs: &[(PathBuf, bool)]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for (dir, _) in dirs {
        // A directory that does not exist is reported later.
        let whole = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
        if !seen.insert(whole) {
            return Err(Failure::bad_args(format!("{} is given twice", dir.display())));
        }
    }
    Ok(())
}

/// Locks a directory, if it has a file to be locked, against members and shadows that would use it. Nothing in it is
/// changed.
fn hold(dir: &Path) -> Result<Vec<Lock>, Failure> {
    let mut locks = Vec::new();
    for lock in ["lock", "member/lock", "data/member/lock"] {
        match RealDisk.lock_shared(&dir.join(lock)) {
            Ok(lock) => locks.push(lock),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Err(in_use(dir)),
            // A file that cannot be opened is reported when the directory is read.
            Err(_) => {}
        }
    }
    Ok(locks)
}

/// Locks a directory against other commands that form a cluster from it.
fn hold_alone(dir: &Path) -> Result<Option<Lock>, Failure> {
    if !dir.is_dir() {
        // That is reported when the directory is read.
        return Ok(None);
    }
    match RealDisk.lock(dir) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(Failure::error(format!(
            "another command holds {}, such as `mainstay recover --form` or `mainstay rebuild`: wait until it has ended",
            dir.display()
        ))),
        // Some network file systems lock no directories. There the marks keep a second cluster from being formed.
        Err(_) => Ok(None),
    }
}

fn in_use(dir: &Path) -> Failure {
    Failure::error(format!(
        "{} is in use: stop the member that runs on it. If a majority of the members can run, just start them: they need \
         no recovery",
        dir.display()
    ))
}

/// Judges the directories.
fn report(found: Vec<Found>, mut unusable: Vec<(PathBuf, String)>, rules: Rules) -> Result<Report, Failure> {
    let clusters: BTreeSet<u64> = found.iter().map(|found| found.cluster_id).collect();
    if clusters.len() > 1 {
        let each = clusters.iter().map(|id| {
            let of = found.iter().filter(|found| found.cluster_id == *id);
            let dirs: Vec<String> = of.map(|found| found.dir.display().to_string()).collect();
            format!("{} of cluster {id:x}", dirs.join(", "))
        });
        return Err(Failure::error(format!(
            "the directories are of different clusters: {}. Give only those of one",
            each.collect::<Vec<_>>().join("; ")
        )));
    }
    let Some(mut judgement) = Judgement::of(&found) else {
        let whys: Vec<String> =
            unusable.iter().map(|(dir, why)| format!("{}: {why}", dir.display())).collect();
        return Err(Failure::error(format!(
            "no directory can be used: {}. If there is no other, restore a backup with `mainstay utl snapshot restore`",
            whys.join("; ")
        )));
    };
    let newest = &found[judgement.newest];
    let mut source = read_again(newest, rules)?;
    let losses = losses(&mut source.stopped, &found, &judgement.relations);
    // Ids of the cluster and of members may be the same in two histories, since they follow from names and URLs. What is
    // committed in both directories has to give the same keys.
    let seed = RandomState::new();
    let compared = found.iter().enumerate().filter(|(at, other)| {
        let is_wrong = |one: &Found| {
            // The alarm may have been raised after the end of the member's own log.
            one.is_corrupt || newest.accused.contains(&one.member_id)
        };
        *at != judgement.newest
            && newest.has_log()
            && other.has_log()
            && !is_wrong(newest)
            && !is_wrong(other)
            && !judgement.contradicting.contains(at)
    });
    let digests: Vec<(usize, Revision, u64)> = compared
        .filter_map(|(at, other)| {
            let revision = newest.committed_revision.min(other.committed_revision);
            let is_kept = revision >= newest.compact_revision.max(other.compact_revision);
            let digest = is_kept.then(|| keys_at(&mut source.stopped, revision, &seed))??;
            Some((at, revision, digest))
        })
        .collect();
    // One state at a time is in memory.
    drop(source);
    let mut different = Vec::new();
    for (at, revision, digest) in digests {
        match read_again(&found[at], rules) {
            Ok(mut again) => {
                if keys_at(&mut again.stopped, revision, &seed).is_some_and(|own| own != digest) {
                    judgement.contradict(at);
                    different.push((at, revision));
                }
            }
            Err(failure) => {
                judgement.is_complete = false;
                let why = failure.text.unwrap_or_default();
                unusable.push((found[at].dir.clone(), format!("it could not be read a second time: {why}")));
            }
        }
    }
    Ok(Report { found, unusable, judgement, losses, different })
}

/// Returns the smallest number by which the revision has to be raised so that no revision that a client may have seen is
/// given out again, and watches from before end.
fn bump_min(report: &Report, from: usize) -> u64 {
    let judgement = &report.judgement;
    let newest = &report.found[judgement.newest];
    // A transaction is one entry, and raises the revision by one.
    let lost = judgement.lost.map_or(0, |lost| lost.0.saturating_sub(newest.last.index.0));
    let lost = i64::try_from(lost).unwrap_or(i64::MAX);
    // Entries that differ from those of the newest log were never committed, unless they are of another history.
    let is_other = |at: &usize| judgement.contradicting.contains(at) || judgement.estranged.contains(at);
    let shown = report.found.iter().enumerate().map(|(at, found)| match judgement.relations[at] {
        Relation::Differs { .. } if !is_other(&at) => found.committed_revision.0,
        _ => found.revision.0,
    });
    let shown = shown.max().unwrap_or(0);
    let seen = shown.max(newest.revision.0.saturating_add(lost));
    let known = u64::try_from(seen.saturating_sub(report.found[from].revision.0)).unwrap_or(0);
    let known = if known > 0 { known + 1 } else { 0 };
    if judgement.is_complete { known } else { known.saturating_add(UNKNOWN_REVISIONS) }
}

/// Reads a directory once more, for what takes much memory and is needed of one directory only.
fn read_again(found: &Found, rules: Rules) -> Result<found::Source, Failure> {
    let again = Found::read(&found.dir, found.kind == Kind::Copy, rules).map_err(|unread| match unread {
        Unread::InUse => in_use(&found.dir),
        Unread::Unusable(why) => Failure::error(format!("{}: {why}", found.dir.display())),
    })?;
    if again.found.last != found.last {
        return Err(Failure::error(format!(
            "{} has changed meanwhile: run the same command again",
            found.dir.display()
        )));
    }
    Ok(again)
}

/// Reads the flags of `--form`; `None` without it.
fn forming(session: &Session<'_>, rules: Rules) -> Result<Option<Forming>, Failure> {
    let given = session.matches;
    let text = |flag: Flag<String>| Some(given.get(flag)).filter(|text| !text.is_empty()).map(str::to_owned);
    if !given.get(FORM) {
        let own = [
            ACCEPT_LOSS.row(),
            BUMP_REVISION.row(),
            DATA_DIR.row(),
            FROM.row(),
            KEEP_CLUSTER_ID.row(),
            MARK.row(),
            NAME.row(),
            FORM_AGAIN.row(),
            OTHERS_ARE_GONE.row(),
            PEER_URLS.row(),
            WAL_DIR.row(),
        ];
        return match own.iter().find(|flag| given.is_given(**flag)) {
            Some(flag) => Err(Failure::bad_args(format!("--{} requires --form", flag.name))),
            None => Ok(None),
        };
    }
    let (Some(data_dir), Some(name)) = (text(DATA_DIR), text(NAME)) else {
        return Err(Failure::bad_args(
            "--form requires --data-dir, --name and --initial-advertise-peer-urls",
        ));
    };
    let peer_urls = given.get(PEER_URLS);
    if peer_urls.is_empty() {
        return Err(Failure::bad_args(
            "--form requires --data-dir, --name and --initial-advertise-peer-urls",
        ));
    }
    let peer_urls = peer_urls.iter().map(|url| {
        Url::parse(url)
            .map(|url| url.as_str().to_owned())
            .map_err(|error| Failure::bad_args(error.to_string()))
    });
    let peer_urls = peer_urls.collect::<Result<Vec<String>, Failure>>()?;
    let data_dir = PathBuf::from(data_dir);
    let wal_dir = match text(WAL_DIR) {
        None => None,
        Some(dir) if Path::new(&dir).exists() => {
            return Err(Failure::error(format!(
                "{dir} already exists: the log needs a new directory. If an interrupted run of this command has left it, and {} does not exist, remove it",
                data_dir.display()
            )));
        }
        Some(dir) => Some(WalDir::of(Path::new(&dir), &data_dir, ("wal-dir", "data-dir"))?),
    };
    refuse_taken(&data_dir, "; if an earlier run has made it, start the member on it")?;
    if given.get(OTHERS_ARE_GONE) && !given.get(KEEP_CLUSTER_ID) {
        return Err(Failure::bad_args("--others-are-gone requires --keep-cluster-id"));
    }
    let bump = given.get(BUMP_REVISION);
    Ok(Some(Forming {
        order: Order {
            data_dir,
            wal_dir,
            name,
            peer_urls,
            keeps_cluster_id: given.get(KEEP_CLUSTER_ID),
            bump: (bump > 0).then_some(bump),
            rules,
            marks: Vec::new(),
        },
        from: text(FROM).map(PathBuf::from),
        accepts_loss: given.get(ACCEPT_LOSS),
        marks: given.get(MARK),
        others_are_gone: given.get(OTHERS_ARE_GONE),
        forms_again: given.get(FORM_AGAIN),
    }))
}

/// Forms the cluster again, after everything that speaks against it was checked.
fn form_again(
    session: &mut Session<'_>,
    report: &Report,
    forming: Forming,
    is_json: bool,
) -> Result<(), Failure> {
    let Forming { mut order, from, accepts_loss, marks, others_are_gone, forms_again } = forming;
    let judgement = &report.judgement;
    let from = match from {
        None => judgement.newest,
        Some(dir) => report.found.iter().position(|found| found.dir == dir).ok_or_else(|| {
            Failure::bad_args(format!("--from {} is none of the directories that can be used", dir.display()))
        })?,
    };
    for found in &report.found {
        let Some(to) = &found.formed else { continue };
        // A run that was interrupted leaves its unfinished directory, and may be repeated. A finished one may have been
        // moved since, or may be on another host, so its absence proves nothing.
        let was_interrupted =
            is_same_path(to, &order.data_dir) && Target::making_of(to).is_ok_and(|making| making.exists());
        if !forms_again && !was_interrupted {
            return Err(Failure::error(format!(
                "a cluster was already formed from {} in {}: start that one, wherever it is now; or, if no member was ever \
                 started on it, remove it and give --form-again",
                found.dir.display(),
                to.display()
            )));
        }
    }
    let is_chosen = session.matches.is_given(FROM.row());
    let source = &report.found[from];
    if !is_chosen {
        refuse_doubtful(report)?;
    }
    // Entries that raise no revision are lost as well: leases, users, roles.
    let is_level = from == judgement.newest || judgement.relations[from] == Relation::Same;
    let loses_nothing =
        judgement.is_complete && is_level && report.losses[from].is_none() && source.has_log();
    if !loses_nothing && !accepts_loss {
        return Err(Failure::error(if !judgement.is_complete {
            "acknowledged writes may be missing, as said above: bring more directories, or give --accept-loss to go on \
             with what is here"
                .to_owned()
        } else {
            format!(
                "{} lacks acknowledged writes, as said above: form the cluster from {}, or give --accept-loss",
                source.dir.display(),
                report.found[judgement.newest].dir.display()
            )
        }));
    }
    if order.bump.is_none() && !loses_nothing {
        return Err(Failure::bad_args(
            "--bump-revision=0 is possible only if no acknowledged write is missing: otherwise revisions that clients have \
             seen would be given out again, and their watches would miss events",
        ));
    }
    let bump_min = bump_min(report, from);
    if order.bump.unwrap_or(0) < bump_min {
        if session.matches.is_given(BUMP_REVISION.row()) {
            return Err(Failure::bad_args(format!(
                "--bump-revision={} is too small: clients may have seen later revisions, which would be given out again for \
                 other changes. Leave it out, or give at least {bump_min}",
                order.bump.unwrap_or(0)
            )));
        }
        order.bump = Some(bump_min);
    }
    let marked: Vec<&Found> = match marks {
        true => report.found.iter().filter(|found| matches!(found.kind, Kind::Member | Kind::Copy)).collect(),
        false => Vec::new(),
    };
    if order.keeps_cluster_id && !others_are_gone {
        refuse_second_leader(report, &marked)?;
    }
    order.marks = marked.iter().map(|found| found.data_dir.clone()).collect();
    let again = read_again(source, order.rules)?;
    let formed = form(again, position(&report.found), &order)?;
    if is_json {
        let Formed { identity, revision, compact_revision, keys } = &formed;
        let formed = serde_json::json!({
            "formed_from": source.dir.display().to_string(),
            "data_dir": order.data_dir.display().to_string(),
            "cluster_id": format!("{:x}", identity.cluster_id),
            "member_id": format!("{:x}", identity.member_id),
            "revision": revision.0,
            "compact_revision": compact_revision.0,
            "keys": keys,
            "marked": order.marks.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>(),
        });
        return session.print(&format!("{formed}\n"));
    }
    session.print(&said(source, &order, &formed))
}

/// Returns an error if it is not for this program to choose: the histories contradict each other, or the newest state
/// is suspect, or is that of a shadow.
fn refuse_doubtful(report: &Report) -> Result<(), Failure> {
    let judgement = &report.judgement;
    let newest = &report.found[judgement.newest];
    let choose = "choose with --from DIR";
    let refused = |why: String| Err(Failure::error(format!("{why}: {choose}")));
    if !judgement.contradicting.is_empty() || !judgement.estranged.is_empty() {
        return refused("the directories have two histories, as said above".to_owned());
    }
    if newest.is_corrupt {
        return refused(format!(
            "{} is the newest, but its data may be wrong, as said above",
            newest.dir.display()
        ));
    }
    if newest.kind == Kind::Shadow || !judgement.shadows_ahead.is_empty() {
        return refused(
            "a shadow has the latest changes, but it has no users, roles and alarms, so everyone could read and write"
                .to_owned(),
        );
    }
    Ok(())
}

/// Returns an error if old members whose directories are not marked are enough to elect a leader.
fn refuse_second_leader(report: &Report, marked: &[&Found]) -> Result<(), Failure> {
    let newest = &report.found[report.judgement.newest];
    let is_marked =
        |id: &u64| marked.iter().any(|found| found.kind == Kind::Member && found.member_id == *id);
    for voters in &newest.voters {
        let (stopped, free): (Vec<u64>, Vec<u64>) = voters.iter().copied().partition(|id| is_marked(id));
        if 2 * free.len() > voters.len() {
            let names: Vec<String> = free.iter().map(|id| member_name(&newest.members, *id)).collect();
            let mark = if stopped.is_empty() { "give --mark, and " } else { "" };
            return Err(Failure::error(format!(
                "with the cluster's id kept, {} could start again and elect a second leader: {mark}bring more of their \
                 directories to be marked; or leave out --keep-cluster-id; or give --others-are-gone if you make sure \
                 that they never run again",
                names.join(", ")
            )));
        }
    }
    Ok(())
}

fn is_same_path(one: &Path, other: &Path) -> bool {
    std::path::absolute(one).ok() == std::path::absolute(other).ok()
}

impl Report {
    /// Returns what to do after the report, as one or two sentences.
    fn next_step(&self) -> String {
        let judgement = &self.judgement;
        let newest = &self.found[judgement.newest];
        let unmarked = self
            .found
            .iter()
            .filter(|found| found.kind == Kind::Member && found.formed.is_none())
            .filter(|found| judgement.present.contains(&found.member_id))
            .count();
        if unmarked > 0 && unmarked >= judgement.quorum {
            return format!(
                "Next: these are enough members to go on without a recovery: start them with their flags. To form the cluster \
                 again all the same, add --form ({}).\n",
                "mainstay recover --help"
            );
        }
        let name = newest.name();
        if newest.members.witness().is_some() {
            return format!(
                "Next: start {name} and the witness first: they are a majority if {name} is in step, and then nothing has to be \
                 formed. Otherwise bring more directories, or add {}--form --mark and its flags (mainstay recover --help).\n",
                if judgement.is_complete { "" } else { "--accept-loss " }
            );
        }
        format!(
            "Next: bring more directories if there are any, or form the cluster again: add {}--form --mark --data-dir NEW --name \
             {name} --initial-advertise-peer-urls {}\n",
            if judgement.is_complete { "" } else { "--accept-loss " },
            newest
                .members
                .by_id
                .get(&newest.member_id)
                .map_or("URL".to_owned(), |member| member.peer_urls.join(","))
        )
    }
}

/// Returns what was formed, and the commands that come next.
fn said(source: &Found, order: &Order, formed: &Formed) -> String {
    let data_dir = order.data_dir.display();
    let urls = order.peer_urls.join(",");
    let Formed { identity, revision, compact_revision, keys } = formed;
    let kept = if order.keeps_cluster_id { "as before" } else { "new" };
    let mut text = format!(
        "Formed a cluster from {}: {data_dir} is member {} ({:x}) of cluster {:x} ({kept}), with {} at revision {revision}",
        source.dir.display(),
        order.name,
        identity.member_id,
        identity.cluster_id,
        report::counted(*keys, "key"),
    );
    text.push_str(&if order.bump.is_some() {
        format!(", compacted up to {compact_revision}.\n")
    } else {
        ".\n".to_owned()
    });
    let own = source.members.by_id.values().find(|member| member.name == order.name);
    let client_urls = own.map(|member| member.client_urls.join(",")).filter(|urls| !urls.is_empty());
    let client_urls = client_urls.unwrap_or_else(|| "CLIENT_URLS".to_owned());
    let wal_dir = match &order.wal_dir {
        None => String::new(),
        Some(WalDir::Inside(below)) => format!(" --wal-dir {}", order.data_dir.join(below).display()),
        Some(WalDir::Apart(path)) => format!(" --wal-dir {}", path.display()),
    };
    text.push_str(&format!(
        "Next:\n1. Start it, with the other flags that its member had:\n   mainstay --name {name} --data-dir {data_dir}{wal_dir} \
         --initial-advertise-peer-urls {urls} --listen-peer-urls {urls} --advertise-client-urls {client_urls} \
         --listen-client-urls {client_urls}\n",
        name = order.name,
    ));
    let others: Vec<_> = source
        .members
        .by_id
        .values()
        .filter(|member| member.name != order.name && member.peer_urls != order.peer_urls)
        .collect();
    if !others.is_empty() {
        text.push_str(
            "2. Add the others, one after the other, each with an empty data directory; move the old one away first:\n",
        );
        for member in others {
            let name = if member.name.is_empty() { "NAME" } else { &member.name };
            text.push_str(&format!(
                "   mainstay ctl --endpoints {client_urls} member add {name} --learner --peer-urls {}\n",
                member.peer_urls.join(",")
            ));
        }
        text.push_str(
            "   Start each as `member add` says, with --initial-cluster-state existing, and promote it: mainstay ctl member \
             promote ID\n",
        );
    }
    if !order.marks.is_empty() {
        text.push_str("The old directories are marked: no member starts on them.\n");
    } else {
        text.push_str(
            "Never start a member on the old directories again (--mark would have made that impossible): they are of a \
             cluster that is no more.\n",
        );
    }
    text.push_str("Start observers and shadows with empty directories.\n");
    text
}

#[cfg(test)]
mod tests {
    use numbers::Index;

    use super::judgement::tests::member;
    use super::*;

    #[test]
    fn the_table_is_sound() {
        PROGRAM.assert_sound();
    }

    #[test]
    fn the_revision_is_raised_above_all_that_clients_may_have_seen() {
        let min = |found: Vec<Found>, from: usize| {
            let judgement = Judgement::of(&found).expect("there are directories");
            let losses = vec![None; found.len()];
            bump_min(&Report { found, unusable: Vec::new(), judgement, losses, different: Vec::new() }, from)
        };
        // Revisions are equal to indexes here.
        let (one, two) = (member(1, &[(1, 1)], 20, 5), member(2, &[(1, 1)], 24, 5));
        assert_eq!(min(vec![one.clone(), two.clone()], 1), 0, "no acknowledged write is missing");
        assert_eq!(min(vec![one.clone(), two], 0), 5, "a watch from revision 25 on has to end");
        assert_eq!(min(vec![one.clone()], 0), UNKNOWN_REVISIONS);
        let heard = Found { heard: Index(30), ..one.clone() };
        assert_eq!(min(vec![heard], 0), UNKNOWN_REVISIONS + 11, "entries 21 to 30 are lost");
        // What the old leader never committed was told to nobody.
        let tail = member(1, &[(1, 1)], 90, 5);
        let later = member(2, &[(1, 1), (11, 2)], 24, 5);
        assert_eq!(min(vec![tail, later], 1), 0);
        // The old cluster has gone on beside the one that was begun with one of its members.
        let alone = Found { voters: vec![vec![1]], ..member(1, &[(1, 1), (11, 5)], 15, 15) };
        let others = member(2, &[(1, 1), (11, 2)], 40, 10);
        assert_eq!(min(vec![alone, others], 0), UNKNOWN_REVISIONS + 26);
    }
}
